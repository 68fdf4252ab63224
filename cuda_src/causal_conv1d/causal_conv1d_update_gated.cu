// out[t] = post_gate[t] * act(bias + sum_w weight[w] * input[t - (width - 1) + w]) + residual[t] for the next tokens of
// sequences with their last inputs in a pool of states, which the call brings up to date; input = pre_gate * x.
//
// Layout: as causal_conv1d_update, which is this without gates.
//
// kWidth   filter taps             input_t  x, gates and outputs    weight_t  weight, and bias unless float
// state_t  the pool of states      kVec     channels a thread       kSilu     silu after the sum
// kRanges  how channels fall into ranges
// kAddressed  slots may be in columns, states may go to other slots or start from zeros, padding may stay as it is
// kPacked     sequences have any numbers of tokens, one behind the other
// kTokenStates  the state after each token may go to a slot, windows have all columns or lie over each other
#include "causal_conv1d/conv_update_tokens.cuh"

struct CausalConv1dUpdateGatedParams {
    CausalConv1dUpdateOperands operands;
};

template <int kWidth, typename input_t, typename weight_t, typename state_t, int kVec, bool kSilu, Ranges kRanges,
          bool kAddressed, bool kPacked, bool kTokenStates>
struct CausalConv1dUpdateGatedTraits {
    static constexpr int kThreads = 128;
    static constexpr int kMinBlocks = 1;
    static_assert(kIsWidth<kWidth>);
};

template <int kWidth, typename input_t, typename weight_t, typename state_t, int kVec, bool kSilu, Ranges kRanges,
          bool kAddressed, bool kPacked, bool kTokenStates,
          typename Traits = CausalConv1dUpdateGatedTraits<kWidth, input_t, weight_t, state_t, kVec, kSilu, kRanges,
                                                          kAddressed, kPacked, kTokenStates>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_update_gated_kernel(const CausalConv1dUpdateGatedParams params) {
    using Filter = UpdateFilter<kWidth, input_t, weight_t, kVec, kSilu>;
    const CausalConv1dUpdateOperands& p = params.operands;
    wait_for_preceding();
    const UpdateShare<kVec, 1> share(p);
    if (share.is_empty) return;
    update_sequence<Filter, kWidth, input_t, state_t, kVec, kRanges, kAddressed, kPacked, kTokenStates, true>(p, share);
}
