"""A capacity study as declared: which clusters, for which models, to meet which targets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainscout.planning.fabric_prices import FabricPrices
from trainscout.simulators.predictor.question.cluster import MOST_GPUS
from trainscout.simulators.predictor.question.errors import (
    MOST,
    InputError,
    require_choice,
    require_positive,
)
from trainscout.simulators.predictor.question.training import Training

PREFERENCES = ("cheapest", "fastest", "smallest")


@dataclass(frozen=True)
class Target:
    """What a run has to keep to; None is no limit, so a target without any is "it fits"."""

    days: float | None = None
    """Calendar days at most."""
    usd: float | None = None
    """Dollars at most."""
    gpus: int | None = None
    """GPUs at most."""

    def check(self, field_name: str) -> None:
        """Refuse limits that mean nothing."""
        for name in ("days", "usd", "gpus"):
            if getattr(self, name) is not None:
                require_positive(f"{field_name}.{name}", getattr(self, name))


@dataclass(frozen=True)
class WhatIf:
    """A change to the cell that a model's answer names, searched anew."""

    cluster: str | None = None
    """Takes the cluster's place at the same number of GPUs."""
    size: float = 1.0
    """Multiplies the GPUs."""
    network: float = 1.0
    """Multiplies the rate of every NIC."""

    def check(self, field_name: str) -> None:
        """Refuse factors that mean nothing."""
        for name in ("size", "network"):
            require_positive(f"{field_name}.{name}", getattr(self, name))


@dataclass(frozen=True)
class Study:
    """Every model on every cluster, at every size and on every fabric."""

    name: str
    """Also the directory of its results."""
    models: tuple[str, ...]
    """Names of declarations."""
    clusters: tuple[str, ...]
    """Names of declarations; ``gpu@cluster`` is a cluster with other GPUs in it."""
    training: Training
    """Batch, tokens, sequence length and precision of all cells."""
    num_gpus: tuple[int, ...] = ()
    """The sizes in GPUs; or give ``num_nodes``. Without either, the clusters' own."""
    num_nodes: tuple[int, ...] = ()
    """The sizes in nodes; or give ``num_gpus``."""
    sequences_per_gpu: int | None = None
    """The batch is so many times the GPUs, instead of ``training.global_batch_size``."""
    nic_gbps: tuple[float, ...] = ()
    """Rates of a NIC in Gb/s; empty leaves the clusters' own."""
    oversubscription: tuple[float | None, ...] = ()
    """As ``cluster.oversubscription``, ``null`` included; empty leaves the clusters' own."""
    nics_per_node: tuple[int, ...] = ()
    """Empty leaves the clusters' own."""
    topologies: tuple[str, ...] = ()
    """Names of declarations, each played in turn; empty takes the group ``topology``."""
    fabric_prices: FabricPrices = field(default_factory=FabricPrices)
    """What a cluster's network costs, where it is asked with several fabrics."""
    prices_usd_per_hour: dict[str, float] = field(default_factory=dict)
    """By the GPU's name, in place of declared ones."""
    # Prices by GPU; a dictionary of dictionaries of floats would refuse whole numbers.
    price_scenarios: dict[str, Any] = field(default_factory=dict)
    """More such lists, by names of their own: the answer at each is shown too."""
    targets: dict[str, Target] = field(default_factory=dict)
    """Limits by name, of which a cell of the answer meets all."""
    what_ifs: dict[str, WhatIf] = field(default_factory=dict)
    """Changes to the answer's cell, by name."""
    prefer: str = "cheapest"
    """Which of the cells that meet every target is the answer: ``cheapest``, ``fastest`` or
    ``smallest``."""

    def check(self) -> None:
        """Refuse a study that asks nothing, or something impossible."""
        # The name is a directory's.
        if not re.fullmatch(r"\w[\w.-]*", self.name):
            allowed = "letters, digits, '_', '-' and '.'"
            raise InputError("sweep.name", self.name, "cannot name a directory", allowed)
        for name in ("models", "clusters"):
            if not getattr(self, name):
                raise InputError(f"sweep.{name}", [], "is empty", "one name or more")
        if self.num_gpus and self.num_nodes:
            sizes = [*self.num_gpus, *self.num_nodes]
            allowed = "num_gpus or num_nodes, not both"
            raise InputError("sweep.num_gpus", sizes, "gives sizes twice", allowed)
        for name in ("models", "clusters", "topologies", *_AXES):
            values = getattr(self, name)
            if len(set(values)) != len(values):
                raise InputError(
                    f"sweep.{name}", list(values), "repeats a value", "each value once"
                )
        for name in _AXES:
            most = MOST_GPUS if name in ("num_gpus", "num_nodes") else MOST
            for value in getattr(self, name):
                if value is not None:
                    require_positive(f"sweep.{name}", value, most=most)
        if self.sequences_per_gpu is not None:
            require_positive("sweep.sequences_per_gpu", self.sequences_per_gpu)
        for name, prices in self.price_scenarios.items():
            if not isinstance(prices, Mapping):
                field_name = f"sweep.price_scenarios.{name}"
                raise InputError(field_name, prices, "is no list of prices", "{h100: 1.9}")
        for path, prices in self.price_lists():
            for gpu, price in prices.items():
                require_positive(f"{path}.{gpu}", price)
        for name, target in self.targets.items():
            target.check(f"sweep.targets.{name}")
        for name, what_if in self.what_ifs.items():
            what_if.check(f"sweep.what_ifs.{name}")
        self.fabric_prices.check("sweep.fabric_prices")
        require_choice("sweep.prefer", self.prefer, PREFERENCES)

    def price_lists(self) -> Iterator[tuple[str, Mapping[str, float]]]:
        """Every list of prices by GPU, with the setting it comes from."""
        yield "sweep.prices_usd_per_hour", self.prices_usd_per_hour
        for name, prices in self.price_scenarios.items():
            yield f"sweep.price_scenarios.{name}", prices


_AXES = ("num_gpus", "num_nodes", "nic_gbps", "oversubscription", "nics_per_node")
