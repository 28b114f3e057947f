"""``transformer_engine_torch``: what Transformer Engine's Python calls of its compiled part.

The library's own Python, of the version that the user has, runs above it. Each function is the
kernels that the compiled one launches, with tensors of the same sizes; ``catalogue`` lists them.
"""
