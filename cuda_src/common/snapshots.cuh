// Snapshots: the states of packed sequences after given tokens go to given slots, in the launch that passes them.
#pragma once

#include "common/sequences.cuh"

// Operands have, beside those of common/sequences.cuh: snapshots, rows (sequence, position, slot), and snapshot_count,
// each of which may be null; snapshots_stride for both axes; snapshot_rows, 0 without snapshots; snapshot_slots, slots
// of the array that they go to; and snapshot_pad_slot.

// One row. The state is that after `position` tokens of the sequence.
struct Snapshot {
    int sequence;  // -1 for a row that counts for nothing
    int position;
    int slot;
};

// The rows that count.
template <typename Operands>
__device__ __forceinline__ int count_snapshots(const Operands& p) {
    if (p.snapshot_rows == 0 || p.snapshot_count == nullptr) return p.snapshot_rows;
    const index_t count = load_index(p.snapshot_count, 0, p.snapshot_count_is_int64);
    return count < 0 ? 0 : count > p.snapshot_rows ? p.snapshot_rows : static_cast<int>(count);
}

// The same in two steps, between which others can be loaded.
template <typename Operands>
__device__ __forceinline__ RawIndex load_raw_count(const Operands& p) {
    RawIndex raw;
    if (p.snapshot_count != nullptr) raw.load(p.snapshot_count, 0, p.snapshot_count_is_int64);
    return raw;
}
template <typename Operands>
__device__ __forceinline__ int count_of(const Operands& p, const RawIndex& raw) {
    return p.snapshot_count == nullptr ? p.snapshot_rows : raw.clamped(p.snapshot_count_is_int64, p.snapshot_rows);
}

// A field of a row as it is loaded: waiting for it waits for no other.
template <typename Operands>
__device__ __forceinline__ RawIndex load_raw_field(const Operands& p, int row, int field) {
    RawIndex raw;
    raw.load(p.snapshots, row * p.snapshots_stride[0] + field * p.snapshots_stride[1], p.snapshots_is_int64);
    return raw;
}

template <typename Operands>
__device__ __forceinline__ index_t load_snapshot_field(const Operands& p, int row, int field) {
    return load_index(p.snapshots, row * p.snapshots_stride[0] + field * p.snapshots_stride[1], p.snapshots_is_int64);
}

// A snapshot of these numbers: a sequence, position or slot that does not exist makes it count for nothing.
template <typename Operands>
__device__ __forceinline__ Snapshot checked_snapshot(const Operands& p, index_t sequence, index_t position,
                                                     index_t slot) {
    const bool has_slot = slot >= 0 && slot < p.snapshot_slots && slot != p.snapshot_pad_slot;
    if (!has_slot || sequence < 0 || sequence >= p.sequences || position < 0 || position > p.total) return {-1, 0, 0};
    return {static_cast<int>(sequence), static_cast<int>(position), static_cast<int>(slot)};
}

// Any row of the array.
template <typename Operands>
__device__ __forceinline__ Snapshot load_snapshot(const Operands& p, int row) {
    const index_t sequence = load_snapshot_field(p, row, 0);
    const index_t position = load_snapshot_field(p, row, 1);
    const index_t slot = load_snapshot_field(p, row, 2);
    return checked_snapshot(p, sequence, position, slot);
}

// Consecutive rows of snapshots.
struct SnapshotRows {
    int begin;
    int end;
};

// The least range that has all rows of the sequences `first` to `first + count - 1` that are `wanted`, by their field
// and row: others between them are possible where rows are not grouped by sequence. All lanes of a warp take part, and
// look at one of `step` / 32 groups of 32 rows from row `from` on.
template <typename Operands, typename Wanted>
__device__ __forceinline__ SnapshotRows find_snapshots(const Operands& p, int first, int count, int from, int step,
                                                       Wanted wanted) {
    const int rows = count_snapshots(p);
    SnapshotRows found{rows, 0};
    for (; from < rows; from += step) {
        const int row = from + lane_id();
        const index_t sequence = row < rows ? load_snapshot_field(p, row, 0) : -1;
        const bool is_among = row < rows && sequence >= first && sequence < first + count;
        const unsigned hits = lanes_where(is_among && wanted(row));
        if (hits != 0) found = {min(found.begin, from + lowest(hits)), from + highest(hits) + 1};
    }
    return found;
}

// A snapshot of a sequence that is walked in the order of its tokens.
struct NextSnapshot {
    static constexpr int kNone = 0x7fffffff;
    int position;  // kNone behind the last one
    int row;
    int slot;
};

inline constexpr NextSnapshot kBeforeSnapshots{-1, -1, -1};

