"""Meshes, DTensor in all placements, and tensor parallelism."""

from __future__ import annotations

import itertools

import torch
import torch.distributed as dist
import torch.distributed.tensor as dtensor
from ranks import CASES, RANK, SIZE, case, whole
from record import DEVICE
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

LINE = init_device_mesh(DEVICE, (SIZE,))
PLANE = init_device_mesh(DEVICE, (2, 2), mesh_dim_names=("dp", "tp"))


for before, after in itertools.product(
    [Replicate(), Shard(0), Shard(1), Partial("sum"), Partial("max"), Partial("avg")],
    [Replicate(), Shard(0), Shard(1), Partial("sum")],
):
    if after.is_partial() and before != after:
        continue

    def redistributed(before=before, after=after):
        local = whole(8, 4) + 100 * RANK
        if before == Shard(0):
            local = local[:2]
        if before == Shard(1):
            local = local[:, :1]
        local = local.contiguous()
        if before.is_partial("avg"):
            local = local.float()
        made = DTensor.from_local(local, LINE, [before]).redistribute(LINE, [after])
        return made.to_local()

    CASES[f"redistribute_{before}_{after}".replace(" ", "")] = redistributed


for placed in itertools.product([Replicate(), Shard(0), Shard(1)], repeat=2):

    def distributed(placed=placed):
        made = distribute_tensor(whole(8, 4) + 100 * RANK, PLANE, list(placed))
        return made.to_local(), made.full_tensor()

    CASES[f"distribute_{placed[0]}_{placed[1]}"] = distributed


@case
def uneven_shards():
    made = distribute_tensor(whole(6, 3), LINE, [Shard(0)])
    return made.to_local(), made.full_tensor(), made.redistribute(LINE, [Shard(1)]).to_local()


@case
def constructors():
    made = [
        dtensor.zeros(8, 4, device_mesh=LINE, placements=[Shard(0)], dtype=torch.int64),
        dtensor.ones(8, 4, device_mesh=LINE, placements=[Shard(1)], dtype=torch.int64),
        dtensor.full((8, 4), 3, device_mesh=LINE, placements=[Replicate()], dtype=torch.int64),
        dtensor.empty(8, 4, device_mesh=PLANE, placements=[Shard(0), Shard(1)]).shape,
    ]
    return [list(each) if isinstance(each, torch.Size) else each.to_local() for each in made]


@case
def dtensor_operations():
    rows = distribute_tensor(whole(8, 4, dtype=torch.float32), LINE, [Shard(0)])
    columns = distribute_tensor(whole(4, 8, dtype=torch.float32), LINE, [Shard(1)])
    product = rows.redistribute(LINE, [Shard(1)]) @ columns.redistribute(LINE, [Shard(0)])
    return [
        product.full_tensor(),
        rows.sum().full_tensor(),
        rows.max().full_tensor(),
        rows.mean(0).full_tensor(),
        (rows + 1).to_local(),
        rows.norm().full_tensor().shape[:0],
        rows.argmax().full_tensor(),
    ]


@case
def mesh_queries():
    tp = PLANE["tp"]
    flat = PLANE["dp", "tp"]._flatten("all")
    return [
        PLANE.get_rank(),
        PLANE.get_local_rank("dp"),
        PLANE.get_local_rank("tp"),
        PLANE.get_coordinate(),
        tp.size(),
        list(PLANE.shape),
        tp.mesh.tolist(),
        flat.size(),
        dist.get_process_group_ranks(PLANE.get_group("dp")),
        PLANE.mesh_dim_names,
        len(PLANE.get_all_groups()),
        dist.get_process_group_ranks(flat.get_group()),
    ]


@case
def mesh_from_group():
    from torch.distributed.device_mesh import DeviceMesh

    mine, _ = dist.new_subgroups_by_enumeration([[0, 1], [2, 3]])
    mesh = DeviceMesh.from_group(mine, DEVICE)
    value = whole(2) + RANK
    dist.all_reduce(value, group=mesh.get_group())
    return value, mesh.mesh.tolist()


@case
def mesh_three_dimensions():
    mesh = init_device_mesh(DEVICE, (2, 1, 2), mesh_dim_names=("pp", "dp", "tp"))
    value = whole(2) + RANK
    for name in mesh.mesh_dim_names:
        dist.all_reduce(value, group=mesh.get_group(name))
    return value, mesh["pp", "tp"].get_coordinate()


def inputs(*shape):
    return torch.ones(*shape, device=DEVICE)


def shapes(module):
    return [
        list(p.to_local().shape if isinstance(p, DTensor) else p.shape)
        for p in module.parameters()
    ]


for style in ("colwise", "rowwise", "both", "sequence", "inputs", "outputs", "loss"):

    def tensor_parallel(style=style):
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            PrepareModuleInput,
            PrepareModuleOutput,
            RowwiseParallel,
            SequenceParallel,
            loss_parallel,
            parallelize_module,
        )

        net = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 8)).to(DEVICE)
        plans = {
            "colwise": {"0": ColwiseParallel(output_layouts=Replicate())},
            "rowwise": {"2": RowwiseParallel(input_layouts=Replicate())},
            "both": {
                "0": ColwiseParallel(output_layouts=Shard(0)),
                "1": SequenceParallel(sequence_dim=0),
                "2": RowwiseParallel(input_layouts=Shard(0), output_layouts=Shard(0)),
            },
            "sequence": {"1": SequenceParallel(sequence_dim=0, use_local_output=True)},
            "inputs": {
                "0": PrepareModuleInput(
                    input_layouts=Shard(0),
                    desired_input_layouts=Replicate(),
                    use_local_output=True,
                )
            },
            "outputs": {
                "2": PrepareModuleOutput(
                    output_layouts=Shard(0), desired_output_layouts=Replicate()
                )
            },
            "loss": {"2": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)},
        }
        net = parallelize_module(net, LINE, plans[style])
        made = net(inputs(4, 8))
        if style == "loss":
            with loss_parallel():
                target = torch.zeros(4, dtype=torch.long, device=DEVICE)
                nn.functional.cross_entropy(made, target).backward()
        else:
            (made.to_local() if isinstance(made, DTensor) else made).sum().backward()
        return list(made.shape), shapes(net)

    CASES[f"tensor_parallel_{style}"] = tensor_parallel
