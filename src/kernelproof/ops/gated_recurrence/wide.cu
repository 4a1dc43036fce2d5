// Gated recurrence on tensor cores in chunks of 64 steps (32 where operands have several planes): for
// bfloat16 where one gate, or none, is for all of the state, since such a gate is multiplied to sums and
// needs no levels (levels.cuh); and for gates of keys that wide_keys.cu has worked on.
//
// Warps come in groups of four, which a ring of slots in shared memory joins:
//
//   preparing groups  copy q, k, v of a chunk into a slot and make A[t][s], the products q_t k_s with
//                     the gates between s and t, s <= t, rounded to bfloat16; or copy what is made;
//   state groups      hold 64 columns each, transposed, as accumulators: y = (S q) * gates + V A of a
//                     chunk, then S = S * gates + (V * gates) k.
//
// Segments, steps that are not safe and what becomes of them are as in chunked.cu; products are of 64
// gates here, so that those above SAFEST are left to `walk`.

#include "chunk_state.cuh"
#include "chunk_work.cuh"
#include "wide.cuh"

// chunk_config.py has it too, and computes SHARED likewise.
template <class Element_, class Gate_, int GATES, int K_, int STATES_, int HALVES_, int PREPARERS_, int SLOTS_, int AHEAD_,
          bool ENDS_, bool PRECISE, bool TAILS_, int SHARED_>
struct Wide {
  typedef Element_ Element;
  typedef Gate_ Gate;
  typedef Record<Element, K_, PRECISE> R;
  static constexpr bool KEY = GATES & 1, VALUE = false, HEAD = GATES & 4, ENDS = ENDS_, TAILS = TAILS_, PREPARED = KEY;
  static constexpr bool FINE = R::FINE, APART = R::TERMS > 2;
  static constexpr int K = K_, ROW_DECAYS = KEY ? K : 0, TILES = 1, HALVES = HALVES_, ROWS = K / HALVES, STEPS = R::STEPS;
  static constexpr int STATES = STATES_, TEAMS = STATES / HALVES, PREPARERS = PREPARERS_;  // warps
  static constexpr int SLOTS = SLOTS_, AHEAD = AHEAD_, SIZE = sizeof(Element);
  static constexpr int GROUPS = !KEY ? PREPARERS / 4 : SLOTS >= 4 ? 4 : SLOTS >= 2 ? 2 : 1;
  static constexpr int GROUP = 32 * PREPARERS / GROUPS;  // threads
  static constexpr int COLUMNS = 16 * TEAMS, THREADS = 32 * (STATES + PREPARERS);
  static constexpr int TERMS = R::TERMS, LEFT = R::LEFT, RIGHT = R::RIGHT, SUMMED = R::SUMMED;
  // A slot: panels of 64 columns, as wgmma takes them, of q, k, A and v.
  static constexpr int PLANE = R::PLANE, PANEL = R::PANEL, PANELS = K / 64;
  static constexpr int Q = 0, KEYS = ENDS ? 0 : PANELS * PANEL, PRODUCTS = KEYS + PANELS * PANEL;
  static constexpr int VALUES = PRODUCTS + (ENDS ? 0 : R::PRODUCTS_SIZE), VALUE_ROW = SIZE * COLUMNS;
  static constexpr int SLOT = VALUES + STEPS * VALUE_ROW;
  // Notes: products of gates, up to each step and after it or of each row; the first unsafe step; that of
  // each warp's v.
  static constexpr int SINCE = 0, AFTER = 256, DECAYS = 0, UNSAFE = KEY ? 4 * K : 512, OF_WARP = UNSAFE + 16;
  static constexpr int NOTES = UNSAFE + 64;
  static constexpr int AT_NOTES = SLOTS * SLOT, AT_BARRIERS = AT_NOTES + SLOTS * NOTES;
  static constexpr int SHARED = AT_BARRIERS + SLOTS * 16 + (HALVES > 1 ? TEAMS * 16 : 0) + 16;
  static_assert(SHARED == SHARED_, "chunk_config.py and wide.cu disagree on the shared memory");
  static_assert(SLOTS > AHEAD * GROUPS && SLOTS >= GROUPS, "the ring is too short for what is under way");
  static_assert(STATES % 4 == 0 && TEAMS % 4 == 0 && PREPARERS % 4 == 0, "wgmma takes four warps");
  static_assert(KEY || (!FINE && TERMS == 1), "gates for all of the state: bfloat16");
};

// The gates of a chunk and their products: of steps `lane` and `lane + 32`.
struct ChunkGates {
  float g[2], pre[2], post[2];  // the gate; from the start of its 8 steps up to it; after it to their end
  float of_8[8];                // of 8 steps