// The snapshot of sequence `number`, of `length` tokens, that follows `before` and has a wanted position; `rows` have
// all of them. All lanes of a warp take part and get the same.
template <typename Operands, typename Wanted>
__device__ __forceinline__ NextSnapshot next_snapshot(const Operands& p, const SnapshotRows& rows, int number,
                                                      int length, const NextSnapshot& before, Wanted wanted) {
    NextSnapshot next{NextSnapshot::kNone, -1, -1};
    // Opaque, or else what follows from it takes registers through the whole walk.
    const int own = opaque(lane_id());
    for (int row = rows.begin + own; row < rows.end; row += kWarpSize) {
        const Snapshot found = load_snapshot(p, row);
        if (found.sequence != number || found.position > length || found.position >= next.position) continue;
        const bool follows =
            found.position > before.position || (found.position == before.position && row > before.row);
        if (follows && wanted(found.position)) next = {found.position, row, found.slot};
    }
#pragma unroll
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
        const int lane = own ^ distance;
        const NextSnapshot other{from_lane(next.position, lane), from_lane(next.row, lane), from_lane(next.slot, lane)};
        if (other.position < next.position || (other.position == next.position && other.row < next.row)) next = other;
    }
    return {uniform(next.position), uniform(next.row), uniform(next.slot)};
}

// The snapshots of a sequence in the order of their positions, for a warp that walks its tokens: in shared memory,
// which leaves the walk its registers. All lanes of the warp take part in everything.
struct SnapshotCursor {
    int positions[kWarpSize];  // of the next ones
    int slots[kWarpSize];
    int number;  // of the sequence
    int begin;   // its first token
    int length;  // and its tokens
    int now;     // the number of the next one among these
    int count;   // of these
    SnapshotRows rows;
    int is_in_order;
    NextSnapshot last;  // of those that have been here; where rows are in order, the last row that has been looked at
    int is_last;        // no other follows

    // The token that the state of the next one is in front of; kNone behind the last.
    __device__ __forceinline__ int token() const {
        return uniform(now < count ? begin + positions[now] : NextSnapshot::kNone);
    }

    // The token of the first position for which ends(its number here) is true; else that of the last snapshot known
    // here, or the one behind the sequence where no other follows.
    template <typename Ends>
    __device__ __forceinline__ int first_where(Ends ends) const {
        const int first = uniform(now), behind = uniform(count), own = first + lane_id();
        bool is_end = false;
        if (own < behind) is_end = ends(own);
        const unsigned bits = lanes_where(is_end);
        int position = length;
        if (uniform(is_last) == 0) position = positions[behind - 1];
        if (bits != 0) position = positions[first + lowest(bits)];
        return uniform(begin + position);
    }

    // Lanes share the tokens from `tile` on, kTokens each. A bit for each lane that has the last token in front of a
    // snapshot, of those known here in front of token `behind`; and kCut if one of these is not its lane's last token.
    static constexpr unsigned kCut = 1u << 31;
    template <int kTokens>
    __device__ __forceinline__ unsigned takers(int tile, int behind) const {
        const int own = uniform(now) + lane_id();
        const int tokens = own < count ? begin + positions[min(own, kWarpSize - 1)] - tile : behind - tile;
        unsigned bits = 0;
        if (tokens < behind - tile) bits = 1u << (tokens - 1) / kTokens | (tokens % kTokens != 0 ? kCut : 0);
        return any_over_lanes(bits);
    }

