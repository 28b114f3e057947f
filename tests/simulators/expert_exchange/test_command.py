"""``trainscout moe``: tables, files, exit codes."""

from __future__ import annotations

import csv
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.in_process import command
from trainscout.simulators.expert_exchange.command import GROUPS, parameters, parse
from trainscout.simulators.predictor.moe.router import Router, route

main = command("moe")

SECOND_EXAMPLE = (
    "load_per_node=10500 num_links=2 initial_cpu_delay=1 intra_bw=150 packet_size=15 "
    "packet_prep_delay=2"
)


@pytest.mark.parametrize(
    ("arguments", "total"), [("load_per_node=11200", "256 ms"), (SECOND_EXAMPLE, "231 ms")]
)
def test_the_worked_examples(
    arguments: str, total: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments.split()) == 0
    assert f"Communication time: {total}" in capsys.readouterr().out


def test_help_names_every_parameter_and_its_examples_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for group in GROUPS.values():
        for entry in parameters(group):
            assert f"\n  {entry.name}=" in text
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{expert},{10 + expert}\n" for expert in range(8))
    Path("counts.csv").write_text("expert,tokens\n" + rows)
    lines = text.split("Routing:")[0].replace("\\\n", " ").splitlines()
    examples = [line.split()[2:] for line in lines if line.startswith("  trainscout moe")]
    assert len(examples) >= 4
    for example in examples:
        assert main(example) == 0, example
    assert Path("routing.csv").exists()


def rows_of(path: Path) -> list[dict[str, int]]:
    with path.open(newline="") as file:
        return [{name: int(cell) for name, cell in row.items()} for row in csv.DictReader(file)]


