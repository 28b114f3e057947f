"""Processes that a training script starts: those that are ranks, workers, and others."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.simulators.virtual_cluster.emulation.sections import emulate, emulate_text
from trainscout.simulators.virtual_cluster.emulation.launch.programs import waits_for_program
from trainscout.simulators.virtual_cluster.traces.events import Begin, Phase
from trainscout.simulators.virtual_cluster.traces.fused import ASIDE

pytest.importorskip("torch")


SPAWNED = """
import multiprocessing
import torch
import flash_attn.bert_padding
from torch.utils.data import DataLoader, TensorDataset
if __name__ == "__main__":
    assert flash_attn.bert_padding.rearrange(torch.ones(2, 3), "a b -> (a b)").shape == (6,)
    rows = TensorDataset(torch.ones(300, 300), torch.arange(300))
    context = multiprocessing.get_context("%s")
    model = torch.nn.Linear(300, 1).cuda()
    optimizer = torch.optim.SGD(model.parameters())
    for inputs, places in DataLoader(rows, 100, num_workers=1, multiprocessing_context=context):
        assert places.sum() == sum(range(int(places[0]), int(places[0]) + 100))
        model(inputs.cuda()).sum().backward()
        optimizer.step()
else:
    assert torch.cuda.is_available()
    # Models that make data are real there.
    assert torch.nn.Linear(4, 4)(torch.ones(4)).device.type == "cpu"
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_new_interpreters_of_a_script_have_what_it_imports(tmp_path: Path, method: str) -> None:
    pytest.importorskip("einops")
    run = emulate_text(tmp_path, "spawned.py", SPAWNED % method, "--world-size", "1")
    assert run.code == 0, run.output


# As libraries of reinforcement learning do: a learner of its own, actors that use the device too,
# and a parent that waits for what nobody sends once the steps that were asked for are over.
LEARNER = """
import multiprocessing, sys, torch
case, method = "%s", "%s"

def act(ours, theirs):
    layer = ours.recv()
    assert layer.weight.is_cuda and layer(torch.ones(2, 4).cuda()).shape == (2, 4)
    theirs.send("acted")

class Learner(multiprocessing.get_context(method).Process):
    def __init__(self, *pipes):
        super().__init__()
        self.pipes = pipes

    def run(self):
        actor, parent = self.pipes
        layer = torch.nn.Linear(4, 4).cuda()
        optimizer = torch.optim.SGD(layer.parameters())
        actor.send(layer)
        assert actor.recv() == "acted"
        for step in range(1 if case == "failing" else 3):
            layer(torch.ones(2, 4).cuda()).sum().backward()
            optimizer.step()
        if case == "failing":
            raise ValueError("after a step")
        parent.send("over")

if __name__ == "__main__":
    if case == "late":
        torch.ones(2).cuda()
    pipes = [multiprocessing.Pipe() for _ in range(2)]
    actor = multiprocessing.get_context(method).Process(target=act, args=(pipes[0][1],) * 2)
    learner = Learner(pipes[0][0], pipes[1][1])
    actor.start()
    learner.start()
    if case != "failing":
        pipes[1][0].recv()
    learner.join()
    sys.exit(learner.exitcode)
"""


@pytest.mark.parametrize(
    ("case", "method", "options", "code", "steps"),
    [
        ("whole", "fork", (), 0, 3),
        ("whole", "spawn", (), 0, 3),
        ("two steps", "forkserver", ("--steps", 2), 0, 2),
        ("failing", "fork", (), 1, 1),
    ],
)
def test_a_process_that_trains_is_the_rank(
    case: str, method: str, options: tuple[str, ...], code: int, steps: int, tmp_path: Path
) -> None:
    (tmp_path / "learner.py").write_text(LEARNER % (case, method))
    script = str(tmp_path / "learner.py")
    run = emulate(tmp_path, script, "--world-size", "1", *options, check=True)
    assert run.code == code, run.output
    done = {each.step for each in run.trace.events if isinstance(each, Phase)}
    assert done == set(range(steps))


POOL = """
import torch
from concurrent.futures import ProcessPoolExecutor

def train(number):
    layer = torch.nn.Linear(4, 4).cuda()
    optimizer = torch.optim.SGD(layer.parameters())
    for step in range(3):
        layer(torch.ones(2, 4).cuda()).sum().backward()
        optimizer.step()

if __name__ == "__main__":
    with ProcessPoolExecutor(4) as pool:
        list(pool.map(train, range(8)))
"""


