// One or several tokens of a selective state space model: dt' = softplus?(dt + dt_bias), S = S * exp(dt' * A) +
// dt' * B * x, y = sum_n S * C + D * x, out = y * silu(z).
//
// Layout: state (slots, nheads, headdim, d_state), d_state contiguous when kVec > 1. A group of kLanes lanes owns a row
// of d_state elements, each lane kChunks vectors of it; the groups of a warp have neighbouring rows, kRows each, all
// loaded before the first is used. The sums over d_state leave every lane with one row: it loads x, dt and z of that
// row and stores its result.
//
// kDState  d_state, at most when kMasked  input_t  x and out               state_t  the pool of states
// a_t      A                              b_t      B and C                 kVec     elements per access
// kRows    rows that a group loads at once
// kSharedDecay  A, dt and dt_bias are the same for all rows and elements of a head, and so is the decay
// kMasked       d_state is less than kDState
// kMany         several tokens, or a slot or a buffer for the state after each
// kChosen       which state a sequence or a token follows is chosen, by state_column, has_initial_state or parents
// kStream       states are not to stay in the L2 cache
// kStochastic   states are rounded up or down at random
// kIndex32      all offsets fit in int32, those of states from the beginning of their slot
#include "selective_state_update/rows.cuh"
#include "selective_state_update/states.cuh"

struct SelectiveStateUpdateParams {
    SelectiveStateUpdateOperands operands;
};

template <int kDState, typename input_t, typename state_t, typename a_t, typename b_t, int kVec, int kRows,
          bool kSharedDecay, bool kMasked, bool kMany, bool kChosen, bool kStream, bool kStochastic, bool kIndex32>
struct SelectiveStateUpdateTraits {
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
    // An offset in elements within an array, or a slot.
    using Offset = Select<kIndex32, int, index_t>;
    using StateVec = Vec<state_t, kVec>;
    static constexpr int kVecs = kVec;
    static constexpr int kRowsOfGroup = kRows;
    static constexpr bool kHasSharedDecay = kSharedDecay;
    static constexpr Keep kKeep = kStream ? Keep::kStream : Keep::kWhole;
    static constexpr bool kIsMany = kMany;
    static constexpr bool kIsChosen = kChosen;
    static constexpr bool kIsWide = sizeof(b_t) > sizeof(input_t);  // z may be wider than x, too
    static constexpr bool kIsStochastic = kStochastic;

    // The first element of a lane's i-th vector, and whether there is one.
    __device__ __forceinline__ static int element(int i) { return (i * kLanes + lane_id() % kLanes) * kVec; }
    __device__ __forceinline__ static int d_state(const SelectiveStateUpdateOperands& p) {
        return kMasked ? p.d_state : kDState;
    }
    // Row r of the lane's group.
    __device__ __forceinline__ static int row(const WarpRows& warp, int r) {
        return warp.first_row + lane_id() / kLanes + r * kGroups;
    }
    // The value that the lane standing for row r of the group has.
    __device__ __forceinline__ static float of_row(float own, int r) {
        return from_lane(own, lane_id() / kLanes + r * kGroups);
    }
};

