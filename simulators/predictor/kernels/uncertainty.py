"""How far off a kernel price is likely to be, by class, on one GPU.

Two parts that do not know each other: what the formula leaves unexplained on rows it never saw
(``residuals`` in ``fitted/*.yaml``), and how much laboratories, software versions and boards
differ on the same shape. A GPU that borrows its coefficients adds what such a loan has been
seen to cost.
"""

from __future__ import annotations

import math

from trainscout.simulators.predictor.answer.prediction import Evidence
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.question.gpu import Gpu

from .choice import choose_attention, choose_gemm, grouped_evidence
from .coefficients import FittedGpu, fitted_gpus
from .streaming import streaming_classes

# Coefficients on loan: from the same die (H200's products within 3 % of H100's) or from another
# of the architecture or a neighbouring one (A100's on H100 9 %, on V100 14 %).
SAME_DIE = 0.03
ON_LOAN = 0.12
# Coefficients of the median architecture: left out of it, the fitted architectures are priced 11 %
# off their own fits (16-bit products, median), 18 % (8 bits), 20 % (attention forward).
OF_THE_MEDIAN = 0.20
# Classes whose share of bandwidth was measured, and those taken over from another class or GPU.
STREAMING_MEASURED = 0.10
STREAMING_ASSUMED = 0.30
DEFAULT_RESIDUAL = 0.10


def _combined(*parts: float) -> float:
    return round(math.sqrt(sum(part * part for part in parts)), 4)


def _loan(gpu: Gpu, fit: FittedGpu, evidence: Evidence) -> float:
    if fit.name == gpu.name:
        return 0.0
    if not fitted_gpus(gpu.architecture.name):
        return OF_THE_MEDIAN
    return SAME_DIE if evidence is Evidence.FITTED else ON_LOAN


def kernel_uncertainty(gpu: Gpu) -> dict[str, float]:
    """Typical relative error of one kernel's price (median size), by class.

    Classes: ``gemm``, ``gemm_fp8`` and ``gemm_fp4`` where the GPU has such, ``grouped_gemm``,
    ``attention_fwd``, ``attention_bwd``, and ``streaming_<kind>`` of every class.
    """
    campaigns = gpu.architecture.measurement_spread
    half = "bf16" if "bf16" in gpu.peak_flops else "fp16"
    errors: dict[str, float] = {}
    operands = (("gemm", half, "half"), ("gemm_fp8", "fp8", "fp8"), ("gemm_fp4", "fp4", "fp4"))
    for name, precision, key in operands:
        if precision not in gpu.peak_flops:
            continue
        choice = choose_gemm(gpu, precision)
        own = choice.fit.residuals.get(("gemm", key, ""), DEFAULT_RESIDUAL)
        errors[name] = _combined(own, campaigns, _loan(gpu, choice.fit, choice.evidence))
    residuals = {fit.name: fit.residuals for fit in fitted_gpus(gpu.architecture.name)}
    entry = ("grouped", "half", "fwd")
    own_grouped = residuals.get(gpu.name, {}).get(entry, DEFAULT_RESIDUAL)
    borrowed = grouped_evidence(gpu, Evidence.FITTED) is not Evidence.FITTED
    errors["grouped_gemm"] = _combined(errors["gemm"], own_grouped, ON_LOAN if borrowed else 0.0)
    try:
        attention = choose_attention(gpu, half)
    except InputError:
        attention = None
    for pass_ in ("fwd", "bwd"):
        if attention is not None:
            entry = ("attention", "half", pass_)
            own = attention.fit.residuals.get(entry, DEFAULT_RESIDUAL)
            loan = _loan(gpu, attention.fit, attention.evidence)
            errors[f"attention_{pass_}"] = _combined(own, campaigns, loan)
    for kind, coefficients in streaming_classes(gpu).items():
        own = STREAMING_MEASURED if coefficients.measured else STREAMING_ASSUMED
        errors[f"streaming_{kind}"] = own
    return errors
