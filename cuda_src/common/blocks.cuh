// Snapshots of prefix caches that keep the state at the end of every block of tokens: which there are, and the slots of
// final states, follow from a table of slots by block, on the device.
#pragma once

#include "common/sequences.cuh"

// Strides are in elements; query_start_loc may be null. scratch receives int64 numbers: `rows` rows of snapshots
// (sequence, position, slot) and behind them a slot per sequence, for its final state. A slot of -1 stands for none.
struct BlockOperands {
    const void* query_start_loc;
    const void* cache_indices;  // the slot of each block: sequence, block
    const void* block_idx_last_scheduled_token;
    void* scratch;
    index_t query_start_loc_stride;
    index_t cache_indices_stride[2];
    index_t block_idx_last_scheduled_token_stride;
    index_t block_size;
    index_t blocks;  // columns of cache_indices
    int query_start_loc_is_int64;
    int cache_indices_is_int64;
    int block_idx_last_scheduled_token_is_int64;
    int sequences;
    int total;
    int rows;
};

__device__ __forceinline__ index_t slot_of_block(const BlockOperands& p, int number, index_t block) {
    if (block < 0 || block >= p.blocks) return -1;
    return load_index(p.cache_indices, number * p.cache_indices_stride[0] + block * p.cache_indices_stride[1],
                      p.cache_indices_is_int64);
}

__device__ __forceinline__ index_t last_block(const BlockOperands& p, int number) {
    return bounded(load_index(p.block_idx_last_scheduled_token, number * p.block_idx_last_scheduled_token_stride,
                              p.block_idx_last_scheduled_token_is_int64));
}

// Stores the slot for the final state of a sequence, and the rows from `begin` on that belong to it, up to `end`, or
// for the last sequence all that are left. All lanes of a warp take part. position(i) and block(i) say which state row
// begin + i is for; a block of -1 stands for none.
template <typename Position, typename Block>
__device__ __forceinline__ void store_blocks(const BlockOperands& p, int number, int begin, int end, Position position,
                                             Block block) {
    index_t* const rows = static_cast<index_t*>(p.scratch);
    if (lane_id() == 0)
        rows[3 * static_cast<index_t>(p.rows) + number] = slot_of_block(p, number, last_block(p, number));
    const int first = number == 0 ? 0 : begin;
    const int behind = number + 1 < p.sequences ? min(end, p.rows) : p.rows;
    for (int row = first + lane_id(); row < behind; row += kWarpSize) {
        const bool is_own = row >= begin && row < end;
        index_t* const fields = rows + 3 * static_cast<index_t>(row);
        fields[0] = number;
        fields[1] = is_own ? position(row - begin) : 0;
        fields[2] = is_own ? slot_of_block(p, number, block(row - begin)) : -1;
    }
}
