"""Measuring kernels, on a device that answers from a formula."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.laboratory.device.torch_kernels import Built
from trainscout.simulators.laboratory.kernels.measure import (
    CLASSES,
    main,
    row_of,
    training_kernels,
)
from trainscout.simulators.predictor.io.command_line import exit_code
from trainscout.simulators.predictor.kernels.measured_rows import match_gpu, read_table, sustained
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.workload.ir import (
    Attention,
    Gemm,
    GroupedGemm,
    Kernel,
    Streaming,
)

GPU, MODELS = load_catalogue().gpus["h200"], load_catalogue().models
SECONDS = {Gemm: 2e-4, GroupedGemm: 3e-4, Attention: 4e-4, Streaming: 5e-5}


def run(arguments: list[str], device: object) -> int:
    return exit_code(lambda given: main(given, device), arguments)


class FakeDevice:
    """Each kernel takes as long as its class says; hot ones a tenth longer."""

    def __init__(self, broken: type[Kernel] | None = None) -> None:
        self.broken, self.built = broken, 0

    def build(self, op: Kernel) -> Built:
        if isinstance(op, self.broken or ()):
            raise InputError("kernel", op, "cannot be built")
        self.built += 1
        size = op.bytes if isinstance(op, Streaming) else 0
        return Built(lambda: type(op), "fake", size, "[1]")

    def burst_s(self, built: Built) -> float:
        return SECONDS[built.call()]  # type: ignore[index]

    def sustained_s(self, built: Built, once_s: float) -> float:
        return 1.1 * once_s


def command(output: Path, *more: str) -> list[str]:
    return ["--gpu", "h200", "--output", str(output), "--models", "mixtral_8x7b", *more]


def test_gpt175b_shards_are_the_published_shapes() -> None:
    # 12288 wide, 96 heads: QKV and the two MLP products of every tensor-parallel degree.
    kernels = training_kernels([MODELS["gpt175b"]], GPU, "bf16")
    forward = {
        (op.n, op.k) for op in kernels["gemm"] if isinstance(op, Gemm) and op.layout == "TN"
    }
    for tp in (1, 2, 4, 8):
        assert (3 * 12288 // tp, 12288) in forward
        assert (4 * 12288 // tp, 12288) in forward
        assert (12288, 4 * 12288 // tp) in forward
    heads = {op.heads for op in kernels["attention"] if isinstance(op, Attention)}
    assert heads == {96, 48, 24, 12}
    assert not kernels["grouped_gemm"]


def test_every_kernel_is_asked_once() -> None:
    kernels = training_kernels([MODELS["llama2_7b"], MODELS["mixtral_8x7b"]], GPU, "bf16")
    for name in CLASSES:
        assert len(set(kernels[name])) == len(kernels[name]) > 0
    kinds = {op.kind for op in kernels["streaming"] if isinstance(op, Streaming)}
    assert {"elementwise", "norm_fwd", "norm_bwd", "optimizer", "permute"} <= kinds
    # Both are 4096 wide over 4096 tokens: the output projection is asked once.
    alone = sum(
        len(training_kernels([MODELS[model]], GPU, "bf16")["gemm"])
        for model in ("llama2_7b", "mixtral_8x7b")
    )
    assert len(kernels["gemm"]) < alone


def test_tables_are_read_by_the_fit(tmp_path: Path) -> None:
    assert run(command(tmp_path), FakeDevice()) == 0
    for name in CLASSES:
        kind, rows = read_table(tmp_path / f"{name}.csv")
        assert kind == name
        assert (rows["time_us"] > 0).all()
        assert {match_gpu(gpu, load_catalogue().gpus)[0] for gpu in rows["gpu"]} == {"h200"}
    _, gemms = read_table(tmp_path / "gemm.csv")
    hot = sustained(gemms)
    assert set(gemms["time_us"][~hot]) == {200.0}
    assert set(gemms["time_us"][hot]) == {220.0}


def test_what_is_there_is_not_measured_again(tmp_path: Path) -> None:
    first, second = FakeDevice(), FakeDevice()
    run(command(tmp_path), first)
    before = (tmp_path / "gemm.csv").read_text()
    run(command(tmp_path), second)
    assert first.built > 0
    assert second.built == 0
    assert (tmp_path / "gemm.csv").read_text() == before


def test_out_of_time_leaves_the_rest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    device = FakeDevice()
    assert run(command(tmp_path, "--budget-s", "0"), device) == 0
    assert device.built == 0
    assert "0 kernels measured" in capsys.readouterr().out


def test_what_cannot_be_built_is_named_and_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command(tmp_path, "--classes", "gemm,attention"), FakeDevice(Attention)) == 0
    assert "skipped" in capsys.readouterr().err
    with (tmp_path / "attention.csv").open() as file:
        assert list(csv.DictReader(file)) == []
    assert not (tmp_path / "streaming.csv").exists()


def test_grouped_rows_name_the_forward_product() -> None:
    forward = GroupedGemm("", 8, 512, 28672, 4096, "bf16")
    gradient = GroupedGemm("", 8, 512, 4096, 28672, "bf16", layout="NN")
    rows = [row_of(op, "h200", "bf16") for op in (forward, gradient)]
    assert [(row["n"], row["k"]) for row in rows] == [(28672, 4096)] * 2
    assert [row["stage"] for row in rows] == ["fwd", "bwd_grad_act"]


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        ("--gpu", "h2000", "h200"),
        ("--models", "mixtral", "mixtral_8x7b"),
        ("--classes", "gem", "gemm"),
        ("--micro-batches", "0", "micro-batches"),
        ("--micro-batches", "two", "whole number"),
        ("--budget-s", "-1", "budget-s"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, value: str, named: str
) -> None:
    output = tmp_path / "tables"
    arguments = [*command(output), option, value]
    assert run(arguments, FakeDevice()) == 2
    assert named in capsys.readouterr().err
    assert not output.exists()


def test_a_cpu_is_not_passed_off_as_a_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    on_cpu, on_gpu = (command(tmp_path / each) for each in ("cpu", "gpu"))
    on_cpu += ["--device", "cpu"]
    assert run(on_cpu, FakeDevice()) == run(on_gpu, FakeDevice()) == 0
    assert set(read_table(tmp_path / "cpu" / "gemm.csv")[1]["gpu"]) == {"cpu"}
    assert match_gpu("cpu", load_catalogue().gpus) == ("", "")
    capsys.readouterr()
    for folder, device in (("gpu", "cpu"), ("cpu", "cuda")):
        before = {path: path.read_text() for path in (tmp_path / folder).iterdir()}
        # Whatever class is asked for: the folder is what predictions are given.
        more = ["--device", device, "--classes", "attention"]
        assert run(command(tmp_path / folder, *more), FakeDevice()) == 2
        assert "do not go with" in capsys.readouterr().err
        assert {path: path.read_text() for path in (tmp_path / folder).iterdir()} == before
    assert run(on_cpu, FakeDevice()) == 0
