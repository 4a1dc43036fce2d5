// At most 16 tokens in float32: both products in one launch, every weight read once.
//
// A block has 64 columns of w_down over a share of the model axis, and then 32 columns of w_up over the
// whole rank. It asks for the weights of both at the start and keeps them in registers. The shares of
// the latents meet by way of memory: the blocks that have the same columns add one token each, and
// every block collects the sums.

#include "common.cuh"
#include "exchange.cuh"

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kDownColumns = 64, kUpColumns = 32;
constexpr int kDownQuads = kDownColumns / 4, kUpQuads = kUpColumns / 4;
constexpr int kDownLines = kThreads / kDownQuads, kUpLines = kThreads / kUpQuads;

__device__ __forceinline__ float4 load_weights(const float* from, bool there) {
  float4 v = make_float4(0, 0, 0, 0);
  if (there)
    asm volatile("ld.global.nc.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(from));
  return v;
}

__device__ __forceinline__ void add_product(float (&sum)[4], float x, float4 w) {
  sum[0] += x * w.x, sum[1] += x * w.y, sum[2] += x * w.z, sum[3] += x * w.w;
}

// TOKENS: at least as many as there are, a power of two. SPLITS: shares of the model axis; the grid has
// RANK / 64 blocks for each. `exchange`: words, kHeaderWords, then SPLITS x tokens x RANK of shares,
// then tokens x RANK of sums.
template <int MODEL, int RANK, int SPLITS, int TOKENS, bool NORM>
__global__ void __launch_bounds__(kThreads, 1)
    mla_kv_few(const float* hidden, const float* w_down, const float* w_up_k, const float* w_up_v,
               const float* norm_weight, const float* k_pe, float* out0, float* out1,
               unsigned long long* exchange, const __grid_constant__ Sizes a, int64 down_row,
               float epsilon) {
  static_assert(RANK % kDownColumns == 0, "a block has 64 columns of w_down");
  constexpr int groups = RANK / kDownColumns;
  constexpr int share_rows = ceil_div(MODEL, SPLITS);
  constexpr int down_loads = ceil_div(share_rows, kDownLines), up_loads = ceil_div(RANK, kUpLines);
  constexpr int padded_rows = down_loads * kDownLines;
  constexpr int width = max_of(kDownColumns, kUpColumns);
  // From one row to the next; four more than the tokens spread rows over the banks.
  constexpr int pitch = TOKENS < 4 ? TOKENS : TOKENS + 4;
  // Tokens of the share, [row][token], and later the latents; sums of the warps.
  extern __shared__ __align__(16) float memory[];
  float* const given = memory;
  float* const partial = given + max_of(padded_rows, up_loads * kUpLines) * pitch;
  __shared__ float squares[kWarps];
  __shared__ unsigned call_number;
  const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
  const int tokens = static_cast<int>(a.tokens);
  const int group = blockIdx.x % groups, share = blockIdx.x / groups;
  wait_for_previous_kernel();
  if (tid == 0) call_number = number_of_this_call(exchange);

  const int tiles = a.tiles0 + a.tiles1, up_quad = tid % kUpQuads, up_line = tid / kUpQuads;
  float4 up[up_loads];
  auto load_up = [&](int tile) {
    const bool second = tile >= a.tiles0;
    const Side& side = a.side[second];
    const int n = (second ? tile - a.tiles0 : tile) * kUpColumns + 4 * up_quad;
    const bool inside = tile < tiles && n < side.columns;
    const float* const from = (second ? w_up_v : w_up_k) + (inside ? weight_column(side, n) : 0);
#pragma unroll
    for (int i = 0; i < up_loads; ++i) {
      const int r = up_line + i * kUpLines;
      up[i] = load_weights(from + r * side.row, inside && (RANK % kUpLines == 0 || r < RANK));
    }
  };
  {
    const int quad = tid % kDownQuads, line = tid / kDownQuads;
    const int row0 = share * share_rows;
    const int rows = min(share_rows, MODEL - row0);
    float4 w[down_loads];
    constexpr int values = padded_rows * TOKENS, each = ceil_div(values, kThreads);
    float x[each];
#pragma unroll
    for (int i = 0; i < each; ++i) {
      const int at = tid + i * kThreads, token = at / padded_rows, r = at % padded_rows;
      x[i] = 0.0f;
      if (at < values && token < tokens && r < rows)
        asm volatile("ld.global.f32 %0, [%1];"
                     : "=f"(x[i])
                     : "l"(hidden + token_start(token, a.inner, a.outer_stride, a.inner_stride) +
                           row0 + r));
    }
#pragma unroll
    for (int i = 0; i < down_loads; ++i) {
      const int r = line + i * kDownLines;
      w[i] = load_weights(w_down + (row0 + r) * down_row + group * kDownColumns + 4 * quad, r < rows);
    }
    load_up(blockIdx.x);
#pragma unroll
    for (int i = 0; i < each; ++i) {
      const int at = tid + i * kThreads;
      if (at < values) given[at % padded_rows * pitch + at / padded_rows] = x[i];
    }
    __syncthreads();
    float sum[TOKENS][4] = {};
#pragma unroll
    for (int i = 0; i < down_loads; ++i)
#pragma unroll
      for (int t = 0; t < TOKENS; ++t)
        add_product(sum[t], given[(line + i * kDownLines) * pitch + t], w[i]);
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) {
#pragma unroll
      for (int j = 0; j < 4; ++j) sum[t][j] += __shfl_xor_sync(~0u, sum[t][j], 16);
      if (lane < kDownQuads)
        *reinterpret_cast<float4*>(partial + (warp * TOKENS + t) * width + 4 * quad) =
            make_float4(sum[t][0], sum[t][1], sum[t][2], sum[t][3]);
    }
  }
  __syncthreads();
  let_next_kernel_start();
  const unsigned call = call_number;
  unsigned long long* const shares = exchange + kHeaderWords;
  unsigned long long* const sums = shares + SPLITS * tokens * RANK;
  for (int i = tid; i < tokens * kDownQuads; i += kThreads) {
    const int token = i / kDownQuads, quad = i % kDownQuads;
    float4 total = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int k = 0; k < kWarps; ++k) {
      const float4 v = *reinterpret_cast<const float4*>(partial + (k * TOKENS + token) * width + 4 * quad);
      total.x += v.x, total.y += v.y, total.z += v.z, total.w += v.w;
    }
    send(shares + (share * tokens + token) * RANK + group * kDownColumns + 4 * quad, total, call);
  }

  // One token for a block: 16 threads a quad of columns, each a part of the shares.
  for (int token = share; token < tokens; token += SPLITS) {
    constexpr int rounds = ceil_div(SPLITS, 16);
    const int quad = tid / 16, q = tid % 16;
    Words w[2 * rounds];
    const unsigned long long* from[2 * rounds];
    bool wanted[2 * rounds];
#pragma unroll
    for (int i = 0; i < rounds; ++i) {
      const int s = q + 16 * i;
      from[2 * i] = shares + (s * tokens + token) * RANK + group * kDownColumns + 4 * quad;
      from[2 * i + 1] = from[2 * i] + 2;
      wanted[2 * i] = wanted[2 * i + 1] = SPLITS % 16 == 0 || s < SPLITS;
    }
    receive(w, from, wanted, call);
    float v[4] = {};
#pragma unroll
    for (int i = 0; i < rounds; ++i) {
      if (!wanted[2 * i]) continue;
      const float2 low = values_of(w[2 * i]), high = values_of(w[2 * i + 1]);
      v[0] += low.x, v[1] += low.y, v[2] += high.x, v[3] += high.y;
    }
#pragma unroll
    for (int d = 8; d > 0; d /= 2)
#pragma unroll
      for (int j = 0; j < 4; ++j) v[j] += __shfl_xor_sync(~0u, v[j], d);
    if (q == 0)
      send(sums + token * RANK + group * kDownColumns + 4 * quad, make_float4(v[0], v[1], v[2], v[3]),
           call);
  }
  {
    // All sums, two at a time, [row][token].
    constexpr int pairs = TOKENS * RANK / 2, each = ceil_div(pairs, kThreads);
    constexpr int batch = each < 16 ? each : 16;
#pragma unroll 1
    for (int i0 = 0; i0 < each; i0 += batch) {
      Words w[batch];
      const unsigned long long* from[batch];
      bool wanted[batch];
#pragma unroll
      for (int i = 0; i < batch; ++i) {
        const int pair = (i0 + i) * kThreads + tid;
        from[i] = sums + 2 * pair;
        wanted[i] = pair < tokens * (RANK / 2);
      }
      receive(w, from, wanted, call);
#pragma unroll
      for (int i = 0; i < batch; ++i) {
        const int pair = (i0 + i) * kThreads + tid, token = pair / (RANK / 2), r = pair % (RANK / 2) * 2;
        if (pair >= pairs) continue;
        const float2 v = wanted[i] ? values_of(w[i]) : make_float2(0, 0);
        given[r * pitch + token] = v.x, given[(r + 1) * pitch + token] = v.y;
      }
    }
  }
  __syncthreads();
  // What has come here came from all blocks, which therefore know the number of this call.
  if (tid == 0 && blockIdx.x == 0) count_call(exchange, call);
  if constexpr (NORM) {
    for (int token = 0; token < tokens; ++token) {
      float square = 0.0f;
      for (int r = tid; r < RANK; r += kThreads) square += given[r * pitch + token] * given[r * pitch + token];
#pragma unroll
      for (int d = 16; d > 0; d /= 2) square += __shfl_xor_sync(~0u, square, d);
      if (lane == 0) squares[warp] = square;
      __syncthreads();
      float total = 0.0f;
#pragma unroll
      for (int i = 0; i < kWarps; ++i) total += squares[i];
      const float scale = 1.0f / sqrtf(total / RANK + epsilon);
      for (int r = tid; r < RANK; r += kThreads) given[r * pitch + token] *= scale * norm_weight[r];
      __syncthreads();
    }
  }

  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    if (tile != static_cast<int>(blockIdx.x)) {
      load_up(tile);
      __syncthreads();  // `partial` has been read
    }
    float sum[TOKENS][4] = {};
