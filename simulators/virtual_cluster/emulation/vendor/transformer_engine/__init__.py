"""Transformer Engine's PyTorch modules as version 2.9 has them.

Written from what the library does (which kernels, which collectives, which tensors it keeps), not
from its code. One file for each part; ``vendor.catalogue`` says under which name scripts find it.
"""
