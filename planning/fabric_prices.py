"""What the parts of a fabric cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainscout.simulators.predictor.question.errors import require_positive

if TYPE_CHECKING:
    from trainscout.simulators.predictor.network.topology.parts import Parts


@dataclass(frozen=True)
class FabricPrices:
    """Dollars for each Gb/s of a part, bought. Assumptions, of the order of what resellers asked
    for 400 Gb/s parts in 2025; no list of prices stands behind them."""

    nic_usd_per_gbps: float = 4.0
    """A NIC (1,600 dollars at 400 Gb/s)."""
    switch_usd_per_gbps: float = 1.2
    """A switch port (30,000 dollars for a switch of 64 at 400 Gb/s)."""
    cable_usd_per_gbps: float = 4.5
    """A cable with the transceivers at its ends (1,800 dollars at 400 Gb/s)."""

    def check(self, field: str) -> None:
        """Refuse what is no price."""
        for name in ("nic_usd_per_gbps", "switch_usd_per_gbps", "cable_usd_per_gbps"):
            require_positive(f"{field}.{name}", getattr(self, name), allow_zero=True)

    def of(self, used: Parts) -> float:
        """Dollars for a fabric's parts."""
        return (
            used.nic_gbps * self.nic_usd_per_gbps
            + used.port_gbps * self.switch_usd_per_gbps
            + used.cable_gbps * self.cable_usd_per_gbps
        )
