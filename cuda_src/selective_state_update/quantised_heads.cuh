// One token of states of 8-bit codes by warps that walk over heads: what selective_state_update_quantised_heads.cu
// does, for it and for the kernel that puts live tokens of rings in the states first.
#pragma once

#include "selective_state_update/fold.cuh"

// How the rows of heads are divided among lanes: tiles of at most 4 KiB of codes, 16 an access.
template <int kDState, typename input_t, typename state_t, typename a_t, typename b_t, typename operands_t>
    struct WalkedRows : RowTraits < kDState,
    input_t, state_t, a_t, b_t, 16,
    kDState<128 ? 4 : 8, true, false, false, false, false, false, true, kWarpSize, operands_t> {
    static constexpr int kPart = 2;  // rows of a group that are advanced at once
};

// The d_state of which a warp may walk over half a head.
inline constexpr int kHalvedDState = 256;

// A tile of the heads that a warp walks over, and where its elements lie in an array with strides of heads and rows.
struct WalkedTile {
    int head;  // counted from the warp's first one
    int number;

    __device__ __forceinline__ WalkedTile next(int tiles) const {
        const bool is_last = number + 1 == tiles;
        return {head + is_last, is_last ? 0 : number + 1};
    }
    template <int kTile>
    __device__ __forceinline__ int offset(const int* stride) const {
        return head * stride[0] + number * (kTile * stride[1]);
    }
};

// The lane's codes of the tile that is on its way, each row in the place of that of the tile before.
template <typename Traits>
struct StagedCodes {
    using State = typename Traits::State;
    using StateVec = typename Traits::StateVec;
    static constexpr int kVecs = Traits::kRowsOfGroup * kWarpSize;  // of a warp
    static constexpr int kRowStep = Traits::kGroups * Traits::kElements * Traits::kLanes;

    StateVec* own;

    // Starts to copy kRows rows of the lane's group, the first of them row `first` of the group.
    template <int kRows>
    __device__ __forceinline__ void start(int first, const State* tile) const {
#pragma unroll
        for (int r = first; r < first + kRows; ++r) copy_async(place(r), tile + r * kRowStep);
    }
    __device__ __forceinline__ StateVec read(int r) const {
        return ::load<Traits::kVecs, Memory::kMutable>(reinterpret_cast<const State*>(place(r)));
    }

 private:
    __device__ __forceinline__ StateVec* place(int r) const { return own + r * kWarpSize; }
};

// The heads that a warp walks over, or half of one: their sequence, and the parameters of one of them in each lane.
template <typename Traits>
struct WalkedHeads {
    using input_t = typename Traits::Input;
    using Operands = typename Traits::Operands;

    int batch;
    int first;
    int count;
    int first_tile;  // of the first head
    int tiles;       // of all of them

    template <typename Params>
    __device__ __forceinline__ WalkedHeads(const Params& params, unsigned number) : count(params.heads) {
        const Operands& p = params.operands;
        unsigned walk = number;
        const int halved = Traits::kRowElements == kHalvedDState && params.heads == 0;
        if constexpr (Traits::kRowElements == kHalvedDState) {
            count = max(count, 1);
            walk = number >> halved;
        }
        tiles = count * static_cast<int>(p.row_tiles.divisor) >> halved;
        first_tile = static_cast<int>(number & halved) * tiles;
        const QuotientRemainder batch_head = divide(walk * count, p.nheads);
        batch = static_cast<int>(batch_head.quotient);
        first = static_cast<int>(batch_head.remainder);
    }

    // Whether a tile is the warp's own.
    __device__ __forceinline__ bool have(const WalkedTile& tile, int tiles_of_head) const {
        if constexpr (Traits::kRowElements != kHalvedDState) return tile.head < count;
        return tile.head * tiles_of_head + tile.number < first_tile + tiles;
    }
    __device__ __forceinline__ bool are_first() const { return first == 0 && first_tile == 0; }

    // The head whose parameters the lane holds.
    __device__ __forceinline__ int own() const { return first + min(lane_id(), count - 1); }
    __device__ __forceinline__ static int own_row() { return min(lane_id(), Traits::kTile - 1); }
    // Where the lane's own row of the first tile lies in an array by heads and rows, and in one by sequences, too.
    __device__ __forceinline__ int place(const int* stride) const { return first * stride[0] + own_row() * stride[1]; }
    __device__ __forceinline__ int token_place(const int* stride) const {
        return batch * stride[0] + place(stride + 2);
    }

