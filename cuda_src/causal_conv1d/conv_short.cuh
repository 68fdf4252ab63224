// Tiles of packed tokens in shared memory, for short sequences: 32 channels, and the sequences of their tokens.
#pragma once

#include "causal_conv1d/conv_column.cuh"
#include "causal_conv1d/conv_snapshots.cuh"

// A block's tile: kTile consecutive tokens of 32 channels. A warp convolves a part of the tokens, one lane per channel.
template <int kWidth, typename T, int kVec_, int kPartVecs, int kChannels_ = kWarpSize>
struct ShortTile {
    using input_t = T;
    static constexpr int kThreads = 128;
    static constexpr int kWarps = kThreads / kWarpSize;
    static constexpr int kChannels = kChannels_;
    static constexpr int kVec = kVec_;                              // elements per access to global memory
    static constexpr int kWide = 16 / static_cast<int>(sizeof(T));  // elements per access to shared memory
    static constexpr int kPart = kPartVecs * kWide;                 // tokens per warp
    static constexpr int kTile = kWarps * kPart;
    static constexpr int kHalo = kWidth - 1;
    static constexpr int kBefore = (kHalo + kWide - 1) / kWide * kWide;  // tokens kept before the tile
    // Rows are an odd number of vectors, so that those of neighbouring channels are in different banks.
    static constexpr int kPitchIn = ((kBefore + kTile) / kWide | 1) * kWide;
    static constexpr int kPitchOut = (kTile / kWide | 1) * kWide;
    static constexpr int kUnits = kTile / kVec;            // accesses per row
    static constexpr int kRowsAtOnce = kThreads / kUnits;  // rows that a block accesses at once; 0: a part of one
};

// A run of tokens that reaches into the tile: a sequence, or padding between sequences.
struct ShortRun {
    static constexpr int kPadding = 0x7fffffff;
    int begin;  // first token, counted from the tile's
    int slot;   // the sequence's slot, ~slot if it starts from zeros; kPadding
};

template <typename Tile>
struct ShortShared {
    using T = typename Tile::input_t;
    alignas(16) T x[Tile::kChannels][Tile::kPitchIn];
    alignas(16) T out[Tile::kChannels][Tile::kPitchOut];
    T* to[Tile::kChannels];          // where each channel's results go in global memory
    ShortRun runs[Tile::kTile + 1];  // in order; behind the last one, its end as a begin
    int count;                       // number of runs
    int left_out;                    // leading tokens of the tile that are in the prefix of an earlier sequence
    // Only for kAddressed:
    int target[Tile::kTile];  // the slot of each run's final state, -1 for none
    int number[Tile::kTile];  // the sequence that each run is
    SnapshotRows prefixes;    // rows that have all snapshots left to prefixes
    int has_begin;            // whether a sequence begins in the tile
};

// The list of runs while it grows.
template <typename Tile>
struct RunList {
    int count = 0;
    int left_out = 0;
    bool has_begin = false;  // for a lane's runs

    // Adds a lane's run, for the lanes in `lanes`. has_start() says whether its sequence goes on from its slot. All
    // lanes of a warp take part.
    template <bool kHasNumbers, bool kHasTargets, typename HasStart>
    __device__ __forceinline__ void add(ShortShared<Tile>& shared, const CausalConv1dVarlenOperands& p, int first,
                                        int number, int begin, int end, int slot, unsigned lanes, HasStart has_start) {
        const bool is_listed = (lanes >> lane_id() & 1) != 0;
        const int place = count + __popc(lanes & ((1u << lane_id()) - 1));
        // Wrong starts may name more runs than there are tokens, and give the last one listed any end.
        if (is_listed && place < Tile::kTile) {
            const bool goes_on = slot >= 0 && has_start();
            shared.runs[place] = {begin - first, slot < 0 ? ShortRun::kPadding : goes_on ? slot : ~slot};
            if (kHasTargets) shared.target[place] = slot < 0 ? -1 : load_target<true>(p, number, slot);
            if (kHasNumbers) shared.number[place] = number;
            shared.runs[place + 1].begin = end - first;
        }
        const unsigned astride = lanes_where(is_listed && slot >= 0 && begin < first);
        if (astride != 0) left_out = from_lane(min(end, begin + Tile::kHalo) - first, lowest(astride));
        has_begin = has_begin || (is_listed && slot >= 0 && begin >= first);
        count = min(count + __popc(lanes), Tile::kTile);
    }

