// Replay: a state as it was some tokens ago, and the tokens since then in rings.
//
// With a = dt' * A of each token, s_j the sum of a over the ring's tokens behind token j, and s over all of them:
//     S = S0 * exp(s) + sum_j exp(s_j) * dt'_j * x_j * B_j
// S0 is the state in memory. All sums have terms of one sign: nothing cancels, and no exponential overflows where the
// recurrence does not.
#pragma once

#include "selective_state_update/steps.cuh"

inline constexpr int kMaxReplayTokens = 16;

// Rings of (slots, heads or groups, ring_rows, headdim, d_state or nothing), contiguous behind their slots. A slot's
// cursor is four integers: the row of the oldest token, how many tokens are live, and what the step has done that is
// not yet committed: the tokens it has put behind the live ones, and the live ones that it has put in the state. With
// kByColumns cursors are the rows of the oldest tokens, ring_live is how many are live, both are only read, and nothing
// is to be committed.
struct ReplayOperands {
    void* x_ring;
    void* B_ring;
    void* dt_ring;
    void* cursors;
    const void* force_flush;
    const void* count;
    void* state_scale;
    const void* ring_live;
    SelectiveStateUpdateOperands operands;
    index_t x_ring_stride;  // slot
    index_t B_ring_stride;
    index_t dt_ring_stride;
    index_t cursors_stride;
    index_t force_flush_stride;
    index_t count_stride;
    index_t state_scale_stride[3];  // slot, head, row
    int ring_rows;
    int window;      // live tokens at most
    int warp_heads;  // heads of a warp, one after the other; all of one group
    int warp_tiles;  // tiles of rows of each of them
    int count_is_int64;
};

// The same for one or a few tokens, with strides of 32 bits.
struct ReplayFewOperands {
    void* cursors;
    void* x_ring;
    void* B_ring;
    void* dt_ring;
    void* state_scale;
    const void* force_flush;
    const void* ring_live;
    SelectiveStateUpdateSingleOperands operands;
    int cursors_stride;
    int ring_rows;
    int window;
    int x_ring_stride;
    int B_ring_stride;
    int dt_ring_stride;
    int scale_stride[2];  // slot, head; rows are contiguous
    int tokens;           // per sequence
    int force_flush_stride;
    int warp_heads;   // one after the other; all of one group
    int kept_heads;   // that a warp flushes of its own ones: the first or none
    int spare_warps;  // that take heads of sequences that flush
    int most_parts;   // in which such a head is divided; a power of two
};

// The arguments of one token that goes to the state at once: those of SelectiveStateUpdateSingleOperands, but for
// destinations, and those of rings. A small batch waits for them one cache line after another. With what a step without
// live tokens needs in as few lines as without rings, 2 sequences of float32 take 5.98 us, with all that rings have in
// front of or behind the others 6.08, and without rings 5.93; neither the order of the lines that loads of states wait
// for nor 64 bytes more behind the arguments make a difference.
struct FoldSingleOperands {
    void* state;
    const void* x;
    const void* dt;
    const void* A;
    const void* B;
    const void* C;
    const void* dt_bias;
    const void* state_batch_indices;
    const void* D;
    const void* z;
    void* out;
    void* cursors;
    void* x_ring;
    void* B_ring;
    void* dt_ring;
    FastDiv row_tiles;  // warps per head
    FastDiv nheads;
    FastDiv group_heads;  // heads per group
    int batch;
    int headdim;
    int cursors_stride;
    int state_stride[4];  // slot, head, row, n
    int x_stride[4];      // batch, token, head, row
    int dt_stride[4];
    int B_stride[4];  // batch, token, group, n
    int C_stride[4];
    int dt_is_float32;
    int dt_bias_is_float32;
    int dt_softplus;
    int dt_bias_stride[2];  // head, row
    int D_stride[2];
    int D_is_float32;
    int out_stride[4];
    int A_stride[3];  // head, row, n
    int z_is_float32;
    int z_stride[4];
    int d_state;
    int keeps_padding;  // the results of padding stay as they are, else they are zeros
    int slots;
    int pad_slot_id;
    int state_batch_indices_stride[2];  // batch, column
    int state_batch_indices_is_int64;
    int ring_rows;
    int window;  // live tokens at most
    int x_ring_stride;
    int B_ring_stride;
    int dt_ring_stride;
};

