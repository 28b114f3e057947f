"""From a table's rows to samples: what is stated, read from text, or assumed."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.laboratory.interference.slowdown_rows import read_samples
from trainscout.simulators.predictor.question.errors import InputError

GPUS = load_catalogue().gpus
COLUMNS = (
    "gpu,compute_class,compute_detail,comm_kind,message_size,n_gpus,slowdown,level,source,note"
)


def table(folder: Path, *rows: str) -> Path:
    path = folder / "slowdowns.csv"
    path.write_text("\n".join([COLUMNS, *rows]) + "\n")
    return path


def test_what_text_says_is_read(tmp_path: Path) -> None:
    note = "NCU compute 8.5% DRAM 84.0%; beside dispatch/combine (20 CTAs)"
    row = f"H800,GEMM_fp8(persistent;112CTA),tiles,DeepEP dispatch,25MB,64,1.05,kernel,here,{note}"
    samples = read_samples([table(tmp_path, row)], GPUS)
    assert samples.kernel_class.tolist() == ["gemm"]
    assert samples.channels.tolist() == [20]
    assert samples.memory_bound.tolist() == [pytest.approx(0.84)]
    assert not samples.assumed[0]
    # The kernel never had the 20 SMs: only the memory is shared.
    assert samples.physical[0] == pytest.approx(1 + 0.84 * 2.5 * 50e9 / 3.35e12)


def test_unstated_channels_are_ncclss_and_counted(tmp_path: Path) -> None:
    rows = [
        "A800,Sum,kernel,all-reduce,25MB,8,1.5,kernel,here,",
        "A100-SXM4-80GB,GEMM,kernel,sendrecv,,16,1.0,kernel,here,",
    ]
    samples = read_samples([table(tmp_path, *rows)], GPUS)
    assert samples.channels.tolist() == [16, 2]
    assert samples.assumed.all()


def test_rows_left_out_are_counted_by_reason(tmp_path: Path) -> None:
    rows = [
        "H100,GEMM,x,all-gather,,8,1.3,kernel,here,",
        "H100,GEMM,x,all-gather,,8,1.3,step,here,",
        "MI250X,GEMM,x,all-gather,,8,1.3,kernel,here,",
        "H100,GEMM,x,all-gather,,8,,kernel,here,",
    ]
    samples = read_samples([table(tmp_path, *rows)], GPUS)
    assert len(samples.slowdown) == 1
    assert sorted(samples.skipped.values()) == [1, 1, 1]


def test_communication_rows_are_their_own_target(tmp_path: Path) -> None:
    row = "V100,GEMM,x,all-reduce,,8,2.0,comm-slowdown,here,NCCL 24 channels"
    samples = read_samples([table(tmp_path, row)], GPUS, comm=True)
    assert samples.slowdown.tolist() == [2.0]
    assert 1 < samples.physical[0] < 2
    with pytest.raises(InputError, match="no usable row"):
        read_samples([table(tmp_path, row)], GPUS)


def test_table_without_a_column_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    path.write_text("gpu,slowdown\nH100,1.2\n")
    with pytest.raises(InputError, match="compute_class"):
        read_samples([path], GPUS)
