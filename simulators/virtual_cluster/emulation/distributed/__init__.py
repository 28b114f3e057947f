"""``torch.distributed`` with one rank present: collectives are launched, never executed."""
