"""Price kernels: operations of the IR -> seconds on one GPU, with the evidence behind them."""

from .prices import EVIDENCE_ORDER, KernelPrices, price_kernels
from .uncertainty import kernel_uncertainty

__all__ = ["EVIDENCE_ORDER", "KernelPrices", "kernel_uncertainty", "price_kernels"]
