// The states that gradients in chunks start from, in two launches. `ends`: for every chunk of 64
// steps what it adds to the state, sum_t (k_t times the gates after t) v_t^T, and to the gradient by
// the state before it, sum_t (scale q_t times the gates up to t) dy_t^T. `scan` turns these, in place,
// into the state before each chunk and the gradient by the state after it (times the gates that
// follow).

#include "backward_chunks.cuh"

// A block takes a chunk and 64 rows of the state.
template <class Gate, int GATES>
__global__ void __launch_bounds__(128, 4)
    ends(const bfloat* q, const bfloat* k, const bfloat* v, const bfloat* dy, const Gate* gate,
         const Gate* gate_head, bfloat* states, bfloat* gradients, float* decays, int* unsafe,
         int T, int H, int rows, int columns, int row_group, int column_group, float scale,
         const __grid_constant__ Layout s) {
  extern __shared__ __align__(128) char memory[];
  const Sizes z{T, H, rows, columns, row_group, column_group, scale};
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row_tiles = rows / 64;
  const Place w = place_of(z, row_tiles);
  const int row_tile = w.piece;
  const u32 keys = shared_address(memory), queries = keys + TILE, stages = queries + TILE;
  const u32 blocks = stages + 4 * TILE + lane * 8;  // gates of blocks of steps
  const int64 column_head = w.h / column_group;
  const bfloat* const v_at = v + w.b * s.v[0] + w.first * s.v[1] + column_head * s.v[2];
  const bfloat* const dy_at = dy + w.b * s.dy[0] + w.first * s.dy[1] + column_head * s.dy[2];
  auto fetch = [&](int tile) {
    const u32 stage = stages + tile % 2 * 2 * TILE;
    copy_16(stage, warp * 16, v_at + tile * 64, s.v[1], w.valid, lane);
    copy_16(stage + TILE, warp * 16, dy_at + tile * 64, s.dy[1], w.valid, lane);
    commit_copies();
  };
  fetch(0);

  Steps<16> x;
  const int row = row_tile * 64 + lane * 2;
  load_steps<Gate, GATES>(x, q, k, gate, gate_head, z, s, w, warp * 16, row);
  float top = 0.0f;
#pragma unroll
  for (int t = 0; t < 16; ++t) top = larger(larger(top, x.g[t].x), x.g[t].y);
  if (GATES && !(top <= MOST_GATE)) atomicOr(unsafe + w.chain, 1);
  store64(blocks + warp * 256, product(x.g));
  __syncthreads();
  float2 before = make_float2(1.0f, 1.0f), after = before;
#pragma unroll
  for (int i = 0; i < BLOCKS; ++i) {
    if (i < warp) before = before * load64(blocks + i * 256);
    if (i > warp) after = after * load64(blocks + i * 256);
  }
#pragma unroll
  for (int t = 0; t < 16; ++t) {
    before = before * x.g[t];
    store32(queries + unit_of(warp * 16 + t, lane / 4) + lane % 4 * 4, pack(times(unpack(x.q[t]) * before, scale)));
  }
#pragma unroll
  for (int t = 15; t >= 0; --t) {
    store32(keys + unit_of(warp * 16 + t, lane / 4) + lane % 4 * 4, pack(unpack(x.k[t]) * after));
    after = after * x.g[t];
  }
  const int64 state = static_cast<int64>(w.chain) * gridDim.x + w.chunk;
  if (warp == BLOCKS - 1) *reinterpret_cast<float2*>(decays + state * rows + row) = before;
  __syncthreads();

  u32 key[4][4], query[4][4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    left_transposed(key[i], keys, i * 16, warp * 2, lane);
    left_transposed(query[i], queries, i * 16, warp * 2, lane);
  }
  const int tiles = columns / 64;
  for (int tile = 0; tile < tiles; ++tile) {
    if (tile + 1 < tiles) {
      fetch(tile + 1);
      wait_copies<1>();
    } else {
      wait_copies<0>();
    }
    __syncthreads();
    const u32 stage = stages + tile % 2 * 2 * TILE;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float a[2][4] = {}, b[2][4] = {};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        u32 r[4], e[4];
        right_transposed(r, stage, i * 16, j * 2, lane);
        right_transposed(e, stage + TILE, i * 16, j * 2, lane);
        multiply(a[0], key[i], r[0], r[1]), multiply(a[1], key[i], r[2], r[3]);
        multiply(b[0], query[i], e[0], e[1]), multiply(b[1], query[i], e[2], e[3]);
      }
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int64 to = state_tile(state, rows, columns, row_tile * 8 + warp * 2 + half,
                                      tile * 8 + j * 2 + n) + lane * 2;
          *reinterpret_cast<u32*>(states + to) = pack(a[n][2 * half], a[n][2 * half + 1]);
          *reinterpret_cast<u32*>(gradients + to) = pack(b[n][2 * half], b[n][2 * half + 1]);
        }
    }
    __syncthreads();
  }
}

