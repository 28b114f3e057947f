"""How many transformer layers each pipeline stage and each of its chunks holds.

Megatron counts (even, the ends in the place of layers, fewer layers in the first and last stage),
or has it laid out part by part: ``Et*3|(t*4|)*14tL``.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

from .errors import InputError
from .layers import MOST_LAYERS

BALANCED = "balanced"
"""The layout that deals layers out as evenly as they go."""
LAYOUT_GRAMMAR = "E, t, m and L, parts divided by |, repetitions such as (t*2|)*29"

Split = tuple[tuple[int, ...], ...]


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
    layout: str | None = None,
    deal_out: bool = False,
) -> Split:
    """Layers of every chunk: one tuple per stage, one entry per chunk of it, in model order.

    ``first_stage``/``last_stage`` fix the layers of an end and split the rest evenly.
    ``embedding_as_layer``/``loss_as_layer``: the embedding (the loss) takes the place of one
    layer in the first (last) chunk; where the loss does, so does each of ``mtp_layers``
    multi-token-prediction modules beside it. ``layout`` is Megatron's, or ``balanced``; that, or
    ``deal_out``: layers that do not divide go, one each, to the earliest chunks.

    Raises:
        InputError: naming the recipe field, for a split that does not come out even.
    """
    fixed = {"first_stage_layers": first_stage, "last_stage_layers": last_stage}
    counted = {"embedding_as_layer": embedding_as_layer, "loss_as_layer": loss_as_layer}
    if layout not in (None, BALANCED):
        for field, value in (fixed | counted).items():
            if value:
                raise InputError(field, value, "cannot be combined with a pipeline_layout")
        return _laid_out(layers, stages, chunks, mtp_layers, layout)
    after = loss_as_layer * (1 + mtp_layers)
    ends = embedding_as_layer + after
    if first_stage is not None or last_stage is not None:
        for field, value in counted.items():
            if value:
                raise InputError(field, True, "cannot be combined with layer counts of the ends")
        if layout is not None:
            problem = "cannot be combined with layer counts of the ends"
            raise InputError("pipeline_layout", layout, problem)
        return _with_fixed_ends(layers, stages, chunks, first_stage, last_stage)
    each, left = divmod(layers + ends, stages * chunks)
    deal_out |= layout == BALANCED
    if left and not deal_out:
        field, degrees = ("vpp", f"pp x vpp = {stages} x {chunks}")
        if chunks == 1 or (layers + ends) % stages:
            field, degrees = "pp", f"pp={stages}"
        what = f"the {layers} layers" + (f" + {ends} for the ends" if ends else "")
        problem = f"{degrees} does not divide {what}: "
        problem += _way_out(layers, stages * chunks, mtp_layers)
        raise InputError(field, chunks if field == "vpp" else stages, problem)
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
    return _dealt(flat, stages)


def _dealt(flat: list[int], stages: int) -> Split:
    """Chunks in the model's order to the chunks of each stage."""
    return tuple(tuple(flat[stage::stages]) for stage in range(stages))


def _way_out(layers: int, places: int, mtp_layers: int) -> str:
    """Which fields make a split of layers that do not divide."""
    for embedding, loss in ((1, 1), (0, 1), (1, 0)):
        if (layers + embedding + loss * (1 + mtp_layers)) % places == 0:
            names = ("embedding_as_layer=true " * embedding + "loss_as_layer=true " * loss).strip()
            return f"it does with {names}; or pipeline_layout=balanced"
    return (
        "pipeline_layout=balanced deals them out (or a layout of yours), first_stage_layers and "
        "last_stage_layers fix the ends"
    )


def parse_layout(layout: str) -> list[str]:
    """The parts of a layout such as ``Et*3|(tt|)*29,m|L``, repetitions written out.

    Raises:
        InputError: for other characters than E, L, t, m, and their repetitions, or endless ones.
    """
    text = layout.replace(",", "").replace(" ", "")
    for pattern in (r"\(([^()]+)\)\*(\d+)", r"(.)\*(\d+)"):
        for match in re.finditer(pattern, text):
            if len(match[1]) * int(match[2][:9]) > 2 * MOST_LAYERS:
                raise InputError(
                    "pipeline_layout", layout[:60], "repeats too much", LAYOUT_GRAMMAR
                )
        text = re.sub(pattern, lambda match: match[1] * int(match[2]), text)
        if len(text) > 4 * MOST_LAYERS:
            raise InputError("pipeline_layout", layout[:60], "is too long", LAYOUT_GRAMMAR)
    if not re.fullmatch(r"[ELtm|]+", text):
        raise InputError("pipeline_layout", layout[:60], "is no layout", LAYOUT_GRAMMAR)
    return text.split("|")


