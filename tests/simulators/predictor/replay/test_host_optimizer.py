"""An optimizer on the host: what its CPU takes, and whether its memory holds the states."""

from dataclasses import replace

import pytest

from tests.simulators.jobs import TINY, make_job
from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.predictor.memory.bands import FITS, NO
from trainscout.simulators.predictor.question.cluster import HostShare
from trainscout.simulators.predictor.question.job import Job
from trainscout.simulators.predictor.replay.host import (
    COPY_EFFICIENCY,
    UPDATE_EFFICIENCY,
    copy_s,
)
from trainscout.simulators.registry import get_simulator


def simulated(job: Job):
    return get_simulator("replay").simulate(job)


def on_host(how: str, percent: int = 100, zero_stage: int = 1, **host: float) -> Job:
    job = make_job(
        TINY,
        zero_stage=zero_stage,
        optimizer_offload=percent,
        training={"host_optimizer": how},
    )
    return replace(job, cluster=replace(job.cluster, **host))


def owned(zero_stage: int = 1) -> int:
    """Parameters whose states a rank keeps: 8 bytes of moments each where all stay."""
    kind = simulated(on_host("serial", 0, zero_stage)).memory.per_stage[0].kind
    return kind["optimizer"] // (8 if zero_stage == 3 else 12)


def test_adam_on_the_host_takes_what_its_memory_moves() -> None:
    """Eight ranks share it; 28 bytes of update and 6 of cast, and clipping, a parameter."""
    rate = 1e6
    away = simulated(on_host("pipelined", host_memory_bytes_per_s=rate))
    update_s = owned() * 34 * 8 / (UPDATE_EFFICIENCY * rate)
    assert away.breakdown_s["optimizer"] == pytest.approx(update_s, rel=0.01)
    serial = simulated(on_host("serial", zero_stage=2, host_memory_bytes_per_s=rate))
    update_s = owned() * 46 * 8 / (UPDATE_EFFICIENCY * rate)
    assert serial.breakdown_s["optimizer"] == pytest.approx(update_s, rel=0.01)
    checked = simulated(on_host("serial", zero_stage=3, host_memory_bytes_per_s=rate))
    update_s = owned(3) * 54 * 8 / (UPDATE_EFFICIENCY * rate)
    assert checked.breakdown_s["optimizer"] == pytest.approx(update_s, rel=0.01)
    half = simulated(on_host("pipelined", 50, host_memory_bytes_per_s=rate))
    assert half.breakdown_s["optimizer"] == pytest.approx(owned() * 17 * 8 / 0.43e6, rel=0.01)
    assert any("host's CPU updates 50%" in each for each in half.assumptions)


def test_memory_that_is_not_pinned_is_staged_but_where_chips_share_it() -> None:
    """Published GB/s of 12 to 18 on PCIe 4, 9.7 on PCIe 5, no less than pinned on a GH200."""
    gpus = load_catalogue().gpus
    gigabytes_per_s = {name: 1 / copy_s(10**9, gpus[name], 10**9) for name in gpus}
    assert 8 < gigabytes_per_s["rtx4090"] < 18
    assert gigabytes_per_s["h100"] == pytest.approx(9.7, rel=0.05)
    assert copy_s(10**9, gpus["gh200"], 10**9) == copy_s(10**9, gpus["gh200"])


def test_copies_run_beside_it_or_before_and_behind_it() -> None:
    fast, link = {"host_memory_bytes_per_s": 1e15}, 1e6
    slow = replace(make_job().gpu, c2c_bytes_per_s=link)
    piped = replace(on_host("pipelined", **fast), gpu=slow)
    serial = replace(on_host("serial", zero_stage=2, **fast), gpu=slow)
    # Gradients of 4 bytes come, parameters of 2 go, both ways at once; or only the latter is
    # waited for.
    for job, size in ((piped, 4), (serial, 2)):
        copies_s = owned() * size / (COPY_EFFICIENCY * link)
        assert simulated(job).breakdown_s["optimizer"] == pytest.approx(copies_s, rel=0.01)


def test_gradients_leave_behind_the_backward_pass_or_beside_it_as_they_are_reduced() -> None:
    slow = replace(make_job().gpu, c2c_bytes_per_s=1e6)
    fast = {"host_memory_bytes_per_s": 1e15}
    for stage, overlaps, size in ((1, False, 6), (1, True, 2), (2, False, 2)):
        job = replace(on_host("serial", zero_stage=stage, **fast), gpu=slow)
        job = replace(job, recipe=replace(job.recipe, overlap_grad_reduce=overlaps))
        copies_s = owned(stage) * size / (COPY_EFFICIENCY * 1e6)
        assert simulated(job).breakdown_s["optimizer"] == pytest.approx(copies_s, rel=0.01)


def test_gradients_leave_with_each_micro_batch() -> None:
    """In fp32 alone, else in 16 bits there and back; ZeRO 3's in fp32 besides, once a step."""
    slow = replace(make_job().gpu, c2c_bytes_per_s=1e6)
    for stage, batch, size in ((2, 8, 4), (2, 64, 32), (3, 8, 8), (3, 64, 36)):
        job = replace(on_host("serial", zero_stage=stage, host_memory_bytes_per_s=1e15), gpu=slow)
        job = replace(job, training=replace(job.training, global_batch_size=batch))
        prediction = simulated(job)
        waits_s = prediction.breakdown_s["host"]
        assert waits_s == pytest.approx(owned(stage) * size / (COPY_EFFICIENCY * 1e6), rel=0.01)
        assert any(
            "copies of gradients (pinned) to the host" in each for each in prediction.assumptions
        )


def test_states_leave_the_gpu_for_the_host() -> None:
    for how, stage, on_gpu, there in (("pipelined", 1, 12, 16), ("serial", 3, 16, 18)):
        before, after = (
            simulated(on_host(how, percent, stage)).memory.per_stage[0].kind
            for percent in (0, 100)
        )
        assert after["optimizer"] == 0
        left = sum(before.values()) - sum(after.values())
        # Parameters that ZeRO 3 keeps in 16 bits besides stay.
        assert left == pytest.approx(owned(stage) * (on_gpu - 2 * (stage == 3)), rel=0.01)
        assert simulated(on_host(how, 100, stage)).memory.host_bytes == owned(stage) * there


def test_what_the_host_cannot_hold_does_not_fit() -> None:
    need = 8 * owned() * 16
    fits, too_little = (
        simulated(on_host("pipelined", host_memory_bytes=need * room / 0.95)).memory
        for room in (1.01, 0.99)
    )
    assert (fits.band, too_little.band) == (FITS, NO)
    assert fits.missing_bytes < 0 < too_little.missing_bytes


def test_a_node_is_its_gpus_usual_server_for_as_many_gpus() -> None:
    job = make_job(gpus_per_node=4)
    server, host = job.gpu.server, HostShare.of(job.gpu, job.cluster)
    assert host.memory_bytes == server.host_memory_bytes / server.gpus_per_node
    grace = HostShare.of(load_catalogue().gpus["gb200"], job.cluster)
    assert grace.link_bytes_per_s == 225e9
    assert grace.memory_bytes_per_s == pytest.approx(14e12 / 72, rel=0.01)
