// The runs of a tile of packed tokens found at once, and the states of its sequences in shared memory.
#pragma once

#include "causal_conv1d/conv_short.cuh"

// Where the columns of all channels of a state are one run of memory: the states of the first kMost runs of a tile come
// to shared memory by vectors of 16 bytes, and leave it so. Of 512 random lengths and 8192 channels (H200) that takes
// 101 us instead of 110: of the 23 more than the tile takes without states, 6 to bring them, 5 to store them, 3 to
// convolve prefixes, which wait for each other.
template <typename Tile, typename state_t>
struct StagedStates {
    static constexpr int kHalo = Tile::kHalo;
    static constexpr int kMost = 48 / static_cast<int>(sizeof(state_t));
    static constexpr int kColumns = Tile::kChannels * kHalo;
    static constexpr int kRun = 16 / static_cast<int>(sizeof(state_t));  // elements per access
    static constexpr int kAccesses = kColumns / kRun;                    // per state
    static constexpr int kAtOnce = Tile::kThreads / kAccesses;           // states that the block has at a time
    // Channels whose states are prefetched together, and how many groups of channels lie before them.
    static constexpr int kPrefetched = 4 * Tile::kChannels;
    static constexpr int kGroupsAhead = 8;

    alignas(16) state_t rows[kMost][kColumns];

    // Starts to copy the states of the runs from number `from` on.
    __device__ __forceinline__ void fetch(const ShortShared<Tile>& shared, const CausalConv1dVarlenOperands& p,
                                          index_t first_channel, int from) {
        visit(shared, p, first_channel, from, [](bool has_past, state_t* row, const state_t* state) {
            if (has_past) {
                copy_async<16, false, true>(row, state);
            } else {
                ::store(row, Vec<state_t, kRun>::zero());
            }
        });
    }

    __device__ __forceinline__ void store(const ShortShared<Tile>& shared, const CausalConv1dVarlenOperands& p,
                                          index_t first_channel, int from) {
        visit(shared, p, first_channel, from, [](bool, const state_t* row, state_t* state) {
            ::store<Keep::kStream>(state, load<kRun, Memory::kMutable>(row));
        });
    }

    // Brings states of later groups of channels to the L2 cache, before the blocks that copy them from there begin. The
    // first of a few groups does that for all of them, by longer pieces of a state than one group has. On an H200 512
    // random lengths take 101.5 us so instead of 103.7, 512 x 16 91 instead of 97, 2048 x 4 166 instead of 174, 64 x
    // 128 77.3 instead of 79.3.
    __device__ __forceinline__ static void prefetch_ahead(const ShortShared<Tile>& shared,
                                                          const CausalConv1dVarlenOperands& p, index_t first_channel) {
        const index_t channel = first_channel + kGroupsAhead * Tile::kChannels;
        const int number = static_cast<int>(threadIdx.x);
        if (first_channel % kPrefetched != 0 || channel >= p.dim || number >= shared.count) return;
        const ShortRun run = shared.runs[number];
        if (run.slot < 0 || run.slot == ShortRun::kPadding || run.begin < 0) return;
        const int columns = static_cast<int>(min(p.dim - channel, static_cast<index_t>(kPrefetched))) * kHalo;
        const state_t* const state = static_cast<const state_t*>(p.conv_states) + channel * kHalo;
        prefetch_bulk(state + run.slot * p.conv_states_stride[0], columns * static_cast<int>(sizeof(state_t)));
    }

 private:
    // Calls visit(has_past, row, state) for a thread's part of every few sequences that begin in the tile.
    template <typename Visit>
    __device__ __forceinline__ void visit(const ShortShared<Tile>& shared, const CausalConv1dVarlenOperands& p,
                                          index_t first_channel, int from, Visit visit_part) {
        const int thread = static_cast<int>(threadIdx.x), part = thread % kAccesses * kRun, first = thread / kAccesses;
        if (first >= kAtOnce || part >= channels_there<Tile>(p, first_channel) * kHalo) return;
        const int count = min(shared.count - from, kMost);
        state_t* const pool = static_cast<state_t*>(p.conv_states) + first_channel * kHalo + part;
#pragma unroll 2
        for (int i = first; i < count; i += kAtOnce) {
            const ShortRun run = shared.runs[from + i];
            if (run.slot == ShortRun::kPadding || run.begin < 0) continue;
            const int slot = run.slot < 0 ? ~run.slot : run.slot;
            visit_part(run.slot >= 0, &rows[i][part], pool + slot * p.conv_states_stride[0]);
        }
    }
};

