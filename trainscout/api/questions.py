"""What is asked, from names, YAML files, mappings of fields, or values loaded before."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from trainscout.commands.simulator_choice import build_simulator
from trainscout.conf.catalogue import (
    Catalogue,
    Group,
    command_defaults,
    load_catalogue,
    with_own_lengths,
)
from trainscout.conf.counted_gpus import FORM, counted_gpus
from trainscout.conf.named_files import with_named_files
from trainscout.simulators.predictor.io.values import typed_value
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.errors import InputError, nearest_name
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.question import Question
from trainscout.simulators.predictor.question.training import Training
from trainscout.simulators.registry import SimulatorSpec

T = TypeVar("T")

# A field by its bare name is looked for in these; the training's is meant where a model has one
# of the same name (``sequence_length``), which it is there to replace.
_PARTS: dict[str, type] = {
    "training": Training,
    "cluster": Cluster,
    "model": Model,
    "gpu": Gpu,
    "framework": Framework,
}
# Every declaration has these, so that the bare name says nothing.
_EVERYWHERE = ("name", "source", "sources")
# Fields that name a file, which is read with the declaration.
_NAMED_FILES = ("moe.histogram", "measured_collectives")


def catalogue(config_dir: str | Path | None = None) -> Catalogue:
    """Everything that has a name: ``.models``, ``.gpus``, ``.clusters``, ``.trainings``,
    ``.frameworks``, ``.topologies`` and ``.spaces``, each a mapping from names to loaded values.

    Args:
        config_dir: a folder of yours with folders ``model``, ``cluster``, ... as commands take it
            by ``--config-dir``; what it declares stands before what ships.

    Example:
        >>> import trainscout as ts
        >>> ts.catalogue().clusters["h800_96"].num_gpus
        96
    """
    if config_dir is None:
        return load_catalogue()
    folder = Path(config_dir)
    if not folder.is_dir():
        raise InputError("config_dir", config_dir, "is not a directory")
    return load_catalogue(folder)


def question(
    model: str | Path | Mapping[str, Any] | Model,
    cluster: str | Path | Mapping[str, Any] | Cluster | None = None,
    *,
    gpus: str | None = None,
    training: str | Path | Mapping[str, Any] | Training | None = None,
    gpu: str | Path | Mapping[str, Any] | Gpu | None = None,
    framework: str | Path | Mapping[str, Any] | Framework | None = None,
    config_dir: str | Path | None = None,
    **overrides: Any,
) -> Question:
    """What is asked of a training run, but for its recipe.

    Every part may be a name (``ts.models`` and its like list them), the path of a YAML file, a
    mapping of fields, or a loaded value.

    Args:
        model: its shape.
        cluster: nodes and what joins them.
        gpus: ``"64xH100"``, in the servers that they usually come in, in place of a cluster.
        training: batch and tokens; a mapping has the fields that differ from the default's.
        gpu: None: the one that the cluster's declaration names.
        framework: what software runs; a mapping has the fields that differ from the default's.
            None: the one that the training's declaration names, else whatever can be launched.
        config_dir: a folder of your own declarations (see ``catalogue``).
        **overrides: fields to change, units as in their names: ``num_nodes=32``,
            ``global_batch_size=512``, ``price_usd_per_hour=2.2``; a dotted name where several
            parts have the field: ``**{"model.sequence_length": 4096}``.

    Raises:
        InputError: for an unknown name or field (with the nearest), a value of the wrong type, or
            an impossible question.

    Example:
        >>> import trainscout as ts
        >>> question = ts.question(model="llama3_8b", cluster="h100_64", num_nodes=2)
        >>> question.cluster.num_gpus, question.gpu.name
        (16, 'h100')
    """
    named = catalogue(config_dir)
    default = command_defaults("simulate")[1]
    if (cluster is None) == (gpus is None):
        raise InputError(
            "cluster", cluster, "is asked for, or gpus=", f"one of them, gpus as {FORM}"
        )
    if gpus is not None:
        # Refused under the name that it was given.
        counted_gpus("gpus", str(gpus), named.gpus)
    machines = _machines(named, gpus if cluster is None else cluster, gpu)
    trained = _value(Training, named.trainings, named.with_teacher(training), default["training"])
    by_name = isinstance(training, str | Path)
    runs_on = named.trainings.chosen_of("framework", str(training)) if by_name else None
    software = _value(Framework, named.frameworks, framework, runs_on or default["framework"])
    parts: dict[str, Any] = {
        "model": _value(Model, named.models, model),
        "cluster": machines[0],
        "gpu": machines[1],
        "training": trained,
        "framework": software,
    }
    changes = _by_part(overrides)
    for group, fields in changes.items():
        parts[group] = _changed(named, group, parts[group], fields)
    given = {*changes.get("training", ()), *(training if isinstance(training, Mapping) else ())}
    parts["training"] = with_own_lengths(parts["training"], parts["model"], given)
    asked = Question(**parts)
    asked.check()
    return asked


def simulator(
    name: str = "replay",
    *,
    calibration: str | Path | None = None,
    measured_kernels: str | Path | None = None,
    network: str | Mapping[str, Any] | None = None,
    topology: str | Path | Mapping[str, Any] | None = None,
    config_dir: str | Path | None = None,
) -> SimulatorSpec:
    """What predicts, for ``predict``, ``search``, ``explain`` and ``plan``.

    Args:
        name: ``replay``, ``traced``, or ``package.module:Class`` of your own.
        calibration: a file that ``trainscout calibrate`` wrote.
        measured_kernels: a CSV file of your own measured kernels, or a folder of them.
        network: ``whitebox`` (None), ``flow``, ``hybrid``, ``packet``, or a mapping of fields.
        topology: which switches, for networks but ``whitebox``; a mapping has the fields that
            differ from the default's.
        config_dir: a folder of your own declarations (see ``catalogue``).

    Raises:
        InputError: for an unknown name, or a file that cannot be used.

    Example:
        >>> import trainscout as ts
        >>> ts.simulator(network="flow", topology={"oversubscription": 4}).network.choice.engine
        'flow'
    """
    named, default = catalogue(config_dir), command_defaults("simulate")[1]
    choice: dict[str, Any] = {"name": name}
    if calibration is not None:
        choice["calibration"] = str(calibration)
    if measured_kernels is not None:
        choice["measured_kernels"] = str(measured_kernels)
    groups: dict[str, Any] = {"simulator": choice}
    for group, value in (("network", network), ("topology", topology)):
        declared = named.contents(group)
        if value is None or isinstance(value, Mapping):
            groups[group] = {**declared[default[group]], **(value or {})}
        else:
            groups[group] = declared.chosen(group, str(value))
    return build_simulator(groups)


def _value(cls: type[T], group: Group[T], value: Any, default: str | None = None) -> T:
    """One part of a question; a mapping adds to the ``default`` declaration, if there is one."""
    if isinstance(value, cls):
        return value
    if isinstance(value, Mapping):
        base = {} if default is None else dataclasses.asdict(group[default])  # type: ignore[call-overload]
        return with_named_files(typed_value(cls, group.group, {**base, **plain(value)}))
    return group.chosen(group.group, str(default if value is None else value))


def _machines(named: Catalogue, cluster: Any, gpu: Any) -> tuple[Cluster, Gpu]:
    if isinstance(cluster, str | Path) and (gpu is None or isinstance(gpu, str | Path)):
        return named.machines(str(cluster), None if gpu is None else str(gpu))
    declared = _value(Cluster, named.clusters, cluster)
    if gpu is not None:
        return declared, _value(Gpu, named.gpus, named.with_architecture(gpu))
    # A declared cluster that was changed in place still has its GPUs.
    if declared.name in named.clusters:
        return declared, named.machines(declared.name)[1]
    raise InputError("gpu", None, f"is missing: {declared.name} does not say its GPU", named.gpus)


def _by_part(overrides: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Overrides by the part of the question that has the field."""
    found: dict[str, dict[str, Any]] = {}
    for name, value in plain(overrides).items():
        place = part_of(name, _PARTS)
        if place is None:
            near = nearest_name(name, sorted(set().union(*map(fields_of, _PARTS.values()))))
            allowed = "a field of " + ", ".join(_PARTS)
            raise InputError(name, value, "is not a known name", allowed, near)
        found.setdefault(place[0], {})[place[1]] = value
    return found


