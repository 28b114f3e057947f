"""``trainscout explain profile.file=`` and ``trace kineto``, from the command to its files."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

import trainscout as ts
from tests.in_process import command
from tests.simulators.virtual_cluster.profiles.made import Recorder, predicted, record
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.uncertainty.calibration import read_calibration

explain, kineto = command("explain"), command("trace", "kineto")
calibrate = command("calibrate")
QUESTION = (
    "model=llama3_8b", "model.num_layers=2", "model.sequence_length=1024", "cluster=h100_64",
    "cluster.num_nodes=1", "cluster.gpus_per_node=2", "framework=huggingface",
    "training.global_batch_size=1", "a.tp=2", "a.micro_batch=1",
)  # fmt: skip


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks, products taking a quarter longer than predicted."""
    fields = {"num_layers": 2, "model.sequence_length": 1024, "num_nodes": 1, "gpus_per_node": 2}
    question = ts.question(
        "llama3_8b", "h100_64", framework="huggingface", global_batch_size=1, **fields
    )
    operations = predicted(question.job(Recipe(tp=2, micro_batch=1)))
    folder = tmp_path_factory.mktemp("profiles")
    for rank in range(2):
        recorder = Recorder(rank, 2)
        start_us = recorder.host_us
        record(recorder, operations, lambda kind: 1.25 if kind == "gemm" else 1.0)
        recorder.mark(0, start_us)
        recorder.write(folder / f"rank{rank}.json")
    return folder


def test_a_profile_is_put_beside_the_prediction(
    profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept"
    asked = [*QUESTION, f"profile.file={profile}", f"profile.directory={kept}"]
    assert explain(asked) == 0
    shown = capsys.readouterr().out
    assert re.search(r"matrix products +[\d.]+ ms +[\d.]+ ms +-20.0% +-20.0%", shown)
    assert "Ranks" in shown
    assert "all_reduce" in shown
    page = (kept / "profile.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert page.count("<svg") == 2
    assert "http" not in re.sub(r"http-equiv", "", page)
    factors = json.loads((kept / "observed_factors.json").read_text(encoding="utf-8"))
    assert (factors["format"], factors["version"]) == ("trainscout-observed-factors", 1)
    assert factors["gpu"] == "h100"
    assert factors["ranks"] == [0, 1]
    assert factors["classes"]["gemm"]["factor"] == pytest.approx(1.25, rel=1e-3)
    assert factors["step"]["predicted_s"] > 0
    calibration = tmp_path / "calibration.yaml"
    profiled = ["--from-profile", str(kept / "observed_factors.json")]
    assert calibrate([*profiled, "--output", str(calibration)]) == 0
    stated = read_calibration(calibration)
    assert (stated.gpus, stated.runs) == (("h100",), ())
    # Products a quarter slower than their price, attention and the rest as they are priced.
    assert 1.1 < stated.factors.compute_time <= 1.25
    assert stated.factors.memory_time == pytest.approx(1, rel=0.01)
    capsys.readouterr()
    tables = f"simulator.measured_kernels={kept / 'measured_kernels'}"
    assert explain([*QUESTION, f"profile.file={profile}", tables, "format=json"]) == 0
    record_ = json.loads(capsys.readouterr().out)
    (products,) = [
        row for row in record_["ranks"][0]["classes"] if row["name"] == "matrix products"
    ]
    assert products["error"] == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (["a.sp=true", "model.hidden_size=2048"], "of another model"),
        (["cluster.gpus_per_node=4", "training.global_batch_size=2"], "a job of 2 ranks"),
        (["gpu=h200"], "a cluster of h100"),
        (["b.sp=true"], "compared with one recipe"),
        (["format=csv"], "table or json"),
        (["profile.file=null"], "profile.file= too"),
        (["profile.file=missing.json"], "missing.json"),
    ],
)
def test_what_cannot_be_compared_is_refused_and_nothing_written(
    profile: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    settings: list[str],
    problem: str,
) -> None:
    kept = tmp_path / "kept"
    given = [f"profile.file={profile}", *settings, f"profile.directory={kept}"]
    asked = [*QUESTION, *given]
    # Hydra takes a setting once only.
    names = [each.partition("=")[0] for each in asked]
    asked = [each for at, each in enumerate(asked) if names[at] not in names[at + 1 :]]
    assert explain(asked) == 2
    assert problem in capsys.readouterr().err
    assert not kept.exists()


def test_any_profile_is_put_beside_the_prices_of_its_shapes(
    profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed = tmp_path / "p.json.gz"
    packed.write_bytes(gzip.compress((profile / "rank0.json").read_bytes()))
    assert kineto([packed, "--output", tmp_path / "kept"]) == 0
    assert re.search(
        r"gemm +[\d.]+ ms +\d+ +[\d.]+ ms +100% +[\d.]+ ms +-20.0%", capsys.readouterr().out
    )
    assert (tmp_path / "kept" / "measured_kernels" / "gemm.csv").is_file()
    assert kineto([packed, "--gpu", "h2000"]) == 2
    assert "h200" in capsys.readouterr().err
    packed.write_bytes(packed.read_bytes()[:-40])
    assert kineto([packed]) == 2