    // Finds the snapshots of a sequence of the tokens `begin_` to `end` - 1. None is known here before bring().
    template <typename Operands>
    __device__ __forceinline__ void start(const Operands& p, int number_, int begin_, int end) {
        // With more, scans would spill registers before compute capability 8.0, which knows no uniform numbers.
        constexpr int kAtOnce = kArch >= 80 ? 4 : 2;
        // Opaque, or else what follows from it takes registers through the whole walk.
        const int lane = opaque(lane_id());
        const RawIndex raw_count = load_raw_count(p);
        int most = p.snapshot_rows, hits = 0, before = 0;
        SnapshotRows found{most, 0};
        bool is_ordered = true;
        for (int from = 0; from < most; from += kAtOnce * kWarpSize) {
            RawIndex sequence[kAtOnce], position[kAtOnce];
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                const int row = from + i * kWarpSize + lane;
                if (row >= most) continue;
                sequence[i] = load_raw_field(p, row, 0);
                position[i] = load_raw_field(p, row, 1);
            }
            if (from == 0) most = count_of(p, raw_count);
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                const int first = from + i * kWarpSize;
                const bool is_own = first + lane < most && sequence[i].high == 0 && sequence[i].low == number_;
                const int own = position[i].clamped(p.snapshots_is_int64, NextSnapshot::kNone);
                const int lower = from_lane(own, lane - 1);
                const bool falls = own < (lane == 0 ? before : lower);
                before = from_lane(own, kWarpSize - 1);
                const unsigned bits = lanes_where(is_own);
                if (bits == 0) continue;
                // Rows in front of the first one are another sequence's.
                const bool is_first = hits == 0 && lane == lowest(bits);
                is_ordered = is_ordered && lanes_where(is_own && falls && !is_first) == 0;
                hits += __popc(bits);
                found = {min(found.begin, first + lowest(bits)), first + highest(bits) + 1};
            }
        }
        if (lane == 0) {
            number = number_;
            begin = begin_;
            length = end - begin_;
            rows = found;
            is_in_order = is_ordered && hits == found.end - found.begin;
            last = kBeforeSnapshots;
        }
        sync_warp();
    }

    // Visits those known here that are not behind `token`, kCopies at a time, each with an equal part of the lanes:
    // calls store(slot, token, place). Lanes without one get slot -1. Those of the first token have place 0, those of
    // the next token place 1, and so on. Returns the token of the next one.
    template <int kCopies, typename Store>
    __device__ __forceinline__ int visit(int token, Store store) {
        const int lane = opaque(lane_id()), first = uniform(now), own = first + lane;
        const int own_slot = slots[min(own, kWarpSize - 1)];
        const int own_token = own < count ? begin + positions[min(own, kWarpSize - 1)] : NextSnapshot::kNone;
        const int before = from_lane(own_token, lane - 1);
        const unsigned others = lanes_where(lane > 0 && own_token != before);
        const int own_others = __popc(others & ((2u << lane) - 1));
        const int visited = uniform(__popc(lanes_where(own_token <= token)));
#pragma unroll 1
        for (int i = 0; i < visited; i += kCopies) {
            const int from = i + lane / (kWarpSize / kCopies);
            const int slot = from_lane(own_slot, from), at = from_lane(own_token, from);
            store(from < visited ? slot : -1, at, from_lane(own_others, from));
        }
        sync_warp();
        if (lane == 0) now = first + visited;
        sync_warp();
        return min_over_lanes(own_token <= token ? NextSnapshot::kNone : own_token);
    }

    // Goes on behind the next one: returns its slot, and leaves the token of the one that follows it. Brings others
    // where none is known here, if kBrings.
    template <bool kBrings, typename Operands>
    __device__ __forceinline__ int go_on(const Operands& p, int& token_behind) {
        const int at = uniform(now), behind = kBrings ? uniform(count) : count, slot = slots[at];
        const int following = begin + positions[min(at + 1, kWarpSize - 1)];
        if (kBrings && at + 1 == behind && uniform(is_last) == 0) {
            bring(p);
            token_behind = token();
            return slot;
        }
        sync_warp();
        if (opaque(lane_id()) == 0) now = at + 1;
        sync_warp();
        token_behind = uniform(at + 1 < behind ? following : NextSnapshot::kNone);
        return slot;
    }

    // Whether none is known here though others may follow.
    __device__ __forceinline__ bool is_used_up() const {
        return uniform(now) == uniform(count) && uniform(is_last) == 0;
    }

    // Brings those that follow the last ones known here, which are used up.
    template <typename Operands>
    __device__ __forceinline__ void bring(const Operands& p) {
        // Opaque, or else what follows from it takes registers through the whole walk.
        const int lane = opaque(lane_id());
        NextSnapshot own = last;
        bool is_end = true;
        unsigned found = 0;
        if (uniform(is_in_order) == 0) {
            own = next_snapshot(p, rows, number, length, own, [](int) { return true; });
            is_end = own.position == NextSnapshot::kNone;
            found = is_end ? 0 : 1;
        } else {
            do {
                const int first = max(uniform(own.row) + 1, rows.begin);
                own = {NextSnapshot::kNone, first + kWarpSize - 1, -1};
                is_end = uniform(own.row + 1) >= uniform(rows.end);
                if (first + lane < rows.end) {
                    const RawIndex sequence = load_raw_field(p, first + lane, 0);
                    const RawIndex position = load_raw_field(p, first + lane, 1);
                    const RawIndex to = load_raw_field(p, first + lane, 2);
                    const int wide = p.snapshots_is_int64;
                    const Snapshot row =
                        checked_snapshot(p, sequence.value(wide), position.value(wide), to.value(wide));
                    if (row.sequence >= 0 && row.position <= length) own = {row.position, own.row, row.slot};
                }
                found = lanes_where(own.position != NextSnapshot::kNone);
            } while (found == 0 && !is_end);
        }
        sync_warp();
        if ((found >> lane & 1) != 0) {
            const int place = __popc(found & ((1u << lane) - 1));
            positions[place] = own.position;
            slots[place] = own.slot;
        }
        if (lane == 0) {
            now = 0;
            count = __popc(found);
            last = own;
            is_last = is_end;
        }
        sync_warp();
    }
};

// What find_snapshots() finds, with the rows shared out among all threads of a block, which all call this.
template <int kThreads, typename Operands, typename Wanted>
__device__ __forceinline__ SnapshotRows find_snapshots_of_block(const Operands& p, int first, int count,
                                                                Wanted wanted) {
    constexpr int kWarps = kThreads / kWarpSize;
    __shared__ SnapshotRows shared[kWarps];
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
    const SnapshotRows own = find_snapshots(p, first, count, warp * kWarpSize, kThreads, wanted);
    if (lane_id() == 0) shared[warp] = own;
    __syncthreads();
    SnapshotRows found = shared[0];
#pragma unroll
    for (int i = 1; i < kWarps; ++i) found = {min(found.begin, shared[i].begin), max(found.end, shared[i].end)};
    return found;
}
