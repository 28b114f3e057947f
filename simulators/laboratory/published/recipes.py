"""From the layout columns of a row to a recipe."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass

from trainscout.simulators.laboratory.published.outcome import CannotReplayError
from trainscout.simulators.laboratory.published.presets import moe_preset
from trainscout.simulators.laboratory.published.rows import Row, given
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.recipe import Recipe

_PRECISIONS = (
    ("nvfp4", None),
    ("fp4", None),
    ("mxfp8", "mxfp8"),
    ("fp8", "fp8"),
    ("int8", None),
)
# Recipes that take a tensor's scale from the tensor itself, by the name publishers give them.
_CURRENT_SCALING = ("fp8-cs", "fp8_cs", "tensorwise", "torchtitan")
_PLAIN = ("bf16", "fp16", "fp32", "tf32")
# Megatron's switch and its absence, as words.
_SHARDING_SWITCH = {"true": 1, "false": 0, "none": 0}


@dataclass(frozen=True)
class Degrees:
    """How many GPUs, and how they are divided among tensor, pipeline, context and data."""

    num_gpus: int
    tp: int
    pp: int
    cp: int
    dp: int


def precision_of(row: Row, default: str) -> tuple[str, tuple[str, ...]]:
    """The arithmetic of a row's matrix multiplications, and what was assumed.

    Raises:
        CannotReplayError: for arithmetic that no declared GPU has.
    """
    label = row.dtype.lower()
    if not label:
        return default, (f"precision not published: {default}",)
    for prefix, precision in _PRECISIONS:
        if label.startswith(prefix):
            if precision is None:
                raise CannotReplayError(f"{row.dtype} arithmetic is not modelled")
            notes = f"{row.notes} {row.framework}".lower()
            if "rowwise" in notes:
                raise CannotReplayError("8-bit operands scaled by rows are not modelled")
            if precision == "fp8" and any(word in notes for word in _CURRENT_SCALING):
                return "fp8_current", ()
            return precision, ()
    if label not in _PLAIN:
        raise CannotReplayError(f"{row.dtype} is not a known precision")
    return label, ()


def degrees_of(row: Row) -> tuple[Degrees, tuple[str, ...]]:
    """The row's parallel degrees; one that is missing follows from the others.

    Raises:
        CannotReplayError: when more than one is missing, or they contradict each other.
    """
    assumed: list[str] = []
    known = {"tp": row.tp, "pp": row.pp, "cp": given(row.cp, 1), "dp": row.dp}
    missing = [name for name, value in known.items() if value is None]
    if row.num_gpus is None:
        missing.insert(0, "num_gpus")
    if len(missing) > 1:
        raise CannotReplayError(f"{', '.join(missing)} not published")
    product = 1
    for value in known.values():
        product *= given(value, 1)
    if not missing:
        if product != row.num_gpus:
            raise CannotReplayError(
                f"tp x pp x cp x dp = {product} contradicts the {row.num_gpus} GPUs printed"
            )
    elif missing == ["num_gpus"]:
        assumed.append(f"GPU count not published: {product} by the layout")
    else:
        total = given(row.num_gpus, 0)
        if total % product:
            raise CannotReplayError(f"the printed degrees do not divide {total} GPUs")
        known[missing[0]] = total // product
        if missing[0] != "dp":
            assumed.append(f"{missing[0]} not published: {total // product} by the GPU count")
    tp, pp, cp, dp = (given(known[name], 1) for name in ("tp", "pp", "cp", "dp"))
    return Degrees(tp * pp * cp * dp, tp, pp, cp, dp), tuple(assumed)


def batch_of(row: Row) -> int:
    """The global batch in sequences.

    Raises:
        CannotReplayError: when it is not published.
    """
    if row.global_batch is None:
        raise CannotReplayError("global_batch is not published")
    return row.global_batch


def recipe_of(
    row: Row, degrees: Degrees, model: Model, framework: Framework, batch: int
) -> tuple[Recipe, Framework, tuple[str, ...]]:
    """The recipe of a row, the framework with the layer split it needs, and what was assumed."""
    assumed: list[str] = []
    zero = _zero_stage(row, degrees, assumed)
    vpp = _virtual_stages(row, degrees, model, batch, assumed)
    sequence_parallel = _sequence_parallel(row, degrees, model, assumed)
    overlap = row.grad_overlap == 1
    if row.grad_overlap is None:
        # Under a pipeline its shards are replayed as an optimizer's; it overlaps all the same.
        overlap = zero >= 2 or row.dist_optimizer.lower().startswith(("fsdp", "hsdp"))
        words = "overlapped" if overlap else "not overlapped"
        if degrees.dp > 1:
            assumed.append(f"data-parallel communication not published: {words}")
    tp_overlap = row.tp_overlap == 1 and degrees.tp > 1
    if tp_overlap and not sequence_parallel:
        tp_overlap = False
        assumed.append("TP overlap without sequence parallelism replayed without overlap")
    recompute, recompute_layers = _recompute(row, degrees, vpp, model, framework, assumed)
    modules = _recompute_modules(row, framework) if recompute == "selective" else None
    if "activation offload" in row.notes.lower():
        assumed.append("activations offloaded to the CPU replayed as kept by the GPU")
    etp = row.etp if model.moe is not None and row.etp != degrees.tp else None
    if model.moe is not None and row.ep is None:
        assumed.append("expert parallelism not published: 1")
    recipe = Recipe(
        tp=degrees.tp,
        pp=degrees.pp,
        cp=degrees.cp,
        cp_comm_type="a2a" if "cp uses all-to-all" in row.notes.lower() else "p2p",
        ep=given(row.ep, 1) if model.moe is not None else 1,
        etp=etp,
        vpp=vpp,
        micro_batch=_micro_batch(row, degrees, framework, batch, zero, assumed),
        recompute=recompute,
        recompute_layers=recompute_layers,
        recompute_modules=modules,
        sp=sequence_parallel,
        zero_stage=zero,
        overlap_grad_reduce=overlap,
        overlap_param_gather=overlap and zero >= 1,
        tp_comm_overlap=tp_overlap,
        overlap_moe_expert_parallel_comm=model.moe is not None
        and given(row.ep, 1) > 1
        and moe_preset(row).overlapped,
    )
    return *_split(row, recipe, model, framework, assumed), tuple(assumed)


def _zero_stage(row: Row, degrees: Degrees, assumed: list[str]) -> int:
    label = row.dist_optimizer.lower()
    if not label:
        assumed.append("optimizer sharding not published: none")
        return 0
    if label in _SHARDING_SWITCH:
        return _SHARDING_SWITCH[label]
    if match := re.search(r"^([0-3])(?:\.0)?$|zero-?([0-3])", label):
        stage = int(match[1] or match[2])
    elif label.startswith(("fsdp", "hsdp")):
        stage = 3
        group = re.fullmatch(r"fsdp(\d{2,})", label)
        if label == "hsdp" or (group and int(group[1]) != degrees.dp):
            assumed.append(f"{label}: shards replayed over all {degrees.dp} data-parallel ranks")
    else:
        raise CannotReplayError(f"dist_optimizer={row.dist_optimizer} is not a known label")
    if stage >= 2 and degrees.pp > 1:
        assumed.append(f"{label} under pipeline parallelism replayed as a sharded optimizer")
        return 1
    return stage


def deepest_sharding(row: Row, degrees: Degrees, framework: Framework) -> int | None:
    """The highest ZeRO stage that a row's software may have used; None where it is known."""
    if row.dist_optimizer or degrees.dp == 1:
        return None
    return 1 if degrees.pp > 1 or framework.name.startswith("megatron") else 3


