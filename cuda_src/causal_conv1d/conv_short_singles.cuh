// A tile of packed sequences of one token each, tokens contiguous, in shared memory.
#pragma once

#include "causal_conv1d/conv_short.cuh"
#include "causal_conv1d/conv_state.cuh"

// The columns of all channels of a state are one run of memory, and so are the tokens of a channel. Both come to shared
// memory, and leave it, by vectors of 16 bytes, all of them at once.
//
// 2048 sequences of 8192 channels (H200) took 152 us where each lane loaded and stored the columns of its channel, and
// take 76 so. Without arithmetic it takes as long; what counts is how many bytes lie together: a block with 32 channels
// took 90 us. Copies past the L1 cache, for which shared memory leaves little room, and states that the L2 cache gives
// up first, make 11 us.
template <typename Tile, typename state_t>
struct SingleTile {
    using T = typename Tile::input_t;
    static constexpr int kHalo = Tile::kHalo;
    static constexpr int kPitch = (Tile::kTile / Tile::kWide | 1) * Tile::kWide;  // as ShortTile::kPitchOut
    static constexpr int kColumns = Tile::kChannels * kHalo;
    static constexpr int kRun = 16 / static_cast<int>(sizeof(state_t));  // elements of a state per access
    static constexpr int kAccesses = kColumns / kRun;                    // per state
    static constexpr int kAtOnce = Tile::kThreads / kAccesses;           // states that the block has at a time
    static_assert(Tile::kTile <= kWarpSize && kAtOnce > 0);

    alignas(16) T x[Tile::kChannels][kPitch];  // the results, too
    alignas(16) state_t states[Tile::kTile][kColumns];
    T* to[Tile::kChannels];  // where each channel's results go in global memory
    int slot[Tile::kTile];   // ~slot for a state that starts from zeros
    bool are_singles;

    // Looks whether each token of the tile is a sequence with a slot, at the number that it has if there are no longer
    // ones before it, or none behind it. All lanes of one warp call this.
    __device__ __forceinline__ void find(const CausalConv1dVarlenOperands& p, int first) {
        const int count = min(p.total - first, Tile::kTile), token = first + lane_id();
        bool are_found = false;
#pragma unroll 1
        for (int before = 0;; before = p.total - p.sequences) {
            const int number = token - before;
            const PrefixPlace<false> place(p, max(0, min(number, p.sequences - 1)));
            const bool is_found = place.begin == token && place.length == 1;
            are_found = lanes_where(lane_id() < count && !is_found) == 0;
            if (are_found && lane_id() < count) slot[lane_id()] = place.has_past ? place.slot : ~place.slot;
            if (are_found || before == p.total - p.sequences) break;
        }
        if (lane_id() == 0) are_singles = are_found;
    }

    // Starts to copy x to shared memory.
    __device__ __forceinline__ void fetch(const CausalConv1dVarlenOperands& p, index_t first_channel, int first) {
        const int channels = channels_there<Tile>(p, first_channel), count = p.total - first;
        const index_t stride = p.x_stride[0];
        const T* const from = static_cast<const T*>(p.x) + first_channel * stride + first;
        visit_units<Tile>([&](int row, int place) {
            if (row >= channels || place >= count) return;
            const T* const at = from + row * stride + place;
            if constexpr (Tile::kVec * sizeof(T) == 16) {
                if (place + Tile::kVec <= count) {
                    copy_async<16, false, true>(&x[row][place], at);
                    return;
                }
            }
            store(&x[row][place], load_part<Tile::kVec>(at, 0, count - place));
        });
    }

    // Calls visit(slot, in shared memory, in the pool) for a thread's part of every few of `count` states.
    template <typename Visit>
    __device__ __forceinline__ void visit_states(const CausalConv1dVarlenOperands& p, index_t first_channel, int count,
                                                 Visit visit) {
        const int thread = static_cast<int>(threadIdx.x), part = thread % kAccesses * kRun, row = thread / kAccesses;
        if (row >= kAtOnce || part >= channels_there<Tile>(p, first_channel) * kHalo) return;
        state_t* const pool = static_cast<state_t*>(p.conv_states) + first_channel * kHalo + part;
#pragma unroll 4
        for (int i = row; i < count; i += kAtOnce) {
            const int of = slot[i];
            visit(of, &states[i][part], pool + (of < 0 ? ~of : of) * p.conv_states_stride[0]);
        }
    }

