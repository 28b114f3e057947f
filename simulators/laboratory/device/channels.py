"""A kernel that occupies SMs and moves bytes as NCCL's channels do, to run beside others.

Like a channel, each block stays on one SM with 512 threads and shared memory that a large GEMM
tile needs for itself, copies its slice of a buffer chunk by chunk, and is paced: a channel moves
what its link takes (10 to 25 GB/s), not what an SM could. The source is CUDA C++, compiled on
first use by ``torch.utils.cpp_extension`` (needs ``nvcc``); it is the only compiled code here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainscout.simulators.predictor.question.errors import InputError

CHUNK_BYTES = 128 << 10

_CUDA = r"""
#include <cuda_runtime.h>
#include <torch/extension.h>
#include <c10/cuda/CUDAStream.h>

__device__ __forceinline__ unsigned long long nanoseconds() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

// Block b copies slice b of the buffer again and again: `chunks` chunks of `vectors` 16-byte
// words, each not before its turn at `chunk_ns` nanoseconds per chunk (0: as fast as it can).
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
    for (long long index = threadIdx.x; index < vectors; index += blockDim.x) {
      to[offset + index] = from[offset + index];
    }
    __syncthreads();
    if (chunk_ns > 0 && threadIdx.x == 0) {
      const unsigned long long due = begin + (unsigned long long)((chunk + 1) * chunk_ns);
      while (nanoseconds() < due) __nanosleep(200);
    }
    __syncthreads();
  }
}

void channels(torch::Tensor source, torch::Tensor target, int64_t count, int64_t chunk_bytes,
              int64_t chunks, double chunk_ns) {
  const long long slice_vectors = source.numel() * source.element_size() / 16 / count;
  const long long vectors = chunk_bytes / 16;
  TORCH_CHECK(slice_vectors >= vectors, "the buffer holds less than a chunk per channel");
  channels_kernel<<<count, 512, 0, c10::cuda::getCurrentCUDAStream()>>>(
      reinterpret_cast<const uint4*>(source.data_ptr()),
      reinterpret_cast<uint4*>(target.data_ptr()), slice_vectors, vectors, chunks, chunk_ns);
}
"""
_CPP = """
void channels(torch::Tensor source, torch::Tensor target, int64_t count, int64_t chunk_bytes,
              int64_t chunks, double chunk_ns);
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
        from torch.utils.cpp_extension import load_inline

        self._torch = torch
        try:
            self._module = load_inline(
                "trainscout_channels",
                cpp_sources=[_CPP],
                cuda_sources=[_CUDA],
                functions=["channels"],
            )
        except (OSError, RuntimeError, ImportError) as error:
            raise InputError(
                "channel kernel", str(error).splitlines()[0], "does not compile", "needs nvcc"
            ) from error

    def buffers(self, traffic: Traffic) -> tuple[Any, Any]:
        """Source and target of one message, rounded up to a chunk per channel."""
        each = -(-traffic.message_bytes // (traffic.channels * CHUNK_BYTES)) * CHUNK_BYTES
        size = each * traffic.channels
        source = self._torch.randint(0, 255, (size,), dtype=self._torch.uint8, device="cuda")
        return source, self._torch.empty_like(source)

    def launch(self, traffic: Traffic, buffers: tuple[Any, Any], chunks: int) -> None:
        """Every channel copies ``chunks`` chunks."""
        pace = traffic.channel_bytes_per_s
        chunk_ns = CHUNK_BYTES / pace * 1e9 if pace else 0.0
        self._module.channels(*buffers, traffic.channels, CHUNK_BYTES, chunks, chunk_ns)
