// out[t] = act(bias + sum_w weight[w] * x[t - (width - 1) + w]) for short packed sequences, tokens contiguous.
//
// Layout: x, out (dim, total), token stride 1. A block has a tile: 32 channels of some consecutive tokens. It brings
// the tile and the tokens before it to shared memory by vectors along tokens, convolves it there with one lane per
// channel, and stores it by vectors again. So accesses to a state, and to the prefix of a sequence (its first kWidth -
// 1 tokens), are of 32 neighbouring channels, and sequences begin and end alike for all lanes of a warp. First each
// warp convolves its part of the tile as if there were one sequence. Then the warps share the sequences that begin in
// the tile: they compute the prefixes again, from the states, and update these. Tokens of a prefix that lie behind the
// tile are stored directly, and the next tile leaves them out: only the tile with a sequence's first token reads its
// state. The inputs of snapshots come out of shared memory, too: read again from the L2 cache, each would take a
// sector.
//
// Shared memory: ShortShared.
//
// kWidth    filter taps              input_t   x and outputs             weight_t  weight, and bias unless float
// state_t   the pool of states       kVec      elements an access        kSilu     silu after the sum
// kAddressed  slots may be in columns, states may go to other slots or be only read, there may be snapshots of them
// kStaged   sequences are shorter still, and states are aligned runs of memory: they come to shared memory, too
// kSingles  most sequences have one token, and states are aligned runs of memory: a block has more channels and fewer
//           tokens, which it takes as the others do, 32 channels after another, if some sequence in them is longer
#include "causal_conv1d/conv_short_singles.cuh"
#include "causal_conv1d/conv_short_snapshots.cuh"
#include "causal_conv1d/conv_short_staged.cuh"

struct CausalConv1dVarlenShortrowsFwdParams {
    CausalConv1dVarlenOperands operands;
    FastDiv tiles;        // tiles along tokens
    unsigned tile_share;  // 2**32 / tiles, rounded up where no tile's number times it exceeds 32 bits
    int tile_snapshots;   // rows of snapshots per tile, rounded up
    float sequences_per_token;
    FastDiv channel_groups;  // groups of blocks across the channels
};

template <int kWidth, typename input_t, typename weight_t, typename state_t, int kVec, bool kSilu, bool kAddressed,
          bool kStaged, bool kSingles>
struct CausalConv1dVarlenShortrowsFwdTraits {
    static constexpr int kThreads = 128;
    // 0.88 of copy (16 x 512, H200) instead of 0.78 with 6 and tiles twice as long. A ninth block: 111 us instead of
    // 113 for 512 random lengths, 208 instead of 217 for 2048 x 4, 81.1 instead of 80.5 for 64 x 128; with snapshots
    // every 64 tokens 78.6 us instead of 79.6 for 16 x 512.
    static constexpr int kFewer = kArch < 80 ? 6 : 7;
    static constexpr int kMinBlocks = kArch < 90 ? (kAddressed ? kFewer : 8) : kWidth > 4 ? 8 : 9;
    // Sequences that a warp loads states of ahead of their turn. Snapshots take the registers of a second one.
    static constexpr int kAhead = kAddressed ? 1 : 2;
    // Vectors of 16 bytes along a channel per warp: with more, too few tiles fit in shared memory.
    static constexpr int kPartVecs = 4;
    // The same where kSingles, and channels per block. Of 2048 single tokens (H200), twice the tokens 78.4 us instead
    // of 78.3, half the channels 90.
    static constexpr int kSinglePartVecs = 1;
    static constexpr int kSingleChannels = 64;
    static constexpr int kMinWidth = 2;  // a filter of one tap needs no states
    static constexpr int kMaxWidth = 5;
    using Tile = ShortTile<kWidth, input_t, kVec, kSingles ? kSinglePartVecs : kPartVecs>;
    using Singles = ShortTile<kWidth, input_t, kVec, kSinglePartVecs, kSingleChannels>;
    static constexpr bool kAreSingles = kSingles;
    static constexpr int kChannels = kSingles ? kSingleChannels : Tile::kChannels;  // of a block
    static_assert(Tile::kThreads == kThreads);
    static_assert(kWidth >= kMinWidth && kWidth <= kMaxWidth, "states that are loaded ahead fit in registers");
};

