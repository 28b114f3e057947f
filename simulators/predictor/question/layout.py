"""How many transformer layers each pipeline stage and each of its chunks holds."""

from __future__ import annotations

from trainscout.simulators.predictor.question.errors import InputError


def split_layers(
    layers: int,
    stages: int,
    chunks: int,
    *,
    first_stage: int | None = None,
    last_stage: int | None = None,
    embedding_as_layer: bool = False,
    loss_as_layer: bool = False,
    mtp_layers: int = 0,
    deal_out: bool = False,
) -> tuple[tuple[int, ...], ...]:
    """Layers of every chunk: one tuple per stage, one entry per chunk of it, in model order.

    ``first_stage``/``last_stage`` fix the layers of an end and split the rest evenly.
    ``embedding_as_layer``/``loss_as_layer``: the embedding (the loss) takes the place of one
    layer in the first (last) chunk; where the loss does, so does each of ``mtp_layers``
    multi-token-prediction modules beside it. ``deal_out``: layers that do not divide go, one
    each, to the earliest chunks.

    Raises:
        InputError: naming the recipe field, for a split that does not come out even.
    """
    after = loss_as_layer * (1 + mtp_layers)
    ends = embedding_as_layer + after
    if first_stage is not None or last_stage is not None:
        if ends:
            field = "embedding_as_layer" if embedding_as_layer else "loss_as_layer"
            raise InputError(field, True, "cannot be combined with layer counts of the ends")
        return _with_fixed_ends(layers, stages, chunks, first_stage, last_stage)
    each, left = divmod(layers + ends, stages * chunks)
    if left and not deal_out:
        field, degrees = ("vpp", f"pp x vpp = {stages} x {chunks}")
        if chunks == 1 or (layers + ends) % stages:
            field, degrees = "pp", f"pp={stages}"
        what = f"the {layers} layers" + (f" + {ends} for the ends" if ends else "")
        raise InputError(
            field, chunks if field == "vpp" else stages, f"{degrees} does not divide {what}"
        )
    flat = [each + (index < left) for index in range(stages * chunks)]
    flat[0] -= embedding_as_layer
    flat[-1] -= after
    if deal_out and flat[-1] < 0:
        # The ends fill more than the last chunk: those before it take fewer layers.
        short, flat[-1] = -flat[-1], 0
        for index in range(len(flat) - 1 - short, len(flat) - 1):
            flat[index] -= 1
    # The ends of the model give their chunks something to run; a chunk between them needs a layer.
    if min(flat) < 0 or 0 in flat[1:-1]:
        raise InputError("pp", stages, f"has more places than the {layers} layers fill")
    return tuple(tuple(flat[stage::stages]) for stage in range(stages))


def split_by_compute(layers: int, stages: int, head_layers: float) -> tuple[tuple[int, ...], ...]:
    """Layers of every stage when each ends nearest to its share of the compute.

    ``head_layers`` is the head's cost in layers; the embedding costs nothing.

    Raises:
        InputError: when a stage is left without a layer or an end of the model.
    """
    share = (layers + head_layers) / stages
    ends = [min(layers, round(share * (stage + 1))) for stage in range(stages - 1)] + [layers]
    counts = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    if min(counts[:-1], default=1) < 1:
        raise InputError("pp", stages, f"has more places than the {layers} layers fill")
    return tuple((count,) for count in counts)


def _with_fixed_ends(
    layers: int, stages: int, chunks: int, first: int | None, last: int | None
) -> tuple[tuple[int, ...], ...]:
    field = "last_stage_layers" if first is None else "first_stage_layers"
    if stages == 1:
        raise InputError(field, first or last, "an uneven split needs pp > 1")
    middle = stages - (first is not None) - (last is not None)
    left = layers - (first or 0) - (last or 0)
    if left < middle or (left and not middle) or (middle and left % middle):
        raise InputError(
            field,
            first if last is None else last,
            f"the {left} layers left over do not split evenly over {middle} middle stages",
        )
    counts = [left // middle if middle else 0] * stages
    if first is not None:
        counts[0] = first
    if last is not None:
        counts[-1] = last
    for stage, count in enumerate(counts):
        if count % chunks:
            problem = f"vpp={chunks} does not divide the {count} layers of stage {stage}"
            raise InputError("vpp", chunks, problem)
    return tuple((count // chunks,) * chunks for count in counts)
