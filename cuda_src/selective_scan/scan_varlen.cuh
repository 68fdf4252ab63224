// What the selective scans of packed sequences take, whose states are in a pool.
#pragma once

#include "common/fastdiv.cuh"
#include "common/sequences.cuh"

// Strides are in elements. D, z, delta_bias, ssm_states, query_start_loc, cache_indices and has_initial_state may be
// null; without query_start_loc all tokens are one sequence. What every launch needs comes first.
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
    void* out;
    index_t u_stride[3];  // 0, dim, token
    index_t delta_stride[3];
    index_t z_stride[3];
    index_t out_stride[3];
    index_t B_stride[4];  // 0, group, n, token
    index_t C_stride[4];
    index_t A_stride[2];  // dim, n
    index_t D_stride;
    index_t delta_bias_stride;
    FastDiv dim_blocks;  // blocks a long sequence
    FastDiv runs;        // of short sequences; blocks of the same channels follow each other
    FastDiv group_dim;   // channels a group
    int sequences;
    int dim;
    int total;  // tokens
    int d_state;
    int delta_softplus;
    int D_is_float32;
    int delta_bias_is_float32;
    int has_states;         // a pool without slots has no memory
    int few_tokens;         // sequences of so many tokens at most are walked token by token
    int short_tokens;       // of so many in runs of them; the others are long
    int run_sequences;      // of a run
    int long_at_a_time;     // of so many long sequences a block has one
    int long_goes_on;       // and then another: there may be more
    int states_is_vectors;  // accesses of as many states as a lane has are aligned
    int A_is_vectors;
    int query_start_loc_is_int64;
    int cache_indices_is_int64;
    index_t query_start_loc_stride;
    index_t cache_indices_stride;
    index_t has_initial_state_stride;
    index_t slots;
    index_t pad_slot_id;
    index_t ssm_states_stride[3];  // slot, dim, n
};
