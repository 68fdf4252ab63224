// y[t] = act(bias + sum_w weight[w] * x[t - (width - 1) + w]) for packed sequences with contiguous channels; the first
// ranges of channels give y / sqrt(sum of y^2 over the channels of a head + eps).
//
// Layout: a warp has a tile of kTokens consecutive tokens in one head, or in several heads that are small, and walks
// them. Where a sequence begins it goes on from the sequence's state, so that no token is computed twice and no other
// warp has prefixes. It also walks the tokens behind its tile that are in the prefix of one of its sequences, and
// leaves out those of its tile that are in the prefix of one that begins before: no two warps access the same state.
// The warps of a block have the same tokens; the first one finds the sequences for all.
//
// kWidth    filter taps              input_t   x and outputs             weight_t  weight, and bias unless float
// state_t   the pool of states       kVec      channels an access        kTokens   tokens a thread has
// kSilu     silu after the sum
#include "causal_conv1d/conv_l2norm.cuh"
#include "causal_conv1d/conv_tile.cuh"

struct CausalConv1dVarlenL2normShortFwdParams {
    CausalConv1dVarlenOperands operands;
    FastDiv shares;              // blocks that share a tile
    int units;                   // parts of a token's channels that one warp has
    int unit_end[kMaxRanges];    // the unit behind the last one of each range
    int unit_width[kMaxRanges];  // channels of each range that a group of lanes has: a head to be normalised, or a part
    int unit_lanes[kMaxRanges];  // lanes of such a group, for each range
    int normalized;              // number of leading ranges that are normalised
    float eps;
};

template <int kWidth, typename input_t, typename weight_t, typename state_t, int kVec, int kTokens, bool kSilu>
struct CausalConv1dVarlenL2normShortFwdTraits {
    static constexpr int kThreads = 128;
    static constexpr int kWarps = kThreads / kWarpSize;
    // On an H200 6, 7 and 8 blocks take 70.7, 67.6 and 69.5 us for 512 random lengths with a mean of 16 tokens.
    static constexpr int kMinBlocks = 7;
    static constexpr int kHalo = kWidth - 1;
    static constexpr int kAtOnce = 4;        // tokens of which the squares are summed at a time
    static constexpr int kMore = kHalo - 1;  // tokens behind a tile that may be in a prefix of the tile
    static constexpr int kAll = kTokens + kMore;
    static constexpr int kRows = kHalo + (kAll + kAtOnce - 1) / kAtOnce * kAtOnce;
    static_assert(kWidth >= 2 && kIsWidth<kWidth> && kTokens % kAtOnce == 0 && kMore <= kAtOnce && kAll <= 32);
};

// The sequences of a tile. Bits count tokens from the tile's first one on.
template <int kTokens, int kHalo>
struct TileSequences {
    static constexpr int kAll = kTokens + kHalo - 1;

    unsigned begins;     // first tokens of the tile's own sequences, which begin in the tile
    unsigned ends;       // last tokens of those that end among the tile's tokens
    unsigned results;    // tokens with results to store
    unsigned padding;    // tokens of no sequence, or of one without a slot
    int end;             // the end of the own sequence that goes on behind the tile's tokens; else 0
    int slots[kTokens];  // 2 * slot + 1 where the own sequence that begins at a token goes on from its state, else 2 *
                         // slot

    // All lanes of a warp call this.
    __device__ __forceinline__ void find(const CausalConv1dVarlenOperands& p, int token) {
        unsigned own_begins = 0, own_ends = 0, own_results = 0, own_padding = 0, own_end = 0;
        const int to = token + kTokens;
        int low = find_run(p, token), next;
        do {
            const int number = low + lane_id();
            // One wait serves for all three indices.
            const int start = first_token(p, number), slot = load_slot(p, number);
            const bool goes_on = number >= 0 && number < p.sequences && has_past(p, number);
            const int stop = from_lane(start, lane_id() + 1);
            if (lane_id() < kWarpSize - 1 && start < min(stop, to) && stop > token) {
                const int first = start - token, behind = stop - token;
                if (slot < 0) {
                    own_padding |= bits(first, min(behind, kTokens));
                } else if (first < 0) {
                    own_results |= bits(first + kHalo, min(behind, kTokens));
                } else {
                    const int last = min(behind, max(kTokens, first + kHalo));
                    own_begins |= bits(first, first + 1);
                    own_results |= bits(first, last);
                    if (behind == last) {
                        own_ends |= bits(last - 1, last);
                    } else {
                        own_end = static_cast<unsigned>(stop);
                    }
                    slots[first] = 2 * slot + goes_on;
                }
            }
            next = from_lane(start, kWarpSize - 1);
            low += kWarpSize - 1;
        } while (next < min(to, p.total));
        own_begins = any_over_lanes(own_begins);
        own_ends = any_over_lanes(own_ends);
        own_results = any_over_lanes(own_results);
        own_padding = any_over_lanes(own_padding);
        own_end = any_over_lanes(own_end);
        if (lane_id() == 0) {
            begins = own_begins;
            ends = own_ends;
            results = own_results;
            padding = own_padding;
            // Of starts out of order, several sequences might seem to go on.
            end = min(static_cast<int>(own_end), p.total);
        }
    }

