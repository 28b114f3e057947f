"""Every collective and transfer of ``torch.distributed``, of tensors and of objects."""

from __future__ import annotations

import contextlib

import torch
import torch.distributed as dist
from ranks import CASES, RANK, SIZE, WORLD, case, empty, many, own
from record import DEVICE, REAL, note


@contextlib.contextmanager
def together():
    """Torch's, which Gloo does not know: there one after the other."""
    if REAL:
        yield contextlib.nullcontext()
        return
    with dist._coalescing_manager(device=torch.device(DEVICE), async_ops=True) as manager:
        yield manager


for op in ("SUM", "MAX", "MIN", "PRODUCT", "BAND", "BOR", "BXOR"):

    def reduces(op=op):
        value = own(3) + 1
        dist.all_reduce(value, op=getattr(dist.ReduceOp, op))
        return value

    CASES[f"all_reduce_{op}"] = reduces

for dtype in ("float32", "bfloat16", "float16", "float64", "int32", "uint8", "bool", "complex64"):

    def of_dtype(dtype=dtype):
        value = own(3, base=1).to(getattr(torch, dtype))
        dist.all_reduce(value, op=dist.ReduceOp.SUM if dtype != "bool" else dist.ReduceOp.MAX)
        return torch.view_as_real(value) if dtype == "complex64" else value

    CASES[f"all_reduce_{dtype}"] = of_dtype


@case
def all_reduce_avg():
    value = own(3, dtype=torch.float32)
    dist.all_reduce(value, op=dist.ReduceOp.SUM if REAL else dist.ReduceOp.AVG)
    return value / SIZE if REAL else value


@case
def reduce_scatter_avg():
    made = torch.empty(2, device=DEVICE)
    given = own(SIZE * 2, dtype=torch.float32)
    dist.reduce_scatter_tensor(made, given, op=dist.ReduceOp.SUM if REAL else dist.ReduceOp.AVG)
    return made / SIZE if REAL else made


@case
def all_reduce_async():
    value = own(2)
    work = dist.all_reduce(value, async_op=True)
    work.wait()
    return value


@case
def all_reduce_future():
    value = own(2)
    future = dist.all_reduce(value, async_op=True).get_future()
    return future.then(lambda f: f.value()[0] * 2).wait()


@case
def all_reduce_strided():
    value = own(4, 4)[:, 1].contiguous()
    dist.all_reduce(value)
    return value


@case
def all_reduce_view():
    value = own(4, 4)
    dist.all_reduce(value[1])
    return value


@case
def all_reduce_empty():
    value = own(0)
    dist.all_reduce(value)
    return value


@case
def all_reduce_scalar():
    value = torch.tensor(RANK + 1, device=DEVICE)
    dist.all_reduce(value)
    return value


@case
def all_reduce_coalesced():
    values = [own(2), own(3)]
    dist.all_reduce_coalesced(values)
    return values


@case
def broadcast():
    value = own(3)
    dist.broadcast(value, 2)
    return value


@case
def broadcast_group_src():
    value = own(3)
    dist.broadcast(value, group_src=1)
    return value


@case
def broadcast_coalesced():
    values = [own(2).float(), own(3).float()]
    dist._broadcast_coalesced(WORLD, values, 1 << 20, 0)
    return values


@case
def reduce():
    value = own(3)
    dist.reduce(value, 1)
    return value if RANK == 1 else None


@case
def reduce_max():
    value = own(3)
    dist.reduce(value, 3, op=dist.ReduceOp.MAX)
    return value if RANK == 3 else None


@case
def all_gather():
    rows = many(SIZE, 2)
    dist.all_gather(rows, own(2))
    return rows


@case
def all_gather_uneven():
    rows = [empty(at + 1) for at in range(SIZE)]
    if REAL:
        note("all_gather", own(RANK + 1), rows)
        for at, row in enumerate(rows):
            row.copy_(torch.arange(at + 1) + 10 * at)
    else:
        dist.all_gather(rows, own(RANK + 1))
    return rows


@case
def all_gather_into_tensor():
    made = empty(SIZE * 2)
    dist.all_gather_into_tensor(made, own(2))
    return made


@case
def all_gather_into_tensor_stacked():
    made = empty(SIZE, 2)
    dist.all_gather_into_tensor(made.view(-1) if REAL else made, own(2))
    return made


@case
def all_gather_single():
    made = empty(SIZE * 2)
    dist.all_gather_single(made, own(2))
    return made


@case
def all_gather_coalesced():
    made = [[empty(2), empty(3)] for _ in range(SIZE)]
    dist.all_gather_coalesced(made, [own(2), own(3)])
    return made


@case
def all_gather_into_tensor_coalesced():
    made = [empty(SIZE * 2), empty(SIZE * 3)]
    with together() as manager:
        for each, mine in zip(made, (own(2), own(3)), strict=True):
            dist.all_gather_into_tensor(each, mine)
    if not REAL:
        manager.wait()
    return made


@case
def all_reduce_in_manager():
    values = [own(2), own(3)]
    with together() as manager:
        for each in values:
            dist.all_reduce(each)
    if not REAL:
        manager.wait()
    return values


