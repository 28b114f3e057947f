"""Workloads whose blocks were traced from Megatron-Core's layers, not built from shapes."""
