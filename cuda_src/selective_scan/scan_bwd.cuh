// The work of a selective scan's backward pass: blocks walk channels of one chunk of tokens, and hand what goes across
// chunks from block to block.
#pragma once

#include "common/activation.cuh"
#include "common/fastdiv.cuh"
#include "common/sequences.cuh"
#include "common/tokens.cuh"
#include "common/warp.cuh"

// Strides are in elements. D, z, delta_bias, initial_state, dlast_state, chunk_states, query_start_loc, dD, dz,
// ddelta_bias and dinitial_state may be null; without query_start_loc every batch entry is one sequence of all tokens.
struct SelectiveScanBwdOperands {
    const void* u;
    const void* delta;
    const void* A;
    const void* B;
    const void* C;
    const void* D;
    const void* z;
    const void* delta_bias;
    const void* dout;
    const float* initial_state;
    const float* dlast_state;
    const float* chunk_states;
    const void* query_start_loc;
    void* du;
    void* ddelta;
    float* dA;
    void* dB;
    void* dC;
    void* dD;
    void* dz;
    void* ddelta_bias;
    float* dinitial_state;
    float* scratch;
    index_t u_stride[3];  // batch, dim, token
    index_t delta_stride[3];
    index_t z_stride[3];
    index_t dout_stride[3];
    index_t du_stride[3];
    index_t ddelta_stride[3];
    index_t dz_stride[3];
    index_t A_stride[2];  // dim, n
    index_t dA_stride[2];
    index_t B_stride[4];  // batch, group, n, token; of a constant dim instead of group
    index_t C_stride[4];
    index_t dB_stride[4];
    index_t dC_stride[4];
    index_t D_stride;
    index_t dD_stride;
    index_t delta_bias_stride;
    index_t ddelta_bias_stride;
    index_t initial_state_stride[3];  // sequence, dim, n
    index_t dlast_state_stride[3];
    index_t dinitial_state_stride[3];
    index_t chunk_states_stride[4];  // batch, chunk, dim, n
    index_t query_start_loc_stride;
    index_t states_at;          // floats of scratch before the states that no caller gave
    index_t rates_at;           // before the partial sums of dA
    index_t vectors_at;         // before those of dD and ddelta_bias
    index_t constants_at;       // before those of a constant B
    index_t more_constants_at;  // of a constant C
    index_t matrices_at;        // before those of dB and dC that depend on the token
    index_t filled;             // floats of scratch that begin as kUnset
    FastDiv rows;               // blocks per chunk: batch * groups * splits
    FastDiv batch_rows;         // blocks per chunk of one batch entry: groups * splits
    FastDiv splits;             // blocks that share the channels of a group
    FastDiv groups;
    FastDiv matrix_rows;  // rows of a group in dB and dC: d_state, or twice as many where both are variable
    int constant_B;       // whether it is (dim, d_state)
    int constant_C;
    int batch;
    int dim;
    int total;   // tokens per batch entry
    int chunks;  // per batch entry
    int sequences;
    int d_state;
    int group_channels;
    int split_channels;
    int delta_softplus;
    int B_is_float32;
    int C_is_float32;
    int D_is_float32;
    int delta_bias_is_float32;
    int query_start_loc_is_int64;
    FastDiv group_dim;   // channels per group
    FastDiv dim_blocks;  // blocks per batch entry that sweep channels
    index_t zeros;       // floats behind the filled ones that begin as zeros
    int shares_chunks;   // whether packed sequences share chunks, in place of beginning one each
    int row_tokens;      // tokens of each sequence, where these are rows of a batch
};

inline constexpr int kChunk = 256;       // tokens per chunk, as the forward pass leaves states
inline constexpr int kBlockStates = 16;  // states that a block has under way
inline constexpr float kLn2 = 0.693147181f;

// Neighbouring channels that are walked together, a vector of 16 bytes: because they lie in memory so, or for some of
// many states before the next ones.
template <typename T>
inline constexpr int kGroupChannels = 16 / static_cast<int>(sizeof(T));

// Floats of scratch in front of everything else: the counters that number the blocks of two launches.
enum Counter { kStatesCounter, kBwdCounter, kCounters = 4 };

