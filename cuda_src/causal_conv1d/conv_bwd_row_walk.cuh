// The gradients of packed sequences along rows with contiguous tokens, a warp for 32 channels.
#pragma once

#include "causal_conv1d/conv_bwd_row_states.cuh"
#include "causal_conv1d/conv_bwd_sequences.cuh"

// A warp's chunks in shared memory: for every channel, stage by stage, those of x, then those of dout.
template <typename Traits, typename input_t>
struct RowChunks {
    static constexpr int kVec = Traits::kVec, kChunkVecs = Traits::kChunkVecs, kChunk = Traits::kChunk;
    static constexpr int kRowsAtOnce = kWarpSize / kChunkVecs;
    static constexpr int kTurns = kWarpSize / kRowsAtOnce;
    static constexpr int kStageTokens = Traits::kStages * kChunk;
    static constexpr int kDoutAt = kStageTokens;  // elements from x to dout
    using Vector = Vec<input_t, kVec>;

    const CausalConv1dBwdOperands& p;
    Vector* memory;  // of the warp
    unsigned first_channel;
    int first;  // token of the walk
    int last;
    bool is_whole;  // all 32 channels exist

    __device__ __forceinline__ RowChunks(const CausalConv1dBwdOperands& p_, Vector* memory_, unsigned first_channel_,
                                         int first_, int last_)
        : p(p_), memory(memory_), first_channel(first_channel_), first(first_), last(last_) {
        is_whole = first_channel + kWarpSize <= static_cast<unsigned>(p.dim);
    }

    // The row of a lane's accesses, and its vector: eight lanes that access shared memory at once are in all banks.
    __device__ __forceinline__ static int row_of(int turn) {
        const int row = lane_id() / kChunkVecs;
        return turn * kRowsAtOnce + row / 2 + row % 2 * (kRowsAtOnce / 2);
    }
    __device__ __forceinline__ static int vec_of() { return lane_id() % kChunkVecs; }

    __device__ __forceinline__ Vector* place_of(int chunk) const {
        return memory + row_of(0) * Traits::kPitch + chunk % Traits::kStages * kChunkVecs + vec_of();
    }

    // Evicted first from the L2 cache: 16 sequences of 512 in 8192 channels take 126.5 us on an H200 instead of 129.2.
    __device__ __forceinline__ static void put(input_t* to, const Vector* from) {
        store<Keep::kStream>(to, load<kVec, Memory::kMutable>(reinterpret_cast<const input_t*>(from)));
    }

    // Starts to bring a chunk.
    __device__ __forceinline__ void fetch(int chunk) const {
        const int token = first + chunk * kChunk + vec_of() * kVec;
        if (token < last) {
            Vector* to = place_of(chunk);
            const index_t x_step = kRowsAtOnce * p.x_stride[1], dout_step = kRowsAtOnce * p.dout_stride[1];
            const unsigned channel = first_channel + row_of(0);
            const input_t* x = static_cast<const input_t*>(p.x) + channel * p.x_stride[1] + token;
            const input_t* dout = static_cast<const input_t*>(p.dout) + channel * p.dout_stride[1] + token;
            if (is_whole) {
#pragma unroll
                for (int i = 0; i < kTurns; ++i, to += kRowsAtOnce * Traits::kPitch, x += x_step, dout += dout_step) {
                    // A chunk is half a line: with whole lines in the L2 cache, 16 sequences of 512 in 8192 channels
                    // take 152 us in bfloat16 on an H200 instead of 176.
                    copy_async<16, true>(to, x);
                    copy_async<16, true>(to + kDoutAt / kVec, dout);
                }
            } else {
#pragma unroll 1
                for (int i = 0; i < kTurns; ++i, to += kRowsAtOnce * Traits::kPitch, x += x_step, dout += dout_step) {
                    const bool is_there = channel + i * kRowsAtOnce < static_cast<unsigned>(p.dim);
                    *to = is_there ? load<kVec>(x) : Vector::zero();
                    to[kDoutAt / kVec] = is_there ? load<kVec>(dout) : Vector::zero();
                }
            }
        }
        end_copy_group();
    }

