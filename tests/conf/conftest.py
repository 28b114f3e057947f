"""A small primary configuration over the real declarations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

import trainscout.conf
from trainscout.commands.hydra_setup import prepare_hydra
from trainscout.conf.schema import structured
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.framework import Framework
from trainscout.simulators.predictor.question.gpu import Gpu
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.training import Training

DECLARATIONS = {
    "model": Model,
    "gpu": Gpu,
    "cluster": Cluster,
    "training": Training,
    "framework": Framework,
    "recipe": Recipe,
}
PRIMARY = """
defaults:
  - tests_schema
  - model: gpt175b
  - gpu: h100
  - cluster: h800_96
  - training: default
  - framework: megatron_core
  - _self_
seed: 0
hydra:
  searchpath: ["pkg://trainscout.conf", "file://{extra}"]
"""

Compose = Callable[..., DictConfig]


def names(group: str) -> list[str]:
    """The choices of a config group, as the files on disk say."""
    return sorted(
        path.stem for path in Path(trainscout.conf.__file__).parent.joinpath(group).glob("*.yaml")
    )


@pytest.fixture
def extra(tmp_path: Path) -> Path:
    """A directory in which a test may declare groups of its own."""
    path = tmp_path / "extra"
    path.mkdir()
    return path


@pytest.fixture(scope="session")
def prepared() -> None:
    """Hydra with our schemas, reading YAML as it does for commands."""
    prepare_hydra()
    schema = {group: structured(cls) for group, cls in DECLARATIONS.items()}
    ConfigStore.instance().store(name="tests_schema", node=OmegaConf.create(schema))


@pytest.fixture
def composed(prepared: None, tmp_path: Path, extra: Path) -> Iterator[Compose]:
    (tmp_path / "config.yaml").write_text(PRIMARY.format(extra=extra))
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        yield lambda *overrides: compose("config", overrides=list(overrides))
