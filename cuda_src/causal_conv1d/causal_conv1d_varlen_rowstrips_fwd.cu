// out[t] = act(bias + sum_w weight[w] * x[t - (width - 1) + w]) for packed sequences with contiguous tokens, where out
// is x itself.
//
// Layout: x (dim, total), token stride 1. A block has a strip: 32 channels of consecutive tiles of tokens, which it
// takes one after another as causal_conv1d_varlen_shortrows_fwd takes one, so that only inputs before its first tile
// may be overwritten by others: they come from scratch, and so does what a sequence across a strip's border has started
// from (conv_borders.cuh, where a strip is the tile). Each tile stores its own tokens only. A sequence that begins in
// the strip and ends in it is the strip's with its state, which is read with the results that need it and written with
// its last token.
//
// Shared memory: ShortShared.
//
// kWidth    filter taps              input_t   x and out                 weight_t  weight, and bias unless float
// state_t   the pool of states       kVec      elements an access        kSilu     silu after the sum
// kFollows  there is a launch in front
#include "causal_conv1d/conv_borders.cuh"
#include "causal_conv1d/conv_short.cuh"

struct CausalConv1dVarlenRowstripsFwdParams {
    CausalConv1dVarlenOperands operands;
    FastDiv strips;  // strips along tokens
};

template <int kWidth, typename input_t, typename weight_t, typename state_t, int kVec, bool kSilu, bool kFollows>
struct CausalConv1dVarlenRowstripsFwdTraits {
    static constexpr int kThreads = 128;
    static constexpr int kLeanBlocks = 8;
    static constexpr int kMinBlocks = kWidth < 5 ? kLeanBlocks : 7;
    static constexpr int kAhead = 1;  // sequences that a warp loads states of ahead of their turn
    // As in CausalConv1dVarlenShortrowsFwdTraits.
    static constexpr int kPartVecs = 4;
    static constexpr int kMinWidth = 2;
    static constexpr int kMaxWidth = 5;
    using Tile = ShortTile<kWidth, input_t, kVec, kPartVecs>;
    static_assert(Tile::kThreads == kThreads);
    static_assert(kWidth >= kMinWidth && kWidth <= kMaxWidth, "states that are loaded ahead fit in registers");
};

// The sequences in one tile of a strip, in a lane's channel.
template <typename Tile, typename state_t>
struct StripRuns {
    using T = typename Tile::input_t;
    static constexpr int kHalo = Tile::kHalo;

    // What the lane's channel needs for one run of tokens, loaded ahead of its turn.
    struct Ahead {
        int begin;
        int end;
        bool is_padding;
        bool is_inside;  // all of the sequence is in the strip
        Vec<state_t, 1> past[kHalo];
    };

    const CausalConv1dVarlenOperands& p;
    ShortShared<Tile>& shared;
    index_t channel;
    int strip;
    int first;  // the first token of the tile

    // Prepares run `number`: issues the loads of the state that it goes on from, if results of the tile need it.
    __device__ __forceinline__ void load_ahead(int number, Ahead& ahead) const {
        const ShortRun run = shared.runs[number];
        ahead.begin = run.begin;
        ahead.end = shared.runs[number + 1].begin;
        ahead.is_padding = run.slot == ShortRun::kPadding;
        const int from = strip * p.border_tokens - first, to = from + p.border_tokens;
        ahead.is_inside = run.begin >= from && ahead.end <= to;
#pragma unroll
        for (int i = 0; i < kHalo; ++i) ahead.past[i] = Vec<state_t, 1>::zero();
        if (ahead.is_padding || run.slot < 0 || run.begin <= -kHalo || channel >= p.dim) return;
        const state_t* past;
        index_t step;
        if (ahead.is_inside) {
            past = state_in(run.slot);
            step = p.conv_states_stride[2];
        } else {
            const Border<kHalo + 1, T, state_t, 1> border(p, run.begin < from ? strip : strip + 1, channel);
            past = border.state;
            step = border.step;
        }
#pragma unroll
        for (int i = 0; i < kHalo; ++i) ahead.past[i] = load<1, Memory::kMutable>(past + i * step);
    }

