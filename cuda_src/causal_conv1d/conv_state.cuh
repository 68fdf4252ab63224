// The prefix of a packed sequence, and the sequence's state in the pool: the last kWidth - 1 inputs.
#pragma once

#include "causal_conv1d/conv_column.cuh"
#include "causal_conv1d/conv_snapshots.cuh"
#include "causal_conv1d/conv_varlen.cuh"

// Where a sequence's tokens and states are.
template <bool kAddressed>
struct PrefixPlace {
    int number;
    int begin;
    int length;  // 0 for an empty sequence and for one without a slot: it has no prefix
    int slot;
    int target;     // the slot of the final state, -1 for none
    bool has_past;  // the sequence goes on from the contents of its slot

    __device__ __forceinline__ PrefixPlace() = default;

    // Indices are kept as they were loaded, so that one wait serves for all.
    __device__ __forceinline__ PrefixPlace(const CausalConv1dVarlenOperands& p, int number_) : number(number_) {
        RawIndex first_raw, end_raw, slot_raw;
        if (p.query_start_loc != nullptr) {
            first_raw.load(p.query_start_loc, number * p.query_start_loc_stride, p.query_start_loc_is_int64);
            end_raw.load(p.query_start_loc, (number + 1) * p.query_start_loc_stride, p.query_start_loc_is_int64);
        }
        if (!kAddressed && p.has_states && p.cache_indices != nullptr) {
            slot_raw.load(p.cache_indices, number * p.cache_indices_stride, p.cache_indices_is_int64);
        }
        has_past = goes_on<kAddressed>(p, number);
        begin = number == 0 ? 0 : p.total;
        int end = p.total;
        if (p.query_start_loc != nullptr) {
            begin = first_raw.clamped(p.query_start_loc_is_int64, p.total);
            end = end_raw.clamped(p.query_start_loc_is_int64, p.total);
        }
        if constexpr (kAddressed) {
            slot = load_first_slot<true>(p, number);
        } else if (p.has_states) {
            slot = slot_in_pool(p, p.cache_indices == nullptr ? number : slot_raw.value(p.cache_indices_is_int64));
        } else {
            slot = 0;
        }
        target = load_target<kAddressed>(p, number, slot);
        length = slot < 0 ? 0 : max(0, end - begin);
    }
};

// The prefix of a sequence, in kVec channels: its first kWidth - 1 tokens, with outputs that need the state. The thread
// that computes them also updates the state; no other thread reads or writes it.
template <int kWidth, typename input_t, typename state_t, int kVec, bool kAddressed, bool kGated = false>
struct SequencePrefix : PrefixPlace<kAddressed> {
    static constexpr int kHalo = kWidth - 1;
    using Place = PrefixPlace<kAddressed>;
    using Input = Vec<input_t, kVec>;
    using State = Vec<state_t, kVec>;
    using Place::begin, Place::length, Place::slot, Place::target, Place::has_past;

    const input_t* x;                     // at the first token
    StateColumn<state_t, kVec> earliest;  // the first column that the filter reads
    State past[kHalo];
    Input first[kHalo];
    Input last[kHalo];  // loaded when the sequence is longer than its prefix

    __device__ __forceinline__ explicit SequencePrefix(const Place& place) : Place(place) {}
    __device__ __forceinline__ SequencePrefix(const CausalConv1dVarlenOperands& p, int number) : Place(p, number) {}

    __device__ __forceinline__ void load(const CausalConv1dVarlenOperands& p, index_t channel) {
        const index_t step = p.x_stride[1];
        x = static_cast<const input_t*>(p.x) + along_channels<kVec>(channel, p.x_stride[0]) + begin * step;
        earliest.at = states_of<kAddressed, state_t>(p) + p.first_column * p.conv_states_stride[2] +
                      slot * p.conv_states_stride[0] + channel * p.conv_states_stride[1];
        earliest.channel_step = p.conv_states_stride[1];
        earliest.is_packed = p.states_are_packed != 0;
        const input_t* at = x;
#pragma unroll
        for (int i = 0; i < kHalo; ++i, at += step) {
            first[i] = Input::zero();
            if (i < length) first[i] = load_input<kGated, Memory::kConstant, input_t, kVec>(p, at, channel, begin + i);
            past[i] = State::zero();
        }
        if (has_past) {
            StateColumn<state_t, kVec> column = earliest;
#pragma unroll
            for (int i = 0; i < kHalo; ++i, column = column + p.conv_states_stride[2]) past[i] = column.load_all();
        }
        if (length > kHalo) {
            at = x + (length - kHalo) * step;
#pragma unroll
            for (int i = 0; i < kHalo; ++i, at += step) {
                last[i] =
                    load_input<kGated, Memory::kConstant, input_t, kVec>(p, at, channel, begin + length - kHalo + i);
            }
        }
    }

