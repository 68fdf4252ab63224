// Snapshots of packed sequences whose tokens are contiguous, out of tiles in shared memory.
#pragma once

#include "causal_conv1d/conv_short.cuh"

// The share of all rows of snapshots that is tile number `tile`'s, where `share` is 2**32 / tiles.
__device__ __forceinline__ SnapshotRows share_of_tile(const CausalConv1dVarlenOperands& p, unsigned tile,
                                                      unsigned tiles, unsigned share) {
    const unsigned count = static_cast<unsigned>(count_snapshots(p));
    const unsigned end = tile + 1 == tiles ? count : __umulhi((tile + 1) * share, count);
    return {static_cast<int>(__umulhi(tile * share, count)), static_cast<int>(end)};
}

// The lowest word of an index, some bytes behind `p`.
__device__ __forceinline__ int load_low_word(const void* p, index_t at) {
    return load_word<Memory::kConstant, int>(static_cast<const char*>(p) + at);
}

// A row of snapshots as it was loaded. Offsets in it fit in 31 bits.
struct RawSnapshot {
    int sequence = -1;
    int position = 0;
    int slot = -1;
    int high = 0;  // 0 if the words above these are all zero

    __device__ __forceinline__ RawSnapshot() {}
    __device__ __forceinline__ RawSnapshot(const CausalConv1dVarlenOperands& p, int row) {
        const unsigned word = p.snapshots_is_int64 ? 8 : 4;
        const unsigned row_step = static_cast<unsigned>(p.snapshots_stride[0]) * word;
        const index_t field_step = static_cast<unsigned>(p.snapshots_stride[1]) * word;
        const char* const at =
            static_cast<const char*>(p.snapshots) + static_cast<index_t>(static_cast<unsigned>(row)) * row_step;
        sequence = load_low_word(at, 0);
        position = load_low_word(at, field_step);
        slot = load_low_word(at, 2 * field_step);
        if (p.snapshots_is_int64) {
            high = load_low_word(at, 4) | load_low_word(at, field_step + 4) | load_low_word(at, 2 * field_step + 4);
        }
    }

    // Whether there are such a sequence and slot, and the position is none below 0, by a few instructions without
    // jumps.
    __device__ __forceinline__ bool is_valid(const CausalConv1dVarlenOperands& p) const {
        return (high == 0) & (static_cast<unsigned>(sequence) < static_cast<unsigned>(p.sequences)) &
               ((position | slot) >= 0) & (slot < p.snapshot_slots) & (slot != p.snapshot_pad_slot);
    }

    // is_of_prefix() for a sequence that starts from a slot, and goes on from what is in it or does not.
    __device__ __forceinline__ bool is_left(const CausalConv1dVarlenOperands& p, int start, bool may_go_on) const {
        const bool is_over_start = (p.snapshots_in_pool != 0) & (slot == start);
        return may_go_on & (start >= 0) & ((position < p.snapshot_columns) | is_over_start);
    }
};

// The snapshots that a block stores: a share of all rows, as large as the tile's share of the tokens. Where the rows
// are in the order of the tokens and snapshots evenly spaced, their inputs are in the tile; else they are read again.
// No tile looks at more rows: 562 us instead of 929 (H200, 8 x 8192, a snapshot every 64 tokens).
//
// All warps wait for what one of them does, and the whole launch with them: 0.1 us of a block's time is 1.5 us. So two
// warps look at rows while the tile is on its way, beside the warp that lists runs: one warp that did both took 83 us
// (H200, 16 x 512) instead of 76.9, without snapshots it is 73.3. Stored in front of the walk they took 2 to 3 us more.
// Snapshots that blocks of their own copied out of the L2 cache took 82 us.
template <int kWidth, typename state_t, typename Tile>
struct TileSnapshots {
    using T = typename Tile::input_t;
    static constexpr int kHalo = Tile::kHalo;
    static constexpr int kRun = 16 / static_cast<int>(sizeof(state_t));  // elements of an access
    static constexpr int kLanes = kHalo * Tile::kChannels / kRun;        // lanes per snapshot in one run of memory
    static constexpr int kAtOnce = kWarpSize / kLanes;                   // rows that a warp looks at at a time
    static_assert(kLanes <= kWarpSize && kWarpSize % kAtOnce == 0);

