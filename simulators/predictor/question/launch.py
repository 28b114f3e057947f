"""A launch of a user's own script: a recipe as far as its settings are known to mean one.

What a script's settings mean is the user's to say (``means`` of a knob file); everything else of a
launch only distinguishes it. So a search, its tactics and its store see one kind of thing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .cluster import Cluster
from .framework import UNDECLARED, Framework
from .gpu import Gpu
from .recipe import Recipe


@dataclass(frozen=True)
class MicroBatches:
    """How many micro-batches a step has, how many of them are traced, and after how many the
    schedule repeats itself."""

    step: int
    traced: int
    period: int = 1


@dataclass(frozen=True)
class Linear:
    """A number (of layers) that a step's time and memory follow in a straight line: what it is,
    and the two smaller ones that are traced."""

    step: int
    traced: tuple[int, int]


@dataclass(frozen=True)
class Start:
    """How a script is started.

    ``words``: script and arguments, as they come after ``torchrun``'s own. ``environment``: what
    is set for it. ``files``: configuration files it reads, by name and content; ``{name}`` among
    the words is where the file lies.
    """

    words: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    files: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Launch(Recipe):
    """One launch. Launches are equal whose recipes and other ``settings`` (name, value) are.

    ``start``: as the user would start it. ``traced``: what is run of it here: the same, or with
    fewer ``micro_batches``, or twice, with two values of what is ``linear``. ``work``: what a step
    does, in the user's unit (tokens).
    """

    settings: tuple[tuple[str, Any], ...] = ()
    start: Start = field(default=Start(), compare=False)
    traced: tuple[Start, ...] = field(default=(), compare=False)
    work: int | None = field(default=None, compare=False)
    micro_batches: MicroBatches | None = field(default=None, compare=False)
    linear: Linear | None = field(default=None, compare=False)


@dataclass(frozen=True)
class ScriptQuestion:
    """The fixed part of a search over launches.

    ``given``: numbers of the user's own that expressions read. ``host``: what host work costs
    ("declared" or "traced"). ``ranks``: those to trace, None: found for each launch. ``steps``:
    after so many optimizer steps a rank has shown enough. ``preload``: modules that ranks share.
    """

    cluster: Cluster
    gpu: Gpu
    framework: Framework
    world_size: int
    given: Mapping[str, int]
    host: str = "declared"
    ranks: tuple[int, ...] | None = None
    steps: int = 2
    preload: tuple[str, ...] = ()

    @property
    def quantities(self) -> Mapping[str, int]:
        """The numbers that expressions of a knob file may read."""
        per_node = min(self.cluster.gpus_per_node, self.world_size)
        nodes = -(-self.world_size // per_node)
        return {
            "world_size": self.world_size,
            "gpus_per_node": per_node,
            "num_nodes": nodes,
            **self.given,
        }

    def job(self, launch: Launch) -> ScriptJob:
        """One launch of it."""
        return ScriptJob(self, launch)


@dataclass(frozen=True)
class _Training:
    global_batch_size: int


@dataclass(frozen=True)
class _Layers:
    layer_kinds: tuple[str, ...] = ("layer",)


@dataclass(frozen=True)
class ScriptJob:
    """One launch on its cluster, with what tactics ask of a job (``pruning``), as far as the user
    said what settings mean. A tactic is in use only where all that it reads is known."""

    question: ScriptQuestion
    recipe: Launch

    # Whatever it is: unfused scores are what most rules must be careful about.
    attention = "unfused"
    # Exceptions to orders of memory are declared software's; a script's is not declared, and its
    # gradients come with the first micro-batch of a step, as PyTorch's do.
    framework = replace(UNDECLARED, torch_wrappers=True)
    model = _Layers()

    @property
    def dp(self) -> int:
        recipe = self.recipe
        return self.question.world_size // (recipe.tp * recipe.pp * recipe.cp)

    @property
    def num_micro_batches(self) -> int:
        """As of any job; where nobody said how many sequences a step has one, all of it, or more
        than stages where work is known: in proportion to micro-batches, or no tactic asks."""
        batch, recipe = self.question.given.get("global_batch_size"), self.recipe
        if batch is None:
            return 1 if recipe.work is None else recipe.pp + 1
        return batch // (self.dp * recipe.micro_batch)

    @property
    def schedule(self) -> str:
        """As of any job."""
        return self.recipe.schedule if self.recipe.pp > 1 else "1f1b"

    @property
    def training(self) -> _Training:
        return _Training(self.question.given["global_batch_size"])

    @property
    def layers_per_stage(self) -> tuple[int, ...]:
        layers, stages = self.question.given["num_layers"], self.recipe.pp
        return (layers // stages,) * stages

    @property
    def largest_chunk(self) -> int:
        return max(self.layers_per_stage) // self.recipe.vpp
