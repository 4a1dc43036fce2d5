// Gated recurrence on tensor cores, the state in float: chunks of 16 steps.
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
// own. Where such a product is not safe (see `checked_decay`) it is NaN, and the blocks
// behind start at the segment in question instead, without writing its y.

#include "chunk_work.cuh"
#include "chunk_prepare.cuh"
#include "chunk_keys.cuh"

template <class C>
__device__ __forceinline__ void hold(const Arguments<C>& p, const Layout& s, const Work& w, u32 shared) {
  typedef typename C::Gate Gate;
  typedef typename C::Element Element;
  constexpr int TILES = C::TILES, PIECES = C::ROWS / 16, LEFT = C::LEFT, SUMMED = C::SUMMED;
  const int lane = threadIdx.x % 32, c = lane % 4, warp = threadIdx.x / 32;
  const u32 full = shared + C::AT_BARRIERS, empty = full + C::SLOTS * 8;
  const u32 staged = shared + C::AT_OUT + warp * C::OUT;
  const int row_b = lane % 8 + lane / 16 * 8;  // a lane's address for pairs of right operands
  const int steps = w.T - w.first;
  const int64 y_step = static_cast<int64>(p.H) * p.V;
  Element* const y = p.y + (static_cast<int64>(w.b) * p.T + w.first) * y_step + w.h * p.V + w.column + warp * 16 * TILES;

  Fragments<C> f;
  first_state<C>(p, s, w, f);
  u32 masks[4];
  if (C::COLUMN) level_masks(masks, lane);
  float total[TILES][2], growth[TILES][2];
#pragma unroll
  for (int m = 0; m < TILES; ++m) total[m][0] = total[m][1] = growth[m][0] = growth[m][1] = 1.0f;

  // A chunk as it is read from its slot.
  u32 values[TILES][LEFT][4];
  uint4 A[SUMMED] = {};
  int unsafe = ALL_SAFE;
  ColumnGates<C> gates;
  float2 since[2], after[2];  // products of a gate for all of the state, at the lane's steps
  float chunk_decay = 1.0f;
  u32 decays_at = C::DECAYS + c * 8;
  stay(decays_at);
  // Values of steps from `unsafe` on become zero.
  auto hide_values = [&]() {
#pragma unroll
    for (int m = 0; m < TILES; ++m)
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (i / 4 * 8 + c * 2 + i % 2 >= unsafe)
#pragma unroll
          for (int plane = 0; plane < LEFT; ++plane)
            values[m][plane][i / 2 % 2 + i / 4 * 2] &= i % 2 ? 0xffffu : 0xffff0000u;
  };
  u32 unit[TILES];  // of v, and of gates of 2 bytes
#pragma unroll
  for (int m = 0; m < TILES; ++m) {
    const int u = (warp * TILES + m) * 2 + lane / 8 % 2;
    unit[m] = row_b * 2 * C::COLUMNS + (((u & ~7) | ((u ^ row_b) & 7)) << 4);
    stay(unit[m]);
  }
  int reading = 0, phase = 0;
  auto next = [&](int n) {
    const u32 slot = shared + reading * C::SLOT;
    barrier_wait(full + 8 * reading, phase);
    // Elements of 4 bytes of this lane's columns, in two steps each.
    auto pair_of = [&](u32 tile, int m, int half, int r) {
      const int at = ((warp * TILES + m) * 4 + r * 2 + lane / 16) ^ c << 1;
      const u32 from = slot + tile + (half * 8 + c * 2) * 4 * C::COLUMNS + (at << 4) + (lane / 4 & 3) * 4;
      return make_float2(load_float(from), load_float(from + 4 * C::COLUMNS));
    };
#pragma unroll
    for (int m = 0; m < TILES; ++m) {
      if (!C::FINE) {
        load_transposed(values[m][0], slot + C::VALUES + unit[m]);
        continue;
      }
      u32 raw[4];
      if (C::SIZE == 2) load_transposed(raw, slot + C::VALUES + unit[m]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float2 x = C::SIZE == 2 ? unpack_half(raw[i]) : pair_of(C::VALUES, m, i / 2, i % 2);
#pragma unroll
        for (int plane = 0; plane < LEFT; ++plane) values[m][plane][i] = next_plane(x);
      }
    }
    float g[TILES][2][2][2];
    if (C::COLUMN) {
      float2 head[2] = {make_float2(1.0f, 1.0f), make_float2(1.0f, 1.0f)};
      if (C::HEAD && !C::KEY)
        head[0] = load64(slot + C::NOTES + c * 8), head[1] = load64(slot + C::NOTES + 32 + c * 8);
#pragma unroll
      for (int m = 0; m < TILES; ++m) {
        u32 packed[4];
        if (C::VALUE && C::GATE == 2) load_transposed(packed, slot + C::GATE_TILE + unit[m]);
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            float2 x = make_float2(1.0f, 1.0f);
            if (C::VALUE && C::GATE == 4) x = pair_of(C::GATE_TILE, m, half, r);
            else if (C::VALUE) x = unpack_gates(packed[r + 2 * half], Gate());
            if (C::VALUE) x = make_float2(as_gate(x.x, Gate()), as_gate(x.y, Gate()));
            if (C::VALUE && C::HEAD && !C::KEY) x = make_float2(joined(x.x, head[half].x), joined(x.y, head[half].y));
            else if (C::HEAD && !C::KEY) x = head[half];
            g[m][half][r][0] = x.x, g[m][half][r][1] = x.y;
          }
      }
    }
    if (C::SINCE) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        since[half] = load64(slot + C::NOTES + half * 32 + c * 8);
        after[half] = load64(slot + C::AFTER + half * 32 + c * 8);
      }
      chunk_decay = load_float(slot + C::NOTES + 60);
    }
    if (!C::ENDS) {
#pragma unroll
      for (int plane = 0; plane < SUMMED; ++plane)
        A[plane] = load128(slot + C::PRODUCTS + plane * 512 + lane * 16);
      unsafe = A[0].w;
    } else if (C::PREPARED) {
      unsafe = load32(slot + C::UNSAFE + 12);
    } else {
      unsafe = load32(slot + C::UNSAFE);
#pragma unroll
      for (int i = 1; i < C::PARTS; ++i)
        unsafe = min(unsafe, static_cast<int>(load32(slot + C::UNSAFE + i * 4)));
    }

    const int valid = steps - n * 16;
    if (C::COLUMN && valid < 16)
