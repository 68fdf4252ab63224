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
#include "causal_conv1d/conv_short.cuh"

struct CausalConv1dVarlenShortrowsFwdParams {
    CausalConv1dVarlenOperands operands;
    FastDiv tiles;  // tiles along tokens
};

template <int kWidth, typename input_t, typename weight_t, typename state_t, int kVec, bool kSilu, bool kAddressed>
struct CausalConv1dVarlenShortrowsFwdTraits {
    static constexpr int kThreads = 128;
    // 0.88 of copy (16 x 512) instead of 0.78 with 6 and tiles twice as long.
    static constexpr int kMinBlocks = kAddressed && kArch < 90 ? 7 : 8;
    // Sequences that a warp loads states of ahead of their turn. Snapshots take the registers of a second one.
    static constexpr int kAhead = kAddressed ? 1 : 2;
    // Vectors of 16 bytes along a channel per warp: with more, too few tiles fit in shared memory.
    static constexpr int kPartVecs = 4;
    static constexpr int kMinWidth = 2;  // a filter of one tap needs no states
    static constexpr int kMaxWidth = 5;
    using Tile = ShortTile<kWidth, input_t, kVec, kPartVecs>;
    static_assert(Tile::kThreads == kThreads);
    static_assert(kWidth >= kMinWidth && kWidth <= kMaxWidth, "states that are loaded ahead fit in registers");
};

// The prefixes and the states of the sequences that begin in the tile, in a lane's channel.
template <typename Tile, typename state_t, bool kAddressed>
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
        ahead.begin = run.begin;
        ahead.end = shared.runs[number + 1].begin;
        const int slot = run.slot < 0 ? ~run.slot : run.slot;
        ahead.is_padding = run.slot == ShortRun::kPadding;
        ahead.state = states + slot * p.conv_states_stride[0];
