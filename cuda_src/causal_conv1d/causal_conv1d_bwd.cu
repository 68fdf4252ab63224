// Gradients of out[t] = act(sum[t]), sum[t] = bias + sum_w weight[w] * x[t - (width - 1) + w], for rows whose sequence
// is contiguous. With g[t] = dout[t] * act'(sum[t]):
//
//     dx[t] = sum_k weight[width - 1 - k] * g[t + k]
//     dweight[w] = sum_t g[t] * x[t - (width - 1) + w]
//     dbias = sum_t g[t]
//
// Layout: x, dx (batch, dim, seqlen), seqlen stride 1; any strides when kVec is 1. dout the same, or any strides
// element by element. A channel's vectors, row after row, count as one list. A group is what the lanes of a warp hold
// of it at a time, one vector each; where rows are very short, the lanes share several consecutive channels. A warp
// walks a part of the list from its end to its beginning, and copies the groups ahead of it asynchronously into a ring
// in shared memory. Inputs before a vector come from the ring, gradients behind it from the lane above by shuffle,
// those of the highest lane from the lowest in the group before. The parameters' gradients stay in registers until the
// warp's last group; the block adds up those of its lanes and warps in a fixed order. No atomics on sums.
//
// Packed sequences are one row. A warp knows the sequence that the last group was in, and computes groups inside it as
// those of a plain row. Where sequences meet, it looks up their beginnings together and marks them as bits in shared
// memory, from which each lane takes those around its vector.
//
// kWidth    filter taps              input_t   x, dout and dx            weight_t  weight, and bias unless float
// kVec      elements an access       kStages   groups in the ring        kSilu     silu after the sum
// kEdges    vectors may lie inside a row only in part
// kSeqIdx   tokens see only their own sequence number                kPacked   rows are packed sequences
// kStates   initial states, or gradients of states, are given or wanted
#include "causal_conv1d/conv_bwd.cuh"
#include "common/fastdiv.cuh"
#include "common/warp.cuh"

struct CausalConv1dBwdParams {
    CausalConv1dBwdOperands operands;
    FastDiv row_vecs;        // vectors a row
    FastDiv channel_groups;  // blocks that have different channels
    unsigned lanes;          // a channel in a warp, a power of two
    unsigned lanes_shift;    // its binary logarithm
    unsigned warps_shift;    // binary logarithm of the warps a channel in a block
    unsigned vecs;           // vectors a channel, in all rows
    unsigned groups;         // groups a channel, in all rows
    unsigned warp_groups;    // groups that a warp walks
    unsigned step_rows;      // whole rows between a lane's vectors of two groups
    unsigned step_vecs;      // vectors between them beyond those rows
    int is_dense;            // x and dout have no gaps: what lies around a row is memory, too
};

template <int kWidth, typename input_t, typename weight_t, int kVec, int kStages, bool kEdges, bool kSilu, bool kSeqIdx,
          bool kPacked, bool kStates>
struct CausalConv1dBwdTraits {
    static constexpr int kThreads = 128;
    static constexpr Rows kRows = kRowsOf<kSeqIdx, kPacked>;
    static constexpr int kWarps = kThreads / kWarpSize;
    static constexpr bool kIsLean = kWidth <= 4 && kRows == Rows::kOne && !kStates;
    static constexpr int kMinBlocks = kIsLean ? 6 : kPacked && kWidth <= 4 ? 5 : 1;
    static constexpr int kHalo = kWidth - 1;
    static constexpr int kHaloVecs = (kHalo + kVec - 1) / kVec;
    static_assert(kWidth >= 1 && kWidth <= 16 && kStages >= 3);
};

// A lane's vector of a group: vector `vec` of a row, which begins with the token `token`. Vectors lie where memory is
// aligned, not where the row begins: vector j holds the tokens from j * kVec - phase on.
template <int kVec, bool kEdges>
struct Place {
    int batch;
    int vec;
    int token;
    int phase;

    // `row` is any of x, dx at the row's first token: all are equally far from where memory is aligned.
    template <typename T>
    __device__ __forceinline__ Place(int batch_, int vec_, const T* row)
        : batch(batch_), vec(vec_), phase(kEdges ? reinterpret_cast<size_t>(row) / sizeof(T) % kVec : 0) {
        token = vec * kVec - phase;
    }

    // The vector's first element, in a row whose elements are `step` apart unless kVec says that it is 1.
    template <typename T>
    __device__ __forceinline__ T* at(T* row, index_t step) const {
        return kVec > 1 ? row - phase + static_cast<unsigned>(vec) * kVec : row + token * step;
    }