    __device__ __forceinline__ void store(ShortShared<Tile>& shared) const {
        if (lane_id() != 0) return;
        shared.count = count;
        shared.left_out = max(left_out, 0);
    }
};

// Lists the runs of tokens that reach into the tile from the token `first` on. All lanes of one warp take part.
// kHasTargets: slots of final states, too.
template <bool kAddressed, bool kHasTargets, typename Tile>
__device__ __forceinline__ void list_runs(ShortShared<Tile>& shared, const CausalConv1dVarlenOperands& p, int first) {
    RunList<Tile> list;
    visit_runs<kAddressed>(
        p, first, first + Tile::kTile, [&](int number, int begin, int end, int slot, unsigned lanes) {
            list.template add<kAddressed, kHasTargets>(shared, p, first, number, begin, end, slot, lanes,
                                                       [&] { return goes_on<kAddressed>(p, number); });
        });
    list.store(shared);
}

// The slot that a sequence starts from and whether it goes on from there, as they were loaded: one wait serves for
// both.
struct RawStart {
    RawIndex slot;
    unsigned char past = 0;

    __device__ __forceinline__ RawStart() {}
    __device__ __forceinline__ RawStart(const CausalConv1dVarlenOperands& p, int number) {
        const index_t place = static_cast<unsigned>(number);
        if (p.cache_indices != nullptr && p.state_column == nullptr) {
            slot.load(p.cache_indices, place * p.cache_indices_stride, p.cache_indices_is_int64);
        }
        if (p.has_initial_state != nullptr) {
            past = static_cast<const unsigned char*>(p.has_initial_state)[place * p.has_initial_state_stride];
        }
    }

    // load_start_slot() of the same sequence.
    __device__ __forceinline__ int start(const CausalConv1dVarlenOperands& p, int number) const {
        if (!p.has_states || p.cache_indices == nullptr || p.state_column != nullptr) return load_start_slot(p, number);
        return slot_in_pool(p, slot.value(p.cache_indices_is_int64));
    }

    // goes_on<true>() of the same sequence.
    __device__ __forceinline__ bool goes_on(const CausalConv1dVarlenOperands& p) const {
        return p.has_initial_state != nullptr ? past != 0 : p.initial_states != nullptr;
    }
};

// list_runs<true, false>() with all loads of a sequence at once, and whether one begins in the tile. All warps wait for
// the one that lists runs, longer than for the tile: with this and without a share of the tile's copies for that warp
// snapshots of 16 x 512 take 76.9 us (H200) instead of 77.4.
template <typename Tile>
__device__ __forceinline__ void list_runs_at_once(ShortShared<Tile>& shared, const CausalConv1dVarlenOperands& p,
                                                  int first) {
    const int to = min(first + Tile::kTile, p.total);
    RunList<Tile> list;
    int low = find_run(p, first), next;
    do {
        const int number = low + lane_id();
        const bool is_sequence = static_cast<unsigned>(number) < static_cast<unsigned>(p.sequences);
        const bool is_given = p.query_start_loc != nullptr && number >= 0 && number <= p.sequences;
        RawIndex raw_begin;
        RawStart raw_start;
        if (is_given) {
            raw_begin.load(p.query_start_loc, static_cast<unsigned>(number) * p.query_start_loc_stride,
                           p.query_start_loc_is_int64);
        }
        if (is_sequence) raw_start = RawStart(p, number);
        int begin = number <= 0 ? 0 : p.total;
        if (is_given) begin = raw_begin.clamped(p.query_start_loc_is_int64, p.total);
        const int slot = is_sequence ? raw_start.start(p, number) : -1;
        const int end = from_lane(begin, lane_id() + 1);
        const unsigned lanes = lanes_where(lane_id() < kWarpSize - 1 && begin < min(end, to) && end > first);
        list.template add<true, false>(shared, p, first, number, begin, end, slot, lanes,
                                       [&] { return raw_start.goes_on(p); });
        next = from_lane(begin, kWarpSize - 1);
        low += kWarpSize - 1;
    } while (next < to);
    list.store(shared);
    const unsigned begins = lanes_where(list.has_begin);
    if (lane_id() == 0) shared.has_begin = begins != 0;
}

