"""What a user's launch script, configuration file or arguments say of a job."""

from reports.given.given import Given, Reading
from reports.given.read import read_given

__all__ = ["Given", "Reading", "read_given"]
