// What a warp of the scan's backward pass does for its states: scans them through the tokens of a chunk, forward and
// back.
#pragma once

#include "selective_scan/scan_bwd_ends.cuh"

// Recurrences v -> whole * v + end over every kRowLanes lanes of a warp, of kStates states forward and as many back.
// Their links go through shared memory, where a few lanes have all links of one recurrence: a third of the instructions
// that as many scans by shuffles take, and 7 shuffles instead of 88.
template <int kStates, int kRowLanes = kWarpSize>
struct WarpScan {
    static constexpr int kScans = 2 * kStates;
    static constexpr int kShares = kWarpSize / kScans;                           // lanes that share a row of links
    static constexpr int kLinks = kWarpSize / kShares;                           // of each of them
    static constexpr int kLanes = kRowLanes > kLinks ? kRowLanes / kLinks : 1;   // that share a recurrence
    static constexpr int kChains = kLinks > kRowLanes ? kLinks / kRowLanes : 1;  // recurrences of a lane
    static constexpr int kRow = kWarpSize + 4;  // lanes of a quarter warp read different banks
    static_assert(kLinks % 4 == 0);
    alignas(16) float whole[kScans][kRow];
    alignas(16) float end[kScans][kRow];

    // Puts this lane's links of the state k.
    __device__ __forceinline__ void put(int lane, int k, float factor, float forward, float back) {
        whole[k][lane] = factor;
        end[k][lane] = forward;
        whole[kStates + k][kWarpSize - 1 - lane] = factor;
        end[kStates + k][kWarpSize - 1 - lane] = back;
    }

    // The links that a lane has.
    struct Links {
        float factors[kLinks];
        float ends[kLinks];
        float all;     // the product of the factors of all links of the recurrence that lower lanes have
        float before;  // what comes behind those if the recurrence begins with zero
    };

    __device__ __forceinline__ void take(int lane, Links& links) const {
        sync_warp();
        const int k = lane / kShares, first = lane % kShares * kLinks;
        take(whole[k] + first, links.factors);
        take(end[k] + first, links.ends);
    }

    // Joins those that this lane has taken, and then the lanes' of each recurrence.
    __device__ __forceinline__ void join(int lane, Links& links) const {
        links.all = links.factors[0];
        links.before = links.ends[0];
#pragma unroll
        for (int i = 1; i < kLinks; ++i) {
            links.before = fmaf(links.before, links.factors[i], links.ends[i]);
            links.all *= links.factors[i];
        }
        join_lower_lanes<kLanes>(lane, links.all, links.before);
    }

    // Turns the ends into what comes before each link; a recurrence begins with the `before` of the first of its lanes.
    // Leaves what comes behind this lane's last link of each.
    __device__ __forceinline__ void run(int lane, Links& links, const float (&before)[kChains],
                                        float (&behind)[kChains]) {
        behind[0] = fmaf(links.all, from_group_lane<kLanes>(before[0], 0), links.before);
#pragma unroll
        for (int i = 0; i < kLinks; ++i) {
            float& value = behind[i * kChains / kLinks];
            if (i > 0 && i * kChains % kLinks == 0) value = before[i * kChains / kLinks];
            const float next = fmaf(value, links.factors[i], links.ends[i]);
            links.ends[i] = value;
            value = next;
        }
        store_packed<kLinks>(end[lane / kShares] + lane % kShares * kLinks, links.ends);
        sync_warp();
    }

    // The same of one recurrence; returns what it leaves.
    __device__ __forceinline__ float run(int lane, Links& links, float before) {
        const float first[1] = {before};
        float behind[1];
        run(lane, links, first, behind);
        return behind[0];
    }

    // What comes before this lane's links of the state k.
    __device__ __forceinline__ float forward(int lane, int k) const { return end[k][lane]; }
    __device__ __forceinline__ float back(int lane, int k) const { return end[kStates + k][kWarpSize - 1 - lane]; }

 private:
    __device__ __forceinline__ static void take(const float* from, float (&values)[kLinks]) {
#pragma unroll
        for (int i = 0; i < kLinks; i += 4) {
            const auto part = load<4, Memory::kMutable>(from + i);
#pragma unroll
            for (int j = 0; j < 4; ++j) values[i + j] = part.to_float(j);
        }
    }
};

// A lane's tokens of a channel.
template <typename Shape>
struct LaneTokens {
    static constexpr int kTokens = Shape::kTokens;
    int lane;
    float dt[kTokens];
    float dt_u[kTokens];
    float gy[kTokens];
    float steps;         // the sum of dt
    unsigned cuts;       // of Cuts
    float e_B[kTokens];  // sums over the states that this warp has taken
    float e_Aah[kTokens];
    float y[kTokens];

