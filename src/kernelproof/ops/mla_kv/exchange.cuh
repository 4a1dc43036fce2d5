// How the blocks of one launch exchange values, without a barrier or a fence.
//
// A value is one word with the number of the call: whoever needs it reads the word until it has the
// number. The words are of a buffer that belongs to this operator (cuda_exchange.py), so an old word
// has an older number. All blocks must run at the same time.

#pragma once

constexpr int kHeaderWords = 16;  // of the buffer; the first counts calls, or the second arrivals

// A barrier of all blocks, for what is not worth two words a value. The count only grows, by the
// number of blocks at each barrier. Where it will then be is read before this block arrives.
__device__ __forceinline__ unsigned long long end_of_barrier(const unsigned long long* count) {
  unsigned long long before;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(before) : "l"(count) : "memory");
  return (before / gridDim.x + 1) * gridDim.x;
}

// By one thread, behind a barrier of its block: all blocks have come here, and what they wrote is seen.
__device__ __forceinline__ void wait_at_barrier(unsigned long long* count, unsigned long long end) {
  asm volatile("red.release.gpu.global.add.u64 [%0], 1;" ::"l"(count) : "memory");
  unsigned long long now;
  do {
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(now) : "l"(count) : "memory");
  } while (now < end);
}

// To be read by one thread of a block, before the block sends anything: once a block has received
// something of every other, the count may change.
__device__ __forceinline__ unsigned number_of_this_call(const unsigned long long* exchange) {
  unsigned long long calls;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(calls) : "l"(exchange) : "memory");
  return static_cast<unsigned>(calls) + 1;
}

__device__ __forceinline__ void count_call(unsigned long long* exchange, unsigned call) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(exchange),
               "l"(static_cast<unsigned long long>(call))
               : "memory");
}

// Two words that blocks exchange: a value in the low half, the number of the call in the high half.
// Each is read and written as a whole.
struct Words {
  unsigned long long a, b;
};

__device__ __forceinline__ void send(unsigned long long* to, unsigned a, unsigned b, unsigned call) {
  const unsigned long long high = static_cast<unsigned long long>(call) << 32;
  asm volatile("st.relaxed.gpu.global.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(high | a), "l"(high | b)
               : "memory");
}

__device__ __forceinline__ void send(unsigned long long* to, float4 v, unsigned call) {
  send(to, __float_as_uint(v.x), __float_as_uint(v.y), call);
  send(to + 2, __float_as_uint(v.z), __float_as_uint(v.w), call);
}

__device__ __forceinline__ Words look(const unsigned long long* from) {
  Words w;
  asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(w.a), "=l"(w.b)
               : "l"(from)
               : "memory");
  return w;
}

__device__ __forceinline__ bool are_of(const Words& w, unsigned call) {
  return static_cast<unsigned>(w.a >> 32) == call && static_cast<unsigned>(w.b >> 32) == call;
}

__device__ __forceinline__ float2 values_of(const Words& w) {
  return make_float2(__uint_as_float(static_cast<unsigned>(w.a)),
                     __uint_as_float(static_cast<unsigned>(w.b)));
}

// N pairs of words, of which those that are `wanted` are read until all have the number of the call.
template <int N>
__device__ __forceinline__ void receive(Words (&w)[N], const unsigned long long* const (&from)[N],
                                        const bool (&wanted)[N], unsigned call) {
  bool waiting = true;
  while (waiting) {
    waiting = false;
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (wanted[i]) w[i] = look(from[i]);
#pragma unroll
    for (int i = 0; i < N; ++i) waiting |= wanted[i] && !are_of(w[i], call);
  }
}

