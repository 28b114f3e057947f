"""The two ends of the model: embedding on the first stage, norm, logits and loss on the last."""

from __future__ import annotations

import functools
from dataclasses import replace

from trainscout.simulators.predictor.question.pooled import Pooled
from trainscout.simulators.predictor.workload.elementwise import (
    DIVERGENCES,
    divergence_ops,
    logged_losses,
    loss_ops,
    splits_softmax,
)
from trainscout.simulators.predictor.workload.ir import (
    Alloc,
    Block,
    Collective,
    Gemm,
    Op,
    Streaming,
)
from trainscout.simulators.predictor.workload.linear_layers.linear import bias_grad, linear
from trainscout.simulators.predictor.workload.linear_layers.quantise import weight_copies
from trainscout.simulators.predictor.workload.part import Part, compose, hidden_norm
from trainscout.simulators.predictor.workload.residual_stream.alternating_updates import ends_part
from trainscout.simulators.predictor.workload.residual_stream.embedding import embedding_part
from trainscout.simulators.predictor.workload.residual_stream.hyper_connections import (
    collapse_part,
    expand_part,
)
from trainscout.simulators.predictor.workload.residual_stream.per_layer_input import table_part
from trainscout.simulators.predictor.workload.shard import Shard

from .diffusion import first_diffusion_parts, last_diffusion_parts, linears_part
from .tower import stem_parts, tower_parts


@functools.lru_cache(maxsize=1024)
def first_blocks(shard: Shard) -> tuple[Block, Block]:
    """What comes before the first layer: towers, if there are any, and the embedding."""
    return compose("embedding", first_parts(shard))


def first_parts(shard: Shard) -> list[Part]:
    if shard.model.diffusion is not None:
        return first_diffusion_parts(shard)
    pooled = shard.model.pooled
    if pooled is not None and pooled.patch_size:
        return [*stem_parts(shard, pooled.stem, shard.tokens), patches_part(shard, pooled)]
    inputs = shard.model.per_layer_input
    own = [] if inputs is None else [table_part(shard, inputs)]
    if shard.model.laurel_rank is not None:
        own.append(ends_part(shard, "streams_in"))
    elif shard.model.residual_streams > 1:
        own.append(expand_part(shard))
    return [*tower_parts(shard), embedding_part(shard), *own]


@functools.lru_cache(maxsize=1024)
def head_blocks(shard: Shard) -> tuple[Block, Block]:
    """Final norm, vocabulary-parallel logits and cross entropy."""
    return compose("head", head_parts(shard))


def head_parts(shard: Shard) -> list[Part]:
    """The parts of ``head_blocks``.

    The loss needs the maximum, the target logit and the sum of exponentials across the
    tensor-parallel group: three all-reduces of one fp32 value per token (Megatron-LM). Where ranks
    gather the logits (``gathers_logits``), which puts them into order by a copy, each takes the
    loss of all.
    """
    model, size = shard.model, shard.element_bytes
    if model.diffusion is not None:
        return last_diffusion_parts(shard)
    if model.pooled is not None:
        return pooled_parts(shard, model.pooled)
    vocab = shard.head_rows
    logits = shard.tokens * vocab
    # The output layer stays in bf16 when the layers run in fp8, unless it is told otherwise.
    head = shard if shard.fp8_output else _in_bf16(shard)
    forward, backward = linear(
        head, "logits", shard.tokens, model.hidden_size, vocab, parallel="column"
    )
    per_token = shard.tokens * 4
    full, local = shard.tokens * model.hidden_size, shard.local_tokens * model.hidden_size
    keep = head.linear_input_bytes if shard.trains else 0
    final = hidden_norm(shard, "final_norm", keep)
    several, alternates = model.residual_streams > 1, model.laurel_rank is not None
    ahead = [ends_part(shard, "streams_out")] if alternates else []
    ahead += [collapse_part(shard)] if several and not alternates else []
    ahead.append(final)
    if model.masked_head:
        ahead += _masked_head(shard)
        backward = bias_grad(shard, "logits", shard.tokens, vocab) + backward
    if shard.loss == "none":
        peak = logits * size + (full * size if shard.sp else 0)
        return [*ahead, Part(tuple(forward), (), forward_peak_bytes=peak)]
    teaches = shard.loss in DIVERGENCES
    gathers = shard.gathers_logits and shard.tp > 1 and not teaches
    logits *= shard.tp if gathers else 1
    loss_forward, loss_backward = (divergence_ops if teaches else loss_ops)(shard, logits)
    if gathers:
        loss_forward = [
            Collective("logits_gather", "all_gather", logits * size, "tp"),
            Streaming("logits_order", "memcpy", 2 * logits * size),
            *loss_forward,
        ]
    elif shard.tp > 1:
        once = ("max", "sum") if teaches else ("max", "target", "sum")
        sums = (*once, "teacher_max", "teacher_sum", "divergence") if teaches else once
        loss_forward += [
            Collective(f"loss_{what}", "all_reduce", per_token, "tp", "fp32") for what in sums
        ]
    kept, before, behind = _loss_bytes(shard, size)
    # The gradient of the logits meets the gathered input, the input's gradient before and after
    # it is scattered, and the weight's gradient where the GEMM does not add it to another.
    projection = (2 * full + local if shard.sp else full) * size
    if shard.trains and not shard.fused_wgrad:
        projection += vocab * model.hidden_size * (size + (4 if shard.autocast else 0))
    frees = shard.cross_entropy in ("in_place", "pieces") and not teaches
    held, keeps = 0 if frees else logits * size, logits * kept
    if frees and not kept:
        # Gradients of what is multiplied are there when the last piece is.
        keeps = (full + vocab * model.hidden_size * shard.trains) * size
    loss = Part(
        (*forward, *loss_forward),
        (*loss_backward, *backward, *logged_losses(shard, logits)),
        (
            Alloc("loss_gradient" if not held else "loss_softmax", keeps),
            *weight_copies(shard, forward),
        ),
        forward_peak_bytes=logits * before + (full * size if shard.sp else 0),
        backward_peak_bytes=max(logits * behind, held + projection - max(0, kept - size) * logits),
    )
    return [*ahead, loss]