    // Tokens of the prefix that exist.
    __device__ __forceinline__ int count() const { return min(length, kHalo); }

    template <bool kSilu>
    __device__ __forceinline__ float output(int i, int c, const float (&taps)[kWidth], float bias) const {
        float window[kWidth];
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
            window[k] = i + k < kHalo ? past[i + k < kHalo ? i + k : 0].to_float(c)
                                      : first[i + k < kHalo ? 0 : i + k - kHalo].to_float(c);
        }
        return activate<input_t, kSilu, false>(convolve<false>(taps, bias, window, nullptr), 0);
    }

    // Leaves the last kWidth - 1 inputs in the state.
    __device__ __forceinline__ void update_state(const CausalConv1dVarlenOperands& p, index_t channel) const {
        if (!p.has_states || (kAddressed && target < 0)) return;
        const index_t step = p.conv_states_stride[2];
        StateColumn<state_t, kVec> column = earliest;
        if (kAddressed) column = column + (target - slot) * p.conv_states_stride[0];
        if (length > kHalo) {
#pragma unroll
            for (int i = 0; i < kHalo; ++i, column = column + step) column.store_all(convert<state_t>(last[i]));
        } else if constexpr (kHalo <= 4) {
#pragma unroll
            for (int i = 0; i < kHalo; ++i, column = column + step) {
                State v = State::zero();
#pragma unroll
                for (int n = 1; n <= kHalo; ++n) v = select(n == length, joined(i + n), v);
                column.store_all(v);
            }
        } else {
            // There are too many inputs to choose from in registers. Columns are written in rising order, so that each
            // is read before it is overwritten.
#pragma unroll 1
            for (int i = 0; i < kHalo; ++i, column = column + step)
                column.store_all(load_joined(p, channel, i + length));
        }
    }

 private:
    // Input i of the past inputs and the prefix behind them.
    __device__ __forceinline__ State joined(int i) const {
        return i < kHalo ? past[i < kHalo ? i : 0] : convert<state_t>(first[i < kHalo ? 0 : i - kHalo]);
    }
    __device__ __forceinline__ State load_joined(const CausalConv1dVarlenOperands& p, index_t channel, int i) const {
        if (i >= kHalo) {
            const input_t* const at = x + (i - kHalo) * p.x_stride[1];
            return convert<state_t>(
                load_input<kGated, Memory::kConstant, input_t, kVec>(p, at, channel, begin + i - kHalo));
        }
        return has_past ? (earliest + i * p.conv_states_stride[2]).load_all() : State::zero();
    }
};

// Where results of prefixes wait in scratch, when tiles need the inputs in their place: in a row of `dim` elements per
// token of x or, if that takes less memory, in kWidth - 1 rows per sequence.
template <int kWidth>
struct PrefixRows {
    bool are_by_token;

    __device__ __forceinline__ explicit PrefixRows(const CausalConv1dVarlenOperands& p)
        : are_by_token(static_cast<index_t>(p.sequences) * (kWidth - 1) > p.total) {}

    // The row of the first token of a sequence.
    __device__ __forceinline__ int first(int number, int begin) const {
        return are_by_token ? begin : number * (kWidth - 1);
    }

    // The first row, at a channel.
    template <typename T>
    __device__ __forceinline__ T* at(const CausalConv1dVarlenOperands& p, index_t channel) const {
        return reinterpret_cast<T*>(static_cast<char*>(p.scratch) + p.border_states_at) + channel;
    }
};

