// The recurrence of a selective scan, h = h * exp(dt * A) + dt * B * u, y = sum C * h, with the tokens of a tile spread
// over lanes: each lane first walks its tokens from a state of zero, a scan over the lanes gives the states that they
// begin with, and then the tokens are walked again.
#pragma once

#include "common/warp.cuh"
#include "selective_scan/tiles.cuh"

// A lane's tokens of a tile: dt and dt * u, and their results.
template <typename Shape>
struct TileTokens {
    float dt[Shape::kTokens];
    float dt_u[Shape::kTokens];
    float y[Shape::kTokens];
    float sum;   // of dt
    int first;   // at an edge, the first token that counts of those that this lane loads
    int behind;  // and the token behind the last that counts
    int taken;   // of all tokens of the lane, the one that taken states follow: the last unless at an edge
    int row;     // of shared memory that those go to; -1 where none are taken

    // Whether the i-th vector of tokens can be skipped, when a lane has a tile alone: all lanes of the block agree.
    template <bool kIsEdge>
    __device__ __forceinline__ bool is_empty(int i) const {
        return kIsEdge && Shape::kGroup == 1 && ((i + 1) * Shape::kVec <= first || i * Shape::kVec >= behind);
    }
};

// The i-th vector of a lane's tokens.
template <typename Shape>
__device__ __forceinline__ Vec<typename Shape::input_t, Shape::kVec> take(
    const typename TileShared<Shape>::Matrix& from, int n, int i, int lane) {
    return load<Shape::kVec, Memory::kMutable>(from[n][i][TileShared<Shape>::column(i, lane)]);
}

// Advances kAtOnce states n, n + kParts, … of a channel of the block by the tokens of a tile, counted from `first` on:
// the state that B and C in shared memory begin with.
template <bool kHasOutput, bool kIsEdge, bool kTakes, typename Shape>
__device__ __forceinline__ void advance_states(TileShared<Shape>& shared, int stage, int channel, int lane, int first,
                                               int n, TileTokens<Shape>& tokens) {
    constexpr int kVec = Shape::kVec;
    constexpr int kTokens = Shape::kTokens;
    constexpr int kLanes = Shape::kLanes;
    constexpr int kParts = Shape::kParts;
    constexpr int kAtOnce = Shape::kAtOnce;
    const int own = (Shape::kIsWide ? first : 0) + n;
    float rate[kAtOnce], before[kAtOnce], h[kAtOnce], decay[kAtOnce][kTokens], input[kAtOnce][kTokens];
#pragma unroll
    for (int s = 0; s < kAtOnce; ++s) {
        rate[s] = shared.rate[channel][own + s * kParts];
        before[s] = shared.state[channel][own + s * kParts];
        h[s] = kLanes == 1 ? before[s] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < Shape::kVectors; ++i) {
        if (tokens.template is_empty<kIsEdge>(i)) continue;
#pragma unroll
        for (int s = 0; s < kAtOnce; ++s) {
            const auto b = take<Shape>(shared.B[stage], n + s * kParts, i, lane);
#pragma unroll
            for (int j = 0; j < kVec; ++j) {
                const int t = i * kVec + j;
                decay[s][t] = exp2_approx(tokens.dt[t] * rate[s]);
                input[s][t] = tokens.dt_u[t] * b.to_float(j);
                if (kLanes > 1 || !kHasOutput) h[s] = fmaf(h[s], decay[s][t], input[s][t]);
            }
        }
    }
    if constexpr (kLanes > 1) {
        float whole[kAtOnce], begins[kAtOnce];
#pragma unroll
        for (int s = 0; s < kAtOnce; ++s) whole[s] = exp2_approx(tokens.sum * rate[s]);
        scan_over_lanes<kLanes>(whole, before, h, begins);
#pragma unroll
        for (int s = 0; s < kAtOnce; ++s) {
            // All lanes have read the state before: the last lane's result depends on all of them.
            if (lane == kLanes - 1) shared.state[channel][own + s * kParts] = h[s];
            h[s] = begins[s];
        }
    }
    if (kHasOutput) {
        // Behind the last token of a lane they are what the lane ends with, which costs nothing per token.
        constexpr bool kTakesAny = kTakes && kIsEdge;
        float taken[kAtOnce];
#pragma unroll
        for (int i = 0; i < Shape::kVectors; ++i) {
            if (tokens.template is_empty<kIsEdge>(i)) continue;
#pragma unroll
            for (int s = 0; s < kAtOnce; ++s) {
                const auto c = take<Shape>(shared.C[stage], n + s * kParts, i, lane);
#pragma unroll
                for (int j = 0; j < kVec; ++j) {
                    const int t = i * kVec + j;
                    h[s] = fmaf(h[s], decay[s][t], input[s][t]);
                    tokens.y[t] = fmaf(c.to_float(j), h[s], tokens.y[t]);
                    if (kTakesAny) taken[s] = t == 0 || t == tokens.taken ? h[s] : taken[s];
                }
            }
        }
        if constexpr (kTakes) {
#pragma unroll
            for (int s = 0; s < kAtOnce; ++s) {
                const float state = kTakesAny ? taken[s] : h[s];
                if (tokens.row >= 0) shared.taken[tokens.row][own + s * kParts] = state;
            }
        }
    }
    if (kLanes == 1) {
#pragma unroll
        for (int s = 0; s < kAtOnce; ++s) shared.state[channel][own + s * kParts] = h[s];
    }
}
