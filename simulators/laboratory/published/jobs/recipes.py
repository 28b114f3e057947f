"""From the layout columns of a row to a recipe."""

from __future__ import annotations

import dataclasses

from trainscout.simulators.laboratory.published.reading.rows import Row, given
from trainscout.simulators.laboratory.published.reading.words import Statement
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.knobs.recomputation import RECOMPUTE_MODES
from trainscout.simulators.predictor.question.layout import BALANCED
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.schedules import SCHEDULES

from .degrees import Degrees
from .era import Era
from .frameworks import DATES, MEGATRONS, is_declared
from .outcome import CannotReplayError
from .presets import is_bridge, moe_preset
from .sharding import recipes_shard, sharding_group, zero_stage

# Trainers whose replicas are DistributedDataParallel's, which reduces buckets during the backward
# pass (torch/nn/parallel/distributed.py).
_DISTRIBUTED_DATA_PARALLEL = frozenset(
    ["ddp", "pytorch", "huggingface", "lightning", "fsdp1", "torchtune", "torchtitan"]
)


def precision_of(
    row: Row, statement: Statement, era: Era, degrees: Degrees, default: str
) -> tuple[str, tuple[str, ...]]:
    """The arithmetic of a row's matrix multiplications, and what was assumed.

    Raises:
        CannotReplayError: for arithmetic that no declared GPU has.
    """
    arithmetic = statement.arithmetic
    sliced = degrees.tp * degrees.pp > 1 and degrees.cp * degrees.dp == 1
    its_own = sliced and statement.says("project", "torchtitan")
    old = era.before(DATES["mixed_without_shards_in_torchtitan"])
    if its_own and old and arithmetic in ("", "mixed", "bf16"):
        return "fp32", ("mixed precision is FSDP's in TorchTitan, and there are no shards: fp32",)
    older = era.before(DATES["compute_types_of_packed_weights"])
    if older and statement.says("autocast", "none") and statement.says("frozen_weights"):
        return "fp32", ("no autocast: packed weights are multiplied by what norms make, fp32",)
    if not row.dtype:
        return default, (f"precision not published: {default}",)
    if not arithmetic:
        raise CannotReplayError(f"dtype={row.dtype} is not a known precision")
    if arithmetic == "mixed":
        return default, (f"mixed precision: {default}",)
    if arithmetic in ("fp4", "int8"):
        raise CannotReplayError(f"{row.dtype} arithmetic is not modelled")
    if arithmetic not in ("fp8", "mxfp8", "nvfp4"):
        return arithmetic, ()
    if statement.says("scales", "rows"):
        raise CannotReplayError("8-bit operands scaled by rows are not modelled")
    if arithmetic == "fp8" and statement.says("scales", "blocks"):
        return "fp8_block", ()
    # TorchTitan takes a tensor's scale from the tensor itself.
    current = statement.says("scales", "tensors") or statement.says("project", "torchtitan")
    return ("fp8_current" if arithmetic == "fp8" and current else arithmetic), ()


def batch_of(row: Row) -> int:
    """The global batch in sequences.

    Raises:
        CannotReplayError: when it is not published.
    """
    if row.global_batch is None:
        raise CannotReplayError("global_batch is not published")
    return row.global_batch


