// The recurrence of a selective scan, h = h * exp(dt * A) + dt * B * u, y = sum C * h, with the tokens of a tile spread
// over lanes: each lane first finds where its tokens take a state that begins with zero, a scan over the lanes tells
// which state they begin with, and then they are walked again.
#pragma once

#include "common/activation.cuh"
#include "common/fastdiv.cuh"
#include "common/tiles.cuh"
#include "common/tokens.cuh"
#include "common/warp.cuh"

// One channel of a sequence, in the lanes of a group. The groups of a block walk the same tokens; those behind the last
// channel go along on its inputs and store nothing.
template <typename Shape, typename Operands>
struct TileScan {
    using T = typename Shape::input_t;
    static constexpr int kVec = Shape::kVec;
    static constexpr int kTokens = Shape::kTokens;
    static constexpr int kLanes = Shape::kLanes;
    static constexpr int kParts = Shape::kParts;
    static constexpr int kAtOnce = Shape::kAtOnce;
    static constexpr int kOwn = Shape::kOwn;
    // From a tile's start on: 2 % quicker where registers allow it, else up to 10 % slower.
    static constexpr bool kHoldsZ = kAtOnce > 1;
    using Own = Tokens<T, kOwn, kVec>;

    const Operands& p;
    TileShared<Shape>& shared;
    int first_channel;  // of the block
    int lane;           // of the group's tokens
    int part;
    int local;  // its channel of the block
    int channel;
    bool is_idle;
    const T* u;  // of the first token it has for its own in the tile at token 0, as delta, z and out
    const T* delta;
    const T* z;
    T* out;
    const T* B;  // of the group of channels
    const T* C;
    float D;
    float bias;
    float steps;  // the sum of its tokens' dt

    __device__ __forceinline__ TileScan(const Operands& p_, TileShared<Shape>& shared_, int batch, int first_channel_)
        : p(p_),
          shared(shared_),
          first_channel(first_channel_),
          lane(static_cast<int>(threadIdx.x) % kLanes),
          part(static_cast<int>(threadIdx.x) / kLanes % kParts),
          local(static_cast<int>(threadIdx.x) / Shape::kGroup),
          channel(min(first_channel + local, p.dim - 1)),
          is_idle(first_channel + local >= p.dim),
          steps(0.0f) {
        u = row<const T>(p.u, p.u_stride, batch);
        delta = row<const T>(p.delta, p.delta_stride, batch);
        z = row<const T>(p.z, p.z_stride, batch);
        out = row<T>(p.out, p.out_stride, batch);
        const index_t group = divide(first_channel, p.group_dim).quotient;
        B = matrix(p.B, p.B_stride, batch, group);
        C = matrix(p.C, p.C_stride, batch, group);
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

    // Walks the tokens `begin` to `end` - 1; calls before_tile(token) before each tile's first, which is `begin` or a
    // whole number of tiles behind. States are those of the block's shared memory, before and after; before_tile has to
    // wait for all threads to see them.
    template <bool kHasOutput, typename BeforeTile>
    __device__ __forceinline__ void walk(int begin, int end, BeforeTile before_tile) {
        for (int tile = begin / kVec * kVec; tile < end; tile += Shape::kTile) {
            before_tile(tile);
            if (tile < begin || tile + Shape::kTile > end) {
                advance<kHasOutput, true>(tile, begin, end);
            } else {
                advance<kHasOutput, false>(tile, begin, end);
            }
        }
        __syncthreads();
    }

    // The states of the block's channels from an array of them before a walk; and to one, in or after it.
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

    // Stores zeros as the results of the tokens `begin` to `end` - 1.
    __device__ __forceinline__ void store_zeros(int begin, int end) const {
        if (is_idle) return;
        const int number = part * kLanes + lane;
        for (int t = begin + number; t < end; t += Shape::kGroup) out[t - own_offset()] = Dtype<T>::from_float(0.0f);
    }

 private:
    // The states of a block, neighbouring ones by neighbouring threads; always the same by the same thread.
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
        return static_cast<Pointee*>(base) + batch * stride[0] + channel * stride[1] + own_offset();
    }

