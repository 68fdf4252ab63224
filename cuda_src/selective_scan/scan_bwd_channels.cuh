// Rows of contiguous channels in the scan's backward pass. A thread brings its own two tokens of several channels at a
// time, turns them to rows of tokens in shared memory, and turns the results back. No other thread looks at them: none
// of this needs a barrier.
#pragma once

#include "selective_scan/scan_bwd.cuh"

// As many neighbouring channels as a vector of 16 bytes has, of kArrays arrays. On an H200 two vectors of each token,
// which is a whole sector of the L2 cache, take 2 % less, but twice the shared memory.
template <typename T, int kArrays, int kThreads>
struct ChannelGroup {
    static constexpr int kChannels = kGroupChannels<T>;
    static constexpr int kOwn = kChunk / kThreads;
    static_assert(kOwn == 2, "pairs of tokens are turned");
    alignas(16) T landed[kArrays][kOwn][kThreads][kChannels];  // as they are in memory
    alignas(16) T rows[kArrays][kChannels][kChunk];

    // Leaves zeros where no token comes.
    __device__ __forceinline__ void clear(int thread) {
#pragma unroll
        for (int array = 0; array < kArrays; ++array) {
#pragma unroll
            for (int j = 0; j < kOwn; ++j) store(landed[array][j][thread], Vec<T, kChannels>::zero());
        }
    }

    // Starts to bring one array's channels from `channel` on. `has` says which of the thread's tokens there are.
    template <typename Rows, typename Has>
    __device__ __forceinline__ void fetch(int array, const Rows& from, index_t token_step, int channel, int thread,
                                          Has has) {
#pragma unroll
        for (int j = 0; j < kOwn; ++j) {
            if (has(j)) copy_async<16>(landed[array][j][thread], from.place(channel, thread * kOwn + j, token_step));
        }
    }

    // Turns what has arrived, which leaves room for the next channels.
    __device__ __forceinline__ void turn(int thread) {
#pragma unroll
        for (int array = 0; array < kArrays; ++array) {
            const auto first = load<kChannels, Memory::kMutable>(landed[array][0][thread]);
            const auto second = load<kChannels, Memory::kMutable>(landed[array][1][thread]);
#pragma unroll
            for (int i = 0; i < kChannels; ++i) put(array, i, thread, column_of(first, second, i));
        }
    }

    // The thread's tokens of a channel.
    __device__ __forceinline__ Vec<T, 2> take(int array, int i, int thread) const {
        return load<2, Memory::kMutable>(rows[array][i] + thread * kOwn);
    }

    // Puts them, in place of an input that has been used up.
    __device__ __forceinline__ void put(int array, int i, int thread, const Vec<T, 2>& pair) {
        store(rows[array][i] + thread * kOwn, pair);
    }

    // Stores what has been put, of the chunk's first tokens.
    template <typename Rows>
    __device__ __forceinline__ void flush(int array, const Rows& to, index_t token_step, int channel, int thread,
                                          int stored) const {
        Vec<T, 2> columns[kChannels];
#pragma unroll
        for (int i = 0; i < kChannels; ++i) columns[i] = take(array, i, thread);
#pragma unroll
        for (int j = 0; j < kOwn; ++j) {
            const int token = thread * kOwn + j;
            if (token < stored) store(to.place(channel, token, token_step), row_of(columns, j));
        }
    }
};