    // Which elements of the vector lie inside the row.
    __device__ __forceinline__ int begin() const { return token < 0 ? -token : 0; }
    __device__ __forceinline__ int end(int seqlen) const { return seqlen - token < kVec ? seqlen - token : kVec; }
    __device__ __forceinline__ bool is_whole(int seqlen) const {
        return !kEdges || (token >= 0 && token + kVec <= seqlen);
    }
};

// How far a lane's vector is from that of the group before.
struct GroupStep {
    int rows;
    int vecs;      // beyond those rows
    int row_vecs;  // vectors a row
};

// A lane's vectors from one group on, downwards, and where their rows are in kArrays arrays.
template <typename T, int kArrays>
struct LaneWalk {
    int batch;
    int vec;
    T* row[kArrays];
    index_t stride[kArrays];

    __device__ __forceinline__ explicit LaneWalk(const QuotientRemainder& batch_vec)
        : batch(static_cast<int>(batch_vec.quotient)), vec(static_cast<int>(batch_vec.remainder)) {}

    // `first` is the channel's first row.
    __device__ __forceinline__ void add(int i, T* first, const index_t (&strides)[3]) {
        stride[i] = strides[0];
        row[i] = first + batch * strides[0];
    }

    __device__ __forceinline__ void step(const GroupStep& by) {
        vec -= by.vecs;
        if (by.rows > 0 || vec < 0) {
            const int rows = by.rows + (vec < 0 ? 1 : 0);
            vec += vec < 0 ? by.row_vecs : 0;
            batch -= rows;
#pragma unroll
            for (int i = 0; i < kArrays; ++i) row[i] -= rows * stride[i];
        }
    }
};

// Where a lane stands among those of its channel in the warp, and which ones are its neighbours.
struct ChannelLanes {
    int count;
    int number;
    int first;  // lane of the warp
    int above;  // the lane that has the next vector, in the group behind for the last one
    int below;  // the lane that has the vector before, in the group before for the first one

    __device__ __forceinline__ explicit ChannelLanes(unsigned count_)
        : count(static_cast<int>(count_)), number(lane_id() & (count - 1)), first(lane_id() - number) {
        // Kept in registers, because a group's instructions are few.
        above = opaque(first + ((number + 1) & (count - 1)));
        below = opaque(first + ((number - 1) & (count - 1)));
    }

    // The lane `distance` further; the last ones go on with the first.
    template <int kDistance>
    __device__ __forceinline__ int at() const {
        return kDistance == 1 ? above : kDistance == -1 ? below : first + ((number + kDistance) & (count - 1));
    }
};

// Where sequences begin around a lane's vector, and which of its tokens are padding.
template <int kWidth, int kVec>
struct VectorSequences {
    static constexpr int kHalo = kWidth - 1;
    static constexpr int kSpan = kHalo + kVec + kHalo;
    using Bits = Select<(kSpan <= 32), unsigned, unsigned long long>;

    Bits starts;           // bit i: token i - (width - 1) of the vector is the first of a sequence or of padding
    unsigned dead;         // bit i: token i of the vector is padding
    const int* beginning;  // by bit of `starts`: the sequence that begins there
    const int* ending;     // and the one that ends before

    __device__ __forceinline__ bool starts_at(int bit) const { return (starts >> bit & 1) != 0; }

    // The bits of `starts` from that of token `first` of the vector on, `count` of them.
    __device__ __forceinline__ unsigned starts_from(int first, int count) const {
        return static_cast<unsigned>(starts >> (kHalo + first)) & ((1u << count) - 1);
    }
};

// The packed sequences in a warp's group and width - 1 tokens around it, which the warp finds together: a search by
// every lane takes longer than all the rest. Rows that are not packed have none of it.
template <typename Traits, int kWidth, int kVec, bool kEdges, bool kStates>
struct PackedSequences {
    static constexpr int kHalo = kWidth - 1;
    static constexpr int kOverhang = kEdges ? kVec - 1 : 0;  // most tokens that a group begins before a whole vector
    static constexpr int kTokens = kHalo + kOverhang + kWarpSize * kVec + kHalo;
    static constexpr int kWords = kTokens / 32 + 3;
    using Found = VectorSequences<kWidth, kVec>;

    // A warp's shared memory: by token, counted from the first one that is looked at.
    struct Marks {
        unsigned starts[kWords];               // a bit for each token that is the first of a sequence or of padding
        int beginning[kStates ? kTokens : 1];  // the sequence that begins there
        int ending[kStates ? kTokens : 1];     // the sequence that ends before
    };

