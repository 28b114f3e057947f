"""Operations of the IR as PyTorch calls on a device, with random data.

Random, because zeros and constants toggle fewer bits, draw less power and run faster. Operands
that would stay in the L2 cache are rotated among copies, as successive layers of a model have
different weights.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.predictor.workload import ir

from .timing import Call

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
# Row-wise kernels (norms, softmax, lookups) run over rows this long.
ROW = 4096
# The loss's over a vocabulary, which no SM holds at a time.
LOGITS = 65536
# Bytes of rotated operands: well above the largest L2 (126 MB on B200).
ROTATED_BYTES = 512 << 20
MOST_COPIES = 8


@dataclass(frozen=True)
class Built:
    """A call that runs one kernel, how it was built (``impl``), and the bytes it moves. What is
    asked for takes ``repeats`` of it: timed one by one, as the host may launch them too slowly."""

    call: Call
    impl: str
    bytes: int = 0
    shape: str = ""
    repeats: int = 1


class TorchKernels:
    """Builds calls on one device."""

    def __init__(self, torch: Any, device: str) -> None:
        self.torch, self.device = torch, device
        self.version = f"torch-{torch.__version__}"

    def build(self, op: ir.TransformerKernel) -> Built:
        """The call of one operation.

        Raises:
            InputError: when PyTorch has no such kernel here.
        """
        try:
            if isinstance(op, ir.Gemm):
                return self.gemm(op)
            if isinstance(op, ir.GroupedGemm):
                return self.grouped_gemm(op)
            if isinstance(op, ir.Attention):
                return self.attention(op)
            return self.streaming(op)
        except (RuntimeError, NotImplementedError, KeyError) as error:
            # Out of memory is a RuntimeError too.
            lines = str(error).splitlines()
            raise InputError("kernel", op, f"cannot be built ({lines[:1]})") from error

    def random(self, *shape: int, dtype: str = "bf16", grad: bool = False) -> Any:
        kind = getattr(self.torch, DTYPES[dtype])
        return self.torch.randn(*shape, dtype=kind, device=self.device, requires_grad=grad)

    def rotate(self, make: Callable[[], Sequence[Any]], run: Callable[..., object]) -> Call:
        """A call of ``run`` on the next of several operand sets."""
        first = make()
        size = sum(each.numel() * each.element_size() for each in first)
        copies = max(1, min(MOST_COPIES, ROTATED_BYTES // max(size, 1)))
        sets = itertools.cycle([first, *(make() for _ in range(copies - 1))])

        def call() -> object:
            return run(*next(sets))

        call()
        return call

    def gemm(self, op: ir.Gemm) -> Built:
        if op.dtype == "fp8":
            return self.scaled_gemm(op)
        batch = () if op.batch == 1 else (op.batch,)
        matmul = self.torch.matmul

        def operand(rows: int, columns: int) -> Any:
            return self.random(*batch, rows, columns, dtype=op.dtype)

        if op.layout == "TN":
            call = self.rotate(
                lambda: (operand(op.m, op.k), operand(op.n, op.k)), lambda x, w: matmul(x, w.mT)
            )
        elif op.layout == "NN":
            call = self.rotate(lambda: (operand(op.m, op.k), operand(op.k, op.n)), matmul)
        else:
            if op.accumulate and not batch:
                try:
                    return self.accumulating_gemm(op)
                except self.torch.OutOfMemoryError:
                    raise
                except RuntimeError:
                    # Not here (a NotImplementedError), or not for these types in this release:
                    # the plain product then, and its name says so.
                    pass
            call = self.rotate(
                lambda: (operand(op.k, op.m), operand(op.k, op.n)), lambda x, y: matmul(x.mT, y)
            )
        return Built(call, self.version)

    def accumulating_gemm(self, op: ir.Gemm) -> Built:
        """A weight gradient added into the main gradient by the product itself.

        Raises:
            NotImplementedError: where PyTorch has no such product.
        """
        dtype, add = getattr(self.torch, DTYPES[op.dtype]), self.torch.addmm
        if op.accumulate == 4:
            dtype = self.torch.float32
            add = functools.partial(self.torch.ops.aten.addmm.dtype_out, out_dtype=dtype)
        main = self.torch.zeros(op.m, op.n, dtype=dtype, device=self.device)
        call = self.rotate(
            lambda: (
                self.random(op.k, op.m, dtype=op.dtype),
                self.random(op.k, op.n, dtype=op.dtype),
            ),
            lambda x, y: add(main, x.mT, y, out=main),
        )
        return Built(call, f"{self.version}-fp{8 * op.accumulate}-accumulate")

    def scaled_gemm(self, op: ir.Gemm) -> Built:
        """Of 8-bit operands with a scale a tensor. Hopper multiplies them in one layout only,
        into which frameworks transpose what needs it."""
        scaled, one = self.torch._scaled_mm, self.torch.ones((), device=self.device)
        scales = {"scale_a": one, "scale_b": one}
        result = self.torch.float32 if op.accumulate == 4 else self.torch.bfloat16
        # As Transformer Engine has it: sums of forward products alone may be less exact.
        options = {"out_dtype": result, "use_fast_accum": op.layout == "TN"}

        def operand(rows: int) -> Any:
            return self.random(rows, op.k).to(self.torch.float8_e4m3fn)

        call = self.rotate(
            lambda: (operand(op.m), operand(op.n)),
            lambda x, y: scaled(x, y.t(), **scales, **options),
        )
        return Built(call, f"{self.version}-scaled_mm")

    def looped_gemms(self, op: ir.GroupedGemm) -> Built:
        """One product after another."""
        alone = ir.Gemm(
            "", *ir.product_sizes(op)[:3], op.dtype, layout=op.layout, accumulate=op.accumulate
        )
        built = self.gemm(alone)
        return replace(built, impl=f"{built.impl}-loop", repeats=op.groups)

    def grouped_gemm(self, op: ir.GroupedGemm) -> Built:
        if not op.one_kernel:
            return self.looped_gemms(op)
        grouped = self.torch.nn.functional.grouped_mm
        rows = op.groups * op.m_per_group
        ends = self.torch.arange(1, op.groups + 1, dtype=self.torch.int32, device=self.device)
        ends = ends * op.m_per_group

        def tokens(width: int) -> Any:
            return self.random(rows, width, dtype=op.dtype)

        def weights(first: int, second: int) -> Any:
            return self.random(op.groups, first, second, dtype=op.dtype)

        if op.layout == "NT":
            call = self.rotate(
                lambda: (tokens(op.n), tokens(op.k)), lambda x, y: grouped(x.mT, y, offs=ends)
            )
        elif op.layout == "TN":
            call = self.rotate(
                lambda: (tokens(op.k), weights(op.n, op.k)),
                lambda x, w: grouped(x, w.mT, offs=ends),
            )
        else:
            call = self.rotate(
                lambda: (tokens(op.k), weights(op.k, op.n)), lambda x, w: grouped(x, w, offs=ends)
            )
        return Built(call, f"{self.version}-grouped_mm")

    def attention(self, op: ir.Attention) -> Built:
        """cuDNN's kernel on Hopper and later unless FlashAttention-2 is asked for or the GPU is
        older; PyTorch's plain one on a CPU."""
        backends = self.torch.nn.attention.SDPBackend
        capability = (0, 0)
        backend, impl = backends.MATH, "sdpa-math"
        if self.device != "cpu":
            capability = self.torch.cuda.get_device_capability()
            backend, impl = backends.FLASH_ATTENTION, "pytorch-flash"
        if capability >= (9, 0) and op.kernel == "flash":
            backend, impl = backends.CUDNN_ATTENTION, "cudnn"
        grad = op.pass_ == "bwd"

        def heads(count: int, length: int, width: int) -> Any:
            shape = (op.batch, count, length, width)
            return self.random(*shape, dtype=op.dtype, grad=grad)

        def make() -> tuple[Any, ...]:
            return (
                heads(op.heads, op.seq_q, op.head_dim),
                heads(op.kv_heads, op.seq_k, op.head_dim),
                heads(op.kv_heads, op.seq_k, op.head_dim_v),
            )

        def forward(q: Any, k: Any, v: Any) -> Any:
            with self.torch.nn.attention.sdpa_kernel(backend):
                return self.torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, is_causal=op.causal, enable_gqa=op.heads != op.kv_heads
                )

        impl = f"{impl}-{self.version}"
        if not grad:
            return Built(self.rotate(make, forward), impl)
        inputs = make()
        output = forward(*inputs)
        gradient = self.torch.randn_like(output)

        def backward() -> object:
            return self.torch.autograd.grad(output, inputs, gradient, retain_graph=True)

        backward()
        return Built(backward, impl)

    def streaming(self, op: ir.Streaming) -> Built:
        """A kernel of the class that moves about as many bytes; ``Built.bytes`` says how many."""
        torch, random = self.torch, self.random
        makers: dict[str, Callable[[int], tuple[Call, int, str]]] = {
            "elementwise": self._flat(
                6, lambda n: partial(torch.add, random(n), random(n), out=self._empty(n))
            ),
            "activation": self._flat(4, lambda n: partial(torch.nn.functional.gelu, random(n))),
            "memcpy": self._flat(4, lambda n: partial(self._empty(n).copy_, random(n))),
            "cast": self._flat(6, lambda n: partial(self._empty(n, "fp32").copy_, random(n))),
            "reduce": self._flat(
                4, lambda n: partial(torch.linalg.vector_norm, random(n, dtype="fp32"))
            ),
            "dropout": self._flat(
                5, lambda n: partial(torch.native_dropout, random(n), 0.1, True)
            ),
            "norm_fwd": self._norm,
            "norm_bwd": self._norm_backward,
            "softmax_fwd": self._softmax,
            "softmax_bwd": self._softmax_backward,
            "cross_entropy": self._cross_entropy,
            "embedding": self._lookup,
            "embedding_bwd": self._lookup_backward,
            "permute": self._lookup,
            "token_permute": self._lookup,
            "optimizer": self._adam,
        }
        # What PyTorch has is its plain norm, which tables know by this name.
        plain = op.kind.endswith("_plain")
        call, moved, shape = makers[op.kind.removesuffix("_plain")](op.bytes)
        call()
        return Built(call, "pytorch" if plain else self.version, moved, shape)

    def _flat(
        self, each: int, make: Callable[[int], Call]
    ) -> Callable[[int], tuple[Call, int, str]]:
        """A maker of a kernel over one dimension that moves ``each`` bytes of every element."""

        def made(size: int) -> tuple[Call, int, str]:
            n = max(1, size // each)
            return make(n), each * n, f"[{n}]"

        return made

    def _empty(self, count: int, dtype: str = "bf16") -> Any:
        kind = getattr(self.torch, DTYPES[dtype])
        return self.torch.empty(count, dtype=kind, device=self.device)

    def _rows(self, size: int, per_element: int, grad: bool = False) -> Any:
        return self.random(max(1, size // (per_element * ROW)), ROW, grad=grad)

    def _norm(self, size: int) -> tuple[Call, int, str]:
        x, weight = self._rows(size, 4), self.random(ROW)
        norm = self.torch.nn.functional.rms_norm
        return lambda: norm(x, (ROW,), weight), 4 * x.numel(), _shape(x)

    def _norm_backward(self, size: int) -> tuple[Call, int, str]:
        x, weight = self._rows(size, 6, grad=True), self.random(ROW, grad=True)
        return self._backward(
            self.torch.nn.functional.rms_norm(x, (ROW,), weight), (x, weight), 6 * x.numel()
        )

    def _softmax(self, size: int) -> tuple[Call, int, str]:
        x = self._rows(size, 4)
        return lambda: self.torch.softmax(x, -1), 4 * x.numel(), _shape(x)

    def _softmax_backward(self, size: int) -> tuple[Call, int, str]:
        x = self._rows(size, 6, grad=True)
        return self._backward(self.torch.softmax(x, -1), (x,), 6 * x.numel())

    def _cross_entropy(self, size: int) -> tuple[Call, int, str]:
        # Log-softmax reads and writes the fp32 logits, and reads them once for the sum.
        columns = min(LOGITS, max(1, size // 12))
        x = self.random(max(1, size // (12 * columns)), columns, dtype="fp32")
        rows, columns = x.shape
        labels = self.torch.randint(0, columns, (rows,), device=self.device)
        loss = self.torch.nn.functional.cross_entropy
        return lambda: loss(x, labels), 12 * x.numel(), _shape(x)

    def _lookup(self, size: int) -> tuple[Call, int, str]:
        table = self._rows(size, 4)
        rows = self.torch.randperm(table.shape[0], device=self.device)
        return lambda: table.index_select(0, rows), 4 * table.numel(), _shape(table)

    def _lookup_backward(self, size: int) -> tuple[Call, int, str]:
        # Reads the gradient, reads and writes the fp32 rows it is added to.
        gradient = self._rows(size, 10)
        rows = self.torch.randperm(gradient.shape[0], device=self.device)
        table = self.torch.zeros(gradient.shape, dtype=self.torch.float32, device=self.device)
        source = gradient.float()
        return lambda: table.index_add_(0, rows, source), 12 * table.numel(), _shape(table)

    def _adam(self, size: int) -> tuple[Call, int, str]:
        # Gradient, weight and two moments read, the last three written, all fp32.
        n = max(1, size // 28)
        lists = [[self.random(n, dtype="fp32")] for _ in range(3)]
        # The second moments, which are squares.
        lists += [[lists[2][0].abs()], [], [self.torch.ones((), device=self.device)]]
        rates = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.1, "eps": 1e-8}
        adam = self.torch._fused_adamw_

        def step() -> object:
            # The kernel of torch.optim.AdamW(fused=True) without the host's time of its step.
            return adam(*lists, **rates, amsgrad=False, maximize=False)

        return step, 28 * n, f"[{n}]"

    def _backward(self, output: Any, inputs: tuple[Any, ...], moved: int) -> tuple[Call, int, str]:
        gradient = self.torch.randn_like(output)
        backward = self.torch.autograd.grad
        return (
            lambda: backward(output, inputs, gradient, retain_graph=True),
            moved,
            _shape(inputs[0]),
        )


def _shape(tensor: Any) -> str:
    return f"[{', '.join(str(side) for side in tensor.shape)}]"
