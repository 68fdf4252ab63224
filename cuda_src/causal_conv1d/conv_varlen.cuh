// Packed sequences of a convolution: operands, and the sequence of each token.
#pragma once

#include "causal_conv1d/conv_channels.cuh"
#include "causal_conv1d/conv_column.cuh"
#include "causal_conv1d/conv_gates.cuh"
#include "causal_conv1d/conv_ranges.cuh"
#include "common/sequences.cuh"
#include "common/warp.cuh"

// Strides are in elements. All pointers but x and weight may be null; without query_start_loc all tokens are one
// sequence. The channels fall into ranges, each with an output of its own, and the channels of a range into heads. The
// fields that every launch reads are close together: arguments arrive by cache lines, one miss after another.
struct CausalConv1dVarlenOperands {
    const void* x;
    const void* weight;
    const void* bias;
    void* conv_states;
    const void* query_start_loc;
    const void* cache_indices;
    const void* has_initial_state;
    const void* state_column;
    const void* dst_state_indices;
    void* initial_states;  // in the place of conv_states: only read
    void* out[kMaxRanges];
    const void* snapshots;
    const void* snapshot_count;
    void* snapshot_out;
    const void* pre_gate;
    const void* post_gate;
    const void* residual;
    void* payload;
    const void* payload_gates[2];
    void* scratch;                  // what is kept of x and of states where results go over x: conv_borders.cuh
    index_t x_stride[2];            // dim, token
    index_t conv_states_stride[3];  // slot, dim, column; of initial_states where these are given
    index_t query_start_loc_stride;
    index_t cache_indices_stride;
    index_t has_initial_state_stride;
    index_t slots;         // slots of conv_states
    index_t first_column;  // the first column of conv_states that the filter reads: it reads the last kWidth - 1
    index_t pad_slot_id;
    int sequences;
    int total;  // tokens of x
    int dim;
    int bias_is_float32;
    int taps_are_packed;
    int has_states;         // conv_states or initial_states is given; its pointer is null when it has no columns
    int states_are_packed;  // channel vectors of x are aligned vectors of conv_states, too
    int keeps_padding;      // results of padding are not written, instead of zeros
    int query_start_loc_is_int64;
    int cache_indices_is_int64;
    int ranges;
    index_t out_stride[4 * kMaxRanges];  // batch, token, head, channel of the head, for each range
    int range_end[kMaxRanges];           // the channel behind the last one of each range
    FastDiv head_dim[kMaxRanges];
    int range_is_packed[kMaxRanges];  // channel vectors are vectors of the output, unless they cross the range's end
    index_t weight_stride[2];         // dim, width
    index_t bias_stride;
    index_t state_column_stride;
    index_t slot_columns;  // columns of cache_indices, with state_column
    index_t slot_column_stride;
    index_t dst_state_indices_stride;
    int state_column_is_int64;
    int dst_state_indices_is_int64;
    index_t snapshots_stride[2];  // row, field
    index_t snapshot_stride[3];   // slot, dim, column of the array that snapshots go to
    index_t snapshot_slots;
    index_t snapshot_pad_slot;
    int snapshot_first_column;  // of that array
    int snapshot_columns;       // inputs of a snapshot
    int snapshot_rows;
    unsigned snapshot_groups;  // groups of blocks that have snapshots
    int snapshots_in_pool;     // they go to conv_states
    int snapshots_are_packed;  // channel vectors of x are aligned vectors of a snapshot, too
    int snapshots_is_int64;
    int snapshot_count_is_int64;
    int border_tokens;           // tokens between two borders, 0 where results do not go over x
    index_t pre_gate_stride[2];  // dim, token
    index_t post_gate_stride[2];
    index_t residual_stride[2];
    index_t payload_stride[2];        // token, column
    index_t payload_gates_stride[4];  // token, head, of one and of the other
    index_t payload_heads;            // columns of each of the gates
    index_t border_states_at;         // bytes of scratch before its states, or before results of prefixes
};

// What only kAddressed kernels do costs the others nothing: they choose columns of cache_indices, move states to other
// slots or only read them, store snapshots of them, and leave padding as it is.

// The pool that sequences start from.
template <bool kAddressed, typename state_t>
__device__ __forceinline__ state_t* states_of(const CausalConv1dVarlenOperands& p) {
    return static_cast<state_t*>(kAddressed && p.initial_states != nullptr ? p.initial_states : p.conv_states);
}

// Whether a sequence goes on from the contents of its slot; else it starts from zeros.
template <bool kAddressed>
__device__ __forceinline__ bool goes_on(const CausalConv1dVarlenOperands& p, int number) {
    return (kAddressed && p.initial_states != nullptr && p.has_initial_state == nullptr) || has_past(p, number);
}

// The slot that a sequence's final state goes to, if there is a pool; -1 for none.
template <bool kAddressed>
__device__ __forceinline__ int load_target(const CausalConv1dVarlenOperands& p, int number, int start) {
    if (!kAddressed) return start;
    return p.initial_states != nullptr ? -1 : load_final_slot(p, number, start);
}

// An array beside x at kVec channels of a token; null where there is no array.
template <typename T, int kVec>
__device__ __forceinline__ const T* beside_x(const void* array, const index_t* stride, index_t channel, index_t token) {
    if (array == nullptr) return nullptr;
    return static_cast<const T*>(array) + along_channels<kVec>(channel, stride[0]) + token * stride[1];
}

// What the filter reads at a token of kVec channels: x, in kGated kernels times pre_gate.
template <bool kGated, Memory kMemory, typename T, int kVec>
__device__ __forceinline__ Vec<T, kVec> load_input(const CausalConv1dVarlenOperands& p, const T* x, index_t channel,
                                                   index_t token) {
    Vec<T, kVec> v = load<kVec, kMemory>(x);
    if constexpr (kGated) {
        const T* const gate = beside_x<T, kVec>(p.pre_gate, p.pre_gate_stride, channel, token);
        if (gate != nullptr) v = multiply(v, load<kVec>(gate));
    }
    return v;
}

// Calls visit(begin, end, is_sequence) for each of these runs that has results, with all lanes of the warp, but for
// sequences of at most `prefix` tokens. A sequence without a slot counts as padding, not as a sequence.
template <bool kAddressed, typename Visit>
__device__ __forceinline__ void visit_sequences(const CausalConv1dVarlenOperands& p, int from, int to, int prefix,
                                                Visit visit) {
    visit_runs<kAddressed>(p, from, to, [&](int, int begin, int end, int slot, unsigned left) {
        const unsigned sequences = lanes_where(slot >= 0);
        // One by one, 32 single tokens would take a microsecond.
        left &= lanes_where(slot < 0 || end - begin > prefix);
        if (kAddressed && p.keeps_padding) left &= sequences;
        for (; left != 0; left &= left - 1) {
            const int lane = lowest(left);
            visit(from_lane(begin, lane), from_lane(end, lane), (sequences >> lane & 1) != 0);
        }
    });
}
