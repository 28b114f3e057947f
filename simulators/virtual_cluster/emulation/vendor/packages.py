"""Making emulated packages importable: what is "installed" on the virtual machine, and where its
modules find their names.

A finder in front of ``sys.meta_path`` answers for the emulated packages and their metadata, so
that ``import``, ``importlib.util.find_spec`` and ``importlib.metadata.version`` all see them.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from trainscout.simulators.predictor.io.yaml_files import read_yaml
from trainscout.simulators.predictor.question.errors import InputError

# Packages whose own Python this machine has: it runs, above an emulated compiled part.

# Links the compiled libraries when it is imported, unless they are only being built.
_LINKING = "transformer_engine.common"
_ONLY_BUILDING = {"NVTE_PROJECT_BUILDING": "1", "NVTE_RELEASE_BUILD": "0"}
# Whose compiled part is emulated, from which version on: it was another one before.
OWN = {"apex": 0, "flash_attn": 2, "transformer_engine": 2, "xformers": 0}
_LISTED = "efficient_attention_forward_cutlass"
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
            elif isinstance(value, dict | list) and value:
                first = next(iter(value.values() if isinstance(value, dict) else value))
                if _on_device(first):
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
            _declare_listed()
        # Some code paths are only for plain tensors: ``type(query) in (torch.Tensor, ...)``.
        module.__dict__.setdefault("type", _Type)
        torch = sys.modules.get("torch")
        for value in list(vars(module).values()):
            if torch is not None and isinstance(value, torch.library.CustomOpDef):
                _run_inside(value)
            elif torch is not None and getattr(value, "__bases__", ()) == (torch.Tensor,):
                _answer_above(value)


def _declare_listed() -> None:
    """Name the operator of xformers' library that scripts list as not to be recomputed (Meta
    Lingua and what was made of it): that of 0.0.28 has it, though its Python does not call it."""
    torch = sys.modules["torch"]
    if not hasattr(torch.ops.xformers, _LISTED):
        torch.library.define(f"xformers::{_LISTED}", "() -> ()")


def _answer_above(kind: Any) -> None:
    """Let a kind of tensor's rule for all else, torch's own, not go past tensors without data."""
    if "__torch_dispatch__" in vars(kind):
        run = classmethod(
            lambda cls, func, types, args, kwargs=None: func(*args, **(kwargs or {}))
        )
        kind.__bases__ = (type("Answered", kind.__bases__, {"__torch_dispatch__": run}),)


def _run_inside(operation: Any) -> None:
    """Do what is registered as one operation: its function calls the compiled part."""
    from trainscout.simulators.virtual_cluster.emulation.tensors.device_mode import DeviceMode

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


# Which names each emulated module has, and which file here makes them (``catalogue.yaml``).

MODULES: Mapping[str, Mapping[str, Sequence[str]]] = read_yaml(
    Path(__file__).with_name("catalogue.yaml")
)


@dataclass(frozen=True)
class Package:
    """A distribution: its name to pip, the version emulated, its top-level modules.

    ``compiled``: files that stand for compiled modules of it. Without ``modules`` there are no
    stand-ins: its own Python is needed.
    """

    distribution: str
    version: str
    modules: tuple[str, ...]
    compiled: Mapping[str, Path] = field(default_factory=dict)


# Apex is built from source and carries the kernels Megatron-LM calls without it; the versions of
# the others are those Megatron-core 0.16 asks for.
PACKAGES: Mapping[str, Package] = {
    "apex": Package(
        "apex",
        "0.1",
        (
            "apex",
            "amp_C",
            "fast_layer_norm",
            "fused_layer_norm_cuda",
            "fused_weight_gradient_mlp_cuda",
            "scaled_upper_triang_masked_softmax_cuda",
            "scaled_masked_softmax_cuda",
            "scaled_softmax_cuda",
        ),
    ),
    "causal_conv1d": Package("causal-conv1d", "1.5.2", ("causal_conv1d", "causal_conv1d_cuda")),
    "deep_ep": Package("deep-ep", "1.2.1", ("deep_ep", "deep_ep_cpp")),
    "fast_hadamard_transform": Package(
        "fast-hadamard-transform",
        "1.0.4.post1",
        ("fast_hadamard_transform", "fast_hadamard_transform_cuda"),
    ),
    "flash_attn": Package(
        "flash-attn",
        "2.8.1",
        (
            "flash_attn",
            "flash_attn_2_cuda",
            "dropout_layer_norm",
            "fused_dense_lib",
            "rotary_emb",
            "xentropy_cuda_lib",
        ),
    ),
    # FlashAttention-3 as it installs itself; under its newer name Transformer Engine looks for it.
    "flash_attn_interface": Package("flash-attn-hopper", "3.0.0", ("flash_attn_interface",)),
    "grouped_gemm": Package("nv-grouped-gemm", "1.1.4", ("grouped_gemm",)),
    "mamba_ssm": Package("mamba-ssm", "2.2.6", ("mamba_ssm", "selective_scan_cuda")),
    "transformer_engine": Package(
        "transformer-engine", "", (), {"transformer_engine_torch": _COMPILED}
    ),
    "xformers": Package("xformers", "0.0.32", ("xformers",)),
}
_IMPLEMENTATIONS = "trainscout.simulators.virtual_cluster.emulation.vendor."
# Megatron-core's router names this whether or not Transformer Engine gave it one; where it is
# not installed the name is undefined, and None means what the router checks for.
_ROUTER_NAME = "te_general_gemm"


class _Distribution(importlib.metadata.Distribution):
    """Metadata of an emulated package, which has no files."""

    def __init__(self, package: Package) -> None:
        self._package = package

    def read_text(self, filename: str) -> str | None:
        if filename == "METADATA":
            return (
                "Metadata-Version: 2.1\n"
                f"Name: {self._package.distribution}\nVersion: {self._package.version}\n"
            )
        if filename == "top_level.txt":
            return "\n".join((*self._package.modules, *self._package.compiled)) + "\n"
        return None

    def locate_file(self, path: object) -> Path:
        return Path(str(path))


class _Modules(MetaPathFinder, Loader):
    """Finds and makes the modules of the packages that are installed."""

    def __init__(self, packages: Sequence[Package], missing: frozenset[str]) -> None:
        self.missing = missing
        self._packages = packages
        self._tops = {top: package for package in packages for top in package.modules}
        self._compiled = {name: file for each in packages for name, file in each.compiled.items()}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self._compiled.get(fullname)
        if file is not None:
            return importlib.util.spec_from_file_location(fullname, file)
        top = fullname.partition(".")[0]
        if top in OWN and top not in self._tops:
            return above_emulation(fullname, path)
        if top not in self._tops:
            return None
        if fullname not in MODULES:
            return _beside_stand_ins(fullname)
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        for implementation, names in MODULES[name].items():
            source = importlib.import_module(_IMPLEMENTATIONS + implementation)
            for attribute in names:
                # "shown=made" gives what is made here under another name there.
                shown, _, made = attribute.partition("=")
                setattr(module, shown, getattr(source, made or shown))
        if name in self._tops:
            module.__dict__["__version__"] = self._tops[name].version
        module.__dict__["__getattr__"] = functools.partial(_of_its_own, name)
        # Importing a package brings its modules along, as the real ones do.
        depth = name.count(".") + 1
        for child in MODULES:
            if child.startswith(f"{name}.") and child.count(".") == depth:
                importlib.import_module(child)

    def find_distributions(
        self, context: importlib.metadata.DistributionFinder.Context | None = None
    ) -> Iterator[importlib.metadata.Distribution]:
        wanted = context.name if context is not None else None
        for package in self._packages:
            if wanted is None or _normalised(wanted) == _normalised(package.distribution):
                yield _Distribution(package)


def _of_its_own(module: str, name: str) -> Any:
    """What a stand-in lacks: of the same module's own Python, where this machine has it (a fork's
    further functions, above compiled modules that are stood in for)."""
    if not name.startswith("__") and (own := _own_module(module)) is not None and name in own:
        return own[name]
    raise AttributeError(f"module {module!r} has no attribute {name!r}")


@functools.cache
def _own_module(name: str) -> dict[str, Any] | None:
    spec = _beside_stand_ins(name) if "." in name else None
    if spec is None or spec.loader is None or not str(spec.origin).endswith(".py"):
        return None
    made = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(made)
    except ImportError:
        return None
    return vars(made)


def _beside_stand_ins(name: str) -> ModuleSpec | None:
    """A module of which there is no stand-in, in the package that this machine has: models
    and layers above the kernels, which are stood in for."""
    top, *inner, _ = name.split(".")
    spec = PathFinder.find_spec(top)
    folders = spec.submodule_search_locations if spec is not None else None
    places = [str(Path(folder).joinpath(*inner)) for folder in folders or ()]
    return PathFinder.find_spec(name, places)


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def install_vendor(without: Iterable[str] = ()) -> None:
    """Make the emulated packages importable, but for those named in ``without``.

    To be called when ``torch.cuda`` is emulated and before the script imports anything of them.

    Raises:
        InputError: ``without`` names a package that is not emulated.
    """
    absent = frozenset(without)
    for name in absent:
        if name not in PACKAGES:
            raise InputError("without", name, "is no emulated package", PACKAGES)
    uninstall_vendor()
    present = {name: _as_found(name) for name in PACKAGES if name not in absent}
    missing = frozenset(name for name, package in present.items() if package is None)
    found = [package for package in present.values() if package is not None]
    sys.meta_path.insert(0, _Modules(found, missing))
    importlib.invalidate_caches()
    for name in absent | {each for each in missing if PathFinder.find_spec(each)}:
        # As import finds it, there is no such module, whatever this machine has.
        sys.modules[name] = None  # type: ignore[assignment]
    if "transformer_engine" in absent | missing:
        setattr(builtins, _ROUTER_NAME, None)


def _as_found(name: str) -> Package | None:
    """A package with stand-ins for all modules, or for the compiled ones where it has its own;
    None where neither are there."""
    package = PACKAGES[name]
    version = find_version(name, package.distribution) if name in OWN else None
    if version is None:
        return package if package.modules else None
    compiled = tuple(module for module in package.modules if module != name)
    return replace(package, modules=compiled, version=version)


def needs_own_python(name: str) -> bool:
    """Whether the package ``name`` is imported from stand-ins here, or has none."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return isinstance(getattr(spec, "loader", None), _Modules) or any(
        isinstance(finder, _Modules) and name in finder.missing for finder in sys.meta_path
    )


def uninstall_vendor() -> None:
    """Undo ``install_vendor``; what a script already imported stays its own."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Modules)]
    compiled = {name for package in PACKAGES.values() for name in package.compiled}
    for name in list(sys.modules):
        if name in MODULES or name in compiled or (name in PACKAGES and not sys.modules[name]):
            del sys.modules[name]
    if hasattr(builtins, _ROUTER_NAME):
        delattr(builtins, _ROUTER_NAME)