    template <bool kSharesChunks, typename Shared, typename Turn>
    __device__ __forceinline__ void take(const Shared& shared, const Turn& turn) {
        cuts = 0;
        if constexpr (kSharesChunks) cuts = shared.cuts.bits[lane];
        take_tokens<Shape, Shape::kGap>(turn.dt, lane, dt);
        take_tokens<Shape, Shape::kGap>(turn.dt_u, lane, dt_u);
        take_tokens<Shape, Shape::kGap>(turn.gy, lane, gy);
        steps = 0.0f;
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
            steps += dt[t];
            e_B[t] = e_Aah[t] = y[t] = 0.0f;
        }
    }

    __device__ __forceinline__ void put_sums(float (&sums)[3][Shape::kSumsRow]) const {
        put_tokens<Shape, Shape::kSumsGap>(sums[0], lane, e_B);
        put_tokens<Shape, Shape::kSumsGap>(sums[1], lane, e_Aah);
        put_tokens<Shape, Shape::kSumsGap>(sums[2], lane, y);
    }
};

template <int kCount>
__device__ __forceinline__ void clear(float (&values)[kCount]) {
#pragma unroll
    for (int t = 0; t < kCount; ++t) values[t] = 0.0f;
}

// What is at a place, or zeros where that is null.
template <int kTokens>
__device__ __forceinline__ void begin_at(const float* at, float (&values)[kTokens]) {
    clear(values);
    if (at == nullptr) return;
#pragma unroll
    for (int t = 0; t < kTokens; t += 4) {
        const auto before = load<4, Memory::kMutable>(at + t);
#pragma unroll
        for (int j = 0; j < 4; ++j) values[t + j] = before.to_float(j);
    }
}

// A lane's tokens of dB and dC of the states of its warp, summed over the block's channels. Among many states they are
// in scratch meanwhile, (2, d_state, kChunk) floats a block.
template <typename Shape, bool kConstantB, bool kConstantC>
struct ChannelSums {
    static constexpr int kTokens = Shape::kTokens;
    static constexpr int kStates = Shape::kStates;
    float dB[kStates][kTokens];
    float dC[kStates][kTokens];
    float* matrices;  // the block's sums
    int lane;
    int warp;

    template <typename Share>
    __device__ __forceinline__ void begin(const SelectiveScanBwdOperands& p, const Share& share, int lane_, int warp_) {
        lane = lane_;
        warp = warp_;
        const index_t number = share.number(p) * p.batch_rows.divisor + share.group * p.splits.divisor + share.split;
        matrices = p.scratch + p.matrices_at + number * 2 * p.d_state * kChunk;
#pragma unroll
        for (int s = 0; s < kStates; ++s) {
            clear(dB[s]);
            clear(dC[s]);
        }
    }

    // Goes on from what the channels before this one have left of these states. It is there by the time that the first
    // sum is added to.
    __device__ __forceinline__ void load(const SelectiveScanBwdOperands& p, int first_state, bool goes_on) {
#pragma unroll
        for (int s = 0; s < kStates; ++s) {
            const int n = first_state + warp * kStates + s;
            const float* const at = matrices + n * kChunk + lane * kTokens;
            const bool is_there = goes_on && n < p.d_state;
            begin_at(is_there && !kConstantB ? at : nullptr, dB[s]);
            begin_at(is_there && !kConstantC ? at + p.d_state * kChunk : nullptr, dC[s]);
        }
    }

    // What does not depend on the token is summed for each channel.
    __device__ __forceinline__ void clear_constants() {
#pragma unroll
        for (int s = 0; s < kStates; ++s) {
            if (kConstantB) clear(dB[s]);
            if (kConstantC) clear(dC[s]);
        }
    }

    __device__ __forceinline__ void store(const SelectiveScanBwdOperands& p, int first_state) const {
#pragma unroll
        for (int s = 0; s < kStates; ++s) {
            const int n = first_state + warp * kStates + s;
            if (n >= p.d_state) continue;
            float* const at = matrices + n * kChunk + lane * kTokens;
            // Otherwise the compiler splits some of these vectors.
            if (!kConstantB) store_packed<kTokens, Keep::kWhole>(at, dB[s]);
            if (!kConstantC) store_packed<kTokens, Keep::kWhole>(at + p.d_state * kChunk, dC[s]);
        }
    }
};

// A lane's tokens of the states of its warp, interleaved. Where registers are few, B and C are taken twice.
// Where it is tight, C gy is computed twice too, and a constant's sum over tokens is one number. Sequences that begin
// and end inside the chunk may have states of their own, in SequenceEnds.
template <typename Shape, typename Numbers, bool kConstantB, bool kConstantC, bool kTakesTwice, bool kIsTight,
          bool kHasStates>
