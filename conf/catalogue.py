"""What ``conf`` and a user's own folders declare, for commands, API and laboratory alike.

A declaration is one YAML file of its group's folder, and its name the file's. Nothing is read
before it is asked for, and Hydra is not needed.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from os.path import isfile  # of a name too long for a file it says no
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from trainscout.conf.counted_gpus import (
    FORM,
    counted_gpus,
    counts_gpus,
    eight_of,
    with_named_gpu,
)
from trainscout.conf.hub_names import hub_choice, other_model
from trainscout.conf.named_files import config_file, with_named_files
from trainscout.simulators.predictor.io.values import MISSING, typed_value
from trainscout.simulators.predictor.io.yaml_files import DECLARATIONS, read_yaml
from trainscout.simulators.predictor.question.architecture import Architecture
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.framework import UNDECLARED, Framework
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.training import Training
from trainscout.simulators.predictor.question.tuning import why_unpacked

if TYPE_CHECKING:
    from trainscout.simulators.predictor.network.topology.fabric import SwitchFabric

T = TypeVar("T")


class UnknownNameError(InputError, KeyError):
    """A name that a group does not have, for whoever looks for wrong input or for a mapping's."""

    __str__ = InputError.__str__


class Group(Mapping[str, T], Generic[T]):
    """The declarations of one group by name, each read and checked when first asked for.

    Folders that stand first hide what later ones declare under the same name.
    """

    def __init__(
        self,
        group: str,
        cls: type[T],
        folders: tuple[Path, ...],
        complete: Callable[[Any], Any] = lambda content: content,
    ) -> None:
        """``complete``: puts declarations in the place of their names."""
        self.group = group
        self._cls = cls
        self._folders = folders
        self._complete = complete
        self._read: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        if name not in self:
            raise self._unknown(self.group, name)
        if name not in self._read:
            self._read[name] = self._load(self.file(name))
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({file.stem for each in self._folders for file in each.glob("*.yaml")}))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return any(isfile(folder / f"{name}.yaml") for folder in self._folders)

    def file(self, name: str) -> Path:
        """Where a declaration stands.

        Raises:
            UnknownNameError: for a name that is not declared, with the nearest.
        """
        for folder in self._folders:
            if (folder / f"{name}.yaml").is_file():
                return folder / f"{name}.yaml"
        raise self._unknown(self.group, name)

    def chosen_of(self, group: str, name: str) -> str | None:
        """What a declaration's defaults list, as Hydra composes them, chooses of another group."""
        content = self._declared(self.file(name) if name in self else Path(name))
        for each in content.get("defaults", ()) if isinstance(content, dict) else ():
            if isinstance(each, dict):
                for chosen, option in each.items():
                    if str(chosen).endswith(f"{group}@_global_.{group}"):
                        return str(option)
        return None

    def _unknown(self, field: str, name: str) -> UnknownNameError:
        return UnknownNameError(field, name, "is not a known choice", self)

    def chosen(self, field: str, name: str) -> T:
        """The declaration of a name, or of a YAML file anywhere by its path.

        Raises:
            InputError: naming the field, for a name that is not declared, and for a file that is
                no declaration of this group.
        """
        if name.endswith(".yaml") and isfile(name):
            return self._load(Path(name))
        if name not in self:
            raise self._unknown(field, name)
        return self[name]

    def content(self, file: Path) -> Any:
        """What a file says, with what it takes over from other declarations of its group.

        Raises:
            InputError: for a file that cannot be read, or that takes over what is not declared.
        """
        content = self._declared(file)
        if not isinstance(content, dict):
            return content
        # What Hydra composes it with: names of this group, the file's own fields last unless the
        # list has them elsewhere, and choices of other groups (``chosen_of``). What stands behind
        # an @ is where in the file a declaration goes.
        names = [each for each in content.pop("defaults", ()) if isinstance(each, str)]
        if "_self_" not in names:
            names.append("_self_")
        merged: dict[str, Any] = {}
        for entry in names:
            name, _, place = entry.partition("@")
            fields = content if name == "_self_" else self.content(self.file(name))
            for key in reversed(place.split(".") if place else ()):
                fields = {key: fields}
            _merge(merged, fields)
        return self._complete(merged)

    def __repr__(self) -> str:
        return f"<{self.group}: {', '.join(self)}>"

    def _declared(self, file: Path) -> Any:
        content = read_yaml(file, self.group)
        names_gpu = self.group == "cluster" and isinstance(content, dict)
        return with_named_gpu(content) if names_gpu else content

    def _load(self, file: Path) -> T:
        content = self.content(file)
        try:
            value: Any = with_named_files(typed_value(self._cls, self.group, content))
            value.check()
            return cast(T, value)
        except InputError as error:
            where = f"{file.name}: {error.field}"
            raise InputError(
                where, error.value, error.problem, error.allowed, error.nearest
            ) from error


