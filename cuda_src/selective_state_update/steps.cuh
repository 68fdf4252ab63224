// Steps of sequences: one token, or several with their states on the way.
#pragma once

#include "selective_state_update/quantised.cuh"
#include "selective_state_update/rows.cuh"

// How a kernel divides rows among lanes; the parameters are those of selective_state_update.cu.
template <int kDState, typename input_t, typename state_t, typename a_t, typename b_t, int kVec, int kRows,
          bool kSharedDecay, bool kMasked, bool kMany, bool kChosen, bool kStream, bool kStochastic, bool kIndex32,
          int kMostLanes = kWarpSize, typename operands_t = SelectiveStateUpdateOperands>
struct RowTraits {
    static constexpr bool kIsQuantised = kMaxCode<state_t> > 0.0f;
    // Elements that a lane has at least: what a row of codes costs by itself, its scale, is for 16 of each lane.
    static constexpr int kShare = kIsQuantised && kVec == 8 ? 16 : kVec;
    static constexpr int kShares = (kDState + kShare - 1) / kShare;
    static constexpr int kFitting = kShares > 16 ? 32 : kShares > 8 ? 16 : kShares > 4 ? 8 : kShares > 2 ? 4 : kShares;
    static constexpr int kLanes = kFitting < kMostLanes ? kFitting : kMostLanes;
    static constexpr int kChunks = (kDState + kLanes * kVec - 1) / (kLanes * kVec);
    static constexpr int kElements = kChunks * kVec;  // per row and lane
    static constexpr int kGroups = kWarpSize / kLanes;
    static constexpr int kTile = kGroups * kRows;  // rows per warp
    static_assert(kRows <= kLanes && kTile <= kWarpSize, "a lane is left with one row");

    using Operands = operands_t;
    using Stride = Select<kIsSame<Operands, SelectiveStateUpdateOperands>, index_t, int>;
    using Input = input_t;
    using A = a_t;
    using Matrix = b_t;
    using State = state_t;
    // An offset in elements within an array, or a slot.
    using Offset = Select<kIndex32, int, index_t>;
    using StateVec = Vec<state_t, kVec>;
    static constexpr int kRowElements = kDState;  // at most, where masked
    static constexpr int kVecs = kVec;
    static constexpr int kRowsOfGroup = kRows;
    static constexpr bool kHasSharedDecay = kSharedDecay;
    static constexpr Keep kKeep = kStream ? Keep::kStream : Keep::kWhole;
    // Whether states are loaded before every other argument is waited for. On an H200 a step of 24 heads of 64 x 128
    // floats takes 2.4 us so, 2.9 otherwise, and a copy of its bytes 2.05; with more rows, 256 sequences of bfloat16 in
    // chosen slots take 342 us and 267. Of int16 and x of bfloat16 1, 8 and 64 sequences take 3.28, 11.2 and 72.9 us
    // so, and 3.82, 12.3 and 72.7 otherwise. For other GPUs the compiler wants more registers for codes, and spills.
    static constexpr bool kReadsStatesFirst =
        (kIsQuantised ? kSharedDecay && kIsHopper : kRows <= 4) && !kIsSame<Operands, SelectiveStateUpdateOperands>;
    // Whether the compiler knows that warps do not divide. 8 sequences of bfloat16 take 10.5 us so, 11.6 otherwise; a
    // single one with fewer rows 3.3 and 3.2; rows of 16 floats that have decays of their own take longer.
    static constexpr bool kIsUniform = kIsQuantised || (kReadsStatesFirst && kSharedDecay && kRows == 4);
    static constexpr bool kIsMany = kMany;
    static constexpr bool kIsChosen = kChosen;
    static constexpr bool kIsWide = sizeof(b_t) > sizeof(input_t);  // z may be wider than x, too
    static constexpr bool kIsStochastic = kStochastic;
    static constexpr bool kIsMasked = kMasked;

