// A sequence's state in the pool: the last kWidth - 1 inputs that its slot remembers.
#pragma once

#include "common/conv_varlen.cuh"

// One column of the state of kVec consecutive channels. The kernel writes to the pool, so reads of it are ordinary
// ones.
template <typename state_t, int kVec>
struct StateColumn {
    state_t* at;
    index_t channel_step;
    bool is_packed;

    __device__ __forceinline__ StateColumn(const CausalConv1dVarlenOperands& p, index_t slot, index_t channel,
                                           index_t column)
        : at(static_cast<state_t*>(p.conv_states) + slot * p.conv_states_stride[0] + channel * p.conv_states_stride[1] +
             (p.first_column + column) * p.conv_states_stride[2]),
          channel_step(p.conv_states_stride[1]),
          is_packed(kVec == 1 || p.states_are_packed) {}

    __device__ __forceinline__ Vec<state_t, kVec> load_all() const {
        if (is_packed) return load<kVec, Memory::kMutable>(at);
        Vec<state_t, kVec> v = Vec<state_t, kVec>::zero();
#pragma unroll
        for (int c = 0; c < kVec; ++c) v.put(c, at[c * channel_step]);
        return v;
    }

    __device__ __forceinline__ void store_all(const Vec<state_t, kVec>& v) const {
        if (is_packed) {
            store(at, v);
        } else {
#pragma unroll
            for (int c = 0; c < kVec; ++c) at[c * channel_step] = v.element(c);
        }
    }
};

template <typename to_t, typename from_t, int kVec>
__device__ __forceinline__ Vec<to_t, kVec> convert(const Vec<from_t, kVec>& v) {
    float values[kVec];
#pragma unroll
    for (int c = 0; c < kVec; ++c) values[c] = v.to_float(c);
    return Vec<to_t, kVec>::from_floats(values);
}

// The first kWidth - 1 tokens of a sequence, whose outputs need its state, in kVec channels. Whoever computes them also
// brings the state up to date: nobody else reads or writes it.
template <int kWidth, typename input_t, typename state_t, int kVec>
struct SequenceHead {
    static constexpr int kHalo = kWidth - 1;
    using Input = Vec<input_t, kVec>;
    using State = Vec<state_t, kVec>;

    int number;
    int begin;
    int length;
    index_t slot;
    index_t channel;
    State past[kHalo];
    Input first[kHalo];
    Input last[kHalo];  // when these are others than the first

    // Nothing is loaded of a sequence that is empty or whose tokens are nobody's.
    __device__ __forceinline__ SequenceHead(const CausalConv1dVarlenOperands& p, int number_)
        : number(number_), begin(first_token(p, number_)), slot(load_slot(p, number_)) {
        length = slot < 0 ? 0 : max(0, first_token(p, number + 1) - begin);
    }

    __device__ __forceinline__ void load(const CausalConv1dVarlenOperands& p, index_t channel_) {
        channel = channel_;
        const input_t* x =
            static_cast<const input_t*>(p.x) + channel * p.x_stride[0] + static_cast<index_t>(begin) * p.x_stride[1];
#pragma unroll
        for (int i = 0; i < kHalo; ++i) {
            first[i] = Input::zero();
            if (i < length) first[i] = load_vector(x + i * p.x_stride[1]);
            past[i] = State::zero();
        }
        if (has_past(p, number)) {
#pragma unroll
            for (int i = 0; i < kHalo; ++i) past[i] = StateColumn<state_t, kVec>(p, slot, channel, i).load_all();
        }
        if (length > kHalo) {
#pragma unroll
            for (int i = 0; i < kHalo; ++i) last[i] = load_vector(x + (length - kHalo + i) * p.x_stride[1]);
        }
    }

    // How many of the tokens exist.
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
    __device__ __forceinline__ void update_state(const CausalConv1dVarlenOperands& p) const {
        if (!p.has_conv_states) return;
        if (length > kHalo) {
#pragma unroll
            for (int i = 0; i < kHalo; ++i) column(p, i).store_all(convert<state_t>(last[i]));
        } else if constexpr (kHalo <= 4) {
#pragma unroll
            for (int i = 0; i < kHalo; ++i) {
                State v = State::zero();
#pragma unroll
                for (int n = 1; n <= kHalo; ++n) v = select(n == length, joined(i + n), v);
                column(p, i).store_all(v);
            }
        } else {
            // Too many to choose from in registers. Columns are taken in rising order, so that one is read before it is
            // overwritten.
#pragma unroll 1
            for (int i = 0; i < kHalo; ++i) column(p, i).store_all(load_joined(p, i + length));
        }
    }

 private:
    __device__ __forceinline__ static Input load_vector(const input_t* x) { return ::load<kVec>(x); }

    __device__ __forceinline__ StateColumn<state_t, kVec> column(const CausalConv1dVarlenOperands& p, int i) const {
        return {p, slot, channel, i};
    }

    // The i-th of the past inputs and the first ones behind them.
    __device__ __forceinline__ State joined(int i) const {
        return i < kHalo ? past[i < kHalo ? i : 0] : convert<state_t>(first[i < kHalo ? 0 : i - kHalo]);
    }
    __device__ __forceinline__ State load_joined(const CausalConv1dVarlenOperands& p, int i) const {
        if (i < kHalo) return has_past(p, number) ? column(p, i).load_all() : State::zero();
        const input_t* x = static_cast<const input_t*>(p.x) + channel * p.x_stride[0];
        return convert<state_t>(load_vector(x + static_cast<index_t>(begin + i - kHalo) * p.x_stride[1]));
    }
};

// Convolves a sequence's head, stores its results, and brings the state up to date.
template <int kWidth, typename input_t, typename weight_t, typename state_t, int kVec, bool kSilu, bool kRouted>
__device__ __forceinline__ void convolve_head(const CausalConv1dVarlenOperands& p, int number, index_t channel) {
    float bias[kVec];
    float taps[kVec][kWidth];
    load_channel_bias<weight_t>(p, channel, bias);
    SequenceHead<kWidth, input_t, state_t, kVec> head(p, number);
    if (head.length == 0) return;
    head.load(p, channel);
    load_channel_taps<weight_t>(p, channel, taps);
    Destination<input_t, kVec, kRouted> destination(p, channel, head.begin);
#pragma unroll
    for (int i = 0; i < kWidth - 1; ++i, destination.advance()) {
        if (i >= head.length) break;
        float out[kVec];
#pragma unroll
        for (int c = 0; c < kVec; ++c) out[c] = head.template output<kSilu>(i, c, taps[c], bias[c]);
        destination.store_vector(Vec<input_t, kVec>::from_floats(out));
    }
    head.update_state(p);
}
