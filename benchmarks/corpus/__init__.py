"""Public training scripts, unmodified, on virtual GPUs: which of them run."""