def recipe_of(
    row: Row,
    statement: Statement,
    era: Era,
    degrees: Degrees,
    model: Model,
    framework: Framework,
    batch: int,
) -> tuple[Recipe, tuple[str, ...]]:
    """The recipe of a row, and what was assumed.

    Raises:
        CannotReplayError: for what no recipe can say.
    """
    assumed: list[str] = []
    _refuse_unknown_techniques(statement)
    zero = zero_stage(row, statement, era, degrees, assumed)
    on_host = _on_host(statement, framework, zero, assumed)
    vpp = _virtual_stages(row, statement, degrees, model, batch, assumed)
    sequence_parallel = _sequence_parallel(row, statement, era, degrees, model, assumed)
    overlap = _overlaps_gradients(row, statement, era, zero, degrees, assumed)
    tp_overlap = degrees.tp > 1 and given(row.tp_overlap, statement.says("tp_overlap", "yes")) == 1
    if tp_overlap and not sequence_parallel:
        tp_overlap = False
        assumed.append("TP overlap without sequence parallelism replayed without overlap")
    recompute, recompute_layers = _recompute(
        row, statement, degrees, vpp, model, framework, assumed
    )
    modules = _recompute_modules(statement, framework) if recompute == "selective" else None
    offloaded = int(statement.facts.get("offloaded_layers", 0))
    # No recipe offloads with a pipeline; beside recomputation some software does.
    inputs = recompute == "full" and framework.offloads_inputs
    can_offload = degrees.pp == 1 and (recompute == "none" or inputs)
    unsaid = statement.says("offload", "activations")
    if unsaid and inputs and can_offload:
        # Around the whole model: torch.autograd.graph.save_on_cpu, TRL's activation_offloading.
        offloaded = model.num_layers
        assumed.append("inputs of all layers offloaded to the CPU, beside the passes")
    elif unsaid or (offloaded and not can_offload):
        assumed.append("activations offloaded to the CPU replayed as kept by the GPU")
    exchange = statement.facts.get("context", "")
    if degrees.cp > 1 and exchange == "hierarchical":
        assumed.append("hierarchical context parallelism replayed as a ring")
    # No recipe of Megatron-Bridge's splits experts (expert_tensor_parallel_size).
    split = given(row.etp, 1 if is_bridge(statement) else degrees.tp)
    world = degrees.tp * degrees.pp * degrees.cp * degrees.dp
    if row.etp is None and world % (split * given(row.ep, 1) * degrees.pp):
        # There are not GPUs for both.
        split = 1
    etp = split if model.moe is not None and split != degrees.tp else None
    if model.moe is not None and row.ep is None:
        assumed.append("expert parallelism not published: 1")
    if model.moe is not None and statement.says("grouped_gemm", "no"):
        assumed.append("experts' products of their own replayed as grouped ones")
    recipe = Recipe(
        tp=degrees.tp,
        pp=degrees.pp,
        cp=degrees.cp,
        cp_comm_type={"a2a": "a2a", "all-gather": "all_gather"}.get(exchange, "p2p"),
        ep=given(row.ep, 1) if model.moe is not None else 1,
        etp=etp,
        vpp=vpp,
        micro_batch=_micro_batch(row, statement, era, degrees, framework, batch, zero, assumed),
        recompute=recompute,
        recompute_layers=recompute_layers,
        recompute_modules=modules,
        fp8_dot_product_attention="attention" in statement.facts.get("fp8_products", ""),
        fp8_output_proj="logits" in statement.facts.get("fp8_products", ""),
        activation_func_fp8_input_store=statement.says("stored", "fp8"),
        sp=sequence_parallel,
        zero_stage=zero,
        optimizer_offload=on_host,
        dp_shard=sharding_group(row, statement, zero, degrees, model, assumed),
        overlap_grad_reduce=overlap,
        overlap_param_gather=overlap and zero >= (3 if framework.flattens_gradients else 1),
        tp_comm_overlap=tp_overlap,
        # Megatron-Core pairs layers of attention and experts alone.
        overlap_moe_expert_parallel_comm=model.moe is not None
        and model.is_plain
        and given(row.ep, 1) > 1
        and moe_preset(row, statement, era).overlapped,
        schedule=_schedule(statement) if degrees.pp > 1 else "1f1b",
        offloaded_layers=offloaded if can_offload else 0,
        offload_modules=statement.get("offload_modules"),
    )
    return _split(statement, recipe, model, framework, assumed), tuple(assumed)


def _schedule(statement: Statement) -> str:
    """The schedule of a pipeline: forward passes first, one that rows name as recipes do, or 1F1B
    with as many chunks as are said."""
    stated = statement.facts.get("schedule", "1f1b")
    if stated in ("gpipe", "breadth-first"):
        return "gpipe"
    return stated if stated in SCHEDULES else "1f1b"