def _masked_head(shard: Shard) -> list[Part]:
    """A linear layer, its activation and a norm, whole on every rank (BERT)."""
    tokens, hidden = shard.local_tokens, shard.model.hidden_size
    forward, backward = linear(_in_bf16(shard), "head_transform", tokens, hidden, hidden)
    made = tokens * hidden * shard.element_bytes
    bias = bias_grad(shard, "head_transform", tokens, hidden) * shard.model.linear_bias
    transform = Part(
        (*forward, Streaming("head_activation_fwd", "activation", 2 * made)),
        (Streaming("head_activation_bwd", "activation", 3 * made), *bias, *backward),
        (Alloc("head_activation_input", made),) if shard.trains else (),
        forward_peak_bytes=made,
        backward_peak_bytes=2 * made,
    )
    keep = shard.element_bytes if shard.trains else 0
    return [transform, hidden_norm(shard, "head_norm", keep)]


def _loss_bytes(shard: Shard, size: int) -> tuple[int, int, int]:
    """Bytes per logit that the loss keeps, and that either pass holds at once beside them.

    ``in_place``: the 16-bit logits, which become their gradient. ``pieces``: none, those of a
    piece come to a small part of what layers hold. ``compiled``: the logits, and in the backward
    pass their gradient, ``returned`` the zeros that it is added to besides. ``fp32``: the softmax,
    or in place the gradient, beside the logits or their gradient. ``copies``: an fp32 copy of the
    logits besides. ``eager``: the log-softmax, beside it the logits and an fp32 copy, then the
    gradients of both its output and its input, and split by DTensors another; of ``log_softmax``
    the same in 16 bits, and ``uncast`` besides the logits.
    """
    if shard.loss == "log_softmax":
        return size, size, 2 * size
    if (compared := DIVERGENCES.get(shard.loss)) is not None:
        return compared.kept, *compared.held
    kept, beside = {
        "in_place": (size, 0),
        "pieces": (0, 0),
        "compiled": (size, size),
        "returned": (size, size),
        "fp32": (4, size),
        "fp32_in_place": (4, size),
        "copies": (4, size + 4),
        "eager": (4, 8),
        "shifted": (4, 8),
        "uncast": (2 * size, 2 * size),
    }[shard.cross_entropy]
    zeros = size * (shard.cross_entropy == "returned")
    copied = 4 + (size if size < 4 else 0)
    before = copied if shard.cross_entropy == "eager" else beside
    return kept, before, beside + zeros + 4 * splits_softmax(shard)


def _in_bf16(shard: Shard) -> Shard:
    return replace(shard, precision="bf16") if shard.is_quantised else shard


# Ends of models that make one vector of a sequence: patches in, classes or pairs out.


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