// Elements of a row that begin at any place, by words of 32 bits: lanes that read rows of a tile at one place wait for
// each other, as long for a word as for an element.
template <typename T, int kCount>
struct RowPart {
    static constexpr int kPerWord = Dtype<T>::kPerWord;
    static constexpr int kWords = (kCount + 2 * kPerWord - 2) / kPerWord;  // that they may be spread over

    unsigned words[kWords];

    __device__ __forceinline__ RowPart(const T* row, int place) {
        const int inner = place & (kPerWord - 1);
        const T* const from = row + (place - inner);
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
            words[i] = 0;
            if (i * kPerWord < inner + kCount)
                words[i] = load<kPerWord, Memory::kMutable>(from + i * kPerWord).words[0];
        }
        if constexpr (kPerWord == 2) {
#pragma unroll
            for (int i = 0; i < kWords; ++i) {
                words[i] = __byte_perm(words[i], i + 1 < kWords ? words[i + 1] : 0, inner == 0 ? 0x3210 : 0x5432);
            }
        }
    }

    __device__ __forceinline__ float to_float(int i) const {
        return Dtype<T>::unpack(words[i / kPerWord], i % kPerWord);
    }
    __device__ __forceinline__ Vec<T, 1> element(int i) const {
        Vec<T, 1> v = Vec<T, 1>::zero();
        v.put(0, Dtype<T>::element(words[i / kPerWord], i % kPerWord));
        return v;
    }
};

// The last inputs of the sequence that goes on behind a tile, for its state. They come to shared memory with the
// states, to where rows of results are padded: loaded when the state is to be stored, those of 512 sequences of 16
// tokens that lie 8 tokens across the tiles would take 4.7 % of the time (H200).
template <typename Tile>
struct LastInputs {
    using T = typename Tile::input_t;
    static constexpr int kHalo = Tile::kHalo;
    static constexpr int kPerWord = Dtype<T>::kPerWord;
    static constexpr int kWords = RowPart<T, kHalo>::kWords;
    static_assert(Tile::kTile + kWords * kPerWord <= Tile::kPitchOut);

    // Their place in a row of results, for a sequence that ends before the token `end`.
    __device__ __forceinline__ static int place(int end) { return Tile::kTile + ((end - kHalo) & (kPerWord - 1)); }

    // Starts to copy them, if there is such a sequence.
    __device__ __forceinline__ static void fetch(ShortShared<Tile>& shared, const CausalConv1dVarlenOperands& p,
                                                 index_t first_channel, int first) {
        const int count = shared.count, end = count > 0 ? shared.runs[count].begin : 0;
        if (end <= Tile::kTile) return;
        const ShortRun run = shared.runs[count - 1];
        const int row = static_cast<int>(threadIdx.x) / kWords,
                  part = static_cast<int>(threadIdx.x) % kWords * kPerWord;
        if (run.slot == ShortRun::kPadding || run.begin < 0 || row >= channels_there<Tile>(p, first_channel)) return;
        const int token = first + ((end - kHalo) & ~(kPerWord - 1)) + part;
        const T* const from = static_cast<const T*>(p.x) + (first_channel + row) * p.x_stride[0] + token;
        T* const to = &shared.out[row][Tile::kTile + part];
        if (Tile::kVec >= kPerWord && token + kPerWord <= p.total) {
            copy_async<4>(to, from);
        } else {
            ::store(to, load_part<kPerWord>(from, 0, max(0, min(p.total - token, kPerWord))));
        }
    }
};

// Finds the runs of a tile where they are if all sequences are about equally long: each thread of the warps in the
// middle looks at one run, all at once, where list_runs() waits for two or three loads one after another. Meanwhile the
// last warp looks at every few of all runs, for a second look where the first one misses.
template <typename Tile>
struct NearRuns {
    static constexpr int kLookers = Tile::kWarps - 2;
    static constexpr int kRuns = kLookers * kWarpSize;

    int listed[kLookers];  // runs in the tile that each of these warps has; below 0 where some are elsewhere
    int low;               // a run shortly before the tile