    // The first element of a lane's i-th vector, and whether there is one.
    __device__ __forceinline__ static int element(int i) { return (i * kLanes + lane_id() % kLanes) * kVec; }
    __device__ __forceinline__ static int d_state(const Operands& p) { return kMasked ? p.d_state : kDState; }
    // Row r of the lane's group.
    __device__ __forceinline__ static int row(const WarpRows& warp, int r) {
        return warp.first_row + lane_id() / kLanes + r * kGroups;
    }
    // The value that the lane standing for row r of the group has.
    __device__ __forceinline__ static float of_row(float own, int r) {
        return from_lane(own, lane_id() / kLanes + r * kGroups);
    }
};

// A number that is the same in all lanes. Rows of codes are stored by shuffles: without branches that might divide the
// warp the compiler computes several at a time.
template <typename Traits, typename Int>
__device__ __forceinline__ Int of_warp(Int number) {
    if constexpr (Traits::kIsUniform) {
        return uniform(number);
    } else {
        return number;
    }
}

// Where the scale of the lane's own row in a slot lies; nullptr for states without scales.
template <typename Traits, typename Params>
__device__ __forceinline__ float* scale_of_slot(const Params& params, const WarpRows& warp, int slot) {
    if constexpr (Traits::kIsQuantised) {
        const auto* stride = params.state_scale_stride;
        const index_t at = slot * static_cast<index_t>(stride[0]);
        return scale_place(params.operands, warp, params.state_scale, at, stride + 1);
    } else {
        return nullptr;
    }
}

// The same in a step of a row of the buffer.
template <typename Traits, typename Params>
__device__ __forceinline__ float* scale_of_step(const Params& params, const WarpRows& warp, index_t row, int step) {
    if constexpr (Traits::kIsQuantised) {
        const index_t* stride = params.intermediate_state_scales_stride;
        const index_t at = row * stride[0] + step * stride[1];
        return scale_place(params.operands, warp, params.intermediate_state_scales, at, stride + 2);
    } else {
        return nullptr;
    }
}

// The scale of the lane's own row; 1 for states without scales.
template <typename Traits>
__device__ __forceinline__ float load_scale(const float* place) {
    if constexpr (Traits::kIsQuantised) {
        return *place;
    } else {
        return 1.0f;
    }
}

// The same as advance_row for a row of codes with a shared decay: the state and the sum are in the row's unit.
template <typename Traits>
__device__ __forceinline__ float advance_codes(const TokenMatrices<Traits>& maps,
                                               const ScaledRow<typename Traits::State>& own, int r,
                                               const typename Traits::StateVec (&raw)[Traits::kChunks],
                                               float (&state)[Traits::kElements]) {
    const float input = Traits::of_row(own.input, r), decay = Traits::of_row(own.decay, r);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < Traits::kElements; ++i) {
        const int chunk = i / Traits::kVecs, at = i % Traits::kVecs;
        state[i] = fmaf(input, maps.B[chunk].to_float(at), own.decayed(raw[chunk], at, decay));
        sum = fmaf(state[i], maps.C[chunk].to_float(at), sum);
    }
    return sum;
}

// Lets the compiler know nothing of codes: it would begin to compute with them where they are loaded, and wait for them
// in front of all else.
template <typename Traits>
__device__ __forceinline__ void hide_words(typename Traits::StateVec (&rows)[Traits::kRowsOfGroup][Traits::kChunks]) {
#pragma unroll
    for (auto& row : rows) {
#pragma unroll
        for (auto& vec : row) {
#pragma unroll
            for (unsigned& word : vec.words) word = static_cast<unsigned>(opaque(static_cast<int>(word)));
        }
    }
}

