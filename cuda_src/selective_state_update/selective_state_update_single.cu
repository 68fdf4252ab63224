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
#include "selective_state_update/steps.cuh"

// Strides are in elements. Arguments arrive by cache lines, one miss after another, and a small batch waits for them:
// strides of 32 bits, and what every launch needs first.
struct SelectiveStateUpdateSingleOperands {
    void* state;
    const void* x;
    const void* dt;
    const void* A;
    const void* B;
    const void* C;
    const void* dt_bias;
    const void* state_batch_indices;
    const void* D;
    const void* z;
    void* out;
    const void* dst_state_batch_indices;
    FastDiv row_tiles;  // warps per head
    FastDiv nheads;
    FastDiv group_heads;  // heads per group
    int batch;
    int headdim;
    int state_stride[4];  // slot, head, row, n
    int x_stride[4];      // batch, token, head, row
    int dt_stride[4];
    int B_stride[4];  // batch, token, group, n
    int C_stride[4];
    int dt_is_float32;
    int dt_bias_is_float32;
    int dt_softplus;
    int A_stride[3];        // head, row, n
    int dt_bias_stride[2];  // head, row
    int D_stride[2];
    int D_is_float32;
    int out_stride[4];
    int is_read_only;  // the pool of states is not written
    int z_is_float32;
    int z_stride[4];
    int d_state;
    int keeps_padding;  // the results of padding stay as they are, else they are zeros
    int slots;
    int pad_slot_id;
    int state_batch_indices_stride[2];  // batch, column
    int dst_state_batch_indices_stride[2];
    int state_batch_indices_is_int64;
    int dst_state_batch_indices_is_int64;
};

struct SelectiveStateUpdateSingleParams {
    SelectiveStateUpdateSingleOperands operands;
};

template <int kDState, typename input_t, typename state_t, typename a_t, typename b_t, int kVec, int kRows,
          bool kSharedDecay, bool kMasked, bool kStream>
struct SelectiveStateUpdateSingleTraits {
    static constexpr int kThreads = 128;
    using Rows = RowTraits<kDState, input_t, state_t, a_t, b_t, kVec, kRows, kSharedDecay, kMasked, false, false,
                           kStream, false, true, kWarpSize, SelectiveStateUpdateSingleOperands>;
    // With 3 blocks instead of 4, for a few registers more, 256 sequences of bfloat16 take 342 us instead of 267 on an
    // H200. After sm_90 the compiler wants more still, and would spill.
    static constexpr int kOwned = Rows::kRowsOfGroup * Rows::kElements * static_cast<int>(sizeof(state_t));
    static constexpr int kMinBlocks =
        kArch <= 90 && kSharedDecay && kDState <= 128 && kOwned == 256 && kVec * sizeof(state_t) == 16 ? 4 : 1;
};

template <int kDState, typename input_t, typename state_t, typename a_t, typename b_t, int kVec, int kRows,
          bool kSharedDecay, bool kMasked, bool kStream,
          typename Traits = SelectiveStateUpdateSingleTraits<kDState, input_t, state_t, a_t, b_t, kVec, kRows,
                                                             kSharedDecay, kMasked, kStream>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    selective_state_update_single_kernel(const SelectiveStateUpdateSingleParams params) {
    const unsigned number = blockIdx.x * (Traits::kThreads / kWarpSize) + threadIdx.x / kWarpSize;
    update<typename Traits::Rows>(params, number);
}
