"""The ranks to trace are found from what a script sets up, without training."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.in_process import command
from trainscout.simulators.virtual_cluster.traces.files import read_directory

pytest.importorskip("torch")

run_command = command("run")

SCRIPT = """
import sys
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank, stages = dist.get_rank(), 4
per_stage = dist.get_world_size() // stages
for first in range(per_stage):
    dist.new_group(list(range(first, dist.get_world_size(), per_stage)), group_desc="PIPELINE")
if "fail" in sys.argv:
    raise RuntimeError("no such data set")
model = torch.nn.Linear(8, 8, device="cuda")
print(sys.argv[1:])
model(torch.ones(8, 8, device="cuda"))
if rank == dist.get_world_size() - 1:
    raise RuntimeError("trained")
"""

# Every rank multiplies once more than the one before it, as often as the first one says.
UNEVEN = """
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
times = [1 if dist.get_rank() == 0 else None]
dist.broadcast_object_list(times, 0)
x = torch.ones(8, 8, device="cuda")
for _ in range(times[0] * (1 + dist.get_rank())):
    x = x @ x
"""

# What nobody has installed is not what the last rank fails by.
WITHOUT = """
import torch
import torch.distributed as dist

try:
    import nobody_has_this
except ImportError:
    pass
dist.init_process_group("nccl")
for first in range(2):
    dist.new_group([first, first + 2], group_desc="PIPELINE")
if dist.get_rank():
    raise RuntimeError("no such data set")
torch.nn.Linear(8, 8, device="cuda")(torch.ones(8, 8, device="cuda"))
"""


def test_the_ranks_to_trace_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script, traces = tmp_path / "train.py", tmp_path / "traces"
    script.write_text(SCRIPT)
    options = ["--world-size", "64", "--rank", "auto", "--output", str(traces)]
    options += ["--no-check", "--", script]  # Nothing is trained.
    assert run_command(options) == 0
    assert ranks_in(traces) == [0, 16, 32, 48]
    assert "ranks 16, 32, 48: PIPELINE of 4" in capsys.readouterr().err
    assert run_command([*options, "fail"]) == 1


def test_all_of_few_ranks_are_traced_where_the_last_does_not_what_the_first_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, traces = tmp_path / "train.py", tmp_path / "traces"
    script.write_text(UNEVEN)
    options = ["--world-size", "3", "--rank", "auto", "--output", str(traces)]
    options += ["--no-check", "--", script]  # Nothing is trained.
    assert run_command(options) == 0
    assert ranks_in(traces) == [0, 1, 2]
    assert "ranks 1: the first and the last do unlike things" in capsys.readouterr().err


def test_a_rank_that_cannot_be_set_up_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(WITHOUT)
    options = ["--world-size", "4", "--rank", "auto", "--output", str(tmp_path / "traces")]
    assert run_command([*options, "--no-check", "--", script]) == 1
    why = "rank 3 fails while it is set up: RuntimeError: no such data set"
    assert why in capsys.readouterr().err.splitlines()


def ranks_in(folder: Path) -> list[int]:
    return [trace.header.rank for trace in read_directory(folder)]


# As stages of torch.distributed.pipelining tell each other shapes: the last rank, only set up,
# hears from one that is not traced.
TOLD = """
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
for first in range(2):
    dist.new_group([first, first + 2], group_desc="PIPELINE")
told = [8]
if rank > 1:
    dist.recv_object_list(told, src=rank - 2)
else:
    dist.send_object_list(told, dst=rank + 2)
model = torch.nn.Linear(told[0], 8, device="cuda")
optimizer = torch.optim.SGD(model.parameters())
model(torch.ones(8, 8, device="cuda")).sum().backward()
optimizer.step()
"""


def test_a_rank_is_set_up_when_it_waits_for_an_object(tmp_path: Path) -> None:
    script, traces = tmp_path / "train.py", tmp_path / "traces"
    script.write_text(TOLD)
    options = ["--world-size", "4", "--rank", "auto", "--output", str(traces)]
    assert run_command([*options, "--", script]) == 0
    assert ranks_in(traces) == [0, 2]


# As Megatron's broadcast_data: the last rank, only set up, is told sizes by a leader that is not
# traced.
LED = """
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
for first in range(2):
    dist.new_group([first, first + 2], group_desc="PIPELINE")
leaders = [dist.new_group([first, first + 1]) for first in (0, 2)]
sizes = torch.tensor([[4, 8], [0, 0]][rank % 2], device="cuda")
dist.broadcast(sizes, rank // 2 * 2, group=leaders[rank // 2])
rows, columns = sizes.tolist()
assert (rows, columns) == (4, 8)
model = torch.nn.Linear(columns, 8, device="cuda")
optimizer = torch.optim.SGD(model.parameters())
model(torch.ones(rows, columns, device="cuda")).sum().backward()
optimizer.step()
"""


def test_a_rank_is_set_up_when_it_lacks_what_another_sends(tmp_path: Path) -> None:
    script, traces = tmp_path / "train.py", tmp_path / "traces"
    script.write_text(LED)
    options = ["--world-size", "4", "--rank", "auto", "--output", str(traces)]
    assert run_command([*options, "--", script]) == 0
    assert ranks_in(traces) == [0, 2]
