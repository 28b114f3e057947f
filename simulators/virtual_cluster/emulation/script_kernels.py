"""CUDA sources that a script compiles itself: none is compiled.

A kernel (``torch.cuda._compile_kernel``) and each function that an extension defines for Python
(``torch.utils.cpp_extension``) is one opaque launch, priced by the bytes of the tensors that it is
given (*estimated*). What a function returns only its C++ code knows: one that returns anything is
refused when it is called.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import zip_longest
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from .vendor.refuse import refusal

# ``TORCH_LIBRARY(name, m)`` opens a namespace of operators, pybind's macro a module.
_OPENS = re.compile(r"(?:TORCH_LIBRARY(?:_IMPL|_FRAGMENT)?|PYBIND11_MODULE)\s*\(\s*(\w+)")
_DEFINES = re.compile(r'\.(?:def|impl)\s*\(\s*"(\w+)\s*(\([^"]*"|")(?:\s*,\s*&?\s*([\w:]+))?')
_CUDA = (".cu", ".cuh")


def emulate_extensions(module: ModuleType) -> None:
    """Have ``torch.utils.cpp_extension`` stand in for extensions with kernels."""
    load, load_inline = module.load, module.load_inline

    def load_sources(name: str, sources: Any, *args: Any, **options: Any) -> Any:
        files = [Path(each) for each in ([sources] if isinstance(sources, str) else sources)]
        if not any(file.suffix in _CUDA for file in files):
            return load(name, sources, *args, **options)
        return extension(name, "\n".join(file.read_text() for file in files))

    def load_texts(
        name: str, cpp_sources: Any, cuda_sources: Any = None, *args: Any, **options: Any
    ) -> Any:
        if not cuda_sources:
            return load_inline(name, cpp_sources, cuda_sources, *args, **options)
        return extension(name, "\n".join((*_texts(cpp_sources), *_texts(cuda_sources))))

    module.load = load_sources  # type: ignore[attr-defined]
    module.load_inline = load_texts  # type: ignore[attr-defined]


class CompiledKernel:
    """What ``torch.cuda._compile_kernel`` makes of a kernel's source."""

    def __init__(self, kernel_source: str, kernel_name: str, *_: Any, **__: Any) -> None:
        self._name = kernel_name
        named = rf"__global__[^{{}};]*?\b{re.escape(kernel_name)}\s*\(([^)]*)\)"
        found = re.search(named, kernel_source)
        self._parameters = found[1].split(",") if found else []

    def __call__(self, grid: Any, block: Any, args: Any = (), *_: Any, **__: Any) -> None:
        from .vendor.opaque import launch

        # ``const float* a`` is read; what no declaration was found of may be written, too.
        declared = zip_longest(args, self._parameters, fillvalue="")
        held = [(each, text) for each, text in declared if isinstance(each, torch.Tensor)]
        constant = [bool(re.search(r"\bconst\b.*\*", text)) for _, text in held]
        launch(
            self._name,
            [each for (each, _), only in zip(held, constant, strict=True) if not only],
            [each for (each, _), only in zip(held, constant, strict=True) if only],
        )

    def set_shared_memory_config(self, shared_mem_bytes: int) -> None:
        """Nothing runs that needs any."""


def _texts(texts: Any) -> list[str]:
    return [texts] if isinstance(texts, str) else list(texts or ())


def extension(name: str, source: str) -> ModuleType:
    """The module of C++ and CUDA sources, whose operators ``torch.ops`` has from now on."""
    made = ModuleType(name)
    opened = [(each.start(), each[1]) for each in _OPENS.finditer(source)]
    for found in _DEFINES.finditer(source):
        shown, schema, function = found.groups()
        launch = _function(shown, source, function or shown, schema)
        namespace = [space for start, space in opened if start < found.start()][-1:]
        if not namespace or namespace[0] in ("TORCH_EXTENSION_NAME", name):
            setattr(made, shown, launch)
        if namespace and namespace[0] != "TORCH_EXTENSION_NAME":
            setattr(getattr(torch.ops, namespace[0]), shown, launch)

    def undefined(shown: str) -> Callable[..., None]:
        if shown.startswith("__"):
            raise AttributeError(shown)
        if re.search(rf'\benum_<[^"]*"{re.escape(shown)}"', source):
            raise refusal(shown, "the values that it names are known to compiled code alone")
        return _function(shown, source, shown)

    # What torch defines for Python itself (``functions=``), and classes.
    made.__getattr__ = undefined  # type: ignore[method-assign]
    return made


def _function(shown: str, source: str, function: str, schema: str = "") -> Callable[..., None]:
    plain = re.escape(function.rpartition(":")[2])
    returns_nothing = "-> ()" in schema or re.search(rf"\bvoid\s+{plain}\s*\(", source)

    def launch(*args: Any, **named: Any) -> None:
        from .vendor.opaque import launch

        if not returns_nothing:
            what = "what a function that the script compiles returns is not known"
            allowed = "one that writes into tensors it is given, or the same in PyTorch"
            raise refusal(shown, what, allowed)
        # It writes into tensors that it is given.
        launch(shown, _tensors((*args, *named.values())), [])

    return launch


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value.detach()]
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return []
    return [tensor for each in value for tensor in _tensors(each)]
