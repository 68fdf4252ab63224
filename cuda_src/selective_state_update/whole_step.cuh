// A step of one token in few instructions, for sequences that all go on from the slot which their state goes to, and
// have one decay a head: what selective_state_update_single.cu does for few sequences, and a step with rings that are
// empty.
#pragma once

#include "selective_state_update/steps.cuh"

// The rows of a warp in a slot.
template <typename Rows>
struct SlotRows {
    static constexpr bool kIsMoved = false;

    const typename Rows::Operands& p;
    const WarpRows& warp;
    StateRows<Rows> rows;

    __device__ __forceinline__ SlotRows(const typename Rows::Operands& p, const WarpRows& warp, int slot)
        : p(p),
          warp(warp),
          rows(StateRows<Rows>(p.state, p.state_stride + 1, warp) + slot * static_cast<index_t>(p.state_stride[0])) {}

    __device__ __forceinline__ void load(int r, typename Rows::StateVec (&row)[Rows::kChunks]) const {
        load_row<Rows>(p, warp, rows, r, row);
    }
    __device__ __forceinline__ void store(int r, const float (&state)[Rows::kElements]) const {
        store_row<Rows>(p, warp, rows, r, 0, state);
    }
};

// The same where all rows of a warp exist and those of a head are contiguous: fewer instructions in front of the loads,
// and behind them.
template <typename Rows, Memory kMemory = Memory::kMutable>
struct WholeRows {
    static constexpr bool kIsMoved = false;
    static constexpr int kRow = Rows::kElements * Rows::kLanes;
    static_assert(kRow == Rows::kRowElements, "every lane has a part of the row");

    typename Rows::State* first;

    __device__ __forceinline__ WholeRows(const typename Rows::Operands& p, const WarpRows& warp, int slot)
        : first(static_cast<typename Rows::State*>(p.state) + slot * static_cast<index_t>(p.state_stride[0]) +
                warp.head * p.state_stride[1] + (Rows::row(warp, 0) * kRow + Rows::element(0))) {}

    __device__ __forceinline__ void load(int r, typename Rows::StateVec (&row)[Rows::kChunks]) const {
#pragma unroll
        for (int i = 0; i < Rows::kChunks; ++i) row[i] = ::load<Rows::kVecs, kMemory>(at(r, i));
    }
    __device__ __forceinline__ void store(int r, const float (&state)[Rows::kElements]) const {
#pragma unroll
        for (int i = 0; i < Rows::kChunks; ++i) {
            float values[Rows::kVecs];
#pragma unroll
            for (int j = 0; j < Rows::kVecs; ++j) values[j] = state[i * Rows::kVecs + j];
            ::store<Rows::kKeep>(at(r, i), Rows::StateVec::from_floats(values));
        }
    }

 private:
    __device__ __forceinline__ typename Rows::State* at(int r, int i) const {
        return first + (r * Rows::kGroups * kRow + i * Rows::kLanes * Rows::kVecs);
    }
};

// Whole rows that go to another slot than the one which they come from, or to none. On an H200 1 to 4 sequences take 6
// to 13 % less time if the lines which they come from are evicted first, 8 2 %.
template <typename Rows>
struct MovedRows {
    static constexpr bool kIsMoved = true;

    const typename Rows::Operands& p;
    const WarpRows& warp;
    WholeRows<Rows, Memory::kOnce> from;
    RawIndex target;

    __device__ __forceinline__ MovedRows(const typename Rows::Operands& p, const WarpRows& warp, int slot)
        : p(p), warp(warp), from(p, warp, slot) {}

    __device__ __forceinline__ void load(int r, typename Rows::StateVec (&row)[Rows::kChunks]) const {
        from.load(r, row);
    }
    __device__ __forceinline__ void load_target() {
        target.load(p.dst_state_batch_indices, of_own_lane(warp.batch) * p.dst_state_batch_indices_stride[0],
                    p.dst_state_batch_indices_is_int64);
    }
    __device__ __forceinline__ void store(int r, const float (&state)[Rows::kElements]) const {
        const int slot = target.below(p.slots, p.pad_slot_id);
        if (slot >= 0) WholeRows<Rows>(p, warp, slot).store(r, state);
    }
};

// Rows that are advanced before the others, while a ring's cursor is on its way. All blocks wait for the same cursors.
// On an H200 2 and 3 sequences of float32 states with x of bfloat16 take 5.79 and 8.40 us with four such rows, 5.81 and
// 8.49 with two.
template <typename Rows>
inline constexpr int kEarlyRows =
    kIsSame<typename Rows::Input, __half> || (sizeof(typename Rows::Input) == 2 && sizeof(typename Rows::State) == 4)
        ? 4
        : 2;

// What the load of a ring's cursor follows.
enum class CursorLoad { kSlot, kStates, kParameters, kInputs };