    // The lane's elements of the group's B or C.
    __device__ __forceinline__ void load_map(const Operands& p, const void* map, const int* stride,
                                             float (&values)[Traits::kElements]) const {
        const int group = static_cast<int>(p.group_heads.quotient(first));
        PackedVec<typename Traits::Matrix, Traits::kVecs> v;
        v.template load<Memory::kConstant>(static_cast<const typename Traits::Matrix*>(map) + batch * stride[0] +
                                           group * stride[2] + Traits::element(0));
        // The shuffle keeps the compiler from converting them again for every row, to save registers.
#pragma unroll
        for (int i = 0; i < Traits::kElements; ++i) values[i] = from_lane(v.to_float(i), lane_id());
    }
};

// Puts the live tokens of a warp's sequence in the states of its heads, then the next token. Live tokens are rare here,
// and the time does not count.
template <typename Rows, typename Params>
__device__ __forceinline__ void fold_heads(const Params& params, unsigned number) {
    const typename Rows::Operands& p = params.operands;
    const WalkedHeads<Rows> heads(params, number);
    const int tiles = static_cast<int>(p.row_tiles.divisor);
    const int slot = uniform(load_slot<Rows>(p, heads.batch));
    const RingCursor cursor(params, slot);
    if (heads.are_first() && lane_id() == 0) cursor.leave(0, cursor.live);
    float* const scales = static_cast<float*>(params.state_scale) + slot * index_t{params.state_scale_stride[0]} +
                          heads.place(params.state_scale_stride + 1);
    WarpRows warp = {};
    warp.batch = heads.batch;
#pragma unroll 1
    for (WalkedTile tile{0, heads.first_tile}; heads.have(tile, tiles); tile = tile.next(tiles)) {
        warp.head = heads.first + tile.head;
        warp.first_row = tile.number * Rows::kTile;
        const TokenCursor<Rows> at(p, warp, warp.batch, 0);
        TokenInputs<Rows> inputs;
        TokenMatrices<Rows> maps;
        RowParameters<Rows> parameters;
        parameters.load(p, warp);
        inputs.load(p, at);
        maps.load(p, at);
        const StateRows<Rows> rows =
            StateRows<Rows>(p.state, p.state_stride + 1, warp) + slot * index_t{p.state_stride[0]};
        float* const scale = scales + tile.offset<Rows::kTile>(params.state_scale_stride + 1);
        const Source<Rows> source(params, warp, slot, cursor, cursor.live, *scale);
        const typename Rows::StateVec unused[Rows::kRowsOfGroup][Rows::kChunks] = {};
        fold_rows<Rows, true>(params, source, unused, rows, rows, scale, at, parameters, inputs, maps);
    }
}

