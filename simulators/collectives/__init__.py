"""NCCL, white-box: its choice of algorithm, protocol and channels, and the seconds that follow."""

from simulators.collectives.price import CollectivePrice, price_collective, price_send_recv

__all__ = ["CollectivePrice", "price_collective", "price_send_recv"]
