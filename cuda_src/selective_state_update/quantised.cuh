// Rows of quantised states: a code per element and a scale per row, S = code * scale.
//
// The scale of a row is that of its largest magnitude, which the lanes that share the row find by shuffles whenever
// they store it. A lane reads and writes the scale of its own row alone, so that what a warp has stored it can load
// again.
#pragma once

#include "selective_state_update/states.cuh"

// Traits: how a kernel divides rows among lanes (RowTraits in steps.cuh).

// Where the scale of the lane's own row lies, `at` elements behind the first scale; stride: head, row.
template <typename Operands, typename Stride>
__device__ __forceinline__ float* scale_place(const Operands& p, const WarpRows& warp, void* scales, index_t at,
                                              const Stride* stride) {
    return static_cast<float*>(scales) + at + warp.head * stride[0] + warp.own_row(p) * stride[1];
}

// The input and the decay of a row in a unit of its own, a power of two, in which the product of a code and the decay
// is one fma without a conversion. The bits of the code plus half of the range of codes, 128 or 32768, placed below the
// exponent of a float, are the float (code + half) * 2**-133, or 2**-141 with codes of 16 bits. The decay makes up for
// 2**-127 of that and the unit for the rest, and the fma takes off half * decay: the product is rounded once. That is
// one of eight instructions less for each element, and on an H200 about 1 % of the time.
template <typename state_t>
struct ScaledRow {
    // Of codes that are integers; 0 for the others, of which the unit is 1.
    static constexpr int kShift = kIsSame<state_t, float8_e4m3fn> ? 0 : sizeof(state_t) == 1 ? 6 : 14;

    float input;
    float decay;
    float unit = 1.0f;

    __device__ __forceinline__ ScaledRow(float input, float decay) : input(input), decay(decay) {
        if constexpr (kShift > 0) {
            // The exponent of the decay or, where the input is far greater, one that leaves the input finite.
            const int of_decay = static_cast<int>(__float_as_uint(fabsf(decay)));
            const int of_input = static_cast<int>(__float_as_uint(fabsf(input))) - (100 << 23);
            const int exponent = min(max(of_decay, of_input) & 0x7f800000, (251 - kShift) << 23);
            unit = __uint_as_float(exponent + ((2 + kShift) << 23));
            this->input *= __uint_as_float(((252 - kShift) << 23) - exponent);
            this->decay *= __uint_as_float((252 << 23) - exponent);
            this->decay *= 1.7014118346046923e38f;  // 2**127
        }
    }

    // Code i of a vector times the row's decay.
    template <int kVec>
    __device__ __forceinline__ static float decayed(const Vec<state_t, kVec>& codes, int i, float decay) {
        if constexpr (kShift > 0) {
            constexpr bool kIsByte = sizeof(state_t) == 1;
            const unsigned word = codes.words[i / Dtype<state_t>::kPerWord] ^ (kIsByte ? 0x80808080u : 0x80008000u);
            const unsigned selector = kIsByte ? 0x4044u | (i % 4) << 8 : i % 2 == 0 ? 0x4104u : 0x4324u;
            return fmaf(__uint_as_float(__byte_perm(word, 0, selector)), decay, decay * -1.1754943508222875e-38f);
        } else {
            return codes.to_float(i) * decay;
        }
    }
};

// Factors of the rows that a group stores one after the other; nothing for states without scales.
template <typename Traits, bool kIsQuantised = Traits::kIsQuantised>
struct RowFactors {
    __device__ __forceinline__ float find(int, const float (&)[Traits::kElements], float = 1.0f) { return 1.0f; }
    __device__ __forceinline__ void store_scale(const typename Traits::Operands&, const WarpRows&, float*,
                                                bool = true) const {}
};

template <typename Traits>
struct RowFactors<Traits, true> {
    float kept = 1.0f;  // in lane i of a group that of row i

    // The factor of row r of the group, from the lane's elements of it, both in a unit. All lanes of the warp take
    // part.
    __device__ __forceinline__ float find(int r, const float (&state)[Traits::kElements], float unit = 1.0f) {
        const float magnitude = max_over_lanes<Traits::kLanes>(largest_magnitude(state));
        const float factor = code_factor<typename Traits::State>(magnitude * unit);
        kept = lane_id() % Traits::kLanes == r ? factor : kept;
        return factor * unit;
    }

    // Stores the scale of the lane's own row, when all rows have their factors.
    __device__ __forceinline__ void store_scale(const typename Traits::Operands& p, const WarpRows& warp, float* place,
                                                bool exists = true) const {
        constexpr int kGroups = Traits::kGroups;
        const float factor = from_lane(kept, lane_id() % kGroups * Traits::kLanes + lane_id() / kGroups);
        if (exists && warp.is_row(p, Traits::kTile)) *place = scale_of_factor(factor);
    }
};

// Blocks of 128 threads per multiprocessor at least. Without a bound the compiler keeps the states of all rows for the
// sums. On an H200 256 sequences of int8 (Mamba-2, 128 heads) take 192 us with 4 blocks, 168 with 5; 5 of int16 with
// four rows 9.4 and 7.6; 4 tokens of 32 sequences 120 with 1, 102 with 3. B and C of more bits, the addresses of narrow
// accesses, masks and random numbers leave fewer registers. After sm_90 the compiler wants more, and would spill.
template <typename Traits>
__device__ constexpr int blocks_of_codes() {
    using State = typename Traits::State;
    using Matrix = typename Traits::Matrix;
    constexpr bool kIsCommon = Traits::kHasSharedDecay && Traits::kRowElements <= (kArch == 90 ? 256 : 128);
    constexpr bool kHasRoom = kIsCommon && sizeof(Matrix) == 2 && Traits::kVecs * sizeof(State) == 16;
    // Without instructions for 8-bit floats the compiler does eight rows at once unless registers are few.
    constexpr bool kIsComputed = kArch < 89 && kIsSame<State, float8_e4m3fn> && !Traits::kIsMany;
    // With d_state 64 and four rows a sequence of int16 takes 2.93 us with 4 blocks, 3.09 with 5.
    constexpr int kFewRows = Traits::kRowElements >= 128 ? 4 : Traits::kRowElements == 64 ? 2 : 0;
    constexpr bool kIsFew =
        !kIsSame<typename Traits::Operands, SelectiveStateUpdateOperands> && Traits::kRowsOfGroup <= kFewRows;
    // Four rows of int16 leave registers for B and C of 32 bits: 64 sequences take 74 us so, and 93 with eight rows in
    // two blocks. 8-bit codes would take 14 % longer.
    constexpr bool kHasWide = kIsCommon && sizeof(Matrix) == 4 && kIsSame<State, short> && Traits::kVecs == 8 &&
                              Traits::kRowsOfGroup <= 4 && !Traits::kIsMany && !Traits::kIsMasked &&
                              !Traits::kIsStochastic;
    return kHasWide                                     ? 4
           : kIsComputed && kIsCommon                   ? (kArch < 80 || Traits::kRowsOfGroup < 8 ? 2 : 3)
           : !kHasRoom                                  ? 1
           : Traits::kIsMany                            ? (Traits::kIsMasked || Traits::kIsChosen ? 2 : 3)
           : Traits::kIsMasked || Traits::kIsStochastic ? 2
           : kArch > 90                                 ? (Traits::kRowElements == 96 ? 2 : 3)
           : kArch == 90 && kIsSame<Matrix, __nv_bfloat16> &&
                   (kIsFew || (sizeof(State) == 1 && Traits::kRowElements <= 128))
               ? 5
               : 4;
}
