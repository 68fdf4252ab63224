// Snapshots of convolution states: the last inputs before given tokens of packed sequences.
#pragma once

#include "causal_conv1d/conv_varlen.cuh"
#include "common/snapshots.cuh"

// A sequence with results, as snapshots need to know it.
struct SnapshotSource {
    int begin;
    int length;
    int start;  // the slot that it starts from
    bool goes_on;

    // Indices are kept as they were loaded, so that one wait serves for all.
    __device__ __forceinline__ SnapshotSource(const CausalConv1dVarlenOperands& p, int number)
        : begin(0), length(p.total) {
        RawIndex first, end;
        if (p.query_start_loc != nullptr) {
            first.load(p.query_start_loc, number * p.query_start_loc_stride, p.query_start_loc_is_int64);
            end.load(p.query_start_loc, (number + 1) * p.query_start_loc_stride, p.query_start_loc_is_int64);
        }
        const bool may_go_on = ::goes_on<true>(p, number);
        start = load_start_slot(p, number);
        goes_on = start >= 0 && may_go_on;
        if (p.query_start_loc != nullptr) {
            begin = first.clamped(p.query_start_loc_is_int64, p.total);
            length = end.clamped(p.query_start_loc_is_int64, p.total) - begin;
        }
    }
    __device__ __forceinline__ SnapshotSource(const CausalConv1dVarlenOperands& p, int number, int begin_, int length_)
        : begin(begin_),
          length(length_),
          start(load_start_slot(p, number)),
          goes_on(start >= 0 && ::goes_on<true>(p, number)) {}

    __device__ __forceinline__ bool has(const Snapshot& snapshot) const {
        return start >= 0 && length > 0 && snapshot.position <= length;
    }

    // Whether a snapshot overwrites the slot that the sequence starts from.
    __device__ __forceinline__ bool is_over_start(const CausalConv1dVarlenOperands& p, const Snapshot& snapshot) const {
        return p.snapshots_in_pool && snapshot.slot == start;
    }

    // The sequence's first token in x, in kVec channels.
    template <typename input_t, int kVec>
    __device__ __forceinline__ const input_t* first(const CausalConv1dVarlenOperands& p, index_t channel) const {
        return static_cast<const input_t*>(p.x) + along_channels<kVec>(channel, p.x_stride[0]) + begin * p.x_stride[1];
    }
};

// Whether a snapshot is left to the thread that has the sequence's prefix: one that needs inputs of the state which
// this thread overwrites, and one that overwrites the slot which this thread reads.
template <int kWidth>
__device__ __forceinline__ bool is_of_prefix(const CausalConv1dVarlenOperands& p, const Snapshot& snapshot,
                                             const SnapshotSource& source) {
    const bool needs_past = snapshot.position < p.snapshot_columns;
    return kWidth > 1 && source.goes_on && (source.is_over_start(p, snapshot) || needs_past);
}

// A snapshot in kVec channels: the inputs in front of its position, which before the sequence's first token are the
// columns of its state, and zeros before these. `first` is that token in x.
template <int kWidth, typename input_t, typename state_t, int kVec, bool kGated, Memory kMemory = Memory::kConstant>
struct SnapshotCopy {
    using State = Vec<state_t, kVec>;
    static constexpr int kAtOnce = 3;  // columns that are loaded before the first one is stored

    const input_t* first;
    StateColumn<state_t, kVec> past;  // behind the state's last column
    int begin;
    int first_input;
    int past_begin;

    __device__ __forceinline__ SnapshotCopy(const CausalConv1dVarlenOperands& p, const Snapshot& snapshot,
                                            const SnapshotSource& source, index_t channel, const input_t* first_)
        : first(first_), begin(source.begin), first_input(snapshot.position - p.snapshot_columns) {
        const index_t* stride = p.conv_states_stride;
        past = {states_of<true, state_t>(p) + (p.first_column + kWidth - 1) * stride[2] + source.start * stride[0] +
                    channel * stride[1],
                stride[1], p.states_are_packed != 0};
        past_begin = source.goes_on ? -static_cast<int>(p.first_column) - (kWidth - 1) : 0;
    }

    // The first column that snapshots in a slot have.
    __device__ __forceinline__ static StateColumn<state_t, kVec> place(const CausalConv1dVarlenOperands& p, int slot,
                                                                       index_t channel) {
        state_t* const pool = static_cast<state_t*>(p.snapshots_in_pool ? p.conv_states : p.snapshot_out);
        const index_t* stride = p.snapshot_stride;
        return {pool + p.snapshot_first_column * stride[2] + slot * stride[0] + channel * stride[1], stride[1],
                p.snapshots_are_packed != 0};
    }

