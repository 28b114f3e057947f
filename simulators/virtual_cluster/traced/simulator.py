"""The simulator that replays layers traced from real Megatron-Core."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.network.choice import CongestedNetwork
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.replay.priced import HOST
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.uncertainty import LAUNCH_BOUND
from trainscout.simulators.predictor.uncertainty.calibration import Calibration
from trainscout.simulators.predictor.workload.program import Workload
from trainscout.simulators.virtual_cluster.traced.cache import TracedLayer, TracedLayerCache
from trainscout.simulators.virtual_cluster.traced.layer_spec import (
    LayerSpec,
    check_traceable,
    layer_specs_of,
)
from trainscout.simulators.virtual_cluster.traced.source import traced_workload
from trainscout.simulators.virtual_cluster.traced.tracer import Refused, traced_layers

if TYPE_CHECKING:
    from trainscout.simulators.predictor.kernels.measured import MeasuredTable


class TracedSimulator(ReplaySimulator):
    """Replays blocks that were traced once each, on this machine, without a GPU.

    What was traced is kept in ``cache`` (None: the user's cache directory).
    """

    name = "traced"

    def __init__(
        self,
        calibration: Calibration | None = None,
        measured: MeasuredTable | None = None,
        network: CongestedNetwork | None = None,
        cache: TracedLayerCache | None = None,
    ) -> None:
        super().__init__(calibration, measured, network)
        self._cache = cache or TracedLayerCache()
        self._known: dict[LayerSpec, TracedLayer | Refused] = {}

    def prepare(self, jobs: Iterable[Job]) -> None:
        """Have what jobs need traced together, so that simulating them finds it.

        Jobs that cannot be traced are left to ``simulate``, which says why.

        Raises:
            InputError: when something is missing that cannot be traced here.
        """
        specs: dict[Gpu, dict[LayerSpec, None]] = {}
        for job in jobs:
            try:
                specs.setdefault(job.gpu, {}).update(dict.fromkeys(layer_specs_of(job)))
            except InputError:
                continue
        for gpu, needed in specs.items():
            self._find(tuple(needed), gpu)

    def without_error_bar(self, job: Job) -> Prediction:
        """As ``ReplaySimulator``'s, saying what was traced."""
        check_traceable(job)
        prediction = super().without_error_bar(job)
        assumed = f"layers as Megatron-Core {self._version(job)} runs them, traced"
        if job.recipe.tp_comm_overlap:
            assumed += "; userbuffers, which no trace shows, as in the built-in workload"
        if prediction.breakdown_s.get(HOST, 0.0) > LAUNCH_BOUND * prediction.step_time_s:
            assumed += (
                "; the host's time per launch was fitted to the built-in layers' fewer launches"
            )
        return replace(prediction, assumptions=(*prediction.assumptions, assumed))

    def workload(self, job: Job) -> Workload:
        """The job's blocks, traced where the cache has none.

        Raises:
            InputError: for a job that cannot be traced, here or at all.
        """
        specs = layer_specs_of(job)
        self._find(specs, job.gpu)
        found: dict[LayerSpec, TracedLayer] = {}
        for spec in specs:
            traced = self._known[spec]
            if isinstance(traced, Refused):
                problem = f"Megatron-Core does not run this {spec.kind}: {traced.reason}"
                raise InputError("recipe", _format_spec(spec), problem)
            found[spec] = traced
        return traced_workload(job, found)

    def _find(self, specs: tuple[LayerSpec, ...], gpu: Gpu) -> None:
        missing = [spec for spec in specs if spec not in self._known]
        if missing:
            self._known |= traced_layers(missing, gpu, self._cache)

    def _version(self, job: Job) -> str:
        traced = self._known[layer_specs_of(job)[0]]
        return traced.versions["megatron-core"] if isinstance(traced, TracedLayer) else ""


def _format_spec(spec: LayerSpec) -> str:
    return (
        f"tp={spec.tp} cp={spec.cp} ep={spec.ep} sp={spec.sp} recompute={spec.recompute} "
        f"precision={spec.precision}"
    )
