// The same as selective_state_update_fold_single.cu with states of codes, and a scale per row.
//
// Layout: selective_state_update.cu's; no warp waits for another one.
//
// kDState  d_state, at most when kMasked  input_t  x and out               state_t  the pool of codes
// a_t      A                              b_t      B and C                 kVec     elements per access
// kRows    rows that a group loads at once
// kMasked  d_state is less than kDState
#include "selective_state_update/fold.cuh"

struct SelectiveStateUpdateQuantisedFoldSingleParams {
    FoldScaledOperands operands;
};

template <int kDState, typename input_t, typename state_t, typename a_t, typename b_t, int kVec, int kRows,
          bool kMasked>
struct SelectiveStateUpdateQuantisedFoldSingleTraits {
    static constexpr int kThreads = 128;
    using Rows = RowTraits<kDState, input_t, state_t, a_t, b_t, kVec, kRows, true, kMasked, false, false, true, false,
                           true, kWarpSize, FoldScaledOperands>;
    static constexpr int kMinBlocks = fold_blocks<Rows, true, kMasked, true>();
};

template <int kDState, typename input_t, typename state_t, typename a_t, typename b_t, int kVec, int kRows,
          bool kMasked,
          typename Traits =
              SelectiveStateUpdateQuantisedFoldSingleTraits<kDState, input_t, state_t, a_t, b_t, kVec, kRows, kMasked>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    selective_state_update_quantised_fold_single_kernel(const SelectiveStateUpdateQuantisedFoldSingleParams params) {
    const unsigned number = blockIdx.x * (Traits::kThreads / kWarpSize) + threadIdx.x / kWarpSize;
    fold_states<typename Traits::Rows, true>(FoldScaled{{params.operands}}, number);
}
