// Puts live tokens of rings in states (replay.cuh), and with kToken the next token of the sequence, whose result it
// computes: S = S * exp(dt' * A) + dt' * B * x, y = sum_n S * C + D * x, out = y * silu(z). Without live tokens that is
// the step of selective_state_update.cu. Without a token, state and rings of the source stay as they are.
//
// Layout: selective_state_update.cu's; no warp waits for another one.
//
// kDState  d_state, at most when kMasked  input_t  x and out               state_t  the pool of states
// a_t      A                              b_t      B and C                 kVec     elements per access
// kRows    rows that a group loads at once
// kToken       there is a next token
// kMasked      d_state is less than kDState
// kStochastic  states are rounded up or down at random
// kIndex32     all offsets fit in int32, those of states and rings from the beginning of their slot
#include "selective_state_update/fold.cuh"

struct SelectiveStateUpdateFoldParams {
    ReplayOperands operands;
};

template <int kDState, typename input_t, typename state_t, typename a_t, typename b_t, int kVec, int kRows, bool kToken,
          bool kMasked, bool kStochastic, bool kIndex32>
struct SelectiveStateUpdateFoldTraits {
    static constexpr int kThreads = 128;
    using Rows = RowTraits<kDState, input_t, state_t, a_t, b_t, kVec, kRows, true, kMasked, false, false, true,
                           kStochastic, kIndex32>;
    static constexpr int kMinBlocks = fold_blocks<Rows, kToken, kMasked, kIndex32>();
};

template <int kDState, typename input_t, typename state_t, typename a_t, typename b_t, int kVec, int kRows, bool kToken,
          bool kMasked, bool kStochastic, bool kIndex32,
          typename Traits = SelectiveStateUpdateFoldTraits<kDState, input_t, state_t, a_t, b_t, kVec, kRows, kToken,
                                                           kMasked, kStochastic, kIndex32>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    selective_state_update_fold_kernel(const SelectiveStateUpdateFoldParams params) {
    const unsigned number = blockIdx.x * (Traits::kThreads / kWarpSize) + threadIdx.x / kWarpSize;
    fold_states<typename Traits::Rows, kToken>(params.operands, number);
}