    Found sequences{};            // of the lane's vector
    PackedRun run{-1, 0, 0, -1};  // that holds the first token that was looked at last
    Marks* marks;

    __device__ __forceinline__ PackedSequences() {
        if constexpr (Traits::kRows == Rows::kPacked) {
            __shared__ Marks memory[Traits::kWarps];
            marks = memory + threadIdx.x / kWarpSize;
        }
    }

    // Looks at a group. Says whether all that it needs is in one sequence.
    __device__ __forceinline__ bool enter(const CausalConv1dBwdOperands& p, const ChannelLanes& lanes, int group,
                                          int phase) {
        if constexpr (Traits::kRows == Rows::kPacked) {
            const int from = group * lanes.count * kVec - kOverhang - kHalo;
            const int to = from + kHalo + kOverhang + lanes.count * kVec + kHalo;
            if (run.holds(from, to)) return true;
            find(p, from, to, lanes.number * kVec + kOverhang - phase);
        }
        return Traits::kRows == Rows::kOne;
    }

    // Finds the sequences of the tokens from `from` to `to` - 1: for each lane those of the vector that begins width -
    // 1 tokens behind the token from + at.
    __device__ __forceinline__ void find(const CausalConv1dBwdOperands& p, int from, int to, int at) {
        if constexpr (Traits::kRows == Rows::kPacked) {
            // The lanes have read what was found last.
            sync_warp();
            for (int i = lane_id(); i < kWords; i += kWarpSize) marks->starts[i] = 0;
            sync_warp();
            run = {-1, from, from, -1};
            const int token = from + at + kHalo;
            unsigned dead = below(kVec) & ~below(p.total - token);
            visit_runs(p, from, to, [&](int number, int begin, int end, int slot, unsigned lanes) {
                if (run.end <= from && lanes != 0) {
                    const int lane = lowest(lanes);
                    run = {from_lane(number, lane), from_lane(begin, lane), from_lane(end, lane),
                           from_lane(slot, lane)};
                }
                if (lanes >> lane_id() & 1) mark(number, begin - from, end - from, to - from, end == p.total);
                for (unsigned left = lanes & lanes_where(slot < 0); left != 0; left &= left - 1) {
                    const int lane = lowest(left);
                    dead |= below(from_lane(end, lane) - token) & ~below(from_lane(begin, lane) - token);
                }
            });
            sync_warp();
            const unsigned* const words = marks->starts + at / 32;
            typename Found::Bits starts = words_from(words, at % 32);
            if constexpr (Found::kSpan > 32) {
                starts |= static_cast<typename Found::Bits>(words_from(words + 1, at % 32)) << 32;
            }
            sequences = {starts, dead, marks->beginning + at, marks->ending + at};
        }
    }

 private:
    __device__ __forceinline__ void mark(int number, int begin, int end, int tokens, bool is_last) const {
        if (begin >= 0) {
            atomicOr(&marks->starts[begin / 32], 1u << begin % 32);
            if (kStates) marks->beginning[begin] = number;
        }
        if (kStates && end < tokens) {
            // Behind the last token nothing begins.
            if (is_last) atomicOr(&marks->starts[end / 32], 1u << end % 32);
            marks->ending[end] = number;
        }
    }

    __device__ __forceinline__ static unsigned below(int i) { return (1u << max(0, min(i, kVec))) - 1; }

    // 32 bits from bit number `shift` of a word on.
    __device__ __forceinline__ static unsigned words_from(const unsigned* words, int shift) {
        return static_cast<unsigned>((static_cast<unsigned long long>(words[1]) << 32 | words[0]) >> shift);
    }
};

// A lane's channel: its filter, the sums over what the lane has seen, and the gradients of one group.
template <int kWidth, typename input_t, typename weight_t, int kVec, bool kEdges, bool kSilu, Rows kRows, bool kStates>
struct RowGradients {
    static constexpr int kHalo = kWidth - 1;
    static constexpr int kHaloVecs = (kHalo + kVec - 1) / kVec;
    using Vector = Vec<input_t, kVec>;
    using Sequences = VectorSequences<kWidth, kVec>;

    using Vecs = Place<kVec, kEdges>;

    const CausalConv1dBwdOperands& p;
    const ChannelLanes& lanes;
    index_t channel;
    int row_vecs;
    float taps[kWidth];
    float bias;
    ParameterSums<kWidth> sums;
    float next[kVec];  // gradients of the group behind, in the lowest lanes

