// y[t] = act(bias + sum_w weight[w] * x[t - (width - 1) + w]) for packed sequences with contiguous channels; the first
// ranges of channels give y / sqrt(sum of y^2 over the channels of a head + eps).
//
// Layout: tiles of tokens, and prefixes of sequences, as in causal_conv1d_varlen_fwd. A warp has a tile of kTokens
// tokens, or one prefix, in one head, or in several heads that are small. A head has a power of two of lanes, with kVec
// channels each. A head of more channels than a warp takes is convolved in parts, once for the norm and once more for
// the results.
//
// kWidth    filter taps              input_t   x and outputs             weight_t  weight, and bias unless float
// state_t   the pool of states       kVec      channels an access        kTokens   tokens a thread
// kSilu     silu after the sum       kWide     heads may have more channels than a warp
// kAddressed  slots may be in columns, states may go to other slots or be only read, there may be snapshots of them,
//             padding may stay as it is
// kPayload  raw inputs are copied to a payload
#include "causal_conv1d/conv_l2norm.cuh"
#include "causal_conv1d/conv_tile.cuh"

struct CausalConv1dVarlenL2normFwdParams {
    CausalConv1dVarlenOperands operands;
    FastDiv units;  // parts of a token's channels that one warp has
    BlockGroups mix;
    int unit_end[kMaxRanges];    // the unit behind the last one of each range
    int unit_width[kMaxRanges];  // channels of each range that a group of lanes has: a head to be normalised, or a part
    int unit_lanes[kMaxRanges];  // lanes of such a group, for each range
    int normalized;              // number of leading ranges that are normalised
    float eps;
};

template <int kWidth, typename input_t, typename weight_t, typename state_t, int kVec, int kTokens, bool kSilu,
          bool kWide, bool kAddressed, bool kPayload>
struct CausalConv1dVarlenL2normFwdTraits {
    static constexpr int kThreads = 128;
    static constexpr int kWarps = kThreads / kWarpSize;
    // Long tiles of short filters are for calls of many tokens: on an H200 8192 of 48 heads took 56.3 us, short
    // ones 58.9 with 8 blocks, 60.6 with 7; but 512 tokens 8.1 instead of 7.4.
    static constexpr bool kIsLong = kWidth <= 4 && kTokens > 8;
    static constexpr bool kIsPlain = !kAddressed && !kPayload;
    static constexpr int kMinBlocks = kWidth > 4 || kWide ? 1 : kIsLong ? (kIsPlain ? 6 : 5) : kIsPlain ? 8 : 7;
    // Tokens of which the squares are summed at a time. One by one, each would wait for the shuffles of the one before:
    // 65.2 us instead of 61.4. Four of long tiles take 57.0 with 5 blocks, eight 57.6.
    static constexpr int kAtOnce = kIsLong ? 4 : 8;
    static_assert(kIsWidth<kWidth> && kTokens >= 1 && kTokens < 32);
};

// The results of kVec channels. Inputs has output(), as TileInputs and SequencePrefix have it.
template <typename weight_t, bool kSilu, int kWidth, int kVec, typename Inputs>
struct Results {
    const Inputs& inputs;
    float bias[kVec];
    float taps[kVec][kWidth];

    __device__ __forceinline__ Results(const CausalConv1dVarlenOperands& p, const Inputs& inputs_, index_t channel)
        : inputs(inputs_) {
        ChannelFilter<kWidth, weight_t, kVec>(p, channel).to_floats(taps, bias);
    }

    // Computes the results of token i; returns the sum of their squares.
    __device__ __forceinline__ float compute(int i, float (&y)[kVec]) const {
        float squares = 0.0f;
#pragma unroll
        for (int c = 0; c < kVec; ++c) {
            y[c] = inputs.template output<kSilu>(i, c, taps[c], bias[c]);
            squares = fmaf(y[c], y[c], squares);
        }
        return squares;
    }
};

// Convolves up to kTokens tokens from `token` on, normalises them, and stores those with a bit set in stored(), which
// is called when the first results are there, by all lanes unless kWide. make(channel) gives the inputs of a channel
// vector; finish(inputs, channel) is called when its results are stored.
template <typename input_t, typename weight_t, bool kSilu, bool kWide, int kWidth, int kVec, int kTokens, int kAtOnce,
          typename Stored, typename Make, typename Finish>
