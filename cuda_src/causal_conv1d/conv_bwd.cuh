// The gradients of a causal convolution, for any memory layout: operands, sequences, and the sums of one token.
#pragma once

#include "causal_conv1d/conv.cuh"
#include "common/sequences.cuh"
#include "common/tokens.cuh"

// Strides are in elements. bias, seq_idx, initial_states, dfinal_states, the arrays of packed sequences and all outputs
// but dx and dweight may be null. Where a flag says so they hold float; else bias and the parameters' gradients hold
// what weight holds, the states and their gradients what x holds. Without scratch one block has all tokens of its
// channels and writes the parameters' gradients itself.
//
// Packed sequences are one batch entry: their states are (slot, dim, column), the gradients of them (sequence, dim,
// width - 1).
struct CausalConv1dBwdOperands {
    const void* x;
    const void* weight;
    const void* bias;
    const void* dout;
    const int* seq_idx;
    const void* initial_states;
    const void* dfinal_states;
    const void* query_start_loc;
    const void* cache_indices;
    const void* has_initial_state;
    void* dx;
    void* dweight;
    void* dbias;
    void* dinitial_states;
    float* scratch;                     // part, width + 1, dim: sums over a part of the tokens
    index_t seq_idx_stride[2];          // batch, seqlen
    index_t initial_states_stride[3];   // batch or slot, dim, column
    index_t dfinal_states_stride[3];    // batch or sequence, dim, width - 1
    index_t dinitial_states_stride[3];  // batch or sequence, dim, width - 1
    index_t query_start_loc_stride;
    index_t cache_indices_stride;
    index_t has_initial_state_stride;
    index_t slots;  // of initial_states
    index_t pad_slot_id;
    int first_column;        // of initial_states that is live: the last width - 1 are
    int sequences;           // packed ones
    int total;               // seqlen, by the name that packed sequences have for it
    int states_are_float32;  // initial_states and dinitial_states
    int dfinal_states_are_float32;
    int has_states;         // a pool of states is given: a slot outside it is padding
    int states_are_packed;  // vectors of x along channels are vectors of all states and their gradients, too
    int query_start_loc_is_int64;
    int cache_indices_is_int64;
    // What every launch reads is close together: arguments arrive by cache lines, one miss after another.
    index_t dweight_stride[2];  // dim, width
    index_t dbias_stride;       // dim
    index_t bias_stride;        // dim
    index_t weight_stride[2];   // dim, width
    index_t x_stride[3];        // batch, dim, seqlen
    index_t dout_stride[3];     // batch, dim, seqlen
    index_t dx_stride[3];       // batch, dim, seqlen
    int dweight_is_float32;
    int dbias_is_float32;
    int bias_is_float32;
    int taps_are_packed;  // weight and bias are contiguous, and aligned to what a channel vector has of them
    int dout_is_packed;   // vectors of x are vectors of dout, too
    int batch;
    int dim;
    int seqlen;
};

// What the functions of the parameters' gradients take of a kernel's own arguments, with nothing for the rest.
// kTapsArePacked: of a kernel that takes no other weights and biases, and no strides of them.
template <bool kTapsArePacked = false, typename Params>
__device__ __forceinline__ CausalConv1dBwdOperands parameters_of(const Params& params) {
    CausalConv1dBwdOperands p{};
    p.weight = params.weight;
    p.bias = params.bias;
    p.dweight = params.dweight;
    p.dbias = params.dbias;
    p.scratch = params.scratch;
    p.dim = params.dim;
    p.dweight_stride[0] = params.dweight_stride[0];
    p.dweight_stride[1] = params.dweight_stride[1];
    p.dbias_stride = params.dbias_stride;
    p.bias_is_float32 = params.bias_is_float32;
    p.dweight_is_float32 = params.dweight_is_float32;
    p.dbias_is_float32 = params.dbias_is_float32;
    if constexpr (kTapsArePacked) {
        p.taps_are_packed = 1;
    } else {
        p.weight_stride[0] = params.weight_stride[0];
        p.weight_stride[1] = params.weight_stride[1];
        p.bias_stride = params.bias_stride;
        p.taps_are_packed = params.taps_are_packed;
    }
    return p;
}

// How the tokens of a row fall into sequences. kOne: they are one. kNumbered: seq_idx has a number for every token.
// kPacked: query_start_loc says where each begins.
enum class Rows { kOne, kNumbered, kPacked };

template <bool kSeqIdx, bool kPacked>
inline constexpr Rows kRowsOf = kPacked   ? Rows::kPacked
                                : kSeqIdx ? Rows::kNumbered
                                          : Rows::kOne;

