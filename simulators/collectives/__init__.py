"""NCCL, white-box: its choice of algorithm, protocol and channels, and the seconds that follow."""

from simulators.collectives.price import CollectivePrice, price_collective, price_send_recv
from simulators.collectives.uncertainty import collective_uncertainty

__all__ = [
    "CollectivePrice",
    "collective_uncertainty",
    "price_collective",
    "price_send_recv",
]
