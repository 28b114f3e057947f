"""The fitting command on a small table it can check, and what it refuses."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from simulators.errors import InputError
from simulators.kernels.coefficients import fitted_gpu_from_dict, fitted_gpus
from simulators.kernels.fit import main
from simulators.kernels.gemm import price_gemms

from .gpus import FOLDER, GPUS


def arguments(table: Path, output: Path, *rest: str) -> list[str]:
    options = ["gemm", str(table), "--gpu", str(FOLDER / "h200.yaml"), "--precision", "half"]
    return [*options, "--source", "synthetic", "--output", str(output), *rest]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Times of a GPU that is exactly 1.3x slower than the shipped H200 model."""
    sides = [512, 1024, 2048, 4096, 8192]
    shapes = np.array([(m, n, k, 1) for m in sides for n in sides for k in sides])
    no = np.zeros(len(shapes), dtype=bool)
    seconds, _, _ = price_gemms(GPUS["h200"], "bf16", shapes, no, no, no)
    rows = pd.DataFrame(shapes, columns=["m", "n", "k", "batch"])
    rows = rows.assign(layout="TN", time_us=seconds * 1.3e6, gpu="mine")
    path = tmp_path / "mine.csv.gz"
    rows.to_csv(path, index=False)
    return path


def test_recovers_unseen_shapes(table: Path, tmp_path: Path) -> None:
    output = tmp_path / "mine.yaml"
    main(arguments(table, output, "--where", "gpu=mine"))
    content = yaml.safe_load(output.read_text())
    part = content["gemm"]["half"]
    assert part["residuals"]["held_out"]["median"] < 0.05
    assert str(tmp_path) not in part["command"].replace(str(output), "")
    assert fitted_gpu_from_dict(content, "mine.yaml").gemm["half"].launch_s > 0


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        (["--where", "gpu=none"], "too few to fit"),
        (["--max-flops", "1e6"], "too few to fit"),
        (["--output", "no/such/folder/x.yaml"], "is not in an existing folder"),
        (["--where", "device=mine"], "names no column"),
        (["--gpu", "missing.yaml"], "is not a GPU declaration"),
    ],
)
def test_refusals(table: Path, tmp_path: Path, rest: list[str], message: str) -> None:
    output = tmp_path / "out.yaml"
    with pytest.raises(InputError, match=message):
        main(arguments(table, output, *rest))
    assert not output.exists()


def test_missing_column_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("m,n,k,time_us\n1,1,1,1\n")
    with pytest.raises(InputError, match="has no column 'batch'"):
        main(arguments(path, tmp_path / "out.yaml"))


def test_text_among_numbers_is_refused(table: Path, tmp_path: Path) -> None:
    rows = pd.read_csv(table).astype({"m": object})
    rows.loc[0, "m"] = "wide"
    path = tmp_path / "text.csv"
    rows.to_csv(path, index=False)
    with pytest.raises(InputError, match="has text in the numeric column 'm'"):
        main(arguments(path, tmp_path / "out.yaml"))


def test_bad_coefficients_are_refused() -> None:
    content = {"gpu": {"name": "x", "architecture": "hopper", "sms": 1, "peak_flops": {}}}
    content["gemm"] = {"half": {"coefficients": {"tile_efficiency": {"64x64": float("nan")}}}}
    with pytest.raises(InputError, match="is not a finite number"):
        fitted_gpu_from_dict(content, "x.yaml")
    with pytest.raises(InputError, match="is not a file of fitted"):
        fitted_gpu_from_dict({}, "x.yaml")


def test_shipped_fits_say_where_they_come_from() -> None:
    folder = Path(__file__).parents[3] / "simulators" / "kernels" / "fitted"
    for path in sorted(folder.glob("*.yaml")):
        content = yaml.safe_load(path.read_text())
        for section in ("gemm", "attention"):
            for part in content.get(section, {}).values():
                assert part["source"]
                assert part["command"].startswith("python -m simulators.kernels.fit")
                assert part["rows"] >= 18
                assert part["residuals"]
    assert len(fitted_gpus()) >= 6
