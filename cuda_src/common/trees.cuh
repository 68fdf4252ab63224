// Trees of drafted tokens.
#pragma once

#include "common/vec.cuh"

// The token that a token of a tree follows; -1 when that is none of those before it, but the state in the slot.
// Operands have parents, with its strides by sequence and token in elements.
template <typename Operands>
__device__ __forceinline__ int load_parent(const Operands& p, int batch, int token) {
    const index_t parent =
        load_index(p.parents, batch * p.parents_stride[0] + token * p.parents_stride[1], p.parents_is_int64);
    return parent < 0 || parent >= token ? -1 : static_cast<int>(parent);
}
