"""The ranks to trace are found from what a script sets up, without training."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulators.errors import InputError
from simulators.traces.collate import choose_ranks

pytest.importorskip("torch")

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
raise RuntimeError("trained")
"""


def test_a_script_is_set_up_and_not_run(tmp_path: Path) -> None:
    from simulators.emulation.rank_process import RankOptions
    from simulators.emulation.set_up import groups_of

    script = tmp_path / "train.py"
    script.write_text(SCRIPT)

    def options(rank: int, *arguments: str) -> RankOptions:
        return RankOptions(
            world_size=64,
            rank=rank,
            local_world_size=8,
            gpu="h800",
            memory_bytes=None,
            trace=tmp_path / "unused.trace.gz",
            check=False,
            moe_imbalance="",
            payloads=None,
            without=(),
            script=(str(script), *arguments),
        )

    chosen = choose_ranks(64, lambda rank: groups_of(options(rank)))
    assert chosen.ranks == (0, 16, 32, 48)
    with pytest.raises(InputError, match=r"rank 0 fails while it is set up.*no such data set"):
        groups_of(options(0, "fail"))
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
