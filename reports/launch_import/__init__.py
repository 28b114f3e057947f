"""What a user's launch script, configuration file or arguments say of a job."""

from trainscout.reports.launch_import.imported import ImportedLaunch, Reading
from trainscout.reports.launch_import.read import read_launch
from trainscout.reports.launch_import.torchtitan import TITLE as TORCHTITAN

__all__ = ["TORCHTITAN", "ImportedLaunch", "Reading", "read_launch"]