struct StatesPass {
    using T = typename Shape::input_t;
    static constexpr int kTokens = Shape::kTokens;
    static constexpr int kStates = Shape::kStates;
    // Stores among the arithmetic keep the compiler from interleaving the states. On an H200 gradients of 16 states
    // take 762 us without them instead of 771, but those of 64 states 2.93 ms instead of 2.78.
    static constexpr bool kPutsEarly = kTakesTwice && !kIsTight;
    float A[kStates];
    float decay[kStates][kTokens];
    float pull[kStates][kTokens];
    float b[kStates][kTokens];
    float c[kStates][kTokens];
    SequenceEnds<Shape>* sequences;

    // Takes the states through this lane's tokens as if zeros came before them and behind, from the n-th of those in
    // shared memory on.
    template <typename Shared, typename Number, typename Scan>
    __device__ __forceinline__ void begin(const LaneTokens<Shape>& lane, const Shared& shared, const Number& number,
                                          int n, Scan& scan) {
        float factor[kStates], ahead[kStates], back[kStates];
#pragma unroll
        for (int k = 0; k < kStates; ++k) {
            A[k] = Numbers::A(number, k);
            const float rate = A[k] * kLog2E;
            take_matrices(lane, shared, number, n, k);
            float start[kTokens], end[kTokens];
            take_ends(lane, n, k, end);
            take_starts(lane, n, k, start);
            float h = 0.0f;
#pragma unroll
            for (int t = 0; t < kTokens; ++t) {
                // Nothing goes on to another sequence, nor comes back from one.
                const float through = exp2_approx(lane.dt[t] * rate);
                decay[k][t] = lane.cuts >> t & 1 ? 0.0f : through;
                if (kHasStates && (lane.cuts >> t & 1) != 0) start[t] *= through;
                pull[k][t] = pull_of(lane, k, t, end);
                h = fmaf(h, decay[k][t], kHasStates ? fmaf(lane.dt_u[t], b[k][t], start[t]) : lane.dt_u[t] * b[k][t]);
            }
            // What initial states are behind the first tokens, for finish().
            if constexpr (kHasStates) SequenceEnds<Shape>::put(sequences->starts[n + k], lane.lane, start);
            float e = pull[k][kTokens - 1];
#pragma unroll
            for (int t = kTokens - 1; t > 0; --t) e = fmaf(e, decay[k][t], pull[k][t - 1]);
            factor[k] = lane.cuts != 0 ? 0.0f : exp2_approx(lane.steps * rate);
            ahead[k] = h;
            back[k] = e * decay[k][0];
            if (kPutsEarly) scan.put(lane.lane, k, factor[k], ahead[k], back[k]);
        }
#pragma unroll
        for (int k = 0; k < kStates && !kPutsEarly; ++k) scan.put(lane.lane, k, factor[k], ahead[k], back[k]);
    }

    // Takes them through once more, from what comes before and behind: adds to this lane's dB and dC and to the sums
    // over states. Leaves this lane's parts of dA.
    template <typename Shared, typename Number, typename Scan>
    __device__ __forceinline__ void finish(LaneTokens<Shape>& lane, const Shared& shared, const Number& number, int n,
                                           const Scan& scan, ChannelSums<Shape, kConstantB, kConstantC>& sums,
                                           float (&dA)[kStates]) {
        const unsigned begun = kHasStates && sequences->begun_count > 0 ? lane.cuts : 0;
#pragma unroll
        for (int k = 0; k < kStates; ++k) {
            if (kTakesTwice) take_matrices(lane, shared, number, n, k);
            if (kIsTight) {
                float end[kTokens];
                take_ends(lane, n, k, end);
#pragma unroll
                for (int t = 0; t < kTokens; ++t) pull[k][t] = pull_of(lane, k, t, end);
            }
            float kept[kTokens], start[kTokens];
            take_starts(lane, n, k, start);
            float now = scan.forward(lane.lane, k);
#pragma unroll
            for (int t = 0; t < kTokens; ++t) {
                kept[t] = kHasStates ? fmaf(now, decay[k][t], start[t]) : now * decay[k][t];
                now = fmaf(lane.dt_u[t], b[k][t], kept[t]);
                float& dC = sums.dC[k][kConstantC && kIsTight ? 0 : t];
                dC = fmaf(lane.gy[t], now, dC);
                lane.y[t] = fmaf(c[k][t], now, lane.y[t]);
            }
            float e = pull[k][kTokens - 1] + scan.back(lane.lane, k);
            dA[k] = 0.0f;
#pragma unroll
            for (int t = kTokens - 1; t >= 0; --t) {
                const float product = e * kept[t];
                float& dB = sums.dB[k][kConstantB && kIsTight ? 0 : t];
                dB = fmaf(e, lane.dt_u[t], dB);
                lane.e_B[t] = fmaf(e, b[k][t], lane.e_B[t]);
                lane.e_Aah[t] = fmaf(product, A[k], lane.e_Aah[t]);
                dA[k] = fmaf(product, lane.dt[t], dA[k]);
                // The gradient of an initial state is made of this one.
                if (kHasStates && (begun >> t & 1) != 0) sequences->put(n + k, lane.lane, t, e);
                if (t > 0) e = fmaf(e, decay[k][t], pull[k][t - 1]);
            }
        }
    }

