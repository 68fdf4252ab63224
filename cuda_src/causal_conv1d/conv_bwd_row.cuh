// The gradients of a lane's vectors, one group after another, and the sums that a block makes of them.
#pragma once

#include "causal_conv1d/conv_bwd_packed.cuh"
#include "causal_conv1d/conv_channels.cuh"

// A lane's channel: its filter, the sums over what the lane has seen, and the gradients of one group.
template <int kWidth, typename input_t, typename weight_t, int kVec, bool kEdges, bool kSilu, Rows kRows, bool kStates>
struct RowGradients {
    static constexpr int kHalo = kWidth - 1;
    static constexpr int kHaloVecs = (kHalo + kVec - 1) / kVec;
    using Vector = Vec<input_t, kVec>;
    using Sequences = VectorSequences<kWidth, kVec>;
    using Filter = ChannelFilter<kWidth, weight_t, 1>;

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
                                            index_t channel_, int row_vecs_, const Filter& filter)
        : p(p_), lanes(lanes_), channel(channel_), row_vecs(row_vecs_), sums(ParameterSums<kWidth>::zero()) {
        float filters[1][kWidth], biases[1];
        filter.to_floats(filters, biases);
        bias = biases[0];
#pragma unroll
        for (int k = 0; k < kWidth; ++k) taps[k] = filters[0][k];
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
            // Wrong starts may leave a mark without its number.
            if (static_cast<unsigned>(number) >= static_cast<unsigned>(p.sequences)) continue;
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
    if (p.scratch != nullptr) let_follower_start();
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
