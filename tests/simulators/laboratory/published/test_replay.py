from dataclasses import replace

import pytest

from tests.samples import prediction
from tests.simulators.laboratory.published.runs import RUN, TwoSeconds, declarations
from trainscout.simulators.laboratory.published.jobs.jobs import job_of
from trainscout.simulators.laboratory.published.jobs.outcome import NotReplayable
from trainscout.simulators.laboratory.published.published import PUBLISHED_RUNS
from trainscout.simulators.laboratory.published.reading.rows import read_rows
from trainscout.simulators.laboratory.published.replay import replay_row, replay_rows
from trainscout.simulators.registry import get_simulator


def test_the_error_is_relative_to_what_was_measured():
    result = replay_row(RUN, declarations(), TwoSeconds())
    assert result.error == pytest.approx(-0.5)
    assert result.memory is None
    assert not result.reason


def test_memory_alone_is_worth_a_prediction():
    row = replace(RUN, measured_iter_s=None, measured_peak_mem_gib=10.0, memory_kind="allocated")
    result = replay_row(row, declarations(), TwoSeconds())
    assert result.error is None
    assert result.memory is not None
    expected = prediction().memory.peak_allocated_bytes / (10 * 2**30) - 1
    assert result.memory_error == pytest.approx(expected)


def test_a_row_without_any_figure_is_not_simulated():
    simulator = TwoSeconds()
    result = replay_row(replace(RUN, measured_iter_s=None), declarations(), simulator)
    assert result.prediction is None
    assert result.reason
    assert simulator.asked == []


def test_a_simulator_that_fails_is_a_reason_not_an_end():
    class Failing(TwoSeconds):
        def simulate(self, job):
            raise ArithmeticError("no such kernel")

    result = replay_row(RUN, declarations(), Failing())
    assert "no such kernel" in result.reason


def test_equal_jobs_are_simulated_once():
    simulator = TwoSeconds()
    rows = [RUN, replace(RUN, id="edition", source="elsewhere", measured_iter_s=5.0)]
    seen = []
    results = replay_rows(rows, declarations(), simulator, lambda: seen.append(1))
    assert len(simulator.asked) == 1
    assert [result.error for result in results] == pytest.approx([-0.5, -0.6])
    assert len(seen) == 2


class Full(TwoSeconds):
    """Says that only full recomputation fits."""

    def simulate(self, job):
        fits = job.recipe.recompute == "full"
        return prediction(3.0 if fits else 2.0, headroom_gib=10.0 if fits else -1.0)


def test_unpublished_recomputation_is_what_it_takes_to_fit():
    result = replay_row(replace(RUN, recompute=""), declarations(), Full())
    assert result.job is not None
    assert result.job.recipe.recompute == "full"
    assert result.error == pytest.approx(-0.25)
    assert any("least that fits" in text for text in result.assumptions)


class Picked(TwoSeconds):
    """Says that whole MLPs must be recomputed to fit."""

    def simulate(self, job):
        fits = "mlp" in (job.recipe.recompute_modules or "")
        return prediction(3.0 if fits else 2.0, headroom_gib=10.0 if fits else -1.0)


def test_modules_that_nobody_knows_say_whether_a_run_may_have_fitted_not_what_it_took():
    row = replace(RUN, framework="Megatron-Bridge (NeMo 26.06)", recompute="")
    result = replay_row(row, declarations(), Picked())
    assert result.job.recipe.recompute == "none"
    assert result.error == pytest.approx(-0.5)
    assert result.band == "fits"
    assert any("judged with selective (layernorm+mlp)" in text for text in result.assumptions)
    assert replay_row(replace(row, recompute="none"), declarations(), Picked()).band == "no"


class Sharded(TwoSeconds):
    """Says that a sharded optimizer fits, or parameters sharded as well."""

    def __init__(self, stage):
        super().__init__()
        self.stage = stage

    def simulate(self, job):
        self.asked.append(job)
        return prediction(headroom_gib=10.0 if job.recipe.zero_stage >= self.stage else -1.0)


def test_unpublished_sharding_is_the_least_that_fits():
    result = replay_row(replace(RUN, dist_optimizer=""), declarations(), Sharded(1))
    assert result.job is not None
    assert result.job.recipe.zero_stage == 1
    assert result.job.recipe.recompute == RUN.recompute
    assert "sharding: ZeRO stage 1, the least that fits in memory" in result.assumptions


def test_sharding_goes_as_deep_as_the_software_does():
    fsdp = replace(RUN, tp=1, pp=1, sp=0, dp=64, dist_optimizer="", framework="PyTorch")
    result = replay_row(fsdp, declarations(), Sharded(3))
    assert result.job is not None
    assert result.job.recipe.zero_stage == 3
    megatron = replay_row(replace(RUN, dist_optimizer=""), declarations(), Sharded(3))
    assert megatron.job is not None
    assert megatron.job.recipe.zero_stage == 0


def test_what_is_published_is_not_touched():
    simulator = Sharded(1)
    replay_row(replace(RUN, dist_optimizer="0"), declarations(), simulator)
    assert [job.recipe.zero_stage for job in simulator.asked] == [0]
    assert replay_row(RUN, declarations(), Full()).job.recipe.recompute == "none"


def test_a_run_predicted_not_to_fit_is_told():
    result = replay_row(RUN, declarations(), Sharded(2))
    (statement,) = (text for text in result.assumptions if "not to fit" in text)
    memory = prediction(headroom_gib=-1.0).memory
    capacity = memory.capacity_bytes / 2**30
    needed = f"{capacity + 1:.1f} GiB of {capacity:.1f} GiB"
    assert statement == f"predicted not to fit: {needed}, which fit with a probability of 0%"


def test_nearly_every_published_row_that_counts_is_a_job():
    rows = [row for row in read_rows(PUBLISHED_RUNS) if row.quality != "C"]
    lost = [row for row in rows if isinstance(job_of(row, declarations()), NotReplayable)]
    assert len(lost) <= 0.03 * len(rows)


def test_a_published_run_through_the_real_simulator():
    rows = [row for row in read_rows(PUBLISHED_RUNS) if row.id == "korthikanti_t5_22B_full"]
    (result,) = replay_rows(rows, declarations(), get_simulator("replay"), lambda: None)
    assert result.error is not None
    assert abs(result.error) < 0.15
