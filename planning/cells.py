"""The cells of a study: one search each, and what makes two of them the same question."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainscout.optimizer.asked import AskedSearch
from trainscout.optimizer.objective import Objective
from trainscout.optimizer.options import ExecutorOptions, SearchOptions
from trainscout.planning.study import Study, WhatIf
from trainscout.simulators.predictor.network.topology.fabric import SwitchFabric
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.registry import SimulatorSpec, calibrated

# Money and the length of a run follow from the step afterwards: a new price is no new search.
OBJECTIVE = Objective(("step_time",))
FABRIC = ("nics_per_node", "nic_gbps", "oversubscription")
"""What of a cluster makes its fabric."""


@dataclass(frozen=True)
class Declarations:
    """The models, and the clusters with their GPUs, by the names that a study calls them;
    ``topologies`` are the switches to play communication over, none where it is not played."""

    models: Mapping[str, Model]
    clusters: Mapping[str, tuple[Cluster, Gpu]]
    framework: Framework
    topologies: tuple[SwitchFabric, ...] = ()


@dataclass(frozen=True)
class SearchSettings:
    """How every cell is searched; ``space`` is a space file's content, ``simulator`` has any
    switches, as every cell has its own."""

    space: Mapping[str, Any]
    options: SearchOptions
    simulator: SimulatorSpec
    seed: int

    def asked(self, cell: Cell) -> AskedSearch:
        """The search of one cell."""
        question, simulator = cell.question, self.simulator_of(cell)
        serial = ExecutorOptions("serial")
        return AskedSearch(
            question, self.space, OBJECTIVE, self.options, simulator, serial, self.seed
        )

    def simulator_of(self, cell: Cell) -> SimulatorSpec:
        """The simulator of one cell: on its switches, as its cluster is calibrated."""
        spec = self.simulator
        if spec.network is not None and cell.topology is not None:
            spec = replace(spec, network=replace(spec.network, fabric=cell.topology))
        return calibrated(spec, cell.question.cluster)


@dataclass(frozen=True)
class Cell:
    """One question of a study; ``model`` and ``cluster`` are the names it is declared by,
    ``topology`` its switches where communication is played."""

    model: str
    cluster: str
    question: Question
    topology: SwitchFabric | None = None

    @property
    def num_gpus(self) -> int:
        return self.question.cluster.num_gpus

    @property
    def fabric(self) -> str:
        """NICs of a node, their rate, how oversubscribed the fabric is, and its switches."""
        cluster = self.question.cluster
        words = f"{cluster.nics_per_node} x {cluster.nic_gbps:g} Gb/s"
        # At any size, so that sizes of one cluster share a name.
        if self.topology is None and cluster.nics_per_node and not cluster.network_validated:
            words += ", unvalidated"
        elif cluster.oversubscription not in (None, 1):
            words += f", {cluster.oversubscription:g}:1"
        if self.topology is not None:
            words += f", {self.topology.name}"
        return words

    @property
    def key(self) -> str:
        """What distinguishes it from the other cells of its study, the same from run to run."""
        batch = self.question.training.global_batch_size
        return (
            f"{self.model}, {self.num_gpus} GPUs of {self.cluster}, {self.fabric}, batch {batch}"
        )


def study_cells(study: Study, declarations: Declarations) -> tuple[Cell, ...]:
    """Every cell, models first, then clusters, fabrics and sizes.

    Raises:
        InputError: for a size that is no number of whole nodes, or an impossible declaration.
    """
    return tuple(
        cell
        for model, name in itertools.product(study.models, study.clusters)
        for fabric in _fabrics(study)
        for topology in declarations.topologies or (None,)
        for cell in _sizes(study, declarations, model, name, fabric, topology)
    )


def _fabrics(study: Study) -> Iterator[dict[str, Any]]:
    varied = {axis: getattr(study, axis) for axis in FABRIC if getattr(study, axis)}
    for values in itertools.product(*varied.values()):
        yield dict(zip(varied, values, strict=True))


def _sizes(
    study: Study,
    declarations: Declarations,
    model: str,
    name: str,
    fabric: dict[str, Any],
    topology: SwitchFabric | None,
) -> Iterator[Cell]:
    cluster = declarations.clusters[name][0]
    in_nodes = [nodes * cluster.gpus_per_node for nodes in study.num_nodes]
    for num_gpus in study.num_gpus or in_nodes or [cluster.num_gpus]:
        yield make_cell(study, declarations, model, name, num_gpus, fabric, topology)


def make_cell(
    study: Study,
    declarations: Declarations,
    model: str,
    name: str,
    num_gpus: int,
    fabric: Mapping[str, Any],
    topology: SwitchFabric | None = None,
) -> Cell:
    """One cell; ``fabric`` has fields of ``Cluster`` to replace.

    Raises:
        InputError: for a size that is no number of whole nodes, or an impossible declaration.
    """
    cluster, gpu = declarations.clusters[name]
    nodes, rest = divmod(num_gpus, cluster.gpus_per_node)
    if rest:
        problem = f"is no number of whole nodes of {name}"
        allowed = f"multiples of {cluster.gpus_per_node}"
        raise InputError("sweep.num_gpus", num_gpus, problem, allowed)
    price = study.prices_usd_per_hour.get(gpu.name, gpu.price_usd_per_hour)
    batch = study.training.global_batch_size
    if study.sequences_per_gpu is not None:
        batch = study.sequences_per_gpu * num_gpus
    question = Question(
        declarations.models[model],
        replace(gpu, price_usd_per_hour=price),
        replace(cluster, num_nodes=nodes, **fabric),
        replace(study.training, global_batch_size=batch),
        declarations.framework,
    )
    question.check()
    return Cell(model, name, question, topology)


def what_if_cell(study: Study, declarations: Declarations, cell: Cell, what_if: WhatIf) -> Cell:
    """``cell`` as ``what_if`` changes it.

    Raises:
        InputError: when there is no such cluster.
    """
    size = cell.num_gpus * what_if.size
    # 320 times 1.1 is a little more than 352.
    if not math.isclose(size, round(size)):
        raise InputError("sweep.what_ifs", what_if.size, f"makes {size:g} GPUs", "whole nodes")
    cluster = cell.question.cluster
    kept = FABRIC if what_if.cluster is None else ()
    fabric: dict[str, Any] = {field: getattr(cluster, field) for field in kept}
    name = what_if.cluster or cell.cluster
    rate = fabric.get("nic_gbps", declarations.clusters[name][0].nic_gbps)
    fabric["nic_gbps"] = rate * what_if.network
    return make_cell(study, declarations, cell.model, name, round(size), fabric, cell.topology)


def cell_identity(cell: Cell, settings: SearchSettings) -> dict[str, Any]:
    """Everything that determines a cell's answer, JSON-ready; neither prices nor run lengths."""
    question = cell.question
    priceless = replace(
        question,
        gpu=replace(question.gpu, price_usd_per_hour=0.0),
        cluster=replace(question.cluster, source=""),
        model=replace(question.model, source=""),
        training=replace(question.training, tokens=1.0),
    )
    identified = replace(settings.asked(cell), question=priceless).identity()
    limits = {name: getattr(settings.options, name) for name in _LIMITS}
    code = [product_digest(), *_own_code(settings.simulator)]
    return {**identified, "limits": limits, "code": code}


