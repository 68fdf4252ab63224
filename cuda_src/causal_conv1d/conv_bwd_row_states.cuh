// States of a warp's channels, several packed sequences at a time.
#pragma once

#include "causal_conv1d/conv_bwd.cuh"

// States of a warp's 32 channels, which come to its shared memory and leave it several at a time: a row there has kHalo
// columns by lane, as memory most often has them, and in what memory has, float or input_t.
template <int kHalo, typename input_t>
struct StateRows {
    static constexpr int kBytes = 1536;                       // in shared memory
    static constexpr int kTurns = kBytes / (kWarpSize * 16);  // vectors that a lane has of them

    unsigned char* rows;  // in shared memory
    bool is_float32;

    __device__ __forceinline__ StateRows(unsigned char* rows_, int is_float32_)
        : rows(rows_), is_float32(is_float32_ != 0) {}

    // Rows that fit.
    __device__ __forceinline__ static int count(bool is_float32) {
        constexpr int kElements = kWarpSize * kHalo;
        return is_float32 ? kBytes / (kElements * 4) : kBytes / (kElements * static_cast<int>(sizeof(input_t)));
    }

    // The lane's first column of a row.
    __device__ __forceinline__ static int place_of(int row) { return (row * kWarpSize + lane_id()) * kHalo; }

    __device__ __forceinline__ float get(int place) const {
        if (is_float32) return reinterpret_cast<const float*>(rows)[place];
        return Dtype<input_t>::to_float(reinterpret_cast<const input_t*>(rows)[place]);
    }

    __device__ __forceinline__ void put(int place, float value) const {
        if (is_float32) {
            reinterpret_cast<float*>(rows)[place] = value;
        } else {
            reinterpret_cast<input_t*>(rows)[place] = Dtype<input_t>::from_float(value);
        }
    }
};

// Where the states of a warp's channels are in global memory.
template <int kHalo, typename input_t>
struct StateArray {
    using Rows = StateRows<kHalo, input_t>;
    using Chunk = Vec<float, 4>;

    char* first;  // the first channel's column 0 in slot 0
    index_t slot_bytes, channel_bytes, column_bytes;
    int size;       // bytes of an element
    int channels;   // of the warp that exist
    bool is_dense;  // the warp's part of a slot is a row as shared memory has it

    __device__ __forceinline__ StateArray(const CausalConv1dBwdOperands& p, const void* states,
                                          const index_t (&stride)[3], int column, int is_float32,
                                          index_t first_channel) {
        size = is_float32 ? 4 : static_cast<int>(sizeof(input_t));
        slot_bytes = stride[0] * size;
        channel_bytes = stride[1] * size;
        column_bytes = stride[2] * size;
        first = static_cast<char*>(const_cast<void*>(states)) + first_channel * channel_bytes + column * column_bytes;
        channels = static_cast<int>(min(p.dim - first_channel, static_cast<index_t>(kWarpSize)));
        is_dense = channels == kWarpSize && stride[1] == kHalo && (kHalo == 1 || stride[2] == 1) &&
                   (reinterpret_cast<size_t>(first) | static_cast<size_t>(slot_bytes)) % Chunk::kBytes == 0;
    }

    // Visits the lane's vectors of `count` rows: visit(turn, row, offset in the row).
    template <typename Visit>
    __device__ __forceinline__ void visit_vectors(int count, Visit visit) const {
        constexpr int kRowVecs = kHalo * kWarpSize * static_cast<int>(sizeof(input_t)) / Chunk::kBytes;
        // A division by one number: those by two would become one by any number.
        const bool is_longer = size > static_cast<int>(sizeof(input_t));
#pragma unroll
        for (int i = 0; i < Rows::kTurns; ++i) {
            const int number = i * kWarpSize + lane_id(), part = number / kRowVecs;
            const int row = is_longer ? part / 2 : part;
            visit(i, row, row < count, (number - (is_longer ? 2 * row : row) * kRowVecs) * Chunk::kBytes);
        }
    }

    // Starts to load rows, if they are dense: row i of the slot that lane first_lane + i names, or zeros if that is
    // negative.
    __device__ __forceinline__ void load_rows(Chunk (&loaded)[Rows::kTurns], int count, int slot,
                                              int first_lane) const {
        visit_vectors(count, [&](int i, int row, bool is_there, int offset) {
            const int from = from_lane(slot, first_lane + row);
            loaded[i] = Chunk::zero();
            if (is_dense && is_there && from >= 0) {
                loaded[i] = load<4>(reinterpret_cast<const float*>(first + from * slot_bytes + offset));
            }
        });
    }

    // Brings a line of a slot's row to the L2 cache.
    __device__ __forceinline__ void touch(int slot, int line) const {
        if (is_dense && slot >= 0 && line * 128 < kHalo * kWarpSize * size)
            prefetch(first + slot * slot_bytes + line * 128);
    }

    // Fills rows with what load_rows() has loaded, or else element by element.
    __device__ __forceinline__ void fill(const Rows& to, const Chunk (&loaded)[Rows::kTurns], int count, int slot,
                                         int first_lane) const {
        if (is_dense) {
#pragma unroll
            for (int i = 0; i < Rows::kTurns; ++i) {
                store(reinterpret_cast<float*>(to.rows) + (i * kWarpSize + lane_id()) * 4, loaded[i]);
            }
            return;
        }
#pragma unroll 1
        for (int row = 0; row < count; ++row) {
            const int from = from_lane(slot, first_lane + row);
            const char* at = first + from * slot_bytes + lane_id() * channel_bytes;
            float values[kHalo];
#pragma unroll
            for (int k = 0; k < kHalo; ++k, at += column_bytes) {
                values[k] = 0.0f;
                if (from >= 0 && lane_id() < channels) values[k] = load_number<input_t>(at, 0, to.is_float32);
            }
#pragma unroll
            for (int k = 0; k < kHalo; ++k) to.put(Rows::place_of(row) + k, values[k]);
        }
    }

    // Stores rows: row i, if bit i of `rows` says so, to slot first_slot + i.
    __device__ __forceinline__ void store_rows(const Rows& from, unsigned rows, int first_slot) const {
        if (is_dense) {
            visit_vectors(kWarpSize, [&](int, int row, bool, int offset) {
                if (rows >> row & 1) {
                    const int at = size * kHalo * kWarpSize * row + offset;
                    store(reinterpret_cast<float*>(first + (first_slot + row) * slot_bytes + offset),
                          load<4, Memory::kMutable>(reinterpret_cast<const float*>(from.rows + at)));
                }
            });
            return;
        }
        for (; rows != 0; rows &= rows - 1) {
            const int row = lowest(rows);
            char* at = first + (first_slot + row) * slot_bytes + lane_id() * channel_bytes;
#pragma unroll
            for (int k = 0; k < kHalo; ++k, at += column_bytes) {
                if (lane_id() < channels)
                    store_number<input_t>(at, 0, from.is_float32, from.get(Rows::place_of(row) + k));
            }
        }
    }
};
