"""What Hydra is told before it composes settings: ours, a user's own, and how to fail."""

from __future__ import annotations

import functools
import itertools
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import omegaconf
import yaml
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.hydra import Hydra
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import BooleanNode, DictConfig, OmegaConf
from omegaconf.errors import ValidationError

from trainscout.commands.schemas import register_commands
from trainscout.conf.counted_gpus import with_named_gpu
from trainscout.simulators.predictor.io.yaml_files import Loader, read_yaml
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.redaction import redacted

STORE = "trials.journal"
"""File of a run's directory that holds what was simulated, for ``resume=true``."""


def prepare_hydra(command: str | None = None) -> None:
    """Tell Hydra what settings a command has (None: every one), and how to fail."""
    register_commands(command)
    _share_schemas()
    _compose_once()
    _look_at_own_files_first()
    omegaconf._utils.get_yaml_loader = lambda: Loader
    OmegaConf.to_yaml = staticmethod(_redacted_yaml)  # type: ignore[method-assign,assignment]
    logging.setLogRecordFactory(_redacted_record)
    _check_own_files()
    BooleanNode._validate_and_convert_impl = _true_or_false  # type: ignore[method-assign,assignment]
    OmegaConf.register_new_resolver("run_directory", run_directory, replace=True)
    # Makes Hydra raise what it would otherwise print in its own way.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")


@functools.cache
def _check_own_files() -> None:
    """Have a user's own file (``--config-dir``) read by ourselves before Hydra does: what is no
    YAML, or would fill the memory, is refused with the line of the file."""
    Plugins.instance()  # registers who reads files: a class that has no other name
    source = SourcesRegistry.instance().resolve("file")
    load = source.load_config

    def load_checked(self: ConfigSource, config_path: str) -> ConfigResult:
        file = Path(self.path, self._normalize_file_name(config_path))
        if file.is_file():
            content = read_yaml(file)
            if not isinstance(content, dict):
                raise InputError("file", file, "holds no fields", "names with values, in YAML")
            check_defaults(file, content.get("defaults", []))
            if file.parent.name == "cluster" and isinstance(content.get("gpu"), str):
                loaded = load(self, config_path)
                loaded.config = OmegaConf.create(with_named_gpu(content))
                return loaded
        return load(self, config_path)

    source.load_config = load_checked  # type: ignore[method-assign]


def check_defaults(file: Path, defaults: object) -> None:
    """Raises InputError for what Hydra could not compose."""

    def names(each: object) -> bool:
        return each is None or isinstance(each, str)

    allowed = "a list of names and of group: name"
    if not isinstance(defaults, list):
        raise InputError("file", file, f"has defaults that are no list: {defaults}", allowed)
    for each in defaults:
        chosen = next(iter(each.values())) if isinstance(each, dict) and len(each) == 1 else each
        if each is None or not all(map(names, chosen if isinstance(chosen, list) else [chosen])):
            raise InputError("file", file, f"has defaults that choose nothing: {each}", allowed)


_CONVERTED = BooleanNode._validate_and_convert_impl


def _true_or_false(node: BooleanNode, value: Any) -> bool:
    """OmegaConf takes any number for true or false, and a 5 that belongs elsewhere for true."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number or str(value).lstrip("-").isdecimal():
        raise ValidationError("Value '$VALUE' is not true or false")
    return _CONVERTED(node, value)


_YAML = OmegaConf.to_yaml


def _redacted_yaml(config: Any, *, resolve: bool = False, sort_keys: bool = False) -> str:
    """What Hydra keeps of settings (``.hydra``, ``multirun.yaml``) and shows (``--cfg``), without
    passwords."""
    if not OmegaConf.is_config(config):
        return _YAML(OmegaConf.create(redacted(config)), sort_keys=sort_keys)
    # As OmegaConf does it, which would first make settings of the redacted ones again.
    plain = redacted(OmegaConf.to_container(config, resolve=resolve, enum_to_str=True))
    return yaml.dump(
        plain,
        default_flow_style=False,
        allow_unicode=True,
        sort_keys=sort_keys,
        Dumper=omegaconf._utils.get_omega_conf_dumper(),
    )


def _redacted_record(*args: Any, **more: Any) -> logging.LogRecord:
    """What Hydra logs of the jobs that it launches: their settings."""
    record = logging.LogRecord(*args, **more)
    record.msg = redacted(record.msg)
    return record


def _share_schemas() -> None:
    """Keep Hydra from copying its store of schemas for each group it looks at: more than a
    hundred times and two seconds for one --help. It only reads the store, and copies what it
    takes out of it."""
    ConfigStore.__deepcopy__ = lambda store, memo: store  # type: ignore[attr-defined]


_GET_MODE = Hydra.get_mode
_DIRECTORIES = ("hydra.run.dir=", "hydra.sweep.dir=", "hydra.sweep.subdir=")


def _compose_once() -> None:
    """Hydra composes all settings twice, first only to learn ``hydra.mode``: which none of ours
    sets, and a user's can by a word on the command line, but for one that names a directory, or in
    a folder of their own."""

    def get_mode(self: Hydra, config_name: str | None, overrides: list[str]) -> Any:
        own = [each.provider for each in self.config_loader.get_search_path().get_path()]
        stated = any("hydra" in word and not word.startswith(_DIRECTORIES) for word in overrides)
        if "command-line" in own or stated:
            return _GET_MODE(self, config_name, overrides)
        return None

    Hydra.get_mode = get_mode  # type: ignore[method-assign]


def refuse_empty(config: DictConfig, arguments: Sequence[str]) -> None:
    """Refuse ``name={}`` for what has entries: Hydra adds none to them, and takes none away."""
    for field in (word.removesuffix("={}") for word in arguments if word.endswith("={}")):
        value = OmegaConf.select(config, field)
        if OmegaConf.is_dict(value) and OmegaConf.get_type(value) is dict and len(value):
            problem = f"leaves {', '.join(map(str, value))} there"
            raise InputError(field, "{}", problem, f"~{field}, which takes all of them away")


_PREPEND = ConfigSearchPathImpl.prepend


def _look_at_own_files_first() -> None:
    """A folder of the user's own (``--config-dir``) hides what ships under the same name, as it
    does in the catalogue; Hydra would look there last."""

    def prepend(
        self: ConfigSearchPathImpl,
        provider: str,
        path: str,
        anchor: SearchPathQuery | str | None = None,
    ) -> None:
        _PREPEND(self, provider, path, "main" if provider == "command-line" else anchor)

    ConfigSearchPathImpl.prepend = prepend  # type: ignore[method-assign]


def run_directory(parent: str, stamp: str, resume: bool, storage: str | None) -> str:
    """Where a search puts its files: ``parent/stamp``, or to resume the directory in ``parent``
    whose search was last written to, when there is one. With a ``storage`` of its own, a search
    is not kept in its directory, and gets a new one; a number sets those of one second apart."""
    stores = Path(parent).glob(f"*/{STORE}") if resume and storage is None else ()
    latest = max(stores, key=lambda store: store.stat().st_mtime, default=None)
    if latest is not None:
        return str(latest.parent)
    names = itertools.chain([stamp], (f"{stamp}-{number}" for number in itertools.count(2)))
    return next(str(path) for name in names if not (path := Path(parent, name)).exists())
