"""Efficiency against the smallest size, and the part that grew."""

import pytest

from tests.planning.fakes import point
from trainscout.planning.scaling import scaling_curves


def test_perfect_scaling_needs_no_reason():
    (curve,) = scaling_curves([point(32, 0.5, compute=0.5), point(16, 1.0, compute=1.0)])
    assert [size.point.num_gpus for size in curve.points] == [16, 32]
    assert [size.efficiency for size in curve.points] == pytest.approx([1.0, 1.0])
    assert [size.part for size in curve.points] == [None, None]


def test_the_part_whose_gpu_time_grew_most_is_the_reason():
    sizes = [
        point(16, 1.0, compute=0.9, bubble=0.1),
        # Twice the GPUs: compute in proportion, a bubble of twice its GPU time, and a new part.
        point(32, 0.65, compute=0.45, bubble=0.1, dp_communication=0.1),
    ]
    (curve,) = scaling_curves(sizes)
    bent = curve.points[1]
    assert bent.efficiency == pytest.approx(0.5 / 0.65)
    # GPU-seconds grew by 1.6 for the bubble and 3.2 for communication.
    assert bent.part == "dp_communication"
    assert bent.share_of_growth == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("pp", "micro_batches", "limited"),
    [(4, 15, True), (4, 16, False), (1, 1, True), (1, 2, False)],
)
def test_too_few_micro_batches_are_a_batch_limit(pp, micro_batches, limited):
    sizes = [
        point(16, 1.0),
        point(32, 0.7, pp=pp, micro_batches=micro_batches, compute=0.5, bubble=0.2),
    ]
    (curve,) = scaling_curves(sizes)
    assert curve.points[1].batch_limited is limited


def test_clusters_have_curves_of_their_own_and_one_size_has_none():
    points = [point(16), point(32, 0.5), point(16, cluster="there")]
    assert [curve.cluster for curve in scaling_curves(points)] == ["here"]
