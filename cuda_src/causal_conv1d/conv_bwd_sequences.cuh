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

// What a walk along tokens keeps of kVec channels. With each token's gradient g it adds what g has for the width - 1
// inputs before the token and for its own one.
template <int kWidth, typename input_t, typename weight_t, int kVec, bool kSilu>
struct WalkWindow {
    static constexpr int kHalo = kWidth - 1;

    float x[kWidth][kVec];   // the last width - 1 inputs, then the current one
    float dx[kWidth][kVec];  // their gradients, so far
    float taps[kVec][kWidth];
    float bias[kVec];
    ParameterSums<kWidth> sums[kVec];

    __device__ __forceinline__ explicit WalkWindow(const ChannelFilter<kWidth, weight_t, kVec>& filter) {
        filter.to_floats(taps, bias);
#pragma unroll
        for (int c = 0; c < kVec; ++c) {
            if constexpr (kSilu) scale_for_silu<input_t>(taps[c], bias[c]);
            sums[c] = ParameterSums<kWidth>::zero();
        }
    }

    // kTokens tokens: load(i, own, dout) gives the inputs and dout of one, and results[i] the gradients of the inputs
    // width - 1 tokens before it.
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

    // One token, behind which dx[0] is complete. kIsOwn: the sums count it.
    template <bool kIsOwn>
    __device__ __forceinline__ void add(const float (&own)[kVec], const float (&dout)[kVec]) {
#pragma unroll
        for (int c = 0; c < kVec; ++c) {
            x[kHalo][c] = own[c];
            float window[kWidth];
#pragma unroll
            for (int k = 0; k < kWidth; ++k) window[k] = x[k][c];
            const float g = token_gradient<kSilu, input_t>(taps[c], bias[c], window, dout[c]);
            if (kIsOwn) sums[c].add(g, window);
#pragma unroll
            for (int k = 0; k < kHalo; ++k) dx[k][c] = fmaf(taps[c][k], g, dx[k][c]);
            dx[kHalo][c] = taps[c][kHalo] * g;
        }
    }

    // Goes on to the next token.
    __device__ __forceinline__ void shift() {
#pragma unroll
        for (int k = 0; k < kHalo; ++k) {
#pragma unroll
            for (int c = 0; c < kVec; ++c) {
                x[k][c] = x[k + 1][c];
                dx[k][c] = dx[k + 1][c];
            }
        }
    }

    // Stands before a sequence that goes on from these inputs.
    __device__ __forceinline__ void begin(const float (&before)[kWidth][kVec]) {
#pragma unroll
        for (int k = 0; k < kHalo; ++k) {
#pragma unroll
            for (int c = 0; c < kVec; ++c) {
                x[k][c] = before[k][c];
                dx[k][c] = 0.0f;
            }
        }
    }
};

// A walk along the tokens from `first` to `last` - 1 in ascending order. The inputs before a sequence's first token are
// columns of its initial state, and so their gradients in the window are that state's: where a sequence begins, the
// window has those of the last width - 1 tokens of the one before, which are complete then, and begins again with
// zeros. A walk has the states of the sequences that begin in it.
//
// put(token, dx) stores the gradients of a token's inputs, kVec floats.
template <int kWidth, typename input_t, typename weight_t, int kVec, bool kSilu, bool kStates>
struct SequenceWalk {
    static constexpr int kHalo = kWidth - 1;
    // States are loaded a sequence ahead, unless a filter is so wide that they would take registers from the window: 16
    // sequences of 512 in 8192 channels with 16 taps take 246 us on an H200 instead of 403.
    static constexpr bool kKeepsStates = kHalo * kVec <= 16;
    using State = RawState<kHalo, input_t, kVec>;
    using Window = WalkWindow<kWidth, input_t, weight_t, kVec, kSilu>;

    const CausalConv1dBwdOperands& p;
    unsigned channel;
    int first;
    int last;
    bool is_idle;        // the thread's channels are not its own: it stores nothing
    PackedRun run;       // begins with its first token in the walk
    bool goes_on;        // the sequence has an initial state of which the walk stores the gradient
    index_t initial_at;  // where the gradient of that lies in the thread's channels, in elements
    int next_end;        // the end and the slot of the next run, which begins where this one ends
    int next_slot;
    bool has_state;  // the next run begins with a state
    RawRun ahead;    // the run behind the next one
    Window window;
    State past;   // the state that the next run begins with
    State final;  // the gradient of the final state of this run