// The bits of a number that no block has written yet: a NaN that no arithmetic makes.
inline constexpr unsigned kUnset = 0xffffffffu;

// The tokens of one chunk: which sequence they belong to, and where they lie. Where sequences share chunks, a chunk
// goes on from the one before it as in a single sequence, and Cuts says where another one begins.
struct ChunkTokens {
    int sequence;  // its row in the arrays of states
    int begin;     // the first token
    int front;     // tokens of padding in front, where sequences share chunks
    int stored;    // tokens that have gradients
    int live;      // tokens up to the last one of a sequence: as many, or none of padding
    bool is_first;
    bool is_last;

    __device__ __forceinline__ ChunkTokens(const SelectiveScanBwdOperands& p, int batch, int chunk,
                                           bool shares_chunks) {
        int end = p.total;
        bool is_padding = false, has_next = true;
        if (p.query_start_loc == nullptr || shares_chunks) {
            sequence = batch;
            begin = chunk * kChunk;
            is_first = chunk == 0;
        } else {
            // Sequence i, counted from -1 for the padding in front, has the chunks from first_token(i) / kChunk + i + 1
            // on: at least one each, and enough for its tokens.
            int low = -1, high = p.sequences;
            bool is_found = false;  // a chunk of this number as the first one of a sequence
            while (low < high) {
                const int middle = low + (high - low + 1) / 2;
                const int number = first_token(p, middle) / kChunk + middle + 1;
                // Where borders fall, which is wrong, neighbouring chunks may find sequences that are none. They depend
                // on each other only where all that they look at is on the same side of both: nothing waits forever.
                is_found |= number == chunk;
                has_next &= number != chunk + 1;
                if (number <= chunk) {
                    low = middle;
                } else {
                    high = middle - 1;
                }
            }
            const int first = first_token(p, low);
            const int number = chunk - (first / kChunk + low + 1);
            is_padding = low < 0 || low >= p.sequences;
            sequence = low;
            begin = min(first + max(number, 0) * kChunk, p.total);
            end = low >= p.sequences ? p.total : first_token(p, low + 1);
            is_first = (number == 0 || is_found) && !is_padding;
        }
        // All threads agree, and the compiler knows it.
        begin = uniform(begin);
        stored = uniform(max(0, min(end - begin, kChunk)));
        live = is_padding ? 0 : stored;
        front = 0;
        if (shares_chunks) {
            front = uniform(min(max(first_token(p, 0) - begin, 0), stored));
            live = uniform(min(max(first_token(p, p.sequences) - begin, 0), stored));
        }
        is_last = begin + kChunk >= end || !has_next;
    }

    // Whether a token of the chunk is one of a sequence.
    template <bool kSharesChunks>
    __device__ __forceinline__ bool has(int token) const {
        return (!kSharesChunks || token >= front) && token < live;
    }

    // Leaves, of a chunk that sequences share, the last one that begins there as if the chunk began with it: the state
    // behind the chunk does not depend on what comes before. Its first chunk has no sequence where all is padding.
    __device__ __forceinline__ void keep_last_sequence(const SelectiveScanBwdOperands& p) {
        int low = -1, high = p.sequences - 1;
        while (low < high) {
            const int middle = low + (high - low + 1) / 2;
            if (first_token(p, middle) < begin + live) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        const int token = uniform(low < 0 ? -1 : first_token(p, low) - begin);
        sequence = token < 0 ? -1 : uniform(low);
        is_first = is_first || token >= 0;
        front = max(front, token);
    }

    // Whether the chunk is a place that no sequence needs.
    __device__ __forceinline__ bool is_unused() const { return stored == 0 && !is_first; }
};

// Where sequences begin in a chunk that they share.
template <typename Shape>
struct Cuts {
    unsigned bits[kChunk / Shape::kTokens];  // of each lane's tokens

