"""The fitting command on a small table it can check, and what it refuses."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from tests.simulators.predictor.kernels.gpus import GPUS
from trainscout.simulators.laboratory.kernels import fit_gemm
from trainscout.simulators.laboratory.kernels.fit import main
from trainscout.simulators.predictor.kernels.attention import price_attention
from trainscout.simulators.predictor.kernels.coefficients import fitted_gpu_from_dict, fitted_gpus
from trainscout.simulators.predictor.kernels.gemm import price_gemms
from trainscout.simulators.predictor.question.errors import InputError


def products(sustained: bool) -> pd.DataFrame:
    """Times of a GPU that is exactly 1.3x slower than the shipped H200 model."""
    sides = [512, 1024, 2048, 4096, 8192]
    shapes = np.array([(m, n, k, 1) for m in sides for n in sides for k in sides])
    no = np.zeros(len(shapes), dtype=bool)
    seconds, _, _ = price_gemms(GPUS["h200"], "bf16", shapes, no, no, no, sustained)
    rows = pd.DataFrame(shapes, columns=["m", "n", "k", "batch"])
    flag = "sustained;" if sustained else ""
    return rows.assign(
        gpu="NVIDIA H200 141GB", dtype="bf16", layout="TN", time_us=seconds * 1.3e6, flag=flag
    )


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "mine.csv.gz"
    pd.concat([products(sustained=False), products(sustained=True)]).to_csv(path, index=False)
    return path


def test_recovers_unseen_shapes_and_power(table: Path, tmp_path: Path) -> None:
    main([str(table), "--source", "synthetic", "--output", str(tmp_path)])
    content = yaml.safe_load((tmp_path / "h200.yaml").read_text())
    part = content["gemm"]["half"]
    assert part["residuals"]["held_out"]["median"] < 0.05
    assert str(table) not in part["command"]
    fitted = fitted_gpu_from_dict(content)
    assert fitted.gemm["half"].launch_s > 0
    shipped = next(fit for fit in fitted_gpus() if fit.name == "h200").sustained_fraction["half"]
    assert fitted.sustained_fraction["half"] == pytest.approx(shipped / 1.3, rel=0.05)


@pytest.fixture
def one_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fits of which nothing but their place matters need not be the best of six."""
    monkeypatch.setattr(fit_gemm, "EFFICIENCY_STARTS", (0.75,))
    monkeypatch.setattr(fit_gemm, "EPILOGUE_STARTS", (1e-12,))


@pytest.mark.usefixtures("one_start")
def test_prints_without_output(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(table), "--where", "flag=sustained;"])
    printed = capsys.readouterr().out
    assert "h200 gemm bf16" in printed
    assert "tile_efficiency" in printed


def attention_rows() -> pd.DataFrame:
    """Times of the shipped H100 model: FlashAttention-2's forward, the newest kernels' passes."""
    columns = ["batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim", "head_dim_v", "causal"]
    shapes = np.array(
        [
            (batch, 16, 16, seq, seq, dim, dim, causal)
            for batch in (1, 4)
            for seq in (1024, 2048, 4096, 8192)
            for dim in (64, 128)
            for causal in (0, 1)
        ]
    )
    parts = []
    for impl, kernel, pass_ in (
        ("FA2", "flash2", "fwd"),
        ("FA3", "flash", "fwd"),
        ("FA3", "flash", "bwd"),
    ):
        seconds, _, _ = price_attention(
            GPUS["h100"], "bf16", pass_, shapes, kernel, sustained=False
        )
        rows = pd.DataFrame(shapes, columns=columns)
        parts.append(rows.assign(impl=impl, time_us=seconds * 1e6, **{"pass": pass_}))
    return pd.concat(parts).assign(gpu="H100-SXM5-80GB", dtype="bf16")


