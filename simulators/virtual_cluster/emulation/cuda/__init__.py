"""``torch.cuda`` as it is on a machine with GPUs."""
