"""A Megatron-Bridge configuration (``run_config.yaml``, which it keeps beside checkpoints, or the
Python module that makes it) as the Megatron-LM arguments that its fields stand for.

The file holds every field of every section, mostly as it is by default: what names no argument of
Megatron-LM is counted and not listed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import yaml

from trainscout.reports.dialects.megatron_bridge import LATENT, TITLE, argument_of
from trainscout.reports.dialects.megatron_reader import MegatronReader
from trainscout.reports.dialects.options import Reading
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.training import Training
from trainscout.simulators.predictor.question.tuning import LORA_TARGETS, Lora

# In this order: what follows counts more, as Bridge sets it last.
_SECTIONS = (
    *("model", "optimizer", "scheduler", "train", "dataset"),
    *("ddp", "dist", "mixed_precision", "comm_overlap", "checkpoint"),
)
# Fields whose argument says the opposite, or that has another name.
_OFF = {
    "add_bias_linear": "--disable-bias-linear",
    "share_embeddings_and_output_weights": "--untie-embeddings-and-output-weights",
    "gradient_accumulation_fusion": "--no-gradient-accumulation-fusion",
    "apply_rope_fusion": "--no-rope-fusion",
    "overlap_p2p_comm": "--no-overlap-p2p-communication",
    "grad_reduce_in_fp32": "--grad-reduce-in-bf16",
}
_ON = {
    "grad_reduce_in_fp32": "--accumulate-allreduce-grads-in-fp32",
    "enable_cuda_graph": "--enable-cuda-graph",
    "virtual_pipeline_model_parallel_size": "--num-virtual-stages-per-pipeline-rank",
    "sequence_length": "--seq-length",
}
# Of numbers that argue for nothing, and of what other fields say better.
_LEFT_OUT = (
    *("vocab_size", "tokenizer_type", "num_query_groups", "bf16", "fp16", "fp8", "fp4"),
    *("packed_sequence_specs", "teacher"),
)
# Switches of the software, by field, and whether they turn it on.
_FACTS = {
    "check_for_nan_in_grad": ("checks_gradients", True),
    "average_in_collective": ("divides_gradients", False),
    "use_transformer_engine_op_fuser": ("fused_experts", True),
}
_MIXED = {
    "fp8_delayed": ("hybrid", "delayed"),
    "fp8_current": ("hybrid", "tensorwise"),
    "fp8_subchannel": ("e4m3", "blockwise"),
    "mxfp8": ("e4m3", "mxfp8"),
}
_LETTERS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}


def _layout(parts: Sequence[Any]) -> str:
    if isinstance(parts, str):
        return parts
    return "|".join("".join(_LETTERS.get(str(each), str(each)) for each in part) for part in parts)


# Lists that Megatron-LM takes as one word.
_LISTED: dict[str, Callable[[Sequence[Any]], str]] = {
    "moe_layer_freq": lambda kinds: kinds if isinstance(kinds, str) else str(list(kinds)),
    "window_size": lambda ends: ",".join(map(str, ends)),
    "pipeline_model_parallel_layout": _layout,
}
_BACKENDS = {1: "flash", 2: "fused", 3: "unfused", 4: "local", 5: "auto"}
# Layers that adapters may stand beside: fused, as CanonicalLoRA has them, and of latent attention.
_TARGETS = {
    **{name: name for name in LORA_TARGETS},
    **dict.fromkeys(("linear_q", "linear_k", "linear_v", *LATENT), "linear_qkv"),
    **dict.fromkeys(("linear_fc1_up", "linear_fc1_gate"), "linear_fc1"),
    "in_proj": "linear_qkv",
    "out_proj": "linear_proj",
}
_SHORT = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


class BridgeReader(MegatronReader):
    """Reads the sections of such a file."""

    title = TITLE
    software = "megatron_bridge"

    def __init__(self, table: Mapping[str, Any], environment: Mapping[str, str] | None) -> None:
        super().__init__(list(words_of_configuration(table)), environment or {})
        sections = [each for name in _SECTIONS if isinstance(each := table.get(name), Mapping)]
        fields = {name: value for each in sections for name, value in each.items()}
        self._facts = {
            fact: value is on
            for name, (fact, on) in _FACTS.items()
            if isinstance(value := fields.get(name), bool)
        }
        self._lora = self._adapters(table.get("peft"))
        self._packs, self._teacher = _pack(table) > 0, fields.get("teacher") is not None
        if environment is None:
            self.options.note("it says no variables: NCCL and PyTorch's allocator are as declared")

    def training(self, base: Training, model: Model, recipe: Recipe, replicas: int) -> Training:
        """The training, with adapters; packs and a teacher are as declared."""
        found = super().training(base, model, recipe, replicas)
        if self._packs and not found.packed_lengths:
            instead = "each pack is one sequence (training.packed_lengths= says what shares it)"
            self.options.assume("packed_sequence_specs", instead)
        if self._teacher and found.distillation is None:
            instead = "there is none (training=distill training.distillation.teacher= adds it)"
            self.options.assume("a teacher", instead)
        return found if self._lora is None else replace(found, lora=self._lora)

    def _adapters(self, section: Any) -> Lora | None:
        if not isinstance(section, Mapping):
            return None
        kind = str(section.get("_target_", "")).rpartition(".")[2]
        if kind not in ("", "LoRA", "DoRA", "CanonicalLoRA", "VLMLoRA"):
            self.options.assume(f"peft: {kind}", "adapters are plain ones of low rank")
        shared = section.get("share_expert_adapters")
        self._facts |= {"shares_expert_adapters": shared} if isinstance(shared, bool) else {}
        for name in ("normalize_moe_lora", "experts_shared_outer_loras"):
            if section.get(name):
                self.options.assume(name, "experts' adapters are as others'")
        names = [str(name) for name in section.get("target_modules") or LORA_TARGETS]
        ends = {name: name.rpartition(".")[2] for name in names}
        targets = {_TARGETS[end] for end in ends.values() if end in _TARGETS}
        if other := [name for name, end in ends.items() if end not in _TARGETS]:
            instead = "none are there" if targets else "all linear layers have some"
            self.options.assume(f"adapters of {', '.join(other)}", instead)
        if some := [name for name, end in ends.items() if name != end and end in _TARGETS]:
            self.options.assume(f"adapters of {', '.join(some)}", "every layer has them")
        chosen = tuple(name for name in LORA_TARGETS if name in targets) or LORA_TARGETS
        try:
            rank, dropout = int(section.get("dim", 32)), float(section.get("dropout") or 0)
        except (TypeError, ValueError) as error:
            stated = f"dim {section.get('dim')}, dropout {section.get('dropout')}"
            raise InputError("peft", stated, "are no numbers", "as dim=32, dropout=0.1") from error
        return Lora(rank, chosen, dropout, dora=kind == "DoRA")

    def framework(
        self, base: Framework, model: Model, recipe: Recipe, training: Training
    ) -> Framework:
        """The software with what fields switch in it."""
        found = super().framework(base, model, recipe, training)
        unsaid = {fact: getattr(base, fact) for fact, _ in _FACTS.values()}
        return replace(found, **(unsaid | self._facts))

    def reading(self) -> Reading:
        """What became of the fields that stand for arguments; call it last."""
        found = super().reading()
        if not found.unknown:
            return found
        note = f"{len(found.unknown)} fields stand for no argument of Megatron-LM and are not read"
        return replace(found, unknown=(), notes=(*found.notes, note))


def configuration_in(source: str) -> tuple[dict[str, Any], list[str]]:
    """The sections of the ``ConfigContainer`` that a Python module makes, as its file has them,
    and what else the module does to them, which is not followed.

    Raises:
        InputError: for a module that makes none, or is no Python.
    """
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError) as error:
        raise InputError("given", "its module", f"is no Python: {error}") from error
    called = [(_called(node), node) for node in nodes if isinstance(node, ast.Call)]
    made = (_value(node) for name, node in called if name == "ConfigContainer" and node.keywords)
    table = next((each for each in made if is_configuration(each)), None)
    if table is None:
        problem = "makes no ConfigContainer(model=...) with sizes spelt out"
        allowed = "given=run_config.yaml, which Megatron-Bridge keeps beside checkpoints"
        raise InputError("given", "its module", problem, allowed)
    if any(name == "distill" for name, _ in called):
        table["model"]["teacher"] = {}
    changes = [node for node in nodes if isinstance(node, ast.Assign | ast.AugAssign)]
    return table, [ast.unparse(node) for node in changes if _section(node) in table]


def _called(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[2]


def _value(node: ast.expr) -> Any:
    """What stands there: a value, fields with the name of their class, else its text."""
    if isinstance(node, ast.Call) and node.keywords:
        fields = {each.arg: _value(each.value) for each in node.keywords if each.arg}
        return {"_target_": ast.unparse(node.func), **fields}
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)


def _section(change: ast.Assign | ast.AugAssign) -> str | None:
    """Of ``config.train.train_iters = 10`` which section it changes."""
    place = change.targets[0] if isinstance(change, ast.Assign) else change.target
    names = ast.unparse(place).split(".")
    return names[1] if len(names) > 1 else None


def with_overrides(table: dict[str, Any], words: Sequence[str]) -> list[str]:
    """Set fields as its command line does (``train.train_iters=10``); what else stands there."""
    other = []
    for word in words:
        path, equals, value = word.lstrip("+").partition("=")
        section, _, name = path.partition(".")
        if not (equals and name and isinstance(table.get(section), dict)):
            other.append(word)
            continue
        try:
            table[section][name] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise InputError(path, value, "cannot be read", "a value as YAML has it") from error
    return other


def _pack(table: Mapping[str, Any]) -> int:
    """Tokens that short sequences are packed into; 0 where none are."""
    data = table.get("dataset")
    specs = data.get("packed_sequence_specs") if isinstance(data, Mapping) else None
    size = specs.get("packed_sequence_size") if isinstance(specs, Mapping) else None
    return size if isinstance(size, int) and size > 0 else 0


def is_configuration(table: Mapping[str, Any]) -> bool:
    """Whether a file holds the sections of one."""
    model = table.get("model")
    return isinstance(model, Mapping) and "tensor_model_parallel_size" in model


def words_of_configuration(table: Mapping[str, Any]) -> Iterator[str]:
    """The arguments that the fields of all sections stand for.

    Raises:
        InputError: for a section that holds no fields, or a precision that is not known.
    """
    fields: dict[str, Any] = {}
    for section in _SECTIONS:
        settings = table.get(section)
        if isinstance(settings, str) and section == "mixed_precision":
            yield from _mixed(settings)
            continue
        if not isinstance(settings, Mapping | None):
            raise InputError(section, str(settings)[:60], "is no section", "fields with values")
        fields |= {
            name: _plain(each) for name, each in (settings or {}).items() if each is not None
        }
    backend = fields.get("attention_backend")
    if isinstance(backend, int):  # kept by its number
        fields["attention_backend"] = _BACKENDS.get(backend, backend)
    for name, value in fields.items():
        yield from _arguments(name, value)
    yield from _sizes(fields)
    if _pack(table):
        yield from ("--seq-length", str(_pack(table)))


def _arguments(name: str, value: Any) -> Iterator[str]:
    if name in _LEFT_OUT or name in _FACTS or name.startswith("_"):
        return
    if value is False:
        yield from [_OFF[name]] if name in _OFF else ()
        return
    argument = _ON.get(name) or argument_of(name)
    if value is True:
        yield from [] if name in _OFF and name not in _ON else [argument]
    elif name in _LISTED and isinstance(value, Sequence):
        yield from (argument, _LISTED[name](value))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        yield from [argument, *map(str, value)] if value else ()
    elif not isinstance(value, Mapping):
        yield from (argument, str(value))


def _sizes(fields: Mapping[str, Any]) -> Iterator[str]:
    """What several fields say together."""
    groups, heads = (fields.get(name) for name in ("num_query_groups", "num_attention_heads"))
    if groups not in (None, heads):
        yield from ("--group-query-attention", "--num-query-groups", str(groups))
    if fields.get("vocab_size"):
        yield from ("--vocab-size", str(fields["vocab_size"]))
    half = next((name for name in ("bf16", "fp16") if fields.get(name)), None)
    yield from [f"--{half}"] if half else ()
    for width in ("fp8", "fp4"):
        if fields.get(width):
            yield from (f"--{width}-format", str(fields[width]))


def _mixed(name: str) -> Iterator[str]:
    """A precision by the name of its recipe, such as ``bf16_with_fp8_current_scaling_mixed``."""
    half = next((each for each in ("bf16", "fp16") if name.startswith(each)), None)
    if half is None:
        raise InputError("mixed_precision", name, "is not known", "bf16_mixed, fp16_mixed, ...")
    yield f"--{half}"
    if "nvfp4" in name:
        yield from ("--fp4-format", "e2m1", "--fp4-recipe", "nvfp4", "--fp4-param-gather")
    elif "fp8" in name:
        known = next((words for mark, words in _MIXED.items() if mark in name), None)
        if known is None:
            allowed = ", ".join(_MIXED)
            raise InputError("mixed_precision", name, "is not known", allowed)
        yield from ("--fp8-format", known[0], "--fp8-recipe", known[1])
        yield from () if "subchannel" in name else ["--fp8-param-gather"]


def _plain(value: Any) -> Any:
    """A value without how it is kept: a type of torch, an enum, a function by its target."""
    if isinstance(value, Mapping):
        if "_target_" not in value:
            return value
        inner = value.get("_args_") or [value.get("_name_") or value["_target_"]]
        value = inner[0] if isinstance(inner, Sequence) and inner else ""
    if isinstance(value, str) and re.match(r"(torch|AttnBackend|megatron)\b", value):
        value = value.rpartition(".")[2]
    return _SHORT.get(value, value) if isinstance(value, str) else value