// The group of channels that a block has, as a quotient, and its tile of tokens, as a remainder. Neighbouring blocks
// have neighbouring tokens, but neighbouring states where sequences have one token: 75.8 us instead of 78.0 for 2048.
template <bool kAreSingles>
__device__ __forceinline__ QuotientRemainder place_of(const CausalConv1dVarlenShortrowsFwdParams& params,
                                                      unsigned block) {
    if (!kAreSingles) return divide(block, params.tiles);
    const QuotientRemainder tile_group = divide(block, params.channel_groups);
    return {tile_group.remainder, tile_group.quotient};
}

// The prefixes and the states of the sequences that begin in the tile, in a lane's channel.
template <typename Tile, typename state_t, bool kAddressed, bool kStaged>
struct ShortPrefixes {
    using T = typename Tile::input_t;
    static constexpr int kHalo = Tile::kHalo;
    using Ahead = ShortAhead<state_t, kHalo>;

    const CausalConv1dVarlenOperands& p;
    ShortShared<Tile>& shared;
    index_t channel;
    int first;        // the first token of the tile
    state_t* states;  // the channel's first column that the filter reads, in slot 0

    __device__ __forceinline__ ShortPrefixes(const CausalConv1dVarlenOperands& p_, ShortShared<Tile>& shared_,
                                             index_t channel_, int first_)
        : p(p_), shared(shared_), channel(channel_), first(first_) {
        states = states_of<kAddressed, state_t>(p) + p.first_column * p.conv_states_stride[2] +
                 channel * p.conv_states_stride[1];
    }

    // Prepares run `number`: issues the loads of the state that it goes on from.
    __device__ __forceinline__ void load_ahead(int number, Ahead& ahead) const {
        const ShortRun run = shared.runs[number];
#pragma unroll
        for (int i = 0; i < kHalo; ++i) ahead.past[i] = Vec<state_t, 1>::zero();
        if (run.slot >= 0 && run.slot != ShortRun::kPadding && run.begin >= 0 && channel < p.dim) {
            const state_t* const state = states + run.slot * p.conv_states_stride[0];
#pragma unroll
            for (int i = 0; i < kHalo; ++i) {
                ahead.past[i] = load<1, Memory::kMutable>(state + i * p.conv_states_stride[2]);
            }
        }
    }

    // finish() where the state of the run's sequence is in shared memory, at `row`.
    template <bool kSilu, int kWidth>
    __device__ __forceinline__ void finish_staged(int number, state_t* row, const float (&taps)[kWidth],
                                                  float bias) const {
        const ShortRun run = shared.runs[number];
        const int end = shared.runs[number + 1].begin;
        Ahead ahead;
#pragma unroll
        for (int i = 0; i < kHalo; ++i) ahead.past[i] = load<1, Memory::kMutable>(row + i);
        const bool is_here = run.begin >= 0 && run.begin + kHalo <= Tile::kTile;
        if (run.slot == ShortRun::kPadding || !is_here || end - run.begin < kHalo) {
            finish<kSilu>(number, SnapshotRows{0, 0}, ahead, taps, bias, row);
            return;
        }
        using Inputs = RowPart<T, kHalo>;
        const Inputs inputs(shared.x[lane_id()], Tile::kBefore + run.begin);
        const bool is_behind = end > Tile::kTile;
        const Inputs last(is_behind ? shared.out[lane_id()] : shared.x[lane_id()],
                          is_behind ? LastInputs<Tile>::place(end) : Tile::kBefore + end - kHalo);
        float window[2 * kHalo];
#pragma unroll
        for (int i = 0; i < kHalo; ++i) {
            window[i] = ahead.past[i].to_float(0);
            window[kHalo + i] = inputs.to_float(i);
        }
#pragma unroll
        for (int i = 0; i < kHalo; ++i) store(row + i, convert<state_t>(last.element(i)));
        T* const out = &shared.out[lane_id()][run.begin];
#pragma unroll
        for (int i = 0; i < kHalo; ++i) {
            const float sum = convolve<false>(taps, bias, window + i, nullptr);
            out[i] = Dtype<T>::from_float(activate<T, kSilu, false, kSilu>(sum, 0));
        }
    }

