"""What a row's replicas share out of the model's state, and among how many."""

from __future__ import annotations

from trainscout.simulators.laboratory.published.reading.rows import Row, given
from trainscout.simulators.laboratory.published.reading.words import Statement
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.model import Model

from .degrees import Degrees
from .era import Era
from .frameworks import project_of
from .outcome import CannotReplayError

# NeMo's recipes shard the optimizer and overlap what that takes from its second version on, as
# Megatron-Bridge's and InternEvo's do.
_RECIPES_SHARD = 2024.7
# Since then all of two dozen publications that say it of Megatron-LM shard the optimizer.
_SHARDED_IN_MEGATRON = 2023.0
# From pull request 1801 of DeepSpeed to 7515 bf16 without ZeRO was its BF16 optimizer's, which
# shards; in pipelines it still is (runtime/engine.py: _do_optimizer_sanity_check).
_SHARDED_BF16_IN_DEEPSPEED = 2022.3
_UNSHARDED_BF16_IN_DEEPSPEED = 2025.65


def recipes_shard(statement: Statement, era: Era) -> bool:
    """Whether the software's own recipes shard the optimizer, and overlap what that takes."""
    project = statement.label.get("project")
    late = project == "nemo" and not era.before(_RECIPES_SHARD)
    return late or project in ("bridge", "internevo")


def zero_stage(
    row: Row, statement: Statement, era: Era, degrees: Degrees, assumed: list[str]
) -> int:
    """What of a model's state is shared out among replicas, as a ZeRO stage.

    Raises:
        CannotReplayError: for a label that says nothing known.
    """
    label = row.dist_optimizer.lower()
    told = statement.sharding.get("stage")
    if label and told is None:
        raise CannotReplayError(f"dist_optimizer={row.dist_optimizer} is not a known label")
    told = told or statement.facts.get("sharding")
    if told is None and statement.says("megatron_fsdp") and recipes_shard(statement, era):
        # data_parallel_sharding_strategy of Megatron-Bridge's recipes/common.py.
        told = "3"
        assumed.append("what Megatron-FSDP shards not published: all, as in its recipes")
    if told is None:
        shards = recipes_shard(statement, era) or _bf16_optimizer(row, statement, era, degrees)
        shards |= project_of(statement) == "megatron" and not era.before(_SHARDED_IN_MEGATRON)
        stage = int(shards)
        words = "the optimizer's states, as in most runs of the software" if stage else "none"
        assumed.append(f"optimizer sharding not published: {words}")
        return stage
    stage = int(told[0])
    if not stage and _bf16_optimizer(row, statement, era, degrees):
        assumed.append("bf16 without ZeRO: DeepSpeed's BF16 optimizer, which shards its states")
        return 1
    # NeMo AutoModel where ranks have experts of their own (MoEParallelizerConfig).
    keeps = statement.label.get("project") == "automodel" and given(row.ep, 1) > 1
    if stage == 3 and (keeps or statement.says("parameters_stay")):
        stage = 2
    if stage >= 2 and degrees.pp > 1:
        assumed.append(f"{label} under pipeline parallelism replayed as a sharded optimizer")
        return 1
    return stage


def _bf16_optimizer(row: Row, statement: Statement, era: Era, degrees: Degrees) -> bool:
    """Whether without ZeRO a row's optimizer is DeepSpeed's for bf16."""
    if project_of(statement) not in ("deepspeed", "megatron_deepspeed"):
        return False
    later = degrees.pp == 1 and not era.before(_UNSHARDED_BF16_IN_DEEPSPEED)
    bf16 = row.dtype.lower().startswith("bf16")
    return bf16 and not later and not era.before(_SHARDED_BF16_IN_DEEPSPEED)


def sharding_group(
    row: Row, statement: Statement, zero: int, degrees: Degrees, model: Model, assumed: list[str]
) -> int | None:
    """Replicas that hold one copy of what is sharded, where not all do together; hybrid shards of
    unsaid groups are a node's (PyTorch's ``HYBRID_SHARD``)."""
    stated = statement.sharding.get("shard_group", statement.facts.get("shard_group"))
    hybrid = "3h" in (statement.sharding.get("stage"), statement.facts.get("sharding"))
    if not zero or not (stated or hybrid):
        return None
    group = int(stated) if stated else given(row.gpus_per_node, 8) // degrees.tp
    if group >= degrees.dp:
        return None
    copies = degrees.dp // max(group, 1)
    experts = given(row.ep, 1) * given(row.etp, degrees.tp) if model.moe is not None else 1
    ranks = degrees.dp * degrees.cp * degrees.tp
    if not group or degrees.dp % group or ranks % (copies * experts):
        words = f"{row.dist_optimizer or 'optimizer sharding'}: shards among {group}"
        assumed.append(f"{words} replayed over all {degrees.dp} data-parallel ranks")
        return None
    if not stated:
        assumed.append(f"hybrid shards: among the {group} replicas of a node")
    return group


def deepest_sharding(row: Row, degrees: Degrees, framework: Framework) -> int | None:
    """The highest ZeRO stage that a row's software may have used; None where it is known."""
    if row.dist_optimizer or degrees.dp == 1:
        return None
    return 1 if degrees.pp > 1 or framework.name.startswith("megatron") else 3
