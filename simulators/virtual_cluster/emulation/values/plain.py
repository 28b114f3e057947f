"""PyTorch's constructors as they are: DeepSpeed replaces torch's own while it makes a model."""

from torch import arange, empty, full, tensor, zeros

__all__ = ["arange", "empty", "full", "tensor", "zeros"]