  __device__ __forceinline__ void make(int lane) {
    const int in_8 = lane % 8;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float up = g[i], down = g[i];
#pragma unroll
      for (int by = 1; by < 8; by *= 2) {
        const float before = __shfl_up_sync(~0u, up, by, 8), behind = __shfl_down_sync(~0u, down, by, 8);
        if (in_8 >= by) up *= before;
        if (in_8 + by < 8) down *= behind;
      }
      pre[i] = up;
      const float behind = __shfl_down_sync(~0u, down, 1, 8);
      post[i] = in_8 < 7 ? behind : 1.0f;
#pragma unroll
      for (int j = 0; j < 4; ++j) of_8[4 * i + j] = __shfl_sync(~0u, up, j * 8 + 7);
    }
  }
  __device__ __forceinline__ float all() const {
    return ((of_8[0] * of_8[1]) * (of_8[2] * of_8[3])) * ((of_8[4] * of_8[5]) * (of_8[6] * of_8[7]));
  }
  __device__ __forceinline__ void note(u32 notes, int lane) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int block = lane / 8 + 4 * i;
      float since = pre[i], after = post[i];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if (j < block) since *= of_8[j];
        if (7 - j > block) after *= of_8[7 - j];
      }
      store32(notes + (lane + 32 * i) * 4, __float_as_uint(since));
      store32(notes + 256 + (lane + 32 * i) * 4, __float_as_uint(after));
    }
  }
  // Of a warp's 16 steps t, rows of `a`: times the gates after s up to t, and zero for s > t.
  __device__ __forceinline__ void apply(float (&a)[8][4], int warp, int lane) const {
    const int c = lane % 4, row = lane / 4;
    const float mine = warp < 2 ? g[0] : g[1], mine_pre = warp < 2 ? pre[0] : pre[1];
    float run[2], within[2][2] = {{1.0f, 1.0f}, {1.0f, 1.0f}};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int first = (2 * warp + r) % 4 * 8;
      run[r] = __shfl_sync(~0u, mine_pre, first + row);
#pragma unroll
      for (int u = 1; u < 8; ++u) {
        const float gate = __shfl_sync(~0u, mine, first + u);
#pragma unroll
        for (int x = 0; x < 2; ++x)
          if (u > c * 2 + x && u <= row) within[r][x] *= gate;
      }
    }
#pragma unroll
    for (int j = 7; j >= 0; --j) {
      const float later[2] = {__shfl_sync(~0u, post[j / 4], j % 4 * 8 + c * 2),
                              __shfl_sync(~0u, post[j / 4], j % 4 * 8 + c * 2 + 1)};
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int block = 2 * warp + r;
#pragma unroll
        for (int x = 0; x < 2; ++x) {
          float& sum = a[j][2 * r + x];
          if (j < block) sum *= run[r] * later[x];
          else sum = j == block && c * 2 + x <= row ? sum * within[r][x] : 0.0f;
        }
        if (j < block) run[r] *= of_8[j];
      }
    }
  }
};

// v of a chunk: copies by the threads of a group, and the first of their steps that is not finite.
template <class C>
struct Values {
  static constexpr int UNITS = C::VALUE_ROW / 16, EACH = C::GROUP / UNITS, COPIES = C::STEPS / EACH;
  int row, unit;
  int64 rows;  // bytes from a copy to the next
  const char* from;
  const char* safe;

  __device__ __forceinline__ void start(const Arguments<C>& p, const Layout& s, const Work& w, int64 first, int thread) {
    row = thread / UNITS, unit = thread % UNITS;
    rows = C::SIZE * EACH * s.v[1];
    safe = reinterpret_cast<const char*>(p.v);
    from = reinterpret_cast<const char*>(p.v + static_cast<int64>(w.b) * s.v[0] + (first + row) * s.v[1] + w.h * s.v[2] +
                                         w.column) + unit * 16;
  }
  __device__ __forceinline__ u32 place(int i) const {
    const int r = row + i * EACH;
    if (C::SIZE == 4) return r * C::VALUE_ROW + (unit << 4 ^ (r >> 1 & 3) << 5);
    return unit / 8 * (C::STEPS * 128) + r * 128 + (((unit ^ r) & 7) << 4);
  }
  __device__ __forceinline__ void copy(const Arguments<C>& p, const Work& w, u32 values, int valid) {
    const char* at = from;
    const bool column = has_column(p, w.column + unit * (16 / C::SIZE));
#pragma unroll
    for (int i = 0; i < COPIES; ++i) {
      const bool there = column && i * EACH + row < valid;
      copy16(values + place(i), there ? at : safe, there ? 16 : 0);
      at += rows;
    }
    from += C::GROUPS * COPIES * rows;
  }
  __device__ __forceinline__ int unsafe(u32 values) const {
    int first = C::STEPS;
#pragma unroll
    for (int i = COPIES - 1; i >= 0; --i) {
      const uint4 x = load128(values + place(i));
      bool good;
      if (C::SIZE == 4) {
        good = larger(larger(larger(larger(0.0f, __uint_as_float(x.x)), __uint_as_float(x.y)), __uint_as_float(x.z)),
                      __uint_as_float(x.w)) <= LARGEST;
      } else if (C::FINE) {
        good = (watch_half(watch_half(watch_half(watch_half(0, x.x), x.y), x.z), x.w) & 0x7fff7fffu) == 0;
      } else {
        const u32 sum = watch_finite(watch_finite(watch_finite(watch_finite(0, x.x), x.y), x.z), x.w);
        good = low(sum) == 0.0f && high(sum) == 0.0f;
      }
      if (!good) first = i * EACH + row;
    }
    return __any_sync(~0u, first < C::STEPS) ? __reduce_min_sync(~0u, first) : C::STEPS;
  }
};