    __device__ __forceinline__ RowGradients(const CausalConv1dBwdOperands& p_, const ChannelLanes& lanes_,
                                            index_t channel_, int row_vecs_)
        : p(p_), lanes(lanes_), channel(channel_), row_vecs(row_vecs_), sums(ParameterSums<kWidth>::zero()) {
        load_taps<kWidth, weight_t>(p, channel, taps);
        bias = load_bias<weight_t>(p, channel);
        if constexpr (kSilu) scale_for_silu<input_t>(taps, bias);
#pragma unroll
        for (int i = 0; i < kVec; ++i) next[i] = 0.0f;
    }

    // The gradients of the group behind, of which the highest lanes need the first: lane i computes that of its token
    // i. `sequences` are those of this token as the first one of a vector.
    __device__ __forceinline__ void begin_behind(int batch, const input_t* x, const input_t* dout, int first,
                                                 const Sequences& sequences) {
        static_assert(kHaloVecs * kVec <= kWarpSize, "every token has a lane");
        const int token = first + lane_id();
        const bool is_needed = lane_id() < kHalo && token < p.seqlen && (sequences.dead & 1) == 0;
        float window[kWidth];
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
            const int at = token - kHalo + k;
            window[k] = is_needed && at >= 0 ? Dtype<input_t>::to_float(x[kVec > 1 ? at : at * p.x_stride[2]]) : 0.0f;
            if (at < 0 && is_needed) window[k] = before_row(batch, at);
        }
        bool is_live = is_needed;
        if constexpr (kRows == Rows::kNumbered) {
            int seq[kWidth];
            load_numbers<kRows>(p, batch, token - kHalo, seq);
            keep_own_inputs(seq, window);
            is_live = is_live && seq[kHalo] >= 0;
        }
        if (kRows == Rows::kPacked && is_needed) replace_before(sequences, window);
        float g = 0.0f;
        if (is_live) {
            g = token_gradient<kSilu, input_t>(taps, bias, window,
                                               Dtype<input_t>::to_float(dout[token * p.dout_stride[2]]));
        }
#pragma unroll
        for (int i = 0; i < kVec; ++i) next[i] = from_lane(g, lane_id() * kVec + i);
    }

    // One group: a warp's inputs lie in `own_group`, those of the group before it in `group_before`. kAs is kOne for
    // packed tokens, too, where all that they see are in one sequence.
    template <Rows kAs>
    __device__ __forceinline__ void add(const Vecs& place, input_t* dx_row, bool is_there, const Vector* own_group,
                                        const Vector* group_before, const Vector& own, const Vector& dout,
                                        const Sequences& sequences) {
        const int batch = place.batch;
        float x[kHalo + kVec];
        float douts[kVec];
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
            x[kHalo + i] = own.to_float(i);
            douts[i] = dout.to_float(i);
        }
        gather_before<1>(place, own_group, group_before, x);
        if (p.initial_states != nullptr && kRows != Rows::kPacked && place.token < kHalo) {
#pragma unroll
            for (int i = 0; i < kHalo + kVec; ++i) {
                if (place.token - kHalo + i < 0) x[i] = before_row(batch, place.token - kHalo + i);
            }
        }
        if constexpr (kAs == Rows::kPacked) {
            if (sequences.dead != 0) {
                // Before a first token that is padding there may be more of it: memory may hold anything there.
#pragma unroll
                for (int i = 0; i < kHalo; ++i) x[i] = (sequences.dead & 1) != 0 ? 0.0f : x[i];
#pragma unroll
                for (int i = 0; i < kVec; ++i) {
                    if (sequences.dead >> i & 1) x[kHalo + i] = douts[i] = 0.0f;
                }
            }
            replace_before(sequences, x);
        }
        // The past of the first sequence that begins behind the first token: loads for every token wait one by one.
        unsigned beginning = kAs == Rows::kPacked ? sequences.starts_from(1, kVec - 1) : 0;
        float past[kWidth];
        if (kHalo > 0 && beginning != 0) load_past(sequences, kHalo + 1 + lowest(beginning), past);
        int seq[kHalo + kVec + kHalo];
        load_numbers<kAs>(p, batch, place.token - kHalo, seq);
        float g[kVec + kHalo];
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
            if constexpr (kAs == Rows::kPacked && kHalo > 0) {
                if (i > 0 && sequences.starts_at(kHalo + i)) {
#pragma unroll
                    for (int k = 0; k < kHalo; ++k) x[i + k] = past[k];
                    beginning &= beginning - 1;
                    if (beginning != 0) load_past(sequences, kHalo + 1 + lowest(beginning), past);
                }
            }
            float window[kWidth];
