"""Keys of a store that another rank sets."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.simulators.virtual_cluster.emulation.sections import emulate, emulate_text

SCRIPT = """
import sys
import torch.distributed as dist
dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
store = dist.TCPStore("localhost", 29555, size, rank == 0)
for prefix in ("", "later/"):
    named = dist.PrefixStore(prefix, store)
    named.set(f"address_{rank}", f"node{rank}")
    named.wait([f"address_{other}" for other in range(size)])
    print("knows", [named.get(f"address_{other}") for other in range(size)])
print("counts", store.add("arrived", 1))
if rank == 0:
    store.set("identifier", "of the first")
print("told", store.get("identifier"))
"""


def test_keys_of_ranks_that_do_not_run(tmp_path: Path) -> None:
    (tmp_path / "keys.py").write_text(SCRIPT)
    script, world = str(tmp_path / "keys.py"), ("--world-size", "3", "--rank", "1")
    alone = emulate(tmp_path, script, *world)
    assert alone.code == 3, alone.output
    assert alone.output.count("knows [b'node1', b'node1', b'node1']") == 2
    same = "nobody set 'later//address_2'; taken for what this rank set as 'later//address_1'"
    assert same in alone.output
    assert "of key 'arrived' what this rank alone added" in alone.output
    assert "store.get=identifier: is a key that only another rank sets" in alone.output
    assert "trainscout live" in alone.output
    payloads = ("--payloads", str(tmp_path / "payloads"))
    assert "told b'of the first'" in emulate(tmp_path, script, *world[:2], *payloads).output
    second = emulate(tmp_path, script, *world, *payloads)
    assert second.code == 0, second.output
    assert "told b'of the first'" in second.output
    assert "knows [b'node0', b'node1', b'node1']" in second.output


POLLING = """
import torch.distributed as dist
from torch.distributed.rendezvous import TCPStore

dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
store = STORE
store.set(f"ready_{rank}", "1")
while not store.check([f"ready_{other}" for other in range(size)]):
    pass
print("all ready")
if rank == 0:
    store.set("go", "1")
while not store.check(["go"]):
    pass
print("gone")
"""


@pytest.mark.parametrize(
    "store", ['TCPStore("localhost", 29555, size, rank == 0)', 'dist.FileStore("keys", size)']
)
def test_a_loop_that_polls_ends(tmp_path: Path, store: str) -> None:
    (tmp_path / "polls.py").write_text(POLLING.replace("STORE", store))
    words = (str(tmp_path / "polls.py"), "--world-size", "3")
    alone = emulate(tmp_path, *words, "--rank", "1")
    assert alone.code == 3, alone.output
    assert "all ready" in alone.output
    assert "store.get=go: is a key that only another rank sets" in alone.output
    payloads = ("--payloads", str(tmp_path / "payloads"))
    for rank in ("0", "1"):
        run = emulate(tmp_path, *words, "--rank", rank, *payloads)
        assert run.code == 0, run.output
        assert "gone" in run.output


ASKING = """
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
store = dist.TCPStore("localhost", 29555, dist.get_world_size(), dist.get_rank() == 0)
model = torch.nn.Linear(64, 64, device="cuda")
for micro_batch in range(16):
    assert not store.check(["preempted"])
    model(torch.ones(4, 64, device="cuda")).sum().backward()
print("trained")
"""


def test_a_flag_that_training_looks_at_is_no_loop_that_waits(tmp_path: Path) -> None:
    run = emulate_text(tmp_path, "asks.py", ASKING, "--world-size", "2")
    assert run.code == 0, run.output
    assert "trained" in run.output
