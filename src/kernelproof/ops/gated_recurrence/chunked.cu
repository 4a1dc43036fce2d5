// Gated recurrence on tensor cores, bfloat16 in and out, the state in float: chunks of 16 steps.
//
// A block holds columns of the state of one head and goes through its chunks. Its warps have two
// tasks, which a ring of slots in shared memory joins:
//
//   preparing warps   copy q, k, v and gates of a chunk into a slot; make A[t][s], the product q_t k_s
//                     with the gates between s and t, and, for gates of keys, q times the gates
//                     since the start of the chunk and k times those up to its end (levels.cuh);
//   state warps       hold 16 * TILES columns each, transposed, as accumulators: rows are columns of
//                     the state. y = S q + V A of a chunk, then S = S * gates + V k. Packed to
//                     bfloat16, the accumulators are the left operand of S q as they lie. Gates of
//                     columns are applied here, to fragments of v and of y.
//
// No division and no logarithm: zeros and signs are exact, and y[t] has no operand of a later step.
// Two things break that in a chunk, both of them rare: products of large gates may leave the range
// of float, and a v that is not finite would reach earlier steps as 0 * infinity. From the first
// such step of a chunk on, its gates and values are taken as zero for the products, and the state
// warps go through the chunk once more, step by step in float (`walk`), for the state and for y from
// that step on.
//
// A sequence longer than one segment takes two launches: the first gives each segment's end state
// from zero and the product of its gates (ENDS), the second folds those of the segments before its
// own. Where such a product is not safe (see `checked_decay` in kernel.cu) it is NaN, and the blocks
// behind start at the segment in question instead, without writing its y.

#include "levels.cuh"

// ---- configuration; chunked.py chooses it and computes SHARED likewise

template <class Gate_, int GATES, int K_, int TILES_, int STATES_, int SLOTS_, int PREPARERS_,
          int AHEAD_, bool ENDS_, bool EARLY_, int HALVES_, bool PREPARED_, int SHARED_>
struct Config {
  typedef Gate_ Gate;
  static constexpr bool KEY = GATES & 1, VALUE = GATES & 2, HEAD = GATES & 4;
  static constexpr int K = K_, TILES = TILES_, STATES = STATES_, SLOTS = SLOTS_;
  static constexpr int PREPARERS = PREPARERS_, AHEAD = AHEAD_;
  static constexpr bool ENDS = ENDS_;    // the end state of a segment only
  static constexpr bool EARLY = EARLY_;  // a slot is read into registers, and free, one chunk ahead
  static constexpr int HALVES = HALVES_;  // state warps that share columns, each with some rows
  static constexpr bool PREPARED = PREPARED_;  // the work on gates of keys is done, by operands.cu
  static constexpr int PARTS = KEY && !PREPARED ? K / 64 : 1;  // warps that prepare one chunk
  static constexpr int GROUPS = PREPARERS / PARTS;
  static constexpr int ROWS = K / HALVES, TEAMS = STATES / HALVES;  // rows of a warp; column groups
  static constexpr int COLUMNS = TEAMS * 16 * TILES;  // of a block
  static constexpr int THREADS = 32 * (STATES + PREPARERS);
  static constexpr int GATE = sizeof(Gate);  // bytes

  // A slot, in bytes. Rows of tiles are stored with the 16-byte units of a 128-byte line permuted
  // by the row, so that neither copies nor ldmatrix meet bank conflicts.
  static constexpr int KEY_ROW = 2 * K, VALUE_ROW = 2 * COLUMNS, GATE_ROW = GATE * COLUMNS;
  static constexpr int Q = 0, KEYS = ENDS ? 0 : 16 * KEY_ROW, VALUES = KEYS + 16 * KEY_ROW;
  static constexpr int GATE_TILE = VALUES + 16 * VALUE_ROW;
  static constexpr int PRODUCTS = GATE_TILE + (VALUE ? 16 * GATE_ROW : 0);  // A, by lanes
  static constexpr int DECAYS = PRODUCTS + (ENDS ? 0 : 512);
  static constexpr int NOTES = DECAYS + (KEY ? 4 * K : 0);  // first unsafe step; gates of the head
  static constexpr int SLOT = NOTES + ((KEY && ENDS) || (!KEY && HEAD) ? 128 : 0);

  static constexpr int OUT_ROW = 32 * TILES;  // of y, per state warp
  static constexpr int OUT = ENDS ? 0 : 2 * 16 * OUT_ROW;
  static constexpr bool LEVELLED = KEY && !PREPARED;  // gates of keys are worked on here
  static constexpr int SUMS = ENDS || HALVES == 1 ? 0 : 2 * TILES * 1024;  // of y, per team
  static constexpr int LEVELS = LEVELLED && !ENDS ? 2 * LEVEL : 0;          // per preparing warp
  static constexpr int SHARE = LEVELLED && !ENDS ? 2 * (PARTS - 1) * 896 : 0;  // per group
  static constexpr int RING = LEVELLED ? (AHEAD + 1) * 16 * 64 * GATE : 0;  // per preparing warp
  static constexpr int TOTALS = KEY && ENDS ? 8 * K : 0;                    // per group
  static constexpr int AT_OUT = SLOTS * SLOT, AT_SUMS = AT_OUT + TEAMS * OUT;
  static constexpr int AT_LEVELS = AT_SUMS + TEAMS * SUMS;
  static constexpr int AT_SHARE = AT_LEVELS + PREPARERS * LEVELS;
  static constexpr int AT_RING = AT_SHARE + GROUPS * SHARE;
  static constexpr int AT_TOTALS = AT_RING + PREPARERS * RING;
  static constexpr int AT_BARRIERS = AT_TOTALS + GROUPS * TOTALS;
  static constexpr int SHARED = AT_BARRIERS + SLOTS * 16 + (HALVES > 1 ? TEAMS * 32 : 0) + 16;
  static_assert(SHARED == SHARED_, "chunked.py and chunked.cu disagree on the shared memory");
  static_assert(SLOTS >= (AHEAD + 1) * GROUPS, "the ring is too short for what is under way");
};

template <bool VALUE>
struct Flag { static constexpr bool value = VALUE; };

struct Arguments {
  const bfloat *q, *k, *v;
  const void *gate_k, *gate_v, *gate_head;
  const float* initial;  // (N, H, K, V) or null
  bfloat* y;
  float* last;          // (N, H, K, V) or null
  float4* ends;         // end states of segments, as accumulators lie
  float* decays;        // products of their gates: (N * H, segments - 1, K or V)
  const bfloat* operands;  // q and k with their gates: (N * H, chunks, 2, 16, K)
  const uint4* products;   // A of each chunk, as its slot takes it
  const float* chunk_decays;  // product of the gates of a chunk: (N * H, chunks, K)
  const void* bounds;   // of packed sequences, or null
  int T, H, V, segments, lead, length, bounds_64, group;  // lead: steps of the first segment
  float scale;
};
// Strides in elements: batch, step, head; of states sequence, head, row, column.
struct Layout {
  int64 q[3], k[3], v[3], gate_k[3], gate_v[3], gate_head[3], initial[4], last[4];
};

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
constexpr int ALL_SAFE = 16;

