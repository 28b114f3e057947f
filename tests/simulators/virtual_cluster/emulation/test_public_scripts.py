"""Habits of public training scripts."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.simulators.virtual_cluster.emulation.sections import emulate, emulate_text
from trainscout.simulators.predictor.workload.ir import Streaming, kernel_flops
from trainscout.simulators.virtual_cluster.emulation.report import watch
from trainscout.simulators.virtual_cluster.emulation.unknown_values import Unknown
from trainscout.simulators.virtual_cluster.execution.window import windows
from trainscout.simulators.virtual_cluster.traces.events import (
    BACKWARD,
    FORWARD,
    OPTIMIZER,
    Collective,
    Op,
    Phase,
    Violation,
)
from trainscout.simulators.virtual_cluster.traces.lowering.rules import lower
from trainscout.simulators.virtual_cluster.traces.vocabulary import DTYPE_BYTES

pytest.importorskip("torch")


def test_habits_of_public_scripts(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    options = ("--world-size", "16", "--rank", "11", "--steps", "2")
    run = emulate(tmp_path, "public_habits.py", *options, check=True)
    assert run.code == 0, run.output
    # The spawned process is the traced one; of labels 0..7 modulo 7 two are 0.
    assert "rank 11 loss 1.000 of 6 1.0 tensor(1., device='cuda:3')" in run.output
    assert "not ended" not in run.output
    # Objects that only another rank knows are listed.
    assert "broadcast_object_list = [None]" in run.output
    assert not [event for event in run.trace.events if isinstance(event, Violation)]
    # A closure holds the passes of its step.
    phases = [
        (event.phase, event.step)
        for event in run.trace.events
        if isinstance(event, Phase) and event.phase in (FORWARD, BACKWARD, OPTIMIZER)
    ]
    passes = (FORWARD, BACKWARD, OPTIMIZER)
    assert list(dict.fromkeys(phases)) == [(each, step) for step in (0, 1) for each in passes]
    window = windows({11: run.trace})[11]
    counted = run.trace.events[window.step_start : window.stop]
    (launch,) = [each for each in counted if isinstance(each, Op) and "triton" in each.name]
    lowered = lower(launch)
    assert lowered.estimated
    assert lowered.kernels == (Streaming("launch", "elementwise", 2 * 8 * 16 * 4),)


def test_training_without_modules(tmp_path: Path) -> None:
    run = emulate(tmp_path, "no_modules.py", "--world-size", "1", check=True)
    assert run.code == 3, run.output
    assert "gap of the emulator" in run.output
    assert "kernels of a hub" in run.output
    operations = [event for event in run.trace.events if isinstance(event, Op)]
    assert sum("_fused_sgd_" in each.name for each in operations) == 2
    attention = [each.inputs for each in operations if "attention_fwd" in each.name]
    assert [each[-1] for each in attention] == [
        *["flash3", "flash2"] * 2,
        *["flash3"] * 3,
        *["flash2"] * 4,
    ]
    assert attention[4][3:6] == ("bshd", "causal", (7, 0))
    assert (attention[5][3:5], attention[5][8:11]) == (("thd", "none"), (2, 48, 48))
    assert [each[3:5] for each in attention[6:]] == [
        *[("bshd", "none"), ("bshd", "causal"), ("bshd", "none")],
        *[("thd", "none")] * 2,
    ]
    # Dropout is of training alone.
    assert [each[6] for each in attention[7:]] == [0.0, 0.1, 0.1, 0.0]
    (gradient,) = [each for each in operations if "attention_bwd" in each.name][-1:]
    assert gradient.inputs[-1] == "flash3"
    # Two sequences of up to 48 tokens, of which eight are seen.
    assert attention[1][3:5] == ("thd", "causal")
    assert attention[1][5] == (7, -1)
    assert attention[1][8:11] == (2, 48, 48)
    packed = [each.inputs for each in operations if "_varlen_attn" in each.name]
    assert [each[-1] for each in packed] == [("implementation", "FA3")]
    products = [each for each in operations if "emulated.gemm" in each.name]
    flops = [sum(map(kernel_flops, lower(each).kernels)) for each in products]
    assert flops == [2 * 8 * 32 * 48] * 7
    launches = [each.inputs for each in operations if "triton" in each.name]
    # Two of the script's own, a gated activation and a loss with gradients, positions, norms'.
    assert [len(written) for written, *_ in launches] == [1, 1, 1, 1, 2, 1, 2, 4, 5]


def test_a_rank_that_waits_says_where(capfd: pytest.CaptureFixture[str]) -> None:
    values = [
        Unknown("item", 9, "False", "kmeans.py:62", steers=True),
        Unknown("item", 7, "50", "kmeans.py:8", expected=True, steers=True),
    ]
    recorder: Any = SimpleNamespace(finished_steps=3, unknown_values=lambda: values)
    accounted = [True]
    end = watch(5, recorder, 0.24, lambda: accounted[0])
    time.sleep(0.5)
    # It waits for what others tell of.
    assert not capfd.readouterr().err
    accounted[0] = False
    time.sleep(0.5)
    assert "rank 5 has waited for 0 s: " in (line := capfd.readouterr().err)
    assert "test_public_scripts.py" in line
    assert "kmeans" not in line
    # One that works, but takes no step.
    began_s = time.process_time()
    while time.process_time() < began_s + 0.4:
        pass
    end()
    assert re.search(r"CPU s on step 3: .*test_public_scripts.py", line := capfd.readouterr().err)
    reads = "9 x item = False at kmeans.py:62\n  7 x item = 50 (expected) at kmeans.py:8\n"
    assert reads in line


WAITING = """
import subprocess, sys, time
from types import SimpleNamespace
from trainscout.simulators.virtual_cluster.emulation.report import watch

