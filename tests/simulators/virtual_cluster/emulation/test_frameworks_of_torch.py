"""DistributedDataParallel and FSDP2 as torch runs them, seen from one rank."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tests.simulators.virtual_cluster.emulation.sections import Run, emulate, emulate_text
from trainscout.simulators.virtual_cluster.traces import events

pytest.importorskip("torch")
WIDTH_BYTES = 1024 * 1024 * 4
WORLD = 16


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    world = ("--world-size", WORLD, "--rank", 3)
    return [
        emulate(tmp_path_factory.mktemp("ddp"), "data_parallel.py", *world, check=True)
        for _ in range(2)
    ]


def test_the_trace_keeps_its_invariants(runs: list[Run]) -> None:
    assert runs[0].code == 0, runs[0].output
    assert not [event for event in runs[0].trace.events if isinstance(event, events.Violation)]


def test_two_runs_differ_in_host_time_only(runs: list[Run]) -> None:
    assert runs[0].timeless() == runs[1].timeless()


def test_ddp_rebuilds_its_buckets_after_the_first_step(runs: list[Run]) -> None:
    reduced: dict[int, list[int]] = {}
    step = 0
    for event in runs[0].section("ddp"):
        if isinstance(event, events.Phase):
            step = event.step
        elif isinstance(event, events.Collective) and event.kind == "all_reduce":
            reduced.setdefault(step, []).append(event.bytes_in)
    # Eight weights: at first in one bucket, then two in each of 8 MB.
    assert reduced == {0: [8 * WIDTH_BYTES], 1: [2 * WIDTH_BYTES] * 4, 2: [2 * WIDTH_BYTES] * 4}


def test_rebuilt_buckets_take_the_memory_of_the_first(runs: list[Run]) -> None:
    trace = runs[0].trace.events
    size = {event.storage: event.bytes for event in trace if isinstance(event, events.Alloc)}
    # In the first step moments come to stay; buckets are there before, gradients go.
    for step, stays in enumerate((2 * 8 * WIDTH_BYTES, 0, 0)):
        made = runs[0].of(f"step {step}", events.Alloc)
        gone = runs[0].of(f"step {step}", events.Free)
        held = sum(each.bytes for each in made) - sum(size[each.storage] for each in gone)
        # Beside matrices, what is kept of a few rows.
        assert held == pytest.approx(stays, abs=WIDTH_BYTES // 8)


def test_ddp_waits_for_its_buckets_when_backward_ends(runs: list[Run]) -> None:
    section = runs[0].section("ddp")
    launched = [
        e.work for e in section if isinstance(e, events.Collective) and e.kind == "all_reduce"
    ]
    waited = [e.work for e in section if isinstance(e, events.WorkWait) and e.work in launched]
    assert waited == launched
    first_wait = section.index(events.WorkWait(launched[1], 0))
    last_launch = max(
        at
        for at, e in enumerate(section)
        if isinstance(e, events.Collective) and e.work == launched[4]
    )
    assert last_launch < first_wait


def test_fsdp_gathers_and_frees_every_block_on_its_own_streams(runs: list[Run]) -> None:
    gathers = [e for e in runs[0].of("fsdp", events.Collective) if e.kind == "all_gather"]
    scatters = [e for e in runs[0].of("fsdp", events.Collective) if e.kind == "reduce_scatter"]
    assert {(e.bytes_in, e.bytes_out) for e in gathers} == {(WIDTH_BYTES // WORLD, WIDTH_BYTES)}
    assert {(e.bytes_in, e.bytes_out) for e in scatters} == {(WIDTH_BYTES, WIDTH_BYTES // WORLD)}
    assert len(scatters) == 2 * 8
    assert {e.stream for e in gathers}.isdisjoint({0} | {e.stream for e in scatters})
    assert runs[0].of("fsdp", events.EventWait)
    sizes = [e.bytes for e in runs[0].of("fsdp", events.Resize)]
    # Gathered twice a step, freed after each use; the first gather of each is an allocation.
    assert sizes.count(0) == 2 * 2 * 8
    assert sizes.count(WIDTH_BYTES) == sizes.count(0) - 8


def test_fsdp_computes_with_whole_weights_and_updates_its_shard(runs: list[Run]) -> None:
    products = [op for op in runs[0].of("fsdp", events.Op) if op.name == "aten.mm.default"]
    assert {op.inputs[1].shape for op in products} <= {(1024, 1024), (4, 1024)}  # type: ignore[union-attr]
    (update, _) = [op for op in runs[0].of("fsdp", events.Op) if "addcdiv" in op.name]
    weights = update.inputs[0]
    assert isinstance(weights, tuple)
    assert {weight.shape for weight in weights} == {(1024 // WORLD, 1024)}  # type: ignore[union-attr]


def test_what_few_scripts_use_of_torch(tmp_path: Path) -> None:
    run = emulate(tmp_path, "torch_features.py", "--world-size", "8")
    # The last of it is refused by name.
    assert run.code == 3, run.output
    assert "torch.distributed.rpc=used: is not emulated" in run.output
    trained = "{'0.bias': (128,), '0.weight': (128, 64), '2.bias': (16,)}"
    compiled = (
        "_orig_mod.0.weight Sequential",
        "1 compiled",
        "(3, 64)",
        "activation_memory_budget 0.5 is not",
    )
    jagged = "(4, 32, 16) [5, 9, 18] torch.Size([192, 64])"
    whole = "consolidated [(128, 64), (128,), (16, 128), (16,)]"
    others = (
        "shared (4, 8) (8,)",
        "fused (32, 4) (4, 8)",
        "0.5",
        "store at 29400",
        "2 activities, True",
        whole,
        "(4, 64) of a half",
        "(32, 48) (5, 64)",
    )
    for printed in (trained, "(32, 64)", "(2, 4, 8, 16)", *compiled, jagged, *others):
        assert printed in run.output
    assert "Failed to record CUDA event" not in run.output
    # Tensors on the device are listed without being read again.
    assert "broadcast_object_list = [tensor(..., device='cuda:0'" in run.output
    # Gradients that two hooks handle are reduced in 16 bits.
    collectives = [e for e in run.trace.events if isinstance(e, events.Collective)]
    reduced = [each for each in collectives if each.group not in ("1", "2")]
    assert [each.sequence for each in reduced if each.dtype == "float64"] == [0]
    sums = [each for each in reduced if each.kind == "all_reduce" and each.dtype != "float64"]
    assert {each.bytes_in for each in sums} == {2 * (64 * 128 + 128 + 128 * 16 + 16)}
    # Other ranks hold a weight and two biases: two moments and a count of each.
    states = {each.bytes_in for each in collectives if each.dtype == "uint8"} - {0, 8}
    assert states == {8 * parameters + 4 for parameters in (128 * 16, 128, 16)}
    near = [
        (each.kind, each.bytes_in, each.bytes_out) for each in collectives if each.group == "2"
    ]
    assert near == [
        *[("all_reduce", 128, 128)] * 2,
        ("all_gather", 32, 256),
        ("barrier", 0, 0),
        ("all_gather", 128, 1024),
        ("reduce_scatter", 1024, 128),
    ]


MESH = """
import torch
from torch.distributed.device_mesh import init_device_mesh
%s
init_device_mesh("cuda", (16,))
print("on", torch.ones(2, device="cuda").device)
"""


@pytest.mark.parametrize(
    ("before", "device"), [("", "cuda:3"), ("kept = torch.ones(2, device='cuda')", "cuda:0")]
)
def test_a_mesh_chooses_the_device_of_who_used_none(
    before: str, device: str, tmp_path: Path
) -> None:
    run = emulate_text(tmp_path, "mesh.py", MESH % before, "--world-size", WORLD, "--rank", 3)
    assert f"on {device}" in run.output, run.output


STATIC_GRAPH = """
import torch
from torch.nn.parallel import DistributedDataParallel
torch.distributed.init_process_group("nccl")
layers = [torch.nn.Linear(1024, 1024, bias=False) for _ in range(4)]
model = DistributedDataParallel(
    torch.nn.Sequential(*layers).cuda(), bucket_cap_mb=1, static_graph=STATIC
)
optimizer = torch.optim.SGD(model.parameters())
for step in range(9):
    model(torch.randn(4, 1024, device="cuda")).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(("static", "last"), [("False", 1), ("True", 2)])