// Advances the rows' states by one token, whose result it stores, and stores the states.
template <typename Traits>
__device__ __forceinline__ void store_rows(
    const typename Traits::Operands& p, const WarpRows& warp,
    const typename Traits::StateVec (&raw)[Traits::kRowsOfGroup][Traits::kChunks], float scale,
    const StateRows<Traits>& to, float* scale_place, const TokenCursor<Traits>& at,
    const RowParameters<Traits>& parameters, const TokenInputs<Traits>& inputs, const TokenMatrices<Traits>& maps,
    bool stores = true) {
    const TokenStep<Traits> pace(p, parameters, inputs, scale);
    RowFactors<Traits> factors;
    const float input = pace.step * inputs.x.to_float(0);
    float sums[Traits::kRowsOfGroup], state[Traits::kElements];
    float y;
    if constexpr (Traits::kIsQuantised && Traits::kHasSharedDecay) {
        const ScaledRow<typename Traits::State> own(input, pace.decay);
#pragma unroll
        for (int r = 0; r < Traits::kRowsOfGroup; ++r) {
            sums[r] = advance_codes<Traits>(maps, own, r, raw[r], state);
            const float factor = factors.find(r, state, Traits::of_row(own.unit, r));
            store_row<Traits>(p, warp, to, r, 0, state, factor, stores);
        }
        y = gather_own_sum<Traits>(sums) * own.unit;
    } else {
#pragma unroll
        for (int r = 0; r < Traits::kRowsOfGroup; ++r) {
            to_floats<Traits>(raw[r], state);
            sums[r] = advance_row<Traits>(parameters, maps, pace, input, r, state);
            const float factor = factors.find(r, state);
            if (Traits::kIsQuantised || stores) store_row<Traits>(p, warp, to, r, 0, state, factor, stores);
        }
        y = gather_own_sum<Traits>(sums);
    }
    factors.store_scale(p, warp, scale_place, stores);
    at.store(p, finish_result<Traits>(p, parameters, inputs, y));
}

// One token, the state after which goes to one slot.
template <typename Traits, typename Params>
__device__ __forceinline__ void update_single(const Params& params, const WarpRows& warp) {
    const typename Traits::Operands& p = params.operands;
    const int slot = of_warp<Traits>(load_slot<Traits>(p, warp.batch));
    const StateRows<Traits> rows(p.state, p.state_stride + 1, warp);
    const index_t slot_stride = p.state_stride[0];
    const StateRows<Traits> from_rows = rows + max(slot, 0) * slot_stride;
    typename Traits::StateVec raw[Traits::kRowsOfGroup][Traits::kChunks];
    bool goes_on = slot >= 0;
    if constexpr (Traits::kIsChosen) goes_on = goes_on && has_past(p, warp.batch);
    float scale = 1.0f;
    const auto load_states = [&] {
#pragma unroll
        for (int r = 0; r < Traits::kRowsOfGroup; ++r) load_row<Traits>(p, warp, from_rows, r, raw[r], goes_on);
        if constexpr (Traits::kIsQuantised) {
            if (goes_on) scale = load_scale<Traits>(scale_of_slot<Traits>(params, warp, slot));
        }
    };
    if constexpr (Traits::kReadsStatesFirst) {
        load_states();
        // Keeps the loads in front of all that follows.
        sync_warp();
    }
    const TokenCursor<Traits> cursor(p, warp, warp.batch, 0);
    TokenInputs<Traits> inputs;
    TokenMatrices<Traits> maps;
    const auto load_inputs = [&] {
        inputs.load(p, cursor);
        maps.load(p, cursor);
    };
    if (!Traits::kReadsStatesFirst && !kReadsFirst) load_inputs();
    RowParameters<Traits> parameters;
    parameters.load(p, warp);
    if (slot < 0) {
        if (kReadsFirst) wait_for_preceding();
        if (!p.keeps_padding) cursor.store(p, 0.0f);
        return;
    }
    const auto find_target = [&] {
        return of_warp<Traits>(p.is_read_only ? -1 : load_destination<Traits>(p, warp.batch, 0, slot));
    };
    int to = -1;
    if constexpr (!Traits::kReadsStatesFirst) {
        to = find_target();
        load_states();
    }
    if (Traits::kReadsStatesFirst || kReadsFirst) {
        if (kReadsFirst) wait_for_preceding();
        load_inputs();
    }
    if constexpr (Traits::kReadsStatesFirst) to = find_target();
    const StateRows<Traits> to_rows = rows + max(to, 0) * slot_stride;
    if constexpr (Traits::kIsQuantised) {
        // Keeps the loads in front of all that follows: the compiler would delay them to save registers.
        sync_warp();
        if constexpr (Traits::kReadsStatesFirst) hide_words<Traits>(raw);
    }
    store_rows<Traits>(p, warp, raw, scale, to_rows, scale_of_slot<Traits>(params, warp, max(to, 0)), cursor,
                       parameters, inputs, maps, to >= 0);
}

