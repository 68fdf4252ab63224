// Puts the live tokens of rings and the next token of the sequence in states of 8-bit codes, for many sequences: what
// selective_state_update_fold.cu does, by the warps of selective_state_update_quantised_heads.cu, which take as long as
// without rings where no token is live.
//
// Layout: selective_state_update_quantised_heads.cu's; rings as in replay.cuh, of which all offsets fit in int32 from
// the beginning of their slot.
//
// kDState  d_state                        input_t  x and out               state_t  the pool of codes
// a_t      A                              b_t      B and C
#include "selective_state_update/quantised_heads.cuh"

struct SelectiveStateUpdateQuantisedFoldParams {
    FoldScaledOperands operands;
};

template <int kDState, typename input_t, typename state_t, typename a_t, typename b_t>
struct SelectiveStateUpdateQuantisedFoldTraits {
    static constexpr int kThreads = 128;
    static constexpr int kMinBlocks = 4;
    using Rows = WalkedRows<kDState, input_t, state_t, a_t, b_t, FoldScaledOperands>;
};

template <int kDState, typename input_t, typename state_t, typename a_t, typename b_t,
          typename Traits = SelectiveStateUpdateQuantisedFoldTraits<kDState, input_t, state_t, a_t, b_t>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    selective_state_update_quantised_fold_kernel(const SelectiveStateUpdateQuantisedFoldParams params) {
    using Rows = typename Traits::Rows;
    constexpr int kWarps = Traits::kThreads / kWarpSize;
    __shared__ alignas(16) typename Rows::StateVec shared[kWarps][StagedCodes<Rows>::kVecs];
    __shared__ int live[kWarps];
    const int warp = uniform(static_cast<int>(threadIdx.x / kWarpSize));
    const unsigned number = blockIdx.x * kWarps + warp;
    const FoldScaled all{{params.operands}};
    if (!walk_heads<Rows, true>(all, number, shared[warp], &live[warp])) {
        // From the beginning once more: nothing that this takes is kept in registers meanwhile.
        fold_heads<Rows>(all, static_cast<unsigned>(opaque(static_cast<int>(number))));
    }
}