    const CausalConv1dVarlenOperands& p;
    index_t first_channel;
    int first;            // the first token of the tile
    bool is_run = false;  // the lane has a part of a snapshot that has the columns of all channels in one run of memory
    bool is_other = false;  // it has a part of another snapshot
    int end = 0;            // where the inputs end, counted from the tile's first token
    state_t* to = nullptr;  // where the part of a run goes

    __device__ __forceinline__ TileSnapshots(const CausalConv1dVarlenOperands& p_, index_t first_channel_, int first_)
        : p(p_), first_channel(first_channel_), first(first_) {}

    // Looks at the next kAtOnce rows, or at those that are left.
    __device__ __forceinline__ void find(const SnapshotRows& rows) {
        const int number = lane_id() / kLanes, row = rows.begin + number;
        is_run = is_other = false;
        if (number >= kAtOnce || row >= rows.end) return;
        const RawSnapshot snapshot(p, row);
        if (!snapshot.is_valid(p)) return;
        const RawStart raw(p, snapshot.sequence);
        const unsigned total = static_cast<unsigned>(p.total);
        unsigned begin = 0, behind = total;
        if (p.query_start_loc != nullptr) {
            const unsigned word = p.query_start_loc_is_int64 ? 8 : 4;
            const unsigned step = static_cast<unsigned>(p.query_start_loc_stride) * word;
            const index_t at = static_cast<index_t>(static_cast<unsigned>(snapshot.sequence)) * step;
            begin = static_cast<unsigned>(load_low_word(p.query_start_loc, at));
            behind = static_cast<unsigned>(load_low_word(p.query_start_loc, at + step));
        }
        // Wrong starts give wrong results, not wrong accesses.
        begin = min(begin, total);
        behind = min(behind, total);
        const int start = raw.start(p, snapshot.sequence);
        const bool may_go_on = raw.goes_on(p);
        const unsigned position = static_cast<unsigned>(snapshot.position);
        const bool is_own =
            (start >= 0) & (begin < behind) & (position <= behind - begin) & !snapshot.is_left(p, start, may_go_on);
        const bool is_whole = (p.snapshots_are_packed != 0) & (snapshot.position >= kHalo) &
                              (p.dim - static_cast<int>(first_channel) >= Tile::kChannels);
        is_run = is_own & is_whole;
        is_other = is_own & !is_whole;
        end = static_cast<int>(begin + position - static_cast<unsigned>(first));
        const int part = lane_id() - number * kLanes;
        to = static_cast<state_t*>(p.snapshots_in_pool ? p.conv_states : p.snapshot_out) +
             p.snapshot_first_column * p.snapshot_stride[2] +
             static_cast<unsigned>(snapshot.slot) * p.snapshot_stride[0] +
             static_cast<unsigned>(static_cast<int>(first_channel) * kHalo + part * kRun);
    }

    // Stores the snapshots of the rows that were looked at, when the tile is there. All lanes of the warp take part.
    __device__ __forceinline__ void store(const ShortShared<Tile>& shared, const SnapshotRows& rows) const {
        if (is_run && end > 0 && end <= Tile::kTile) {
            put_run(&shared.x[0][Tile::kBefore - kHalo] + end, Tile::kPitchIn);
        } else if (is_run) {
            const T* const x = static_cast<const T*>(p.x) + first_channel * p.x_stride[0];
            put_run(x + (first + end - kHalo), p.x_stride[0]);
        }
        const unsigned others = lanes_where(is_other);
        if (others == 0) return;
#pragma unroll 1
        for (int i = 0; i < kAtOnce; ++i) {
            if ((others >> i * kLanes & 1) != 0) store_columns(shared, rows.begin + i, from_lane(end, i * kLanes));
        }
    }

 private:
    // Stores the lane's part of a run, out of columns that begin at `x` in rows this far apart.
    template <typename Pitch>
    __device__ __forceinline__ void put_run(const T* x, Pitch pitch) const {
        const int part = lane_id() % kLanes, first_row = part * kRun / kHalo, column = part * kRun - first_row * kHalo;
        // Element i of the part is in row i / kHalo behind that of the first one, or in the row after it.
        const T* from[kHalo];
#pragma unroll
        for (int i = 0; i < kHalo; ++i) {
            from[i] = x + first_row * pitch + column + i;
            if (kRun % kHalo != 0 && column + i >= kHalo) from[i] += pitch - kHalo;
        }
        Vec<state_t, kRun> run = Vec<state_t, kRun>::zero();
#pragma unroll
        for (int i = 0; i < kRun; ++i) {
            const auto input = load<1, Memory::kMutable>(from[i % kHalo] + i / kHalo * pitch);
            run.put(i, convert<state_t>(input).element(0));
        }
        ::store<Keep::kWhole>(to, run);
    }

