"""Traced layers are found again, by everything they depend on, whoever wrote them."""

from __future__ import annotations

import json
import multiprocessing
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.simulators.jobs import TINY, make_job
from trainscout.simulators.predictor.question.layers import DENSE_LAYER
from trainscout.simulators.predictor.workload.model.layer import layer_blocks
from trainscout.simulators.predictor.workload.parameters import LocalParameters
from trainscout.simulators.predictor.workload.shard import Shard
from trainscout.simulators.virtual_cluster.traced import cache as cache_module
from trainscout.simulators.virtual_cluster.traced.cache import (
    TracedLayer,
    TracedLayerCache,
)
from trainscout.simulators.virtual_cluster.traced.layer_spec import LayerSpec, layer_specs_of

JOB = make_job(TINY, tp=2)
PIECE = layer_specs_of(JOB)[1]
VERSIONS = {"torch": "2.13.0", "megatron-core": "0.16.1"}
TRACED = TracedLayer(
    *layer_blocks(Shard.of(JOB), DENSE_LAYER, "none"), LocalParameters(7, 2), VERSIONS
)


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What is installed here, for a test to change."""
    state: dict[str, Any] = {"versions": VERSIONS}
    monkeypatch.setattr(cache_module, "installed_versions", lambda: state["versions"])
    return state


def test_what_was_written_is_found(tmp_path: Path) -> None:
    TracedLayerCache(tmp_path).write(PIECE, TRACED)
    assert TracedLayerCache(tmp_path).read(PIECE) == TRACED
    assert TracedLayerCache(tmp_path).read(replace(PIECE, micro_batch=3)) is None


def test_other_versions_made_another_trace(tmp_path: Path, installed: dict[str, Any]) -> None:
    TracedLayerCache(tmp_path).write(PIECE, TRACED)
    installed["versions"] = {**VERSIONS, "torch": "2.14.0"}
    assert TracedLayerCache(tmp_path).read(PIECE) is None


def test_without_torch_what_is_there_is_taken(tmp_path: Path, installed: dict[str, Any]) -> None:
    TracedLayerCache(tmp_path).write(PIECE, TRACED)
    installed["versions"] = None
    assert TracedLayerCache(tmp_path).read(PIECE) == TRACED


def test_changed_code_made_another_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    TracedLayerCache(tmp_path).write(PIECE, TRACED)
    monkeypatch.setattr(cache_module, "code_digest", lambda: "other")
    assert TracedLayerCache(tmp_path).read(PIECE) is None


@pytest.mark.parametrize("damage", ["truncated", "other spec", "other format", "other block"])
def test_a_damaged_file_counts_as_missing(tmp_path: Path, damage: str) -> None:
    TracedLayerCache(tmp_path).write(PIECE, TRACED)
    [path] = tmp_path.glob("*.json")
    content = json.loads(path.read_text())
    if damage == "other spec":
        content["spec"]["tp"] = 4
    elif damage == "other format":
        content["format"] = 0
    elif damage == "other block":
        content["traced"]["forward"]["ops"][0][1] = 5
    text = json.dumps(content)
    path.write_text(text[:100] if damage == "truncated" else text)
    assert TracedLayerCache(tmp_path).read(PIECE) is None


def _hold(directory: Path, spec: LayerSpec, began: Any, seconds: float) -> None:
    with TracedLayerCache(directory).claimed([spec]):
        began.set()
        time.sleep(seconds)
        (directory / "done").touch()


def test_a_claim_makes_others_wait(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    began = context.Event()
    other = context.Process(target=_hold, args=(tmp_path, PIECE, began, 0.2))
    other.start()
    assert began.wait(30)
    with TracedLayerCache(tmp_path).claimed([PIECE]):
        assert (tmp_path / "done").exists()
    other.join()
