// Gradients of the gated recurrence on the CPU.
//
// With S_t = g_t * S_{t-1} + k_t v_t^T (g_t[i][j] the product of the gates) and y_t = scale q_t S_t,
// the gradient of the loss by S_t, over every way in which S_t reaches it, is
//
//   D_t = scale q_t dy_t^T + g_{t+1} * D_{t+1},   starting from the gradient of the last state,
//
// and dq_t = scale S_t dy_t, dk_t = D_t v_t, dv_t = k_t D_t, dg_t = S_{t-1} * D_t. No division and
// no logarithm, so gates of zero and negative ones get their gradient. S is needed from the end
// back: a first pass keeps it every PIECE steps only, and each piece is run again when its turn
// comes, with its states in scratch memory.
//
// One task is a head of one sequence. Sums over rows and columns are formed in one order whatever
// the threads, so results do not depend on their number.

#include "common.h"

namespace {

constexpr int BLOCK = 4;  // rows; the states of a piece of a block and tile stay in the L1 cache

struct Tile {  // of one piece, (steps, W) each
  Rows v, grad;
  Rows values;    // gate_v, or null
  Rows gate;      // gate_v times gate_head, or null
  Real *dv, *by_column;
};

struct Piece {
  Rows q, k, gate_k;
  Real *parts;  // 3 x (steps, BLOCK, W): of dq, dk and the gates of rows
  Real *history;  // (steps, BLOCK, W): states before each step
  int64_t steps;
  Real scale;
};

// Which gates there are. All that depends on it is decided by the compiler: these loops are long.
template <bool KEY_, bool VALUE_, bool HEAD_>
struct Gates {
  static constexpr bool KEY = KEY_, VALUE = VALUE_, COLUMN = VALUE_ || HEAD_, ROW = KEY_ || HEAD_;
};

// R rows of a tile forward through a piece. RECORD: keep the states, and collect dq; the FIRST tile
// sets the sums that others add to.
template <int R, class G, bool RECORD, bool FIRST>
__attribute__((noinline)) void forward(const Piece& p, const Tile& x, int64_t row, Real* state) {
  constexpr bool KEY_GATE = G::KEY, COLUMN_GATE = G::COLUMN;
  Vec s[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) s[r] = load(state + r * W);
  for (int64_t t = 0; t < p.steps; ++t) {
    const Real *k = p.k.at + t * p.k.step + row;
    const Real *gk = KEY_GATE ? p.gate_k.at + t * p.gate_k.step + row : nullptr;
    const Vec v = load(x.v.at + t * x.v.step);
    const Vec g = COLUMN_GATE ? load(x.gate.at + t * x.gate.step) : Vec{};
    const Vec grad = RECORD ? load(x.grad.at + t * x.grad.step) : Vec{};
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const int64_t place = (t * BLOCK + r) * W;
      if (RECORD) store(p.history + place, s[r]);
      Vec old = s[r];
      if (KEY_GATE) old = old * gk[r];
      if (COLUMN_GATE) old = old * g;
      s[r] = old + v * k[r];
      if (RECORD) {
        const Vec part = s[r] * grad;
        store(p.parts + place, FIRST ? part : load(p.parts + place) + part);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) store(state + r * W, s[r]);
}

// Within the range of Real: a gradient that left it meets states and values of zero, which have to
// stay zero. NaN stays NaN.
inline Vec in_range(Vec x) {
  constexpr Real most = std::numeric_limits<Real>::max();
  const Vec top = Vec{} + most;
  x = x > top ? top : x;
  return x < -top ? -top : x;
}

// R rows of a tile back through a piece: `d` holds the gradient by the state after the last step
// that reaches it through later steps, and then that by the state before the first.
template <int R, class G, bool FIRST>
__attribute__((noinline)) void backward(const Piece& p, const Tile& x, int64_t row, Real* d) {
  constexpr bool KEY_GATE = G::KEY, COLUMN_GATE = G::COLUMN;
  Vec s[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) s[r] = load(d + r * W);
  constexpr int64_t ALL = int64_t(PIECE) * BLOCK * W;
  for (int64_t t = p.steps - 1; t >= 0; --t) {
    const Real *q = p.q.at + t * p.q.step + row, *k = p.k.at + t * p.k.step + row;
    const Real *gk = KEY_GATE ? p.gate_k.at + t * p.gate_k.step + row : nullptr;
    const Vec v = load(x.v.at + t * x.v.step), grad = load(x.grad.at + t * x.grad.step);
    const Vec g = COLUMN_GATE ? load(x.gate.at + t * x.gate.step) : Vec{};
    const Vec gv = G::VALUE ? load(x.values.at + t * x.values.step) : Vec{};
    Vec dv = load(x.dv + t * W), by_column = {};
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const int64_t place = (t * BLOCK + r) * W;
      const Vec now = in_range(s[r] + grad * (p.scale * q[r]));
      const Vec gates = load(p.history + place) * now;
      Real* const to = p.parts + place;
      const Vec by_key = now * v;
      store(to + ALL, FIRST ? by_key : load(to + ALL) + by_key);
      if (G::ROW) {
        const Vec part = G::VALUE ? gates * gv : gates;
        store(to + 2 * ALL, FIRST ? part : load(to + 2 * ALL) + part);
      }
      dv += now * k[r];
      if (G::VALUE) by_column += KEY_GATE ? gates * gk[r] : gates;
      Vec before = now;
      if (KEY_GATE) before = before * gk[r];
      if (COLUMN_GATE) before = (KEY_GATE ? in_range(before) : before) * g;
      s[r] = before;
    }
    store(x.dv + t * W, dv);
    if (G::VALUE) store(x.by_column + t * W, load(x.by_column + t * W) + by_column);
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) store(d + r * W, in_range(s[r]));
}

struct Pointers {
  const void *q, *k, *v, *gate_k, *gate_v, *gate_head, *grad;
  const Real *initial, *grad_last;
  const int64_t* bounds;
  // Contiguous: (B, T, H, K), (B, T, H, V), (N, H, K, V). Null: not wanted, except dq, dk, dv.
  Real *dq, *dk, *dv, *by_row, *by_column, *d_initial;
  Real scale;
};

inline Real sum_of(const Real* x) {
  constexpr int QUARTER = 16 / sizeof(Real);  // four floats or two doubles: their sum is cheap
  typedef Real Quarter __attribute__((vector_size(16)));
  Quarter sum = {};
#pragma GCC unroll 8
  for (int j = 0; j < W; j += QUARTER) {
    Quarter part;
    std::memcpy(&part, x + j, sizeof part);
    sum += part;
  }
  Real all = sum[0] + sum[1];
  if (QUARTER == 4) all += sum[QUARTER - 2] + sum[QUARTER - 1];
  return all;
}

struct Task {
  const Plan& n;
  const Pointers& p;
  int64_t h, tiles;
  Span span;
  Real *packed, *columns, *states, *checkpoints, *gradient, *history, *parts;
  Tile* tile;

