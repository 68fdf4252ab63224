// The snapshots of a prefix cache that keeps the state at the end of every block of tokens, as rows (sequence,
// position, slot), where chunks say where blocks end: a sequence has chunks of cu_chunk_seqlen, the last of which is
// last_chunk_indices. The state after a chunk is that of its block if the next chunk is one of another block; that
// after the last chunk is the final one. A first chunk of several fills up the block that was begun before.
//
// Layout: a warp has one sequence. There is a row for each chunk.
#include "common/blocks.cuh"

struct SelectiveScanVarlenBlocksParams {
    const void* block_idx_first_scheduled_token;
    const void* cu_chunk_seqlen;
    const void* last_chunk_indices;
    BlockOperands operands;
    index_t block_idx_first_scheduled_token_stride;
    index_t cu_chunk_seqlen_stride;
    index_t last_chunk_indices_stride;
    int block_idx_first_scheduled_token_is_int64;
    int cu_chunk_seqlen_is_int64;
    int last_chunk_indices_is_int64;
};

struct SelectiveScanVarlenBlocksTraits {
    static constexpr int kThreads = 128;
    static constexpr int kMinBlocks = 1;
};

// The last chunk of a sequence; -1 in front of the first one. A number outside is brought inside.
__device__ __forceinline__ int last_chunk(const SelectiveScanVarlenBlocksParams& params, int number) {
    if (number < 0) return -1;
    const index_t chunk = load_index(params.last_chunk_indices, number * params.last_chunk_indices_stride,
                                     params.last_chunk_indices_is_int64);
    const index_t most = params.operands.rows - 1;
    return static_cast<int>(chunk < -1 ? -1 : chunk > most ? most : chunk);
}

// The first token of a chunk.
__device__ __forceinline__ index_t chunk_start(const SelectiveScanVarlenBlocksParams& params, int chunk) {
    return bounded(
        load_index(params.cu_chunk_seqlen, chunk * params.cu_chunk_seqlen_stride, params.cu_chunk_seqlen_is_int64));
}

template <typename Traits = SelectiveScanVarlenBlocksTraits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    selective_scan_varlen_blocks_kernel(const SelectiveScanVarlenBlocksParams params) {
    const BlockOperands& p = params.operands;
    const int number = static_cast<int>((blockIdx.x * Traits::kThreads + threadIdx.x) / kWarpSize);
    if (number >= p.sequences) return;
    const int begin = last_chunk(params, number - 1) + 1;
    const int last = last_chunk(params, number);
    const index_t first = bounded(load_index(params.block_idx_first_scheduled_token,
                                             number * params.block_idx_first_scheduled_token_stride,
                                             params.block_idx_first_scheduled_token_is_int64));
    index_t begun = 0;
    if (begin < last) {
        const index_t missing = chunk_start(params, begin + 1) - chunk_start(params, begin);
        begun = missing < p.block_size ? p.block_size - missing : 0;
    }
    const index_t token = first_token(p, number);
    // The block of chunk i of the sequence.
    const auto block = [&](int i) {
        return first + (begun + chunk_start(params, begin + i + 1) - token - 1) / p.block_size;
    };
    store_blocks(
        p, number, begin, last + 1, [&](int i) { return chunk_start(params, begin + i + 1) - token; },
        [&](int i) { return begin + i < last && block(i) < block(i + 1) ? block(i) : -1; });
}