    // Lists the runs. All threads call this; they see the list after a barrier. They call issue() once, while loads are
    // on their way.
    template <typename Issue>
    __device__ __forceinline__ void list(ShortShared<Tile>& shared, const CausalConv1dVarlenOperands& p, int first,
                                         float sequences_per_token, Issue issue) {
        const float middle = (static_cast<float>(first) + 0.5f * Tile::kTile) * sequences_per_token;
        int from = static_cast<int>(middle) - kRuns / 2;
#pragma unroll 1
        for (int look = 0; look < 2; ++look) {
            if (list_from(shared, p, first, from, [&] {
                    if (look == 0) issue();
                }))
                return;
            from = low;  // which the second look writes again
            __syncthreads();
        }
        if (static_cast<int>(threadIdx.x) >= Tile::kThreads - kWarpSize) list_runs<false, false>(shared, p, first);
    }

 private:
    // The same for those among the kRuns runs from number `from` on, unless others are in the tile: returns whether.
    template <typename Issue>
    __device__ __forceinline__ bool list_from(ShortShared<Tile>& shared, const CausalConv1dVarlenOperands& p, int first,
                                              int from, Issue issue) {
        const int thread = static_cast<int>(threadIdx.x) - kWarpSize, warp = thread >> 5;  // counted from the second
        const bool is_looker = thread >= 0 && warp < kLookers, is_searcher = warp == kLookers;
        const int step = (p.sequences + kWarpSize + 1) / kWarpSize;  // of the last warp's runs
        const int number =
            is_searcher ? (lane_id() + 1) * step - 1 : max(min(from, p.sequences + 1 - kRuns), -1) + thread;
        const bool is_sequence = number >= 0 && number < p.sequences, is_given = p.query_start_loc != nullptr;
        RawIndex begin_raw, end_raw, slot_raw;
        bool is_old = false;
        if (is_looker || is_searcher) {
            if (is_given && number >= 0 && number <= p.sequences) load_start(p, begin_raw, number);
        }
        if (is_looker) {
            if (is_given && number < p.sequences) load_start(p, end_raw, number + 1);
            if (is_sequence && p.cache_indices != nullptr) {
                slot_raw.load(p.cache_indices, number * p.cache_indices_stride, p.cache_indices_is_int64);
            }
            is_old = is_sequence && has_past(p, number);
        }
        issue();
        int begin = number <= 0 ? 0 : p.total, end = number < 0 ? 0 : p.total, slot = -1;
        unsigned lanes = 0;
        if (is_given && number >= 0 && number <= p.sequences) begin = start(p, begin_raw);
        if (is_searcher) {
            const unsigned before = lanes_where(number <= p.sequences && begin <= first);
            if (lane_id() == 0) low = __popc(before) * step - 1;
        }
        const int behind = min(first + Tile::kTile, p.total);
        if (is_looker) {
            if (is_given && number < p.sequences) end = start(p, end_raw);
            if (is_sequence) {
                const bool is_by_number = p.cache_indices == nullptr;
                slot = slot_in_pool(p, is_by_number ? number : slot_raw.value(p.cache_indices_is_int64));
            }
            lanes = lanes_where(begin < min(end, behind) && end > first);
            const bool is_missed = (thread == 0 && begin > first) || (thread == kRuns - 1 && end < behind);
            const bool are_missed = lanes_where(is_missed) != 0;
            if (lane_id() == 0) listed[warp] = are_missed ? -kRuns : __popc(lanes);
            if (thread == 0) shared.left_out = 0;
        }
        __syncthreads();
        int count = 0, place = __popc(lanes & ((1u << lane_id()) - 1));
#pragma unroll
        for (int i = 0; i < kLookers; ++i) {
            if (i < warp) place += listed[i];
            count += listed[i];
        }
        if (count < 0) return false;
        // Wrong starts may name more runs than there are tokens.
        count = min(count, Tile::kTile);
        if (thread == 0) shared.count = count;
        if ((lanes >> lane_id() & 1) == 0 || place >= count) return true;
        shared.runs[place] = {begin - first, slot < 0 ? ShortRun::kPadding : is_old ? slot : ~slot};
        if (place == count - 1) shared.runs[count].begin = end - first;
        if (slot >= 0 && begin < first) shared.left_out = max(min(end, begin + Tile::kHalo) - first, 0);
        return true;
    }

    __device__ __forceinline__ static void load_start(const CausalConv1dVarlenOperands& p, RawIndex& raw, int of) {
        raw.load(p.query_start_loc, of * p.query_start_loc_stride, p.query_start_loc_is_int64);
    }
    __device__ __forceinline__ static int start(const CausalConv1dVarlenOperands& p, const RawIndex& raw) {
        return raw.clamped(p.query_start_loc_is_int64, p.total);
    }
};
