"""Predictions held against measured training runs: rows, replay, errors, rankings."""
