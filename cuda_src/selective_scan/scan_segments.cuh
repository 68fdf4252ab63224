// Rows of a selective scan cut into segments that are scanned at the same time, where channels alone do not fill a GPU.
#pragma once

#include "selective_scan/scan.cuh"

// Strides are in elements. D, z, delta_bias, initial_state, last_state and chunk_states may be null, and so may scratch
// where rows have one segment. What every launch needs comes first: arguments arrive by cache lines, one miss after
// another.
struct SelectiveScanOperands {
    const void* u;
    const void* delta;
    const void* A;
    const void* B;
    const void* C;
    const void* D;
    const void* z;
    const void* delta_bias;
    const float* initial_state;
    void* out;
    float* last_state;
    float* chunk_states;
    float* scratch;
    index_t u_stride[3];  // batch, dim, token
    index_t delta_stride[3];
    index_t z_stride[3];
    index_t out_stride[3];
    index_t B_stride[4];  // batch, group, n, token; for a constant 0, dim, n, 0
    index_t C_stride[4];
    index_t A_stride[2];  // dim, n
    index_t D_stride;
    index_t delta_bias_stride;
    FastDiv dim_blocks;  // blocks per segment
    FastDiv segments;    // per row
    FastDiv group_dim;   // channels per group
    int batch;
    int dim;
    int seqlen;
    int d_state;
    int segment_tokens;
    int delta_softplus;
    int B_is_float32;
    int C_is_float32;
    int D_is_float32;
    int delta_bias_is_float32;
    index_t initial_state_stride[3];  // batch, dim, n
    index_t last_state_stride[3];
    index_t chunk_states_stride[4];  // batch, chunk, dim, n
    int phase_bits;                  // of rows that have phases (selective_scan/tile_block.cuh)
    int first_phase;
    index_t matrix_phase_step;
};

// The segment and the channels of a block.
template <typename Shape>
struct ScanSegment {
    static constexpr int kChunk = 256;  // tokens between the states that a backward pass starts from

    int batch;
    int number;  // among the segments of the row
    int first_channel;
    int begin;  // its first token
    int end;    // the token behind its last

    __device__ __forceinline__ explicit ScanSegment(const SelectiveScanOperands& p) {
        const QuotientRemainder row_block = divide(blockIdx.x, p.dim_blocks);
        const QuotientRemainder batch_segment = divide(row_block.quotient, p.segments);
        batch = static_cast<int>(batch_segment.quotient);
        number = static_cast<int>(batch_segment.remainder);
        first_channel = static_cast<int>(row_block.remainder) * Shape::kChannels;
        begin = number * p.segment_tokens;
        end = is_last(p) ? p.seqlen : begin + p.segment_tokens;
    }

    __device__ __forceinline__ bool is_last(const SelectiveScanOperands& p) const {
        return number + 1 == static_cast<int>(p.segments.divisor);
    }
};

// The states that segments pass on, (batch, segment, dim, d_state): at first the state behind each segment when that
// begins with zeros, in the end the state before each. In front of them the sums of dt, (batch, segment, dim).
struct ScanScratch {
    float* steps;
    float* states;

    __device__ __forceinline__ explicit ScanScratch(const SelectiveScanOperands& p)
        : steps(p.scratch), states(steps + row(p, p.batch, 0)) {}

    __device__ __forceinline__ static index_t row(const SelectiveScanOperands& p, int batch, int segment) {
        return (static_cast<index_t>(batch) * p.segments.divisor + segment) * p.dim;
    }

    __device__ __forceinline__ float* state(const SelectiveScanOperands& p, int batch, int segment, int channel) const {
        return states + (row(p, batch, segment) + channel) * p.d_state;
    }

    __device__ __forceinline__ float* step(const SelectiveScanOperands& p, int batch, int segment, int channel) const {
        return steps + row(p, batch, segment) + channel;
    }
};

// The states of a channel in an array of them, `step` elements apart.
template <typename Scan>
__device__ __forceinline__ void load_states(Scan& scan, const float* at, index_t step) {
#pragma unroll
    for (int s = 0; s < Scan::kStates; ++s) {
        if (scan.is_state(s)) scan.h[s] = load<1, Memory::kMutable>(at + scan.number(s) * step).to_float(0);
    }
}

template <typename Scan>
__device__ __forceinline__ void store_states(const Scan& scan, float* at, index_t step) {
    if (scan.is_idle) return;
#pragma unroll
    for (int s = 0; s < Scan::kStates; ++s) {
        if (scan.is_state(s)) at[scan.number(s) * step] = scan.h[s];
    }
}
