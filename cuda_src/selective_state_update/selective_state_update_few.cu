// One token of a selective state space model with a decay for each head, in few sequences: dt' = softplus(dt +
// dt_bias), S = S * exp(dt' * A) + dt' * B * x, y = sum_n S * C + D * x, out = y * silu(z).
//
// A step of few sequences takes as long as its arguments and its code do to arrive, and as one access: all loads are
// issued at once, without branches, and no lane asks another one before its sum.
//
// Layout: state (slots, nheads, headdim, d_state) of contiguous rows, one behind the other; x, z and out (batch,
// nheads, headdim), the same; B and C (batch, ngroups, d_state) of contiguous rows; dt (batch, nheads), A and dt_bias
// (nheads,) of any strides, D (nheads, headdim) as well. A group of kLanes lanes owns a row, each lane kVec elements of
// it. A block has rows of one sequence.
//
// kDState  d_state              input_t  x and out        state_t  the pool of states
// a_t      A                    b_t      B and C          kVec     elements per lane
// kIndexed    whether state_batch_indices has slots, or each sequence that of its number
#include "common/activation.cuh"
#include "common/fastdiv.cuh"
#include "common/warp.cuh"
#include "selective_state_update/own_number.cuh"

// Strides are in elements. z may be null. Arguments arrive by cache lines, one miss after another: what is loaded first
// comes first.
struct SelectiveStateUpdateFewParams {
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
    FastDiv head_rows;    // rows of a head
    FastDiv group_heads;  // heads per group
    int rows;             // of a sequence
    int state_stride;     // slot
    int x_stride;         // sequence
    int dt_stride[2];     // sequence, head
    int B_stride[2];      // sequence, group
    int C_stride[2];
    int A_stride;        // head
    int dt_bias_stride;  // head
    int D_stride[2];     // head, row
    int dt_is_float32;
    int dt_bias_is_float32;
    int D_is_float32;
    int z_is_float32;
    int z_stride;    // sequence
    int out_stride;  // sequence
    int slots;
    int pad_slot_id;
    int state_batch_indices_stride;
    int state_batch_indices_is_int64;
    int keeps_padding;  // results of sequences without a slot stay as they are, else they are zeros
};

template <int kDState, typename input_t, typename state_t, typename a_t, typename b_t, int kVec, bool kIndexed>
struct SelectiveStateUpdateFewTraits {
    static constexpr int kThreads = 256;
    static constexpr int kLanes = kDState / kVec;
    static constexpr int kRows = kThreads / kLanes;  // of a block
    static_assert(kLanes * kVec == kDState && kLanes <= kWarpSize);
};

template <int kDState, typename input_t, typename state_t, typename a_t, typename b_t, int kVec, bool kIndexed,
          typename Traits = SelectiveStateUpdateFewTraits<kDState, input_t, state_t, a_t, b_t, kVec, kIndexed>>
__global__ void __launch_bounds__(Traits::kThreads)
    selective_state_update_few_kernel(const __grid_constant__ SelectiveStateUpdateFewParams p) {
    constexpr int kLanes = Traits::kLanes;
    if (!kReadsFirst) wait_for_preceding();
    const int sequence = static_cast<int>(blockIdx.y);
    const int lane = static_cast<int>(threadIdx.x % kLanes);
    const int thread_row = static_cast<int>(blockIdx.x * Traits::kRows + threadIdx.x / kLanes);
    RawIndex raw_slot;
    if constexpr (kIndexed) {
        raw_slot.template load<Memory::kMutable>(p.state_batch_indices, sequence * p.state_batch_indices_stride,
                                                 p.state_batch_indices_is_int64);
    }
    // Threads beyond the last row compute what it has, and store nothing.
    const int row = min(thread_row, p.rows - 1);
    const QuotientRemainder head_row = divide(static_cast<unsigned>(row), p.head_rows);
    const int head = static_cast<int>(head_row.quotient), group = static_cast<int>(p.group_heads.quotient(head));
    Vec<state_t, kVec> raw;
    state_t* place;
    bool has_slot = true;
    const auto load_state = [&] {
        int slot = sequence;
        if constexpr (kIndexed) {
            slot = raw_slot.below(p.slots, p.pad_slot_id);
            has_slot = slot >= 0;
        }
        place = static_cast<state_t*>(p.state) +
                (slot * static_cast<index_t>(p.state_stride) + row * kDState + lane * kVec);
        raw = Vec<state_t, kVec>::zero();
        if (has_slot) raw = load<kVec, Memory::kMutable>(place);
    };
    if (!kIndexed) load_state();
    const auto A = load<1, Memory::kMutable>(static_cast<const a_t*>(p.A) + head * p.A_stride);
    Vec<input_t, 1> x;
    OwnNumber<input_t> dt, z, dt_bias, D;
    PackedVec<b_t, kVec> B, C;
    const auto load_inputs = [&] {
        dt.load(p.dt, sequence * p.dt_stride[0] + head * p.dt_stride[1], p.dt_is_float32);
        x = load<1, Memory::kMutable>(static_cast<const input_t*>(p.x) + (sequence * p.x_stride + row));
        const auto place_of = [&](const int* stride) { return sequence * stride[0] + group * stride[1] + lane * kVec; };
        B.template load<Memory::kMutable>(static_cast<const b_t*>(p.B) + place_of(p.B_stride));
        C.template load<Memory::kMutable>(static_cast<const b_t*>(p.C) + place_of(p.C_stride));
        z.word = 0;
        if (p.z != nullptr) z.load(p.z, sequence * p.z_stride + row, p.z_is_float32);
    };
    dt_bias.load(p.dt_bias, head * p.dt_bias_stride, p.dt_bias_is_float32);
    D.load(p.D, head * p.D_stride[0] + static_cast<int>(head_row.remainder) * p.D_stride[1], p.D_is_float32);
    if (!kReadsFirst) load_inputs();
    if (kIndexed) load_state();
    if (kReadsFirst) {
        wait_for_preceding();
        load_inputs();
    }
    const float step = softplus(dt.to_float(p.dt_is_float32) + dt_bias.to_float(p.dt_bias_is_float32));
    const float input = step * x.to_float(0), decay = exp2_approx(step * kLog2E * A.to_float(0));
    float state[kVec], sums[1] = {0.0f};
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
        state[i] = fmaf(raw.to_float(i), decay, input * B.to_float(i));
        sums[0] = fmaf(state[i], C.to_float(i), sums[0]);
    }
    const bool exists = thread_row < p.rows;
    if (has_slot && exists) store<Keep::kStream>(place, Vec<state_t, kVec>::from_floats(state));
    float y = sum_rows_over_lanes<1, kLanes>(sums);
    y = fmaf(D.to_float(p.D_is_float32), x.to_float(0), y);
    if (p.z != nullptr) y *= silu<float>(z.to_float(p.z_is_float32));
    if (lane == 0 && exists && (has_slot || !p.keeps_padding)) {
        static_cast<input_t*>(p.out)[sequence * p.out_stride + row] = Dtype<input_t>::from_float(has_slot ? y : 0.0f);
    }
}
