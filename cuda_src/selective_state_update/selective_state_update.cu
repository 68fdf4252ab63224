// One or several tokens of a selective state space model: dt' = softplus?(dt + dt_bias), S = S * exp(dt' * A) +
// dt' * B * x, y = sum_n S * C + D * x, out = y * silu(z).
//
// Layout: state (slots, nheads, headdim, d_state), d_state contiguous when kVec > 1. A group of kLanes lanes owns a row
// of d_state elements, each lane kChunks vectors of it; a warp's groups have neighbouring rows, kRows each, all loaded
// before the first is used. The sums over d_state leave every lane with one row, whose x, z and result it has.
//
// kDState  d_state, at most when kMasked  input_t  x, B, C, z and out      state_t  the pool of states
// a_t      A                              kVec     elements an access      kRows    rows a group has in flight
// kTied    A, dt and dt_bias are the same for all rows and elements of a head, and so is the decay
// kMasked  d_state is less than kDState   kMany    several tokens, a slot or a buffer for the state after each
// kStream  states are not to stay in the L2 cache   kStochastic  they are rounded up or down at random
// kNarrow  within 2**31 elements of its beginning, or of a slot's, lies all of every array
#include "selective_state_update/ssm_rows.cuh"
#include "selective_state_update/ssm_states.cuh"

struct SelectiveStateUpdateParams {
    SelectiveStateUpdateOperands operands;
};

template <int kDState, typename input_t, typename state_t, typename a_t, int kVec, int kRows, bool kTied, bool kMasked,
          bool kMany, bool kStream, bool kStochastic, bool kNarrow>
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
    static constexpr int kElements = kChunks * kVec;  // of a row, a lane
    static constexpr int kGroups = kWarpSize / kLanes;
    static constexpr int kTile = kGroups * kRows;  // rows a warp
    static_assert(kRows <= kLanes && kTile <= kWarpSize, "a lane is left with one row");

    using Input = input_t;
    using A = a_t;
    using State = state_t;
    // Of elements within an array, or a slot.
    using Offset = Select<kNarrow, int, index_t>;
    using StateVec = Vec<state_t, kVec>;
    static constexpr int kVecs = kVec;
    static constexpr int kRowsOfGroup = kRows;
    static constexpr bool kIsTied = kTied;
    static constexpr Keep kKeep = kStream ? Keep::kStream : Keep::kWhole;
    static constexpr bool kIsStochastic = kStochastic;

    // The first element of a lane's i-th vector, and whether there is one.
    __device__ __forceinline__ static int element(int i) { return (i * kLanes + lane_id() % kLanes) * kVec; }
    __device__ __forceinline__ static int d_state(const SelectiveStateUpdateOperands& p) {
        return kMasked ? p.d_state : kDState;
    }
    // The row of the lane's group that is its r-th.
    __device__ __forceinline__ static int row(const SsmShare& share, int r) {
        return share.first_row + lane_id() / kLanes + r * kGroups;
    }
    // What the lane that counts for the group's r-th row has of it.
    __device__ __forceinline__ static float of_row(float own, int r) {
        return from_lane(own, lane_id() / kLanes + r * kGroups);
    }
};

// One token, no slot or buffer but for the state after it.
template <typename Traits>
__device__ __forceinline__ void update_single(const SelectiveStateUpdateOperands& p, const SsmShare& share) {
    const int slot = load_slot(p, share.batch);
    const SsmCursor<Traits> cursor(p, share, share.batch, 0);
    SsmInputs<Traits> inputs;
    inputs.load(p, cursor);
    SsmMaps<Traits> maps;
    maps.load(p, cursor);
    SsmParameters<Traits> parameters;
    parameters.load(p, share);
    if (slot < 0) {
        cursor.store(p, 0.0f);
        return;
    }
    const int to = p.is_read_only ? -1 : load_destination(p, share.batch, 0, slot);
    const StateRows<Traits> rows(p.state, p.state_stride + 1, share);
    const StateRows<Traits> from_rows = rows + slot * p.state_stride[0];
    const StateRows<Traits> to_rows = rows + max(to, 0) * p.state_stride[0];
    typename Traits::StateVec raw[Traits::kRowsOfGroup][Traits::kChunks];
#pragma unroll
    for (int r = 0; r < Traits::kRowsOfGroup; ++r) load_row<Traits>(p, share, from_rows, r, raw[r]);
    const SsmPace<Traits> pace(p, parameters, inputs);
    const float input = pace.step * inputs.x.to_float(0);
    float sums[Traits::kRowsOfGroup];
#pragma unroll
    for (int r = 0; r < Traits::kRowsOfGroup; ++r) {
        float state[Traits::kElements];
        to_floats<Traits>(raw[r], state);
        sums[r] = advance_row<Traits>(parameters, maps, pace, input, r, state);
        if (to >= 0) store_row<Traits>(p, share, to_rows, r, 0, state);
    }
    cursor.store(p, gather_result<Traits>(p, parameters, inputs, sums));
}

// Stores the rows' states after a token to a slot of the pool, or a step of a row of the buffer.
template <typename Traits>
__device__ __forceinline__ void store_states(const SelectiveStateUpdateOperands& p, const SsmShare& share, void* states,
                                             index_t at, const index_t* stride, int token,
                                             const float (&state)[Traits::kRowsOfGroup][Traits::kElements]) {
    const StateRows<Traits> rows = StateRows<Traits>(states, stride, share) + at;
#pragma unroll
    for (int r = 0; r < Traits::kRowsOfGroup; ++r) store_row<Traits>(p, share, rows, r, token, state[r]);
}

