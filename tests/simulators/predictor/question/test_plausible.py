"""Quantities in another unit are refused, with what was likely meant."""

from dataclasses import replace

import pytest

from tests.samples import CLUSTER, GPU, MODEL, TRAINING
from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.question import Question, check_plausible

QUESTION = Question(MODEL, GPU, CLUSTER, TRAINING)


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


def test_what_ships_is_plausible():
    named = load_catalogue()
    for gpu in named.gpus.values():
        check_plausible(replace(QUESTION, gpu=gpu))
    for cluster in named.clusters.values():
        check_plausible(replace(QUESTION, cluster=cluster))
    check_plausible(replace(QUESTION, cluster=replace(CLUSTER, num_nodes=1, nic_gbps=0)))
