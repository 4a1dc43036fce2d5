// Tiles of attend_wgmma: their sizes in shared memory, and the order in which blocks take them.

#pragma once

#include "hopper.cuh"

constexpr int PRODUCER_REGISTERS = 24, CONSUMER_REGISTERS = 240;
constexpr int BM = 128;              // query rows of a block
constexpr int TURNS = 1;             // named barriers 1 and 2: the turns of the two warpgroups

// Jobs in shared memory: one whose keys are being loaded, one that is computed, one that is written.
constexpr int JOBS = 3;

// What a tile is, from the loading warpgroup to the others. The scales are those of heads: they are read
// ahead, since each row tile would wait for them twice.
struct Job {
    int head, batch, first, rows, q_first, keys, k_first, sequence;
    int valid;  // 0 where there is none, else 1 plus the first column of the output
    float factor, value_scale;
};

// Dimensions between: D is rounded up, columns behind the last are loaded as zeros. EXACT: fresh sums
// beside the running ones, for which there are registers up to 128 columns of the output; wider ones are
// computed in two jobs of 128 columns, each with all scores.
// INSIDE: values come as int8, into BYTE_STAGES of their own.
template <int D, int BN, int K_STAGES, int V_STAGES, bool EXACT, bool INSIDE>
struct Layout {
    static constexpr int SPLITS = EXACT && D > 128 ? D / 128 : 1;  // jobs of a tile of rows
    static constexpr int COLUMNS = D / SPLITS;                     // of the output, of a job
    static constexpr int DEPTH = (D + 31) / 32;          // products of one score tile
    static constexpr int ROW = D <= 64 ? 64 : 128;       // bytes of a swizzled row of q and k
    static constexpr int PIECES = D <= 128 ? 1 : D / 128;  // such rows of one token
    static constexpr int PARTS = COLUMNS <= 128 ? 1 : COLUMNS / 128;  // products of one value step
    static constexpr int WIDE = COLUMNS / PARTS;           // columns of each
    static constexpr int BLOCKS = (COLUMNS + 63) / 64;     // of 64 value columns
    static constexpr int Q_BYTES = BM * ROW * PIECES, K_BYTES = BN * ROW * PIECES;
    static constexpr int V_BYTES = BN * 128 * BLOCKS;
    static constexpr int BYTE_STAGES = INSIDE ? 2 : 0, BYTE_V_BYTES = BN * COLUMNS;
    // Threads that make fp16 of them: see widen_tile.
    static constexpr int CONVERTERS = COLUMNS == 80 ? 80 : 96;
    static constexpr int BYTES = Q_BYTES + K_STAGES * K_BYTES + V_STAGES * V_BYTES +
                                 BYTE_STAGES * BYTE_V_BYTES + 1024;
};

// Where the order of tiles is decided. Groups of `gather` heads, whose keys and values the L2 cache
// holds together; in a group the tiles with the most keys first.
struct Order {
    const int *cu_q, *cu_k, *kv_lens;
    int sequences, q_len, kv_len, heads, slots, gather, causal;
};

// First of the tiles of sequence n. Each sequence gets room for one more than it needs at most.
__device__ __forceinline__ int first_slot(const Order& o, int n) { return o.cu_q[n] / BM + n; }

__device__ __forceinline__ Job job_of(const Order& o, int tile) {
    const int columns = o.cu_q != nullptr ? o.heads : o.sequences * o.heads;
    const int group = tile / (o.gather * o.slots), inside = tile - group * (o.gather * o.slots);
    const int here = min(o.gather, columns - group * o.gather);
    const int slot = o.slots - 1 - inside / here, column = group * o.gather + inside % here;
    Job job;
    job.valid = 1;
    if (o.cu_q == nullptr) {
        job.batch = column / o.heads;
        job.head = column - job.batch * o.heads;
        job.sequence = job.batch;
        job.first = slot * BM;
        job.q_first = job.k_first = 0;
        job.rows = o.q_len;
        job.keys = o.kv_lens != nullptr ? max(0, min(o.kv_lens[job.batch], o.kv_len)) : o.kv_len;
        return job;
    }
    int low = 0, high = o.sequences;  // first_slot(low) <= slot < first_slot(high)
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (first_slot(o, middle) <= slot) low = middle; else high = middle;
    }
    job.batch = 0;
    job.sequence = low;
    job.head = column;
    job.first = (slot - first_slot(o, low)) * BM;
    job.q_first = o.cu_q[low];
    job.k_first = o.cu_k[low];
    job.rows = o.cu_q[low + 1] - job.q_first;
    job.keys = o.cu_k[low + 1] - job.k_first;
    return job;
}

// Tiles of BN keys that a tile of rows needs; one where it sees none, which writes zeros.
template <int BN>
__device__ __forceinline__ int key_tiles(const Job& job, int causal) {
    const int last = min(job.first + BM, job.rows) - 1 + job.keys - job.rows;
    const int visible = causal ? min(job.keys, last + 1) : job.keys;
    return max(1, (visible + BN - 1) / BN);
}
