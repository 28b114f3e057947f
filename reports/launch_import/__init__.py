"""Launch import: a user's launch script, configuration file or arguments as a job."""
