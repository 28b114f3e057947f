"""Packets: every one of every flow, through queues, marks, pauses and rate control."""

from trainscout.simulators.predictor.network.packet.engine import PacketEngine
from trainscout.simulators.predictor.network.packet.settings import PacketSettings

__all__ = ["PacketEngine", "PacketSettings"]
