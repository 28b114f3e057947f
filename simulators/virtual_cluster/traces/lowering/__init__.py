"""Traced operations to typed device operations: names, shapes and strides in, kernels out."""
