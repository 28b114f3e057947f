"""How error bars are calibrated."""
