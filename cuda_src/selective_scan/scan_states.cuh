// States in slots of a pool as packed scans read, round and store them: floats, or codes with a scale per channel. With
// 8192 channels of 16 states an H200 takes, with codes of 8 bits and with float32: 596 us and 753 for 2048 single
// tokens, 706 and 676 for 512 random sequences of 8192 tokens in all, 615 and 608 for 16 of 512.
#pragma once

#include "common/codes.cuh"
#include "common/warp.cuh"

// Operands have rand_seed, seed and philox_rounds, which is 0 where the nearest codes are stored.

template <typename state_t>
inline constexpr bool kIsQuantised = kMaxCode<state_t> > 0.0f;

// An array of states by slot, channel and number, and for codes that of their scales by slot and channel.
template <typename state_t>
struct StateSlots {
    state_t* states;
    const index_t* stride;
    float* scales;
    const index_t* scale_stride;

    __device__ __forceinline__ float* scale(int slot, index_t channel) const {
        return scales + slot * scale_stride[0] + channel * scale_stride[1];
    }

    // The scale of a channel; 1 for floats.
    __device__ __forceinline__ float load_scale(int slot, index_t channel) const {
        if constexpr (kIsQuantised<state_t>) {
            return *scale(slot, channel);
        } else {
            return 1.0f;
        }
    }
};

// The token of a sequence that states follow, both counted from 0: what random numbers depend on.
struct StateTime {
    int sequence;
    int token;
};

// What turns a channel's states into codes, of which each of kLanes consecutive lanes has kCount; 1 for floats. All
// lanes of the warp take part.
template <typename state_t, int kLanes, int kCount>
__device__ __forceinline__ float find_factor(const float (&states)[kCount]) {
    if constexpr (kIsQuantised<state_t>) {
        float magnitude = 0.0f;
#pragma unroll
        for (int i = 0; i < kCount; ++i) magnitude = max_or_nan(magnitude, fabsf(states[i]));
        return code_factor<state_t>(max_over_lanes<kLanes>(magnitude));
    } else {
        return 1.0f;
    }
}

// Consecutive states of a channel as they are stored; `number` is that of the first in its slot, a multiple of kVec.
template <typename state_t, int kVec, typename Operands>
__device__ __forceinline__ Vec<state_t, kVec> round_states(const Operands& p, const float (&states)[kVec], float factor,
                                                           index_t number, const StateTime& time) {
    static_assert(kVec <= 8, "the numbers of one draw are enough");
    if constexpr (!kIsQuantised<state_t>) {
        return Vec<state_t, kVec>::from_floats(states);
    } else {
        if (p.philox_rounds == 0) return Vec<state_t, kVec>::codes(states, factor);
        const unsigned long long seed = p.rand_seed == nullptr ? p.seed : load_index(p.rand_seed, 0, true);
        const uint4 words = random_words(number / 8, time.sequence, time.token, seed, p.philox_rounds);
        Vec<state_t, kVec> v = Vec<state_t, kVec>::zero();
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
            v.put(i, code_stochastically<state_t>(states[i], factor, random_bits(words, number % 8 + i)));
        }
        return v;
    }
}

// One state of a channel.
template <typename state_t, typename Operands>
__device__ __forceinline__ void store_state(const Operands& p, state_t* at, float state, float factor, index_t number,
                                            const StateTime& time) {
    const float states[1] = {state};
    store(at, round_states<state_t>(p, states, factor, number, time));
}