def test_files_hold_what_the_tables_sum_up(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    routing, log = tmp_path / "routing.csv", tmp_path / "log.csv"
    arguments = ["num_nodes=4", "num_experts=8", "seqlen=101", "top_k=3", "num_layers=2"]
    arguments += ["hot_ratio=0.25", "hot_weight=0.5", "nic_rate=130", "weight_precision=1"]
    assert main([*arguments, f"routing_file={routing}", f"log_file={log}"]) == 0
    out = capsys.readouterr().out
    tokens = rows_of(routing)
    assert [(row["layer"], row["token"]) for row in tokens] == [
        (layer, token) for layer in range(2) for token in range(101)
    ]
    travelling: Counter[tuple[int, int, int]] = Counter()
    for row in tokens:
        assert row["source"] == next(n for n in range(4) if row["token"] < 101 * (n + 1) // 4)
        experts = {row[f"expert_{choice}"] for choice in range(3)}
        assert len(experts) == 3
        for expert in experts:
            if expert // 2 != row["source"]:
                travelling[row["layer"], row["source"], expert // 2] += 11
    sent: Counter[tuple[int, int, int]] = Counter()
    last = {0: -1, 1: -1}
    for row in rows_of(log):
        rounds = row["last_round"] - row["first_round"] + 1
        full = rounds * row["packets_per_round"] * 20
        assert full - 20 < row["bytes"] <= full
        sent[row["layer"], row["source"], row["destination"]] += row["bytes"]
        last[row["layer"]] = max(last[row["layer"]], row["last_round"])
    assert sent == travelling
    times = [line.split() for line in out.split("Communication in")[1].splitlines()]
    for layer, last_round in last.items():
        assert [row[2] for row in times if row[:1] == [str(layer)]] == [str(last_round + 1)]


def test_the_same_command_prints_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["hot_ratio=0.25", "hot_weight=0.6"]
    assert main(arguments) == 0
    first = capsys.readouterr().out
    assert main(arguments) == 0
    assert capsys.readouterr().out == first
    assert main([*arguments, "seed=1"]) == 0
    assert capsys.readouterr().out != first


def test_capacity_drops_routings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hot_ratio=0.25", "hot_weight=0.8", "capacity_factor=1"]) == 0
    out = capsys.readouterr().out
    line = next(x for x in out.splitlines() if x.split()[:1] == ["all"])
    routings, dropped = (int(line.split()[i].replace(",", "")) for i in (1, -1))
    assert routings == 8192
    # Two experts ask for 80 % and may keep their even share, a quarter; others keep all.
    assert dropped / routings == pytest.approx(0.8 - 0.25, abs=0.02)


@pytest.mark.parametrize("nodes", [16, 32])
def test_large_meshes_show_their_busiest_nodes(
    nodes: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([f"num_nodes={nodes}", f"num_experts={nodes * 2}", "num_layers=70"]) == 0
    out = capsys.readouterr().out
    assert "from node to node" not in out
    assert ("by node, layer 0 (the 16 busiest of 32)" in out) == (nodes == 32)
    assert "first 64 layers of 70" in out
    assert max(map(len, out.splitlines())) <= 120


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ("packet_size=200", "packet_size"),
        ("hot_ratio=1.5", "hot_ratio"),
        ("hot_ratio=0.5 hot_weight=-1", "hot_weight"),
        ("hot_wieght=1", "did you mean 'hot_weight'"),
        ("foo", "foo"),
        ("top_k=", "top_k"),
        ("top_k", "top_k"),
        ("top_k=2 top_k=2", "top_k"),
        ("seqlen=x", "seqlen"),
        ("seqlen=1.5", "seqlen"),
        ("seqlen=nan", "seqlen"),
        ("seqlen=1e12", "seqlen"),
        ("seqlen=7", "seqlen"),
        ("num_nodes=null", "num_nodes"),
        ("intra_bw=inf", "intra_bw"),
        ("embed_dim=1e18", "embed_dim"),
        ("num_experts=12", "num_experts"),
        ("num_layers=0", "num_layers"),
        ("capacity_factor=0", "capacity_factor"),
        ("load_per_node=11201", "load_per_node"),
        ("load_per_node=-7", "load_per_node"),
        ("load_per_node=7e18", "load_per_node"),
        ("load_per_node=7 top_k=1", "top_k"),
        ("load_per_node=7 embed_dim=1", "embed_dim"),
        ("load_per_node=7 capacity_factor=1", "capacity_factor"),
        ("load_per_node=7 routing_file=x", "routing_file"),
        ("histogram=/does/not/exist", "histogram"),
        ("log_file=/does/not/exist", "log_file"),
        ("log_file=same routing_file=same", "log_file"),
    ],
)
def test_wrong_input_is_refused_in_one_line(
    arguments: str, field: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments.split()) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.startswith("error: ")
    assert streams.err.count("\n") == 1
    assert field in streams.err


def test_a_histogram_must_fit_the_layers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "counts.csv"
    lines = [f"{layer},{expert},{1 + expert}" for layer in range(2) for expert in range(8)]
    path.write_text("\n".join(["layer,expert,tokens", *lines]))
    assert main([f"histogram={path}", "num_layers=3"]) == 2
    assert "num_layers=3" in capsys.readouterr().err
    assert main([f"histogram={path}", "num_layers=2"]) == 0
    experiment, _ = parse([f"histogram={path}", "num_layers=2", "seqlen=1000"])
    assert experiment.router.measured == (tuple(range(1, 9)),) * 2
    assert experiment.router.seqlen == 1000


def test_a_file_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log.csv"
    log.write_text("old")

    def breaks(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr("trainscout.simulators.expert_exchange.command.write_log", breaks)
    assert main([f"log_file={log}"]) == 1
    assert log.read_text() == "old"
    assert list(tmp_path.iterdir()) == [log]


def test_the_module_runs_and_stops_when_nobody_reads() -> None:
    command = [sys.executable, "-m", "trainscout", "moe", "num_nodes=2"]
    root = Path(__file__).parents[4]
    with subprocess.Popen(
        command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as job:
        assert job.stdout is not None
        job.stdout.close()
        _, complaint = job.communicate(timeout=60)
    assert (job.returncode, complaint) == (0, b"")


def test_a_million_tokens_are_routed_to_256_experts() -> None:
    router = Router(256, 10**6, 8, hot_ratio=0.1, hot_weight=0.3)
    loads = np.bincount(route(router).ravel(), minlength=256)
    assert loads.sum() == 8_000_000
    assert np.sort(loads)[-26:].sum() / 8e6 == pytest.approx(0.3, abs=0.002)


def test_what_returns_is_timed_too(capsys):
    """Links carry both directions, so copies that return as many bytes take as long as they did;
    an even load of 8 nodes sends and receives alike."""

    def shown(*more: str) -> tuple[float, list[str]]:
        assert main(["embed_dim=512", "weight_precision=0", *more]) == 0
        lines = capsys.readouterr().out.splitlines()
        (total,) = [line for line in lines if line.startswith("Communication time")]
        rows = [line.split() for line in lines if line.startswith("    0 ") or " layer " in line]
        return float(total.split()[2].replace(",", "")), rows[-1]

    one_way, _ = shown()
    copy = 2 + 2 * 4 + 512 * 2
    there_and_back, row = shown(f"return_bytes={copy}")
    assert float(row[-1].replace(",", "")) == float(row[3].replace(",", ""))
    assert there_and_back == pytest.approx(2 * one_way, rel=1e-6)
    assert main(["load_per_node=7", "return_bytes=8"]) == 2
    assert main(["return_bytes=-1"]) == 2
