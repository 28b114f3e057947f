"""Making emulated packages importable: what is "installed" on the virtual machine, and where its
modules find their names.

A finder in front of ``sys.meta_path`` answers for the emulated packages and their metadata, so
that ``import``, ``importlib.util.find_spec`` and ``importlib.metadata.version`` all see them.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.metadata
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

from trainscout.simulators.predictor.question.errors import InputError
from trainscout.simulators.virtual_cluster.emulation.vendor.catalogue import MODULES
from trainscout.simulators.virtual_cluster.emulation.vendor.own_python import (
    OWN,
    above_emulation,
    find_version,
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


_FOLDER = Path(__file__).parent
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
    "flash_attn": Package(
        "flash-attn",
        "2.8.1",
        (
            *("flash_attn", "flash_attn_2_cuda"),
            *("dropout_layer_norm", "rotary_emb", "xentropy_cuda_lib"),
        ),
    ),
    # FlashAttention-3 as it installs itself; under its newer name Transformer Engine looks for it.
    "flash_attn_interface": Package("flash-attn-hopper", "3.0.0", ("flash_attn_interface",)),
    "grouped_gemm": Package("nv-grouped-gemm", "1.1.4", ("grouped_gemm",)),
    "mamba_ssm": Package("mamba-ssm", "2.2.6", ("mamba_ssm",)),
    "transformer_engine": Package(
        "transformer-engine",
        "",
        (),
        {"transformer_engine_torch": _FOLDER / "extension" / "surface.py"},
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

    def __init__(self, packages: Sequence[Package], lacking: frozenset[str]) -> None:
        self.lacking = lacking
        self._packages = packages
        self._tops = {top: package for package in packages for top in package.modules}
        self._compiled = {name: file for each in packages for name, file in each.compiled.items()}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self._compiled.get(fullname)
        if file is not None:
            return spec_from_file_location(fullname, file)
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
    lacking = frozenset(name for name, package in present.items() if package is None)
    found = [package for package in present.values() if package is not None]
    sys.meta_path.insert(0, _Modules(found, lacking))
    importlib.invalidate_caches()
    for name in absent | lacking:
        # As import finds it, there is no such module, whatever this machine has.
        sys.modules[name] = None  # type: ignore[assignment]
    if "transformer_engine" in absent | lacking:
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
        isinstance(finder, _Modules) and name in finder.lacking for finder in sys.meta_path
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
