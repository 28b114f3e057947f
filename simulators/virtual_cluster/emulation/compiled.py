"""``torch.compile`` marks what it would compile, and attention picks the kernel a GPU would.

The eager function runs between ``Begin("fused")`` and ``End("fused")``, so that a cost model may
fuse what is inside; what only passes between fused operations takes no memory. The backward pass
is bracketed likewise, ``name.backward``.
"""

from __future__ import annotations

import copy
import functools
import os
import threading
import warnings
from bisect import bisect_right
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch._dynamo import utils as dynamo_utils
from torch._dynamo.eval_frame import OptimizedModule
from torch._functorch import config as functorch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental import proxy_tensor
from torch.nn.attention import register_flash_attention_impl
from torch.overrides import handle_torch_function, has_torch_function
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from trainscout.simulators.virtual_cluster.traces.events import Begin, End, Event
from trainscout.simulators.virtual_cluster.traces.fused import ASIDE

from .memory import DeviceMemory
from .rank_state import RankState
from .vendor.refuse import refusal

# The backward pass of compiled regions: which operations the compiler would have had to fuse.
#
# Autograd numbers the nodes it makes in forward, in order. Those made inside a compiled region
# have numbers of a range of their own, so that in backward the node that runs tells the region.

_GRADIENT = torch._C._functions.AccumulateGrad


