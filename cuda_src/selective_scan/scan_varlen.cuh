// The arguments of selective scans of packed sequences, with their states in a pool.
#pragma once

#include "common/fastdiv.cuh"
#include "common/snapshots.cuh"
#include "selective_scan/scan_states.cuh"

// Strides are in elements. D, z, delta_bias, ssm_states and what follows it of the index arrays may be null; without
// query_start_loc all tokens are one sequence, or those of a batch (batch, dim, seqlen). The tokens of a batch are
// numbered from its first row on through all others, and the stride of the batch is what a row's first token lies
// further than the token behind the row before. What every launch needs comes first.
struct SelectiveScanVarlenOperands {
    const void* u;
    void* ssm_states;
    const void* delta;
    const void* A;
    const void* B;
    const void* C;
    const void* D;
    const void* z;
    const void* delta_bias;
    const void* query_start_loc;
    const void* cache_indices;
    const void* has_initial_state;
    const void* state_column;
    const void* dst_state_indices;
    void* out;
    const void* snapshots;
    const void* snapshot_count;
    void* snapshot_out;
    void* state_scale;
    void* snapshot_scale;
    const void* rand_seed;
    index_t u_stride[3];  // batch, dim, token
    index_t delta_stride[3];
    index_t z_stride[3];
    index_t out_stride[3];
    index_t B_stride[4];  // batch, group, n, token
    index_t C_stride[4];
    index_t A_stride[2];  // dim, n
    index_t D_stride;
    index_t delta_bias_stride;
    FastDiv dim_blocks;  // blocks per long sequence
    FastDiv runs;        // runs of short sequences; blocks of the same channels follow each other. Or see run_by_run
    FastDiv group_dim;   // channels per group
    int sequences;
    int dim;
    int total;   // tokens, padding included
    int seqlen;  // of a batch; 0 for packed sequences
    int d_state;
    int delta_softplus;
    int D_is_float32;
    int delta_bias_is_float32;
    int has_states;         // whether there is a pool: one without slots has no memory
    int short_tokens;       // sequences of at most this many tokens are walked token by token, in runs
    int run_sequences;      // sequences per run
    int long_at_a_time;     // long sequences that have blocks at a time
    int long_goes_on;       // whether there may be more: a block goes on to another one
    int states_is_vectors;  // whether the states of a lane can be accessed as vectors, as A_is_vectors
    int A_is_vectors;
    int query_start_loc_is_int64;
    int cache_indices_is_int64;
    index_t query_start_loc_stride;
    index_t cache_indices_stride;
    index_t has_initial_state_stride;
    index_t slots;
    index_t pad_slot_id;
    index_t ssm_states_stride[3];  // slot, dim, n
    index_t state_column_stride;
    index_t slot_columns;  // columns of cache_indices, with state_column
    index_t slot_column_stride;
    index_t dst_state_indices_stride;
    int state_column_is_int64;
    int dst_state_indices_is_int64;
    int keeps_padding;  // the results of padding are not written, instead of zeros
    int snapshot_rows;
    index_t snapshots_stride[2];  // row, field
    index_t snapshot_stride[3];   // slot, dim, n of the array that snapshots go to
    index_t snapshot_slots;
    index_t snapshot_pad_slot;
    int snapshots_in_pool;     // they go to ssm_states
    int snapshots_is_vectors;  // the states of a lane can be accessed there as vectors
    int snapshots_is_int64;
    int snapshot_count_is_int64;
    int philox_rounds;                 // 0: codes are rounded to nearest
    index_t seed;                      // unless rand_seed is given
    index_t state_scale_stride[2];     // slot, dim
    index_t snapshot_scale_stride[2];  // of the scales of the array that snapshots go to
    int run_by_run;                    // the blocks of a run follow each other, and `runs` is their number
    int phase_bits;                    // of rows that have phases (selective_scan/tile_block.cuh)
    int first_phase;
    index_t matrix_phase_step;
};