// Calls visit(row, place) for a thread's share of the tile's vectors; neighbouring threads are neighbours along a row.
template <typename Tile, typename Visit>
__device__ __forceinline__ void visit_units(Visit visit) {
    constexpr int kRows = Tile::kRowsAtOnce;
    constexpr int kTurns = Tile::kUnits * Tile::kChannels / Tile::kThreads;
    const int thread = static_cast<int>(threadIdx.x);
#pragma unroll(kTurns > 16 ? 16 : kTurns)
    for (int i = 0; i < kTurns; ++i) {
        if constexpr (kRows > 0) {
            visit(threadIdx.x / Tile::kUnits + i * kRows, threadIdx.x % Tile::kUnits * Tile::kVec);
        } else {
            constexpr int kParts = Tile::kUnits / Tile::kThreads;  // parts of a row, one per turn
            visit(i / kParts, (i % kParts * Tile::kThreads + thread) * Tile::kVec);
        }
    }
}

// Channels of the tile that exist.
template <typename Tile>
__device__ __forceinline__ int channels_there(const CausalConv1dVarlenOperands& p, index_t first_channel) {
    return static_cast<int>(min(p.dim - first_channel, static_cast<index_t>(Tile::kChannels)));
}

// Copies kVec elements to shared memory, where they are after wait_for_copies() at the latest. kOnce: past the L1
// cache.
template <int kVec, bool kOnce, typename T>
__device__ __forceinline__ void copy_unit(T* to, const T* from) {
    if constexpr (kVec * sizeof(T) == 16) {
        copy_async<16, false, kOnce>(to, from);
    } else {
        store(to, load<kVec>(from));
    }
}

// Starts to copy x to shared memory, with zeros outside it. kHasHalo: the tokens before the tile, too. kOnce: past the
// L1 cache. kOthers: the last warps, which take no part where the tile lies in x.
template <bool kHasHalo, bool kOnce, int kOthers = 0, typename Tile>
__device__ __forceinline__ void fetch_tile(ShortShared<Tile>& shared, const CausalConv1dVarlenOperands& p,
                                           index_t first_channel, int first) {
    using T = typename Tile::input_t;
    constexpr int kVec = Tile::kVec;
    const index_t stride = p.x_stride[0];
    const T* const x = static_cast<const T*>(p.x) + first_channel * stride + first;
    const int channels = channels_there<Tile>(p, first_channel);
    const auto fetch_edge = [&](int row, int place) {
        const int token = first + place;
        T* const to = &shared.x[row][Tile::kBefore + place];
        if (row < channels && token >= 0 && token + kVec <= p.total) {
            copy_unit<kVec, kOnce>(to, x + row * stride + place);
        } else {
            const int end = row < channels ? p.total - token : 0;
            store(to, load_part<kVec>(x + row * stride + place, max(0, -token), min(end, kVec)));
        }
    };
    if (channels == Tile::kChannels && first + Tile::kTile <= p.total) {
        constexpr int kRows = (Tile::kThreads - kOthers * kWarpSize) / Tile::kUnits;  // that are copied at once
        if constexpr (kRows > 0) {
            if (kOthers == 0 || static_cast<int>(threadIdx.x) < kRows * Tile::kUnits) {
                // As visit_units, with pointers that advance instead of a 64-bit product per vector.
                const int row = static_cast<int>(threadIdx.x) / Tile::kUnits;
                const int place = static_cast<int>(threadIdx.x) % Tile::kUnits * kVec;
                const T* from = x + row * stride + place;
                T* const to = &shared.x[row][Tile::kBefore + place];
#pragma unroll
                for (int i = 0; i < Tile::kChannels; i += kRows, from += kRows * stride) {
                    const bool is_row = Tile::kChannels % kRows == 0 || row + i < Tile::kChannels;
                    if (is_row) copy_unit<kVec, kOnce>(to + i * Tile::kPitchIn, from);
                }
            }
        } else {
            visit_units<Tile>([&](int row, int place) {
                copy_unit<kVec, kOnce>(&shared.x[row][Tile::kBefore + place], x + row * stride + place);
            });
        }
    } else {
        visit_units<Tile>(fetch_edge);
    }
    constexpr int kHaloUnits = kHasHalo ? (Tile::kHalo + kVec - 1) / kVec : 0;
    for (int i = static_cast<int>(threadIdx.x); i < kHaloUnits * Tile::kChannels; i += Tile::kThreads) {
        fetch_edge(i % Tile::kChannels, (i / Tile::kChannels - kHaloUnits) * kVec);
    }
}

