// The gradients of packed sequences, token by token, in the channels of a thread that walks along them.
#pragma once

#include "causal_conv1d/conv_bwd.cuh"
#include "causal_conv1d/conv_channels.cuh"

// Columns of a state in kVec channels as memory has them: a conversion would wait for the load.
template <int kHalo, typename input_t, int kVec>
struct RawState {
    unsigned words[kHalo > 0 ? kHalo : 1][kVec];  // of floats, or fewer of input_t

    // Starts to load the columns from `column` on.
    __device__ __forceinline__ void load(const CausalConv1dBwdOperands& p, const void* states,
                                         const index_t (&stride)[3], int slot, index_t channel, int column,
                                         int is_float32) {
        const index_t at = slot * stride[0] + channel * stride[1] + column * stride[2];
        if (is_float32) {
            load_as(static_cast<const float*>(states) + at, stride, p.states_are_packed);
        } else {
            load_as(static_cast<const input_t*>(states) + at, stride, p.states_are_packed);
        }
    }

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int k = 0; k < kHalo; ++k) {
#pragma unroll
            for (int i = 0; i < kVec; ++i) words[k][i] = 0;
        }
    }

    __device__ __forceinline__ void get(int is_float32, float (&values)[kHalo + 1][kVec]) const {
        constexpr int kPerWord = Dtype<input_t>::kPerWord;
#pragma unroll
        for (int k = 0; k < kHalo; ++k) {
#pragma unroll
            for (int c = 0; c < kVec; ++c) {
                const float other = Dtype<input_t>::unpack(words[k][c / kPerWord], c % kPerWord);
                values[k][c] = is_float32 ? __uint_as_float(words[k][c]) : other;
            }
        }
    }

 private:
    template <typename T>
    __device__ __forceinline__ void load_as(const T* at, const index_t (&stride)[3], int is_packed) {
#pragma unroll
        for (int k = 0; k < kHalo; ++k, at += stride[2]) {
            const Vec<T, kVec> v = load_apart<kVec>(at, stride[1], kVec == 1 || is_packed);
#pragma unroll
            for (int i = 0; i < Vec<T, kVec>::kWords; ++i) words[k][i] = v.words[i];
        }
    }
};

// What index arrays say of a run, as it was loaded. To look at a number waits for its load, so a walk loads those of a
// run while it is two runs before it.
struct RawRun {
    RawIndex end;
    RawIndex slot;
    unsigned has_past = 1;

    __device__ __forceinline__ void load(const CausalConv1dBwdOperands& p, int number) {
        if (p.query_start_loc != nullptr && number + 1 >= 0 && number < p.sequences) {
            end.load(p.query_start_loc, (number + 1) * p.query_start_loc_stride, p.query_start_loc_is_int64);
        }
        if (number < 0 || number >= p.sequences) return;
        if (p.has_states && p.cache_indices != nullptr) {
            slot.load(p.cache_indices, number * p.cache_indices_stride, p.cache_indices_is_int64);
        }
        if (p.has_initial_state != nullptr) {
            has_past =
                __ldg(static_cast<const unsigned char*>(p.has_initial_state) + number * p.has_initial_state_stride);
        }
    }

    // As first_token() and load_slot().
    __device__ __forceinline__ int end_of(const CausalConv1dBwdOperands& p, int number) const {
        if (number + 1 < 0) return 0;
        if (number >= p.sequences) return p.total;
        if (p.query_start_loc == nullptr) return number + 1 == 0 ? 0 : p.total;
        return end.clamped(p.query_start_loc_is_int64, p.total);
    }

