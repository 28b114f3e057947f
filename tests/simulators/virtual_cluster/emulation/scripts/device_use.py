"""Uses the device in many ways, each inside an NVTX range that names it."""

import io
import os
import pickle
import threading

import torch
import torch.distributed as dist
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
push, pop = torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop
side = torch.cuda.Stream()

push("properties")
assert torch.cuda.is_available()
assert torch.cuda.device_count() == 4
assert torch.cuda.get_device_name() == "NVIDIA H800"
assert torch.cuda.get_device_capability() == (9, 0)
assert torch.cuda.is_bf16_supported()
assert torch.cuda.mem_get_info()[1] == 8 * 2**30
assert torch.cuda.current_device() == 1
assert isinstance(torch.ones(1, device="cuda"), torch.cuda.FloatTensor)
pop()

push("streams")
data = torch.ones(1024, device="cuda")
event = torch.cuda.Event(enable_timing=True)
event.record()
with torch.cuda.stream(side):
    assert torch.cuda.current_stream() == side
    side.wait_event(event)
    data.mul_(2)
torch.cuda.current_stream().wait_stream(side)
data.add_(1)
end = torch.cuda.Event(enable_timing=True)
end.record()
end.synchronize()
assert event.elapsed_time(end) > 0
pop()

push("wrong stream")
data.add_(1)
with torch.cuda.stream(side):
    data.mul_(3)
pop()

push("recorded")
torch.cuda.synchronize()
lent = torch.ones(2**24, device="cuda")
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    lent.mul(2)
lent.record_stream(side)
reserved = torch.cuda.memory_reserved()
del lent
reused = torch.zeros(2**24, device="cuda")
assert torch.cuda.memory_reserved() == reserved
pop()

push("freed in use")
torch.cuda.synchronize()
lent = torch.ones(2**20, device="cuda")
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    lent.mul_(2)
del lent
reused = torch.zeros(2**20, device="cuda")
pop()

push("parts")
torch.cuda.synchronize()
buffer = torch.zeros(2, 512, device="cuda")
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    buffer[0].add_(1)
buffer[1].add_(1)
pop()

push("collective in flight")
torch.cuda.synchronize()
work = dist.all_reduce(data, async_op=True)
data.add_(1)
work.wait()
pop()

push("collectives")
group = dist.new_group([1, 5, 7, 9], group_desc="ODD")
assert dist.new_group([0, 2]) == dist.GroupMember.NON_GROUP_MEMBER
gathered = torch.empty(4 * 1024, device="cuda")
dist.all_gather_into_tensor(gathered, data, group=group)
dist.reduce_scatter_tensor(data, gathered, group=group)
dist.all_to_all_single(gathered[:1024], data, [512, 256, 128, 128], [256, 256, 256, 256], group)
dist.broadcast(data, src=5, group=group)
dist.barrier()
pop()

push("transfers")
sends = [dist.P2POp(dist.isend, data, 1, group), dist.P2POp(dist.irecv, gathered, 7, group)]
for request in dist.batch_isend_irecv(sends):
    request.wait()
dist.send(data, 5, group)
dist.send(data, 5, group)
try:
    dist.send(data, group=group, group_dst=6)
except (ValueError, RuntimeError):
    print("no such member")
pop()

push("host")
flag = torch.tensor([3, 5], device="cuda")
assert (flag * 2).tolist() == [6, 10]
assert int(flag.sum()) == 8
on_host = torch.tensor([2.0])
dist.all_reduce(on_host)
assert on_host.item() == 2.0 * dist.get_world_size()
everyone = [None] * dist.get_world_size()
dist.all_gather_object(everyone, {"rank": dist.get_rank()})
assert everyone[0] == {"rank": 9}
pop()

push("copies")
pinned, pageable = torch.ones(2**15).pin_memory(), torch.ones(2**15)
there = torch.zeros(2**15, device="cuda")
for number, copy in enumerate(
    (
        lambda: there.copy_(pinned, non_blocking=True),
        lambda: there.copy_(pinned),
        lambda: there.copy_(pageable, non_blocking=True),
        lambda: there[:64].copy_(pageable[:64], non_blocking=True),
        lambda: pinned.copy_(there, non_blocking=True),
        lambda: pageable.copy_(there, non_blocking=True),
        lambda: there.to("cpu", non_blocking=True).to("cuda", non_blocking=True),
    )
):
    push(f"copy {number}")
    copy()
    pop()
