"""NCCL, white-box: its choice of algorithm, protocol and channels, and the seconds that follow;
and the exchange of tokens by kernels of their own."""

from .price import (
    CollectivePrice,
    open_channels,
    price_collective,
    price_exchange,
    price_send_recv,
)

__all__ = [
    "CollectivePrice",
    "open_channels",
    "price_collective",
    "price_exchange",
    "price_send_recv",
]