    __device__ __forceinline__ static const T* matrix(const void* base, const index_t* stride, int batch,
                                                      index_t group) {
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

    // One tile, of whose tokens those from `begin` to `end` - 1 count.
    template <bool kHasOutput, bool kIsEdge>
    __device__ __forceinline__ void advance(int tile, int begin, int end) {
        const int first = begin - tile - own_offset(), behind = end - tile - own_offset();
        Own raw_u, raw_delta, raw_z;
        load_own<kIsEdge>(raw_u, u + tile, first, behind);
        load_own<kIsEdge>(raw_delta, delta + tile, first, behind);
        if (kHasOutput && kHoldsZ && p.z != nullptr) load_own<kIsEdge>(raw_z, z + tile, first, behind);
        TileMatrix<Shape> raw_B, raw_C;
        raw_B.load(B, p.B_stride[2], p.d_state, tile, begin, end, kIsEdge);
        if (kHasOutput) raw_C.load(C, p.C_stride[2], p.d_state, tile, begin, end, kIsEdge);
        if (!kIsEdge && tile + 2 * Shape::kTile <= end) {
            prefetch(u + tile + Shape::kTile);
            prefetch(delta + tile + Shape::kTile);
            if (kHasOutput && p.z != nullptr) prefetch(z + tile + Shape::kTile);
        }
        // The tile before has been taken by all.
        __syncthreads();
        raw_B.store(shared.B, p.d_state);
        if (kHasOutput) raw_C.store(shared.C, p.d_state);
        float own_dt[kOwn], own_dt_u[kOwn];
        const auto is_empty = [&](int t) { return is_outside<kIsEdge>(t / 4, first, behind); };
#pragma unroll
        for (int t = 0; t < kOwn; ++t) own_dt[t] = raw_delta.to_float(t) + bias;
        if (p.delta_softplus) {
#pragma unroll
            for (int t = 0; t < kOwn; ++t) {
                if (!is_empty(t)) own_dt[t] = softplus(own_dt[t]);
            }
        }
#pragma unroll
        for (int t = 0; t < kOwn; ++t) {
            if (kIsEdge && (t < first || t >= behind)) own_dt[t] = 0.0f;
            own_dt_u[t] = own_dt[t] * raw_u.to_float(t);
        }
        float dt[kTokens], dt_u[kTokens], y[kTokens];
        share_parts_over_lanes<kParts, kLanes>(own_dt, dt);
        share_parts_over_lanes<kParts, kLanes>(own_dt_u, dt_u);
        float sum = 0.0f;
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
            sum += dt[t];
            y[t] = 0.0f;
        }
        steps += sum;
        __syncthreads();
        for (int n = 0; n < p.d_state; n += kParts * kAtOnce) {
            advance_states<kHasOutput, kIsEdge>(n + part, dt, dt_u, sum, y, first, behind);
        }
        if (!kHasOutput) return;
        sum_parts_over_lanes<kParts, kLanes>(y);
        float results[kOwn];
#pragma unroll
        for (int t = 0; t < kOwn; ++t) results[t] = fmaf(D, raw_u.to_float(t), y[t]);
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

    // Whether a lane that has a tile alone need not look at four of its tokens: all lanes of the block say the same.
    template <bool kIsEdge>
    __device__ __forceinline__ static bool is_outside(int four, int first, int behind) {
        return kIsEdge && Shape::kGroup == 1 && (four * 4 + 4 <= first || four * 4 >= behind);
    }

    // The states n, n + kParts and so on, kAtOnce of them, through the tile.
    template <bool kHasOutput, bool kIsEdge>
    __device__ __forceinline__ void advance_states(int n, const float (&dt)[kTokens], const float (&dt_u)[kTokens],
                                                   float sum, float (&y)[kTokens], int first, int behind) {
        float rate[kAtOnce], before[kAtOnce], h[kAtOnce], decay[kAtOnce][kTokens], input[kAtOnce][kTokens];
#pragma unroll
        for (int s = 0; s < kAtOnce; ++s) {
            rate[s] = shared.rate[local][n + s * kParts];
            before[s] = shared.state[local][n + s * kParts];
            h[s] = kLanes == 1 ? before[s] : 0.0f;
        }
#pragma unroll
        for (int four = 0; four < Shape::kFours; ++four) {
            if (is_outside<kIsEdge>(four, first, behind)) continue;
#pragma unroll
            for (int s = 0; s < kAtOnce; ++s) {
                const Vec<float, 4> b = load<4, Memory::kMutable>(shared.B[n + s * kParts][four][lane]);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int t = four * 4 + i;
                    decay[s][t] = exp2_approx(dt[t] * rate[s]);
                    input[s][t] = dt_u[t] * b.to_float(i);
                    if (kLanes > 1 || !kHasOutput) h[s] = fmaf(h[s], decay[s][t], input[s][t]);
                }
            }
        }
        if constexpr (kLanes > 1) {
            float whole[kAtOnce], begins[kAtOnce];
#pragma unroll
            for (int s = 0; s < kAtOnce; ++s) whole[s] = exp2_approx(sum * rate[s]);
            scan_over_lanes<kLanes>(whole, before, h, begins);
#pragma unroll
            for (int s = 0; s < kAtOnce; ++s) {
                // Everyone has read the state before: what the last lane knows depends on all of them.
                if (lane == kLanes - 1) shared.state[local][n + s * kParts] = h[s];
                h[s] = begins[s];
            }
        }
        if (kHasOutput) {
#pragma unroll
            for (int four = 0; four < Shape::kFours; ++four) {
                if (is_outside<kIsEdge>(four, first, behind)) continue;
#pragma unroll
                for (int s = 0; s < kAtOnce; ++s) {
                    const Vec<float, 4> c = load<4, Memory::kMutable>(shared.C[n + s * kParts][four][lane]);
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        const int t = four * 4 + i;
                        h[s] = fmaf(h[s], decay[s][t], input[s][t]);
                        y[t] = fmaf(c.to_float(i), h[s], y[t]);
                    }
                }
            }
        }
        if (kLanes == 1) {
#pragma unroll
            for (int s = 0; s < kAtOnce; ++s) shared.state[local][n + s * kParts] = h[s];
        }
    }
};
