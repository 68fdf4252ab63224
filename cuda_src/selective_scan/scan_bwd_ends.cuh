// The states that packed sequences begin and end with inside chunks that they share.
#pragma once

#include "selective_scan/scan_bwd_numbers.cuh"

// A token where a sequence begins or ends: where it is in shared memory, and where the sequence's states are in arrays.
template <typename Shape>
struct SequenceEnd {
    int cell;                 // of a row of SequenceEnds
    int step;                 // of a row of dt
    index_t offset;           // of an initial state, or of the gradient of a last one
    index_t gradient_offset;  // of the gradient of an initial state

    __device__ __forceinline__ void put(int token, index_t offset_, index_t gradient_offset_) {
        cell = Shape::place(token, 0);
        step = Shape::place(token, Shape::kGap);
        offset = offset_;
        gradient_offset = gradient_offset_;
    }
};

// The initial states and the gradients of last states of a chunk's sequences, for one channel at a time: as rows over
// tokens, so that lanes add them to what their tokens bring. Each warp fills and uses the rows of its own states. They
// are zeros but where sequences begin and end, which is the same for all channels.
template <typename Shape>
struct SequenceEnds {
    static constexpr int kStates = Shape::kStates;
    static constexpr int kTokens = Shape::kTokens;
    static constexpr int kLanes = kWarpSize / kStates;  // sequences that a warp takes at a time
    static_assert(kWarpSize % kStates == 0, "a lane has one of the states for all sequences");
    using Row = float[kChunk];
    alignas(16) Row starts[Shape::kWarps * kStates];
    alignas(16) Row ends[Shape::kWarps * kStates];
    SequenceEnd<Shape> begun[kChunk];
    SequenceEnd<Shape> ended[kChunk];
    int begun_count;
    int ended_count;

    // The whole block finds where sequences begin and end, and has to be synchronised behind it.
    __device__ __forceinline__ void begin(const SelectiveScanBwdOperands& p, const ChunkTokens& tokens) {
        const int thread = static_cast<int>(threadIdx.x);
        if (thread == 0) begun_count = ended_count = 0;
        for (int i = thread * 4; i < Shape::kWarps * kStates * kChunk; i += Shape::kThreads * 4) {
            store(starts[i / kChunk] + i % kChunk, Vec<float, 4>::zero());
            store(ends[i / kChunk] + i % kChunk, Vec<float, 4>::zero());
        }
        int low = 0, high = p.sequences;
        while (low < high) {
            const int middle = low + (high - low) / 2;
            if (first_token(p, middle) < tokens.begin) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        __syncthreads();
        // The sequence before goes on into the chunk, or ends in front of it.
        for (int number = max(low - 1, 0) + thread; number < p.sequences; number += Shape::kThreads) {
            const int first = first_token(p, number) - tokens.begin;
            const int last = first_token(p, number + 1) - tokens.begin - 1;
            if (first >= kChunk) break;
            if (last < first) continue;
            // The order of places has no effect on results. Boundaries that fall, which are wrong, could be of more
            // sequences than a chunk has tokens.
            if (first >= 0 && p.initial_state != nullptr) {
                const int at = atomicAdd(&begun_count, 1);
                if (at < kChunk) {
                    begun[at].put(first, number * p.initial_state_stride[0], number * p.dinitial_state_stride[0]);
                }
            }
            if (last >= 0 && last < kChunk && p.dlast_state != nullptr) {
                const int at = atomicAdd(&ended_count, 1);
                if (at < kChunk) ended[at].put(last, number * p.dlast_state_stride[0], 0);
            }
        }
    }

    // Starts to bring what one channel's sequences begin and end with.
    __device__ __forceinline__ void fetch(const SelectiveScanBwdOperands& p, int channel, int lane, int warp) {
        const int row = warp * kStates + lane % kStates;
        if (row >= p.d_state) return;
        const float* const from = p.initial_state + place(p.initial_state_stride, channel, row);
        const float* const behind = p.dlast_state + place(p.dlast_state_stride, channel, row);
        each(begun, begun_count, lane,
             [&](const SequenceEnd<Shape>& at) { copy_async<4>(starts[row] + at.cell, from + at.offset); });
        each(ended, ended_count, lane,
             [&](const SequenceEnd<Shape>& at) { copy_async<4>(ends[row] + at.cell, behind + at.offset); });
    }

    // Stores the gradients of the initial states, from those of the states behind the first tokens.
    __device__ __forceinline__ void store_gradients(const SelectiveScanBwdOperands& p, const float* dt, float A,
                                                    int channel, int lane, int warp) const {
        const int row = warp * kStates + lane % kStates;
        if (row >= p.d_state) return;
        const float* const cells = starts[row];
        float* const to = p.dinitial_state + place(p.dinitial_state_stride, channel, row);
        const float rate = A * kLog2E;
        each(begun, begun_count, lane, [&](const SequenceEnd<Shape>& at) {
            to[at.gradient_offset] = cells[at.cell] * exp2_approx(dt[at.step] * rate);
        });
    }

    // A lane's tokens of one of the rows.
    __device__ __forceinline__ static void take(const Row& row, int lane, float (&values)[kTokens]) {
        take_tokens<Shape, 0>(row, lane, values);
    }

    // Puts them there.
    __device__ __forceinline__ static void put(Row& row, int lane, const float (&values)[kTokens]) {
        put_tokens<Shape, 0>(row, lane, values);
    }

    // Leaves the gradient of the state behind a lane's t-th token, where a sequence begins.
    __device__ __forceinline__ void put(int row, int lane, int t, float gradient) {
        starts[row][lane * 4 + Shape::place(t, 0)] = gradient;
    }

 private:
    template <typename Take>
    __device__ __forceinline__ static void each(const SequenceEnd<Shape> (&places)[kChunk], int count, int lane,
                                                Take take) {
        count = min(count, kChunk);
        const int first = lane / kStates;
        if (first < count) take(places[first]);
        // More of them are rare, and their places are loaded together.
        constexpr int kAtOnce = 3;
        for (int i = first + kLanes; i < count; i += kAtOnce * kLanes) {
            SequenceEnd<Shape> at[kAtOnce];
#pragma unroll
            for (int j = 0; j < kAtOnce; ++j) at[j] = places[min(i + j * kLanes, count - 1)];
#pragma unroll
            for (int j = 0; j < kAtOnce; ++j) {
                if (i + j * kLanes < count) take(at[j]);
            }
        }
    }

    __device__ __forceinline__ static index_t place(const index_t* stride, int channel, int n) {
        return channel * stride[1] + n * stride[2];
    }
};
