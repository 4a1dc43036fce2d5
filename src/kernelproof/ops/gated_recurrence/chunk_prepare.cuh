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
  constexpr int UNITS = C::COLUMNS / 8, V_LOADS = C::ENDS ? 0 : 16 / C::PARTS * UNITS / 32;
  constexpr int GATE_UNITS = C::GATE_ROW / 16, GATE_LOADS = GATED ? 16 / C::PARTS * GATE_UNITS / 32 : 0;
  const u32 values = slot + C::VALUES + row0 * C::VALUE_ROW;
  const u32 gates = slot + C::GATE_TILE + row0 * C::GATE_ROW;
  auto finite = [&](int i) {
    const uint4 x = load128(values + (i * 32 + lane) * 16);
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
        top = larger(larger(top, as_gate(low(pairs[j]), Gate())), as_gate(high(pairs[j]), Gate()));
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
  constexpr int UNITS = C::K / 8 / C::PARTS, GATE_UNITS = 64 * C::GATE / 16;
  const int64 q_row = 2 * s.q[1], k_row = 2 * s.k[1], v_row = 2 * s.v[1];
  const int64 gk_row = C::GATE * s.gate_k[1], gv_row = C::GATE * s.gate_v[1];
  const char* q = lane_start<UNITS>(
      p.q + batch * s.q[0] + start * s.q[1] + key_head * s.q[2] + part * 64, q_row, lane);
  const char* k = lane_start<UNITS>(
      p.k + batch * s.k[0] + start * s.k[1] + key_head * s.k[2] + part * 64, k_row, lane);
  const char* v = lane_start<C::COLUMNS / 8>(
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

  for (int n = group; n < w.chunks + C::AHEAD * C::GROUPS; n += C::GROUPS) {
    if (C::HEAD)
#pragma unroll
      for (int i = C::AHEAD; i > 0; --i) heads[i] = heads[i - 1];
    if (n < w.chunks) {
      barrier_wait(empty + 8 * copying, phase);
      const u32 slot = shared + copying * C::SLOT;
      const int valid = steps - n * 16;
      copy_rows<UNITS, 128, false, 16, C::PANEL>(slot + C::KEYS + part * C::PANEL, k, k_row, lane,
                                                 valid);
      k += stride * k_row;
      if (!C::ENDS) {
        copy_rows<UNITS, 128, false, 16, C::PANEL>(slot + C::Q + part * C::PANEL, q, q_row, lane,
                                                   valid);
        q += stride * q_row;
      }
      if (C::KEY) {
        copy_rows<GATE_UNITS, 64 * C::GATE, false, 16>(ring + ring_in * 16 * 64 * C::GATE, gk,
                                                       gk_row, lane, valid);
        gk += stride * gk_row;
        if (++ring_in == C::AHEAD + 1) ring_in = 0;
      }
      copy_rows<C::COLUMNS / 8, C::VALUE_ROW, false, 16 / C::PARTS>(
          slot + C::VALUES + row0 * C::VALUE_ROW, v, v_row, lane, valid - row0, row0);
      v += stride * v_row;
      if (C::VALUE) {
        copy_rows<C::GATE_ROW / 16, C::GATE_ROW, C::GATE == 4, 16 / C::PARTS>(
            slot + C::GATE_TILE + row0 * C::GATE_ROW, gv, gv_row, lane, valid - row0, row0);
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
    if (C::COLUMN || !C::ENDS)
      unsafe = unsafe_columns<C>(slot, lane, row0, lane < 16 ? heads[C::AHEAD] : 0.0f);
    float sums[6];
    if (!C::ENDS) {  // q k^T without gates
      float a[2][4] = {};
      const int row_a = lane % 16, row_b = lane % 8 + lane / 16 * 8;
      const u32 at_q = slot + C::Q + part * C::PANEL + row_a * 128;
      const u32 at_k = slot + C::KEYS + part * C::PANEL + row_b * 128;
      const u32 unit_q = (lane / 16 ^ (row_a & 7)) << 4, unit_k = (lane / 8 % 2 ^ (row_b & 7)) << 4;
#pragma unroll
      for (int i = 0; i < C::K / 16 / C::PARTS; ++i) {
        u32 x[4], y[4];
        load_matrices(x, at_q + i / 4 * C::PANEL + (unit_q ^ i % 4 * 32));
        load_matrices(y, at_k + i / 4 * C::PANEL + (unit_k ^ i % 4 * 32));
        multiply(a[0], x, y[0], y[1]), multiply(a[1], x, y[2], y[3]);
      }
      if (!C::KEY) {
        store128(slot + C::PRODUCTS + lane * 16, pack(a[0][0], a[0][1]), pack(a[0][2], a[0][3]),
                 pack(a[1][2], a[1][3]), unsafe);
      } else {
        pick_diagonal(sums, a, lane);
        __syncwarp();  // q and k are overwritten below
      }
    }
    if (!C::KEY && C::ENDS && lane == 0) store32(slot + C::UNSAFE, unsafe);
    if (!C::KEY && C::HEAD && lane < 16)
      store32(slot + C::NOTES + lane * 4, __float_as_uint(heads[C::AHEAD]));
    if (C::KEY) {
      const u32 at = slot + part * C::PANEL, unit = lane * 4;
      const u32 gates = ring + ring_out * 16 * 64 * C::GATE;
      if (++ring_out == C::AHEAD + 1) ring_out = 0;
      auto place = [&](int t) { return t * 128 + (unit ^ (t & 7) << 4); };
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
      unsafe = min(unsafe, guard(g, top, C::VALUE ? SAFE_OF_TWO : SAFE));
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
        if (lane == 0) store32(slot + C::UNSAFE + part * 4, unsafe);
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
    show_products();
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
  const int64 v_row = 2 * s.v[1];
  const char* operands = lane_start<C::K / 8>(p.operands + chunk * 32 * C::K, 2 * C::K, lane);
  const uint4* products = p.products + chunk * 32 + lane;
  const float* decays = p.chunk_decays + chunk * C::K + lane * 4;
  const char* v = lane_start<C::COLUMNS / 8>(
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
      copy_rows<C::K / 8, 128, false, 16, C::PANEL>(slot + C::KEYS, operands + 32 * C::K, 2 * C::K,
                                                    lane, 16);
      if (!C::ENDS) {
        copy_rows<C::K / 8, 128, false, 16, C::PANEL>(slot + C::Q, operands, 2 * C::K, lane, 16);
        copy16(slot + C::PRODUCTS + lane * 16, products);
      } else if (lane == 0) {
        copy16(slot + C::UNSAFE, products);
      }
#pragma unroll
      for (int i = 0; i < C::K; i += 128) copy16(slot + C::DECAYS + i * 4 + lane * 16, decays + i);
      copy_rows<C::COLUMNS / 8, C::VALUE_ROW, false, 16>(slot + C::VALUES, v, v_row, lane,
                                                         w.T - w.first - n * 16);
      operands += C::GROUPS * 64 * C::K, products += C::GROUPS * 32, decays += C::GROUPS * C::K;
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
