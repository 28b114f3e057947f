"""A user's own table: exact hits are measured, neighbours are corrected, strangers are not."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainscout.simulators.laboratory.kernels.measure import row_of
from trainscout.simulators.predictor.answer.prediction import Evidence
from trainscout.simulators.predictor.kernels.batch_prices import EVIDENCE_ORDER
from trainscout.simulators.predictor.kernels.measured import MeasuredTable, load_measured
from trainscout.simulators.predictor.kernels.prices import price_kernels
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.workload.ir import Gemm, GroupedGemm, Streaming

from .gpus import GPUS, attention, gemm

H100 = GPUS["h100"]


def seconds(*ops: object, table: MeasuredTable | None = None) -> np.ndarray:
    return price_kernels(H100, ops, table).seconds


def product_table(
    folder: Path, op: Gemm, time_s: float, gpu: str = "NVIDIA H100 SXM5", flag: str = "sustained;"
) -> MeasuredTable:
    row = {"gpu": gpu, "dtype": op.dtype, "m": op.m, "n": op.n, "k": op.k, "batch": op.batch}
    path = folder / "gemm.csv"
    pd.DataFrame([row | {"layout": op.layout, "time_us": time_s * 1e6, "flag": flag}]).to_csv(
        path, index=False
    )
    return load_measured(path)


def test_exact_hit_is_measured(tmp_path: Path) -> None:
    op = gemm(4096, 8192, 8192)
    table = product_table(tmp_path, op, 1e-3)
    prices = price_kernels(H100, [op, gemm(4096, 8192, 8192, layout="NN")], table)
    assert prices.seconds[0] == pytest.approx(1e-3, rel=1e-9)
    assert [EVIDENCE_ORDER[code] for code in prices.evidence] == [
        Evidence.MEASURED,
        Evidence.FITTED,
    ]
    assert np.all(prices.memory_bound <= 1.0)


def test_a_burst_is_slowed_to_the_power_limit(tmp_path: Path) -> None:
    op = gemm(4096, 8192, 8192)
    burst = product_table(tmp_path, op, 7e-4, flag="")
    priced = seconds(op, table=burst)[0]
    assert 7e-4 * 1.02 < priced < 7e-4 * 1.2


def test_correction_fades_with_distance(tmp_path: Path) -> None:
    op = gemm(4096, 8192, 8192)
    table = product_table(tmp_path, op, 1.5 * seconds(op)[0])
    # A twentieth of an octave, one octave and four octaves away.
    others = [gemm(4240, 8192, 8192), gemm(8192, 8192, 8192), gemm(65536, 8192, 8192)]
    ratios = seconds(*others, table=table) / seconds(*others)
    assert ratios[0] == pytest.approx(1.5, rel=0.01)
    assert ratios[1] == pytest.approx(1.5 ** np.exp(-1), rel=1e-3)
    assert ratios[2] == pytest.approx(1.0, abs=1e-4)
    codes = price_kernels(H100, others, table).evidence
    assert {EVIDENCE_ORDER[code] for code in codes} == {Evidence.FITTED}


def test_other_gpus_and_kernels_are_left_alone(tmp_path: Path) -> None:
    op = gemm(4096, 8192, 8192)
    elsewhere = product_table(tmp_path, op, 1.0, gpu="A100-SXM4-80GB")
    here = product_table(tmp_path, op, 1.0)
    ops = [op, attention(4096), Streaming("s", "optimizer", 10**9)]
    np.testing.assert_array_equal(seconds(*ops, table=elsewhere), seconds(*ops))
    np.testing.assert_array_equal(seconds(*ops, table=here)[1:], seconds(*ops)[1:])


def test_every_class(tmp_path: Path) -> None:
    attention_op = attention(4096, heads=32, kv_heads=8, batch=2)
    grouped = GroupedGemm("e", 8, 1024, 4096, 7168, "bf16")
    streaming = Streaming("s", "norm_fwd", 10**8)
    row = {"gpu": "H100-SXM5-80GB", "dtype": "bf16", "time_us": 5000.0, "flag": "sustained"}
    shape = {"batch": 2, "heads": 32, "kv_heads": 8, "seq_q": 4096, "seq_k": 4096}
    shape |= {"head_dim": 128, "head_dim_v": 128, "causal": 1, "pass": "fwd"}
    experts = {"groups": 8, "m_per_group": 1024, "n": 4096, "k": 7168, "stage": "fwd"}
    norm = {"op": "norm_fwd", "pass": "", "bytes": 10**8}
    for name, extra in (("attention", shape), ("experts", experts), ("norms", norm)):
        pd.DataFrame([row | extra]).to_csv(tmp_path / f"{name}.csv", index=False)
    prices = price_kernels(H100, [attention_op, grouped, streaming], load_measured(tmp_path))
    np.testing.assert_allclose(prices.seconds, 5e-3)
    assert not prices.evidence.any()
    old = price_kernels(
        H100,
        [replace(attention_op, kernel="flash2")],
        load_measured(tmp_path),
    )
    assert old.evidence.any()


@pytest.mark.parametrize("layout", ["TN", "NN", "NT"])
def test_what_was_measured_is_what_is_priced(tmp_path: Path, layout: str) -> None:
    """Tables give the forward product's dimensions for every pass of experts."""
    op = GroupedGemm("e", 8, 1024, 4096, 7168, "bf16", layout, accumulate=4 * (layout == "NT"))
    row = row_of(op, "h100", "bf16") | {"time_us": 5000.0, "flag": "sustained"}
    pd.DataFrame([row]).to_csv(tmp_path / "experts.csv", index=False)
    prices = price_kernels(H100, [op], load_measured(tmp_path))
    assert prices.seconds[0] == pytest.approx(5e-3)
    assert not prices.evidence.any()


def test_equal_content_is_one_table(tmp_path: Path) -> None:
    first = product_table(tmp_path, gemm(64, 64, 64), 1e-5)
    again = load_measured(tmp_path / "gemm.csv")
    assert first == again
    assert hash(first) == hash(again)
    assert first != product_table(tmp_path, gemm(64, 64, 64), 2e-5)


@given(
    m=st.integers(1, 20000),
    n=st.integers(1, 20000),
    k=st.integers(1, 20000),
    factor=st.floats(0.5, 3),
)
def test_correction_stays_between_one_and_what_was_measured(
    tmp_path_factory: pytest.TempPathFactory, m: int, n: int, k: int, factor: float
) -> None:
    near = gemm(4096, 4096, 4096)
    folder = tmp_path_factory.mktemp("table")
    table = product_table(folder, near, factor * seconds(near)[0])
    ratio = seconds(gemm(m, n, k), table=table)[0] / seconds(gemm(m, n, k))[0]
    assert min(1.0, factor) - 1e-9 <= ratio <= max(1.0, factor) + 1e-9


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no CSV tables"):
        load_measured(tmp_path)
    with pytest.raises(InputError, match="cannot be read"):
        load_measured(tmp_path / "missing.csv")
    (tmp_path / "b.csv").write_text("gpu,benchmark,bytes,gbps\nH100,copy,1,1\n")
    with pytest.raises(InputError, match="holds bandwidth"):
        load_measured(tmp_path)