def test_one_of_several_processes_that_train_is_the_rank(tmp_path: Path) -> None:
    (tmp_path / "pool.py").write_text(POOL)
    script = str(tmp_path / "pool.py")
    run = emulate(tmp_path, script, "--world-size", "1", "--steps", "2", check=True)
    assert run.code == 0, run.output
    assert {each.step for each in run.trace.events if isinstance(each, Phase)} == {0, 1}


def test_a_process_forked_of_one_that_used_the_device_cannot(tmp_path: Path) -> None:
    run = emulate_text(tmp_path, "learner.py", LEARNER % ("late", "fork"), "--world-size", "1")
    assert run.code == 3, run.output
    assert "cuda=asked for by a process of the script: only the process that is" in run.output


def test_a_gpu_that_the_node_lacks_is_told_with_the_option(tmp_path: Path) -> None:
    layer = "torch.nn.DataParallel(torch.nn.Linear(8, 8).cuda(), device_ids=[0, 1])"
    few = emulate_text(
        tmp_path, "two.py", f"import torch\n{layer}(torch.ones(4, 8))\n", "--world-size", "1"
    )
    assert few.code == 1
    assert few.output.index("_get_stream") < few.output.index("--world-size N gives it N")


RANKS = """
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from apex.parallel.LARC import LARC

def train(rank, world_size):
    dist.init_process_group("nccl", rank=rank, world_size=world_size, init_method="env://")
    model = torch.nn.Linear(8, 8).cuda()
    optimizer = LARC(torch.optim.AdamW(model.parameters(), weight_decay=0.1))
    model(torch.ones(4, 8, device="cuda")).sum().backward()
    optimizer.step()
    assert optimizer.param_groups[0]["weight_decay"] == 0.1
    print(f"rank {rank} trained")

if __name__ == "__main__":
    ranks = [mp.Process(target=train, args=(rank, 8)) for rank in range(8)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()
    print(f"all {[each.exitcode for each in ranks]}")
"""


OF_A_LIBRARY = """
    def launched(port, settings, world_size):
        train(settings.rank, world_size)
    launched.__module__ = "library"
    settings = [argparse.Namespace(rank=rank) for rank in range(8)]
    ranks = [mp.Process(target=launched, args=("29500", each, 8)) for each in settings]
"""
IN_NEW_INTERPRETERS = """
    train.__module__, new = "library.training", mp.get_context("spawn")
    ranks = [new.Process(target=train, args=(rank, 8)) for rank in range(8)]
"""


@pytest.mark.parametrize("started", ["", OF_A_LIBRARY, IN_NEW_INTERPRETERS])
def test_processes_that_are_ranks_run_the_traced_one(tmp_path: Path, started: str) -> None:
    line = next(line for line in RANKS.splitlines() if "ranks = " in line)
    text = "import argparse" + RANKS.replace(line, started or line)
    options = ("--world-size", "8", "--rank", "3")
    run = emulate_text(tmp_path, "ranks.py", text, *options, check=True)
    assert run.code == 0, run.output
    assert run.output.count(" trained") == run.output.count("rank 3 trained") == 1
    assert f"all {[0] * 8}" in run.output


WORKERS = """
import torch
import torch.multiprocessing as mp
from torch.nn.functional import normalize

class Model(torch.jit.ScriptModule):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)

    @torch.jit.script_method
    def forward(self, rows):
        return normalize(self.inner(rows), dim=-1, p=2.0)

model = Model().cuda()
assert model.inner.weight.share_memory_().is_shared()
model.share_memory()
def outside(worker, model):
    optimizer = torch.optim.SGD(model.parameters())
    while True:
        model(torch.ones(4, 8, device="cuda")).sum().backward()
        optimizer.step()
        print(f"worker {worker} trained")
outside.__module__ = "library"
workers = [mp.Process(target=outside, args=(worker, model)) for worker in range(3)]
for each in workers:
    each.start()
for each in workers:
    each.join()
"""


def test_a_worker_that_shares_the_model_is_traced(tmp_path: Path) -> None:
    options = ("--world-size", "1", "--steps", "2")
    run = emulate_text(tmp_path, "workers.py", WORKERS, *options, check=True)
    assert run.code == 0, run.output
    assert run.output.count(" trained") == run.output.count("worker 0 trained") == 2
    # What is written for TorchScript is compiled, with the defaults that Python has.
    fused = [each for each in run.trace.events if isinstance(each, Begin) and each.kind != ASIDE]
    assert [each.name for each in fused][::2] == 2 * ["Model.forward"]


