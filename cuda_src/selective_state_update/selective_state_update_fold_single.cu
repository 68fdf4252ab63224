// Puts the live tokens of rings and the next token of the sequence in states: selective_state_update_fold.cu with fewer
// arguments, for states of floats, and for sequences that all go on. All offsets fit in int32, those of states and
// rings from the beginning of their slot.
//
// Layout: selective_state_update.cu's; no warp waits for another one.
//
// kDState  d_state, at most when kMasked  input_t  x and out               state_t  the pool of states
// a_t      A                              b_t      B and C                 kVec     elements per access
// kRows    rows that a group loads at once
// kMasked  d_state is less than kDState
// kCrowded there are more blocks than run at once with all the registers that a lane wants, but no more than with fewer
#include "selective_state_update/fold.cuh"

struct SelectiveStateUpdateFoldSingleParams {
    FoldSingleOperands operands;
};

template <int kDState, typename input_t, typename state_t, typename a_t, typename b_t, int kVec, int kRows,
          bool kMasked, bool kCrowded>
struct SelectiveStateUpdateFoldSingleTraits {
    static constexpr int kThreads = 128;
    using Rows = RowTraits<kDState, input_t, state_t, a_t, b_t, kVec, kRows, true, kMasked, false, false, true, false,
                           true, kWarpSize, FoldSingleOperands>;
    using Place = Select<kMasked, SlotRows<Rows>, WholeRows<Rows>>;
    // 4 sequences of bfloat16 with x of float32 are 1024 blocks of 128 heads: they take 5.98 us with 8 blocks on a
    // multiprocessor, 6.59 with 7, and 5.85 without rings. 3 and 5 take 4.98 and 7.51 with 8, and 4.77 and 7.42 with 7.
    static constexpr int kMinBlocks = kCrowded && kArch == 90 ? 8 : fold_blocks<Rows, true, kMasked, true>();
};

template <int kDState, typename input_t, typename state_t, typename a_t, typename b_t, int kVec, int kRows,
          bool kMasked, bool kCrowded,
          typename Traits =
              SelectiveStateUpdateFoldSingleTraits<kDState, input_t, state_t, a_t, b_t, kVec, kRows, kMasked, kCrowded>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    selective_state_update_fold_single_kernel(const SelectiveStateUpdateFoldSingleParams params) {
    const unsigned number = blockIdx.x * (Traits::kThreads / kWarpSize) + threadIdx.x / kWarpSize;
    using Rows = typename Traits::Rows;
    if (!step_if_empty<Rows, typename Traits::Place, EmptyRing>(params.operands, number)) {
        // From the beginning once more: of nothing that this takes the step above is to have registers.
        fold_states<Rows, true, true>(FoldSingle{params.operands}, opaque(static_cast<int>(number)));
    }
}