class _Regions:
    """Ranges of node numbers, in order."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._regions: list[tuple[int, int, str]] = []

    def add(self, start: int, end: int, name: str) -> None:
        """A region made the nodes from ``start`` to before ``end``; it holds those inside it."""
        while self._regions and self._regions[-1][0] >= start:
            self._regions.pop()
            self._starts.pop()
        self._regions.append((start, end, name))
        self._starts.append(start)

    def find(self, number: int) -> tuple[int, int, str] | None:
        """The region that made this node."""
        at = bisect_right(self._starts, number) - 1
        if at < 0 or number >= self._regions[at][1]:
            return None
        return self._regions[at]

    def clear(self) -> None:
        """Their nodes have run, or never will."""
        self._starts.clear()
        self._regions.clear()

    def __bool__(self) -> bool:
        return bool(self._regions)


class CompiledBackward:
    """Opens and closes ``Begin("fused", name.backward)`` as backward enters and leaves regions.

    Args:
        emit: takes the events.
        memory: learns what only lives inside a region.
        node: the autograd node the calling thread runs.
        graph_task: the backward pass it belongs to, -1 outside.
    """

    def __init__(
        self,
        emit: Callable[[Event], None],
        memory: DeviceMemory,
        node: Callable[[], Any],
        graph_task: Callable[[], int],
    ) -> None:
        self._emit = emit
        self._memory = memory
        self._node = node
        self._graph_task = graph_task
        self._forward = _Regions()
        # Made by recomputation, on the engine's thread, which numbers nodes for itself; they run
        # in a backward pass within the backward pass.
        self._recomputed = _Regions()
        self._nested = threading.local()
        self._open: tuple[int, int, str] | None = None
        self._aside = False

    def made(self, start: int, end: int, name: str) -> None:
        """A compiled region ran forward and made these nodes."""
        if end > start:
            recomputing = self._graph_task() != -1
            (self._recomputed if recomputing else self._forward).add(start, end, name)

    def nested_begins(self) -> None:
        """A backward pass begins within another."""
        self._nested.depth = getattr(self._nested, "depth", 0) + 1

    def nested_ends(self) -> None:
        """The backward pass within is over."""
        self.close()
        self._nested.depth -= 1
        self._recomputed.clear()

    def region(self, node: Any) -> tuple[int, int, str] | None:
        """The compiled region that made a node of the backward pass."""
        regions = self._recomputed if getattr(self._nested, "depth", 0) else self._forward
        return None if node is None or not regions else regions.find(node._sequence_nr())

    def follow(self) -> None:
        """Something is about to happen in backward: in which region?"""
        if not (self._forward or self._recomputed or self._open):
            return
        node = self._node()
        found = self.region(node)
        aside = self._open is not None and isinstance(node, _GRADIENT)
        if aside != self._aside:
            self._step(aside)
        if aside or found is self._open:
            return
        self.close()
        if found is not None:
            self._open = found
            self._emit(Begin("fused", f"{found[2]}.backward"))
            self._memory.enter_region(backward=True)

    def _step(self, aside: bool) -> None:
        """A gradient of the region is complete: what is done with it is no part of the region."""
        self._aside = aside
        self._memory.step_aside(aside)
        self._emit(Begin(ASIDE, "gradient") if aside else End(ASIDE))

    def close(self) -> None:
        """Backward has left the region it was in."""
        if self._aside:
            self._step(False)
        if self._open is not None:
            self._open = None
            self._memory.leave_region()
            self._emit(End("fused"))

    def clear(self) -> None:
        """A step is over."""
        self._forward.clear()
        self._recomputed.clear()


_BUDGET = "activation_memory_budget {} is not followed: memory is too high, the step too short"


def install_compiled(state: RankState) -> None:
    """Replace ``torch.compile``, TorchScript's and attention's choice. Once per process."""
    marked = _marker(state)

    def compile(model: Any = None, **options: Any) -> Any:
        if model is None:
            return lambda function: compile(function, **options)
        if (budget := functorch.activation_memory_budget) < 1:
            warnings.warn(_BUDGET.format(budget), stacklevel=2)
        if isinstance(model, torch.nn.Module):
            model.forward = marked(_counted(model.forward), type(model).__name__)
            return OptimizedModule(model, lambda call: call)
        owner = getattr(model, "__self__", None)
        if isinstance(owner, torch.nn.Module):
            # Module.compile() compiles its call.
            return marked(_counted(model), type(owner).__name__)
        return marked(_counted(model), getattr(model, "__qualname__", "compiled"))

    script = torch.jit.script

    def jit_script(obj: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(obj, torch.nn.Module):
            obj.forward = marked(obj.forward, type(obj).__name__)
            # Of a program there is nothing to write: its parameters are.
            obj.save = lambda file, **_: torch.save(obj.state_dict(), file)
            return obj
        if isinstance(obj, type):
            # What scripting a class gives back is the class.
            return obj
        if not callable(obj) or getattr(obj, "__module__", "").startswith("torch._decomp."):
            # Rules of forward-mode derivatives are asked for their graphs.
            return script(obj, *args, **kwargs)
        return marked(obj, getattr(obj, "__qualname__", "scripted"))

    def jit_trace(func: Any, example_inputs: Any = None, *_: Any, **__: Any) -> Any:
        # Tracing runs it once, and gives a module of its own.
        func(*(example_inputs if isinstance(example_inputs, tuple) else (example_inputs,)))
        return jit_script(copy.copy(func) if isinstance(func, torch.nn.Module) else func)

    make_fx = proxy_tensor.make_fx

    def traced(*args: Any, **kwargs: Any) -> Any:
        def run(*tensors: Any) -> Any:
            on_device = any(isinstance(tensor, FakeTensor) for tensor in tensors)
            if on_device and kwargs.get("tracing_mode") == "symbolic":
                raise refusal("make_fx", "sizes are numbers here", "train uncompiled")
            return make_fx(*args, **kwargs)(*tensors)

        return run

    proxy_tensor.make_fx = traced
    torch.compile = functools.wraps(torch.compile)(compile)
    torch.cond = _cond
    torch.jit.script = jit_script
    torch.jit.trace = jit_trace
    # TorchScript would run such modules' methods itself, below what is patched in Python.
    torch.jit.ScriptModule = type("ScriptModule", (torch.nn.Module,), {})
    torch.jit.script_method = jit_script
    _patch_nested_backward(state)
    _patch_functions(state)
    attention = _attention(torch._C._nn.scaled_dot_product_attention, state.values)
    torch.nn.functional.scaled_dot_product_attention = attention
    torch._C._nn.scaled_dot_product_attention = attention
    _patch_asked_choice()
    nothing = functools.partial(SimpleNamespace, remove=lambda: None)
    for newer in ("FA3", "FA4"):
        # Which one is active, each of torch's flash attentions says in the trace: activating it
        # puts no kernels into torch's dispatcher, and nothing need be removed.
        register_flash_attention_impl(newer, register_fn=nothing)


def _patch_nested_backward(state: RankState) -> None:
    """Recomputation runs a backward pass within the backward pass, on the engine's thread."""
    backward = torch.autograd.backward

    def run(*args: Any, **kwargs: Any) -> Any:
        if torch._C._current_graph_task_id() == -1:
            return backward(*args, **kwargs)
        state.backward.nested_begins()
        try:
            return backward(*args, **kwargs)
        finally:
            state.backward.nested_ends()

    torch.autograd.backward = functools.wraps(backward)(run)


