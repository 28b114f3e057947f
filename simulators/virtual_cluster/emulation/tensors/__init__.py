"""Tensors of the emulated device, and what torch does with them."""
