"""Parameters, gradients and optimizer states of a stage, and which of them are not there when.

PyTorch's optimizers let gradients go after an update (``zero_grad``: ``set_to_none``), and
autograd makes them as the backward passes of a step go: where a step has one micro-batch, its loss
meets none, where it has several, later ones meet all. DDP's buckets stay beside them. FSDP gathers
and reduces one layer after another: at the model's ends none is, and while the optimizer runs
nothing.
``tests/simulators/predictor/memory/test_static.py`` holds peaks to those of virtual GPUs.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.training import OPTIMIZERS
from trainscout.simulators.predictor.question.tuning import PACKED
from trainscout.simulators.predictor.workload.ir import weight_elements
from trainscout.simulators.predictor.workload.parameters import LocalParameters
from trainscout.simulators.predictor.workload.program import Held, Stage
from trainscout.simulators.predictor.workload.weights.data_parallel import (
    gradient_bytes_per_parameter,
)
from trainscout.simulators.predictor.workload.weights.step_end import (
    host_parameters,
    master_bytes,
    moment_bytes,
    owned_parameters,
)
from trainscout.simulators.predictor.workload.weights.weights import (
    kept_weight_bytes,
    parameter_bytes,
)

# Elements of DeepSpeed's reduction buckets (``reduce_bucket_size``).
DEEPSPEED_BUCKET = 500_000_000
# Elements up to which its ZeRO 3 gathers ahead (``stage3_max_live_parameters``): of 6.7 and 8.0 B
# 1.03 and 1.02 B are there at the loss, 1.01 and 0.86 B amid layers, on virtual GPUs.
DEEPSPEED_LIVE = 1_000_000_000


class Absent(NamedTuple):
    """Bytes of ``Static.kinds`` that are not there at a time."""

    parameters: int
    gradients: int


@dataclass(frozen=True)
class Static:
    """Bytes of one rank: ``parameters`` that it keeps and, gathered for a pass, those of two
    ``layers`` and of the model's ``ends`` (of DeepSpeed, ``layers`` are all); ``gradients`` that
    it keeps, of what is being ``reduced``, of ``weight`` bytes each and as ``copies``, and of
    ``buckets``; ``optimizer`` states. ``made``: so many parameters' gradients come with the
    backward pass (0: they are there); ``in_turn``: layers are gathered one after another. Those
    ``behind`` a backward pass stay, as gradients of ``trained`` parameters come. Of ``buckets``,
    ``late`` bytes come with a pass's first gradient; when the optimizer runs, so many of
    gradients are gone as what others have ``updated``. Of the ends as one unit the ``head``'s
    gradient waits while layers run, to be ``joined`` with the embedding's and reduced. Where they
    are two, of which ``ends`` is the larger, none is gathered beside layers, and what is reduced
    of the head is there with the first layer behind it, as gradients of so many parameters
    ``apart`` are. As the head's backward pass begins ``fetched`` bytes of layers are there, and
    ``freed`` ones of the ends are not."""

    parameters: int
    gradients: int
    optimizer: int
    layers: int = 0
    ends: int = 0
    reduced: int = 0
    copies: int = 0
    weight: int = 0
    buckets: int = 0
    made: int = 0
    in_turn: bool = False
    behind: int = 0
    trained: int = 1
    late: int = 0
    updated: int = 0
    head: int = 0
    joined: int = 0
    apart: int = 0
    fetched: int = 0
    freed: int = 0

    @functools.cached_property
    def kinds(self) -> dict[str, int]:
        """All of it, by kind."""
        return {
            "parameters": self.parameters + self.layers + self.ends + self.behind,
            "gradients": self.gradients + self.reduced + self.buckets + self.root,
            "optimizer": self.optimizer,
        }

    @property
    def root(self) -> int:
        """The most of the outermost unit's gradients."""
        return max(self.head, self.joined)

    @property
    def comes_and_goes(self) -> bool:
        """Whether any of it is not there at a time."""
        return self.in_turn or self.made > 0 or self.late > 0

    def absent(
        self,
        made: int,
        *,
        in_layer: bool,
        backward: bool = False,
        own: int = 0,
        reduces: bool = False,
    ) -> Absent:
        """What of ``kinds`` is not there when the gradients of so many parameters are, in a
        forward or a ``backward`` pass; ``own`` and ``reduces`` as in ``Held``."""
        left = self.gradients * (self.made - made) // self.made if self.made else 0
        left += self.late * (made == 0)
        gathered = self.layers + self.behind + self.ends
        passed = gathered * made // self.trained - self.ends
        ahead = self.behind - min(self.behind, max(0, passed))
        outside = self.in_turn and not in_layer
        # Of a head of its own, too, a layer's worth is being reduced.
        reduces = reduces or made == self.apart > 0
        left += self.passing(in_layer=not outside, own=own, reduces=reduces)
        left -= self.joined * (made > 0 and outside)
        if self.apart and not outside:
            ahead += self.ends
            left += self.head * (made != self.apart)
        there = self.fetched * (backward and made == 0) - self.freed * (made == 0)
        return Absent((self.layers - there) * outside + ahead, left)

    def passing(self, *, in_layer: bool, own: int, reduces: bool) -> int:
        """Bytes of whole gradients that are not there outside of layers, at the model's head, or
        while one runs."""
        if not in_layer:
            return self.root + self.reduced
        if not self.in_turn:
            return self.root - self.head
        there = min(own * self.weight, self.reduced - self.copies) + self.copies * reduces
        return self.root - self.head + self.reduced - there

    def peak(self, held: Iterable[Held], *, backward: bool) -> tuple[int, Absent]:
        """Most bytes that a pass holds, of where it may, and what is absent there."""
        if not self.comes_and_goes:
            return max(held).bytes, Absent(0, 0)
        found = (
            (
                size,
                self.absent(made, in_layer=in_layer, backward=backward, own=own, reduces=reduces),
            )
            for size, made, in_layer, own, reduces in held
        )
        return max(found, key=lambda each: each[0] - sum(each[1]))

    @property
    def most_absent(self) -> Absent:
        """The most that ever is, while passes run."""
        return self.absent(0, in_layer=False)

    @property
    def absent_at_update(self) -> Absent:
        """The same while the optimizer runs."""
        gathered = self.layers + self.ends + self.behind
        return Absent(gathered, self.reduced + self.root + self.updated)

    def kinds_without(self, absent: Absent) -> dict[str, int]:
        """``kinds`` of what is there when that is not."""
        less = absent._asdict()
        return {kind: held - less.get(kind, 0) for kind, held in self.kinds.items()}