def test_two_steps_end_in_one_with_buckets(tmp_path: Path, static: str, last: int) -> None:
    """A static graph's are cut before the third: the first two reduce all in one."""
    run = emulate_text(
        tmp_path,
        "train.py",
        STATIC_GRAPH.replace("STATIC", static),
        "--world-size",
        "8",
        "--steps",
        "2",
    )
    assert run.code == 0, run.output
    reduced: dict[int, list[int]] = {}
    step = -1
    for event in run.trace.events:
        if isinstance(event, events.Phase):
            step = event.step
        elif isinstance(event, events.Collective) and step >= 0 and event.dtype == "float32":
            reduced.setdefault(step, []).append(event.bytes_in >> 20)
    assert list(reduced.values()) == [[16]] * last + [[4] * 4]


ON_HOST = """
import torch
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
torch.distributed.init_process_group("nccl")
with torch.device("meta"):
    model = torch.nn.Linear(4096, 4096, bias=False)
fully_shard(model, offload_policy=CPUOffloadPolicy())
model.to_empty(device="cpu")
optimizer = torch.optim.AdamW(model.parameters(), fused=FUSED)
for step in range(2):
    model(torch.randn(4, 4096, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(("fused", "bytes_each"), [("True", 28), ("False", 84)])
def test_an_optimizer_on_the_host_moves_its_memory(
    tmp_path: Path, fused: str, bytes_each: int
) -> None:
    """In one pass (weight and moments read and written, gradient read), or in eight."""
    text = ON_HOST.replace("FUSED", fused)
    run = emulate_text(tmp_path, "train.py", text, "--world-size", "8", check=True)
    assert run.code == 0, run.output
    assert "no optimizer step launched" not in run.output
    (*_, last) = (each for each in run.trace.events if isinstance(each, events.HostWork))
    assert last.bytes == pytest.approx(bytes_each * 4096**2 / 8, rel=1e-6)


GATHERED = """
import torch
import torch.distributed as dist
from torch.distributed.tensor.experimental._context_parallel import flex_cp_allgather

