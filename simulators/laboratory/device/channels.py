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

_CUDA = r"""
#define UNROLL 8

__device__ __forceinline__ unsigned long long nanoseconds() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

// Block b copies slice b of the buffer again and again: `chunks` chunks of `vectors` 16-byte
// words (a multiple of UNROLL x 512), each not before its turn at `chunk_ns` nanoseconds per chunk
// (0: as fast as it can).
__global__ void __launch_bounds__(512, 1) channels_kernel(
    const uint4* __restrict__ source, uint4* __restrict__ target, long long slice_vectors,
    long long vectors, long long chunks, double chunk_ns) {
  const uint4* from = source + blockIdx.x * slice_vectors;
  uint4* to = target + blockIdx.x * slice_vectors;
  // Held, not used: what NCCL keeps its connections' state in.
  __shared__ volatile char held[48 << 10];
  if (threadIdx.x == 0) held[blockIdx.x] = 0;
  const long long places = slice_vectors / vectors;
  const unsigned long long begin = nanoseconds();
  for (long long chunk = 0; chunk < chunks; ++chunk) {
    const long long offset = (chunk % places) * vectors;
    // Several loads in flight, as NCCL's Simple protocol has: fewer get less of a busy memory.
    for (long long index = threadIdx.x; index < vectors; index += UNROLL * 512) {
      const uint4* next = from + offset + index;
      uint4 words[UNROLL];
#pragma unroll
      for (int each = 0; each < UNROLL; ++each) words[each] = next[each * 512];
#pragma unroll
      for (int each = 0; each < UNROLL; ++each) to[offset + index + each * 512] = words[each];
    }
    __syncthreads();
    if (chunk_ns > 0 && threadIdx.x == 0) {
      const unsigned long long due = begin + (unsigned long long)((chunk + 1) * chunk_ns);
      while (nanoseconds() < due) __nanosleep(200);
    }
    __syncthreads();
  }
}

extern "C" int channels(const void* source, void* target, int count, long long slice_vectors,
                        long long vectors, long long chunks, double chunk_ns, void* stream) {
  channels_kernel<<<count, 512, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<const uint4*>(source), static_cast<uint4*>(target), slice_vectors, vectors,
      chunks, chunk_ns);
  return cudaGetLastError();
}
"""


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
        source, library = Path(folder, "channels.cu"), Path(folder, "channels.so")
        source.write_text(_CUDA, encoding="utf-8")
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
    launch.argtypes = [
        pointer,
        pointer,
        ctypes.c_int,
        whole,
        whole,
        whole,
        ctypes.c_double,
        pointer,
    ]
    return launch
