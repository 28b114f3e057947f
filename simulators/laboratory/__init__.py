"""Fit, measure, validate: what makes the predictor's coefficients and says how far off it is."""