def part_of(name: str, parts: Mapping[str, type]) -> tuple[str, str] | None:
    """The part that a field belongs to, of a bare name the first that has it, and what the field
    is called there."""
    part, dot, field = name.partition(".")
    if not dot:
        part, field = next((each for each in parts if name in fields_of(parts[each])), ""), name
    return (part, field) if part in parts else None


def fields_of(part: Any) -> set[str]:
    """What a part may be asked otherwise in."""
    return {field.name for field in dataclasses.fields(part)} - set(_EVERYWHERE)


def _changed(named: Catalogue, group: str, value: Any, fields: Mapping[str, Any]) -> Any:
    """A part of a question with other values of some fields, given by dotted names."""
    plain = dataclasses.asdict(value)
    for name, new in fields.items():
        *path, last = name.split(".")
        inner: Any = plain
        for step in path:
            inner = inner.get(step) if isinstance(inner, dict) else None
        if not isinstance(inner, dict):
            raise InputError(f"{group}.{name}", new, "belongs to fields that are not there", plain)
        inner[last] = new
    if group == "gpu" and "price_usd_per_hour" in fields:
        plain["sources"]["price_usd_per_hour"] = "the caller"
    if group == "model" and "moe.histogram" in fields:
        plain["moe"]["measured"] = ()
    if group == "cluster" and "measured_collectives" in fields:
        plain["measured"] = ()
    changed: Any = typed_value(type(value), group, named.with_architecture(plain))
    return with_named_files(changed) if set(fields) & set(_NAMED_FILES) else changed


def plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    """With numbers of NumPy and pandas, which loops over frames give, as Python's."""
    return {name: v.item() if hasattr(v, "item") else v for name, v in fields.items()}