// Stores the tile's results but for the tokens that are left out.
template <typename Tile>
__device__ __forceinline__ void store_tile(const ShortShared<Tile>& shared, const CausalConv1dVarlenOperands& p,
                                           index_t first_channel, int first) {
    constexpr int kVec = Tile::kVec;
    const int channels = channels_there<Tile>(p, first_channel);
    const int begin = shared.left_out, end = p.total - first;
    const auto result = [&](int row, int place) { return load<kVec, Memory::kMutable>(&shared.out[row][place]); };
    if (channels == Tile::kChannels && begin == 0 && end >= Tile::kTile) {
        visit_units<Tile>([&](int row, int place) { store(as_global(shared.to[row]) + place, result(row, place)); });
    } else {
        visit_units<Tile>([&](int row, int place) {
            if (row >= channels || place >= end) return;
            auto* const to = as_global(shared.to[row]) + place;
            if (place >= begin && place + kVec <= end) {
                store(to, result(row, place));
            } else {
                store_part(to, result(row, place), max(0, begin - place), min(end - place, kVec));
            }
        });
    }
}

// Convolves a warp's part of the tile, from `place` on, as if there were one sequence.
template <typename Tile, bool kSilu, int kWidth>
__device__ __forceinline__ void walk(ShortShared<Tile>& shared, int place, const float (&taps)[kWidth], float bias) {
    using T = typename Tile::input_t;
    constexpr int kHalo = Tile::kHalo, kWide = Tile::kWide, kBefore = Tile::kBefore;
    const T* const x = &shared.x[lane_id()][kBefore + place];
    T* const out = &shared.out[lane_id()][place];
    float window[kBefore + kWide];
#pragma unroll
    for (int i = 0; i < kBefore; i += kWide) {
        const Vec<T, kWide> v = load<kWide, Memory::kMutable>(x - kBefore + i);
#pragma unroll
        for (int j = 0; j < kWide; ++j) window[i + j] = v.to_float(j);
    }
#pragma unroll 2
    for (int i = 0; i < Tile::kPart; i += kWide) {
        const Vec<T, kWide> v = load<kWide, Memory::kMutable>(x + i);
        float y[kWide];
#pragma unroll
        for (int j = 0; j < kWide; ++j) window[kBefore + j] = v.to_float(j);
#pragma unroll
        for (int j = 0; j < kWide; ++j) {
            const float sum = convolve<false>(taps, bias, window + kBefore - kHalo + j, nullptr);
            y[j] = activate<T, kSilu, false, kSilu>(sum, 0);
        }
        store(out + i, Vec<T, kWide>::from_floats(y));
#pragma unroll
        for (int j = 0; j < kBefore; ++j) window[j] = window[kWide + j];
    }
}

// What a lane's channel needs for one run of tokens, loaded ahead of its turn.
template <typename state_t, int kHalo>
struct ShortAhead {
    Vec<state_t, 1> past[kHalo];
};