    // Convolves the tokens from `place` on in two channels from `pair` on, and moves their states on.
    template <bool kSilu, int kWidth>
    __device__ __forceinline__ void convolve_pair(int pair, int place, const float (&taps)[2][kWidth],
                                                  const float (&bias)[2]) {
        constexpr int kWide = Tile::kWide;
        Vec<T, kWide> inputs[2];
        float y[2][kWide];
#pragma unroll
        for (int c = 0; c < 2; ++c) inputs[c] = load<kWide, Memory::kMutable>(&x[pair + c][place]);
#pragma unroll
        for (int i = 0; i < kWide; ++i) {
            state_t* const columns = &states[place + i][pair * kHalo];
            Vec<state_t, 2> past[kHalo], kept[kHalo];
#pragma unroll
            for (int k = 0; k < kHalo; ++k) {
                past[k] = load<2, Memory::kMutable>(columns + 2 * k);
                kept[k] = Vec<state_t, 2>::zero();
            }
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                float window[kWidth];
#pragma unroll
                for (int k = 0; k < kHalo; ++k) {
                    const int from = c * kHalo + k, to = from - 1;
                    window[k] = past[from / 2].to_float(from % 2);
                    if (k > 0) kept[to / 2].put(to % 2, past[from / 2].element(from % 2));
                }
                window[kHalo] = inputs[c].to_float(i);
                const int last = c * kHalo + kHalo - 1;
                kept[last / 2].put(last % 2, Dtype<state_t>::from_float(window[kHalo]));
                y[c][i] = activate<T, kSilu, false, kSilu>(convolve<false>(taps[c], bias[c], window, nullptr), 0);
            }
#pragma unroll
            for (int k = 0; k < kHalo; ++k) store(columns + 2 * k, kept[k]);
        }
#pragma unroll
        for (int c = 0; c < 2; ++c) store(&x[pair + c][place], Vec<T, kWide>::from_floats(y[c]));
    }
};

// Convolves a tile and updates the states of its sequences, if each of its tokens is a sequence; returns whether. All
// threads call this.
template <bool kSilu, int kWidth, typename weight_t, typename state_t, typename Tile>
__device__ __forceinline__ bool convolve_singles(const CausalConv1dVarlenOperands& p, index_t first_channel,
                                                 int first) {
    using T = typename Tile::input_t;
    constexpr int kPairs = Tile::kChannels / 2;
    __shared__ SingleTile<Tile, state_t> tile;
    const int thread = static_cast<int>(threadIdx.x), count = min(p.total - first, Tile::kTile);
    const int channels = channels_there<Tile>(p, first_channel), warp = thread / kWarpSize;
    tile.fetch(p, first_channel, first);
    if (warp == Tile::kWarps - 1) tile.find(p, first);
    if (thread < channels) {
        tile.to[thread] = destination_of<T, 1, Ranges::kMany>(p, first_channel + thread, 0, first).to;
    }
    __syncthreads();
    if (!tile.are_singles) return false;
    tile.visit_states(p, first_channel, count, [&](int slot, state_t* state, const state_t* from) {
        if (slot >= 0) {
            copy_async<16, false, true>(state, from);
        } else {
            store(state, Vec<state_t, SingleTile<Tile, state_t>::kRun>::zero());
        }
    });
    const int pair = thread % kPairs * 2;
    float bias[2];
    float taps[2][kWidth];
    ChannelFilter<kWidth, weight_t, 2>(p, first_channel + min(pair, channels - 2)).to_floats(taps, bias);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
        if (kSilu) scale_for_silu<T>(taps[c], bias[c]);
    }
    wait_for_copies();
    __syncthreads();
#pragma unroll 1
    for (int place = thread / kPairs * Tile::kWide; place < count; place += Tile::kThreads / kPairs * Tile::kWide) {
        tile.template convolve_pair<kSilu>(pair, place, taps, bias);
    }
    __syncthreads();
    visit_units<Tile>([&](int row, int place) {
        if (row >= channels || place >= count) return;
        const auto results = load<Tile::kVec, Memory::kMutable>(&tile.x[row][place]);
        T* const to = as_global(tile.to[row]) + place;
        if (place + Tile::kVec <= count) {
            store(to, results);
        } else {
            store_part(to, results, 0, count - place);
        }
    });
    tile.visit_states(p, first_channel, count, [&](int, const state_t* state, state_t* to) {
        store<Keep::kStream>(to, load<SingleTile<Tile, state_t>::kRun, Memory::kMutable>(state));
    });
    return true;
}
