// The snapshots of a prefix cache that keeps the state at the end of every block of tokens, as rows (sequence,
// position, slot): the state of sequence i at the end of block j, for the blocks before its last one, after (j + 1) *
// block_size - num_computed_tokens[i] tokens, goes to slot cache_indices[i, j].
//
// Layout: a warp has one sequence. Its rows begin at first token / block_size + its number, so that each sequence has
// as many rows as blocks may end in it, whatever the others have.
#include "common/blocks.cuh"

struct CausalConv1dVarlenBlocksParams {
    const void* num_computed_tokens;
    BlockOperands operands;
    index_t num_computed_tokens_stride;
    int num_computed_tokens_is_int64;
};

struct CausalConv1dVarlenBlocksTraits {
    static constexpr int kThreads = 128;
    static constexpr int kMinBlocks = 1;
};

template <typename Traits = CausalConv1dVarlenBlocksTraits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_varlen_blocks_kernel(const CausalConv1dVarlenBlocksParams params) {
    const BlockOperands& p = params.operands;
    const int number = static_cast<int>((blockIdx.x * Traits::kThreads + threadIdx.x) / kWarpSize);
    if (number >= p.sequences) return;
    const index_t size = p.block_size;
    const index_t computed = bounded(load_index(params.num_computed_tokens, number * params.num_computed_tokens_stride,
                                                params.num_computed_tokens_is_int64));
    const index_t first = computed > 0 ? computed / size : 0;
    const index_t kept = last_block(p, number) - first;
    const int begin = static_cast<int>(first_token(p, number) / size) + number;
    const int end = static_cast<int>(first_token(p, number + 1) / size) + number + 1;
    store_blocks(
        p, number, begin, end, [&](int i) { return (first + i + 1) * size - computed; },
        [&](int i) { return i < kept ? first + i : -1; });
}
