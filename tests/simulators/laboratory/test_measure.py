"""One command measures a machine into one file, which everything that reads measurements reads."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.in_process import command
from tests.simulators.jobs import HYBRID, make_job
from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.laboratory.calibration.questions import job_of_settings, settings_of
from trainscout.simulators.laboratory.device.channels import Traffic
from trainscout.simulators.laboratory.device.timing import host_clock
from trainscout.simulators.laboratory.device.torch_collectives import TorchCollectives, node_counts
from trainscout.simulators.laboratory.device.torch_kernels import Built
from trainscout.simulators.laboratory.interference.measure import Together
from trainscout.simulators.laboratory.interference.slowdown_rows import read_samples
from trainscout.simulators.laboratory.measure import COLLECTIVE_BYTES, COPY, kernels_of
from trainscout.simulators.laboratory.measure import main as measure
from trainscout.simulators.predictor.collectives.measured import (
    bus_factor,
    read_measured_collectives,
)
from trainscout.simulators.predictor.kernels.measured import load_measured
from trainscout.simulators.predictor.kernels.moved_bytes import moved_bytes
from trainscout.simulators.predictor.kernels.prices import price_kernels
from trainscout.simulators.predictor.question.cluster import MEASURED_KINDS
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.workload.ir import Gemm, TransformerKernel, is_of_a_mixer
from trainscout.simulators.virtual_cluster.emulation.launch import launcher
from trainscout.simulators.virtual_cluster.traces.events import Header, Op, TensorSpec, Trace
from trainscout.simulators.virtual_cluster.traces.files import trace_path, write_trace

JOB = [
    "model=llama3_8b", "model.num_layers=1", "cluster=h100_64", "cluster.num_nodes=2",
    "training.global_batch_size=16", "recipe.tp=4",
]  # fmt: skip


def the_job():
    return job_of_settings(settings_of(JOB, "settings"))


SLOWER = 1.3
ROOT = Path(__file__).parents[3]


@dataclass
class FakeMachine:
    """An H100 whose kernels take ``SLOWER`` times their price."""

    name: str = "NVIDIA H100 80GB HBM3"
    software: str = "torch 9.9"
    built: list[TransformerKernel] = field(default_factory=list)
    seconds: dict[int, float] = field(default_factory=dict)

    def build(self, op: TransformerKernel) -> Built:
        self.built.append(op)
        found = Built(lambda: None, "fake", moved_bytes(op))
        price = price_kernels(load_catalogue().gpus["h100"], [op]).seconds[0]
        self.seconds[id(found)] = SLOWER * float(price)
        # Kept, so that no other one gets its number.
        self.kept = [*getattr(self, "kept", []), found]
        return found

    def burst_s(self, built: Built) -> float:
        return self.seconds[id(built)]

    def sustained_s(self, built: Built, once_s: float) -> float:
        return once_s

    def host_s(self) -> dict[str, float]:
        return {"launch_s": 5e-6, "module_s": 20e-6}


class FakeOverlap:
    """Everything takes a tenth longer beside copies."""

    def build(self, op: TransformerKernel) -> Built:
        return Built(lambda: None, "fake", 1 << 30)

    def alone_s(self, built: Built) -> float:
        return 1e-3

    def copy_bytes_per_s(self, traffic: Traffic) -> float:
        return 1e10

    def together(self, built: Built, alone_s: float, traffic: Traffic) -> Together:
        return Together(1.1 * alone_s, 1.2)


@dataclass
class FakeFabric:
    """Latency and bandwidth; 40 GB/s a rank within a node, 10 between."""

    rank: int = 0
    nodes: int = 2
    ranks_per_node: int = 8
    closed: bool = False

    def seconds(self, kind: str, nodes: int, size: int) -> float | None:
        rate = 40e9 if nodes == 1 else 10e9
        return 1e-6 + size * bus_factor(kind, nodes * self.ranks_per_node) / rate

    def close(self) -> None:
        self.closed = True


def test_what_a_mixer_fuses_is_no_single_kernel_to_time() -> None:
    asked = kernels_of(make_job(HYBRID))
    assert asked
    assert not any(is_of_a_mixer(op) for op in asked)


def test_one_file_is_read_by_everything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, fabric = tmp_path / "h100.json", FakeFabric()
    asked = [*JOB, "--output", str(path)]
    assert measure(asked, FakeMachine(), FakeOverlap(), fabric) == 0
    assert fabric.closed
    shown = capsys.readouterr().out
    assert "5.0 us a launch" in shown
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found["classes"]["gemm"]["factor"] == pytest.approx(SLOWER, rel=1e-3)
    assert found["host"] == {"launch_s": 5e-6, "module_s": 20e-6}
    assert found["bandwidth"]["copy_bytes_per_s"] > 0
    assert {row["level"] for row in found["slowdowns"]} == {"kernel", "comm-slowdown"}
    assert found["overlap"]["slowdown"] == pytest.approx(1.1)
    assert found["overlap"]["priced"] > 1

    gpu = load_catalogue().gpus["h100"]
    ops = [op for op in kernels_of(the_job()) if isinstance(op, Gemm)]
    plain, measured = (price_kernels(gpu, ops, table) for table in (None, load_measured(path)))
    assert measured.seconds / plain.seconds == pytest.approx(SLOWER, rel=5e-3)
    assert (measured.evidence == 0).all()

    samples = read_samples([path], load_catalogue().gpus)
    assert samples.slowdown == pytest.approx(1.1)
    validated = tmp_path / "validated.json"
    assert command("kernels", "validate")([path, "--json", validated]) == 0
    errors = json.loads(validated.read_text(encoding="utf-8"))["overall"]
    assert errors["median_abs_error"] == pytest.approx(1 - 1 / SLOWER, rel=0.05)

    rows = read_measured_collectives(path)
    assert len(rows) == len(MEASURED_KINDS) * (2 * len(COLLECTIVE_BYTES) + 1)
    largest = max((row for row in rows if row.nodes == 2), key=lambda row: row.bytes)
    assert largest.bus_gbs == pytest.approx(10, rel=0.01)
    simulate = command("simulate")
    assert simulate([*JOB, f"cluster.measured_collectives={path}", "format=json"]) == 0


def test_what_an_h100_took_is_read_whole(tmp_path: Path) -> None:
    kept, validated = Path("benchmarks/data/h100_measured.json"), tmp_path / "validated.json"
    assert command("kernels", "validate")([ROOT / kept, "--json", validated]) == 0
    found = json.loads(validated.read_text(encoding="utf-8"))
    assert not found["skipped"]
    assert found["by_class"]["gemm"]["n"] == 45
    # Products and sums of tensors are what the shipped prices are surest of.
    for name, most in (("gemm", 0.1), ("gemm_fp8", 0.1), ("streaming_elementwise", 0.05)):
        assert found["by_class"][name]["median_abs_error"] < most
    assert len(read_samples([ROOT / kept], load_catalogue().gpus).slowdown) == 58


def test_a_stopped_run_goes_on_and_another_machine_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "h100.json"
    asked = [*JOB, "--output", str(path)]
    assert measure([*asked, "--budget-s", "0"], FakeMachine(), FakeOverlap()) == 0
    assert not json.loads(path.read_text(encoding="utf-8"))["kernels"]["gemm"]
    first, again = FakeMachine(), FakeMachine()
    assert measure(asked, first, FakeOverlap()) == 0
    assert measure(asked, again, FakeOverlap()) == 0
    assert set(first.built) == {COPY, *kernels_of(the_job())}
    assert again.built == [COPY]
    with pytest.raises(InputError, match="another file"):
        measure(asked, FakeMachine(name="H100-like thing"), FakeOverlap())


def test_kernels_that_take_most_of_the_step_come_first(tmp_path: Path) -> None:
    machine = FakeMachine()
    measure([*JOB, "--output", str(tmp_path / "f.json")], machine, FakeOverlap())
    gpu = load_catalogue().gpus["h100"]
    calls = kernels_of(the_job())
    shares = [price_kernels(gpu, [op]).seconds[0] * calls[op] for op in machine.built[1:]]
    assert shares == sorted(shares, reverse=True)


BAD: Mapping[str, tuple[list[str], str]] = {
    "no setting": (["model"], "is no setting"),
    "no model": (["cluster=h100_64"], "model=None: is missing"),
    "unknown model": (["model=llama3_8", "cluster=h100_64"], "llama3_8b"),
    "unknown knob": ([*JOB, "recipe.tpp=2"], "tp"),
    "impossible": ([*JOB, "recipe.tp=3"], "recipe.tp"),
    "another GPU": (["model=llama3_8b", "cluster=h800_96"], "a cluster of h100"),
}


@pytest.mark.parametrize("case", BAD)
def test_wrong_settings_are_refused_and_nothing_written(case: str, tmp_path: Path) -> None:
    words, problem = BAD[case]
    path = tmp_path / "f.json"
    with pytest.raises(InputError, match=problem):
        measure([*words, "--output", str(path)], FakeMachine(), FakeOverlap())
    assert not path.exists()


@pytest.mark.parametrize(
    ("text", "problem"),
    [("{", "not JSON"), ("[]", "no measurements"), ("{}", "no measurements"),
     ('{"format": "trainscout-observed-factors", "version": 2}', "version 1"),
     ('{"format": "trainscout-observed-factors", "version": 1, "kernels": 5}', "no kernels")],
)  # fmt: skip
def test_files_of_something_else_are_refused(text: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=problem):
        load_measured(path)


def test_processes_that_are_not_the_first_only_communicate(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    assert measure([*JOB, "--output", str(path)], collectives=FakeFabric(rank=3)) == 0
    assert not path.exists()
    with pytest.raises(InputError, match="4 processes a node"):
        measure([*JOB, "--output", str(path)], collectives=FakeFabric(ranks_per_node=4))


def test_nodes_are_counted_in_doublings_up_to_all() -> None:
    assert [node_counts(nodes) for nodes in (1, 2, 6, 8)] == [
        [1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8],
    ]  # fmt: skip


def test_pytorchs_collectives_run_as_they_are_called(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One process on gloo: that the calls are PyTorch's, not how long they take."""
    torch = pytest.importorskip("torch")
    variables = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    for name, value in (variables | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}).items():
        monkeypatch.setenv(name, value)
    fabric = TorchCollectives(torch, host_clock, "cpu", variables)
    try:
        for kind in MEASURED_KINDS:
            seconds = fabric.seconds(kind, 1, 4096)
            assert seconds is not None
            assert seconds > 0
    finally:
        fabric.close()
    with pytest.raises(InputError, match="as torchrun sets it"):
        TorchCollectives(torch, host_clock, "cpu", {"RANK": "0", "WORLD_SIZE": "x"})


