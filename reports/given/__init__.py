"""What a user's launch script, configuration file or arguments say of a job."""

from trainscout.reports.given.given import Given, Reading
from trainscout.reports.given.read import read_given
from trainscout.reports.given.torchtitan import TITLE as TORCHTITAN

__all__ = ["TORCHTITAN", "Given", "Reading", "read_given"]