// Lets the compiler drop all that states need when there are none.
template <bool kStates>
__device__ __forceinline__ CausalConv1dBwdOperands with_states(CausalConv1dBwdOperands p) {
    if (!kStates) p.initial_states = p.dfinal_states = p.dinitial_states = nullptr;
    return p;
}

// Taps and bias are multiplied by kSumScale, what silu wants; gradients before the activation are divided by it, so
// that a product of both needs no correction.
template <typename input_t, bool kSilu>
inline constexpr float kSumScale = kSilu ? kSiluScale<input_t> : 1.0f;

// The gradient before the activation, divided by kSumScale, from the scaled sum before it.
template <typename input_t, bool kSilu>
__device__ __forceinline__ float inner_gradient(float scaled_sum, float dout) {
    return kSilu ? silu_gradient<input_t>(scaled_sum, dout) : dout;
}

// A number that is a float or a T.
template <typename T>
__device__ __forceinline__ float load_number(const void* p, index_t at, int is_float32) {
    return is_float32 ? static_cast<const float*>(p)[at] : Dtype<T>::to_float(static_cast<const T*>(p)[at]);
}

// kVec elements, as a vector where memory has them so, else one by one: gradients of sums and of slices come with any
// strides.
template <int kVec, typename T>
__device__ __forceinline__ Vec<T, kVec> load_apart(const T* at, index_t step, bool is_packed) {
    if (is_packed) return load<kVec>(at);
    Vec<T, kVec> v = Vec<T, kVec>::zero();
#pragma unroll
    for (int i = 0; i < kVec; ++i) v.put(i, at[i * step]);
    return v;
}

// The sequence number of a token: in a row with seq_idx what lies before the first token continues its sequence.
// Negative numbers, and what lies behind the last token, have no gradient.
__device__ __forceinline__ int load_seq_idx(const CausalConv1dBwdOperands& p, index_t batch, int token) {
    const int at = token < 0 ? 0 : token;
    return at < p.seqlen ? __ldg(p.seq_idx + batch * p.seq_idx_stride[0] + at * p.seq_idx_stride[1]) : -1;
}

// A run of packed tokens: a sequence, or padding.
struct PackedRun {
    static constexpr int kPadding = -1;

    int number;  // of the sequence; -1 for the padding before all of them, `sequences` for that behind them
    int begin;   // the first token
    int end;     // the token behind the last
    int slot;    // of the sequence's state, negative for padding

    // The number of the sequence, kPadding for padding.
    __device__ __forceinline__ int sequence() const { return slot < 0 ? kPadding : number; }

    // Whether all of the tokens from `from` to `to` - 1 are in this sequence.
    __device__ __forceinline__ bool holds(int from, int to) const { return begin <= from && to <= end && slot >= 0; }
};

// Walks along packed tokens, from a run to the one behind it.
struct PackedCursor : PackedRun {
    PackedCursor() = default;

    // Stands at the run that holds a token. The search looks at several sequences at once, because loads that wait for
    // each other take most of its time.
    __device__ __forceinline__ PackedCursor(const CausalConv1dBwdOperands& p, int token) {
        constexpr int kParts = 8;
        int low = -1;
        for (int high = p.sequences + 1; high - low > 1;) {
            const int part = (high - low + kParts - 1) / kParts;
            int before = 0;
#pragma unroll
            for (int i = 1; i < kParts; ++i) {
                const int at = low + i * part;
                before += at < high && first_token(p, at) <= token ? 1 : 0;
            }
            low += before * part;
            high = min(high, low + part);
        }
        number = low;
        begin = first_token(p, low);
        end = first_token(p, low + 1);
        slot = load_slot(p, low);
    }
};

// The sequence numbers of kCount tokens from `token` on, where tokens have numbers.
template <Rows kRows, int kCount>
__device__ __forceinline__ void load_numbers(const CausalConv1dBwdOperands& p, index_t batch, int token,
                                             int (&seq)[kCount]) {
    if constexpr (kRows == Rows::kNumbered) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) seq[i] = load_seq_idx(p, batch, token + i);
    }
}

// An element of what precedes a row or, of packed ones, a sequence: column 0 is width - 1 tokens before its first.
template <typename input_t>
__device__ __forceinline__ float load_initial(const CausalConv1dBwdOperands& p, index_t slot, index_t channel,
                                              int column) {
    const index_t at = slot * p.initial_states_stride[0] + channel * p.initial_states_stride[1] +
                       (p.first_column + column) * p.initial_states_stride[2];
    return load_number<input_t>(p.initial_states, at, p.states_are_float32);
}

