// The preparing warps of chunked.cu.

#pragma once

#include "chunks.cuh"

// The first step of a chunk whose gates of columns products of 16 must not meet, or whose v is not
// finite; among the rows of v from `row0` on, as many as this warp has copied. `head`: the lane's gate
// of the head, 0 where it has none.
template <class C>
__device__ __forceinline__ int unsafe_columns(u32 slot, int lane, int row0, float head) {
  typedef typename C::Gate Gate;
  constexpr bool GATED = C::VALUE, HEADED = C::HEAD && !C::KEY;
  constexpr float LIMIT = GATED && (HEADED || C::KEY) ? SAFE_OF_TWO : SAFE;
  constexpr int UNITS = C::VALUE_ROW / 16, V_LOADS = C::ENDS ? 0 : 16 / C::PARTS * UNITS / 32;
  constexpr int GATE_UNITS = C::GATE_ROW / 16, GATE_LOADS = GATED ? 16 / C::PARTS * GATE_UNITS / 32 : 0;
  const u32 values = slot + C::VALUES + row0 * C::VALUE_ROW;
  const u32 gates = slot + C::GATE_TILE + row0 * C::GATE_ROW;
  auto finite = [&](int i) {
    const uint4 x = load128(values + (i * 32 + lane) * 16);
    if (same<typename C::Element, float>) {
      const float top = larger(larger(larger(larger(0.0f, __uint_as_float(x.x)), __uint_as_float(x.y)),
                                      __uint_as_float(x.z)), __uint_as_float(x.w));
      return top <= LARGEST;
    }
    if (same<typename C::Element, half16>) {
      const u32 sum = watch_half(watch_half(watch_half(watch_half(0, x.x), x.y), x.z), x.w);
      return (sum & 0x7fff7fffu) == 0;
    }
    const u32 sum = watch_finite(watch_finite(watch_finite(watch_finite(0, x.x), x.y), x.z), x.w);
    return low(sum) == 0.0f && high(sum) == 0.0f;
  };
  auto top_of_gates = [&](int i) {
    const uint4 x = load128(gates + (i * 32 + lane) * 16);
    float top = 0.0f;
    if (C::GATE == 4) {
      top = larger(larger(top, as_gate(__uint_as_float(x.x), Gate())), as_gate(__uint_as_float(x.y), Gate()));
      top = larger(larger(top, as_gate(__uint_as_float(x.z), Gate())), as_gate(__uint_as_float(x.w), Gate()));
    } else {
      const u32 pairs[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int j = 0; j < 4; ++j)
        {
        const float2 pair = unpack_gates(pairs[j], Gate());
        top = larger(larger(top, as_gate(pair.x, Gate())), as_gate(pair.y, Gate()));
      }
    }
    return top;
  };
  float top = HEADED ? fabsf(head) : 0.0f;
  bool good = true;
#pragma unroll
  for (int i = 0; i < GATE_LOADS; ++i) top = larger(top, top_of_gates(i));
#pragma unroll
  for (int i = 0; i < V_LOADS; ++i) good = good && finite(i);
  if (!__any_sync(~0u, !(top <= LIMIT) || !good)) return ALL_SAFE;
  int unsafe = HEADED && !(fabsf(head) <= LIMIT) ? lane : ALL_SAFE;
#pragma unroll 1
  for (int i = 0; i < GATE_LOADS; ++i)
    if (!(top_of_gates(i) <= LIMIT)) unsafe = min(unsafe, row0 + (i * 32 + lane) / GATE_UNITS);
#pragma unroll 1
  for (int i = 0; i < V_LOADS; ++i)
    if (!finite(i)) unsafe = min(unsafe, row0 + (i * 32 + lane) / UNITS);
  return __reduce_min_sync(~0u, unsafe);
}

