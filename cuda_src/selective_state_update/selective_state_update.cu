// One or several tokens of a selective state space model: dt' = softplus?(dt + dt_bias), S = S * exp(dt' * A) +
// dt' * B * x, y = sum_n S * C + D * x, out = y * silu(z).
//
// Layout: state (slots, nheads, headdim, d_state), d_state contiguous when kVec > 1. A group of kLanes lanes owns a row
// of d_state elements, each lane kChunks vectors of it; the groups of a warp have neighbouring rows, kRows each, all
// loaded before the first is used. The sums over d_state leave every lane with one row: it loads x, dt and z of that
// row and stores its result.
//
// kDState  d_state, at most when kMasked  input_t  x and out               state_t  the pool of states
// a_t      A                              b_t      B and C                 kVec     elements per access
// kRows    rows that a group loads at once
// kSharedDecay  A, dt and dt_bias are the same for all rows and elements of a head, and so is the decay
// kMasked       d_state is less than kDState
// kMany         several tokens, or a slot or a buffer for the state after each
// kChosen       which state a sequence or a token follows is chosen, by state_column, has_initial_state or parents
// kStream       states are not to stay in the L2 cache
// kStochastic   states are rounded up or down at random
// kIndex32      all offsets fit in int32, those of states from the beginning of their slot
// kCrowded      a multiprocessor has more blocks than registers want
#include "selective_state_update/steps.cuh"

struct SelectiveStateUpdateParams {
    SelectiveStateUpdateOperands operands;
};

template <int kDState, typename input_t, typename state_t, typename a_t, typename b_t, int kVec, int kRows,
          bool kSharedDecay, bool kMasked, bool kMany, bool kChosen, bool kStream, bool kStochastic, bool kIndex32,
          bool kCrowded>
struct SelectiveStateUpdateTraits {
    static constexpr int kThreads = 128;
    static constexpr int kMinBlocks = kCrowded && kArch == 90 ? 5 : 1;
    using Rows = RowTraits<kDState, input_t, state_t, a_t, b_t, kVec, kRows, kSharedDecay, kMasked, kMany, kChosen,
                           kStream, kStochastic, kIndex32>;
};

template <
    int kDState, typename input_t, typename state_t, typename a_t, typename b_t, int kVec, int kRows, bool kSharedDecay,
    bool kMasked, bool kMany, bool kChosen, bool kStream, bool kStochastic, bool kIndex32, bool kCrowded,
    typename Traits = SelectiveStateUpdateTraits<kDState, input_t, state_t, a_t, b_t, kVec, kRows, kSharedDecay,
                                                 kMasked, kMany, kChosen, kStream, kStochastic, kIndex32, kCrowded>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    selective_state_update_kernel(const SelectiveStateUpdateParams params) {
    const unsigned number = blockIdx.x * (Traits::kThreads / kWarpSize) + threadIdx.x / kWarpSize;
    update<typename Traits::Rows>(params, number);
}
