"""What public training scripts do besides training: each line stopped one of them once."""

import contextlib
import copy
import itertools
import os
import pickle
import runpy
import warnings

import numpy
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import triton
import triton.language as tl
from apex.parallel import convert_syncbn_model, create_syncbn_process_group
from torch._higher_order_ops import while_loop
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.utils.data import DataLoader


@triton.jit
def scale_kernel(source, target, factor, count, BLOCK: tl.constexpr):  # noqa: N803
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < count
    pointers = target + places
    tl.store(pointers, tl.load(source + places, mask=inside) * factor, mask=inside)


@torch.library.custom_op("habits::kept", mutates_args=())
def kept_rows(rows: torch.Tensor) -> torch.Tensor:
    return rows[rows[:, 0] > 0]


@kept_rows.register_fake
def _(rows):
    return rows.new_empty(torch.library.get_ctx().new_dynamic_size(), rows.shape[1])


@torch.library.custom_op("habits::twice", mutates_args=())
def twice(rows: torch.Tensor) -> torch.Tensor:
    return rows.repeat(2, 1)


library = torch.library.Library("habits", "FRAGMENT")
library.define("thrice(Tensor rows) -> Tensor")
library.impl("thrice", lambda rows: rows.repeat(3, 1), "CUDA")


class Own(torch.Tensor):
    """A tensor type of a script."""


class Marked(torch.nn.Parameter):
    """A framework's own type of parameter, made of one that is on the device."""

    def __new__(cls, tensor):
        return torch.nn.Parameter.__new__(cls, tensor.data.detach(), True)


class Rows(torch.utils.data.Dataset):
    """Made in the parent, on whose device large numbers have no data."""

    def __init__(self):
        self.shared = torch.ones(300, 300)

    def __len__(self):
        return 64

    def __getitem__(self, at):
        scale = torch.nn.Dropout(0.0)(torch.ones(16))
        mask = torch.tril(torch.ones(300, 300))
        return scale * at, mask, self.shared, at % 7


