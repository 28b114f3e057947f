"""What the links are, what they carry, and which of them a flow crosses."""

from trainscout.simulators.predictor.network.topology.fabric import SwitchFabric
from trainscout.simulators.predictor.network.topology.network import Network
from trainscout.simulators.predictor.network.topology.parts import Parts, parts
from trainscout.simulators.predictor.network.topology.routing import (
    Routes,
    equal_paths,
    find_routes,
)
from trainscout.simulators.predictor.network.topology.wiring import build_network

__all__ = [
    "Network",
    "Parts",
    "Routes",
    "SwitchFabric",
    "build_network",
    "equal_paths",
    "find_routes",
    "parts",
]
