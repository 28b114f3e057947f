"""Measure and fit how kernels and communication slow each other."""