def format_layout(split: Split, mtp_layers: int) -> str:
    """A split as Megatron's layout, parts in the order of the model, equal ones folded."""
    flat = [layers for chunk in zip(*split, strict=True) for layers in chunk]
    parts = [_tokens("t", layers) for layers in flat]
    parts[0] = "E" + parts[0]
    parts[-1] += _tokens("m", mtp_layers) + "L"
    folded = ""
    for part, run in itertools.groupby(parts[:-1]):
        count = len(list(run))
        folded += f"({part}|)*{count}" if count > 1 else f"{part}|"
    return folded + parts[-1]


def fields_of(split: Split, mtp_layers: int, *, deal_out: bool = False) -> dict[str, Any]:
    """The fewest fields of a recipe that make a split: none where it is even, else the ends as
    layers, else the layers of both ends, else a layout."""
    layers, stages, chunks = sum(map(sum, split)), len(split), len(split[0])
    fields: list[dict[str, Any]] = [
        {"pipeline_layout": layout, "embedding_as_layer": embedding, "loss_as_layer": loss}
        for layout in (None, BALANCED)
        for embedding, loss in itertools.product((False, True), repeat=2)
    ]
    first, last = sum(split[0]), sum(split[-1])
    if first and last:
        fields.insert(4, {"first_stage_layers": first, "last_stage_layers": last})
    for each in fields:
        plain = {key.removesuffix("_layers") if "stage" in key else key: each[key] for key in each}
        plain["layout"] = plain.pop("pipeline_layout", None)
        try:
            made = split_layers(
                layers, stages, chunks, **plain, mtp_layers=mtp_layers, deal_out=deal_out
            )
        except InputError:
            continue
        if made == split:
            return _NO_FIELDS | each
    return _NO_FIELDS | {"pipeline_layout": format_layout(split, mtp_layers)}


_NO_FIELDS: dict[str, Any] = {
    **dict.fromkeys(("first_stage_layers", "last_stage_layers", "pipeline_layout")),
    **dict.fromkeys(("embedding_as_layer", "loss_as_layer"), False),
}


def _tokens(token: str, count: int) -> str:
    return token * count if count < 4 else f"{token}*{count}"


def _laid_out(layers: int, stages: int, chunks: int, mtp_layers: int, layout: str) -> Split:
    """The split of an explicit layout.

    Raises:
        InputError: for one that Megatron refuses, or whose ends lie elsewhere than at the ends.
    """
    parts = parse_layout(layout)
    whole = "".join(parts)
    problem = None
    if len(parts) != stages * chunks:
        problem = f"has {len(parts)} parts, pp x vpp = {stages} x {chunks} makes {stages * chunks}"
    elif whole.count("t") != layers:
        problem = f"holds {whole.count('t')} layers, the model {layers}"
    elif not re.fullmatch("Et*m*L", whole) or whole.count("m") != mtp_layers:
        problem = f"is no E, then layers, then the model's {mtp_layers} multi-token predictions, L"
    elif not parts[0] or not parts[-1].endswith("m" * mtp_layers + "L"):
        problem = "has to begin with E and to end with L, multi-token predictions in the same part"
    if problem is not None:
        raise InputError("pipeline_layout", layout, problem)
    return _dealt([part.count("t") for part in parts], stages)


def split_by_compute(layers: int, stages: int, head_layers: float) -> Split:
    """Layers of every stage when each is filled until it has passed its share of the compute.

    As nanotron's ``build_model`` deals its blocks out: the block that passes the threshold is
    still the stage's, so early stages hold more. ``head_layers`` is the head's cost in layers; the
    embedding costs nothing. The last stages may be left without a layer. (Its head may then come
    to lie before the last stage, with the loss behind it; here it is the last one's.)
    """
    share = (layers + head_layers) / stages
    counts = [0] * stages
    stage = 0
    for placed in range(1, layers + 1):
        counts[stage] += 1
        if placed > share * (stage + 1):
            stage += 1
    return tuple((count,) for count in counts)


def _with_fixed_ends(
    layers: int, stages: int, chunks: int, first: int | None, last: int | None
) -> Split:
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
