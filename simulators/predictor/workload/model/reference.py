"""A frozen model that passes each micro-batch forward, beside the one that is trained.

DPO's reference is the model as it was, and runs after it (TRL's ``DPOTrainer``). Under LoRA it is
the frozen weights without their adapters: the same ones, gathered again where they are sharded.
The head ends in the log-probabilities of the targets; what DPO does with one number for each
sequence is left out. A teacher runs first, and its head ends in logits. Through a pipeline either
goes in the same passes, stage by stage: a chunk holds layers of both, and the hidden states of
both travel in one message (ModelOpt's distillation).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.workload.ir import Block
from trainscout.simulators.predictor.workload.parameters import (
    LocalParameters,
    embedding_parameters,
    head_parameters,
    layer_parameters,
)
from trainscout.simulators.predictor.workload.part import Part, compose
from trainscout.simulators.predictor.workload.program import Run
from trainscout.simulators.predictor.workload.shard import Shard

from .ends import first_parts, head_parts
from .layer import layer_name, layer_parts, layer_shard
from .tower import tower_parameters


@dataclass(frozen=True)
class Reference:
    """The frozen model as one rank has it.

    ``borrows`` the weights of the one that is trained. ``leads``: it runs before that. ``layers``
    of each of its kinds are in every chunk; None: as many as the chunk has of the trained one's.
    ``whole``: sharded replicas have all its weights each.
    """

    shard: Shard
    borrows: bool = False
    leads: bool = False
    layers: tuple[int, ...] | None = None
    whole: bool = False

    @classmethod
    def of(cls, job: Job) -> tuple[Reference, ...]:
        """One for each of its passes, of which the first holds its weights."""
        if job.reference is None:
            return ()
        shard, taught = Shard.of(job.reference), job.training.distillation
        dpo = job.training.dpo
        own = replace(shard, frozen_weights=job.frozen_weights, fp32_outputs=job.fp32_outputs)
        if dpo is not None:
            first = cls(own, borrows=job.training.lora is not None)
            passes = () if dpo.precomputed else (first,)
            # What is trained passes other answers forward first of all, the reference at last.
            trained = cls(Shard.of(job), borrows=True, leads=True)
            others = (*(replace(each, borrows=True) for each in passes), trained)
            return passes + others * dpo.kto
        assert taught is not None
        if taught.borrowed:
            return (cls(replace(own, loss="none"), borrows=True, leads=True),)
        model, chunks = shard.model, job.recipe.pp * job.recipe.vpp
        each = (count // chunks for count in model.layers_of_each(0, model.num_layers))
        # What is kept in fp32 is cast where it is used.
        shard = replace(shard, loss="none", autocast=taught.fp32 and job.autocasts)
        whole = job.recipe.zero_stage == 3 and not taught.sharded
        return (cls(shard, leads=True, layers=tuple(each), whole=whole),)


@functools.lru_cache(maxsize=1024)
def reference_runs(
    reference: Reference, own_layers: tuple[int, ...], *, first: bool, last: bool
) -> tuple[Run, ...]:
    """Its forward pass of a chunk with ``own_layers`` of the trained model's, layers of a kind
    together; backward blocks are empty."""
    shard = reference.shard
    model = shard.model

    def run(name: str, parts: Sequence[Part], count: int, parameters: LocalParameters) -> Run:
        forward, _ = compose(name, [part.forward_only for part in parts])
        # The residual stream outlives every part of a layer.
        stream = shard.local_tokens * model.residual_width * shard.element_bytes
        forward = replace(forward, peak_bytes=forward.peak_bytes + stream)
        empty = Block(f"{name}_backward", ())
        held, how = parameters.frozen, {"reference": True, "borrows": reference.borrows}
        if reference.whole:
            return Run(forward, empty, count, LocalParameters(), whole=held.held.total, **how)
        return Run(forward, empty, count, held, **how)

    layers = zip(model.layer_kinds, reference.layers or own_layers, strict=True)
    runs = [
        run(
            f"reference_{layer_name(layer)}",
            layer_parts(layer_shard(shard, layer), layer),
            count,
            layer_parameters(shard, layer),
        )
        for layer, count in layers
        if count
    ]
    if first:
        held = embedding_parameters(shard) + tower_parameters(shard)
        runs.insert(0, run("reference_embedding", first_parts(shard), 1, held))
    if last:
        head = head_parameters(shard, owns_weight=not (model.tied_embeddings and first))
        runs.append(run("reference_head", head_parts(shard), 1, head))
    return tuple(runs)
