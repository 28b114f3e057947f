"""What ranks that run together hand each other, and whose word is taken where some do not run."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.warm.session import ROOT, environment, run_python  # noqa: E402
from trainscout.simulators.virtual_cluster.emulation.distributed.combine import (  # noqa: E402
    combine,
    fill,
)
from trainscout.simulators.virtual_cluster.emulation.distributed.peers import (  # noqa: E402
    decode,
    encode,
)

SCRIPT = """
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

dist.init_process_group("cpu:gloo,cuda:nccl")
rank, size = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank)
device = torch.device("cuda", rank)
objects = [None] * size
dist.all_gather_object(objects, {"rank": rank, "on_device": torch.ones(rank + 2, device=device)})
sizes = {str(each["on_device"].device): len(each["on_device"]) for each in objects}
assert sizes == {f"cuda:{rank}": 3} and len(objects[0]["on_device"]) == 2, sizes
scattered, told = [None], [f"by {rank}"]
dist.scatter_object_list(scattered, list("abcd"[:size]) if rank == 1 else None, src=1)
dist.broadcast_object_list(told, src=size - 1)
total, most = torch.tensor([rank, 1], device=device), torch.tensor(rank, device=device)
dist.all_reduce(total)
dist.all_reduce(most, op=dist.ReduceOp.MAX)
rows = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(size)]
dist.all_gather(rows, torch.tensor([10 * rank], device=device))
counts = torch.tensor([100 * rank + to for to in range(size)], device=device)
came = torch.empty_like(counts)
dist.all_to_all_single(came, counts)
shape, before = torch.tensor([rank, 2], device=device), torch.zeros(2, dtype=int, device=device)
both = [
    dist.P2POp(dist.irecv, before, (rank - 1) % size),
    dist.P2POp(dist.isend, shape, (rank + 1) % size),
]
for work in dist.batch_isend_irecv(both):
    work.wait()
host = torch.tensor([rank])
dist.all_reduce(host)
store = dist.distributed_c10d._get_default_store()
if rank == size - 1:
    store.set("identifier", f"of {rank}")
store.wait(["identifier"])
assert store.get("identifier") == f"of {size - 1}".encode()
print([each["rank"] for each in objects], scattered, told, total.tolist(), most.item(),
      [int(row) for row in rows], came.tolist(), before.tolist(), host.tolist())
if size == dist.get_world_size():
    # Stages tell each other the shapes that they hand on.
    layer = torch.nn.Linear(16 + rank, 17 + rank).to(device)
    stage = PipelineStage(layer, rank, size, device)
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=torch.nn.MSELoss())
    given = [torch.randn(8, 16, device=device)] if rank == 0 else []
    target = torch.randn(8, 16 + size, device=device) if rank == size - 1 else None
    out = schedule.step(*given, target=target)
    print("out", None if out is None else tuple(out.shape))
"""


def live(folder: Path, *options: str) -> list[str]:
    path = folder / "exchange.py"
    path.write_text(SCRIPT)
    command = ["-m", "trainscout", "live", "--world-size", "2", *options, "--", str(path)]
    done = run_python(*command, cwd=ROOT, environment=environment())
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(done.stdout.splitlines())


def test_values_and_objects_travel(tmp_path: Path) -> None:
    lines = live(tmp_path)
    assert lines == [
        "[rank 0] [0, 1] ['a'] ['by 1'] [1, 2] 1 [0, 10] [0, 100] [1, 2] [1]",
        "[rank 0] out None",
        "[rank 0] warning: rank 0 took no optimizer step",
        "[rank 1] [0, 1] ['b'] ['by 1'] [1, 2] 1 [0, 10] [1, 101] [0, 2] [1]",
        "[rank 1] out (8, 18)",
        "[rank 1] warning: rank 1 took no optimizer step",
    ]


SAVES = """
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch.distributed.fsdp import fully_shard

