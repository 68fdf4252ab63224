// Packed sequences: where one begins, which slot of a pool holds its state, and whether it goes on from there.
#pragma once

#include "common/vec.cuh"

// Operands have query_start_loc, cache_indices and has_initial_state, each of which may be null, with their strides in
// elements; sequences, total, slots, pad_slot_id and has_states.

// The first token of a sequence. Number -1 stands for the padding before all of them, `sequences` for that behind them.
// A token outside the tensor is brought inside: wrong numbers give wrong results, not wrong accesses.
template <typename Operands>
__device__ __forceinline__ int first_token(const Operands& p, int number) {
    if (number < 0) return 0;
    if (number > p.sequences) return p.total;
    if (p.query_start_loc == nullptr) return number == 0 ? 0 : p.total;
    const index_t token = load_index(p.query_start_loc, number * p.query_start_loc_stride, p.query_start_loc_is_int64);
    return token < 0 ? 0 : token > p.total ? p.total : static_cast<int>(token);
}

// The slot of a sequence; -1 for padding, and for a sequence with a slot that is pad_slot_id or not in the pool.
// Results are zeros then.
template <typename Operands>
__device__ __forceinline__ int load_slot(const Operands& p, int number) {
    if (number < 0 || number >= p.sequences) return -1;
    if (!p.has_states) return 0;
    const index_t slot = p.cache_indices == nullptr
                             ? number
                             : load_index(p.cache_indices, number * p.cache_indices_stride, p.cache_indices_is_int64);
    return slot == p.pad_slot_id || slot < 0 || slot >= p.slots ? -1 : static_cast<int>(slot);
}

// Whether a sequence goes on from its state; else it starts from zeros.
template <typename Operands>
__device__ __forceinline__ bool has_past(const Operands& p, int number) {
    return p.has_initial_state != nullptr &&
           static_cast<const unsigned char*>(p.has_initial_state)[number * p.has_initial_state_stride] != 0;
}