#pragma unroll
    for (int i = 0; i < up_loads; ++i)
      if (RANK % kUpLines == 0 || up_line + i * kUpLines < RANK)
#pragma unroll
        for (int t = 0; t < TOKENS; ++t)
          add_product(sum[t], given[(up_line + i * kUpLines) * pitch + t], up[i]);
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) {
#pragma unroll
      for (int d = 8; d < 32; d *= 2)
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[t][j] += __shfl_xor_sync(~0u, sum[t][j], d);
      if (lane < kUpQuads)
        *reinterpret_cast<float4*>(partial + (warp * TOKENS + t) * width + 4 * up_quad) =
            make_float4(sum[t][0], sum[t][1], sum[t][2], sum[t][3]);
    }
    __syncthreads();
    const bool second = tile >= a.tiles0;
    const Side& side = a.side[second];
    const int n0 = (second ? tile - a.tiles0 : tile) * kUpColumns;
    for (int i = tid; i < tokens * kUpColumns; i += kThreads) {
      const int token = i / kUpColumns, column = i % kUpColumns;
      float total = 0.0f;
#pragma unroll
      for (int k = 0; k < kWarps; ++k) total += partial[(k * TOKENS + token) * width + column];
      if (n0 + column < side.columns)
        (second ? out1 : out0)[out_column(side, n0 + column) + token * side.out_token] = total;
    }
    if (!second) append_rope(a, k_pe, out0, 0, tokens, n0, kUpColumns, tid, kThreads);
  }
}
