"""A profile of a real GPU beside a prediction, as people and programs read it."""