// Rows [0, ROWS) of UNITS 16-byte units each by one warp. WIDE: pairs of units are permuted by pairs
// of rows, for gates of 4 bytes; else units by rows. Rows from `valid` on become zeros.
template <int UNITS, int STRIDE, bool WIDE, int ROWS>
__device__ __forceinline__ void copy_rows(u32 to, const void* from, int64 row_bytes, int lane,
                                          int valid, int row0 = 0) {
  constexpr int EACH = 32 / UNITS;
  static_assert(UNITS <= 32 && ROWS % EACH == 0, "rows of a copy");
  const int r = lane / UNITS, unit = lane % UNITS;
  const u32 place = WIDE ? unit << 4 : ((unit & ~7) | ((unit ^ (r + row0)) & 7)) << 4;
  const char* at = static_cast<const char*>(from) + r * row_bytes + unit * 16;
  const u32 base = to + r * STRIDE;
  const int64 step = EACH * row_bytes;
  if (valid >= ROWS) {
#pragma unroll
    for (int i = 0; i < ROWS / EACH; ++i) {
      const int row = i * EACH;
      copy16(base + row * STRIDE + (WIDE ? place ^ ((row >> 1 & 3) << 5) : place ^ ((row & 7) << 4)),
             at);
      at += step;
    }
  } else {
#pragma unroll 1
    for (int i = 0; i < ROWS / EACH; ++i) {
      const int row = i * EACH;
      const bool there = row + r < valid;
      copy16(base + row * STRIDE + (WIDE ? place ^ ((row >> 1 & 3) << 5) : place ^ ((row & 7) << 4)),
             there ? at + i * step : static_cast<const char*>(from), there ? 16 : 0);
    }
  }
}

// Two gates next to each other in shared memory.
__device__ __forceinline__ float2 load_gates(u32 at, float) { return load64(at); }
__device__ __forceinline__ float2 load_gates(u32 at, bfloat) { return unpack(load32(at)); }
template <class Element>
__device__ __forceinline__ float2 load_gates(u32 at, logarithm<Element>) {
  const float2 x = load_gates(at, Element());
  return make_float2(expf(x.x), expf(x.y));
}
__device__ __forceinline__ float as_gate(float x, float) { return x; }
__device__ __forceinline__ float as_gate(float x, bfloat) { return x; }
template <class Element>
__device__ __forceinline__ float as_gate(float x, logarithm<Element>) { return expf(x); }

// The first step of a chunk from which products of this warp's gates must not be trusted; gates
// from there on become zero. `top`: the largest magnitude among the lane's gates, NaN if any is.
__device__ __forceinline__ int guard(float2 (&g)[16], float top) {
  int unsafe = ALL_SAFE;
  if (!__any_sync(~0u, !(top <= SAFE))) return unsafe;
#pragma unroll
  for (int t = 15; t >= 0; --t)
    if (!(fabsf(g[t].x) <= SAFE && fabsf(g[t].y) <= SAFE)) unsafe = t;
  unsafe = __reduce_min_sync(~0u, unsafe);
#pragma unroll
  for (int t = 0; t < 16; ++t)
    if (t >= unsafe) g[t] = make_float2(0.0f, 0.0f);
  return unsafe;
}

// ---- preparing warps

template <class C>
__device__ __forceinline__ void prepare(const Arguments& p, const Layout& s, const Work& w,
                                        u32 shared) {
  typedef typename C::Gate Gate;
  const int lane = threadIdx.x % 32, me = threadIdx.x / 32 - C::STATES;
  const int part = me % C::PARTS, group = me / C::PARTS;
  const u32 full = shared + C::AT_BARRIERS, empty = full + C::SLOTS * 8;
  const u32 levels = shared + C::AT_LEVELS + me * C::LEVELS;
  const u32 ring = shared + C::AT_RING + me * C::RING;
  const int64 key_head = w.h / p.group, batch = w.b;
  // Where the next copies of this warp start; it takes every GROUPS-th chunk.
  const int64 start = w.first + group * 16, stride = C::GROUPS * 16;
  const int row0 = part * (16 / C::PARTS);
  const bfloat* q = p.q + batch * s.q[0] + start * s.q[1] + key_head * s.q[2] + part * 64;
  const bfloat* k = p.k + batch * s.k[0] + start * s.k[1] + key_head * s.k[2] + part * 64;
  const bfloat* v = p.v + batch * s.v[0] + (start + row0) * s.v[1] + w.h * s.v[2] + w.column;
  const Gate* gk = static_cast<const Gate*>(p.gate_k) + batch * s.gate_k[0] +
                   start * s.gate_k[1] + w.h * s.gate_k[2] + part * 64;
  const Gate* gv = static_cast<const Gate*>(p.gate_v) + batch * s.gate_v[0] +
                   start * s.gate_v[1] + w.h * s.gate_v[2] + w.column;
  const Gate* gh = static_cast<const Gate*>(p.gate_head) + batch * s.gate_head[0] +
                   (start + lane % 16) * s.gate_head[1] + w.h * s.gate_head[2];
  const int steps = w.T - w.first;  // that exist
  float heads[C::AHEAD + 1];        // this lane's gate of the head, of the chunks under way
  float2 total = make_float2(1.0f, 1.0f), growth = total;
  int copying = group % C::SLOTS, phase = 1, working = copying, ring_in = 0, ring_out = 0, shares = 0;

  for (int n = group; n < w.chunks + C::AHEAD * C::GROUPS; n += C::GROUPS) {
    if (C::HEAD)
#pragma unroll
      for (int i = C::AHEAD; i > 0; --i) heads[i] = heads[i - 1];
    if (n < w.chunks) {
      wait(empty + 8 * copying, phase);
      const u32 slot = shared + copying * C::SLOT;
      const int valid = steps - n * 16;
      constexpr int UNITS = C::K / 8 / C::PARTS;
      copy_rows<UNITS, C::KEY_ROW, false, 16>(slot + C::KEYS + part * 128, k, 2 * s.k[1], lane,
                                              valid);
      k += stride * s.k[1];
      if (!C::ENDS) {
        copy_rows<UNITS, C::KEY_ROW, false, 16>(slot + C::Q + part * 128, q, 2 * s.q[1], lane,
                                                valid);
        q += stride * s.q[1];
      }
      if (C::KEY) {
        copy_rows<64 * C::GATE / 16, 64 * C::GATE, false, 16>(
            ring + ring_in * 16 * 64 * C::GATE, gk, C::GATE * s.gate_k[1], lane, valid);
        gk += stride * s.gate_k[1];
        if (++ring_in == C::AHEAD + 1) ring_in = 0;
      }
      copy_rows<C::COLUMNS / 8, C::VALUE_ROW, false, 16 / C::PARTS>(
          slot + C::VALUES + row0 * C::VALUE_ROW, v, 2 * s.v[1], lane, valid - row0, row0);
      v += stride * s.v[1];
      if (C::VALUE && !C::KEY) {
        copy_rows<C::GATE_ROW / 16, C::GATE_ROW, C::GATE == 4, 16>(
            slot + C::GATE_TILE, gv, C::GATE * s.gate_v[1], lane, valid);
        gv += stride * s.gate_v[1];
      }
      if (C::HEAD) {
        heads[0] = lane < 16 && lane < valid ? to_float(*gh) : 1.0f;
        gh += stride * s.gate_head[1];
      }
      copying += C::GROUPS;
      if (copying >= C::SLOTS) copying -= C::SLOTS, phase ^= 1;
    }
    commit_copies();
    const int now = n - C::AHEAD * C::GROUPS;  // the chunk whose copies are waited for
    if (now < 0) continue;
    wait_copies<C::AHEAD>();
    __syncwarp();
    const u32 slot = shared + working * C::SLOT;

    float sums[6];
    if (!C::ENDS) {  // q k^T without gates
      float a[2][4] = {};
      const int row_a = lane % 16, row_b = lane % 8 + lane / 16 * 8;
      const u32 at_q = slot + C::Q + part * 128 + row_a * C::KEY_ROW;
      const u32 at_k = slot + C::KEYS + part * 128 + row_b * C::KEY_ROW;
      const u32 unit_q = (lane / 16 ^ (row_a & 7)) << 4, unit_k = (lane / 8 % 2 ^ (row_b & 7)) << 4;
#pragma unroll
      for (int i = 0; i < C::K / 16 / C::PARTS; ++i) {
        u32 x[4], y[4];
        load_matrices(x, at_q + i / 4 * 128 + (unit_q ^ i % 4 * 32));
        load_matrices(y, at_k + i / 4 * 128 + (unit_k ^ i % 4 * 32));
        multiply(a[0], x, y[0], y[1]), multiply(a[1], x, y[2], y[3]);
      }
      if (!C::KEY) {
        store128(slot + C::PRODUCTS + lane * 16, pack(a[0][0], a[0][1]), pack(a[0][2], a[0][3]),
                 pack(a[1][2], a[1][3]), ALL_SAFE);
      } else {
        pick_diagonal(sums, a, lane);
        __syncwarp();  // q and k are overwritten below
      }
    }
    if (!C::KEY && C::HEAD && lane < 16)
      store32(slot + C::NOTES + lane * 4, __float_as_uint(heads[C::AHEAD]));
    if (C::KEY) {
      const u32 at = slot + part * 128, unit = lane * 4;
      const u32 gates = ring + ring_out * 16 * 64 * C::GATE;
      if (++ring_out == C::AHEAD + 1) ring_out = 0;
      auto place = [&](int t) { return t * C::KEY_ROW + (unit ^ (t & 7) << 4); };
      u32 kr[16];
      float2 g[16];
      float top = 0.0f;
#pragma unroll
      for (int t = 0; t < 16; ++t) {
        kr[t] = load32(at + C::KEYS + place(t));
        // The 16-byte units of a row of gates are permuted as those of all tiles.
        const u32 gate_unit = C::GATE == 4 ? (lane / 2 & ~7 | (lane / 2 ^ t) & 7) << 4 | (lane & 1) << 3
                                           : ((lane / 4 ^ t) & 7) << 4 | (lane & 3) << 2;
        g[t] = load_gates(gates + t * 64 * C::GATE + gate_unit, Gate());
        if (C::HEAD) {
          const float head = __shfl_sync(~0u, heads[C::AHEAD], t);
          g[t] = make_float2(joined(g[t].x, head), joined(g[t].y, head));
        }
        top = larger(larger(top, g[t].x), g[t].y);
      }
      const int valid = steps - now * 16;
      if (valid < 16)  // steps that do not exist leave the state as it is
#pragma unroll
        for (int t = 0; t < 16; ++t)
          if (t >= valid) g[t] = make_float2(1.0f, 1.0f);
      int unsafe = guard(g, top);
      if (C::ENDS && unsafe < ALL_SAFE) growth = make_float2(endless(), endless());
      float2 all = make_float2(1.0f, 1.0f);
      if constexpr (C::ENDS) {
#pragma unroll
        for (int t = 15; t >= 0; --t) {
          store32(at + C::KEYS + place(t), pack(unpack(kr[t]) * all));
          all = all * g[t];
        }
        total = total * all;
        growth = growth * make_float2(fmaxf(1.0f, fabsf(all.x)), fmaxf(1.0f, fabsf(all.y)));
        if (lane == 0) store32(slot + C::NOTES + part * 4, unsafe);
      } else {
        u32 qr[16];
#pragma unroll
        for (int t = 0; t < 16; ++t) qr[t] = load32(at + C::Q + place(t));
        all = gated_products(
            sums, qr, kr, g, levels, lane, [&](int t, u32 x) { store32(at + C::Q + place(t), x); },
            [&](int t, u32 x) { store32(at + C::KEYS + place(t), x); });
        if (C::PARTS > 1) {
          const u32 share = shared + C::AT_SHARE + group * C::SHARE + shares * (C::PARTS - 1) * 896;
          shares ^= 1;
          if (part) {
#pragma unroll
            for (int i = 0; i < 6; ++i)
              store32(share + (part - 1) * 896 + i * 128 + lane * 4, __float_as_uint(sums[i]));
            store32(share + (part - 1) * 896 + 768 + lane * 4, unsafe);
          }
          asm volatile("bar.sync %0, %1;" ::"r"(8 + group), "n"(C::PARTS * 32) : "memory");
          if (!part)
#pragma unroll
            for (int other = 0; other < C::PARTS - 1; ++other) {
#pragma unroll
              for (int i = 0; i < 6; ++i) sums[i] += load_float(share + other * 896 + i * 128 + lane * 4);
              unsafe = min(unsafe, static_cast<int>(load32(share + other * 896 + 768 + lane * 4)));
            }
        }
        if (!part)
          store128(slot + C::PRODUCTS + lane * 16, pack(sums[0], sums[1]), pack(sums[2], sums[3]),
                   pack(sums[4], sums[5]), unsafe);
      }
      store64(slot + C::DECAYS + (part * 64 + lane * 2) * 4, all);
    }
    __syncwarp();
    if (lane == 0) arrive(full + 8 * working);
    working += C::GROUPS;
    if (working >= C::SLOTS) working -= C::SLOTS;
  }
  if (C::KEY && C::ENDS) {  // of this group's chunks
    const u32 at = shared + C::AT_TOTALS + group * C::TOTALS + (part * 64 + lane * 2) * 4;
    store64(at, total), store64(at + 4 * C::K, growth);
  }
}

