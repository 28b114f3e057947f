"""What a user's launch script, configuration file or arguments say of a job."""

from reports.given.given import Given, Reading
from reports.given.read import read_given
from reports.given.torchtitan import TITLE as TORCHTITAN

__all__ = ["TORCHTITAN", "Given", "Reading", "read_given"]