// The first token of a sequence, which may be a row of a batch where kBatch.
template <bool kBatch>
__device__ __forceinline__ int first_token_of(const SelectiveScanVarlenOperands& p, int number) {
    if (kBatch && p.seqlen > 0) return min(max(number, 0), p.sequences) * p.seqlen;
    return first_token(p, number);
}

// The pool, and the array that snapshots go to.
template <typename state_t>
__device__ __forceinline__ StateSlots<state_t> pool_of(const SelectiveScanVarlenOperands& p) {
    return {static_cast<state_t*>(p.ssm_states), p.ssm_states_stride, static_cast<float*>(p.state_scale),
            p.state_scale_stride};
}

template <typename state_t>
__device__ __forceinline__ StateSlots<state_t> snapshots_of(const SelectiveScanVarlenOperands& p) {
    return {static_cast<state_t*>(p.snapshots_in_pool ? p.ssm_states : p.snapshot_out), p.snapshot_stride,
            static_cast<float*>(p.snapshots_in_pool ? p.state_scale : p.snapshot_scale), p.snapshot_scale_stride};
}

// Where a sequence lies among the tokens and which state it begins with, by loads that are all under way at once.
// kBatch as in first_token_of().
struct SequenceStart {
    int begin;
    int end;
    int slot;      // -1 where results are zeros
    bool goes_on;  // from the state in the slot

    template <bool kBatch>
    __device__ __forceinline__ static SequenceStart load(const SelectiveScanVarlenOperands& p, int number) {
        const bool is_row = kBatch && p.seqlen > 0, is_sequence = number >= 0 && number < p.sequences;
        const Borders<SelectiveScanVarlenOperands> borders(p);
        const RawIndex raw_begin = borders.load(number), raw_end = borders.load(number + 1);
        RawIndex raw_slot;
        unsigned char past = 0;
        const bool has_index = is_sequence && p.has_states && p.cache_indices != nullptr && p.state_column == nullptr;
        if (has_index) raw_slot.load(p.cache_indices, number * p.cache_indices_stride, p.cache_indices_is_int64);
        if (is_sequence && p.has_states && p.has_initial_state != nullptr) {
            past = static_cast<const unsigned char*>(p.has_initial_state)[number * p.has_initial_state_stride];
        }
        SequenceStart start;
        start.begin = is_row ? first_token_of<kBatch>(p, number) : borders.token(raw_begin, number);
        start.end = is_row ? first_token_of<kBatch>(p, number + 1) : borders.token(raw_end, number + 1);
        start.slot = has_index ? slot_in_pool(p, raw_slot.value(p.cache_indices_is_int64)) : load_start_slot(p, number);
        start.goes_on = past != 0;
        return start;
    }
};

// Stores zeros as the results of the tokens `begin` to `end` - 1, of a row of a batch, in the channels of a block,
// which are 1 << phase_bits apart.
template <typename Shape>
__device__ __forceinline__ void store_zeros(const SelectiveScanVarlenOperands& p, int batch, int first_channel,
                                            int begin, int end, int phase_bits = 0) {
    using T = typename Shape::input_t;
    constexpr int kAcross = Shape::kByChannel ? Shape::kChannels : 1, kAlong = Shape::kThreads / kAcross;
    const int number = static_cast<int>(threadIdx.x);
    const int channels = min(Shape::kChannels << phase_bits, p.dim - first_channel);
    T* const out = static_cast<T*>(p.out) + batch * p.out_stride[0] + first_channel * p.out_stride[1];
#pragma unroll 1
    for (int c = number % kAcross << phase_bits; c < channels; c += kAcross << phase_bits) {
        T* const row = out + c * p.out_stride[1];
#pragma unroll 1
        for (int t = begin + number / kAcross; t < end; t += kAlong) {
            row[t * p.out_stride[2]] = Dtype<T>::from_float(0.0f);
        }
    }
}

