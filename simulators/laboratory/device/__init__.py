"""What is needed to measure on a real GPU: timing, kernels to time, resumable tables.

Nothing here is used while predicting. PyTorch is imported when a device is opened.
"""
