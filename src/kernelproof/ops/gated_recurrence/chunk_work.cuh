// What a block of the chunked kernels does: which columns, which segment, from where on.

#pragma once

#include "chunks.cuh"

// The first segment before `segment` whose product of gates is not safe for these columns; else
// `segment`.
template <class C>
__device__ __forceinline__ int first_unsafe(const Arguments<C>& p, const Work& w, int segment, int* found) {
  constexpr int WIDTH = C::ROW_DECAYS + (C::VALUE || !C::KEY ? C::COLUMNS : 0);
  if (threadIdx.x == 0) *found = segment;
  __syncthreads();
  const float* const decays = p.decays + static_cast<int64>(w.chain) * (p.segments - 1) * width<C>(p);
  for (int i = threadIdx.x; i < segment * WIDTH; i += C::THREADS) {
    const int x = i % WIDTH;
    if (isnan(decays[static_cast<int64>(i / WIDTH) * width<C>(p) + x + (x < C::ROW_DECAYS ? 0 : w.column)]))
      atomicMin(found, i / WIDTH);
  }
  __syncthreads();
  return *found;
}

// Called by all threads of a block first of all. Moves the pointers of `p` to a packed sequence.
// `memory`: that of the block, whose last 16 bytes it may use.
template <class C>
__device__ __forceinline__ Work begin(Arguments<C>& p, const Layout& layout, char* memory) {
  typedef typename C::Gate Gate;
  // Blocks of a segment lie next to each other, those of the first one before all others.
  const int tiles = all_columns(p) / C::COLUMNS, all = C::ENDS ? p.segments - 1 : p.segments;
  const int of_segment = gridDim.x / all, segment = blockIdx.x / of_segment;
  const int tile = blockIdx.x % of_segment % tiles;
  Work w;
  w.chain = blockIdx.x % of_segment / tiles;
  w.n = w.b = w.chain / p.H;
  w.h = w.chain % p.H;
  w.column = tile * C::COLUMNS;
  w.T = p.T;
  if (p.bounds != nullptr) {
    const int64 first = bound(p.bounds, p.bounds_64, w.n, p.T);
    const int end = bound(p.bounds, p.bounds_64, w.n + 1, p.T);
    w.T = end > first ? end - static_cast<int>(first) : 0;
    w.b = 0;
    p.q += first * layout.q[1], p.k += first * layout.k[1], p.v += first * layout.v[1];
    p.gate_k = static_cast<const Gate*>(p.gate_k) + first * layout.gate_k[1];
    p.gate_v = static_cast<const Gate*>(p.gate_v) + first * layout.gate_v[1];
    p.gate_head = static_cast<const Gate*>(p.gate_head) + first * layout.gate_head[1];
    p.y += first * p.H * p.V;
  }
  w.segment = segment;
  // Each launch may begin while the one before it runs. What gate_keys.cu makes is needed by all; of
  // the ends of segments, blocks of the first segment need nothing. An ENDS launch lets the next one
  // begin only once gate_keys.cu is over, since that one does not wait for it.
  if (C::ENDS ? C::PREPARED : segment > 0 || (C::PREPARED && p.segments == 1)) {
    asm volatile("griddepcontrol.wait;" ::: "memory");
  }
  if (C::ENDS) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  if (!C::ENDS && segment > 0) {
    int* const found = reinterpret_cast<int*>(memory + C::SHARED - 16);
    w.segment = first_unsafe<C>(p, w, segment, found);
  }
  auto start = [&](int i) { return i == 0 ? 0 : p.lead + (i - 1) * p.length; };
  w.first = start(w.segment);
  const int end = segment == p.segments - 1 ? w.T : start(segment + 1);
  w.chunks = (end - w.first + C::STEPS - 1) / C::STEPS;
  w.silent = (start(segment) - w.first) / C::STEPS;
  return w;
}
