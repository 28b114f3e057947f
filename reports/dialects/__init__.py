"""Dialects: how each framework says a job, for writing launches and for reading them."""
