"""A kernel that occupies SMs and moves bytes as NCCL's channels do, to run beside others.

Like a channel, each block stays on one SM with 512 threads and shared memory that a large GEMM
tile needs for itself, copies its slice of a buffer chunk by chunk, and is paced: a channel moves
what its link takes (10 to 25 GB/s), not what an SM could. The source is CUDA C++ without
PyTorch's headers, so that ``nvcc`` takes seconds on first use; it is the only compiled code here.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainscout.simulators.predictor.question.errors import InputError

CHUNK_BYTES = 128 << 10
_WORD_BYTES = 16


@dataclass(frozen=True)
class Traffic:
    """What communication to imitate: ``channels`` SMs, each moving ``channel_bytes_per_s``.

    ``message_bytes`` is the buffer they go round in: small ones stay in the L2 cache. A byte
    moved is read once and written once. ``channel_bytes_per_s`` 0 does not pace.
    """

    channels: int
    channel_bytes_per_s: float
    message_bytes: int


class ChannelKernel:
    """Launches the kernel on PyTorch's current stream."""

    def __init__(self, torch: Any) -> None:
        """Compile it.

        Raises:
            InputError: when it cannot be compiled here.
        """
        self._torch = torch
        major, minor = torch.cuda.get_device_capability()
        self._launch = compiled(f"sm_{major}{minor}")

    def buffers(self, traffic: Traffic) -> tuple[Any, Any]:
        """Source and target of one message, rounded up to a chunk per channel."""
        each = -(-traffic.message_bytes // (traffic.channels * CHUNK_BYTES)) * CHUNK_BYTES
        size = each * traffic.channels
        source = self._torch.randint(0, 255, (size,), dtype=self._torch.uint8, device="cuda")
        return source, self._torch.empty_like(source)

    def launch(self, traffic: Traffic, buffers: tuple[Any, Any], chunks: int) -> None:
        """Every channel copies ``chunks`` chunks.

        Raises:
            RuntimeError: when CUDA cannot launch it.
        """
        source, target = buffers
        pace = traffic.channel_bytes_per_s
        error = self._launch(
            source.data_ptr(),
            target.data_ptr(),
            traffic.channels,
            source.numel() // traffic.channels // _WORD_BYTES,
            CHUNK_BYTES // _WORD_BYTES,
            chunks,
            CHUNK_BYTES / pace * 1e9 if pace else 0.0,
            self._torch.cuda.current_stream().cuda_stream,
        )
        if error:
            raise RuntimeError(f"the channel kernel cannot be launched (CUDA error {error})")


def compiled(architecture: str) -> Any:
    """The launching function, for GPUs of ``architecture`` (as ``sm_90``).

    Raises:
        InputError: when there is no ``nvcc``, or it fails.
    """
    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin" / "nvcc"
    compiler = shutil.which("nvcc") or str(toolkit)
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(__file__).with_suffix(".cu"), Path(folder, "channels.so")
        flags = ("-O3", "-shared", "-Xcompiler", "-fPIC", f"-arch={architecture}")
        try:
            subprocess.run(
                (compiler, *flags, "-o", library, source),
                check=True,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
            )
        except (OSError, subprocess.CalledProcessError) as error:
            stated = (getattr(error, "stderr", "") or str(error)).strip().splitlines()[0]
            problem = "is not compiled"
            raise InputError("channel kernel", stated, problem, "CUDA's nvcc") from error
        # Once loaded, the file is no longer needed.
        launch = ctypes.CDLL(str(library)).channels
    pointer, whole = ctypes.c_void_p, ctypes.c_longlong
    count, pace = ctypes.c_int, ctypes.c_double
    launch.argtypes = [pointer, pointer, count, whole, whole, whole, pace, pointer]
    return launch