    // The whole block does this, and has to be synchronised behind it.
    __device__ __forceinline__ void find(const SelectiveScanBwdOperands& p, const ChunkTokens& tokens) {
        const int thread = static_cast<int>(threadIdx.x);
        if (thread < kChunk / Shape::kTokens) bits[thread] = 0;
        int low = 0, high = p.sequences;
        while (low < high) {
            const int middle = low + (high - low) / 2;
            if (first_token(p, middle) < tokens.begin) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        __syncthreads();
        for (int number = low + thread; number < p.sequences; number += Shape::kThreads) {
            const int token = first_token(p, number) - tokens.begin;
            if (token >= kChunk) break;
            if (token >= 0) atomicOr(&bits[token / Shape::kTokens], 1u << token % Shape::kTokens);
        }
    }
};

// A block's number: where rows have several chunks, in the order in which blocks begin, so that a block waits only for
// those that run already.
__device__ __forceinline__ unsigned block_number(const SelectiveScanBwdOperands& p) {
    return p.chunks > 1 ? next_number(p.scratch + kBwdCounter) : blockIdx.x;
}

// What a block works on: a chunk, and some channels of a group. They follow each other, or with kTurn that many do:
// then blocks take turns, so that those that run at the same time use the same lines of the L2 cache. On an H200
// 8 x 1536 x 2048 with contiguous channels take 875 us so, and otherwise 997.
template <int kTurn = 0>
struct ChunkShare {
    int batch;
    int chunk;
    int group;
    int split;
    int first_channel;
    int channels;
    int others;  // channels of other blocks between those that follow each other

    __device__ __forceinline__ ChunkShare(const SelectiveScanBwdOperands& p, unsigned number, bool backward) {
        number = uniform(number);
        const QuotientRemainder rank_row = divide(number, p.rows);
        const QuotientRemainder batch_row = divide(rank_row.remainder, p.batch_rows);
        const QuotientRemainder group_split = divide(batch_row.remainder, p.splits);
        const int rank = static_cast<int>(rank_row.quotient);
        chunk = backward ? p.chunks - 1 - rank : rank;
        batch = static_cast<int>(batch_row.quotient);
        group = static_cast<int>(group_split.quotient);
        split = static_cast<int>(group_split.remainder);
        first_channel = group * p.group_channels + split * (kTurn > 0 ? kTurn : p.split_channels);
        channels = max(0, min(p.split_channels, (group + 1) * p.group_channels - first_channel));
        others = 0;
        if constexpr (kTurn > 0) {
            others = (static_cast<int>(p.splits.divisor) - 1) * kTurn;
            channels = (p.group_channels - split * kTurn + others) / (others + kTurn) * kTurn;
        }
    }

    // The block's i-th channel, counted from its first one.
    __device__ __forceinline__ int channel(int i) const { return kTurn > 0 ? i + i / max(kTurn, 1) * others : i; }

    __device__ __forceinline__ index_t number(const SelectiveScanBwdOperands& p) const {
        return static_cast<index_t>(batch) * p.chunks + chunk;
    }
};

// A place that one block writes and another reads, both while they run.
__device__ __forceinline__ void hand_over(float* place, float value) {
    const unsigned bits = __float_as_uint(value);
    store_relaxed(place, bits == kUnset ? 0x7fffffffu : bits);
}

__device__ __forceinline__ float wait_for(const float* place, unsigned bits) {
    while (bits == kUnset) bits = load_relaxed(place);
    return __uint_as_float(bits);
}

// What a block works on at a time: one of its channels, counted from 0, and kBlockStates states from this one on.
struct Step {
    int channel;
    int first_state;
};

// The order of a block's steps. Without kManyStates it is that of channels. Otherwise kGroup neighbouring channels are
// walked for some of the states, and then for the next ones: B, C, dB and dC of a run stay where they are.
template <bool kManyStates, int kGroup>
struct Steps {
    int channels;
    int d_state;

    __device__ __forceinline__ Step after(Step now) const {
        Step next = {now.channel + 1, now.first_state};
        if (kManyStates && (next.channel % kGroup == 0 || next.channel >= channels)) {
            next.first_state += kBlockStates;
            if (next.first_state < d_state) {
                next.channel = now.channel / kGroup * kGroup;
            } else {
                next.first_state = 0;
            }
        }
        return next;
    }

    __device__ __forceinline__ bool has(Step step) const { return step.channel < channels; }

    // Whether a channel's last states are under way.
    __device__ __forceinline__ bool is_last(Step step) const {
        return !kManyStates || step.first_state + kBlockStates >= d_state;
    }

    // Whether a run begins.
    __device__ __forceinline__ bool is_first_of_run(Step step) const { return step.channel % kGroup == 0; }