// Within the range of bfloat16: what left it may meet zeros, which have to stay zero.
__device__ __forceinline__ float in_range(float x) {
  return fabsf(x) > MOST ? copysignf(MOST, x) : x;
}

// A thread takes 8 columns of a row through the chunks; of twice as many blocks as states fill, the
// later half takes gradients, from the last chunk back.
__global__ void __launch_bounds__(256)
    scan(const float* initial, const float* last, uint4* states, uint4* gradients,
         const float* decays, float* d_initial, int T, int H, int rows, int columns,
         const __grid_constant__ Layout s) {
  constexpr int AHEAD = 4;
  const int units = rows * columns / 8, pieces = units / 256;
  const bool back = blockIdx.x >= gridDim.x / 2;
  const int block = back ? blockIdx.x - gridDim.x / 2 : blockIdx.x;
  const int chain = block / pieces, unit = block % pieces * 256 + threadIdx.x;
  const int64 n = chain / H, h = chain % H;
  const int tile = unit / 8, row = tile / (columns / 8) * 8 + unit % 8;
  const int column = tile % (columns / 8) * 8;
  const int chunks = (T + CHUNK - 1) / CHUNK;
  uint4* const at = (back ? gradients : states) + static_cast<int64>(chain) * chunks * units + unit;
  const float* const decay_at = decays + static_cast<int64>(chain) * chunks * rows + row;
  const float* const from = back ? last : initial;
  const int64(&f)[4] = back ? s.last : s.initial;
  float x[8];
#pragma unroll
  for (int e = 0; e < 8; ++e)
    x[e] = from == nullptr ? 0.0f : from[n * f[0] + h * f[1] + row * f[2] + (column + e) * f[3]];
  for (int c0 = 0; c0 < chunks; c0 += AHEAD) {
    uint4 ends[AHEAD];
    float decay[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      const int64 c = back ? chunks - 1 - c0 - i : c0 + i;
      if (c0 + i < chunks) ends[i] = at[c * units], decay[i] = decay_at[c * rows];
    }
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      if (c0 + i >= chunks) break;
      const int64 c = back ? chunks - 1 - c0 - i : c0 + i;
      store_global128(at + c * units, make_uint4(pack(x[0], x[1]), pack(x[2], x[3]),
                                                 pack(x[4], x[5]), pack(x[6], x[7])));
      const u32 end[4] = {ends[i].x, ends[i].y, ends[i].z, ends[i].w};
#pragma unroll
      for (int e = 0; e < 8; ++e)
        x[e] = in_range(fmaf(decay[i], x[e], e % 2 ? high(end[e / 2]) : low(end[e / 2])));
    }
  }
  if (!back || d_initial == nullptr) return;
#pragma unroll
  for (int e = 0; e < 8; ++e)
    d_initial[n * s.d_initial[0] + h * s.d_initial[1] + row * s.d_initial[2] +
              (column + e) * s.d_initial[3]] = x[e];
}