def _virtual_stages(
    row: Row, degrees: Degrees, model: Model, batch: int, assumed: list[str]
) -> int:
    if degrees.pp == 1:
        return 1
    if row.vpp is not None:
        return row.vpp
    per_stage = model.num_layers // degrees.pp
    text = f"{row.framework} {row.notes}".lower()
    if "interleaved" in text and "non-interleaved" not in text and per_stage > 1:
        chunks = per_stage // 2 if per_stage % 2 == 0 else per_stage
        assumed.append(f"virtual stages not published: {chunks}")
        return chunks
    rounds = batch % (degrees.dp * given(row.micro_batch, 1) * degrees.pp) == 0
    unsaid = re.search(r"vpp\b[^;]*not published", text)
    if unsaid and rounds and degrees.pp > 2 and model.num_layers % degrees.pp == 0:
        # Megatron's tuned runs interleave as deeply as their layers allow.
        assumed.append(f"virtual stages not published: {per_stage}, a layer each")
        return per_stage
    assumed.append("virtual stages not published: 1")
    return 1


def _sequence_parallel(row: Row, degrees: Degrees, model: Model, assumed: list[str]) -> bool:
    if degrees.tp == 1:
        return False
    if row.sp is not None:
        if model.moe is not None and not row.sp:
            assumed.append("sequence parallelism on, as Megatron-LM demands of MoE with TP")
            return True
        return bool(row.sp)
    on = model.moe is not None or row.tp_overlap == 1
    assumed.append(f"sequence parallelism not published: {'on' if on else 'off'}")
    return on


