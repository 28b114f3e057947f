"""Gathers of what ranks cut from a tensor that all of them know."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from tests.simulators.virtual_cluster.emulation.sections import emulate
from tests.simulators.virtual_cluster.emulation.values.rank import FakeRank
from trainscout.simulators.virtual_cluster.emulation.values import Exchange

MEMBERS, LENGTH = 4, 6
WHOLE = torch.arange(2 * MEMBERS * LENGTH).reshape(2, MEMBERS * LENGTH)
Cutting = Callable[[torch.Tensor, int], torch.Tensor]

PARTS: dict[str, Cutting] = {
    "as it lies": lambda whole, at: whole.chunk(MEMBERS, 1)[at],
    "copied": lambda whole, at: whole.chunk(MEMBERS, 1)[at].contiguous(),
    "narrower": lambda whole, at: whole.narrow(1, at * LENGTH, LENGTH).to(torch.int32).long(),
    "reshaped": lambda whole, at: whole.view(2, MEMBERS, LENGTH)[:, at].clone(),
    "written": lambda whole, at: torch.empty_like(whole[:, :LENGTH]).copy_(
        whole[:, at * LENGTH : (at + 1) * LENGTH]
    ),
}
OTHERS: dict[str, Cutting] = {
    "another's": lambda whole, at: whole.chunk(MEMBERS, 1)[(at + 1) % MEMBERS].clone(),
    "half as long": lambda whole, at: whole[:, at * LENGTH : at * LENGTH + LENGTH // 2].clone(),
    "one": lambda whole, at: whole.reshape(-1)[:MEMBERS].clone()[at : at + 1],
    "written since": lambda whole, at: whole.chunk(MEMBERS, 1)[at].clone().add_(1),
    "filled by each": lambda whole, at: torch.zeros_like(whole).chunk(MEMBERS, 1)[at].fill_(1),
}


def gathered(cutting: Cutting, position: int) -> tuple[torch.Tensor, torch.Tensor, str]:
    """What the member holds and what it takes all to hold together, and of what worth that is."""
    rank = FakeRank()
    whole = rank.enter(WHOLE)
    with rank:
        mine = cutting(whole, position)
        made = [torch.empty_like(mine) for _ in range(MEMBERS)]
    exchange = Exchange("all_gather", "sp", 0, position, MEMBERS)
    rank.values.communicate(exchange, [mine], made)
    with rank:
        together = torch.cat(made, mine.dim() - 1)
    return torch.tensor(rank.read(mine)), torch.tensor(rank.read(together)), rank.grade(together)


@pytest.mark.parametrize("position", [0, 2])
@pytest.mark.parametrize("form", PARTS)
def test_parts_of_a_known_tensor_are_gathered_to_the_whole(form: str, position: int) -> None:
    _, together, grade = gathered(PARTS[form], position)
    assert torch.equal(together, WHOLE)
    assert grade == "expected"


@pytest.mark.parametrize("position", [0, 2])
@pytest.mark.parametrize("form", OTHERS)
def test_what_is_no_part_of_ones_own_is_taken_to_be_everybodys(form: str, position: int) -> None:
    mine, together, grade = gathered(OTHERS[form], position)
    assert torch.equal(together, torch.cat([mine] * MEMBERS, mine.dim() - 1))
    assert grade == "expected"


SCRIPT = """
import torch
import torch.distributed as dist
dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
hosts = dist.new_group(backend="gloo")

def starts(name, parts):
    print(name, int((torch.cat(parts, 1) == 0).nonzero()[:, 1].numel()))

def gathered(mine):
    parts = [torch.empty_like(mine) for _ in range(world)]
    dist.all_gather(parts, mine, group=hosts if mine.device.type == "cpu" else None)
    return parts

whole = torch.arange(1024)[None]
mine = whole.cuda().chunk(world, 1)[rank].cpu()
starts("device, host, device", gathered(mine.cuda()))
starts("host, device", gathered(whole.chunk(world, 1)[rank].contiguous().pin_memory().cuda()))
starts("expanded", gathered(whole.expand(4, -1).chunk(world, 1)[rank].cuda()[:1].clone()))
starts("hosts", gathered(mine))
dist.all_reduce(torch.tensor([2]), group=hosts)
objects = [None] * world
dist.all_gather_object(objects, {"positions": mine, "number": 3})
starts("objects", [each["positions"] for each in objects])
starts("its own", gathered(torch.arange(1024 // world)[None].cuda()))
"""


def test_positions_are_those_of_one_sequence_wherever_its_shards_went(tmp_path: Path) -> None:
    (tmp_path / "shards.py").write_text(SCRIPT)
    ran = emulate(tmp_path, str(tmp_path / "shards.py"), "--world-size", "8")
    for where in ("device, host, device", "host, device", "hosts", "objects"):
        assert f"{where} 1\n" in ran.output
    assert "its own 8\n" in ran.output
    # Others give what this rank holds, as is said.
    assert "1 x all_reduce between hosts = (16,) (expected)" in ran.output
    assert "7 ranks did not run here" in ran.output
