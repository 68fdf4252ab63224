// The gradients of packed sequences, token by token, in the channels of a thread that walks along them.
#pragma once

#include "causal_conv1d/conv_bwd.cuh"
#include "causal_conv1d/conv_channels.cuh"

// Columns of a state in kVec channels as memory has them: a conversion would wait for the load.
template <int kHalo, typename input_t, int kVec>
struct RawState {
    unsigned bits[kHalo > 0 ? kHalo : 1][kVec];

    __device__ __forceinline__ void load(const void* state, index_t at, const index_t (&stride)[3], int is_float32) {
#pragma unroll
        for (int k = 0; k < kHalo; ++k) {
#pragma unroll
            for (int c = 0; c < kVec; ++c) {
                const index_t place = at + c * stride[1] + k * stride[2];
                bits[k][c] = is_float32 ? load_bits<float>(state, place) : load_bits<input_t>(state, place);
            }
        }
    }

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int k = 0; k < kHalo; ++k) {
#pragma unroll
            for (int c = 0; c < kVec; ++c) bits[k][c] = 0;
        }
    }

    __device__ __forceinline__ float get(int k, int c, int is_float32) const {
        return is_float32 ? __uint_as_float(bits[k][c]) : Dtype<input_t>::unpack(bits[k][c], 0);
    }

 private:
    template <typename T>
    __device__ __forceinline__ static unsigned load_bits(const void* state, index_t place) {
        return ::load<1>(static_cast<const T*>(state) + place).words[0];
    }
};

// A walk along the tokens from `first` to `last` - 1 in ascending order. With each token's gradient g it adds what g
// has for the width - 1 inputs before the token and for its own one. The inputs before a sequence's first token are
// columns of its initial state, and so their sums are that state's gradient: where a sequence begins, the sums are
// those of the last width - 1 tokens of the one before, which are complete then, and begin again with zeros. A walk
// has the states of the sequences that begin in it.
//
// put(token, dx) stores the gradients of a token's inputs, kVec floats.
template <int kWidth, typename input_t, typename weight_t, int kVec, bool kSilu, bool kStates>
struct SequenceWalk {
    static constexpr int kHalo = kWidth - 1;
    using State = RawState<kHalo, input_t, kVec>;

    const CausalConv1dBwdOperands& p;
    index_t channel;
    int first;
    int last;
    bool is_idle;  // the thread's channels are not its own: it stores nothing
    PackedRun run;
    bool goes_on;            // the sequence has an initial state of which the walk stores the gradient
    float x[kWidth][kVec];   // the last width - 1 inputs, then the current one
    float dx[kWidth][kVec];  // their gradients, so far
    float taps[kVec][kWidth];
    float bias[kVec];
    ParameterSums<kWidth> sums[kVec];
    State past;   // the initial state of the sequence behind `run`, in advance
    State final;  // the gradient of the final state of `run`

    __device__ __forceinline__ SequenceWalk(const CausalConv1dBwdOperands& p_, index_t channel_, int first_, int last_,
                                            bool is_idle_, const ChannelFilter<kWidth, weight_t, kVec>& filter)
        : p(p_), channel(channel_), first(first_), last(last_), is_idle(is_idle_) {
        filter.to_floats(taps, bias);
#pragma unroll
        for (int c = 0; c < kVec; ++c) {
            if constexpr (kSilu) scale_for_silu<input_t>(taps[c], bias[c]);
            sums[c] = ParameterSums<kWidth>::zero();
        }
    }

    // Stands in front of the first token, in the run of the one before it. input(k, c) is the input of that token's
    // window in channel c, k tokens further than width - 1 tokens before the first one.
    template <typename Input>
    __device__ __forceinline__ void begin(Input input) {
        if (first == 0) {
            // In front of the padding before all sequences.
            run = {-2, 0, 0, -1};
        } else {
            run = PackedCursor(p, first - 1);
        }
        goes_on = false;
        past.clear();
        final.clear();
        if (kStates && run.slot >= 0 && run.begin > first - kHalo) load_past(run.number, run.slot);
#pragma unroll
        for (int k = 0; k < kHalo; ++k) {
            const int column = first - run.begin + k;  // of the state, where the token is before the sequence
#pragma unroll
            for (int c = 0; c < kVec; ++c) {
                dx[k][c] = 0.0f;
                x[k][c] = 0.0f;
                if (run.slot < 0) continue;
                if (column >= kHalo) {
                    x[k][c] = input(k, c);
                } else if constexpr (kStates) {
#pragma unroll
                    for (int j = 0; j < kHalo; ++j) x[k][c] = j == column ? past_value(j, c) : x[k][c];
                }
            }
        }
        load_states();
    }

