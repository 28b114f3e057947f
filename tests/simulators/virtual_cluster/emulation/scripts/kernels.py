"""Stands for the package that loads kernels from a hub."""