    __device__ __forceinline__ SequenceWalk(const CausalConv1dBwdOperands& p_, unsigned channel_, int first_, int last_,
                                            bool is_idle_, const ChannelFilter<kWidth, weight_t, kVec>& filter)
        : p(p_), channel(channel_), first(first_), last(last_), is_idle(is_idle_), window(filter) {}

    // Stands in front of the first token, and of the run that holds the token before.
    __device__ __forceinline__ void begin() {
        const PackedCursor cursor(p, first - 1);
        run = {cursor.number - 1, first, cursor.begin, PackedRun::kPadding};
        goes_on = false;
        ahead.load(p, cursor.number);
        look_ahead();
    }

    // The tokens from one of the run on, up to `stop`, that are in the run, too.
    __device__ __forceinline__ int end_before(int stop) const { return min(run.end, stop); }

    __device__ __forceinline__ bool is_behind(int token) const { return token >= run.end; }
    __device__ __forceinline__ bool is_padding() const { return run.slot < 0; }

    // Whether the inputs from `token` on are the walk's own, of this run.
    __device__ __forceinline__ bool owns(int token) const { return token >= run.begin; }

    // kTokens such tokens, as WalkWindow::add_plain() has them.
    template <int kTokens, typename Load>
    __device__ __forceinline__ void add_plain(Load load, float (&results)[kTokens][kVec]) {
        window.add_plain(load, results);
    }

    // Stores the first kHalo of the results of add_plain().
    template <int kTokens, typename Put>
    __device__ __forceinline__ void put_before(int token, const float (&results)[kTokens][kVec], Put put) const {
#pragma unroll
        for (int i = 0; i < kHalo; ++i) emit<true>(token - kHalo + i, results[i], put);
    }

    // Any token of the run, which is not padding.
    template <typename Put>
    __device__ __forceinline__ void add(int token, const float (&own)[kVec], const float (&dout)[kVec], Put put) {
        add_single<true>(token, own, dout, put);
    }

    // Goes on to the run that holds a token: that begins there, unless the token is the walk's first. load(token,
    // values) gives the inputs of a token.
    template <typename Load, typename Put>
    __device__ __forceinline__ void turn(int token, Load load, Put put) {
        if (run.slot >= 0) finish<true>(token, put);
        float before[kWidth][kVec];
        int begin;
        do {
            begin = run.end;
            get_past(before);
            run = {run.number + 1, token, next_end, next_slot};
            if constexpr (kStates) begin_states(begin);
            look_ahead();
        } while (run.end <= token && run.number < p.sequences);
        if (begin < first && run.slot >= 0) {
            // The walk begins inside the run.
#pragma unroll
            for (int k = 0; k < kHalo; ++k) {
                const int column = first - begin + k;  // of the state, where the token is before the sequence
#pragma unroll
                for (int j = k + 1; j < kHalo; ++j) {
#pragma unroll
                    for (int c = 0; c < kVec; ++c) before[k][c] = column == j ? before[j][c] : before[k][c];
                }
                if (column >= kHalo) load(first - kHalo + k, before[k]);
            }
        }
        window.begin(before);
    }