    // Whether one ends, with `next` behind this step.
    __device__ __forceinline__ bool is_last_of_run(Step next) const {
        return next.channel % kGroup == 0 || next.channel >= channels;
    }
};

// How the threads of a block divide a chunk: each warp has kStates of the states and a lane kTokens consecutive tokens;
// what belongs to tokens alone is divided over all threads, kOwn tokens each.
template <typename T>
struct ChunkShape {
    using input_t = T;
    static constexpr int kThreads = 128;
    static constexpr int kWarps = kThreads / kWarpSize;
    static constexpr int kTokens = kChunk / kWarpSize;
    static constexpr int kStates = kBlockStates / kWarps;
    static constexpr int kOwn = 2;  // consecutive tokens that a thread prepares and finishes
    static_assert(kOwn * kThreads == kChunk);
    // The two halves of a lane's tokens are apart, and so are the threads that read and write them in different banks.
    static constexpr int kHalf = kChunk / 2;
    static constexpr int kMatrixHalf = kHalf;
    static constexpr int kGap = 16;
    static constexpr int kSumsGap = sizeof(T) == 4 ? 0 : 16;  // there is no room for it beside matrices of floats
    static constexpr int kRow = 2 * kHalf + kGap;
    static constexpr int kSumsRow = 2 * kHalf + kSumsGap;

    // Where a token of the chunk is in a row of shared memory.
    __device__ __forceinline__ static int place(int token, int gap) {
        return token % kTokens / 4 * (kHalf + gap) + token / kTokens * 4 + token % 4;
    }

    // Where it is in a row of a matrix: 16-bit tokens of a lane are one vector.
    __device__ __forceinline__ static int matrix_place(int token) { return sizeof(T) == 4 ? place(token, 0) : token; }

    // The number of a lane among those that have the tokens of a channel.
    __device__ __forceinline__ static int row_lane(int lane) { return lane; }
};

// The tokens of a lane out of a row of shared memory.
template <typename Shape, int kGap>
__device__ __forceinline__ void take_tokens(const float* row, int lane, float (&values)[Shape::kTokens]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const auto v = load<4, Memory::kMutable>(row + half * (Shape::kHalf + kGap) + lane * 4);
#pragma unroll
        for (int i = 0; i < 4; ++i) values[half * 4 + i] = v.to_float(i);
    }
}

template <typename Shape, int kGap>
__device__ __forceinline__ void put_tokens(float* row, int lane, const float (&values)[Shape::kTokens]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float part[4] = {values[half * 4], values[half * 4 + 1], values[half * 4 + 2], values[half * 4 + 3]};
        store(row + half * (Shape::kHalf + kGap) + lane * 4, Vec<float, 4>::from_floats(part));
    }
}

// The tokens of a lane out of a row of a matrix, as they are in memory.
template <typename Shape>
struct MatrixTokens {
    using T = typename Shape::input_t;
    static constexpr int kVec = 16 / static_cast<int>(sizeof(T));
    Vec<T, kVec> parts[Shape::kTokens / kVec];

    __device__ __forceinline__ MatrixTokens(const T* row, int lane) {
#pragma unroll
        for (int i = 0; i < Shape::kTokens / kVec; ++i) {
            parts[i] = load<kVec, Memory::kMutable>(row + i * Shape::kMatrixHalf + lane * kVec);
        }
    }

    __device__ __forceinline__ void to_floats(float (&values)[Shape::kTokens]) const {
#pragma unroll
        for (int t = 0; t < Shape::kTokens; ++t) values[t] = parts[t / kVec].to_float(t % kVec);
    }
};

// Whether rows of aligned tokens of a matrix arrive later, which wait_for_copies() waits for: not with kByState, where
// other copies are under way, and not where sequences share chunks. On an H200 16 x 512 packed tokens of 1536 channels
// take 701 us with that and 16 elements at once, and 692 without.
template <bool kSharesChunks, bool kByState>
inline constexpr bool kArrivesLater = !kSharesChunks && !kByState;

