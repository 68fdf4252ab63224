// The recurrence of a selective scan, h = h * exp(dt * A) + dt * B * u, y = sum C * h, with the tokens of a tile spread
// over lanes: each lane first finds where its tokens take a state that begins with zero, a scan over the lanes tells
// which state they begin with, and then they are walked again.
#pragma once

#include "common/activation.cuh"
#include "common/fastdiv.cuh"
#include "common/tokens.cuh"
#include "common/warp.cuh"

// kLanes lanes have a channel, each kTokens consecutive tokens of a tile.
template <typename T, int kLanes_>
struct TileShape {
    using input_t = T;
    static constexpr int kThreads = 64;
    static constexpr int kLanes = kLanes_;
    static constexpr int kTokens = 16;
    static constexpr int kTile = kLanes * kTokens;
    static constexpr int kChannels = kThreads / kLanes;  // of a block
    static constexpr int kStates = 16;                   // at most
    static constexpr int kVec = 16 / static_cast<int>(sizeof(T));
    static constexpr int kFours = kTokens / 4;
    static constexpr int kMinBlocks = kArch == 90 ? 8 : 6;  // elsewhere 8 spill
};

// A block's: B and C of the tile's tokens, in fours that neighbouring lanes read from neighbouring places; the rates A
// / log(2) and the states of its channels, with a gap that keeps channels in different banks.
template <typename Shape>
struct TileShared {
    alignas(16) float B[Shape::kStates][Shape::kFours][Shape::kLanes][4];
    alignas(16) float C[Shape::kStates][Shape::kFours][Shape::kLanes][4];
    float rate[Shape::kChannels][Shape::kStates + 1];
    float state[Shape::kChannels][Shape::kStates + 1];
};

// One channel of a sequence, in the lanes of a group. The groups of a block walk the same tokens; those behind the last
// channel go along on its inputs and store nothing.
template <typename Shape, typename Operands>
struct TileScan {
    using T = typename Shape::input_t;
    static constexpr int kVec = Shape::kVec;
    static constexpr int kTokens = Shape::kTokens;
    static constexpr int kLanes = Shape::kLanes;
    using Own = Tokens<T, kTokens, kVec>;

    const Operands& p;
    TileShared<Shape>& shared;
    int lane;   // of the group
    int local;  // its channel of the block
    int channel;
    bool is_idle;
    const T* u;  // of its first token in the tile at token 0, as delta, z and out
    const T* delta;
    const T* z;
    T* out;
    const T* B;  // of the group of channels
    const T* C;
    float D;
    float bias;
    float steps;  // the sum of its tokens' dt

    __device__ __forceinline__ TileScan(const Operands& p_, TileShared<Shape>& shared_, int batch, int first_channel)
        : p(p_),
          shared(shared_),
          lane(static_cast<int>(threadIdx.x) % kLanes),
          local(static_cast<int>(threadIdx.x) / kLanes),
          channel(min(first_channel + local, p.dim - 1)),
          is_idle(first_channel + local >= p.dim),
          steps(0.0f) {
        u = row<const T>(p.u, p.u_stride, batch);
        delta = row<const T>(p.delta, p.delta_stride, batch);
        z = row<const T>(p.z, p.z_stride, batch);
        out = row<T>(p.out, p.out_stride, batch);
        const index_t group = divide(first_channel, p.group_dim).quotient;
        B = static_cast<const T*>(p.B) + batch * p.B_stride[0] + group * p.B_stride[1];
        C = static_cast<const T*>(p.C) + batch * p.C_stride[0] + group * p.C_stride[1];
        RawNumber<T> raw_d, raw_bias;
        if (p.D != nullptr) raw_d.load(p.D, channel * p.D_stride, p.D_is_float32);
        if (p.delta_bias != nullptr) {
            raw_bias.load(p.delta_bias, channel * p.delta_bias_stride, p.delta_bias_is_float32);
        }
        const float* const A = static_cast<const float*>(p.A) + channel * p.A_stride[0];
        for (int n = lane; n < p.d_state; n += kLanes) {
            shared.rate[local][n] = load<1>(A + n * p.A_stride[1]).to_float(0) * kLog2E;
            shared.state[local][n] = 0.0f;
        }
        D = raw_d.to_float(p.D_is_float32);
        bias = raw_bias.to_float(p.delta_bias_is_float32);
    }

