// What a warp of the scan's backward pass does for its states where one of them is not finite: a decay of zero would
// not keep it from the next sequence in the chunk.
#pragma once

#include "selective_scan/scan_bwd_states.cuh"

// A lane's tokens of one of its warp's states at a time, out of shared memory. This is rare, and so small and slow: no
// register more, and nothing interleaved.
template <typename Shape, typename Numbers, bool kHasStates>
struct IsolatedPass {
    static constexpr int kTokens = Shape::kTokens;
    static constexpr int kStates = Shape::kStates;
    SequenceEnds<Shape>* sequences;
    unsigned cuts;  // of Cuts
    float A;
    float decay[kTokens];
    float b[kTokens];
    float c[kTokens];
    float start[kTokens];  // what comes of initial states, as StatesPass::begin() has left it
    float end[kTokens];    // the gradients of last states

    // Scans the links of the warp once more, as StatesPass::begin() and WarpScan::run() do.
    template <typename Shared>
    __device__ __forceinline__ float scan(const LaneTokens<Shape>& lane, const Shared& shared, float number, int n,
                                          WarpScan<kStates>& links, float seed) {
        cuts = shared.cuts.bits[lane.lane];
#pragma unroll 1
        for (int k = 0; k < kStates; ++k) {
            take(lane, shared, number, n, k);
            float h = 0.0f, e = 0.0f, steps = 0.0f;
#pragma unroll
            for (int t = 0; t < kTokens; ++t) {
                steps += lane.dt[t];
                h = go_on(h, t, fmaf(lane.dt_u[t], b[t], start[t]));
            }
#pragma unroll
            for (int t = kTokens - 1; t >= 0; --t) e = go_on(e + pull(lane, t), t, 0.0f);
            links.put(lane.lane, k, exp2_approx(steps * (A * kLog2E)), h, e);
        }
        return links.run_apart(lane.lane, lanes_where(cuts != 0), seed);
    }

    // As StatesPass::finish(), with the sums over channels in scratch.
    template <typename Shared, typename Sums>
    __device__ __forceinline__ void finish(const SelectiveScanBwdOperands& p, LaneTokens<Shape>& lane,
                                           const Shared& shared, float number, int n, const WarpScan<kStates>& links,
                                           Sums& sums, float (&dA)[kStates]) {
        sums.store(p, 0);
#pragma unroll 1
        for (int k = 0; k < kStates; ++k) {
            take(lane, shared, number, n, k);
            const bool is_there = n + k < p.d_state;
            float dB[kTokens], dC[kTokens], kept[kTokens];
            begin_at(is_there ? sums.dB_place(n + k) : nullptr, dB);
            begin_at(is_there ? sums.dC_place(p, n + k) : nullptr, dC);
            float now = links.forward(lane.lane, k);
#pragma unroll
            for (int t = 0; t < kTokens; ++t) {
                kept[t] = go_on(now, t, start[t]);
                now = fmaf(lane.dt_u[t], b[t], kept[t]);
                dC[t] = fmaf(lane.gy[t], now, dC[t]);
                lane.y[t] = fmaf(c[t], now, lane.y[t]);
            }
            float e = links.back(lane.lane, k) + pull(lane, kTokens - 1), rate = 0.0f;
#pragma unroll
            for (int t = kTokens - 1; t >= 0; --t) {
                const float product = e * kept[t];
                dB[t] = fmaf(e, lane.dt_u[t], dB[t]);
                lane.e_B[t] = fmaf(e, b[t], lane.e_B[t]);
                lane.e_Aah[t] = fmaf(product, A, lane.e_Aah[t]);
                rate = fmaf(product, lane.dt[t], rate);
                if (kHasStates && sequences->begun_count > 0 && is_cut(t)) sequences->put(n + k, lane.lane, t, e);
                if (t > 0) e = go_on(e, t, pull(lane, t - 1));
            }
#pragma unroll
            for (int s = 0; s < kStates; ++s) dA[s] = s == k ? rate : dA[s];
            if (!is_there) continue;
            store_packed<kTokens>(sums.dB_place(n + k), dB);
            store_packed<kTokens>(sums.dC_place(p, n + k), dC);
        }
        sums.load(p, 0, true);
    }

 private:
    __device__ __forceinline__ bool is_cut(int t) const { return (cuts >> t & 1) != 0; }

    // carry * decay + more, and where a sequence begins with a lane's t-th token `more` alone.
    __device__ __forceinline__ float go_on(float carry, int t, float more) const {
        return is_cut(t) ? more : fmaf(carry, decay[t], more);
    }

    // What goes from a token's result to the gradient of the state behind it.
    __device__ __forceinline__ float pull(const LaneTokens<Shape>& lane, int t) const {
        return fmaf(lane.gy[t], c[t], end[t]);
    }

    template <typename Shared>
    __device__ __forceinline__ void take(const LaneTokens<Shape>& lane, const Shared& shared, float number, int n,
                                         int k) {
        A = Numbers::A(number, k);
        MatrixTokens<Shape>(shared.B[n + k], lane.lane).to_floats(b);
        MatrixTokens<Shape>(shared.C[n + k], lane.lane).to_floats(c);
        clear(start);
        clear(end);
        if constexpr (kHasStates) {
            SequenceEnds<Shape>::take(sequences->starts[n + k], lane.lane, start);
            SequenceEnds<Shape>::take(sequences->ends[n + k], lane.lane, end);
        }
#pragma unroll
        for (int t = 0; t < kTokens; ++t) decay[t] = exp2_approx(lane.dt[t] * (A * kLog2E));
    }
};