    // Completes a run after the walk: zeros for padding, unless it is kept; for a sequence the results of its prefix
    // that are in the tile and, with its last token, its state.
    template <bool kSilu, int kWidth>
    __device__ __forceinline__ void finish(int number, const Ahead& run, const float (&taps)[kWidth],
                                           float bias) const {
        if (run.is_padding) {
            const T* const x = shared.x[lane_id()] + Tile::kBefore;
            T* const out = shared.out[lane_id()];
            const int end = min(run.end, Tile::kTile);
            for (int i = max(0, run.begin); i < end; ++i) {
                out[i] = p.keeps_padding ? x[i] : Dtype<T>::from_float(0.0f);
            }
            return;
        }
        if (channel >= p.dim) return;
        Vec<state_t, 1> kept[kWidth];
        if (run.begin > -kHalo) {
            float window[kWidth];
#pragma unroll
            for (int i = 0; i < kHalo; ++i) {
                kept[i] = run.past[i];
                window[i] = run.past[i].to_float(0);
            }
            const int end = min(run.end, Tile::kTile);
#pragma unroll
            for (int i = 0; i < kHalo; ++i) {
                if (run.begin + i >= end) break;
                const auto x = input(run.begin + i);
                kept[kHalo] = convert<state_t>(x);
                window[kHalo] = x.to_float(0);
                const float sum = convolve<false>(taps, bias, window, nullptr);
                if (run.begin + i >= 0) {
                    shared.out[lane_id()][run.begin + i] =
                        Dtype<T>::from_float(activate<T, kSilu, false, kSilu>(sum, 0));
                }
#pragma unroll
                for (int j = 0; j < kHalo; ++j) {
                    kept[j] = kept[j + 1];
                    window[j] = window[j + 1];
                }
            }
        }
        if (!run.is_inside) return;
        if (shared.prefixes.begin < shared.prefixes.end) leave_over_start(number, run);
        const int slot = shared.target[number];
        // Borders that fall may end a run in front of the tile: wrong results, not wrong accesses.
        if (run.end <= 0 || run.end > Tile::kTile || !p.has_states || slot < 0) return;
        state_t* const to = state_in(slot);
#pragma unroll
        for (int i = 0; i < kHalo; ++i) {
            if (run.end - run.begin > kHalo) kept[i] = convert<state_t>(input(run.end - kHalo + i));
            store(to + i * p.conv_states_stride[2], kept[i]);
        }
    }

 private:
    __device__ __forceinline__ Vec<T, 1> input(int place) const {
        return load<1, Memory::kMutable>(&shared.x[lane_id()][Tile::kBefore + place]);
    }

    __device__ __forceinline__ state_t* state_in(int slot) const {
        return states_of<true, state_t>(p) + slot * p.conv_states_stride[0] + p.first_column * p.conv_states_stride[2] +
               channel * p.conv_states_stride[1];
    }

    // Stores the snapshot that overwrites the slot which a sequence in the strip goes on from, if there is one: in the
    // tile with the snapshot's last input or, where that is later, with the last result that needs the slot.
    __device__ __forceinline__ void leave_over_start(int number, const Ahead& run) const {
        const int sequence = shared.number[number], slot = shared.runs[number].slot, length = run.end - run.begin;
#pragma unroll 1
        for (int row = shared.prefixes.begin; row < shared.prefixes.end; ++row) {
            const Snapshot snapshot = load_snapshot(p, row);
            const int position = snapshot.position;
            if (snapshot.sequence != sequence || snapshot.slot != slot || position > length) continue;
            const int end = run.begin + max(position, min(kHalo, length));
            if (end <= 0 || end > Tile::kTile) continue;
            state_t* const state = state_in(slot);
            // In rising order, so that each column is read before it is overwritten.
#pragma unroll 1
            for (int i = 0; i < kHalo; ++i) {
                const int number_of_input = position - kHalo + i;
                state_t* const to = state + i * p.conv_states_stride[2];
                if (number_of_input >= 0) {
                    store(to, convert<state_t>(input(run.begin + number_of_input)));
                } else {
                    store(to, load<1, Memory::kMutable>(to + position * p.conv_states_stride[2]));
                }
            }
        }
    }
};

// Puts the inputs before a strip in front of its first tile: those at its border, zeros before the first strip.
template <typename Tile>
__device__ __forceinline__ void fetch_border(ShortShared<Tile>& shared, const CausalConv1dVarlenOperands& p,
                                             index_t first_channel, int strip) {
    using T = typename Tile::input_t;
    // Inputs have a place of their own: which type states have does not matter for it.
    const Border<Tile::kHalo + 1, T, T, 1> border(p, max(strip, 1), first_channel);
    const int channels = channels_there<Tile>(p, first_channel);
    for (int i = static_cast<int>(threadIdx.x); i < Tile::kHalo * Tile::kChannels; i += Tile::kThreads) {
        const int row = i % Tile::kChannels, number = i / Tile::kChannels;
        T input = Dtype<T>::from_float(0.0f);
        if (strip > 0 && row < channels) input = border.input[number * border.step + row];
        shared.x[row][Tile::kBefore - Tile::kHalo + number] = input;
    }
}