// The same where operands.cu has done the work on gates of keys: copies alone.
template <class C>
__device__ __forceinline__ void fetch_prepared(const Arguments& p, const Layout& s, const Work& w,
                                               u32 shared) {
  const int lane = threadIdx.x % 32, group = threadIdx.x / 32 - C::STATES;
  const u32 full = shared + C::AT_BARRIERS, empty = full + C::SLOTS * 8;
  const int64 chunks = (p.T + 15) / 16, chunk = w.chain * chunks + w.first / 16 + group;
  const bfloat* operands = p.operands + chunk * 32 * C::K;
  const uint4* products = p.products + chunk * 32 + lane;
  const float* decays = p.chunk_decays + chunk * C::K + lane * 4;
  const bfloat* v = p.v + w.b * s.v[0] + (w.first + group * 16) * s.v[1] + w.h * s.v[2] + w.column;
  constexpr int OWN = C::K / 32;
  float total[OWN], growth[OWN];
#pragma unroll
  for (int i = 0; i < OWN; ++i) total[i] = growth[i] = 1.0f;
  int copying = group % C::SLOTS, phase = 1, working = copying;
  for (int n = group; n < w.chunks + C::AHEAD * C::GROUPS; n += C::GROUPS) {
    if (n < w.chunks) {
      wait(empty + 8 * copying, phase);
      const u32 slot = shared + copying * C::SLOT;
      copy_rows<C::K / 8, C::KEY_ROW, false, 16>(slot + C::KEYS, operands + 16 * C::K, 2 * C::K,
                                                 lane, 16);
      if (!C::ENDS) {
        copy_rows<C::K / 8, C::KEY_ROW, false, 16>(slot + C::Q, operands, 2 * C::K, lane, 16);
        copy16(slot + C::PRODUCTS + lane * 16, products);
      } else if (lane == 0) {
        copy16(slot + C::NOTES, products);
      }
#pragma unroll
      for (int i = 0; i < C::K; i += 128) copy16(slot + C::DECAYS + i * 4 + lane * 16, decays + i);
      copy_rows<C::COLUMNS / 8, C::VALUE_ROW, false, 16>(slot + C::VALUES, v, 2 * s.v[1], lane,
                                                         w.T - w.first - n * 16);
      operands += C::GROUPS * 32 * C::K, products += C::GROUPS * 32, decays += C::GROUPS * C::K;
      v += C::GROUPS * 16 * s.v[1];
      copying += C::GROUPS;
      if (copying >= C::SLOTS) copying -= C::SLOTS, phase ^= 1;
    }
    commit_copies();
    if (n < C::AHEAD * C::GROUPS) continue;
    wait_copies<C::AHEAD>();
    __syncwarp();
    const u32 slot = shared + working * C::SLOT;
    if (C::ENDS) {
      const bool unsafe = load32(slot + C::NOTES + 12) < ALL_SAFE;
#pragma unroll
      for (int i = 0; i < OWN; ++i) {
        const float gate = load_float(slot + C::DECAYS + (i * 32 + lane) * 4);
        total[i] *= gate;
        growth[i] = unsafe ? endless() : growth[i] * fmaxf(1.0f, fabsf(gate));
      }
      __syncwarp();
    }
    if (lane == 0) arrive(full + 8 * working);
    working += C::GROUPS;
    if (working >= C::SLOTS) working -= C::SLOTS;
  }
  if (C::ENDS)
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
      const u32 at = shared + C::AT_TOTALS + group * C::TOTALS + (i * 32 + lane) * 4;
      store32(at, __float_as_uint(total[i])), store32(at + 4 * C::K, __float_as_uint(growth[i]));
    }
}

