import pytest

from trainscout.simulators.laboratory.published.page.fits import (
    KernelFit,
    collective_fit_errors,
    kernel_fits,
    overlap_residuals,
)
from trainscout.simulators.laboratory.published.page.headline import targets_of_kernels


def one(**changed):
    fields = {
        "gpu": "h100",
        "section": "gemm",
        "kernel": "gemm",
        "precision": "half",
        "state": "bursts",
        "split": "held out",
        "rows": 100,
        "median": 0.05,
        "p90": 0.1,
        "bias": 0.0,
    }
    return KernelFit(**{**fields, **changed})


@pytest.mark.parametrize(
    ("changed", "met"),
    [
        ({}, True),
        ({"median": 0.07}, False),
        ({"section": "attention", "median": 0.07}, True),
        ({"section": "attention_flash2", "median": 0.09}, False),
        ({"section": "attention_serving", "median": 0.09}, None),
        ({"section": "streaming", "precision": ""}, None),
        ({"precision": "tf32"}, None),
        ({"gpu": "gb300"}, None),
    ],
)
def test_a_fit_is_held_to_the_target_of_its_class(changed, met):
    assert one(**changed).met is met


def test_the_worst_pass_of_a_gpu_counts():
    fits = [
        one(section="attention", kernel="attention, fwd", median=0.02),
        one(section="attention_flash2", kernel="attention_flash2, bwd", median=0.09),
        one(section="attention", kernel="attention, bwd", median=0.03, gpu="b200"),
        one(section="streaming", precision=""),
    ]
    (target,) = targets_of_kernels(fits)
    assert target.reached == "h100 9.0%, b200 3.0%"
    assert target.met is False


def test_every_fitted_file_is_read():
    fits = kernel_fits()
    assert {"a100_80", "h100", "h200", "b200"} <= {fit.gpu for fit in fits}
    assert {"gemm", "attention", "grouped", "streaming"} <= {fit.section for fit in fits}
    assert all(fit.rows > 0 and 0 <= fit.median <= fit.p90 for fit in fits)


def test_clusters_that_were_not_fitted_to_are_predicted_worse():
    errors = collective_fit_errors()
    assert errors["left_out"]["all"] > errors["shipped"]["all"]
    assert errors["left_out"]["clusters"] == errors["shipped"]["clusters"]


def test_overlap_errors_are_of_every_predictor():
    for group in overlap_residuals().values():
        assert {"n", "by_time", "physical", "one factor"} == set(group)
