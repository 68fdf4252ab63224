// One token of a selective state space model with a decay of its own for every row and element, as Mamba has it: dt' =
// softplus(dt + dt_bias), S = S * exp(dt' * A) + dt' * B * x, y = sum_n S * C + D * x, out = y * silu(z).
//
// A step of few sequences takes as long as its arguments and its code do to arrive, and as one access: all loads are
// issued at once, without branches. On an H200 1 x 1536 of float32 take 1.69 us so, and 2.09 in
// selective_state_update_single; 64 x 8192 of bfloat16 12.4 and 13.4.
//
// Layout: state (slots, headdim, d_state) and A (headdim, d_state) of contiguous rows, one behind the other; x, dt, z
// and out (batch, headdim) and B and C (batch, d_state) of contiguous rows; D and dt_bias contiguous. A group of kLanes
// lanes owns a row, each lane kVec elements of it, in kSequences sequences: A, which has more bytes than a state of 16
// bits, is loaded once for all of them. A lane stands for one of these sequences in what a row has one number of. A
// block has the same sequences in all its rows.
//
// kDState  d_state              input_t  x and out        state_t  the pool of states
// a_t      A                    b_t      B and C          kVec     elements per lane
// kSequences  sequences of a thread, kLanes at most           kBlock  threads
// kIndexed    whether state_batch_indices has slots, or each sequence that of its number
#include "common/activation.cuh"
#include "common/warp.cuh"
#include "selective_state_update/own_number.cuh"

// Strides are in elements. Arguments arrive by cache lines, one miss after another: what is loaded first comes first.
struct SelectiveStateUpdateDecaysParams {
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
    int headdim;
    int batch;
    int state_stride;  // slot
    int x_stride;      // sequence
    int dt_stride;     // sequence
    int B_stride;      // sequence
    int C_stride;      // sequence
    int z_stride;      // sequence
    int out_stride;    // sequence
    int dt_is_float32;
    int dt_bias_is_float32;
    int D_is_float32;
    int z_is_float32;
    int slots;
    int pad_slot_id;
    int state_batch_indices_stride;
    int state_batch_indices_is_int64;
    int keeps_padding;  // results of sequences without a slot stay as they are, else they are zeros
};

template <int kDState, typename input_t, typename state_t, typename a_t, typename b_t, int kVec, int kSequences,
          int kBlock, bool kIndexed>
struct SelectiveStateUpdateDecaysTraits {
    static constexpr int kThreads = kBlock;
    // So that 16 sequences of 8192 rows of bfloat16 are one wave of blocks.
    static constexpr int kMinBlocks = kSequences > 1 ? 1024 / kThreads : 1;
    static constexpr int kLanes = kDState / kVec;
    static constexpr int kRows = kThreads / kLanes;  // of a block
    static_assert(kLanes * kVec == kDState && kLanes <= kWarpSize && kSequences <= kLanes);
};

