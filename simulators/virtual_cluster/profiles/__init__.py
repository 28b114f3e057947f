"""Profiles of real GPUs beside predictions: which operation took how long, and should have."""