    __device__ __forceinline__ int slot_of(const CausalConv1dBwdOperands& p, int number) const {
        if (number < 0 || number >= p.sequences) return -1;
        if (!p.has_states) return 0;
        return slot_in_pool(p, p.cache_indices == nullptr ? number : slot.value(p.cache_indices_is_int64));
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
    bool goes_on;  // the sequence has an initial state of which the walk stores the gradient
    int next_end;  // the end and the slot of the next run, which begins where this one ends
    int next_slot;
    bool has_state;          // the next run begins with a state
    RawRun ahead;            // the run behind the next one
    float x[kWidth][kVec];   // the last width - 1 inputs, then the current one
    float dx[kWidth][kVec];  // their gradients, so far
    float taps[kVec][kWidth];
    float bias[kVec];
    ParameterSums<kWidth> sums[kVec];
    State past;   // the state that the next run begins with
    State final;  // the gradient of the final state of this run

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
        if (kStates && run.slot >= 0 && run.begin > first - kHalo && follows_state(p, run.number)) load_past(run.slot);
        float before[kWidth][kVec];
        get_past(before);
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
                    for (int j = 0; j < kHalo; ++j) x[k][c] = j == column ? before[j][c] : x[k][c];
                }
            }
        }
        if (kStates && run.slot >= 0) load_final(run.number);
        ahead.load(p, run.number + 1);
        look_ahead();
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
            if (token >= first && token < last) put(token, value);
        } else if (kStates && goes_on && token - run.begin >= -kHalo) {
            store_initial(run.number, token - run.begin + kHalo, value);
        }
    }

    // Completes the inputs of the run that ends before `token`.
    template <typename Put>
    __device__ __forceinline__ void finish(int token, Put put) {
        float of_final[kWidth][kVec];
        if constexpr (kStates) final.get(p.dfinal_states_are_float32, of_final);
#pragma unroll
        for (int k = 0; k < kHalo; ++k) {
            if constexpr (kStates) {
#pragma unroll
                for (int c = 0; c < kVec; ++c) dx[k][c] += of_final[k][c];
            }
            emit(token - kHalo + k, dx[k], put);
        }
    }

    // Goes on to the run of `token`.
    template <typename Put>
    __device__ __forceinline__ void turn(int token, Put put) {
        finish(token, put);
        if (run.number >= p.sequences) return;
        while (true) {
            run = {run.number + 1, run.end, next_end, next_slot};
            if constexpr (kStates) begin_states();
            if (run.end > token || run.number >= p.sequences) break;
            look_ahead();
        }
        float before[kWidth][kVec];
        get_past(before);
#pragma unroll
        for (int k = 0; k < kHalo; ++k) {
#pragma unroll
            for (int c = 0; c < kVec; ++c) {
                x[k][c] = kStates ? before[k][c] : 0.0f;
                dx[k][c] = 0.0f;
            }
        }
        if constexpr (kStates) {
            final.clear();
            if (run.slot >= 0) load_final(run.number);
        }
        look_ahead();
    }

    // What a sequence that begins does to the gradient of its initial state at once: it is zero without such a state,
    // and the final state's gradient where there are no tokens.
    __device__ __forceinline__ void begin_states() {
        goes_on = false;
        if (p.dinitial_states == nullptr || run.number < 0 || run.number >= p.sequences || is_idle) return;
        if (has_state && run.end > run.begin) {
            goes_on = true;
            return;
        }
        final.clear();
        if (has_state) load_final(run.number);
        float values[kWidth][kVec];
        final.get(p.dfinal_states_are_float32, values);
#pragma unroll
        for (int k = 0; k < kHalo; ++k) store_initial(run.number, k, values[k]);
    }

    // Finds the next run, and starts to load the state that it begins with and the run behind it.
    __device__ __forceinline__ void look_ahead() {
        const int number = run.number + 1;
        next_end = ahead.end_of(p, number);
        next_slot = ahead.slot_of(p, number);
        if constexpr (kStates) {
            has_state = next_slot >= 0 && p.initial_states != nullptr && ahead.has_past != 0;
            past.clear();
            if (has_state) load_past(next_slot);
        }
        ahead.load(p, number + 1);
    }

    __device__ __forceinline__ void load_past(int slot) {
        past.load(p, p.initial_states, p.initial_states_stride, slot, channel, p.first_column, p.states_are_float32);
    }

    __device__ __forceinline__ void get_past(float (&values)[kWidth][kVec]) const {
        if constexpr (kStates) past.get(p.states_are_float32, values);
    }

    __device__ __forceinline__ void load_final(int number) {
        if (p.dfinal_states == nullptr) return;
        final.load(p, p.dfinal_states, p.dfinal_states_stride, number, channel, 0, p.dfinal_states_are_float32);
    }

    __device__ __forceinline__ void store_initial(int number, int column, const float (&values)[kVec]) const {
        if (kVec == 1 || !p.states_are_packed) {
#pragma unroll
            for (int c = 0; c < kVec; ++c) store_initial_gradient<input_t>(p, number, channel + c, column, values[c]);
            return;
        }
        const index_t at = number * p.dinitial_states_stride[0] + channel + column * p.dinitial_states_stride[2];
        if (p.states_are_float32) {
            store(static_cast<float*>(p.dinitial_states) + at, Vec<float, kVec>::from_floats(values));
        } else {
            store(static_cast<input_t*>(p.dinitial_states) + at, Vec<input_t, kVec>::from_floats(values));
        }
    }
};
