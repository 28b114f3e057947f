"""A process that is one rank after another: run as a program, prints what each saw as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict

from trainscout.conf.catalogue import load_catalogue
from trainscout.simulators.virtual_cluster.emulation import ListSink, VirtualRank, emulate
from trainscout.simulators.virtual_cluster.traces.events import Collective, Group, Op


def main() -> None:
    """Be rank 3 of 8, then rank 13 of 32, then rank 3 of 8 again."""
    sink = ListSink()
    virtual = emulate(sink, world_size=8, rank=3, gpu=load_catalogue().gpus["h100"])
    seen = [_pass(virtual, sink)]
    for world_size, rank in ((32, 13), (8, 3)):
        sink = ListSink()
        virtual.restart(sink, world_size=world_size, rank=rank)
        seen.append(_pass(virtual, sink))
    virtual.close()
    print(json.dumps(seen))


def _pass(virtual: VirtualRank, sink: ListSink) -> list[dict[str, object]]:
    import torch
    import torch.distributed as dist

    dist.init_process_group("nccl")
    world_size = dist.get_world_size()
    half = dist.new_group(list(range(dist.get_rank() % 2, world_size, 2)), group_desc="HALF")
    data = torch.ones(1000, device="cuda")
    dist.all_reduce(data, group=half)
    torch.cuda.set_device(dist.get_rank() % 8)
    assert virtual.state.memory.allocator.requested_bytes >= 4000
    kept = [event for event in sink.events if isinstance(event, Group | Collective | Op)]
    return [{"event": type(event).__name__, **asdict(event)} for event in kept]


if __name__ == "__main__":
    main()
