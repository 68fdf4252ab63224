// Live tokens that are put in states, and the next token with them: what selective_state_update_fold.cu does, for it
// and for the kernel with fewer arguments.
#pragma once

#include "selective_state_update/replay.cuh"
#include "selective_state_update/whole_step.cuh"

// Blocks of 128 threads per multiprocessor at least: as many as leave a lane registers for its rows, and for its part
// of B and C, so that nothing is spilled.
template <typename Rows, bool kToken, bool kMasked, bool kIndex32>
__device__ constexpr int fold_blocks() {
    constexpr int kOwned = Rows::kRowsOfGroup * Rows::kElements;
    constexpr int kDState = Rows::kElements * Rows::kLanes;
    constexpr bool kHasFew = !Rows::kIsQuantised && Rows::kElements * sizeof(typename Rows::Matrix) <= 16;
    constexpr bool kIsWide = sizeof(typename Rows::Matrix) > 2;
    // With 16 sequences of bfloat16 or more, a step without live tokens takes as long as one without rings. Code of its
    // own for live tokens leaves one without them enough registers for 8 blocks with any states. After sm_90 the
    // compiler wants more, and would spill.
    // 16 sequences of bfloat16 with a d_state of 256 take 35.3 us so, and 40.6 with 2 blocks.
    constexpr bool kFits = kDState <= (kArch == 90 && sizeof(typename Rows::State) <= 2 && !kIsWide ? 256 : 128);
    constexpr bool kIsCommon = kToken && !kMasked && kIndex32 && Rows::kRowsOfGroup <= 4 && kFits;
    constexpr bool kIsSingle = kIsSame<typename Rows::Operands, FoldSingleOperands>;
    // 5 sequences of int8 take 6.5 us so, and 7.7 with 4 blocks; 6 with 8 rows 7.3, and 9.1 with 2. Without
    // instructions for 8-bit floats the compiler does many rows at once unless registers are few.
    constexpr bool kIsCodes = Rows::kIsQuantised && !kIsWide && kToken && !kMasked && kIndex32 && kFits &&
                              Rows::kVecs * sizeof(typename Rows::State) == 16;
    // float32 inputs take twice the registers. 3 sequences of float16 take 5.06 us so, and 6.0 with 2 blocks; 4 of
    // int8 6.3 us with 4 blocks, and 7.2 with 2.
    constexpr bool kIsWideSingle = kIsCommon && kIsSingle && kIsWide && sizeof(typename Rows::State) == 2;
    constexpr bool kIsWideCodes =
        Rows::kIsQuantised && kIsWide && kToken && !kMasked && kIndex32 && Rows::kRowsOfGroup <= 4 && kDState <= 128;
    constexpr bool kIsComputed = kIsSame<typename Rows::State, float8_e4m3fn> && kArch >= 80 && kArch < 89;
    return kIsCodes && Rows::kRowsOfGroup > 4 ? (kArch >= 90   ? 4
                                                 : kIsComputed ? 5
                                                               : 3)
           : kIsCodes && kArch >= 90          ? 5
           : kIsWideSingle && kArch == 90     ? 7
           : kIsWideCodes && kArch == 90      ? 4
           : !kHasFew                         ? (kIsWide || Rows::kVecs < 8 || Rows::kIsQuantised ? 2 : 3)
           : kOwned > 32                      ? 2
           : kIsCommon && kIsSingle           ? (kArch == 90 ? 8 : 7)
           : kIsCommon                        ? (kArch >= 90 ? 8 : 7) - kIsWide
                                              : (kOwned > 16 ? 4 : 5) - kIsWide;
}

// Where the states of a warp's rows come from.
template <typename Traits>
struct Source {
    const WarpRows& warp;
    Ring<Traits> ring;
    const RingCursor& cursor;
    int count;    // live tokens that are put in the states
    float scale;  // of the codes of the lane's own row

    template <typename Operands>
    __device__ __forceinline__ Source(const Operands& p, const WarpRows& warp, int slot, const RingCursor& cursor,
                                      int count, float scale)
        : warp(warp), ring(p, slot, warp.head), cursor(cursor), count(count), scale(scale) {}
};