    // Stores the chunk's results.
    __device__ __forceinline__ void flush(int chunk) const {
        const int token = first + chunk * kChunk + vec_of() * kVec;
        if (token >= last) return;
        const Vector* from = place_of(chunk) + kDoutAt / kVec;
        const index_t step = kRowsAtOnce * p.dx_stride[1];
        const unsigned channel = first_channel + row_of(0);
        input_t* to = static_cast<input_t*>(p.dx) + channel * p.dx_stride[1] + token;
        if (is_whole) {
#pragma unroll
            for (int i = 0; i < kTurns; ++i, from += kRowsAtOnce * Traits::kPitch, to += step) put(to, from);
        } else {
#pragma unroll 1
            for (int i = 0; i < kTurns; ++i, from += kRowsAtOnce * Traits::kPitch, to += step) {
                if (channel + i * kRowsAtOnce < static_cast<unsigned>(p.dim)) put(to, from);
            }
        }
    }

    // The lane's x at a token of the walk; dout, which dx replaces, is kDoutAt further.
    __device__ __forceinline__ input_t* at(int token) const {
        return reinterpret_cast<input_t*>(memory + lane_id() * Traits::kPitch) +
               static_cast<unsigned>(token - first) % kStageTokens;
    }
};

// A walk along the tokens from `first` to `last` - 1 of 32 channels, as SequenceWalk, where all lanes of the warp are
// in one run. The lanes look up several runs at a time, one each, and bring the states of several.
template <typename Chunks, int kWidth, typename input_t, typename weight_t, bool kSilu, bool kStates>
struct RowWalk {
    static constexpr int kHalo = kWidth - 1;
    static constexpr int kRuns = kWarpSize - 1;  // looked up at a time
    static constexpr int kVec = Chunks::kVec;
    static constexpr int kRowPlaces = kWarpSize * kHalo;
    using Vector = Vec<input_t, kVec>;
    using Rows = StateRows<kHalo, input_t>;
    using Array = StateArray<kHalo, input_t>;
    using Window = WalkWindow<kWidth, input_t, weight_t, 1, kSilu>;

    // What precedes a run's first token, if it is not the slot of a state.
    static constexpr int kPadding = -2, kZeros = -1;

    const CausalConv1dBwdOperands& p;
    const Chunks& chunks;
    unsigned channel;
    // The lane's run of those looked up last.
    int low;  // number of lane 0's run
    int begin;
    int source;
    unsigned left;     // bits of lanes with runs behind that of the walk
    unsigned singles;  // of them, and of others before, those with a sequence of one token
    int next_end;      // of the first of these, in advance: shuffles take their time
    int next_source;
    // The run that the walk is in.
    int run_begin;  // its first token in the walk
    int run_end;
    int run_source;
    int place;  // the lane's first column in the row of its states
    // Rows of states: initial ones, which their gradients replace, and gradients of final ones.
    Rows pasts;
    Rows finals;
    int rows_begin;   // the lane with the run of row 0
    int rows_end;     // the lane behind that with the run of the last row
    int rows_number;  // the number of row 0's run
    unsigned stored;  // bits of rows that hold gradients
    Window window;

    // Stands in front of the first token.
    __device__ __forceinline__ RowWalk(const CausalConv1dBwdOperands& p_, const Chunks& chunks_, unsigned channel_,
                                       unsigned char* memory, const ChannelFilter<kWidth, weight_t, 1>& filter)
        : p(p_),
          chunks(chunks_),
          channel(channel_),
          pasts(memory, p.states_are_float32),
          finals(memory + Rows::kBytes, p.dfinal_states_are_float32),
          window(filter) {
        low = find_run(p, chunks.first - 1) - kRuns;
        begin = next_end = next_source = 0;
        left = singles = stored = 0;
        run_begin = run_end = chunks.first;
        run_source = kPadding;
        place = rows_begin = rows_end = rows_number = 0;
    }

    // A vector of tokens, or none behind the last one: there may be sequences without tokens.
    __device__ __forceinline__ void add_vector(int token) {
        const int stop = min(token + kVec, chunks.last);
        input_t* const at = chunks.at(token);
        int next = token;
        do {
            if (next >= run_end) next = turn(next, stop);
            const int end = min(run_end, stop);
            if (run_source == kPadding) {
#pragma unroll 1
                for (; next < end; ++next) put(next, 0.0f);
            } else if (end - next == kVec) {
                add_plain(next, at);
                return;
            } else {
                const input_t* element = at + (next - token);
#pragma unroll 1
                for (; next < end; ++next, ++element) {
                    add<true>(next, Dtype<input_t>::to_float(element[0]),
                              Dtype<input_t>::to_float(element[Chunks::kDoutAt]));
                }
            }
        } while (next < stop);
    }