// The place in which a step takes the shortest time, by what its rows are. On an H200, 5 sequences of float16 with
// inputs of bfloat16 take 7.26 us behind the parameters, 7.32 behind the states, and 7.52 without rings; 4 with inputs
// of float32 6.66 us behind the slot, 6.74 behind the states, and 6.64 without rings.
template <typename Rows>
__device__ constexpr CursorLoad cursor_load() {
    using Input = typename Rows::Input;
    using State = typename Rows::State;
    if (kIsSame<Input, __nv_bfloat16>) return CursorLoad::kParameters;
    if (sizeof(Input) > 2 && kIsSame<State, __half>) return CursorLoad::kSlot;
    if (sizeof(Input) > 2 && sizeof(State) > 2 && Rows::kRowsOfGroup < 4) return CursorLoad::kInputs;
    return CursorLoad::kStates;
}

// The step of a sequence that has no ring.
struct NoRing {
    static constexpr bool kHasCursor = false;

    template <typename Operands>
    __device__ __forceinline__ static int load(const Operands&, int) {
        return 0;
    }
    __device__ __forceinline__ static bool is_empty(int word) { return lanes_where(word != 0) == 0; }
};

// The step of a sequence whose Ring is empty, with nothing left to be committed; false otherwise, and nothing has been
// written. number: of the warp.
template <typename Rows, typename Place, typename Ring>
__device__ __forceinline__ bool step_if_empty(const typename Rows::Operands& p, unsigned number) {
    if (!kReadsFirst) wait_for_preceding();
    const WarpRows warp(p, uniform(number), Rows::kTile);
    // Whole warps leave: the shuffles stay complete.
    if (warp.batch >= p.batch) {
        if (kReadsFirst) wait_for_preceding();
        return true;
    }
    const int slot = uniform(load_slot<Rows>(p, warp.batch));
    Place rows(p, warp, max(slot, 0));
    // The lanes have different words of the cursor: one that is the same in all the compiler would wait for at once.
    int word = 0;
    const auto load_cursor = [&] { word = Ring::load(p, max(slot, 0)); };
    constexpr CursorLoad kFollows = cursor_load<Rows>();
    if (!kReadsFirst && kFollows == CursorLoad::kSlot) load_cursor();
    typename Rows::StateVec raw[Rows::kRowsOfGroup][Rows::kChunks];
#pragma unroll
    for (int r = 0; r < Rows::kRowsOfGroup; ++r) rows.load(r, raw[r]);
    // Whether padding leaves behind the loads of parameters instead of in front. On an H200, 3 and 5 sequences of
    // bfloat16, x too, take 4.97 and 7.47 us so, and 5.21 and 7.74 otherwise. Of float32 states 1 and 2 sequences take
    // 4.17 and 6.20 us with x of bfloat16 so, and 3.98 and 5.72 otherwise, but with rings 4.03 and 5.90, and 4.12 and
    // 6.17.
    constexpr bool kIsHalf = sizeof(typename Rows::State) == 2;
    constexpr bool kLeavesLate =
        !Place::kIsMoved && (kIsHalf || (Ring::kHasCursor && sizeof(typename Rows::Input) == 2));
    if (!kReadsFirst && kFollows == CursorLoad::kStates) load_cursor();
    // Keeps the loads in front of all that follows.
    sync_warp();
    // The compiler keeps loads on their side of this branch.
    if constexpr (!kLeavesLate) {
        if (slot < 0) {
            if (kReadsFirst) wait_for_preceding();
            if (!p.keeps_padding) TokenCursor<Rows>(p, warp, warp.batch, 0).store(p, 0.0f);
            return true;
        }
    }
    const TokenCursor<Rows> at(p, warp, warp.batch, 0);
    RowParameters<Rows> parameters;
    parameters.load(p, warp);
    if (slot < 0) {
        if (kReadsFirst) wait_for_preceding();
        if (!p.keeps_padding) at.store(p, 0.0f);
        return true;
    }
    if (kReadsFirst) wait_for_preceding();
    if (kReadsFirst || kFollows == CursorLoad::kParameters) {
        if (!kReadsFirst) sync_warp();
        load_cursor();
    }
    if constexpr (Place::kIsMoved) rows.load_target();
    TokenInputs<Rows> inputs;
    TokenMatrices<Rows> maps;
    inputs.load(p, at);
    maps.load(p, at);
    if (!kReadsFirst && kFollows == CursorLoad::kInputs) {
        sync_warp();
        load_cursor();
    }
    const TokenStep<Rows> pace(p, parameters, inputs, 1.0f);
    const float input = pace.step * inputs.x.to_float(0);
    // States that go elsewhere take 1 to 14 % less time if all rows come first and nothing is asked.
    constexpr int kMost = Place::kIsMoved ? Rows::kRowsOfGroup : kEarlyRows<Rows>;
    constexpr int kEarly = kMost < Rows::kRowsOfGroup ? kMost : Rows::kRowsOfGroup;
    float state[Rows::kRowsOfGroup][Rows::kElements], sums[Rows::kRowsOfGroup];
    const auto advance = [&](int r) {
        to_floats<Rows>(raw[r], state[r]);
        sums[r] = advance_row<Rows>(parameters, maps, pace, input, r, state[r]);
    };
#pragma unroll
    for (int r = 0; r < kEarly; ++r) advance(r);
    // The compiler would wait for the cursor in front of the rows, if these had no part in what is asked. As
    // dt_softplus is 0 or 1, they make no difference. Without a ring, too, the first rows of 16 bits come first so: 1,
    // 4 and 7 sequences of bfloat16 take 2.93, 5.72 and 9.22 us on an H200, and 3.05, 6.23 and 9.58 if nothing is
    // asked. With float32 states 3 and 4 take 8.44 and 10.33 us so, and 8.38 and 10.19 if nothing is.
    if constexpr (Ring::kHasCursor || (!Place::kIsMoved && kIsHalf)) {
        const int none = static_cast<int>(__float_as_uint(sums[kEarly - 1])) & p.dt_softplus & 2;
        if (!Ring::is_empty(word | none)) return false;
    }
#pragma unroll
    for (int r = 0; r < Rows::kRowsOfGroup; ++r) {
        if (r >= kEarly) advance(r);
        rows.store(r, state[r]);
    }
    at.store(p, gather_result<Rows>(p, parameters, inputs, sums));
    return true;
}

