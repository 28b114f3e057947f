"""Quantities in another unit are refused, with what was likely meant."""

from dataclasses import replace

import pytest

from tests.samples import CLUSTER, GPU, MODEL, TRAINING
from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.predictor.question.cluster import MeasuredCollective
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.question import Question, check_plausible

QUESTION = Question(MODEL, GPU, CLUSTER, TRAINING)
_GOOD = MeasuredCollective("all_gather", 1, 8192, 1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("part", "field", "value", "meant"),
    [
        ("cluster", "nic_gbps", 400e9, "400"),
        ("cluster", "nic_gbps", 0.4, "400"),
        ("gpu", "memory_bytes", 80, "8e+10"),
        ("gpu", "memory_bandwidth_bytes_per_s", 3.35, "3.35e+12"),
        ("gpu", "nvlink_bytes_per_s", 450, "4.5e+11"),
        ("gpu", "price_usd_per_hour", 5000.0, "50"),
        ("training", "tokens", 300, "3e+11"),
        ("training", "global_batch_size", 4_194_304, "4096"),
    ],
)
def test_another_unit_is_recognised(part, field, value, meant):
    changed = replace(getattr(QUESTION, part), **{field: value})
    with pytest.raises(InputError) as refused:
        check_plausible(replace(QUESTION, **{part: changed}))
    assert refused.value.field == f"{part}.{field}"
    assert refused.value.nearest == meant


def test_peaks_are_named_by_their_precision():
    gpu = replace(GPU, peak_flops={"bf16": 989.4})
    with pytest.raises(InputError, match=r"gpu\.peak_flops\.bf16") as refused:
        check_plausible(replace(QUESTION, gpu=gpu))
    assert refused.value.nearest == "9.894e+14"


@pytest.mark.parametrize(
    ("nodes", "size", "gbs", "meant"),
    [
        (2, 2**30, 8 * 300, "bus bandwidth in GB/s, at most 400"),
        # Over one's own NICs, whatever NVLink carries.
        (2, 2**30, 8 * 60, "bus bandwidth in GB/s, at most 400"),
        (2, 1024, 80, "bytes, not KiB or MiB"),
    ],
)
def test_measured_collectives_in_another_unit_are_refused(nodes, size, gbs, meant):
    row = MeasuredCollective("all_gather", nodes, size, gbs, gbs, gbs)
    own = {"measured_collectives": "own.csv", "nic_gbps": 100}
    check_plausible(replace(QUESTION, cluster=replace(CLUSTER, **own, measured=(_GOOD,))))
    with pytest.raises(InputError, match="all_gather") as refused:
        check_plausible(replace(QUESTION, cluster=replace(CLUSTER, **own, measured=(_GOOD, row))))
    assert meant in refused.value.allowed


def test_sizes_that_tell_of_a_start_alone_are_refused():
    small = MeasuredCollective("all_gather", 2, 1024, 0.3, 0.3, 0.3)
    large = replace(small, bytes=2**30, bus_gbs=20, low_gbs=20, high_gbs=20)
    own = replace(CLUSTER, measured_collectives="own.csv", measured=(small,))
    with pytest.raises(InputError, match="tell of a call's start") as refused:
        check_plausible(replace(QUESTION, cluster=own))
    assert "1048576 bytes or more" in refused.value.allowed
    check_plausible(replace(QUESTION, cluster=replace(own, measured=(small, large))))


def test_what_ships_is_plausible():
    named = load_catalogue()
    for gpu in named.gpus.values():
        check_plausible(replace(QUESTION, gpu=gpu))
    for cluster in named.clusters.values():
        check_plausible(replace(QUESTION, cluster=cluster))
    check_plausible(replace(QUESTION, cluster=replace(CLUSTER, num_nodes=1, nic_gbps=0)))