    // Whether `count` tokens from `token` on, and the width - 1 before them, are in one sequence.
    __device__ __forceinline__ bool is_plain(int token, int count) const {
        return run.holds(token - kHalo, token + count);
    }

    // kTokens such tokens: load(i, own, dout) gives the inputs and dout of one, and results[i] the gradients of the
    // inputs width - 1 tokens before it.
    template <int kTokens, typename Load>
    __device__ __forceinline__ void add_plain(Load load, float (&results)[kTokens][kVec]) {
        float inputs[kHalo + kTokens][kVec], gradients[kHalo + kTokens][kVec];
#pragma unroll
        for (int k = 0; k < kHalo; ++k) {
#pragma unroll
            for (int c = 0; c < kVec; ++c) {
                inputs[k][c] = x[k][c];
                gradients[k][c] = dx[k][c];
            }
        }
#pragma unroll
        for (int i = 0; i < kTokens; ++i) {
            float dout[kVec];
            load(i, inputs[kHalo + i], dout);
#pragma unroll
            for (int c = 0; c < kVec; ++c) {
                float window[kWidth];
#pragma unroll
                for (int k = 0; k < kWidth; ++k) window[k] = inputs[i + k][c];
                const float g = token_gradient<kSilu, input_t>(taps[c], bias[c], window, dout[c]);
                sums[c].add(g, window);
#pragma unroll
                for (int k = 0; k < kHalo; ++k) gradients[i + k][c] = fmaf(taps[c][k], g, gradients[i + k][c]);
                gradients[i + kHalo][c] = taps[c][kHalo] * g;
                results[i][c] = gradients[i][c];
            }
        }
#pragma unroll
        for (int k = 0; k < kHalo; ++k) {
#pragma unroll
            for (int c = 0; c < kVec; ++c) {
                x[k][c] = inputs[kTokens + k][c];
                dx[k][c] = gradients[kTokens + k][c];
            }
        }
    }

    // Any token.
    template <typename Put>
    __device__ __forceinline__ void add(int token, const float (&own)[kVec], const float (&dout)[kVec], Put put) {
        if (token >= run.end) turn(token, put);
        add_single<true>(token, own, dout, put);
    }

    // Completes the walk: load(token, own, dout) gives the inputs and dout of a token behind it.
    template <typename Load, typename Put>
    __device__ __forceinline__ void end(Load load, Put put) {
#pragma unroll 1
        for (int token = last; token < last + kHalo; ++token) {
            if (token >= run.end) {
                if (token < p.total) {
                    finish(token, put);
                } else {
                    turn(token, put);
                }
                return;
            }
            float own[kVec], dout[kVec];
            load(token, own, dout);
            add_single<false>(token, own, dout, put);
        }
    }

 private:
    template <bool kIsOwn, typename Put>
    __device__ __forceinline__ void add_single(int token, const float (&own)[kVec], const float (&dout)[kVec],
                                               Put put) {
        const bool is_live = run.slot >= 0;
#pragma unroll
        for (int c = 0; c < kVec; ++c) {
            x[kHalo][c] = is_live ? own[c] : 0.0f;
            float window[kWidth];
#pragma unroll
            for (int k = 0; k < kWidth; ++k) window[k] = x[k][c];
            const float d = is_live ? dout[c] : 0.0f;
            const float g = token_gradient<kSilu, input_t>(taps[c], bias[c], window, d);
            if (kIsOwn) sums[c].add(g, window);
#pragma unroll
            for (int k = 0; k < kHalo; ++k) dx[k][c] = fmaf(taps[c][k], g, dx[k][c]);
            dx[kHalo][c] = taps[c][kHalo] * g;
        }
        emit(token - kHalo, dx[0], put);
#pragma unroll
        for (int k = 0; k < kHalo; ++k) {
#pragma unroll
            for (int c = 0; c < kVec; ++c) {
                x[k][c] = x[k + 1][c];
                dx[k][c] = dx[k + 1][c];
            }
        }
    }

