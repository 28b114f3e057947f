"""Calendar time: closed forms against each other, and against runs played failure by failure."""

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainscout.planning.goodput import Reliability, best_interval_s, expected_stretch, goodput
from trainscout.simulators.predictor.question.errors import InputError

FAILING = Reliability(
    gpu_mtbf_hours=1000.0, checkpoint_write_s=30.0, detection_s=60.0, restart_s=240.0
)


def played_s(
    work_s: float, interval_s: float, write_s: float, lost_s: float, mtbf_s: float, seed: int
) -> float:
    """Calendar seconds of one run with random failures, checkpoint after checkpoint."""
    gaps = random.Random(seed)
    now_s = done_s = 0.0
    failure_s = gaps.expovariate(1 / mtbf_s)
    while done_s < work_s:
        end_s = now_s + interval_s + write_s
        if end_s <= failure_s:
            now_s, done_s = end_s, done_s + interval_s
            continue
        # What was done since the last checkpoint is lost; a restart can fail as well.
        now_s = failure_s
        while True:
            failure_s = now_s + gaps.expovariate(1 / mtbf_s)
            if failure_s - now_s >= lost_s:
                now_s += lost_s
                break
            now_s = failure_s
    return now_s


@pytest.mark.parametrize(
    ("interval_s", "write_s", "lost_s", "mtbf_s"),
    [(1800, 60, 600, 20_000), (600, 120, 900, 3_000), (4000, 30, 60, 5_000)],
)
def test_the_expectation_is_the_mean_of_played_runs(interval_s, write_s, lost_s, mtbf_s):
    work_s = 4_000_000
    runs = [played_s(work_s, interval_s, write_s, lost_s, mtbf_s, seed) for seed in range(12)]
    mean = sum(runs) / len(runs)
    spread = math.sqrt(sum((run - mean) ** 2 for run in runs) / (len(runs) - 1) / len(runs))
    expected = work_s * expected_stretch(interval_s, write_s, lost_s, mtbf_s)
    assert abs(mean - expected) < 4 * spread
    assert spread < 0.01 * expected


@given(
    write_s=st.floats(1, 600),
    mtbf_s=st.floats(600, 1e7),
    factor=st.floats(0.2, 5).filter(lambda factor: abs(factor - 1) > 0.01),
)
def test_no_other_interval_is_better(write_s, mtbf_s, factor):
    best_s = best_interval_s(write_s, mtbf_s)
    best = expected_stretch(best_s, write_s, 0, mtbf_s)
    other_s = best_s * factor
    assert best <= expected_stretch(other_s, write_s, 0, mtbf_s) * (1 + 1e-9)


@given(write_s=st.floats(1, 100), rarity=st.floats(1e3, 1e20))
def test_frequent_enough_checkpoints_follow_young_and_daly(write_s, rarity):
    mtbf_s = write_s * rarity
    young_s = math.sqrt(2 * write_s * mtbf_s)
    # Daly (2006), equation 37.
    half = write_s / (2 * mtbf_s)
    daly_s = young_s * (1 + math.sqrt(half) / 3 + half / 9) - write_s
    assert best_interval_s(write_s, mtbf_s) == pytest.approx(young_s, rel=0.05)
    assert best_interval_s(write_s, mtbf_s) == pytest.approx(daly_s, rel=1e-4)


def test_a_cluster_fails_as_often_as_its_parts_together():
    found = goodput(FAILING, num_gpus=1000, num_nodes=125)
    assert found.mtbf_s == pytest.approx(3600)
    by_node = replace(FAILING, gpu_mtbf_hours=None, node_mtbf_hours=125.0)
    assert goodput(by_node, 1000, 125) == found


def test_more_gpus_mean_less_goodput():
    shares = [goodput(FAILING, gpus, gpus // 8).share for gpus in (8, 64, 512, 4096)]
    assert shares == sorted(shares, reverse=True)
    assert 0 < shares[-1] < shares[0] < 1


def test_llama_3_trained_for_more_than_90_percent_of_the_time():
    # As the paper says of its 54 days; its seconds are assumptions of the declaration.
    declared = Reliability(45565.0, None, 30.0, 120.0, 600.0)
    assert 0.85 < goodput(declared, 16384, 2048).share < 0.95


def test_nothing_fails_and_nothing_is_written_by_default():
    assert goodput(Reliability(), 10_000, 1250).share == 1.0


def test_checkpoints_alone_take_their_share():
    written = Reliability(checkpoint_write_s=100.0, checkpoint_interval_s=900.0)
    assert goodput(written, 8, 1).share == pytest.approx(0.9)


def test_a_declared_interval_is_kept():
    found = goodput(replace(FAILING, checkpoint_interval_s=100.0), 8, 1)
    assert found.checkpoint_interval_s == 100.0
    assert found.share < goodput(FAILING, 8, 1).share


def test_a_cluster_that_never_gets_anywhere_is_refused():
    with pytest.raises(InputError, match=r"goodput.gpu_mtbf_hours=.*too often"):
        goodput(FAILING, 100_000, 12_500)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"gpu_mtbf_hours": 0.0}, "gpu_mtbf_hours=0.0: is out of range"),
        ({"restart_s": -1.0}, "restart_s=-1.0: is out of range"),
        ({"node_mtbf_hours": 5.0}, "is given beside"),
        ({"checkpoint_write_s": 0.0}, "would make checkpoints free"),
    ],
)
def test_impossible_figures_are_refused(wrong, message):
    with pytest.raises(InputError, match=message):
        replace(FAILING, **wrong).check()