__device__ __forceinline__ void convolve_group(const CausalConv1dVarlenOperands& p, const LaneGroup& group, float eps,
                                               int token, Stored stored, Make make, Finish finish) {
    using Inputs = decltype(make(0));
    using Output = Vec<input_t, kVec>;
    float scale[kWide ? kTokens : 1];
    if constexpr (kWide) {
#pragma unroll
        for (int i = 0; i < kTokens; ++i) scale[i] = 0.0f;
#pragma unroll 1
        for (int at = group.lane * kVec; at < group.width; at += group.lanes * kVec) {
            const Inputs inputs = make(group.begin + at);
            const Results<weight_t, kSilu, kWidth, kVec, Inputs> results(p, inputs, group.begin + at);
            float y[kVec];
#pragma unroll
            for (int i = 0; i < kTokens; ++i) scale[i] += results.compute(i, y);
        }
#pragma unroll
        for (int i = 0; i < kTokens; ++i) scale[i] = rsqrtf(sum_over_lanes(scale[i], group.lanes) + eps);
    }
    // Without wide heads there is one turn, and lanes without channels read another lane's memory: all take part in
    // the sums.
    int at = group.lane * kVec;
    do {
        const bool is_idle = at >= group.width;
        if (kWide && is_idle) return;
        const index_t channel = is_idle ? 0 : group.begin + at;
        const Inputs inputs = make(channel);
        const Results<weight_t, kSilu, kWidth, kVec, Inputs> results(p, inputs, channel);
        auto destination = destination_of<input_t, kVec, Ranges::kMany>(p, channel, 0, token);
        unsigned bits = 0;
#pragma unroll
        for (int first = 0; first < kTokens; first += kAtOnce) {
            float y[kAtOnce][kVec], sums[kAtOnce];
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                sums[i] = 0.0f;
                if (first + i < kTokens) sums[i] = results.compute(first + i, y[i]);
                if (is_idle) sums[i] = 0.0f;
            }
            if (group.is_normalized) {
                if constexpr (!kWide) sums_to_scales(sums, group.lanes, eps);
#pragma unroll
                for (int i = 0; i < kAtOnce; ++i) {
                    if (first + i >= kTokens) continue;
                    if constexpr (kWide) sums[i] = scale[first + i];
#pragma unroll
                    for (int c = 0; c < kVec; ++c) y[i][c] *= sums[i];
                }
            }
            if (first == 0) bits = stored();
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                if (first + i >= kTokens) continue;
                if (!is_idle && (bits >> (first + i) & 1)) destination.store_vector(Output::from_floats(y[i]));
                destination.advance();
            }
        }
        if (!is_idle) finish(inputs, channel);
        at += group.lanes * kVec;
    } while (kWide && at < group.width);
}