pop()

push("host memory")
assert torch.empty(4, pin_memory=True).is_pinned()
assert torch.ones(4).pin_memory().is_pinned()
assert torch.empty(2**22, pin_memory=True).is_pinned()
assert torch.tensor([1.0, 2.0], pin_memory=True).is_pinned()
assert torch.empty_like(there, device="cpu", pin_memory=True).is_pinned()
assert not torch.ones(4).is_pinned()
found = []
thread = threading.Thread(target=lambda: found.append(torch.ones(3, device="cuda") + 1))
thread.start()
thread.join()
assert found[0].tolist() == [2, 2, 2]


def kernel_meanwhile(ready, done):  # As while another thread saves a checkpoint.
    mode = parameter.data.fake_mode
    mode.in_kernel_invocation = True
    ready.set()
    done.wait()
    mode.in_kernel_invocation = False


parameter = torch.nn.Parameter(torch.ones(3, device="cuda") + 1)
ready, done = threading.Event(), threading.Event()
thread = threading.Thread(target=kernel_meanwhile, args=(ready, done))
thread.start()
ready.wait()
assert parameter.device.type == "cuda"
(parameter * parameter).sum().backward()
done.set()
thread.join()
torch.save({"weights": torch.ones(512, 512, device="cuda")}, "checkpoint.pt")
loaded = torch.load("checkpoint.pt", map_location="cuda")["weights"]
assert loaded.is_cuda
assert loaded.shape == (512, 512)
assert os.path.getsize("checkpoint.pt") < 10_000


class Trusting(pickle.Unpickler):  # As Megatron-LM reads what Transformer Engine keeps.
    def find_class(self, module, name):
        assert (module, name) in {
            ("torch._utils", "_rebuild_tensor_v2"),
            ("collections", "OrderedDict"),
        }
        return super().find_class(module, name)


kept = torch.empty_like(torch.ones(512, 512, device="cuda"), device="cpu")
assert Trusting(io.BytesIO(pickle.dumps(kept))).load().shape == (512, 512)
assert torch.accelerator.memory_allocated() == torch.cuda.memory_allocated()
torch.accelerator.current_stream().wait_event(torch.cuda.current_stream().record_event())
with torch.Stream() as beside:
    beside.wait_event(torch.accelerator.current_stream().record_event())
    assert torch.cuda.current_stream() == beside