// Puts the live tokens in the states, then the next token, whose result it stores, and stores the states. With kToken
// rows come from memory once more, one after the other: live tokens are rare then, and all rows at once would take the
// registers of steps without any.
template <typename Traits, bool kToken, typename Operands>
__device__ __forceinline__ void fold_rows(const Operands& p, const Source<Traits>& from,
                                          const typename Traits::StateVec (&raw)[Traits::kRowsOfGroup][Traits::kChunks],
                                          const StateRows<Traits>& rows, const StateRows<Traits>& to, float* scale,
                                          const TokenCursor<Traits>& at, const RowParameters<Traits>& parameters,
                                          const TokenInputs<Traits>& inputs, const TokenMatrices<Traits>& maps) {
    const typename Traits::Operands& s = p.operands;
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

// The ring of a sequence, of which a step only asks whether it is empty.
struct EmptyRing {
    static constexpr bool kHasCursor = true;

    template <typename Operands>
    __device__ __forceinline__ static int load(const Operands& p, int slot) {
        return load_word<Memory::kMutable, int>(RingCursor::place_of(p, slot) + lane_id() % 4);
    }
    // Where an empty ring begins makes no difference.
    __device__ __forceinline__ static bool is_empty(int word) {
        return lanes_where(lane_id() % 4 != 0 && word != 0) == 0;
    }
    template <typename Operands>
    __device__ __forceinline__ static int* place_of(const Operands& p, int slot) {
        return RingCursor::place_of(p, slot);
    }
};

// number: of the warp. With kRest nothing is waited for, and there are live tokens, or something to be committed.
template <typename Rows, bool kToken, bool kRest = false, typename Operands>
__device__ __forceinline__ void fold_states(const Operands& p, unsigned number) {
    const typename Rows::Operands& s = p.operands;
    const WarpRows warp(s, uniform(number), Rows::kTile);
    // Whole warps leave: the shuffles stay complete.
    if (!kRest && warp.batch >= s.batch) return wait_for_preceding();
    const int slot = uniform(load_slot<Rows>(s, warp.batch));
    int to = slot;
    if constexpr (!kToken) to = load_destination<Rows>(s, warp.batch, 0, slot);
    // As in a step without rings, states come first.
    const StateRows<Rows> rows(s.state, s.state_stride + 1, warp);
    const StateRows<Rows> from_rows = rows + max(slot, 0) * static_cast<index_t>(s.state_stride[0]);
    if constexpr (!kRest) wait_for_preceding();
    const bool goes_on = slot >= 0 && to >= 0 && has_past(s, warp.batch);
    typename Rows::StateVec raw[Rows::kRowsOfGroup][Rows::kChunks];
#pragma unroll
    for (int r = 0; r < Rows::kRowsOfGroup; ++r) load_row<Rows>(s, warp, from_rows, r, raw[r], goes_on);
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
    // The cursor comes last: whatever is loaded after it the compiler would put behind the wait for it.
    sync_warp();
    const RingCursor cursor(p, slot);
    int count = goes_on ? cursor.live : 0;
    if constexpr (!kToken) {
        if (p.count != nullptr) {
            const index_t wanted = load_index(p.count, warp.batch * p.count_stride, p.count_is_int64);
            if (wanted < 0) return;
            count = static_cast<int>(min(wanted, static_cast<index_t>(count)));
        }
    }
    const Source<Rows> source(p, warp, slot, cursor, count, scale);
    if (kToken && warp.head == 0 && warp.first_row == 0 && lane_id() == 0) cursor.leave(0, cursor.live);
    const StateRows<Rows> targets = rows + to * static_cast<index_t>(s.state_stride[0]);
    float* place = scale_of_slot<Rows>(p, warp, to);
    if constexpr (kToken && Rows::kIsQuantised) hide_words<Rows>(raw);
    if constexpr (kToken && !kRest) {
        if (count == 0) {
            store_rows<Rows>(s, warp, raw, scale, targets, place, at, parameters, inputs, maps);
            return;
        }
    }
    fold_rows<Rows, kToken>(p, source, raw, from_rows, targets, place, at, parameters, inputs, maps);
}
