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