    // Stores the gradient of an input of the run, or of the state before it.
    template <typename Put>
    __device__ __forceinline__ void emit(int token, const float (&value)[kVec], Put put) const {
        if (token >= run.begin) {
            if (token >= first && token < last && !is_idle) put(token, value);
        } else if (kStates && goes_on && token - run.begin >= -kHalo) {
            store_initial(run.number, token - run.begin + kHalo, value);
        }
    }

    // Completes the inputs of the run that ends before `token`.
    template <typename Put>
    __device__ __forceinline__ void finish(int token, Put put) {
#pragma unroll
        for (int k = 0; k < kHalo; ++k) {
            float value[kVec];
#pragma unroll
            for (int c = 0; c < kVec; ++c) {
                value[c] = dx[k][c] + (kStates ? final.get(k, c, p.dfinal_states_are_float32) : 0.0f);
            }
            emit(token - kHalo + k, value, put);
        }
    }

    // Goes on to the run of `token`.
    template <typename Put>
    __device__ __forceinline__ void turn(int token, Put put) {
        finish(token, put);
        if (run.number >= p.sequences) return;
        int advanced = 0;
        do {
            ++run.number;
            ++advanced;
            run.begin = run.end;
            run.end = first_token(p, run.number + 1);
            run.slot = load_slot(p, run.number);
            if constexpr (kStates) begin_states();
        } while (run.end <= token && run.number < p.sequences);
#pragma unroll
        for (int k = 0; k < kHalo; ++k) {
#pragma unroll
            for (int c = 0; c < kVec; ++c) x[k][c] = dx[k][c] = 0.0f;
        }
        if constexpr (kStates) {
            if (advanced > 1) {
                past.clear();
                if (run.slot >= 0) load_past(run.number, run.slot);
            }
#pragma unroll
            for (int k = 0; k < kHalo; ++k) {
#pragma unroll
                for (int c = 0; c < kVec; ++c) x[k][c] = past_value(k, c);
            }
        }
        load_states();
    }

    // What a sequence that begins does to the gradient of its initial state at once: it is zero without such a state,
    // and the final state's gradient where there are no tokens.
    __device__ __forceinline__ void begin_states() {
        goes_on = false;
        if (p.dinitial_states == nullptr || run.number < 0 || run.number >= p.sequences || is_idle) return;
        const bool follows = run.slot >= 0 && follows_state(p, run.number);
        if (follows && run.end > run.begin) {
            goes_on = true;
            return;
        }
        if (follows) {
            load_final(run.number);
        } else {
            final.clear();
        }
#pragma unroll
        for (int k = 0; k < kHalo; ++k) {
            float value[kVec];
#pragma unroll
            for (int c = 0; c < kVec; ++c) value[c] = final.get(k, c, p.dfinal_states_are_float32);
            store_initial(run.number, k, value);
        }
    }

    // Starts to load what the run's end and the next sequence's beginning need.
    __device__ __forceinline__ void load_states() {
        if constexpr (kStates) {
            final.clear();
            past.clear();
            if (run.slot >= 0) load_final(run.number);
            const int slot = load_slot(p, run.number + 1);
            if (slot >= 0) load_past(run.number + 1, slot);
        }
    }

    __device__ __forceinline__ void load_past(int number, int slot) {
        if (!follows_state(p, number)) return;
        const index_t at = slot * p.initial_states_stride[0] + channel * p.initial_states_stride[1] +
                           p.first_column * p.initial_states_stride[2];
        past.load(p.initial_states, at, p.initial_states_stride, p.states_are_float32);
    }

    __device__ __forceinline__ void load_final(int number) {
        if (p.dfinal_states == nullptr) return;
        const index_t at = number * p.dfinal_states_stride[0] + channel * p.dfinal_states_stride[1];
        final.load(p.dfinal_states, at, p.dfinal_states_stride, p.dfinal_states_are_float32);
    }

    __device__ __forceinline__ float past_value(int k, int c) const { return past.get(k, c, p.states_are_float32); }

    __device__ __forceinline__ void store_initial(int number, int column, const float (&value)[kVec]) const {
#pragma unroll
        for (int c = 0; c < kVec; ++c) store_initial_gradient<input_t>(p, number, channel + c, column, value[c]);
    }
};