// The tokens of a chunk of a matrix, kBlockStates states from `first_state` on; where there is no such token or state,
// zeros. Rows of aligned tokens are taken in vectors, and with kByState so are aligned states, which a thread turns to
// rows of its own tokens. Others are loaded element by element, kAtOnce before the first of them is used: 2000
// instructions per thread.
template <typename Shape, bool kSharesChunks, bool kByState = false, int kAtOnce = kSharesChunks ? 1 : 16>
__device__ __forceinline__ void take_chunk(typename Shape::input_t (&to)[kBlockStates][kChunk],
                                           const typename Shape::input_t* matrix, const index_t* stride,
                                           int first_state, int d_state, const ChunkTokens& tokens) {
    using T = typename Shape::input_t;
    constexpr bool kIsLater = kArrivesLater<kSharesChunks, kByState>;
    constexpr int kVec = 16 / static_cast<int>(sizeof(T));
    const T* const from = matrix + first_state * stride[2] + tokens.begin * stride[3];
    const bool is_aligned = stride[3] == 1 && stride[2] % kVec == 0 && reinterpret_cast<size_t>(from) % 16 == 0;
    if (is_aligned && (kIsLater || (tokens.live == kChunk && (!kSharesChunks || tokens.front == 0)))) {
        for (int i = static_cast<int>(threadIdx.x) * kVec; i < kBlockStates * kChunk; i += Shape::kThreads * kVec) {
            const int n = i / kChunk, token = i % kChunk;
            T* const place = to[n] + Shape::matrix_place(token);
            if constexpr (kIsLater) {
                const int count = first_state + n < d_state ? max(0, min(tokens.live - token, kVec)) : 0;
                copy_front_async(place, count > 0 ? from + n * stride[2] + token : from,
                                 count * static_cast<int>(sizeof(T)));
            } else {
                Vec<T, kVec> values = Vec<T, kVec>::zero();
                if (first_state + n < d_state) values = load<kVec>(from + n * stride[2] + token);
                store(place, values);
            }
        }
        return;
    }
    if (kByState && stride[2] == 1 && stride[3] % kVec == 0 && d_state % kVec == 0 &&
        reinterpret_cast<size_t>(from) % 16 == 0) {
        static_assert(kChunk == 2 * Shape::kThreads);
        const int token = static_cast<int>(threadIdx.x) * 2;
#pragma unroll
        for (int n = 0; n < kBlockStates; n += kVec) {
            Vec<T, kVec> rows[2];
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                rows[j] = Vec<T, kVec>::zero();
                if (tokens.has<kSharesChunks>(token + j) && first_state + n < d_state) {
                    rows[j] = load<kVec>(from + n + (token + j) * stride[3]);
                }
            }
#pragma unroll
            for (int i = 0; i < kVec; ++i) {
                store(to[n + i] + Shape::matrix_place(token), column_of(rows[0], rows[1], i));
            }
        }
        return;
    }
    for (int begin = static_cast<int>(threadIdx.x); begin < kBlockStates * kChunk; begin += kAtOnce * Shape::kThreads) {
        T values[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            const int n = (begin + i * Shape::kThreads) / kChunk, token = (begin + i * Shape::kThreads) % kChunk;
            values[i] = Dtype<T>::from_float(0.0f);
            if (tokens.has<kSharesChunks>(token) && first_state + n < d_state)
                values[i] = from[n * stride[2] + token * stride[3]];
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            const int n = (begin + i * Shape::kThreads) / kChunk, token = (begin + i * Shape::kThreads) % kChunk;
            to[n][Shape::matrix_place(token)] = values[i];
        }
    }
}

// The rows that a block walks in one array: where the first of its channels and of its chunk's tokens is. In shared
// memory, for there are seven such arrays.
template <typename Pointee>
struct ChunkRows {
    Pointee* at;
    index_t channel_step;

    template <typename Pointer, typename Share>
    __device__ __forceinline__ void begin(Pointer base, const index_t* stride, const Share& share,
                                          const ChunkTokens& tokens) {
        if (base == nullptr) return;
        at = static_cast<Pointee*>(base) + share.batch * stride[0] + share.first_channel * stride[1] +
             tokens.begin * stride[2];
        channel_step = stride[1];
    }

    // A token of a channel, counted from the block's first one.
    __device__ __forceinline__ Pointee* place(int i, unsigned token, index_t token_step) const {
        return as_global(at) + static_cast<unsigned>(i) * channel_step + token * token_step;
    }
};