    // Completes run `number` after the walk: zeros for padding; for a sequence its prefix and its state.
    template <bool kSilu, int kWidth>
    __device__ __forceinline__ void finish(int number, const SnapshotRows& left, const Ahead& ahead,
                                           const float (&taps)[kWidth], float bias, state_t* row = nullptr) const {
        const ShortRun run = shared.runs[number];
        const int run_end = shared.runs[number + 1].begin;
        if (run.slot == ShortRun::kPadding) {
            T* const out = shared.out[lane_id()];
            const int end = min(run_end, Tile::kTile);
            for (int i = max(0, run.begin); i < end; ++i) out[i] = Dtype<T>::from_float(0.0f);
        } else if (run.begin >= 0 && channel < p.dim) {
            if (kAddressed) store_snapshots<kWidth>(number, left, false);
            if (run_end <= Tile::kTile) {
                finish_sequence<kSilu, true>(number, run, run_end, ahead, taps, bias, row);
            } else {
                finish_sequence<kSilu, false>(number, run, run_end, ahead, taps, bias, row);
            }
            if (kAddressed) store_snapshots<kWidth>(number, left, true);
        }
    }

 private:
    // kIsInside: the sequence ends in the tile, too. kStaged: its state is at `row`.
    template <bool kSilu, bool kIsInside, int kWidth>
    __device__ __forceinline__ void finish_sequence(int number, const ShortRun& run, int end, const Ahead& ahead,
                                                    const float (&taps)[kWidth], float bias, state_t* row) const {
        const int begin = run.begin;
        Vec<state_t, 1> kept[kWidth];
        float window[kWidth];
#pragma unroll
        for (int i = 0; i < kHalo; ++i) {
            kept[i] = ahead.past[i];
            window[i] = ahead.past[i].to_float(0);
        }
#pragma unroll
        for (int i = 0; i < kHalo; ++i) {
            if (begin + i >= end) break;
            const auto x = input<kIsInside>(begin + i);
            kept[kHalo] = convert<state_t>(x);
            window[kHalo] = x.to_float(0);
            const float sum = convolve<false>(taps, bias, window, nullptr);
            put_output<kIsInside>(begin + i, Dtype<T>::from_float(activate<T, kSilu, false, kSilu>(sum, 0)));
#pragma unroll
            for (int j = 0; j < kHalo; ++j) {
                kept[j] = kept[j + 1];
                window[j] = window[j + 1];
            }
        }
        const int start = run.slot < 0 ? ~run.slot : run.slot;
        const int target = kAddressed ? load_target<kAddressed>(p, shared.number[number], start) : start;
        if (!p.has_states || (kAddressed && target < 0)) return;
        state_t* const state = kStaged ? row : states + target * p.conv_states_stride[0];
        const index_t step = kStaged ? 1 : p.conv_states_stride[2];
        if (end - begin > kHalo) {
#pragma unroll
            for (int i = 0; i < kHalo; ++i) kept[i] = convert<state_t>(input<kIsInside>(end - kHalo + i));
        }
#pragma unroll
        for (int i = 0; i < kHalo; ++i) store(state + i * step, kept[i]);
    }

    template <int kWidth>
    __device__ __forceinline__ void store_snapshots(int number, const SnapshotRows& left, bool is_over_start) const {
        store_prefix_snapshots<kWidth, T, state_t, 1, false>(p, left, shared.number[number], channel, is_over_start);
    }

    template <bool kIsInside>
    __device__ __forceinline__ Vec<T, 1> input(int place) const {
        if (kIsInside || place < Tile::kTile) {
            return load<1, Memory::kMutable>(&shared.x[lane_id()][Tile::kBefore + place]);
        }
        return load<1>(static_cast<const T*>(p.x) + channel * p.x_stride[0] + first + place);
    }

