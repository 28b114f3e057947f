"""What each command may be told, typed: the top level of ``config.yaml``, ``simulate.yaml``,
``network_show.yaml``, ``explain.yaml`` and ``plan.yaml``."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import BooleanNode, DictConfig, FloatNode, IntegerNode, OmegaConf, StringNode

from trainscout.conf.schema import structured
from trainscout.simulators.predictor.io.values import unknown_name
from trainscout.simulators.predictor.network.choice import NetworkChoice
from trainscout.simulators.predictor.network.topology.fabric import SwitchFabric
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.training import Training
from trainscout.simulators.predictor.replay.timeline_choice import TimelineChoice


@dataclass(frozen=True)
class SimulatorChoice:
    """Which simulator predicts."""

    name: str = "replay"
    """The built-in workload (``replay``), or layers traced from Megatron-Core (``traced``)."""
    calibration: str | None = None
    """A file that ``trainscout calibrate`` wrote; None: as it comes."""
    measured_kernels: str | None = None
    """A CSV file of your own measured kernels, or a folder of them."""


@dataclass(frozen=True)
class LaunchChoice:
    """Launch files."""

    directory: str | None = None
    """Where to write them, of a search below its own (None: nowhere)."""
    framework: str = "all"
    """For which: ``megatron_lm``, ``megatron_bridge``, ``torchtitan``, ``deepspeed`` or
    ``all``."""


@dataclass(frozen=True)
class VerifyChoice:
    """Looking at the best recipes again."""

    name: str = "none"
    """The other way to check the best recipes, if any."""
    top_k: int = 3
    """How many of them."""


@dataclass(frozen=True)
class ProfileChoice:
    """Profiles of a real GPU to compare a recipe with."""

    file: str | None = None
    """What torch.profiler exported (`.json`, `.json.gz`), or a folder with a file a rank."""
    directory: str | None = None
    """Where the page, measured kernels and observed factors are written; null: nowhere."""


@dataclass(frozen=True)
class ObjectiveChoice:
    """What is best."""

    names: tuple[str, ...] = ("cost",)
    """The measure to optimise, or several for their Pareto front."""


_QUESTION = {
    "model": Model,
    "gpu": Gpu,
    "cluster": Cluster,
    "training": Training,
    "framework": Framework,
}

_SIMULATOR = {"simulator": SimulatorChoice, "network": NetworkChoice, "topology": SwitchFabric}

COMMANDS = {
    "optimize": "search_schema",
    "simulate": "simulation_schema",
    "explain": "explanation_schema",
    "plan": "capacity_schema",
    "network show": "network_schema",
}
"""Each command's schema: what the reference page lists."""


def groups_of(command: str) -> dict[str, type]:
    """The dataclasses of a command's groups; those of searches are loaded for commands that
    search."""
    if command == "simulate":
        own: dict[str, type] = {"timeline": TimelineChoice}
        return {**_QUESTION, "recipe": Recipe, **_SIMULATOR, **own, "launch": LaunchChoice}
    if command == "network show":
        from trainscout.planning.fabric_prices import FabricPrices

        fabric = {"network": NetworkChoice, "topology": SwitchFabric}
        return {**_QUESTION, "recipe": Recipe, **fabric, "fabric_prices": FabricPrices}
    from trainscout.optimizer.options import ExecutorOptions, SearchOptions

    if command == "explain":
        return {**_QUESTION, "profile": ProfileChoice, "search": SearchOptions, **_SIMULATOR}
    from trainscout.optimizer.tracking.settings import TrackingSettings

    tracking = {"tracking": TrackingSettings}
    if command == "plan":
        from trainscout.planning.goodput import Reliability

        searched = {"framework": Framework, "search": SearchOptions}
        return {**searched, **_SIMULATOR, "goodput": Reliability, **tracking}
    return {
        **_QUESTION,
        "search": SearchOptions,
        "objective": ObjectiveChoice,
        **_SIMULATOR,
        "executor": ExecutorOptions,
        **tracking,
        "verify": VerifyChoice,
        "launch": LaunchChoice,
    }


_OPEN = {"optimize": ("space",), "explain": ("a", "b", "space"), "plan": ("sweep", "space")}
"""Groups that may be given names of any kind: choices of a knob that its file computes, a recipe
whose rest is said by launch arguments or by the other one, targets and prices of a study. What
they may say is checked when a space is compiled, a recipe or study (``planning.study``) read."""

_SETTINGS: dict[str, dict[str, Any]] = {
    "optimize": {
        "seed": IntegerNode(0, is_optional=False),
        "resume": BooleanNode(False, is_optional=False),
        "join": BooleanNode(False, is_optional=False),
    },
    "simulate": {"rules": StringNode(None)},
    "explain": {"given": StringNode(None), "against": StringNode(None)},
    "plan": {
        "seed": IntegerNode(0, is_optional=False),
        "n_jobs": IntegerNode(-1, is_optional=False),
        "change_threshold": FloatNode(0.01, is_optional=False),
        "fail_on_change": BooleanNode(False, is_optional=False),
        "webhook": StringNode(None),
        "wait_s": FloatNode(0.0, is_optional=False),
        "schedule": StringNode(None),
    },
    "network show": {"file": StringNode("fabric.svg", is_optional=False)},
}
_OUTPUT = {
    "format": StringNode("table", is_optional=False),
    "verbosity": StringNode("normal", is_optional=False),
    "debug": BooleanNode(False, is_optional=False),
}
"""What every command is told about its output; ``commands.output_choice`` has the choices."""


@functools.cache
def register_commands(command: str | None = None) -> None:
    """Make the schema of one command, or of every one, known to Hydra."""
    store = ConfigStore.instance()
    for name in COMMANDS if command is None else (command,):
        groups = groups_of(name).items()
        fields: dict[str, Any] = {group: structured(cls) for group, cls in groups}
        for group in _OPEN.get(name, ()):
            fields[group] = OmegaConf.create({}, flags={"struct": False})
        fields |= _SETTINGS.get(name, {}) | _OUTPUT
        # Made here for nobody else: OmegaConf need not copy every node that it takes in.
        schema = OmegaConf.structured(fields, flags={"no_deepcopy_set_nodes": True})
        store.store(name=COMMANDS[name], node=schema)


def refuse_unknown(config: DictConfig, schema: str) -> None:
    """Refuse top-level names that a command would ignore (Hydra lets ``+name=value`` add any)."""
    known = [str(name) for name in ConfigStore.instance().repo[f"{schema}.yaml"].node]
    for name in config:
        if name != "hydra" and name not in known:
            raise unknown_name(str(name), config[name], known)
