// What the kernels that work in chunks of 16 steps share: configuration, arguments, copies of rows.

#pragma once

#include "levels.cuh"
#include "fine.cuh"
#include "warpgroup.cuh"

// ---- configuration; chunk_config.py has it too, and computes SHARED likewise

template <class Element_, class Gate_, int GATES, int K_, int TILES_, int STATES_, int SLOTS_, int PREPARERS_,
          int AHEAD_, bool ENDS_, int HALVES_, bool PREPARED_, bool PRECISE_, bool TAILS_, int SHARED_>
struct Config {
  typedef Element_ Element;
  typedef Gate_ Gate;
  static constexpr bool KEY = GATES & 1, VALUE = GATES & 2, HEAD = GATES & 4;
  static constexpr bool COLUMN = VALUE;
  static constexpr bool SCALAR = !KEY && !VALUE;  // a gate for all of the state, or none
  static constexpr bool SINCE = SCALAR && HEAD;  // products of that gate are notes in slots
  static constexpr int ROW_DECAYS = KEY ? K_ : 0;  // of a segment, before those of columns
  static constexpr int K = K_, TILES = TILES_, STATES = STATES_, SLOTS = SLOTS_;
  static constexpr int PREPARERS = PREPARERS_, AHEAD = AHEAD_;
  static constexpr bool ENDS = ENDS_;    // the end state of a segment only
  static constexpr int HALVES = HALVES_;  // state warps that share columns, each with some rows
  static constexpr bool PREPARED = PREPARED_;  // the work on gates of keys is done, by gate_keys.cu
  // The state has less than K rows, or less columns than its blocks: what is missing counts as zero.
  static constexpr bool TAILS = TAILS_;
  static constexpr int PARTS = KEY && !PREPARED ? K / 64 : 1;  // warps that prepare one chunk
  static constexpr int GROUPS = PREPARERS / PARTS;
  static constexpr int ROWS = K / HALVES, TEAMS = STATES / HALVES;  // rows of a warp; column groups
  static constexpr int COLUMNS = TEAMS * 16 * TILES;  // of a block
  static constexpr int THREADS = 32 * (STATES + PREPARERS);
  static constexpr int STEPS = 16;  // to a chunk
  static constexpr int GATE = sizeof(Gate), SIZE = sizeof(Element);  // bytes

  // Operands of products are sums of bfloat16 numbers, so many planes of them: of the state and of v;
  // of q and k with their gates; of A. A product has the terms of plane i and j with i + j < TERMS.
  static constexpr bool FINE = !same<Element, bfloat>;  // A is made in float
  static constexpr bool BY_WARPS = KEY && !VALUE && !FINE;  // see chunk_keys.cuh
  static constexpr int TERMS = same<Element, float> ? 3 : 2;
  static constexpr int LEFT = FINE ? TERMS : 1;
  static constexpr bool PRECISE = PRECISE_;  // for bfloat16: operands with gates have two planes
  static constexpr int RIGHT = FINE ? TERMS : KEY && PRECISE ? 2 : 1;
  static constexpr int SUMMED = FINE || PRECISE || SCALAR ? TERMS : 1;  // planes of A
  static constexpr bool APART = TERMS > 2;  // small terms of y have sums of their own

  // A slot, in bytes. Tiles of q and k are panels of 64 columns, as wgmma takes
  // them, plane after plane; as they come they lie in the first planes, lines of 128 bytes. The 16-byte
  // units of a 128-byte line are permuted by the row, so that neither copies nor reads meet bank
  // conflicts.
  static constexpr int PLANE = 16 * 128, PANEL = RIGHT * PLANE, KEY_TILE = K / 64 * PANEL;
  static constexpr int VALUE_ROW = SIZE * COLUMNS, GATE_ROW = GATE * COLUMNS;
  static constexpr int Q = 0, KEYS = ENDS ? 0 : KEY_TILE, VALUES = KEYS + KEY_TILE;
  static constexpr int GATE_TILE = VALUES + 16 * VALUE_ROW;
  static constexpr int PRODUCTS = GATE_TILE + (VALUE ? 16 * GATE_ROW : 0);  // A, by lanes
  static constexpr int DECAYS = PRODUCTS + (ENDS ? 0 : SUMMED * 512);
  // Gates of the head, or their products up to each step; first unsafe steps; products after each step.
  static constexpr int NOTES = DECAYS + (KEY ? 4 * K : 0), UNSAFE = NOTES + 64, AFTER = NOTES + 128;
  static constexpr int SLOT = (NOTES + (ENDS || !KEY ? 192 : 0) + 1023) / 1024 * 1024;

