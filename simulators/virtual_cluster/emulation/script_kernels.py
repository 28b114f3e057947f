"""CUDA sources that a script compiles itself: none is compiled.

A kernel (``torch.cuda._compile_kernel``) and each function that an extension defines for Python
(``torch.utils.cpp_extension``) is one opaque launch, priced by the bytes of the tensors that it is
given and returns (*estimated*). What a function returns its source says (``script_sources``); one
whose source is not understood is refused when it is called.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from trainscout.simulators.virtual_cluster.emulation.script_sources import Source, Unread
from trainscout.simulators.virtual_cluster.emulation.script_tensors import to_cpp, to_python
from trainscout.simulators.virtual_cluster.emulation.vendor.refuse import refusal

# ``TORCH_LIBRARY(name, m)`` opens a namespace of operators, pybind's macro a module.
_OPENS = re.compile(r"(?:TORCH_LIBRARY(?:_IMPL|_FRAGMENT)?|PYBIND11_MODULE)\s*\(\s*(\w+)")
_DEFINES = re.compile(r'\.(?:def|impl)\s*\(\s*"(\w+)\s*(\([^"]*"|")(?:\s*,\s*&?\s*([\w:]+))?')
_CLASSES = re.compile(r'class_\s*<\s*([\w:]+)[^>]*>\s*\(\s*\w+\s*,\s*"(\w+)"[^)]*\)([^;]*);')
_CUDA = (".cu", ".cuh")


def emulate_extensions(module: ModuleType) -> None:
    """Have ``torch.utils.cpp_extension`` stand in for extensions with kernels."""
    load, load_inline = module.load, module.load_inline

    def load_sources(
        name: str, sources: Any, extra_cflags: Any = None, *given: Any, **options: Any
    ) -> Any:
        files = [Path(each) for each in ([sources] if isinstance(sources, str) else sources)]
        if not any(file.suffix in _CUDA for file in files):
            return load(name, sources, extra_cflags, *given, **options)
        texts = [(file.read_text(), file.absolute().parent) for file in files]
        return extension(name, Source(texts, extra_cflags or ()))

    def load_texts(
        name: str,
        cpp_sources: Any,
        cuda_sources: Any = None,
        functions: Any = None,
        **options: Any,
    ) -> Any:
        if not cuda_sources:
            return load_inline(name, cpp_sources, cuda_sources, functions=functions, **options)
        texts = [(text, None) for text in (*_texts(cpp_sources), *_texts(cuda_sources))]
        return extension(name, Source(texts, options.get("extra_cflags") or ()), functions)

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
        from trainscout.simulators.virtual_cluster.emulation.vendor.opaque import launch

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


def _texts(given: Any) -> list[str]:
    return [given] if isinstance(given, str) else list(given or ())


def extension(
    name: str, source: Source, functions: Iterable[str] | str | None = None
) -> ModuleType:
    """The module of C++ and CUDA sources, whose operators ``torch.ops`` has from now on.

    ``functions``: those to show that the sources do not define for Python themselves.
    """
    made = ModuleType(name)
    for each in [functions] if isinstance(functions, str) else functions or ():
        setattr(made, each, _function(each, source, each))
    text = "\n".join(text for text, _ in source.files)
    for found in _CLASSES.finditer(text):
        setattr(made, found[2], _class(found[2], source, found[1], found[3]))
    text = _CLASSES.sub("", text)
    opened = [(each.start(), each[1]) for each in _OPENS.finditer(text)]
    for found in _DEFINES.finditer(text):
        shown, schema, function = found.groups()
        launch = _function(shown, source, function or shown, schema)
        namespace = [space for start, space in opened if start < found.start()][-1:]
        is_module = not namespace or namespace[0] in ("TORCH_EXTENSION_NAME", name)
        if is_module:
            setattr(made, shown, launch)
        if namespace and namespace[0] != "TORCH_EXTENSION_NAME":
            setattr(getattr(torch.ops, namespace[0]), shown, launch)
    return made


def _class(shown: str, source: Source, name: str, definitions: str) -> type:
    """A class whose methods are launches; what it keeps of its arguments is not followed."""
    methods: dict[str, Any] = {"__init__": lambda self, *given, **named: None}
    for found in _DEFINES.finditer(definitions):
        function = _function(f"{shown}.{found[1]}", source, found[3] or f"{name}::{found[1]}")
        methods[found[1]] = _method(function)
    return type(shown, (), methods)


def _method(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *given, **named: function(*given, **named)


def _function(shown: str, source: Source, function: str, schema: str = "") -> Callable[..., Any]:
    plain = re.escape(function.rpartition(":")[2])

    def launch(*given: Any, **named: Any) -> Any:
        from trainscout.simulators.virtual_cluster.emulation.vendor.opaque import launch

        taken = _detached((*given, *named.values()))
        returned = None
        if "-> ()" not in schema and not any(
            re.search(rf"\bvoid\s+{plain}\s*\(", text) for text, _ in source.files
        ):
            with torch.no_grad():
                try:
                    returned = to_python(source.call(function, to_cpp(taken)))
                except Unread as reason:
                    what = (
                        f"what a kernel that the script compiles returns is not known ({reason})"
                    )
                    raise refusal(shown, what) from reason
        made, held = _tensors(returned), _tensors(taken)
        # Those without a result write into tensors that they are given.
        launch(shown, made or held, held if made else [])
        return returned

    return launch


def _detached(given: Sequence[Any]) -> list[Any]:
    return [each.detach() if isinstance(each, torch.Tensor) else each for each in given]


def _tensors(given: Any) -> list[torch.Tensor]:
    if isinstance(given, torch.Tensor):
        return [given]
    if isinstance(given, Mapping):
        given = given.values()
    elif not isinstance(given, (list, tuple)):
        return []
    return [tensor for each in given for tensor in _tensors(each)]