// Loads the rows' states from a slot of the pool, or from a step of a row of the buffer.
template <typename Traits>
__device__ __forceinline__ void load_states(const SelectiveStateUpdateOperands& p, const WarpRows& warp, void* states,
                                            index_t at, const index_t* stride,
                                            float (&state)[Traits::kRowsOfGroup][Traits::kElements]) {
    const StateRows<Traits> rows = StateRows<Traits>(states, stride, warp) + at;
#pragma unroll
    for (int r = 0; r < Traits::kRowsOfGroup; ++r) {
        typename Traits::StateVec raw[Traits::kChunks];
        load_row<Traits>(p, warp, rows, r, raw);
        to_floats<Traits>(raw, state[r]);
    }
}

// Stores the rows' states after a token to a slot of the pool, or to a step of a row of the buffer.
template <typename Traits>
__device__ __forceinline__ void store_states(const SelectiveStateUpdateOperands& p, const WarpRows& warp, void* states,
                                             index_t at, const index_t* stride, int token,
                                             const float (&state)[Traits::kRowsOfGroup][Traits::kElements],
                                             float* scale) {
    const StateRows<Traits> rows = StateRows<Traits>(states, stride, warp) + at;
    RowFactors<Traits> factors;
#pragma unroll
    for (int r = 0; r < Traits::kRowsOfGroup; ++r) {
        store_row<Traits>(p, warp, rows, r, token, state[r], factors.find(r, state[r]));
    }
    factors.store_scale(p, warp, scale);
}

// Stores zeros as the results of tokens that are padding, unless those stay as they are.
template <typename Traits>
__device__ __forceinline__ void store_padding(const SelectiveStateUpdateOperands& p, const WarpRows& warp, int entry,
                                              int begin, int end) {
    if (p.keeps_padding) return;
    for (int t = begin; t < end; ++t) TokenCursor<Traits>(p, warp, entry, t).store(p, 0.0f);
}

// The tokens of a warp's sequence: from `begin` to `end` - 1 of a batch entry. The results of tokens of no sequence are
// set to zero.
template <typename Traits>
struct SequenceTokens {
    int entry;
    int begin;
    int end;

    __device__ __forceinline__ SequenceTokens(const SelectiveStateUpdateOperands& p, const WarpRows& warp) {
        const bool is_packed = p.cu_seqlens != nullptr;
        entry = is_packed ? 0 : warp.batch;
        begin = is_packed ? first_token(p, warp.batch) : 0;
        // Without any sequence all tokens are padding.
        end = !is_packed ? p.tokens : warp.batch < p.batch ? first_token(p, warp.batch + 1) : begin;
        if (is_packed) {
            // The first sequence's warps zero the padding before it, the last one's that behind it.
            store_padding<Traits>(p, warp, entry, 0, warp.batch == 0 ? begin : 0);
            const int behind = warp.batch + 1 >= p.batch ? max(begin, end) : p.tokens;
            store_padding<Traits>(p, warp, entry, behind, p.tokens);
        }
    }
};