def _patch_functions(state: RankState) -> None:
    """Of a function of one's own, what is compiled may return fewer gradients than it has inputs;
    eager code may not."""
    node = torch.autograd.function.BackwardCFunction
    apply = node.apply

    def run(self: Any, *grads: Any) -> Any:
        made = apply(self, *grads)
        if state.backward.region(self) is None:
            return made
        found = made if isinstance(made, tuple) else (made,)
        return (*found, *[None] * (len(self.needs_input_grad) - len(found)))

    node.apply = run


def _marker(state: RankState) -> Callable[[Any, str], Any]:
    inside = threading.local()

    def marked(function: Any, name: str) -> Any:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            first = torch.autograd._get_sequence_nr()
            with state.recorder:
                state.recorder.emit(Begin("fused", name))
            state.memory.enter_region()
            returned: Any = None
            try:
                returned = function(*args, **kwargs)
                return returned
            finally:
                state.memory.leave_region(tree_leaves(returned))
                state.recorder.emit(End("fused"))
                state.backward.made(first, torch.autograd._get_sequence_nr(), name)

        @functools.wraps(function)
        def outermost(*args: Any, **kwargs: Any) -> Any:
            if getattr(inside, "another", False):
                return run(*args, **kwargs)
            inside.another = True
            try:
                return _handed_out(run(*args, **kwargs), tree_leaves((args, kwargs)))
            finally:
                inside.another = False

        return outermost

    return marked


class _HandedOut(torch.autograd.Function):
    """What a compiled function returns, of which its backward pass takes a gradient each."""

    @staticmethod
    def forward(ctx: Any, zeros: dict[int, Any], *made: Any) -> Any:
        ctx.set_materialize_grads(False)
        ctx.zeros, ctx.made = zeros, [(each.shape, each.dtype, each.device) for each in made]
        return tuple(each.detach() for each in made)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        for place, (shape, dtype, device) in enumerate(ctx.made):
            if gradients[place] is None:
                ctx.zeros[place] = torch.zeros(shape, dtype=dtype, device=device)
        return None, *(ctx.zeros.get(place, each) for place, each in enumerate(gradients))


def _used(zeros: dict[int, Any], place: int, *_: Any) -> None:
    zeros.pop(place, None)


def _handed_out(returned: Any, given: list[Any]) -> Any:
    """What a compiled function returned, so that a gradient is made, in zeros, of each part that
    has none: a graph of AOTAutograd's has all of them among its inputs, to which it adds nothing
    in place (PyTorch 2.13)."""
    known, (leaves, form) = {id(each) for each in given}, tree_flatten(returned)
    own = {
        id(each): place
        for place, each in enumerate(leaves)
        if isinstance(each, torch.Tensor) and each.grad_fn is not None and id(each) not in known
    }
    if len(own) < 2:
        return returned
    zeros: dict[int, Any] = {}
    for index, at in enumerate(own.values()):
        node = leaves[at].grad_fn
        # What only passes on a sum with the zeros is fused with it.
        while node.name().endswith(("ViewBackward0", "ToCopyBackward0")):
            node = node.next_functions[0][0]
        node.register_hook(functools.partial(_used, zeros, index))
    made = _HandedOut.apply(zeros, *(leaves[at] for at in own.values()))
    for at, each in zip(own.values(), made, strict=True):
        leaves[at] = each
    return tree_unflatten(leaves, form)


def _counted(function: Any) -> Any:
    """The first call compiles it, which scripts ask Dynamo about."""
    seen: list[None] = []

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if not seen:
            seen.append(None)
            dynamo_utils._compilation_metrics.append(dynamo_utils.CompilationMetrics())
            dynamo_utils.counters["stats"]["unique_graphs"] += 1
        return function(*args, **kwargs)

    return run


