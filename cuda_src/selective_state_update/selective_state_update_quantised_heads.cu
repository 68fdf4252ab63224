// One token of a selective state space model with states of 8-bit codes and one decay a head, for many sequences: the
// formula is that of selective_state_update.cu, codes and scales those of quantised.cuh. All offsets fit in int32,
// those of states from the beginning of their slot, and the rows of a head lie one behind the other.
//
// Layout: state (slots, nheads, headdim, d_state) and state_scale (slots, nheads, headdim), rows and lanes as in
// selective_state_update.cu. A warp walks over some heads of one group, or half of one, for which it loads B and C
// once, by tiles of their rows. The codes of the next tile are on their way to shared memory, where each lane copies
// what it reads itself. Every lane stands for one row of a tile: it loads the row's x and scale and stores its result
// and scale.
//
// kDState  d_state                        input_t  x and out               state_t  the pool of codes
// a_t      A                              b_t      B and C
#include "selective_state_update/quantised_heads.cuh"

struct SelectiveStateUpdateQuantisedHeadsParams {
    void* state_scale;
    SelectiveStateUpdateSingleOperands operands;
    int heads;                  // per warp, at most 32; 0 for half of one
    int state_scale_stride[3];  // slot, head, row
};

template <int kDState, typename input_t, typename state_t, typename a_t, typename b_t>
struct SelectiveStateUpdateQuantisedHeadsTraits {
    static constexpr int kThreads = 128;
    // On an H200 64 sequences of int8 (Mamba-2, 128 heads) take 39.2 us, and 41.2 with 3 blocks. With the codes of two
    // tiles on their way, and two heads a warp, they took 41.2: to compute the last ones, when nothing is left to load,
    // takes the longer, the more there are; with 5 blocks, for which registers are too few, 44.2. C * codes by tensor
    // cores, as in replay, saved a tenth of the instructions, and no time: 41.7.
    static constexpr int kMinBlocks = 4;
    using Rows = WalkedRows<kDState, input_t, state_t, a_t, b_t, SelectiveStateUpdateSingleOperands>;
};

template <int kDState, typename input_t, typename state_t, typename a_t, typename b_t,
          typename Traits = SelectiveStateUpdateQuantisedHeadsTraits<kDState, input_t, state_t, a_t, b_t>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    selective_state_update_quantised_heads_kernel(const SelectiveStateUpdateQuantisedHeadsParams params) {
    using Rows = typename Traits::Rows;
    constexpr int kWarps = Traits::kThreads / kWarpSize;
    __shared__ alignas(16) typename Rows::StateVec shared[kWarps][StagedCodes<Rows>::kVecs];
    const int warp = uniform(static_cast<int>(threadIdx.x / kWarpSize));
    walk_heads<Rows, false>(params, blockIdx.x * kWarps + warp, shared[warp]);
}
