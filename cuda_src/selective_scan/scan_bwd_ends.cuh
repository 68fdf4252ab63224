// The states that packed sequences begin and end with inside chunks that they share.
#pragma once

#include "selective_scan/scan_bwd_numbers.cuh"

// Visits the sequences that have tokens in a chunk, and the empty ones that lie in it, a thread each: calls
// take(number, first, next) with the first token of a sequence and of the one behind it, counted from the chunk's.
template <int kThreads, typename Take>
__device__ __forceinline__ void each_sequence(const SelectiveScanBwdOperands& p, const ChunkTokens& tokens,
                                              bool is_last_chunk, Take take) {
    int low = 0, high = p.sequences;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (first_token(p, middle) < tokens.begin) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    // The one before may go on into the chunk.
    for (int number = max(low - 1, 0) + static_cast<int>(threadIdx.x); number < p.sequences; number += kThreads) {
        const int first = first_token(p, number) - tokens.begin;
        // Empty sequences behind the last token of all count as the last chunk's.
        if (first >= kChunk && !is_last_chunk) break;
        take(number, first, first_token(p, number + 1) - tokens.begin);
    }
}

// The initial states and the gradients of last states of a chunk's sequences, for one channel at a time: as rows over
// tokens, so that lanes add them to what their tokens bring. Each warp fills and uses the rows of its own states. They
// are zeros but where sequences begin and end, which is the same for all channels.
template <typename Shape>
struct SequenceEnds {
    static constexpr int kStates = Shape::kStates;
    static constexpr int kGap = 0;
    static_assert(kWarpSize % kStates == 0, "a lane has one of the states for all sequences");
    using Row = float[kChunk];
    alignas(16) Row starts[Shape::kWarps][kStates];
    alignas(16) Row ends[Shape::kWarps][kStates];
    int numbers[kChunk];
    short first[kChunk];  // negative for a sequence that began in an earlier chunk
    short last[kChunk];   // kChunk for a sequence that ends in a later chunk
    int count;
    int empty;

    // The whole block finds the sequences, and has to be synchronised behind it.
    __device__ __forceinline__ void begin(const SelectiveScanBwdOperands& p, const ChunkShare& share,
                                          const ChunkTokens& tokens) {
        const int thread = static_cast<int>(threadIdx.x);
        if (thread == 0) count = empty = 0;
        float* const rows = starts[0][0];
        for (int i = thread * 4; i < 2 * Shape::kWarps * kStates * kChunk; i += Shape::kThreads * 4) {
            store(rows + i, Vec<float, 4>::zero());
        }
        __syncthreads();
        const bool is_last_chunk = share.chunk + 1 == p.chunks;
        each_sequence<Shape::kThreads>(p, tokens, is_last_chunk, [&](int number, int from, int to) {
            if (to <= from) {
                if (from >= 0) empty = 1;
            } else if (to > 0 && from < kChunk) {
                // Their order has no effect on results.
                const int at = atomicAdd(&count, 1);
                // Boundaries that fall, which are wrong, could be of more sequences than a chunk has tokens.
                if (at >= kChunk) return;
                numbers[at] = number;
                first[at] = static_cast<short>(max(from, -1));
                last[at] = static_cast<short>(min(to - 1, kChunk));
            }
        });
        __syncthreads();
        if (thread == 0) count = min(count, kChunk);
        if (empty != 0 && p.dinitial_state != nullptr) {
            each_sequence<Shape::kThreads>(p, tokens, is_last_chunk, [&](int number, int from, int to) {
                if (to <= from && from >= 0) pass_through(p, share, number);
            });
        }
    }

    // Starts to bring what one channel's sequences begin and end with.
    __device__ __forceinline__ void fetch(const SelectiveScanBwdOperands& p, int channel, int lane, int warp) {
        const int n = warp * kStates + lane % kStates;
        if (n >= p.d_state) return;
        const float* const initial = of(p.initial_state, p.initial_state_stride, channel, n);
        const float* const behind = of(p.dlast_state, p.dlast_state_stride, channel, n);
        for (int i = lane / kStates; i < count; i += kWarpSize / kStates) {
            const index_t number = numbers[i];
            const int from = first[i], to = last[i];
            if (initial != nullptr && from >= 0) {
                copy_async<4>(cell(starts, lane, warp, from), initial + number * p.initial_state_stride[0]);
            }
            if (behind != nullptr && to < kChunk) {
                copy_async<4>(cell(ends, lane, warp, to), behind + number * p.dlast_state_stride[0]);
            }
        }
    }

    // Takes the initial states, which have arrived, through the first tokens of their sequences.
    __device__ __forceinline__ void advance(const SelectiveScanBwdOperands& p, const float* dt, float A, int lane,
                                            int warp) {
        if (p.initial_state == nullptr) return;
        for (int i = lane / kStates; i < count; i += kWarpSize / kStates) {
            const int from = first[i];
            if (from >= 0) *cell(starts, lane, warp, from) *= decay(dt, A, from);
        }
    }

    // Stores the gradients of the initial states, from those of the states behind the first tokens.
    __device__ __forceinline__ void store_gradients(const SelectiveScanBwdOperands& p, const float* dt, float A,
                                                    int channel, int lane, int warp) {
        const int n = warp * kStates + lane % kStates;
        if (p.dinitial_state == nullptr || n >= p.d_state) return;
        float* const to = p.dinitial_state + channel * p.dinitial_state_stride[1] + n * p.dinitial_state_stride[2];
        for (int i = lane / kStates; i < count; i += kWarpSize / kStates) {
            const int from = first[i];
            if (from < 0) continue;
            to[numbers[i] * p.dinitial_state_stride[0]] = *cell(starts, lane, warp, from) * decay(dt, A, from);
        }
    }

 private:
    __device__ __forceinline__ static float* cell(Row (&rows)[Shape::kWarps][kStates], int lane, int warp, int token) {
        return rows[warp][lane % kStates] + Shape::place(token, kGap);
    }

    __device__ __forceinline__ static float decay(const float* dt, float A, int token) {
        return exp2_approx(dt[Shape::place(token, Shape::kGap)] * (A * kLog2E));
    }

    __device__ __forceinline__ static const float* of(const float* states, const index_t* stride, int channel, int n) {
        return states == nullptr ? nullptr : states + channel * stride[1] + n * stride[2];
    }

    // What comes into an empty sequence from behind goes out in front.
    __device__ __forceinline__ static void pass_through(const SelectiveScanBwdOperands& p, const ChunkShare& share,
                                                        int number) {
        const index_t *const from = p.dlast_state_stride, *const to = p.dinitial_state_stride;
        for (int channel = share.first_channel; channel < share.first_channel + share.channels; ++channel) {
            for (int n = 0; n < p.d_state; ++n) {
                p.dinitial_state[number * to[0] + channel * to[1] + n * to[2]] =
                    p.dlast_state == nullptr ? 0.0f
                                             : p.dlast_state[number * from[0] + channel * from[1] + n * from[2]];
            }
        }
    }
};
