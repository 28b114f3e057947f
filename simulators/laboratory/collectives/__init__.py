"""Fit and validate the model of NCCL's collectives."""
