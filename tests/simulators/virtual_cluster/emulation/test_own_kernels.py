"""Kernels that only CUDA has, operations without rules for shapes, and calls in inference mode."""

from __future__ import annotations

import resource

import pytest

from tests.simulators.virtual_cluster.emulation.sections import Run, emulate
from trainscout.simulators.virtual_cluster.traces.events import Collective, Op, TensorSpec

pytest.importorskip("torch")

SCRIPT = """
import ctypes

import torch
import torch.distributed as dist
import torch.nn.functional as F

dist.init_process_group("nccl")
norm = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8))
norm = torch.nn.SyncBatchNorm.convert_sync_batchnorm(norm).cuda()
optimizer = torch.optim.SGD(norm.parameters(), 0.1)
norm(torch.randn(4, 3, 6, 6, device="cuda")).sum().backward()
optimizer.step()
print("norm", tuple(norm[0].weight.grad.shape), norm[1].weight.grad.dtype)

cell = torch.nn.GRUCell(8, 16).cuda()
cell(torch.randn(4, 8, device="cuda")).sum().backward()
print("cell", tuple(cell.weight_ih.grad.shape))

targets = torch.randint(1, 20, (2, 5), device="cuda")
for place in ("cpu", "cuda"):
    scores = torch.randn(12, 2, 20, device="cuda", requires_grad=True)
    lengths = torch.tensor([10, 12], device=place), torch.tensor([5, 4])
    loss = F.ctc_loss(scores.log_softmax(-1), targets, *lengths, reduction="none")
    loss.sum().backward()
    print("ctc", place, tuple(loss.shape), tuple(scores.grad.shape))

image = torch.randn(2, 3, 8, 8, device="cuda", requires_grad=True)
grid = torch.zeros(2, 4, 5, 2, device="cuda", requires_grad=True)
sampled = F.grid_sample(image, grid, align_corners=True)
sampled.sum().backward()
print("sampled", *(tuple(each.shape) for each in (sampled, image.grad, grid.grad)))

drawn = torch.distributions.Binomial(10, torch.full((3,), 0.5, device="cuda")).sample()
print("drawn", tuple(drawn.shape), drawn.device.type)

with torch.inference_mode():
    moved = torch.ones(1, 2, 8, 8).to(device="cuda", dtype=torch.float16, copy=True)
    classes = F.one_hot(moved.argmax(dim=1), 2)
    print("inference", moved.device.type, tuple(classes.shape))

torch.set_default_tensor_type("torch.cuda.HalfTensor")
print("default", torch.zeros(2).device.type, torch.zeros(2).dtype)
print("legacy", torch.Tensor([1e3, 2.0]).device.type, torch.Tensor(2, 3, device="cuda").shape)
torch.set_default_tensor_type(torch.FloatTensor)
print("legacy", torch.Tensor([1e3]).device.type)
print("sized", torch.cuda.FloatTensor(torch.Size((2, 3))).shape)
whole = torch.zeros(6, device="cuda")
shared = torch.tensor(whole.untyped_storage(), dtype=torch.float32, device="cuda")
print("shared", tuple(shared.shape), shared.data_ptr() == whole.data_ptr())
print("default", torch.zeros(2).device.type, torch.zeros(2).dtype)
from torch.distributed.fsdp import fully_shard

# Shards of a checkpoint that stay in host memory, beside some on the device.
layers = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)).cuda()
layers[0].requires_grad_(False)
fully_shard(layers)
kept = torch.nn.Parameter(layers[0].weight.detach().cpu(), requires_grad=False)
layers.load_state_dict({"0.weight": kept}, strict=False, assign=True)
layers(torch.randn(4, 64, device="cuda")).sum().backward()
print("gathered", layers[0].weight.device.type, layers[1].weight.grad.device.type)
from torch.distributed.checkpoint._state_dict_stager import StateDictStager

staged = StateDictStager(pin_memory=False, share_memory=False).stage({"whole": whole})["whole"]
print("staged", staged.device.type, tuple(staged.shape))
moved = [torch.randn(1 << 22, device="cuda").cpu() for _ in range(2)]
read = {ctypes.string_at(each.data_ptr(), each.nbytes) for each in moved}
print("in memory", len(read), len({each.data_ptr() for each in moved}))
fit = torch.linalg.lstsq(torch.randn(4, 3, device="cuda"), torch.randn(4, 1, device="cuda"))
print("fitted", *(tuple(each.shape) for each in fit))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("own_kernels")
    (folder / "script.py").write_text(SCRIPT)
    return emulate(folder, str(folder / "script.py"), "--world-size", "8", check=True)


@pytest.mark.parametrize(
    "line",
    [
        "norm (8, 3, 3, 3) torch.float32",
        "cell (48, 8)",
        "ctc cpu (2,) (12, 2, 20)",
        "ctc cuda (2,) (12, 2, 20)",
        "sampled (2, 3, 4, 5) (2, 3, 8, 8) (2, 4, 5, 2)",
        "drawn (3,) cuda",
        "inference cuda (1, 8, 8, 2)",
        "default cuda torch.float16",
        "default cpu torch.float32",
        "legacy cuda torch.Size([2, 3])",
        "legacy cpu",
        "sized torch.Size([2, 3])",
        "shared (6,) True",
        "gathered cpu cuda",
        "staged cpu (6,)",
        "in memory 1 2",
        "fitted (3, 1) (1,) (0,) (0,)",
    ],
)
def test_what_they_return_has_the_shape_that_cuda_gives_it(run: Run, line: str) -> None:
    assert run.code == 0, run.output
    assert f"{line}\n" in run.output


def test_synchronised_batch_norm_gathers_between_its_kernels(run: Run) -> None:
    kept = [event for event in run.trace.events if isinstance(event, (Op, Collective))]
    names = [e.name.partition(".")[2] if isinstance(e, Op) else "collective" for e in kept]
    at = names.index("batch_norm_stats.default")
    after = names[at : names.index("batch_norm_elemt.default")]
    assert "collective" in after
    assert "batch_norm_gather_stats_with_counts.default" in after


def test_shards_in_host_memory_are_copied_to_the_device_before_they_are_gathered(run: Run) -> None:
    copies = [e for e in run.trace.events if isinstance(e, Op) and e.name == "aten.copy_.default"]
    sources = [each.inputs[1] for each in copies]
    (kept,) = [each for each in sources if isinstance(each, TensorSpec) and each.storage is None]
    assert kept.shape == (64 * 64 // 8,)


def test_a_limited_address_space_leaves_addresses_without_memory() -> None:
    """As under ``ulimit -v``, which login nodes have."""
    from trainscout.simulators.virtual_cluster.emulation.tensors.host import reserved_addresses

    before = resource.getrlimit(resource.RLIMIT_AS)
    assert reserved_addresses()[0]
    resource.setrlimit(resource.RLIMIT_AS, (1 << 40, before[1]))
    try:
        assert reserved_addresses() == (0, None)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