    // Completes the walk: load(token, own, dout) gives the inputs and dout of a token behind it.
    template <typename Load, typename Put>
    __device__ __forceinline__ void end(Load load, Put put) {
        if (run.slot < 0) return;
#pragma unroll 1
        for (int token = last; token < last + kHalo; ++token) {
            if (token >= run.end) {
                finish<false>(token, put);
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
        window.template add<kIsOwn>(own, dout);
        emit<kIsOwn>(token - kHalo, window.dx[0], put);
        window.shift();
    }

    // Stores the gradient of an input of the run, or of the state before it. kIsInside: the input is not behind the
    // walk.
    template <bool kIsInside, typename Put>
    __device__ __forceinline__ void emit(int token, const float (&value)[kVec], Put put) const {
        if (token >= run.begin) {
            if (kIsInside || token < last) put(token, value);
        } else if (kStates && goes_on) {
            store_initial(token - run.begin + kHalo, value);
        }
    }

    // Completes the inputs of the run that ends before `token`.
    template <bool kIsInside, typename Put>
    __device__ __forceinline__ void finish(int token, Put put) {
        float of_final[kWidth][kVec];
        if constexpr (kStates) {
            if (!kKeepsStates) load_final(run.number);
            final.get(p.dfinal_states_are_float32, of_final);
        }
#pragma unroll
        for (int k = 0; k < kHalo; ++k) {
            if constexpr (kStates) {
#pragma unroll
                for (int c = 0; c < kVec; ++c) window.dx[k][c] += of_final[k][c];
            }
            emit<kIsInside>(token - kHalo + k, window.dx[k], put);
        }
    }

    // What a sequence that begins does to the gradient of its initial state at once: it is zero without such a state,
    // and the final state's gradient where there are no tokens.
    __device__ __forceinline__ void begin_states(int begin) {
        goes_on = false;
        if (kKeepsStates) load_final(run.slot < 0 ? -1 : run.number);
        if (p.dinitial_states == nullptr || run.number < 0 || run.number >= p.sequences || begin < first || is_idle) {
            return;
        }
        initial_at = run.number * p.dinitial_states_stride[0] + channel * p.dinitial_states_stride[1];
        goes_on = has_state && run.end > begin;
        if (goes_on) return;
        float values[kWidth][kVec];
        if (!kKeepsStates) load_final(run.slot < 0 ? -1 : run.number);
        final.get(p.dfinal_states_are_float32, values);
#pragma unroll
        for (int k = 0; k < kHalo; ++k) {
#pragma unroll
            for (int c = 0; c < kVec; ++c) values[k][c] = has_state ? values[k][c] : 0.0f;
            store_initial(k, values[k]);
        }
    }

    // Finds the next run, and starts to load the state that it begins with and the run behind it.
    __device__ __forceinline__ void look_ahead() {
        const int number = run.number + 1;
        next_end = ahead.end_of(p, number);
        next_slot = ahead.slot_of(p, number);
        if constexpr (kStates) {
            has_state = next_slot >= 0 && p.initial_states != nullptr && ahead.has_past != 0;
            if (kKeepsStates) load_past();
        }
        ahead.load(p, number + 1);
    }

    __device__ __forceinline__ void load_past() {
        past.clear();
        if (!has_state) return;
        past.load(p, p.initial_states, p.initial_states_stride, next_slot, channel, p.first_column,
                  p.states_are_float32);
    }

    __device__ __forceinline__ void get_past(float (&values)[kWidth][kVec]) {
        if constexpr (kStates) {
            if (!kKeepsStates) load_past();
            past.get(p.states_are_float32, values);
        } else {
#pragma unroll
            for (int k = 0; k < kHalo; ++k) {
#pragma unroll
                for (int c = 0; c < kVec; ++c) values[k][c] = 0.0f;
            }
        }
    }

    __device__ __forceinline__ void load_final(int number) {
        final.clear();
        if (number < 0 || p.dfinal_states == nullptr) return;
        final.load(p, p.dfinal_states, p.dfinal_states_stride, number, channel, 0, p.dfinal_states_are_float32);
    }

    __device__ __forceinline__ void store_initial(int column, const float (&values)[kVec]) const {
        const index_t at = initial_at + column * p.dinitial_states_stride[2];
        if (kVec == 1 || !p.states_are_packed) {
#pragma unroll
            for (int c = 0; c < kVec; ++c) {
                store_number<input_t>(p.dinitial_states, at + c * p.dinitial_states_stride[1], p.states_are_float32,
                                      values[c]);
            }
        } else if (p.states_are_float32) {
            store(static_cast<float*>(p.dinitial_states) + at, Vec<float, kVec>::from_floats(values));
        } else {
            store(static_cast<input_t*>(p.dinitial_states) + at, Vec<input_t, kVec>::from_floats(values));
        }
    }
};