// number: of the warp. kFolds: whether there are rings; false then where tokens are live, and nothing has been written.
// live: room for a warp's number of live tokens, with kFolds.
template <typename Rows, bool kFolds, typename Params>
__device__ __forceinline__ bool walk_heads(const Params& params, unsigned number, typename Rows::StateVec* shared,
                                           int* live = nullptr) {
    using input_t = typename Rows::Input;
    using State = typename Rows::State;
    using Row = ScaledRow<State>;
    using Staged = StagedCodes<Rows>;
    constexpr int kTile = Rows::kTile;
    constexpr int kLanes = Rows::kLanes;
    constexpr int kPart = Rows::kPart;
    const typename Rows::Operands& p = params.operands;
    const WalkedHeads<Rows> heads(params, number);
    // Whole warps leave: the shuffles stay complete.
    if (heads.batch >= p.batch) {
        wait_for_preceding();
        return true;
    }
    const int tiles = static_cast<int>(p.row_tiles.divisor);
    const bool is_row = lane_id() < kTile;
    const int slot = uniform(load_slot<Rows>(p, heads.batch));
    input_t* const out = static_cast<input_t*>(p.out) + heads.token_place(p.out_stride);
    if (slot < 0) {
        wait_for_preceding();
        if (p.keeps_padding || !is_row) return true;
        for (WalkedTile at{0, heads.first_tile}; heads.have(at, tiles); at = at.next(tiles)) {
            out[at.offset<kTile>(p.out_stride + 2)] = Dtype<input_t>::from_float(0.0f);
        }
        return true;
    }
    const index_t own = heads.first * p.state_stride[1] + lane_id() / kLanes * p.state_stride[2] + Rows::element(0);
    State* const from = static_cast<State*>(p.state) + slot * index_t{p.state_stride[0]} + own;
    WalkedTile at{0, heads.first_tile};
    const Staged staged{shared + lane_id()};
    // Whether the cursor comes to shared memory with the first codes, and is looked at in front of the walk instead of
    // with the first sums of every tile. On an H200 5, 8 and 12 sequences of float8_e4m3fn with x of float32 take 7.74,
    // 8.59 and 10.80 us so, 8.14, 9.02 and 11.14 otherwise, and 7.75, 8.59 and 10.83 without rings. 8 of bfloat16 x
    // take 8.66 us so and 8.12 otherwise; 32 of int8 with x of float32 23.2 and 22.8.
    constexpr bool kIsSlow = kIsSame<State, float8_e4m3fn> || Rows::kRowElements == kHalvedDState;
    constexpr bool kLooksFirst = kFolds && !kStartsEarly && kIsSlow && sizeof(input_t) > 2;
    if constexpr (kLooksFirst) {
        if (lane_id() == 1) copy_async<4>(live, RingCursor::place_of(params, slot) + 1);
    }
#pragma unroll
    for (int first = 0; first < Rows::kRowsOfGroup; first += kPart) {
        staged.template start<kPart>(first, from + at.offset<kTile>(p.state_stride + 1));
        end_copy_group();
    }
    const auto A = static_cast<const typename Rows::A*>(p.A)[heads.own() * p.A_stride[0]];
    RawNumber<input_t> dt_bias, dt;
    if (p.dt_bias != nullptr) dt_bias.load(p.dt_bias, heads.own() * p.dt_bias_stride[0], p.dt_bias_is_float32);
    float* const scales = static_cast<float*>(params.state_scale) + heads.place(params.state_scale_stride + 1);
    float* const scales_from = scales + slot * index_t{params.state_scale_stride[0]};
    const int own_D = heads.place(p.D_stride);
    wait_for_preceding();
    dt.load(p.dt, heads.batch * p.dt_stride[0] + heads.own() * p.dt_stride[2], p.dt_is_float32);
    const auto* const x = static_cast<const input_t*>(p.x) + heads.token_place(p.x_stride);
    const int own_z = heads.token_place(p.z_stride);
    // The call may write its outputs over x.
    Vec<input_t, 1> own_x = load<1, Memory::kMutable>(x + at.offset<kTile>(p.x_stride + 2));
    float scale = scales_from[at.offset<kTile>(params.state_scale_stride + 1)];
    int target = slot;
    if constexpr (!kFolds) target = uniform(p.is_read_only ? -1 : load_destination<Rows>(p, heads.batch, 0, slot));
    State* const to = kFolds ? from : static_cast<State*>(p.state) + max(target, 0) * index_t{p.state_stride[0]} + own;
    float* const scales_to = kFolds ? scales_from : scales + max(target, 0) * index_t{params.state_scale_stride[0]};
    float B[Rows::kElements], C[Rows::kElements];
    heads.load_map(p, p.B, p.B_stride, B);
    heads.load_map(p, p.C, p.C_stride, C);
    // A word of the cursor a lane: what all lanes load from one place the compiler waits for at once. On an H200 10
    // sequences of int8 take 9.9 us with this load before those of B and C, and 9.8 so.
    int word = 0;
    if constexpr (kFolds && !kLooksFirst) {
        word = load_word<Memory::kMutable, int>(RingCursor::place_of(params, slot) + lane_id() % 4);
    }
    float step = dt.to_float(p.dt_is_float32);
    if (p.dt_bias != nullptr) step += dt_bias.to_float(p.dt_bias_is_float32);
    if (p.dt_softplus) step = softplus(step);
    const float head_decay = exp2_approx(step * kLog2E * Dtype<typename Rows::A>::to_float(A));

    const auto are_live = [](bool found) {
        const bool has_any = lanes_where(found) != 0;
        if (has_any) wait_for_copies();
        return has_any;
    };
    // Says that there is nothing to be committed.
    const auto leave = [&] {
        if constexpr (kFolds) {
            if (heads.are_first() && lane_id() / 2 == 1) RingCursor::place_of(params, slot)[lane_id()] = 0;
        }
    };
    if constexpr (kLooksFirst) {
        wait_for_copy_groups<Rows::kRowsOfGroup / kPart - 1>();
        if (are_live(lane_id() == 1 && *live > 0)) return false;
        leave();
    }

#pragma unroll 1
    for (int t = 0; t < heads.tiles; ++t) {
        const Row row(from_lane(step, at.head) * own_x.to_float(0), from_lane(head_decay, at.head) * scale);
        const WalkedTile next = at.next(tiles);
        Vec<input_t, 1> next_x = own_x;
        if (t + 1 < heads.tiles) {
            next_x = load<1, Memory::kMutable>(x + next.offset<kTile>(p.x_stride + 2));
            scale = scales_from[next.offset<kTile>(params.state_scale_stride + 1)];
        }
        RawNumber<input_t> D, z;
        if (p.D != nullptr) D.load(p.D, own_D + at.offset<kTile>(p.D_stride), p.D_is_float32);
        if (p.z != nullptr) z.load(p.z, own_z + at.offset<kTile>(p.z_stride + 2), p.z_is_float32);
        const State* const tile_ahead = from + next.offset<kTile>(p.state_stride + 1);
        State* const tile = to + at.offset<kTile>(p.state_stride + 1);
        float factor = 1.0f, y = 0.0f;  // in lane i of a group those of row i
#pragma unroll
        for (int first = 0; first < Rows::kRowsOfGroup; first += kPart) {
            wait_for_copy_groups<Rows::kRowsOfGroup / kPart - 1>();
            typename Rows::StateVec raw[kPart];
#pragma unroll
            for (int r = 0; r < kPart; ++r) raw[r] = staged.read(first + r);
            if (t + 1 < heads.tiles) staged.template start<kPart>(first, tile_ahead);
            end_copy_group();
            float state[kPart][Rows::kElements], sums[kPart], magnitudes[kPart];
#pragma unroll
            for (int r = 0; r < kPart; ++r) {
                const float input = Rows::of_row(row.input, first + r), decay = Rows::of_row(row.decay, first + r);
                sums[r] = 0.0f;
#pragma unroll
                for (int i = 0; i < Rows::kElements; ++i) {
                    state[r][i] = fmaf(input, B[i], Row::decayed(raw[r], i, decay));
                    sums[r] = fmaf(state[r][i], C[i], sums[r]);
                }
                magnitudes[r] = largest_magnitude(state[r]);
            }
            if constexpr (kFolds && !kLooksFirst) {
                if (first == 0) {
                    // The compiler would wait for the cursor in front of the loop, if the sums had no part in what is
                    // asked. As dt_softplus is 0 or 1, they make no difference. 8 and 10 sequences of int8 take 0.24
                    // and 0.2 us longer with all this in front of the loop.
                    word |= static_cast<int>(__float_as_uint(sums[kPart - 1])) & p.dt_softplus & 2;
                    if (are_live(lane_id() % 4 == 1 && word > 0)) return false;
                    if (t == 0) leave();
                }
            }
            const float sum = sum_rows_over_lanes<kPart, kLanes>(sums);
            const float unit = Rows::of_row(row.unit, first + lane_id() % kPart);
            const float found = code_factor<State>(max_rows_over_lanes<kPart, kLanes>(magnitudes) * unit);
            const bool is_kept = lane_id() % kLanes / kPart == first / kPart;
            factor = is_kept ? found : factor;
            y = is_kept ? sum : y;
#pragma unroll
            for (int r = 0; r < kPart; ++r) {
                const auto codes = Rows::StateVec::codes(state[r], from_group_lane<kLanes>(found * unit, r));
                if (target >= 0) store<Rows::kKeep>(tile + (first + r) * Staged::kRowStep, codes);
            }
        }
        // The lane that holds what the group found of the lane's own row.
        const int holder = lane_id() % Rows::kGroups * kLanes + lane_id() / Rows::kGroups;
        factor = from_lane(factor, holder);
        y = from_lane(y, holder) * row.unit;
        if (is_row) {
            if (target >= 0) scales_to[at.offset<kTile>(params.state_scale_stride + 1)] = scale_of_factor(factor);
            if (p.D != nullptr) y = fmaf(D.to_float(p.D_is_float32), own_x.to_float(0), y);
            if (p.z != nullptr) y *= silu<float>(z.to_float(p.z_is_float32));
            out[at.offset<kTile>(p.out_stride + 2)] = Dtype<input_t>::from_float(y);
        }
        at = next;
        own_x = next_x;
    }
    return true;
}
