"""Trainscout: which training recipe to run, what it costs, and how sure that is."""
