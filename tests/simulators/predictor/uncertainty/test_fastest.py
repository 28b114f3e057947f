from dataclasses import replace

import pytest

from tests.simulators.jobs import make_job
from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.predictor.uncertainty import fastest
from trainscout.simulators.predictor.uncertainty.fastest import (
    Fastest,
    FastRun,
    Selection,
    claim,
    fastest_text,
    kind_of,
    published_fastest,
    read_fastest,
)

JOB = make_job(tp=2)
KIND = kind_of(JOB)
RUN = FastRun(
    kind=KIND,
    architecture=JOB.gpu.architecture.name,
    peak_tflops=JOB.gpu.peak(JOB.precision) / 1e12,
    mfu=0.5,
    id="run",
    source='somebody, "table 1"',
    model="Model",
    num_gpus=64,
)
COSTS = Selection(shift=0.02, error=0.03, publications=3, sweeps=7)


def of_kind(mfu, **fields):
    return replace(RUN, mfu=mfu, kind=replace(KIND, **fields))


def test_the_file_is_read_as_it_was_written():
    found = Fastest(COSTS, (RUN, of_kind(0.4, gpu="other")))
    assert read_fastest(fastest_text(found, {"made_by": "a test"})) == found


def test_what_ships_has_runs_of_every_kind_once_and_a_small_cost():
    found = published_fastest()
    assert len({run.kind for run in found.runs}) == len(found.runs) > 50
    assert all(0.01 < run.mfu < 0.8 for run in found.runs)
    assert 0 <= found.selection.shift < 0.05 < found.selection.publications


def test_the_framework_comes_before_the_speed():
    slow, fast = RUN, of_kind(0.6, framework="other")
    assert Fastest(COSTS, (slow, fast)).like(JOB) == slow
    assert Fastest(COSTS, (fast,)).like(JOB) == fast


def test_another_gpu_stands_in_where_it_is_as_fast():
    sibling = replace(of_kind(0.6, gpu="other"), peak_tflops=RUN.peak_tflops * 1.1)
    assert Fastest(COSTS, (RUN, sibling)).like(JOB) == RUN
    assert Fastest(COSTS, (sibling,)).like(JOB) == sibling
    assert Fastest(COSTS, (replace(sibling, peak_tflops=RUN.peak_tflops / 2),)).like(JOB) is None
    assert Fastest(COSTS, (replace(sibling, architecture="other"),)).like(JOB) is None


@pytest.mark.parametrize(
    "other", [{"bits": "8-bit"}, {"experts": True}, {"size": 4}, {"long": True}]
)
def test_another_kind_of_run_says_nothing(other):
    assert Fastest(COSTS, (of_kind(0.9, **other),)).like(JOB) is None


def test_sizes_are_of_what_a_token_passes():
    wide = replace(JOB, model=replace(JOB.model, hidden_size=8192, ffn_hidden_size=32768))
    # 12 layers of 12 h^2 parameters: 9.7 billion.
    assert (KIND.size, kind_of(wide).size) == (0, 1)


def test_every_kind_of_layer_has_a_size():
    for model in load_catalogue().models.values():
        assert kind_of(replace(JOB, model=model)).size >= 0


def test_only_what_exceeds_every_published_run_is_to_be_measured_first(monkeypatch):
    found = Fastest(COSTS, (RUN,))
    monkeypatch.setattr(fastest, "published_fastest", lambda: found)
    near, far = (claim(JOB, RUN.mfu * by) for by in (1.04, 1.06))
    assert not near.measure_first
    assert far.measure_first
    assert far.faster == pytest.approx(0.06)
