// Tiles of packed tokens in shared memory, for short sequences: rows of a few channels, and the sequences they are of.
#pragma once

#include "causal_conv1d/conv_column.cuh"
#include "causal_conv1d/conv_varlen.cuh"

// A block's tile: kTile consecutive tokens of 32 channels. A warp convolves a part of them, with a lane a channel.
template <int kWidth, typename T, int kVec_, int kPartVecs>
struct ShortTile {
    using input_t = T;
    static constexpr int kThreads = 128;
    static constexpr int kWarps = kThreads / kWarpSize;
    static constexpr int kChannels = kWarpSize;
    static constexpr int kVec = kVec_;                              // elements an access to global memory
    static constexpr int kWide = 16 / static_cast<int>(sizeof(T));  // and to shared memory
    static constexpr int kPart = kPartVecs * kWide;                 // tokens a warp
    static constexpr int kTile = kWarps * kPart;
    static constexpr int kHalo = kWidth - 1;
    static constexpr int kBefore = (kHalo + kWide - 1) / kWide * kWide;  // tokens kept before the tile
    // Rows are an odd number of vectors: those of neighbouring channels are in different banks.
    static constexpr int kPitchIn = ((kBefore + kTile) / kWide | 1) * kWide;
    static constexpr int kPitchOut = (kTile / kWide | 1) * kWide;
    static constexpr int kUnits = kTile / kVec;  // accesses a row
};

// Where a sequence, or what is nobody's, begins in the tile, and whose slot it is: ~slot where there is no past.
struct ShortRun {
    static constexpr int kNobodys = 0x7fffffff;
    int begin;
    int slot;
};

template <typename Tile>
struct ShortShared {
    using T = typename Tile::input_t;
    alignas(16) T x[Tile::kChannels][Tile::kPitchIn];
    alignas(16) T out[Tile::kChannels][Tile::kPitchOut];
    T* to[Tile::kChannels];          // the results' place in global memory
    ShortRun runs[Tile::kTile + 1];  // of tokens, and where the last one ends
    int count;                       // of runs
    int left_out;  // the first tokens of the tile that are in the head of a sequence that begins before it
};

// Lists the runs of tokens that reach into the tile from the token `first` on. All lanes of one warp take part.
template <typename Tile>
__device__ __forceinline__ void list_runs(ShortShared<Tile>& shared, const CausalConv1dVarlenOperands& p, int first) {
    int count = 0;
    int left_out = 0;
    visit_runs(p, first, first + Tile::kTile, [&](int number, int begin, int end, int slot, unsigned lanes) {
        const bool is_listed = (lanes >> lane_id() & 1) != 0;
        const int place = count + __popc(lanes & ((1u << lane_id()) - 1));
        // Where starts are wrong there may be more of them than tokens, and what was listed last may have any end.
        if (is_listed && place < Tile::kTile) {
            const bool goes_on = slot >= 0 && has_past(p, number);
            shared.runs[place] = {begin - first, slot < 0 ? ShortRun::kNobodys : goes_on ? slot : ~slot};
            shared.runs[place + 1].begin = end - first;
        }
        const unsigned astride = lanes_where(is_listed && slot >= 0 && begin < first);
        if (astride != 0) left_out = from_lane(min(end, begin + Tile::kHalo) - first, __ffs(astride) - 1);
        count = min(count + __popc(lanes), Tile::kTile);
    });
    if (lane_id() == 0) {
        shared.count = count;
        shared.left_out = max(left_out, 0);
    }
}

// Calls visit(row, place) for a thread's share of the tile's vectors, neighbours along a row.
template <typename Tile, typename Visit>
__device__ __forceinline__ void visit_units(Visit visit) {
    constexpr int kRows = Tile::kThreads / Tile::kUnits;  // at a time, or none whole
    constexpr int kTurns = Tile::kUnits * Tile::kChannels / Tile::kThreads;
    const int thread = static_cast<int>(threadIdx.x);
#pragma unroll(kTurns > 16 ? 16 : kTurns)
    for (int i = 0; i < kTurns; ++i) {
        if constexpr (kRows > 0) {
            visit(threadIdx.x / Tile::kUnits + i * kRows, threadIdx.x % Tile::kUnits * Tile::kVec);
        } else {
            constexpr int kParts = Tile::kUnits / Tile::kThreads;  // of a row
            visit(i / kParts, (i % kParts * Tile::kThreads + thread) * Tile::kVec);
        }
    }
}

// How many of the tile's channels exist.
template <typename Tile>
__device__ __forceinline__ int channels_there(const CausalConv1dVarlenOperands& p, index_t first_channel) {
    return static_cast<int>(min(p.dim - first_channel, static_cast<index_t>(Tile::kChannels)));
}

// kVec elements to shared memory, by wait_for_copies() at the latest.
template <int kVec, typename T>
__device__ __forceinline__ void copy_unit(T* to, const T* from) {
    if constexpr (kVec * sizeof(T) == 16) {
        copy_async(to, from);
    } else {
        store(to, load<kVec>(from));
    }
}

// Starts to bring x to shared memory, zeros where there is none.
template <typename Tile>
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
            copy_unit<kVec>(to, x + row * stride + place);
        } else {
            const int end = row < channels ? p.total - token : 0;
            store(to, load_part<kVec>(x + row * stride + place, max(0, -token), min(end, kVec)));
        }
    };
    if (channels == Tile::kChannels && first + Tile::kTile <= p.total) {
        constexpr int kRows = Tile::kThreads / Tile::kUnits;  // at a time
        if constexpr (kRows > 0) {
            const int row = static_cast<int>(threadIdx.x) / Tile::kUnits;
            const int place = static_cast<int>(threadIdx.x) % Tile::kUnits * kVec;
            const T* from = x + row * stride + place;
            T* const to = &shared.x[row][Tile::kBefore + place];
#pragma unroll
            for (int i = 0; i < Tile::kChannels; i += kRows, from += kRows * stride) {
                copy_unit<kVec>(to + i * Tile::kPitchIn, from);
            }
        } else {
            visit_units<Tile>([&](int row, int place) {
                copy_unit<kVec>(&shared.x[row][Tile::kBefore + place], x + row * stride + place);
            });
        }
    } else {
        visit_units<Tile>(fetch_edge);
    }
    constexpr int kHaloUnits = (Tile::kHalo + kVec - 1) / kVec;
    for (int i = static_cast<int>(threadIdx.x); i < kHaloUnits * Tile::kChannels; i += Tile::kThreads) {
        fetch_edge(i % Tile::kChannels, (i / Tile::kChannels - kHaloUnits) * kVec);
    }
}

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