#pragma unroll
        for (int i = 0; i < kHalo; ++i) ahead.past[i] = Vec<state_t, 1>::zero();
        if (run.slot >= 0 && !ahead.is_padding && run.begin >= 0 && channel < p.dim) {
#pragma unroll
            for (int i = 0; i < kHalo; ++i) {
                ahead.past[i] = load<1, Memory::kMutable>(ahead.state + i * p.conv_states_stride[2]);
            }
        }
        if constexpr (kAddressed) {
            const int target = shared.target[number];
            ahead.state = target < 0 ? nullptr : states + target * p.conv_states_stride[0];
        }
    }

    // Completes run `number` after the walk: zeros for padding; for a sequence its prefix and its state.
    template <bool kSilu, int kWidth>
    __device__ __forceinline__ void finish(int number, const Ahead& run, const float (&taps)[kWidth],
                                           float bias) const {
        if (run.is_padding) {
            T* const out = shared.out[lane_id()];
            const int end = min(run.end, Tile::kTile);
            for (int i = max(0, run.begin); i < end; ++i) out[i] = Dtype<T>::from_float(0.0f);
        } else if (run.begin >= 0 && channel < p.dim) {
            if (kAddressed) store_snapshots<kWidth>(number, false);
            if (run.end <= Tile::kTile) {
                finish_sequence<kSilu, true>(run, taps, bias);
            } else {
                finish_sequence<kSilu, false>(run, taps, bias);
            }
            if (kAddressed) store_snapshots<kWidth>(number, true);
        }
    }

 private:
    // kIsInside: the sequence ends in the tile, too.
    template <bool kSilu, bool kIsInside, int kWidth>
    __device__ __forceinline__ void finish_sequence(const Ahead& run, const float (&taps)[kWidth], float bias) const {
        Vec<state_t, 1> kept[kWidth];
        float window[kWidth];
#pragma unroll
        for (int i = 0; i < kHalo; ++i) {
            kept[i] = run.past[i];
            window[i] = run.past[i].to_float(0);
        }
#pragma unroll
        for (int i = 0; i < kHalo; ++i) {
            if (run.begin + i >= run.end) break;
            const auto x = input<kIsInside>(run.begin + i);
            kept[kHalo] = convert<state_t>(x);
            window[kHalo] = x.to_float(0);
            const float sum = convolve<false>(taps, bias, window, nullptr);
            put_output<kIsInside>(run.begin + i, Dtype<T>::from_float(activate<T, kSilu, false, kSilu>(sum, 0)));
#pragma unroll
            for (int j = 0; j < kHalo; ++j) {
                kept[j] = kept[j + 1];
                window[j] = window[j + 1];
            }
        }
        if (!p.has_states || (kAddressed && run.state == nullptr)) return;
        if (run.end - run.begin > kHalo) {
#pragma unroll
            for (int i = 0; i < kHalo; ++i) kept[i] = convert<state_t>(input<kIsInside>(run.end - kHalo + i));
        }
#pragma unroll
        for (int i = 0; i < kHalo; ++i) store(run.state + i * p.conv_states_stride[2], kept[i]);
    }

    template <int kWidth>
    __device__ __forceinline__ void store_snapshots(int number, bool is_over_start) const {
        if (p.snapshot_rows == 0) return;
        SnapshotRows rows = shared.prefixes[0];
#pragma unroll
        for (int i = 1; i < Tile::kWarps; ++i) {
            rows = {min(rows.begin, shared.prefixes[i].begin), max(rows.end, shared.prefixes[i].end)};
        }
        store_prefix_snapshots<kWidth, T, state_t, 1, false>(p, rows, shared.number[number], channel, is_over_start);
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

// A row of snapshots as the tile with its last input needs it, or with its sequence's first token where it is left to
// the prefix.
struct TileSnapshot {
    bool is_own;
    bool is_prefix;
    int end;  // where its inputs end, counted from the tile's first token
    int position;
    int slot;
};

template <int kWidth, typename Tile>
__device__ __forceinline__ TileSnapshot load_tile_snapshot(const CausalConv1dVarlenOperands& p, int row, int first) {
    TileSnapshot found{false, false, 0, 0, 0};
    if (row >= count_snapshots(p)) return found;
    const Snapshot snapshot = load_snapshot(p, row);
    if (snapshot.sequence < 0) return found;
    const int begin = first_token(p, snapshot.sequence) - first, last = begin + max(snapshot.position - 1, 0);
    const bool begins = begin >= 0 && begin < Tile::kTile, ends = last >= 0 && last < Tile::kTile;
    if (!begins && !ends) return found;
    const SnapshotSource source(p, snapshot.sequence);
    if (!source.has(snapshot)) return found;
    const bool is_left = is_of_prefix<kWidth>(p, snapshot, source);
    return {!is_left && ends, is_left && begins, begin + snapshot.position, snapshot.position, snapshot.slot};
}

// Stores the snapshots of the rows that the lanes of a warp have looked at, 32 from `from` on, but for those left to
// prefixes, the range of which it adds to `prefixes`.
template <int kWidth, typename state_t, typename Tile>
__device__ __forceinline__ void store_tile_snapshots(const ShortShared<Tile>& shared,
                                                     const CausalConv1dVarlenOperands& p, index_t channel, int first,
                                                     int from, const TileSnapshot& own, SnapshotRows& prefixes) {
    using T = typename Tile::input_t;
    using Copy = SnapshotCopy<kWidth, T, state_t, 1, false>;
    const unsigned hits = lanes_where(own.is_prefix);
    if (hits != 0) prefixes = {min(prefixes.begin, from + lowest(hits)), from + highest(hits) + 1};
    for (unsigned left = lanes_where(own.is_own); left != 0; left &= left - 1) {
        const int lane = lowest(left), position = from_lane(own.position, lane);
        const int end = from_lane(own.end, lane), slot = from_lane(own.slot, lane);
        if (channel >= p.dim) continue;
        const StateColumn<state_t, 1> column = Copy::place(p, slot, channel);
        const T* const x = static_cast<const T*>(p.x) + channel * p.x_stride[0] + first;
#pragma unroll 1
        for (int i = 0; i < p.snapshot_columns; ++i) {
            const int place = end - p.snapshot_columns + i;
            Vec<T, 1> input = Vec<T, 1>::zero();
            if (place < end - position) {
                // Before a sequence that starts from zeros.
            } else if (place < -Tile::kHalo) {
                input = load<1>(x + place);
            } else {
                input = load<1, Memory::kMutable>(&shared.x[lane_id()][Tile::kBefore + place]);
            }
            (column + i * p.snapshot_stride[2]).store_all(convert<state_t>(input));
        }
    }
}

template <
    int kWidth, typename input_t, typename weight_t, typename state_t, int kVec, bool kSilu, bool kAddressed,
    typename Traits = CausalConv1dVarlenShortrowsFwdTraits<kWidth, input_t, weight_t, state_t, kVec, kSilu, kAddressed>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_varlen_shortrows_fwd_kernel(const CausalConv1dVarlenShortrowsFwdParams params) {
    using Tile = typename Traits::Tile;
    using Prefixes = ShortPrefixes<Tile, state_t, kAddressed>;
    constexpr int kAhead = Traits::kAhead, kWarps = Tile::kWarps;
    const CausalConv1dVarlenOperands& p = params.operands;
    __shared__ ShortShared<Tile> shared;

    const QuotientRemainder at = divide(blockIdx.x, params.tiles);
    const index_t first_channel = static_cast<index_t>(at.quotient) * Tile::kChannels;
    const index_t channel = first_channel + lane_id();
    const int first = static_cast<int>(at.remainder) * Tile::kTile;
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
    fetch_tile<true>(shared, p, first_channel, first);
    const ChannelFilter<kWidth, weight_t, 1> filter(p, min(channel, static_cast<index_t>(p.dim - 1)));
    if (warp == kWarps - 1) {
        list_runs<kAddressed>(shared, p, first);
    } else if (warp == kWarps - 2 && channel < p.dim) {
        shared.to[lane_id()] = destination_of<input_t, 1, Ranges::kMany>(p, channel, 0, first).to;
    }
    // The first rows of snapshots are looked at while the tile is on its way.
    TileSnapshot snapshot{};
    if (kAddressed && p.snapshot_rows > 0) {
        snapshot = load_tile_snapshot<kWidth, Tile>(p, static_cast<int>(threadIdx.x), first);
    }
    float bias[1];
    float taps[1][kWidth];
    filter.to_floats(taps, bias);
    if (kSilu) scale_for_silu<input_t>(taps[0], bias[0]);
    wait_for_copies();
    __syncthreads();

    // States are loaded ahead: those of a warp's first sequences during the walk, then those of the following ones.
    const Prefixes runs(p, shared, channel, first);
    typename Prefixes::Ahead ahead[kAhead];
    const int count = shared.count;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
        if (warp + i * kWarps < count) runs.load_ahead(warp + i * kWarps, ahead[i]);
    }
    if (kAddressed && p.snapshot_rows > 0) {
        const int rows = count_snapshots(p);
        SnapshotRows prefixes{rows, 0};
        store_tile_snapshots<kWidth, state_t>(shared, p, channel, first, warp * kWarpSize, snapshot, prefixes);
#pragma unroll 1
        for (int from = Tile::kThreads + warp * kWarpSize; from < rows; from += Tile::kThreads) {
            snapshot = load_tile_snapshot<kWidth, Tile>(p, from + lane_id(), first);
            store_tile_snapshots<kWidth, state_t>(shared, p, channel, first, from, snapshot, prefixes);
        }
        if (lane_id() == 0) shared.prefixes[warp] = prefixes;
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
    store_tile(shared, p, first_channel, first);
}
