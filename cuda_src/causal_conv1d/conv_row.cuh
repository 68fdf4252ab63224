// Rows of a channel-first convolution, read and written as vectors along the sequence.
#pragma once

#include "causal_conv1d/conv.cuh"
#include "common/warp.cuh"

// The least blocks per multiprocessor of a row kernel. With 0 the compiler fits as many as it can, and for wide filters
// it spills registers to do so.
template <int kWidth>
inline constexpr int kRowMinBlocks = kWidth <= 4 ? 0 : 1;

// One (batch, channel) row. Its vectors lie where memory is aligned, not where the row begins: vector j holds the
// tokens from j * kVec - phase on, so that a row at any address is read by whole vectors but for its two ends.
template <typename input_t, int kVec>
struct ConvRow {
    const input_t* x;
    input_t* out;
    index_t batch;
    index_t channel;
    index_t phase;
    index_t x_step;
    index_t out_step;

    ConvRow() = default;

    __device__ __forceinline__ ConvRow(const CausalConv1dOperands& p, index_t batch_, index_t channel_)
        : batch(batch_), channel(channel_) {
        x = static_cast<const input_t*>(p.x) + batch * p.x_stride[0] + channel * p.x_stride[1];
        out = static_cast<input_t*>(p.out) + batch * p.out_stride[0] + channel * p.out_stride[1];
        phase = reinterpret_cast<size_t>(x) / sizeof(input_t) % kVec;
        x_step = kVec > 1 ? 1 : p.x_stride[2];
        out_step = kVec > 1 ? 1 : p.out_stride[2];
    }

    __device__ __forceinline__ index_t first_token(index_t vector) const { return vector * kVec - phase; }

    // Elements begin to end - 1 of the vector that begins at `token` lie inside the row.
    __device__ __forceinline__ static int begin(index_t token) { return token < 0 ? static_cast<int>(-token) : 0; }
    __device__ __forceinline__ static int end(const CausalConv1dOperands& p, index_t token) {
        return p.seqlen - token < kVec ? static_cast<int>(p.seqlen - token) : kVec;
    }
};

// Whether all kVec tokens from `token` on lie inside the row.
template <int kVec>
__device__ __forceinline__ bool is_whole(const CausalConv1dOperands& p, index_t token) {
    return token >= 0 && token + kVec <= p.seqlen;
}

// The vector of tokens from `token` on if all of it lies inside the row, else zeros, which add_edge completes.
template <typename input_t, int kVec>
__device__ __forceinline__ Vec<input_t, kVec> load_whole(const CausalConv1dOperands& p,
                                                         const ConvRow<input_t, kVec>& row, index_t token) {
    if (is_whole<kVec>(p, token)) return load<kVec>(row.x + token * row.x_step);
    return Vec<input_t, kVec>::zero();
}

// Adds the row's past for those of the kVec tokens from `token` on that precede the row.
template <int kWidth, typename input_t, int kVec>
__device__ __forceinline__ void add_past(const CausalConv1dOperands& p, const ConvRow<input_t, kVec>& row,
                                         index_t token, Vec<input_t, kVec>& v) {
    if (p.initial_states == nullptr) return;
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
        if (token + i < 0) v.put(i, load_past<kWidth, input_t>(p, row.batch, row.channel, token + i));
    }
}

// Adds to a vector that is not whole the elements inside the row or in its past. This is apart from load_whole because
// merging elements waits for them: a lane first issues the loads of all its whole vectors.
template <int kWidth, typename input_t, int kVec>
__device__ __forceinline__ void add_edge(const CausalConv1dOperands& p, const ConvRow<input_t, kVec>& row,
                                         index_t token, Vec<input_t, kVec>& v) {
    if (is_whole<kVec>(p, token)) return;
    if (token > -kVec && token < p.seqlen) {
        v = load_part<kVec>(row.x + token * row.x_step, row.begin(token), row.end(p, token));
    }
    if (token < 0) add_past<kWidth>(p, row, token, v);
}

template <Keep kKeep, typename input_t, int kVec>
__device__ __forceinline__ void store_tokens(const CausalConv1dOperands& p, const ConvRow<input_t, kVec>& row,
                                             index_t token, const Vec<input_t, kVec>& v) {
    if (is_whole<kVec>(p, token)) {
        store<kKeep>(row.out + token * row.out_step, v);
    } else if (token < p.seqlen) {
        store_part(row.out + token * row.out_step, v, row.begin(token), row.end(p, token));
    }
}