// ---- state warps

// Columns of the state are rows of the accumulators: of tile m, lane / 4 and 8 more. Rows of the
// state are columns: of fragment j, 8 j + lane % 4 * 2 and the next.
template <class C>
struct Fragments {
  float s[C::TILES][C::ROWS / 8][4];
};

// One chunk step by step in float, from global memory. y of steps from `unsafe` on goes to `out`,
// which lies as a product's accumulators do: [tile][half of the chunk][element].
template <class C>
__device__ __noinline__ void walk(const Arguments& p, const Layout& s, const Work& w, int n,
                                  int unsafe, Fragments<C>& f, float (&out)[C::TILES][2][4]) {
  typedef typename C::Gate Gate;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64 key_head = w.h / p.group, batch = w.b;
  const int column = w.column + warp % C::TEAMS * 16 * C::TILES + lane / 4;
  const int row = warp / C::TEAMS * C::ROWS + lane % 4 * 2;
#pragma unroll 1
  for (int u = 0; u < 16; ++u) {
    const int64 t = w.first + n * 16 + u;
    if (t >= w.T) break;
    const bfloat* const q = p.q + batch * s.q[0] + t * s.q[1] + key_head * s.q[2] + row;
    const bfloat* const k = p.k + batch * s.k[0] + t * s.k[1] + key_head * s.k[2] + row;
    const bfloat* const v = p.v + batch * s.v[0] + t * s.v[1] + w.h * s.v[2] + column;
    const Gate* const gk = static_cast<const Gate*>(p.gate_k) + batch * s.gate_k[0] +
                           t * s.gate_k[1] + w.h * s.gate_k[2] + row;
    const Gate* const gv = static_cast<const Gate*>(p.gate_v) + batch * s.gate_v[0] +
                           t * s.gate_v[1] + w.h * s.gate_v[2] + column;
    float head = 1.0f;
    if (C::HEAD)
      head = to_float((static_cast<const Gate*>(p.gate_head) + batch * s.gate_head[0] +
                       t * s.gate_head[1])[w.h * s.gate_head[2]]);
    float value[C::TILES][2], gate[C::TILES][2], sum[C::TILES][2];
#pragma unroll
    for (int m = 0; m < C::TILES; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        value[m][r] = to_float(v[m * 16 + r * 8]);
        gate[m][r] = C::VALUE ? to_float(gv[m * 16 + r * 8]) : 1.0f;
        if (C::HEAD && !C::KEY) gate[m][r] = joined(gate[m][r], head);
        sum[m][r] = 0.0f;
      }
#pragma unroll
    for (int j = 0; j < C::ROWS / 8; ++j)
#pragma unroll
      for (int x = 0; x < 2; ++x) {
        const float key = to_float(k[j * 8 + x]);
        float key_gate = C::KEY ? to_float(gk[j * 8 + x]) : 1.0f;
        if (C::KEY && C::HEAD) key_gate = joined(key_gate, head);
        const float query = C::ENDS ? 0.0f : to_float(q[j * 8 + x]);
#pragma unroll
        for (int m = 0; m < C::TILES; ++m)
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            float& now = f.s[m][j][2 * r + x];
            now = fmaf(C::KEY ? key_gate : gate[m][r], now, key * value[m][r]);
            sum[m][r] = fmaf(query, now, sum[m][r]);
          }
      }
    if (C::ENDS || u < unsafe) continue;
#pragma unroll
    for (int m = 0; m < C::TILES; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float y = sum[m][r];
        y += __shfl_xor_sync(~0u, y, 1);
        y += __shfl_xor_sync(~0u, y, 2);
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
          for (int x = 0; x < 2; ++x)
            if (u == half * 8 + lane % 4 * 2 + x) out[m][half][2 * r + x] = y;
      }
  }
}

// What the gates of columns make of a chunk's v and y, in fragments. Times are columns, pairs of
// them to a lane, so that products over time take shuffles among 4 lanes.
template <class C>
struct ColumnGates {
  u32 v[C::TILES][4];        // v times the gates after its step
  float y[C::TILES][2][4];   // y from the same half of the chunk, but for its last level
  float to[C::TILES][2][4];  // gates from the start of the half to the step
  float cross[C::TILES][4];  // of the second half, from the first half of the chunk
  float first[C::TILES][2], all[C::TILES][2];  // gates of the first half, of the chunk

  // `g`: [tile][half][row][x]; `A` as `prepare` leaves it; `masks`: levels of the lane's (t, s).
  __device__ __forceinline__ void make(const u32 (&raw)[C::TILES][4],
                                       const float (&g)[C::TILES][2][2][2], const uint4& A,
                                       const u32 (&masks)[4], int lane) {
    const int c = lane % 4;
#pragma unroll
    for (int m = 0; m < C::TILES; ++m) {
      float g8[2][2], w0[2], w1[2], up2[2][4], up4[2][4];
      u32 v2[4], v4[4], v8[4];
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int i = r + 2 * half;
          const float a = g[m][half][r][0], b = g[m][half][r][1], g2 = a * b;
          const float side2 = __shfl_xor_sync(~0u, g2, 1), g4 = g2 * side2;
          const float side4 = __shfl_xor_sync(~0u, g4, 2);
          g8[half][r] = g4 * side4;
          const float before4 = c & 1 ? side2 : 1.0f, after4 = c & 1 ? 1.0f : side2;
          const float before8 = c & 2 ? before4 * side4 : before4;
          const float after8 = c & 2 ? after4 : after4 * side4;
          const float x0 = low(raw[m][i]) * b, x1 = high(raw[m][i]);
          v8[i] = pack(x0 * after8, x1 * after8);
          if (half == 0) w0[r] = x0 * after8, w1[r] = x1 * after8;
          if (!C::ENDS) {
            v2[i] = pack(x0, x1);
            v4[i] = pack(x0 * after4, x1 * after4);
            up2[half][2 * r] = a, up2[half][2 * r + 1] = g2;
            up4[half][2 * r] = before4 * a, up4[half][2 * r + 1] = before4 * g2;
            to[m][half][2 * r] = before8 * a, to[m][half][2 * r + 1] = before8 * g2;
          }
        }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        v[m][r] = pack(w0[r] * g8[1][r], w1[r] * g8[1][r]);
        v[m][2 + r] = v8[2 + r];
        first[m][r] = g8[0][r], all[m][r] = g8[0][r] * g8[1][r];
      }
      if (C::ENDS) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const u32 mine = half ? A.z : A.x;
        float near[4] = {}, y2[4] = {}, y4[4] = {};
        multiply8(near, raw[m][2 * half], raw[m][2 * half + 1], mine & masks[0]);
        multiply8(y2, v2[2 * half], v2[2 * half + 1], mine & masks[2]);
        multiply8(y4, v4[2 * half], v4[2 * half + 1], mine & masks[3]);
        multiply8(near, v2[2 * half], v2[2 * half + 1], mine & masks[1]);
#pragma unroll
        for (int x = 0; x < 4; ++x)
          y[m][half][x] = fmaf(up4[half][x], y4[x], fmaf(up2[half][x], y2[x], near[x]));
      }
