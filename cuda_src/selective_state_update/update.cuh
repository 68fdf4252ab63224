// A selective state update: its arguments, the slots of sequences, and the rows of a warp.
#pragma once

#include "common/activation.cuh"
#include "common/codes.cuh"
#include "common/fastdiv.cuh"
#include "common/tokens.cuh"
#include "common/trees.cuh"
#include "common/warp.cuh"

// Strides are in elements. Arrays without heads have one. The tokens of packed sequences, with cu_seqlens, count as
// those of one batch entry. What every launch needs comes first: arguments arrive by cache lines, one miss after
// another.
struct SelectiveStateUpdateOperands {
    void* state;
    const void* x;
    const void* dt;
    const void* A;
    const void* B;
    const void* C;
    const void* D;
    const void* z;
    const void* dt_bias;
    const void* state_batch_indices;
    const void* dst_state_batch_indices;
    void* intermediate_states_buffer;
    const void* intermediate_state_indices;
    const void* num_accepted_tokens;
    const void* cu_seqlens;
    const void* state_column;
    const void* has_initial_state;
    const void* parents;
    const void* rand_seed;
    void* out;
    index_t state_stride[4];  // slot, head, row, n
    index_t x_stride[4];      // batch, token, head, row
    index_t dt_stride[4];
    index_t out_stride[4];
    index_t B_stride[4];  // batch, token, group, n
    index_t C_stride[4];
    index_t A_stride[3];  // head, row, n
    index_t D_stride[2];  // head, row
    index_t dt_bias_stride[2];
    index_t state_batch_indices_stride[2];  // batch, column
    index_t slots;
    index_t pad_slot_id;
    FastDiv row_tiles;  // warps per head
    FastDiv nheads;
    FastDiv group_heads;  // heads per group
    int batch;
    int headdim;
    int d_state;
    int dt_softplus;
    int dt_is_float32;
    int D_is_float32;
    int dt_bias_is_float32;
    int state_batch_indices_is_int64;
    int dst_state_batch_indices_is_int64;
    int is_read_only;  // the pool of states is not written
    int z_is_float32;
    index_t z_stride[4];
    index_t dst_state_batch_indices_stride[2];     // batch, column
    index_t intermediate_states_buffer_stride[5];  // row, token, head, row of the state, n
    index_t intermediate_state_indices_stride;
    index_t num_accepted_tokens_stride;
    index_t cu_seqlens_stride;
    index_t state_column_stride;
    index_t has_initial_state_stride;
    index_t parents_stride[2];  // batch, token
    index_t intermediate_rows;
    index_t seed;     // unless rand_seed is given
    int tokens;       // per sequence, or in all when packed
    int columns;      // of state_batch_indices
    int dst_columns;  // 0: the state after the last token is stored, else one after each
    int intermediate_steps;
    int philox_rounds;
    int intermediate_state_indices_is_int64;
    int num_accepted_tokens_is_int64;
    int cu_seqlens_is_int64;
    int state_column_is_int64;
    int parents_is_int64;
    int keeps_padding;  // the results of padding stay as they are, else they are zeros
};

// The arguments of one token, or of a few, where offsets fit in int32. A small batch waits for its arguments: strides
// of 32 bits, and what every launch needs first.
struct SelectiveStateUpdateSingleOperands {
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
    const void* dst_state_batch_indices;
    FastDiv row_tiles;  // warps per head
    FastDiv nheads;
    FastDiv group_heads;  // heads per group
    int batch;
    int headdim;
    int state_stride[4];  // slot, head, row, n
    int x_stride[4];      // batch, token, head, row
    int dt_stride[4];
    int B_stride[4];  // batch, token, group, n
    int C_stride[4];
    int dt_is_float32;
    int dt_bias_is_float32;
    int dt_softplus;
    int A_stride[3];        // head, row, n
    int dt_bias_stride[2];  // head, row
    int D_stride[2];
    int D_is_float32;
    int out_stride[4];
    int is_read_only;  // the pool of states is not written
    int z_is_float32;
    int z_stride[4];
    int d_state;
    int keeps_padding;  // the results of padding stay as they are, else they are zeros
    int slots;
    int pad_slot_id;
    int state_batch_indices_stride[2];  // batch, column
    int dst_state_batch_indices_stride[2];
    int state_batch_indices_is_int64;
    int dst_state_batch_indices_is_int64;
};