    // The columns from number `from` on.
    __device__ __forceinline__ void load(const CausalConv1dVarlenOperands& p, index_t channel, int from,
                                         State (&kept)[kAtOnce]) const {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            const int input = first_input + from + i;
            kept[i] = State::zero();
            if (from + i >= p.snapshot_columns) continue;
            if (input >= 0) {
                const input_t* const x = first + input * p.x_stride[1];
                kept[i] = convert<state_t>(load_input<kGated, kMemory, input_t, kVec>(p, x, channel, begin + input));
            } else if (input >= past_begin) {
                kept[i] = (past + input * p.conv_states_stride[2]).load_all();
            }
        }
    }

    __device__ __forceinline__ static void store(const CausalConv1dVarlenOperands& p,
                                                 const StateColumn<state_t, kVec>& to, int from,
                                                 const State (&kept)[kAtOnce]) {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            if (from + i < p.snapshot_columns) (to + (from + i) * p.snapshot_stride[2]).store_all(kept[i]);
        }
    }

    // Columns are written in rising order: over the sequence's own start, each is read before it is overwritten.
    __device__ __forceinline__ void copy(const CausalConv1dVarlenOperands& p, int slot, index_t channel) const {
        const StateColumn<state_t, kVec> to = place(p, slot, channel);
#pragma unroll 1
        for (int from = 0; from < p.snapshot_columns; from += kAtOnce) {
            State kept[kAtOnce];
            load(p, channel, from, kept);
            store(p, to, from, kept);
        }
    }
};

// Rows of snapshots that a thread takes at a time: 70.0 us (H200, 16 x 512, channels contiguous, a snapshot every 64
// tokens) instead of 70.9 with two or four.
inline constexpr int kSnapshotsAtOnce = 1;

// Stores the snapshots of kCount consecutive rows from `row` on, but for those that is_left(snapshot, source) says are
// left to another thread.
template <int kCount, int kWidth, typename input_t, typename state_t, int kVec, bool kGated, typename IsLeft>
__device__ __forceinline__ void store_other_snapshots(const CausalConv1dVarlenOperands& p, int row, index_t channel,
                                                      IsLeft is_left) {
    using Copy = SnapshotCopy<kWidth, input_t, state_t, kVec, kGated>;
    const int rows = count_snapshots(p);
    Snapshot snapshots[kCount];
    bool is_own[kCount], has_any = false;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
        snapshots[i] = row + i < rows ? load_snapshot(p, row + i) : Snapshot{-1, 0, 0};
        has_any = has_any || snapshots[i].sequence >= 0;
    }
    if (!has_any) return;
#pragma unroll 1
    for (int from = 0; from < p.snapshot_columns; from += Copy::kAtOnce) {
        typename Copy::State kept[kCount][Copy::kAtOnce];
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            const SnapshotSource source(p, max(snapshots[i].sequence, 0));
            is_own[i] = snapshots[i].sequence >= 0 && source.has(snapshots[i]) && !is_left(snapshots[i], source);
            const Copy copy(p, snapshots[i], source, channel, source.template first<input_t, kVec>(p, channel));
            if (is_own[i]) copy.load(p, channel, from, kept[i]);
        }
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            if (is_own[i]) Copy::store(p, Copy::place(p, snapshots[i].slot, channel), from, kept[i]);
        }
    }
}

// Stores the snapshots of kCount consecutive rows from `row` on, but for those of prefixes.
template <int kCount, int kWidth, typename input_t, typename state_t, int kVec, bool kGated>
__device__ __forceinline__ void store_inner_snapshots(const CausalConv1dVarlenOperands& p, int row, index_t channel) {
    store_other_snapshots<kCount, kWidth, input_t, state_t, kVec, kGated>(
        p, row, channel, [&](const Snapshot& snapshot, const SnapshotSource& source) {
            return is_of_prefix<kWidth>(p, snapshot, source);
        });
}

// Rows of snapshots that a warp copies at a time, one channel a lane: 95 us (H200, 1 x 8192, tokens contiguous, a
// snapshot every 64 tokens) instead of 111 with 8, and 101 with two rows a warp.
inline constexpr int kSnapshotsOfWarp = 4;

