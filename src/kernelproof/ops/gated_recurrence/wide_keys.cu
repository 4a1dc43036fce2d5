// Gates of keys for wide.cu: q and k with their gates, and the products within a chunk, once for all blocks
// that share a head. A block takes a chunk of STEPS steps, a warp 16 steps of it and 64 rows of the state.
//
// Within 16 steps as in levels.cuh. Further levels are products of what those leave: q times the gates
// since the start of its 16 (or 32) steps, and k times those up to the end of its own.

#include "wide.cuh"

// Two elements next to each other, read at once.
__device__ __forceinline__ float2 pair_at(const float* x) { return *reinterpret_cast<const float2*>(x); }
__device__ __forceinline__ float2 pair_at(const half16* x) {
  return unpack_half(*reinterpret_cast<const u32*>(x));
}

template <class Element, class Gate, int GATES, int K, bool PRECISE>
__global__ void __launch_bounds__(Record<Element, K, PRECISE>::STEPS / 16 * K / 2)
    wide_keys(const Element* q, const Element* k, const Gate* gate_k, const Gate* gate_head, char* records, int T,
              int H, int rows, int group, const __grid_constant__ Layout s) {
  typedef Record<Element, K, PRECISE> R;
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  constexpr bool FINE = !same<Element, bfloat>;
  constexpr int PARTS = K / 64, PIECES = R::STEPS / 16, WARPS = PARTS * PIECES, PLANES = R::RIGHT, SUMMED = R::SUMMED;
  constexpr int OWN = FINE ? ADDENDS : 2 * LEVEL, LEVELS = PIECES / 2;  // one level for 32 steps, two for 64
  extern __shared__ __align__(1024) char memory[];
  const u32 shared = shared_address(memory);
  const u32 tiles = shared;  // by level: PARTS panels of planes of STEPS rows
  const u32 decays = shared + LEVELS * R::KEY_TILE, shares = decays + PIECES * K * 4;
  const u32 own = shares + WARPS * 896 + threadIdx.x / 32 * OWN;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, part = warp % PARTS, piece = warp / PARTS;
  const int chunks = (T + R::STEPS - 1) / R::STEPS, chunk = blockIdx.x % chunks, chain = blockIdx.x / chunks;
  const int64 b = chain / H, h = chain % H, key_head = h / group, t0 = chunk * R::STEPS + piece * 16;
  const int valid = T - static_cast<int>(t0), column = part * 64 + lane * 2;
  char* const record = records + (static_cast<int64>(chain) * chunks + chunk) * R::BYTES;
  const Element* const q_at = q + b * s.q[0] + t0 * s.q[1] + key_head * s.q[2] + column;
  const Element* const k_at = k + b * s.k[0] + t0 * s.k[1] + key_head * s.k[2] + column;
  const Gate* const gate_at = gate_k + b * s.gate_k[0] + t0 * s.gate_k[1] + h * s.gate_k[2] + column;
  u32 qr[16], kr[16];  // of bfloat16; of others qs and ks
  float2 qs[16], ks[16];
  float2 g[16];
  float top = 0.0f;
  const float2 nothing = make_float2(0.0f, 0.0f);
  const bool there = column < rows;  // else these rows of the state do not exist, and are zeros
#pragma unroll
  for (int t = 0; t < 16; ++t) {
    if constexpr (FINE) {
      qs[t] = t < valid && there ? pair_at(q_at + t * s.q[1]) : nothing;
      ks[t] = t < valid && there ? pair_at(k_at + t * s.k[1]) : nothing;
    } else {
      qr[t] = t < valid && there ? *reinterpret_cast<const u32*>(q_at + t * s.q[1]) : 0;
      kr[t] = t < valid && there ? *reinterpret_cast<const u32*>(k_at + t * s.k[1]) : 0;
    }
    const Gate* const pair = gate_at + t * s.gate_k[1];
    g[t] = t < valid && there ? make_float2(to_float(pair[0]), to_float(pair[1])) : make_float2(1.0f, 1.0f);
    if ((GATES & 4) && t < valid) {
      const float head = to_float(gate_head[b * s.gate_head[0] + (t0 + t) * s.gate_head[1] + h * s.gate_head[2]]);
      g[t] = make_float2(joined(g[t].x, head), joined(g[t].y, head));
    }
    top = larger(larger(top, g[t].x), g[t].y);
  }
  int unsafe = guard(g, top, R::SAFEST);
  // Products of 16 gates of all pieces, to put together what is before and after this one.
  float2 mine = make_float2(1.0f, 1.0f);
#pragma unroll
  for (int t = 0; t < 16; ++t) mine = mine * g[t];
  store64(decays + (piece * K + column) * 4, mine);
  __syncthreads();
  float2 before = make_float2(1.0f, 1.0f), after = before, beside = before, all = before;
#pragma unroll
  for (int i = 0; i < PIECES; ++i) {
    const float2 x = load64(decays + (i * K + column) * 4);
    all = all * x;
    if (i < piece) before = before * x;
    if (i > piece) after = after * x;
    if (i == (piece ^ 1)) beside = x;  // the other 16 of its 32 steps
  }
  if (piece == 0) *reinterpret_cast<float2*>(record + R::DECAYS + column * 4) = all;
  const float2 one = make_float2(1.0f, 1.0f);
  const float2 q_32 = piece & 1 ? beside : one, k_32 = piece & 1 ? one : beside;

  auto place = [&](int t) { return (piece * 16 + t) * 128 + (lane * 4 ^ (t & 7) << 4); };
  auto put_tile = [&](int level, int t, float2 x) {
#pragma unroll
    for (int plane = 0; plane < PLANES; ++plane)
      store32(tiles + level * R::KEY_TILE + part * R::PANEL + plane * R::PLANE + place(t), next_plane(x));
  };
  auto put_record = [&](int tile, int t, float2 x) {
    char* const at = record + tile + part * R::PANEL + place(t);
#pragma unroll
    for (int plane = 0; plane < PLANES; ++plane) *reinterpret_cast<u32*>(at + plane * R::PLANE) = next_plane(x);
  };
  auto put_q = [&](int t, float2 x) {
    if (piece & 1) put_tile(0, t, x);
    if (LEVELS > 1 && piece >= 2) put_tile(1, t, x * q_32);
    put_record(R::Q, t, x * before);
  };
  auto put_k = [&](int t, float2 x) {
    if (!(piece & 1)) put_tile(0, t, x);
    if (LEVELS > 1 && piece < 2) put_tile(1, t, x * k_32);
    put_record(R::KEYS, t, x * after);
  };
  float sums[6];
  if constexpr (FINE) {
    fine_products(sums, qs, ks, g, own, lane, put_q, put_k);
    unsafe = min(unsafe, unsafe_diagonal(sums, lane));
  } else {
#pragma unroll
    for (int t = 0; t < 16; ++t) {
      store32(own + t * LEVEL_ROW + lane * 4, qr[t]);
      store32(own + LEVEL + t * LEVEL_ROW + lane * 4, kr[t]);
    }
    __syncwarp();
    float a[2][4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      u32 x[4], y[4];
      load_matrices(x, own + lane % 16 * LEVEL_ROW + lane / 16 * 16 + i * 32);
      load_matrices(y, own + LEVEL + (lane % 8 + lane / 16 * 8) * LEVEL_ROW + lane / 8 % 2 * 16 + i * 32);
      multiply(a[0], x, y[0], y[1]), multiply(a[1], x, y[2], y[3]);
    }
    pick_diagonal(sums, a, lane);
    __syncwarp();
    gated_products(sums, qr, kr, g, own, lane, put_q, put_k);
  }
  const u32 share = shares + (piece * PARTS) * 896;
#pragma unroll
  for (int i = 0; i < 6; ++i) store32(share + part * 896 + i * 128 + lane * 4, __float_as_uint(sums[i]));
  store32(share + part * 896 + 768 + lane * 4, unsafe < 16 ? piece * 16 + unsafe : R::STEPS);
  __syncthreads();

  // A pair of products at steps (t, s) and (t, s + 1).
  auto put = [&](int t, int x, float2 pair) {
#pragma unroll
    for (int plane = 0; plane < SUMMED; ++plane)
      *reinterpret_cast<u32*>(record + R::product_place(plane, t, x)) = next_plane(pair);
  };
  const int row = lane / 4, two = lane % 4 * 2;
  const float2 zero = make_float2(0.0f, 0.0f);
  if (part == 0) {
#pragma unroll
    for (int other = 1; other < PARTS; ++other)
#pragma unroll
      for (int i = 0; i < 6; ++i) sums[i] += load_float(share + other * 896 + i * 128 + lane * 4);
    const int t = piece * 16 + row, x = piece * 16 + two;
    put(t, x, make_float2(sums[0], sums[1])), put(t, x + 8, zero);
    put(t + 8, x, make_float2(sums[2], sums[3])), put(t + 8, x + 8, make_float2(sums[4], sums[5]));
    for (int later = piece + 1; later < PIECES; ++later)
#pragma unroll
      for (int i = 0; i < 4; ++i) put(t + i / 2 * 8, later * 16 + two + i % 2 * 8, zero);
    if (piece == 0) {
      int first = R::STEPS;
#pragma unroll
      for (int i = 0; i < WARPS; ++i) first = min(first, static_cast<int>(load32(shares + i * 896 + 768 + lane * 4)));
      if (lane == 0) store_global128(record + R::UNSAFE, make_uint4(first, 0, 0, 0));  // which is read whole
    }
    if (PARTS > 1) return;
  }
  constexpr int WORKERS = PARTS > 1 ? WARPS - PIECES : WARPS;
  const int worker = PARTS > 1 ? (part - 1) * PIECES + piece : piece;
  if (R::STEPS == 32 && SUMMED % 2)  // there is no such plane, but it is copied
    for (int i = worker * 32 + lane; i < R::STEPS * 4; i += WORKERS * 32)
      store_global128(record + R::product_place(SUMMED, i / 4, i % 4 * 8), make_uint4(0, 0, 0, 0));
  // 16 x 16 products of different pieces: of the first level, then of the second.
  constexpr int BLOCKS = PIECES == 4 ? 6 : 1;
  for (int block = worker; block < BLOCKS; block += WORKERS) {
    const int level = block < PIECES / 2 ? 0 : 1;
    const int later = level ? 2 + block % 2 : 2 * block + 1, earlier = level ? block / 2 - 1 : 2 * block;
    const int row_a = lane % 16, row_b = lane % 8 + lane / 16 * 8;
    const u32 tile = tiles + level * R::KEY_TILE;
    const u32 at_q = tile + (later * 16 + row_a) * 128, at_k = tile + (earlier * 16 + row_b) * 128;
    const u32 unit_q = (lane / 16 ^ (row_a & 7)) << 4, unit_k = (lane / 8 % 2 ^ (row_b & 7)) << 4;
    float sum[2][4] = {}, rest[2][4] = {};
#pragma unroll 1
    for (int panel = 0; panel < PARTS; ++panel) {
      float fresh[2][4] = {};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        u32 x[PLANES][4], y[PLANES][4];
#pragma unroll
        for (int plane = 0; plane < PLANES; ++plane) {
          const int at = panel * R::PANEL + plane * R::PLANE;
          load_matrices(x[plane], at_q + at + (unit_q ^ i * 32));
          load_matrices(y[plane], at_k + at + (unit_k ^ i * 32));
        }
#pragma unroll
        for (int u = PLANES - 1; u >= 0; --u)
#pragma unroll
          for (int z = PLANES - 1; z >= 0; --z)
            if (u + z < R::TERMS) {
              multiply(u + z ? rest[0] : fresh[0], x[u], y[z][0], y[z][1]);
              multiply(u + z ? rest[1] : fresh[1], x[u], y[z][2], y[z][3]);
            }
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[i / 4][i % 4] += fresh[i / 4][i % 4];
    }
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        put(later * 16 + row + r * 8, earlier * 16 + i * 8 + two,
            make_float2(sum[i][2 * r] + rest[i][2 * r], sum[i][2 * r + 1] + rest[i][2 * r + 1]));
  }
}
