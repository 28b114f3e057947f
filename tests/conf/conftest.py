"""A small primary configuration over the real declarations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

import conf
from conf.schema import register_declarations

PRIMARY = """
defaults:
  - declarations
  - model: gpt175b
  - gpu: h100
  - cluster: h800_96
  - training: default
  - _self_
seed: 0
hydra:
  searchpath: ["pkg://conf", "file://{extra}"]
"""

Compose = Callable[..., DictConfig]


def names(group: str) -> list[str]:
    """The choices of a config group, as the files on disk say."""
    return sorted(path.stem for path in Path(conf.__file__).parent.joinpath(group).glob("*.yaml"))


@pytest.fixture
def extra(tmp_path: Path) -> Path:
    """A directory in which a test may declare groups of its own."""
    path = tmp_path / "extra"
    path.mkdir()
    return path


@pytest.fixture
def composed(tmp_path: Path, extra: Path) -> Iterator[Compose]:
    register_declarations()
    (tmp_path / "config.yaml").write_text(PRIMARY.format(extra=extra))
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        yield lambda *overrides: compose("config", overrides=list(overrides))
