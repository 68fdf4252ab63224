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
    // 0.88 of copy (16 x 512, H200) instead of 0.78 with 6 and tiles twice as long. A ninth block: 111 us instead of
    // 113 for 512 random lengths, 208 instead of 217 for 2048 x 4, 81.1 instead of 80.5 for 64 x 128.
    static constexpr int kMinBlocks = kArch < 90 ? (kAddressed ? 7 : 8) : kAddressed || kWidth > 4 ? 8 : 9;
    // Sequences that a warp loads states of ahead of their turn. Snapshots take the registers of a second one.
    static constexpr int kAhead = kAddressed ? 1 : 2;
    // Vectors of 16 bytes along a channel per warp: with more, too few tiles fit in shared memory.
    static constexpr int kPartVecs = 4;
    // Elements per lane of a snapshot whose columns are one run of memory: a warp stores all of it at once.
    static constexpr int kRun = 4;
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

    // Completes run `number` after the walk: zeros for padding; for a sequence its prefix and its state.
    template <bool kSilu, int kWidth>
    __device__ __forceinline__ void finish(int number, const Ahead& ahead, const float (&taps)[kWidth],
                                           float bias) const {
        const ShortRun run = shared.runs[number];
        const int run_end = shared.runs[number + 1].begin;
        if (run.slot == ShortRun::kPadding) {
            T* const out = shared.out[lane_id()];
            const int end = min(run_end, Tile::kTile);
            for (int i = max(0, run.begin); i < end; ++i) out[i] = Dtype<T>::from_float(0.0f);
        } else if (run.begin >= 0 && channel < p.dim) {
            if (kAddressed) store_snapshots<kWidth>(number, false);
            if (run_end <= Tile::kTile) {
                finish_sequence<kSilu, true>(number, run, run_end, ahead, taps, bias);
            } else {
                finish_sequence<kSilu, false>(number, run, run_end, ahead, taps, bias);
            }
            if (kAddressed) store_snapshots<kWidth>(number, true);
        }
    }

 private:
    // kIsInside: the sequence ends in the tile, too.
    template <bool kSilu, bool kIsInside, int kWidth>
    __device__ __forceinline__ void finish_sequence(int number, const ShortRun& run, int end, const Ahead& ahead,
                                                    const float (&taps)[kWidth], float bias) const {
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
        const int target = kAddressed ? shared.target[number] : run.slot < 0 ? ~run.slot : run.slot;
        if (!p.has_states || (kAddressed && target < 0)) return;
        state_t* const state = states + target * p.conv_states_stride[0];
        if (end - begin > kHalo) {
#pragma unroll
            for (int i = 0; i < kHalo; ++i) kept[i] = convert<state_t>(input<kIsInside>(end - kHalo + i));
        }
#pragma unroll
        for (int i = 0; i < kHalo; ++i) store(state + i * p.conv_states_stride[2], kept[i]);
    }

    template <int kWidth>
    __device__ __forceinline__ void store_snapshots(int number, bool is_over_start) const {
        if (p.snapshot_rows == 0) return;
        SnapshotRows rows = shared.prefixes[0];
#pragma unroll
        for (int i = 1; i < Tile::kLookers; ++i) {
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

// The tile's snapshots, found by a warp in every kLookers-th group of 32 rows. A tile stores a snapshot if it has the
// last input; if it has the sequence's first token, it leaves snapshots of prefixes to these. All lanes take part.
//
// All warps wait for what one does between the arrival of the inputs and the walk: two snapshots in a tile took 12 us
// of 91 (H200, 16 x 512, a snapshot every 64 tokens), though not one of memory traffic. So addresses for kAtOnce
// snapshots are computed before, and where the columns of all channels are one run of memory a lane stores kRun
// elements of it: 86 us. Looking at the rows is 4 us of these.
template <int kWidth, int kRun, typename state_t, typename Tile>
struct TileSnapshots {
    using T = typename Tile::input_t;
    using Copy = SnapshotCopy<kWidth, T, state_t, 1, false>;
    static constexpr int kHalo = Tile::kHalo;
    static constexpr int kAtOnce = 2;
    static_assert(kHalo * Tile::kChannels <= kRun * kWarpSize, "a run is an access of each lane");

    struct Next {
        state_t* to;   // null for none; where the lane's part of a run goes, else the channel's first column
        int end;       // where its inputs end, counted from the tile's first token
        int position;  // less than 0 for a run
    };

    const CausalConv1dVarlenOperands& p;
    index_t first_channel;
    int first;  // the first token of the tile
    int rows;
    int from;       // the next row to look at
    unsigned left;  // lanes with a snapshot that has not been its turn
    int slot;       // of the lane's snapshot
    int end;
    int position;
    int place[kRun];  // of a lane's elements of a run with end 0, counted from the first element of x
    Next next[kAtOnce];
    SnapshotRows prefixes;

    __device__ __forceinline__ TileSnapshots(const CausalConv1dVarlenOperands& p_, index_t first_channel_, int first_,
                                             int warp)
        : p(p_), first_channel(first_channel_), first(first_), from(warp * kWarpSize), left(0) {
        rows = warp < Tile::kLookers ? count_snapshots(p) : 0;
        prefixes = {rows, 0};
    }

    __device__ __forceinline__ bool are_done() const { return left == 0 && from >= rows; }

    // Finds the next snapshots.
    __device__ __forceinline__ void find() {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) next[i].to = nullptr;
#pragma unroll 1
        for (; left == 0 && from < rows; from += Tile::kLookers * kWarpSize) look();
        if (left == 0) return;
#pragma unroll
        for (int i = 0; i < kRun; ++i) {
            const int element = lane_id() * kRun + i;
            place[i] = opaque(element / kHalo * Tile::kPitchIn + Tile::kBefore - kHalo + element % kHalo);
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i, left &= left - 1) {
            if (left == 0) break;
            const int lane = lowest(left), position_ = from_lane(position, lane);
            const bool is_run = position_ < 0;
            const index_t channel = is_run ? first_channel : first_channel + lane_id();
            state_t* const to = Copy::place(p, from_lane(slot, lane), channel).at;
            next[i] = {opaque(is_run ? to + lane_id() * kRun : to), from_lane(end, lane), position_};
        }
    }

    // Stores them, when the tile is there.
    __device__ __forceinline__ void store(const ShortShared<Tile>& shared) const {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            if (next[i].to == nullptr) return;
            if (next[i].position < 0) {
                store_run(shared, next[i]);
            } else {
                store_columns(shared, next[i]);
            }
        }
    }

 private:
    __device__ __forceinline__ void store_run(const ShortShared<Tile>& shared, const Next& own) const {
        if (lane_id() >= kHalo * Tile::kChannels / kRun) return;
        Vec<state_t, kRun> run = Vec<state_t, kRun>::zero();
#pragma unroll
        for (int i = 0; i < kRun; ++i) {
            const auto input = load<1, Memory::kMutable>(&shared.x[0][0] + place[i] + own.end);
            run.put(i, convert<state_t>(input).element(0));
        }
        ::store<Keep::kWhole>(own.to, run);
    }

    __device__ __forceinline__ void store_columns(const ShortShared<Tile>& shared, const Next& own) const {
        const index_t channel = first_channel + lane_id();
        if (channel >= p.dim) return;
        StateColumn<state_t, 1> to{own.to, 0, true};
        int place = own.end - p.snapshot_columns;
#pragma unroll 1
        for (; place < own.end; ++place, to = to + p.snapshot_stride[2]) {
            Vec<T, 1> input = Vec<T, 1>::zero();
            if (place < own.end - own.position) {
                // Before a sequence that starts from zeros.
            } else if (place < -kHalo) {
                input = load<1>(static_cast<const T*>(p.x) + channel * p.x_stride[0] + first + place);
            } else {
                input = load<1, Memory::kMutable>(&shared.x[lane_id()][Tile::kBefore + place]);
            }
            to.store_all(convert<state_t>(input));
        }
    }

    // The lowest word of an index.
    __device__ __forceinline__ static int load_low_word(const void* p, unsigned at, unsigned step) {
        return load_word<Memory::kConstant, int>(static_cast<const char*>(p) + static_cast<index_t>(at) * step);
    }

    // Looks at 32 rows. Every tile looks at all rows, so it passes over most of them by few instructions.
    __device__ __forceinline__ void look() {
        const unsigned word = p.snapshots_is_int64 ? 8 : 4, start_word = p.query_start_loc_is_int64 ? 8 : 4;
        const unsigned row_step = static_cast<unsigned>(p.snapshots_stride[0]) * word;
        const unsigned field_step = static_cast<unsigned>(p.snapshots_stride[1]) * word;
        const unsigned start_step = static_cast<unsigned>(p.query_start_loc_stride) * start_word;
        const int row = from + lane_id();
        const char* const at =
            static_cast<const char*>(p.snapshots) + static_cast<index_t>(static_cast<unsigned>(row)) * row_step;
        int sequence = -1;
        position = 0;
        if (row < rows) {
            sequence = load_low_word(at, 0, 0);
            position = load_low_word(at, 1, field_step);
        }
        bool is_hit = static_cast<unsigned>(sequence) < static_cast<unsigned>(p.sequences);
        unsigned begin = -first;
        if (is_hit && p.query_start_loc != nullptr) begin += load_low_word(p.query_start_loc, sequence, start_step);
        const unsigned last = begin + max(position, 1) - 1;
        is_hit = is_hit && (begin < Tile::kTile || last < Tile::kTile);
        if (lanes_where(is_hit) == 0) return;
        bool is_own = false, is_left = false;
        if (is_hit) {
            int high = 0;
            if (p.snapshots_is_int64) high = load_low_word(at + 4, 0, 0) | load_low_word(at + 4, 1, field_step);
            const index_t number = load_index(at + 2 * static_cast<index_t>(field_step), 0, p.snapshots_is_int64);
            const SnapshotSource source(p, sequence);
            slot = static_cast<int>(number);
            const Snapshot snapshot{sequence, position, slot};
            const bool has_slot = number >= 0 && number < p.snapshot_slots && number != p.snapshot_pad_slot;
            if (has_slot && high == 0 && position >= 0 && source.has(snapshot)) {
                const int own_begin = source.begin - first, own_last = own_begin + max(position, 1) - 1;
                is_left = is_of_prefix<kWidth>(p, snapshot, source);
                is_own = !is_left && own_last >= 0 && own_last < Tile::kTile;
                is_left = is_left && own_begin >= 0 && own_begin < Tile::kTile;
                end = own_begin + position;
                const bool is_whole = p.snapshots_are_packed && first_channel + Tile::kChannels <= p.dim;
                if (is_whole && position >= kHalo) position = -1;
            }
        }
        left = lanes_where(is_own);
        const unsigned prefixed = lanes_where(is_left);
        if (prefixed != 0) prefixes = {min(prefixes.begin, from + lowest(prefixed)), from + highest(prefixed) + 1};
    }
};

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
    float bias[1];
    float taps[1][kWidth];
    const auto wait_for_tile = [&] {
        filter.to_floats(taps, bias);
        if (kSilu) scale_for_silu<input_t>(taps[0], bias[0]);
        wait_for_copies();
        __syncthreads();
    };
    if (kAddressed && p.snapshot_rows > 0) {
        // Rows of snapshots are looked at while the tile is on its way.
        TileSnapshots<kWidth, Traits::kRun, state_t, Tile> snapshots(p, first_channel, first, warp);
#pragma unroll 1
        for (bool is_first = true;; is_first = false) {
            snapshots.find();
            if (is_first) wait_for_tile();
            snapshots.store(shared);
            if (snapshots.are_done()) break;
        }
        if (lane_id() == 0 && warp < Tile::kLookers) shared.prefixes[warp] = snapshots.prefixes;
    } else {
        wait_for_tile();
    }

    // States are loaded ahead: those of a warp's first sequences during the walk, then those of the following ones.
    const Prefixes runs(p, shared, channel, first);
    typename Prefixes::Ahead ahead[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
        if (warp + i * kWarps < shared.count) runs.load_ahead(warp + i * kWarps, ahead[i]);
    }
    const int place = warp * Tile::kPart;
    if (first + place < p.total) walk<Tile, kSilu>(shared, place, taps[0], bias[0]);
    __syncthreads();
#pragma unroll 1
    for (int number = warp; number < shared.count;) {
#pragma unroll
        for (int i = 0; i < kAhead; ++i, number += kWarps) {
            if (number >= shared.count) break;
            runs.template finish<kSilu>(number, ahead[i], taps[0], bias[0]);
            if (number + kAhead * kWarps < shared.count) runs.load_ahead(number + kAhead * kWarps, ahead[i]);
        }
    }
    __syncthreads();
    // Where the tile lies is computed anew, instead of kept in registers.
    const QuotientRemainder again = divide(static_cast<unsigned>(opaque(static_cast<int>(blockIdx.x))), params.tiles);
    store_tile(shared, p, static_cast<index_t>(again.quotient) * Tile::kChannels,
               static_cast<int>(again.remainder) * Tile::kTile);
}
