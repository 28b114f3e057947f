"""The recipe: how a job is laid out and run, each knob declared once.

A field is a knob: its type, default and meaning stand where every dataclass has them, and what
else there is to know of it is its ``Knob``. Knobs of one family stand in a module of
``question.knobs``. Rules that concern several at once are functions in ``question.validity``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from .cluster import NCCL_ALGOS
from .experts import DISPATCHERS
from .framework import declared_framework, named_framework
from .knob import (
    BOUNDARY,
    HOST,
    LAYER_BLOCKS,
    LAYOUT,
    MICRO_BATCHES,
    PASSES,
    STEP_END,
    Canonical,
    Flag,
    Knob,
    knob,
    knobs_of,
)
from .knobs.numerics import Numerics
from .knobs.parallelism import Parallelism
from .knobs.pipeline import Pipeline
from .knobs.recomputation import Recomputation
from .knobs.sharding import Sharding
from .schedule_file import SUFFIX, pinned


# The fields of a dataclass with several bases begin with those of the last base.
@dataclass(frozen=True)
class Recipe(Numerics, Pipeline, Sharding, Recomputation, Parallelism):
    """One point of the search: how the job is laid out and run.

    Megatron's names where the concept is Megatron's. ``dp`` is not a field: it follows from the
    GPU count.
    """

    nccl_algo: str | None = knob(
        None,
        "nccl={}",
        (LAYER_BLOCKS, BOUNDARY, STEP_END),
        choices=NCCL_ALGOS,
        left_out="NCCL's",
        topic="nccl",
        search=(None, "ring", "tree"),
        environment=Flag(
            "NCCL_ALGO",
            {
                "ring": "Ring",
                "tree": "Tree",
                "nvls": "NVLS",
                "nvls_tree": "NVLSTree",
                "collnet_direct": "CollNetDirect",
                "collnet_chain": "CollNetChain",
            },
        ),
    )
    """NCCL's algorithm; None means the cluster's."""
    nccl_max_channels: int | None = knob(
        None,
        "channels<={}",
        (LAYER_BLOCKS, BOUNDARY, STEP_END),
        left_out="NCCL's",
        topic="nccl",
        search=(None, 16, 8, 4),
        environment="NCCL_MAX_NCHANNELS",
    )
    """NCCL's most channels; None means the cluster's."""
    use_tp_pp_dp_mapping: bool = knob(
        False,
        "tp-pp-dp",
        (LAYER_BLOCKS, BOUNDARY, STEP_END),
        detail_of=("pp",),
        canonical=Canonical(
            "without stages there is one order", ("pp",), lambda job: job.recipe.pp == 1
        ),
        megatron_lm="--use-tp-pp-dp-mapping",
        megatron_bridge="dist.use_tp_pp_dp_mapping",
    )
    """The stages of a pipeline lie next to each other and its replicas apart, instead of the other
    way round."""
    moe_dispatcher: str | None = knob(
        None,
        "{}",
        (LAYER_BLOCKS, STEP_END),
        choices=DISPATCHERS,
        left_out="model's",
        topic="experts",
        detail_of=("ep",),
        canonical=Canonical(
            "it is the model's when left out, if that or its teacher has experts",
            (),
            lambda job: all(
                of.model.moe is None or job.recipe.moe_dispatcher == of.model.moe.dispatcher
                for of in (job, job.reference or job)
            ),
        ),
        search=(None, "deepep"),
    )
    """How tokens travel to experts; None means as the model says."""
    cuda_graphs: bool | None = knob(
        None,
        "graphs={}",
        (HOST, BOUNDARY, STEP_END),
        left_out="framework's",
        canonical=Canonical(
            "it is the framework's when left out",
            ("framework",),
            lambda job: (
                job.recipe.cuda_graphs
                == named_framework(job.framework, job.recipe.framework).cuda_graphs
            ),
        ),
        search=(None, True),
    )
    """Passes are replayed as CUDA graphs, so that the host never lags; None means the framework's
    own choice."""
    framework: str | None = knob(
        None,
        "{}",
        (LAYER_BLOCKS, PASSES, LAYOUT, BOUNDARY, STEP_END, MICRO_BATCHES),
        left_out="question's",
        canonical=Canonical(
            "what is left out is the question's, which is named where there are others",
            (),
            lambda job: job.recipe.framework in (None, declared_framework(job.framework).name),
            lambda job: job.framework.name if job.framework.alternatives else None,
        ),
    )
    """The software that it runs under, of those that the question offers; None means the
    question's own."""

    def __post_init__(self) -> None:
        # What is kept by recipe is kept by the content of its schedule's file.
        if self.schedule.endswith(SUFFIX):
            object.__setattr__(self, "schedule", pinned(self.schedule))

    @classmethod
    def of_fields(cls, values: Mapping[str, Any]) -> Self:
        """``Recipe(**values)``, in a third of the time: a frozen dataclass sets its fields one by
        one, and searches make tens of thousands."""
        recipe = object.__new__(cls)
        recipe.__dict__.update(RECIPE_DEFAULTS)
        recipe.__dict__.update(values)
        if len(recipe.__dict__) > len(RECIPE_DEFAULTS):
            return cls(**values)
        recipe.__post_init__()
        return recipe


KNOBS: Mapping[str, Knob] = knobs_of(Recipe)
"""Every knob by name, in the order of the fields."""
RECIPE_DEFAULTS: Mapping[str, Any] = {name: knob.default for name, knob in KNOBS.items()}


def details_of(name: str) -> tuple[str, ...]:
    """Names of the knobs that mean nothing without some value of knob ``name``."""
    return tuple(detail for detail, knob in KNOBS.items() if name in knob.detail_of)


def knobs_entering(*what: str) -> tuple[str, ...]:
    """Names of the knobs that enter any of these (``question.knob``)."""
    return tuple(name for name, knob in KNOBS.items() if set(what) & set(knob.enters))