template <typename Traits>
__device__ __forceinline__ void update_many(const SelectiveStateUpdateOperands& p, const SsmShare& share) {
    const bool is_packed = p.cu_seqlens != nullptr;
    const int entry = is_packed ? 0 : share.batch;
    const int begin = is_packed ? first_token(p, share.batch) : 0;
    // Without any sequence all tokens are nobody's.
    const int end = !is_packed ? p.tokens : share.batch < p.batch ? first_token(p, share.batch + 1) : begin;
    if (is_packed) {
        // What precedes the first sequence and what follows the last is nobody's.
        const int nobodys = share.batch == 0 ? begin : 0;
        for (int t = 0; t < nobodys; ++t) SsmCursor<Traits>(p, share, entry, t).store(p, 0.0f);
        const int behind = share.batch + 1 >= p.batch ? max(begin, end) : p.tokens;
        for (int t = behind; t < p.tokens; ++t) SsmCursor<Traits>(p, share, entry, t).store(p, 0.0f);
    }
    if (begin >= end) return;
    const int slot = load_slot(p, share.batch);
    if (slot < 0) {
        for (int t = begin; t < end; ++t) SsmCursor<Traits>(p, share, entry, t).store(p, 0.0f);
        return;
    }
    index_t buffer_row = slot;
    if (p.intermediate_state_indices != nullptr) {
        buffer_row = load_index(p.intermediate_state_indices, share.batch * p.intermediate_state_indices_stride,
                                p.intermediate_state_indices_is_int64);
    }
    const bool has_buffer =
        p.intermediate_states_buffer != nullptr && buffer_row >= 0 && buffer_row < p.intermediate_rows;

    SsmCursor<Traits> cursor(p, share, entry, begin);
    SsmInputs<Traits> inputs;
    inputs.load(p, cursor);
    SsmMaps<Traits> maps;
    maps.load(p, cursor);
    SsmParameters<Traits> parameters;
    parameters.load(p, share);
    const StateRows<Traits> from_rows =
        StateRows<Traits>(p.state, p.state_stride + 1, share) + slot * p.state_stride[0];
    float state[Traits::kRowsOfGroup][Traits::kElements];
#pragma unroll
    for (int r = 0; r < Traits::kRowsOfGroup; ++r) {
        typename Traits::StateVec raw[Traits::kChunks];
        load_row<Traits>(p, share, from_rows, r, raw);
        to_floats<Traits>(raw, state[r]);
    }
    for (int t = begin; t < end; ++t) {
        const int number = t - begin;
        // The next token's inputs are on their way while this one's are used.
        SsmCursor<Traits> next = cursor;
        SsmInputs<Traits> next_inputs;
        SsmMaps<Traits> next_maps;
        if (t + 1 < end) {
            next.advance(p);
            next_inputs.load(p, next);
            next_maps.load(p, next);
        }
        const SsmPace<Traits> pace(p, parameters, inputs);
        const float input = pace.step * inputs.x.to_float(0);
        float sums[Traits::kRowsOfGroup];
#pragma unroll
        for (int r = 0; r < Traits::kRowsOfGroup; ++r) {
            sums[r] = advance_row<Traits>(parameters, maps, pace, input, r, state[r]);
        }
        cursor.store(p, gather_result<Traits>(p, parameters, inputs, sums));
        if (!p.is_read_only && (number < p.dst_columns || p.dst_columns == 0 && t + 1 == end)) {
            const int to = load_destination(p, share.batch, number, slot);
            if (to >= 0) {
                const index_t at = to * p.state_stride[0];
                store_states<Traits>(p, share, p.state, at, p.state_stride + 1, number, state);
            }
        }
        if (has_buffer && number < p.intermediate_steps) {
            const index_t* stride = p.intermediate_states_buffer_stride;
            const index_t at = buffer_row * stride[0] + number * stride[1];
            store_states<Traits>(p, share, p.intermediate_states_buffer, at, stride + 2, number, state);
        }
        cursor = next;
        inputs = next_inputs;
        maps = next_maps;
    }
}

template <int kDState, typename input_t, typename state_t, typename a_t, int kVec, int kRows, bool kTied, bool kMasked,
          bool kMany, bool kStream, bool kStochastic, bool kNarrow,
          typename Traits = SelectiveStateUpdateTraits<kDState, input_t, state_t, a_t, kVec, kRows, kTied, kMasked,
                                                       kMany, kStream, kStochastic, kNarrow>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    selective_state_update_kernel(const SelectiveStateUpdateParams params) {
    const SelectiveStateUpdateOperands& p = params.operands;
    const unsigned warp = blockIdx.x * (Traits::kThreads / kWarpSize) + threadIdx.x / kWarpSize;
    const SsmShare share(p, warp, Traits::kTile);
    // Whole warps leave: the shuffles stay complete. Tokens without any sequence are the first warps'.
    if (share.batch >= max(p.batch, 1)) return;
    if constexpr (kMany) {
        update_many<Traits>(p, share);
    } else {
        update_single<Traits>(p, share);
    }
}
