// A selective scan with the tokens of a tile shared among lanes: loads, the loop over tiles, and stores.
#pragma once

#include "common/activation.cuh"
#include "common/fastdiv.cuh"
#include "common/tokens.cuh"
#include "selective_scan/scan_states.cuh"
#include "selective_scan/tile_states.cuh"

// One channel of a sequence, in the lanes of a group. The groups of a block walk the same tokens; groups beyond the
// last channel repeat that one's work and store nothing.
template <typename Shape, typename Operands>
struct TileScan {
    using T = typename Shape::input_t;
    static constexpr int kVec = Shape::kVec;
    static constexpr int kTokens = Shape::kTokens;
    static constexpr int kLanes = Shape::kLanes;
    static constexpr int kParts = Shape::kParts;
    static constexpr int kAtOnce = Shape::kAtOnce;
    static constexpr int kOwn = Shape::kOwn;
    // Loads z at a tile's start and holds it: 2 % quicker where registers allow it, else up to 10 % slower.
    static constexpr bool kHoldsZ = kAtOnce > 1;
    // Loads the next tile's inputs while this one is scanned.
    static constexpr bool kIsAhead = kTokens < 16;
    using Own = Tokens<T, kOwn, kVec>;

    struct Inputs {
        Own u;
        Own delta;
    };

    const Operands& p;
    TileShared<Shape>& shared;
    int first_channel;  // of the block
    int lane;           // its number among the lanes of its part
    int part;
    int local;  // its channel's number in the block
    int channel;
    bool is_idle;
    const T* u;  // at the first token that this lane loads in the tile at token 0, as delta, z and out
    const T* delta;
    const T* z;
    T* out;
    MatrixCopy<Shape> B;  // for the block's group of channels
    MatrixCopy<Shape> C;
    float D;
    float bias;
    float steps;  // the sum of dt over the tokens of this lane

    __device__ __forceinline__ TileScan(const Operands& p_, TileShared<Shape>& shared_, int batch, int first_channel_)
        : p(p_),
          shared(shared_),
          first_channel(first_channel_),
          lane(static_cast<int>(threadIdx.x) % kLanes),
          part(static_cast<int>(threadIdx.x) / kLanes % kParts),
          local(static_cast<int>(threadIdx.x) / Shape::kGroup),
          channel(min(first_channel + local, p.dim - 1)),
          is_idle(first_channel + local >= p.dim),
          B(matrix(p.B, p.B_stride, batch), p.B_stride[2]),
          C(matrix(p.C, p.C_stride, batch), p.C_stride[2]),
          steps(0.0f) {
        u = row<const T>(p.u, p.u_stride, batch);
        delta = row<const T>(p.delta, p.delta_stride, batch);
        z = row<const T>(p.z, p.z_stride, batch);
        out = row<T>(p.out, p.out_stride, batch);
        RawNumber<T> raw_d, raw_bias;
        if (p.D != nullptr) raw_d.load(p.D, channel * p.D_stride, p.D_is_float32);
        if (p.delta_bias != nullptr) {
            raw_bias.load(p.delta_bias, channel * p.delta_bias_stride, p.delta_bias_is_float32);
        }
        const float* const A = static_cast<const float*>(p.A);
        each_state([&](int c, int n) {
            shared.rate[c][n] = load<1>(A + of_block(c) * p.A_stride[0] + n * p.A_stride[1]).to_float(0) * kLog2E;
            shared.state[c][n] = 0.0f;
        });
        D = raw_d.to_float(p.D_is_float32);
        bias = raw_bias.to_float(p.delta_bias_is_float32);
    }

    // Walks the tokens `begin` to `end` - 1; calls before_tile(token) before each tile's first token, which is `begin`
    // or a whole number of tiles behind it. States are in the block's shared memory, before and after; before_tile has
    // to synchronise the threads to read them.
    template <bool kHasOutput, typename BeforeTile>
    __device__ __forceinline__ void walk(int begin, int end, BeforeTile before_tile) {
        int tile = begin / kVec * kVec, stage = 0;
        if (Shape::kStages > 1) fetch<kHasOutput>(stage, tile, begin, end);
        Inputs inputs;
        if (kIsAhead) load_inputs(inputs, tile, begin, end);
        while (tile < end) {
            before_tile(tile);
            const int next = tile + Shape::kTile;
            if (Shape::kStages == 1) {
                __syncthreads();
                fetch<kHasOutput>(stage, tile, begin, end);
            }
            if (!kIsAhead) load_inputs(inputs, tile, begin, end);
            wait_for_copies();
            // The matrices of this tile have arrived, and all threads have used those of the tile before.
            __syncthreads();
            if (Shape::kStages > 1 && next < end) fetch<kHasOutput>(stage ^ 1, next, begin, end);
            const Inputs now = inputs;
            if (kIsAhead && next < end) load_inputs(inputs, next, begin, end);
            if (is_edge(tile, begin, end)) {
                advance<kHasOutput, true>(now, stage, tile, begin, end);
            } else {
                advance<kHasOutput, false>(now, stage, tile, begin, end);
            }
            if (Shape::kStages > 1) stage ^= 1;
            tile = next;
        }
        __syncthreads();
    }