// Whether a packed sequence follows an initial state.
__device__ __forceinline__ bool follows_state(const CausalConv1dBwdOperands& p, int number) {
    return p.initial_states != nullptr && (p.has_initial_state == nullptr || has_past(p, number));
}

// What the final state's gradient adds to that of a token, which may lie before the first: the state is the last
// width - 1 inputs of the sequence that ends before the token `end`.
template <int kWidth, typename input_t>
__device__ __forceinline__ float final_gradient(const CausalConv1dBwdOperands& p, index_t sequence, index_t channel,
                                                int token, int end) {
    const int column = token - end + (kWidth - 1);
    if (p.dfinal_states == nullptr || column < 0 || token >= end) return 0.0f;
    const index_t at =
        sequence * p.dfinal_states_stride[0] + channel * p.dfinal_states_stride[1] + column * p.dfinal_states_stride[2];
    return load_number<input_t>(p.dfinal_states, at, p.dfinal_states_are_float32);
}

template <typename input_t>
__device__ __forceinline__ void store_initial_gradient(const CausalConv1dBwdOperands& p, index_t sequence,
                                                       index_t channel, int column, float value) {
    const index_t at = sequence * p.dinitial_states_stride[0] + channel * p.dinitial_states_stride[1] +
                       column * p.dinitial_states_stride[2];
    store_number<input_t>(p.dinitial_states, at, p.states_are_float32, value);
}

// Leaves in the kWidth inputs that end at a token those with the token's own sequence number; none, when that is
// negative: there memory may hold anything.
template <int kWidth>
__device__ __forceinline__ void keep_own_inputs(const int* seq, float (&window)[kWidth]) {
    const int own = seq[kWidth - 1];
#pragma unroll
    for (int k = 0; k < kWidth; ++k) window[k] = seq[k] == own && own >= 0 ? window[k] : 0.0f;
}

// The sums of one channel that make its parameters' gradients, divided by kSumScale.
template <int kWidth>
struct ParameterSums {
    float taps[kWidth];
    float bias;

    __device__ __forceinline__ static ParameterSums zero() {
        ParameterSums sums;
#pragma unroll
        for (int k = 0; k < kWidth; ++k) sums.taps[k] = 0.0f;
        sums.bias = 0.0f;
        return sums;
    }

    __device__ __forceinline__ void add(float gradient, const float (&window)[kWidth]) {
#pragma unroll
        for (int k = 0; k < kWidth; ++k) taps[k] = fmaf(gradient, window[k], taps[k]);
        bias += gradient;
    }

    // The taps' sums, then that of the bias.
    __device__ __forceinline__ float at(int j) const { return j < kWidth ? taps[j < kWidth ? j : 0] : bias; }
};

// The gradient before the activation of a token, divided by kSumScale.
template <bool kSilu, typename input_t, int kWidth>
__device__ __forceinline__ float token_gradient(const float (&taps)[kWidth], float bias, const float (&window)[kWidth],
                                                float dout) {
    return inner_gradient<input_t, kSilu>(convolve<false>(taps, bias, window, nullptr), dout);
}

// The gradient of an input from those of the kWidth tokens from it on, and their sequence numbers: those of the same
// sequence count.
template <Rows kRows, int kWidth>
__device__ __forceinline__ float input_gradient(const float (&taps)[kWidth], const float (&gradients)[kWidth],
                                                const int* seq) {
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
        if (kRows == Rows::kOne || seq[k] == seq[0]) sum = fmaf(taps[kWidth - 1 - k], gradients[k], sum);
    }
    return sum;
}

// Writes the gradient of a tap, or behind the last that of the bias. Operands: with dweight, dbias, their strides and
// what they hold.
template <int kWidth, typename weight_t, typename Operands>
__device__ __forceinline__ void store_parameter_gradient(const Operands& p, index_t channel, int j, float sum) {
    if (j < kWidth) {
        const index_t at = channel * p.dweight_stride[0] + j * p.dweight_stride[1];
        store_number<weight_t>(p.dweight, at, p.dweight_is_float32, sum);
    } else if (p.dbias != nullptr) {
        store_number<weight_t>(p.dbias, channel * p.dbias_stride, p.dbias_is_float32, sum);
    }
}

// Writes a block's sum: as the result when the block has all tokens of the channel, else as one part of it.
template <int kWidth, typename weight_t>
__device__ __forceinline__ void store_block_sum(const CausalConv1dBwdOperands& p, unsigned part, index_t channel, int j,
                                                float sum) {
    if (p.scratch == nullptr) {
        store_parameter_gradient<kWidth, weight_t>(p, channel, j, sum);
    } else {
        p.scratch[(static_cast<index_t>(part) * (kWidth + 1) + j) * p.dim + channel] = sum;
    }
}