// Puts the last inputs of a tile in front of the next one's.
template <typename Tile>
__device__ __forceinline__ void keep_last_inputs(ShortShared<Tile>& shared) {
    for (int i = static_cast<int>(threadIdx.x); i < Tile::kHalo * Tile::kChannels; i += Tile::kThreads) {
        auto* const to = &shared.x[i % Tile::kChannels][Tile::kBefore - Tile::kHalo + i / Tile::kChannels];
        *to = to[Tile::kTile];
    }
}

template <
    int kWidth, typename input_t, typename weight_t, typename state_t, int kVec, bool kSilu, bool kFollows,
    typename Traits = CausalConv1dVarlenRowstripsFwdTraits<kWidth, input_t, weight_t, state_t, kVec, kSilu, kFollows>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_varlen_rowstrips_fwd_kernel(const CausalConv1dVarlenRowstripsFwdParams params) {
    using Tile = typename Traits::Tile;
    using Runs = StripRuns<Tile, state_t>;
    constexpr int kAhead = Traits::kAhead, kWarps = Tile::kWarps;
    const CausalConv1dVarlenOperands& p = params.operands;
    __shared__ ShortShared<Tile> shared;

    const QuotientRemainder at = divide(blockIdx.x, params.strips);
    const index_t first_channel = static_cast<index_t>(at.quotient) * Tile::kChannels;
    const index_t channel = first_channel + lane_id();
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize, strip = static_cast<int>(at.remainder);
    const int strip_first = strip * p.border_tokens, strip_last = min(strip_first + p.border_tokens, p.total);
    fetch_tile<false, false>(shared, p, first_channel, strip_first);
    const ChannelFilter<kWidth, weight_t, 1> filter(p, min(channel, static_cast<index_t>(p.dim - 1)));
    if constexpr (kFollows) wait_for_leader();
    fetch_border(shared, p, first_channel, strip);
    if (warp == 0) {
        const SnapshotRows rows = find_snapshots_of_tile(p, strip_first, strip_last);
        if (lane_id() == 0) shared.prefixes = rows;
    }
    float bias[1];
    float taps[1][kWidth];
    filter.to_floats(taps, bias);
    if (kSilu) scale_for_silu<input_t>(taps[0], bias[0]);

#pragma unroll 1
    for (int first = strip_first;;) {
        if (warp == kWarps - 1) {
            list_runs<true, true>(shared, p, first);
            // The results of a prefix that lie in the tile are the tile's.
            if (lane_id() == 0) shared.left_out = 0;
        } else if (warp == kWarps - 2 && channel < p.dim) {
            shared.to[lane_id()] = destination_of<input_t, 1, Ranges::kMany>(p, channel, 0, first).to;
        }
        wait_for_copies();
        __syncthreads();
        const Runs runs{p, shared, channel, strip, first};
        typename Runs::Ahead ahead[kAhead];
        const int count = shared.count;
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            if (warp + i * kWarps < count) runs.load_ahead(warp + i * kWarps, ahead[i]);
        }
        const int place = warp * Tile::kPart;
        if (first + place < p.total) walk<Tile, kSilu>(shared, place, taps[0], bias[0]);
        __syncthreads();
#pragma unroll 1
        for (int number = warp; number < count;) {
#pragma unroll
            for (int i = 0; i < kAhead; ++i, number += kWarps) {
                if (number >= count) break;
                runs.template finish<kSilu>(number, ahead[i], taps[0], bias[0]);
                if (number + kAhead * kWarps < count) runs.load_ahead(number + kAhead * kWarps, ahead[i]);
            }
        }
        __syncthreads();
        keep_last_inputs(shared);
        // Addresses are computed anew for each tile, instead of kept in registers.
        const int first_of_channels = opaque(static_cast<int>(first_channel));
        store_tile(shared, p, first_of_channels, first);
        first += Tile::kTile;
        if (first >= strip_last) return;
        __syncthreads();
        fetch_tile<false, false>(shared, p, opaque(first_of_channels), first);
    }
}