    // Copies the states of the block's channels from an array of them before a walk; and to one, in or after it.
    template <typename State>
    __device__ __forceinline__ void load_states(const State* at, index_t channel_step, index_t step) {
        each_state([&](int c, int n) {
            shared.state[c][n] = load<1, Memory::kMutable>(at + of_block(c) * channel_step + n * step).to_float(0);
        });
    }

    template <typename State>
    __device__ __forceinline__ void store_states(State* at, index_t channel_step, index_t step) const {
        each_state([&](int c, int n) {
            if (first_channel + c < p.dim) {
                at[of_block(c) * channel_step + n * step] = Dtype<State>::from_float(shared.state[c][n]);
            }
        });
    }

    // The same with a slot of a pool, where states may be codes.
    template <typename State>
    __device__ __forceinline__ void load_slot(const StateSlots<State>& from, int slot) {
        const State* const at = from.states + slot * from.stride[0];
        each_state([&](int c, int n) {
            const auto raw = load<1, Memory::kMutable>(at + of_block(c) * from.stride[1] + n * from.stride[2]);
            shared.state[c][n] = raw.to_float(0) * from.load_scale(slot, of_block(c));
        });
    }

    template <typename State>
    __device__ __forceinline__ void store_slot(const StateSlots<State>& to, int slot, const StateTime& time) const {
        State* const at = to.states + slot * to.stride[0];
        if constexpr (!kIsQuantised<State>) {
            store_states(at, to.stride[1], to.stride[2]);
            return;
        }
        // As each_state(), but that all lanes find the factors, which neighbouring ones share.
        for (int i = static_cast<int>(threadIdx.x); i < Shape::kChannels * Shape::kStates; i += Shape::kThreads) {
            const int c = i / Shape::kStates, n = i % Shape::kStates;
            const float state[1] = {n < p.d_state ? shared.state[c][n] : 0.0f};
            const float factor = find_factor<State, Shape::kStates>(state);
            if (n >= p.d_state || first_channel + c >= p.dim) continue;
            const index_t channel = of_block(c);
            store_state(p, at + channel * to.stride[1] + n * to.stride[2], state[0], factor, channel * p.d_state + n,
                        time);
            if (n == 0) *to.scale(slot, channel) = scale_of_factor(factor);
        }
    }

    // Stores zeros as the results of the tokens `begin` to `end` - 1.
    __device__ __forceinline__ void store_zeros(int begin, int end) const {
        if (is_idle) return;
        const int number = part * kLanes + lane;
        for (int t = begin + number; t < end; t += Shape::kGroup) out[t - own_offset()] = Dtype<T>::from_float(0.0f);
    }

 private:
    // Visits the states of a block, neighbouring ones by neighbouring threads; a state always by the same thread.
    template <typename Body>
    __device__ __forceinline__ void each_state(Body body) const {
        for (int i = static_cast<int>(threadIdx.x); i < Shape::kChannels * Shape::kStates; i += Shape::kThreads) {
            if (i % Shape::kStates < p.d_state) body(i / Shape::kStates, i % Shape::kStates);
        }
    }

    __device__ __forceinline__ index_t of_block(int c) const { return min(first_channel + c, p.dim - 1); }

    __device__ __forceinline__ int own_offset() const { return lane * kTokens + part * kOwn; }

    template <typename Pointee, typename Pointer>
    __device__ __forceinline__ Pointee* row(Pointer base, const index_t* stride, int batch) const {
        // Opaque, or else the address is computed again for every tile.
        return opaque(static_cast<Pointee*>(base) + batch * stride[0] + channel * stride[1] + own_offset());
    }

    __device__ __forceinline__ const T* matrix(const void* base, const index_t* stride, int batch) const {
        const index_t group = divide(first_channel, p.group_dim).quotient;
        return static_cast<const T*>(base) + batch * stride[0] + group * stride[1];
    }

    template <bool kIsEdge>
    __device__ __forceinline__ static void load_own(Own& to, const T* at, int first, int behind) {
        if (kIsEdge) {
            to.load_edge(at, 1, first, behind);
        } else {
            to.load(at, 1);
        }
    }

    // Whether some tokens of a tile are not among `begin` to `end` - 1.
    __device__ __forceinline__ static bool is_edge(int tile, int begin, int end) {
        return tile < begin || tile + Shape::kTile > end;
    }