// Stores zeros as the results of the padding in front of the first sequence and behind the last, in the blocks of
// these two. Blocks of its own would return at once where there is none, and others then share some multiprocessors
// while some have none: on an H200 one sequence of 8192 tokens of 512 channels took 101 us so, not 85.
template <typename Shape>
__device__ __forceinline__ void store_padding(const SelectiveScanVarlenOperands& p, int first_channel, int number,
                                              int phase_bits = 0) {
    if (p.keeps_padding || (number > 0 && number < p.sequences - 1)) return;
    if (number == 0) store_zeros<Shape>(p, number, first_channel, 0, first_token_of<true>(p, number), phase_bits);
    if (number >= p.sequences - 1) {
        store_zeros<Shape>(p, number, first_channel, first_token_of<true>(p, number + 1), p.total, phase_bits);
    }
}

// Scans the tokens `begin` to `end` - 1 of a sequence with all threads of its warps, and calls store(slot, token,
// place) for each snapshot when `token`, which it follows, has been walked: of the scan's states where `place` is -1,
// or of those taken inside a tile that have this number. Parts of a warp, Scan::kCopies of them, may have a snapshot
// each, or -1 in place of a slot. Where states cannot be taken the walk ends, and another one begins. lane_of(at,
// token) is -1 where a tile of the walk from token `at` on begins with `token`; else the number of the lane that has
// the token in front of it, counted on from tile to tile, or anything else where no states are taken.
template <typename Scan, typename LaneOf, typename Store>
__device__ __forceinline__ void walk_by_snapshots(const SelectiveScanVarlenOperands& p, SnapshotCursor& cursor,
                                                  Scan& scan, int number, int begin, int end, LaneOf lane_of,
                                                  Store store) {
    cursor.start(p, number, begin, end);
    int next = NextSnapshot::kNone;
    // Stores the states of the snapshots up to `token`. Those in front of earlier tokens were taken inside a tile.
    const auto keep = [&](int token) {
        if (next > token) return;
        sync_warp();
        const int first = uniform(cursor.begin);
        if constexpr (Scan::kTakes) {
            if (scan.takers != 0) {
                next = cursor.template visit<Scan::kCopies>(token, [&](int slot, int now, int place) {
                    store(slot, now - first - 1, now < token ? place : -1);
                });
                return;
            }
        }
        do {
            const int slot = cursor.template go_on<false>(p, next);
            store(lane_id() < kWarpSize / Scan::kCopies ? slot : -1, token - first - 1, -1);
        } while (next == token);
    };
    bool is_used_up = true;
    for (int at = begin;;) {
        for (;; is_used_up = cursor.is_used_up()) {
            if (is_used_up) {
                cursor.bring(p);
                next = cursor.token();
            }
            if (next > at) break;
            keep(at);
        }
        if (at >= end) return;
        const int first = uniform(cursor.now);
        const auto interrupts = [&](int i) {
            const auto lane = [&](int j) { return lane_of(at, cursor.begin + cursor.positions[j]); };
            const int own = lane(i);
            if constexpr (Scan::kTakes) {
                if (own < 0 || i == first) return false;
                if (lane(i - 1) == own && cursor.positions[i - 1] != cursor.positions[i]) return true;
                const int earlier = i - Scan::kTaken >= first ? lane(i - Scan::kTaken) : -1;
                return earlier >= 0 && earlier / Scan::kLanes == own / Scan::kLanes;
            }
            return own >= 0;
        };
        const int to = cursor.first_where(interrupts);
        scan.template walk<true>(at, to, [&](int token) {
            keep(token);
            if constexpr (Scan::kTakes) {
                const int behind = min(to, token + Scan::kTile);
                scan.takers = next < behind ? cursor.template takers<Scan::kTokens>(token, behind) : 0;
            }
        });
        // The last snapshot known here, if others may follow, ends a walk.
        is_used_up = false;
        at = to;
    }
}

// The slot that a sequence's final state goes to, when it starts from slot `start`; -1 for none.
__device__ __forceinline__ int load_target(const SelectiveScanVarlenOperands& p, int number, int start) {
    return p.has_states && start >= 0 ? load_final_slot(p, number, start) : -1;
}