 private:
    // What goes from a token's result to the gradient of the state behind it, and at a sequence's last token what comes
    // from its last state.
    __device__ __forceinline__ float pull_of(const LaneTokens<Shape>& lane, int k, int t,
                                             const float (&end)[kTokens]) const {
        return kHasStates ? fmaf(lane.gy[t], c[k][t], end[t]) : lane.gy[t] * c[k][t];
    }

    // The gradients of last states at the tokens where sequences end.
    __device__ __forceinline__ void take_ends(const LaneTokens<Shape>& lane, int n, int k,
                                              float (&end)[kTokens]) const {
        if constexpr (kHasStates) SequenceEnds<Shape>::take(sequences->ends[n + k], lane.lane, end);
    }

    // What comes of initial states at the tokens where sequences begin.
    __device__ __forceinline__ void take_starts(const LaneTokens<Shape>& lane, int n, int k,
                                                float (&start)[kTokens]) const {
        if constexpr (kHasStates) SequenceEnds<Shape>::take(sequences->starts[n + k], lane.lane, start);
    }

    template <typename Shared, typename Number>
    __device__ __forceinline__ void take_matrices(const LaneTokens<Shape>& lane, const Shared& shared,
                                                  const Number& number, int n, int k) {
        const int of_row = Shape::row_lane(lane.lane);
        if constexpr (kConstantB) fill(Numbers::B(number, k), b[k]);
        if constexpr (!kConstantB) MatrixTokens<Shape>(shared.B[n + k], of_row).to_floats(b[k]);
        if constexpr (kConstantC) fill(Numbers::C(number, k), c[k]);
        if constexpr (!kConstantC) MatrixTokens<Shape>(shared.C[n + k], of_row).to_floats(c[k]);
    }

    __device__ __forceinline__ static void fill(float number, float (&values)[kTokens]) {
#pragma unroll
        for (int t = 0; t < kTokens; ++t) values[t] = number;
    }
};

// Stores the sums of kStates values over the lanes, one by each of the first lanes.
template <int kStates>
__device__ __forceinline__ void store_over_lanes(const float (&values)[kStates], float* at, bool is_stored) {
    float sums[kStates];
#pragma unroll
    for (int s = 0; s < kStates; ++s) sums[s] = values[s];
    sum_parts_over_lanes<kWarpSize>(sums);
    if (is_stored) *at = sums[0];
}

// The same of the sums over all tokens.
template <int kStates, int kTokens>
__device__ __forceinline__ void store_over_tokens(const float (&values)[kStates][kTokens], float* at, bool is_stored) {
    float sums[kStates];
#pragma unroll
    for (int s = 0; s < kStates; ++s) {
        sums[s] = 0.0f;
#pragma unroll
        for (int t = 0; t < kTokens; ++t) sums[s] += values[s][t];
    }
    store_over_lanes(sums, at, is_stored);
}

// A channel's sums over tokens: of the warp's states dA, unless there are many, and behind them dD and ddelta_bias. A
// lane's parts of them are added up over lanes while the next channel is walked.
template <typename Shape>
struct TokenSums {
    static constexpr int kStates = Shape::kStates;
    float parts[2 * kStates];
    float* at;  // where the sum that is this lane's goes for the block's first channel; null for none
    int step;   // floats from channel to channel

    __device__ __forceinline__ void begin(const SelectiveScanBwdOperands& p, index_t first_vector, bool many_states,
                                          int lane, int warp) {
        clear(parts);
        at = nullptr;
        step = 2 * Shape::kWarps;
        if (lane >= kStates && lane < kStates + 2) {
            at = p.scratch + p.vectors_at + (first_vector * Shape::kWarps + warp) * 2 + lane - kStates;
        } else if (lane < kStates && !many_states && warp * kStates + lane < p.d_state) {
            at = p.scratch + p.rates_at + first_vector * p.d_state + warp * kStates + lane;
            step = p.d_state;
        }
    }

    __device__ __forceinline__ void take(const float (&dA)[kStates]) {
#pragma unroll
        for (int s = 0; s < kStates; ++s) {
            parts[s] = dA[s];
            parts[kStates + s] = 0.0f;
        }
    }

    // Stores the sums of a channel, counted from the block's first one; none are there before that.
    __device__ __forceinline__ void store(int channel) {
        sum_parts_over_lanes<kWarpSize>(parts);
        if (channel >= 0 && at != nullptr) at[static_cast<unsigned>(channel) * static_cast<index_t>(step)] = parts[0];
    }
};