@case
def reduce_scatter_in_manager():
    made = [empty(2), empty(3)]
    with together() as manager:
        for each, mine in zip(made, (own(2 * SIZE), own(3 * SIZE)), strict=True):
            dist.reduce_scatter_tensor(each, mine)
    if not REAL:
        manager.wait()
    return made


@case
def reduce_scatter():
    made = empty(2)
    dist.reduce_scatter(made, [own(2) + at for at in range(SIZE)])
    return made


@case
def reduce_scatter_max():
    made = empty(2)
    dist.reduce_scatter(made, [own(2) + at for at in range(SIZE)], op=dist.ReduceOp.MAX)
    return made


@case
def reduce_scatter_tensor():
    made = empty(2)
    dist.reduce_scatter_tensor(made, own(SIZE * 2))
    return made


@case
def reduce_scatter_single():
    made = empty(2)
    dist.reduce_scatter_single(made, own(SIZE * 2))
    return made


@case
def all_to_all():
    made = many(SIZE, 1)
    dist.all_to_all(made, list(own(SIZE).chunk(SIZE)))
    return made


@case
def all_to_all_uneven():
    made = [empty(RANK + 1) for _ in range(SIZE)]
    if REAL:
        note("all_to_all", [own(at + 1) for at in range(SIZE)], made)
        for at, row in enumerate(made):
            row.copy_(torch.arange(RANK + 1) + 10 * at)
    else:
        dist.all_to_all(made, [own(at + 1) for at in range(SIZE)])
    return made


@case
def all_to_all_single():
    made = empty(SIZE * 2)
    dist.all_to_all_single(made, own(SIZE * 2))
    return made


@case
def all_to_all_single_rows():
    made = empty(SIZE, 2)
    dist.all_to_all_single(made, own(SIZE, 2))
    return made


@case
def all_to_all_single_splits():
    splits_in = [(RANK + at) % 3 for at in range(SIZE)]
    splits_out = [(at + RANK) % 3 for at in range(SIZE)]
    made = empty(sum(splits_out), 2)
    dist.all_to_all_single(made, own(sum(splits_in), 2), splits_out, splits_in)
    return made


@case
def all_to_all_single_counts_then_rows():
    """As experts are sent their tokens."""
    counts = torch.tensor([(RANK * 2 + at) % 3 for at in range(SIZE)], device=DEVICE)
    comes = torch.empty_like(counts)
    dist.all_to_all_single(comes, counts)
    rows = own(int(counts.sum()), 2).float()
    made = torch.empty(int(comes.sum()), 2, device=DEVICE)
    dist.all_to_all_single(made, rows, comes.tolist(), counts.tolist())
    return list(made.shape)


@case
def gather():
    rows = many(SIZE, 2) if RANK == 1 else None
    dist.gather(own(2), rows, dst=1)
    return rows


@case
def scatter():
    made = empty(2)
    dist.scatter(made, [own(2) + at for at in range(SIZE)] if RANK == 2 else None, src=2)
    return made


@case
def send_and_recv():
    made = empty(2)
    if RANK % 2 == 0:
        dist.send(own(2), RANK + 1)
    else:
        dist.recv(made, RANK - 1)
    return made


@case
def send_and_recv_tags():
    if RANK == 0:
        dist.send(own(2), 3, tag=7)
        dist.send(own(2) + 1, 3, tag=8)
    made = many(2, 2)
    if RANK == 3:
        dist.recv(made[0], 0, tag=7)
        dist.recv(made[1], 0, tag=8)
    return made


@case
def isend_and_irecv():
    made = empty(2)
    works = [dist.isend(own(2), (RANK + 1) % SIZE), dist.irecv(made, (RANK - 1) % SIZE)]
    for work in works:
        work.wait()
    return made


@case
def batch_isend_irecv():
    made = empty(2)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, own(2), (RANK + 1) % SIZE),
            dist.P2POp(dist.irecv, made, (RANK - 1) % SIZE),
        ]
    )
    for work in works:
        work.wait()
    return made


@case
def batch_isend_irecv_group_peer():
    made = empty(2)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, own(2), group=WORLD, group_peer=(RANK + 1) % SIZE),
            dist.P2POp(dist.irecv, made, group=WORLD, group_peer=(RANK - 1) % SIZE),
        ]
    )
    for work in works:
        work.wait()
    return made


@case
def barrier():
    dist.barrier()
    dist.barrier(async_op=True).wait()


@case
def monitored_barrier():
    group = dist.new_group(backend="gloo")
    dist.monitored_barrier(group)


# Objects.


@case
def all_gather_object():
    made = [None] * SIZE
    dist.all_gather_object(made, {"rank": RANK})
    return made


@case
def gather_object():
    made = [None] * SIZE if RANK == 1 else None
    dist.gather_object(("rank", RANK), made, dst=1)
    return made


@case
def broadcast_object_list():
    made = [RANK, str(RANK)]
    dist.broadcast_object_list(made, src=3)
    return made


@case
def scatter_object_list():
    made = [None]
    dist.scatter_object_list(made, list("abcd") if RANK == 1 else None, src=1)
    return made


@case
def send_object_list():
    made = [None, None]
    if RANK == 0:
        dist.send_object_list(["x", {"y": 1}], 2)
    if RANK == 2:
        dist.recv_object_list(made, 0)
    return made