// The step of a sequence with states of codes that stay in their slot, and a Ring without live tokens; false otherwise,
// and nothing has been written. It does what update_single() in steps.cuh does: one function for both would take 3 to
// 13 % longer with a ring, in which the compiler reads arguments later. number: of the warp.
template <typename Rows, typename Ring, typename Params>
__device__ __forceinline__ bool step_codes_if_empty(const Params& params, unsigned number) {
    const typename Rows::Operands& p = params.operands;
    if (!kReadsFirst) wait_for_preceding();
    const WarpRows warp(p, uniform(number), Rows::kTile);
    // Whole warps leave: the shuffles stay complete.
    if (warp.batch >= p.batch) {
        if (kReadsFirst) wait_for_preceding();
        return true;
    }
    const int slot = uniform(load_slot<Rows>(p, warp.batch));
    const StateRows<Rows> rows =
        StateRows<Rows>(p.state, p.state_stride + 1, warp) + max(slot, 0) * static_cast<index_t>(p.state_stride[0]);
    float* const scale_place = scale_of_slot<Rows>(params, warp, max(slot, 0));
    typename Rows::StateVec raw[Rows::kRowsOfGroup][Rows::kChunks];
#pragma unroll
    for (int r = 0; r < Rows::kRowsOfGroup; ++r) load_row<Rows>(p, warp, rows, r, raw[r], slot >= 0);
    float scale = 1.0f;
    if (slot >= 0) scale = load_scale<Rows>(scale_place);
    // Keeps the loads in front of all that follows.
    sync_warp();
    const TokenCursor<Rows> at(p, warp, warp.batch, 0);
    TokenInputs<Rows> inputs;
    TokenMatrices<Rows> maps;
    RowParameters<Rows> parameters;
    parameters.load(p, warp);
    if (slot < 0) {
        if (kReadsFirst) wait_for_preceding();
        if (!p.keeps_padding) at.store(p, 0.0f);
        return true;
    }
    if (kReadsFirst) wait_for_preceding();
    inputs.load(p, at);
    maps.load(p, at);
    sync_warp();
    // A sequence of int16 takes 3.30 us so, and 3.40 with the cursor in front of the inputs; 3 take 5.70 and 5.66.
    const int word = Ring::load(params, slot);
    hide_words<Rows>(raw);
    if constexpr (Ring::kHasCursor) {
        // Live tokens alone count: a step does not change their number, while one warp of a sequence clears what is
        // left to be committed, which others could find or not.
        if (lanes_where(lane_id() % 4 == 1 && word > 0) != 0) return false;
    }
    // Says that there is nothing to be committed: 1 and 2 sequences of int8 take 2.88 and 3.80 us with this in front of
    // the stores, and 3.07 and 4.01 behind; 4 and 5 of int16, with four rows, 6.74 and 7.40, and 6.52 and 7.13.
    constexpr bool kLeavesFirst = Rows::kRowsOfGroup < 4;
    if constexpr (Ring::kHasCursor) {
        if (kLeavesFirst && warp.head == 0 && warp.first_row == 0 && lane_id() / 2 == 1) {
            Ring::place_of(params, slot)[lane_id()] = 0;
        }
    }
    store_rows<Rows>(p, warp, raw, scale, rows, scale_place, at, parameters, inputs, maps);
    if constexpr (Ring::kHasCursor) {
        if (!kLeavesFirst && warp.head == 0 && warp.first_row == 0 && lane_id() / 2 == 1) {
            Ring::place_of(params, slot)[lane_id()] = 0;
        }
    }
    return true;
}
