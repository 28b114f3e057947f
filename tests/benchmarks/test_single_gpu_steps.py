"""Single-GPU training runs: the model trained is the model predicted, rows are readable."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from benchmarks import single_gpu_steps as steps
from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.laboratory.device.results import ResultFile
from trainscout.simulators.laboratory.device.timing import Call
from trainscout.simulators.laboratory.published.rows import read_rows
from trainscout.simulators.predictor.question.cluster import Cluster
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.question.model import Model
from trainscout.simulators.predictor.question.recipe import Recipe
from trainscout.simulators.predictor.question.training import Training
from trainscout.simulators.predictor.workload.megatron import build_workload

CATALOGUE = load_catalogue()
SMALL = Model("small", 2, 64, 4, 128, 500, 32, "test", num_query_groups=2, gated_mlp=True)


class FakeTrainer:
    def __init__(self, *_: object) -> None:
        self.steps = 0

    def step(self) -> None:
        self.steps += 1

    def peak_bytes(self) -> int:
        return 3 * steps.GIB


class SlowStart:
    """A clock on which the first steps take ten times as long, and every tenth is late."""

    def __init__(self) -> None:
        self.done = 0

    def seconds(self, call: Call, count: int) -> float:
        total = 0.0
        for _ in range(count):
            call()
            self.done += 1
            total += 5.0 if self.done <= steps.WARM_UP_STEPS or self.done % 10 == 0 else 0.5
        return total


def test_median_step_after_the_warm_up() -> None:
    trainer = FakeTrainer()
    assert steps.measure(trainer, SlowStart()) == (0.5, 3 * steps.GIB)
    assert trainer.steps == steps.WARM_UP_STEPS + steps.STEPS


def test_rows_are_those_of_published_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Torch:
        __version__ = "2.13.0"

    monkeypatch.setattr(steps, "open_torch", lambda device: (Torch, SlowStart()))
    monkeypatch.setattr(steps, "TorchTrainer", FakeTrainer)
    path = tmp_path / "runs.csv"
    for expected in (len(steps.CASES), 0):
        file = ResultFile(path, steps.COLUMNS, ("id",))
        assert steps.run(steps.CASES, CATALOGUE.models, "h200", "cuda", file) == expected
    rows = read_rows(path)
    assert len(rows) == len(steps.CASES)
    first = rows[0]
    assert (first.gpu, first.num_gpus, first.tp, first.global_batch) == ("h200", 1, 1, 4)
    assert first.measured_iter_s == 0.5
    assert first.measured_peak_mem_gib == 3
    assert first.memory_kind == "allocated"


def test_state_of_every_case_fits_the_smallest_gpu() -> None:
    for case in steps.CASES:
        model = dataclasses.replace(CATALOGUE.models[case.model], num_layers=case.layers)
        assert 16 * parameters(model) < 0.8 * CATALOGUE.gpus["a100_40"].memory_bytes


def parameters(model: Model) -> int:
    """Parameters of the workload that predictions are made from."""
    gpu = CATALOGUE.gpus["h200"]
    cluster = Cluster("one", 1, 1, 1, 400.0, "infiniband", "test")
    job = Job(model, gpu, cluster, Training(1, tokens=1.0), Recipe())
    return build_workload(job).stages[0].parameters.total


MODELS = (*sorted({case.model for case in steps.CASES}), "small")


@pytest.mark.parametrize("name", MODELS)
def test_torch_model_has_the_parameters_predicted(name: str) -> None:
    torch: Any = pytest.importorskip("torch")
    model = SMALL if name == "small" else dataclasses.replace(CATALOGUE.models[name], num_layers=2)
    with torch.device("meta"):
        module = steps.build(torch, model, model.sequence_length)
    assert sum(each.numel() for each in module.parameters()) == parameters(model)


def test_a_step_trains_on_a_cpu() -> None:
    torch: Any = pytest.importorskip("torch")
    torch.manual_seed(0)
    for model in (SMALL, dataclasses.replace(SMALL, position="rope", normalization="rmsnorm")):
        trainer = steps.TorchTrainer(torch, "cpu", model, steps.Case("small", 2, 1, 2))
        before = [each.clone() for each in trainer._module.parameters()]
        trainer.step()
        after = list(trainer._module.parameters())
        assert all(not torch.equal(b, a) for b, a in zip(before, after, strict=True))
        assert all(torch.isfinite(each).all() for each in after)


def test_without_a_gpu_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "runs.csv"
    assert steps.main(["--gpu", "h2000", "--output", str(path)]) == 2
    assert "h200" in capsys.readouterr().err
    assert not path.exists()