// Whether nothing but its own prefix needs the inputs of a sequence: the results go over them at once.
template <int kWidth>
__device__ __forceinline__ bool is_alone(const CausalConv1dVarlenOperands& p, int length) {
    return length < kWidth && p.snapshot_rows == 0;
}

// The same for one sequence, from its first token on, in kVec channels.
template <int kWidth, typename input_t, int kVec>
struct PrefixResults {
    input_t* to;
    index_t step;

    __device__ __forceinline__ PrefixResults(const CausalConv1dVarlenOperands& p, index_t channel, int number,
                                             int begin, int length) {
        if (is_alone<kWidth>(p, length)) {
            step = p.x_stride[1];
            to = static_cast<input_t*>(p.out[0]) + along_channels<kVec>(channel, p.x_stride[0]) + begin * step;
        } else {
            const PrefixRows<kWidth> rows(p);
            step = p.dim;
            to = rows.template at<input_t>(p, channel) + rows.first(number, begin) * step;
        }
    }

    __device__ __forceinline__ void advance() { to += step; }
    __device__ __forceinline__ void store_vector(const Vec<input_t, kVec>& v) const { store(to, v); }
};

// Convolves a sequence's prefix, which is not loaded yet, stores its results, and updates the state. kWaits: the
// results wait in scratch.
template <int kWidth, typename input_t, typename weight_t, typename state_t, int kVec, bool kSilu, Ranges kRanges,
          bool kAddressed, bool kGated, bool kWaits = false, typename Rows>
__device__ __forceinline__ void convolve_found_prefix(
    const CausalConv1dVarlenOperands& p, const Rows& rows,
    SequencePrefix<kWidth, input_t, state_t, kVec, kAddressed, kGated>& prefix, index_t channel) {
    const int number = prefix.number;
    if constexpr (kAddressed) {
        store_prefix_snapshots<kWidth, input_t, state_t, kVec, kGated>(p, rows, number, channel, false);
    }
    prefix.load(p, channel);
    const ChannelFilter<kWidth, weight_t, kVec> filter(p, channel);
    // The state comes first, because the sums need the registers of the last inputs.
    prefix.update_state(p, channel);
    float bias[kVec];
    float taps[kVec][kWidth];
    filter.to_floats(taps, bias);
    auto destination = [&] {
        if constexpr (kWaits) {
            return PrefixResults<kWidth, input_t, kVec>(p, channel, number, prefix.begin, prefix.length);
        } else {
            return destination_of<input_t, kVec, kRanges>(p, channel, 0, prefix.begin);
        }
    }();
#pragma unroll
    for (int i = 0; i < kWidth - 1; ++i, destination.advance()) {
        if (i >= prefix.length) break;
        float out[kVec];
#pragma unroll
        for (int c = 0; c < kVec; ++c) out[c] = prefix.template output<kSilu>(i, c, taps[c], bias[c]);
        if constexpr (kGated) {
            const index_t token = prefix.begin + i;
            const TileGates<input_t, kVec, 1> gates(
                beside_x<input_t, kVec>(p.post_gate, p.post_gate_stride, channel, token), 0,
                beside_x<input_t, kVec>(p.residual, p.residual_stride, channel, token), 0, 0, 1);
            gates.apply(0, out);
        }
        destination.store_vector(Vec<input_t, kVec>::from_floats(out));
    }
    if constexpr (kAddressed) {
        store_prefix_snapshots<kWidth, input_t, state_t, kVec, kGated>(p, rows, number, channel, true);
    }
}

// The same for the prefix of sequence `number`, if it has one.
template <int kWidth, typename input_t, typename weight_t, typename state_t, int kVec, bool kSilu, Ranges kRanges,
          bool kAddressed, bool kGated>
__device__ __forceinline__ void convolve_prefix(const CausalConv1dVarlenOperands& p, const SnapshotRows& rows,
                                                int number, index_t channel) {
    SequencePrefix<kWidth, input_t, state_t, kVec, kAddressed, kGated> prefix(p, number);
    if (prefix.length == 0) return;
    convolve_found_prefix<kWidth, input_t, weight_t, state_t, kVec, kSilu, kRanges, kAddressed, kGated>(p, rows, prefix,
                                                                                                        channel);
}

