// The packed sequences that the tokens of one group of a row belong to.
#pragma once

#include "causal_conv1d/conv_bwd_walk.cuh"

// Where sequences begin around a lane's vector, and which of its tokens are padding.
template <int kWidth, int kVec>
struct VectorSequences {
    static constexpr int kHalo = kWidth - 1;
    static constexpr int kSpan = kHalo + kVec + kHalo;
    using Bits = Select<(kSpan <= 32), unsigned, unsigned long long>;

    Bits starts;           // bit i: token i - (width - 1) of the vector is the first of a sequence or of padding
    unsigned dead;         // bit i: token i of the vector is padding
    const int* beginning;  // by bit of `starts`: the sequence that begins there
    const int* ending;     // and the one that ends before

    __device__ __forceinline__ bool starts_at(int bit) const { return (starts >> bit & 1) != 0; }

    // The bits of `starts` from that of token `first` of the vector on, `count` of them.
    __device__ __forceinline__ unsigned starts_from(int first, int count) const {
        return static_cast<unsigned>(starts >> (kHalo + first)) & ((1u << count) - 1);
    }
};

// The packed sequences in a warp's group and width - 1 tokens around it, which the warp finds together: a search by
// every lane takes longer than all the rest. Rows that are not packed have none of it.
template <typename Traits, int kWidth, int kVec, bool kEdges, bool kStates>
struct PackedSequences {
    static constexpr int kHalo = kWidth - 1;
    static constexpr int kOverhang = kEdges ? kVec - 1 : 0;  // most tokens that a group begins before a whole vector
    static constexpr int kTokens = kHalo + kOverhang + kWarpSize * kVec + kHalo;
    static constexpr int kWords = kTokens / 32 + 3;
    using Found = VectorSequences<kWidth, kVec>;

    // A warp's shared memory: by token, counted from the first one that is looked at.
    struct Marks {
        unsigned starts[kWords];               // a bit for each token that is the first of a sequence or of padding
        int beginning[kStates ? kTokens : 1];  // the sequence that begins there
        int ending[kStates ? kTokens : 1];     // the sequence that ends before
    };

    Found sequences{};            // of the lane's vector
    PackedRun run{-1, 0, 0, -1};  // that holds the first token that was looked at last
    Marks* marks;

    __device__ __forceinline__ PackedSequences() {
        if constexpr (Traits::kRows == Rows::kPacked) {
            __shared__ Marks memory[Traits::kWarps];
            marks = memory + threadIdx.x / kWarpSize;
        }
    }

    // Looks at a group. Says whether all that it needs is in one sequence.
    __device__ __forceinline__ bool enter(const CausalConv1dBwdOperands& p, const ChannelLanes& lanes, int group,
                                          int phase) {
        if constexpr (Traits::kRows == Rows::kPacked) {
            const int from = group * lanes.count * kVec - kOverhang - kHalo;
            const int to = from + kHalo + kOverhang + lanes.count * kVec + kHalo;
            if (run.holds(from, to)) return true;
            find(p, from, to, lanes.number * kVec + kOverhang - phase);
        }
        return Traits::kRows == Rows::kOne;
    }

    // Finds the sequences of the tokens from `from` to `to` - 1: for each lane those of the vector that begins width -
    // 1 tokens behind the token from + at.
    __device__ __forceinline__ void find(const CausalConv1dBwdOperands& p, int from, int to, int at) {
        if constexpr (Traits::kRows == Rows::kPacked) {
            // The lanes have read what was found last.
            sync_warp();
            for (int i = lane_id(); i < kWords; i += kWarpSize) marks->starts[i] = 0;
            sync_warp();
            run = {-1, from, from, -1};
            const int token = from + at + kHalo;
            unsigned dead = below(kVec) & ~below(p.total - token);
            visit_runs(p, from, to, [&](int number, int begin, int end, int slot, unsigned lanes) {
                if (run.end <= from && lanes != 0) {
                    const int lane = lowest(lanes);
                    run = {from_lane(number, lane), from_lane(begin, lane), from_lane(end, lane),
                           from_lane(slot, lane)};
                }
                if (lanes >> lane_id() & 1) mark(number, begin - from, end - from, to - from, end == p.total);
                for (unsigned left = lanes & lanes_where(slot < 0); left != 0; left &= left - 1) {
                    const int lane = lowest(left);
                    dead |= below(from_lane(end, lane) - token) & ~below(from_lane(begin, lane) - token);
                }
            });
            sync_warp();
            const unsigned* const words = marks->starts + at / 32;
            typename Found::Bits starts = words_from(words, at % 32);
            if constexpr (Found::kSpan > 32) {
                starts |= static_cast<typename Found::Bits>(words_from(words + 1, at % 32)) << 32;
            }
            sequences = {starts, dead, marks->beginning + at, marks->ending + at};
        }
    }

 private:
    __device__ __forceinline__ void mark(int number, int begin, int end, int tokens, bool is_last) const {
        if (begin >= 0) {
            atomicOr(&marks->starts[begin / 32], 1u << begin % 32);
            if (kStates) marks->beginning[begin] = number;
        }
        if (kStates && end < tokens) {
            // Behind the last token nothing begins.
            if (is_last) atomicOr(&marks->starts[end / 32], 1u << end % 32);
            marks->ending[end] = number;
        }
    }

    __device__ __forceinline__ static unsigned below(int i) { return (1u << max(0, min(i, kVec))) - 1; }

    // 32 bits from bit number `shift` of a word on.
    __device__ __forceinline__ static unsigned words_from(const unsigned* words, int shift) {
        return static_cast<unsigned>((static_cast<unsigned long long>(words[1]) << 32 | words[0]) >> shift);
    }
};
