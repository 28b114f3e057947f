"""Ends of models that make one vector of a sequence: patches in, classes or pairs out."""

from __future__ import annotations

from dataclasses import replace

from trainscout.simulators.predictor.question.pooled import Pooled

from .diffusion import linears_part
from .elementwise import loss_ops
from .ir import Alloc, Collective, Gemm, Op, Streaming
from .part import Part, hidden_norm
from .shard import Shard


def patches_part(shard: Shard, pooled: Pooled) -> Part:
    """Patches of images on their way to the model's width, with the positions of learned ones."""
    h = shard.model.hidden_size
    part = linears_part(shard, "patches", shard.tokens, (pooled.patch_size, h))
    if shard.model.position != "learned":
        return part
    moved = shard.tokens * h * shard.element_bytes
    added = Streaming("position_add", "elementwise", 3 * moved)
    summed = (Streaming("position_grad", "reduce", moved),) if shard.trains else ()
    return Part(
        (*part.forward, added),
        (*summed, *part.backward),
        part.saved,
        forward_peak_bytes=part.forward_peak_bytes,
        backward_peak_bytes=part.backward_peak_bytes,
    )


def pooled_parts(shard: Shard, pooled: Pooled) -> list[Part]:
    """The last norm, linear layers of one token a sequence, and the loss.

    A contrastive loss takes two products, of its rank's texts with all images and the other way
    around; what is gathered for them comes back as sums of gradients (Radford et al. 2021, figure
    3; OpenCLIP's ``ClipLoss``).
    """
    size, last, forward, backward = shard.element_bytes, pooled.widths[-1], *_pairs(shard, pooled)
    hidden = shard.tokens * shard.model.hidden_size * size
    final = hidden_norm(shard, "final_norm", size if shard.trains else 0)
    # It is trained beside adapters, too.
    own = replace(shard, trains=True, lora=None)
    rows = shard.tokens if pooled.every_token else shard.batch
    head = linears_part(own, "pooled", rows, pooled.widths, is_data=False)
    logits = rows * last
    if pooled.contrastive is not None:
        logits = 2 * shard.batch * shard.batch * shard.replicas
    loss_forward, loss_backward = loss_ops(shard, logits)
    kept = logits * (4 + size)
    loss = Part(
        (*head.forward, *forward, *loss_forward),
        # Where one token is taken the others' gradient is zero, and written all the same.
        (
            *loss_backward,
            *backward,
            *head.backward,
            *([] if pooled.every_token else [Streaming("pooled_bwd", "elementwise", hidden)]),
        ),
        (*head.saved, Alloc("loss_softmax", kept)),
        forward_peak_bytes=head.forward_peak_bytes + kept,
        backward_peak_bytes=max(2 * kept, hidden),
    )
    return [final, loss]


def _pairs(shard: Shard, pooled: Pooled) -> tuple[list[Op], list[Op]]:
    """Products of both modalities, each rank's own against all; none of classes."""
    forward, backward = list[Op](), list[Op]()
    if pooled.contrastive is None:
        return forward, backward
    batch, everyone, width = shard.batch, shard.batch * shard.replicas, pooled.widths[-1]
    gathered, dtype = everyone * width * shard.element_bytes, shard.dtype
    for name in ("text", "image"):
        if shard.replicas > 1:
            forward.append(Collective(f"{name}_gather", "all_gather", gathered, "dp", dtype))
        forward.append(Gemm(f"{name}_pairs", batch, everyone, width, dtype))
        backward.append(Gemm(f"{name}_pairs_dgrad", batch, width, everyone, dtype, layout="NN"))
        backward.append(Gemm(f"{name}_pairs_wgrad", everyone, width, batch, dtype, layout="NT"))
        if shard.replicas > 1:
            sums = Collective(f"{name}_scatter", "reduce_scatter", gathered, "dp", dtype)
            backward.append(sums)
    return forward, backward
