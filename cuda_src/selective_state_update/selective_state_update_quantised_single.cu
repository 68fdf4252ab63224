// The same as selective_state_update_single.cu with quantised states: a code per element and a scale per row, S = code
// * scale. All offsets fit in int32, those of states from the beginning of their slot.
//
// Layout: state (slots, nheads, headdim, d_state) and state_scale (slots, nheads, headdim), rows and lanes as in
// selective_state_update.cu. A lane reads and writes the scale of its own row.
//
// kDState  d_state, at most when kMasked  input_t  x and out               state_t  the pool of codes
// a_t      A                              b_t      B and C                 kVec     elements per access
// kRows    rows that a group loads at once
// kSharedDecay  A, dt and dt_bias are the same for all rows and elements of a head, and so is the decay
// kMasked       d_state is less than kDState
// kStream       states are not to stay in the L2 cache
// kInPlace      states go to the slots that they come from
#include "selective_state_update/whole_step.cuh"

struct SelectiveStateUpdateQuantisedSingleParams {
    void* state_scale;
    SelectiveStateUpdateSingleOperands operands;
    index_t state_scale_stride[3];  // slot, head, row
};

template <int kDState, typename input_t, typename state_t, typename a_t, typename b_t, int kVec, int kRows,
          bool kSharedDecay, bool kMasked, bool kStream, bool kInPlace>
struct SelectiveStateUpdateQuantisedSingleTraits {
    static constexpr int kThreads = 128;
    using Rows = RowTraits<kDState, input_t, state_t, a_t, b_t, kVec, kRows, kSharedDecay, kMasked, false, false,
                           kStream, false, true, kWarpSize, SelectiveStateUpdateSingleOperands>;
    static constexpr int kMinBlocks = blocks_of_codes<Rows>();
};

template <int kDState, typename input_t, typename state_t, typename a_t, typename b_t, int kVec, int kRows,
          bool kSharedDecay, bool kMasked, bool kStream, bool kInPlace,
          typename Traits = SelectiveStateUpdateQuantisedSingleTraits<kDState, input_t, state_t, a_t, b_t, kVec, kRows,
                                                                      kSharedDecay, kMasked, kStream, kInPlace>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    selective_state_update_quantised_single_kernel(const SelectiveStateUpdateQuantisedSingleParams params) {
    const unsigned number = blockIdx.x * (Traits::kThreads / kWarpSize) + threadIdx.x / kWarpSize;
    if constexpr (kInPlace) {
        step_codes_if_empty<typename Traits::Rows, NoRing>(params, number);
    } else {
        update<typename Traits::Rows>(params, number);
    }
}
