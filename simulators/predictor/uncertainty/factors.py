"""What multiplies predicted times."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

SHARES = ("memory_time", "node_time", "network_time", "host_time", "straggler_time")
"""Parts of the step with a time factor of their own; what is left is computation."""


@dataclass(frozen=True)
class Factors:
    """What multiplies predicted times.

    ``compute_time``: the seconds of products and attention; ``memory_time``: of kernels that only
    stream memory; ``node_time`` and ``network_time``: of communication inside a node and of what
    leaves one; ``host_time``: the host's seconds per launch; ``straggler_time``: by how much the
    slowest GPU is behind; ``overlap_time``: by how much longer kernels and communication take
    beside each other.
    """

    compute_time: float = 1.0
    memory_time: float = 1.0
    node_time: float = 1.0
    network_time: float = 1.0
    host_time: float = 1.0
    straggler_time: float = 1.0
    overlap_time: float = 1.0

    def slowed(self, factor: float) -> Factors:
        """All times that much longer (stragglers and overlap are shares of others')."""
        longer = {name: getattr(self, name) * factor for name in FACTORS if name not in _SHARED}
        return dataclasses.replace(self, **longer)


_SHARED = ("straggler_time", "overlap_time")


FACTORS = tuple(field.name for field in dataclasses.fields(Factors))
AS_IT_COMES = Factors()
