"""The fitted coefficients of ``execution.py`` and which set serves which hardware.

``fitted.yaml`` is written by ``python -m simulators.collectives.fit`` with its command,
provenance and residuals beside the numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

# Hardware and fabrics without measurements of their own borrow the nearest that have some.
BORROWED_NODE = {"volta": "ampere"}
BORROWED_NET = {"ethernet": "tcpx", "none": "infiniband"}


@dataclass(frozen=True)
class Coefficients:
    """Microseconds per unit of each term of one (hardware, algorithm, protocol).

    ``rows`` is how many measurements stand behind them (0: NCCL's own constants, scaled to the
    hardware's other fits), ``nodes`` the most nodes among them.
    """

    terms: Mapping[str, float]
    rows: int
    nodes: int


@functools.cache
def _tables() -> dict[str, dict[str, Coefficients]]:
    import yaml

    text = resources.files(__package__).joinpath("fitted.yaml").read_text(encoding="utf-8")
    document = yaml.safe_load(text)
    return {
        part: {
            key: Coefficients(entry["terms"], entry["rows"], entry["nodes"])
            for key, entry in document[part].items()
        }
        for part in ("node", "net")
    }


@functools.cache
def node_coefficients(hardware: str, algorithm: str, protocol: str) -> Coefficients:
    """Coefficients inside a node; ``hardware`` is a GPU generation or ``pci``."""
    found = BORROWED_NODE.get(hardware, hardware)
    # A tree's hops and an NVLSTree's start inside the node are those of the ring and NVLS.
    algorithm = {"tree": "ring", "pat": "ring", "nvls_tree": "nvls"}.get(algorithm, algorithm)
    entry = _tables()["node"][f"{found}/{algorithm}/{protocol}"]
    return entry if found == hardware else Coefficients(entry.terms, 0, 0)


@functools.cache
def net_coefficients(fabric: str, algorithm: str, protocol: str) -> Coefficients:
    """Coefficients between nodes of one fabric."""
    found = BORROWED_NET.get(fabric, fabric)
    entry = _tables()["net"][f"{found}/{algorithm}/{protocol}"]
    return entry if found == fabric else Coefficients(entry.terms, 0, 0)


def weighted_us(terms: Mapping[str, float], coefficients: Coefficients) -> float:
    """The time that counted work takes, in microseconds."""
    weights = coefficients.terms
    return sum(amount * weights[term] for term, amount in terms.items())
