// h = h * exp(dt * A) + dt * B * u, y = sum over n of C * h + D * u, out = y * silu(z), with dt = delta + delta_bias or
// the softplus of that, for rows of contiguous tokens that are short, few or not aligned: up to 4 states.
//
// Layout: u, delta, z and out (batch, dim, seqlen), B and C (batch, ngroups, d_state, seqlen), tokens contiguous.
// kLanes lanes own a channel of a row, and each lane kTokens consecutive tokens of a tile with all states, so that it
// loads, prepares and finishes them alone: lanes hand each other only the states between their tokens. B and C come
// from the L1 cache, where the channels of a block find them together. On an H200 64 x 1536 rows of 196 tokens with one
// state take 72 us so, and 182 where a lane walks a row alone; of 49 tokens, twice as many rows, 63 and 147.
//
// input_t  u, delta, z, out, B and C    kVec     tokens an access    kLanes  lanes of a warp per channel
// kStates  d_state or more              kTokens  per lane of a tile
// kResident  blocks per multiprocessor
#include "common/activation.cuh"
#include "common/tokens.cuh"
#include "common/warp.cuh"
#include "selective_scan/scan_segments.cuh"

struct SelectiveScanShortFwdParams {
    SelectiveScanOperands operands;
};

template <typename input_t, int kVec, int kLanes, int kStates, int kTokens, int kResident>
struct SelectiveScanShortFwdTraits {
    static constexpr int kThreads = 128;
    static constexpr int kChannels = kThreads / kLanes;  // per block
    static constexpr int kMinBlocks = kResident;
};

