"""Knobs of the order of a pipeline's passes, and of how layers lie on its stages."""

from __future__ import annotations

from dataclasses import dataclass

from trainscout.simulators.predictor.question.knob import LAYOUT, PASSES, Canonical, Flag, knob
from trainscout.simulators.predictor.question.schedule_file import is_file
from trainscout.simulators.predictor.question.schedules import SCHEDULES


@dataclass(frozen=True, init=False, repr=False, eq=False)
class Pipeline:
    """The order of a pipeline's passes, and how layers lie on its stages."""

    schedule: str = knob(
        "1f1b",
        "{}",
        (PASSES, LAYOUT),
        choices=tuple(SCHEDULES),
        own=is_file,
        own_words="FILE.csv",
        search=("1f1b", "gpipe"),
        detail_of=("pp",),
        canonical=Canonical(
            "one stage, or one micro-batch whose passes are whole, has one order",
            ("tp", "pp", "cp", "vpp", "micro_batch"),
            # With virtual stages 1F1B does not run fewer micro-batches than there are stages.
            lambda job: (
                job.recipe.pp == 1
                or (
                    job.recipe.schedule in ("1f1b", "gpipe")
                    and job.num_micro_batches == job.recipe.vpp == 1
                )
            ),
        ),
        torchtitan=Flag(
            "--parallelism.pipeline-parallel-schedule", {"1f1b": "1F1B", "gpipe": "GPipe"}
        ),
    )
    """The order of a pipeline's passes: each backward pass as early as it can run (``1f1b``), or
    all forward passes first (``gpipe``; with virtual stages chunk by chunk, breadth-first). The
    rest splits backward passes: in one line (``zb-h1``, ``zb-h2``), in a V of two chunks a stage
    (``zb-v``, ``v-half``, ``v-min``, ``dualpipe-v``), both ways (``dualpipe``). A CSV file
    as PyTorch loads them is an order of your own."""
    first_stage_layers: int | None = knob(
        None,
        "first_stage_layers={}",
        (LAYOUT,),
        left_out="even",
        topic="split",
        one_thing=True,
        detail_of=("pp",),
        megatron_lm="--decoder-first-pipeline-num-layers",
        megatron_bridge="model.num_layers_in_first_pipeline_stage",
    )
    """Layers of the first stage, where the split is uneven."""
    last_stage_layers: int | None = knob(
        None,
        "last_stage_layers={}",
        (LAYOUT,),
        left_out="even",
        topic="split",
        one_thing=True,
        detail_of=("pp",),
        megatron_lm="--decoder-last-pipeline-num-layers",
        megatron_bridge="model.num_layers_in_last_pipeline_stage",
    )
    """Layers of the last stage, where the split is uneven."""
    embedding_as_layer: bool = knob(
        False,
        "as_layer=embedding",
        (LAYOUT,),
        topic="split",
        one_thing=True,
        detail_of=("pp",),
        megatron_lm="--account-for-embedding-in-pipeline-split",
        megatron_bridge="model.account_for_embedding_in_pipeline_split",
    )
    """The embedding takes the place of a layer in the split (Megatron's
    ``account-for-embedding-in-pipeline-split``)."""
    loss_as_layer: bool = knob(
        False,
        "as_layer=loss",
        (LAYOUT,),
        topic="split",
        one_thing=True,
        detail_of=("pp",),
        megatron_lm="--account-for-loss-in-pipeline-split",
        megatron_bridge="model.account_for_loss_in_pipeline_split",
    )
    """The output layer and the loss take the place of a layer in the split (Megatron's
    ``account-for-loss-in-pipeline-split``)."""
    pipeline_layout: str | None = knob(
        None,
        "layout={}",
        (LAYOUT,),
        own_words="balanced, or in quotes what each part holds: 'Et*9|(t*8|)*2t*7L'",
        left_out="counted",
        topic="split",
        one_thing=True,
        detail_of=("pp",),
        search=(None, "balanced"),
    )
    """``balanced`` deals out layers that do not divide, one more to the earliest chunks; else what
    each chunk holds, as Megatron's ``pipeline-model-parallel-layout``: ``Et*3|(t*4|)*14tL``."""