// Convolves the single token of a sequence, and updates the state, in columns that are aligned vectors of channels: 105
// instructions, where convolve_prefix() takes 530. `x`, `states` and `out` are at the first token, slot 0 and the first
// result of the thread's channels.
template <int kWidth, typename input_t, typename state_t, int kVec, bool kSilu, bool kAddressed, typename Filter,
          typename Output>
__device__ __forceinline__ void convolve_single(const CausalConv1dVarlenOperands& p,
                                                const PrefixPlace<kAddressed>& place, const Filter& filter,
                                                const input_t* x, state_t* states, const Output& out) {
    constexpr int kHalo = kWidth - 1;
    const index_t slot_step = p.conv_states_stride[0], column_step = p.conv_states_stride[2];
    const Vec<input_t, kVec> token = load<kVec>(x + place.begin * p.x_stride[1]);
    Vec<state_t, kVec> inputs[kWidth];
    const state_t* column = states + place.slot * slot_step;
#pragma unroll
    for (int k = 0; k < kHalo; ++k, column += column_step) {
        inputs[k] = Vec<state_t, kVec>::zero();
        if (place.has_past) inputs[k] = load<kVec, Memory::kMutable>(column);
    }
    inputs[kHalo] = convert<state_t>(token);
    float bias[kVec];
    float taps[kVec][kWidth];
    filter.to_floats(taps, bias);
    float y[kVec];
#pragma unroll
    for (int c = 0; c < kVec; ++c) {
        float window[kWidth];
#pragma unroll
        for (int k = 0; k < kHalo; ++k) window[k] = inputs[k].to_float(c);
        window[kHalo] = token.to_float(c);
        y[c] = activate<input_t, kSilu, false>(convolve<false>(taps[c], bias[c], window, nullptr), 0);
    }
    store(out.to + place.begin * out.step, Vec<input_t, kVec>::from_floats(y));
    // Stores come last: those to columns that were still on their way took 119 us instead of 79 (H200, 2048 sequences
    // of 8192 channels).
    const int target = kAddressed ? place.target : place.slot;
    if (!kAddressed || target >= 0) {
        state_t* to = states + target * slot_step;
#pragma unroll
        for (int k = 1; k <= kHalo; ++k, to += column_step) store<Keep::kStream>(to, inputs[k]);
    }
}

// Convolves a sequence of at least one token, and updates the state, in columns that are aligned vectors of channels:
// the warp walks its tokens. `x`, `states` and `out` are at the first token, slot 0 and the first result of the
// thread's channels.
template <int kWidth, typename input_t, typename state_t, int kVec, bool kSilu, bool kAddressed, typename Filter,
          typename Output>
__device__ __forceinline__ void convolve_whole(const CausalConv1dVarlenOperands& p,
                                               const PrefixPlace<kAddressed>& place, const Filter& filter,
                                               const input_t* x, state_t* states, const Output& out) {
    constexpr int kHalo = kWidth - 1, kAtOnce = 4;
    const index_t step = p.x_stride[1], slot_step = p.conv_states_stride[0], column_step = p.conv_states_stride[2];
    const input_t* at = x + place.begin * step;
    Vec<input_t, kVec> tokens[kAtOnce];
    const auto load_tokens = [&](int left) {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i, at += step) {
            if (i < left) tokens[i] = load<kVec>(at);
        }
    };
    load_tokens(place.length);
    Vec<state_t, kVec> past[kHalo];
    const state_t* column = states + place.slot * slot_step;
#pragma unroll
    for (int k = 0; k < kHalo; ++k, column += column_step) {
        past[k] = Vec<state_t, kVec>::zero();
        if (place.has_past) past[k] = load<kVec, Memory::kMutable>(column);
    }
    float bias[kVec];
    float taps[kVec][kWidth];
    filter.to_floats(taps, bias);
    float window[kVec][kWidth];  // of the token before
#pragma unroll
    for (int c = 0; c < kVec; ++c) {
#pragma unroll
        for (int k = 0; k < kHalo; ++k) window[c][k + 1] = past[k].to_float(c);
    }
    input_t* to_out = out.to + place.begin * out.step;
