"""Price kernels: operations of the IR -> seconds on one GPU, with the evidence behind them."""

from simulators.kernels.prices import (
    EVIDENCE_ORDER,
    KernelPrices,
    host_launch_s,
    price_kernels,
)

__all__ = ["EVIDENCE_ORDER", "KernelPrices", "host_launch_s", "price_kernels"]
