// The recurrence of a selective scan, h = h * exp(dt * A) + dt * B * u, y = sum C * h, with the tokens of a tile spread
// over lanes: each lane first walks its tokens from a state of zero, a scan over the lanes gives the states that they
// begin with, and then the tokens are walked again.
#pragma once

#include "common/warp.cuh"
#include "selective_scan/tile_matrices.cuh"

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

// Visits the numbers of a lane's tokens in B or C for kAtOnce states from `n` on: calls body(token, state, number).
template <bool kIsEdge, typename Shape, typename Body>
__device__ __forceinline__ void each_number(const typename TileShared<Shape>::Matrix& from, int n, int lane,
                                            const TileTokens<Shape>& tokens, Body body) {
    if constexpr (Shape::kByState) {
#pragma unroll
        for (int t = 0; t < Shape::kTokens; ++t) {
            const auto states = MatrixByState<Shape>::take(from, n, t, lane);
#pragma unroll
            for (int s = 0; s < Shape::kAtOnce; ++s) body(t, s, states.to_float(s));
        }
    } else {
#pragma unroll
        for (int i = 0; i < Shape::kVectors; ++i) {
            if (tokens.template is_empty<kIsEdge>(i)) continue;
#pragma unroll
            for (int s = 0; s < Shape::kAtOnce; ++s) {
                const auto own = load<Shape::kVec, Memory::kMutable>(
                    from[n + s * Shape::kStateStep][i][TileShared<Shape>::column(i, lane)]);
#pragma unroll
                for (int j = 0; j < Shape::kVec; ++j) body(i * Shape::kVec + j, s, own.to_float(j));
            }
        }
    }
}

// Advances kAtOnce states n, n + kStateStep, … of a channel of the block by the tokens of a tile, counted from `first`
// on: the state that B and C in shared memory begin with. Calls meanwhile() twice, for what has nothing to do with
// them.
template <bool kHasOutput, bool kIsEdge, bool kTakes, typename Shape, typename Meanwhile>
__device__ __forceinline__ void advance_states(TileShared<Shape>& shared, int stage, int channel, int lane, int first,
                                               int n, TileTokens<Shape>& tokens, Meanwhile meanwhile) {
    constexpr int kTokens = Shape::kTokens;
    constexpr int kLanes = Shape::kLanes;
    constexpr int kStep = Shape::kStateStep;
    constexpr int kAtOnce = Shape::kAtOnce;
    const int own = (Shape::kIsWide ? first : 0) + n;
    float rate[kAtOnce], before[kAtOnce], h[kAtOnce], decay[kAtOnce][kTokens], input[kAtOnce][kTokens];
#pragma unroll
    for (int s = 0; s < kAtOnce; ++s) {
        rate[s] = shared.rate[channel][own + s * kStep];
        before[s] = shared.state[channel][own + s * kStep];
        h[s] = kLanes == 1 ? before[s] : 0.0f;
    }
    each_number<kIsEdge>(shared.B[stage], n, lane, tokens, [&](int t, int s, float b) {
        decay[s][t] = exp2_approx(tokens.dt[t] * rate[s]);
        input[s][t] = tokens.dt_u[t] * b;
        if (kLanes > 1 || !kHasOutput) h[s] = fmaf(h[s], decay[s][t], input[s][t]);
    });
    meanwhile();
    if constexpr (kLanes > 1) {
        float whole[kAtOnce], begins[kAtOnce];
#pragma unroll
        for (int s = 0; s < kAtOnce; ++s) whole[s] = exp2_approx(tokens.sum * rate[s]);
        scan_over_lanes<kLanes>(whole, before, h, begins);
#pragma unroll
        for (int s = 0; s < kAtOnce; ++s) {
            // All lanes have read the state before: the last lane's result depends on all of them.
            if (lane == kLanes - 1) shared.state[channel][own + s * kStep] = h[s];
            h[s] = begins[s];
        }
    }
    if (kHasOutput) {
        // Behind the last token of a lane they are what the lane ends with, which costs nothing per token.
        constexpr bool kTakesAny = kTakes && kIsEdge;
        float taken[kAtOnce];
        each_number<kIsEdge>(shared.C[stage], n, lane, tokens, [&](int t, int s, float c) {
            h[s] = fmaf(h[s], decay[s][t], input[s][t]);
            tokens.y[t] = fmaf(c, h[s], tokens.y[t]);
            if (kTakesAny) taken[s] = t == 0 || t == tokens.taken ? h[s] : taken[s];
        });
        if constexpr (kTakes) {
#pragma unroll
            for (int s = 0; s < kAtOnce; ++s) {
                const float state = kTakesAny ? taken[s] : h[s];
                if (tokens.row >= 0) shared.taken[tokens.row][own + s * kStep] = state;
            }
        }
    }
    meanwhile();
    if (kLanes == 1) {
#pragma unroll
        for (int s = 0; s < kAtOnce; ++s) shared.state[channel][own + s * kStep] = h[s];
    }
}