def _refuse_unknown_techniques(statement: Statement) -> None:
    """Refuse what a row says it did and no recipe can do.

    Raises:
        CannotReplayError: naming it.
    """
    if statement.says("schedule", "another"):
        raise CannotReplayError("other pipeline schedules are not modelled")
    if statement.says("offload", "disk") or statement.sharding.get("offload") == "disk":
        raise CannotReplayError("an optimizer on disks is not modelled")
    if statement.says("tensor_grid"):
        raise CannotReplayError("tensor parallelism over a grid of GPUs is not modelled")


def _on_host(statement: Statement, framework: Framework, zero: int, assumed: list[str]) -> int:
    """Percent of the optimizer that the host's CPU updates: all of it where ZeRO-Offload does, and
    as much as is said of Megatron-Core's, else all as its command line and recipes have it.

    Raises:
        CannotReplayError: when other software does, or there are no shards of it.
    """
    told = statement.says("offload", "optimizer", "zero") or "offload" in statement.sharding
    share = statement.get("optimizer_share")
    if not told and share is None:
        return 0
    hybrid = framework.host_optimizer == "pipelined"
    deeper = statement.sharding.get("stage", "0")[0] >= "2"
    another = hybrid and (deeper or statement.says("offload", "zero"))
    if framework.host_optimizer == "none" or zero < 1 or another:
        raise CannotReplayError("how much of the optimizer is on the CPU is not said")
    if share is None and hybrid:
        # --optimizer-offload-fraction (megatron/training/arguments.py) is 1.
        assumed.append("share of the optimizer on the CPU not published: all")
    return round(100 * float(share or 1))


def _overlaps_gradients(
    row: Row, statement: Statement, era: Era, zero: int, degrees: Degrees, assumed: list[str]
) -> bool:
    """Whether data-parallel communication runs beside compute."""
    if row.grad_overlap is not None:
        return row.grad_overlap == 1
    if statement.says("overlap", "none") or statement.says("dp_overlap", "no"):
        return False
    if statement.says("dp_overlap", "yes"):
        return True
    # Under a pipeline FSDP's shards are replayed as an optimizer's; it overlaps all the same.
    project = statement.label.get("project")
    fsdp = is_declared(statement) and (zero >= 2 or statement.sharding.get("stage", "0")[0] >= "2")
    ddp = zero == 0 and project in _DISTRIBUTED_DATA_PARALLEL
    megatron = project == "megatron" and zero >= 1 and not era.before(DATES["overlap_in_megatron"])
    overlap = fsdp or ddp or megatron or recipes_shard(statement, era)
    if degrees.dp > 1:
        words = "overlapped" if overlap else "not overlapped"
        assumed.append(f"data-parallel communication not published: {words}")
    return overlap


def _virtual_stages(
    row: Row, statement: Statement, degrees: Degrees, model: Model, batch: int, assumed: list[str]
) -> int:
    if degrees.pp == 1:
        return 1
    if row.vpp is not None:
        return row.vpp
    stated = statement.facts.get("stages", "")
    if stated.isdigit():
        return int(stated)
    # Where an end of the model lies in a layer's place, there are as many places more.
    per_stage = (model.num_layers + 2 * statement.says("ends", "layers")) // degrees.pp
    # Meta's trainer has no other schedule (The Llama 3 Herd of Models, figure 6).
    interleaved = (
        statement.says("schedule", "interleaved") or statement.label.get("project") == "meta"
    )
    if interleaved and per_stage > 1:
        chunks = per_stage // 2 if per_stage % 2 == 0 else per_stage
        assumed.append(f"virtual stages not published: {chunks}")
        return chunks
    rounds = batch % (degrees.dp * given(row.micro_batch, 1) * degrees.pp) == 0
    even = rounds and model.num_layers % degrees.pp == 0
    if statement.says("stages", "unsaid") and even and degrees.pp > 2:
        # Megatron's tuned runs interleave as deeply as their layers allow.
        assumed.append(f"virtual stages not published: {per_stage}, a layer each")
        return per_stage
    assumed.append("virtual stages not published: 1")
    return 1