#pragma unroll
            for (int k = 0; k < kWidth; ++k) window[k] = x[i + k];
            if constexpr (kAs == Rows::kNumbered) keep_own_inputs(seq + i, window);
            g[i] = token_gradient<kSilu, input_t>(taps, bias, window, douts[i]);
            if (kAs == Rows::kNumbered) g[i] = seq[i + kHalo] < 0 ? 0.0f : g[i];
            sums.add(g[i], window);
        }
        gather_gradients<1>(place, g);
#pragma unroll
        for (int i = 0; i < kVec; ++i) next[i] = g[i];
        float dx[kVec];
#pragma unroll
        for (int i = kVec + kHalo - 1; i >= 0; --i) {
            // Tokens before a sequence have nothing of its gradients.
            if (kAs == Rows::kPacked && i + 1 < kVec + kHalo && sequences.starts_at(kHalo + i + 1)) {
#pragma unroll
                for (int k = 1; k < kWidth; ++k) {
                    if (i + k < kVec + kHalo) g[i + k] = 0.0f;
                }
            }
            if (i < kVec) {
                float following[kWidth];
#pragma unroll
                for (int k = 0; k < kWidth; ++k) following[k] = g[i + k];
                constexpr Rows kMasked = kAs == Rows::kNumbered ? Rows::kNumbered : Rows::kOne;
                dx[i < kVec ? i : 0] = input_gradient<kMasked>(taps, following, seq + kHalo + i);
            }
        }
        if constexpr (kStates && kHalo > 0) {
            if constexpr (kAs == Rows::kPacked) {
                add_packed_final(place, sequences, dx);
            } else if constexpr (kRows != Rows::kPacked) {
                add_final(place, batch, dx);
                if (p.dinitial_states != nullptr && place.vec == 0) store_initial(place, batch, g, dx, seq);
            }
        }
        if (!is_there) return;
        input_t* const to = place.at(dx_row, p.dx_stride[2]);
        if (place.is_whole(p.seqlen)) {
            store(as_global(to), Vector::from_floats(dx));
        } else if (kEdges && place.token < p.seqlen) {
            store_part(to, Vector::from_floats(dx), place.begin(), place.end(p.seqlen));
        }
    }

 private:
    // The slot of what comes before the packed sequence that begins at a bit; -1 for zeros.
    __device__ __forceinline__ int slot_before(const Sequences& sequences, int bit) const {
        if constexpr (!kStates) return -1;
        const int number = sequences.beginning[bit];
        const int slot = load_slot(p, number);
        return slot >= 0 && follows_state(p, number) ? slot : -1;
    }

    // All of it: column 0 is width - 1 tokens before the sequence.
    __device__ __forceinline__ void load_past(const Sequences& sequences, int bit, float (&past)[kWidth]) const {
        const int slot = slot_before(sequences, bit);
#pragma unroll
        for (int k = 0; k < kHalo; ++k) past[k] = slot < 0 ? 0.0f : load_initial<input_t>(p, slot, channel, k);
    }

    // Replaces what lies before the sequence of a vector's first token, in the width - 1 inputs before that token.
    template <int kCount>
    __device__ __forceinline__ void replace_before(const Sequences& sequences, float (&x)[kCount]) const {
        const unsigned bits = static_cast<unsigned>(sequences.starts) & ((2u << kHalo) - 2);
        if (kHalo == 0 || bits == 0) return;
        const int first = highest(bits);
        const int slot = slot_before(sequences, first);
#pragma unroll
        for (int i = 0; i < kHalo; ++i) {
            if (i < first) x[i] = slot < 0 ? 0.0f : load_initial<input_t>(p, slot, channel, kHalo - first + i);
        }
    }

    // What the initial state has for a token before the row's first.
    __device__ __forceinline__ float before_row(int batch, int token) const {
        if (kRows == Rows::kPacked || p.initial_states == nullptr || token < -kHalo) return 0.0f;
        return load_initial<input_t>(p, batch, channel, token + kHalo);
    }

    template <int kDistance>
    __device__ __forceinline__ void gather_before(const Vecs& place, const Vector* own_group,
                                                  const Vector* group_before, float (&x)[kHalo + kVec]) const {
        if constexpr (kDistance <= kHaloVecs) {
            constexpr int kFirst = kHalo - kDistance * kVec;
            // Of the furthest vector its last half may be enough.
            constexpr int kLoaded = kVec > 1 && kFirst + kVec / 2 <= 0 ? kVec / 2 : kVec;
            const Vector* const from =
                (lanes.number >= kDistance ? own_group : group_before) + lanes.template at<-kDistance>();
            Vec<input_t, kLoaded> v =
                load<kLoaded, Memory::kMutable>(reinterpret_cast<const input_t*>(from) + kVec - kLoaded);
            if (!kEdges) v = select(place.vec >= kDistance, v, Vec<input_t, kLoaded>::zero());
#pragma unroll
            for (int i = kFirst < 0 ? -kFirst : 0; i < kVec; ++i) {
                const bool is_inside = !kEdges || place.token - kHalo + kFirst + i >= 0;
                x[kFirst + i] = is_inside ? v.to_float(i - (kVec - kLoaded)) : 0.0f;
            }
            gather_before<kDistance + 1>(place, own_group, group_before, x);
        }
    }

    template <int kDistance>
    __device__ __forceinline__ void gather_gradients(const Vecs& place, float (&g)[kVec + kHalo]) const {
        if constexpr (kDistance <= kHaloVecs) {
            const bool is_inside = place.vec + kDistance < row_vecs;
            const bool is_offered_behind = lanes.number < kDistance;
#pragma unroll
            for (int i = 0; i < kVec; ++i) {
                if (kDistance * kVec + i < kVec + kHalo) {
                    const float above = from_lane(is_offered_behind ? next[i] : g[i], lanes.template at<kDistance>());
                    g[kDistance * kVec + i] = is_inside ? above : 0.0f;
                }
            }
            gather_gradients<kDistance + 1>(place, g);
        }
    }

    __device__ __forceinline__ void add_final(const Vecs& place, int batch, float (&dx)[kVec]) const {
        if (p.dfinal_states == nullptr || place.token >= p.seqlen || place.token + kVec <= p.seqlen - kHalo) return;
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
            dx[i] += final_gradient<kWidth, input_t>(p, batch, channel, place.token + i, p.seqlen);
        }
    }

    // Sequence by sequence, so that all loads of one are on their way at once.
    __device__ __forceinline__ void add_packed_final(const Vecs& place, const Sequences& sequences,
                                                     float (&dx)[kVec]) const {
        if (p.dfinal_states == nullptr) return;
        for (unsigned left = sequences.starts_from(1, kVec + kHalo - 1); left != 0; left &= left - 1) {
            const int end = lowest(left) + 1;
            const unsigned begins = sequences.starts_from(0, end);
            const int begin = max(begins == 0 ? 0 : highest(begins), -place.token);
            if (begin >= kVec || begin >= end || (sequences.dead >> begin & 1) != 0) continue;
            const int number = sequences.ending[kHalo + end];
            float final[kWidth];
#pragma unroll
            for (int k = 0; k < kHalo; ++k) {
                const int token = end - kHalo + k;
                const bool is_own = token >= begin && token < kVec;
                final[k] = is_own ? final_gradient<kWidth, input_t>(p, number, channel, k - kHalo, 0) : 0.0f;
            }
#pragma unroll
            for (int i = 0; i < kVec; ++i) {
#pragma unroll
                for (int k = 0; k < kHalo; ++k) dx[i] += end - kHalo + k == i ? final[k] : 0.0f;
            }
        }
    }

    // The first vector of a row holds gradients of the initial state before the row's first token, and has what makes
    // those before the vector.
    __device__ __forceinline__ void store_initial(const Vecs& place, int batch, const float (&g)[kVec + kHalo],
                                                  const float (&dx)[kVec], const int* seq) const {
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
            const int column = place.token + i + kHalo;
            if (place.token + i < 0 && column >= 0) {
                store_initial_gradient<input_t>(p, batch, channel, column, dx[i]);
            }
        }
