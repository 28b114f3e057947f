"""Unmodified scripts on virtual GPUs: traced, collated, executed, and run live."""