_LIMITS = ("n_trials", "patience", "min_trials", "promote_to", "prove", "proof_timeout_s")


def digest(cell: Cell, settings: SearchSettings) -> str:
    """Equal questions, equal digests; any change of the product's code is another question."""
    text = json.dumps(cell_identity(cell, settings), sort_keys=True, default=list)
    return hashlib.sha256(text.encode()).hexdigest()


_ROOT = Path(__file__).parent.parent

_ANSWERING = (".py", ".cpp", ".csv", ".json", ".yaml")


@functools.cache
def product_digest() -> str:
    """Hash of the code and data that answer a cell; how answers are tracked does not matter, nor
    what of ``conf`` is part of the question."""
    summed = hashlib.sha256()
    for room in ("simulators", "pruning", "optimizer", "conf/transport"):
        for path in sorted((_ROOT / room).rglob("*")):
            if path.suffix in _ANSWERING and path.parent != _ROOT / "optimizer" / "tracking":
                summed.update(str(path.relative_to(_ROOT)).encode())
                summed.update(path.read_bytes())
    return summed.hexdigest()


def _own_code(simulator: SimulatorSpec) -> Sequence[str]:
    """Hash of the file of a simulator of the user's own."""
    module, colon, _ = simulator.name.partition(":")
    found = importlib.util.find_spec(module) if colon else None
    if found is None or found.origin is None:
        return ()
    return (hashlib.sha256(Path(found.origin).read_bytes()).hexdigest(),)
