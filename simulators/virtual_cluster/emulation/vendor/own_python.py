"""Packages whose own Python this machine has: it runs, above an emulated compiled part."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
from collections.abc import Iterator
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

# Links the compiled libraries when it is imported, unless they are only being built.
_LINKING = "transformer_engine.common"
_ONLY_BUILDING = {"NVTE_PROJECT_BUILDING": "1", "NVTE_RELEASE_BUILD": "0"}
# Whose compiled part is emulated, from which version on: it was another one before.
OWN = {"apex": 0, "flash_attn": 2, "transformer_engine": 2, "xformers": 0}
_COMPILED = Path(__file__).parent / "extension" / "surface.py"


def find_version(name: str, distribution: str) -> str | None:
    """The version of a package's own Python, None where it is missing or too old.

    A checkout on ``PYTHONPATH``, which no installer has described, says it in a file of its own,
    and goes before what is installed.
    """
    spec = PathFinder.find_spec(name)
    if spec is None or spec.origin is None:
        return None
    version = _stated(Path(spec.origin).parent) or _installed(distribution)
    major = version.partition(".")[0]
    return version if not major.isdigit() or int(major) >= OWN[name] else None


def _installed(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _stated(folder: Path) -> str | None:
    """The version in a checkout's files."""
    stated = folder.parent / "build_tools" / "VERSION.txt"
    if stated.is_file():
        return stated.read_text().strip()
    for line in (folder / "__init__.py").read_text().splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "__version__" and value.strip()[:1] in "'\"":
            return value.strip().strip("'\"")
    return None


def above_emulation(name: str, path: Any) -> ModuleSpec | None:
    """Where a module of such a package lies, made to run above what is emulated."""
    spec = PathFinder.find_spec(name, path)
    if spec is not None and spec.loader is not None:
        spec.loader = (_Unlinked if name == _LINKING else _Own)(spec.loader)
    return spec


def forget_tensors() -> None:
    """Empty what modules of such packages keep between calls: placeholders of gradients,
    workspaces and offsets, by shape and on the GPU of the rank that made them."""
    for name in [name for name in sys.modules if name.partition(".")[0] in OWN]:
        kept = vars(sys.modules[name]) if sys.modules[name] else {}
        for key, value in list(kept.items()):
            if _on_device(value):
                kept[key] = None
            elif isinstance(value, dict | list):
                inside = value.values() if isinstance(value, dict) else value
                if any(map(_on_device, inside)):
                    value.clear()


def _on_device(value: Any) -> bool:
    return isinstance(value, sys.modules["torch"].Tensor) and value.is_cuda


class _Own(Loader):
    """Loads a module that asks for the types of tensors."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        # What a build of xformers without CUDA lacks is emulated.
        if "_built_with_cuda" in vars(module):
            vars(module)["_built_with_cuda"] = True
        # Some code paths are only for plain tensors: ``type(query) in (torch.Tensor, ...)``.
        module.__dict__.setdefault("type", _Type)
        torch = sys.modules.get("torch")
        for value in list(vars(module).values()):
            if torch is not None and isinstance(value, torch.library.CustomOpDef):
                _run_inside(value)


def _run_inside(operation: Any) -> None:
    """Do what is registered as one operation: its function calls the compiled part."""
    from trainscout.simulators.virtual_cluster.emulation.device_mode import DeviceMode

    def run(mode: Any, func: Any, types: Any, arguments: Any, named: Any) -> Any:
        with mode:
            return operation._init_fn(*arguments, **(named or {}))

    operation.register_torch_dispatch(DeviceMode, run)


class _Unlinked(_Own):
    """Loads a module that links compiled libraries without them."""

    def exec_module(self, module: ModuleType) -> None:
        before = {name: os.environ.get(name) for name in _ONLY_BUILDING}
        os.environ.update(_ONLY_BUILDING)
        try:
            self._loader.exec_module(module)
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
        # Versions from 2.4 on ask this function for their compiled part, those before look in
        # folders below this path.
        module.__dict__["load_framework_extension"] = _import_extension
        module.__dict__["get_te_path"] = _Folder


class _AnyType(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, type)


class _Type(type, metaclass=_AnyType):
    """``type``, to which tensors without data are plain ones."""

    def __new__(cls, *arguments: Any, **options: Any) -> Any:
        kind = type(*arguments, **options)
        return sys.modules["torch"].Tensor if kind.__name__ == "FakeTensor" else kind


def _import_extension(framework: str) -> None:
    importlib.import_module(f"transformer_engine_{framework}")


class _Folder:
    """A folder that holds the compiled part, whatever it is asked for."""

    def __truediv__(self, name: str) -> _Folder:
        return self

    def glob(self, pattern: str) -> Iterator[Path]:
        yield _COMPILED