dist.init_process_group("cpu:gloo,cuda:nccl")
torch.cuda.set_device(dist.get_rank())
model = torch.nn.Linear(8, 8).cuda()
fully_shard(model)
checkpoint.save(model.state_dict(), checkpoint_id="saved")
print("saved", dist.get_rank())
"""


@pytest.mark.parametrize("ranks", [(0,), (0, 1)])
def test_checkpoints_are_saved_without_ranks_that_do_not_run(
    tmp_path: Path, ranks: tuple[int, ...]
) -> None:
    (tmp_path / "saves.py").write_text(SAVES)
    options = ["--world-size", "2", "--ranks", ",".join(map(str, ranks)), "--", "saves.py"]
    path = {"PYTHONPATH": str(ROOT)}
    words = ("-m", "trainscout", "live", *options)
    done = run_python(*words, cwd=tmp_path, environment=environment() | path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(f"saved {rank}\n" in done.stdout for rank in ranks)
    assert len(list((tmp_path / "saved").glob("*.distcp"))) == len(ranks)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("all_reduce", [[4, 6, 8, 10]]),
        ("all_gather", [[0, 1, 2, 3, 4, 5, 6, 7]]),
        ("broadcast", [[4, 5, 6, 7]]),
        ("reduce_scatter", [[8, 10]]),
        ("all_to_all", [[2, 3, 6, 7]]),
    ],
)
def test_collectives_by_hand(kind: str, expected: list[list[int]]) -> None:
    given = [[torch.arange(4)], [torch.arange(4, 8)]]
    outputs = [torch.zeros(len(each), dtype=torch.int64) for each in expected]
    fill(outputs, combine(kind, given, 1, 1, "sum"))
    assert [each.tolist() for each in outputs] == expected


def test_reductions_by_hand() -> None:
    given = [[torch.tensor([1.0, 5.0])], [torch.tensor([3.0, 1.0])]]
    found = {
        name: combine("all_reduce", given, 0, None, name)[0].tolist()
        for name in ("sum", "avg", "max", "min", "product")
    }
    assert found == {
        "sum": [4.0, 6.0],
        "avg": [2.0, 3.0],
        "max": [3.0, 5.0],
        "min": [1.0, 1.0],
        "product": [3.0, 5.0],
    }


@pytest.mark.parametrize(
    ("counts", "members", "reduction", "expected"),
    [
        ([0, 3, 0, 0], 4, "sum", [3, 3, 3, 3]),
        ([0, 3, 0, 0], 4, "max", [3, 3, 3, 3]),
        ([0, 3, 0, 0], 4, "min", [0, 3, 0, 0]),
        ([3, 0, 0, 0], 4, "sum", [12, 0, 0, 0]),  # another one's place
        ([0, 3, 1, 0], 4, "sum", [0, 12, 4, 0]),
        ([0, 3, 0, 0], 8, "sum", [0, 24, 0, 0]),
        ([0, 0, 3, 4, 0, 0], 3, "sum", [3, 4, 3, 4, 3, 4]),
        ([0, 3], 2, "sum", [0, 6]),
        ([0.0, 3.0], 2, "sum", [0.0, 6.0]),
        ([0.0, 3.0, 0.0], 3, "sum", [3.0, 3.0, 3.0]),
    ],
)
def test_absent_members_write_their_own_places(
    counts: list[float], members: int, reduction: str, expected: list[float]
) -> None:
    given = [[torch.tensor(counts)]] * members
    assert combine("all_reduce", given, 1, None, reduction)[0].tolist() == expected


def test_members_that_run_keep_what_they_wrote_in_their_places() -> None:
    own = torch.tensor([0, 3, 0])
    given = [[own], [own], [torch.tensor([0, 0, 5])]]
    assert combine("all_reduce", given, 1, None, "sum")[0].tolist() == [3, 3, 5]


def test_objects_as_text() -> None:
    value = {"shape": torch.Size((2, 3)), "dtype": torch.bfloat16, "rows": torch.ones(2)}
    back = decode(encode(value))
    assert back["shape"] == (2, 3)
    assert back["dtype"] is torch.bfloat16
    assert back["rows"].tolist() == [1, 1]
    # A generator cannot be sent, and is not.
    assert encode(iter(lambda: 1, 2)) == ""