watch(5, SimpleNamespace(finished_steps=3, unknown_values=list), 0.4, most_waits=3)
if sys.argv[1] == "works":
    busy = "import time\\nwhile time.process_time() < 2.5: pass"
    subprocess.run([sys.executable, "-c", busy])
else:
    time.sleep(60)
"""


@pytest.mark.parametrize(("does", "code"), [("works", 0), ("waits", 1)])
def test_a_rank_whose_processes_wait_too_is_ended(does: str, code: int) -> None:
    command = [sys.executable, "-c", WAITING, does]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert ended.returncode == code, ended.stderr
    assert len(re.findall(r"rank 5 has waited for [01] s: ", ended.stderr)) >= 3


def test_traces_are_read_whatever_types_tensors_have() -> None:
    from trainscout.simulators.virtual_cluster.emulation.tensors.operations import DTYPES

    assert {name: dtype.itemsize for dtype, name in DTYPES.items()} == DTYPE_BYTES


BY_HAND = """
import traceback
import torch

class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, factor, unused):
        return rows * factor

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad

torch.ones(1, device="cuda", requires_grad=True).backward()  # As to warm a device up.
model, buffer = torch.nn.Linear(8, 8).cuda(), torch.zeros(8, device="cuda")
twice = torch.compile(lambda rows: Twice.apply(rows, 2.0, None))
for step in range(5):
    buffer.fill_(step)
    try:
        twice(model(torch.ones(4, 8, device="cuda"))).sum().backward()
    except BaseException:  # As Megatron-LM's straggler detector.
        traceback.print_exc()
        raise RuntimeError("not ended quietly")
    print("step", step)
    with torch.no_grad():
        for each in model.parameters():
            each -= 0.1 * each.grad
            each.grad = None
raise SystemExit("not ended by --steps")
"""


def test_steps_without_an_optimizer_are_counted(tmp_path: Path) -> None:
    options = ("--world-size", "1", "--steps", "2")
    run = emulate_text(tmp_path, "by_hand.py", BY_HAND, *options, check=True)
    assert run.code == 0, run.output
    assert "step 1" in run.output
    assert "ended" not in run.output
    assert "Traceback" not in run.output
    steps = {each.step for each in run.trace.events if isinstance(each, Phase)}
    assert steps == {0, 1}


ZEROTH_ORDER = """
import torch
model = torch.nn.Linear(8, 8).cuda()
model(torch.ones(4, 8, device="cuda"))  # As to look at it before training.
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
for step in range(4):
    for scale in (1, -2, 1, 0.1):
        for each in model.parameters():
            each.data = each.data + scale * torch.randn_like(each)
        if scale != 1:
            with torch.inference_mode():
                model(torch.ones(4, 8, device="cuda")).sum()
    rates.step()
raise SystemExit("not ended by --steps")
"""


def test_steps_of_forward_passes_alone_are_cut_where_the_learning_rate_changes(
    tmp_path: Path,
) -> None:
    options = ("--world-size", "1", "--steps", "3")
    run = emulate_text(tmp_path, "zeroth.py", ZEROTH_ORDER, *options, check=True)
    assert run.code == 0, run.output
    window = windows({0: run.trace})[0]
    counted = [each for each in run.trace.events[window.step_start :] if isinstance(each, Op)]
    assert sum("addmm" in each.name for each in counted) == 2
    # Four assignments of two parameters: the last step's, but for the first of the one after it.
    assert sum("randn" in each.name for each in counted) == 8


# Shards of FSDP2 updated by hand; an update that another process made, as DeepSpeed's SuperOffload
# does, comes back into what ZeRO-3 holds beside an emptied parameter.
SHARDS_BY_HAND = """
import torch
from torch.distributed.fsdp import fully_shard

