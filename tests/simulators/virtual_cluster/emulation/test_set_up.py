"""The ranks to trace are found from what a script sets up, without training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.in_process import command

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
raise RuntimeError("trained")
"""


def test_the_ranks_to_trace_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from trainscout.simulators.virtual_cluster.emulation import launcher
    from trainscout.simulators.virtual_cluster.emulation.rank_process import RankOptions

    script, run = tmp_path / "train.py", []

    def only_noted(given: object, options: Sequence[RankOptions]) -> int:
        run.extend(each.rank for each in options)
        return 0

    monkeypatch.setattr(launcher, "_run", only_noted)
    script.write_text(SCRIPT)
    options = ["--world-size", "64", "--rank", "auto", "--output", str(tmp_path / "traces")]
    options.append("--no-check")  # Of ranks that were not run there are no traces.
    assert run_command([*options, "--", script]) == 0
    assert sorted(run) == [0, 16, 32, 48]
    assert "ranks 0, 16, 32, 48: PIPELINE of 4" in capsys.readouterr().err
    assert run_command([*options, "--", script, "fail"]) == 1
    assert "rank 0 fails while it is set up: RuntimeError: no such data" in capsys.readouterr().err
    assert sorted(run) == [0, 16, 32, 48]
