// Packed sequences of a convolution: whose a token is, and where results go.
#pragma once

#include "causal_conv1d/conv_channels.cuh"
#include "causal_conv1d/conv_ranges.cuh"
#include "common/sequences.cuh"
#include "common/warp.cuh"

// Strides are in elements. bias, conv_states, query_start_loc, cache_indices and has_initial_state may be null; without
// query_start_loc all tokens are one sequence. The channels fall into ranges, each with an output of its own, and a
// range's channels into heads. What every launch needs is close together: arguments arrive by cache lines, one miss
// after another.
struct CausalConv1dVarlenOperands {
    const void* x;
    const void* weight;
    const void* bias;
    void* conv_states;
    const void* query_start_loc;
    const void* cache_indices;
    const void* has_initial_state;
    void* out[16];
    index_t x_stride[2];            // dim, token
    index_t conv_states_stride[3];  // slot, dim, column
    index_t query_start_loc_stride;
    index_t cache_indices_stride;
    index_t has_initial_state_stride;
    index_t slots;         // of conv_states
    index_t first_column;  // of conv_states that is live: the last kWidth - 1 are
    index_t pad_slot_id;
    int sequences;
    int total;  // tokens
    int dim;
    int bias_is_float32;
    int taps_are_packed;
    int has_states;         // a pool of states without columns has no memory
    int states_are_packed;  // channels are contiguous, and aligned to what a channel vector has of them
    int query_start_loc_is_int64;
    int cache_indices_is_int64;
    int ranges;
    index_t out_stride[64];  // of every range: batch, token, head, channel of the head
    int range_end[16];       // the channel behind the last one of a range
    FastDiv head_dim[16];
    int range_is_packed[16];   // channel vectors are vectors of the output, too, unless they cross the range's end
    index_t weight_stride[2];  // dim, width
    index_t bias_stride;
};

// The number of a run of tokens, a sequence or what is nobody's, that the token `from` is in or that is shortly before
// it. All lanes of a warp take part. They look at 32 sequences in one step, so that none is needed for thirty sequences
// and one for a thousand.
__device__ __forceinline__ int find_run(const CausalConv1dVarlenOperands& p, int from) {
    int low = -1;
    for (int high = p.sequences + 1; high - low >= kWarpSize;) {
        const int step = (high - low + kWarpSize - 1) / kWarpSize;
        const int number = low + (lane_id() + 1) * step;
        low += step * __popc(lanes_where(number < high && first_token(p, number) <= from));
        high = min(high, low + step);
    }
    return low;
}

// Of the runs of tokens that reach into those from `from` to `to` - 1, in order, 31 at a time: calls visit(number,
// begin, end, slot, lanes), where a lane has a run each, and `lanes` are those that have one that does.
template <typename Visit>
__device__ __forceinline__ void visit_runs(const CausalConv1dVarlenOperands& p, int from, int to, Visit visit) {
    int low = find_run(p, from);
    int next;
    do {
        const int number = low + lane_id();
        const int begin = first_token(p, number);
        const int slot = load_slot(p, number);
        const int end = from_lane(begin, lane_id() + 1);
        visit(number, begin, end, slot, lanes_where(lane_id() < kWarpSize - 1 && begin < min(end, to) && end > from));
        next = from_lane(begin, kWarpSize - 1);
        low += kWarpSize - 1;
    } while (next < min(to, p.total));
}

// Calls visit(begin, end, is_someones) for each of these runs, with all lanes of the warp.
template <typename Visit>
__device__ __forceinline__ void visit_sequences(const CausalConv1dVarlenOperands& p, int from, int to, Visit visit) {
    visit_runs(p, from, to, [&](int, int begin, int end, int slot, unsigned left) {
        const unsigned someones = lanes_where(slot >= 0);
        for (; left != 0; left &= left - 1) {
            const int lane = __ffs(left) - 1;
            visit(from_lane(begin, lane), from_lane(end, lane), (someones >> lane & 1) != 0);
        }
    });
}
