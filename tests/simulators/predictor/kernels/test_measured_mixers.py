"""Kernels of mixers with a state, beside what one H100 took for them (``h100_kernels.csv``), and
others' timings of delta rules (``delta_rules.csv``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy.optimize import least_squares

import trainscout.simulators.laboratory
from tests.simulators.jobs import LLAMA, make_job
from tests.simulators.predictor.kernels.gpus import GPUS
from trainscout.simulators.predictor.answer.prediction import Evidence
from trainscout.simulators.predictor.kernels.batch_prices import EVIDENCE_ORDER
from trainscout.simulators.predictor.kernels.prices import price_kernels
from trainscout.simulators.predictor.kernels.streaming import LAUNCH_FLOOR_S
from trainscout.simulators.predictor.question.layers import DeltaNet, Mamba2, Mixer
from trainscout.simulators.predictor.workload.ir import Gemm, Streaming, kernel_flops
from trainscout.simulators.predictor.workload.model.layer import mixer_parts
from trainscout.simulators.predictor.workload.shard import Shard

DATA = Path(trainscout.simulators.laboratory.__file__).parent / "data"
H100 = GPUS["h100"]


def ssd(of: dict[str, int]) -> Mixer:
    inner = (of["heads"], of["head_dim"], of["state"], of["groups"])
    return Mixer(mamba2=Mamba2(*inner, chunk=of["chunk"]))


def conv(of: dict[str, int]) -> Mixer:
    """Channels of inputs and of both of their projections of one state."""
    return Mixer(mamba2=Mamba2(heads=(of["channels"] - 256) // 64, head_dim=64, state=128))


def delta(of: dict[str, int]) -> Mixer:
    return Mixer(delta=DeltaNet(of["k_heads"], of["v_heads"], k_dim=128, v_dim=128))


# What was measured, the class that prices it, and the mixer it is of.
MEASURED: dict[str, tuple[str, Callable[[dict[str, int]], Mixer]]] = {
    "ssd": ("scan", ssd),
    "cuda_conv": ("conv", conv),
}
CASES = [(name, pass_) for name in MEASURED for pass_ in ("fwd", "bwd")]


class Rows:
    """Rows of one kernel and pass: what was measured, computed and moved."""

    def __init__(self, kernel: str, pass_: str) -> None:
        self.gpu = H100 if kernel in MEASURED else GPUS[kernel]
        table = pd.read_csv(
            DATA / ("h100_kernels.csv" if kernel in MEASURED else "delta_rules.csv")
        )
        of = table["kernel" if kernel in MEASURED else "gpu"]
        rows = table[(of == kernel) & (table["pass"] == pass_)]
        self.kind, build = MEASURED.get(kernel, ("delta", delta))
        self.kind += f"_{pass_}"
        self.measured_s = rows["time_us"].to_numpy(float) * 1e-6
        self.apart = rows["apart"].to_numpy(bool)
        self.ops = [self._ops(build, shape) for shape in rows["shape"]]

    def _ops(self, build: Callable[[dict[str, int]], Mixer], shape: str) -> list[Gemm | Streaming]:
        of = {name: int(value) for name, value in (part.split("=") for part in shape.split(";"))}
        mixer = build(of)
        model = replace(
            LLAMA,
            layers=f"{LLAMA.num_layers}*x/none",
            kinds={"x": mixer},
            sequence_length=of.get("seq") or of["tokens"],
        )
        job = make_job(model, micro_batch=of.get("batch", 1))
        parts = mixer_parts(Shard.of(job), mixer)
        forward = self.kind.endswith("_fwd")
        return [
            op
            for part in parts
            for op in (part.forward if forward else part.backward)
            if (isinstance(op, Gemm) and op.within == self.kind)
            or (isinstance(op, Streaming) and op.kind == self.kind)
        ]

    def predicted_s(self) -> NDArray[np.float64]:
        return np.array([price_kernels(self.gpu, ops).seconds.sum() for ops in self.ops])

    def parts_s(self) -> NDArray[np.float64]:
        """Seconds at the whole peak, at the whole bandwidth, and of launches, a row of each."""
        peak, bandwidth = self.gpu.peak("bf16"), self.gpu.memory_bandwidth_bytes_per_s
        return np.array(
            [
                (
                    sum(kernel_flops(op) for op in ops if isinstance(op, Gemm)) / peak,
                    sum(op.bytes for op in ops if isinstance(op, Streaming)) / bandwidth,
                    sum(op.launches for op in ops if isinstance(op, Streaming)) * LAUNCH_FLOOR_S,
                )
                for ops in self.ops
            ]
        )


@pytest.mark.parametrize(("kernel", "pass_"), CASES)
def test_the_shares_are_the_least_squares_of_the_rows_to_fit(kernel: str, pass_: str) -> None:
    rows = Rows(kernel, pass_)
    products, moved, launches = rows.parts_s()[~rows.apart].T
    measured_s = rows.measured_s[~rows.apart]
    if not products.any():
        (inverse,) = least_squares(
            lambda inverse: (inverse[0] * moved + launches) / measured_s - 1, [1.5]
        ).x
        assert H100.architecture.streaming[rows.kind].value == pytest.approx(1 / inverse, rel=0.01)
        return
    found = least_squares(
        lambda inverses: (
            (inverses[0] * products + inverses[1] * moved + launches) / measured_s - 1
        ),
        [5.0, 1.5],
        bounds=(0, np.inf),
    ).x
    assert H100.architecture.products[rows.kind].value == pytest.approx(1 / found[0], rel=0.01)
    assert H100.architecture.streaming[rows.kind].value == pytest.approx(1 / found[1], rel=0.01)


@pytest.mark.parametrize(("kernel", "pass_"), CASES)
def test_rows_kept_apart_are_priced_as_measured(kernel: str, pass_: str) -> None:
    rows = Rows(kernel, pass_)
    errors = (rows.predicted_s() / rows.measured_s - 1)[rows.apart]
    assert len(errors) >= len(rows.apart) // 3
    assert np.abs(errors).mean() < 0.08
    assert np.abs(errors).max() < 0.2
    assert abs(errors.mean()) < 0.07


def test_what_one_gpu_measured_is_fitted_on_its_architecture_alone() -> None:
    ops = [op for rows in (Rows("ssd", "fwd"), Rows("ssd", "bwd")) for op in rows.ops[0]]
    for name, evidence in (("h100", Evidence.FITTED), ("b200", Evidence.ESTIMATED)):
        found = price_kernels(GPUS[name], ops).evidence
        assert {EVIDENCE_ORDER[code] for code in found} == {evidence}


DELTA_CASES = [(gpu, pass_) for gpu in ("h200", "gb200") for pass_ in ("fwd", "bwd")]


@pytest.mark.parametrize(("gpu", "pass_"), DELTA_CASES)
def test_delta_rules_take_a_multiple_of_the_scans_shares(gpu: str, pass_: str) -> None:
    """Heads of one size alone were timed, so products and bytes cannot be told apart."""
    rows, of = Rows(gpu, pass_), GPUS[gpu].architecture
    products, moved, launches = rows.parts_s()[~rows.apart].T
    scan = products / of.products[f"scan_{pass_}"].value
    scan += moved / of.streaming[f"scan_{pass_}"].value
    measured_s = rows.measured_s[~rows.apart]
    (times,) = least_squares(lambda times: (times[0] * scan + launches) / measured_s - 1, [1]).x
    for shares in (of.products, of.streaming):
        found = shares[f"delta_{pass_}"].value * times
        assert found == pytest.approx(shares[f"scan_{pass_}"].value, rel=0.01)


@pytest.mark.parametrize(("gpu", "pass_"), DELTA_CASES)
def test_delta_rules_kept_apart_are_priced_as_measured(gpu: str, pass_: str) -> None:
    rows = Rows(gpu, pass_)
    errors = (rows.predicted_s() / rows.measured_s - 1)[rows.apart]
    assert np.abs(errors).mean() < 0.1
    assert abs(errors.mean()) < 0.05
