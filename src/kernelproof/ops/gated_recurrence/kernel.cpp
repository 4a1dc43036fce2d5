// Gated recurrence on the CPU.
//
// One task is a head of one sequence and a run of column tiles; a tile is one SIMD vector of columns.
// Columns of the state never meet, so a tile walks through time on its own. Time is cut into
// pieces of PIECE steps; within a piece a block of rows of the state stays in registers while it
// passes all steps, and its share of y is added to a small buffer. Every (row, column, step) is
// computed by the same operations whatever the threads, so results do not depend on their number,
// and y[t] does not depend on anything after t.

#include "common.h"

namespace {

struct Piece {
  Rows q, k, gate_k, v, gate;
  Real* y;  // (steps, W)
  int64_t steps;
};

// R rows of one tile, `apart` Reals from one to the next, through the steps of a piece; the first
// rows of a tile set y, others add.
template <int R, bool KEY_GATE, bool COLUMN_GATE>
__attribute__((noinline)) void advance(const Piece& p, int64_t row, Real* state, ptrdiff_t apart) {
  state += row * apart;
  Vec s[R];
#pragma GCC unroll 32
  for (int r = 0; r < R; ++r) s[r] = load(state + r * apart);
  const Real *q = p.q.at + row, *k = p.k.at + row, *gk = KEY_GATE ? p.gate_k.at + row : nullptr;
  const Real *v_at = p.v.at, *g_at = p.gate.at;
  Real* y = p.y;
  for (int64_t t = 0; t < p.steps; ++t) {
    const Vec v = load(v_at), g = COLUMN_GATE ? load(g_at) : Vec{};
    Vec sum[4] = {};
#pragma GCC unroll 32
    for (int r = 0; r < R; ++r) {
      Vec old = s[r];
      if (KEY_GATE) old = old * gk[r];
      if (COLUMN_GATE) old = old * g;
      s[r] = old + v * k[r];
      sum[r & 3] += s[r] * q[r];
    }
    const Vec all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    store(y, row == 0 ? all : load(y) + all);
    q += p.q.step;
    k += p.k.step;
    v_at += p.v.step;
    y += W;
    if (KEY_GATE) gk += p.gate_k.step;
    if (COLUMN_GATE) g_at += p.gate.step;
  }
#pragma GCC unroll 32
  for (int r = 0; r < R; ++r) store(state + r * apart, s[r]);
}

// All K rows of one tile. Blocks of exact size instead of padded rows: a padded row would turn
// an infinite gate into NaN.
template <bool KEY_GATE, bool COLUMN_GATE>
void advance_all(const Piece& p, int64_t K, Real* state, ptrdiff_t apart) {
  int64_t row = 0;
  for (; K - row >= ROWS; row += ROWS) advance<ROWS, KEY_GATE, COLUMN_GATE>(p, row, state, apart);
  for (; K - row >= 8; row += 8) advance<8, KEY_GATE, COLUMN_GATE>(p, row, state, apart);
  if (K - row >= 4) {
    advance<4, KEY_GATE, COLUMN_GATE>(p, row, state, apart);
    row += 4;
  }
  for (; row < K; ++row) advance<1, KEY_GATE, COLUMN_GATE>(p, row, state, apart);
}

struct Pointers {
  const void *q, *k, *v, *gate_k, *gate_v, *gate_head;
  const Real* initial;
  const int64_t* bounds;
  void* y;
  Real* last;
  Real scale;
};

// Scratch of one thread, in Reals.
int64_t scratch_size(const Plan& n, int64_t tiles) {
  return 3 * PIECE * n.K + tiles * n.K * W + 3 * PIECE * W;
}

// The gate of the columns of one tile: gate_v times gate_head, whichever are given.
Rows column_gate(const Plan& n, const Pointers& p, int64_t b, int64_t h, int64_t column,
                 int columns, int64_t t0, int64_t steps, Real* space) {
  const Element& e = ELEMENTS[n.gate];
  Rows gate{nullptr, 0};
  if (p.gate_v != nullptr)
    gate = tile(at(p.gate_v, e, n.gate_v, b, t0, h, column), n.gate, n.gate_v, steps, columns,
                space, n.log);
  if (p.gate_head == nullptr) return gate;
  Real heads[PIECE];
  e.rows(at(p.gate_head, e, n.gate_head, b, t0, h, 0), n.gate_head, steps, 1, heads);
  if (n.log) exponentials(heads, steps);
  times_heads(gate, heads, steps, space);
  return {space, W};
}

// Columns first * W ... of head h of one sequence, from its first step to the last.
void task(const Plan& n, const Pointers& p, int64_t sequence, int64_t h, int64_t first,
          int64_t tiles, Real* scratch) {
  const Element &e = ELEMENTS[n.element], &ge = ELEMENTS[n.gate];
  const Span span = span_of(n, p.bounds, sequence);
  const int64_t b = span.b, key_head = h / n.group;
  Real* const packed = scratch;
  Real* const states = packed + 3 * PIECE * n.K;
  Real* const v = states + tiles * n.K * W;
  Real* const gate = v + PIECE * W;
  Real* const y = gate + PIECE * W;
  const bool key_gate = p.gate_k != nullptr;
  const bool with_column_gate = p.gate_v != nullptr || p.gate_head != nullptr;
  auto columns_of = [&](int64_t x) {
    const int64_t left = n.V - (first + x) * W;
    return int(left < W ? left : W);
  };
  // Where the matrix of this task begins in a tensor of states.
  auto offset = [&](const Strides& s, int64_t x) {
    return sequence * s.b + h * s.t + (first + x) * W * s.d;
  };

  // A state that is updated in place stays where it is, but for a last tile that is not whole.
  const bool in_place = p.last != nullptr && p.last == p.initial && n.last.d == 1;
  auto stays = [&](int64_t x) { return in_place && columns_of(x) == W; };
  for (int64_t x = 0; x < tiles; ++x)
    if (!stays(x))
      load_state(p.initial == nullptr ? nullptr : p.initial + offset(n.initial, x), n.initial, n.K,
                 columns_of(x), states + x * n.K * W);

  Piece piece{};
  piece.y = y;
  if (n.K == 0) std::memset(y, 0, PIECE * W * sizeof(Real));  // no row will set it
  for (int64_t done = 0; done < span.steps; done += PIECE) {
    const int64_t t0 = span.t0 + done;
    piece.steps = span.steps - done < PIECE ? span.steps - done : PIECE;
    piece.q = rows(at(p.q, e, n.q, b, t0, key_head, 0), n.element, n.q, piece.steps, n.K, packed);
    piece.k = rows(at(p.k, e, n.k, b, t0, key_head, 0), n.element, n.k, piece.steps, n.K,
                   packed + PIECE * n.K);
    if (key_gate)
      piece.gate_k = rows(at(p.gate_k, ge, n.gate_k, b, t0, h, 0), n.gate, n.gate_k, piece.steps,
                          n.K, packed + 2 * PIECE * n.K, n.log);
    for (int64_t x = 0; x < tiles; ++x) {
      const int64_t column = (first + x) * W;
      const int columns = columns_of(x);
      piece.v = tile(at(p.v, e, n.v, b, t0, h, column), n.element, n.v, piece.steps, columns, v);
      if (with_column_gate)
        piece.gate = column_gate(n, p, b, h, column, columns, t0, piece.steps, gate);
      Real* const state = stays(x) ? p.last + offset(n.last, x) : states + x * n.K * W;
      const ptrdiff_t apart = stays(x) ? n.last.h : W;
      if (key_gate && with_column_gate) advance_all<true, true>(piece, n.K, state, apart);
      else if (key_gate) advance_all<true, false>(piece, n.K, state, apart);
      else if (with_column_gate) advance_all<false, true>(piece, n.K, state, apart);
      else advance_all<false, false>(piece, n.K, state, apart);
      const int64_t out = ((b * n.T + t0) * n.H + h) * n.V + column;
      e.write(y, p.scale, piece.steps, columns, static_cast<char*>(p.y) + out * e.size, n.H * n.V);
    }
  }

  if (p.last == nullptr) return;
  for (int64_t x = 0; x < tiles; ++x)
    if (!stays(x))
      store_state(states + x * n.K * W, n.last, n.K, columns_of(x), p.last + offset(n.last, x));
}

int run(const Plan& n, const Pointers& p) {
  const int64_t heads = n.N * n.H, all_tiles = (n.V + W - 1) / W;
  const int threads = omp_get_max_threads();
  // Whole heads share the conversion of q and k; split them only to keep all threads busy.
  const int64_t wanted = (4 * threads + heads - 1) / heads;
  const int64_t runs = wanted < all_tiles ? wanted : all_tiles;
  const int64_t tiles = (all_tiles + runs - 1) / runs;
  const int64_t tasks_per_head = (all_tiles + tiles - 1) / tiles, tasks = heads * tasks_per_head;
  // Below this many multiply-adds, waking other threads costs more than they save.
  const double steps = p.bounds == nullptr ? double(n.N) * (n.T + 1) : double(n.N + n.T);
  const bool parallel = tasks > 1 && steps * n.H * n.K * n.V > 65536;
  int failed = 0;
#pragma omp parallel if (parallel) reduction(| : failed)
  {
    Real* const scratch = scratch_of(scratch_size(n, tiles));
    failed |= scratch == nullptr;
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < tasks; ++i) {
      if (scratch == nullptr) continue;
      const int64_t head = i / tasks_per_head, first = i % tasks_per_head * tiles;
      const int64_t count = all_tiles - first < tiles ? all_tiles - first : tiles;
      task(n, p, head / n.H, head % n.H, first, count, scratch);
    }
    std::free(scratch);
  }
  return failed;
}

}  // namespace

// Returns 0, or 1 where scratch memory could not be had (y is then incomplete). `last` may be
// `initial` itself, with its strides: the state is then updated in place.
extern "C" int gated_recurrence(const int64_t* plan, const void* q, const void* k, const void* v,
                                const void* gate_k, const void* gate_v, const void* gate_head,
                                const Real* initial, const int64_t* bounds, void* y, Real* last,
                                double scale) {
  static_assert(sizeof(Plan) == 45 * sizeof(int64_t), "cpu.py fills 45 numbers");
  Plan n;
  std::memcpy(&n, plan, sizeof n);
  const Pointers p{q,       k,      v, gate_k, gate_v,      gate_head,
                   initial, bounds, y, last,   Real(scale)};
  if (n.N == 0 || n.H == 0 || n.V == 0) return 0;
  return run(n, p);
}
