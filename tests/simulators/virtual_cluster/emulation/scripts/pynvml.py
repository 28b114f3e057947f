"""Stands in for NVIDIA's binding, whose library is not here."""
