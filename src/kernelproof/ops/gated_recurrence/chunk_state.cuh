// The state of chunked.cu in registers: where its elements lie, how a chunk goes through it step by
// step, and gates of columns in fragments.

#pragma once

#include "chunks.cuh"

// Columns of the state are rows of the accumulators: of tile m, lane / 4 and 8 more. Rows of the
// state are columns: of fragment j, 8 j + lane % 4 * 2 and the next.
// Warps of a team hold the same columns, each its part of the rows.
template <class C>
__device__ __forceinline__ int team_of() {
  return C::HALVES == 1 ? threadIdx.x / 32 : threadIdx.x / 32 % C::TEAMS;
}
template <class C>
__device__ __forceinline__ int half_of() {
  return C::HALVES == 1 ? 0 : threadIdx.x / 32 / C::TEAMS;
}

template <class C>
struct Fragments {
  float s[C::TILES][C::ROWS / 8][4];
};

// One chunk step by step in float, from global memory. y of steps from `unsafe` on goes to `out`,
// which lies as a product's accumulators do: [tile][half of the chunk][element].
template <class C>
__device__ __noinline__ void walk(const Arguments<C>& p, const Layout& s, const Work& w, int n,
                                  int unsafe, Fragments<C>& f, float (&out)[C::TILES][2][4]) {
  typedef typename C::Gate Gate;
  typedef typename C::Element Element;
  const int lane = threadIdx.x % 32;
  const int64 key_head = w.h / p.group, batch = w.b;
  const int column = w.column + team_of<C>() * 16 * C::TILES + lane / 4;
  const int row = half_of<C>() * C::ROWS + lane % 4 * 2;
#pragma unroll 1
  for (int u = 0; u < 16; ++u) {
    const int64 t = w.first + n * 16 + u;
    if (t >= w.T) break;
    const Element* const q = p.q + batch * s.q[0] + t * s.q[1] + key_head * s.q[2] + row;
    const Element* const k = p.k + batch * s.k[0] + t * s.k[1] + key_head * s.k[2] + row;
    const Element* const v = p.v + batch * s.v[0] + t * s.v[1] + w.h * s.v[2] + column;
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
        const bool there = has_column(p, column + m * 16 + r * 8);
        value[m][r] = there ? to_float(v[m * 16 + r * 8]) : 0.0f;
        gate[m][r] = C::VALUE && there ? to_float(gv[m * 16 + r * 8]) : 1.0f;
        if (C::HEAD && !C::KEY) gate[m][r] = C::VALUE ? joined(gate[m][r], head) : head;
        sum[m][r] = 0.0f;
      }
#pragma unroll
    for (int j = 0; j < C::ROWS / 8; ++j)
#pragma unroll
      for (int x = 0; x < 2; ++x) {
        if (!has_row(p, row + j * 8 + x)) continue;
        const float key = to_float(k[j * 8 + x]);
        float key_gate = C::KEY ? to_float(gk[j * 8 + x]) : 1.0f;
        if (C::KEY && C::HEAD) key_gate = joined(key_gate, head);
        const float query = C::ENDS ? 0.0f : to_float(q[j * 8 + x]);
#pragma unroll
        for (int m = 0; m < C::TILES; ++m)
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            float& now = f.s[m][j][2 * r + x];
            const float both = C::KEY && C::VALUE ? joined(key_gate, gate[m][r])
                                                       : C::KEY ? key_gate : gate[m][r];
            now = fmaf(both, now, key * value[m][r]);
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

// Adds v of 16 steps times k, plane by plane, to rows of the state; there after a wait.
template <class C, int N>
__device__ __forceinline__ void add_steps(float (&to)[N][4], const u32 (&v)[C::LEFT][4], u64 k) {
#pragma unroll
  for (int sum = C::TERMS - 1; sum >= 0; --sum)
#pragma unroll
    for (int plane = 0; plane < C::LEFT; ++plane)
      if (sum >= plane && sum - plane < C::RIGHT)
        product_of_steps(to, v[plane], k + ((sum - plane) * C::PLANE >> 4));
}

// What the gates of columns make of a chunk's v and y, in fragments. Times are columns, pairs of
// them to a lane, so that products over time take shuffles among 4 lanes.
template <class C>
struct ColumnGates {
  u32 v[C::TILES][C::LEFT][4];  // v times the gates after its step
  float y[C::TILES][2][4];   // y from the same half of the chunk, but for its last level
  float to[C::TILES][2][4];  // gates from the start of the half to the step
  float cross[C::TILES][4];  // of the second half, from the first half of the chunk
  float first[C::TILES][2], all[C::TILES][2];  // gates of the first half, of the chunk

  // `g`: [tile][half][row][x]; `A` as `prepare` leaves it; `masks`: levels of the lane's (t, s).
  __device__ __forceinline__ void make(const u32 (&raw)[C::TILES][C::LEFT][4],
                                       const float (&g)[C::TILES][2][2][2],
                                       const uint4 (&A)[C::SUMMED], const u32 (&masks)[4], int lane) {
    constexpr int TERMS = C::TERMS, LEFT = C::LEFT, SUMMED = C::SUMMED;
    constexpr bool APART = C::APART;
    const int c = lane % 4;
#pragma unroll
    for (int m = 0; m < C::TILES; ++m) {
      float g8[2][2], w0[2], w1[2], up2[2][4], up4[2][4];
      u32 v2[LEFT][4], v4[LEFT][4], v8[LEFT][4];
      auto put = [](u32 (&to)[LEFT][4], int i, float2 x) {
#pragma unroll
        for (int plane = 0; plane < LEFT; ++plane) to[plane][i] = next_plane(x);
      };
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
          float x0 = 0.0f, x1 = 0.0f;
#pragma unroll
          for (int plane = LEFT - 1; plane >= 0; --plane)
            x0 += low(raw[m][plane][i]), x1 += high(raw[m][plane][i]);
          x0 *= b;
          put(v8, i, make_float2(x0 * after8, x1 * after8));
          if (half == 0) w0[r] = x0 * after8, w1[r] = x1 * after8;
          if (!C::ENDS) {
            put(v2, i, make_float2(x0, x1));
            put(v4, i, make_float2(x0 * after4, x1 * after4));
            up2[half][2 * r] = a, up2[half][2 * r + 1] = g2;
            up4[half][2 * r] = before4 * a, up4[half][2 * r + 1] = before4 * g2;
            to[m][half][2 * r] = before8 * a, to[m][half][2 * r + 1] = before8 * g2;
          }
        }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        put(v[m], r, make_float2(w0[r] * g8[1][r], w1[r] * g8[1][r]));
#pragma unroll
        for (int plane = 0; plane < LEFT; ++plane) v[m][plane][2 + r] = v8[plane][2 + r];
        first[m][r] = g8[0][r], all[m][r] = g8[0][r] * g8[1][r];
      }
      if (C::ENDS) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        u32 mine[SUMMED];
#pragma unroll
        for (int plane = 0; plane < SUMMED; ++plane) mine[plane] = half ? A[plane].z : A[plane].x;
        float near[4] = {}, y2[4] = {}, y4[4] = {}, fine[3][4] = {};
        float(&near_rest)[4] = APART ? fine[0] : near, (&y2_rest)[4] = APART ? fine[1] : y2;
        float(&y4_rest)[4] = APART ? fine[2] : y4;
        multiply_planes8<TERMS, LEFT, SUMMED>(near, near_rest, raw[m], 2 * half, mine, masks[0]);
        multiply_planes8<TERMS, LEFT, SUMMED>(y2, y2_rest, v2, 2 * half, mine, masks[2]);
        multiply_planes8<TERMS, LEFT, SUMMED>(y4, y4_rest, v4, 2 * half, mine, masks[3]);
        multiply_planes8<TERMS, LEFT, SUMMED>(near, near_rest, v2, 2 * half, mine, masks[1]);
#pragma unroll
        for (int x = 0; x < 4; ++x) {
          if (APART) near[x] += fine[0][x], y2[x] += fine[1][x], y4[x] += fine[2][x];
          y[m][half][x] = fmaf(up4[half][x], y4[x], fmaf(up2[half][x], y2[x], near[x]));
        }
      }
#pragma unroll
      for (int x = 0; x < 4; ++x) cross[m][x] = 0.0f;
      u32 across[SUMMED];
#pragma unroll
      for (int plane = 0; plane < SUMMED; ++plane) across[plane] = A[plane].y;
      float fine[4] = {};
      multiply_planes8<TERMS, LEFT, SUMMED>(cross[m], APART ? fine : cross[m], v8, 0, across, ~0u);
      if (APART)
#pragma unroll
        for (int x = 0; x < 4; ++x) cross[m][x] += fine[x];
    }
  }
};

