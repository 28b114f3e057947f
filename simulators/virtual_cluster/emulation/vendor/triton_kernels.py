"""Triton kernels as opaque launches: which tensors they are given and the grid, never their code.

A launch is the operation ``triton.launch``, priced by the bytes of its tensors (*estimated*).
Which tensors it writes is read off the kernel's source: those whose pointers reach a store.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch

from trainscout.simulators.virtual_cluster.emulation.rank_state import RankState

torch.library.define(
    "triton::launch", "(Tensor(a!)[] written, Tensor[] read, str kernel, int[] grid) -> ()"
)
torch.library.register_fake("triton::launch", lambda written, read, kernel, grid: None)
_STORES = ("store", "make_tensor_descriptor", "make_block_ptr")


def triton_patches(state: RankState) -> Mapping[str, Any]:
    """What to do to Triton's modules once they are imported."""
    return {
        "triton.runtime.jit": _patch_launches,
        "triton.runtime.autotuner": _patch_autotuner,
        "triton.runtime.driver": lambda module: module.driver.set_active(_driver(state)),
    }


def _patch_launches(module: Any) -> None:
    def run(self: Any, *args: Any, grid: Any, warmup: bool = False, **options: Any) -> None:
        names = [parameter.name for parameter in self.params]
        arguments = {
            **{
                name: each.default
                for name, each in self.signature.parameters.items()
                if each.default is not inspect.Parameter.empty
            },
            **dict(zip(names, args, strict=False)),
            **{name: value for name, value in options.items() if name in names},
        }
        blocks = grid(arguments) if callable(grid) else grid
        if warmup:
            return
        stored = stored_parameters(self.fn)
        tensors = {name: value for name, value in arguments.items() if _is_tensor(value)}
        written = [_plain(value) for name, value in tensors.items() if name in stored]
        read = [_plain(value) for name, value in tensors.items() if name not in stored]
        sizes = [int(size) for size in (blocks if isinstance(blocks, tuple) else (blocks,))]
        with torch._C._AutoDispatchBelowAutograd(), torch.no_grad():
            torch.ops.triton.launch(written, read, self.fn.__name__, sizes)

    module.JITFunction.run = run


def _patch_autotuner(module: Any) -> None:
    def run(self: Any, *args: Any, **options: Any) -> Any:
        # Which configuration is fastest is not found out: the first, as good as any.
        best = self.configs[0]
        self.best_config = best
        return self.fn.run(*args, **{**best.all_kwargs(), **options})

    module.Autotuner.run = run


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or isinstance(
        getattr(value, "base", None), torch.Tensor
    )


def _plain(value: Any) -> torch.Tensor:
    """The tensor itself: of a descriptor, or of one given another type, what it is over."""
    tensor = value if isinstance(value, torch.Tensor) else value.base
    return tensor.detach()


@functools.cache
def stored_parameters(function: Any) -> frozenset[str]:
    """Names of a kernel's parameters from which a stored pointer is computed.

    What is handed to another function counts: it may be stored there. All, where the source is
    not to be had.
    """
    parameters = list(inspect.signature(function).parameters)
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError):
        return frozenset(parameters)
    reaches = {name: {name} for name in parameters}
    stored: set[str] = set()

    def names_in(node: ast.AST) -> set[str]:
        loads = [each for each in ast.walk(node) if isinstance(each, ast.Call) and _is_load(each)]
        # What is loaded is data: no pointer comes out of it.
        inside = {id(part) for load in loads for part in ast.walk(load)}
        found: set[str] = set()
        for each in ast.walk(node):
            if isinstance(each, ast.Name) and id(each) not in inside:
                found |= reaches.get(each.id, set())
        return found

    # Twice: pointers are advanced in loops.
    for _ in range(2):
        for node in ast.walk(tree):
            if isinstance(node, (ast.Assign, ast.AugAssign)) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    for name in ast.walk(target):
                        if isinstance(name, ast.Name):
                            reaches.setdefault(name.id, set()).update(names_in(node.value))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        module = node.func.value if isinstance(node.func, ast.Attribute) else None
        of_language = isinstance(module, ast.Name) and module.id in ("tl", "libdevice", "math")
        if method in _STORES or method.startswith("atomic_"):
            # ``pointer.store(value)`` of a descriptor, or ``tl.store(pointer, value)``.
            place = node.args[0] if of_language and node.args else node.func
            stored |= names_in(place)
        elif isinstance(node.func, ast.Name) and node.func.id not in _BUILTINS:
            for argument in (*node.args, *(each.value for each in node.keywords)):
                if isinstance(argument, ast.Name):
                    stored |= reaches.get(argument.id, set())
    return frozenset(stored & set(parameters))


_BUILTINS = frozenset(("range", "min", "max", "abs", "len", "float", "int", "print"))


def _is_load(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Attribute) and node.func.attr == "load"


def _driver(state: RankState) -> SimpleNamespace:
    """What kernels' callers ask of the GPU before they launch, of the calling thread."""
    properties = torch.cuda.get_device_properties(0)

    def device() -> torch.device:
        return torch.device("cuda", state.shim.device())

    def target() -> Any:
        from triton.backends.compiler import GPUTarget

        major, minor = torch.cuda.get_device_capability()
        return GPUTarget("cuda", major * 10 + minor, 32)

    asked = {
        "multiprocessor_count": properties.multi_processor_count,
        "max_shared_mem": getattr(properties, "shared_memory_per_block_optin", 232448),
        "warpSize": 32,
        "max_num_regs": 65536,
    }
    return SimpleNamespace(
        utils=SimpleNamespace(get_device_properties=lambda device: asked),
        get_current_device=state.shim.device,
        set_current_device=torch.cuda.set_device,
        get_current_stream=lambda device=None: state.shim.stream(),
        get_active_torch_device=device,
        get_device_interface=lambda: torch.cuda,
        get_current_target=target,
        is_active=lambda: True,
        # What fills the L2 cache between timings of a kernel.
        get_empty_cache_for_benchmark=lambda: torch.empty(
            64 << 20, dtype=torch.int32, device=device()
        ),
        clear_cache=lambda cache: cache.zero_(),
    )
