"""A nanotron configuration file as the Megatron-LM arguments that its fields stand for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainscout.reports.dialects.megatron_reader import MegatronReader
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.training import Training

# Of ``model.model_config``: those of Transformers' Llama, which nanotron's LlamaConfig has.
_MODEL = {
    "num_hidden_layers": "--num-layers",
    "hidden_size": "--hidden-size",
    "intermediate_size": "--ffn-hidden-size",
    "num_attention_heads": "--num-attention-heads",
    "vocab_size": "--vocab-size",
    "max_position_embeddings": "--max-position-embeddings",
}
_DEGREES = {
    "tp": "--tensor-model-parallel-size",
    "pp": "--pipeline-model-parallel-size",
    "context_parallel_size": "--context-parallel-size",
}
_WIDTHS = {"bfloat16": ["--bf16"], "float16": ["--fp16"], "float32": []}
_LLAMA = (
    *("--swiglu", "--normalization", "RMSNorm", "--disable-bias-linear"),
    *("--position-embedding-type", "rope"),
)


class NanotronReader(MegatronReader):
    """Reads the sections of such a file (v0.4, ``config/config.py``)."""

    title = "nanotron"
    software = "nanotron"

    def __init__(self, table: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        super().__init__(list(words_of_nanotron(table)), environment)

    def framework(
        self, base: Framework, model: Model, recipe: Recipe, training: Training
    ) -> Framework:
        """The software as declared: nothing of the file switches in it."""
        return base


def is_nanotron(table: Mapping[str, Any]) -> bool:
    """Whether a file holds the sections of one."""
    model = table.get("model")
    return isinstance(model, Mapping) and "model_config" in model and "parallelism" in table


def words_of_nanotron(table: Mapping[str, Any]) -> Iterator[str]:
    """The arguments that its fields stand for.

    Raises:
        InputError: for a section or a field that is missing, or is no number.
    """
    model, degrees, tokens = (_section(table, n) for n in ("model", "parallelism", "tokens"))
    shape = _section(model, "model_config")
    for section, names in ((shape, _MODEL), (degrees, _DEGREES)):
        for name, argument in names.items():
            if section.get(name) is not None:
                yield from (argument, str(section[name]))
    heads = shape.get("num_attention_heads")
    if shape.get("num_key_value_heads") not in (None, heads):
        yield from ("--group-query-attention", "--num-query-groups")
        yield str(shape["num_key_value_heads"])
    yield from _LLAMA
    yield from (
        [] if shape.get("tie_word_embeddings") else ["--untie-embeddings-and-output-weights"]
    )
    yield from _WIDTHS.get(str(model.get("dtype", "bfloat16")), [])
    if degrees.get("tp_mode") == "REDUCE_SCATTER" and degrees.get("tp") != 1:
        yield "--sequence-parallel"
    if degrees.get("recompute_layer"):
        yield from ("--recompute-granularity", "full", "--recompute-method", "uniform")
        yield from ("--recompute-num-layers", "1")
    if _section(table, "optimizer", {}).get("zero_stage"):
        yield "--use-distributed-optimizer"
    micro = _whole(tokens, "micro_batch_size")
    batch = micro * _whole(tokens, "batch_accumulation_per_replica") * _whole(degrees, "dp")
    yield from ("--micro-batch-size", str(micro), "--global-batch-size", str(batch))
    yield from ("--seq-length", str(_whole(tokens, "sequence_length")))
    if tokens.get("train_steps"):
        yield from ("--train-iters", str(tokens["train_steps"]))


def _section(
    table: Mapping[str, Any], name: str, default: Mapping[str, Any] | None = None
) -> Mapping[str, Any]:
    found = table.get(name, default)
    if not isinstance(found, Mapping):
        raise InputError(name, str(found)[:60], "is no section", "fields with values")
    return found


def _whole(section: Mapping[str, Any], name: str) -> int:
    value = section.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(name, value, "is not a whole number > 0")
    return value
