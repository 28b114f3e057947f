"""One training job predicted: all that this needs, and no more."""