class Models(Group[Model]):
    """Models by name, by the name they have on the Hugging Face Hub, and as the ``config.json``
    there that describes them."""

    def chosen(self, field: str, name: str) -> Model:
        file = config_file(name)
        if file is None or name in self:
            shipped = None if name in self else hub_choice(field, name)
            return super().chosen(field, shipped or name)
        # Few models are read so.
        from trainscout.conf.config_json import read_config

        value = typed_value(Model, "model", read_config(file))
        value.check()
        return value

    def _unknown(self, field: str, name: str) -> UnknownNameError:
        other = other_model(name, self)
        return (
            super()._unknown(field, name)
            if other is None
            else UnknownNameError(field, name, *other)
        )


class Gpus(Group[Gpu]):
    """GPUs by name, with the architectures that their files name."""

    def __init__(self, catalogue: Catalogue, folders: tuple[Path, ...]) -> None:
        super().__init__("gpu", Gpu, folders)
        self._catalogue = catalogue

    def content(self, file: Path) -> Any:
        # One's own GPU, named by its file, stands beside its architecture as in ``conf``.
        own, shipped = file.absolute().parents[1], self._catalogue
        catalogue = shipped if own in shipped.folders else Catalogue((own, *shipped.folders))
        return catalogue.with_architecture(super().content(file))


class Contents(Group[dict[str, Any]]):
    """The declarations of one group by name, as the plain fields that their files have."""

    def __init__(self, group: str, folders: tuple[Path, ...]) -> None:
        super().__init__(group, dict, folders)

    def _load(self, file: Path) -> dict[str, Any]:
        content = self.content(file)
        if not isinstance(content, dict):
            raise InputError(self.group, file, "is not a group of fields", "names with values")
        return content