template <int kDState, typename input_t, typename state_t, typename a_t, typename b_t, int kVec, int kSequences,
          int kBlock, bool kIndexed,
          typename Traits =
              SelectiveStateUpdateDecaysTraits<kDState, input_t, state_t, a_t, b_t, kVec, kSequences, kBlock, kIndexed>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    selective_state_update_decays_kernel(const __grid_constant__ SelectiveStateUpdateDecaysParams p) {
    constexpr int kLanes = Traits::kLanes;
    if (!kReadsFirst) wait_for_preceding();
    const int first = static_cast<int>(blockIdx.y) * kSequences;
    const int lane = static_cast<int>(threadIdx.x % kLanes);
    const int thread_row = static_cast<int>(blockIdx.x * Traits::kRows + threadIdx.x / kLanes);
    // Threads beyond the last row compute what it has, and sequences beyond the last one, too; neither is stored.
    const int row = min(thread_row, p.headdim - 1);
    const auto sequence = [&](int s) { return kSequences == 1 ? first : min(first + s, p.batch - 1); };
    const auto exists = [&](int s) { return thread_row < p.headdim && (kSequences == 1 || first + s < p.batch); };
    RawIndex raw_slots[kSequences];
    if constexpr (kIndexed) {
#pragma unroll
        for (int s = 0; s < kSequences; ++s) {
            raw_slots[s].template load<Memory::kMutable>(
                p.state_batch_indices, sequence(s) * p.state_batch_indices_stride, p.state_batch_indices_is_int64);
        }
        sync_warp();
    }
    const int element = row * kDState + lane * kVec;
    Vec<state_t, kVec> raw[kSequences];
    state_t* places[kSequences];
    bool has_slot[kSequences];
    const auto load_states = [&] {
#pragma unroll
        for (int s = 0; s < kSequences; ++s) {
            const int slot = kIndexed ? raw_slots[s].below(p.slots, p.pad_slot_id) : sequence(s);
            has_slot[s] = !kIndexed || slot >= 0;
            places[s] = static_cast<state_t*>(p.state) + (slot * static_cast<index_t>(p.state_stride) + element);
            raw[s] = Vec<state_t, kVec>::zero();
            if (has_slot[s]) raw[s] = load<kVec, Memory::kMutable>(places[s]);
        }
    };
    if (!kIndexed) load_states();
    PackedVec<a_t, kVec> A;
    A.template load<Memory::kMutable>(static_cast<const a_t*>(p.A) + element);
    // What a row has one number of, in the sequence that the lane stands for.
    const int own = sequence(lane % kSequences);
    Vec<input_t, 1> x;
    OwnNumber<input_t> dt, z, dt_bias, D;
    PackedVec<b_t, kVec> B[kSequences], C[kSequences];
    const auto load_inputs = [&] {
        dt.load(p.dt, own * p.dt_stride + row, p.dt_is_float32);
        x = load<1, Memory::kMutable>(static_cast<const input_t*>(p.x) + (own * p.x_stride + row));
#pragma unroll
        for (int s = 0; s < kSequences; ++s) {
            const int at = lane * kVec;
            B[s].template load<Memory::kMutable>(static_cast<const b_t*>(p.B) + (sequence(s) * p.B_stride + at));
            C[s].template load<Memory::kMutable>(static_cast<const b_t*>(p.C) + (sequence(s) * p.C_stride + at));
        }
        z.load(p.z, own * p.z_stride + row, p.z_is_float32);
    };
    dt_bias.load(p.dt_bias, row, p.dt_bias_is_float32);
    D.load(p.D, row, p.D_is_float32);
    if (!kReadsFirst) load_inputs();
    if (kIndexed) {
        sync_warp();
        load_states();
    }
    if (kReadsFirst) {
        wait_for_preceding();
        load_inputs();
    }
    const float step = softplus(dt.to_float(p.dt_is_float32) + dt_bias.to_float(p.dt_bias_is_float32));
    const float input = step * x.to_float(0);
    const float rate = step * kLog2E;
    float sums[kSequences];
#pragma unroll
    for (int s = 0; s < kSequences; ++s) {
        const float own_rate = kSequences == 1 ? rate : from_group_lane<kLanes>(rate, s);
        const float own_input = kSequences == 1 ? input : from_group_lane<kLanes>(input, s);
        float state[kVec];
        sums[s] = 0.0f;
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
            const float decay = exp2_approx(own_rate * A.to_float(i));
            state[i] = fmaf(raw[s].to_float(i), decay, own_input * B[s].to_float(i));
            sums[s] = fmaf(state[i], C[s].to_float(i), sums[s]);
        }
        if (has_slot[s] && exists(s)) { store<Keep::kStream>(places[s], Vec<state_t, kVec>::from_floats(state)); }
    }
    float y = sum_rows_over_lanes<kSequences, kLanes>(sums);
    y = fmaf(D.to_float(p.D_is_float32), x.to_float(0), y);
    y *= silu<float>(z.to_float(p.z_is_float32));
    bool is_own = true;
    if constexpr (kIndexed) {
#pragma unroll
        for (int s = 0; s < kSequences; ++s) is_own = lane % kSequences == s ? has_slot[s] : is_own;
    }
    if (lane < kSequences && exists(lane) && (is_own || !p.keeps_padding)) {
        static_cast<input_t*>(p.out)[own * p.out_stride + row] = Dtype<input_t>::from_float(is_own ? y : 0.0f);
    }
}