#pragma unroll
      for (int m = 0; m < TILES; ++m)
#pragma unroll
        for (int i = 0; i < 8; ++i)
          if (i / 4 * 8 + c * 2 + i % 2 >= valid) g[m][i / 4][i / 2 % 2][i % 2] = 1.0f;
    if (unsafe < ALL_SAFE) {
      hide_values();
      if (C::COLUMN)
#pragma unroll
        for (int m = 0; m < TILES; ++m)
#pragma unroll
          for (int i = 0; i < 8; ++i)
            if (i / 4 * 8 + c * 2 + i % 2 >= unsafe) g[m][i / 4][i / 2 % 2][i % 2] = 0.0f;
    }
    if (C::COLUMN) {
      gates.make(values, g, A, masks, lane);
    }
    if (C::ENDS && (C::COLUMN || C::SCALAR))
#pragma unroll
      for (int m = 0; m < TILES; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float all = C::COLUMN ? gates.all[m][r] : chunk_decay;
          total[m][r] *= all;
          growth[m][r] *= fmaxf(1.0f, fabsf(all));
          if (unsafe < ALL_SAFE) growth[m][r] = endless();
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
  Element* y_at = y + lane / (2 * TILES) * y_step + lane % (2 * TILES) * 8;
  auto write = [&](const uint4 (&out)[TILES], int n) {
    constexpr int ROWS = 16 / TILES;  // to a round
    if (n >= w.silent && has_column(p, w.column + warp * 16 * TILES + lane % (2 * TILES) * 8))
#pragma unroll
      for (int i = 0; i < TILES; ++i)
        if (n * 16 + i * ROWS + lane / (2 * TILES) < steps)
          store_global128(y_at + i * ROWS * y_step, out[i]);
    y_at += 16 * y_step;
  };

  // y from the chunk's own steps, where no gates of columns come in between.
  auto near_steps = [&](float (&out)[TILES][2][4], float (&fine)[TILES][2][4]) {
#pragma unroll
    for (int m = 0; m < TILES; ++m) {
      u32 of_first[SUMMED], of_both[2][SUMMED];
#pragma unroll
      for (int plane = 0; plane < SUMMED; ++plane)
        of_first[plane] = A[plane].x, of_both[0][plane] = A[plane].y, of_both[1][plane] = A[plane].z;
      multiply_planes8<C::TERMS, LEFT, SUMMED>(out[m][0], C::APART ? fine[m][0] : out[m][0], values[m], 0, of_first, ~0u);
      multiply_planes<C::TERMS, LEFT, SUMMED>(out[m][1], C::APART ? fine[m][1] : out[m][1], values[m], of_both[0], of_both[1]);
    }
  };
  auto own_steps = [&](float (&out)[TILES][2][4], float (&fine)[TILES][2][4],
                       float (&near)[TILES][2][4]) {
    if (C::SINCE) {
      float rest[TILES][2][4] = {};
      near_steps(near, rest);
#pragma unroll
      for (int x = 0; x < 8 * TILES && C::APART; ++x)
        near[x / 8][x / 4 % 2][x % 4] += rest[x / 8][x / 4 % 2][x % 4];
    } else if (!C::COLUMN) {
      near_steps(out, fine);
    }
  };
  // Adds S q: planes of the state as it lies in registers are the left operands. `out` is there after
  // a wait.
  auto read_state = [&](u32 slot, float (&out)[TILES][2][4], float (&fine)[TILES][2][4]) {
    // Pieces of 16 rows whose operands are held at a time.
    constexpr int MOST = (C::K * TILES <= 128 ? 8 : 4) / (TILES * LEFT);
    constexpr int GROUP = MOST < 1 ? 1 : MOST >= 8 && PIECES >= 8 ? 8 : MOST >= 4 ? 4 : MOST >= 2 ? 2 : 1;
    const u64 q = matrix_at(slot + C::Q, C::PANEL);
    float whole[TILES][2][4] = {};
#pragma unroll
    for (int first = 0; first < PIECES; first += GROUP) {
      if (first >= 2 * GROUP) product_wait<1>();
      u32 a[TILES][LEFT][GROUP][4];
#pragma unroll
      for (int m = 0; m < TILES; ++m) {
#pragma unroll
        for (int i = 0; i < GROUP; ++i)
#pragma unroll
          for (int x = 0; x < 4; ++x) {
            const float(&from)[4] = f.s[m][2 * (first + i) + x / 2];
            float2 pair = make_float2(from[x % 2 * 2], from[x % 2 * 2 + 1]);
#pragma unroll
            for (int plane = 0; plane < LEFT; ++plane) a[m][plane][i][x] = next_plane(pair);
          }
#pragma unroll
        for (int plane = 0; plane < LEFT; ++plane) ready(a[m][plane]);
        ready(out[m]);
        if (C::APART) ready(fine[m]);
      }
      product_fence();
#pragma unroll
      for (int i = 0; i < GROUP; ++i) {
        const int piece = first + i;
        const u64 at = q + ((piece / 4 * C::PANEL + piece % 4 * 32) >> 4);
#pragma unroll
        for (int sum = C::TERMS - 1; sum >= 0; --sum)
#pragma unroll
          for (int plane = 0; plane < LEFT; ++plane)
            if (sum >= plane && sum - plane < C::RIGHT)
#pragma unroll
              for (int m = 0; m < TILES; ++m)
                product_of_rows(sum && C::APART ? fine[m] : out[m], a[m][plane][i], at + ((sum - plane) * C::PLANE >> 4));
      }
      product_commit();
      if (C::APART && (first + GROUP) % 4 == 0 && first + GROUP < PIECES) {  // fresh leading sums
        product_wait<0>();
#pragma unroll
        for (int m = 0; m < TILES; ++m) {
          ready(out[m]), ready(fine[m]);
#pragma unroll
          for (int x = 0; x < 8; ++x)
            whole[m][x / 4][x % 4] += out[m][x / 4][x % 4], out[m][x / 4][x % 4] = 0.0f;
        }
      }
    }
    if (C::APART && PIECES > 4) {
      product_wait<0>();
#pragma unroll
      for (int m = 0; m < TILES; ++m) {
        ready(out[m]), ready(fine[m]);
#pragma unroll
        for (int x = 0; x < 8; ++x) out[m][x / 4][x % 4] += whole[m][x / 4][x % 4];
      }
    }
  };
  auto decay_of = [&](u32 slot, int j) {
    return C::KEY ? load64(slot + decays_at + j * 32) : make_float2(1.0f, 1.0f);
  };
  // A fragment of the state times the gates of the chunk, `added` to it.
  auto decayed = [&](float (&x)[4], int m, float2 row, const float (&added)[4]) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float gate = 1.0f;
      if (C::KEY) gate = e % 2 ? row.y : row.x;
      if (C::COLUMN) gate = C::KEY ? gate * gates.all[m][e / 2] : gates.all[m][e / 2];
      if (C::SCALAR) gate = chunk_decay;
      if (C::APART) x[e] = fmaf(x[e], gate, added[e]);
      else if (C::KEY || C::COLUMN || C::HEAD) x[e] *= gate;
    }
  };
  // The state after the chunk, once that product is over.
  auto pass = [&](u32 slot) {
    u32 v[TILES][LEFT][4];
#pragma unroll
    for (int m = 0; m < TILES; ++m) {
#pragma unroll
      for (int x = 0; x < 4 * LEFT; ++x)
        v[m][x / 4][x % 4] = C::COLUMN ? gates.v[m][x / 4][x % 4] : values[m][x / 4][x % 4];
      if (C::SINCE)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float2 x = make_float2(0.0f, 0.0f);
#pragma unroll
          for (int plane = LEFT - 1; plane >= 0; --plane) {
            const float2 part = unpack(values[m][plane][i]);
            x.x += part.x, x.y += part.y;
          }
          x = x * after[i / 2];
#pragma unroll
          for (int plane = 0; plane < LEFT; ++plane) v[m][plane][i] = next_plane(x);
        }
      ready(v[m]);
    }
    const u64 k = matrix_at(slot + C::KEYS, C::PANEL);
    if constexpr (C::APART) {
      // Into fresh sums, 64 rows at a time: what tensor cores cut off would add up over a sequence.
#pragma unroll
      for (int panel = 0; panel < C::ROWS / 64; ++panel)
#pragma unroll
        for (int m = 0; m < TILES; ++m) {
          float fresh[8][4] = {};
          ready(fresh);
          product_fence();
          add_steps<C>(fresh, v[m], k + panel * (C::PANEL >> 4));
          product_commit();
          product_wait<0>();
          ready(fresh);
#pragma unroll
          for (int j = 0; j < 8; ++j)
            decayed(f.s[m][panel * 8 + j], m, decay_of(slot, panel * 8 + j), fresh[j]);
        }
    } else {
#pragma unroll
      for (int j = 0; j < 2 * PIECES; ++j) {
        const float2 row = decay_of(slot, j);
#pragma unroll
        for (int m = 0; m < TILES; ++m) decayed(f.s[m][j], m, row, f.s[m][j]);
      }
#pragma unroll
      for (int m = 0; m < TILES; ++m) ready(f.s[m]);
      product_fence();
#pragma unroll
      for (int m = 0; m < TILES; ++m) add_steps<C>(f.s[m], v[m], k);
      product_commit();
    }
  };
  // y of the chunk's own steps, and what comes from the state with the gates since.
  auto both = [&](float (&out)[TILES][2][4], const float (&near)[TILES][2][4]) {
#pragma unroll
    for (int m = 0; m < TILES; ++m)
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        if (C::COLUMN) {
          out[m][0][x] = fmaf(gates.to[m][0][x], out[m][0][x], gates.y[m][0][x]);
          out[m][1][x] = fmaf(gates.to[m][1][x],
                              fmaf(gates.first[m][x / 2], out[m][1][x], gates.cross[m][x]),
                              gates.y[m][1][x]);
        } else if (C::SINCE) {
#pragma unroll
          for (int half = 0; half < 2; ++half)
            out[m][half][x] = fmaf(x % 2 ? since[half].y : since[half].x, out[m][half][x], near[m][half][x]);
        }
      }
  };
  auto finish = [&](float (&out)[TILES][2][4], int n) {
    uint4 before[TILES];
    if (C::SIZE == 2 && n > 0) fetch(before, (n - 1) & 1);
#pragma unroll
    for (int m = 0; m < TILES; ++m) {
      if (C::SIZE == 4) {
        if (n >= w.silent)
#pragma unroll
          for (int x = 0; x < 8; ++x) {
            const int t = n * 16 + x / 4 * 8 + c * 2 + x % 2;
            if (t < steps && has_column(p, column_of<C>(w, m, x % 4)))
              reinterpret_cast<float*>(y)[t * y_step + m * 16 + lane / 4 + x / 2 % 2 * 8] =
                  p.scale * out[m][x / 4][x % 4];
          }
        continue;
      }
      u32 packed[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float a = p.scale * out[m][i / 2][i % 2 * 2], b = p.scale * out[m][i / 2][i % 2 * 2 + 1];
        packed[i] = C::FINE ? pack_half(a, b) : pack(a, b);
      }
      store_transposed(stored_at[m] + (n & 1) * 16 * C::OUT_ROW, packed);
    }
    if (C::SIZE == 2 && n > 0) write(before, n - 1);
    __syncwarp();
  };

  if (w.chunks > 0) next(0);
  int at_slot = 0;
