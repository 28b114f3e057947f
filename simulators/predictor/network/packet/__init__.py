"""Packets: every one of every flow, through queues, marks, pauses and rate control."""

from .engine import PacketEngine
from .settings import PacketSettings

__all__ = ["PacketEngine", "PacketSettings"]
