"""The simulator that replays layers traced from real Megatron-Core."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from trainscout.simulators.predictor.answer.prediction import Prediction
from trainscout.simulators.predictor.network.choice import CongestedNetwork
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.replay.priced import HOST
from trainscout.simulators.predictor.replay.simulator import ReplaySimulator
from trainscout.simulators.predictor.uncertainty.calibration import Calibration
from trainscout.simulators.predictor.uncertainty.features import LAUNCH_BOUND
from trainscout.simulators.predictor.workload.feed_forward.exchange import deepep
from trainscout.simulators.predictor.workload.ir import Attention, Block, Collective, Gemm, Op
from trainscout.simulators.predictor.workload.megatron import (
    ChunkShape,
    compose_workload,
    layer_runs,
)
from trainscout.simulators.predictor.workload.parameters import (
    LocalParameters,
    embedding_parameters,
    layer_parameters,
)
from trainscout.simulators.predictor.workload.program import Chunk, Run, Workload
from trainscout.simulators.predictor.workload.shard import Shard

from . import layer_spec
from .cache import Refused, TracedLayer, TracedLayerCache
from .trace_to_blocks import further_communicators
from .tracer import traced_layers

if TYPE_CHECKING:
    from trainscout.simulators.predictor.kernels.measured import MeasuredTable

# Transformer Engine's userbuffers: tensor-parallel communication in pieces beside its product.
#
# They work inside the library's kernels, below anything that is traced. As in ``linear_layers``,
# one of ``tp`` pieces stays exposed and the rest runs beside the product.


def overlap_products(ops: tuple[Op, ...], tp: int) -> tuple[Op, ...]:
    """Blocking gathers before a product and scatters after one, cut up and put beside it.

    ``forward_ops`` of a block is a count of issued operations and stays as it is.
    """
    result: list[Op] = []
    for op in ops:
        result.append(op)
        if isinstance(op, Gemm):
            _overlap_gather(result, tp)
        elif _is_blocking(op, "reduce_scatter"):
            _overlap_scatter(result, tp)
    return tuple(result)


def _is_blocking(op: Op, kind: str) -> bool:
    return (
        isinstance(op, Collective)
        and op.kind == kind
        and op.communicator == "tp"
        and not op.overlaps
    )


def _overlap_gather(result: list[Op], tp: int) -> None:
    """The last operation is a product: a gather right before it runs beside it."""
    before = len(result) - 2
    if before >= 0 and _is_blocking(result[before], "all_gather"):
        result[before : before + 1] = _cut(result[before], tp)


def _overlap_scatter(result: list[Op], tp: int) -> None:
    """The last operation is a scatter: it runs beside a product right before it."""
    before = len(result) - 2
    if before >= 0 and isinstance(result[before], Gemm):
        scatter = result.pop()
        result[before:before] = _cut(scatter, tp)


def _cut(op: Op, tp: int) -> list[Op]:
    assert isinstance(op, Collective)
    piece = op.bytes // tp
    return [replace(op, bytes=piece), replace(op, bytes=op.bytes - piece, overlaps=1)]


# The traced workload source: as ``workload.megatron``, with traced blocks in place of built ones.
#
# Schedules, gradient and parameter communication and the end of a step are the built-in source's,
# for the parameters that the traced layers have.


def traced_workload(job: Job, traced: Mapping[layer_spec.LayerSpec, TracedLayer]) -> Workload:
    """One training step of a valid job out of its layers (``layer_specs_of``)."""
    known: dict[layer_spec.LayerSpec, Run] = {}
    shard = Shard.of(job)

    def run(spec: layer_spec.LayerSpec, count: int = 1) -> Run:
        if spec not in known:
            found = traced[spec]
            known[spec] = Run(
                _as_declared(found.forward, job, shard),
                _as_declared(found.backward, job, shard),
                1,
                found.parameters,
            )
        return replace(known[spec], count=count)

    def chunk(shape: ChunkShape) -> Chunk:
        runs = (
            [_counted(run(layer_spec.embedding_layer(job)), embedding_parameters(shard))]
            if shape.first
            else []
        )
        for layer, recompute, number in layer_runs(job.model, job.recipe.recompute, shape):
            traced_run = run(layer_spec.transformer_layer(job, layer, recompute=recompute), number)
            runs.append(_counted(traced_run, layer_parameters(shard, layer)))
        if shape.last:
            runs.append(_head(run(layer_spec.head_layer(job)), job))
        return Chunk(tuple(runs))

    workload = compose_workload(job, shard, chunk)
    used = {
        op.communicator
        for run in known.values()
        for block in (run.forward, run.backward)
        for op in block.ops
        if isinstance(op, Collective)
    }
    more = {name: each for name, each in further_communicators(job).items() if name in used}
    return replace(workload, communicators=workload.communicators | more)


def _counted(run: Run, built: LocalParameters) -> Run:
    """A layer with which of its parameters are quantised, and which an embedding's, as the
    built-in source has them: a trace tells neither."""
    counts = run.parameters._replace(quantised=built.quantised, embedding=built.embedding)
    return replace(run, parameters=counts)


def _head(run: Run, job: Job) -> Run:
    """The head without the output weight where the embedding on the same rank is that too."""
    if not (job.model.tied_embeddings and job.recipe.pp == 1):
        return run
    rows = job.model.padded_vocab_size(job.recipe.tp) // job.recipe.tp
    shared = LocalParameters(rows * job.model.hidden_size)
    left = LocalParameters(run.parameters.dense - shared.dense, run.parameters.expert)
    return replace(run, parameters=left)


def _as_declared(block: Block, job: Job, shard: Shard) -> Block:
    """A traced block with what tracing leaves open: which generation of fused attention runs,
    communication that Transformer Engine's userbuffers cut up beside the products, and what DeepEP
    moves, which no trace of a rank tells: to how many domains a token goes."""
    ops = tuple(
        replace(op, kernel=job.attention) if isinstance(op, Attention) else op for op in block.ops
    )
    if job.dispatcher == "deepep":
        ops = tuple(_exchanged(op, shard) for op in ops)
    if job.recipe.tp_comm_overlap:
        ops = overlap_products(ops, job.recipe.tp)
    return block if ops == block.ops else replace(block, ops=ops)


def _exchanged(op: Op, shard: Shard) -> Op:
    if isinstance(op, Collective) and (op.kind, op.communicator) == ("all_to_all", "etp_ep"):
        return deepep(shard, op.name)
    return op


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
        self._known: dict[layer_spec.LayerSpec, TracedLayer | Refused] = {}

    def prepare(self, jobs: Iterable[Job]) -> None:
        """Have what jobs need traced together, so that simulating them finds it.

        Jobs that cannot be traced are left to ``simulate``, which says why.

        Raises:
            InputError: when something is missing that cannot be traced here.
        """
        specs: dict[Gpu, dict[layer_spec.LayerSpec, None]] = {}
        for job in jobs:
            try:
                specs.setdefault(job.gpu, {}).update(dict.fromkeys(layer_spec.layer_specs_of(job)))
            except InputError:
                continue
        for gpu, needed in specs.items():
            self._find(tuple(needed), gpu)

    def without_error_bar(self, job: Job) -> Prediction:
        """As ``ReplaySimulator``'s, saying what was traced."""
        layer_spec.check_traceable(job)
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
        specs = layer_spec.layer_specs_of(job)
        self._find(specs, job.gpu)
        found: dict[layer_spec.LayerSpec, TracedLayer] = {}
        for spec in specs:
            traced = self._known[spec]
            if isinstance(traced, Refused):
                problem = f"Megatron-Core does not run this {spec.kind}: {traced.reason}"
                raise InputError("recipe", _format_spec(spec), problem)
            found[spec] = traced
        return traced_workload(job, found)

    def _find(self, specs: tuple[layer_spec.LayerSpec, ...], gpu: Gpu) -> None:
        missing = [spec for spec in specs if spec not in self._known]
        if missing:
            self._known |= traced_layers(missing, gpu, self._cache)

    def _version(self, job: Job) -> str:
        traced = self._known[layer_spec.layer_specs_of(job)[0]]
        return traced.versions["megatron-core"] if isinstance(traced, TracedLayer) else ""


def _format_spec(spec: layer_spec.LayerSpec) -> str:
    return (
        f"tp={spec.tp} cp={spec.cp} ep={spec.ep} sp={spec.sp} recompute={spec.recompute} "
        f"precision={spec.precision}"
    )