#pragma unroll
      for (int x = 0; x < 4; ++x) cross[m][x] = 0.0f;
      multiply8(cross[m], v8[0], v8[1], A.y);
    }
  }
};

// Address of an element of a state (N, H, K, V).
template <class C>
__device__ __forceinline__ int64 state_at(const Work& w, const int64 (&s)[4], int m, int j, int e) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row = warp / C::TEAMS * C::ROWS + j * 8 + lane % 4 * 2 + e % 2;
  const int column = w.column + (warp % C::TEAMS * C::TILES + m) * 16 + lane / 4 + e / 2 * 8;
  return static_cast<int64>(w.n) * s[0] + w.h * s[1] + row * s[2] + column * s[3];
}

// The state at the start of the block's first segment.
template <class C>
__device__ __forceinline__ void first_state(const Arguments& p, const Layout& s, const Work& w,
                                            Fragments<C>& f) {
  const int lane = threadIdx.x % 32, team = threadIdx.x / 32 % C::TEAMS;
  const int piece = threadIdx.x / 32 / C::TEAMS * (C::ROWS / 8);
#pragma unroll
  for (int m = 0; m < C::TILES; ++m)
#pragma unroll
    for (int j = 0; j < C::ROWS / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        f.s[m][j][e] = C::ENDS || p.initial == nullptr
                           ? 0.0f
                           : p.initial[state_at<C>(w, s.initial, m, j, e)];
  if (C::ENDS) return;
  for (int i = 0; i < w.segment; ++i) {
    const int64 at = static_cast<int64>(w.chain) * (p.segments - 1) + i;
    const float* const decays = p.decays + at * (C::KEY ? C::K : p.V);
#pragma unroll
    for (int m = 0; m < C::TILES; ++m) {
      const int tile = w.column / 16 + team * C::TILES + m;
      const float4* const ends = p.ends + (at * (p.V / 16) + tile) * (C::K / 8 * 32) + piece * 32 + lane;
      float column[2] = {};
      if (!C::KEY)
        column[0] = decays[tile * 16 + lane / 4], column[1] = decays[tile * 16 + lane / 4 + 8];
#pragma unroll
      for (int j = 0; j < C::ROWS / 8; ++j) {
        const float4 end = ends[j * 32];
        float2 row;
        if (C::KEY) row = *reinterpret_cast<const float2*>(decays + (piece + j) * 8 + lane % 4 * 2);
        float(&x)[4] = f.s[m][j];
        x[0] = fmaf(x[0], C::KEY ? row.x : column[0], end.x);
        x[1] = fmaf(x[1], C::KEY ? row.y : column[0], end.y);
        x[2] = fmaf(x[2], C::KEY ? row.x : column[1], end.z);
        x[3] = fmaf(x[3], C::KEY ? row.y : column[1], end.w);
      }
    }
  }
}

// As in kernel.cu, which says why.
__device__ __forceinline__ float checked_decay(float decay, float growth) {
  const bool good =
      fabsf(decay) <= 0x1p60f && (growth == 1.0f || fabsf(decay) >= growth * 0x1p-100f);
  return good ? decay : __int_as_float(0x7fffffff);
}

// Levels of a lane's pairs (t, s) as masks of packed A: the same step, and bits 0, 1, 2.
__device__ __forceinline__ void level_masks(u32 (&masks)[4], int lane) {
  const int t = lane / 4, s = lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < 4; ++i) masks[i] = 0;
#pragma unroll
  for (int x = 0; x < 2; ++x) {
    const int differ = t ^ (s + x);
    const u32 half = x ? 0xffff0000u : 0xffffu;
    if (s + x > t) continue;
    if (differ == 0) masks[0] |= half;
    else if (differ == 1) masks[1] |= half;
    else if (differ < 4) masks[2] |= half;
    else masks[3] |= half;
  }
}