template <typename Traits, typename Params>
__device__ __forceinline__ void update_many(const Params& params, const WarpRows& warp) {
    const SelectiveStateUpdateOperands& p = params.operands;
    const SequenceTokens<Traits> tokens(p, warp);
    const int entry = tokens.entry, begin = tokens.begin, end = tokens.end;
    if (begin >= end) return;
    const int slot = of_warp<Traits>(load_slot<Traits>(p, warp.batch));
    if (slot < 0) {
        store_padding<Traits>(p, warp, entry, begin, end);
        return;
    }
    index_t buffer_row = slot;
    if (p.intermediate_state_indices != nullptr) {
        buffer_row = load_index(p.intermediate_state_indices, warp.batch * p.intermediate_state_indices_stride,
                                p.intermediate_state_indices_is_int64);
    }
    const bool has_buffer =
        p.intermediate_states_buffer != nullptr && buffer_row >= 0 && buffer_row < p.intermediate_rows;
    const bool is_tree = Traits::kIsChosen && p.parents != nullptr;
    if (is_tree && !has_buffer) {
        store_padding<Traits>(p, warp, entry, begin, end);
        return;
    }

    TokenCursor<Traits> cursor(p, warp, entry, begin);
    TokenInputs<Traits> inputs;
    inputs.load(p, cursor);
    TokenMatrices<Traits> maps;
    maps.load(p, cursor);
    RowParameters<Traits> parameters;
    parameters.load(p, warp);
    const bool goes_on = !Traits::kIsChosen || has_past(p, warp.batch);
    float state[Traits::kRowsOfGroup][Traits::kElements];
    float scale = 1.0f;  // of the states while they are codes: from where they are read to the next token
    const auto begin_states = [&] {
        if (goes_on) {
            load_states<Traits>(p, warp, p.state, slot * p.state_stride[0], p.state_stride + 1, state);
            scale = load_scale<Traits>(scale_of_slot<Traits>(params, warp, slot));
            return;
        }
#pragma unroll
        for (int i = 0; i < Traits::kRowsOfGroup * Traits::kElements; ++i) {
            state[i / Traits::kElements][i % Traits::kElements] = 0.0f;
        }
    };
    begin_states();
    for (int t = begin; t < end; ++t) {
        const int number = t - begin;
        // The next token's inputs are on their way while this one's are used.
        TokenCursor<Traits> next = cursor;
        TokenInputs<Traits> next_inputs;
        TokenMatrices<Traits> next_maps;
        if (t + 1 < end) {
            next = cursor.after(p, 1);
            next_inputs.load(p, next);
            next_maps.load(p, next);
        }
        if (is_tree && number > 0) {
            const int parent = load_parent(p, warp.batch, number);
            const index_t* stride = p.intermediate_states_buffer_stride;
            if (parent >= 0) {
                const index_t at = buffer_row * stride[0] + parent * stride[1];
                load_states<Traits>(p, warp, p.intermediate_states_buffer, at, stride + 2, state);
                scale = load_scale<Traits>(scale_of_step<Traits>(params, warp, buffer_row, parent));
            } else {
                begin_states();
            }
        }
        const TokenStep<Traits> pace(p, parameters, inputs, scale);
        scale = 1.0f;
        const float input = pace.step * inputs.x.to_float(0);
        float sums[Traits::kRowsOfGroup];
#pragma unroll
        for (int r = 0; r < Traits::kRowsOfGroup; ++r) {
            sums[r] = advance_row<Traits>(parameters, maps, pace, input, r, state[r]);
        }
        cursor.store(p, gather_result<Traits>(p, parameters, inputs, sums));
        if (!p.is_read_only && (number < p.dst_columns || p.dst_columns == 0 && t + 1 == end)) {
            const int to = of_warp<Traits>(load_destination<Traits>(p, warp.batch, number, slot));
            if (to >= 0) {
                const index_t at = to * p.state_stride[0];
                float* place = scale_of_slot<Traits>(params, warp, to);
                store_states<Traits>(p, warp, p.state, at, p.state_stride + 1, number, state, place);
            }
        }
        if (has_buffer && number < p.intermediate_steps) {
            const index_t* stride = p.intermediate_states_buffer_stride;
            const index_t at = buffer_row * stride[0] + number * stride[1];
            float* place = scale_of_step<Traits>(params, warp, buffer_row, number);
            store_states<Traits>(p, warp, p.intermediate_states_buffer, at, stride + 2, number, state, place);
        }
        cursor = next;
        inputs = next_inputs;
        maps = next_maps;
    }
}

// The steps of the rows of a kernel's warp.
template <typename Traits, typename Params>
__device__ __forceinline__ void update(const Params& params, unsigned number) {
    const typename Traits::Operands& p = params.operands;
    // What several tokens need of registers leaves none for loads that are issued before.
    constexpr bool kWaitsFirst = Traits::kIsMany || !kReadsFirst;
    if (kWaitsFirst) wait_for_preceding();
    const WarpRows warp(p, of_warp<Traits>(number), Traits::kTile);
    // Whole warps leave: the shuffles stay complete. Tokens without any sequence are the first warps'.
    if (warp.batch >= max(p.batch, 1)) {
        if (!kWaitsFirst) wait_for_preceding();
        return;
    }
    if constexpr (Traits::kIsMany) {
        update_many<Traits>(params, warp);
    } else {
        update_single<Traits>(params, warp);
    }
}
