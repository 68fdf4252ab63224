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

    __device__ __forceinline__ SnapshotSource(const CausalConv1dVarlenOperands& p, int number)
        : SnapshotSource(p, number, first_token(p, number), first_token(p, number + 1) - first_token(p, number)) {}
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

// Stores a snapshot in kVec channels: the inputs in front of its position, which before the sequence's first token are
// the columns of its state, and zeros before these. `first` is that token in x.
template <int kWidth, typename input_t, typename state_t, int kVec, bool kGated, Memory kMemory = Memory::kConstant>
__device__ __forceinline__ void store_snapshot(const CausalConv1dVarlenOperands& p, const Snapshot& snapshot,
                                               const SnapshotSource& source, index_t channel, const input_t* first) {
    using State = Vec<state_t, kVec>;
    constexpr int kAtOnce = 3;  // columns that are loaded before the first one is stored
    const int columns = p.snapshot_columns, first_input = snapshot.position - columns;
    const index_t step = p.x_stride[1], to_step = p.snapshot_stride[2], past_step = p.conv_states_stride[2];
    const input_t* x = first + first_input * step;
    // The column behind the last one of the state.
    const StateColumn<state_t, kVec> past{states_of<true, state_t>(p) + (p.first_column + kWidth - 1) * past_step +
                                              source.start * p.conv_states_stride[0] +
                                              channel * p.conv_states_stride[1],
                                          p.conv_states_stride[1], p.states_are_packed != 0};
    const int past_begin = source.goes_on ? -static_cast<int>(p.first_column) - (kWidth - 1) : 0;
    state_t* const pool = static_cast<state_t*>(p.snapshots_in_pool ? p.conv_states : p.snapshot_out);
    StateColumn<state_t, kVec> to{pool + p.snapshot_first_column * to_step + snapshot.slot * p.snapshot_stride[0] +
                                      channel * p.snapshot_stride[1],
                                  p.snapshot_stride[1], p.snapshots_are_packed != 0};
    // Columns are written in rising order: over the sequence's own start, each is read before it is overwritten.
#pragma unroll 1
    for (int from = 0; from < columns; from += kAtOnce) {
        State kept[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i, x += step) {
            const int input = first_input + from + i;
            kept[i] = State::zero();
            if (from + i >= columns) continue;
            if (input >= 0) {
                kept[i] =
                    convert<state_t>(load_input<kGated, kMemory, input_t, kVec>(p, x, channel, source.begin + input));
            } else if (input >= past_begin) {
                kept[i] = (past + input * past_step).load_all();
            }
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i, to = to + to_step) {
            if (from + i < columns) to.store_all(kept[i]);
        }
    }
}

// Stores the snapshot of a row, unless it is the prefix's.
template <int kWidth, typename input_t, typename state_t, int kVec, bool kGated>
__device__ __forceinline__ void store_inner_snapshot(const CausalConv1dVarlenOperands& p, int row, index_t channel) {
    if (row >= count_snapshots(p)) return;
    const Snapshot snapshot = load_snapshot(p, row);
    if (snapshot.sequence < 0) return;
    const SnapshotSource source(p, snapshot.sequence);
    if (!source.has(snapshot) || is_of_prefix<kWidth>(p, snapshot, source)) return;
    store_snapshot<kWidth, input_t, state_t, kVec, kGated>(p, snapshot, source, channel,
                                                           source.template first<input_t, kVec>(p, channel));
}

// Stores the snapshots of a sequence that are its prefix's, out of rows that have them all: the one that overwrites the
// sequence's own start, behind all else that the thread does, or the others, before all else.
template <int kWidth, typename input_t, typename state_t, int kVec, bool kGated>
__device__ __forceinline__ void store_prefix_snapshots(const CausalConv1dVarlenOperands& p, const SnapshotRows& rows,
                                                       int number, index_t channel, bool is_over_start) {
    if (rows.begin >= rows.end) return;
    // What is known of the sequence is loaded anew, instead of kept in registers.
    number = opaque(number);
    const SnapshotSource source(p, number);
#pragma unroll 1
    for (int row = rows.begin; row < rows.end; ++row) {
        const Snapshot snapshot = load_snapshot(p, row);
        if (snapshot.sequence != number || !source.has(snapshot)) continue;
        if (!is_of_prefix<kWidth>(p, snapshot, source)) continue;
        if (source.is_over_start(p, snapshot) != is_over_start) continue;
        store_snapshot<kWidth, input_t, state_t, kVec, kGated>(p, snapshot, source, channel,
                                                               source.template first<input_t, kVec>(p, channel));
    }
}
