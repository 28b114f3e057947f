"""PyTorch's caching allocator, and what it makes of a trace."""