// The same for states of codes, by warps that walk over heads: the scales among the rest. 7 and 8 sequences of int8
// take 7.83 and 7.98 us so, 7.94 and 8.10 with these arguments beside them, and 7.90 and 8.07 without rings.
struct FoldScaledOperands {
    void* state;
    const void* x;
    const void* dt;
    const void* A;
    const void* B;
    const void* C;
    const void* dt_bias;
    const void* state_batch_indices;
    const void* D;
    const void* z;
    void* out;
    void* cursors;
    void* state_scale;
    void* x_ring;
    void* B_ring;
    void* dt_ring;
    FastDiv row_tiles;  // tiles of rows per head
    FastDiv nheads;
    FastDiv group_heads;  // heads per group
    int batch;
    int headdim;
    int cursors_stride;
    int state_stride[4];  // slot, head, row, n
    int x_stride[4];      // batch, token, head, row
    int dt_stride[4];
    int B_stride[4];  // batch, token, group, n
    int C_stride[4];
    int dt_is_float32;
    int dt_bias_is_float32;
    int dt_softplus;
    int dt_bias_stride[2];  // head, row
    int D_stride[2];
    int D_is_float32;
    int out_stride[4];
    int A_stride[3];            // head, row, n
    int heads;                  // per warp, at most 32; 0 for half of one
    int state_scale_stride[3];  // slot, head, row
    int z_is_float32;
    int z_stride[4];
    int d_state;
    int keeps_padding;  // the results of padding stay as they are, else they are zeros
    int slots;
    int pad_slot_id;
    int state_batch_indices_stride[2];  // batch, column
    int state_batch_indices_is_int64;
    int ring_rows;
    int window;  // live tokens at most
    int x_ring_stride;
    int B_ring_stride;
    int dt_ring_stride;
};

// These arguments as code takes them that has those of a step beside those of rings.
template <typename operands_t>
struct FoldArguments {
    const operands_t& operands;
    void* x_ring = operands.x_ring;
    void* B_ring = operands.B_ring;
    void* dt_ring = operands.dt_ring;
    void* cursors = operands.cursors;
    int cursors_stride = operands.cursors_stride;
    int ring_rows = operands.ring_rows;
    int window = operands.window;
    int x_ring_stride = operands.x_ring_stride;
    int B_ring_stride = operands.B_ring_stride;
    int dt_ring_stride = operands.dt_ring_stride;
};

using FoldSingle = FoldArguments<FoldSingleOperands>;

struct FoldScaled : FoldArguments<FoldScaledOperands> {
    void* state_scale = operands.state_scale;
    const int* state_scale_stride = operands.state_scale_stride;
    int heads = operands.heads;
};

// The ring of a slot: the row of its oldest token, and how many are live.
struct RingCursor {
    int start;
    int live;
    int* place;

    template <typename Operands>
    __device__ __forceinline__ RingCursor(const Operands& p, int slot) : RingCursor(p, slot, load(p, slot)) {}

    // `words` have been loaded before.
    template <typename Operands>
    __device__ __forceinline__ RingCursor(const Operands& p, int slot, uint2 words) : place(place_of(p, slot)) {
        const int row = static_cast<int>(words.x);
        // Whatever a cursor holds, no other memory than that of the ring is touched.
        start = uniform(row >= 0 && row < p.ring_rows ? row : 0);
        live = uniform(min(max(static_cast<int>(words.y), 0), p.window));
    }

    template <typename Operands>
    __device__ __forceinline__ static int* place_of(const Operands& p, int slot) {
        return static_cast<int*>(p.cursors) + slot * static_cast<index_t>(p.cursors_stride);
    }

    template <typename Operands>
    __device__ __forceinline__ static uint2 load(const Operands& p, int slot) {
        return load_word<Memory::kMutable, uint2>(place_of(p, slot));
    }

    // The ring's row of the token `number` places behind the oldest; it is at most ring_rows - 1.
    template <typename Operands>
    __device__ __forceinline__ int row(const Operands& p, int number) const {
        const int row = start + number;
        return row < p.ring_rows ? row : row - p.ring_rows;
    }

    // Says what is to be committed.
    __device__ __forceinline__ void leave(int appended, int folded) const {
        place[2] = appended;
        place[3] = folded;
    }
};

// The first two words of a slot's cursor, with kByColumns those of two arrays.
template <bool kByColumns, typename Operands>
__device__ __forceinline__ uint2 load_cursor(const Operands& p, int slot) {
    if constexpr (kByColumns) {
        const int* const live = static_cast<const int*>(p.ring_live) + slot * static_cast<index_t>(p.cursors_stride);
        return make_uint2(load_word<Memory::kMutable, unsigned>(RingCursor::place_of(p, slot)),
                          load_word<Memory::kMutable, unsigned>(live));
    } else {
        return RingCursor::load(p, slot);
    }
}

// Addresses of a head's rings in a slot.
template <typename Traits>
struct Ring {
    using input_t = typename Traits::Input;
    using Matrix = typename Traits::Matrix;

    input_t* x;
    Matrix* B;
    float* dt;