// Whether the next group's halo reaches a lane's vector.
template <int kHaloVecs>
__device__ __forceinline__ bool lane_wraps() {
    return lane_id() >= kWarpSize - kHaloVecs;
}

// The vectors of a tile, and those `wrapped` that the first group's lanes get from the tile before.
template <int kWidth, typename input_t, int kVec, int kLaneVecs>
__device__ __forceinline__ void load_tile(const CausalConv1dOperands& rows, const ConvRow<input_t, kVec>& row,
                                          index_t first_vec, bool has_wrapped, Vec<input_t, kVec> (&x)[kLaneVecs],
                                          Vec<input_t, kVec>& wrapped) {
    // The neighbouring warp's vectors come last: asked for first, they would reach memory as lone sectors.
    wrapped = Vec<input_t, kVec>::zero();
#pragma unroll
    for (int i = 0; i < kLaneVecs; ++i) x[i] = load_whole(rows, row, row.first_token(first_vec + i * kWarpSize));
    if (has_wrapped) wrapped = load_whole(rows, row, row.first_token(first_vec - kWarpSize));
#pragma unroll
    for (int i = 0; i < kLaneVecs; ++i) add_edge<kWidth>(rows, row, row.first_token(first_vec + i * kWarpSize), x[i]);
    if (has_wrapped) add_edge<kWidth>(rows, row, row.first_token(first_vec - kWarpSize), wrapped);
}

// Moves a tile's vectors so that each begins as many elements later. `after` is what follows them, in the lowest lane.
template <int kDistance = 1, typename T, int kVec, int kLaneVecs>
__device__ __forceinline__ void move_later(Vec<T, kVec>& wrapped, Vec<T, kVec> (&x)[kLaneVecs],
                                           const Vec<T, kVec>& after, int distance) {
    // One of several moves of few instructions: a distance that is not known when the kernel is compiled takes many.
    if (distance == kDistance) {
        wrapped = shift_out<kDistance>(wrapped, x[0]);
#pragma unroll
        for (int i = 0; i < kLaneVecs; ++i) x[i] = shift_out<kDistance>(x[i], i + 1 < kLaneVecs ? x[i + 1] : after);
    } else if constexpr (kDistance + 1 < kVec) {
        move_later<kDistance + 1>(wrapped, x, after, distance);
    }
}

// load_tile() where rows of x and of results are not equally far from alignment: vectors lie where results are aligned.
template <int kWidth, typename input_t, int kVec, int kLaneVecs>
__device__ __forceinline__ void load_shifted_tile(const CausalConv1dOperands& p, const ConvRow<input_t, kVec>& row,
                                                  index_t first_vec, bool has_wrapped,
                                                  Vec<input_t, kVec> (&x)[kLaneVecs], Vec<input_t, kVec>& wrapped) {
    // The distance from an aligned vector of x to where a vector of results begins.
    const int distance =
        uniform(static_cast<int>(reinterpret_cast<size_t>(row.x) / sizeof(input_t) - row.phase) & kVec - 1);
    ConvRow<input_t, kVec> aligned = row;
    aligned.phase = row.phase + distance;
    CausalConv1dOperands present = p;
    present.initial_states = nullptr;
    const index_t next = aligned.first_token(first_vec + kLaneVecs * kWarpSize);
    const bool has_next = lane_id() == 0 && distance > 0;
    Vec<input_t, kVec> after = Vec<input_t, kVec>::zero();
    if (has_next) after = load_whole(p, aligned, next);
    load_tile<kWidth>(present, aligned, first_vec, has_wrapped, x, wrapped);
    if (has_next) add_edge<kWidth>(present, aligned, next, after);
    move_later(wrapped, x, after, distance);
#pragma unroll
    for (int i = 0; i < kLaneVecs; ++i) add_past<kWidth>(p, row, row.first_token(first_vec + i * kWarpSize), x[i]);
    if (has_wrapped) add_past<kWidth>(p, row, row.first_token(first_vec - kWarpSize), wrapped);
}

// The inputs that the kVec outputs of one vector need: kWidth - 1 from the vectors before it, then its own.
template <int kWidth, typename input_t, int kVec>
struct ConvWindow {
    static constexpr int kHalo = kWidth - 1;
    static constexpr int kHaloVecs = (kHalo + kVec - 1) / kVec;
    using Vector = Vec<input_t, kVec>;