    // Completes the walk.
    __device__ __forceinline__ void end() {
        const int last = chunks.last;
        const input_t* const x = static_cast<const input_t*>(p.x) + channel * p.x_stride[1];
        const input_t* const dout = static_cast<const input_t*>(p.dout) + channel * p.dout_stride[1];
        if (run_source != kPadding) {
            int token = last;
#pragma unroll 1
            for (; token < min(run_end, last + kHalo); ++token) {
                add<false>(token, Dtype<input_t>::to_float(x[token]), Dtype<input_t>::to_float(dout[token]));
            }
            if (token >= run_end) finish<false>(token);
        }
        if constexpr (kStates) store_rows();
    }

 private:
    __device__ __forceinline__ void put(int token, float dx) const {
        chunks.at(token)[Chunks::kDoutAt] = Dtype<input_t>::from_float(dx);
    }

    // Stores kCount results from number kFirst on as elements kPlace and on of the vector at `to`, as few accesses as
    // alignment allows: each makes lanes wait for each other, however short it is.
    template <int kFirst, int kPlace, int kCount>
    __device__ __forceinline__ static void put_all(input_t* to, const float (&dx)[kVec][1]) {
        if constexpr (kCount > 0) {
            constexpr int kAligned = kPlace == 0 ? kVec : kPlace & -kPlace;
            constexpr int kWidest = kCount >= 8 ? 8 : kCount >= 4 ? 4 : kCount >= 2 ? 2 : 1;
            constexpr int kPart = kWidest < kAligned ? kWidest : kAligned;
            float values[kPart];
#pragma unroll
            for (int i = 0; i < kPart; ++i) values[i] = dx[kFirst + i][0];
            store(to + kPlace, Vec<input_t, kPart>::from_floats(values));
            put_all<kFirst + kPart, kPlace + kPart, kCount - kPart>(to, dx);
        }
    }

    // A vector of tokens of the run.
    __device__ __forceinline__ void add_plain(int token, input_t* at) {
        const Vector own = load<kVec, Memory::kMutable>(at);
        const Vector gradient = load<kVec, Memory::kMutable>(at + Chunks::kDoutAt);
        float dx[kVec][1];
        window.add_plain(
            [&](int i, float (&input)[1], float (&of_output)[1]) {
                input[0] = own.to_float(i);
                of_output[0] = gradient.to_float(i);
            },
            dx);
        if (token - kHalo >= run_begin) {
            put_all<0, kVec - kHalo, kHalo>(chunks.at(token - kVec) + Chunks::kDoutAt, dx);
        } else {
#pragma unroll
            for (int i = 0; i < kHalo; ++i) emit<true>(token - kHalo + i, dx[i][0]);
        }
        put_all<kHalo, 0, kVec - kHalo>(at + Chunks::kDoutAt, dx);
    }

    template <bool kIsOwn>
    __device__ __forceinline__ void add(int token, float own, float dout) {
        const float owns[1] = {own}, douts[1] = {dout};
        window.template add<kIsOwn>(owns, douts);
        emit<kIsOwn>(token - kHalo, window.dx[0][0]);
        window.shift();
    }

    // Stores the gradient of an input of the run, or of the state before it. kIsInside: the input is not behind the
    // walk.
    template <bool kIsInside>
    __device__ __forceinline__ void emit(int token, float value) const {
        if (token >= run_begin) {
            if (kIsInside || token < chunks.last) put(token, value);
        } else if (kStates && run_source >= 0) {
            pasts.put(place + token - run_begin + kHalo, value);
        }
    }

    // Completes the inputs of the run that ends before `token`.
    template <bool kIsInside>
    __device__ __forceinline__ void finish(int token) {
        if constexpr (kStates) {
#pragma unroll
            for (int k = 0; k < kHalo; ++k) window.dx[k][0] += finals.get(place + k);
        }
#pragma unroll
        for (int k = 0; k < kHalo; ++k) emit<kIsInside>(token - kHalo + k, window.dx[k][0]);
    }

