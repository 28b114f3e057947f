"""How Megatron-LM's arguments split the layers over pipeline stages, as fields of a recipe."""

from __future__ import annotations

import re
from typing import Any

from trainscout.reports.launch_import.options import Options
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.layout import split_layers
from trainscout.simulators.predictor.question.model import MOST_LAYERS, Model

_LAYOUT = "--pipeline-model-parallel-layout"


def pipeline_split(
    options: Options, model: Model, pp: int, unmodelled: list[tuple[str, str]]
) -> dict[str, Any]:
    """Fields ``vpp``, ``first_stage_layers``, ``last_stage_layers``, ``embedding_as_layer`` and
    ``loss_as_layer``; a layout that they cannot express is added to ``unmodelled``.

    Raises:
        InputError: for what Megatron would refuse.
    """
    layout = options.text(_LAYOUT)
    first = options.whole("--decoder-first-pipeline-num-layers")
    last = options.whole("--decoder-last-pipeline-num-layers")
    embedding = options.has("--account-for-embedding-in-pipeline-split")
    loss = options.has("--account-for-loss-in-pipeline-split")
    per_chunk = options.whole("--num-layers-per-virtual-pipeline-stage")
    chunks = options.whole("--num-virtual-stages-per-pipeline-rank")
    if layout is not None:
        return _from_layout(layout, model, pp, unmodelled)
    vpp = chunks or 1
    if per_chunk is not None and chunks is None:
        name = "--num-layers-per-virtual-pipeline-stage"
        layers = model.num_layers + embedding + loss
        if first is not None or last is not None or layers % pp or (layers // pp) % per_chunk:
            problem = f"does not divide the {layers} layers over {pp} stages"
            raise InputError(name, per_chunk, problem, "--num-virtual-stages-per-pipeline-rank")
        vpp = layers // pp // per_chunk
    return {
        "vpp": vpp,
        "first_stage_layers": first,
        "last_stage_layers": last,
        "embedding_as_layer": embedding,
        "loss_as_layer": loss,
    }


def _from_layout(
    layout: str, model: Model, pp: int, unmodelled: list[tuple[str, str]]
) -> dict[str, Any]:
    chunks = _layers_of(layout)
    if len(chunks) % pp:
        problem = f"has {len(chunks)} parts, which are no multiple of {pp} stages"
        raise InputError(_LAYOUT, layout, problem)
    if sum(chunks) != model.num_layers:
        problem = f"holds {sum(chunks)} layers, the model {model.num_layers}"
        raise InputError(_LAYOUT, layout, problem)
    vpp = len(chunks) // pp
    wanted = tuple(tuple(chunks[stage::pp]) for stage in range(pp))
    ends: list[dict[str, Any]] = [{}]
    ends += [
        {"embedding_as_layer": embedding, "loss_as_layer": loss}
        for embedding, loss in ((True, False), (False, True), (True, True))
    ]
    ends.append({"first_stage_layers": sum(wanted[0]), "last_stage_layers": sum(wanted[-1])})
    for fields in ends:
        try:
            made = split_layers(
                model.num_layers,
                pp,
                vpp,
                first_stage=fields.get("first_stage_layers"),
                last_stage=fields.get("last_stage_layers"),
                embedding_as_layer=fields.get("embedding_as_layer", False),
                loss_as_layer=fields.get("loss_as_layer", False),
                mtp_layers=model.num_mtp_layers,
            )
        except InputError:
            continue
        if made == wanted:
            return {"vpp": vpp, **fields}
    unmodelled.append((f"{_LAYOUT} {layout}", "stages hold equally many layers"))
    return {"vpp": vpp}


def _layers_of(layout: str) -> list[int]:
    """Transformer layers of each part of a layout such as ``Et*3|(tt|)*29,m|L``.

    Raises:
        InputError: for other characters than E, L, t, m, and their repetitions.
    """
    allowed = "E, t, m and L, parts divided by |, repetitions (tt|)*29"
    text = layout.replace(",", "").replace(" ", "")
    for pattern in (r"\(([^()]+)\)\*(\d+)", r"(.)\*(\d+)"):
        for match in re.finditer(pattern, text):
            if len(match[1]) * int(match[2]) > 2 * MOST_LAYERS:
                raise InputError(_LAYOUT, layout[:60], "repeats too much", allowed)
        text = re.sub(pattern, lambda match: match[1] * int(match[2]), text)
        if len(text) > 4 * MOST_LAYERS:
            raise InputError(_LAYOUT, layout[:60], "is too long", allowed)
    if not re.fullmatch(r"[ELtm|]+", text):
        raise InputError(_LAYOUT, layout, "is no layout", allowed)
    return [part.count("t") for part in text.split("|")]
