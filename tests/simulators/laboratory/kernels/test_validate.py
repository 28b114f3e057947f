"""The validator: nothing is dropped silently, figures are what they say, JSON is JSON."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.simulators.predictor.kernels.gpus import GPUS
from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.laboratory.kernels.validate import main
from trainscout.simulators.predictor.kernels.attention import price_attention
from trainscout.simulators.predictor.kernels.gemm import price_gemms
from trainscout.simulators.predictor.kernels.measured_rows import attention_kernel, match_gpu
from trainscout.simulators.predictor.kernels.prices import price_kernels
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.workload.ir import GroupedGemm

GEMM_COLUMNS = ["gpu", "dtype", "m", "n", "k", "batch", "layout", "impl", "time_us", "flag"]


def run(tmp_path: Path, *tables: pd.DataFrame) -> dict[str, Any]:
    paths = []
    for index, table in enumerate(tables):
        paths.append(str(tmp_path / f"table{index}.csv"))
        table.to_csv(paths[-1], index=False)
    out = tmp_path / "out.json"
    main([*paths, "--json", str(out)])
    report: dict[str, Any] = json.loads(out.read_text())
    return report


def gemm_row(gpu: str, flag: str, factor: float = 1.0, **changes: Any) -> list[Any]:
    row: dict[str, Any] = {"dtype": "bf16", "m": 4096, "n": 8192, "k": 8192, "batch": 1}
    row |= {"layout": "TN", "impl": "x"} | changes
    no = np.zeros(1, dtype=bool)
    sizes = np.array([[row["m"], row["n"], row["k"], row["batch"]]])
    seconds, _, _ = price_gemms(GPUS["h200"], "bf16", sizes, no, no, no)
    values = {"gpu": gpu, "time_us": seconds[0] * 1e6 * factor, "flag": flag} | row
    return [values[name] for name in GEMM_COLUMNS]


def test_every_row_is_accounted_for(tmp_path: Path) -> None:
    rows = [
        gemm_row("H200-SXM-141GB", "sustained;"),
        gemm_row("H200-SXM-141GB", "sustained;", factor=2.0),
        gemm_row("H200-SXM-141GB", "sustained;outlier;"),
        gemm_row("MI250X", "sustained;"),
        gemm_row("H200-SXM-141GB", "sustained;", dtype="nvfp4"),
        gemm_row("A100(form n/s)", "sustained;"),
    ]
    report = run(tmp_path, pd.DataFrame(rows, columns=GEMM_COLUMNS))
    assert set(report) == {
        *("overall", "by_class", "by_gpu", "by_size_band", "by_dtype", "rows", "skipped")
    }
    assert report["overall"]["n"] == len(report["rows"]) == 3
    assert report["overall"]["skipped"] == len(report["skipped"]) == 3
    errors = {row["id"]: row["error"] for row in report["rows"]}
    assert errors["table0:2"] == pytest.approx(0.0, abs=1e-5)
    assert errors["table0:3"] == pytest.approx(-0.5, abs=1e-5)
    reasons = {row["id"]: row["reason"] for row in report["skipped"]}
    assert "outlier" in reasons["table0:4"]
    assert "is not declared" in reasons["table0:5"]
    assert "is not supported by h200" in reasons["table0:6"]
    stated = next(row["assumptions"] for row in report["rows"] if row["id"] == "table0:7")
    assert any("form factor" in text for text in stated)
    for row in report["rows"]:
        assert set(row) == {"id", "measured", "predicted", "error", "assumptions"}
        assert row["error"] == pytest.approx(row["predicted"] / row["measured"] - 1, abs=1e-4)


@pytest.mark.parametrize("size", ["", "0", "-5", "inf", "1e300", "1e15", "2147483647"])
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_rows_without_a_size_are_not_predicted(tmp_path: Path, size: str) -> None:
    row = gemm_row("H200-SXM-141GB", "sustained;")
    rows = pd.DataFrame([row, row], columns=GEMM_COLUMNS).astype({"m": object})
    rows.loc[0, "m"] = size
    report = run(tmp_path, rows)
    assert [each["id"] for each in report["skipped"]] == ["table0:2"]
    assert "size" in report["skipped"][0]["reason"]
    assert [each["error"] for each in report["rows"]] == pytest.approx([0.0], abs=1e-5)


@pytest.mark.parametrize("column", ["m", "time_us"])
def test_text_in_a_cell_costs_its_row_only(tmp_path: Path, column: str) -> None:
    row = gemm_row("H200-SXM-141GB", "sustained;")
    rows = pd.DataFrame([row] * 3, columns=GEMM_COLUMNS).astype({column: object})
    rows.loc[1, column] = "about 40"
    report = run(tmp_path, rows)
    assert report["skipped"] == [{"id": "table0:3", "reason": f"has 'about 40' as {column}"}]
    assert [each["error"] for each in report["rows"]] == pytest.approx([0.0] * 2, abs=1e-5)


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_causal_may_be_true_or_false(tmp_path: Path) -> None:
    spelt = ["1", "0", "True", "False", "true", "maybe", "7", ""]
    shape = {"batch": 1, "heads": 64, "kv_heads": 64, "seq_q": 4096, "seq_k": 4096}
    shape |= {"head_dim": 128, "head_dim_v": 128, "gpu": "H100-SXM", "dtype": "bf16"}
    shape |= {"pass": "fwd", "impl": "FA3", "time_us": 900.0}
    report = run(tmp_path, pd.DataFrame([shape | {"causal": each} for each in spelt]))
    predicted = [row["predicted"] for row in report["rows"]]
    assert predicted == [predicted[position] for position in (0, 1, 0, 1, 0)]
    assert predicted[0] < predicted[1]
    assert [row["reason"] for row in report["skipped"]] == [
        "has 'maybe' as causal",
        *["has a causal that is neither 0 nor 1"] * 2,
    ]
    alone = run(tmp_path, pd.DataFrame([shape | {"causal": True}]))
    assert [row["predicted"] for row in alone["rows"]] == predicted[:1]


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_rates_that_are_none_are_not_predicted(tmp_path: Path) -> None:
    row = {"gpu": "H200-SXM-141GB", "benchmark": "copy", "bytes": 10**9}
    rates = ("", "0", "fast", "4000")
    report = run(tmp_path, pd.DataFrame([row | {"gbps": rate} for rate in rates]))
    assert [row["reason"] for row in report["skipped"]] == [
        *["has no positive rate"] * 2,
        "has 'fast' as gbps",
    ]
    assert report["overall"]["n"] == 1


def test_tables_without_rows_are_refused_unless_another_has_some(tmp_path: Path) -> None:
    empty = pd.DataFrame([], columns=GEMM_COLUMNS)
    with pytest.raises(InputError, match=r"tables=.*table0\.csv: hold no rows"):
        run(tmp_path, empty)
    assert not (tmp_path / "out.json").exists()
    full = pd.DataFrame([gemm_row("H200-SXM-141GB", "sustained;")], columns=GEMM_COLUMNS)
    assert run(tmp_path, empty, full)["overall"]["n"] == 1


def test_the_measured_times_are_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    pd.DataFrame([gemm_row("H200", "")], columns=GEMM_COLUMNS).to_csv(path, index=False)
    before = path.read_text()
    with pytest.raises(InputError, match="same file"):
        main([str(path), "--json", str(path)])
    assert path.read_text() == before


def test_a_reader_that_leaves_ends_the_output_quietly(tmp_path: Path) -> None:
    path, out = tmp_path / "t.csv", tmp_path / "out.json"
    pd.DataFrame([gemm_row("H200", "")], columns=GEMM_COLUMNS).to_csv(path, index=False)
    reading, writing = os.pipe()
    os.close(reading)
    command = [
        sys.executable,
        "-m",
        "trainscout",
        "kernels",
        "validate",
        str(path),
        "--json",
        str(out),
    ]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, timeout=120)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(out.read_text())["overall"]["n"] == 1


@pytest.mark.parametrize("moved", ["0", "-4", "1e300", "1e15"])
def test_bytes_that_are_none_are_not_predicted(tmp_path: Path, moved: str) -> None:
    row = {"gpu": "H200-SXM-141GB", "op": "add", "pass": "fwd", "dtype": "bf16", "bytes": moved}
    report = run(tmp_path, pd.DataFrame([row | {"time_us": 9.0}]))
    assert (report["overall"]["n"], report["overall"]["skipped"]) == (0, 1)


def test_bursts_and_sustained_runs_are_told_apart(tmp_path: Path) -> None:
    rows = [gemm_row("H200-SXM-141GB", flag) for flag in ("sustained;", "")]
    report = run(tmp_path, pd.DataFrame(rows, columns=GEMM_COLUMNS))
    sustained, burst = (row["predicted"] for row in report["rows"])
    assert burst < 0.95 * sustained


def test_own_ids(tmp_path: Path) -> None:
    rows = [gemm_row("H200-SXM-141GB", "sustained;", m=64 * (i + 1)) for i in range(4)]
    own = [f"row-{i}" for i in range(4)]
    report = run(tmp_path, pd.DataFrame(rows, columns=GEMM_COLUMNS).assign(id=own))
    assert [row["id"] for row in report["rows"]] == own


def test_all_classes(tmp_path: Path) -> None:
    sizes = np.array([[1, 64, 64, 4096, 4096, 128, 128, 1]])
    flash, backward = (
        price_attention(GPUS["h100"], "bf16", name, sizes, sustained=False)[0][0]
        for name in ("fwd", "bwd")
    )
    shape = {"batch": 1, "heads": 64, "kv_heads": 64, "seq_q": 4096, "seq_k": 4096}
    shape |= {"head_dim": 128, "head_dim_v": 128, "causal": 1, "gpu": "H100-SXM", "dtype": "bf16"}
    attentions = pd.DataFrame(
        [
            shape | {"pass": "fwd", "impl": "FA3", "time_us": flash * 1e6},
            shape | {"pass": "fwd+bwd", "impl": "FA3", "time_us": (flash + backward) * 1e6},
            shape | {"pass": "fwd", "impl": "FA2", "time_us": flash * 1e6},
            shape | {"pass": "fwd", "impl": "PyTorch", "time_us": flash * 1e6},
        ]
    )
    grouped_op = GroupedGemm("e", 40, 616, 3072, 5120, "bf16")
    grouped_s = price_kernels(GPUS["b200"], [grouped_op]).seconds[0]
    experts = pd.DataFrame(
        {
            "gpu": ["B200-SXM"],
            "dtype": "bf16",
            "groups": 40,
            "m_per_group": 616.0,
            "n": 3072,
            "k": 5120,
            "stage": "fwd",
            "impl": "TE",
            "time_us": grouped_s * 1e6,
        }
    )
    norms = pd.DataFrame(
        {
            "gpu": "H200",
            "op": ["rms_norm", "graph:linear", "mystery"],
            "pass": "fwd",
            "dtype": "bf16",
            "bytes": 10**9,
            "time_us": 280.0,
            "impl": "cudnn",
        }
    )
    report = run(tmp_path, attentions, experts, norms)
    assert report["by_class"]["attention_fwd"]["median_abs_error"] == pytest.approx(0, abs=1e-4)
    assert report["by_class"]["attention_fwd+bwd"]["median_abs_error"] < 1e-4
    assert report["by_class"]["attention_fwd_flash2"]["bias"] > 0.4
    assert report["by_class"]["grouped_gemm_fwd"]["median_abs_error"] == pytest.approx(0, abs=1e-4)
    assert report["by_class"]["streaming_norm_fwd"]["n"] == 1
    assert report["overall"]["skipped"] == 3


@pytest.mark.parametrize(
    ("name", "declared"),
    [
        ("H100-SXM5-80GB", "h100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("H100-96GB-HBM2e-500W", "h100_96_hbm2e"),
        ("A100-PCIE-80GB", "a100_80_pcie"),
        ("NVIDIA A100-SXM4-40GB", "a100_40"),
        ("H20", "h20"),
        ("H200-SXM-141GB", "h200"),
        ("GB200", "gb200"),
        ("B300-SXM", "b300"),
        ("V100-SXM2", "v100_32"),
        ("h800", "h800"),
        ("MI250X", ""),
        ("AMD Instinct MI300X", "mi300x"),
        ("H100-PCIE", "h100_pcie"),
        ("NVIDIA H100 NVL", "h100_nvl"),
        ("A100-PCIE-40GB", "a100_40_pcie"),
        ("RTX-A6000", "a6000"),
        ("Tesla V100-SXM2-16GB", "v100_16"),
        ("RTX4090", "rtx4090"),
        ("L40S", "l40s"),
        ("L4", ""),
        ("A100-SXM4-80GB", "a100_80"),
        ("A800", "a800_80"),
        ("GH200 96GB", "gh200"),
        ("V100-PCIE-32GB", "v100_32"),
        ("A100/H100 x4", ""),
    ],
)
def test_gpu_names(name: str, declared: str) -> None:
    assert match_gpu(name, load_catalogue().gpus)[0] == declared


@pytest.mark.parametrize(
    ("implementation", "kernel"),
    [
        ("FA2", "flash2"),
        ("FA2(2.7.4,not sm100-tuned)", "flash2"),
        ("pyt_flash_attention", "flash2"),
        ("FA3", "flash"),
        ("cudnn", "flash"),
        ("TE/flash-attn", "flash"),
        ("vllm-0.24.0/vllm_flash_attn_fa3", "serving"),
        ("trtllm-1.3.0rc20/torch_flow", "serving_trtllm"),
        ("PyTorch", ""),
        ("pyt_math", ""),
        ("", "flash"),
    ],
)
def test_attention_kernels(implementation: str, kernel: str) -> None:
    assert attention_kernel(implementation) == kernel


def test_an_output_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    pd.DataFrame([gemm_row("H200", "")], columns=GEMM_COLUMNS).to_csv(path, index=False)
    with pytest.raises(InputError, match="existing place"):
        main([str(path), "--json", "no/where/x.json"])