template <class C>
__device__ __forceinline__ void hold(const Arguments& p, const Layout& s, const Work& w, u32 shared) {
  typedef typename C::Gate Gate;
  constexpr int TILES = C::TILES, PIECES = C::ROWS / 16;
  const int lane = threadIdx.x % 32, c = lane % 4;
  const int team = threadIdx.x / 32 % C::TEAMS, half_of_rows = threadIdx.x / 32 / C::TEAMS;
  const bool writes = half_of_rows == 0;  // the warp of its team that gives y
  const u32 full = shared + C::AT_BARRIERS, empty = full + C::SLOTS * 8;
  const u32 staged = shared + C::AT_OUT + team * C::OUT;
  const u32 sums = shared + C::AT_SUMS + team * C::SUMS + lane * 16;
  const u32 sums_full = empty + C::SLOTS * 8 + team * 32, sums_empty = sums_full + 16;
  // Lanes' addresses for ldmatrix: as rows and columns of a left operand (transposed: pairs of right
  // ones), and as pairs of right operands.
  const int row_a = lane % 16, row_b = lane % 8 + lane / 16 * 8;
  const u32 unit_a = (lane / 16 ^ (row_a & 7)) << 4, unit_b = (lane / 8 % 2 ^ (row_b & 7)) << 4;
  const int rows_at = half_of_rows * (C::ROWS / 64) * 128;
  u32 key_at[4], query_at[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    key_at[i] = C::KEYS + rows_at + row_a * C::KEY_ROW + (unit_a ^ i * 32);
    query_at[i] = C::Q + rows_at + row_b * C::KEY_ROW + (unit_b ^ i * 32);
  }
  const int steps = w.T - w.first;
  const int64 y_step = static_cast<int64>(p.H) * p.V;
  bfloat* const y = p.y + (static_cast<int64>(w.b) * p.T + w.first) * y_step + w.h * p.V + w.column + team * 16 * TILES;

  Fragments<C> f;
  first_state<C>(p, s, w, f);
  u32 masks[4];
  if (!C::KEY) level_masks(masks, lane);
  float total[TILES][2], growth[TILES][2];
#pragma unroll
  for (int m = 0; m < TILES; ++m) total[m][0] = total[m][1] = growth[m][0] = growth[m][1] = 1.0f;

  // A chunk as it is read from its slot.
  constexpr bool Q_EARLY = !C::ENDS && (C::KEY || C::EARLY);
  u32 values[TILES][4], queries[Q_EARLY ? PIECES : 1][4], keys[C::EARLY ? PIECES : 1][4];
  float2 decays[C::EARLY && C::KEY ? PIECES : 1][2];
  uint4 A = {};
  int unsafe = ALL_SAFE;
  ColumnGates<C> gates;
  auto decay = [&](u32 slot, int i, int half) {
    return load64(slot + C::DECAYS + (half_of_rows * C::ROWS + i * 16 + half * 8 + c * 2) * 4);
  };
  int reading = 0, phase = 0;
  auto next = [&](int n) {
    const u32 slot = shared + reading * C::SLOT;
    wait(full + 8 * reading, phase);
    auto unit = [&](int m) {
      const int u = (team * TILES + m) * 2 + lane / 8 % 2;
      return ((u & ~7) | ((u ^ row_b) & 7)) << 4;
    };
#pragma unroll
    for (int m = 0; m < TILES; ++m)
      load_transposed(values[m], slot + C::VALUES + row_b * C::VALUE_ROW + unit(m));
    float g[TILES][2][2][2];
    if (!C::KEY) {
      float2 head[2] = {make_float2(1.0f, 1.0f), make_float2(1.0f, 1.0f)};
      if (C::HEAD) head[0] = load64(slot + C::NOTES + c * 8), head[1] = load64(slot + C::NOTES + 32 + c * 8);
#pragma unroll
      for (int m = 0; m < TILES; ++m) {
        u32 packed[4];
        if (C::VALUE && C::GATE == 2)
          load_transposed(packed, slot + C::GATE_TILE + row_b * C::GATE_ROW + unit(m));
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            float2 x = make_float2(1.0f, 1.0f);
            if (C::VALUE && C::GATE == 4) {
              const int at = ((team * TILES + m) * 4 + r * 2 + lane / 16) ^ c << 1;
              const u32 from = slot + C::GATE_TILE + (half * 8 + c * 2) * C::GATE_ROW + (at << 4) +
                               (lane / 4 & 3) * 4;
              x = make_float2(load_float(from), load_float(from + C::GATE_ROW));
            } else if (C::VALUE) {
              x = unpack(packed[r + 2 * half]);
            }
            if (C::VALUE) x = make_float2(as_gate(x.x, Gate()), as_gate(x.y, Gate()));
            if (C::VALUE && C::HEAD) x = make_float2(joined(x.x, head[half].x), joined(x.y, head[half].y));
            else if (C::HEAD) x = head[half];
            g[m][half][r][0] = x.x, g[m][half][r][1] = x.y;
          }
      }
    }
    if (!C::ENDS) A = load128(slot + C::PRODUCTS + lane * 16);
    if (Q_EARLY)
#pragma unroll
      for (int i = 0; i < PIECES; ++i)
        load_matrices(queries[i], slot + i / 4 * 128 + query_at[i % 4]);
    unsafe = ALL_SAFE;
    if (C::KEY && C::ENDS && C::PREPARED) unsafe = load32(slot + C::NOTES + 12);
    if (C::KEY && C::ENDS && !C::PREPARED)
#pragma unroll
      for (int i = 0; i < C::PARTS; ++i)
        unsafe = min(unsafe, static_cast<int>(load32(slot + C::NOTES + i * 4)));
    if (C::KEY && !C::ENDS) unsafe = A.w;
    if (C::EARLY) {
#pragma unroll
      for (int i = 0; i < PIECES; ++i) {
        load_transposed(keys[i], slot + i / 4 * 128 + key_at[i % 4]);
        if (C::KEY) decays[i][0] = decay(slot, i, 0), decays[i][1] = decay(slot, i, 1);
      }
      __syncwarp();
      if (lane == 0) arrive(empty + 8 * reading);
    }

    const int valid = steps - n * 16;
    if (!C::KEY && valid < 16)
#pragma unroll
      for (int m = 0; m < TILES; ++m)
#pragma unroll
        for (int i = 0; i < 8; ++i)
          if (i / 4 * 8 + c * 2 + i % 2 >= valid) g[m][i / 4][i / 2 % 2][i % 2] = 1.0f;
    // The first step from which products must not be trusted.
    float top = 0.0f;
    if (!C::KEY && (C::VALUE || C::HEAD))
#pragma unroll
      for (int m = 0; m < TILES; ++m)
#pragma unroll
        for (int i = 0; i < 8; ++i) top = larger(top, g[m][i / 4][i / 2 % 2][i % 2]);
    u32 watch = 0;
    if (!C::ENDS)
#pragma unroll
      for (int m = 0; m < TILES; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i) watch = watch_finite(watch, values[m][i]);
    const bool good = top <= SAFE && low(watch) == 0.0f && high(watch) == 0.0f;
    if (!C::KEY || !C::ENDS) {
      if (__any_sync(~0u, !good) || unsafe < ALL_SAFE) {
#pragma unroll
        for (int half = 1; half >= 0; --half)
#pragma unroll
          for (int x = 1; x >= 0; --x) {
            bool fine = true;
#pragma unroll
            for (int m = 0; m < TILES; ++m)
#pragma unroll
              for (int r = 0; r < 2; ++r) {
                const u32 pair = values[m][r + 2 * half];
                const float value = x ? high(pair) : low(pair);
                fine = fine && (C::ENDS || value * 0.0f == 0.0f);
                if (!C::KEY) fine = fine && fabsf(g[m][half][r][x]) <= SAFE;
              }
            if (!fine) unsafe = min(unsafe, half * 8 + c * 2 + x);
          }
        unsafe = __reduce_min_sync(~0u, unsafe);
#pragma unroll
        for (int m = 0; m < TILES; ++m)
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            const int half = i / 4, r = i / 2 % 2, x = i % 2;
            if (half * 8 + c * 2 + x < unsafe) continue;
            if (!C::KEY) g[m][half][r][x] = 0.0f;
            values[m][r + 2 * half] &= x ? 0xffffu : 0xffff0000u;
          }
      }
    }
    if (!C::KEY) {
      gates.make(values, g, A, masks, lane);
#pragma unroll
      for (int m = 0; m < TILES; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          total[m][r] *= gates.all[m][r];
          growth[m][r] *= fmaxf(1.0f, fabsf(gates.all[m][r]));
          if (unsafe < ALL_SAFE) growth[m][r] = endless();
        }
    }
    if (++reading == C::SLOTS) reading = 0, phase ^= 1;
  };

  // y of a chunk goes out one chunk later, 16 bytes a lane.
  auto place = [](int t) { return TILES == 1 ? t >> 2 & 1 : t >> 1 & 3; };
  auto fetch = [&](uint4 (&out)[TILES], int parity) {
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
      const int x = i * 32 + lane, r = x / (2 * TILES), unit = x % (2 * TILES);
      out[i] = load128(staged + parity * 16 * C::OUT_ROW + r * C::OUT_ROW + ((unit ^ place(r)) << 4));
    }
  };
  auto write = [&](const uint4 (&out)[TILES], int n) {
    if (n < w.silent) return;
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
      const int x = i * 32 + lane, r = x / (2 * TILES), unit = x % (2 * TILES);
      if (n * 16 + r < steps) store_global128(y + (n * 16 + r) * y_step + unit * 8, out[i]);
    }
  };

  // y of a chunk from the state, and the state after it where UPDATE.
  auto through_state = [&](u32 slot, float (&out)[TILES][2][4], auto flag) {
    constexpr bool UPDATE = decltype(flag)::value;
#pragma unroll
    for (int i = 0; i < PIECES; ++i) {
      u32 q[4], k[4];
      float2 d0, d1;
      if (C::EARLY) {
#pragma unroll
        for (int x = 0; x < 4; ++x) k[x] = keys[C::EARLY ? i : 0][x];
      } else {
        load_transposed(k, slot + i / 4 * 128 + key_at[i % 4]);
      }
      if (Q_EARLY) {
#pragma unroll
        for (int x = 0; x < 4; ++x) q[x] = queries[Q_EARLY ? i : 0][x];
      } else if (!C::ENDS) {
        load_matrices(q, slot + i / 4 * 128 + query_at[i % 4]);
      }
      if (C::KEY) {
        d0 = C::EARLY ? decays[C::EARLY ? i : 0][0] : decay(slot, i, 0);
        d1 = C::EARLY ? decays[C::EARLY ? i : 0][1] : decay(slot, i, 1);
      }
#pragma unroll
      for (int m = 0; m < TILES; ++m) {
        float(&x)[4] = f.s[m][2 * i];
        float(&z)[4] = f.s[m][2 * i + 1];
        if (!C::ENDS) {
          const u32 a[4] = {pack(x[0], x[1]), pack(x[2], x[3]), pack(z[0], z[1]), pack(z[2], z[3])};
          multiply(out[m][0], a, q[0], q[1]);
          multiply(out[m][1], a, q[2], q[3]);
        }
        if (UPDATE) {
          if (C::KEY) {
            x[0] *= d0.x, x[1] *= d0.y, x[2] *= d0.x, x[3] *= d0.y;
            z[0] *= d1.x, z[1] *= d1.y, z[2] *= d1.x, z[3] *= d1.y;
          } else {
            const float up = gates.all[m][0], down = gates.all[m][1];
            x[0] *= up, x[1] *= up, x[2] *= down, x[3] *= down;
            z[0] *= up, z[1] *= up, z[2] *= down, z[3] *= down;
          }
          const u32(&v)[4] = C::KEY ? values[m] : gates.v[m];
          multiply(x, v, k[0], k[1]);
          multiply(z, v, k[2], k[3]);
        }
      }
    }
  };

  if (w.chunks > 0) next(0);
  int slot_of_chunk = 0;
