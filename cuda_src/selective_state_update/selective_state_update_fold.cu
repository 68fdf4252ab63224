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
    using Rows = RowTraits<kDState, input_t, state_t, a_t, b_t, kVec, kRows, true, kMasked, false, false, true,
                           kStochastic, kIndex32>;
    // As many as leave a lane registers for its rows, and for its part of B and C: nothing is spilled.
    static constexpr int kOwned = Rows::kRowsOfGroup * Rows::kElements;
    static constexpr bool kHasFew = !Rows::kIsQuantised && Rows::kElements * sizeof(b_t) <= 16;
    static constexpr bool kIsWide = sizeof(b_t) > 2;
    // With 16 sequences of bfloat16 or more, a step without live tokens takes as long as one without rings.
    static constexpr bool kIsCommon = kToken && !kMasked && kIndex32 && kRows <= 4 && kDState <= 128;
    static constexpr int kMinBlocks = !kHasFew      ? (kIsWide || kVec < 8 || Rows::kIsQuantised ? 2 : 3)
                                      : kOwned > 32 ? 2
                                      : kIsCommon   ? (kArch >= 90 ? 8 : 7) - kIsWide
                                                    : (kOwned > 16 ? 4 : 5) - kIsWide;
};

// Where the states of a warp's rows come from.
template <typename Traits>
struct Source {
    const WarpRows& warp;
    Ring<Traits> ring;
    const RingCursor& cursor;
    int count;    // live tokens that are put in the states
    float scale;  // of the codes of the lane's own row

    __device__ __forceinline__ Source(const ReplayOperands& p, const WarpRows& warp, int slot, const RingCursor& cursor,
                                      int count, float scale)
        : warp(warp), ring(p, slot, warp.head), cursor(cursor), count(count), scale(scale) {}
};

// Puts the live tokens in the states, then the next token, whose result it stores, and stores the states. With kToken
// rows come from memory once more, one after the other: live tokens are rare then, and all rows at once would take the
// registers of steps without any.
template <typename Traits, bool kToken>
__device__ __forceinline__ void fold_rows(const ReplayOperands& p, const Source<Traits>& from,
                                          const typename Traits::StateVec (&raw)[Traits::kRowsOfGroup][Traits::kChunks],
                                          const StateRows<Traits>& rows, const StateRows<Traits>& to, float* scale,
                                          const TokenCursor<Traits>& at, const RowParameters<Traits>& parameters,
                                          const TokenInputs<Traits>& inputs, const TokenMatrices<Traits>& maps) {
    const SelectiveStateUpdateOperands& s = p.operands;
    const Weights weights(kLog2E * parameters.A[0][0].to_float(0),
                          load_steps<Traits>(p, from.ring, from.cursor, from.count));
    const TokenStep<Traits> pace(s, parameters, inputs, 1.0f);
    const float input = pace.step * inputs.x.to_float(0);
    RowFactors<Traits> factors;
    float y = 0.0f;
#pragma unroll(kToken ? 1 : Traits::kRowsOfGroup)
    for (int r = 0; r < Traits::kRowsOfGroup; ++r) {
        float state[1][Traits::kElements];
        if constexpr (kToken) {
            typename Traits::StateVec row[Traits::kChunks];
            load_row<Traits>(s, from.warp, rows, r, row);
            to_floats<Traits>(row, state[0]);
        } else {
            to_floats<Traits>(raw[r], state[0]);
        }
        fold<Traits>(p, from.warp, from.ring, from.cursor, weights, from.count, from.scale, r, state);
        if constexpr (kToken) {
            const float sum = advance_row<Traits>(parameters, maps, pace, input, r, state[0]);
            const float own =
                from_lane(sum_over_lanes(sum, Traits::kLanes), lane_id() % Traits::kGroups * Traits::kLanes);
            if (lane_id() / Traits::kGroups == r) y = own;
        }
        store_row<Traits>(s, from.warp, to, r, 0, state[0], factors.find(r, state[0]));
    }
    factors.store_scale(s, from.warp, scale);
    if constexpr (kToken) at.store(s, finish_result<Traits>(s, parameters, inputs, y));
}

template <int kDState, typename input_t, typename state_t, typename a_t, typename b_t, int kVec, int kRows, bool kToken,
          bool kMasked, bool kStochastic, bool kIndex32,
          typename Traits = SelectiveStateUpdateFoldTraits<kDState, input_t, state_t, a_t, b_t, kVec, kRows, kToken,
                                                           kMasked, kStochastic, kIndex32>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    selective_state_update_fold_kernel(const SelectiveStateUpdateFoldParams params) {
    using Rows = typename Traits::Rows;
    const ReplayOperands& p = params.operands;
    const SelectiveStateUpdateOperands& s = p.operands;
    const WarpRows warp(s, uniform(blockIdx.x * (Traits::kThreads / kWarpSize) + threadIdx.x / kWarpSize), Rows::kTile);
    // Whole warps leave: the shuffles stay complete.
    if (warp.batch >= s.batch) return wait_for_preceding();
    const int slot = uniform(load_slot<Rows>(s, warp.batch));
    const int to = kToken ? slot : load_destination<Rows>(s, warp.batch, 0, slot);
    // As in a step without rings, states come first.
    const StateRows<Rows> rows(s.state, s.state_stride + 1, warp);
    const StateRows<Rows> from_rows = rows + max(slot, 0) * static_cast<index_t>(s.state_stride[0]);
    wait_for_preceding();
    const bool goes_on = slot >= 0 && to >= 0 && has_past(s, warp.batch);
    typename Rows::StateVec raw[Rows::kRowsOfGroup][Rows::kChunks];
#pragma unroll
    for (int r = 0; r < Rows::kRowsOfGroup; ++r) load_row<Rows>(s, warp, from_rows, r, raw[r], goes_on);
    uint2 words = make_uint2(0, 0);
    if (slot >= 0) words = RingCursor::load(p, slot);
    float scale = 1.0f;
    if constexpr (Rows::kIsQuantised) {
        if (goes_on) scale = load_scale<Rows>(scale_of_slot<Rows>(p, warp, slot));
    }
    sync_warp();
    const TokenCursor<Rows> at(s, warp, warp.batch, 0);
    TokenInputs<Rows> inputs;
    TokenMatrices<Rows> maps;
    RowParameters<Rows> parameters;
    parameters.load(s, warp);
    if constexpr (kToken) {
        maps.load(s, at);
        inputs.load(s, at);
    }
    if (slot < 0 || to < 0) {
        if (kToken && !s.keeps_padding) at.store(s, 0.0f);
        return;
    }
    const RingCursor cursor(p, slot, words);
    int count = goes_on ? cursor.live : 0;
    if (!kToken && p.count != nullptr) {
        const index_t wanted = load_index(p.count, warp.batch * p.count_stride, p.count_is_int64);
        if (wanted < 0) return;
        count = static_cast<int>(min(wanted, static_cast<index_t>(count)));
    }
    const Source<Rows> source(p, warp, slot, cursor, count, scale);
    if (kToken && warp.head == 0 && warp.first_row == 0 && lane_id() == 0) cursor.leave(0, cursor.live);
    const StateRows<Rows> targets = rows + to * s.state_stride[0];
    float* place = scale_of_slot<Rows>(p, warp, to);
    if constexpr (kToken) {
        if (count == 0) {
            store_rows<Rows>(s, warp, raw, scale, targets, place, at, parameters, inputs, maps);
            return;
        }
    }
    fold_rows<Rows, kToken>(p, source, raw, from_rows, targets, place, at, parameters, inputs, maps);
}