    float x[kHalo + kVec];

    // Lanes hold consecutive vectors: `own`, and `wrapped` 32 vectors before it, which is read from the highest
    // kHaloVecs lanes only. replace(v, distance) may change the vector that comes from `distance` lanes below.
    template <typename Replace>
    __device__ __forceinline__ ConvWindow(const Vector& wrapped, const Vector& own, Replace replace) {
#pragma unroll
        for (int i = 0; i < kVec; ++i) x[kHalo + i] = own.to_float(i);
        fill_halo<1>(wrapped, own, replace);
    }

    // The window of a lane that has all of its inputs: the vector `distance` before its own is halo[distance - 1].
    template <int kVecs>
    __device__ __forceinline__ ConvWindow(const Vector (&halo)[kVecs], const Vector& own) {
#pragma unroll
        for (int i = 0; i < kVec; ++i) x[kHalo + i] = own.to_float(i);
#pragma unroll
        for (int i = 1; i <= kHalo; ++i) x[kHalo - i] = halo[(i - 1) / kVec].to_float(kVec - 1 - (i - 1) % kVec);
    }

    // The window of a lane with vectors of one row only: the row's past precedes its first token.
    __device__ __forceinline__ ConvWindow(const CausalConv1dOperands& p, const ConvRow<input_t, kVec>& row,
                                          index_t token, const Vector& wrapped, const Vector& own)
        : ConvWindow(wrapped, own, [&](Vector& v, int distance) {
              if (token - distance * kVec > -kVec) return;
              v = Vector::zero();
              add_past<kWidth>(p, row, token - distance * kVec, v);
          }) {}

 private:
    template <int kDistance, typename Replace>
    __device__ __forceinline__ void fill_halo(const Vector& wrapped, const Vector& own, Replace replace) {
        if constexpr (kDistance <= kHaloVecs) {
            constexpr int kFirst = kHalo - kDistance * kVec;
            constexpr int kSkip = kFirst < 0 ? -kFirst : 0;
            Vector v = shift_in<kSkip / Vector::kPerWord>(wrapped, own, kDistance);
            replace(v, kDistance);
#pragma unroll
            for (int i = kSkip; i < kVec; ++i) x[kFirst + i] = v.to_float(i);
            fill_halo<kDistance + 1>(wrapped, own, replace);
        }
    }
};

// The sequence numbers of the kWidth - 1 tokens before `token` and the kVec from it on.
template <int kWidth, int kVec>
__device__ __forceinline__ void load_window_seq_idx(const CausalConv1dOperands& p, index_t batch, index_t token,
                                                    int (&seq)[kWidth - 1 + kVec]) {
    constexpr int kHalo = kWidth - 1;
    constexpr int kAhead = (kHalo + 3) / 4 * 4;
    const int* at = p.seq_idx + batch * p.seq_idx_stride[0] + token * p.seq_idx_stride[1];
    const bool is_aligned = p.seq_idx_stride[1] == 1 && reinterpret_cast<size_t>(at) % sizeof(int4) == 0;
    if (kVec % 4 == 0 && is_aligned && token >= kAhead && is_whole<kVec>(p, token)) {
        // Single loads would take four times as many passes through the L1 cache.
#pragma unroll
        for (int i = -kAhead; i < kVec; i += 4) {
            const int4 four = load4(at + i);
            const int loaded[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                if (i + j >= -kHalo) seq[kHalo + i + j] = loaded[j];
            }
        }
    } else {
#pragma unroll
        for (int i = 0; i < kHalo + kVec; ++i) seq[i] = load_seq_idx(p, batch, token - kHalo + i);
    }
}

// The sums of the tokens from `token` on, and their sequence numbers.
template <bool kSeqIdx, int kVec>
struct ConvSums {
    float sum[kVec];
    int seq[kVec];

