"""Published measurements and other projects' published predictions, with their sources."""