template <class C>
__device__ __forceinline__ void prepare_wide(const Arguments<C>& p, const Layout& s, const Work& w, u32 shared) {
  typedef typename C::Gate Gate;
  const int thread = threadIdx.x % 128, lane = thread % 32, warp = thread / 32;
  const int group = threadIdx.x / 128 - C::STATES / 4;
  const u32 full = shared + C::AT_BARRIERS, empty = full + C::SLOTS * 8;
  const int64 key_head = w.h / p.group, batch = w.b;
  const int row = thread / 8, unit = thread % 8;  // of copies; and 16, 32, 48 rows more
  const u32 place = row * 128 + ((unit ^ (row & 7)) << 4);
  const int64 start = w.first + group * C::STEPS + row;
  const int64 q_rows = 32 * s.q[1], k_rows = 32 * s.k[1];  // bytes of 16 rows
  const char* q = reinterpret_cast<const char*>(p.q + batch * s.q[0] + start * s.q[1] + key_head * s.q[2] + unit * 8);
  const char* k = reinterpret_cast<const char*>(p.k + batch * s.k[0] + start * s.k[1] + key_head * s.k[2] + unit * 8);
  Values<C> v;
  v.start(p, s, w, w.first + group * C::STEPS, thread);
  const Gate* gate = static_cast<const Gate*>(p.gate_head) + batch * s.gate_head[0] +
                     (w.first + group * C::STEPS + lane) * s.gate_head[1] + w.h * s.gate_head[2];
  const int steps = w.T - w.first;  // that exist
  float heads[C::AHEAD + 1][2];
  int copying = group % C::SLOTS, phase = 1, working = copying;
  // 64 steps of one operand. `columns`: how many there are from `first` on.
  auto copy = [&](u32 to, const char* from, int64 rows, const char* safe, int panels, int valid, int columns) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int panel = 0; panel < panels; ++panel) {
        const bool there = i * 16 + row < valid && (!C::TAILS || panel * 64 + unit * 8 < columns);
        copy16(to + place + panel * C::PANEL + i * 2048, there ? from + panel * 128 : safe, there ? 16 : 0);
      }
      from += rows;
    }
  };
  auto copy_all = [&](u32 to, const char* from, int64 rows, int panels) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int panel = 0; panel < panels; ++panel) copy16(to + place + panel * C::PANEL + i * 2048, from + panel * 128);
      from += rows;
    }
  };

  for (int n = group; n < w.chunks + C::AHEAD * C::GROUPS; n += C::GROUPS) {
    if (C::HEAD)
#pragma unroll
      for (int i = C::AHEAD; i > 0; --i) heads[i][0] = heads[i - 1][0], heads[i][1] = heads[i - 1][1];
    if (n < w.chunks) {
      barrier_wait(empty + 8 * copying, phase);
      const u32 slot = shared + copying * C::SLOT;
      const int valid = steps - n * C::STEPS;
      if (!C::TAILS && valid >= C::STEPS) {
        copy_all(slot + C::KEYS, k, k_rows, C::PANELS);
        if (!C::ENDS) copy_all(slot + C::Q, q, q_rows, C::PANELS);
      } else {
        copy(slot + C::KEYS, k, k_rows, reinterpret_cast<const char*>(p.k), C::PANELS, valid, p.rows);
        if (!C::ENDS) copy(slot + C::Q, q, q_rows, reinterpret_cast<const char*>(p.q), C::PANELS, valid, p.rows);
      }
      v.copy(p, w, slot + C::VALUES, valid);
      k += 4 * C::GROUPS * k_rows, q += 4 * C::GROUPS * q_rows;
      if (C::HEAD) {
        heads[0][0] = lane < valid ? to_float(gate[0]) : 1.0f;
        heads[0][1] = lane + 32 < valid ? to_float(gate[32 * s.gate_head[1]]) : 1.0f;
        gate += C::GROUPS * C::STEPS * s.gate_head[1];
      }
      copying += C::GROUPS;
      if (copying >= C::SLOTS) copying -= C::SLOTS, phase ^= 1;
    }
    commit_copies();
    if (n < C::AHEAD * C::GROUPS) continue;
    wait_copies<C::AHEAD>();
    const u32 slot = shared + working * C::SLOT, notes = shared + C::AT_NOTES + working * C::NOTES;
    int unsafe = C::STEPS;
    if (!C::ENDS) {
      unsafe = v.unsafe(slot + C::VALUES);
      if (lane == 0) store32(notes + C::OF_WARP + warp * 4, unsafe);
    }
    show_products();
    asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory");
    float a[8][4] = {};
    if (!C::ENDS) {
      const u64 at_q = matrix_at(slot + C::Q, C::PANEL), at_k = matrix_at(slot + C::KEYS, C::PANEL);
      ready(a);
      product_fence();
#pragma unroll
      for (int i = 0; i < C::K / 16; ++i) {
        const int at = (i / 4 * C::PANEL + i % 4 * 32) >> 4;
        product_of_both(a, at_q + at, at_k + at);
      }
      product_commit();
#pragma unroll
      for (int i = 0; i < 4; ++i) unsafe = min(unsafe, static_cast<int>(load32(notes + C::OF_WARP + i * 4)));
    }
    ChunkGates gates;
    if (C::HEAD) {
      gates.g[0] = heads[C::AHEAD][0], gates.g[1] = heads[C::AHEAD][1];
      const bool good = fabsf(gates.g[0]) <= C::R::SAFEST && fabsf(gates.g[1]) <= C::R::SAFEST;
      if (!__all_sync(~0u, good)) {
        const int mine = !(fabsf(gates.g[0]) <= C::R::SAFEST) ? lane
                         : !(fabsf(gates.g[1]) <= C::R::SAFEST) ? lane + 32 : C::STEPS;
        unsafe = min(unsafe, static_cast<int>(__reduce_min_sync(~0u, mine)));
      }
      if (lane >= unsafe) gates.g[0] = 0.0f;
      if (lane + 32 >= unsafe) gates.g[1] = 0.0f;
      gates.make(lane);
      if (warp == 0) gates.note(notes, lane);
    }
    if (warp == 0 && lane == 0) store32(notes + C::UNSAFE, unsafe);
    if (!C::ENDS) {
      product_wait<0>();
      ready(a);
      if (C::HEAD) {
        gates.apply(a, warp, lane);
      } else {
#pragma unroll
        for (int j = 0; j < 8; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e)
            if (j * 8 + lane % 4 * 2 + e % 2 > warp * 16 + lane / 4 + e / 2 * 8) a[j][e] = 0.0f;
      }
      const int to = lane % 8 + lane / 8 % 2 * 8;
      const u32 at = slot + C::PRODUCTS + (warp * 16 + to) * 128 + ((lane / 16 ^ (to & 7)) << 4);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float(&x)[4] = a[2 * i];
        const float(&z)[4] = a[2 * i + 1];
        const u32 packed[4] = {pack(x[0], x[1]), pack(x[2], x[3]), pack(z[0], z[1]), pack(z[2], z[3])};
        store_matrices(at ^ i * 32, packed);
      }
      show_products();
    }
    arrive(full + 8 * working);
    working += C::GROUPS;
    if (working >= C::SLOTS) working -= C::SLOTS;
  }
}

