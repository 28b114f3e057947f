"""Objects that only another rank knows."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.simulators.virtual_cluster.emulation.sections import emulate
from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.emulation.distributed.objects import (
    checkpoint_patches,
)
from trainscout.simulators.virtual_cluster.emulation.distributed.peers import Folder, Peers

SCRIPT = """
import torch
import torch.distributed as dist
dist.init_process_group("nccl")
first = dist.get_rank() == 0
told, part = [{"lr": 0.5} if first else None], [None]
dist.broadcast_object_list(told, src=0)
dist.scatter_object_list(part, ["a", "b", "c"] if first else None, src=0)
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=told[0]["lr"])
model(torch.ones(4, 8, device="cuda")).sum().backward()
optimizer.step()
sizes = [None] * 3
dist.all_gather_object(sizes, dist.get_rank())
if first:
    dist.send_object_list(["sent"], dst=1)
else:
    dist.recv_object_list(told, src=0)
print("knows", told, part, sizes)
"""


def test_objects_of_a_rank_that_was_traced_before_are_read(tmp_path: Path) -> None:
    (tmp_path / "objects.py").write_text(SCRIPT)
    script, world = str(tmp_path / "objects.py"), ("--world-size", "3")
    alone = emulate(tmp_path, script, *world, "--rank", "1")
    assert alone.code == 3, alone.output
    where = f"what broadcast_object_list gives at {script}:7 comes from a rank that did not run"
    assert f"gap of the emulator: {where} here: trace that one first" in alone.output
    payloads = ("--payloads", str(tmp_path / "payloads"))
    first = emulate(tmp_path, script, *world, *payloads)
    assert "knows [{'lr': 0.5}] ['a'] [0, 0, 0]" in first.output
    second = emulate(tmp_path, script, *world, "--rank", "1", *payloads, check=True)
    assert second.code == 0, second.output
    # Of the third nobody has heard.
    assert "knows ['sent'] ['b'] [0, 1, 1]" in second.output
    assert "all_gather_object: 1 ranks did not run here" in second.output


def test_a_file_that_holds_no_objects_is_refused(tmp_path: Path) -> None:
    (tmp_path / "objects-00000.jsonl").write_text("3\n")
    with pytest.raises(InputError, match="holds no objects"):
        Folder(tmp_path, 1)
    # Its own is written anew.
    peers = Peers(Folder(tmp_path, 0), 0, (0,), beside=False)
    assert not peers.run
    assert peers.round("told", "it", [0], [1]) == []
    assert Peers(Folder(tmp_path, 1), 1, (1,)).round("told", None, [0], [1]) == [(True, "it")]


def test_a_rank_that_plans_its_checkpoint_alone_asks_none_whether_it_was_written() -> None:
    agreed: list[bool] = []
    made: Any = ModuleType("state_dict_saver")
    peers = SimpleNamespace(run=False, ranks=(0, 1))
    state: Any = SimpleNamespace(peers=peers, agreement=None, world_size=2)

    class Agreement:
        def __enter__(self) -> None:
            agreed.append(True)

        def __exit__(self, *_: object) -> None:
            agreed.append(False)

    state.agreement = Agreement
    made.save_state_dict_async_finalize = lambda *_: agreed.append(state.peers.run)
    checkpoint_patches(state)["megatron.core.dist_checkpointing.strategies.state_dict_saver"](made)
    made.save_state_dict_async_finalize(None)
    assert agreed == [True, False, False]
    state.peers.run = True
    made.save_state_dict_async_finalize(None)
    assert agreed[3:] == [True]
    state.peers.ranks = (0,)
    made.save_state_dict_async_finalize(None)
    assert agreed[4:] == [True, True, False]
