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
    // Without a bound the compiler keeps the states of all rows for the sums. On an H200 256 sequences of int8
    // (Mamba-2, 128 heads) take 192 us with 4 blocks, 168 with 5; 4 tokens of 32 sequences 120 with 1, 102 with 3.
    // B and C of more bits, the addresses of narrow accesses, masks and random numbers leave fewer registers.
    static constexpr bool kHasRoom = kSharedDecay && sizeof(b_t) == 2 && kVec * sizeof(state_t) == 16 && kDState <= 128;
    // Without instructions for 8-bit floats the compiler does many rows at once unless registers are few.
    static constexpr bool kIsComputed = kArch < 89 && kIsSame<state_t, float8_e4m3fn> && kRows >= 8 && !kMany;
    // Four rows of int16 leave registers for B and C of 32 bits: 64 sequences take 82 us so, and 93 with eight rows in
    // two blocks. 8-bit codes would take 14 % longer.
    static constexpr bool kHasWide = kSharedDecay && sizeof(b_t) == 4 && kIsSame<state_t, short> && kVec == 8 &&
                                     kDState <= 128 && kRows <= 4 && !kMany && !kMasked && !kStochastic;
    static constexpr int kMinBlocks = kHasWide                                        ? 4
                                      : kIsComputed && kSharedDecay && kDState <= 128 ? (kArch < 80 ? 2 : 4)
                                      : !kHasRoom                                     ? 1
                                      : kMany                                         ? (kMasked || kChosen ? 2 : 3)
                                      : kMasked || kStochastic                        ? 2
                                      : kArch >= 90 && sizeof(state_t) == 1 && kIsSame<b_t, __nv_bfloat16> ? 5
                                                                                                           : 4;
    using Rows = RowTraits<kDState, input_t, state_t, a_t, b_t, kVec, kRows, kSharedDecay, kMasked, kMany, kChosen,
                           kStream, kStochastic, kIndex32>;
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