def _micro_batch(
    row: Row, degrees: Degrees, framework: Framework, batch: int, zero: int, assumed: list[str]
) -> int:
    if row.micro_batch is not None:
        return row.micro_batch
    share = batch // degrees.dp
    # PyTorch trainers run a GPU's whole share at once unless told otherwise, Megatron's do not.
    whole = zero >= 2 and share > 0 and not framework.name.startswith("megatron")
    micro_batch = share if whole else 1
    if degrees.pp > 1 and "torchtitan" in row.framework.lower():
        # Its pipelines cut a batch into as many micro-batches as there are stages.
        micro_batch = max(1, share // degrees.pp)
    assumed.append(f"micro-batch not published: {micro_batch}")
    return micro_batch


def _recompute(
    row: Row,
    degrees: Degrees,
    vpp: int,
    model: Model,
    framework: Framework,
    assumed: list[str],
) -> tuple[str, int | None]:
    """What is recomputed, and how many layers of a chunk; labels mean what the notes say."""
    label, notes = row.recompute.lower(), row.notes.lower()
    chunk = max(1, model.num_layers // (degrees.pp * vpp))
    if match := re.search(r"block recompute of only (\d+) layers per stage", notes):
        return "full", max(1, min(chunk, int(match[1]) // vpp))
    if not label:
        mode = "selective" if framework.attention == "unfused" else "none"
        if "paxml" in row.framework.lower():
            # Pax's stacked layers keep nothing unless told to (checkpoint_policy SAVE_NOTHING).
            mode = "full"
        assumed.append(f"recomputation not published: {mode}")
        return mode, None
    if label in ("none", "full"):
        return label, None
    if label != "selective":
        raise CannotReplayError(f"recompute={row.recompute} is not a known label")
    if "every other layer" in notes:
        return "full", max(1, chunk // 2)
    return "selective", None


# MaxText's policy of this name keeps the query, key and value projections of every layer.
_SAVE_QKV_PROJ = "layernorm+core_attn+attn_out+mlp"


def _recompute_modules(row: Row, framework: Framework) -> str | None:
    """What selective recomputation covered, as the notes say or the framework does it."""
    notes = row.notes.lower()
    if match := re.search(r"recompute modules ([a-z_+]+)", notes):
        return match[1]
    if "norm+act" in notes:
        return "layernorm+moe_act"
    if "save_qkv_proj" in notes:
        return _SAVE_QKV_PROJ
    if "per-op" in notes or framework.name.startswith("torch"):
        return "operations"
    return None


def _split(
    row: Row, recipe: Recipe, model: Model, framework: Framework, assumed: list[str]
) -> tuple[Recipe, Framework]:
    """Split layers that do not divide as the software of the row did, or nearly."""
    chunks = recipe.pp * recipe.vpp
    layers = model.num_layers
    stated = "counted as pipeline layers" in row.notes.lower()
    if recipe.pp == 1 or (layers % chunks == 0 and not stated):
        return recipe, framework
    if (layers + 2) % chunks == 0 and (stated or not framework.balanced_split):
        assumed.append("the embedding and the loss take a layer's place in the pipeline split")
        ends = dataclasses.replace(recipe, embedding_as_layer=True, loss_as_layer=True)
        return ends, framework
    if model.num_mtp_layers:
        # Megatron-Bridge's layouts for DeepSeek-V3: the module and the loss each take a place.
        assumed.append("the loss and the multi-token prediction take layers' places in the split")
        recipe = dataclasses.replace(recipe, loss_as_layer=True)
    if not framework.balanced_split:
        assumed.append(f"{layers} layers dealt out over {chunks} chunks as evenly as they go")
        framework = dataclasses.replace(framework, balanced_split=True)
    return recipe, framework
