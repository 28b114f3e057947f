"""The command: an unmodified script prints simulated times, the same whatever the scheduling."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.in_process import command
from tests.warm.session import ROOT, environment, run_python
from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.virtual_cluster.execution.step import replay_ranks
from trainscout.simulators.virtual_cluster.live.launcher import _usual_cluster
from trainscout.simulators.virtual_cluster.traces.files import read_directory

pytest.importorskip("torch")

main = command("live")

RANKS = 4

SCRIPT = """
import os
import sys
import time
import warnings
from datetime import datetime
from time import perf_counter

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

warnings.simplefilter("always", ResourceWarning)
dist.init_process_group("nccl")
rank, local = dist.get_rank(), int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
if "fail" in sys.argv and rank == 2:
    raise ValueError("rank 2 had enough")
flags = torch.tensor([7, rank], device="cuda")
dist.broadcast(flags, 1)
print("flags", flags.tolist())
numbers = torch.randn(64, device="cuda")
numbers = numbers[numbers > 0]
layers = [torch.nn.Linear(4096, 4096) for _ in range(4)]
model = DistributedDataParallel(torch.nn.Sequential(*layers).cuda().bfloat16())
optimizer = torch.optim.AdamW(model.parameters())
squared = torch.compile(lambda made: made.float().pow(2).mean())
for step in range(3):
    torch.cuda.synchronize()
    begun, wall, moment = perf_counter(), time.time(), datetime.now()
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    batch = torch.randn(8192, 4096, device="cuda", dtype=torch.bfloat16)
    loss = squared(model(batch))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    last.record()
    value = loss.item()
    torch.cuda.synchronize()
    spent = perf_counter() - begun
    print(f"step {step} {1e3 * spent:.6f} {1e3 * (time.time() - wall):.2f} "
          f"{first.elapsed_time(last):.6f} {(datetime.now() - moment).total_seconds():.4f} "
          f"loss {value}")
    if "evaluates" in sys.argv and step == 1:
        if rank == 0:
            model.module(batch)
        dist.barrier()
peak = torch.cuda.max_memory_allocated()
torch.cuda.reset_peak_memory_stats()
print(f"peak {peak / 2**30:.2f} {torch.cuda.max_memory_allocated() / 2**30:.2f}")
time.sleep(100)
print(f"slept {perf_counter() - begun:.1f}")
dist.destroy_process_group()
"""


@dataclass
class Ran:
    lines: dict[int, list[str]]
    errors: str
    code: int


def live(
    folder: Path, *options: str, before: tuple[str, ...] = (), script: tuple[str, ...] = ()
) -> Ran:
    path = folder / "train.py"
    path.write_text(SCRIPT)
    command = ["-m", "trainscout", "live", "--world-size", str(RANKS), "--host", "declared"]
    words = [*command, *options, "--", *before, str(path), *script]
    done = run_python(*words, cwd=ROOT, environment=environment())
    lines: dict[int, list[str]] = {rank: [] for rank in range(RANKS)}
    for line in done.stdout.splitlines():
        rank, text = re.fullmatch(r"\[rank (\d+)\] (.*)", line).groups()
        lines[int(rank)].append(text)
    return Ran(lines, done.stderr, done.returncode)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("live")


@pytest.fixture(scope="module")
def ran(folder):
    found = live(folder, "--perfetto", str(folder / "p.json"), "--traces", str(folder / "traces"))
    assert found.code == 0, found.errors
    return found


def printed(ran: Ran, rank: int) -> list[list[float]]:
    steps = [line.split() for line in ran.lines[rank] if line.startswith("step")]
    return [[float(word) for word in words[2:6]] for words in steps]


def test_the_script_prints_simulated_times_by_every_clock(ran):
    for rank in range(RANKS):
        steps = printed(ran, rank)
        assert len(steps) == 3
        for counter_ms, wall_ms, events_ms, datetime_s in steps:
            assert wall_ms == pytest.approx(counter_ms, abs=1e-2)
            assert 1e3 * datetime_s == pytest.approx(counter_ms, abs=0.1)
            # The host reads the loss a copy after the last event.
            assert 0 <= counter_ms - events_ms < 0.1
        assert ran.lines[rank][-1] == f"slept {100 + steps[-1][0] / 1e3:.1f}"


def test_small_broadcasts_arrive(ran):
    """Every rank learns what rank 1 sent, whether it ran before or after it."""
    assert all("flags [7, 1]" in ran.lines[rank] for rank in range(RANKS))


def test_the_times_are_those_of_the_replayed_traces(ran, folder):
    """Question host times and the same prices: the same step to a hundredth of a per cent."""
    cluster, gpu = load_catalogue().machines("h800_96")
    traces = read_directory(folder / "traces")
    assert [trace.header.rank for trace in traces] == list(range(RANKS))
    replayed = replay_ranks(traces, gpu, cluster, host="declared")
    for rank in range(RANKS):
        assert printed(ran, rank)[-1][0] == pytest.approx(1e3 * replayed.step_time_s, rel=1e-4)


def test_inventions_are_marked(ran):
    assert "losses and other computed values are inventions" in ran.errors
    assert re.search(r"12 x item = 1\.0 at .*train\.py:\d+; item: follows from", ran.errors)
    expected = r"4 x aten\.index\.Tensor = 32 \(expected\) at .*train\.py:\d+\n"
    assert re.search(expected, ran.errors)
    assert "last step by rank, simulated" in ran.errors
    assert not any("ResourceWarning" in line for lines in ran.lines.values() for line in lines)


def test_the_peak_is_that_of_the_whole_run(ran):
    """A script may reset its own, as those do that print each step's."""
    for rank in range(RANKS):
        (shown,) = re.findall(
            rf"^ +{rank} .* (\d+\.\d\d) +\d+\.\d\d +\S+ +\d+ *$", ran.errors, re.M
        )
        peak, later = ran.lines[rank][-2].split()[1:]
        assert float(later) < float(peak) == float(shown)


