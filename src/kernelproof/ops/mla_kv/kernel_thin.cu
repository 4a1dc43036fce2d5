// A rank of at most 64 and weights that fit into shared memory, 16-bit: both products in one launch.
//
// A block has 16 tokens. It asks for them, and for all weights, at the start. Its warps share the model
// axis of the first product and the columns of the second.

#include "common.cuh"
#include "hopper.cuh"

constexpr int kTokens = 16, kWarps = 8, kThreads = 32 * kWarps, kColumns = 128;
constexpr int kStagedBytes = kTokens * kColumns * 2;  // of a warp: results on their way out

__device__ __forceinline__ void copy_piece(unsigned to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(there ? 16 : 0)
               : "memory");
}

__device__ __forceinline__ void load_turned(unsigned (&b)[4], unsigned from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
               : "r"(from)
               : "memory");
}

#define KERNELPROOF_MULTIPLY(TYPE, VALUE) \
  __device__ __forceinline__ void multiply(float* c, unsigned a0, unsigned a1, unsigned a2, \
                                           unsigned a3, unsigned b0, unsigned b1, VALUE) { \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE \
                 ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) \
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1)); \
  } \
  __device__ __forceinline__ void multiply(float* c, unsigned a0, unsigned a1, unsigned b0, VALUE) { \
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32." TYPE "." TYPE \
                 ".f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};" \
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) \
                 : "r"(a0), "r"(a1), "r"(b0)); \
  }
KERNELPROOF_MULTIPLY("f16", __half)
KERNELPROOF_MULTIPLY("bf16", __nv_bfloat16)
#undef KERNELPROOF_MULTIPLY

// Bytes of shared memory: w_down, eight rows and 32 bytes that spread them over the banks; both
// up-weights by rows, the columns of a side padded to a multiple of 128 and 8 more; sums of the warps;
// latents; results.
template <int MODEL, int RANK>
struct ThinShape {
  static_assert(RANK % 8 == 0 && RANK <= 64, "a lane sums two latents of a token");
  static constexpr int groups = ceil_div(MODEL, 32), each = ceil_div(groups, kWarps);
  static constexpr int eight_rows = 8 * RANK * 2 + 32;
  static constexpr int down_bytes = each * kWarps * 4 * eight_rows;
  static constexpr int partial_bytes = kWarps * kTokens * RANK * 4;
  static constexpr int latent_pitch = RANK * 2 + 16;
};

// All strides are such that 16 bytes are one access. Weights lie along their columns.
template <typename T, int MODEL, int RANK, bool NORM>
__global__ void __launch_bounds__(kThreads, 1)
    mla_kv_thin(const T* hidden, const T* w_down, const T* w_up_k, const T* w_up_v,
                const T* norm_weight, const T* k_pe, T* out0, T* out1,
                const __grid_constant__ Sizes a, int64 down_row, float epsilon) {
  typedef ThinShape<MODEL, RANK> S;
  extern __shared__ __align__(16) unsigned char memory[];
  const unsigned down = shared_offset(memory), up = down + S::down_bytes;
  const int pitch0 = (a.tiles0 * kColumns + 8) * 2, pitch1 = (a.tiles1 * kColumns + 8) * 2;
  unsigned char* const rest = memory + S::down_bytes + RANK * (pitch0 + pitch1);
  float* const partial = reinterpret_cast<float*>(rest);
  unsigned char* const latents = rest + S::partial_bytes;
  const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32, g = lane / 4, t = lane % 4;
  const unsigned staged =
      shared_offset(latents) + kTokens * S::latent_pitch + warp * kStagedBytes;
  const int64 first = static_cast<int64>(blockIdx.x) * kTokens;
  const int count = static_cast<int>(min(static_cast<int64>(kTokens), a.tokens - first));
  wait_for_previous_kernel();
  let_next_kernel_start();

  // Lane (g, t) takes values 8t .. 8t + 7 of 32 of tokens g and g + 8.
  uint4 x[S::each][2];
#pragma unroll
  for (int j = 0; j < S::each; ++j)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int k = (warp * S::each + j) * 32 + 8 * t, token = g + 8 * i;
      x[j][i] = make_uint4(0, 0, 0, 0);
      if (k < MODEL && token < count)
        x[j][i] = *reinterpret_cast<const uint4*>(
            hidden + token_start(first + token, a.inner, a.outer_stride, a.inner_stride) + k);
    }
  constexpr int pieces = RANK / 8;
#pragma unroll
  for (int i = 0; i < S::each * pieces; ++i) {
    const int at = i * 32 + lane, row = warp * S::each * 32 + at / pieces, piece = at % pieces;
    const bool there = row < MODEL;
    copy_piece(down + row / 8 * S::eight_rows + row % 8 * (RANK * 2) + piece * 16,
               w_down + (there ? row * down_row + piece * 8 : 0), there);
  }
  asm volatile("cp.async.commit_group;" ::: "memory");
