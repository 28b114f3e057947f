"""Two recipes of one job: where each second goes, and which change brings what."""
