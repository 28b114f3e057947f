"""How sure a prediction is, from how far predictions of measured runs like it were off."""