// The same where wide_keys.cu has made q, k and A: copies alone. A group has some warps, or one.
template <class C>
__device__ __forceinline__ void fetch_wide(const Arguments<C>& p, const Layout& s, const Work& w, u32 shared) {
  typedef typename C::R R;
  const int thread = (threadIdx.x - 32 * C::STATES) % C::GROUP, group = (threadIdx.x - 32 * C::STATES) / C::GROUP;
  const int lane = thread % 32, warp = thread / 32;
  const u32 full = shared + C::AT_BARRIERS, empty = full + C::SLOTS * 8;
  const int64 chunks = (p.T + C::STEPS - 1) / C::STEPS;
  const char* record = p.operands + (w.chain * chunks + w.first / C::STEPS + group) * R::BYTES + thread * 16;
  Values<C> v;
  v.start(p, s, w, w.first + group * C::STEPS, thread);
  int at_slot = group, phase = 1;
  auto copy = [&](u32 to, const char* from, int bytes) {
#pragma unroll 8
    for (int i = 0; i < bytes / (16 * C::GROUP); ++i) copy16(to + thread * 16 + i * 16 * C::GROUP, from + i * 16 * C::GROUP);
    if (bytes % (16 * C::GROUP) > thread * 16)
      copy16(to + thread * 16 + bytes / (16 * C::GROUP) * 16 * C::GROUP, from + bytes / (16 * C::GROUP) * 16 * C::GROUP);
  };
#pragma unroll 1
  for (int n = group; n < w.chunks; n += C::GROUPS) {
    const u32 slot = shared + at_slot * C::SLOT, notes = shared + C::AT_NOTES + at_slot * C::NOTES;
    barrier_wait(empty + 8 * at_slot, phase);
    if (!C::ENDS) copy(slot + C::Q, record + R::Q, R::KEY_TILE);
    copy(slot + C::KEYS, record + R::KEYS, R::KEY_TILE);
    if (!C::ENDS) copy(slot + C::PRODUCTS, record + R::PRODUCTS, R::PRODUCTS_SIZE);
    copy(notes + C::DECAYS, record + R::DECAYS, 4 * C::K + 16);  // and the first unsafe step
    v.copy(p, w, slot + C::VALUES, w.T - w.first - n * C::STEPS);
    record += C::GROUPS * R::BYTES;
    commit_copies();
    wait_copies<0>();
    if (!C::ENDS) {
      const int unsafe = v.unsafe(slot + C::VALUES);
      if (lane == 0) store32(notes + C::OF_WARP + warp * 4, unsafe);
    }
    show_products();
    arrive(full + 8 * at_slot);
    at_slot += C::GROUPS;
    if (at_slot >= C::SLOTS) at_slot -= C::SLOTS, phase ^= 1;
  }
}