#pragma unroll 1
    for (int left = place.length;;) {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i, to_out += out.step) {
            if (i >= left) break;
            float y[kVec];
#pragma unroll
            for (int c = 0; c < kVec; ++c) {
#pragma unroll
                for (int k = 0; k < kHalo; ++k) window[c][k] = window[c][k + 1];
                window[c][kHalo] = tokens[i].to_float(c);
                y[c] = activate<input_t, kSilu, false>(convolve<false>(taps[c], bias[c], window[c], nullptr), 0);
            }
            store(to_out, Vec<input_t, kVec>::from_floats(y));
        }
        left -= kAtOnce;
        if (left <= 0) break;
        load_tokens(left);
    }
    // Stores to states come last, as in convolve_single().
    if (kAddressed && place.target < 0) return;
    state_t* to = states + (kAddressed ? place.target : place.slot) * slot_step;
#pragma unroll
    for (int k = 1; k <= kHalo; ++k, to += column_step) {
        float last[kVec];
#pragma unroll
        for (int c = 0; c < kVec; ++c) last[c] = window[c][k];
        store<Keep::kStream>(to, Vec<state_t, kVec>::from_floats(last));
    }
}

// The tokens of a sequence up to which convolve_prefixes() convolves it as a whole.
template <int kWhole>
__device__ __forceinline__ int whole_tokens(const CausalConv1dVarlenOperands& p) {
    return p.states_are_packed && p.taps_are_packed ? kWhole : 0;
}

// Convolves the prefixes of the `count` sequences from `first` on, at most kMost, in a warp's channels, and updates
// their states; those of sequences of up to kWhole tokens, with columns that are aligned vectors of channels, with the
// rest of the sequence. Each lane looks one of them up for all lanes, so that indices are waited for once. Nothing has
// snapshots.
//
// 2048 sequences of one token and 8192 channels (H200) took 100 us by convolve_prefix(), take 75 so, 73 without
// arithmetic, and 64 is the time of a copy of the same bytes: what is left is waiting for memory.
template <int kWhole, int kWarps, int kMost, int kWidth, typename input_t, typename weight_t, typename state_t,
          int kVec, bool kSilu, Ranges kRanges, bool kAddressed>
__device__ __forceinline__ void convolve_prefixes(const CausalConv1dVarlenOperands& p, int first, int count,
                                                  index_t channel, bool is_idle) {
    static_assert(kMost <= kWarpSize, "a lane looks up one sequence");
    __shared__ PrefixPlace<kAddressed> places_of_warps[kWarps][kMost];
    PrefixPlace<kAddressed>* const places = places_of_warps[threadIdx.x / kWarpSize];
    const int number = first + lane_id();
    const PrefixPlace<kAddressed> own(p, min(number, p.sequences - 1));
    const bool is_own = lane_id() < count && number < p.sequences && own.length > 0;
    if (is_own) places[lane_id()] = own;
    unsigned whole = lanes_where(is_own && own.length <= whole_tokens<kWhole>(p));
    unsigned left = lanes_where(is_own) & ~whole;
    sync_warp();
    if (is_idle) return;
    if (whole != 0) {
        const ChannelFilter<kWidth, weight_t, kVec> filter(p, channel);
        const input_t* const x = static_cast<const input_t*>(p.x) + along_channels<kVec>(channel, p.x_stride[0]);
        state_t* const states = states_of<kAddressed, state_t>(p) + p.first_column * p.conv_states_stride[2] +
                                along_channels<kVec>(channel, p.conv_states_stride[1]);
        const auto out = destination_of<input_t, kVec, kRanges>(p, channel, 0, 0);
#pragma unroll 1
        for (; whole != 0; whole &= whole - 1) {
            const PrefixPlace<kAddressed>& place = places[lowest(whole)];
            if constexpr (kWhole == 1) {
                convolve_single<kWidth, input_t, state_t, kVec, kSilu>(p, place, filter, x, states, out);
            } else {
                convolve_whole<kWidth, input_t, state_t, kVec, kSilu>(p, place, filter, x, states, out);
            }
        }
    }
#pragma unroll 1
    for (; left != 0; left &= left - 1) {
        convolve_prefix<kWidth, input_t, weight_t, state_t, kVec, kSilu, kRanges, kAddressed, false>(
            p, SnapshotRows{0, 0}, first + lowest(left), channel);
    }
}