def test_the_timeline_shows_kernels_and_collectives_of_every_rank(ran, folder):
    events = json.loads((folder / "p.json").read_text())["traceEvents"]
    names = {(event["pid"], event["name"]) for event in events if event["ph"] == "X"}
    for rank in range(RANKS):
        assert (rank, "all_reduce") in names
        assert (rank, "aten.addmm.default") in names


def test_scheduling_and_what_starts_it_change_nothing(ran, folder):
    (folder / "prepare.py").write_text(
        "import os, pathlib, torch\npathlib.Path('ready' + os.environ['RANK']).touch()\n"
    )
    (folder / "train.sh").write_text("""
export WORLD=$(python -c "import torch; print(torch.cuda.device_count())")
cd "$(dirname "$0")" && rm -f ready$RANK && python prepare.py && test -f ready$RANK || exit 9
cd / && torchrun --nproc_per_node $WORLD "$@" && python "$@"
""")
    before = ("srun", "-n", str(RANKS), "bash", str(folder / "train.sh"))
    again = live(folder, "--cores", "1", before=before)
    assert again.code == 0, again.errors
    assert again.lines == ran.lines


def test_a_command_that_only_prepares_trains_nothing(folder):
    (folder / "prepares.sh").write_text("python -c 'print(1)' && python $1")
    (folder / "nothing.py").write_text("import torch\n")
    script = ("live", "--world-size", "1", "--", "prepares.sh", "nothing.py")
    done = run_python("-m", "trainscout", *script, cwd=folder, environment=environment())
    assert done.returncode == 2, done.stderr
    assert "prepares.sh: trains nothing" in done.stdout + done.stderr


@pytest.mark.parametrize("alone", ["", "evaluates"])
def test_a_script_ends_after_as_many_steps_as_are_asked_for(folder, alone):
    ended = live(folder, "--steps", "2", "--ranks", "0,2", script=(alone,))
    assert ended.code == 0, ended.errors
    for rank in (0, 2):
        assert [line[:6] for line in ended.lines[rank][1:]] == ["step 0", "step 1"]


def test_a_script_that_fails_ends_the_run_with_its_error(folder):
    failed = live(folder, script=("fail",))
    assert failed.code == 1
    assert "ValueError: rank 2 had enough" in failed.lines[2]
    assert "live: rank 2 ended with code 1" in failed.errors


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (["--ranks", "0,9"], "--ranks"),
        (["--gpu", "h8000"], "--gpu=h8000: .*did you mean 'h800'"),
        (["--framework", "torch"], "--framework=torch"),
        (["--network", "flow", "--topology", "torus"], "--topology=torus"),
        (["--cluster", "h800"], "--cluster"),
        (["--network", "packets"], "--network"),
        (["--host", "wall"], "--host"),
        (["--all", "--ranks", "0"], "--all"),
        (["--steps", "0"], "--steps"),
    ],
)
def test_wrong_options_are_refused_at_once(folder, capsys, options, field):
    path = folder / "empty.py"
    path.write_text("")
    assert main(["--world-size", "4", *options, "--", str(path)]) == 2
    assert re.search(field, capsys.readouterr().err)


def test_a_script_that_is_not_there_is_refused_at_once(capsys):
    assert main(["--world-size", "4", "--", "nowhere.py"]) == 2
    assert "script=nowhere.py: is no file" in capsys.readouterr().err


def test_without_a_cluster_gpus_are_in_their_usual_servers():
    gpus = load_catalogue().gpus
    assert _usual_cluster(12, gpus["h100"]) == "16xh100"
    assert _usual_cluster(2, gpus["gb200"]) == "2xgb200"
    assert _usual_cluster(12, None) == "h800_96"
