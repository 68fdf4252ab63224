// Packed sequences by length: runs of neighbouring sequences, for their short ones, and the search for long ones.
#pragma once

#include "common/sequences.cuh"
#include "common/warp.cuh"

// `count` consecutive sequences from `first` on, fewer than a warp has lanes: each lane knows one of them, and all
// warps know the same. The padding before the first sequence and behind the last counts as sequences, too.
struct SequenceRun {
    int first;
    int begin;  // of the lane's sequence, as end, slot and target
    int end;
    int slot;
    int target;     // the slot of the final state, -1 for none
    unsigned past;  // a bit for each sequence that goes on from its state

    template <typename Operands>
    __device__ __forceinline__ SequenceRun(const Operands& p, int first_, int count) : first(first_) {
        const int number = first + lane_id();
        begin = first_token(p, number);
        slot = load_start_slot(p, number);
        target = load_target(p, number, slot);
        past = lanes_where(p.has_states && slot >= 0 && has_past(p, number));
        const int next = from_lane(begin, lane_id() + 1);
        end = lane_id() < count ? next : begin;
    }

    // The sequences of some tokens, at most `most`, a bit each.
    __device__ __forceinline__ unsigned up_to(int most) const {
        const int tokens = end - begin;
        return lanes_where(tokens > 0 && tokens <= most);
    }

    __device__ __forceinline__ int begin_of(int i) const { return from_lane(begin, i); }
    __device__ __forceinline__ int end_of(int i) const { return from_lane(end, i); }
    __device__ __forceinline__ int slot_of(int i) const { return from_lane(slot, i); }
    __device__ __forceinline__ int target_of(int i) const { return from_lane(target, i); }
    __device__ __forceinline__ bool has_past_of(int i) const { return (past >> i & 1) != 0; }
};

// The number of a long sequence, of more than `short_tokens` tokens: from `from` on, behind `skipped` other long ones;
// a number greater than `sequences` if there are no more. All lanes get the same.
template <typename Operands>
__device__ __forceinline__ int find_long(const Operands& p, int from, int skipped, int short_tokens) {
    constexpr int kAtOnce = 4;
    const Borders<Operands> borders(p);
    for (; from <= p.sequences; from += kAtOnce * kWarpSize) {
        RawIndex begins[kAtOnce], ends[kAtOnce];
        int tokens[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            const int number = from + i * kWarpSize + lane_id();
            begins[i] = borders.load(number);
            ends[i] = borders.load(number + 1);
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            const int number = from + i * kWarpSize + lane_id();
            tokens[i] = borders.token(ends[i], number + 1) - borders.token(begins[i], number);
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            unsigned found = lanes_where(tokens[i] > short_tokens);
            const int count = __popc(found);
            if (skipped < count) {
                for (; skipped > 0; --skipped) found &= found - 1;
                return uniform(from + i * kWarpSize + lowest(found));
            }
            skipped -= count;
        }
    }
    return p.sequences + 1;
}

// Visits the long sequences of a block: calls take(number) for the one behind `before` other long ones and, when there
// may be more of them than `long_at_a_time`, for those behind `before + long_at_a_time`, … others. Where kBatch
// sequences may be the rows of a batch, each of which has blocks of its own.
template <bool kBatch, typename Operands, typename Take>
__device__ __forceinline__ void each_long(const Operands& p, int before, Take take) {
    int number = kBatch && p.seqlen > 0 ? before : find_long(p, -1, before, p.short_tokens);
    while (number <= p.sequences) {
        take(number);
        if (!p.long_goes_on) return;
        number = find_long(p, number + 1, p.long_at_a_time - 1, p.short_tokens);
    }
}