    // Walks the tokens `begin` to `end` - 1; calls before_tile(token) before each tile's first, which is `begin` or a
    // whole number of tiles behind. States are those of the block's shared memory, before and after.
    template <bool kHasOutput, typename BeforeTile>
    __device__ __forceinline__ void walk(int begin, int end, BeforeTile before_tile) {
        for (int tile = begin / kVec * kVec; tile < end; tile += Shape::kTile) {
            const bool is_edge = tile < begin || tile + Shape::kTile > end;
            const int first = begin - tile - lane * kTokens, behind = end - tile - lane * kTokens;
            Own raw_u, raw_delta;
            load_own(raw_u, u + tile, is_edge, first, behind);
            load_own(raw_delta, delta + tile, is_edge, first, behind);
            // The tile before has been taken by all.
            __syncthreads();
            before_tile(tile);
            stage(B, p.B_stride[2], shared.B, tile, begin, end, is_edge);
            if (kHasOutput) stage(C, p.C_stride[2], shared.C, tile, begin, end, is_edge);
            float dt[kTokens], dt_u[kTokens], y[kTokens];
            float sum = 0.0f;
#pragma unroll
            for (int t = 0; t < kTokens; ++t) {
                const float v = raw_delta.to_float(t) + bias;
                dt[t] = p.delta_softplus ? softplus_of<T>(v) : v;
                if (is_edge && (t < first || t >= behind)) dt[t] = 0.0f;
                const float value = raw_u.to_float(t);
                dt_u[t] = dt[t] * value;
                y[t] = D * value;
                sum += dt[t];
            }
            steps += sum;
            __syncthreads();
            for (int n = 0; n < p.d_state; ++n) advance<kHasOutput>(n, dt, dt_u, sum, y);
            if (kHasOutput) finish(tile, is_edge, first, behind, y);
        }
        __syncthreads();
    }

    // The channel's states from an array of them, `step` elements apart, before a walk; and to one, in or after it.
    template <typename State>
    __device__ __forceinline__ void load_states(const State* at, index_t step) {
        for (int n = lane; n < p.d_state; n += kLanes) {
            shared.state[local][n] = load<1, Memory::kMutable>(at + n * step).to_float(0);
        }
    }

    template <typename State>
    __device__ __forceinline__ void store_states(State* at, index_t step) const {
        if (is_idle) return;
        for (int n = lane; n < p.d_state; n += kLanes) {
            at[n * step] = Dtype<State>::from_float(shared.state[local][n]);
        }
    }

    // Stores zeros as the results of the tokens `begin` to `end` - 1.
    __device__ __forceinline__ void store_zeros(int begin, int end) const {
        if (is_idle) return;
        for (int t = begin + lane; t < end; t += kLanes) out[t - lane * kTokens] = Dtype<T>::from_float(0.0f);
    }

 private:
    template <typename Pointee, typename Pointer>
    __device__ __forceinline__ Pointee* row(Pointer base, const index_t* stride, int batch) const {
        return static_cast<Pointee*>(base) + batch * stride[0] + channel * stride[1] + lane * kTokens;
    }

    __device__ __forceinline__ static void load_own(Own& to, const T* at, bool is_edge, int first, int behind) {
        if (is_edge) {
            to.load_edge(at, 1, first, behind);
        } else {
            to.load(at, 1);
        }
    }