def static_of(job: Job, stage: Stage) -> Static:
    """What one rank of a stage keeps.

    ZeRO stages shard, in order: optimizer state (1), gradients (2), parameters (3)
    (Rajbhandari et al. 2020, section 5). What the host updates has no states here and, as far as
    gradients are sharded, no gradients either.
    """
    parameters, recipe, zero = stage.parameters, job.recipe, job.recipe.zero_stage
    owned = owned_parameters(parameters, job)
    away = host_parameters(owned, job)
    here = owned - away
    weight = parameter_bytes(job)
    gradient = gradient_bytes_per_parameter(job)
    replicated = job.dp * recipe.cp > 1
    alone = job.framework.torch_wrappers and recipe.pp == 1
    # DeepSpeed's 16-bit gradients come as PyTorch's do.
    flat = bool(zero) and job.framework.flattens_gradients and gradient == weight
    bucket = gradient_bucket_bytes(job) if flat else 0
    comes = alone or (flat and recipe.pp == 1)
    several = job.num_micro_batches > 1
    made = parameters.total if comes and not several else 0
    sums_whole = job.framework.sums_whole_grads and recipe.pp == 1 and several
    if zero == 3:
        # FSDP keeps the sharded parameters in fp32 (or in 16 bits, with no other copy; frozen ones
        # have none) and casts what it gathers: two layers, and the ends, which stay gathered. A
        # layer's gradient may be cast to fp32 to be reduced.
        frozen = owned_parameters(parameters.held, job) - owned
        reduced = largest_layer(stage, trained=True)
        framework = job.framework
        in_fp32 = framework.reduce_grads_fp32 or (alone and framework.accumulate_grads_fp32)
        cast = 4 if in_fp32 else weight * (alone and framework.copies_gathered)
        kept = 4 if OPTIMIZERS[job.optimizer].has_copy else weight
        packed, of_layer = _packed_bytes(job, stage)
        # Hooks on a loss that the model returns gather its ends again before the backward pass.
        reshards = framework.reshards_root and recipe.pp == 1 and not framework.loss_in_model
        # FSDP2 adds up what is not reduced yet in the type that it is reduced in.
        gradients = parameters.total * (cast or weight) if sums_whole else here * kept
        gathered, ends = 2 * largest_layer(stage), end_parameters(job, stage)
        if bucket:
            # From its second pass on DeepSpeed knows which modules come, at the model's ends, too.
            # Each weight's gradient goes to the bucket as it comes.
            gathered, ends = min(DEEPSPEED_LIVE, parameters.held.total), 0
            reduced = _largest_weight(stage, in_layer=True)
        # All layers by a backward pass's end, less those two.
        stays = alone and recipe.recompute == "full" and job.framework.leaves_regathered
        behind = stays * (parameters.held.total - ends - gathered) * weight
        layers = gathered * weight + 2 * of_layer
        return Static(
            here * kept + (away + frozen) * weight + packed + _teacher_bytes(job, stage),
            gradients,
            moment_bytes(parameters, job),
            layers=layers,
            ends=ends * weight,
            reduced=reduced * (weight + cast),
            copies=reduced * cast,
            weight=weight,
            buckets=bucket,
            made=made if alone else 0,
            in_turn=alone,
            behind=max(0, behind),
            trained=max(1, parameters.total),
            freed=end_parameters(job, stage) * weight * reshards,
            fetched=layers // 2 * (framework.loss_in_model and framework.prefetches_backward),
            **_end_bytes(job, stage, cast or weight, reduced),
        )
    kept_gradients = parameters.total
    if zero == 2 and sums_whole and job.framework.reduce_grads_fp32:
        gradient = 4
    elif zero == 2 and not sums_whole:
        # Under ZeRO 2 a layer's gradient is whole until it is reduced.
        largest = max((run.parameters.total for run in stage.runs), default=0)
        kept_gradients = min(kept_gradients, here + largest)
    buckets, framework = 0, job.framework
    in_ddp = replicated and not zero
    if in_ddp and framework.torch_wrappers:
        # DDP is told to ignore experts that no other rank has.
        buckets = (parameters.dense + parameters.expert * (job.expert_dp > 1)) * gradient
    elif framework.sums_16bit_grads and gradient > weight:
        buckets = parameters.total * (gradient + in_ddp * weight)
        made, gradient = parameters.total, weight
    elif framework.keeps_16bit_grads and replicated and gradient > weight:
        buckets = kept_gradients * weight
    elif bucket:
        buckets = bucket
    return Static(
        parameters.held.total * weight
        + _quantised_copies(job, parameters)
        + _teacher_bytes(job, stage),
        kept_gradients * gradient,
        here * master_bytes(job) + moment_bytes(parameters, job),
        buckets=buckets,
        made=made,
        # ZeRO 1 reduces with the last micro-batch alone, and has the bucket from the first one on.
        late=bucket * (framework.gradient_bucket == "gradient" and not (zero == 1 and several)),
        # Of gradients those of what is updated are left.
        updated=bucket + (kept_gradients - here) * gradient if flat else 0,
    )