def fit_of(rows: pd.DataFrame, folder: Path) -> dict[str, Any]:
    table = folder / "attention.csv"
    rows.to_csv(table, index=False)
    main([str(table), "--output", str(folder)])
    content: dict[str, Any] = yaml.safe_load((folder / "h100.yaml").read_text())
    return content


@pytest.fixture(scope="module")
def attention(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What is fitted to ``attention_rows``."""
    return fit_of(attention_rows(), tmp_path_factory.mktemp("attention"))


def test_attention_generations_are_kept_apart(attention: dict[str, Any]) -> None:
    for section, passes in (("attention", {"fwd", "bwd"}), ("attention_flash2", {"fwd"})):
        report = attention[section]["half"]["residuals"]["cross_validated"]
        assert set(report) == passes
        assert all(figures["median"] < 0.05 for figures in report.values())


def test_deterministic_backward_passes_are_no_measure_of_training(
    attention: dict[str, Any], tmp_path: Path
) -> None:
    rows = attention_rows()
    newest = rows[rows["impl"] == "FA3"].assign(flag="")
    again = newest[newest["pass"] == "bwd"].assign(flag="deterministic;")
    slower = again.assign(time_us=again["time_us"] * 1.2)
    both = fit_of(pd.concat([newest, slower]), tmp_path)
    found, expected = (each["attention"]["half"]["coefficients"] for each in (both, attention))
    assert found == expected


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        (["--where", "gpu=none"], "could be fitted"),
        (["--output", "no/such/folder"], "is not an existing folder"),
        (["--where", "device=mine"], "names no column"),
        (["--serve", "h201"], "is not declared"),
        (["--gpus", "no/such/folder"], "holds no GPU declaration"),
    ],
)
def test_refusals(table: Path, rest: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        main([str(table), *rest])


def test_unknown_columns_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("m,n,k,time_us\n1,1,1,1\n")
    with pytest.raises(InputError, match="has the columns of no kernel class"):
        main([str(path)])


@pytest.mark.usefixtures("one_start")
def test_text_among_numbers_costs_its_row(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = pd.read_csv(table).astype({"m": object})
    rows.loc[0, "m"] = "wide"
    path = tmp_path / "text.csv"
    rows.to_csv(path, index=False)
    main([str(path)])
    assert f"\n    rows: {len(rows) - 1}\n" in capsys.readouterr().out


@pytest.mark.usefixtures("one_start")
def test_a_file_that_cannot_be_written_is_refused(table: Path, tmp_path: Path) -> None:
    # A link in a circle: nobody, not even root, can write it.
    circle = tmp_path / "out"
    circle.mkdir()
    for name in ("h100", "h200"):
        (circle / f"{name}.yaml").symlink_to(circle / f"{name}.yaml" / "x")
    with pytest.raises(InputError, match=r"--output=.*cannot be written"):
        main([str(table), "--output", str(circle)])


@pytest.mark.filterwarnings("error")
def test_a_table_without_rows_is_refused(table: Path, tmp_path: Path) -> None:
    path = tmp_path / "empty.csv"
    pd.read_csv(table).head(0).to_csv(path, index=False)
    with pytest.raises(InputError, match="could be fitted"):
        main([str(path)])


def test_shipped_fits_say_where_they_come_from() -> None:
    folder = Path(__file__).parents[4] / "simulators" / "predictor" / "kernels" / "fitted"
    for path in sorted(folder.glob("*.yaml")):
        content = yaml.safe_load(path.read_text())
        for section in ("gemm", "grouped", "streaming", "attention", "attention_flash2"):
            for part in content.get(section, {}).values():
                assert part["source"]
                assert part["command"].startswith("trainscout kernels fit")
                assert part["rows"] >= 12
                assert part["residuals"]
    assert len(fitted_gpus()) >= 6
    for fit in fitted_gpus():
        assert fit in fitted_gpus(fit.architecture)
        for each in fit.gemm.values():
            figures = [*each.tile_efficiency.values(), each.launch_s, each.dram_efficiency]
            assert all(0 < figure < math.inf for figure in figures)