    // Stores the columns of one snapshot, of a lane's channel.
    __device__ __forceinline__ void store_columns(const ShortShared<Tile>& shared, int row, int behind) const {
        const index_t channel = first_channel + lane_id();
        if (channel >= p.dim) return;
        const RawSnapshot snapshot(p, row);
        auto column = SnapshotCopy<kWidth, T, state_t, 1, false>::place(p, snapshot.slot, channel);
        const T* const x = static_cast<const T*>(p.x) + channel * p.x_stride[0] + first;
#pragma unroll 1
        for (int place = behind - p.snapshot_columns; place < behind; ++place, column = column + p.snapshot_stride[2]) {
            Vec<T, 1> input = Vec<T, 1>::zero();
            if (place < behind - snapshot.position) {
                // Before a sequence that starts from zeros.
            } else if (place < -kHalo || place >= Tile::kTile) {
                input = load<1>(x + place);
            } else {
                input = load<1, Memory::kMutable>(&shared.x[lane_id()][Tile::kBefore + place]);
            }
            column.store_all(convert<state_t>(input));
        }
    }
};

// The least range that has all of some ranges of rows.
template <int kCount>
__device__ __forceinline__ SnapshotRows enclosing(const SnapshotRows (&rows)[kCount]) {
    SnapshotRows all = rows[0];
#pragma unroll
    for (int i = 1; i < kCount; ++i) all = {min(all.begin, rows[i].begin), max(all.end, rows[i].end)};
    return all;
}

// The search for snapshots that are left to the prefixes of sequences which begin in a tile. Other tiles look at no
// row. All threads look at one, which they load during the walk: on an H200 77.4 us for 16 x 512 instead of 79.1 where
// one warp searched for sequences and rows while the tile was on its way, 76.5 without a search.
template <typename Tile, bool kAddressed>
struct LeftSnapshots {
    bool is_needed;      // a sequence begins in the tile, and there are rows
    RawSnapshot loaded;  // the thread's first row

    // Begins to load rows, behind list_runs(). All threads of the block take part.
    __device__ __forceinline__ LeftSnapshots(const CausalConv1dVarlenOperands& p, const ShortShared<Tile>& shared)
        : is_needed(kAddressed && p.snapshot_rows > 0 && shared.has_begin != 0) {
        const int row = static_cast<int>(threadIdx.x);
        if (is_needed && row < count_snapshots(p)) loaded = RawSnapshot(p, row);
    }

    // The rows that have all those snapshots, and perhaps others, among the rows that a warp looks at.
    __device__ __forceinline__ SnapshotRows find(const CausalConv1dVarlenOperands& p,
                                                 const ShortShared<Tile>& shared) const {
        const int from = shared.runs[0].begin < 0 ? 1 : 0, last = shared.count - 1;
        const unsigned first = static_cast<unsigned>(shared.number[from]);
        const unsigned numbers = static_cast<unsigned>(shared.number[last]) - first;
        const int rows = count_snapshots(p);
        SnapshotRows found{rows, 0};
        RawSnapshot snapshot = loaded;
#pragma unroll 1
        for (int row = static_cast<int>(threadIdx.x);; row += Tile::kThreads) {
            const int group = row - lane_id();
            if (group >= rows) return found;
            // Numbers below the first one, and those of no sequence, are large ones here.
            const unsigned behind = static_cast<unsigned>(snapshot.sequence) - first;
            const int run = from + static_cast<int>(min(behind, static_cast<unsigned>(last - from)));
            // Where some sequences are empty, the run is not known.
            const bool is_left = (row < rows) & (behind <= numbers) &
                                 ((shared.number[run] != snapshot.sequence) | (snapshot.position < p.snapshot_columns) |
                                  ((p.snapshots_in_pool != 0) & (snapshot.slot == shared.runs[run].slot)));
            const unsigned lanes = lanes_where(is_left);
            if (lanes != 0) found = {min(found.begin, group + lowest(lanes)), group + highest(lanes) + 1};
            if (row + Tile::kThreads < rows) snapshot = RawSnapshot(p, row + Tile::kThreads);
        }
    }
};