#pragma unroll 1
  for (int n = 0; n < w.chunks; ++n) {
    const u32 slot = shared + slot_of_chunk * C::SLOT;
    float out[TILES][2][4];
#pragma unroll
    for (int m = 0; m < TILES; ++m)
#pragma unroll
      for (int x = 0; x < 4; ++x) out[m][0][x] = out[m][1][x] = 0.0f;
    if (C::KEY && !C::ENDS && half_of_rows == C::HALVES - 1)
#pragma unroll
      for (int m = 0; m < TILES; ++m) {
        multiply8(out[m][0], values[m][0], values[m][1], A.x);
        multiply(out[m][1], values[m], A.y, A.z);
      }
    if (unsafe >= ALL_SAFE) through_state(slot, out, Flag<true>());
    else {
      through_state(slot, out, Flag<false>());
      // Copies, because what a function is given by reference cannot stay in registers.
      Fragments<C> copy = f;
      const Arguments p_copy = p;
      const Work w_copy = w;
      float walked[TILES][2][4] = {};
      walk<C>(p_copy, s, w_copy, n, unsafe, copy, walked);
      f = copy;
#pragma unroll
      for (int m = 0; m < TILES; ++m)
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const int half = i / 4, x = i % 4;
          if (C::ENDS || half * 8 + c * 2 + x % 2 < unsafe) continue;
          if (C::KEY) {
            out[m][half][x] = walked[m][half][x];
          } else {  // what follows adds nothing to it
            out[m][half][x] = gates.to[m][half][x] = 0.0f;
            gates.y[m][half][x] = walked[m][half][x];
          }
        }
    }
    if (!C::EARLY) {
      __syncwarp();
      if (lane == 0) arrive(empty + 8 * slot_of_chunk);
    }
    if (++slot_of_chunk == C::SLOTS) slot_of_chunk = 0;
    if (C::ENDS) {
      if (n + 1 < w.chunks) next(n + 1);
      continue;
    }
    if (C::HALVES > 1) {  // the last half hands its part of y to the first
      const u32 at = sums + (n & 1) * TILES * 1024;
      const u32 phase_of_sums = n >> 1 & 1;
      if (!writes) {
        wait(sums_empty + 8 * (n & 1), phase_of_sums ^ 1);
#pragma unroll
        for (int m = 0; m < TILES; ++m)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const float(&o)[4] = out[m][half];
            store128(at + (m * 2 + half) * 512, __float_as_uint(o[0]), __float_as_uint(o[1]),
                     __float_as_uint(o[2]), __float_as_uint(o[3]));
          }
        __syncwarp();
        if (lane == 0) arrive(sums_full + 8 * (n & 1));
        if (n + 1 < w.chunks) next(n + 1);
        continue;
      }
      if (n + 1 < w.chunks) next(n + 1);
      wait(sums_full + 8 * (n & 1), phase_of_sums);
#pragma unroll
      for (int m = 0; m < TILES; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint4 other = load128(at + (m * 2 + half) * 512);
          out[m][half][0] += __uint_as_float(other.x), out[m][half][1] += __uint_as_float(other.y);
          out[m][half][2] += __uint_as_float(other.z), out[m][half][3] += __uint_as_float(other.w);
        }
      __syncwarp();
      if (lane == 0) arrive(sums_empty + 8 * (n & 1));
    }
    uint4 before[TILES];
    if (n > 0) fetch(before, (n - 1) & 1);
    const ColumnGates<C> mine = gates;
    if (!C::KEY && n + 1 < w.chunks) next(n + 1);
    u32 packed[TILES][4];
#pragma unroll
    for (int m = 0; m < TILES; ++m) {
      if (!C::KEY)
#pragma unroll
        for (int x = 0; x < 4; ++x) {
          out[m][0][x] = fmaf(mine.to[m][0][x], out[m][0][x], mine.y[m][0][x]);
          out[m][1][x] = fmaf(mine.to[m][1][x],
                              fmaf(mine.first[m][x / 2], out[m][1][x], mine.cross[m][x]),
                              mine.y[m][1][x]);
        }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float(&o)[4] = out[m][half];
        packed[m][2 * half] = pack(p.scale * o[0], p.scale * o[1]);
        packed[m][2 * half + 1] = pack(p.scale * o[2], p.scale * o[3]);
      }
      store_transposed(staged + (n & 1) * 16 * C::OUT_ROW + row_b * C::OUT_ROW +
                           ((m * 2 + lane / 8 % 2 ^ place(row_b)) << 4),
                       packed[m]);
    }
    if (C::KEY && C::HALVES == 1 && n + 1 < w.chunks) next(n + 1);
    if (n > 0) write(before, n - 1);
    __syncwarp();
  }

  if (!C::ENDS && w.chunks > 0 && writes) {
    uint4 before[TILES];
    fetch(before, (w.chunks - 1) & 1);
    write(before, w.chunks - 1);
  }
  if (C::ENDS) {
    const int64 at = static_cast<int64>(w.chain) * (p.segments - 1) + w.segment;
#pragma unroll
    for (int m = 0; m < TILES; ++m) {
      const int tile = w.column / 16 + team * TILES + m;
      float4* const ends = p.ends + (at * (p.V / 16) + tile) * (C::K / 8 * 32) +
                           half_of_rows * (C::ROWS / 8 * 32) + lane;
#pragma unroll
      for (int j = 0; j < C::ROWS / 8; ++j) {
        const float(&x)[4] = f.s[m][j];
        store_global128(ends + j * 32, make_uint4(__float_as_uint(x[0]), __float_as_uint(x[1]),
                                                  __float_as_uint(x[2]), __float_as_uint(x[3])));
      }
      if (!C::KEY && c == 0)
#pragma unroll
        for (int r = 0; r < 2; ++r)
          p.decays[at * p.V + tile * 16 + lane / 4 + r * 8] = checked_decay(total[m][r], growth[m][r]);
    }
  } else if (p.last != nullptr && w.first + w.chunks * 16 >= w.T) {
#pragma unroll
    for (int m = 0; m < TILES; ++m)
#pragma unroll
      for (int j = 0; j < C::ROWS / 8; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) p.last[state_at<C>(w, s.last, m, j, e)] = f.s[m][j][e];
  }
}

// The first segment before `segment` whose product of gates is not safe for these columns; else
// `segment`.
template <class C>
__device__ __forceinline__ int first_unsafe(const Arguments& p, const Work& w, int segment) {
  constexpr int WIDTH = C::KEY ? C::K : C::COLUMNS;
  __shared__ int found;
  if (threadIdx.x == 0) found = segment;
  __syncthreads();
  const float* const decays = p.decays + static_cast<int64>(w.chain) * (p.segments - 1) * (C::KEY ? C::K : p.V) +
                              (C::KEY ? 0 : w.column);
  for (int i = threadIdx.x; i < segment * WIDTH; i += C::THREADS)
    if (isnan(decays[static_cast<int64>(i / WIDTH) * (C::KEY ? C::K : p.V) + i % WIDTH]))
      atomicMin(&found, i / WIDTH);
  __syncthreads();
  return found;
}

