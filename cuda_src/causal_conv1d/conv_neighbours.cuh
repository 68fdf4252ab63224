// Results over x in one launch: a block stores over inputs that the block behind it reads, and over a state that an
// earlier one reads. Neither ever waits for the other. A reader that has loaded, and a writer that is about to store,
// draw a number from the same counter: a writer that finds its reader to have been there stores at once; else it first
// saves in scratch what it overwrites, and a reader that draws the second number loads that instead.
#pragma once

#include "causal_conv1d/conv_borders.cuh"
#include "causal_conv1d/conv_state.cuh"

// What meets at the border in front of a block's tokens: the inputs before it, and the state that the sequence which
// ends behind it has started from. The block where that sequence begins reads it and, if the sequence begins among the
// inputs before a border, the block behind that border, too.
enum class Handed { kInputs, kState, kStateOfNext };
inline constexpr int kHandedKinds = 3;

// The counter of one reader and one writer, warps with the same channels; all its bits are set before the launch. All
// lanes call its functions, and what one lane does stands for all of them.
struct Meeting {
    float* counter;

    // Of `channel_groups` warps across the channels.
    __device__ __forceinline__ Meeting(const CausalConv1dVarlenOperands& p, index_t counters_at, int channel_groups,
                                       int channel_group, Handed kind, int border)
        : counter(reinterpret_cast<float*>(static_cast<char*>(p.scratch) + counters_at) +
                  ((border - 1) * kHandedKinds + static_cast<int>(kind)) * channel_groups + channel_group) {}

    // For a reader whose lanes have loaded: whether they have to load again what the writer has saved.
    __device__ __forceinline__ bool comes_late() const { return draw() != 0; }

    // For a writer: whether the reader has loaded.
    __device__ __forceinline__ bool has_been_read() const {
        unsigned number = 0;
        if (lane_id() == 0) number = load_in_order(counter);
        return share(number) == 0;
    }

    // For a writer whose lanes have saved.
    __device__ __forceinline__ void leave_saved() const { draw(); }

 private:
    __device__ __forceinline__ unsigned draw() const {
        sync_warp();
        unsigned number = 0;
        if (lane_id() == 0) number = next_number_in_order(counter);
        return share(number);
    }

    __device__ __forceinline__ static unsigned share(unsigned number) {
        number = static_cast<unsigned>(from_lane(static_cast<int>(number), 0));
        sync_warp();
        return number;
    }
};
