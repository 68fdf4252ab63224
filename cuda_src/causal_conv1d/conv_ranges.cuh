// Outputs: the channels of a convolution fall into ranges, each with an output of its own.
#pragma once

#include "common/fastdiv.cuh"
#include "common/vec.cuh"

// The most ranges of a launch.
inline constexpr int kMaxRanges = 16;

// How a launch's channels fall into ranges: kOne, a single range; kMany, several, where every vector is an aligned
// vector of one output; kRouted, several, where a vector may cross the border of a range or not be aligned in its
// output.
enum class Ranges { kOne, kMany, kRouted };

// Where the results of kVec consecutive channels go, from a token on: as vectors to the output of one range or, when
// kRouted and not such a vector, element by element, each to the output of its range. Operands: those of a convolution
// with ranges.
template <typename out_t, int kVec, Ranges kRanges, typename Operands>
struct Destination {
    const Operands& p;
    index_t channel;
    int batch;
    int token;
    out_t* to;
    index_t step;
    bool is_vector;

    __device__ __forceinline__ Destination(const Operands& p_, index_t channel_, int batch_, int token_)
        : p(p_), channel(channel_), batch(batch_), token(token_), is_vector(true) {
        const index_t* stride = p.out_stride;
        index_t channels;
        int range = 0;
        if constexpr (kRanges == Ranges::kOne) {
            channels = channel * stride[3];
        } else {
            while (range + 1 < p.ranges && channel >= p.range_end[range]) ++range;
            const index_t begin = range == 0 ? 0 : p.range_end[range - 1];
            const QuotientRemainder at = divide(static_cast<unsigned>(channel - begin), p.head_dim[range]);
            stride += 4 * range;
            channels = at.quotient * stride[2] + at.remainder * stride[3];
            if (kRanges == Ranges::kRouted) {
                is_vector = p.range_is_packed[range] && channel + kVec <= p.range_end[range];
            }
        }
        step = stride[1];
        to = static_cast<out_t*>(p.out[range]) + batch * stride[0] + token * step + channels;
    }

    // Moves on to the next token, in fewer instructions than a new address takes.
    __device__ __forceinline__ void advance() {
        ++token;
        to += step;
    }

    __device__ __forceinline__ void store_vector(const Vec<out_t, kVec>& v) const {
        if (is_vector) {
            store(to, v);
        } else if constexpr (kRanges == Ranges::kRouted) {
#pragma unroll 1
            for (int c = 0; c < kVec; ++c) {
                const Destination<out_t, 1, Ranges::kMany, Operands> one(p, channel + c, batch, token);
                Vec<out_t, 1> element = Vec<out_t, 1>::zero();
#pragma unroll
                for (int j = 0; j < kVec; ++j) {
                    if (j == c) element.put(0, v.element(j));
                }
                one.store_vector(element);
            }
        }
    }
};

template <typename out_t, int kVec, Ranges kRanges, typename Operands>
__device__ __forceinline__ Destination<out_t, kVec, kRanges, Operands> destination_of(const Operands& p,
                                                                                      index_t channel, int batch,
                                                                                      int token) {
    return {p, channel, batch, token};
}

// Stores zeros for each token with a bit set in `tokens`, counted from the destination's token.
template <typename out_t, int kVec, Ranges kRanges, typename Operands>
__device__ __forceinline__ void store_zeros(Destination<out_t, kVec, kRanges, Operands> destination, unsigned tokens) {
    for (; tokens != 0; tokens >>= 1) {
        if (tokens & 1) destination.store_vector(Vec<out_t, kVec>::zero());
        destination.advance();
    }
}
