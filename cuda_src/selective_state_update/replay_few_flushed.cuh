// The tasks of the warps of selective_state_update_replay_few.cu: some heads of a sequence, or one of a sequence that
// flushes.
#pragma once

#include "common/mma.cuh"
#include "selective_state_update/replay.cuh"

// Sequences that share blocks.
inline constexpr int kMostRanked = 256;

// Some of the tiles of a head.
struct TileRange {
    int begin;
    int end;

    __device__ __forceinline__ bool has(int tile) const { return tile >= begin && tile < end; }
};

// What a warp does next: 64 rows of some heads of a sequence, or tiles of a head that flushes.
struct ReplayFewTask {
    WarpRows rows;  // of the first head
    TileRange tiles;
    int slot;
    uint2 cursor;
    bool is_found;  // the cursor is known, and that it flushes
    bool flushes;

    template <typename Traits>
    __device__ __forceinline__ TileRange range() const {
        return Traits::kDivides ? tiles : TileRange{0, Traits::kTiles};
    }
};

// Whether a sequence's live tokens go to its states. force: of the sequence.
template <typename Traits>
__device__ __forceinline__ bool is_flushed(const ReplayFewOperands& p, const uint2& cursor, unsigned char force) {
    const int live = min(max(static_cast<int>(cursor.y), 0), p.window);
    return live + (Traits::kHasMany ? p.tokens : 1) > p.window || force != 0;
}

__device__ __forceinline__ unsigned char load_force(const ReplayFewOperands& p, int sequence) {
    if (p.force_flush == nullptr) return 0;
    return static_cast<const unsigned char*>(p.force_flush)[sequence * p.force_flush_stride];
}

// The other heads of sequences that flush: warps that have nothing else to do and those of these sequences take them in
// turn, one at a time, for one takes as long as several that are only read, or parts of them.
template <typename Traits>
struct FlushedHeads {
    int first;   // sequence
    int worker;  // the warp's number among those that take part; negative where that is not yet known
    int number;  // the walking warp's own one, negative for others

    // Finds the next head of the warp; false where there is none.
    __device__ __forceinline__ bool next(const ReplayFewOperands& p, ReplayFewTask& task) {
        constexpr int kParts = kMostRanked / kWarpSize;
        const SelectiveStateUpdateSingleOperands& s = p.operands;
        const int sequences = min(s.batch - first, kMostRanked);
        int slots[kParts];
        uint2 cursors[kParts];
        unsigned char force[kParts];
        unsigned flushing[kParts];
        // Everything is asked for before anything is waited for.
#pragma unroll
        for (int i = 0; i < kParts; ++i) {
            const int sequence = i * kWarpSize + lane_id();
            slots[i] = -1;
            force[i] = 0;
            if (sequence < sequences) {
                slots[i] = load_slot<Traits>(s, first + sequence);
                force[i] = load_force(p, first + sequence);
            }
        }
#pragma unroll
        for (int i = 0; i < kParts; ++i) {
            cursors[i] = make_uint2(0, 0);
            if (slots[i] >= 0) cursors[i] = load_cursor<Traits::kByColumns>(p, slots[i]);
        }
        const int own = task.rows.batch - first;
        int count = 0, rank = 0;
#pragma unroll
        for (int i = 0; i < kParts; ++i) {
            flushing[i] = lanes_where(slots[i] >= 0 && is_flushed<Traits>(p, cursors[i], force[i]));
            count += __popc(flushing[i]);
            const int before = min(max(own - i * kWarpSize, 0), kWarpSize);
            rank += __popc(before == kWarpSize ? flushing[i] : flushing[i] & ((1u << before) - 1u));
        }
        const int shares = static_cast<int>(s.row_tiles.divisor * s.nheads.divisor);  // of a sequence
        const int workers = p.spare_warps + count * shares;
        if (worker >= 0) {
            worker += workers;
        } else {
            worker = number < 0 ? p.spare_warps + number : p.spare_warps + rank * shares + number % shares;
        }
        const int heads = count * shares * (p.warp_heads - p.kept_heads);
        int head = worker;
        if constexpr (Traits::kDivides) {
            // As many parts as there are warps for.
            int parts = 1;
#pragma unroll 1
            while (parts < p.most_parts && 2 * parts * heads <= workers) parts *= 2;
            head = worker / parts;
            const int tiles = Traits::kTiles / parts;
            task.tiles.begin = (worker - head * parts) * tiles;
            task.tiles.end = task.tiles.begin + tiles;
        }
        if (head >= heads) return false;
        const int further = head / (count * shares);
        task.rows = WarpRows(s, head - further * (count * shares), Traits::kWarpRows);
        task.rows.head = task.rows.head * p.warp_heads + p.kept_heads + further;
        rank = task.rows.batch;
        unsigned among = 0;
        int begin = 0, place = 0, slot = 0;
        uint2 cursor = make_uint2(0, 0);
#pragma unroll
        for (int i = 0; i < kParts; ++i) {
            if (rank >= 0 && rank < __popc(flushing[i])) {
                among = flushing[i];
                begin = i * kWarpSize;
                place = rank;
                slot = slots[i];
                cursor = cursors[i];
            }
            rank -= __popc(flushing[i]);
        }
        const unsigned below = among & ((1u << lane_id()) - 1u);
        const int lane = lowest(lanes_where((among >> lane_id() & 1u) != 0 && __popc(below) == place));
        task.rows.batch = first + begin + lane;
        task.slot = uniform(from_lane(slot, lane));
        task.cursor.x = word_of_lane(cursor.x, lane);
        task.cursor.y = word_of_lane(cursor.y, lane);
        task.flushes = task.is_found = true;
        return true;
    }
};