torch.set_num_threads(2 // torch.cuda.device_count())
pop()

push("default type")
assert torch.zeros(3, device="cuda").dtype == torch.float32
torch.set_default_dtype(torch.bfloat16)
assert torch.zeros(3, device="cuda").dtype == torch.bfloat16
torch.set_default_dtype(torch.float32)
assert torch.zeros(3, device="cuda").dtype == torch.float32
pop()

push("random state")
torch.cuda.manual_seed(7)
state = torch.cuda.get_rng_state()
assert state.numel() == 16
torch.cuda.set_rng_state(state, device="cuda:1")
assert torch.cuda.initial_seed() == 7
# As graphs need them: states that are shared, and states that are apart.
generator = torch.cuda.default_generators[torch.cuda.current_device()]
shared, apart = generator.graphsafe_get_state(), generator.clone_state()
generator.manual_seed(8)
drawn = torch.empty(4, device="cuda").exponential_(generator=generator)
assert drawn.shape == (4,)
assert (shared.initial_seed(), apart.initial_seed()) == (8, 7)
generator.graphsafe_set_state(apart)
apart.manual_seed(9)
assert (generator.initial_seed(), shared.initial_seed()) == (9, 8)
generator.set_state(shared.get_state())
assert apart.initial_seed() == 8
pop()

push("memory")
torch.cuda.synchronize()
before = torch.cuda.memory_allocated()
big = torch.empty(2**30, dtype=torch.uint8, device="cuda")
assert torch.cuda.memory_allocated() == before + 2**30
assert torch.cuda.max_memory_allocated() >= torch.cuda.memory_allocated()
assert torch.cuda.memory_reserved() >= torch.cuda.memory_allocated()
big.untyped_storage().resize_(0)
assert torch.cuda.memory_allocated() == before
del big
torch.cuda.empty_cache()
pop()

push("out of memory")
try:
    torch.empty(9 * 2**30, dtype=torch.uint8, device="cuda")
except torch.cuda.OutOfMemoryError as error:
    print(error)
assert torch.cuda.memory_stats()["num_ooms"] == 1
pop()

push("compiled")


@torch.compile
def gelu(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(1.702 * x)


before = torch.cuda.max_memory_allocated()
torch.cuda.reset_peak_memory_stats()
live = torch.cuda.memory_allocated()
activated = gelu(torch.ones(2**20, device="cuda"))
# Input and result; what the compiled kernel keeps in registers is nowhere.
assert torch.cuda.max_memory_allocated() == live + 2 * 4 * 2**20
pop()


@torch.compile
def saturated(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    tangent = torch.tanh((x @ weights).float())
    return torch.nn.functional.dropout(tangent, 0.1).exp().sum()


weights = torch.ones(1024, 1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
rows = torch.ones(1024, 1024, device="cuda", dtype=torch.bfloat16)
live = torch.cuda.memory_allocated()
value = saturated(rows, weights)
# Backward computes the tangent and its exponential again, of the product in 16 bits and the mask.
assert torch.cuda.memory_allocated() == live + 3 * 2**20 + 512
value.backward()
del value
assert torch.cuda.memory_allocated() == live + 2 * 2**20
weights.grad = None


@torch.compile
def residual(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = x + torch.tanh(x).bfloat16() @ weights
    return x.sum()


stream = torch.ones(1024, 1024, device="cuda", requires_grad=True)
live = torch.cuda.memory_allocated()
value = residual(stream, weights)
# Three inputs of products in 16 bits, and the stream itself, which outlives the second and third
# product, in 32; not what is added to it. (Torch's own partitioner keeps these and one tangent.)
assert torch.cuda.memory_allocated() == live + (3 * 2 + 2 * 4) * 2**20 + 512
value.backward()
del value
weights.grad = None


@torch.compile
def projected(x: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    logits = x @ weights
    return logits, torch.nn.functional.cross_entropy(logits, labels)


labels = torch.zeros(1024, dtype=torch.int64, device="cuda")
narrow, output = rows[:, :64].contiguous(), weights[:64].detach().repeat(1, 8).requires_grad_()
live = torch.cuda.memory_allocated()
torch.cuda.reset_peak_memory_stats()
logits, value = projected(narrow, output)
value.backward()
# The logits, zeros for the gradient that nobody gave of them, and what is added to these.
assert 0 <= torch.cuda.max_memory_allocated() - live - 3 * 16 * 2**20 <= 2**20 + 4096
del logits, value, output, narrow

push("compiled backward")
source = torch.ones(64, 64, device="cuda", requires_grad=True)
torch.utils.checkpoint.checkpoint(gelu, gelu(source) @ source, use_reentrant=True).sum().backward()
pop()

push("attention")
q = torch.randn(2, 8, 256, 64, dtype=torch.bfloat16, device="cuda")
torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
mask = torch.ones(256, 256, dtype=torch.bool, device="cuda")
torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask)
torch.nn.functional.scaled_dot_product_attention(q.float(), q.float(), q.float())
with torch.autocast("cuda", torch.bfloat16):
    torch.nn.functional.scaled_dot_product_attention(q.float(), q.float(), q)
os.environ["TORCH_CUDNN_SDPA_DEPRIORITIZED"] = "1"
torch.nn.functional.scaled_dot_product_attention(q, q, q)
del os.environ["TORCH_CUDNN_SDPA_DEPRIORITIZED"]
bias = torch.zeros(256, 256, dtype=q.dtype, device="cuda", requires_grad=True)
torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=bias)
pop()

push("masks of blocks")
documents = torch.arange(1024, device="cuda") // 256
mask = create_block_mask(
    lambda b, h, q, k: (q >= k) & (documents[q] == documents[k]), None, None, 1024, 1024
)
flex_attention(*[torch.randn(1, 4, 1024, 64, device="cuda")] * 3, block_mask=mask)
counts, places = torch.ones(1, 1, 8, dtype=torch.int32), torch.zeros(1, 1, 8, 8, dtype=torch.int32)
counts[..., 1:] = 2
window = BlockMask.from_kv_blocks(counts.cuda(), places.cuda(), BLOCK_SIZE=128, mask_mod=None)
flex_attention(*[torch.randn(1, 4, 1024, 64, device="cuda")] * 3, block_mask=window)
scores = torch.randn(1024, device="cuda")
mask = create_block_mask(lambda b, h, q, k: scores[q] > scores[k], None, None, 1024, 1024)
flex_attention(*[torch.randn(1, 4, 1024, 64, device="cuda")] * 3, block_mask=mask)
pop()

push("products of fp32")
single = torch.randn(64, 64, device="cuda")
single @ single
torch.backends.cuda.matmul.allow_tf32 = True
single @ single
torch.backends.cuda.matmul.allow_tf32 = False
pop()

push("training")
model = torch.nn.Linear(512, 512, device="cuda")
ordinary = torch.optim.AdamW(model.parameters())
for _ in range(2):
    model(torch.randn(8, 512, device="cuda")).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    ordinary.step()
    ordinary.zero_grad()
pop()

push("kernels")
hidden = torch.randn(8, 64, dtype=torch.bfloat16, device="cuda", requires_grad=True)
norm = torch.nn.RMSNorm(64, dtype=torch.bfloat16, device="cuda")
torch.nn.functional.silu(norm(hidden)).backward(torch.empty_like(hidden))
pop()

push("refused")
try:
    from xformers.ops import AttentionBias, memory_efficient_attention

    query = torch.ones(1, 8, 2, 16, device="cuda")
    memory_efficient_attention(query, query, query, AttentionBias())
except ValueError as error:
    print(error)
pop()

push("recurrent")
packed = torch.nn.utils.rnn.pack_padded_sequence(torch.ones(5, 3, 8, device="cuda"), [5, 4, 3])
output, (state, cell) = torch.nn.LSTM(8, 16, 2, bidirectional=True).cuda()(packed)
print("recurrent", tuple(output.data.shape), tuple(state.shape), tuple(cell.shape))
output.data.sum().backward()
output, state = torch.nn.GRU(8, 16, batch_first=True).cuda()(torch.ones(3, 5, 8, device="cuda"))
print("recurrent", tuple(output.shape), tuple(state.shape))
pop()

push("saved")
file = io.BytesIO()
torch.save({"weight": torch.nn.Linear(300, 300).cuda().weight}, file)
for place in (None, "cpu", {"cuda:1": "cpu"}, lambda storage, location: storage.cuda(1)):
    file.seek(0)
    print("loaded on", torch.load(file, map_location=place)["weight"].device)
file = io.BytesIO()
small = torch.linspace(0, 1, 5, device="cuda"), torch.tensor([[3], [0]], device="cuda").bool()
torch.save((*small, torch.randn(3, device="cuda")), file)
file.seek(0)
times, flags, unknown = torch.load(file, map_location="cuda", weights_only=True)
print("known again", times.tolist(), flags.tolist(), times.device, unknown.shape)
pop()


class Quantised(torch.nn.Parameter):
    """As libraries have for 4-bit weights: another type and another size once on the device."""

    def __new__(cls, data: torch.Tensor, scale: float) -> "Quantised":
        self = torch.Tensor._make_subclass(cls, data, False)
        self.scale = scale
        return self


push("parameter type")
layer = torch.nn.Linear(300, 300, bias=False)
layer.weight = Quantised(layer.weight.data, 2.0)
layer.cuda()
layer.weight.data = torch.empty(45_000, 1, dtype=torch.uint8, device="cuda")
print(type(layer.weight).__name__, isinstance(layer.weight, Quantised), layer.weight.scale)
print(layer.weight.shape, layer.weight.dtype, layer.weight.device)
pop()

push("seen to be over")
work = dist.all_reduce(data, async_op=True)
assert not work.is_completed()
while not work.is_completed():
    pass
data.add_(1)
work.wait()
assert work.is_completed()
event.record()
assert not event.query()
while not event.query():
    pass
with torch.cuda.stream(side):
    data.mul_(3)
torch.ones_like(data)
assert not side.query()
while not side.query():
    pass
assert event.query()
data.add_(1)
pop()

dist.destroy_process_group()
raise SystemExit(7)
