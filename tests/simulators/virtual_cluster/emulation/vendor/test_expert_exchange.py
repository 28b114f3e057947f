"""DeepEP's exchange: each token once to a rank, as many rows as its experts there are given."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.simulators.virtual_cluster.emulation.sections import emulate, emulate_text
from trainscout.simulators.virtual_cluster.traces.events import Collective

pytest.importorskip("torch")

RANKS, EXPERTS, TOP_K, TOKENS, WIDTH = 4, 16, 4, 256, 64
SCRIPT = f"""
import torch
import torch.distributed as dist
from deep_ep import Buffer
dist.init_process_group("nccl")
size = Buffer.get_dispatch_config({RANKS}).get_nvl_buffer_size_hint({WIDTH} * 2, {RANKS})
buffer = Buffer(dist.group.WORLD, size, 0)
weights, choices = torch.randn({TOKENS}, {EXPERTS}, device="cuda").topk({TOP_K})
x = torch.randn({TOKENS}, {WIDTH}, device="cuda", dtype=torch.bfloat16)
of_rank, _, of_expert, goes, event = buffer.get_dispatch_layout(choices, {EXPERTS})
rows, here, _, counts, handle, event = buffer.dispatch(
    x, topk_idx=choices, topk_weights=weights, num_tokens_per_rank=of_rank, is_token_in_rank=goes,
    num_tokens_per_expert=of_expert, previous_event=event, expert_alignment=8)
event.current_stream_wait()
chosen = here[here != -1]
routed = torch.zeros(rows.shape[0], {EXPERTS // RANKS}, dtype=torch.bool, device="cuda")
routed[(here != -1).nonzero()[:, 0], chosen] = True
back, weights, _ = buffer.combine(rows, handle, topk_weights=weights[:1])
assert back.shape == x.shape and (here < 0).sum() + len(chosen) == here.numel()
print("rows", len(rows), "chosen", len(chosen), "routed", int(routed.sum()), "counts", counts)
"""


def test_tokens_go_once_to_each_rank_that_has_an_expert_of_theirs(tmp_path: Path) -> None:
    run = emulate_text(tmp_path, "script.py", SCRIPT, "--world-size", str(RANKS))
    held = EXPERTS // RANKS
    nowhere = math.comb(EXPERTS - held, TOP_K) / math.comb(EXPERTS, TOP_K)
    rows = RANKS * round(TOKENS * (1 - nowhere))
    each = TOKENS * TOP_K // EXPERTS * RANKS
    said = f"rows {rows} chosen {held * each} routed {held * each} counts {[each] * held}"
    assert said in run.output, run.output
    moved = [each for each in run.trace.events if isinstance(each, Collective)]
    sizes = [(each.bytes_in, each.bytes_out) for each in moved if each.kind == "all_to_all"]
    assert sizes == [(rows * WIDTH * 2, rows * WIDTH * 2)] * 2


CAPACITY = TOKENS * TOP_K // EXPERTS // 2
DROPPING = f"""
import torch
import torch.distributed as dist
from deep_ep import Buffer
dist.init_process_group("nccl")
buffer = Buffer(dist.group.WORLD, 1 << 20, 0)
scores = torch.randn({TOKENS}, {EXPERTS}, device="cuda")
weights, choices = scores.softmax(-1).topk({TOP_K})
weights = torch.zeros_like(scores).scatter(1, choices, weights)
first = weights.topk({CAPACITY}, dim=0).indices
weights = weights * torch.zeros_like(scores).scatter(0, first, 1).bool()
weights, choices = weights.topk({TOP_K})
choices = choices.masked_fill(weights == 0, -1)
of_rank, _, of_expert, goes, _ = buffer.get_dispatch_layout(choices, {EXPERTS})
x = torch.randn({TOKENS}, {WIDTH}, device="cuda", dtype=torch.bfloat16)
rows, here, *_, counts, _, _ = buffer.dispatch(
    x, topk_idx=choices, topk_weights=weights, num_tokens_per_rank=of_rank, is_token_in_rank=goes,
    num_tokens_per_expert=of_expert)
print("rows", len(rows), "chosen", len(here[here != -1]), "counts", counts)
"""


def test_choices_beyond_an_experts_capacity_go_nowhere(tmp_path: Path) -> None:
    run = emulate_text(tmp_path, "script.py", DROPPING, "--world-size", str(RANKS))
    held = EXPERTS // RANKS
    # So many choices of a token are experts here, and every other one of those is dropped.
    ways = [math.comb(held, n) * math.comb(EXPERTS - held, TOP_K - n) for n in range(TOP_K + 1)]
    nowhere = sum(way / 2**n for n, way in enumerate(ways)) / math.comb(EXPERTS, TOP_K)
    rows = RANKS * round(TOKENS * (1 - nowhere))
    each = CAPACITY * RANKS
    said = f"rows {rows} chosen {held * each} counts {[each] * held}"
    assert said in run.output, run.output


LAYERS = f"""
import torch
import torch.distributed as dist
from deep_ep import Buffer
dist.init_process_group("nccl")
buffer = Buffer(dist.group.WORLD, 1 << 20, 0)

class Router(torch.nn.Module):
    def forward(self, scores):
        weights, choices = scores.softmax(-1).topk({TOP_K})
        return torch.zeros_like(scores).scatter(1, choices, weights)

class Experts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.router = Router()

    def forward(self, scores):
        choices = self.router(scores).topk({TOP_K}).indices
        return buffer.get_dispatch_layout(choices, {EXPERTS})[2]

for layer in Experts(), Experts():
    print("loads", layer(torch.randn({TOKENS}, {EXPERTS}, device="cuda")).tolist())
"""


def test_what_a_router_chose_is_not_chosen_anew(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(LAYERS)
    loads = [
        [TOKENS if expert // TOP_K == layer else 0 for expert in range(EXPERTS)]
        for layer in (1, 2)
    ]
    rows = [f"{at},{e},{n}" for at, each in enumerate(loads) for e, n in enumerate(each)]
    (tmp_path / "loads.csv").write_text("\n".join(["layer,expert,tokens", *rows]))
    options = ("--world-size", str(RANKS), "--moe-imbalance", "histogram=loads.csv")
    run = emulate(tmp_path, str(tmp_path / "script.py"), *options)
    assert all(f"loads {each}" in run.output for each in loads), run.output