    template <bool kIsInside>
    __device__ __forceinline__ void put_output(int place, T y) const {
        if (kIsInside || place < Tile::kTile) {
            shared.out[lane_id()][place] = y;
        } else {
            as_global(shared.to[lane_id()])[place] = y;
        }
    }
};

// Convolves the tile of a block in 32 of its channels, `group` times 32 behind the first.
template <typename Traits, int kWidth, typename input_t, typename weight_t, typename state_t, bool kSilu,
          bool kAddressed, bool kStaged>
__device__ __forceinline__ void convolve_short_tile(const CausalConv1dVarlenShortrowsFwdParams& params, int group) {
    using Tile = typename Traits::Tile;
    using Prefixes = ShortPrefixes<Tile, state_t, kAddressed, kStaged>;
    constexpr int kAhead = Traits::kAhead, kWarps = Tile::kWarps;
    const CausalConv1dVarlenOperands& p = params.operands;
    __shared__ ShortShared<Tile> shared;

    const QuotientRemainder at = place_of<Traits::kAreSingles>(params, blockIdx.x);
    const index_t first_channel = static_cast<index_t>(at.quotient) * Traits::kChannels + group * Tile::kChannels;
    const index_t channel = first_channel + lane_id();
    const int first = static_cast<int>(at.remainder) * Tile::kTile;
    const int warp = uniform(static_cast<int>(threadIdx.x) / kWarpSize);
    using Staged = StagedStates<Tile, state_t>;
    __shared__ Select<kStaged, Staged, char> states;
    if constexpr (kStaged) {
        __shared__ NearRuns<Tile> near;
        near.list(shared, p, first, params.sequences_per_token,
                  [&] { fetch_tile<true, true>(shared, p, first_channel, first); });
    } else {
        fetch_tile<true, false, kAddressed ? 1 : 0>(shared, p, first_channel, first);
    }
    const ChannelFilter<kWidth, weight_t, 1> filter(p, min(channel, static_cast<index_t>(p.dim - 1)));
    // Rows of snapshots are looked at while the tile is on its way.
    using Snapshots = TileSnapshots<kWidth, state_t, Tile>;
    Snapshots snapshots(p, first_channel, first);
    SnapshotRows rows{0, 0};
    const int turn = kWarps - 2 - warp;
    if (!kStaged && warp == kWarps - 1) {
        if constexpr (kAddressed) {
            list_runs_at_once(shared, p, first);
        } else {
            list_runs<false, false>(shared, p, first);
        }
    } else {
        if (warp == 0 && channel < p.dim) {
            shared.to[lane_id()] = destination_of<input_t, 1, Ranges::kMany>(p, channel, 0, first).to;
        }
        if (kAddressed && turn * Snapshots::kAtOnce < params.tile_snapshots) {
            rows = share_of_tile(p, at.remainder, params.tiles.divisor, params.tile_share);
            rows.begin += turn * Snapshots::kAtOnce;
            snapshots.find(rows);
        }
    }
    if constexpr (kStaged) {
        end_copy_group();
        __syncthreads();
        states.fetch(shared, p, first_channel, 0);
        LastInputs<Tile>::fetch(shared, p, first_channel, first);
        end_copy_group();
        Staged::prefetch_ahead(shared, p, first_channel);
    }
    float bias[1];
    float taps[1][kWidth];
    filter.to_floats(taps, bias);
    if (kSilu) scale_for_silu<input_t>(taps[0], bias[0]);
    if constexpr (kStaged) {
        wait_for_copy_groups<1>();
    } else {
        wait_for_copies();
    }
    __syncthreads();

    // States are loaded ahead: those of a warp's first sequences during the walk, then those of the following ones.
    const Prefixes runs(p, shared, channel, first);
    typename Prefixes::Ahead ahead[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
        if (!kStaged && warp + i * kWarps < shared.count) runs.load_ahead(warp + i * kWarps, ahead[i]);
    }
    const LeftSnapshots<Tile, kAddressed> left(p, shared);
    const int place = warp * Tile::kPart;
    if (first + place < p.total) walk<Tile, kSilu>(shared, place, taps[0], bias[0]);
    __shared__ SnapshotRows left_rows[kAddressed ? kWarps : 1];
    if (left.is_needed) {
        const SnapshotRows found = left.find(p, shared);
        if (lane_id() == 0) left_rows[warp] = found;
    }
    if (kStaged) wait_for_copies();
    __syncthreads();
    if constexpr (kAddressed) {
        const int lookers = min(kWarps - 1, (params.tile_snapshots + Snapshots::kAtOnce - 1) / Snapshots::kAtOnce);
#pragma unroll 1
        while (rows.begin < rows.end) {
            snapshots.store(shared, rows);
            rows.begin += lookers * Snapshots::kAtOnce;
            if (rows.begin < rows.end) snapshots.find(rows);
        }
    }
    SnapshotRows rows_of_prefixes{0, 0};
    if (left.is_needed) rows_of_prefixes = enclosing(left_rows);
    if constexpr (kStaged) {
        for (int from = 0;; from += Staged::kMost) {
            const int behind = min(shared.count, from + Staged::kMost);
#pragma unroll 1
            for (int number = from + warp; number < behind; number += kWarps) {
                state_t* const row = &states.rows[number - from][lane_id() * Tile::kHalo];
                runs.template finish_staged<kSilu>(number, row, taps[0], bias[0]);
            }
            __syncthreads();
            states.store(shared, p, first_channel, from);
            if (behind == shared.count) break;
            __syncthreads();
            states.fetch(shared, p, first_channel, behind);
            wait_for_copies();
            __syncthreads();
        }
    }
#pragma unroll 1
    for (int number = kStaged ? shared.count : warp; number < shared.count;) {
#pragma unroll
        for (int i = 0; i < kAhead; ++i, number += kWarps) {
            if (number >= shared.count) break;
            runs.template finish<kSilu>(number, rows_of_prefixes, ahead[i], taps[0], bias[0]);
            if (number + kAhead * kWarps < shared.count) runs.load_ahead(number + kAhead * kWarps, ahead[i]);
        }
    }
    if constexpr (!kStaged) __syncthreads();
    // Where the tile lies is computed anew, instead of kept in registers.
    const unsigned block = static_cast<unsigned>(opaque(static_cast<int>(blockIdx.x)));
    const QuotientRemainder again = place_of<Traits::kAreSingles>(params, block);
    const index_t first_again = static_cast<index_t>(again.quotient) * Traits::kChannels + group * Tile::kChannels;
    const int tile = static_cast<int>(again.remainder);
    store_tile(shared, p, first_again, tile * Tile::kTile);
}