// One token, the state after which goes to one slot.
template <typename Traits>
__device__ __forceinline__ void update_single(const SelectiveStateUpdateOperands& p, const WarpRows& warp) {
    const int slot = load_slot<Traits>(p, warp.batch);
    const TokenCursor<Traits> cursor(p, warp, warp.batch, 0);
    TokenInputs<Traits> inputs;
    inputs.load(p, cursor);
    TokenMatrices<Traits> maps;
    maps.load(p, cursor);
    RowParameters<Traits> parameters;
    parameters.load(p, warp);
    if (slot < 0) {
        if (!p.keeps_padding) cursor.store(p, 0.0f);
        return;
    }
    const int to = p.is_read_only ? -1 : load_destination(p, warp.batch, 0, slot);
    const StateRows<Traits> rows(p.state, p.state_stride + 1, warp);
    const StateRows<Traits> from_rows = rows + slot * p.state_stride[0];
    const StateRows<Traits> to_rows = rows + max(to, 0) * p.state_stride[0];
    typename Traits::StateVec raw[Traits::kRowsOfGroup][Traits::kChunks];
    const bool goes_on = !Traits::kIsChosen || has_past(p, warp.batch);
#pragma unroll
    for (int r = 0; r < Traits::kRowsOfGroup; ++r) load_row<Traits>(p, warp, from_rows, r, raw[r], goes_on);
    const TokenStep<Traits> pace(p, parameters, inputs);
    const float input = pace.step * inputs.x.to_float(0);
    float sums[Traits::kRowsOfGroup];
#pragma unroll
    for (int r = 0; r < Traits::kRowsOfGroup; ++r) {
        float state[Traits::kElements];
        to_floats<Traits>(raw[r], state);
        sums[r] = advance_row<Traits>(parameters, maps, pace, input, r, state);
        if (to >= 0) store_row<Traits>(p, warp, to_rows, r, 0, state);
    }
    cursor.store(p, gather_result<Traits>(p, parameters, inputs, sums));
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
                                             const float (&state)[Traits::kRowsOfGroup][Traits::kElements]) {
    const StateRows<Traits> rows = StateRows<Traits>(states, stride, warp) + at;
#pragma unroll
    for (int r = 0; r < Traits::kRowsOfGroup; ++r) store_row<Traits>(p, warp, rows, r, token, state[r]);
}

template <typename Traits>
__device__ __forceinline__ void update_many(const SelectiveStateUpdateOperands& p, const WarpRows& warp) {
    const SequenceTokens<Traits> tokens(p, warp);
    const int entry = tokens.entry, begin = tokens.begin, end = tokens.end;
    if (begin >= end) return;
    const int slot = load_slot<Traits>(p, warp.batch);
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
    const auto begin_states = [&] {
        if (goes_on) {
            load_states<Traits>(p, warp, p.state, slot * p.state_stride[0], p.state_stride + 1, state);
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
            } else {
                begin_states();
            }
        }
        const TokenStep<Traits> pace(p, parameters, inputs);
        const float input = pace.step * inputs.x.to_float(0);
        float sums[Traits::kRowsOfGroup];
#pragma unroll
        for (int r = 0; r < Traits::kRowsOfGroup; ++r) {
            sums[r] = advance_row<Traits>(parameters, maps, pace, input, r, state[r]);
        }
        cursor.store(p, gather_result<Traits>(p, parameters, inputs, sums));
        if (!p.is_read_only && (number < p.dst_columns || p.dst_columns == 0 && t + 1 == end)) {
            const int to = load_destination(p, warp.batch, number, slot);
            if (to >= 0) {
                const index_t at = to * p.state_stride[0];
                store_states<Traits>(p, warp, p.state, at, p.state_stride + 1, number, state);
            }
        }
        if (has_buffer && number < p.intermediate_steps) {
            const index_t* stride = p.intermediate_states_buffer_stride;
            const index_t at = buffer_row * stride[0] + number * stride[1];
            store_states<Traits>(p, warp, p.intermediate_states_buffer, at, stride + 2, number, state);
        }
        cursor = next;
        inputs = next_inputs;
        maps = next_maps;
    }
}

template <int kDState, typename input_t, typename state_t, typename a_t, typename b_t, int kVec, int kRows,
          bool kSharedDecay, bool kMasked, bool kMany, bool kChosen, bool kStream, bool kStochastic, bool kIndex32,
          typename Traits = SelectiveStateUpdateTraits<kDState, input_t, state_t, a_t, b_t, kVec, kRows, kSharedDecay,
                                                       kMasked, kMany, kChosen, kStream, kStochastic, kIndex32>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    selective_state_update_kernel(const SelectiveStateUpdateParams params) {
    const SelectiveStateUpdateOperands& p = params.operands;
    const unsigned number = blockIdx.x * (Traits::kThreads / kWarpSize) + threadIdx.x / kWarpSize;
    const WarpRows warp(p, number, Traits::kTile);
    // Whole warps leave: the shuffles stay complete. Tokens without any sequence are the first warps'.
    if (warp.batch >= max(p.batch, 1)) return;
    if constexpr (kMany) {
        update_many<Traits>(p, warp);
    } else {
        update_single<Traits>(p, warp);
    }
}