template <int kWidth, typename input_t, typename weight_t, typename state_t, int kVec, int kTokens, bool kSilu,
          bool kWide, bool kAddressed, bool kPayload,
          typename Traits = CausalConv1dVarlenL2normFwdTraits<kWidth, input_t, weight_t, state_t, kVec, kTokens, kSilu,
                                                              kWide, kAddressed, kPayload>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_varlen_l2norm_fwd_kernel(const CausalConv1dVarlenL2normFwdParams params) {
    using Inputs = TileInputs<kWidth, input_t, kVec, kTokens>;
    constexpr bool kIsEarly = Traits::kIsLong && !kWide;
    const CausalConv1dVarlenOperands& p = params.operands;

    const QuotientRemainder group_unit = divide(blockIdx.x, params.units);
    const GroupRole group(group_unit.quotient, params.mix);
    const int number = static_cast<int>(group.number * Traits::kWarps + threadIdx.x / kWarpSize);
    const LaneGroup lanes(params, static_cast<int>(group_unit.remainder));
    if (!group.is_prefix) {
        const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
        const int token = number * kTokens;
        const BlockRoles<kTokens, Traits::kThreads> block_roles;
        // Inputs are on their way while the sequences are looked for. Of short tiles that takes 7.7 us instead of 7.4.
        Inputs early;
        if constexpr (kIsEarly) early = Inputs(p, token, lanes.template channel<kVec>());
        block_roles.template find<kAddressed>(p, token - warp * kTokens, Traits::kWarps, kWidth - 1);
        // The sequences are needed when results are stored: 54.1 us instead of 56.5 for 8192 tokens of one sequence.
        TokenRoles<kTokens> roles;
        if constexpr (kWide) roles = block_roles.get(warp);
        const auto stored = [&] {
            if constexpr (!kWide) roles = block_roles.get(warp);
            return roles.inner;
        };
        if (kPayload && group_unit.remainder == 0) {
            store_payload_gates<input_t>(p, token, kTokens, lane_id(), kWarpSize);
        }
        convolve_group<input_t, weight_t, kSilu, kWide, kWidth, kVec, kTokens, Traits::kAtOnce>(
            p, lanes, params.eps, token, stored,
            [&](index_t channel) { return kIsEarly ? early : Inputs(p, token, channel); },
            [&](const Inputs& inputs, index_t channel) {
                if constexpr (kPayload) { store_payload<Inputs, input_t, kVec, kTokens>(p, inputs, token, channel); }
                store_zeros(destination_of<input_t, kVec, Ranges::kMany>(p, channel, 0, token), roles.padding);
            });
        return;
    }
    if constexpr (kAddressed) {
        const int snapshot_group = static_cast<int>(group.number - params.mix.prefix_groups + p.snapshot_groups);
        if (snapshot_group >= 0) {
            const int row = snapshot_group * Traits::kWarps + static_cast<int>(threadIdx.x) / kWarpSize;
            for (int at = lanes.lane * kVec; at < lanes.width; at += lanes.lanes * kVec) {
                // One after the other: registers for two at once are not there.
#pragma unroll 1
                for (int i = 0; i < kSnapshotsAtOnce; ++i) {
                    store_inner_snapshots<1, kWidth, input_t, state_t, kVec, false>(p, row * kSnapshotsAtOnce + i,
                                                                                    lanes.begin + at);
                }
            }
            return;
        }
    }
    if constexpr (kWidth > 1) {
        using Prefix = SequencePrefix<kWidth, input_t, state_t, kVec, kAddressed>;
        SnapshotRows rows{0, 0};
        if constexpr (kAddressed) {
            const int first = static_cast<int>(group.number) * Traits::kWarps;
            rows = find_prefix_snapshots<Traits::kThreads, kWidth>(p, first, Traits::kWarps);
        }
        if (number >= p.sequences) return;  // whole warps leave: the shuffles stay complete
        const Prefix sequence(p, number);
        if (sequence.length == 0) return;
        const auto store_snapshots = [&](bool is_over_start) {
            if (rows.begin >= rows.end) return;
            // Known anew, instead of kept in registers.
            const unsigned block = static_cast<unsigned>(opaque(static_cast<int>(blockIdx.x)));
            const QuotientRemainder group_own = divide(block, params.units);
            const LaneGroup own(params, static_cast<int>(group_own.remainder));
            const int own_number = static_cast<int>(GroupRole(group_own.quotient, params.mix).number * Traits::kWarps +
                                                    threadIdx.x / kWarpSize);
            for (int at = own.lane * kVec; at < own.width; at += own.lanes * kVec) {
                store_prefix_snapshots<kWidth, input_t, state_t, kVec, false>(p, rows, own_number, own.begin + at,
                                                                              is_over_start);
            }
        };
        if constexpr (kAddressed) store_snapshots(false);
        const auto make = [&](index_t channel) {
            Prefix prefix = sequence;
            prefix.load(p, channel);
            return prefix;
        };
        convolve_group<input_t, weight_t, kSilu, kWide, kWidth, kVec, kWidth - 1, Traits::kAtOnce>(
            p, lanes, params.eps, sequence.begin, [&] { return (1u << sequence.count()) - 1; }, make,
            [&](const Prefix& prefix, index_t channel) { prefix.update_state(p, channel); });
        if constexpr (kAddressed) store_snapshots(true);
    }
}