// Stores the snapshots of 32 consecutive rows from `row` on in a lane's channel, but for those of prefixes: each lane
// looks at one row for all of them. All lanes of a warp take part.
template <int kWidth, typename input_t, typename state_t, bool kGated>
__device__ __forceinline__ void store_snapshots_of_warp(const CausalConv1dVarlenOperands& p, int row, index_t channel) {
    using Copy = SnapshotCopy<kWidth, input_t, state_t, 1, kGated>;
    const int own = row + lane_id();
    const Snapshot snapshot = own < count_snapshots(p) ? load_snapshot(p, own) : Snapshot{-1, 0, 0};
    const SnapshotSource source(p, max(snapshot.sequence, 0));
    const bool is_own = snapshot.sequence >= 0 && source.has(snapshot) && !is_of_prefix<kWidth>(p, snapshot, source);
    for (unsigned left = lanes_where(is_own); left != 0;) {
        Snapshot chosen[kSnapshotsOfWarp];
        int begin[kSnapshotsOfWarp], start[kSnapshotsOfWarp];
#pragma unroll
        for (int i = 0; i < kSnapshotsOfWarp; ++i) {
            const int lane = left != 0 ? lowest(left) : -1;
            left &= left - 1;
            chosen[i] = {lane, from_lane(snapshot.position, lane), from_lane(snapshot.slot, lane)};
            begin[i] = from_lane(source.begin, lane);
            if constexpr (kWidth == 1) start[i] = from_lane(source.goes_on ? source.start : -1, lane);
        }
        if (channel >= p.dim) continue;
#pragma unroll 1
        for (int from = 0; from < p.snapshot_columns; from += Copy::kAtOnce) {
            typename Copy::State kept[kSnapshotsOfWarp][Copy::kAtOnce];
#pragma unroll
            for (int i = 0; i < kSnapshotsOfWarp; ++i) {
                SnapshotSource of = source;
                of.begin = begin[i];
                // Inputs before its first token are zeros: others are left to the prefix. A filter of one tap has none.
                of.goes_on = kWidth == 1 && start[i] >= 0;
                if constexpr (kWidth == 1) of.start = start[i];
                const Copy copy(p, chosen[i], of, channel, of.template first<input_t, 1>(p, channel));
                if (chosen[i].sequence >= 0) copy.load(p, channel, from, kept[i]);
            }
#pragma unroll
            for (int i = 0; i < kSnapshotsOfWarp; ++i) {
                if (chosen[i].sequence >= 0) Copy::store(p, Copy::place(p, chosen[i].slot, channel), from, kept[i]);
            }
        }
    }
}

// The rows that have all snapshots of prefixes of `count` sequences. All threads of the block call this.
template <int kThreads, int kWidth>
__device__ __forceinline__ SnapshotRows find_prefix_snapshots(const CausalConv1dVarlenOperands& p, int first,
                                                              int count) {
    if (p.snapshot_rows == 0) return {0, 0};
    return find_snapshots_of_block<kThreads>(p, first, count, [&](int row) {
        const Snapshot snapshot = load_snapshot(p, row);
        if (snapshot.sequence < 0) return false;
        return is_of_prefix<kWidth>(p, snapshot, SnapshotSource(p, snapshot.sequence));
    });
}

// The snapshot in a row, as all that have rows of snapshots tell it for a sequence, whose own it need not be.
__device__ __forceinline__ Snapshot load_snapshot_of(const CausalConv1dVarlenOperands& p, const SnapshotRows&, int,
                                                     int row) {
    return load_snapshot(p, row);
}

// Stores the snapshots of a sequence that are its prefix's, out of rows that have them all: the one that overwrites the
// sequence's own start, behind all else that the thread does, or the others, before all else.
template <int kWidth, typename input_t, typename state_t, int kVec, bool kGated, typename Rows>
__device__ __forceinline__ void store_prefix_snapshots(const CausalConv1dVarlenOperands& p, const Rows& rows,
                                                       int number, index_t channel, bool is_over_start) {
    if (rows.begin >= rows.end) return;
    // What is known of the sequence is loaded anew, instead of kept in registers.
    number = opaque(number);
    const SnapshotSource source(p, number);
#pragma unroll 1
    for (int row = rows.begin; row < rows.end; ++row) {
        const Snapshot snapshot = load_snapshot_of(p, rows, number, row);
        if (snapshot.sequence != number || !source.has(snapshot)) continue;
        if (!is_of_prefix<kWidth>(p, snapshot, source)) continue;
        if (source.is_over_start(p, snapshot) != is_over_start) continue;
        const SnapshotCopy<kWidth, input_t, state_t, kVec, kGated> copy(
            p, snapshot, source, channel, source.template first<input_t, kVec>(p, channel));
        copy.copy(p, snapshot.slot, channel);
    }
}
