// One token of a selective state space model: dt' = softplus?(dt + dt_bias), S = S * exp(dt' * A) + dt' * B * x, y =
// sum_n S * C + D * x, out = y * silu(z). All offsets fit in int32, those of states from the beginning of their slot.
//
// Layout: state (slots, nheads, headdim, d_state), rows and lanes as in selective_state_update.cu.
//
// kDState  d_state, at most when kMasked  input_t  x and out               state_t  the pool of states
// a_t      A                              b_t      B and C                 kVec     elements per access
// kRows    rows that a group loads at once
// kSharedDecay  A, dt and dt_bias are the same for all rows and elements of a head, and so is the decay
// kMasked       d_state is less than kDState
// kStream       states are not to stay in the L2 cache
// kWhole        all rows of a warp exist, those of a head are contiguous, and states are written
// kMoved        where kWhole: states go to other slots than those which they come from
#include "selective_state_update/whole_step.cuh"

struct SelectiveStateUpdateSingleParams {
    SelectiveStateUpdateSingleOperands operands;
};

template <int kDState, typename input_t, typename state_t, typename a_t, typename b_t, int kVec, int kRows,
          bool kSharedDecay, bool kMasked, bool kStream, bool kWhole, bool kMoved>
struct SelectiveStateUpdateSingleTraits {
    static constexpr int kThreads = 128;
    using Rows = RowTraits<kDState, input_t, state_t, a_t, b_t, kVec, kRows, kSharedDecay, kMasked, false, false,
                           kStream, false, true, kWarpSize, SelectiveStateUpdateSingleOperands>;
    // With 3 blocks instead of 4, for a few registers more, 256 sequences of bfloat16 take 342 us instead of 267 on an
    // H200. After sm_90 the compiler wants more still, and would spill.
    static constexpr int kOwned = Rows::kRowsOfGroup * Rows::kElements * static_cast<int>(sizeof(state_t));
    // 4 sequences of bfloat16 take 5.7 us where rows are whole, and 6.5 with 4 blocks. float32 inputs beside 16-bit
    // states take more registers.
    static constexpr int kWholeBlocks = sizeof(input_t) > 2 && sizeof(state_t) == 2 ? 7 : 8;
    static constexpr int kMinBlocks =
        kWhole && kArch == 90                                                                            ? kWholeBlocks
        : kArch <= 90 && kSharedDecay && kDState <= 128 && kOwned == 256 && kVec * sizeof(state_t) == 16 ? 4
                                                                                                         : 1;
};

template <int kDState, typename input_t, typename state_t, typename a_t, typename b_t, int kVec, int kRows,
          bool kSharedDecay, bool kMasked, bool kStream, bool kWhole, bool kMoved,
          typename Traits = SelectiveStateUpdateSingleTraits<kDState, input_t, state_t, a_t, b_t, kVec, kRows,
                                                             kSharedDecay, kMasked, kStream, kWhole, kMoved>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    selective_state_update_single_kernel(const SelectiveStateUpdateSingleParams params) {
    const unsigned number = blockIdx.x * (Traits::kThreads / kWarpSize) + threadIdx.x / kWarpSize;
    using Rows = typename Traits::Rows;
    if constexpr (kWhole) {
        step_if_empty<Rows, Select<kMoved, MovedRows<Rows>, WholeRows<Rows>>, NoRing>(params.operands, number);
    } else {
        update<Rows>(params, number);
    }
}
