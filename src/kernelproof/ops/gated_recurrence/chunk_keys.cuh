// The state warps where gates of keys alone are applied to bfloat16: products of single warps (mma.sync),
// which are the faster way there (attempts.md). `hold` of chunked.cu says what they do.

#pragma once

#include "chunk_state.cuh"

template <class C>
__device__ __forceinline__ void hold_by_warps(const Arguments<C>& p, const Layout& s, const Work& w, u32 shared) {
  constexpr int TILES = C::TILES, PIECES = C::ROWS / 16, SUMMED = C::SUMMED, RIGHT = C::RIGHT;
  const int lane = threadIdx.x % 32, c = lane % 4;
  const int team = team_of<C>(), half_of_rows = half_of<C>();
  const bool writes = half_of_rows == 0;  // the warp of its team that gives y
  const u32 full = shared + C::AT_BARRIERS, empty = full + C::SLOTS * 8;
  const u32 staged = shared + C::AT_OUT + team * C::OUT;
  const u32 sums = shared + C::AT_SUMS + team * C::SUMS + lane * 16;
  const u32 sums_full = empty + C::SLOTS * 8 + team * 32, sums_empty = sums_full + 16;
  // Lanes' addresses for ldmatrix: as rows and columns of a left operand (transposed: pairs of right
  // ones), and as pairs of right operands.
  const int row_a = lane % 16, row_b = lane % 8 + lane / 16 * 8;
  const u32 unit_a = (lane / 16 ^ (row_a & 7)) << 4, unit_b = (lane / 8 % 2 ^ (row_b & 7)) << 4;
  const int rows_at = half_of_rows * (C::ROWS / 64) * C::PANEL;
  u32 key_at[4], query_at[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    key_at[i] = C::KEYS + rows_at + row_a * 128 + (unit_a ^ i * 32);
    query_at[i] = C::Q + rows_at + row_b * 128 + (unit_b ^ i * 32);
    stay(key_at[i]), stay(query_at[i]);
  }
  const int steps = w.T - w.first;
  const int64 y_step = static_cast<int64>(p.H) * p.V;
  bfloat* const y = p.y + (static_cast<int64>(w.b) * p.T + w.first) * y_step + w.h * p.V + w.column + team * 16 * TILES;

  Fragments<C> f;
  first_state<C>(p, s, w, f);

  // A chunk as it is read from its slot.
  constexpr bool Q_EARLY = !C::ENDS && RIGHT == 1;
  u32 values[TILES][4], queries[Q_EARLY ? PIECES : 1][4];
  uint4 A[SUMMED] = {};
  int unsafe = ALL_SAFE;
  u32 decays_at = C::DECAYS + half_of_rows * C::ROWS * 4 + c * 8;
  stay(decays_at);
  auto decay = [&](u32 slot, int i, int half) {
    return load64(slot + decays_at + i * 64 + half * 32);
  };
  // Values of steps from `unsafe` on become zero.
  auto hide_values = [&]() {
#pragma unroll
    for (int m = 0; m < TILES; ++m)
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (i / 4 * 8 + c * 2 + i % 2 >= unsafe)
          values[m][i / 2 % 2 + i / 4 * 2] &= i % 2 ? 0xffffu : 0xffff0000u;
  };
  u32 unit[TILES];  // of v, and of gates of 2 bytes
#pragma unroll
  for (int m = 0; m < TILES; ++m) {
    const int u = (team * TILES + m) * 2 + lane / 8 % 2;
    unit[m] = row_b * C::VALUE_ROW + (((u & ~7) | ((u ^ row_b) & 7)) << 4);
    stay(unit[m]);
  }
  int reading = 0, phase = 0;
  auto next = [&](int n) {
    const u32 slot = shared + reading * C::SLOT;
    barrier_wait(full + 8 * reading, phase);
#pragma unroll
    for (int m = 0; m < TILES; ++m)
      load_transposed(values[m], slot + C::VALUES + unit[m]);
    if (!C::ENDS)
#pragma unroll
      for (int plane = 0; plane < SUMMED; ++plane)
        A[plane] = load128(slot + C::PRODUCTS + plane * 512 + lane * 16);
    if (Q_EARLY)
#pragma unroll
      for (int i = 0; i < PIECES; ++i)
        load_matrices(queries[i], slot + i / 4 * C::PANEL + query_at[i % 4]);
    if (!C::ENDS) {
      unsafe = A[0].w;
    } else if (C::PREPARED) {
      unsafe = load32(slot + C::UNSAFE + 12);
    } else {
      unsafe = load32(slot + C::UNSAFE);
#pragma unroll
      for (int i = 1; i < C::PARTS; ++i)
        unsafe = min(unsafe, static_cast<int>(load32(slot + C::UNSAFE + i * 4)));
    }
    if (++reading == C::SLOTS) reading = 0, phase ^= 1;
  };

  // y of a chunk goes out one chunk later, 16 bytes a lane.
  auto place = [](int t) { return TILES == 1 ? t >> 2 & 1 : t >> 1 & 3; };
  // Rows 16 / TILES apart are stored alike, so that a lane's addresses differ by a constant.
  const int row_out = lane / (2 * TILES), unit_out = lane % (2 * TILES);
  u32 fetched_at = staged + row_out * C::OUT_ROW + ((unit_out ^ place(row_out)) << 4);
  u32 stored_at[TILES];
#pragma unroll
  for (int m = 0; m < TILES; ++m) {
    stored_at[m] = staged + row_b * C::OUT_ROW + ((m * 2 + lane / 8 % 2 ^ place(row_b)) << 4);
    stay(stored_at[m]);
  }
  stay(fetched_at);
  auto fetch = [&](uint4 (&out)[TILES], int parity) {
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
      out[i] = load128(fetched_at + parity * 16 * C::OUT_ROW + i * 16 / TILES * C::OUT_ROW);
    }
  };
  bfloat* y_at = y + lane / (2 * TILES) * y_step + lane % (2 * TILES) * 8;
  auto write = [&](const uint4 (&out)[TILES], int n) {
    constexpr int ROWS = 16 / TILES;  // to a round
    if (n >= w.silent && has_column(p, w.column + team * 16 * TILES + lane % (2 * TILES) * 8))
#pragma unroll
      for (int i = 0; i < TILES; ++i)
        if (n * 16 + i * ROWS + lane / (2 * TILES) < steps)
          store_global128(y_at + i * ROWS * y_step, out[i]);
    y_at += 16 * y_step;
  };

  // y of a chunk from the state, and the state after it where `update`.
  auto through_state = [&](u32 slot, float (&out)[TILES][2][4], const bool update) {
#pragma unroll
    for (int i = 0; i < PIECES; ++i) {
      u32 q[RIGHT][4], k[RIGHT][4];
#pragma unroll
      for (int plane = 0; plane < RIGHT; ++plane) {
        const u32 from = slot + i / 4 * C::PANEL + plane * C::PLANE;
        load_transposed(k[plane], from + key_at[i % 4]);
        if (Q_EARLY)
#pragma unroll
          for (int x = 0; x < 4; ++x) q[plane][x] = queries[Q_EARLY ? i : 0][x];
        else if (!C::ENDS) load_matrices(q[plane], from + query_at[i % 4]);
      }
      const float2 d0 = decay(slot, i, 0), d1 = decay(slot, i, 1);
#pragma unroll
      for (int m = 0; m < TILES; ++m) {
        float(&x)[4] = f.s[m][2 * i];
        float(&z)[4] = f.s[m][2 * i + 1];
        if (!C::ENDS) {
          const u32 a[4] = {pack(x[0], x[1]), pack(x[2], x[3]), pack(z[0], z[1]), pack(z[2], z[3])};
#pragma unroll
          for (int plane = 0; plane < RIGHT; ++plane) {
            multiply(out[m][0], a, q[plane][0], q[plane][1]);
            multiply(out[m][1], a, q[plane][2], q[plane][3]);
          }
        }
        if (update) {
          x[0] *= d0.x, x[1] *= d0.y, x[2] *= d0.x, x[3] *= d0.y;
          z[0] *= d1.x, z[1] *= d1.y, z[2] *= d1.x, z[3] *= d1.y;
#pragma unroll
          for (int plane = 0; plane < RIGHT; ++plane) {
            multiply(x, values[m], k[plane][0], k[plane][1]);
            multiply(z, values[m], k[plane][2], k[plane][3]);
          }
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
    if (!C::ENDS && unsafe < ALL_SAFE) hide_values();
    if (!C::ENDS && half_of_rows == C::HALVES - 1)
#pragma unroll
      for (int m = 0; m < TILES; ++m) {
#pragma unroll
        for (int plane = SUMMED - 1; plane >= 0; --plane) {
          multiply8(out[m][0], values[m][0], values[m][1], A[plane].x);
          multiply(out[m][1], values[m], A[plane].y, A[plane].z);
        }
      }
    if (unsafe >= ALL_SAFE) through_state(slot, out, true);
    else {
      through_state(slot, out, false);
      // Copies, because what a function is given by reference cannot stay in registers.
      Fragments<C> copy = f;
      const Arguments<C> p_copy = p;
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
          out[m][half][x] = walked[m][half][x];
        }
    }
    arrive(empty + 8 * slot_of_chunk);
    if (++slot_of_chunk == C::SLOTS) slot_of_chunk = 0;
    if (C::ENDS) {
      if (n + 1 < w.chunks) next(n + 1);
      continue;
    }
    if (C::HALVES > 1) {  // the last half hands its part of y to the first
      const u32 at = sums + (n & 1) * TILES * 1024;
      const u32 phase_of_sums = n >> 1 & 1;
      if (!writes) {
        barrier_wait(sums_empty + 8 * (n & 1), phase_of_sums ^ 1);
#pragma unroll
        for (int m = 0; m < TILES; ++m)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const float(&o)[4] = out[m][half];
            store128(at + (m * 2 + half) * 512, __float_as_uint(o[0]), __float_as_uint(o[1]),
                     __float_as_uint(o[2]), __float_as_uint(o[3]));
          }
        arrive(sums_full + 8 * (n & 1));
        if (n + 1 < w.chunks) next(n + 1);
        continue;
      }
      if (n + 1 < w.chunks) next(n + 1);
      barrier_wait(sums_full + 8 * (n & 1), phase_of_sums);
#pragma unroll
      for (int m = 0; m < TILES; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint4 other = load128(at + (m * 2 + half) * 512);
          out[m][half][0] += __uint_as_float(other.x), out[m][half][1] += __uint_as_float(other.y);
          out[m][half][2] += __uint_as_float(other.z), out[m][half][3] += __uint_as_float(other.w);
        }
      arrive(sums_empty + 8 * (n & 1));
    }
    uint4 before[TILES];
    if (n > 0) fetch(before, (n - 1) & 1);
    u32 packed[TILES][4];
#pragma unroll
    for (int m = 0; m < TILES; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float(&o)[4] = out[m][half];
        packed[m][2 * half] = pack(p.scale * o[0], p.scale * o[1]);
        packed[m][2 * half + 1] = pack(p.scale * o[2], p.scale * o[3]);
      }
      store_transposed(stored_at[m] + (n & 1) * 16 * C::OUT_ROW, packed[m]);
    }
    if (C::HALVES == 1 && n + 1 < w.chunks) next(n + 1);
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
      float4* const ends = p.ends + (at * (all_columns(p) / 16) + tile) * (C::K / 8 * 32) +
                           half_of_rows * (C::ROWS / 8 * 32) + lane;
#pragma unroll
      for (int j = 0; j < C::ROWS / 8; ++j) {
        const float(&x)[4] = f.s[m][j];
        store_global128(ends + j * 32, make_uint4(__float_as_uint(x[0]), __float_as_uint(x[1]),
                                                  __float_as_uint(x[2]), __float_as_uint(x[3])));
      }
    }
  } else if (p.last != nullptr && w.first + w.chunks * 16 >= w.T) {
#pragma unroll
    for (int m = 0; m < TILES; ++m)
#pragma unroll
      for (int j = 0; j < C::ROWS / 8; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (has_element(p, w, m, j, e)) p.last[state_at<C>(w, s.last, m, j, e)] = f.s[m][j][e];
  }
}