def _end_bytes(job: Job, stage: Stage, size: int, layer: int) -> dict[str, int]:
    """Of FSDP's units at a model's ends ``Static.head``, ``joined`` and ``apart``, reduced in
    ``size`` bytes each; ``layer`` parameters are those of a layer.

    The head's is whole until layers have run. Then FSDP2 frees what it had gathered and copies
    gradients into what is reduced, in that type; FSDP1 concatenates them, frees pieces and what it
    had gathered, and casts (PyTorch 2.13 on virtual GPUs). ``joined`` is beyond what was gathered
    and what the embedding's own pass holds: of one table for both, all. A unit of the head's own
    is copied as its pass ends, and the copy waits for the first layer's.
    """
    if not (job.framework.torch_wrappers and job.recipe.pp == 1):
        return {}
    weight = parameter_bytes(job)
    table = _largest_weight(stage, in_layer=False)
    if job.model.tied_embeddings:
        return {"head": table * weight}
    if not job.joins_ends:
        waits = max(0, table - layer) * size
        return {"head": waits, "joined": table * (size - weight), "apart": _unit_at_head(stage)}
    pieces = weight if job.framework.copies_gathered else 3 * weight
    return {"head": table * weight, "joined": table * max(pieces, 2 * size - weight)}


def gradient_bucket_bytes(job: Job) -> int:
    """DeepSpeed's flat buffer of a bucket's 16-bit gradients under ZeRO; of ZeRO 1 and 2 two where
    they are reduced beside the backward pass (``overlap_comm``). Pipelines have it as a step ends.
    """
    zero, framework = job.recipe.zero_stage, job.framework
    if framework.gradient_bucket == "none" or job.recipe.pp > 1:
        return 0
    beside = not framework.waits_for_reductions if zero == 2 else job.recipe.overlap_grad_reduce
    return DEEPSPEED_BUCKET * parameter_bytes(job) * (1 + (beside and zero < 3))