TRAINING = """
import os, torch
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters())
for _ in range(3):
    model(torch.ones(4, 8, device="cuda")).sum().backward()
    optimizer.step()
print("trained as", os.environ["RANK"], "of", os.environ["WORLD_SIZE"])
"""
STARTED_BY = {
    # What a script sees of the node, a launcher, and what cannot run once training has ended.
    "train.sh": """
devices=$(python -c "import torch; print(torch.cuda.device_count())")
torchrun --nproc_per_node $devices training.py || exit 7
python training.py
srun -J test -D /tmp -N 4 --mpi none python -c "import torch; print('evaluated')"
cat no_such_checkpoint
""",
    # An option without a value, and a folder called as the program.
    "in_container.sh": """
mkdir python
srun --container-name test --container-mount-home python training.py || exit 7
rmdir python
""",
    # A rank of low-rank adapters, and code beside its option.
    "adapters.sh": """
python -c"import runpy; runpy.run_path('training.py')" --rank 16 || exit 7
""",
    "read.sh": """
python -u - --local_rank 3 <<EOF || exit 7
$(cat training.py)
EOF
""",
    "replaced.py": """
import os, sys
os.execv(sys.executable, [sys.executable, "-m", "torch.distributed.run", "training.py"])
""",
    "launched.sh": """
sed '1i import sys; assert sys.argv[1:] == ["--local_rank=3"]' training.py > early.py
python -m torch.distributed.launch --nproc_per_node 8 early.py
rm early.py
""",
    "one_by_one.py": """
import os, subprocess, sys
places = [dict(os.environ, PYTHONPATH="", LOCAL_RANK=str(rank)) for rank in range(8)]
ranks = [subprocess.Popen(["python", "training.py"], env=each) for each in places]
assert [each.wait() for each in ranks] == 8 * [0]
""",
    "function.py": """
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
elastic_launch(LaunchConfig(1, 1, 8), lambda text: exec(text))(open("training.py").read())
""",
}


@pytest.mark.parametrize("name", STARTED_BY)
def test_training_is_traced_whatever_starts_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "training.py").write_text(TRAINING)
    (tmp_path / name).write_text(STARTED_BY[name])
    options = ("--world-size", "16", "--rank", "3", "--steps", "2")
    run = emulate(tmp_path, str(tmp_path / name), *options, check=True, cold=name == "launched.sh")
    assert run.code == 0, run.output
    assert (run.trace.header.rank, run.trace.header.world_size) == (3, 16)
    steps = {each.step for each in run.trace.events if isinstance(each, Phase)}
    assert steps == {0, 1}
    assert not run.output.count("evaluated")
    # An end before its time leaves nothing half-written.
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [name, "training.py", f"{Path(name).stem}.trace.gz"]
    )


@pytest.mark.parametrize(
    ("line", "code"),
    [("exit(9)", 1), ("import torch.distributed.rpc as rpc; rpc.init_rpc('a')", 3)],
)
def test_a_program_that_fails_fails_the_run(
    line: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "failing.py").write_text(f"import torch\n{line}")
    (tmp_path / "train.sh").write_text("python failing.py\n")
    run = emulate(tmp_path, str(tmp_path / "train.sh"), "--world-size", "8", check=True)
    assert run.code == code, run.output


@pytest.mark.parametrize(
    ("first", "waits"),
    [
        ("#!/bin/bash", True),
        ("#!/bin/bash\npython train.py", True),
        ("#!/bin/sh\n'''exec' /long/python \"$0\" \"$@\"\n' '''", False),
        ("#!/usr/bin/env python", False),
        ("import torch", False),
    ],
)
def test_only_programs_that_are_no_python_are_waited_for(
    first: str, waits: bool, tmp_path: Path
) -> None:
    (tmp_path / "train").write_text(first)
    assert waits_for_program([str(tmp_path / "train")]) is waits
    assert not waits_for_program(["-m", "train"])


def test_composer_runs_its_script_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainscout.simulators.virtual_cluster.emulation.launch.script_processes import (
        launch_patches,
    )

    monkeypatch.setattr(os, "environ", {**os.environ, "WHERE": "here"})
    for name in ("argv", "path"):
        monkeypatch.setattr(sys, name, list(getattr(sys, name)))
    script = tmp_path / "train.py"
    script.write_text("import os, sys\nprint(sys.argv[1:], os.environ['NODE_RANK'])\n")
    asked = SimpleNamespace(
        module_mode=False, training_script=str(script), training_script_args=["folder=$WHERE"]
    )
    # Of several nodes it asks which one this is.
    module = SimpleNamespace(_parse_args=lambda: os.environ["NODE_RANK"] == "1" and asked)
    state: Any = SimpleNamespace(world_size=16, rank=9, local_world_size=8)
    launch_patches(state)["composer.cli.launcher"](module)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        module.main()
    assert said.getvalue() == "['folder=here'] 1\n"
