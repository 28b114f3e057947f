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
from trainscout.simulators.predictor.question.layers import MOST_LAYERS
from trainscout.simulators.predictor.question.layout import fields_of, format_layout, parse_layout
from trainscout.simulators.predictor.question.model import Model

LAYOUT = "--pipeline-model-parallel-layout"
EXPERT_LAYERS = "--moe-layer-freq"


def layout(job: Job) -> str:
    """The split of a job's pipeline, a stage of each chunk after another."""
    return format_layout(job.layers_per_chunk, job.model.num_mtp_layers)


def read_layout(options: Options, text: str, model: Model, pp: int) -> dict[str, Any]:
    """Fields of a recipe that make this split; what they cannot express is said to be assumed.

    Raises:
        InputError: for what Megatron would refuse.
    """
    try:
        parts = parse_layout(text)
    except InputError as error:
        raise InputError(LAYOUT, text[:60], error.problem, error.allowed) from None
    chunks = [part.count("t") for part in parts]
    if len(chunks) % pp:
        problem = f"has {len(chunks)} parts, which are no multiple of {pp} stages"
        raise InputError(LAYOUT, text, problem)
    if sum(chunks) != model.num_layers:
        problem = f"holds {sum(chunks)} layers, the model {model.num_layers}"
        raise InputError(LAYOUT, text, problem)
    if "E" in "".join(parts[1:]) or set("".join(parts[:-1])) & {"m", "L"}:
        what = "the embedding lies with the first layers, predictions and loss in the last part"
        options.assume(f"{LAYOUT} {text}", what)
    split = tuple(tuple(chunks[stage::pp]) for stage in range(pp))
    return {"vpp": len(chunks) // pp, **fields_of(split, model.num_mtp_layers)}


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


def layers_with_experts(options: Options, layers: int, experts: bool) -> list[int]:
    """A one for each layer that has experts, a zero for others.

    Raises:
        InputError: for no pattern of the model's layers.
    """
    text = options.text(EXPERT_LAYERS) if experts else None
    return [int(experts)] * layers if text is None else _pattern(text, layers)


def _pattern(text: str, layers: int) -> list[int]:
    """A pattern's zeros and ones: a period, or a sum of repeated lists."""
    if text.isdigit() and int(text) > 0:
        return [int(layer % int(text) == 0) for layer in range(layers)]
    pattern = layer_list(EXPERT_LAYERS, text, layers)
    if 1 not in pattern:
        raise InputError(EXPERT_LAYERS, text, "leaves no layer with experts", _LISTS)
    return pattern


_LISTS = "a whole number, or lists such as ([0]*3+[1]*58)"


def layer_list(option: str, text: str, layers: int) -> list[int]:
    """Zeros and ones of a sum of repeated lists, one a layer.

    Raises:
        InputError: naming the option, for anything else.
    """
    try:
        if not re.fullmatch(r"[\d\[\]()+*,\s]+", text):
            raise ValueError(text)
        pattern = _pattern_value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError):
        raise InputError(option, text, "is no pattern of layers", _LISTS) from None
    if not isinstance(pattern, list) or len(pattern) != layers:
        problem = f"does not have a zero or one for each of {layers} layers"
        raise InputError(option, text, problem, _LISTS)
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
