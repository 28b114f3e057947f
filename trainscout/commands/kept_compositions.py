"""What Hydra composes of shipped files for certain choices, kept: who composes the same choices
again, with other values, in the same process is given a copy, in a fifth of the time."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hydra._internal import config_loader_impl, defaults_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.defaults_list import DefaultsList
from hydra.core.default_element import ResultDefault
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig

_LIST = defaults_list.create_defaults_list
_COMPOSE = ConfigLoaderImpl._compose_config_from_defaults_list
# More choices than these are of a process that walks through all.
_MOST = 64
_lists: dict[object, DefaultsList] = {}
_configs: dict[object, DictConfig | None] = {}


def keep_compositions() -> None:
    """Have Hydra do so."""
    config_loader_impl.create_defaults_list = _defaults_list  # type: ignore[attr-defined]
    ConfigLoaderImpl._compose_config_from_defaults_list = _composed  # type: ignore[method-assign]


def _sources(repo: Any) -> tuple[str, ...] | None:
    """Where files are read from; None where some are a user's own, which may change."""
    sources = repo.get_sources()
    if not all(each.provider in ("hydra", "main", "schema") for each in sources):
        return None
    return tuple(each.path for each in sources)


def _defaults_list(
    repo: Any,
    config_name: str | None,
    overrides_list: list[Override],
    prepend_hydra: bool,
    skip_missing: bool,
) -> DefaultsList:
    sources = _sources(repo)
    if sources is None:
        return _LIST(repo, config_name, overrides_list, prepend_hydra, skip_missing)
    stated = [each for each in overrides_list if not each.is_sweep_override()]
    # As Hydra tells choices from values.
    choices, values = list[Override](), list[Override]()
    for each in stated:
        chooses = not isinstance(each.value(), dict) and repo.group_exists(each.key_or_group)
        (choices if chooses else values).append(each)
    key = (sources, config_name, *(each.input_line for each in choices), skip_missing)
    if key not in _lists:
        if len(_lists) >= _MOST:
            _lists.clear()
        _lists[key] = _LIST(repo, config_name, stated, prepend_hydra, skip_missing)
    return replace(_lists[key], config_overrides=values)


def _composed(self: ConfigLoaderImpl, defaults: Sequence[ResultDefault], repo: Any) -> DictConfig:
    key = (_sources(repo), *map(str, defaults))
    if (kept := _configs.get(key)) is not None:
        return copy.deepcopy(kept)
    made = _COMPOSE(self, list(defaults), repo)
    if key[0] is not None:
        if len(_configs) >= _MOST:
            _configs.clear()
        # Most processes compose once: a copy is kept from the second time on.
        _configs[key] = copy.deepcopy(made) if key in _configs else None
    return made