    // A matrix of the tile's tokens, by all threads. What is not among the tokens becomes zero.
    __device__ __forceinline__ void stage(const T* from, index_t stride,
                                          float (&to)[Shape::kStates][Shape::kFours][kLanes][4], int tile, int begin,
                                          int end, bool is_edge) const {
        constexpr int kParts = Shape::kTile / kVec;      // of a state
        constexpr int kRows = Shape::kThreads / kParts;  // at a time
        constexpr int kRounds = (Shape::kStates + kRows - 1) / kRows;
        constexpr int kAhead = kRounds < 4 ? kRounds : 4;
        static_assert(kRows * kParts == Shape::kThreads && kRounds % kAhead == 0, "all threads have as much to do");
        const int first_row = static_cast<int>(threadIdx.x) / kParts;
        const int offset = static_cast<int>(threadIdx.x) % kParts * kVec, token = tile + offset;
        const T* at = from + first_row * stride + token;
        for (int row = first_row; row < p.d_state; row += kAhead * kRows) {
            Vec<T, kVec> raw[kAhead];
#pragma unroll
            for (int i = 0; i < kAhead; ++i) {
                if (row + i * kRows < p.d_state) {
                    raw[i] = is_edge ? load_part<kVec>(at, begin - token, end - token) : load<kVec>(at);
                }
                at += kRows * stride;
            }
#pragma unroll
            for (int i = 0; i < kAhead; ++i) {
                const int n = row + i * kRows;
                if (n >= p.d_state) continue;
#pragma unroll
                for (int j = 0; j < kVec; j += 4) {
                    const int four = (offset + j) / 4;
                    const float values[4] = {raw[i].to_float(j), raw[i].to_float(j + 1), raw[i].to_float(j + 2),
                                             raw[i].to_float(j + 3)};
                    store(to[n][four % Shape::kFours][four / Shape::kFours], Vec<float, 4>::from_floats(values));
                }
            }
        }
    }

    // One state through the tile.
    template <bool kHasOutput>
    __device__ __forceinline__ void advance(int n, const float (&dt)[kTokens], const float (&dt_u)[kTokens], float sum,
                                            float (&y)[kTokens]) {
        const float rate = shared.rate[local][n];
        const float before = shared.state[local][n];
        float decay[kTokens], input[kTokens];
        float h = kLanes == 1 ? before : 0.0f;
#pragma unroll
        for (int four = 0; four < Shape::kFours; ++four) {
            const Vec<float, 4> b = load<4, Memory::kMutable>(shared.B[n][four][lane]);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int t = four * 4 + i;
                decay[t] = exp2_approx(dt[t] * rate);
                input[t] = dt_u[t] * b.to_float(i);
                if (kLanes > 1 || !kHasOutput) h = fmaf(h, decay[t], input[t]);
            }
        }
        if constexpr (kLanes > 1) {
            const float begins = scan_over_lanes<kLanes>(exp2_approx(sum * rate), before, h);
            // Everyone has read the state before: what the last lane knows depends on all of them.
            if (lane == kLanes - 1) shared.state[local][n] = h;
            h = begins;
        }
        if (kHasOutput) {
#pragma unroll
            for (int four = 0; four < Shape::kFours; ++four) {
                const Vec<float, 4> c = load<4, Memory::kMutable>(shared.C[n][four][lane]);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int t = four * 4 + i;
                    h = fmaf(h, decay[t], input[t]);
                    y[t] = fmaf(c.to_float(i), h, y[t]);
                }
            }
        }
        if (kLanes == 1) shared.state[local][n] = h;
    }

    // Applies z and stores.
    __device__ __forceinline__ void finish(int tile, bool is_edge, int first, int behind, float (&y)[kTokens]) const {
        if (p.z != nullptr) {
            Own raw_z;
            load_own(raw_z, z + tile, is_edge, first, behind);
#pragma unroll
            for (int t = 0; t < kTokens; ++t) y[t] *= silu_gate(raw_z.to_float(t));
        }
        if (is_idle) return;
        T* const at = out + tile;
        if (!is_edge) {
            store_tokens<kVec>(at, 1, y);
            return;
        }
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
            if (t >= first && t < behind) at[t] = Dtype<T>::from_float(y[t]);
        }
    }
};