def _packed_bytes(job: Job, stage: Stage) -> tuple[int, int]:
    """Under ZeRO 3 what quantised weights have beyond 16-bit ones, or less: what a rank keeps of
    frozen ones (packed shards, and all scales), and a layer that is gathered."""
    kept, weights = PACKED.get(job.frozen_weights), stage.parameters.quantised
    if kept is None or weights is None:
        copies = _quantised_copies(job, _largest_quantised(stage)) if job.keeps_quantised else 0
        return 0, copies
    less = kept.packed - parameter_bytes(job)
    shards = owned_parameters(weights.held, job) * less + weights.held.total * kept.scales
    return int(shards), int(_quantised(_largest_quantised(stage)) * less)


def _teacher_bytes(job: Job, stage: Stage) -> int:
    """What a teacher's weights take beyond as many in the type of the trained model's, and those
    that every rank has whole."""
    taught = job.training.distillation
    if taught is None:
        return 0
    size = 4 if taught.fp32 or job.precision in ("fp32", "tf32") else 2
    runs = [run for run in stage.runs if run.reference]
    held = sum((run.held.times(run.count) for run in runs), LocalParameters()).held
    counted = owned_parameters(held, job) if job.recipe.zero_stage == 3 else held.total
    whole = sum(run.whole * run.count for run in runs)
    return counted * (size - parameter_bytes(job)) + whole * size


def end_parameters(job: Job, stage: Stage) -> int:
    """Parameters of the embedding and the head, where the stage holds them; of the larger where
    each is gathered for its own pass."""
    ends = [run.held.held.total for run in stage.runs if not run.is_layer]
    alone = job.framework.torch_wrappers and not job.joins_ends
    return max(ends, default=0) if alone else sum(ends)


def _unit_at_head(stage: Stage) -> int:
    """Trained parameters of the last runs that are no layers."""
    own = [run for run in stage.runs if not run.reference]
    behind = itertools.takewhile(lambda run: not run.is_layer, reversed(own))
    return sum(run.parameters.total * run.count for run in behind)


def largest_layer(stage: Stage, *, trained: bool = False) -> int:
    runs = [run.parameters for run in stage.runs if run.is_layer]
    return max((each.total if trained else each.held.total for each in runs), default=0)


def _largest_weight(stage: Stage, *, in_layer: bool) -> int:
    """Elements of the largest trained matrix of a layer, of the experts that one product has, or
    of the ends."""
    ops = [op for run in stage.runs if run.is_layer == in_layer for op in run.backward.ops]
    return max(map(weight_elements, ops), default=0)


def _largest_quantised(stage: Stage) -> LocalParameters:
    """Of the layer with most quantised weights."""
    layers = [run.parameters for run in stage.runs if run.is_layer]
    return max(layers, key=_quantised, default=LocalParameters())


def _quantised(parameters: LocalParameters) -> int:
    return 0 if parameters.quantised is None else parameters.quantised.held.total


def _quantised_copies(job: Job, parameters: LocalParameters) -> int:
    """Bytes that quantised weights have more than 16-bit ones, or fewer."""
    apart = int(_quantised(parameters) * (kept_weight_bytes(job) - parameter_bytes(job)))
    rest = parameters.held.total - parameters.total - _quantised(parameters)
    return apart + rest * (4 - parameter_bytes(job)) * job.fp32_outputs
