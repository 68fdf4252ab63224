// Rows of a selective scan of contiguous tokens whose states the four warps of a block share.
//
// Each warp has a part of the states of the same channels. kLanes lanes own a channel, and each lane eight consecutive
// tokens of a tile, so that lanes hand each other only the states between their tokens. Every thread prepares two
// tokens of a block's tile and finishes them: dt, dt * u and the parts of the results meet in shared memory. A warp
// keeps B and C of its states there, for a window of tokens. Where a window holds the whole row they are loaded once,
// and the block takes several channels one after another: on an H200 8 x 384 rows of 197 tokens take 18 us so, and 31
// where every channel loads them.
#pragma once

#include "common/activation.cuh"
#include "common/fastdiv.cuh"
#include "common/tokens.cuh"
#include "common/warp.cuh"

template <int kThreads_, typename T, int kVec_, int kLanes_, int kStates_>
struct PartsShape {
    using input_t = T;
    static constexpr int kThreads = kThreads_;
    static constexpr bool kByChannel = false;  // tokens are contiguous
    static constexpr int kVec = kVec_;         // tokens an access
    static constexpr int kLanes = kLanes_;     // of a warp per channel
    static constexpr int kStates = kStates_;   // of a warp
    static constexpr int kParts = kThreads / kWarpSize;
    static constexpr int kTokens = 8;                     // per lane of a tile
    static constexpr int kTile = kLanes * kTokens;        // tokens
    static constexpr int kChannels = kWarpSize / kLanes;  // per block at a time
    static constexpr int kPlaces = kWarpSize * kTokens;   // tokens of all channels of a tile
    static constexpr int kWindow = 256;                   // tokens of B and C in shared memory
    static constexpr int kWindows = sizeof(T) == 2 ? 2 : 1;
    static constexpr int kAtOnce = kStates < 2 ? kStates : 2;  // states that a lane computes interleaved
    static_assert(kWindow % kTile == 0);
};

template <typename Shape>
struct PartsShared {
    // B and C of each part's states.
    alignas(16) typename Shape::input_t matrices[Shape::kParts][Shape::kWindows][2][Shape::kStates][Shape::kWindow];
    // For two tiles: those of one are read while those of the next are written.
    alignas(16) float dt[2][Shape::kPlaces];
    alignas(16) float dt_u[2][Shape::kPlaces];
    alignas(16) float results[2][Shape::kParts][Shape::kPlaces];

    // Where a token is in its row, so that lanes which access four tokens each at a time use different banks.
    __device__ __forceinline__ static int place(int token) { return token ^ ((token >> 5 & 1) << 2); }
};