dist.init_process_group("nccl")
k, v = (torch.ones(1, 2, 8, 64, device="cuda", requires_grad=True) for _ in range(2))
whole = flex_cp_allgather(k, v, 2, dist.group.WORLD.group_name)
assert whole[0].shape == (1, 2, 8 * dist.get_world_size(), 64)
(whole[0].sum() + whole[1].sum()).backward()
assert k.grad.shape == k.shape
"""


def test_a_custom_operation_of_a_group_communicates_as_its_python_does(tmp_path: Path) -> None:
    """As context parallelism of FlexAttention, which was a kernel of its own and no exchange."""
    run = emulate_text(tmp_path, "gathered.py", GATHERED, "--world-size", 4, "--rank", 1)
    assert run.code == 0, run.output
    found = [each for each in run.trace.events if isinstance(each, events.Collective)]
    moved = [(each.kind, each.bytes_in) for each in found if each.kind != "barrier"]
    share = 2 * 8 * 64 * 4
    assert moved == [("all_gather", share)] * 2 + [("reduce_scatter", 4 * share)] * 2


def test_cuda_is_of_the_version_that_torch_was_built_with(tmp_path: Path) -> None:
    # Packages built for another major version, as torchvision is, refuse to be imported.
    built = importlib.import_module("torch").version.cuda
    run = emulate_text(tmp_path, "version.py", _VERSION, "--world-size", 1)
    assert f"CUDA {built or '12.9'} (" in run.output


_VERSION = "import torch\nprint(f'CUDA {torch.version.cuda} (torch {torch.__version__})')\n"