  static constexpr int OUT_ROW = 32 * TILES;  // of y, per state warp
  static constexpr int OUT = ENDS || SIZE == 4 ? 0 : 2 * 16 * OUT_ROW;
  static constexpr bool LEVELLED = KEY && !PREPARED;  // gates of keys are worked on here
  static constexpr int LEVELS = LEVELLED && !ENDS ? FINE ? ADDENDS : 2 * LEVEL : 0;  // per preparing warp
  static constexpr int SHARE = LEVELLED && !ENDS ? 2 * (PARTS - 1) * 896 : 0;  // per group
  static constexpr int RING = LEVELLED ? (AHEAD + 1) * 16 * 64 * GATE : 0;  // per preparing warp
  static constexpr int TOTALS = KEY && ENDS ? 8 * K : 0;                    // per group
  static constexpr int AT_OUT = SLOTS * SLOT, AT_SUMS = AT_OUT + TEAMS * OUT;
  static constexpr int SUMS = ENDS || HALVES == 1 ? 0 : 2 * TILES * 1024;  // of y, per team
  static constexpr int AT_LEVELS = AT_SUMS + TEAMS * SUMS;
  static constexpr int AT_SHARE = AT_LEVELS + PREPARERS * LEVELS;
  static constexpr int AT_RING = AT_SHARE + GROUPS * SHARE;
  static constexpr int AT_TOTALS = AT_RING + PREPARERS * RING;
  static constexpr int AT_BARRIERS = AT_TOTALS + GROUPS * TOTALS;
  static constexpr int SHARED = AT_BARRIERS + SLOTS * 16 + (HALVES > 1 ? TEAMS * 32 : 0) + 16;
  static_assert(SHARED == SHARED_, "chunk_config.py and chunked.cu disagree on the shared memory");
  static_assert(SLOTS > AHEAD * GROUPS + 1 && SLOTS >= GROUPS, "the ring is too short for what is under way");
  static_assert(BY_WARPS || (STATES % 4 == 0 && HALVES == 1), "wgmma takes four warps");
};

template <class C>
struct Arguments {
  typedef typename C::Element Element;
  const Element *q, *k, *v;
  const void *gate_k, *gate_v, *gate_head;
  const float* initial;  // (N, H, K, V) or null
  Element* y;
  float* last;          // (N, H, K, V) or null
  float4* ends;         // end states of segments, as accumulators lie
  float* decays;        // products of their gates: (N * H, segments - 1, `width`)
  const char* operands;    // q and k with their gates, as slots take them: (N * H, chunks)
  const uint4* products;   // A of each chunk, as its slot takes it
  const float* chunk_decays;  // product of the gates of a chunk: (N * H, chunks, K)
  const void* bounds;   // of packed sequences, or null
  int T, H, V, rows, segments, lead, length, bounds_64, group;  // lead: steps of the first segment
  float scale;
};
// Strides in elements: batch, step, head; of states sequence, head, row, column.
struct Layout {
  int64 q[3], k[3], v[3], gate_k[3], gate_v[3], gate_head[3], initial[4], last[4];
};

// Columns of the state over all blocks, those that are missing included.
template <class C>
__device__ __forceinline__ int all_columns(const Arguments<C>& p) {
  return C::TAILS ? (p.V + C::COLUMNS - 1) / C::COLUMNS * C::COLUMNS : p.V;
}
// Products of gates that a segment hands on: of rows, then of columns.
template <class C>
__device__ __forceinline__ int width(const Arguments<C>& p) {
  return C::ROW_DECAYS + (C::VALUE || !C::KEY ? all_columns<C>(p) : 0);
}
// Whether the state has this row, this column.
template <class C>
__device__ __forceinline__ bool has_row(const Arguments<C>& p, int row) { return !C::TAILS || row < p.rows; }
template <class C>
__device__ __forceinline__ bool has_column(const Arguments<C>& p, int column) {
  return !C::TAILS || column < p.V;
}

// What a block does: `chunks` chunks of steps from `first` on, of which the first `silent` are
// known to the block of an earlier segment and give no y.
struct Work {
  int b, n, h, chain;     // batch, sequence (of states), head; head of a sequence
  int column;             // first of the block
  int T;                  // steps of the sequence
  int segment, first;     // where the block starts: a segment, and its first step
  int chunks, silent;
};