    __device__ __forceinline__ void load_inputs(Inputs& to, int tile, int begin, int end) const {
        const int first = begin - tile - own_offset(), behind = end - tile - own_offset();
        if (is_edge(tile, begin, end)) {
            load_own<true>(to.u, u + tile, first, behind);
            load_own<true>(to.delta, delta + tile, first, behind);
        } else {
            load_own<false>(to.u, u + tile, first, behind);
            load_own<false>(to.delta, delta + tile, first, behind);
        }
    }

    // Starts the copy of B and, for outputs, C of a tile to a stage of shared memory.
    template <bool kHasOutput>
    __device__ __forceinline__ void fetch(int stage, int tile, int begin, int end) const {
        if (is_edge(tile, begin, end)) {
            B.copy_part(shared.B[stage], p.B_stride[2], p.d_state, tile, begin, end);
            if (kHasOutput) C.copy_part(shared.C[stage], p.C_stride[2], p.d_state, tile, begin, end);
        } else {
            B.copy(shared.B[stage], p.B_stride[2], p.d_state, tile);
            if (kHasOutput) C.copy(shared.C[stage], p.C_stride[2], p.d_state, tile);
        }
    }

    // Computes dt and dt * u of the tokens that this lane loads and joins them with those of the other parts.
    template <bool kIsEdge>
    __device__ __forceinline__ void prepare(const Inputs& inputs, TileTokens<Shape>& tokens) const {
        float own_dt[kOwn], own_dt_u[kOwn];
#pragma unroll
        for (int t = 0; t < kOwn; ++t) own_dt[t] = inputs.delta.to_float(t) + bias;
        if (p.delta_softplus) {
#pragma unroll
            for (int t = 0; t < kOwn; ++t) {
                if (!tokens.template is_empty<kIsEdge>(t / kVec)) own_dt[t] = softplus(own_dt[t]);
            }
        }
#pragma unroll
        for (int t = 0; t < kOwn; ++t) {
            if (kIsEdge && (t < tokens.first || t >= tokens.behind)) own_dt[t] = 0.0f;
            own_dt_u[t] = own_dt[t] * inputs.u.to_float(t);
        }
        share_parts_over_lanes<kParts, kLanes>(own_dt, tokens.dt);
        share_parts_over_lanes<kParts, kLanes>(own_dt_u, tokens.dt_u);
        tokens.sum = 0.0f;
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
            tokens.sum += tokens.dt[t];
            tokens.y[t] = 0.0f;
        }
    }

    // Scans one tile; tokens outside `begin` to `end` - 1 do not count.
    template <bool kHasOutput, bool kIsEdge>
    __device__ __forceinline__ void advance(const Inputs& inputs, int stage, int tile, int begin, int end) {
        const int first = begin - tile - own_offset(), behind = end - tile - own_offset();
        Own raw_z;
        if (kHasOutput && kHoldsZ && p.z != nullptr) load_own<kIsEdge>(raw_z, z + tile, first, behind);
        constexpr int kAhead = (kIsAhead ? 2 : 1) * Shape::kTile;
        if (!kIsEdge && tile + kAhead + Shape::kTile <= end) {
            prefetch(u + tile + kAhead);
            prefetch(delta + tile + kAhead);
            if (kHasOutput && p.z != nullptr) prefetch(z + tile + kAhead);
        }
        TileTokens<Shape> tokens;
        tokens.first = first;
        tokens.behind = behind;
        prepare<kIsEdge>(inputs, tokens);
        steps += tokens.sum;
        for (int n = 0; n < p.d_state; n += kParts * kAtOnce) {
            advance_states<kHasOutput, kIsEdge>(shared, stage, local, lane, n + part, tokens);
        }
        if (!kHasOutput) return;
        sum_parts_over_lanes<kParts, kLanes>(tokens.y);
        float results[kOwn];
#pragma unroll
        for (int t = 0; t < kOwn; ++t) {
            const float with_D = fmaf(D, inputs.u.to_float(t), tokens.y[t]);
            // Without D not with 0 * u, which for an infinite u is NaN.
            results[t] = p.D != nullptr ? with_D : tokens.y[t];
        }
        if (p.z != nullptr) {
            if (!kHoldsZ) load_own<kIsEdge>(raw_z, z + tile, first, behind);
#pragma unroll
            for (int t = 0; t < kOwn; ++t) results[t] *= silu_gate(raw_z.to_float(t));
        }
        if (is_idle) return;
        T* const at = out + tile;
        if (!kIsEdge) {
            store_tokens<kVec>(at, 1, results);
            return;
        }
#pragma unroll
        for (int t = 0; t < kOwn; ++t) {
            if (t >= first && t < behind) at[t] = Dtype<T>::from_float(results[t]);
        }
    }
};