 private:
    __device__ __forceinline__ static unsigned bits(int begin, int end) { return below(end) & ~below(begin); }
    __device__ __forceinline__ static unsigned below(int i) { return (1u << max(0, min(i, kAll))) - 1; }
};

template <
    int kWidth, typename input_t, typename weight_t, typename state_t, int kVec, int kTokens, bool kSilu,
    typename Traits = CausalConv1dVarlenL2normShortFwdTraits<kWidth, input_t, weight_t, state_t, kVec, kTokens, kSilu>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_varlen_l2norm_short_fwd_kernel(const CausalConv1dVarlenL2normShortFwdParams params) {
    constexpr int kHalo = Traits::kHalo, kAtOnce = Traits::kAtOnce, kAll = Traits::kAll;
    constexpr int kOwnRows = kHalo + kTokens;
    using Input = Vec<input_t, kVec>;
    using State = Vec<state_t, kVec>;
    const CausalConv1dVarlenOperands& p = params.operands;
    __shared__ Input rows_of_warps[Traits::kWarps][Traits::kRows][kWarpSize];
    __shared__ TileSequences<kTokens, kHalo> sequences;

    const QuotientRemainder tile_share = divide(blockIdx.x, params.shares);
    const int warp = uniform(static_cast<int>(threadIdx.x) / kWarpSize);
    const int unit = static_cast<int>(tile_share.remainder) * Traits::kWarps + warp;
    const int token = static_cast<int>(tile_share.quotient) * kTokens;
    const LaneGroup group(params, min(unit, params.units - 1));
    const index_t channel = group.template channel<kVec>();
    const bool is_idle = group.lane * kVec >= group.width;
    const index_t step = p.x_stride[1];
    const input_t* const x = as_global(static_cast<const input_t*>(p.x)) + along_channels<kVec>(channel, p.x_stride[0]);
    // Each lane reads only what it has copied itself.
    Input* const rows = &rows_of_warps[warp][0][lane_id()];
    const int from = token - kHalo;
    if (from >= 0 && from + kOwnRows <= p.total) {
        const input_t* at = x + from * step;
#pragma unroll
        for (int i = 0; i < kOwnRows; ++i, at += step) copy_async<Input::kBytes>(rows + i * kWarpSize, at);
    } else {
#pragma unroll 1
        for (int i = 0; i < kOwnRows; ++i) {
            copy_async<Input::kBytes>(rows + i * kWarpSize, x + max(0, min(from + i, p.total - 1)) * step);
        }
    }
    const ChannelFilter<kWidth, weight_t, kVec, true> filter(p, channel);
    if (threadIdx.x < kWarpSize) sequences.find(p, token);
    __syncthreads();
    if (unit >= params.units) return;
    unsigned begins = uniform(sequences.begins), ends = uniform(sequences.ends);
    unsigned results = uniform(sequences.results);
    const int end = uniform(sequences.end);

    const index_t slot_step = p.conv_states_stride[0], column_step = p.conv_states_stride[2];
    state_t* const states = as_global(opaque(static_cast<state_t*>(p.conv_states) + p.first_column * column_step +
                                             along_channels<kVec>(channel, p.conv_states_stride[1])));
    const int* const slots = sequences.slots;
    // Without this 512 random lengths take 70.2 us instead of 67.6. States in registers, loaded one ahead, took 1 us
    // more.
#pragma unroll 1
    for (unsigned left = begins; left != 0; left &= left - 1) {
        const int slot = slots[lowest(left)];
        const state_t* column = states + (slot >> 1) * slot_step;
#pragma unroll
        for (int k = 0; k < kHalo; ++k, column += column_step) {
            if (slot & 1) prefetch(column);
        }
    }
    // Inputs behind the tile: the rest of a prefix.
    if (kHalo > 1 && (results >> kTokens) != 0) {
#pragma unroll
        for (int i = kTokens; i < kAll; ++i) {
            copy_async<Input::kBytes>(rows + (kHalo + i) * kWarpSize, x + min(token + i, p.total - 1) * step);
        }
    }
    float bias[kVec];
    float taps[kVec][kWidth];
    filter.to_floats(taps, bias);
    if constexpr (kSilu) {
#pragma unroll
        for (int c = 0; c < kVec; ++c) scale_for_silu<input_t>(taps[c], bias[c]);
    }
    wait_for_copies();
    float window[kVec][kWidth];  // of the token before
#pragma unroll
    for (int c = 0; c < kVec; ++c) {
#pragma unroll
        for (int k = 0; k < kHalo; ++k) window[c][k + 1] = rows[k * kWarpSize].to_float(c);
    }
    // The inputs that become the state of the last sequence take their place.
    if (end != 0) {
        const input_t* at = x + (end - kHalo) * step;
#pragma unroll
        for (int k = 0; k < kHalo; ++k, at += step) copy_async<Input::kBytes>(rows + k * kWarpSize, at);
    }
    const Input* row = rows + kHalo * kWarpSize;
    int current = 0;  // where the last own sequence begins
    const index_t* const out_stride = p.out_stride + 4 * group.range;
    const index_t out_step = out_stride[1];
    const QuotientRemainder place =
        divide(static_cast<unsigned>(is_idle ? 0 : channel - group.range_begin), p.head_dim[group.range]);
    input_t* out = static_cast<input_t*>(p.out[group.range]) + token * out_step + place.quotient * out_stride[2] +
                   place.remainder * out_stride[3];
    // Goes on from the state of the own sequence that begins.
    const auto enter = [&] {
        const int slot = slots[current];
        const state_t* column = states + (slot >> 1) * slot_step;
        State past[kHalo];
#pragma unroll
        for (int k = 0; k < kHalo; ++k, column += column_step) {
            past[k] = State::zero();
            if (slot & 1) past[k] = load<kVec, Memory::kMutable>(column);
        }
#pragma unroll
        for (int c = 0; c < kVec; ++c) {
#pragma unroll
            for (int k = 0; k < kHalo; ++k) window[c][k + 1] = past[k].to_float(c);
        }
    };
    // Leaves the last inputs in the state of the own sequence that ends.
    const auto leave = [&] {
        if (is_idle) return;
        state_t* to = states + (slots[current] >> 1) * slot_step;
#pragma unroll
        for (int k = 1; k <= kHalo; ++k, to += column_step) {
            float last[kVec];
#pragma unroll
            for (int c = 0; c < kVec; ++c) last[c] = window[c][k];
            store<Keep::kStream>(to, State::from_floats(last));
        }
    };
    ends <<= 1;  // from here on the tokens behind the last ones
#pragma unroll 1
    for (int first = 0; results != 0; first += kAtOnce) {
        float y[kAtOnce][kVec], sums[kAtOnce];
        const auto walk = [&](int i) {
            const Input input = row[i * kWarpSize];
            sums[i] = 0.0f;
#pragma unroll
            for (int c = 0; c < kVec; ++c) {
#pragma unroll
                for (int k = 0; k < kHalo; ++k) window[c][k] = window[c][k + 1];
                window[c][kHalo] = input.to_float(c);
                y[i][c] =
                    activate<input_t, kSilu, false, kSilu>(convolve<false>(taps[c], bias[c], window[c], nullptr), 0);
                sums[i] = fmaf(y[i][c], y[i][c], sums[i]);
            }
        };
        const unsigned borders = begins | ends;
        // Most groups have no border: one condition for all of their tokens.
        if ((borders & ((1u << kAtOnce) - 1)) == 0) {
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) walk(i);
        } else {
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                if ((borders >> i & 1) != 0) {
                    if ((ends >> i & 1) != 0) leave();
                    if ((begins >> i & 1) != 0) {
                        current = first + i;
                        enter();
                    }
                }
                walk(i);
            }
        }
        if (group.is_normalized) {
            // Lanes without channels read another lane's memory.
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                if (is_idle) sums[i] = 0.0f;
            }
            sums_to_scales(sums, group.lanes, params.eps);
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
                for (int c = 0; c < kVec; ++c) y[i][c] *= sums[i];
            }
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i, out += out_step) {
            if (!is_idle && (results >> i & 1)) store(out, Input::from_floats(y[i]));
        }
        begins >>= kAtOnce;
        ends >>= kAtOnce;
        results >>= kAtOnce;
        row += kAtOnce * kWarpSize;
    }
    if (ends & 1) leave();
    if (is_idle) return;
    if (end != 0) {
        wait_for_copies();
        state_t* to = states + (slots[current] >> 1) * slot_step;
#pragma unroll
        for (int k = 0; k < kHalo; ++k, to += column_step) {
            store<Keep::kStream>(to, convert<state_t>(rows[k * kWarpSize]));
        }
    }
    const unsigned padding = sequences.padding;
    if (padding != 0) store_zeros(destination_of<input_t, kVec, Ranges::kMany>(p, channel, 0, token), padding);
}