def _cond(pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
    """The host reads which branch to take, as it does in what torch compiles of this."""
    return (true_fn if pred else false_fn)(*operands)


def _takes_half(query: Any) -> bool:
    half = query.dtype in (torch.float16, torch.bfloat16) and query.dim() == 4
    return bool(half and query.shape[-1] <= 256) and torch.cuda.get_device_capability() >= (8, 0)


def _flash_takes(query: Any, mask: Any) -> bool:
    return mask is None and torch.backends.cuda.flash_sdp_enabled() and _takes_half(query)


def _cudnn_takes(query: Any, key: Any, mask: Any) -> bool:
    """cuDNN's gives no gradient to a bias and takes no single key."""
    suits = key.shape[-2] > 1 and not (mask is not None and mask.requires_grad)
    suits = suits and query.shape[-1] % 8 == 0 and torch.backends.cuda.cudnn_sdp_enabled()
    return suits and _takes_half(query)


# Until its pull request 191085 it took as many key heads as query heads alone.
_MEMORY_EFFICIENT_TAKES_GROUPS = torch.__version__ >= (2, 14)


def _memory_efficient_takes(query: Any, key: Any) -> bool:
    if query.dim() != 4 or not torch.backends.cuda.mem_efficient_sdp_enabled():
        return False
    return _MEMORY_EFFICIENT_TAKES_GROUPS or bool(query.shape[1] == key.shape[1])


def _patch_asked_choice() -> None:
    """What jagged tensors and scripts ask before they call attention."""
    of = torch._C
    of._can_use_flash_attention = lambda ask, _=False: _flash_takes(ask.query, ask.attn_mask)
    of._can_use_mem_efficient_attention = lambda ask, _=False: _memory_efficient_takes(
        ask.query, ask.key
    )
    of._can_use_cudnn_attention = lambda ask, _=False: _cudnn_takes(
        ask.query, ask.key, ask.attn_mask
    )


# Where torch puts cuDNN's attention first, with cuDNN 9.15.1 or later (that of torch 2.10 and on).
_CUDNN_FIRST = ((9, 0), (10, 0))


def _attention(original: Any, values: Any) -> Any:
    """Torch's choice for CUDA (``sdp_utils.cpp``): cuDNN where it comes first, flash, then
    memory-efficient, then plain math."""
    aten = torch.ops.aten

    def scaled_dot_product_attention(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        tensors = (query, key, value, attn_mask)
        if has_torch_function(tensors):
            # Jagged tensors and masks that know that they are causal have attention of their own.
            every = (*tensors, dropout_p, is_causal, scale, enable_gqa)
            return handle_torch_function(scaled_dot_product_attention, tensors, *every)
        rest: Any = (dropout_p, is_causal)
        named: Any = {"scale": scale}
        if not query.is_cuda:
            named["enable_gqa"] = enable_gqa
            return original(query, key, value, attn_mask, *rest, **named)
        if torch.is_autocast_enabled("cuda"):
            # Autocast acts on the function that stands here; what it calls is past that.
            dtype = torch.get_autocast_dtype("cuda")
            query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
            if attn_mask is not None and attn_mask.is_floating_point():
                attn_mask = attn_mask.to(dtype)
        cudnn_last = os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") == "1"
        flash = _flash_takes(query, attn_mask)
        cudnn = _cudnn_takes(query, key, attn_mask)
        cudnn_first = torch.cuda.get_device_capability() in _CUDNN_FIRST and not cudnn_last
        if flash and not (cudnn and cudnn_first):
            return aten._scaled_dot_product_flash_attention(query, key, value, *rest, **named)[0]
        keeps = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
        if cudnn and (cudnn_first or not torch.backends.cuda.math_sdp_enabled()):
            bias = _as_bias(attn_mask, query, key, values)
            return aten._scaled_dot_product_cudnn_attention(
                query, key, value, bias, keeps, *rest, **named
            )[0]
        if _memory_efficient_takes(query, key):
            bias = _as_bias(attn_mask, query, key, values)
            return aten._scaled_dot_product_efficient_attention(
                query, key, value, bias, keeps, *rest, **named
            )[0]
        # Of 16-bit tensors in fp32, whose products no autocast reaches.
        with torch.autocast("cuda", enabled=False):
            return aten._scaled_dot_product_attention_math(
                query, key, value, attn_mask, *rest, **named, enable_gqa=enable_gqa
            )[0]

    # Scripts read from its text which arguments it takes.
    return functools.wraps(original)(scaled_dot_product_attention)


def _as_bias(mask: Any, query: Any, key: Any, values: Any) -> Any:
    """A mask as what is added to the scores, for every query and head."""
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        zeros = torch.zeros_like(mask, dtype=query.dtype)
        # Nobody will read it, so it need not be worked out.
        values.forget(zeros)
        mask = zeros.masked_fill_(mask.logical_not(), float("-inf"))
    shape = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    return mask.expand(shape)
