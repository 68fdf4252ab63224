// Trees of drafted tokens.
#pragma once

#include "common/fastdiv.cuh"
#include "common/vec.cuh"

// The token that a token of a tree follows; -1 when that is none of those before it, but the state in the slot.
// Operands have parents, with its strides by sequence and token in elements.
template <typename Operands>
__device__ __forceinline__ int load_parent(const Operands& p, int batch, int token) {
    const index_t parent =
        load_index(p.parents, batch * p.parents_stride[0] + token * p.parents_stride[1], p.parents_is_int64);
    return parent < 0 || parent >= token ? -1 : static_cast<int>(parent);
}

// Most tokens of the sequences of a block that a kernel has the parents of in shared memory.
inline constexpr int kTreeTokens = 1024;

// The parents of the tokens of the sequences of a block of kThreads, kTokens at most, as load_parent() has them.
template <int kThreads, int kTokens = kTreeTokens>
struct TreeTable {
    short parents[kTokens];
    short links[kTokens];  // the parent of a token, or ~t for that of its elder sibling t

    // Finds the parents of `count` tokens, those of the sequences from number `first` on, and waits until all threads
    // of the block have done so. Operands have parents and seqlen. Params have, where parents is null,
    // retrieve_next_token and retrieve_next_sibling, the first child and the next sibling of each token, with strides
    // by sequence and token; `seqlen` is that of the operands, to divide by. A token follows the first one unless a
    // link says otherwise. A link that does not lead to a later token counts for nothing, so that following links ends.
    template <typename Params, typename Operands>
    __device__ __forceinline__ void fill(const Params& params, const Operands& p, const FastDiv& seqlen, int first,
                                         int count) {
        if (p.parents != nullptr) {
#pragma unroll 1
            for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
                const QuotientRemainder at = divide(i, seqlen);
                parents[i] = static_cast<short>(load_parent(p, first + at.quotient, at.remainder));
            }
            __syncthreads();
            return;
        }
#pragma unroll 1
        for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) links[i] = 0;
        __syncthreads();
#pragma unroll 1
        for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
            const QuotientRemainder at = divide(i, seqlen);
            const int token = static_cast<int>(at.remainder);
            const index_t sequence = first + static_cast<int>(at.quotient);
            const auto* stride = params.retrieve_next_token_stride;
            const index_t child = load_index(params.retrieve_next_token, sequence * stride[0] + token * stride[1],
                                             params.retrieve_next_token_is_int64);
            stride = params.retrieve_next_sibling_stride;
            const index_t sibling = load_index(params.retrieve_next_sibling, sequence * stride[0] + token * stride[1],
                                               params.retrieve_next_sibling_is_int64);
            short* const own = links + (i - token);
            if (child > token && child < p.seqlen) own[child] = static_cast<short>(token);
            if (sibling > token && sibling < p.seqlen) own[sibling] = static_cast<short>(~token);
        }
        __syncthreads();
#pragma unroll 1
        for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
            const int token = static_cast<int>(divide(i, seqlen).remainder);
            int link = links[i];
            while (link < 0) link = links[i - token + ~link];
            parents[i] = static_cast<short>(token == 0 ? -1 : link);
        }
        __syncthreads();
    }

    // Writes the parents of a sequence's tokens `from`, from + step and so on to where params want them, 0 for none.
    // They are in the table from place `row` on.
    template <typename Params>
    __device__ __forceinline__ void store(const Params& params, index_t sequence, int seqlen, int row, int from,
                                          int step) const {
        if (params.retrieve_parent_token == nullptr) return;
        const auto* stride = params.retrieve_parent_token_stride;
#pragma unroll 1
        for (int t = from; t < seqlen; t += step) {
            const index_t at = sequence * stride[0] + t * stride[1];
            const int parent = max(static_cast<int>(parents[row + t]), 0);
            if (params.retrieve_parent_token_is_int64) {
                static_cast<index_t*>(params.retrieve_parent_token)[at] = parent;
            } else {
                static_cast<int*>(params.retrieve_parent_token)[at] = parent;
            }
        }
    }
};
