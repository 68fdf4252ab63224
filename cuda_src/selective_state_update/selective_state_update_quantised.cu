// The same as selective_state_update.cu with quantised states: a code per element and a scale per row, S = code *
// scale.
//
// Layout: state (slots, nheads, headdim, d_state) and state_scale (slots, nheads, headdim), rows and lanes as in
// selective_state_update.cu. A lane reads and writes the scale of its own row.
//
// kDState  d_state, at most when kMasked  input_t  x and out               state_t  the pool of codes
// a_t      A                              b_t      B and C                 kVec     elements per access
// kRows    rows that a group loads at once
// kSharedDecay  A, dt and dt_bias are the same for all rows and elements of a head, and so is the decay
// kMasked       d_state is less than kDState
// kMany         several tokens, or a slot or a buffer for the state after each
// kChosen       which state a sequence or a token follows is chosen, by state_column, has_initial_state or parents
// kStream       states are not to stay in the L2 cache
// kStochastic   codes are rounded up or down at random
// kIndex32      all offsets fit in int32, those of states from the beginning of their slot
#include "selective_state_update/steps.cuh"

struct SelectiveStateUpdateQuantisedParams {
    void* state_scale;
    void* intermediate_state_scales;
    SelectiveStateUpdateOperands operands;
    index_t state_scale_stride[3];                // slot, head, row
    index_t intermediate_state_scales_stride[4];  // row, token, head, row of the state
};

template <int kDState, typename input_t, typename state_t, typename a_t, typename b_t, int kVec, int kRows,
          bool kSharedDecay, bool kMasked, bool kMany, bool kChosen, bool kStream, bool kStochastic, bool kIndex32>
struct SelectiveStateUpdateQuantisedTraits {
    static constexpr int kThreads = 128;
    using Rows = RowTraits<kDState, input_t, state_t, a_t, b_t, kVec, kRows, kSharedDecay, kMasked, kMany, kChosen,
                           kStream, kStochastic, kIndex32>;
    static constexpr int kMinBlocks = blocks_of_codes<Rows>();
};

template <int kDState, typename input_t, typename state_t, typename a_t, typename b_t, int kVec, int kRows,
          bool kSharedDecay, bool kMasked, bool kMany, bool kChosen, bool kStream, bool kStochastic, bool kIndex32,
          typename Traits =
              SelectiveStateUpdateQuantisedTraits<kDState, input_t, state_t, a_t, b_t, kVec, kRows, kSharedDecay,
                                                  kMasked, kMany, kChosen, kStream, kStochastic, kIndex32>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    selective_state_update_quantised_kernel(const SelectiveStateUpdateQuantisedParams params) {
    const unsigned number = blockIdx.x * (Traits::kThreads / kWarpSize) + threadIdx.x / kWarpSize;
    update<typename Traits::Rows>(params, number);
}