// The product of two gates, which do not leave the range of float where neither does alone.
__device__ __forceinline__ float joined(float gate, float head) { return column_gate(gate, head); }

__device__ __forceinline__ float endless() { return __int_as_float(0x7f800000); }

constexpr float SAFE = 13.0f;  // 16 gates of this size make 2^59
constexpr float SAFE_OF_TWO = 3.6f;  // of each of two gates that meet

// Where a lane of `copy_rows` starts to read.
template <int UNITS>
__device__ __forceinline__ const char* lane_start(const void* from, int64 row_bytes, int lane) {
  return static_cast<const char*>(from) + lane / UNITS * row_bytes + lane % UNITS * 16;
}
// Rows [0, ROWS) of UNITS 16-byte units each by one warp, from `lane_start` on. WIDE: pairs of units
// are permuted by pairs of rows, for gates of 4 bytes; else units by rows, and lines of 128 bytes are
// LINE bytes apart. Rows from `valid` on become zeros.
template <int UNITS, int STRIDE, bool WIDE, int ROWS, int LINE = 128>
__device__ __forceinline__ void copy_rows(u32 to, const char* at, int64 row_bytes, int lane,
                                          int valid, int row0 = 0) {
  constexpr int EACH = 32 / UNITS;
  static_assert(UNITS <= 32 && ROWS % EACH == 0, "rows of a copy");
  const int r = lane / UNITS, unit = lane % UNITS;
  const u32 place = WIDE ? unit << 4 : unit / 8 * LINE + (((unit ^ (r + row0)) & 7) << 4);
  const u32 base = to + r * STRIDE;
  const int64 step = EACH * row_bytes;
  auto target = [&](int row) {
    return base + row * STRIDE + (WIDE ? place ^ ((row >> 1 & 3) << 5) : place ^ ((row & 7) << 4));
  };
  if (valid >= ROWS) {
#pragma unroll
    for (int i = 0; i < ROWS / EACH; ++i) {
      copy16(target(i * EACH), at);
      at += step;
    }
  } else {
#pragma unroll 1
    for (int i = 0; i < ROWS / EACH; ++i) {
      copy16(target(i * EACH), at, i * EACH + r < valid ? 16 : 0);
      if ((i + 1) * EACH + r < valid) at += step;
    }
  }
}

// Two gates, or other elements, next to each other in shared memory.
__device__ __forceinline__ float2 load_gates(u32 at, float) { return load64(at); }
__device__ __forceinline__ float2 load_gates(u32 at, bfloat) { return unpack(load32(at)); }
__device__ __forceinline__ float2 load_gates(u32 at, half16) { return unpack_half(load32(at)); }
template <class Element>
__device__ __forceinline__ float2 load_gates(u32 at, logarithm<Element>) {
  const float2 x = load_gates(at, Element());
  return make_float2(expf(x.x), expf(x.y));
}
__device__ __forceinline__ float2 unpack_gates(u32 x, bfloat) { return unpack(x); }
__device__ __forceinline__ float2 unpack_gates(u32 x, half16) { return unpack_half(x); }
__device__ __forceinline__ float2 unpack_gates(u32, float) { return float2{}; }  // never asked for
template <class Element>
__device__ __forceinline__ float2 unpack_gates(u32 x, logarithm<Element>) {
  return unpack_gates(x, Element());
}
__device__ __forceinline__ float as_gate(float x, float) { return x; }
__device__ __forceinline__ float as_gate(float x, bfloat) { return x; }
__device__ __forceinline__ float as_gate(float x, half16) { return x; }
template <class Element>
__device__ __forceinline__ float as_gate(float x, logarithm<Element>) { return expf(x); }

// The first step of a chunk from which products of this warp's gates must not be trusted; gates
// from there on become zero. `top`: the largest magnitude among the lane's gates, NaN if any is.
__device__ __forceinline__ int guard(float2 (&g)[16], float top, float limit = SAFE) {
  int unsafe = ALL_SAFE;
  if (!__any_sync(~0u, !(top <= limit))) return unsafe;
#pragma unroll
  for (int t = 15; t >= 0; --t)
    if (!(fabsf(g[t].x) <= limit && fabsf(g[t].y) <= limit)) unsafe = t;
  unsafe = __reduce_min_sync(~0u, unsafe);
#pragma unroll
  for (int t = 0; t < 16; ++t)
    if (t >= unsafe) g[t] = make_float2(0.0f, 0.0f);
  return unsafe;
}