template <class C>
__device__ __forceinline__ void put_planes(u32 at, float2 x) {
#pragma unroll
  for (int plane = 0; plane < C::RIGHT; ++plane) store32(at + plane * C::PLANE, next_plane(x));
}
template <class C>
__device__ __forceinline__ void store_products(u32 slot, int lane, float (&sums)[6], int unsafe) {
#pragma unroll
  for (int plane = 0; plane < C::SUMMED; ++plane) {
    const uint4 x = products_plane(sums, unsafe);
    store128(slot + C::PRODUCTS + plane * 512 + lane * 16, x.x, x.y, x.z, x.w);
  }
}
// Where a lane's two columns of 64 lie in step t, as they came.
template <class C>
__device__ __forceinline__ u32 raw_place(int lane, int t) {
  const u32 unit = C::SIZE == 4 ? lane % 16 / 2 : lane / 4;
  return (C::SIZE == 4 ? lane / 16 * C::PLANE : 0) + t * 128 + ((unit ^ (t & 7)) << 4) +
         (C::SIZE == 4 ? lane % 2 * 8 : lane % 4 * 4);
}
// Where no gate is multiplied to q and k, they are split alone.
template <class C>
__device__ __forceinline__ void split_keys(u32 slot, int lane) {
#pragma unroll
  for (int i = 0; i < (C::ENDS ? 1 : 2) * C::K / 64; ++i) {
    const u32 at = slot + i * C::PANEL;  // q, then k
    float2 x[16];
#pragma unroll
    for (int t = 0; t < 16; ++t) x[t] = load_gates(at + raw_place<C>(lane, t), typename C::Element());
    __syncwarp();
#pragma unroll
    for (int t = 0; t < 16; ++t) put_planes<C>(at + t * 128 + (lane * 4 ^ (t & 7) << 4), x[t]);
  }
  __syncwarp();
}
// Where one gate, or none, is for all of the state: its products within the chunk, as notes for the
// state warps and multiplied to a lane's `sums` (see `pick_level`). `head`: the gate of step `lane`.
template <class C>
__device__ __forceinline__ void scalar_decays(u32 slot, int lane, int unsafe, float head,
                                              float (&sums)[6]) {
  const int t = lane / 4, s = lane % 4 * 2;
  if (!C::SINCE) {
#pragma unroll
    for (int x = 0; x < 2; ++x)
      if (s + x > t) sums[x] = sums[4 + x] = 0.0f;
    return;
  }
  float g[16];
  if (lane >= unsafe) head = 0.0f;
#pragma unroll
  for (int u = 0; u < 16; ++u) g[u] = __shfl_sync(~0u, head, u);
  float since = 1.0f, after = 1.0f;
#pragma unroll
  for (int u = 0; u < 16; ++u)
    if (u <= lane) since *= g[u];
#pragma unroll
  for (int u = 15; u > 0; --u)
    if (u > lane) after *= g[u];
  if (lane < 16) {
    store32(slot + C::NOTES + lane * 4, __float_as_uint(since));
    store32(slot + C::AFTER + lane * 4, __float_as_uint(after));
  }
  if (C::ENDS) return;
  float second = g[8];  // from the start of the second half to t + 8
#pragma unroll
  for (int u = 1; u < 8; ++u)
    if (u <= t) second *= g[8 + u];
#pragma unroll
  for (int x = 0; x < 2; ++x) {
    float within = 1.0f, first = 1.0f, later = 1.0f;
#pragma unroll
    for (int u = 1; u < 8; ++u) {
      if (u > s + x) first *= g[u];
      if (u > s + x && u <= t) within *= g[u], later *= g[8 + u];
    }
    sums[x] = s + x <= t ? sums[x] * within : 0.0f;
    sums[4 + x] = s + x <= t ? sums[4 + x] * later : 0.0f;
    sums[2 + x] *= first * second;
  }
}

