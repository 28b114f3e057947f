"""What the links are, what they carry, and which of them a flow crosses."""

from simulators.network.topology.fabric import SwitchFabric
from simulators.network.topology.network import Network, build_network
from simulators.network.topology.routing import Routes, find_routes

__all__ = ["Network", "Routes", "SwitchFabric", "build_network", "find_routes"]
