// Rows of states in memory: read, rounded and written.
#pragma once

#include "selective_state_update/update.cuh"

// Traits: how a kernel divides rows among lanes (RowTraits in steps.cuh).

// Addresses of the lane's elements of its group's rows in an array of states.
template <typename Traits>
struct StateRows {
    using Offset = typename Traits::Offset;

    typename Traits::State* first;
    Offset row_step;
    Offset element_step;

    // The rows in slot 0; stride: head, row, element.
    template <typename Stride>
    __device__ __forceinline__ StateRows(void* states, const Stride* stride, const WarpRows& warp)
        : row_step(Traits::kGroups * static_cast<Offset>(stride[1])),
          element_step(Traits::kVecs > 1 ? 1 : static_cast<Offset>(stride[2])) {
        first = static_cast<typename Traits::State*>(states) + warp.head * static_cast<Offset>(stride[0]) +
                Traits::row(warp, 0) * static_cast<Offset>(stride[1]) + Traits::element(0) * element_step;
    }

    // The same rows `distance` elements away: in another slot.
    __device__ __forceinline__ StateRows operator+(index_t distance) const {
        StateRows moved = *this;
        moved.first += distance;
        return moved;
    }

    __device__ __forceinline__ typename Traits::State* at(int r, int i) const {
        return first + r * row_step + i * Traits::kLanes * Traits::kVecs * element_step;
    }
};

// Loads row r of the group; zeros where it does not exist.
template <typename Traits>
__device__ __forceinline__ void load_row(const typename Traits::Operands& p, const WarpRows& warp,
                                         const StateRows<Traits>& rows, int r,
                                         typename Traits::StateVec (&row)[Traits::kChunks], bool exists = true) {
#pragma unroll
    for (int i = 0; i < Traits::kChunks; ++i) {
        row[i] = Traits::StateVec::zero();
        if (exists && Traits::row(warp, r) < p.headdim && Traits::element(i) < Traits::d_state(p)) {
            row[i] = load<Traits::kVecs, Memory::kMutable>(rows.at(r, i));
        }
    }
}

template <typename Traits>
__device__ __forceinline__ void to_floats(const typename Traits::StateVec (&row)[Traits::kChunks],
                                          float (&state)[Traits::kElements]) {
#pragma unroll
    for (int i = 0; i < Traits::kElements; ++i) state[i] = row[i / Traits::kVecs].to_float(i % Traits::kVecs);
}

// Rounds a vector of a state, times a factor where states are codes. It begins at element `element` of row `row`.
template <typename Traits>
__device__ __forceinline__ typename Traits::StateVec round_states(const typename Traits::Operands& p,
                                                                  const WarpRows& warp, int row, int element, int token,
                                                                  const float (&values)[Traits::kVecs], float factor) {
    if constexpr (!Traits::kIsStochastic && Traits::kIsQuantised) {
        return Traits::StateVec::codes(values, factor);
    } else if constexpr (!Traits::kIsStochastic) {
        return Traits::StateVec::from_floats(values);
    } else {
        const index_t head = static_cast<index_t>(warp.head) * p.headdim;
        const unsigned long long number = (head + row) * Traits::d_state(p) + element;
        const unsigned long long seed = p.rand_seed == nullptr ? p.seed : load_index(p.rand_seed, 0, true);
        typename Traits::StateVec v = Traits::StateVec::zero();
#pragma unroll
        for (int first = 0; first < Traits::kVecs; first += 8) {
            const uint4 words = random_words(number / 8 + first / 8, warp.batch, token, seed, p.philox_rounds);
#pragma unroll
            for (int i = first; i < first + 8 && i < Traits::kVecs; ++i) {
                const unsigned random = random_bits(words, static_cast<int>(number % 8) + i - first);
                if constexpr (Traits::kIsQuantised) {
                    v.put(i, code_stochastically<typename Traits::State>(values[i], factor, random));
                } else {
                    v.put(i, round_stochastically<typename Traits::State>(values[i], random));
                }
            }
        }
        return v;
    }
}

template <typename Traits>
__device__ __forceinline__ void store_row(const typename Traits::Operands& p, const WarpRows& warp,
                                          const StateRows<Traits>& rows, int r, int token,
                                          const float (&state)[Traits::kElements], float factor = 1.0f,
                                          bool exists = true) {
    const int row = Traits::row(warp, r);
#pragma unroll
    for (int i = 0; i < Traits::kChunks; ++i) {
        const int element = Traits::element(i);
        float values[Traits::kVecs];
#pragma unroll
        for (int j = 0; j < Traits::kVecs; ++j) values[j] = state[i * Traits::kVecs + j];
        const typename Traits::StateVec v = round_states<Traits>(p, warp, row, element, token, values, factor);
        if (exists && row < p.headdim && element < Traits::d_state(p)) store<Traits::kKeep>(rows.at(r, i), v);
    }
}