template <class C>
__global__ void __launch_bounds__(C::THREADS, 1)
    chunked(const bfloat* q, const bfloat* k, const bfloat* v, const typename C::Gate* gate_k,
            const typename C::Gate* gate_v, const typename C::Gate* gate_head, const float* initial,
            bfloat* y, float* last, float4* ends, float* decays, const bfloat* operands,
            const uint4* products, const float* chunk_decays, const void* bounds, int T, int H,
            int V, int segments, int lead, int length, int bounds_64, int group,
            float scale,
            const __grid_constant__ Layout layout) {
  extern __shared__ __align__(128) char memory[];
  const u32 shared = shared_address(memory);
  Arguments p{q, k, v, gate_k, gate_v, gate_head, initial, y, last, ends, decays, operands, products,
              chunk_decays, bounds, T, H, V, segments, lead, length, bounds_64, group, scale};
  // Blocks of a segment lie next to each other, those of the first one before all others.
  const int tiles = V / C::COLUMNS, all = C::ENDS ? segments - 1 : segments;
  const int of_segment = gridDim.x / all, segment = blockIdx.x / of_segment;
  const int tile = blockIdx.x % of_segment % tiles;
  Work w;
  w.chain = blockIdx.x % of_segment / tiles;
  w.n = w.b = w.chain / H;
  w.h = w.chain % H;
  w.column = tile * C::COLUMNS;
  w.T = T;
  if (bounds != nullptr) {
    const int64 first = bound(bounds, bounds_64, w.n, T);
    const int end = bound(bounds, bounds_64, w.n + 1, T);
    w.T = end > first ? end - static_cast<int>(first) : 0;
    w.b = 0;
    p.q += first * layout.q[1], p.k += first * layout.k[1], p.v += first * layout.v[1];
    p.gate_k = gate_k + first * layout.gate_k[1];
    p.gate_v = gate_v + first * layout.gate_v[1];
    p.gate_head = gate_head + first * layout.gate_head[1];
    p.y += first * H * V;
  }
  w.segment = segment;
  // The second launch may begin while the first one runs: blocks of the first segment need nothing
  // of it.
  if (C::ENDS) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  if (!C::ENDS && segment > 0) asm volatile("griddepcontrol.wait;" ::: "memory");
  if (!C::ENDS && segment > 0) w.segment = first_unsafe<C>(p, w, segment);
  auto start = [&](int i) { return i == 0 ? 0 : lead + (i - 1) * length; };
  w.first = start(w.segment);
  const int end = segment == segments - 1 ? w.T : start(segment + 1);
  w.chunks = (end - w.first + 15) / 16;
  w.silent = (start(segment) - w.first) / 16;

  if (threadIdx.x == 0) {
    for (int i = 0; i < C::SLOTS; ++i) {
      init_barrier(shared + C::AT_BARRIERS + 8 * i, C::PARTS);
      init_barrier(shared + C::AT_BARRIERS + (C::SLOTS + i) * 8, C::STATES);
    }
    if (C::HALVES > 1)
      for (int i = 0; i < C::TEAMS * 4; ++i)
        init_barrier(shared + C::AT_BARRIERS + C::SLOTS * 16 + 8 * i, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x >= 32 * C::STATES) {
    if constexpr (C::PREPARED) fetch_prepared<C>(p, layout, w, shared);
    else prepare<C>(p, layout, w, shared);
  } else hold<C>(p, layout, w, shared);
  if (C::KEY && C::ENDS) {  // the product of gates over the groups of preparing warps
    __syncthreads();
    if (w.column == 0 && threadIdx.x < C::K) {
      float total = 1.0f, growth = 1.0f;
#pragma unroll
      for (int i = 0; i < C::GROUPS; ++i) {
        const u32 at = shared + C::AT_TOTALS + i * C::TOTALS + threadIdx.x * 4;
        total *= load_float(at), growth *= load_float(at + 4 * C::K);
      }
      p.decays[(static_cast<int64>(w.chain) * (segments - 1) + segment) * C::K + threadIdx.x] =
          checked_decay(total, growth);
    }
  }
}

// The work on gates of keys for every chunk, once for all blocks that share a head: where its columns
// are too many for one block. A block takes a chunk, a warp 64 rows of the state.
template <class Gate, int GATES, int K>
__global__ void __launch_bounds__(K / 2)
    gate_keys(const bfloat* q, const bfloat* k, const Gate* gate_k, const Gate* gate_head,
              bfloat* operands, uint4* products, float* decays, int T, int H, int group,
              const __grid_constant__ Layout s) {
  constexpr int WARPS = K / 64;
  __shared__ __align__(128) char tiles[WARPS * 2 * LEVEL];
  __shared__ float shares[WARPS][7][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int chunks = (T + 15) / 16, chunk = blockIdx.x % chunks, chain = blockIdx.x / chunks;
  const int64 b = chain / H, h = chain % H, key_head = h / group, t0 = chunk * 16;
  const int valid = T - chunk * 16, column = warp * 64 + lane * 2;
  const bfloat* const q_at = q + b * s.q[0] + t0 * s.q[1] + key_head * s.q[2] + column;
  const bfloat* const k_at = k + b * s.k[0] + t0 * s.k[1] + key_head * s.k[2] + column;
  const Gate* const gate_at =
      gate_k + b * s.gate_k[0] + t0 * s.gate_k[1] + h * s.gate_k[2] + column;
  u32 qr[16], kr[16];
  float2 g[16];
  float top = 0.0f;
#pragma unroll
  for (int t = 0; t < 16; ++t) {
    qr[t] = t < valid ? *reinterpret_cast<const u32*>(q_at + t * s.q[1]) : 0;
    kr[t] = t < valid ? *reinterpret_cast<const u32*>(k_at + t * s.k[1]) : 0;
    const Gate* const pair = gate_at + t * s.gate_k[1];
    g[t] = t < valid ? make_float2(to_float(pair[0]), to_float(pair[1])) : make_float2(1.0f, 1.0f);
    if ((GATES & 4) && t < valid) {
      const float head = to_float(
          gate_head[b * s.gate_head[0] + (t0 + t) * s.gate_head[1] + h * s.gate_head[2]]);
      g[t] = make_float2(joined(g[t].x, head), joined(g[t].y, head));
    }
    top = larger(larger(top, g[t].x), g[t].y);
  }
  int unsafe = guard(g, top);

  const u32 own = shared_address(tiles) + warp * 2 * LEVEL;
#pragma unroll
  for (int t = 0; t < 16; ++t) {
    store32(own + t * LEVEL_ROW + lane * 4, qr[t]);
    store32(own + LEVEL + t * LEVEL_ROW + lane * 4, kr[t]);
  }
  __syncwarp();
  float a[2][4] = {}, sums[6];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    u32 x[4], y[4];
    load_matrices(x, own + lane % 16 * LEVEL_ROW + lane / 16 * 16 + i * 32);
    load_matrices(y, own + LEVEL + (lane % 8 + lane / 16 * 8) * LEVEL_ROW + lane / 8 % 2 * 16 + i * 32);
    multiply(a[0], x, y[0], y[1]), multiply(a[1], x, y[2], y[3]);
  }
  pick_diagonal(sums, a, lane);
  __syncwarp();
  bfloat* const to = operands + (static_cast<int64>(chain) * chunks + chunk) * 32 * K + column;
  const float2 all = gated_products(
      sums, qr, kr, g, own, lane, [&](int t, u32 x) { *reinterpret_cast<u32*>(to + t * K) = x; },
      [&](int t, u32 x) { *reinterpret_cast<u32*>(to + (16 + t) * K) = x; });
  *reinterpret_cast<float2*>(decays + (static_cast<int64>(chain) * chunks + chunk) * K + column) = all;
#pragma unroll
  for (int i = 0; i < 6; ++i) shares[warp][i][lane] = sums[i];
  shares[warp][6][lane] = __int_as_float(unsafe);
  __syncthreads();
  if (warp != 0) return;
#pragma unroll
  for (int other = 1; other < WARPS; ++other) {
#pragma unroll
    for (int i = 0; i < 6; ++i) sums[i] += shares[other][i][lane];
    unsafe = min(unsafe, __float_as_int(shares[other][6][lane]));
  }
  store_global128(products + (static_cast<int64>(chain) * chunks + chunk) * 32 + lane,
                  make_uint4(pack(sums[0], sums[1]), pack(sums[2], sums[3]),
                             pack(sums[4], sums[5]), unsafe));
}