torch.distributed.init_process_group("nccl")
model = torch.nn.Linear(64, 64, device="cuda")
if HELD == "fsdp2":
    fully_shard(model)
for step in range(5):
    model(torch.ones(4, 64, device="cuda")).sum().backward()
    print("step", step)
    with torch.no_grad():
        for each in model.parameters():
            if HELD == "zero3":
                each.ds_tensor = each.detach().clone()
                each.grad, kept, each.data = None, each.data, torch.empty(0, device="cuda")
                each.ds_tensor.copy_(torch.zeros(each.ds_tensor.shape))
                each.data = kept
            else:
                each.sub_(0.1 * each.grad)
                each.grad = None
raise SystemExit("not ended by --steps")
"""


@pytest.mark.parametrize("held", ["fsdp2", "zero3"])
def test_steps_that_write_shards_are_counted(tmp_path: Path, held: str) -> None:
    options = ("--world-size", "2", "--steps", "2")
    run = emulate_text(tmp_path, "by_hand.py", f"HELD = {held!r}\n{SHARDS_BY_HAND}", *options)
    assert run.code == 0, run.output
    assert "step 1" in run.output
    assert "not ended" not in run.output


CHECKPOINTS = """
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

torch.distributed.init_process_group("nccl")
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64)).cuda()
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    model(torch.ones(4, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    for move in (dcp.save, dcp.load):
        weights, states = get_state_dict(model, optimizer)
        kept = {"weights": weights, "states": states}
        move(kept, checkpoint_id="kept")
    set_state_dict(
        model, optimizer, model_state_dict=kept["weights"], optim_state_dict=kept["states"]
    )
    print("kept", step)
"""


@pytest.mark.parametrize("rank", [0, 3])
def test_shards_are_saved_and_loaded_where_other_ranks_do_not_run(
    tmp_path: Path, rank: int
) -> None:
    options = ("--world-size", "4", "--rank", str(rank), "--steps", "2")
    run = emulate_text(tmp_path, "checkpoints.py", CHECKPOINTS, *options, check=True)
    assert run.code == 0, run.output
    assert "kept 0" in run.output


CLOSED_TWICE = """
import os, resource, torch
resource.setrlimit(resource.RLIMIT_NOFILE, (MOST, MOST))
def train():
    # As buffers mapped into memory do: the file closes its number once more when it goes.
    file = open(os.devnull)
    os.close(file.fileno())
    model = torch.nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD(model.parameters())
    for step in range(3):
        model(torch.ones(4, 8, device="cuda")).sum().backward()
        optimizer.step()
train()
"""


@pytest.mark.parametrize("most_files", [200, 1024])
def test_files_that_a_script_closes_twice_are_its_own(tmp_path: Path, most_files: int) -> None:
    run = emulate_text(
        tmp_path,
        "twice.py",
        CLOSED_TWICE.replace("MOST", str(most_files)),
        "--world-size",
        "1",
        "--steps",
        "2",
    )
    assert run.code == 0, run.output
    assert "Traceback" not in run.output


GRAPH = """
import torch
import torch.distributed as dist
dist.init_process_group("nccl")
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.AdamW(model.parameters(), capturable=True)
rows, graph = torch.ones(4, 8, device="cuda"), torch.cuda.CUDAGraph()
def step():
    model(rows).sum().backward()
    for each in model.parameters():
        dist.all_reduce(each.grad)
    optimizer.step()
step()
with torch.cuda.graph(graph):
    step()
while True:
    rows.copy_(torch.ones(4, 8))
    graph.replay()
"""


def test_replays_of_a_graph_launch_what_was_captured(tmp_path: Path) -> None:
    options = ("--world-size", "8", "--steps", "4")
    run = emulate_text(tmp_path, "graph.py", GRAPH, *options, check=True)
    assert run.code == 0, run.output
    events = run.trace.events
    assert not [event for event in events if isinstance(event, Violation)]
    # The capture itself runs nothing: numbers go on without a gap.
    launched = [event for event in events if isinstance(event, Collective)]
    assert [event.sequence for event in launched] == list(range(4 * 2))
    assert len({event.work for event in launched}) == 4 * 2
    steps: dict[int, list[str]] = {}
    at = 0
    for event in events:
        if isinstance(event, Phase):
            at = event.step
        elif isinstance(event, Op) and "copy" not in event.name:
            steps.setdefault(at, []).append(event.name)
    # From the second on, gradients are there to be added to.
    assert steps[1] == steps[2] == steps[3] != []