#pragma unroll
        for (int i = 0; i < kHalo; ++i) {
            const int token = place.token - kHalo + i;
            float sum = 0.0f;
#pragma unroll
            for (int k = kHalo - i; k < kWidth; ++k) {
                // seq[i] continues the number of the first token.
                if (kRows == Rows::kOne || seq[i + k] == seq[i]) sum = fmaf(taps[kHalo - k], g[i + k - kHalo], sum);
            }
            sum += final_gradient<kWidth, input_t>(p, batch, channel, token, p.seqlen);
            if (token + kHalo >= 0) store_initial_gradient<input_t>(p, batch, channel, token + kHalo, sum);
        }
    }
};

// Adds up the sums of each channel's lanes, then those of its warps, and writes them.
template <typename Traits, int kWidth, typename weight_t>
__device__ __forceinline__ void store_block_sums(const CausalConv1dBwdOperands& p, const ParameterSums<kWidth>& sums,
                                                 float scale, const ChannelLanes& lanes, unsigned channel_warps,
                                                 index_t channel, unsigned part) {
    __shared__ float shared[kWidth + 1][Traits::kThreads];
    float own[kWidth + 1];
#pragma unroll
    for (int j = 0; j <= kWidth; ++j) own[j] = sums.at(j) * scale;
#pragma unroll
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
#pragma unroll
        for (int j = 0; j <= kWidth; ++j) {
            const float other = from_lane(own[j], lane_id() ^ distance);
            own[j] += distance < lanes.count ? other : 0.0f;
        }
    }
    if (lanes.number == 0) {
#pragma unroll
        for (int j = 0; j <= kWidth; ++j) shared[j][threadIdx.x] = own[j];
    }
    __syncthreads();
    if (threadIdx.x / kWarpSize % channel_warps != 0 || channel >= p.dim) return;
