"""Activations that wait in the host's memory: hidden beside the passes, or waited for."""

from dataclasses import replace

import pytest

from tests.simulators.jobs import TINY, make_job
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.replay.host import COPY_EFFICIENCY
from trainscout.simulators.predictor.replay.step_program import step_program
from trainscout.simulators.predictor.replay.unroll import unroll
from trainscout.simulators.predictor.workload.megatron import build_workload
from trainscout.simulators.registry import get_simulator


def simulated(job: Job):
    return get_simulator("replay").simulate(job)


def over(job: Job, bytes_per_s: float) -> Job:
    return replace(job, gpu=replace(job.gpu, c2c_bytes_per_s=bytes_per_s))


def test_a_fast_link_hides_the_copies_and_frees_the_memory():
    plain, away = make_job(TINY), over(make_job(TINY, offloaded_layers=8), 1e15)
    before, after = simulated(plain), simulated(away)
    assert after.step_time_s == pytest.approx(before.step_time_s, rel=1e-12)
    copied = build_workload(away).stages[0].chunks[0].copied_bytes
    freed = before.memory.peak_allocated_bytes - after.memory.peak_allocated_bytes
    assert freed == pytest.approx(copied, rel=0.01)


def test_inputs_of_all_layers_that_are_recomputed_can_wait_there():
    held = {"training": {"offloads_inputs": True}, "recompute": "full"}
    plain = make_job(TINY, **held)
    away = over(make_job(TINY, offloaded_layers=TINY.num_layers, **held), 1e15)
    before, after = simulated(plain), simulated(away)
    assert after.step_time_s == pytest.approx(before.step_time_s, rel=1e-12)
    copied = build_workload(away).stages[0].chunks[0].copied_bytes
    assert copied == TINY.num_layers * plain.sequence_length * TINY.hidden_size * 2
    assert after.memory.host_bytes == before.memory.host_bytes + copied
    freed = before.memory.peak_allocated_bytes - after.memory.peak_allocated_bytes
    # What a layer that runs reads is back.
    assert freed == pytest.approx(copied * (1 - 1 / TINY.num_layers), rel=0.01)


def test_a_slow_link_is_what_every_pass_takes():
    rate = 1e6
    away = over(make_job(TINY, offloaded_layers=8), rate)
    prediction = simulated(away)
    copied = build_workload(away).stages[0].chunks[0].copied_bytes
    copies_s = 2 * away.num_micro_batches * copied / (COPY_EFFICIENCY * rate)
    ends_s = prediction.breakdown_s.get("optimizer", 0.0)
    ends_s += prediction.breakdown_s.get("dp_communication", 0.0)
    assert prediction.step_time_s == pytest.approx(copies_s + ends_s, rel=0.01)
    assert any("copies of activations" in each for each in prediction.assumptions)


def test_without_a_link_between_chips_it_is_pcie():
    job = make_job(TINY, offloaded_layers=8)
    assert job.gpu.c2c_bytes_per_s == 0
    assert simulated(job) == simulated(over(job, job.gpu.pcie_bytes_per_s))


def test_the_timeline_waits_for_the_copies_too():
    fast, slow = (over(make_job(TINY, offloaded_layers=8), rate) for rate in (1e15, 1e6))
    ends = [unroll(step_program(job, micro_batches=1)).end_s.max() for job in (fast, slow)]
    copied = build_workload(slow).stages[0].chunks[0].copied_bytes
    assert ends[1] == pytest.approx(2 * copied / (COPY_EFFICIENCY * 1e6), rel=0.01)
    assert ends[0] < ends[1] / 10
