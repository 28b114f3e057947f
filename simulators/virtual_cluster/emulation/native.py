"""The native part: compiled once per torch version, loaded before torch itself.

Torch looks for CUDA's hooks once, while it is imported, and remembers what it found. So its
library is opened first, then the shim that registers the hooks, and only then ``import torch``.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from trainscout.simulators.predictor.io.cache_folder import FIELD, cache_folder
from trainscout.simulators.predictor.io.output import unwritable
from trainscout.simulators.predictor.question.errors import InputError

# Emulation uses torch's internal interfaces of this version.
OLDEST_TORCH = (2, 13)
SOURCE = Path(__file__).with_name("shim.cpp")
# What the guard tells: see Notice in shim.cpp.
RECORD, BLOCK, SYNCHRONISE_EVENT, SYNCHRONISE_STREAM, SYNCHRONISE_DEVICE, RECORD_STREAM = range(6)
Listener = Callable[[int, int, int], None]
_LISTENER = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


class Shim:
    """The loaded native part: current device and stream of the calling thread."""

    def __init__(self, library: ctypes.PyDLL) -> None:
        self._library = library
        self._listener: object = None
        library.virtual_cuda_stream.restype = ctypes.c_int64
        library.virtual_cuda_set_stream.restype = ctypes.c_int64
        library.virtual_cuda_set_stream.argtypes = [ctypes.c_int64]
        library.virtual_cuda_new_stream.restype = ctypes.c_int64
        library.virtual_cuda_new_event.restype = ctypes.c_int64
        library.virtual_cuda_memory.restype = ctypes.c_int64
        library.virtual_cuda_memory.argtypes = [ctypes.c_int64]
        # The number of a storage's memory, by its ``_cdata``.
        self.memory: Callable[[int], int] = library.virtual_cuda_memory
        self.device: Callable[[], int] = library.virtual_cuda_device
        self.stream: Callable[[], int] = library.virtual_cuda_stream
        self.set_stream: Callable[[int], int] = library.virtual_cuda_set_stream
        self.new_stream: Callable[[int], int] = library.virtual_cuda_new_stream
        self.new_event: Callable[[], int] = library.virtual_cuda_new_event

    def configure(self, devices: int, listener: Listener) -> None:
        """Number of devices of the node, and who is notified of what torch's engine waits for."""
        callback = _LISTENER(listener)
        self._library.virtual_cuda_configure(devices, callback)
        # The library keeps only a pointer.
        self._listener = callback

    def restart(self) -> None:
        """Number events and streams from the beginning again."""
        self._library.virtual_cuda_restart()


_loaded: Shim | None = None


def load() -> Shim:
    """Load the native part into this process, compiling it when this torch has none yet.

    Raises:
        InputError: when torch is missing, was imported already, was built with CUDA, or no
            compiler is found.
    """
    global _loaded
    if _loaded is None:
        if "torch" in sys.modules:
            raise InputError(
                "torch", "already imported", "emulation must be installed before torch is imported"
            )
        torch_folder = _torch_folder()
        for name in ("libc10.so", "libtorch_cpu.so"):
            ctypes.CDLL(str(torch_folder / "lib" / name), mode=ctypes.RTLD_GLOBAL)
        _loaded = Shim(ctypes.PyDLL(str(_compiled(torch_folder))))
    return _loaded


def _torch_folder() -> Path:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise InputError("torch", "missing", "emulation needs it: pip install 'trainscout[trace]'")
    version = importlib.metadata.version("torch")
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_TORCH:
        oldest = ".".join(str(part) for part in OLDEST_TORCH)
        raise InputError("torch", version, "is older than emulation is made for", f">= {oldest}")
    folder = Path(spec.origin).parent
    if (folder / "lib" / "libtorch_cuda.so").exists():
        raise InputError(
            "torch",
            version,
            "was built with CUDA; emulation needs a build for CPU only",
            "torch from https://download.pytorch.org/whl/cpu",
        )
    return folder


def _compiled(torch_folder: Path) -> Path:
    version = importlib.metadata.version("torch")
    content = hashlib.sha256(SOURCE.read_bytes() + version.encode() + str(torch_folder).encode())
    library = cache_folder() / "native" / f"virtual_cuda_{version}_{content.hexdigest()[:16]}.so"
    if not library.exists():
        _compile(torch_folder, library)
    return library


def compiler() -> str:
    """The C++ compiler: what ``CXX`` names, else g++ or c++.

    Raises:
        InputError: where there is none.
    """
    found = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if found is None or shutil.which(found) is None:
        raise InputError(
            "compiler",
            found or "g++",
            "no C++ compiler was found; emulation compiles a small library once per torch version",
            "g++ (or another compiler named by CXX) on PATH, e.g. apt install g++",
        )
    return found


def _compile(torch_folder: Path, library: Path) -> None:
    found = compiler()
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        # Two processes may compile at once: each its own file, the last to finish wins.
        descriptor, partial = tempfile.mkstemp(suffix=".so", dir=library.parent)
    except OSError as error:
        raise unwritable(FIELD, library.parent, error) from error
    os.close(descriptor)
    command = [
        *(found, "-O1", "-shared", "-fPIC", "-std=c++20", f"-I{torch_folder / 'include'}"),
        *(str(SOURCE), "-o", partial, f"-L{torch_folder / 'lib'}", "-ltorch_cpu", "-lc10"),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            errors = [line for line in done.stderr.splitlines() if "error" in line]
            detail = errors[0] if errors else done.stderr[-300:]
            raise InputError(
                "torch",
                importlib.metadata.version("torch"),
                f"the native part does not compile against it ({detail})",
                "a torch this version of Trainscout supports",
            )
        os.replace(partial, library)
    finally:
        Path(partial).unlink(missing_ok=True)
