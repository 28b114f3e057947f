"""How long a training step takes, and why: predicted, run on virtual GPUs, measured."""