#pragma unroll
  for (int s = 0; s < 2; ++s) {
    const Side& side = a.side[s];
    const T* const from = s ? w_up_v : w_up_k;
    const int width = (s ? a.tiles1 : a.tiles0) * (kColumns / 8);
    const unsigned to = up + s * RANK * pitch0;
    for (int i = tid; i < RANK * width; i += kThreads) {
      const int row = i / width, n = i % width * 8;
      const bool there = n < side.columns;
      copy_piece(to + row * (s ? pitch1 : pitch0) + n * 2,
                 from + (there ? row * side.row + weight_column(side, n) : 0), there);
    }
  }
  asm volatile("cp.async.commit_group;\n\tcp.async.wait_group 1;" ::: "memory");
  __syncwarp();

  {
    float sum[pieces][4] = {};
    // Row r of the matrices i is row 8 (r / 2) + r % 2 + 2 i of 32: as the values of tokens lie.
    const int row = lane % 8 / 2 * 8 + lane % 2 + lane / 8 * 2;
#pragma unroll
    for (int j = 0; j < S::each; ++j)
#pragma unroll
      for (int n = 0; n < pieces; ++n) {
        unsigned b[4];
        const int k = (warp * S::each + j) * 32 + row;
        load_turned(b, down + k / 8 * S::eight_rows + k % 8 * (RANK * 2) + n * 16);
        multiply(sum[n], x[j][0].x, x[j][1].x, x[j][0].y, x[j][1].y, b[0], b[1], T());
        multiply(sum[n], x[j][0].z, x[j][1].z, x[j][0].w, x[j][1].w, b[2], b[3], T());
      }
#pragma unroll
    for (int n = 0; n < pieces; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        *reinterpret_cast<float2*>(partial + (warp * kTokens + g + 8 * i) * RANK + n * 8 + 2 * t) =
            make_float2(sum[n][2 * i], sum[n][2 * i + 1]);
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kTokens / kWarps; ++i) {
    const int token = warp * (kTokens / kWarps) + i;
    float v[2] = {0.0f, 0.0f};
#pragma unroll
    for (int j = 0; j < 2; ++j)
      if (lane + 32 * j < RANK)
#pragma unroll
        for (int w = 0; w < kWarps; ++w)
          v[j] += partial[(w * kTokens + token) * RANK + lane + 32 * j];
    if constexpr (NORM) {
      float square = v[0] * v[0] + v[1] * v[1];
#pragma unroll
      for (int d = 16; d > 0; d /= 2) square += __shfl_xor_sync(~0u, square, d);
      const float scale = 1.0f / sqrtf(square / RANK + epsilon);
#pragma unroll
      for (int j = 0; j < 2; ++j)
        if (lane + 32 * j < RANK) v[j] *= scale * widen(norm_weight[lane + 32 * j]);
    }
#pragma unroll
    for (int j = 0; j < 2; ++j)
      if (lane + 32 * j < RANK)
        narrow(v[j], reinterpret_cast<T*>(latents + token * S::latent_pitch)[lane + 32 * j]);
  }
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  __syncthreads();

  unsigned lat[ceil_div(RANK, 16)][4];
#pragma unroll
  for (int s = 0; s < ceil_div(RANK, 16); ++s)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (16 * s + i / 2 * 8 < RANK)
        lat[s][i] = *reinterpret_cast<const unsigned*>(latents + (g + i % 2 * 8) * S::latent_pitch +
                                                       (16 * s + i / 2 * 8 + 2 * t) * 2);
  for (int c = warp; c < a.tiles0 + a.tiles1; c += kWarps) {
    const bool second = c >= a.tiles0;
    const Side& side = a.side[second];
    const int n0 = (second ? c - a.tiles0 : c) * kColumns, pitch = second ? pitch1 : pitch0;
    const unsigned from = up + (second ? RANK * pitch0 : 0) + n0 * 2;
    float d[kColumns / 2] = {};
#pragma unroll
    for (int s = 0; s < RANK / 16; ++s)
#pragma unroll
      for (int n = 0; n < kColumns / 16; ++n) {
        unsigned b[4];
        load_turned(b, from + (16 * s + lane % 16) * pitch + (16 * n + lane / 16 * 8) * 2);
        multiply(d + 8 * n, lat[s][0], lat[s][1], lat[s][2], lat[s][3], b[0], b[1], T());
        multiply(d + 8 * n + 4, lat[s][0], lat[s][1], lat[s][2], lat[s][3], b[2], b[3], T());
      }
    if constexpr (RANK % 16 != 0) {
      constexpr int s = RANK / 16;
#pragma unroll
      for (int n = 0; n < kColumns / 32; ++n) {
        unsigned b[4];
        load_turned(b, from + (16 * s + lane % 8) * pitch + (32 * n + lane / 8 * 8) * 2);
#pragma unroll
        for (int i = 0; i < 4; ++i)
          multiply(d + 16 * n + 4 * i, lat[s][0], lat[s][1], b[i], T());
      }
    }
    const int n = n0 + own_columns<kColumns>();
    const bool inside = n < side.columns;
    T* const to = (second ? out1 : out0) + (inside ? out_column(side, n) : 0);
    write_tokens<kColumns>(staged, d, 0, to + first * side.out_token, side.out_token, count, inside);
    if (!second) append_rope(a, k_pe, out0, first, count, n0, kColumns, lane, 32);
  }
}