template <class C>
__device__ __forceinline__ void hold_wide(const Arguments<C>& p, const Layout& s, const Work& w, u32 shared) {
  typedef typename C::Element Element;
  constexpr int PIECES = C::ROWS / 16, LEFT = C::LEFT, RIGHT = C::RIGHT, SUMMED = C::SUMMED, TERMS = C::TERMS;
  constexpr int GROUP = LEFT > 2 ? 1 : LEFT > 1 ? 2 : PIECES < 8 ? PIECES : C::ROWS == 256 ? 4 : 8;
  constexpr int STEPS = C::STEPS, IN_16 = STEPS / 16, IN_8 = STEPS / 8;
  constexpr bool APART = C::APART;
  const int lane = threadIdx.x % 32, c = lane % 4, team = team_of<C>(), half = half_of<C>();
  const u32 full = shared + C::AT_BARRIERS, empty = full + C::SLOTS * 8;
  const u32 sums_full = empty + C::SLOTS * 8 + team * 16, sums_empty = sums_full + 8;
  // Of v, and of y, which takes its place: a warp's 16 columns, units of 8, by 16 steps.
  const int row_b = lane % 8 + lane / 16 * 8, unit = team % 4 * 2 + lane / 8 % 2;
  const u32 at_values = C::VALUES + team / 4 * (STEPS * 128) + row_b * 128 + ((unit ^ (row_b & 7)) << 4);
  const int row_out = lane / 2, unit_out = team % 4 * 2 + lane % 2;
  const u32 at_out = C::VALUES + team / 4 * (STEPS * 128) + row_out * 128 + ((unit_out ^ (row_out & 7)) << 4);
  // Elements of 4 bytes: of step c * 2 of 8 and the lane's first column, or 8 columns on.
  auto fine_at = [&](int j, int r) {
    const int at = (team * 4 + r * 2 + lane / 16) ^ c << 1;
    return C::VALUES + (j * 8 + c * 2) * C::VALUE_ROW + (at << 4) + (lane / 4 & 3) * 4;
  };
  const int steps = w.T - w.first, column = w.column + team * 16 + lane % 2 * 8;
  const int64 y_step = static_cast<int64>(p.H) * p.V;
  Element* y = p.y + (static_cast<int64>(w.b) * p.T + w.first + row_out) * y_step + w.h * p.V + column;

  Fragments<C> f;
  first_state<C>(p, s, w, f);
  float total = 1.0f, growth = 1.0f;
  int at_slot = 0, phase = 0;
#pragma unroll 1
  for (int n = 0; n < w.chunks; ++n) {
    const u32 slot = shared + at_slot * C::SLOT, notes = shared + C::AT_NOTES + at_slot * C::NOTES;
    barrier_wait(full + 8 * at_slot, phase);
    int unsafe = load32(notes + C::UNSAFE);
    if (C::KEY && !C::ENDS)
#pragma unroll
      for (int i = 0; i < C::GROUP / 32; ++i) unsafe = min(unsafe, static_cast<int>(load32(notes + C::OF_WARP + i * 4)));
    u32 values[LEFT][IN_16][4];
    auto load_values = [&]() {
#pragma unroll
      for (int i = 0; i < IN_16; ++i) {
        if (!C::FINE) {
          load_transposed(values[0][i], slot + at_values + i * 2048);
          continue;
        }
        u32 raw[4];
        if (C::SIZE == 2) load_transposed(raw, slot + at_values + i * 2048);
#pragma unroll
        for (int x = 0; x < 4; ++x) {
          const u32 at = slot + fine_at(2 * i + x / 2, x % 2);
          float2 v = C::SIZE == 2 ? unpack_half(raw[x]) : make_float2(load_float(at), load_float(at + C::VALUE_ROW));
#pragma unroll
          for (int plane = 0; plane < LEFT; ++plane) values[plane][i][x] = next_plane(v);
        }
      }
      if (unsafe < STEPS)  // values from there on become zero
#pragma unroll
        for (int i = 0; i < 2 * STEPS / 4; ++i)
          if (i / 4 * 8 + c * 2 + i % 2 >= unsafe)
#pragma unroll
            for (int plane = 0; plane < LEFT; ++plane)
              values[plane][i / 8][i / 2 % 2 + i / 4 % 2 * 2] &= i % 2 ? 0xffffu : 0xffff0000u;
    };
    if (LEFT == 1) load_values();
    float out[IN_8][4] = {}, fine[IN_8][4] = {};
    auto put_together = [&]() {  // the sums that are apart
      product_wait<0>();
      ready(out), ready(fine);
#pragma unroll
      for (int i = 0; i < IN_8 * 4; ++i) out[i / 4][i % 4] += fine[i / 4][i % 4], fine[i / 4][i % 4] = 0.0f;
    };
    if (!C::ENDS) {
      const u64 q = matrix_at(slot + C::Q + half * (C::ROWS / 64) * C::PANEL, C::PANEL);
      float whole[IN_8][4] = {};
#pragma unroll
      for (int first = 0; first < PIECES; first += GROUP) {
        if (first >= 2 * GROUP) product_wait<1>();
        u32 a[LEFT][GROUP][4];
#pragma unroll
        for (int i = 0; i < GROUP; ++i)
#pragma unroll
          for (int x = 0; x < 4; ++x) {
            const float(&from)[4] = f.s[0][2 * (first + i) + x / 2];
            float2 pair = make_float2(from[x % 2 * 2], from[x % 2 * 2 + 1]);
#pragma unroll
            for (int plane = 0; plane < LEFT; ++plane) a[plane][i][x] = next_plane(pair);
          }
#pragma unroll
        for (int plane = 0; plane < LEFT; ++plane) ready(a[plane]);
        ready(out);
        if (APART) ready(fine);
        product_fence();
#pragma unroll
        for (int i = 0; i < GROUP; ++i) {
          const int piece = first + i;
          const u64 at = q + ((piece / 4 * C::PANEL + piece % 4 * 32) >> 4);
#pragma unroll
          for (int sum = TERMS - 1; sum >= 0; --sum)
#pragma unroll
            for (int plane = 0; plane < LEFT; ++plane)
              if (sum >= plane && sum - plane < RIGHT)
                product_of_rows(sum && APART ? fine : out, a[plane][i], at + ((sum - plane) * C::PLANE >> 4));
        }
        product_commit();
        if (APART && (first + GROUP) % 4 == 0 && first + GROUP < PIECES) {  // fresh leading sums
          product_wait<0>();
          ready(out), ready(fine);
#pragma unroll
          for (int x = 0; x < IN_8 * 4; ++x) whole[x / 4][x % 4] += out[x / 4][x % 4], out[x / 4][x % 4] = 0.0f;
        }
      }
      if (APART) {
        put_together();
#pragma unroll
        for (int x = 0; x < IN_8 * 4; ++x) out[x / 4][x % 4] += whole[x / 4][x % 4];
      }
    }
    if (LEFT > 1) load_values();
    const float decay = !C::KEY && C::HEAD ? load_float(notes + C::SINCE + 252) : 1.0f;
    const u64 k = matrix_at(slot + C::KEYS + half * (C::ROWS / 64) * C::PANEL, C::PANEL);
    auto decay_of = [&](int j) {
      return C::KEY ? load64(notes + C::DECAYS + (half * C::ROWS + j * 8 + c * 2) * 4) : make_float2(decay, decay);
    };
    // y from the chunk's own steps.
    auto near = [&]() {
#pragma unroll
      for (int plane = 0; plane < LEFT; ++plane) ready(values[plane]);
      ready(out);
      if (APART) ready(fine);
      product_fence();
      const u64 A = matrix_at(slot + C::PRODUCTS, C::PANEL);
#pragma unroll
      for (int i = 0; i < IN_16; ++i)
#pragma unroll
        for (int sum = TERMS - 1; sum >= 0; --sum)
#pragma unroll
          for (int plane = 0; plane < LEFT; ++plane)
            if (sum >= plane && sum - plane < SUMMED)
              product_of_rows(sum && APART ? fine : out, values[plane][i], A + ((C::R::plane_at(sum - plane) + i * 32) >> 4));
      product_commit();
    };
    // The state after the chunk, from `v`; there after a wait.
    auto pass = [&](u32 (&v)[LEFT][IN_16][4]) {
      if constexpr (APART) {
        // Into fresh sums, 64 rows at a time: what tensor cores cut off would add up over a sequence.
#pragma unroll
        for (int panel = 0; panel < C::ROWS / 64; ++panel) {
          float fresh[8][4] = {};
          ready(fresh);
          product_fence();
#pragma unroll
          for (int sum = TERMS - 1; sum >= 0; --sum)
#pragma unroll
            for (int i = 0; i < IN_16; ++i)
#pragma unroll
              for (int plane = 0; plane < LEFT; ++plane)
                if (sum >= plane && sum - plane < RIGHT)
                  product_of_steps(fresh, v[plane][i], k + ((panel * C::PANEL + (sum - plane) * C::PLANE + i * 2048) >> 4));
          product_commit();
          product_wait<0>();
          ready(fresh);
#pragma unroll
          for (int j = 0; j < 8; ++j) {
            const float2 gate = decay_of(panel * 8 + j);
            float(&x)[4] = f.s[0][panel * 8 + j];
#pragma unroll
            for (int e = 0; e < 4; ++e) x[e] = fmaf(x[e], e % 2 ? gate.y : gate.x, fresh[j][e]);
          }
        }
      } else {
        if (C::KEY || C::HEAD)
#pragma unroll
          for (int j = 0; j < C::ROWS / 8; ++j) {
            const float2 gate = decay_of(j);
            float(&x)[4] = f.s[0][j];
            x[0] *= gate.x, x[1] *= gate.y, x[2] *= gate.x, x[3] *= gate.y;
          }
#pragma unroll
        for (int plane = 0; plane < LEFT; ++plane) ready(v[plane]);
        ready(f.s[0]);
        product_fence();
#pragma unroll
        for (int i = 0; i < IN_16; ++i)
#pragma unroll
          for (int sum = TERMS - 1; sum >= 0; --sum)
#pragma unroll
            for (int plane = 0; plane < LEFT; ++plane)
              if (sum >= plane && sum - plane < RIGHT)
                product_of_steps(f.s[0], v[plane][i], k + (((sum - plane) * C::PLANE + i * 2048) >> 4));
        product_commit();
      }
    };
    const bool safe = unsafe >= STEPS;
    if constexpr (C::KEY) {
      if (!C::ENDS && half == C::HALVES - 1) {
        near();
        if (APART) put_together();
      }
      if (safe) pass(values);
      product_wait<0>();
    } else {
      if (safe) {
        u32 later[1][IN_16][4];  // v times the gates after its step
#pragma unroll
        for (int i = 0; i < IN_8; ++i) {
          const float2 after = C::HEAD ? load64(notes + C::AFTER + i * 32 + c * 8) : make_float2(1.0f, 1.0f);
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const u32 x = values[0][i / 2][i % 2 * 2 + r];
            later[0][i / 2][i % 2 * 2 + r] = C::HEAD ? pack(unpack(x) * after) : x;
          }
        }
        pass(later);
      }
      if (!C::ENDS) {
        if (safe) product_wait<1>();
        else product_wait<0>();
        ready(out);
        if (C::HEAD)
#pragma unroll
          for (int j = 0; j < IN_8; ++j) {
            const float2 since = load64(notes + C::SINCE + j * 32 + c * 8);
            out[j][0] *= since.x, out[j][1] *= since.y, out[j][2] *= since.x, out[j][3] *= since.y;
          }
        near();
      }
      product_wait<0>();
    }
    ready(out), ready(f.s[0]);
    if (!safe) {
      Fragments<C> copy = f;  // what a function is given by reference cannot stay in registers
      const Arguments<C> p_copy = p;
      const Work w_copy = w;
#pragma unroll
      for (int i = 0; i < IN_16; ++i) {
        float walked[1][2][4] = {};
        const int from = min(16, max(0, unsafe - 16 * i));
        walk<C>(p_copy, s, w_copy, n * IN_16 + i, from, copy, walked);
#pragma unroll
        for (int x = 0; x < 8 && !C::ENDS; ++x)
          if (x / 4 * 8 + c * 2 + x % 2 >= from) out[2 * i + x / 4][x % 4] = walked[0][x / 4][x % 4];
      }
      f = copy;
    }
    if (C::HALVES > 1 && !C::ENDS) {  // the other half hands its part of y over where v has been
      static_assert(C::HALVES == 1 || C::SIZE == 4, "sums take the place of v");
      if (half) barrier_wait(sums_empty, n & 1);
      else arrive(sums_empty), barrier_wait(sums_full, n & 1);
#pragma unroll
      for (int j = 0; j < IN_8; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const u32 at = slot + fine_at(j, e / 2) + e % 2 * C::VALUE_ROW;
          if (half) store32(at, __float_as_uint(out[j][e]));
          else out[j][e] += load_float(at);
        }
      if (half) arrive(sums_full);
    }
    if (C::ENDS) {
      total *= decay;
      growth = safe ? growth * fmaxf(1.0f, fabsf(decay)) : endless();
    } else if (C::SIZE == 4) {
      if (half == 0 && n >= w.silent)
#pragma unroll
        for (int j = 0; j < IN_8; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int t = n * STEPS + j * 8 + c * 2 + e % 2;
            if (t < steps && has_column(p, column_of<C>(w, 0, e)))
              reinterpret_cast<float*>(p.y)[(static_cast<int64>(w.b) * p.T + w.first + t) * y_step + w.h * p.V +
                                            column_of<C>(w, 0, e)] = p.scale * out[j][e];
          }
    } else {
#pragma unroll
      for (int i = 0; i < IN_16; ++i) {
        u32 packed[4];
#pragma unroll
        for (int x = 0; x < 4; ++x) {
          const float(&from)[4] = out[2 * i + x / 2];
          const float a = p.scale * from[x % 2 * 2], b = p.scale * from[x % 2 * 2 + 1];
          packed[x] = C::FINE ? pack_half(a, b) : pack(a, b);
        }
        store_transposed(slot + at_values + i * 2048, packed);
      }
      __syncwarp();
      uint4 rows[IN_16];
#pragma unroll
      for (int i = 0; i < IN_16; ++i) rows[i] = load128(slot + at_out + i * 2048);
      if (n >= w.silent && has_column(p, column))
#pragma unroll
        for (int i = 0; i < IN_16; ++i)
          if (n * STEPS + i * 16 + row_out < steps) store_global128(y + i * 16 * y_step, rows[i]);
      y += STEPS * y_step;
    }
    arrive(empty + 8 * at_slot);
    if (++at_slot == C::SLOTS) at_slot = 0, phase ^= 1;
  }

  if (C::ENDS) {
    const int64 at = static_cast<int64>(w.chain) * (p.segments - 1) + w.segment;
    const int tile = w.column / 16 + team;
    float4* const ends = p.ends + (at * (all_columns(p) / 16) + tile) * (C::K / 8 * 32) + half * (C::ROWS / 8 * 32) + lane;
#pragma unroll
    for (int j = 0; j < C::ROWS / 8; ++j) {
      const float(&x)[4] = f.s[0][j];
      store_global128(ends + j * 32, make_uint4(__float_as_uint(x[0]), __float_as_uint(x[1]),
                                                __float_as_uint(x[2]), __float_as_uint(x[3])));
    }
    if (!C::KEY && c == 0)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        p.decays[at * width<C>(p) + tile * 16 + lane / 4 + r * 8] = checked_decay(total, growth);
  } else if (p.last != nullptr && w.first + w.chunks * STEPS >= w.T) {
#pragma unroll
    for (int j = 0; j < C::ROWS / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (has_element(p, w, 0, j, e)) p.last[state_at<C>(w, s.last, 0, j, e)] = f.s[0][j][e];
  }
}

