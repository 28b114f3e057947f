"""Train what the hybrid network engine predicts queues with."""
