// Puts the live tokens of rings and the next token of the sequence in states of codes, up to four rows a group of
// lanes: what selective_state_update_fold.cu does, by the warps of selective_state_update_quantised_single.cu, which
// take as long as without rings where no token is live.
//
// Layout: selective_state_update_quantised_single.cu's; rings as in replay.cuh, of which all offsets fit in int32 from
// the beginning of their slot.
//
// kDState  d_state                        input_t  x and out               state_t  the pool of codes
// a_t      A                              b_t      B and C                 kVec     elements per access
// kRows    rows that a group loads at once
#include "selective_state_update/fold.cuh"

struct SelectiveStateUpdateQuantisedFoldSingleParams {
    FoldScaledOperands operands;
};

template <int kDState, typename input_t, typename state_t, typename a_t, typename b_t, int kVec, int kRows>
struct SelectiveStateUpdateQuantisedFoldSingleTraits {
    static constexpr int kThreads = 128;
    using Rows = RowTraits<kDState, input_t, state_t, a_t, b_t, kVec, kRows, true, false, false, false, true, false,
                           true, kWarpSize, FoldScaledOperands>;
    static constexpr int kMinBlocks = blocks_of_codes<Rows>();
};

template <
    int kDState, typename input_t, typename state_t, typename a_t, typename b_t, int kVec, int kRows,
    typename Traits = SelectiveStateUpdateQuantisedFoldSingleTraits<kDState, input_t, state_t, a_t, b_t, kVec, kRows>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    selective_state_update_quantised_fold_single_kernel(const SelectiveStateUpdateQuantisedFoldSingleParams params) {
    const unsigned number = blockIdx.x * (Traits::kThreads / kWarpSize) + threadIdx.x / kWarpSize;
    using Rows = typename Traits::Rows;
    const FoldScaled all{{params.operands}};
    if (!step_codes_if_empty<Rows, EmptyRing>(all, number)) {
        // From the beginning once more: of nothing that this takes the step above is to have registers.
        fold_states<Rows, true, true>(all, opaque(static_cast<int>(number)));
    }
}
