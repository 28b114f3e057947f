"""Launch import: a user's launch script, configuration file or arguments as a job."""

from trainscout.reports.launch_import.read import ImportedLaunch, read_launch

__all__ = ["ImportedLaunch", "read_launch"]