template <typename input_t, int kVec, int kLanes, int kStates, int kTokens, int kResident,
          typename Traits = SelectiveScanShortFwdTraits<input_t, kVec, kLanes, kStates, kTokens, kResident>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    selective_scan_short_fwd_kernel(const SelectiveScanShortFwdParams params) {
    using T = input_t;
    using Segment = ScanSegment<Traits>;
    constexpr int kTile = kLanes * kTokens;
    constexpr int kAtOnce = kStates < 2 ? kStates : 2;  // states that a lane computes interleaved
    static_assert(Segment::kChunk % kTile == 0);
    using Own = Tokens<T, kTokens, kVec>;
    const SelectiveScanOperands& p = params.operands;
    const Segment segment(p);
    const int thread = opaque(static_cast<int>(threadIdx.x));
    const int lane = thread % kLanes, first = lane * kTokens;
    const index_t batch = segment.batch;
    // Lanes beyond the last channel repeat its work and store nothing.
    const bool is_idle = segment.first_channel + thread / kLanes >= p.dim;
    const index_t channel = min(segment.first_channel + thread / kLanes, p.dim - 1);
    const auto place = [&](const index_t* stride, index_t number) { return batch * stride[0] + number * stride[1]; };
    const index_t group = divide(static_cast<unsigned>(channel), p.group_dim).quotient;
    const T* const u = static_cast<const T*>(p.u) + place(p.u_stride, channel) + first;
    const T* const delta = static_cast<const T*>(p.delta) + place(p.delta_stride, channel) + first;
    const T* const B = static_cast<const T*>(p.B) + place(p.B_stride, group) + first;
    const T* const C = static_cast<const T*>(p.C) + place(p.C_stride, group) + first;
    const T* const z = static_cast<const T*>(p.z) + place(p.z_stride, channel) + first;
    T* const out = static_cast<T*>(p.out) + place(p.out_stride, channel) + first;
    Own next_u, next_delta, next_z;
    next_z.clear();
    const auto load_rows = [&](int tile) {
        next_u.load_front(u + tile, p.seqlen - tile - first);
        next_delta.load_front(delta + tile, p.seqlen - tile - first);
        if (p.z != nullptr) next_z.load_front(z + tile, p.seqlen - tile - first);
    };
    load_rows(0);
    RawNumber<T> raw_d, raw_bias;
    if (p.D != nullptr) raw_d.load(p.D, channel * p.D_stride, p.D_is_float32);
    if (p.delta_bias != nullptr) raw_bias.load(p.delta_bias, channel * p.delta_bias_stride, p.delta_bias_is_float32);
    float rate[kStates], state[kStates];
#pragma unroll
    for (int n = 0; n < kStates; ++n) {
        rate[n] = state[n] = 0.0f;
        if (n >= p.d_state) continue;
        rate[n] = load<1>(static_cast<const float*>(p.A) + channel * p.A_stride[0] + n * p.A_stride[1]).to_float(0);
        if (p.initial_state != nullptr) {
            const index_t* const stride = p.initial_state_stride;
            state[n] = load<1, Memory::kMutable>(p.initial_state + place(stride, channel) + n * stride[2]).to_float(0);
        }
    }
    const auto leave_states = [&](float* to, const index_t* stride) {
        if (is_idle) return;
#pragma unroll
        for (int n = 0; n < kStates; ++n) {
            if (lane == n && n < p.d_state) to[channel * stride[0] + n * stride[1]] = state[n];
        }
    };
    for (int tile = 0; tile < p.seqlen; tile += kTile) {
        const int live = p.seqlen - tile - first;  // tokens of the row from this lane's first one on
        Own b[kAtOnce], c[kAtOnce];
        const auto load_matrices = [&](int from) {
#pragma unroll
            for (int s = 0; s < kAtOnce; ++s) {
                const int n = from + s;
                b[s].clear();
                c[s].clear();
                if (n >= p.d_state) continue;
                b[s].load_front(B + n * p.B_stride[2] + tile, live);
                c[s].load_front(C + n * p.C_stride[2] + tile, live);
            }
        };
        load_matrices(0);
        if (p.chunk_states != nullptr && tile % Segment::kChunk == 0) {
            const index_t* const stride = p.chunk_states_stride;
            leave_states(p.chunk_states + batch * stride[0] + tile / Segment::kChunk * stride[1], stride + 2);
        }
        const Own own_u = next_u, own_delta = next_delta, own_z = next_z;
        if (tile + kTile < p.seqlen) load_rows(tile + kTile);
        const float bias = raw_bias.to_float(p.delta_bias_is_float32);
        float dt[kTokens], dt_u[kTokens], y[kTokens], sum = 0.0f;
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
            dt[t] = own_delta.to_float(t) + bias;
            if (p.delta_softplus) dt[t] = softplus(dt[t]);
            if (t >= live) dt[t] = 0.0f;
            dt_u[t] = dt[t] * own_u.to_float(t);
            sum += dt[t];
            y[t] = 0.0f;
        }
#pragma unroll
        for (int from = 0; from < kStates; from += kAtOnce) {
            if (from > 0) load_matrices(from);
            float power[kAtOnce], before[kAtOnce], begin[kAtOnce], h[kAtOnce], whole[kAtOnce];
            float decay[kAtOnce][kTokens], input[kAtOnce][kTokens];
#pragma unroll
            for (int s = 0; s < kAtOnce; ++s) {
                power[s] = rate[from + s] * kLog2E;
                before[s] = state[from + s];
                h[s] = 0.0f;
                whole[s] = exp2_approx(sum * power[s]);
            }
#pragma unroll
            for (int t = 0; t < kTokens; ++t) {
#pragma unroll
                for (int s = 0; s < kAtOnce; ++s) {
                    decay[s][t] = exp2_approx(dt[t] * power[s]);
                    input[s][t] = dt_u[t] * b[s].to_float(t);
                    h[s] = fmaf(h[s], decay[s][t], input[s][t]);
                }
            }
            scan_over_lanes<kLanes>(whole, before, h, begin);
#pragma unroll
            for (int s = 0; s < kAtOnce; ++s) state[from + s] = from_group_lane<kLanes>(h[s], kLanes - 1);
#pragma unroll
            for (int t = 0; t < kTokens; ++t) {
#pragma unroll
                for (int s = 0; s < kAtOnce; ++s) {
                    begin[s] = fmaf(begin[s], decay[s][t], input[s][t]);
                    y[t] = fmaf(c[s].to_float(t), begin[s], y[t]);
                }
            }
        }
        const float D = raw_d.to_float(p.D_is_float32);
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
            // Without D not with 0 * u, which for an infinite u is NaN.
            if (p.D != nullptr) y[t] = fmaf(D, own_u.to_float(t), y[t]);
            if (p.z != nullptr) y[t] *= silu_gate(own_z.to_float(t));
        }
        if (!is_idle) store_front<kVec>(out + tile, live, y);
    }
    if (p.last_state != nullptr) leave_states(p.last_state + batch * p.last_state_stride[0], p.last_state_stride + 1);
}