template <int kWidth, typename input_t, typename weight_t, typename state_t, int kVec, bool kSilu, bool kAddressed,
          bool kStaged, bool kSingles,
          typename Traits = CausalConv1dVarlenShortrowsFwdTraits<kWidth, input_t, weight_t, state_t, kVec, kSilu,
                                                                 kAddressed, kStaged, kSingles>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_varlen_shortrows_fwd_kernel(const CausalConv1dVarlenShortrowsFwdParams params) {
    if constexpr (kSingles) {
        using Tile = typename Traits::Singles;
        const QuotientRemainder at = place_of<true>(params, blockIdx.x);
        const index_t first_channel = static_cast<index_t>(at.quotient) * Tile::kChannels;
        const int first = static_cast<int>(at.remainder) * Tile::kTile;
        if (convolve_singles<kSilu, kWidth, weight_t, state_t, Tile>(params.operands, first_channel, first)) return;
        const int groups = (channels_there<Tile>(params.operands, first_channel) + kWarpSize - 1) / kWarpSize;
#pragma unroll 1
        for (int group = 0; group < groups; ++group) {
            convolve_short_tile<Traits, kWidth, input_t, weight_t, state_t, kSilu, kAddressed, kStaged>(params, group);
            __syncthreads();
        }
    } else {
        convolve_short_tile<Traits, kWidth, input_t, weight_t, state_t, kSilu, kAddressed, kStaged>(params, 0);
    }
}