def tensor(*shape: int) -> TensorSpec:
    return TensorSpec("bfloat16", shape, 1)


@pytest.fixture
def traced(tmp_path: Path) -> Path:
    """Two steps of a script: a product twice a step, what is element by element once."""
    product = Op("aten.mm.default", (tensor(512, 256), tensor(256, 128)), (tensor(512, 128),), 0)
    added = Op("aten.add.Tensor", (tensor(512, 128),) * 2, (tensor(512, 128),), 0)
    header = Header(1, 0, 1, "h100", 80 << 30, ("train.py",), {})
    path = trace_path(tmp_path, 0)
    write_trace(path, Trace(header, (product, product, added) * 2))
    return path


def test_run_profile_times_what_a_script_launched(
    traced: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``run --profile``, with what follows the script's ranks done here, on a fake GPU."""
    asked: list[list[str]] = []

    def measured(words: list[str]) -> subprocess.CompletedProcess[str]:
        asked.append(words)
        return subprocess.CompletedProcess(words, 0)

    monkeypatch.setattr(launcher, "_run", lambda *_: 0)
    monkeypatch.setattr(launcher.subprocess, "run", measured)
    (tmp_path / "train.py").write_text("")
    output = tmp_path / "kernels.json"
    words = ["--world-size", "1", "--gpu", "h100", "--trace", traced, "--profile", output]
    assert command("run")([*words, "--", tmp_path / "train.py"]) == 0
    ((_, *module, name), rest) = asked[0][:4], asked[0][4:]
    assert (module, name) == (["-m", "trainscout"], "measure")

    machine = FakeMachine()
    assert measure(rest, machine, FakeOverlap()) == 0
    assert len(machine.built) == 3  # a copy, a product, an addition: each once
    found = json.loads(output.read_text(encoding="utf-8"))
    (row,) = found["kernels"]["gemm"]
    assert (row["m"], row["n"], row["k"]) == (512, 128, 256)
    assert found["classes"]["gemm"]["factor"] == pytest.approx(SLOWER, rel=0.01)
    assert load_measured(output).rows


def test_traces_and_settings_are_not_mixed(traced: Path, tmp_path: Path) -> None:
    output = ["--output", str(tmp_path / "f.json")]
    with pytest.raises(InputError, match="one of both"):
        measure(["--traces", str(traced), *JOB, *output], FakeMachine())
    other = trace_path(tmp_path, 1)
    write_trace(other, Trace(Header(1, 0, 1, "a100_80", 1, (), {}), ()))
    with pytest.raises(InputError, match="2 kinds of GPU"):
        measure(["--traces", str(traced), "--traces", str(other), *output], FakeMachine())
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no trace"):
        measure(["--traces", str(tmp_path / "empty"), *output], FakeMachine())