// Scans a row in the channels of a block, from `row.first_channel` on.
//
// A Row has `batch`; `first`, the token of its arrays that the first tile begins with; `lead`, how many tokens in front
// of the row are in that tile, if kHasLead; length(), the tokens from there to its end; load_state(channel, n), a State
// that it begins with, as memory has it; where keeps_last(), the Place of those that it ends with, last(); and, if
// kHasChunks, where keeps_chunk(tile), chunk(tile) for those in front of a tile. A Place stores a state of a channel.
template <typename Shape, typename Row, typename Operands>
__device__ __forceinline__ void scan_parts(const Operands& p, PartsShared<Shape>& shared, const Row& row) {
    using T = typename Shape::input_t;
    using Shared = PartsShared<Shape>;
    constexpr int kVec = Shape::kVec, kLanes = Shape::kLanes, kStates = Shape::kStates;
    constexpr int kTokens = Shape::kTokens, kTile = Shape::kTile, kParts = Shape::kParts;
    constexpr int kWindow = Shape::kWindow, kAtOnce = Shape::kAtOnce;
    constexpr int kFinished = kTokens / kParts;  // tokens of a tile that a thread prepares and finishes
    constexpr int kFinishedVec = kVec < kFinished ? kVec : kFinished;
    using Matrix = Tokens<T, kTokens, 16 / static_cast<int>(sizeof(T))>;
    using Finished = Tokens<T, kFinished, kFinishedVec>;
    const int thread = opaque(static_cast<int>(threadIdx.x));
    const int part = thread / kWarpSize, among = thread % kWarpSize;
    const int lane = among % kLanes, first = lane * kTokens, first_state = part * kStates;
    const int finished = thread * kFinished, first_finished = finished % kTile;
    const index_t batch = row.batch;
    const int step = static_cast<int>(p.dim_blocks.divisor) * Shape::kChannels;
    // Lanes beyond the last channel repeat its work and store nothing.
    const auto channel_of = [&](int base) -> index_t { return min(base + among / kLanes, p.dim - 1); };
    const auto finished_of = [&](int base) -> index_t { return min(base + finished / kTile, p.dim - 1); };
    const auto group_of = [&](int base) { return divide(static_cast<unsigned>(base), p.group_dim).quotient; };
    const int first_token = row.first + first_finished;
    const T* const u = static_cast<const T*>(p.u) + batch * p.u_stride[0] + first_token;
    const T* const delta = static_cast<const T*>(p.delta) + batch * p.delta_stride[0] + first_token;
    const T* const z = static_cast<const T*>(p.z) + batch * p.z_stride[0] + first_token;
    T* const out = static_cast<T*>(p.out) + batch * p.out_stride[0] + first_token;
    Finished next_u, next_delta, next_z;
    RawNumber<T> next_d, next_bias;
    next_z.clear();
    const auto load_rows = [&](int base, int tile) {
        const index_t channel = finished_of(base);
        const int live = row.length() - tile - first_finished;
        next_u.load_front(u + channel * p.u_stride[1] + tile, live);
        next_delta.load_front(delta + channel * p.delta_stride[1] + tile, live);
        if (p.z != nullptr) next_z.load_front(z + channel * p.z_stride[1] + tile, live);
        if (p.D != nullptr) next_d.load(p.D, channel * p.D_stride, p.D_is_float32);
        if (p.delta_bias != nullptr) {
            next_bias.load(p.delta_bias, channel * p.delta_bias_stride, p.delta_bias_is_float32);
        }
    };
    float power[kStates], state[kStates], next_rate[kStates];
    typename Row::State next_state[kStates];
    const auto load_states = [&](int base) {
        const index_t channel = channel_of(base);
        const int first_n = opaque(first_state);
#pragma unroll
        for (int s = 0; s < kStates; ++s) {
            const int n = first_n + s;
            next_rate[s] = 0.0f;
            next_state[s] = Row::State::zero();
            if (n >= p.d_state) continue;
            const float* const rate = static_cast<const float*>(p.A) + channel * p.A_stride[0] + n * p.A_stride[1];
            next_rate[s] = load<1>(rate).to_float(0);
            next_state[s] = row.load_state(channel, n);
        }
    };
    const auto leave_states = [&](int base, const typename Row::Place& to) {
        const index_t channel = base + among / kLanes;
        if (channel >= p.dim) return;
        const int first_n = opaque(first_state);
#pragma unroll
        for (int s = 0; s < kStates; ++s) {
            const int n = first_n + s;
            if (lane == s && n < p.d_state) to.store(channel, n, state[s]);
        }
    };
    // Starts to bring this warp's B and C of the tokens from `begin` on; what is not there becomes zero.
    const auto bring_window = [&](unsigned group, int begin, int window) {
        constexpr int kPieces = kWindow / (kWarpSize * kVec);
        const int first_n = opaque(first_state);
#pragma unroll
        for (int which = 0; which < 2; ++which) {
            const index_t* const stride = which == 0 ? p.B_stride : p.C_stride;
            const T* from = static_cast<const T*>(which == 0 ? p.B : p.C) + batch * stride[0] + group * stride[1] +
                            first_n * stride[2] + row.first + begin;
#pragma unroll
            for (int s = 0; s < kStates; ++s, from += stride[2]) {
                T* const to = shared.matrices[part][window][which][s];
                const int live = first_n + s < p.d_state ? row.length() - begin : 0;
#pragma unroll
                for (int i = 0; i < kPieces; ++i) {
                    const int token = (i * kWarpSize + among) * kVec;
                    if constexpr (Vec<T, kVec>::kBytes >= 4) {
                        const int count = min(max(live - token, 0), kVec);
                        copy_front_async<Vec<T, kVec>::kBytes>(to + token, count > 0 ? from + token : from,
                                                               count * static_cast<int>(sizeof(T)));
                    } else {
                        to[token] = token < live ? load_constant(from + token) : Dtype<T>::from_float(0.0f);
                    }
                }
            }
        }
    };
    // A turn loads what the next one needs, computes a tile, prepares the next one, and finishes its own: the first
    // turn has no tile.
    int base = row.first_channel - step, tile = 0, stage = 0, window = 0;
    unsigned group = 0;
    for (bool is_first = true, goes_on = true; goes_on; is_first = false) {
        const bool is_last_tile = is_first || tile + kTile >= row.length();
        const int next_base = is_last_tile ? base + step : base, next_tile = is_last_tile ? 0 : tile + kTile;
        goes_on = next_base < p.dim;
        const unsigned next_group = group_of(min(next_base, p.dim - 1));
        const int next_window = Shape::kWindows == 2 && !is_first ? window ^ 1 : 0;
        const bool has_other_window = next_group != group || next_tile / kWindow != tile / kWindow;
        const bool needs_window = goes_on && (is_first || has_other_window);
        const Finished own_u = next_u, own_z = next_z;
        const RawNumber<T> own_d = next_d;
        if (goes_on) load_rows(next_base, next_tile);
        if (needs_window && (is_first || Shape::kWindows == 2)) {
            bring_window(next_group, next_tile / kWindow * kWindow, next_window);
        }
        if (goes_on && is_last_tile) load_states(next_base);
        if (!is_first) {
            const int in_window = tile % kWindow + first;
            float dt[kTokens], dt_u[kTokens], y[kTokens], sum = 0.0f;
#pragma unroll
            for (int i = 0; i < kTokens; i += 4) {
                const int at = Shared::place(among * kTokens + i);
                const auto steps = load<4, Memory::kMutable>(shared.dt[stage] + at);
                const auto inputs = load<4, Memory::kMutable>(shared.dt_u[stage] + at);
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    dt[i + j] = steps.to_float(j);
                    dt_u[i + j] = inputs.to_float(j);
                    sum += dt[i + j];
                    y[i + j] = 0.0f;
                }
            }
            if constexpr (Row::kHasChunks) {
                if (row.keeps_chunk(tile)) leave_states(base, row.chunk(tile));
            }
#pragma unroll
            for (int from = 0; from < kStates; from += kAtOnce) {
                float before[kAtOnce], begin[kAtOnce], h[kAtOnce], whole[kAtOnce];
                float decay[kAtOnce][kTokens], input[kAtOnce][kTokens];
                const auto matrix_of = [&](int which, int s) {
                    Matrix matrix;
#pragma unroll
                    for (int i = 0; i < kTokens / Matrix::kAccess; ++i) {
                        matrix.parts[i] = load<Matrix::kAccess, Memory::kMutable>(
                            shared.matrices[part][window][which][from + s] + in_window + i * Matrix::kAccess);
                    }
                    return matrix;
                };
#pragma unroll
                for (int s = 0; s < kAtOnce; ++s) {
                    before[s] = state[from + s];
                    h[s] = 0.0f;
                    whole[s] = exp2_approx(sum * power[from + s]);
                    const Matrix b = matrix_of(0, s);
#pragma unroll
                    for (int t = 0; t < kTokens; ++t) {
                        decay[s][t] = exp2_approx(dt[t] * power[from + s]);
                        input[s][t] = dt_u[t] * b.to_float(t);
                        h[s] = fmaf(h[s], decay[s][t], input[s][t]);
                    }
                }
                scan_over_lanes<kLanes>(whole, before, h, begin);
#pragma unroll
                for (int s = 0; s < kAtOnce; ++s) {
                    state[from + s] = from_group_lane<kLanes>(h[s], kLanes - 1);
                    const Matrix c = matrix_of(1, s);
#pragma unroll
                    for (int t = 0; t < kTokens; ++t) {
                        begin[s] = fmaf(begin[s], decay[s][t], input[s][t]);
                        y[t] = fmaf(c.to_float(t), begin[s], y[t]);
                    }
                }
            }
#pragma unroll
            for (int i = 0; i < kTokens; i += 4) {
                const float four[4] = {y[i], y[i + 1], y[i + 2], y[i + 3]};
                store(shared.results[stage][part] + Shared::place(among * kTokens + i),
                      Vec<float, 4>::from_floats(four));
            }
            if (is_last_tile && row.keeps_last()) leave_states(base, row.last());
        }
        if (goes_on) {
            // dt, and dt * u, of this thread's tokens.
            float dt[kFinished], dt_u[kFinished];
            const float bias = next_bias.to_float(p.delta_bias_is_float32);
            const int live = row.length() - next_tile - first_finished;
#pragma unroll
            for (int t = 0; t < kFinished; ++t) {
                dt[t] = next_delta.to_float(t) + bias;
                if (p.delta_softplus) dt[t] = softplus(dt[t]);
                if (t >= live) dt[t] = 0.0f;
                dt_u[t] = dt[t] * next_u.to_float(t);
                // Tokens of another row leave the states as they are, whatever they have.
                if (Row::kHasLead && next_tile + first_finished + t < row.lead) dt[t] = dt_u[t] = 0.0f;
            }
            store_tokens<kFinished>(shared.dt[stage ^ 1] + Shared::place(finished), 1, dt);
            store_tokens<kFinished>(shared.dt_u[stage ^ 1] + Shared::place(finished), 1, dt_u);
            if (is_last_tile) {
#pragma unroll
                for (int s = 0; s < kStates; ++s) {
                    power[s] = next_rate[s] * kLog2E;
                    state[s] = next_state[s].to_float(0);
                }
            }
            if (needs_window) {
                if (Shape::kWindows == 1 && !is_first) {
                    sync_warp();
                    bring_window(next_group, next_tile / kWindow * kWindow, 0);
                }
                wait_for_copies();
                window = next_window;
                if (Row::kHasLead && next_tile < kWindow) {
                    sync_warp();
#pragma unroll
                    for (int s = 0; s < kStates; ++s) {
                        if (among < row.lead) shared.matrices[part][window][0][s][among] = Dtype<T>::from_float(0.0f);
                    }
                }
            }
        }
        __syncthreads();
        if (!is_first && base + finished / kTile < p.dim) {
            const float D = own_d.to_float(p.D_is_float32);
            float results[kFinished];
#pragma unroll
            for (int t = 0; t < kFinished; ++t) {
                const int at = Shared::place(finished) + t;
                results[t] = shared.results[stage][0][at];
#pragma unroll
                for (int i = 1; i < kParts; ++i) results[t] += shared.results[stage][i][at];
                // Without D not with 0 * u, which for an infinite u is NaN.
                if (p.D != nullptr) results[t] = fmaf(D, own_u.to_float(t), results[t]);
                if (p.z != nullptr) results[t] *= silu_gate(own_z.to_float(t));
            }
            T* const to = out + (base + finished / kTile) * p.out_stride[1] + tile;
            const int live = row.length() - tile - first_finished, lead = row.lead - tile - first_finished;
            if (Row::kHasLead && lead > 0) {
#pragma unroll
                for (int t = 0; t < kFinished; ++t) {
                    if (t >= lead && t < live) to[t] = Dtype<T>::from_float(results[t]);
                }
            } else {
                store_front<kFinishedVec>(to, live, results);
            }
        }
        base = next_base;
        tile = next_tile;
        group = next_group;
        stage ^= 1;
    }
}