    template <typename Operands>
    __device__ __forceinline__ Ring(const Operands& p, int slot, int head) {
        using Offset = typename Traits::Offset;
        const auto of_head = [&](int number) { return static_cast<Offset>(number) * p.ring_rows; };
        const int group = static_cast<int>(p.operands.group_heads.quotient(head));
        x = static_cast<input_t*>(p.x_ring) + slot * static_cast<index_t>(p.x_ring_stride) +
            of_head(head) * p.operands.headdim;
        B = static_cast<Matrix*>(p.B_ring) + slot * static_cast<index_t>(p.B_ring_stride) +
            of_head(group) * Traits::d_state(p.operands);
        dt = static_cast<float*>(p.dt_ring) + slot * static_cast<index_t>(p.dt_ring_stride) + of_head(head);
    }

    // The lane's part of B in a row of the ring.
    template <typename Operands>
    __device__ __forceinline__ void load_B(const Operands& p, int row,
                                           typename TokenMatrices<Traits>::Vector (&to)[Traits::kChunks]) const {
        const Matrix* from = B + static_cast<index_t>(row) * Traits::d_state(p.operands);
#pragma unroll
        for (int i = 0; i < Traits::kChunks; ++i) {
            to[i] = TokenMatrices<Traits>::Vector::zero();
            if (Traits::element(i) < Traits::d_state(p.operands)) {
                to[i].template load<Memory::kMutable>(from + Traits::element(i));
            }
        }
    }

    __device__ __forceinline__ void store_B(
        const ReplayOperands& p, int row, const typename TokenMatrices<Traits>::Vector (&from)[Traits::kChunks]) const {
        Matrix* to = B + static_cast<index_t>(row) * Traits::d_state(p.operands);
#pragma unroll
        for (int i = 0; i < Traits::kChunks; ++i) {
            if (Traits::element(i) < Traits::d_state(p.operands)) from[i].store(to + Traits::element(i));
        }
    }

    template <typename Operands>
    __device__ __forceinline__ input_t* x_at(const Operands& p, int row, int element) const {
        return x + static_cast<typename Traits::Offset>(row) * p.operands.headdim + element;
    }
};

// How much is left of the live tokens and of the state after the last of them: each lane stands for one live token.
struct Weights {
    float own;    // exp(s_j) * dt'_j
    float state;  // exp(s)

    // scale: A in powers of two; step: dt' of the lane's token, 0 where there is none.
    __device__ __forceinline__ Weights(float scale, float step) {
        float behind = scale * step;
#pragma unroll
        for (int distance = 1; distance < kWarpSize; distance *= 2) {
            const float next = from_lane(behind, lane_id() + distance);
            if (lane_id() + distance < kWarpSize) behind += next;
        }
        const float next = from_lane(behind, lane_id() + 1);
        own = lane_id() + 1 < kWarpSize ? exp2_approx(next) * step : step;
        state = exp2_approx(from_lane(behind, 0));
    }
};

// The first `count` live tokens' dt', one a lane; 0 beyond them.
template <typename Traits, typename Operands>
__device__ __forceinline__ float load_steps(const Operands& p, const Ring<Traits>& ring, const RingCursor& cursor,
                                            int count) {
    if (lane_id() >= count) return 0.0f;
    return ring.dt[cursor.row(p, lane_id())];
}

// Puts the first `count` live tokens in some rows' states, from row `first` of the group on, which are codes times
// `scale` before.
template <typename Traits, typename Operands, int kCount>
__device__ __forceinline__ void fold(const Operands& p, const WarpRows& warp, const Ring<Traits>& ring,
                                     const RingCursor& cursor, const Weights& weights, int count, float scale,
                                     int first, float (&state)[kCount][Traits::kElements]) {
#pragma unroll
    for (int r = 0; r < kCount; ++r) {
        float left = weights.state;
        if constexpr (Traits::kIsQuantised) left *= Traits::of_row(scale, first + r);
#pragma unroll
        for (int i = 0; i < Traits::kElements; ++i) state[r][i] *= left;
    }
    const int own = warp.own_row(p.operands);
    for (int j = 0; j < count; ++j) {
        const int row = cursor.row(p, j);
        typename TokenMatrices<Traits>::Vector B[Traits::kChunks];
        ring.load_B(p, row, B);
        const float x = ::load<1, Memory::kMutable>(ring.x_at(p, row, own)).to_float(0);
        const float input = from_lane(weights.own, j) * x;
#pragma unroll
        for (int r = 0; r < kCount; ++r) {
            const float row_input = Traits::of_row(input, first + r);
#pragma unroll
            for (int i = 0; i < Traits::kElements; ++i) {
                state[r][i] = fmaf(row_input, B[i / Traits::kVecs].to_float(i % Traits::kVecs), state[r][i]);
            }
        }
    }
}