// The first step of a chunk whose k is not finite, where k with its gates is split in planes: the rest
// of infinity is not a number.
template <class C>
__device__ __forceinline__ int unsafe_keys(const u32 (&kr)[16], const float2 (&ks)[16]) {
  u32 sum = 0;
  float top = 0.0f;
#pragma unroll
  for (int t = 0; t < 16; ++t)
    if (C::FINE) top = larger(larger(top, ks[t].x), ks[t].y);
    else sum = watch_finite(sum, kr[t]);
  const bool good = C::FINE ? top <= LARGEST : low(sum) == 0.0f && high(sum) == 0.0f;
  if (!__any_sync(~0u, !good)) return ALL_SAFE;
  int unsafe = ALL_SAFE;
#pragma unroll
  for (int t = 15; t >= 0; --t) {
    const float2 x = C::FINE ? ks[t] : unpack(kr[t]);
    if (!(fabsf(x.x) <= LARGEST && fabsf(x.y) <= LARGEST)) unsafe = t;
  }
  return __reduce_min_sync(~0u, unsafe);
}

template <class C>
__device__ __forceinline__ void prepare(const Arguments<C>& p, const Layout& s, const Work& w,
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
  // q and k come in lines of 128 bytes, 64 columns after the other.
  constexpr int UNITS = 64 * C::SIZE / 16, PANELS = C::K / 64 / C::PARTS, GATE_UNITS = 64 * C::GATE / 16;
  typedef typename C::Element Element;
  const int64 q_row = C::SIZE * s.q[1], k_row = C::SIZE * s.k[1], v_row = C::SIZE * s.v[1];
  const int64 gk_row = C::GATE * s.gate_k[1], gv_row = C::GATE * s.gate_v[1];
  const char* q = lane_start<UNITS>(
      p.q + batch * s.q[0] + start * s.q[1] + key_head * s.q[2] + part * 64, q_row, lane);
  const char* k = lane_start<UNITS>(
      p.k + batch * s.k[0] + start * s.k[1] + key_head * s.k[2] + part * 64, k_row, lane);
  const char* v = lane_start<C::VALUE_ROW / 16>(
      p.v + batch * s.v[0] + (start + row0) * s.v[1] + w.h * s.v[2] + w.column, v_row, lane);
  const char* gk = lane_start<GATE_UNITS>(
      static_cast<const Gate*>(p.gate_k) + batch * s.gate_k[0] + start * s.gate_k[1] +
          w.h * s.gate_k[2] + part * 64,
      gk_row, lane);
  const char* gv = lane_start<C::GATE_ROW / 16>(
      static_cast<const Gate*>(p.gate_v) + batch * s.gate_v[0] + (start + row0) * s.gate_v[1] +
          w.h * s.gate_v[2] + w.column,
      gv_row, lane);
  const Gate* gh = static_cast<const Gate*>(p.gate_head) + batch * s.gate_head[0] +
                   (start + lane % 16) * s.gate_head[1] + w.h * s.gate_head[2];
  const int steps = w.T - w.first;  // that exist
  float heads[C::AHEAD + 1];        // this lane's gate of the head, of the chunks under way
  float2 total = make_float2(1.0f, 1.0f), growth = total;
  int copying = group % C::SLOTS, phase = 1, working = copying, ring_in = 0, ring_out = 0, shares = 0;
  // Rows from `valid` on are zeros, and so are rows and columns that the state does not have.
  auto of_rows = [&](int valid, int first, int unit, int bytes) {
    return has_row(p, first + unit * (16 / bytes)) ? valid : 0;
  };
  auto of_columns = [&](int valid, int unit, int bytes) {
    return has_column(p, w.column + unit * (16 / bytes)) ? valid : 0;
  };

  for (int n = group; n < w.chunks + C::AHEAD * C::GROUPS; n += C::GROUPS) {
    if (C::HEAD)
#pragma unroll
      for (int i = C::AHEAD; i > 0; --i) heads[i] = heads[i - 1];
    if (n < w.chunks) {
      barrier_wait(empty + 8 * copying, phase);
      const u32 slot = shared + copying * C::SLOT;
      const int valid = steps - n * 16;
#pragma unroll
      for (int i = 0; i < PANELS; ++i)
        copy_rows<UNITS, 128, false, 16, C::PLANE>(slot + C::KEYS + (part + i) * C::PANEL,
                                                   k + i * 64 * C::SIZE, k_row, lane,
                                                   of_rows(valid, (part + i) * 64, lane % UNITS, C::SIZE));
      k += stride * k_row;
      if (!C::ENDS) {
#pragma unroll
        for (int i = 0; i < PANELS; ++i)
          copy_rows<UNITS, 128, false, 16, C::PLANE>(slot + C::Q + (part + i) * C::PANEL,
                                                     q + i * 64 * C::SIZE, q_row, lane,
                                                     of_rows(valid, (part + i) * 64, lane % UNITS, C::SIZE));
        q += stride * q_row;
      }
      if (C::KEY) {
        copy_rows<GATE_UNITS, 64 * C::GATE, false, 16>(
            ring + ring_in * 16 * 64 * C::GATE, gk, gk_row, lane,
            of_rows(valid, part * 64, lane % GATE_UNITS, C::GATE));
        gk += stride * gk_row;
        if (++ring_in == C::AHEAD + 1) ring_in = 0;
      }
      copy_rows<C::VALUE_ROW / 16, C::VALUE_ROW, C::SIZE == 4, 16 / C::PARTS>(
          slot + C::VALUES + row0 * C::VALUE_ROW, v, v_row, lane,
          of_columns(valid - row0, lane % (C::VALUE_ROW / 16), C::SIZE), row0);
      v += stride * v_row;
      if (C::VALUE) {
        copy_rows<C::GATE_ROW / 16, C::GATE_ROW, C::GATE == 4, 16 / C::PARTS>(
            slot + C::GATE_TILE + row0 * C::GATE_ROW, gv, gv_row, lane,
            of_columns(valid - row0, lane % (C::GATE_ROW / 16), C::GATE), row0);
        gv += stride * gv_row;
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

    int unsafe = ALL_SAFE;
    if (!C::KEY || C::VALUE || !C::ENDS)
      unsafe = unsafe_columns<C>(slot, lane, row0, lane < 16 ? heads[C::AHEAD] : 0.0f);
    float sums[6];
    if (C::FINE && !C::KEY) split_keys<C>(slot, lane);
    if (!C::ENDS && !(C::FINE && C::KEY)) {  // q k^T without gates
      float a[2][4] = {}, rest[2][4] = {};
      const int row_a = lane % 16, row_b = lane % 8 + lane / 16 * 8;
      const u32 at_q = slot + C::Q + part * C::PANEL + row_a * 128;
      const u32 at_k = slot + C::KEYS + part * C::PANEL + row_b * 128;
      const u32 unit_q = (lane / 16 ^ (row_a & 7)) << 4, unit_k = (lane / 8 % 2 ^ (row_b & 7)) << 4;
#pragma unroll
      for (int i = 0; i < C::K / 16 / C::PARTS; ++i) {
        constexpr int PLANES = C::KEY ? 1 : C::RIGHT;  // those with gates come later
        u32 x[PLANES][4], y[PLANES][4];
#pragma unroll
        for (int plane = 0; plane < PLANES; ++plane) {
          load_matrices(x[plane], at_q + plane * C::PLANE + i / 4 * C::PANEL + (unit_q ^ i % 4 * 32));
          load_matrices(y[plane], at_k + plane * C::PLANE + i / 4 * C::PANEL + (unit_k ^ i % 4 * 32));
        }
#pragma unroll
        for (int u = PLANES - 1; u >= 0; --u)
#pragma unroll
          for (int w = PLANES - 1; w >= 0; --w)
            if (u + w < C::TERMS) {
              multiply(u + w && C::APART ? rest[0] : a[0], x[u], y[w][0], y[w][1]);
              multiply(u + w && C::APART ? rest[1] : a[1], x[u], y[w][2], y[w][3]);
            }
      }
      if (C::APART)
#pragma unroll
        for (int i = 0; i < 8; ++i) a[i / 4][i % 4] += rest[i / 4][i % 4];
      if (!C::KEY) {
        float all[6] = {a[0][0], a[0][1], a[0][2], a[0][3], a[1][2], a[1][3]};
        if (C::FINE) unsafe = min(unsafe, unsafe_diagonal(all, lane));
        if (C::SCALAR) scalar_decays<C>(slot, lane, unsafe, heads[C::AHEAD], all);
        store_products<C>(slot, lane, all, unsafe);
      } else {
        pick_diagonal(sums, a, lane);
        unsafe = min(unsafe, unsafe_diagonal(sums, lane));
        __syncwarp();  // q and k are overwritten below
      }
    }
    if (!C::KEY && C::ENDS && lane == 0) store32(slot + C::UNSAFE, unsafe);
    if (C::SINCE && C::ENDS) {
      float none[6];
      scalar_decays<C>(slot, lane, unsafe, heads[C::AHEAD], none);
    }
    if (C::VALUE && !C::KEY && C::HEAD && lane < 16)
      store32(slot + C::NOTES + lane * 4, __float_as_uint(heads[C::AHEAD]));
    if (C::KEY) {
      const u32 at = slot + part * C::PANEL, unit = lane * 4;
      const u32 gates = ring + ring_out * 16 * 64 * C::GATE;
      if (++ring_out == C::AHEAD + 1) ring_out = 0;
      auto place = [&](int t) { return t * 128 + (unit ^ (t & 7) << 4); };
      u32 kr[16];
      float2 ks[16], g[16];
      float top = 0.0f;
#pragma unroll
      for (int t = 0; t < 16; ++t) {
        if (C::FINE) ks[t] = load_gates(at + C::KEYS + raw_place<C>(lane, t), Element());
        else kr[t] = load32(at + C::KEYS + place(t));
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
      unsafe = min(unsafe, guard(g, top, C::VALUE ? SAFE_OF_TWO : SAFE));
      if (C::ENDS && unsafe < ALL_SAFE) growth = make_float2(endless(), endless());
      float2 all = make_float2(1.0f, 1.0f);
      if constexpr (C::ENDS) {
        unsafe = min(unsafe, unsafe_keys<C>(kr, ks));
        if (C::FINE) __syncwarp();
#pragma unroll
        for (int t = 15; t >= 0; --t) {
          put_planes<C>(at + C::KEYS + place(t), (C::FINE ? ks[t] : unpack(kr[t])) * all);
          all = all * g[t];
        }
        total = total * all;
        growth = growth * make_float2(fmaxf(1.0f, fabsf(all.x)), fmaxf(1.0f, fabsf(all.y)));
        if (lane == 0) store32(slot + C::UNSAFE + part * 4, unsafe);
      } else {
        auto put_q = [&](int t, float2 x) { put_planes<C>(at + C::Q + place(t), x); };
        auto put_k = [&](int t, float2 x) { put_planes<C>(at + C::KEYS + place(t), x); };
        if constexpr (C::FINE) {
          float2 qs[16];
#pragma unroll
          for (int t = 0; t < 16; ++t) qs[t] = load_gates(at + C::Q + raw_place<C>(lane, t), Element());
          all = fine_products(sums, qs, ks, g, levels, lane, put_q, put_k);
          unsafe = min(unsafe, unsafe_diagonal(sums, lane));
        } else {
          u32 qr[16];
#pragma unroll
          for (int t = 0; t < 16; ++t) qr[t] = load32(at + C::Q + place(t));
          all = gated_products(sums, qr, kr, g, levels, lane, put_q, put_k);
        }
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
          store_products<C>(slot, lane, sums, unsafe);
      }
      store64(slot + C::DECAYS + (part * 64 + lane * 2) * 4, all);
    }
    show_products();
    __syncwarp();
    arrive(full + 8 * working);
    working += C::GROUPS;
    if (working >= C::SLOTS) working -= C::SLOTS;
  }
  if (C::KEY && C::ENDS) {  // of this group's chunks
    const u32 at = shared + C::AT_TOTALS + group * C::TOTALS + (part * 64 + lane * 2) * 4;
    store64(at, total), store64(at + 4 * C::K, growth);
  }
}

// The same where gate_keys.cu has done the work on gates of keys: copies alone.
template <class C>
__device__ __forceinline__ void fetch_prepared(const Arguments<C>& p, const Layout& s, const Work& w,
                                               u32 shared) {
  const int lane = threadIdx.x % 32, group = threadIdx.x / 32 - C::STATES;
  const u32 full = shared + C::AT_BARRIERS, empty = full + C::SLOTS * 8;
  const int64 v_row = C::SIZE * s.v[1];
  const int64 chunks = (p.T + 15) / 16, chunk = w.chain * chunks + w.first / 16 + group;
  const char* operands = p.operands + chunk * 2 * C::KEY_TILE + lane * 16;
  const uint4* products = p.products + chunk * C::SUMMED * 32 + lane;
  const float* decays = p.chunk_decays + chunk * C::K + lane * 4;
  const char* v = lane_start<C::VALUE_ROW / 16>(
      p.v + w.b * s.v[0] + (w.first + group * 16) * s.v[1] + w.h * s.v[2] + w.column, v_row, lane);
  constexpr int OWN = C::K / 32;
  float total[OWN], growth[OWN];
#pragma unroll
  for (int i = 0; i < OWN; ++i) total[i] = growth[i] = 1.0f;
  int copying = group % C::SLOTS, phase = 1, working = copying;
  for (int n = group; n < w.chunks + C::AHEAD * C::GROUPS; n += C::GROUPS) {
    if (n < w.chunks) {
      barrier_wait(empty + 8 * copying, phase);
      const u32 slot = shared + copying * C::SLOT;
      constexpr int COPIES = C::KEY_TILE / 512;
#pragma unroll
      for (int i = 0; i < COPIES; ++i)
        copy16(slot + C::KEYS + i * 512 + lane * 16, operands + C::KEY_TILE + i * 512);
      if (!C::ENDS) {
#pragma unroll
        for (int i = 0; i < COPIES; ++i)
          copy16(slot + C::Q + i * 512 + lane * 16, operands + i * 512);
#pragma unroll
        for (int i = 0; i < C::SUMMED; ++i)
          copy16(slot + C::PRODUCTS + i * 512 + lane * 16, products + i * 32);
      } else if (lane == 0) {
        copy16(slot + C::UNSAFE, products);
      }
#pragma unroll
      for (int i = 0; i < C::K; i += 128) copy16(slot + C::DECAYS + i * 4 + lane * 16, decays + i);
      const bool there = has_column(p, w.column + lane % (C::VALUE_ROW / 16) * (16 / C::SIZE));
      copy_rows<C::VALUE_ROW / 16, C::VALUE_ROW, C::SIZE == 4, 16>(
          slot + C::VALUES, v, v_row, lane, there ? w.T - w.first - n * 16 : 0);
      operands += C::GROUPS * 2 * C::KEY_TILE, products += C::GROUPS * C::SUMMED * 32, decays += C::GROUPS * C::K;
      v += C::GROUPS * 16 * v_row;
      copying += C::GROUPS;
      if (copying >= C::SLOTS) copying -= C::SLOTS, phase ^= 1;
    }
    commit_copies();
    if (n < C::AHEAD * C::GROUPS) continue;
    wait_copies<C::AHEAD>();
    __syncwarp();
    const u32 slot = shared + working * C::SLOT;
    if (!C::ENDS) {
      const int unsafe = unsafe_columns<C>(slot, lane, 0, 0.0f);
      const u32 at = slot + C::PRODUCTS + lane * 16 + 12;
      if (unsafe < ALL_SAFE) store32(at, min(unsafe, static_cast<int>(load32(at))));
      __syncwarp();
    }
    if (C::ENDS) {
      const bool unsafe = load32(slot + C::UNSAFE + 12) < ALL_SAFE;
#pragma unroll
      for (int i = 0; i < OWN; ++i) {
        const float gate = load_float(slot + C::DECAYS + (i * 32 + lane) * 4);
        total[i] *= gate;
        growth[i] = unsafe ? endless() : growth[i] * fmaxf(1.0f, fabsf(gate));
      }
      __syncwarp();
    }
    show_products();
    __syncwarp();
    arrive(full + 8 * working);
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
