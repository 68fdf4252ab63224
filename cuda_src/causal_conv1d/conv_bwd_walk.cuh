// Which vectors of a channel's rows a warp's lanes hold in one group, and how they move to the group before.
#pragma once

#include "causal_conv1d/conv_bwd.cuh"
#include "common/fastdiv.cuh"
#include "common/warp.cuh"

// A lane's vector of a group: vector `vec` of a row, which begins with the token `token`. Vectors lie where memory is
// aligned, not where the row begins: vector j holds the tokens from j * kVec - phase on.
template <int kVec, bool kEdges>
struct Place {
    int batch;
    int vec;
    int token;
    int phase;

    // `row` is any of x, dx at the row's first token: all are equally far from where memory is aligned.
    template <typename T>
    __device__ __forceinline__ Place(int batch_, int vec_, const T* row)
        : batch(batch_), vec(vec_), phase(kEdges ? reinterpret_cast<size_t>(row) / sizeof(T) % kVec : 0) {
        token = vec * kVec - phase;
    }

    // The vector's first element, in a row whose elements are `step` apart unless kVec says that it is 1.
    template <typename T>
    __device__ __forceinline__ T* at(T* row, index_t step) const {
        return kVec > 1 ? row - phase + static_cast<unsigned>(vec) * kVec : row + token * step;
    }

    // Which elements of the vector lie inside the row.
    __device__ __forceinline__ int begin() const { return token < 0 ? -token : 0; }
    __device__ __forceinline__ int end(int seqlen) const { return seqlen - token < kVec ? seqlen - token : kVec; }
    __device__ __forceinline__ bool is_whole(int seqlen) const {
        return !kEdges || (token >= 0 && token + kVec <= seqlen);
    }
};

// How far a lane's vector is from that of the group before.
struct GroupStep {
    int rows;
    int vecs;      // beyond those rows
    int row_vecs;  // vectors a row
};

// A lane's vectors from one group on, downwards, and where their rows are in kArrays arrays.
template <typename T, int kArrays>
struct LaneWalk {
    int batch;
    int vec;
    T* row[kArrays];
    index_t stride[kArrays];

    __device__ __forceinline__ explicit LaneWalk(const QuotientRemainder& batch_vec)
        : batch(static_cast<int>(batch_vec.quotient)), vec(static_cast<int>(batch_vec.remainder)) {}

    // `first` is the channel's first row.
    __device__ __forceinline__ void add(int i, T* first, const index_t (&strides)[3]) {
        stride[i] = strides[0];
        row[i] = first + batch * strides[0];
    }

    __device__ __forceinline__ void step(const GroupStep& by) {
        vec -= by.vecs;
        if (by.rows > 0 || vec < 0) {
            const int rows = by.rows + (vec < 0 ? 1 : 0);
            vec += vec < 0 ? by.row_vecs : 0;
            batch -= rows;
#pragma unroll
            for (int i = 0; i < kArrays; ++i) row[i] -= rows * stride[i];
        }
    }
};

// Where a lane stands among those of its channel in the warp, and which ones are its neighbours.
struct ChannelLanes {
    int count;
    int number;
    int first;  // lane of the warp
    int above;  // the lane that has the next vector, in the group behind for the last one
    int below;  // the lane that has the vector before, in the group before for the first one

    __device__ __forceinline__ explicit ChannelLanes(unsigned count_)
        : count(static_cast<int>(count_)), number(lane_id() & (count - 1)), first(lane_id() - number) {
        // Kept in registers, because a group's instructions are few.
        above = opaque(first + ((number + 1) & (count - 1)));
        below = opaque(first + ((number - 1) & (count - 1)));
    }

    // The lane `distance` further; the last ones go on with the first.
    template <int kDistance>
    __device__ __forceinline__ int at() const {
        return kDistance == 1 ? above : kDistance == -1 ? below : first + ((number + kDistance) & (count - 1));
    }
};