#pragma unroll 1
  for (int n = 0; n < w.chunks; ++n) {
    const u32 slot = shared + at_slot * C::SLOT;
    float out[TILES][2][4] = {}, fine[TILES][2][4] = {}, near[TILES][2][4] = {};
    if (unsafe >= ALL_SAFE) {
      if (!C::ENDS) own_steps(out, fine, near), read_state(slot, out, fine);
      pass(slot);
      if (!C::ENDS) {
        product_wait<C::APART ? 0 : 1>();
#pragma unroll
        for (int m = 0; m < TILES; ++m) {
          ready(out[m]);
          if (C::APART) ready(fine[m]);
#pragma unroll
          for (int x = 0; x < 8 && C::APART; ++x) out[m][x / 4][x % 4] += fine[m][x / 4][x % 4];
        }
        both(out, near), finish(out, n);
      }
      product_wait<0>();
#pragma unroll
      for (int m = 0; m < TILES; ++m) ready(f.s[m]);
    } else {
      if (!C::ENDS) {
        own_steps(out, fine, near), read_state(slot, out, fine);
        product_wait<0>();
#pragma unroll
        for (int m = 0; m < TILES; ++m) {
          ready(out[m]);
          if (C::APART) ready(fine[m]);
#pragma unroll
          for (int x = 0; x < 8 && C::APART; ++x) out[m][x / 4][x % 4] += fine[m][x / 4][x % 4];
        }
      }
      // Copies, because what a function is given by reference cannot stay in registers.
      Fragments<C> copy = f;
      const Arguments<C> p_copy = p;
      const Work w_copy = w;
      float walked[TILES][2][4] = {};
      walk<C>(p_copy, s, w_copy, n, unsafe, copy, walked);
      f = copy;
      auto take_walked = [&]() {
#pragma unroll
        for (int m = 0; m < TILES; ++m)
#pragma unroll
          for (int i = 0; i < 8; ++i)
            if (i / 4 * 8 + c * 2 + i % 2 >= unsafe) out[m][i / 4][i % 4] = walked[m][i / 4][i % 4];
      };
      if (!C::ENDS) {
        both(out, near), take_walked(), finish(out, n);
      }
    }
    arrive(empty + 8 * at_slot);
    if (++at_slot == C::SLOTS) at_slot = 0;
    if (n + 1 < w.chunks) next(n + 1);
  }

  if (!C::ENDS && C::SIZE == 2 && w.chunks > 0) {
    uint4 before[TILES];
    fetch(before, (w.chunks - 1) & 1);
    write(before, w.chunks - 1);
  }
  if (C::ENDS) {
    const int64 at = static_cast<int64>(w.chain) * (p.segments - 1) + w.segment;
#pragma unroll
    for (int m = 0; m < TILES; ++m) {
      const int tile = w.column / 16 + warp * TILES + m;
      float4* const ends = p.ends + (at * (all_columns(p) / 16) + tile) * (C::K / 8 * 32) + lane;
#pragma unroll
      for (int j = 0; j < C::ROWS / 8; ++j) {
        const float(&x)[4] = f.s[m][j];
        store_global128(ends + j * 32, make_uint4(__float_as_uint(x[0]), __float_as_uint(x[1]),
                                                  __float_as_uint(x[2]), __float_as_uint(x[3])));
      }
      if (!(C::KEY && !C::VALUE) && c == 0)
#pragma unroll
        for (int r = 0; r < 2; ++r)
          p.decays[at * width<C>(p) + C::ROW_DECAYS + tile * 16 + lane / 4 + r * 8] =
              checked_decay(total[m][r], growth[m][r]);
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

template <class C>
__global__ void __launch_bounds__(C::THREADS, 1)
    chunked(const typename C::Element* q, const typename C::Element* k, const typename C::Element* v, const typename C::Gate* gate_k,
            const typename C::Gate* gate_v, const typename C::Gate* gate_head, const float* initial,
            typename C::Element* y, float* last, float4* ends, float* decays, const char* operands,
            const uint4* products, const float* chunk_decays, const void* bounds, int T, int H,
            int V, int rows, int segments, int lead, int length, int bounds_64, int group,
            float scale,
            const __grid_constant__ Layout layout) {
  extern __shared__ __align__(1024) char memory[];
  const u32 shared = shared_address(memory);
  Arguments<C> p{q, k, v, gate_k, gate_v, gate_head, initial, y, last, ends, decays, operands, products,
              chunk_decays, bounds, T, H, V, rows, segments, lead, length, bounds_64, group, scale};
  const Work w = begin<C>(p, layout, memory);

  if (threadIdx.x == 0) {  // every lane arrives: racecheck follows no order through one for its warp
    for (int i = 0; i < C::SLOTS; ++i) {
      init_barrier(shared + C::AT_BARRIERS + 8 * i, 32 * C::PARTS);
      init_barrier(shared + C::AT_BARRIERS + (C::SLOTS + i) * 8, 32 * C::STATES);
    }
    if (C::HALVES > 1)
      for (int i = 0; i < C::TEAMS * 4; ++i)
        init_barrier(shared + C::AT_BARRIERS + C::SLOTS * 16 + 8 * i, 32);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x >= 32 * C::STATES) {
    if constexpr (C::PREPARED) fetch_prepared<C>(p, layout, w, shared);
    else prepare<C>(p, layout, w, shared);
  } else if constexpr (C::BY_WARPS) hold_by_warps<C>(p, layout, w, shared);
  else hold<C>(p, layout, w, shared);
  if (C::KEY && C::ENDS) {  // the product of gates over the groups of preparing warps
    __syncthreads();
    for (int row = threadIdx.x; w.column == 0 && row < C::K; row += C::THREADS) {
      float total = 1.0f, growth = 1.0f;
#pragma unroll
      for (int i = 0; i < C::GROUPS; ++i) {
        const u32 at = shared + C::AT_TOTALS + i * C::TOTALS + row * 4;
        total *= load_float(at), growth *= load_float(at + 4 * C::K);
      }
      p.decays[(static_cast<int64>(w.chain) * (segments - 1) + w.segment) * width<C>(p) + row] =
          checked_decay(total, growth);
    }
  }
}