template <class C>
__global__ void __launch_bounds__(C::THREADS, 1)
    wide(const typename C::Element* q, const typename C::Element* k, const typename C::Element* v, const typename C::Gate* gate_k, const typename C::Gate* gate_v,
         const typename C::Gate* gate_head, const float* initial, typename C::Element* y, float* last, float4* ends, float* decays,
         const char* operands, const uint4* products, const float* chunk_decays, const void* bounds, int T, int H,
         int V, int rows, int segments, int lead, int length, int bounds_64, int group, float scale,
         const __grid_constant__ Layout layout) {
  extern __shared__ __align__(1024) char memory[];
  const u32 shared = shared_address(memory);
  Arguments<C> p{q, k, v, gate_k, gate_v, gate_head, initial, y, last, ends, decays, operands, products,
                 chunk_decays, bounds, T, H, V, rows, segments, lead, length, bounds_64, group, scale};
  const Work w = begin<C>(p, layout, memory);
  if (threadIdx.x == 0) {
    for (int i = 0; i < C::SLOTS; ++i) {
      init_barrier(shared + C::AT_BARRIERS + 8 * i, C::GROUP);
      init_barrier(shared + C::AT_BARRIERS + (C::SLOTS + i) * 8, 32 * C::STATES);
    }
    if (C::HALVES > 1)
      for (int i = 0; i < C::TEAMS * 2; ++i) init_barrier(shared + C::AT_BARRIERS + C::SLOTS * 16 + 8 * i, 32);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x < 32 * C::STATES) hold_wide<C>(p, layout, w, shared);
  else if constexpr (C::KEY) fetch_wide<C>(p, layout, w, shared);
  else prepare_wide<C>(p, layout, w, shared);
  if (C::KEY && C::ENDS && w.column == 0) {  // the products of gates of the segment
    typedef typename C::R R;
    const int64 chunks = (T + C::STEPS - 1) / C::STEPS;
    const char* const records = operands + (w.chain * chunks + w.first / C::STEPS) * R::BYTES;
    for (int row = threadIdx.x; row < C::K; row += C::THREADS) {
      float total = 1.0f, growth = 1.0f;
#pragma unroll 4
      for (int n = 0; n < w.chunks; ++n) {
        const float gate = *reinterpret_cast<const float*>(records + n * static_cast<int64>(R::BYTES) + R::DECAYS + row * 4);
        const int unsafe = *reinterpret_cast<const int*>(records + n * static_cast<int64>(R::BYTES) + R::UNSAFE);
        total *= gate;
        growth = unsafe < C::STEPS ? endless() : growth * fmaxf(1.0f, fabsf(gate));
      }
      p.decays[(static_cast<int64>(w.chain) * (segments - 1) + w.segment) * width<C>(p) + row] =
          checked_decay(total, growth);
    }
  }
}