#pragma unroll 1
    for (int j = lanes.number; j <= kWidth; j += lanes.count) {
        float sum = 0.0f;
#pragma unroll 1
        for (unsigned i = 0; i < channel_warps; ++i) {
            sum += shared[j][threadIdx.x - static_cast<unsigned>(lanes.number) + i * kWarpSize];
        }
        store_block_sum<kWidth, weight_t>(p, part, channel, j, sum);
    }
}

template <int kWidth, typename input_t, typename weight_t, int kVec, int kStages, bool kEdges, bool kSilu, bool kSeqIdx,
          bool kPacked, bool kStates,
          typename Traits =
              CausalConv1dBwdTraits<kWidth, input_t, weight_t, kVec, kStages, kEdges, kSilu, kSeqIdx, kPacked, kStates>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_bwd_kernel(const CausalConv1dBwdParams params) {
    using Gradients = RowGradients<kWidth, input_t, weight_t, kVec, kEdges, kSilu, Traits::kRows, kStates>;
    using Vector = Vec<input_t, kVec>;
    using Vecs = Place<kVec, kEdges>;
    const CausalConv1dBwdOperands p = with_states<kStates>(params.operands);
    __shared__ Vector ring[kStages][2][Traits::kThreads];

    const QuotientRemainder part_channels = divide(blockIdx.x, params.channel_groups);
    const ChannelLanes lanes(params.lanes);
    const unsigned warp = uniform(threadIdx.x / kWarpSize);
    const unsigned channel_warps = 1u << params.warps_shift;
    const index_t wanted =
        (static_cast<index_t>(part_channels.remainder * Traits::kWarps + warp) >> params.warps_shift) *
            (kWarpSize >> params.lanes_shift) +
        (lane_id() >> params.lanes_shift);
    const bool is_idle = wanted >= p.dim;
    const index_t channel = is_idle ? 0 : wanted;
    const unsigned part_warp = (part_channels.quotient << params.warps_shift) + (warp & (channel_warps - 1));
    const int begin = static_cast<int>(min(part_warp * params.warp_groups, params.groups));
    const int end = static_cast<int>(min(begin + params.warp_groups, params.groups));

    const unsigned last = max(end - 1, 0) * lanes.count + lanes.number;
    // The groups of which a lane has a vector. What comes from registers here would be computed again in every group.
    const int highest = opaque(is_idle ? -1 : last < params.vecs ? end - 1 : end - 2);
    // Of the group before the lowest, the first vectors need what is in reach.
    const int lowest =
        opaque(is_idle ? end : max(0, begin - (lanes.number >= lanes.count - Traits::kHaloVecs ? 1 : 0)));
    const QuotientRemainder batch_vec = divide(last, params.row_vecs);
    const GroupStep by = {static_cast<int>(params.step_rows), static_cast<int>(params.step_vecs),
                          static_cast<int>(params.row_vecs.divisor)};
    LaneWalk<const input_t, 2> inputs(batch_vec);
    inputs.add(0, static_cast<const input_t*>(p.x) + channel * p.x_stride[1], p.x_stride);
    inputs.add(1, static_cast<const input_t*>(p.dout) + channel * p.dout_stride[1], p.dout_stride);
    LaneWalk<input_t, 1> outputs(batch_vec);
    outputs.add(0, static_cast<input_t*>(p.dx) + channel * p.dx_stride[1], p.dx_stride);
    const LaneWalk<const input_t, 2> top = inputs;

    const input_t* const x_end = static_cast<const input_t*>(p.x) + static_cast<index_t>(p.batch) * p.dim * p.seqlen;
    // Starts to copy a group to the lane's place in a stage of the ring.
    const auto fetch = [&](int group, Vector* slot) {
        if (group >= lowest) {
            Vector* const dout_slot = slot + Traits::kThreads;
            const Vecs place(inputs.batch, inputs.vec, inputs.row[0]);
            const input_t* const x_at = place.at(inputs.row[0], p.x_stride[2]);
            bool is_memory = group <= highest;
            if (kEdges && is_memory && !place.is_whole(p.seqlen)) {
                is_memory = params.is_dense && place.token < p.seqlen && x_at >= p.x && x_at + kVec <= x_end;
            }
            const bool is_part = group <= highest && place.token < p.seqlen;
            if (is_memory) {
                copy_vector_async(slot, x_at);
            } else {
                *slot = is_part ? load_part<kVec>(x_at, place.begin(), place.end(p.seqlen)) : Vector::zero();
            }
            if (is_memory && p.dout_is_packed) {
                copy_vector_async(dout_slot, place.at(inputs.row[1], p.dout_stride[2]));
            } else {
                Vector part = Vector::zero();
                if (is_part) {
#pragma unroll
                    for (int j = 0; j < kVec; ++j) {
                        if (j >= place.begin() && j < place.end(p.seqlen)) {
                            part.put(j, inputs.row[1][(place.token + j) * p.dout_stride[2]]);
                        }
                    }
                }
                *dout_slot = part;
            }
        }
        end_copy_group();
        inputs.step(by);
    };
    constexpr int kStageSlots = 2 * Traits::kThreads;
    Vector* const warp_slots = ring[0][0] + (threadIdx.x - lane_id());
    // A loop: unrolled, the code is longer and no faster.
#pragma unroll 1
    for (int i = 0; i < kStages - 1; ++i) fetch(end - 1 - i, warp_slots + i * kStageSlots + lane_id());

    Gradients gradients(p, lanes, channel, by.row_vecs);
    PackedSequences<Traits, kWidth, kVec, kEdges, kStates> packed;
    // A warp's list ends inside a row only where one channel has all its lanes.
    if (Traits::kHalo > 0 && begin < end && lanes.count == kWarpSize &&
        static_cast<unsigned>(end) * kWarpSize < params.vecs) {
        const int batch = from_lane(top.batch, kWarpSize - 1), vec = from_lane(top.vec, kWarpSize - 1) + 1;
        if (vec < by.row_vecs) {
            const input_t* const row = top.row[0] + (batch - top.batch) * top.stride[0];
            const int token = Vecs(batch, vec, row).token;
            packed.find(p, token - Traits::kHalo, token + Traits::kHalo, lane_id());
            gradients.begin_behind(batch, row, top.row[1] + (batch - top.batch) * top.stride[1], token,
                                   packed.sequences);
        }
    }
    int own_stage = 0, free_stage = (kStages - 1) * kStageSlots;
#pragma unroll 1
    for (int group = end - 1; group >= begin; --group) {
        // This group and the one before it are there; all lanes have read the one behind it.
        wait_for_copy_groups<kStages - 3>();
        sync_warp();
        fetch(group - (kStages - 1), warp_slots + free_stage + lane_id());
        const Vector* const own_group = warp_slots + own_stage;
        free_stage = own_stage;
        own_stage = own_stage < (kStages - 1) * kStageSlots ? own_stage + kStageSlots : 0;
        Vecs place(outputs.batch, outputs.vec, outputs.row[0]);
        Vector x = own_group[lane_id()];
        Vector dout = own_group[Traits::kThreads + lane_id()];
        if (kEdges && !place.is_whole(p.seqlen)) {
            x = keep_part(x, place.begin(), place.end(p.seqlen));
            dout = keep_part(dout, place.begin(), place.end(p.seqlen));
        }
        const bool is_plain = packed.enter(p, lanes, group, place.phase);
        if ((Traits::kRows != Rows::kOne || kStates) && group > highest) {
            place.batch = 0;
            place.token = place.vec = by.row_vecs * kVec;
        }
        if (is_plain) {
            gradients.template add<Rows::kOne>(place, outputs.row[0], group <= highest, own_group,
                                               warp_slots + own_stage, x, dout, packed.sequences);
        } else if constexpr (Traits::kRows != Rows::kOne) {
            gradients.template add<Traits::kRows>(place, outputs.row[0], group <= highest, own_group,
                                                  warp_slots + own_stage, x, dout, packed.sequences);
        }
        outputs.step(by);
    }
    store_block_sums<Traits, kWidth, weight_t>(p, gradients.sums, kSumScale<input_t, kSilu>, lanes, channel_warps,
                                               is_idle ? p.dim : channel, part_channels.quotient);
}