// The first token of a packed sequence, clamped to the tensor.
__device__ __forceinline__ int first_token(const SelectiveStateUpdateOperands& p, int number) {
    if (number > p.batch) return p.tokens;
    const index_t token = load_index(p.cu_seqlens, number * p.cu_seqlens_stride, p.cu_seqlens_is_int64);
    return token < 0 ? 0 : token > p.tokens ? p.tokens : static_cast<int>(token);
}

// A slot of the pool; -1 for padding and for what lies outside the pool.
template <typename Operands>
__device__ __forceinline__ int checked_slot(const Operands& p, index_t slot) {
    return slot == p.pad_slot_id || slot < 0 || slot >= p.slots ? -1 : static_cast<int>(slot);
}

// The slot of a sequence in a column of the array of sources.
template <typename Operands>
__device__ __forceinline__ int load_source(const Operands& p, index_t batch, index_t column) {
    const auto* stride = p.state_batch_indices_stride;
    return checked_slot(
        p, load_index(p.state_batch_indices, batch * stride[0] + column * stride[1], p.state_batch_indices_is_int64));
}

// The slot of a sequence in a column of the array of destinations.
template <typename Operands>
__device__ __forceinline__ int load_target(const Operands& p, index_t batch, index_t column) {
    const auto* stride = p.dst_state_batch_indices_stride;
    return checked_slot(p, load_index(p.dst_state_batch_indices, batch * stride[0] + column * stride[1],
                                      p.dst_state_batch_indices_is_int64));
}

// The slot that the state of a sequence is read from; negative when it has none.
template <typename Traits>
__device__ __forceinline__ int load_slot(const typename Traits::Operands& p, int batch) {
    // There is a slot for each sequence then, and none of them is padding.
    if (p.state_batch_indices == nullptr) return batch;
    index_t column = 0;
    if constexpr (Traits::kIsMany) {
        if (p.num_accepted_tokens != nullptr) {
            const index_t accepted =
                load_index(p.num_accepted_tokens, batch * p.num_accepted_tokens_stride, p.num_accepted_tokens_is_int64);
            if (accepted > p.columns) return -1;
            column = accepted > 1 ? accepted - 1 : 0;
        }
    }
    if constexpr (Traits::kIsChosen) {
        if (p.state_column != nullptr) {
            column = load_index(p.state_column, batch * p.state_column_stride, p.state_column_is_int64);
            if (column < 0 || column >= p.columns) return -1;
        }
    }
    return load_source(p, batch, column);
}

// Whether a sequence goes on from the state in its slot; else it starts from zeros.
__device__ __forceinline__ bool has_past(const SelectiveStateUpdateOperands& p, int batch) {
    return p.has_initial_state == nullptr ||
           static_cast<const unsigned char*>(p.has_initial_state)[batch * p.has_initial_state_stride] != 0;
}

// Few arguments have none that says so.
template <typename Operands>
__device__ __forceinline__ bool has_past(const Operands&, int) {
    return true;
}

// The slot that the state after a token is stored to; negative when it is not stored.
template <typename Traits>
__device__ __forceinline__ int load_destination(const typename Traits::Operands& p, int batch, int token, int own) {
    index_t column = 0;
    if constexpr (Traits::kIsMany) {
        if (p.dst_columns > 0) column = token;
    }
    if (p.dst_state_batch_indices != nullptr) return load_target(p, batch, column);
    if constexpr (Traits::kIsMany) {
        if (p.dst_columns > 0) return load_source(p, batch, column);
    }
    return own;
}

// The rows of a warp, all of one head of one sequence. Every lane stands for one row; lanes beyond the last row repeat
// that.
struct WarpRows {
    int batch;
    int head;
    int first_row;

    __device__ __forceinline__ WarpRows() = default;
    template <typename Operands>
    __device__ __forceinline__ WarpRows(const Operands& p, unsigned number, int rows) {
        const QuotientRemainder head_tile = divide(number, p.row_tiles);
        const QuotientRemainder batch_head = divide(head_tile.quotient, p.nheads);
        batch = static_cast<int>(batch_head.quotient);
        head = static_cast<int>(batch_head.remainder);
        first_row = static_cast<int>(head_tile.remainder) * rows;
    }

    template <typename Operands>
    __device__ __forceinline__ int own_row(const Operands& p) const {
        return min(first_row + lane_id(), p.headdim - 1);
    }
    template <typename Operands>
    __device__ __forceinline__ bool is_row(const Operands& p, int rows) const {
        return lane_id() < rows && first_row + lane_id() < p.headdim;
    }
};