def _merge(fields: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Add fields to others in place; of mappings, field by field."""
    for name, value in more.items():
        if isinstance(value, dict) and isinstance(fields.get(name), dict):
            _merge(fields[name], value)
        else:
            fields[name] = copy.deepcopy(value)


class Catalogue:
    """The groups that a question is put together from."""

    def __init__(self, folders: tuple[Path, ...]) -> None:
        self.folders = folders
        self.models = Models("model", Model, tuple(folder / "model" for folder in folders))
        self.architectures = self._group("architecture", Architecture)
        self.gpus = Gpus(self, tuple(folder / "gpu" for folder in folders))
        self.clusters = self._group("cluster", Cluster)
        self.trainings = self._group("training", Training, self.with_teacher)
        self.frameworks = self._group("framework", Framework, self.with_alternatives)

    @functools.cached_property
    def topologies(self) -> Group[SwitchFabric]:
        # Not every question has switches, and networks take long to import.
        from trainscout.simulators.predictor.network.topology.fabric import SwitchFabric

        return self._group("topology", SwitchFabric)

    @functools.cached_property
    def spaces(self) -> Contents:
        """As ``optimizer.space`` takes them."""
        return self.contents("space")

    def with_architecture(self, gpu: Any) -> Any:
        """The fields of a GPU with its architecture as a value, where they name one.

        Raises:
            InputError: for an architecture that is not declared, with the nearest, or a file that
                declares none.
        """
        named = gpu.get("architecture") if isinstance(gpu, Mapping) else None
        if not isinstance(named, str) or named == MISSING:
            return gpu
        found = self.architectures.chosen("gpu.architecture", named)
        return {**gpu, "architecture": found}

    def with_alternatives(self, framework: Any) -> Any:
        """The fields of a framework with its alternatives as values, where it names some.

        Raises:
            InputError: for one that is not declared, with the nearest.
        """
        named = framework.get("alternatives") if isinstance(framework, Mapping) else None
        if not isinstance(named, list | tuple):
            return framework
        found = [
            self.frameworks.chosen("framework.alternatives", each)
            if isinstance(each, str)
            else each
            for each in named
        ]
        return {**framework, "alternatives": found}

    def framework_of_script(self, named: str | None) -> Framework:
        """The framework ``named`` by ``--framework``; without, an undeclared one, its alternatives
        those that a script's trace can tell (``Framework.code``)."""
        if named is not None:
            return self.frameworks.chosen("--framework", named)
        told = tuple(each for each in self.frameworks.values() if each.code)
        return replace(UNDECLARED, alternatives=told)

    def with_teacher(self, training: Any) -> Any:
        """The fields of a training with its teacher as a value, where it names one.

        Raises:
            InputError: for a model that is not declared, with the nearest.
        """
        taught = training.get("distillation") if isinstance(training, Mapping) else None
        if not isinstance(taught, Mapping) or not isinstance(taught.get("teacher"), str):
            return training
        found = self.models.chosen("training.distillation.teacher", taught["teacher"])
        return {**training, "distillation": {**taught, "teacher": found}}

    def contents(self, group: str) -> Contents:
        """Any group's declarations as plain fields."""
        return Contents(group, tuple(folder / group for folder in self.folders))

    def _group(
        self, name: str, cls: type[T], complete: Callable[[Any], Any] = lambda content: content
    ) -> Group[T]:
        return Group(name, cls, tuple(folder / name for folder in self.folders), complete)

    def machines(
        self, cluster: str, gpu: str | None = None, *, prefix: str = ""
    ) -> tuple[Cluster, Gpu]:
        """A cluster by name, file or count of GPUs (``64xH100``), and its GPUs, or others in their
        place.

        Args:
            prefix: what stands before the names of the two options in messages (``--``).

        Raises:
            InputError: for what is not declared, or a cluster that does not say its GPUs.
        """
        if cluster not in self.clusters and counts_gpus(cluster):
            counted, own = counted_gpus(f"{prefix}cluster", cluster, self.gpus)
            return counted, self.gpus.chosen(f"{prefix}gpu", gpu or own)
        if cluster in self.gpus and (meant := eight_of(cluster, self.clusters)) is not None:
            problem = "is a GPU, and does not say how many"
            raise InputError(f"{prefix}cluster", cluster, problem, FORM, meant)
        declared = self.clusters.chosen(f"{prefix}cluster", cluster)
        name = gpu or self.clusters.chosen_of("gpu", cluster)
        if name is None:
            problem = "does not say which GPU it has"
            raise InputError(f"{prefix}cluster", cluster, problem, f"{prefix}gpu")
        return declared, self.gpus.chosen(f"{prefix}gpu", name)


def load_catalogue(*folders: Path) -> Catalogue:
    """What these folders declare (each with folders ``gpu``, ``model``, ...), and what ships.

    Without folders it is the same catalogue throughout a process.
    """
    return Catalogue((*folders, DECLARATIONS)) if folders else _shipped()


@functools.cache
def _shipped() -> Catalogue:
    return Catalogue((DECLARATIONS,))


@functools.cache
def command_defaults(command: str) -> tuple[Mapping[str, Any], Mapping[str, str]]:
    """What a command goes by where nothing is said: its own settings, and what it chooses of each
    group.

    Args:
        command: its file in ``conf/``: ``config`` (searches), ``simulate``, ``explain``, ``plan``.
    """
    own = read_yaml(DECLARATIONS / f"{command}.yaml")
    chosen = [each for each in own.pop("defaults") if isinstance(each, dict)]
    return own, {group: name for each in chosen for group, name in each.items()}


def declared_gpus(folder: Path | None) -> Mapping[str, Gpu]:
    """The GPUs of one folder (``--gpus``), or those that ship.

    Raises:
        InputError: when the folder holds none, or a file is no such declaration.
    """
    if folder is None:
        return load_catalogue().gpus
    gpus = dict(Gpus(load_catalogue(), (folder,)))
    if not gpus:
        raise InputError("--gpus", folder, "holds no GPU declaration", "a folder like conf/gpu")
    return gpus


def with_own_lengths(training: Training, model: Model, given: Collection[str]) -> Training:
    """A training of a model that takes no packed texts, without the lengths that trainings which
    ship say of those, unless they are ``given``: whole sequences, and none longer than the model
    takes."""
    if "packed_lengths" in given or not training.packed_lengths or not why_unpacked(model):
        return training
    shipped = load_catalogue().trainings.values()
    usual = [
        one.sequence_length for one in shipped if one.packed_lengths == training.packed_lengths
    ]
    if not usual:
        return training
    length = training.sequence_length
    told = "sequence_length" in given or length not in usual
    fits = length is None or length <= model.sequence_length
    return replace(training, packed_lengths=(), sequence_length=length if told or fits else None)