    // Goes on to the run that holds a token: that begins there, unless the token is the walk's first. Sequences of one
    // token before `stop` are computed at once; returns the token behind them, most often the same one.
    __device__ __forceinline__ int turn(int token, int stop) {
        if (run_source != kPadding) finish<true>(token);
        run_end = 0x7fffffff;
        run_source = kPadding;
        int number = 0, lane = 0;
        do {
            while (left == 0 && low + kRuns <= p.sequences &&
                   (uniform(from_lane(begin, kRuns)) < chunks.last || chunks.last == p.total)) {
                look_up(low + kRuns);
            }
            // Behind the last token there is no run, before it only where starts are wrong.
            if (left == 0) return token;
            lane = lowest(left);
            number = low + lane;
            left &= left - 1;
            run_end = next_end;
            run_source = next_source;
            look_ahead();
        } while (run_end <= token);
        if constexpr (kStates) {
            if (lane >= rows_end) fill_rows(lane);
            place = Rows::place_of(lane - rows_begin);
        }
        if (singles >> lane & 1) return add_singles(token, stop, lane);
        float before[kWidth][1];
#pragma unroll
        for (int k = 0; k < kHalo; ++k) before[k][0] = kStates ? pasts.get(place + k) : 0.0f;
        run_begin = token;
        if (token == chunks.first) {
            const int passed = token - uniform(from_lane(begin, lane));
            if (passed > 0) {
                begin_inside(passed, before);
                return token;
            }
        }
        window.begin(before);
        if constexpr (kStates) {
            const bool is_sequence = number >= 0 && number < p.sequences;
            if (is_sequence && p.dinitial_states != nullptr) stored |= 1u << (lane - rows_begin);
        }
        return token;
    }

    // Sequences of one token each, the first of them that of a lane: those that are looked up, have rows of states and
    // lie before `stop`. Returns the token behind them.
    __device__ __forceinline__ int add_singles(int token, int stop, int lane) {
        const int following = lowest(~(singles >> lane));
        const int count = min(min(following, stop - token), kStates ? rows_end - lane : kRuns);
        const unsigned lanes = ((1u << count) - 1) << lane;
        if constexpr (kStates) {
            if (p.dinitial_states != nullptr) stored |= lanes >> rows_begin;
        }
        left &= ~lanes;
        look_ahead();
        run_source = kPadding;
        run_end = token + count;
        input_t* const at = chunks.at(token);
#pragma unroll 1
        for (int i = 0; i < count; ++i) add_single(at + i, place + i * kRowPlaces, from_lane(source, lane + i) >= 0);
        return token + count;
    }