// An element of a state (N, H, K, V): its row and its column, its address, and whether there is such.
template <class C>
__device__ __forceinline__ int row_of(int j, int e) {
  return half_of<C>() * C::ROWS + j * 8 + threadIdx.x % 4 * 2 + e % 2;
}
template <class C>
__device__ __forceinline__ int column_of(const Work& w, int m, int e) {
  return w.column + (team_of<C>() * C::TILES + m) * 16 + threadIdx.x % 32 / 4 + e / 2 * 8;
}
template <class C>
__device__ __forceinline__ int64 state_at(const Work& w, const int64 (&s)[4], int m, int j, int e) {
  return static_cast<int64>(w.n) * s[0] + w.h * s[1] + row_of<C>(j, e) * s[2] + column_of<C>(w, m, e) * s[3];
}
template <class C>
__device__ __forceinline__ bool has_element(const Arguments<C>& p, const Work& w, int m, int j, int e) {
  return has_row(p, row_of<C>(j, e)) && has_column(p, column_of<C>(w, m, e));
}

// The state at the start of the block's first segment.
template <class C>
__device__ __forceinline__ void first_state(const Arguments<C>& p, const Layout& s, const Work& w,
                                            Fragments<C>& f) {
  const int lane = threadIdx.x % 32, team = team_of<C>();
  const int piece = half_of<C>() * (C::ROWS / 8);
#pragma unroll
  for (int m = 0; m < C::TILES; ++m)
#pragma unroll
    for (int j = 0; j < C::ROWS / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        f.s[m][j][e] = C::ENDS || p.initial == nullptr || !has_element(p, w, m, j, e)
                           ? 0.0f
                           : p.initial[state_at<C>(w, s.initial, m, j, e)];
  if (C::ENDS) return;
  for (int i = 0; i < w.segment; ++i) {
    const int64 at = static_cast<int64>(w.chain) * (p.segments - 1) + i;
    const float* const decays = p.decays + at * width<C>(p);
#pragma unroll
    for (int m = 0; m < C::TILES; ++m) {
      const int tile = w.column / 16 + team * C::TILES + m;
      const float4* const ends =
          p.ends + (at * (all_columns(p) / 16) + tile) * (C::K / 8 * 32) + piece * 32 + lane;
      float column[2] = {1.0f, 1.0f};
      if (C::VALUE || !C::KEY)
        column[0] = decays[C::ROW_DECAYS + tile * 16 + lane / 4],
        column[1] = decays[C::ROW_DECAYS + tile * 16 + lane / 4 + 8];
#pragma unroll
      for (int j = 0; j < C::ROWS / 8; ++j) {
        const float4 end = ends[j * 32];
        float2 row = make_float2(1.0f, 1.0f);
        if (C::KEY) row = *reinterpret_cast<const float2*>(decays + (piece + j) * 8 + lane % 4 * 2);
        float(&x)[4] = f.s[m][j];
        x[0] = fmaf(x[0], row.x * column[0], end.x);
        x[1] = fmaf(x[1], row.y * column[0], end.y);
        x[2] = fmaf(x[2], row.x * column[1], end.z);
        x[3] = fmaf(x[3], row.y * column[1], end.w);
      }
    }
  }
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