def train(local_rank, node):
    rank = node * 8 + local_rank
    torch.cuda.set_device(local_rank)
    os.environ["TORCH_DIST_INIT_BARRIER"] = "1"
    dist.init_process_group("nccl", rank=rank, world_size=16, init_method="env://")
    dist.monitored_barrier()
    dist.group.WORLD.monitored_barrier()
    dist.broadcast_object_list([None], src=0)
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    options.config.max_ctas = 16
    dist.new_group(numpy.arange(16), pg_options=options)
    tokens = torch.arange(4)
    masked = numpy.copy(tokens)
    masked[0] = 9
    assert tokens.tolist() == [0, 1, 2, 3]
    norms = torch.zeros(16, dtype=torch.double, device=local_rank)
    norms[rank] = 2.5
    dist.all_reduce(norms)
    assert norms.tolist() == [2.5] * 16
    assert "CUDA" in torch.__config__.show()
    device = torch.device("cuda", local_rank)
    model = torch.nn.Linear(16, 4).to(device)
    old = model.weight.__dict__
    again = type(model.weight)(torch.ones(4, 16), requires_grad=False, **old)
    assert isinstance(again, torch.nn.Parameter)
    # As ensembles are made of torch.func: the skeleton is a copy without data.
    stacked, _ = torch.func.stack_module_state([model, copy.deepcopy(model)])
    skeleton = copy.deepcopy(model).to("meta")
    batch = torch.ones(2, 16, device=device)
    both = torch.vmap(lambda held: torch.func.functional_call(skeleton, held, (batch,)))(stacked)
    assert (both.shape, both.device) == ((2, 2, 4), device)
    # As Accelerate loads a model that is sharded: emptied where it stands, filled anew.
    held, refilled = model.state_dict(), model.weight
    assert model.to("meta").weight is refilled
    assert refilled.is_meta
    model.to_empty(device=device).load_state_dict(held)
    assert [each.device for each in model.parameters()] == [device] * 2
    empty = torch.empty  # Others in its place, as Accelerate's while it makes a model.
    torch.empty = lambda *args, **named: empty(*args, **{**named, "device": device})
    assert torch.ones(2, 3, device=device).shape == (2, 3)
    torch.empty = empty
    for sought in (torch.rand(2, device=device) * 50).long():
        (torch.arange(50).flip(0).to(device) == sought).nonzero().item()
        (torch.linspace(0, 999, 1000).to(device) == sought).nonzero().item()
    for times in (torch.linspace(0, 2, 500).to(device), torch.linspace(0, 2, 500, device=device)):
        assert all(here < there for here, there in itertools.pairwise(times))
    with torch.device("meta"):  # As operations of a model are counted.
        assert torch.nn.Linear(300, 300)(torch.ones(2, 300)).is_meta
    torch.set_default_device(device)  # As PINNs do, with data that come from NumPy.
    assert torch.as_tensor(numpy.ones(2)).device == torch.tensor([1.0]).device == device
    torch.set_default_device(None)
    for make in (torch.tensor, torch.Tensor, Own):
        assert make([-1.0, torch.ones(1, device=device)]).shape == (2,)
    assert isinstance(Own([1.0]), Own)
    model.register_buffer("degrees", torch.arange(4.0).view(4, 1).expand(4, 3))
    assert model.degrees.sum(1).tolist() == [0, 3, 6, 9]
    del model.degrees
    lazy = torch.nn.Sequential(torch.nn.LazyLinear(8), torch.nn.LazyBatchNorm1d()).to(device)
    assert lazy(torch.ones(4, 5, device=device)).shape == (4, 8)
    assert [p.device for p in lazy.parameters() if p.requires_grad] == [device] * 4
    with warnings.catch_warnings(action="error"):  # Of a torch without cuDNN, which this is.
        torch.nn.GRU(4, 4).to(device)
    flat = torch.zeros(100, device=device)
    assert torch.allclose(flat[:2], flat[2:4] + 1e-9)
    assert not torch.allclose(flat[:2], flat[2:4] + 1)
    part = flat.untyped_storage()[40:120]
    view = torch.empty([], device=part.device).set_(source=part)
    assert (view.shape, view.data_ptr() - flat.data_ptr()) == ((20,), 40)
    model.bias = Marked(model.bias)
    assert isinstance(model.bias, Marked)
    unused = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Linear(4, 4).to(device), device_ids=[local_rank], find_unused_parameters=True
    )
    group = create_syncbn_process_group(4)
    assert dist.get_process_group_ranks(group) == [8, 9, 10, 11]
    norms = convert_syncbn_model(torch.nn.Sequential(torch.nn.BatchNorm1d(4)), group)
    assert isinstance(norms[0], torch.nn.SyncBatchNorm)
    unused.register_comm_hook(dist.group.WORLD, fp16_compress_hook)
    unused(torch.ones(2, 4, device=device)).sum().backward()
    noise = torch.randn(6, 4, device=device)
    assert (noise.sigmoid() >= 0).all()
    with contextlib.suppress(RuntimeError):  # Which does not fit, in place.
        raise SystemExit(noise[:, :1].clone().eq_(noise).shape)
    assert kept_rows(noise).shape == (3, 4)
    assert torch.ops.habits.twice(noise).shape == (12, 4)  # Nothing but running them tells.
    assert torch.ops.habits.thrice(noise).shape == (18, 4)
    encoder = torch.nn.TransformerEncoder(
        torch.nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 1
    ).to(device)
    padded = torch.zeros(2, 3, dtype=torch.bool, device=device)
    encoded = encoder.eval()(noise.view(2, 3, 4), src_key_padding_mask=padded)
    assert encoded.shape == (2, 3, 4)
    score = torch.tensor(0.5, device=device, requires_grad=True)
    margin = torch.nn.functional.multi_margin_loss(score, torch.tensor(0, device=device))
    margin.backward()  # Whose shapes nothing but running it tells, of numbers as of rows.
    statistics = [torch.ones(4, device=device) for _ in range(4)]
    normed = torch.ops.aten._batch_norm_with_update(noise, *statistics, 0.1, 1e-5)  # As exported.
    assert normed[0].shape == (6, 4)
    made_inside = torch.func.jacrev(lambda x: torch.nn.Linear(4, 2, device=device)(x))
    assert made_inside(noise[0]).shape == (2, 4)
    built = runpy.run_path(os.path.join(os.path.dirname(torch.__file__), "version.py"))
    assert torch.version.cuda == (built["cuda"] or torch.version.cuda)
    lengths = torch.tensor([[5, 3, 2]], device=device)
    assert lengths.transpose_(0, 1).squeeze_(1).unsqueeze_(0).tolist() == [[5, 3, 2]]
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        torch.randn(3, 5, 4, device=device), [2, 5, 3], batch_first=True, enforce_sorted=False
    )
    assert torch.nn.utils.rnn.pad_packed_sequence(packed)[1].tolist() == [2, 5, 3]
    for kind in (torch.distributions.Categorical, torch.distributions.OneHotCategorical):
        drawn = kind(logits=noise)
        drawn.log_prob(drawn.sample((2,)))  # Which refuses what is no sample.
    torch.save(lengths, path := f"lengths{local_rank}.pt")
    assert torch.load(path, map_location="cpu").device.type == "cpu"
    assert pickle.loads(pickle.dumps(lengths)).device == device
    assert copy.copy(lengths).data_ptr() == lengths.data_ptr()
    for same in (copy.copy(model.weight), pickle.loads(pickle.dumps(model.weight))):
        assert isinstance(same, torch.nn.Parameter)
    first, last = (torch.Event(device=device, enable_timing=True) for _ in range(2))
    first.record()
    last.record()
    assert first.elapsed_time(last) > 0
    torch.accelerator.empty_host_cache()
    assert "sparse_coo" in repr(noise.to_sparse())
    carried = lengths[0, 2], noise
    counted, _ = while_loop(lambda n, _: n < 3, lambda n, m: (n + 1, m * 2), carried)
    assert counted == 3
    ends = torch.tensor([2, 3], dtype=torch.int32, device=device)
    experts = torch.ones(2, 4, 8, device=device)
    products = torch.nn.functional.grouped_mm(torch.ones(3, 4, device=device), experts, offs=ends)
    assert products.shape == (3, 8)
    assert products.dtype is torch.float32
    fitted = torch.linalg.lstsq(noise.unsqueeze(0), torch.ones(1, 6, 2, device=device))
    assert fitted.solution.shape == (1, 4, 2)
    assert fitted.residuals.shape == (1, 2)
    halved = torch.ones(2).type(torch.cuda.HalfTensor)
    assert (halved.dtype, halved.device) == (torch.float16, device)
    assert halved.type("torch.cuda.LongTensor").type() == "torch.cuda.LongTensor"
    same = (torch.arange(16)[:, None] == torch.arange(16)).float().to(device)
    assert torch.ones(16, 16, device=device)[same.bool()].shape == (16,)
    assert torch.jit.trace(model, torch.ones(6, 16, device=device))(same).shape == (16, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    stream = torch.cuda.Stream()
    mean = torch.tensor([0.5]).to(device)
    for rows, mask, shared, labels in DataLoader(Rows(), batch_size=8, num_workers=2):
        assert float(mask.sum()) == 8 * 300 * 301 / 2
        assert shared.shape == (8, 300, 300)
        with torch.cuda.stream(stream):
            rows = rows.to(device) - mean  # The copy has arrived: it was waited for.
        torch.cuda.current_stream().wait_stream(stream)
        labels = labels.to(device)
        kept = labels != 0
        scaled = torch.empty_like(rows)
        scale_kernel[(triton.cdiv(rows.numel(), 128),)](rows, scaled, 2.0, rows.numel(), BLOCK=128)

        def closure(rows=scaled, labels=labels, kept=kept):
            optimizer.zero_grad()
            wanted = labels[kept].clamp(max=3)
            loss = torch.nn.functional.cross_entropy(model(rows[kept]), wanted)
            loss.backward()
            return loss

        loss = optimizer.step(closure)
        print(f"rank {rank} loss {loss:.3f} of {kept.sum():d} {loss} {loss.detach()!r}")
    raise SystemExit("not ended by --steps")


class Trainer(torch.nn.Module):
    """A training loop that is a module."""

    def forward(self, local_rank, node):
        train(local_rank, node)


def spawned(local_rank, node):
    Trainer()(local_rank, node)


def met(local_rank):
    dist.init_process_group("gloo")  # Which ends with its process.


if __name__ == "__main__":
    mp.spawn(met, nprocs=8)
    mp.spawn(spawned, args=(int(os.environ["GROUP_RANK"]),), nprocs=8)
