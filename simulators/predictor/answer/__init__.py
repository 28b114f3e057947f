"""What is answered: the prediction, and the numerators of MFU and HFU."""
