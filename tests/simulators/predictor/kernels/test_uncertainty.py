"""Kernel uncertainty: every class has one, loans widen it, no figure is silly."""

import pytest

from trainscout.simulators.predictor.kernels.uncertainty import kernel_uncertainty

from .gpus import GPUS


@pytest.mark.parametrize("gpu", sorted(GPUS))
def test_every_gpu(gpu: str) -> None:
    errors = kernel_uncertainty(GPUS[gpu])
    assert {"gemm", "grouped_gemm", "attention_fwd", "attention_bwd"} <= set(errors)
    assert ("gemm_fp8" in errors) == ("fp8" in GPUS[gpu].peak_flops)
    assert all(0.02 <= error <= 0.35 for error in errors.values())


@pytest.mark.parametrize(
    ("surer", "less_sure", "kind"),
    [
        ("h100", "h800", "gemm"),
        ("h800", "h20", "gemm"),
        ("a100_80", "b200", "gemm"),
        ("a100_80_pcie", "a100_80", "grouped_gemm"),
        ("a100_80", "v100_32", "attention_fwd"),
        ("h200", "v100_32", "streaming_norm_bwd"),
    ],
)
def test_loans_and_campaigns_widen(surer: str, less_sure: str, kind: str) -> None:
    sure, unsure = (kernel_uncertainty(GPUS[name])[kind] for name in (surer, less_sure))
    assert sure < unsure
