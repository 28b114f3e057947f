"""Kernels without fits: the median architecture, held to the architectures that have some."""

from __future__ import annotations

from statistics import median

import numpy as np
import pytest

from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.predictor.answer.prediction import Evidence
from trainscout.simulators.predictor.kernels import choice, gemm
from trainscout.simulators.predictor.kernels.choice import median_architecture, median_of
from trainscout.simulators.predictor.kernels.coefficients import fitted_gpus
from trainscout.simulators.predictor.kernels.uncertainty import OF_THE_MEDIAN, kernel_uncertainty
from trainscout.simulators.predictor.question.gpu import Gpu

GPUS = load_catalogue().gpus
SIZES = np.array(
    [
        (tokens, n, k, 1)
        for tokens in (1024, 4096, 8192)
        for n, k in ((4096, 4096), (12288, 4096), (4096, 14336), (28672, 8192))
    ]
)


def _seconds(gpu: Gpu) -> np.ndarray:
    gemm._machine.cache_clear()
    choice.sustained_flops_per_s.cache_clear()
    no = np.zeros(len(SIZES), dtype=bool)
    return gemm.price_gemms(gpu, "fp16", SIZES, no, no, no)[0]


def test_left_out_architectures_are_priced_within_what_is_declared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    errors: dict[str, list[float]] = {}
    for fit in fitted_gpus():
        if "half" not in fit.gemm:
            continue
        own = _seconds(GPUS[fit.name])
        others = [each for each in fitted_gpus() if each.architecture != fit.architecture]
        with monkeypatch.context() as patched:
            patched.setattr(choice, "family_of", lambda gpu, left=others: (median_of(left, gpu),))
            ratio = _seconds(GPUS[fit.name]) / own
        errors.setdefault(fit.architecture, []).append(float(np.median(abs(ratio - 1))))
    _seconds(GPUS["h100"])
    assert len(errors) >= 5
    assert 0.0 < median(median(each) for each in errors.values()) <= OF_THE_MEDIAN


def test_nothing_of_an_unfitted_gpu_counts_as_fitted() -> None:
    gpu = GPUS["l40s"]
    for precision in ("bf16", "fp16", "fp8", "tf32", "fp32"):
        chosen = choice.choose_gemm(gpu, precision)
        assert chosen.evidence is Evidence.ESTIMATED
        assert chosen.fit.name == median_architecture(gpu).name
    attention = choice.choose_attention(gpu, "bf16", "flash2")
    assert (attention.fit.architecture, attention.evidence) == ("ampere", Evidence.ESTIMATED)
    assert kernel_uncertainty(gpu)["gemm"] > kernel_uncertainty(GPUS["h200"])["gemm"]


def test_kernels_without_fits_are_as_the_makers_others() -> None:
    """MI300X has fits of attention alone: its products reach MI355X's shares of the peak, and no
    other maker's GPU takes AMD's into its median."""
    products = choice.choose_gemm(GPUS["mi300x"], "bf16")
    assert products.evidence is Evidence.ESTIMATED
    assert products.coefficients == choice.choose_gemm(GPUS["mi355x"], "bf16").coefficients
    assert choice.choose_attention(GPUS["mi325x"], "bf16").fit.name == "mi300x"
    of_nvidia = [fit for fit in fitted_gpus() if fit.vendor == "nvidia" and fit.attention]
    found = median_architecture(GPUS["rtx4090"]).attention
    assert found == median_of(of_nvidia, GPUS["rtx4090"]).attention


def test_shares_are_of_the_gpus_own_rates() -> None:
    """A GPU with twice the rates everywhere takes half the time, but for launches."""
    gpu = GPUS["mi300x"]
    rates = {name: 2 * rate for name, rate in gpu.peak_flops.items()}
    from dataclasses import replace

    twice = replace(
        gpu,
        name="twice",
        peak_flops=rates,
        memory_bandwidth_bytes_per_s=2 * gpu.memory_bandwidth_bytes_per_s,
    )
    ratio = _seconds(gpu) / _seconds(twice)
    assert (ratio > 1.5).all()
    assert (ratio <= 2.0).all()
