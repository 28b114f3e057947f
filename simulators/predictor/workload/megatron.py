"""The built-in workload source: a Megatron-LM style job, from shapes alone."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.knobs.recomputation import DEFAULT_RECOMPUTE_MODULES
from trainscout.simulators.predictor.question.layers import Layer
from trainscout.simulators.predictor.question.model import Model

from .communicators import communicators
from .feed_forward.exchange import is_exchange
from .ir import Alloc, Block, Collective, Free, HostSync, Op, Streaming
from .linear_layers.frozen_weights import gathered_bytes
from .linear_layers.linear import linear
from .model.diffusion import first_diffusion_parameters, last_diffusion_parameters
from .model.ends import first_blocks, head_blocks
from .model.layer import layer_blocks, trained_layer_parameters
from .model.offload import offloaded_tags
from .model.reference import Reference, reference_runs
from .model.tower import tower_parameters
from .parameters import LocalParameters, embedding_parameters, head_parameters, norm_parameters
from .part import Part, compose, hidden_norm
from .program import Chunk, Run, Stage, Workload
from .residual_stream.embedding import embedding_blocks
from .shard import Shard
from .weights.data_parallel import flattened_bytes
from .weights.step_end import copied_gradient_bytes, finish_block, optimizer_block


def build_workload(job: Job) -> Workload:
    """One training step of a valid job: the program of every pipeline stage."""
    shard, mode = Shard.of(job), ChunkMode.of(job)
    return compose_workload(job, shard, lambda shape: build_chunk(shard, mode, shape))


# Modules of Transformers' Llama layer and of an expert (4.51, modeling_qwen3_moe.py: Qwen3MoeMLP),
# each with hooks under DeepSpeed's ZeRO 3, which were measured on such layers.
_LAYER_MODULES, _EXPERT_MODULES = 13, 5


@dataclass(frozen=True)
class ChunkShape:
    """What a chunk holds: so many of each of ``Model.layer_kinds``, and the model's ends or not.

    ``recomputed``: its first layers that full recomputation repeats (None: all).
    """

    layers: tuple[int, ...]
    first: bool
    last: bool
    recomputed: int | None = None


def compose_workload(job: Job, shard: Shard, chunk_of: Callable[[ChunkShape], Chunk]) -> Workload:
    """The stages of a valid job of this shard, from wherever their chunks come."""
    made: dict[ChunkShape, Chunk] = {}
    stages: list[Stage] = []
    finished: dict[tuple[object, ...], Stage] = {}
    ends = [(route[0], route[-1]) for route in job.routes]
    model = job.model
    for stage, layers in enumerate(layers_by_stage(job)):
        # Embeddings that live on both ends: their gradients are summed.
        shares, recomputed = shares_embedding(job, stage), job.recomputed_layers(stage)
        held = tuple(model.layers_of_each(start, stop) for start, stop in layers)
        placed = tuple(
            (first[1] if first[0] == stage else None, last[1] if last[0] == stage else None)
            for first, last in ends
        )
        content = (held, placed, recomputed, shares)
        if content not in finished:
            firsts, lasts = zip(*placed, strict=True)
            shapes = [
                ChunkShape(counts, index in firsts, index in lasts, recomputed)
                for index, counts in enumerate(held)
            ]
            for shape in shapes:
                if shape not in made:
                    chunk = chunk_of(shape)
                    away = copied_gradient_bytes(chunk.parameters, job)
                    made[shape] = replace(chunk, gradient_bytes=away) if away else chunk
            chunks = tuple(made[shape] for shape in shapes)
            count = sum(stop - start for start, stop in layers)
            parameters = sum((chunk.parameters for chunk in chunks), LocalParameters())
            finished[content] = Stage(
                chunks,
                finish_block(job, parameters, count, shares_embedding=shares),
                optimizer_block(job, parameters, count),
            )
        stages.append(finished[content])
    return Workload(tuple(stages), communicators(job), shard.boundary_bytes)


def layers_by_stage(job: Job) -> list[list[tuple[int, int]]]:
    """For each stage the layer range of each of its chunks, ``[start, stop)``.

    Interleaving deals layers out chunk by chunk: chunk ``c`` of stage ``s`` follows chunk
    ``c`` of stage ``s - 1`` (Narayanan et al. 2021, figure 4).
    """
    recipe = job.recipe
    ranges = [[(0, 0)] * recipe.vpp for _ in range(recipe.pp)]
    for route in job.routes:
        start = 0
        for stage, chunk in route:
            count = job.layers_per_chunk[stage][chunk]
            ranges[stage][chunk] = (start, start + count)
            start += count
    return ranges


def shares_embedding(job: Job, stage: int) -> bool:
    """Whether a stage sums the gradient of an embedding with the model's other end, which has a
    copy of it for tied logits or for modules of further tokens, whose inputs it looks up
    (Megatron-Core's models/common/language_module: ``setup_embeddings_and_output_layer``)."""
    model = job.model
    if job.ends_meet or not (model.tied_embeddings or model.num_mtp_layers):
        return False
    (first, *_, last), *_ = job.routes
    return stage in (first[0], last[0])


@dataclass(frozen=True)
class ChunkMode:
    """What a chunk's content depends on besides its shard and layers.

    ``modules`` of every layer are recomputed when ``recompute`` is ``selective``.
    ``single_stage``: the head, or a module for further tokens, shares the embedding's weight.
    ``copies_gathered``: gathered parameters are copied out of the gathered buffer before they are
    used. ``flattened_bytes`` a gradient are moved on its way to the buffer that is reduced, where
    it is ``hooked`` by a hook on each parameter, in Python.
    ``units``: hooks of what shards run with every layer, and where FSDP wraps them ``ends_too``
    (hooks of others sit on modules, of which the ends have few), in one with experts as often as
    in so many more (``expert_units``). ``one_root_unit``: FSDP has both ends in it, and where it
    ``reshards_root`` gathers it for either pass. The activations of the first ``offloaded`` layers
    leave the GPU, and those of ``offload_modules``.
    ``references`` pass each micro-batch forward, too.
    """

    recompute: str
    modules: str
    single_stage: bool
    copies_gathered: bool
    flattened_bytes: int
    hooked: bool
    units: bool
    expert_units: float
    ends_too: bool
    one_root_unit: bool
    reshards_root: bool
    offloaded: int
    offload_modules: frozenset[str]
    references: tuple[Reference, ...] = ()

    @classmethod
    def of(cls, job: Job) -> ChunkMode:
        recipe = job.recipe
        return cls(
            recipe.recompute,
            recipe.recompute_modules or DEFAULT_RECOMPUTE_MODULES,
            job.ends_meet and (job.model.tied_embeddings or job.model.num_mtp_layers > 0),
            job.framework.copies_gathered and recipe.zero_stage == 3,
            flattened_bytes(job),
            job.framework.flattens_gradients and not job.gathers_units,
            job.hooks_units,
            _expert_units(job),
            job.framework.torch_wrappers,
            job.joins_ends and job.gathers_units,
            job.framework.reshards_root,
            recipe.offloaded_layers,
            frozenset(filter(None, (recipe.offload_modules or "").split("+"))),
            Reference.of(job),
        )


@functools.lru_cache(maxsize=8192)
def build_chunk(shard: Shard, mode: ChunkMode, shape: ChunkShape) -> Chunk:
    """One model chunk: its layers, those of a kind together, between the ends it holds."""
    runs: list[Run] = []
    if shape.first:
        held = _first_parameters(shard)
        runs.append(Run(*first_blocks(shard), 1, held))
    left, copied = mode.offloaded, 0
    for layer, recompute, number in layer_runs(shard.model, mode.recompute, shape):
        blocks = layer_blocks(shard, layer, recompute, mode.modules)
        if mode.offload_modules:
            tags = offloaded_tags(shard, layer, mode.offload_modules)
            kept = blocks[0].saved_bytes
            forward, backward = (_offloaded(block, tags) for block in blocks)
            copied += number * (kept - forward.saved_bytes)
            blocks = forward, backward
        parameters = trained_layer_parameters(shard, layer)
        away = min(left, number)
        left -= away
        if away:
            copied += away * blocks[0].saved_bytes
            forward, backward = map(_offloaded, blocks)
            runs.append(Run(forward, backward, away, parameters))
        if number > away:
            runs.append(Run(*blocks, number - away, parameters))
    if shape.last:
        runs += _mtp_modules(shard, mode)
        runs.append(Run(*head_blocks(shard), 1, _last_parameters(shard, mode)))
    if shard.overlap_dispatch:
        runs = [_with_exchanges_overlapping(run) for run in runs]
    if mode.one_root_unit and shape.first and shape.last:
        runs = _with_root_unit(runs, kept=not mode.reshards_root)
    for reference in mode.references:
        ends = {"first": shape.first, "last": shape.last}
        frozen = reference_runs(reference, shape.layers, **ends)
        runs = [*frozen, *runs] if reference.leads else [*runs, *frozen]
    if mode.copies_gathered:
        runs = [_with_copies(run, shard) for run in runs]
    if mode.flattened_bytes:
        runs = [_flattened(run, mode.flattened_bytes, mode.hooked) for run in runs]
    if mode.units:
        more = mode.expert_units
        runs = [_unit(run, more) if run.is_layer or mode.ends_too else run for run in runs]
    return Chunk(tuple(runs), copied)


def _first_parameters(shard: Shard) -> LocalParameters:
    if shard.model.diffusion is not None:
        return first_diffusion_parameters(shard).as_trained(shard)
    return embedding_parameters(shard).as_trained(shard) + tower_parameters(shard)


def _last_parameters(shard: Shard, mode: ChunkMode) -> LocalParameters:
    if shard.model.diffusion is not None:
        return last_diffusion_parameters(shard).as_trained(shard)
    shares = shard.model.tied_embeddings and mode.single_stage
    return head_parameters(shard, owns_weight=not shares).as_trained(shard)


def layer_runs(model: Model, mode: str, shape: ChunkShape) -> Iterator[tuple[Layer, str, int]]:
    """Equal layers of a chunk, how they are recomputed, how many; ``mode`` is the recipe's
    recomputation."""
    left = sum(shape.layers) if shape.recomputed is None else shape.recomputed
    for layer, count in zip(model.layer_kinds, shape.layers, strict=True):
        # Megatron's block method recomputes the first layers of a chunk.
        head = min(count, left) if mode == "full" else 0
        left -= head
        rest = "none" if mode == "full" else mode
        for recompute, number in (("full", head), (rest, count - head)):
            if number:
                yield layer, recompute, number


def _offloaded(block: Block, tags: Collection[str] | None = None) -> Block:
    """A layer's pass whose activations, or those of these ``tags``, wait elsewhere: on the GPU
    they are while it runs."""
    away = [
        op for op in block.ops if isinstance(op, Alloc | Free) and (tags is None or op.tag in tags)
    ]
    ops = tuple(op for op in block.ops if op not in away)
    # A backward pass begins with what it frees.
    back = sum(op.bytes if isinstance(op, Free) else -op.bytes for op in away)
    return replace(block, ops=ops, peak_bytes=block.peak_bytes + max(0, back))


def _with_copies(run: Run, shard: Shard) -> Run:
    """Both passes gather a layer's parameters: each is read and written once more first."""
    copy = Streaming("gathered_copy", "memcpy", 2 * gathered_bytes(shard, run.parameters))
    forward = replace(run.forward, ops=(copy, *run.forward.ops))
    if run.reference or run.kept:
        return replace(run, forward=forward)
    backward = replace(run.backward, ops=(copy, *run.backward.ops))
    return replace(run, forward=forward, backward=backward)


def _with_root_unit(runs: list[Run], *, kept: bool) -> list[Run]:
    """The model's ends in one unit: what the last run holds comes and goes with the first, whose
    forward pass is the first to need it and whose backward pass the last, ``kept`` or gathered for
    each."""
    first, *layers, last = runs
    held = first.parameters + last.parameters
    return [
        replace(first, parameters=held, kept=kept),
        *layers,
        replace(last, parameters=LocalParameters()),
    ]


def _flattened(run: Run, bytes_per_gradient: int, hooked: bool) -> Run:
    """A backward pass that copies its gradients into the buffer that is reduced, by hooks on them
    where it is ``hooked``."""
    if run.reference or not run.parameters.total:
        return run
    moved = bytes_per_gradient * run.parameters.total
    copy = Streaming("flatten_grads", "memcpy", moved, launches=3)
    ops, listed = (*run.backward.ops, copy), int(hooked and run.is_layer)
    return replace(run, backward=replace(run.backward, ops=ops, listed=listed))


def _unit(run: Run, expert_units: float) -> Run:
    if not run.parameters.held.total:
        return run
    units = 1 + (expert_units if run.parameters.expert else 0)
    forward, backward = (replace(block, units=units) for block in (run.forward, run.backward))
    return replace(run, forward=forward, backward=backward)


def _expert_units(job: Job) -> float:
    """Of the hooks of a dense layer's modules those that run with the experts of a rank, where
    each is a module of its own."""
    moe, framework = job.model.moe, job.framework
    if moe is None or not framework.loops_experts or framework.torch_wrappers:
        return 0.0
    return moe.num_experts // job.recipe.ep * _EXPERT_MODULES / _LAYER_MODULES


def _with_exchanges_overlapping(run: Run) -> Run:
    if not run.forward.name.endswith("moe_layer_forward"):
        return run
    forward, backward = paired(run.forward, run.backward)
    return replace(run, forward=forward, backward=backward)


def _mtp_modules(shard: Shard, mode: ChunkMode) -> list[Run]:
    """Multi-token-prediction modules, which end the last chunk (Megatron-Core).

    Each looks the shifted tokens up in the embedding, which a stage that is not also the first
    holds a copy of, and runs the shared head.
    """
    model = shard.model
    if not model.num_mtp_layers:
        return []
    kind = model.layer(model.num_layers)
    embedding = LocalParameters() if mode.single_stage else embedding_parameters(shard)
    own = shard.of_module("mtp")
    layer = layer_blocks(own, kind, mode.recompute, mode.modules)
    hidden = model.hidden_size
    # Two norms, and the projection of both.
    started = 2 * norm_parameters(shard, hidden) + 2 * hidden * hidden // shard.tp
    projection = LocalParameters(started).as_trained(shard)
    head = head_parameters(shard, owns_weight=False).as_trained(shard)
    module = [
        Run(*mtp_projection_blocks(own), 1, projection),
        Run(*layer, 1, trained_layer_parameters(own, kind)),
        Run(*head_blocks(shard), 1, head),
    ]
    lookup = Run(*embedding_blocks(shard), 1, embedding.as_trained(shard))
    repeated = Run(*embedding_blocks(shard), 1, LocalParameters())
    return [
        run
        for index in range(model.num_mtp_layers)
        for run in (repeated if index else lookup, *module)
    ]


@functools.lru_cache(maxsize=1024)
def mtp_projection_blocks(shard: Shard) -> tuple[Block, Block]:
    """What precedes the layer of a multi-token-prediction module (DeepSeek-V3, equation 21).

    The normalised hidden state and the normalised embedding of the next token, side by side,
    are projected to one hidden state; Megatron shards the projection by columns and gathers
    its output.
    """
    hidden, local, size = shard.model.hidden_size, shard.local_tokens, shard.element_bytes
    forward, backward = linear(
        shard, "mtp_projection", shard.tokens, 2 * hidden, hidden // shard.tp, parallel="column"
    )
    joined = 2 * local * hidden * size
    if shard.tp > 1:
        whole = shard.tokens * hidden * size
        forward.append(Collective("mtp_gather", "all_gather", whole, "tp", shard.dtype))
        backward.insert(0, Collective("mtp_scatter", "reduce_scatter", whole, "tp", shard.dtype))
    projection = Part(
        (Streaming("mtp_concat", "memcpy", 2 * joined), *forward),
        (*backward, Streaming("mtp_split", "memcpy", 2 * joined)),
        (Alloc("mtp_input", joined),),
        forward_peak_bytes=joined,
        backward_peak_bytes=2 * joined,
    )
    norms = [hidden_norm(shard, name, 0) for name in ("hidden", "embedding")]
    return compose("mtp_projection", [*norms, projection])


@functools.lru_cache(maxsize=4096)
def paired(forward: Block, backward: Block) -> tuple[Block, Block]:
    """The blocks of an expert layer under ``overlap_moe_expert_parallel_comm``.

    Megatron-LM runs the forward pass of one micro-batch and the backward pass of another layer
    by layer together: dispatches beside the other's experts, combines beside its attention. A
    pair does the work of both passes of a layer, so each exchange is put beside the kernels of
    its own pass. Exchanges that recomputation repeats stay where they are.
    """
    attention, experts, dispatch, combine = _split(forward)
    ahead = (*_overlapping(combine, attention), *_overlapping(dispatch, experts))
    attention, experts, dispatch, combine = _split(backward)
    back = (*_overlapping(dispatch, experts), *_overlapping(combine, attention))
    return replace(forward, ops=ahead), replace(backward, ops=back)


def _split(block: Block) -> tuple[tuple[Op, ...], tuple[Op, ...], Collective, Collective]:
    """Operations of the attention and of the expert sub-layer, and the two exchanges."""
    exchanges = [op for op in block.ops if isinstance(op, Collective) and is_exchange(op)]
    dispatch, combine = exchanges[-2:]
    names = [getattr(op, "name", "") for op in block.ops]
    meeting = [index for index, name in enumerate(names) if name.startswith("attention_residual")]
    rest = [op for op in block.ops[: meeting[0]] if op not in (dispatch, combine)]
    others = [op for op in block.ops[meeting[0] :] if op not in (dispatch, combine)]
    if meeting[0] < names.index(dispatch.name):
        return tuple(rest), tuple(others), dispatch, combine
    return tuple(others), tuple(rest), dispatch, combine


def _overlapping(exchange: Collective, ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """The exchange, followed by the operations it runs beside."""
    running = sum(not isinstance(op, Alloc | Free | HostSync) for op in ops)
    return replace(exchange, overlaps=running), *ops
