"""The native part: compiled once per torch version, loaded before torch itself.

Torch looks for CUDA's hooks once, while it is imported, and remembers what it found. So its
library is opened first, then the shim that registers the hooks, and only then ``import torch``.
Of a torch that was built with CUDA, emptied ones stand for the libraries that register its own.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import importlib.util
import inspect
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

from . import emptied_library
from .emptied_library import emptied_source

_OF_CUDA = ("libc10_cuda.so", "libtorch_cuda.so")
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
        InputError: when torch is missing or was imported already, or no compiler is found.
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
        for library in (torch_folder / "lib" / name for name in _OF_CUDA):
            if library.exists():
                # For whoever is linked to it alone, and after that one's own symbols.
                ctypes.CDLL(str(_emptied(library)))
        _loaded = Shim(ctypes.PyDLL(str(_compiled(torch_folder)), ctypes.RTLD_GLOBAL))
    return _loaded


def _torch_folder() -> Path:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise InputError("torch", "missing", "emulation needs it: pip install 'trainscout[trace]'")
    version = importlib.metadata.version("torch")
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_TORCH:
        oldest = ".".join(str(part) for part in OLDEST_TORCH)
        raise InputError("torch", version, "is older than emulation is made for", f">= {oldest}")
    return Path(spec.origin).parent


def _compiled(torch_folder: Path) -> Path:
    flags = [f"-I{torch_folder / 'include'}", f"-L{torch_folder / 'lib'}", "-ltorch_cpu", "-lc10"]
    made_of = f"{SOURCE.read_text()} {torch_folder}"
    return _built("virtual_cuda", made_of, SOURCE.read_text, flags)


def _emptied(library: Path) -> Path:
    def source() -> str:
        try:
            return emptied_source(library)
        except (OSError, subprocess.CalledProcessError) as error:
            problem = f"was built with CUDA, and nm cannot list the symbols of its own ({error})"
            wanted = "nm, e.g. apt install binutils, or a torch built for CPU only"
            raise InputError(
                "torch", importlib.metadata.version("torch"), problem, wanted
            ) from None

    made_of = f"{inspect.getsource(emptied_library)} {library}"
    return _built(library.stem, made_of, source, [f"-Wl,-soname,{library.name}", "-w"])


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


def _built(name: str, made_of: str, source: Callable[[], str], flags: list[str]) -> Path:
    """A shared library, of the cache or compiled; ``made_of`` is what else it depends on."""
    version = importlib.metadata.version("torch")
    content = hashlib.sha256(f"{made_of} {version}".encode())
    library = cache_folder() / "native" / f"{name}_{version}_{content.hexdigest()[:16]}.so"
    if library.exists():
        return library
    found = compiler()
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        # Two processes may compile at once: each its own file, the last to finish wins.
        descriptor, partial = tempfile.mkstemp(suffix=".so", dir=library.parent)
    except OSError as error:
        raise unwritable(FIELD, library.parent, error) from error
    os.close(descriptor)
    command = [found, "-O1", "-shared", "-fPIC", "-std=c++20", "-xc++", "-", "-o", partial, *flags]
    try:
        done = subprocess.run(command, input=source(), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            errors = [line for line in done.stderr.splitlines() if "error" in line]
            detail = errors[0] if errors else done.stderr[-300:]
            raise InputError(
                "torch",
                version,
                f"the native part does not compile against it ({detail})",
                "a torch this version of Trainscout supports",
            )
        os.replace(partial, library)
    finally:
        Path(partial).unlink(missing_ok=True)
    return library
