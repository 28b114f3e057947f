"""The command's entry point: options, scripts and the native part's compiler."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.in_process import command
from tests.simulators.virtual_cluster.emulation.sections import ROOT
from trainscout.simulators.predictor.io.own_process import own_process, packed
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.emulation import native
from trainscout.simulators.virtual_cluster.emulation.launch.programs import torchrun_ranks
from trainscout.simulators.virtual_cluster.emulation.launch.rank_process import (
    RANK_PROCESS,
    RankOptions,
    RanksOptions,
)
from trainscout.simulators.virtual_cluster.traced.tracer import check_installed
from trainscout.simulators.virtual_cluster.traces.events import Phase
from trainscout.simulators.virtual_cluster.traces.files import read_directory

main = command("run")
PLAIN = "import os, torch\nprint('rank', os.environ['RANK'], torch.cuda.device_count())\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--world-size", "8", "--rank", "8"], "--rank=8: '8' is out of range"),
        (["--world-size", "0"], "--world-size=0"),
        (["--world-size", "8", "--gpu", "h80"], "did you mean 'h800'"),
        (["--world-size", "8", "--local-world-size", "0"], "--local-world-size=0"),
        (
            ["--world-size", "8", "--local-world-size", "3"],
            "does not divide 8 ranks (allowed: 2, 8",
        ),
        (["--world-size", "12"], "--local-world-size=8: does not divide 12 ranks (allowed: 6, 12"),
        (["--world-size", "8", "--preload", "torch_,os"], "--preload=torch_: is not installed"),
        (["--world-size", "8", "--", "-m", "no_such.module"], "-m=no_such.module: is not inst"),
        (["--world-size", "8", "--memory-gib", "-1"], "--memory-gib=-1.0"),
        (["--world-size", "8", "--memory-gib", "1e-12"], "--memory-gib=1e-12: is out of range"),
        (["--world-size", "8", "--jobs", "0"], "--jobs=0"),
        (["--world-size", "8", "--profile", "."], "--profile=.: cannot be written"),
        (["--world-size", "8", "--steps", "0"], "--steps=0"),
        (["--world-size", "99999999999"], "--world-size=99999999999: is no number of ranks"),
        (["--world-size", "8", "--moe-imbalance", "hot=2"], "moe_imbalance.hot=2"),
        (["--world-size", "8", "--without", "apx"], "did you mean 'apex'"),
        (["--world-size", "8", "--rank", "0,1", "--trace", "t.gz"], "--output DIR"),
        (
            ["--world-size", "8", "--", "no_such_script.py"],
            "no_such_script.py: is no file and no prog",
        ),
        (["--world-size", "8", "--", "-m"], "names no module"),
        (["--world-size", "8", "--"], "script=: is missing"),
    ],
)
def test_wrong_options_are_refused_at_once(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(PLAIN)
    if "--" not in arguments:
        arguments = [*arguments, "--", "script.py"]
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


def test_other_systems_are_told_where_virtual_gpus_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    for name in ("run", "live"):
        assert command(name)(["--world-size", "8", "--", "script.py"]) == 2
        assert "platform=win32: has no virtual GPUs (allowed: linux)" in capsys.readouterr().err
    with pytest.raises(InputError, match=r"simulator\.name=traced: needs virtual GPUs"):
        check_installed()


def test_ranks_run_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(PLAIN)
    options = ["--world-size", "16", "--rank", "0,9", "--jobs", "2", "--no-check"]
    assert main([*options, "--", "script.py"]) == 0
    assert [trace.header.rank for trace in read_directory(tmp_path / "traces")] == [0, 9]


# Writes what was compiled before, half of it only when the other compiles, too.
COMPILER = """#!/bin/bash
while [ "$1" != -o ]; do shift; done
half=$(($(stat -c %s {compiled}) / 2))
head -c $half {compiled} > "$2"
touch {folder}/$$.begun
while [ $(ls {folder}/*.begun | wc -l) -lt 2 ]; do sleep 0.02; done
tail -c +$((half + 1)) {compiled} >> "$2"
"""


def test_ranks_that_compile_at_once_never_load_half_a_library(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    compiled = native._compiled(native._torch_folder())
    compiler = tmp_path / "compiler"
    compiler.write_text(COMPILER.format(compiled=compiled, folder=tmp_path))
    compiler.chmod(0o755)
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "CXX": str(compiler)}
    code = f"import {native.__name__} as native; print(native.load().device())"
    loading = [
        subprocess.Popen(
            [sys.executable, "-c", code], env={**os.environ, **cache, "PYTHONPATH": str(ROOT)}
        )
        for _ in range(2)
    ]
    assert [each.wait(60) for each in loading] == [0, 0]
    (library,) = (tmp_path / "cache" / "trainscout" / "native").glob("virtual_cuda_*")
    assert library.read_bytes() == compiled.read_bytes()


APART = """
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
model = torch.nn.Linear(8, 8, device="cuda")
optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
for step in range(2):
    model(torch.ones(8, 8, device="cuda")).sum().backward()
    dist.all_reduce(torch.ones(SIZE, device="cuda"))
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(("size", "code"), [("4", 0), ("4 + dist.get_rank()", 4)])
def test_ranks_that_do_not_meet_break_an_invariant(
    size: str,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(APART.replace("SIZE", size))
    options = ["--world-size", "16", "--rank", "0,9"]
    assert main([*options, "--", "script.py"]) == code
    assert ("collectives match" in capsys.readouterr().err) == (code == 4)
    if code:
        assert main([*options, "--no-check", "--", "script.py"]) == 0


SAVES = """
import os
import sys
import torch
from pathlib import Path

model = torch.nn.Linear(8, 8, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), 0.1)
Path("tokens").exists() or Path("tokens").touch()
sys.dont_write_bytecode = False
import own
start = int(open("tokens").read() or 0)
if os.path.exists("saved.pt"):
    start = torch.load("saved.pt")["step"]
for step in range(start, 3):
    model(torch.ones(8, 8, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == LAST and os.environ["RANK"] == "0":
        torch.save({"step": step + 1}, "saved.pt")
"""


@pytest.mark.parametrize(("last", "told"), [(1, True), (9, False)])
def test_a_rank_that_begins_where_another_ended_is_told_why(
    last: int,
    told: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").touch()
    (tmp_path / "script.py").write_text(SAVES.replace("LAST", str(last)))
    options = ["--world-size", "2", "--rank", "0,1", "--output", str(tmp_path / "traces")]
    # What ranks send each other is no file of the script's.
    options += ["--payloads", str(tmp_path / "sent")]
    assert main([*options, "--", "script.py"]) == 0
    problem = (
        "1 optimizer steps, where a rank before it took 3; it read what ranks of this command"
    )
    shown = capfd.readouterr().err
    assert (problem in shown) == told, shown
    assert ("had written: tokens, saved.pt; if that" in shown) == told


def test_a_machine_without_a_compiler_is_told_so(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "script.py").write_text(PLAIN)
    done = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "trainscout",
                "run",
                "--world-size",
                "1",
            ),
            *("--trace", str(tmp_path / "t.gz"), "--", str(tmp_path / "script.py")),
        ],
        env={
            **{name: value for name, value in os.environ.items() if name != "CXX"},
            "PATH": str(tmp_path),
            "XDG_CACHE_HOME": str(tmp_path),
            "PYTHONPATH": str(ROOT),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "no C++ compiler was found" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "t.gz").exists()


def test_a_run_that_trained_nothing_breaks_an_invariant(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "script.py").write_text(PLAIN)
    options = ["--world-size", "8", "--trace", str(tmp_path / "t.gz")]
    assert main([*options, "--", str(tmp_path / "script.py")]) == 4


def test_programs_that_a_script_starts_elsewhere_write_the_trace_where_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "else where").mkdir()
    (tmp_path / "loads.csv").write_text("layer,expert,tokens\n0,0,3\n0,1,1\n")
    (tmp_path / "else where" / "script.py").write_text(TRAINING)
    (tmp_path / "train.sh").write_text("cd 'else where'\ntorchrun script.py\n")
    options = ["--world-size", "16", "--moe-imbalance", "histogram=loads.csv"]
    options += ["--steps", "2", "--no-check"]
    assert main([*options, "--trace", "my traces/a.gz", "--", "train.sh"]) == 0
    assert "trace replay 'my traces/a.gz' --cluster" in capfd.readouterr().err
    (trace,) = read_directory(tmp_path / "my traces" / "a.gz")
    assert trace.header.world_size == 16


@pytest.mark.parametrize(
    ("options", "number"),
    [
        (["run", "--output"], signal.SIGINT),
        (["run", "--output"], signal.SIGTERM),
        (["live", "--traces"], signal.SIGINT),
        (["live", "--traces"], signal.SIGTERM),
    ],
)
def test_a_stopped_run_leaves_nothing_half_written(
    options: list[str], number: signal.Signals, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "script.py").write_text(
        "import time, torch\nprint(torch.cuda.device_count(), 'devices', flush=True)\n"
        "while True:\n    torch.ones(4).cuda()\n    torch.cuda.synchronize()\n"
    )
    command = [sys.executable, "-m", "trainscout", *options, str(tmp_path / "traces")]
    stopped = subprocess.Popen(
        [*command, "--world-size", "1", "--", str(tmp_path / "script.py")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert stopped.stdout is not None
    assert stopped.stdout.readline()
    # As a terminal does, and as Slurm.
    (os.killpg if number == signal.SIGINT else os.kill)(stopped.pid, number)
    _, error = stopped.communicate(timeout=60)
    assert stopped.returncode == 128 + number
    assert b"Traceback" not in error
    assert not (tmp_path / "traces").exists()


def test_a_program_whose_script_was_killed_meanwhile_ends() -> None:
    pytest.importorskip("torch")
    options = RanksOptions((RankOptions(8, 0, 8, "h800", ("script.py",)),))
    command = own_process(RANK_PROCESS, packed(options), "0", "child", "script.py")
    done = subprocess.run(command, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (1, b"")


TRAINING = """
import multiprocessing, time, torch

multiprocessing.Process(target=time.sleep, args=(600,)).start()
model = torch.nn.Linear(64, 64, device="cuda")
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
try:
    for step in range(5):
        print("step", step, flush=True)
        model(torch.ones(8, 64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
except Exception:
    print("taken for a failure", flush=True)
"""


def test_a_script_is_ended_after_the_steps_asked_for(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "script.py").write_text(TRAINING)
    options = ["--world-size", "8", "--steps", "2", "--output", tmp_path / "traces", "--no-check"]
    assert main([*options, "--", tmp_path / "script.py"]) == 0
    shown = capfd.readouterr().out
    assert "taken for a failure" not in shown
    assert "step 3" not in shown
    (trace,) = read_directory(tmp_path / "traces")
    assert {event.step for event in trace.events if isinstance(event, Phase)} == {0, 1}


LINGERS = """
import multiprocessing, os, time
child = multiprocessing.Process(target=time.sleep, args=(600,))
child.start()
print("begun", os.getpid(), child.pid, flush=True)
time.sleep(600)
"""


def test_nothing_is_left_of_a_run_that_was_ended(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "script.py").write_text(LINGERS)
    started = subprocess.Popen(
        [sys.executable, "-m", "trainscout", "run", "--world-size", "8", "--", "script.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert started.stdout is not None
    with started:
        line = next(line for line in started.stdout if line.startswith("begun"))
        started.terminate()
    left = [int(word) for word in line.split()[1:]]
    assert len(left) == 2
    ends_s = time.monotonic() + 20
    while any(_runs(each) for each in left) and time.monotonic() < ends_s:
        time.sleep(0.05)
    assert [each for each in left if _runs(each)] == []


def _runs(process: int) -> bool:
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize(
    ("words", "ranks"),
    [
        ("bin/torchrun --nnodes=2 --nproc_per_node 8 train.py --nnodes 3", 16),
        ("torchrun --nproc-per-node 4 -m train", 4),
        ("torchrun --nnodes 1:4 --nproc-per-node 8 train.py", None),
        ("torchrun --nnodes 2 train.py", None),
        ("train.py --nproc-per-node 8", None),
    ],
)
def test_the_ranks_that_torchrun_would_start(words: str, ranks: int | None) -> None:
    assert torchrun_ranks(words.split()) == ranks
