from dataclasses import replace

import pytest

from tests.simulators.laboratory.published.runs import RUN, TwoSeconds, declarations, replayable
from trainscout.simulators.laboratory.published.published import (
    PeerPrediction,
    read_peer_predictions,
)
from trainscout.simulators.laboratory.published.replay import replay_rows
from trainscout.simulators.laboratory.published.report import (
    compare_sets,
    flat_error,
    flat_step_time_s,
)
from trainscout.simulators.predictor.answer.flops import step_flops


@pytest.mark.parametrize("layout", [{"tp": 1, "sp": 0, "dp": 32}, {}])
def test_it_is_half_of_peak_and_the_all_reduces_of_tensor_parallelism(layout):
    job = replayable(**layout).job
    compute = step_flops(job).hardware / (64 * 0.5 * 989.4e12)
    # Four all-reduces of b s h in BF16 for 16 layers and 8 micro-batches, ring over two GPUs.
    message = 8192 * 4096 * 2
    communication = 0 if layout else 4 * 16 * 8 * message * 2 * (1 / 2) / 450e9
    assert flat_step_time_s(job) == pytest.approx(compute + communication)


def test_recomputation_repeats_the_forward_s_two():
    def communication(recompute):
        job = replayable(recompute=recompute).job
        return flat_step_time_s(job) - step_flops(job).hardware / (64 * 0.5 * 989.4e12)

    assert communication("full") == pytest.approx(1.5 * communication("none"))


def test_sets_are_compared_row_for_row():
    rows = [RUN, replace(RUN, id="other", measured_iter_s=2.5)]
    results = replay_rows(rows, declarations(), TwoSeconds(), lambda: None)
    peers = [
        PeerPrediction("cases", "run", "peer", 3.0),
        PeerPrediction("cases", "absent", "peer", 1.0),
    ]
    (found,) = compare_sets(results, peers).values()
    assert found.ours.n == found.flat_baseline.n == found.peers["peer"].n == 1
    assert found.ours.mean_abs_error == pytest.approx(0.5)
    assert found.peers["peer"].bias == pytest.approx(-0.25)
    assert found.flat_baseline.bias == pytest.approx(flat_error(results[0]))


def test_the_published_peer_predictions_are_of_43_24_and_24_cases():
    peers = read_peer_predictions()
    rows = {(one.peer, one.row_id) for one in peers}
    assert len(rows) == len(peers)
    assert sum(one.peer == "calculon" for one in peers) == 24
    assert sum(one.peer == "simumax" for one in peers) == 24 + 43
