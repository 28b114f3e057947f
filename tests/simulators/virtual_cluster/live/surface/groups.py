"""Groups, functional collectives, and stores."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from ranks import RANK, SIZE, WORLD, case, empty, many, own
from record import DEVICE


@case
def new_group():
    value = own(2)
    pairs = [dist.new_group([at, at + 1]) for at in (0, 2)]
    dist.all_reduce(value, group=pairs[RANK // 2])
    return value, dist.get_rank(pairs[0]), dist.get_process_group_ranks(pairs[RANK // 2])


@case
def new_group_out_of_order():
    rows = many(2, 1)
    group = dist.new_group([3, 1])
    if RANK in (1, 3):
        dist.all_gather(rows, own(1), group=group)
        return rows, dist.get_group_rank(group, RANK), dist.get_global_rank(group, 0)
    return group == dist.GroupMember.NON_GROUP_MEMBER


@case
def group_sources():
    value, other = own(2), own(2)
    group = dist.new_group([1, 2, 3])
    if RANK:
        dist.broadcast(value, src=2, group=group)
        dist.broadcast(other, group_src=2, group=group)
    return value, other


@case
def group_transfers():
    made = empty(2)
    group = dist.new_group([1, 3])
    if RANK == 1:
        dist.send(own(2), group=group, group_dst=1)
    if RANK == 3:
        dist.recv(made, group=group, group_src=0)
    return made


@case
def group_gather_scatter():
    made, rows = empty(1), None
    group = dist.new_group([3, 1, 2])
    if RANK == 2:
        rows = many(3, 1)
    if RANK:
        dist.gather(own(1), rows, group=group, group_dst=1)
        dist.scatter(
            made, [own(1) + at for at in range(3)] if RANK == 2 else None, src=2, group=group
        )
    return rows, made


@case
def group_reduce():
    value = own(2)
    group = dist.new_group([2, 1, 3])
    if RANK:
        dist.reduce(value, group=group, group_dst=2)
    return value if RANK == 3 else None


@case
def group_objects():
    group = dist.new_group([1, 3])
    made, told, got = [None] * 2, [RANK], [None]
    if RANK in (1, 3):
        dist.all_gather_object(made, RANK, group=group)
        dist.broadcast_object_list(told, group_src=1, group=group)
        dist.scatter_object_list(got, ["a", "b"] if RANK == 1 else None, group_src=0, group=group)
    return made, told, got


@case
def new_subgroups():
    value = own(2)
    mine, groups = dist.new_subgroups(2)
    dist.all_reduce(value, group=mine)
    return value, len(groups)


@case
def new_subgroups_by_enumeration():
    value = own(2)
    mine, groups = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
    dist.all_reduce(value, group=mine)
    return value, len(groups)


@case
def queries():
    return [
        dist.get_rank(),
        dist.get_world_size(),
        dist.is_initialized(),
        dist.is_available(),
        dist.get_node_local_rank(),
        dist.get_pg_count() > 0,
        dist.get_group_rank(WORLD, 2),
        dist.get_process_group_ranks(None),
        dist.is_torchelastic_launched() in (True, False),
        str(dist.get_debug_level()),
        dist.get_rank(None),
        dist.supports_complex(dist.ReduceOp.SUM),
        dist.get_default_backend_for_device("cuda"),
        bool(WORLD.group_name),
        WORLD.size(),
    ]


# Functional collectives.


@case
def functional_all_reduce():
    return funcol.all_reduce(own(2), "sum", WORLD), funcol.all_reduce(own(2), "max", [0, 1, 2, 3])


@case
def functional_all_gather():
    return (
        funcol.all_gather_tensor(own(2), 0, WORLD),
        funcol.all_gather_tensor(own(2, 2), 1, WORLD),
    )


@case
def functional_reduce_scatter():
    return (
        funcol.reduce_scatter_tensor(own(8), "sum", 0, WORLD),
        funcol.reduce_scatter_tensor(own(2, 8), "sum", 1, WORLD),
        funcol.reduce_scatter_tensor(own(8), "max", 0, WORLD),
    )


@case
def functional_coalesced():
    return (
        list(funcol.all_reduce_coalesced([own(2), own(3)], "sum", WORLD)),
        list(funcol.all_gather_into_tensor_coalesced([own(2), own(3)], WORLD)),
        list(funcol.reduce_scatter_tensor_coalesced([own(8), own(4)], "sum", [0, 0], WORLD)),
    )


@case
def functional_all_to_all():
    counts = [(RANK + at) % 3 for at in range(SIZE)]
    return (
        funcol.all_to_all_single(own(8), None, None, WORLD),
        funcol.all_to_all_single(own(sum(counts), 2), counts, counts, WORLD),
    )


@case
def functional_broadcast():
    return funcol.broadcast(own(3), 2, WORLD)


@case
def functional_permute():
    return funcol.permute_tensor(own(3), [1, 2, 3, 0], WORLD)


@case
def functional_autograd():
    given = own(8, dtype=torch.float32).requires_grad_()
    made = funcol.all_gather_tensor_autograd(given, 0, WORLD)
    made = funcol.reduce_scatter_tensor_autograd(made * (RANK + 1), "sum", 0, WORLD)
    (made * (RANK + 1)).sum().backward()
    return made.detach(), given.grad


@case
def functional_in_place():
    value, rows, made = own(2), many(SIZE, 2), empty(2)
    whole, got = empty(SIZE * 2), empty(SIZE)
    funcol.all_reduce_inplace(value, "sum", WORLD)
    funcol.all_gather_tensor_inplace(whole, own(2), WORLD)
    funcol.reduce_scatter_tensor_inplace(made, own(8), "sum", WORLD)
    funcol.all_gather_inplace(rows, own(2), WORLD)
    funcol.all_to_all_inplace(got, own(SIZE), group=WORLD)
    return value, rows, whole, made, got


@case
def functional_transfers():
    made = empty(2)
    if RANK == 0:
        funcol.wait_tensor(funcol.isend_inplace(own(2), 1, group=WORLD))
    if RANK == 1:
        funcol.wait_tensor(funcol.irecv_inplace(made, 0, group=WORLD))
    return made


@case
def functional_batch():
    made = empty(2)
    peers = [(RANK + 1) % SIZE, (RANK - 1) % SIZE]
    tensors = [own(2), made]
    for each in funcol.batch_p2p_ops_inplace(["isend", "irecv"], peers, [0, 0], tensors, WORLD):
        funcol.wait_tensor(each)
    return made


@case
def autograd_functions():
    import torch.distributed.nn.functional as nnf

    given = own(4, dtype=torch.float32).requires_grad_()
    parts = [
        nnf.all_reduce(given * 2),
        nnf.broadcast(given * 1, 1),
        nnf.reduce_scatter(torch.zeros(1, device=DEVICE), list(given.chunk(4))),
        nnf.all_to_all_single(torch.zeros(4, device=DEVICE), given),
    ]
    sum((each * (RANK + 1)).sum() for each in parts).backward()
    return [each.detach() for each in parts], given.grad


# Stores.


@case
def store():
    made = dist.distributed_c10d._get_default_store()
    made.set(f"k{RANK}", f"v{RANK}")
    made.wait([f"k{at}" for at in range(SIZE)])
    got = [made.get(f"k{at}").decode() for at in range(SIZE)]
    return got, made.check(["k1"]), made.check(["absent"])


@case
def store_add():
    made = dist.distributed_c10d._get_default_store()
    made.add("count", RANK + 1)
    dist.barrier()
    return made.add("count", 0), int(made.get("count"))


@case
def store_compare_set():
    made = dist.distributed_c10d._get_default_store()
    if RANK == 0:
        made.set("cas", "a")
    dist.barrier()
    if RANK == 1:
        made.compare_set("cas", "a", "b")
    dist.barrier()
    return made.get("cas").decode()


@case
def store_many():
    made = dist.distributed_c10d._get_default_store()
    if RANK == 2:
        made.multi_set(["m1", "m2"], ["x", "y"])
    dist.barrier()
    return [each.decode() for each in made.multi_get(["m1", "m2"])]


@case
def store_append_delete():
    made = dist.distributed_c10d._get_default_store()
    if RANK == 0:
        made.set("log", "a")
        made.append("log", "b")
    dist.barrier()
    got = made.get("log").decode()
    dist.barrier()
    gone = made.delete_key("log") if RANK == 0 else None
    dist.barrier()
    return got, gone, made.check(["log"])


@case
def store_prefixed():
    made = dist.PrefixStore("mine", dist.distributed_c10d._get_default_store())
    made.set(str(RANK), str(RANK))
    dist.barrier()
    return made.get(str((RANK + 1) % SIZE)).decode(), bool(made.num_keys() >= 0)
