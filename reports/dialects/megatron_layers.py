"""Megatron-LM's two notations that go layer by layer, written and read.

``--pipeline-model-parallel-layout`` says what each chunk of a pipeline holds (``Ett|ttt|ttL``),
``--moe-layer-freq`` which layers have experts (``([0]*3+[1]*58)``).
"""

from __future__ import annotations

import ast
import itertools
import re
from typing import Any

from trainscout.reports.dialects.options import Options
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.layout import split_layers
from trainscout.simulators.predictor.question.model import MOST_LAYERS, Model

LAYOUT = "--pipeline-model-parallel-layout"
EXPERT_LAYERS = "--moe-layer-freq"


def layout(job: Job) -> str:
    """The split of a job's pipeline, a stage of each chunk after another."""
    chunks = zip(*job.layers_per_chunk, strict=True)
    parts = ["t" * layers for stages in chunks for layers in stages]
    parts[0] = "E" + parts[0]
    parts[-1] += "m" * job.model.num_mtp_layers + "L"
    return "|".join(parts)


def read_layout(options: Options, text: str, model: Model, pp: int) -> dict[str, Any]:
    """Fields of a recipe that make this split; what they cannot express is said to be assumed.

    Raises:
        InputError: for what Megatron would refuse.
    """
    chunks = _layers_of_parts(text)
    if len(chunks) % pp:
        problem = f"has {len(chunks)} parts, which are no multiple of {pp} stages"
        raise InputError(LAYOUT, text, problem)
    if sum(chunks) != model.num_layers:
        problem = f"holds {sum(chunks)} layers, the model {model.num_layers}"
        raise InputError(LAYOUT, text, problem)
    vpp = len(chunks) // pp
    wanted = tuple(tuple(chunks[stage::pp]) for stage in range(pp))
    ends = (sum(wanted[0]), sum(wanted[-1]))
    ways = [(None, None, embedding, loss) for loss in (False, True) for embedding in (False, True)]
    for first, last, embedding, loss in (*ways, (*ends, False, False)):
        try:
            made = split_layers(
                model.num_layers,
                pp,
                vpp,
                first_stage=first,
                last_stage=last,
                embedding_as_layer=embedding,
                loss_as_layer=loss,
                mtp_layers=model.num_mtp_layers,
            )
        except InputError:
            continue
        if made == wanted:
            break
    else:
        options.assume(f"{LAYOUT} {text}", "stages hold equally many layers")
        first, last, embedding, loss = ways[0]
    return {
        "vpp": vpp,
        "first_stage_layers": first,
        "last_stage_layers": last,
        "embedding_as_layer": embedding,
        "loss_as_layer": loss,
    }


def _layers_of_parts(layout: str) -> list[int]:
    """Transformer layers of each part of a layout such as ``Et*3|(tt|)*29,m|L``.

    Raises:
        InputError: for other characters than E, L, t, m, and their repetitions.
    """
    allowed = "E, t, m and L, parts divided by |, repetitions (tt|)*29"
    text = layout.replace(",", "").replace(" ", "")
    for pattern in (r"\(([^()]+)\)\*(\d+)", r"(.)\*(\d+)"):
        for match in re.finditer(pattern, text):
            if len(match[1]) * int(match[2]) > 2 * MOST_LAYERS:
                raise InputError(LAYOUT, layout[:60], "repeats too much", allowed)
        text = re.sub(pattern, lambda match: match[1] * int(match[2]), text)
        if len(text) > 4 * MOST_LAYERS:
            raise InputError(LAYOUT, layout[:60], "is too long", allowed)
    if not re.fullmatch(r"[ELtm|]+", text):
        raise InputError(LAYOUT, layout, "is no layout", allowed)
    return [part.count("t") for part in text.split("|")]


def expert_layers(model: Model) -> str:
    """Which layers have experts, equal ones folded."""
    kinds = [int(model.is_moe_layer(layer)) for layer in range(model.num_layers)]
    runs = (f"[{kind}]*{len(list(run))}" for kind, run in itertools.groupby(kinds))
    return f"({'+'.join(runs)})"


def read_expert_layers(options: Options, layers: int) -> dict[str, int]:
    """Dense layers at the beginning, and how many layers apart expert layers are then.

    Raises:
        InputError: for no pattern of the model's layers.
    """
    text = options.text(EXPERT_LAYERS)
    if text is None:
        return {}
    pattern = _pattern(text, layers)
    first = pattern.index(1)
    for dense in range(first + 1):
        period = first - dense + 1
        made = [
            int(layer >= dense and (layer - dense + 1) % period == 0) for layer in range(layers)
        ]
        if made == pattern:
            return {"num_dense_layers": dense, "layer_period": period}
    period = max(1, round(layers / sum(pattern)))
    dense = max(0, layers - sum(pattern) * period)
    instead = f"every {period} layers after the first {dense} have experts"
    options.assume(f"{EXPERT_LAYERS} {text}", instead)
    return {"num_dense_layers": dense, "layer_period": period}


def _pattern(text: str, layers: int) -> list[int]:
    """A pattern's zeros and ones: a period, or a sum of repeated lists."""
    allowed = "a whole number, or lists such as ([0]*3+[1]*58)"
    if text.isdigit() and int(text) > 0:
        return [int(layer % int(text) == 0) for layer in range(layers)]
    try:
        if not re.fullmatch(r"[\d\[\]()+*,\s]+", text):
            raise ValueError(text)
        pattern = _pattern_value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError):
        raise InputError(EXPERT_LAYERS, text, "is no pattern of layers", allowed) from None
    if not isinstance(pattern, list) or len(pattern) != layers or 1 not in pattern:
        problem = f"does not say for each of {layers} layers whether it has experts"
        raise InputError(EXPERT_LAYERS, text, problem, allowed)
    return pattern


def _pattern_value(node: ast.expr) -> list[int] | int:
    match node:
        case ast.Constant(value=int() as number):
            return number
        case ast.List(elts=elements):
            numbers = [_pattern_value(element) for element in elements]
            return [int(each == 1) for each in numbers if isinstance(each, int)]
        case ast.BinOp(left, operation, right):
            match _pattern_value(left), operation, _pattern_value(right):
                case list() as one, ast.Add(), list() as other:
                    return one + other
                case list() as one, ast.Mult(), int() as times if len(one) * times <= MOST_LAYERS:
                    return one * times
    raise ValueError(ast.dump(node))