    // A sequence of one token, of which the states begin at a place in their rows. has_past: its initial state is one.
    __device__ __forceinline__ void add_single(input_t* at, int own_place, bool has_past) {
        float inputs[kWidth], dx[kWidth];
#pragma unroll
        for (int k = 0; k < kHalo; ++k) inputs[k] = kStates ? pasts.get(own_place + k) : 0.0f;
        inputs[kHalo] = Dtype<input_t>::to_float(at[0]);
        const float g = token_gradient<kSilu, input_t>(window.taps[0], window.bias[0], inputs,
                                                       Dtype<input_t>::to_float(at[Chunks::kDoutAt]));
        window.sums[0].add(g, inputs);
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
            const float of_final = kStates && k > 0 ? finals.get(own_place + k - 1) : 0.0f;
            dx[k] = fmaf(window.taps[0][k], g, of_final);
        }
        at[Chunks::kDoutAt] = Dtype<input_t>::from_float(dx[kHalo]);
        if (kStates && has_past) {
#pragma unroll
            for (int k = 0; k < kHalo; ++k) pasts.put(own_place + k, dx[k]);
        }
    }

    // Begins behind some tokens of a run: `before` has the state that precedes it.
    __device__ __forceinline__ void begin_inside(int passed, float (&before)[kWidth][1]) {
        const input_t* const x = static_cast<const input_t*>(p.x) + channel * p.x_stride[1] + chunks.first - kHalo;
#pragma unroll
        for (int k = 0; k < kHalo; ++k) {
            if (passed + k >= kHalo) {
                before[k][0] = run_source == kPadding ? 0.0f : Dtype<input_t>::to_float(x[k]);
            } else if constexpr (kStates) {
                before[k][0] = pasts.get(place + passed + k);
            }
        }
        window.begin(before);
    }

    // Looks up the runs from a number on, and stores the gradients of initial states of sequences without tokens: zeros
    // without such a state, else the final state's gradient.
    __device__ __forceinline__ void look_up(int number) {
        const int first = chunks.first, last = chunks.last;
        low = number;
        number += lane_id();
        begin = first_token(p, number);
        const int slot = load_slot(p, number);
        const bool is_listed = lane_id() < kRuns && number <= p.sequences;
        const int end = from_lane(begin, lane_id() + 1);
        const bool is_sequence = is_listed && slot >= 0;
        const bool is_ahead = is_listed && begin < min(end, last) && end > first;
        source = !is_sequence ? kPadding : follows_state(p, number) ? slot : kZeros;
        left = uniform(lanes_where(is_ahead));
        singles = uniform(lanes_where(is_ahead && is_sequence && end - begin == 1 && begin >= first));
        rows_end = 0;
        if constexpr (kStates) {
            const bool begins = begin >= first && (begin < last || last == p.total);
            unsigned empty = lanes_where(is_listed && number >= 0 && number < p.sequences && begins && end <= begin);
            for (; empty != 0; empty &= empty - 1) store_empty(lowest(empty));
            if (!is_ahead) source = kPadding;
        }
        look_ahead();
    }

    __device__ __forceinline__ void look_ahead() {
        const int lane = lowest(left);
        next_end = uniform(from_lane(begin, lane + 1));
        next_source = uniform(from_lane(source, lane));
    }

    __device__ __forceinline__ void store_empty(int lane) const {
        const int number = low + lane;
        const bool has_state = from_lane(source, lane) >= 0;
        if (p.dinitial_states == nullptr || chunks.first_channel + lane_id() >= static_cast<unsigned>(p.dim)) return;
#pragma unroll
        for (int k = 0; k < kHalo; ++k) {
            const float of_final = has_state ? final_gradient<kWidth, input_t>(p, number, channel, k - kHalo, 0) : 0.0f;
            store_initial_gradient<input_t>(p, number, channel, k, of_final);
        }
    }

    __device__ __forceinline__ Array initial_states() const {
        return Array(p, p.initial_states, p.initial_states_stride, p.first_column, p.states_are_float32,
                     chunks.first_channel);
    }

    __device__ __forceinline__ Array final_gradients() const {
        return Array(p, p.dfinal_states, p.dfinal_states_stride, 0, p.dfinal_states_are_float32, chunks.first_channel);
    }

    // Brings the states of the runs from that of a lane on.
    __device__ __forceinline__ void fill_rows(int lane) {
        store_rows();
        const int count = Rows::count(pasts.is_float32 || finals.is_float32);
        rows_begin = lane;
        rows_end = lane + count;
        rows_number = low + lane;
        const int number = low + lane_id();
        const int final = source != kPadding && p.dfinal_states != nullptr ? number : -1;
        // The lanes have read the rows before.
        sync_warp();
        const Array initials = initial_states(), of_finals = final_gradients();
        typename Array::Chunk past_rows[Rows::kTurns], final_rows[Rows::kTurns];
        initials.load_rows(past_rows, count, source, lane);
        of_finals.load_rows(final_rows, count, final, lane);
        if (singles >> lane & 1) touch_rows(initials, of_finals, lane + count, final);
        initials.fill(pasts, past_rows, count, source, lane);
        of_finals.fill(finals, final_rows, count, final, lane);
        sync_warp();
    }

    // Brings the rows from that of a lane on to the L2 cache, two lines of each. Sequences of one token take so little
    // time that these are filled next. With a loop of two parts, 2048 of them took 160 us on an H200 instead of 165,
    // but 512 random ones 200 us instead of 197.
    __device__ __forceinline__ void touch_rows(const Array& initials, const Array& of_finals, int lane,
                                               int final) const {
        const int row = lane + lane_id() % (kWarpSize / 2) / 2;
        const int past_slot = from_lane(source, row), final_slot = from_lane(final, row);
        if (row >= kRuns) return;
        if (lane_id() < kWarpSize / 2) {
            initials.touch(past_slot, lane_id() % 2);
        } else {
            of_finals.touch(final_slot, lane_id() % 2);
        }
    }

    // Stores the gradients of initial states that the walk has completed.
    __device__ __forceinline__ void store_rows() {
        if (stored == 0) return;
        sync_warp();
        const Array gradients(p, p.dinitial_states, p.dinitial_states_stride, 0, p.states_are_float32,
                              chunks.first_channel);
        gradients.store_rows(pasts, stored, rows_number);
        stored = 0;
    }
};