    template <int kWidth, typename input_t>
    __device__ __forceinline__ ConvSums(const CausalConv1dOperands& p, index_t batch, index_t token,
                                        const float (&taps)[kWidth], float bias,
                                        const ConvWindow<kWidth, input_t, kVec>& window) {
        int window_seq[kWidth - 1 + kVec];
        if constexpr (kSeqIdx) load_window_seq_idx<kWidth, kVec>(p, batch, token, window_seq);
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
            sum[i] = convolve<kSeqIdx>(taps, bias, window.x + i, window_seq + i);
            if constexpr (kSeqIdx) seq[i] = window_seq[kWidth - 1 + i];
        }
    }

    // Replaces the tokens from number `begin` on by those of another row.
    __device__ __forceinline__ void replace_from(int begin, const ConvSums& other) {
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
            if (i >= begin) {
                sum[i] = other.sum[i];
                if constexpr (kSeqIdx) seq[i] = other.seq[i];
            }
        }
    }

    // kIsScaled: the sums are already scaled for silu.
    template <typename out_t, bool kSilu, bool kIsScaled = false>
    __device__ __forceinline__ Vec<out_t, kVec> outputs() const {
        float out[kVec];
#pragma unroll
        for (int i = 0; i < kVec; ++i) out[i] = activate<out_t, kSilu, kSeqIdx, kIsScaled>(sum[i], seq[i]);
        return Vec<out_t, kVec>::from_floats(out);
    }
};

// An array beside x, such as a gate, as rows without a past.
__device__ __forceinline__ CausalConv1dOperands beside_rows(const CausalConv1dOperands& p, const void* array,
                                                            const index_t (&stride)[3]) {
    CausalConv1dOperands rows{};
    rows.x = array;
#pragma unroll
    for (int i = 0; i < 3; ++i) rows.x_stride[i] = stride[i];
    rows.seqlen = p.seqlen;
    return rows;
}

// What a tile of rows is multiplied by, before the convolution and behind it, and what is added to its results.
template <typename input_t, int kVec, int kLaneVecs>
struct RowGates {
    using Vector = Vec<input_t, kVec>;
    Vector pre[kLaneVecs], pre_wrapped;
    Vector post[kLaneVecs];
    Vector residual[kLaneVecs];
    bool has_pre;
    bool has_post;
    bool has_residual;

    // Asks for all of it; nothing is waited for.
    __device__ __forceinline__ void load(const CausalConv1dOperands& p, index_t batch, index_t channel,
                                         index_t first_vec, bool has_wrapped) {
        has_pre = p.pre_gate != nullptr;
        has_post = p.post_gate != nullptr;
        has_residual = p.residual != nullptr;
        Vector unused;
        const auto load_rows = [&](const void* array, const index_t(&stride)[3], bool wraps, Vector(&to)[kLaneVecs],
                                   Vector& wrapped) {
            const CausalConv1dOperands rows = beside_rows(p, array, stride);
            load_tile<1>(rows, ConvRow<input_t, kVec>(rows, batch, channel), first_vec, wraps, to, wrapped);
        };
        if (has_pre) load_rows(p.pre_gate, p.pre_gate_stride, has_wrapped, pre, pre_wrapped);
        if (has_post) load_rows(p.post_gate, p.post_gate_stride, false, post, unused);
        if (has_residual) load_rows(p.residual, p.residual_stride, false, residual, unused);
    }

    // Multiplies a tile of x by the gate in front. The row's past, which holds such products, is added to it then.
    template <int kWidth>
    __device__ __forceinline__ void open(const CausalConv1dOperands& p, const ConvRow<input_t, kVec>& row,
                                         index_t first_vec, bool has_wrapped, Vector (&x)[kLaneVecs],
                                         Vector& wrapped) const {
        if (has_pre) {
            wrapped = multiply(wrapped, pre_wrapped);
#pragma unroll
            for (int i = 0; i < kLaneVecs; ++i) x[i] = multiply(x[i], pre[i]);
        }
#pragma unroll
        for (int i = 0; i < kLaneVecs; ++i) {
            add_past<kWidth>(p, row, row.first_token(first_vec + i * kWarpSize), x[i]);
        }
        if (has_wrapped) add_past<kWidth>(p, row, row.first_token(first_vec - kWarpSize), wrapped);
    }

    // The results of group i of vectors; those of tokens without a sequence stay 0.
    template <bool kSilu, bool kSeqIdx>
    __device__ __forceinline__ Vector apply(int i, const ConvSums<kSeqIdx, kVec>& sums) const {
        float y[kVec];
#pragma unroll
        for (int j = 0; j < kVec; ++j) y[j] = activate<input_t, kSilu, kSeqIdx>(sums.sum[j], sums.seq[j]);
        if (has_post) multiply_rounded(y, post[i]);
        if (has_residual) add(y, residual[i]);
#pragma unroll
        for (int j = 0; j < kVec; ++j) {
            if (kSeqIdx && sums.seq[j] < 0) y[j] = 0.0f;
        }
        return Vector::from_floats(y);
    }
};
