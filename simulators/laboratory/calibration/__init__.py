"""Corrections to the predictor, fitted to a few runs of one machine."""