def _sequence_parallel(
    row: Row, statement: Statement, era: Era, degrees: Degrees, model: Model, assumed: list[str]
) -> bool:
    if degrees.tp == 1:
        return False
    if row.sp is not None:
        if model.moe is not None and not row.sp:
            assumed.append("sequence parallelism on, as Megatron-LM demands of MoE with TP")
            return True
        return bool(row.sp)
    if statement.says("sequence_parallel"):
        return not statement.says("sequence_parallel", "no")
    has = not era.before(DATES["sequence_parallel_in_megatron"])
    project = statement.label.get("project")
    # TorchTitan's plan has it (models/llama3/infra/parallelize.py).
    its_own = project == "torchtitan" or (has and project in MEGATRONS)
    on = model.moe is not None or row.tp_overlap == 1 or its_own
    assumed.append(f"sequence parallelism not published: {'on' if on else 'off'}")
    return on


def _micro_batch(
    row: Row,
    statement: Statement,
    era: Era,
    degrees: Degrees,
    framework: Framework,
    batch: int,
    zero: int,
    assumed: list[str],
) -> int:
    if row.micro_batch is not None:
        return row.micro_batch
    share = batch // degrees.dp
    # PyTorch trainers run a GPU's whole share at once unless told otherwise, Megatron's do not,
    # whose layers of 2021 are sharded by somebody else's.
    its_own = framework.name.startswith("megatron") and framework.name != "megatron_2021"
    whole = zero >= 2 and share > 0 and not its_own
    micro_batch = share if whole else 1
    if degrees.pp > 1 and statement.says("project", "torchtitan"):
        # Its pipelines cut a batch into as many micro-batches as there are stages, then into
        # sequences.
        whole = era.before(DATES["sequences_in_pipelines_of_torchtitan"])
        micro_batch = max(1, share // degrees.pp) if whole else 1
    assumed.append(f"micro-batch not published: {micro_batch}")
    return micro_batch


def _recompute(
    row: Row,
    statement: Statement,
    degrees: Degrees,
    vpp: int,
    model: Model,
    framework: Framework,
    assumed: list[str],
) -> tuple[str, int | None]:
    """What is recomputed, and how many layers of a chunk; labels mean what the notes say."""
    label = statement.recompute.get("mode", "")
    if "modules" in statement.recompute and label in ("", "full"):
        label = "selective"
    if not label and statement.recompute:
        label = "full"
    if row.recompute and not label:
        raise CannotReplayError(f"recompute={row.recompute} is not a known label")
    chunk = max(1, model.num_layers // (degrees.pp * vpp))
    per_stage = statement.recompute.get("block", statement.get("recompute_layers"))
    if per_stage is not None:
        return "full", max(1, min(chunk, int(per_stage) // vpp))
    of_all = statement.recompute.get("of", statement.get("recompute_of"))
    if of_all is not None:
        return "full", max(1, min(chunk, int(of_all) // (degrees.pp * vpp)))
    if label == "selective" and statement.says("project", "fms"):
        return "full", _checkpointed_blocks(row, statement, model)
    stated = statement.facts.get("recompute", "unsaid")
    if "half" in (stated, label) and label in ("", "selective", "half"):
        return "full", max(1, chunk // 2)
    if not label and statement.says("modules"):
        label = "none" if statement.says("modules", "none") else "selective"
    if not label and stated in ("none", "full", "flag", "selective"):
        label = "full" if stated == "flag" else stated
    if not label:
        # Megatron-LM's own; what other trainers select keeps outputs of fused attention.
        unfused = framework.attention == "unfused" and framework.name.startswith("megatron")
        label = "selective" if unfused else "none"
        if statement.says("project", "xla") and "pax" in row.framework.lower():
            # Pax's stacked layers keep nothing unless told to (checkpoint_policy SAVE_NOTHING).
            label = "full"
        if statement.says("project", "torchtitan"):
            # Its configurations (models/*/train_configs): whole layers of dense models from 32B
            # on, less to 8B and of those with experts.
            label = "full" if model.hidden_size > 4096 and model.moe is None else "selective"
        assumed.append(f"recomputation not published: {label}")
    return label, None


# Of a model's blocks, one in so many is checkpointed (fms-fsdp's ``selective_checkpointing``).
_BLOCKS_APART = (4, 3, 2, 1)


def _checkpointed_blocks(row: Row, statement: Statement, model: Model) -> int:
    """How many blocks run forward again: a block's HFU counts four passes where its MFU counts
    three. Where no HFU is published, the fewest that software checkpoints."""
    if row.measured_mfu is None or not statement.says("hfu"):
        return -(-model.num_layers // _BLOCKS_APART[0])
    share = 3 * (float(statement.facts["hfu"]) / row.measured_mfu - 1)
    return max(1, min(model.num_layers, round(share * model.num_layers)))


def heavier_recomputation(
    row: Row, statement: Statement, model: Model, recipe: Recipe
) -> tuple[Recipe, ...]:
    """Recipes that recompute ever more layers, where a row does not say how many were."""
    if row.recompute.lower() == "selective" and statement.says("project", "fms"):
        if statement.says("hfu"):
            return ()
        whole = dataclasses.replace(recipe, recompute="full", recompute_modules=None)
        return tuple(
            dataclasses.replace(whole, recompute_layers=-(-model.num_layers // apart))
            for apart in _BLOCKS_APART[1:]
        )
    if _says_what_is_recomputed(row, statement):
        return ()
    later = RECOMPUTE_MODES[RECOMPUTE_MODES.index(recipe.recompute) + 1 :]
    return tuple(dataclasses.replace(recipe, recompute=mode) for mode in later)


def picked_recomputation(
    row: Row, statement: Statement, model: Model, recipe: Recipe
) -> tuple[Recipe, ...]:
    """Recipes that recompute ever more modules, where a row does not say which were: the cheap
    ones, then whole experts or MLPs, of which a layer's activations are most."""
    if _says_what_is_recomputed(row, statement):
        return ()
    light, heavy = "layernorm", "layernorm+mlp"
    if model.moe is not None:
        light, heavy = "layernorm+moe_act", "layernorm+moe"
    return tuple(
        dataclasses.replace(recipe, recompute="selective", recompute_modules=modules)
        for modules in (light, heavy)
    )


def _says_what_is_recomputed(row: Row, statement: Statement) -> bool:
    """Not where the row's collector inferred it, perhaps from what the run took."""
    facts = ("recompute", "recompute_layers", "recompute_of", "modules")
    stated = bool(row.recompute) and "recompute" not in row.inferred
    return stated or any(statement.says(fact) for fact in facts)


def _recompute_modules(statement: Statement, framework: Framework) -> str | None:
    """What selective recomputation covered, as the words say or the framework does it."""
    stated = statement.recompute.get("modules", statement.get("modules"))
    if stated and stated != "none":
        return stated
    if framework.name.startswith("megatron") or framework.attention == "unfused":
        # Without flash attention it is of the core attention, as Megatron-LM does it.
        return None
    return "operations"


def _split(
    statement: Statement, recipe: Recipe, model: Model, framework: Framework, assumed: list[str]
) -> Recipe:
    """Split layers that do not divide as the software of the row did, or nearly."""
    chunks = recipe.pp * recipe.vpp
    layers = model.num_layers
    stated = statement.says("ends", "layers")
    if recipe.pp == 1 or (layers % chunks == 0 and not stated):
        return recipe
    both_ends = (layers + 2) % chunks == 0 and not model.num_mtp_layers
    if both_ends and (stated or not framework.balanced_split):
        assumed.append("the embedding and the loss take a layer's place in the pipeline split")
        return dataclasses.replace(recipe, embedding_as_layer=True, loss_as_layer=True)
    if model.num_mtp_layers:
        # Megatron-Bridge's layouts for DeepSeek-V3: the module and the loss each take a place.
        assumed.append("the loss and the multi-token prediction take layers' places in the split")
        recipe = dataclasses.replace(recipe, loss_as_layer=True)
    if framework.balanced_split:
        return recipe
    assumed.append(f"{layers} layers dealt out over {chunks} chunks as evenly as they go")
    return dataclasses.replace(recipe, pipeline_layout=BALANCED)
