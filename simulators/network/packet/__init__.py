"""Packets: every one of every flow, through queues, marks, pauses and rate control."""

from simulators.network.packet.engine import PacketEngine
from simulators.network.packet.settings import PacketSettings

__all__ = ["PacketEngine", "PacketSettings"]
