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
#include "selective_state_update/replay.cuh"

struct SelectiveStateUpdateFoldParams {
    ReplayOperands operands;
};

template <int kDState, typename input_t, typename state_t, typename a_t, typename b_t, int kVec, int kRows, bool kToken,
          bool kMasked, bool kStochastic, bool kIndex32>
struct SelectiveStateUpdateFoldTraits {
    static constexpr int kThreads = 128;
    static constexpr int kMinBlocks = 1;
    static constexpr int kVectors = (kDState + kVec - 1) / kVec;
    static constexpr int kLanes = kVectors > 16  ? 32
                                  : kVectors > 8 ? 16
                                  : kVectors > 4 ? 8
                                  : kVectors > 2 ? 4
                                                 : kVectors;
    static constexpr int kChunks = (kVectors + kLanes - 1) / kLanes;
    static constexpr int kElements = kChunks * kVec;  // per row and lane
    static constexpr int kGroups = kWarpSize / kLanes;
    static constexpr int kTile = kGroups * kRows;  // rows per warp
    static_assert(kRows <= kLanes && kTile <= kWarpSize, "a lane is left with one row");

    using Input = input_t;
    using A = a_t;
    using Matrix = b_t;
    using State = state_t;
    using Offset = Select<kIndex32, int, index_t>;
    using StateVec = Vec<state_t, kVec>;
    static constexpr int kVecs = kVec;
    static constexpr int kRowsOfGroup = kRows;
    static constexpr bool kHasSharedDecay = true;
    static constexpr Keep kKeep = Keep::kStream;
    static constexpr bool kIsMany = false;
    static constexpr bool kIsChosen = false;
    static constexpr bool kHasToken = kToken;
    static constexpr bool kIsWide = sizeof(b_t) > sizeof(input_t);  // z may be wider than x, too
    static constexpr bool kIsStochastic = kStochastic;

    __device__ __forceinline__ static int element(int i) { return (i * kLanes + lane_id() % kLanes) * kVec; }
    __device__ __forceinline__ static int d_state(const SelectiveStateUpdateOperands& p) {
        return kMasked ? p.d_state : kDState;
    }
    __device__ __forceinline__ static int row(const WarpRows& warp, int r) {
        return warp.first_row + lane_id() / kLanes + r * kGroups;
    }
    __device__ __forceinline__ static float of_row(float own, int r) {
        return from_lane(own, lane_id() / kLanes + r * kGroups);
    }
};

// Loads the states of a slot, and puts the first `count` live tokens in them.
template <typename Traits>
__device__ __forceinline__ void load_folded(const ReplayOperands& p, const WarpRows& warp, int slot,
                                            const RingCursor& cursor, int count, float scale,
                                            const typename Traits::StateVec (&raw)[Traits::kRowsOfGroup][Traits::kChunks],
                                            float (&state)[Traits::kRowsOfGroup][Traits::kElements]) {
#pragma unroll
    for (int r = 0; r < Traits::kRowsOfGroup; ++r) to_floats<Traits>(raw[r], state[r]);
    if (count <= 0) return;
    const Ring<Traits> ring(p, slot, warp.head);
    const Weights weights(scale, load_steps<Traits>(p, ring, cursor, count));
    fold<Traits>(p, warp, ring, cursor, weights, count, state);
}

template <int kDState, typename input_t, typename state_t, typename a_t, typename b_t, int kVec, int kRows, bool kToken,
          bool kMasked, bool kStochastic, bool kIndex32,
          typename Traits = SelectiveStateUpdateFoldTraits<kDState, input_t, state_t, a_t, b_t, kVec, kRows, kToken,
                                                           kMasked, kStochastic, kIndex32>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    selective_state_update_fold_kernel(const SelectiveStateUpdateFoldParams params) {
    const ReplayOperands& p = params.operands;
    const SelectiveStateUpdateOperands& s = p.step;
    const WarpRows warp(s, blockIdx.x * (Traits::kThreads / kWarpSize) + threadIdx.x / kWarpSize, Traits::kTile);
    // Whole warps leave: the shuffles stay complete.
    if (warp.batch >= s.batch) return;
    const int slot = load_slot<Traits>(s, warp.batch);
    const int to = kToken ? slot : load_destination(s, warp.batch, 0, slot);
    RowParameters<Traits> parameters;
    TokenInputs<Traits> inputs;
    TokenMatrices<Traits> maps;
    const TokenCursor<Traits> at(s, warp, warp.batch, 0);
    if constexpr (kToken) {
        inputs.load(s, at);
        maps.load(s, at);
    }
    parameters.load(s, warp);
    if (slot < 0 || to < 0) {
        if (kToken && !s.keeps_padding) at.store(s, 0.0f);
        return;
    }
    const StateRows<Traits> rows(s.state, s.state_stride + 1, warp);
    const bool goes_on = has_past(s, warp.batch);
    typename Traits::StateVec raw[Traits::kRowsOfGroup][Traits::kChunks];
#pragma unroll
    for (int r = 0; r < Traits::kRowsOfGroup; ++r) {
        load_row<Traits>(s, warp, rows + slot * s.state_stride[0], r, raw[r], goes_on);
    }
    const RingCursor cursor(p, slot);
    int count = goes_on ? cursor.live : 0;
    if (!kToken && p.count != nullptr) {
        const index_t wanted = load_index(p.count, warp.batch * p.count_stride, p.count_is_int64);
        if (wanted < 0) return;
        count = static_cast<int>(min(wanted, static_cast<index_t>(count)));
    }
    float state[Traits::kRowsOfGroup][Traits::kElements];
    const float scale = kLog2E * parameters.A[0][0].to_float(0);
    load_folded<Traits>(p, warp, slot, cursor, count, scale, raw, state);
    if constexpr (kToken) {
        if (warp.head == 0 && warp.first_row == 0 && lane_id() == 0) cursor.leave(0, cursor.live);
        const TokenStep<Traits> pace(s, parameters, inputs);
        const float input = pace.step * inputs.x.to_float(0);
        float sums[Traits::kRowsOfGroup];
#pragma unroll
        for (int r = 0; r < Traits::kRowsOfGroup; ++r) {
            sums[r] = advance_row<Traits>(parameters, maps, pace, input, r, state[r]);
        }
        at.store(s, gather_result<Traits>(s, parameters, inputs, sums));
    }
#pragma unroll
    for (int r = 0; r < Traits::kRowsOfGroup; ++r) {
        store_row<Traits>(s, warp, rows + to * s.state_stride[0], r, 0, state[r]);
    }
}
