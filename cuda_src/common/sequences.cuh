// Packed sequences: where one begins, which slot of a pool holds its state, and whether it goes on from there.
#pragma once

#include "common/warp.cuh"

// Operands have query_start_loc, cache_indices and has_initial_state, each of which may be null, with their strides in
// elements; sequences, total, slots, pad_slot_id and has_states. Where a function lets its caller choose between
// columns of an array of slots, and name the slots of final states, they have state_column and dst_state_indices, too.

// The first token of a sequence. Number -1 stands for the padding before all of them, `sequences` for that behind them.
// A token outside the tensor is brought inside: wrong numbers give wrong results, not wrong accesses.
template <typename Operands>
__device__ __forceinline__ int first_token(const Operands& p, int number) {
    if (number < 0) return 0;
    if (number > p.sequences) return p.total;
    if (p.query_start_loc == nullptr) return number == 0 ? 0 : p.total;
    const index_t token = load_index(p.query_start_loc, number * p.query_start_loc_stride, p.query_start_loc_is_int64);
    return token < 0 ? 0 : token > p.total ? p.total : static_cast<int>(token);
}

// first_token() in two steps, between which others can be loaded.
template <typename Operands>
struct Borders {
    const Operands& p;
    // Whether there is query_start_loc. Opaque, or else a loop over sequences has code of its own for either case.
    int are_given;

    __device__ __forceinline__ explicit Borders(const Operands& p_)
        : p(p_), are_given(opaque(p_.query_start_loc != nullptr ? 1 : 0)) {}

    __device__ __forceinline__ RawIndex load(int number) const {
        RawIndex raw;
        if (are_given != 0 && number >= 0 && number <= p.sequences) {
            raw.load(p.query_start_loc, number * p.query_start_loc_stride, p.query_start_loc_is_int64);
        }
        return raw;
    }

    __device__ __forceinline__ int token(const RawIndex& raw, int number) const {
        const int given = raw.clamped(p.query_start_loc_is_int64, p.total);
        const int only = number > 0 ? p.total : 0;
        return number < 0 ? 0 : number > p.sequences ? p.total : are_given != 0 ? given : only;
    }
};

// A slot as an index array has it; -1 for one that is pad_slot_id or not in the pool.
template <typename Operands>
__device__ __forceinline__ int slot_in_pool(const Operands& p, index_t slot) {
    return slot == p.pad_slot_id || slot < 0 || slot >= p.slots ? -1 : static_cast<int>(slot);
}

// The slot of a sequence; -1 for padding, and for a sequence with a slot that is pad_slot_id or not in the pool.
// Results are zeros then.
template <typename Operands>
__device__ __forceinline__ int load_slot(const Operands& p, int number) {
    if (number < 0 || number >= p.sequences) return -1;
    if (!p.has_states) return 0;
    return slot_in_pool(p, p.cache_indices == nullptr ? number
                                                      : load_index(p.cache_indices, number * p.cache_indices_stride,
                                                                   p.cache_indices_is_int64));
}

// The slot that an array of slots gives a sequence, in the sequence's own column where the array has several; -1 where
// there is no such column.
template <typename Operands>
__device__ __forceinline__ index_t load_given_slot(const Operands& p, const void* slots, index_t stride, int is_int64,
                                                   int number) {
    index_t place = number * stride;
    if (p.state_column != nullptr) {
        const index_t column = load_index(p.state_column, number * p.state_column_stride, p.state_column_is_int64);
        if (column < 0 || column >= p.slot_columns) return -1;
        place += column * p.slot_column_stride;
    }
    return load_index(slots, place, is_int64);
}

// The slot of a sequence in a column of cache_indices; -1 where there is no such column.
template <typename Operands>
__device__ __forceinline__ index_t load_slot_in_column(const Operands& p, int number, index_t column) {
    if (column < 0 || column >= p.slot_columns) return -1;
    return load_index(p.cache_indices, number * p.cache_indices_stride + column * p.slot_column_stride,
                      p.cache_indices_is_int64);
}

// The slot that a sequence starts from: load_slot() for operands with state_column. Only slots that are given, not
// numbers of sequences, are compared with pad_slot_id.
template <typename Operands>
__device__ __forceinline__ int load_start_slot(const Operands& p, int number) {
    if (number < 0 || number >= p.sequences) return -1;
    if (!p.has_states) return 0;
    if (p.cache_indices == nullptr) return number < p.slots ? number : -1;
    return slot_in_pool(p,
                        load_given_slot(p, p.cache_indices, p.cache_indices_stride, p.cache_indices_is_int64, number));
}

// load_start_slot() where calls are addressed by state_column and dst_state_indices, else load_slot().
template <bool kAddressed, typename Operands>
__device__ __forceinline__ int load_first_slot(const Operands& p, int number) {
    if constexpr (kAddressed) {
        return load_start_slot(p, number);
    } else {
        return load_slot(p, number);
    }
}

// The slot that the final state of a sequence goes to, which starts from slot `start`; -1 for none.
template <typename Operands>
__device__ __forceinline__ int load_final_slot(const Operands& p, int number, int start) {
    if (p.dst_state_indices == nullptr) return start;
    return slot_in_pool(
        p, load_index(p.dst_state_indices, number * p.dst_state_indices_stride, p.dst_state_indices_is_int64));
}

// Whether a sequence goes on from its state; else it starts from zeros.
template <typename Operands>
__device__ __forceinline__ bool has_past(const Operands& p, int number) {
    return p.has_initial_state != nullptr &&
           static_cast<const unsigned char*>(p.has_initial_state)[number * p.has_initial_state_stride] != 0;
}

// The number of the run (a sequence, or padding before the first one or behind the last) that holds the token `from`,
// or of one shortly before it. All lanes of a warp take part and look at 32 sequences in one step, so that thirty
// sequences take no step and a thousand take one.
template <typename Operands>
__device__ __forceinline__ int find_run(const Operands& p, int from) {
    int low = -1;
    for (int high = p.sequences + 1; high - low >= kWarpSize;) {
        const int step = (high - low + kWarpSize - 1) / kWarpSize;
        const int number = low + (lane_id() + 1) * step;
        low += step * __popc(lanes_where(number < high && first_token(p, number) <= from));
        high = min(high, low + step);
    }
    return low;
}

// Visits the runs that reach into the tokens from `from` to `to` - 1 in order, 31 at a time: calls visit(number, begin,
// end, slot, lanes) with one run per lane, where `lanes` has the bits of lanes with a run that does reach into them.
template <bool kAddressed = false, typename Operands, typename Visit>
__device__ __forceinline__ void visit_runs(const Operands& p, int from, int to, Visit visit) {
    int low = find_run(p, from);
    int next;
    do {
        const int number = low + lane_id();
        const int begin = first_token(p, number);
        const int slot = load_first_slot<kAddressed>(p, number);
        const int end = from_lane(begin, lane_id() + 1);
        visit(number, begin, end, slot, lanes_where(lane_id() < kWarpSize - 1 && begin < min(end, to) && end > from));
        next = from_lane(begin, kWarpSize - 1);
        low += kWarpSize - 1;
    } while (next < min(to, p.total));
}
