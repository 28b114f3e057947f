"""Measure kernels, fit their coefficients, validate their prices."""
