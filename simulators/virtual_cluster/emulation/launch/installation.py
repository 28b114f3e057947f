"""How a script gets the packages that it asks for and this Python lacks."""

from __future__ import annotations

import ast
import importlib.util
import linecache
import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from trainscout.simulators.virtual_cluster.emulation.vendor.lost_imports import is_own_file
from trainscout.simulators.virtual_cluster.emulation.vendor.packages import needs_own_python

_INSTALL = "pip install --no-deps"
# What keeps these from looking for CUDA while they are installed.
_WITHOUT_CUDA = {
    "causal_conv1d": ("CAUSAL_CONV1D", "causal-conv1d"),
    "flash_attn": ("FLASH_ATTENTION", "flash-attn"),
    "mamba_ssm": ("MAMBA", "mamba-ssm"),
}
# Their own build needs CUDA, or another project has their name in the registry.
_SOURCES = {
    "apex": "NVIDIA/apex",
    "deep_ep": "deepseek-ai/DeepEP",
    "flash_attn_interface": "Dao-AILab/flash-attention (its folder hopper)",
    "grouped_gemm": "fanshiqing/grouped_gemm",
}
# Packages whose modules are named otherwise.
_NAMES = {
    "Bio": "biopython",
    "Levenshtein": "python-Levenshtein",
    "OpenSSL": "pyOpenSSL",
    "PIL": "pillow",
    "absl": "absl-py",
    "beaker": "beaker-py",
    "bs4": "beautifulsoup4",
    "composer": "mosaicml",
    "cv2": "opencv-python-headless",
    "dotenv": "python-dotenv",
    "faiss": "faiss-cpu",
    "fitz": "PyMuPDF",
    "fla": "flash-linear-attention",
    "git": "GitPython",
    "grpc_reflection": "grpcio-reflection",
    "hydra": "hydra-core",
    "ignite": "pytorch-ignite",
    "mcli": "mosaicml-cli",
    "olmo_core": "ai2-olmo-core",
    "olmo_eval": "ai2-olmo-eval",
    # Later releases are without it.
    "pkg_resources": "'setuptools<81'",
    "pynvml": "nvidia-ml-py",
    "pywt": "PyWavelets",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "streaming": "mosaicml-streaming",
    "tree": "dm-tree",
    "umap": "umap-learn",
    "warp": "warp-lang",
    "yaml": "PyYAML",
    "zmq": "pyzmq",
}
# Several projects share these: the second part of a module's name says which.
_SHARED = ("backports", "jaraco", "ruamel", "zope")


def own_python(error: BaseException) -> str | None:
    """How to get what a script asked for of an emulated package: its own Python, or none of it.
    None where something else failed."""
    package = (getattr(error, "name", None) or "").partition(".")[0]
    if not isinstance(error, ImportError) or not needs_own_python(package):
        return None
    if package in _SOURCES:
        how = f"a checkout of github.com/{_SOURCES[package]} on PYTHONPATH"
    elif package in _WITHOUT_CUDA:
        prefix, name = _WITHOUT_CUDA[package]
        flags = f"{prefix}_SKIP_CUDA_BUILD=TRUE {prefix}_FORCE_BUILD=TRUE"
        how = f"{flags} {_INSTALL} --no-build-isolation {name}"
    else:
        how = f"{_INSTALL} {package.replace('_', '-')}"
    return f"install the package's own Python ({how}), or run --without {package}"


def how_to_install(error: BaseException) -> str | None:
    """The line for a script that asked for a package which this Python lacks, with all others that
    its files name which led there: none of Python's own, and no module of a package that is there.
    """
    raised: BaseException | None = error
    while raised is not None and not (isinstance(raised, ModuleNotFoundError) and raised.name):
        before = None if raised.__suppress_context__ else raised.__context__
        raised = raised.__cause__ or before
    if raised is None or not _is_missing(name := _project(str(raised.name))):
        return None
    for folder in (Path.cwd(), Path.cwd() / "src"):
        if any((folder / name).glob("*.py")):
            # Of the registry it would be another one.
            return f"{name} is the script's own: run with PYTHONPATH={folder}"
    files = dict.fromkeys(
        frame.f_code.co_filename for frame, _ in traceback.walk_tb(raised.__traceback__)
    )
    asked = (each for file in files if is_own_file(file) for each in _imported(file))
    names = dict.fromkeys([name, *(each for each in asked if _is_missing(each))])
    if any(each.startswith(f"{name}.") for each in names):
        del names[name]
    packages = " ".join(_NAMES.get(each, re.sub("[_.]", "-", each)) for each in names)
    verb = "is" if len(names) == 1 else "are"
    return f"{', '.join(names)} {verb} not installed: {sys.executable} -m pip install {packages}"


def _imported(file: str) -> Iterator[str]:
    """Packages that a file imports when it is run, but for imports that it guards."""
    try:
        body = ast.parse("".join(linecache.getlines(file))).body
    except SyntaxError:
        return
    for each in body:
        if isinstance(each, ast.Import):
            yield from (_project(alias.name) for alias in each.names)
        elif isinstance(each, ast.ImportFrom) and not each.level:
            yield _project(each.module or "")


def _project(module: str) -> str:
    """As much of a module's name as says what to install."""
    parts = module.split(".")
    return ".".join(parts[: 1 + (parts[0] in _SHARED)])


def _is_missing(name: str) -> bool:
    if name in sys.stdlib_module_names or needs_own_python(name):
        return False
    try:
        return importlib.util.find_spec(name) is None
    except ValueError:
        return False
    except ModuleNotFoundError:
        # Of one that is shared nothing is there.
        return True