  int64_t matrix() const { return tiles * n.K * W; }
  int width(int64_t x) const { return int(n.V - x * W < W ? n.V - x * W : W); }
  Piece piece_at(int64_t done, bool with_gradient) const;
  template <class G>
  void walk() const;
  template <int R, class G>
  void rows_back(const Piece& piece, int64_t row, const Real* start, int64_t token) const;
  void columns_out(const Piece& piece, int64_t token) const;
};

// The inputs of the piece that starts `done` steps into the sequence, as Reals.
Piece Task::piece_at(int64_t done, bool with_gradient) const {
  const Element &e = ELEMENTS[n.element], &ge = ELEMENTS[n.gate];
  const int64_t b = span.b, t0 = span.t0 + done, key_head = h / n.group;
  Piece piece{};
  piece.steps = span.steps - done < PIECE ? span.steps - done : PIECE;
  piece.parts = parts, piece.history = history, piece.scale = p.scale;
  const int64_t steps = piece.steps;
  piece.k = rows(at(p.k, e, n.k, b, t0, key_head, 0), n.element, n.k, steps, n.K, packed);
  if (with_gradient)
    piece.q = rows(at(p.q, e, n.q, b, t0, key_head, 0), n.element, n.q, steps, n.K,
                   packed + PIECE * n.K);
  if (p.gate_k != nullptr)
    piece.gate_k = rows(at(p.gate_k, ge, n.gate_k, b, t0, h, 0), n.gate, n.gate_k, steps, n.K,
                        packed + 2 * PIECE * n.K, n.log);
  Real heads[PIECE];
  if (p.gate_head != nullptr) {
    ge.rows(at(p.gate_head, ge, n.gate_head, b, t0, h, 0), n.gate_head, steps, 1, heads);
    if (n.log) exponentials(heads, steps);
  }
  for (int64_t x = 0; x < tiles; ++x) {
    Real* const space = columns + x * 6 * PIECE * W;
    Tile& c = tile[x];
    c = {};
    c.v = ::tile(at(p.v, e, n.v, b, t0, h, x * W), n.element, n.v, steps, width(x), space);
    if (with_gradient)
      c.grad = ::tile(at(p.grad, e, n.grad, b, t0, h, x * W), n.element, n.grad, steps, width(x),
                      space + PIECE * W);
    if (p.gate_v != nullptr)
      c.gate = c.values = ::tile(at(p.gate_v, ge, n.gate_v, b, t0, h, x * W), n.gate, n.gate_v,
                                 steps, width(x), space + 2 * PIECE * W, n.log);
    if (p.gate_head != nullptr) {
      Real* const gate = space + 3 * PIECE * W;
      times_heads(c.values, heads, steps, gate);
      c.gate = {gate, W};
    }
    c.dv = space + 4 * PIECE * W;
    c.by_column = space + 5 * PIECE * W;
    std::memset(c.dv, 0, 2 * PIECE * W * sizeof(Real));
  }
  return piece;
}

// R rows of all tiles through a piece, forward and back; their sums over columns to memory.
template <int R, class G>
void Task::rows_back(const Piece& piece, int64_t row, const Real* start, int64_t token) const {
  Real state[R * W];
  for (int64_t x = 0; x < tiles; ++x) {
    const int64_t place = (x * n.K + row) * W;
    std::memcpy(state, start + place, sizeof state);
    if (x == 0) {
      forward<R, G, true, true>(piece, tile[x], row, state);
      backward<R, G, true>(piece, tile[x], row, gradient + place);
    } else {
      forward<R, G, true, false>(piece, tile[x], row, state);
      backward<R, G, false>(piece, tile[x], row, gradient + place);
    }
  }
  const int64_t all = int64_t(PIECE) * BLOCK * W;
  for (int64_t t = 0; t < piece.steps; ++t)
    for (int r = 0; r < R; ++r) {
      const Real* const part = parts + (t * BLOCK + r) * W;
      const int64_t to = ((token + t) * n.H + h) * n.K + row + r;
      p.dq[to] = p.scale * sum_of(part);
      p.dk[to] = sum_of(part + all);
      if (G::ROW) p.by_row[to] = sum_of(part + 2 * all);
    }
}

void Task::columns_out(const Piece& piece, int64_t token) const {
  for (int64_t x = 0; x < tiles; ++x)
    for (int64_t t = 0; t < piece.steps; ++t) {
      const int64_t to = ((token + t) * n.H + h) * n.V + x * W;
      std::memcpy(p.dv + to, tile[x].dv + t * W, width(x) * sizeof(Real));
      if (p.by_column != nullptr)
        std::memcpy(p.by_column + to, tile[x].by_column + t * W, width(x) * sizeof(Real));
    }
}

template <class G>
void Task::walk() const {
  const int64_t pieces = (span.steps + PIECE - 1) / PIECE;
  for (int64_t i = 0; i < pieces; ++i) {
    std::memcpy(checkpoints + i * matrix(), states, matrix() * sizeof(Real));
    if (i == pieces - 1) break;
    const Piece piece = piece_at(i * PIECE, false);
    for (int64_t x = 0; x < tiles; ++x) {
      Real* const state = states + x * n.K * W;
      int64_t row = 0;
      for (; n.K - row >= BLOCK; row += BLOCK)
        forward<BLOCK, G, false, false>(piece, tile[x], row, state + row * W);
      for (; row < n.K; ++row)
        forward<1, G, false, false>(piece, tile[x], row, state + row * W);
    }
  }
  for (int64_t i = pieces - 1; i >= 0; --i) {
    const Piece piece = piece_at(i * PIECE, true);
    const Real* const start = checkpoints + i * matrix();
    const int64_t token = span.b * n.T + span.t0 + i * PIECE;
    int64_t row = 0;
    for (; n.K - row >= BLOCK; row += BLOCK)
      rows_back<BLOCK, G>(piece, row, start, token);
    for (; row < n.K; ++row) rows_back<1, G>(piece, row, start, token);
    columns_out(piece, token);
  }
}

void task(const Plan& n, const Pointers& p, int64_t sequence, int64_t h, int64_t tiles,
          Real* scratch, Tile* tile) {
  const int64_t matrix = tiles * n.K * W, block = int64_t(PIECE) * BLOCK * W;
  Real* const packed = scratch;
  Real* const columns = packed + 3 * PIECE * n.K;
  Real* const states = columns + 6 * PIECE * tiles * W;
  Real* const gradient = states + matrix;
  Real* const history = gradient + matrix;
  Real* const parts = history + block;
  Real* const checkpoints = parts + 3 * block;
  const Task t{n,      p,           h,        tiles,   span_of(n, p.bounds, sequence), packed,
               columns, states, checkpoints, gradient, history, parts, tile};
  for (int64_t x = 0; x < tiles; ++x) {
    auto place = [&](const Strides& s) { return sequence * s.b + h * s.t + x * W * s.d; };
    load_state(p.initial == nullptr ? nullptr : p.initial + place(n.initial), n.initial, n.K,
               t.width(x), states + x * n.K * W);
    load_state(p.grad_last == nullptr ? nullptr : p.grad_last + place(n.last), n.last, n.K,
               t.width(x), gradient + x * n.K * W);
  }
  const int gates = (p.gate_k != nullptr) + 2 * (p.gate_v != nullptr) + 4 * (p.gate_head != nullptr);
  switch (gates) {
    case 0: t.walk<Gates<false, false, false>>(); break;
    case 1: t.walk<Gates<true, false, false>>(); break;
    case 2: t.walk<Gates<false, true, false>>(); break;
    case 3: t.walk<Gates<true, true, false>>(); break;
    case 4: t.walk<Gates<false, false, true>>(); break;
    case 5: t.walk<Gates<true, false, true>>(); break;
    case 6: t.walk<Gates<false, true, true>>(); break;
    default: t.walk<Gates<true, true, true>>();
  }
  if (p.d_initial == nullptr) return;
  const Strides out{n.H * n.K * n.V, n.K * n.V, n.V, 1};
  for (int64_t x = 0; x < tiles; ++x)
    store_state(gradient + x * n.K * W, out, n.K, t.width(x),
                p.d_initial + sequence * out.b + h * out.t + x * W);
}

int run(const Plan& n, const Pointers& p) {
  const int64_t tasks = n.N * n.H, tiles = (n.V + W - 1) / W;
  int64_t longest = 0;
  for (int64_t i = 0; i < n.N; ++i) {
    const int64_t steps = span_of(n, p.bounds, i).steps;
    longest = steps > longest ? steps : longest;
  }
  const int64_t pieces = (longest + PIECE - 1) / PIECE;
  const int64_t reals = 3 * PIECE * n.K + 6 * PIECE * tiles * W + 4 * PIECE * BLOCK * W +
                        (2 + pieces) * tiles * n.K * W;
  // Below this many multiply-adds, waking other threads costs more than they save.
  const bool parallel = tasks > 1 && double(n.N) * (longest + 1) * n.H * n.K * n.V > 16384;
  int failed = 0;
#pragma omp parallel if (parallel) reduction(| : failed)
  {
    Real* const scratch = scratch_of(reals);
    Tile* const tile = static_cast<Tile*>(std::calloc(tiles == 0 ? 1 : tiles, sizeof(Tile)));
    const bool ready = scratch != nullptr && tile != nullptr;
    failed |= !ready;
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < tasks; ++i)
      if (ready) task(n, p, i / n.H, i % n.H, tiles, scratch, tile);
    std::free(tile);
    std::free(scratch);
  }
  return failed;
}

}  // namespace

// Returns 0, or 1 where scratch memory could not be had (the results are then incomplete).
//
// by_row[i] = sum_j S_{t-1} * D_t * gate_v[j] and by_column[j] = sum_i S_{t-1} * D_t * gate_k[i]:
// what the gradients of gates are made of, gate_head still to be multiplied in.
extern "C" int gated_recurrence_backward(
    const int64_t* plan, const void* q, const void* k, const void* v, const void* gate_k,
    const void* gate_v, const void* gate_head, const Real* initial, const int64_t* bounds,
    const void* grad, const Real* grad_last, Real* dq, Real* dk, Real* dv, Real* by_row,
    Real* by_column, Real* d_initial, double scale) {
  Plan n;
  std::memcpy(&n, plan, sizeof n);
  const Pointers p{q,  k,  v,  gate_k, gate_v,    gate_head, grad,       initial, grad_last, bounds,
                   dq, dk, dv, by_row, by_column, d_initial, Real(scale)};
  if (n.N == 0 || n.H == 0) return 0;
  return run(n, p);
}
