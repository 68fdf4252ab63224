// The states of selective_state_update_replay_few.cu: tiles in shared memory, and their products with C.
#pragma once

#include "selective_state_update/code_digits.cuh"
#include "selective_state_update/replay_few_tokens.cuh"

// The states of tiles in shared memory. On their way they take no registers, and the compiler does not put off the
// copies until what comes before their use has been waited for. Copies take lines of 128 bytes as they lie in memory,
// of which the lanes of a row would have half at once.
template <typename Traits>
struct StagedTiles {
    using State = typename Traits::State;
    using StateVec = typename Traits::StateVec;
    static constexpr int kDState = Traits::kElements * 4;
    static constexpr int kRowVecs = Traits::kChunks * 4;
    static constexpr int kPairVecs = 2 * kRowVecs;  // of a group's rows, which lie one behind the other
    static constexpr int kTileVecs = Traits::kGroups * kPairVecs;
    static constexpr int kVecs = Traits::kPart * kTileVecs;

    StateVec* staged;
    const State* from;  // what the lane copies first of the head
    index_t next;       // how much further that of the next head is

    // first: the warp's first row of the first head.
    __device__ __forceinline__ StagedTiles(StateVec* staged, const State* first, int next)
        : staged(staged), from(first + lane_id() * Traits::kVecs), next(next) {}

    // Starts to copy a tile of the head, or of the next one, if it lies before `end`; the copies of a tile are a group.
    // In odd groups of lanes every other 64 bytes change places, for the lanes of two groups read at once, and would
    // meet in the same banks.
    __device__ __forceinline__ void start(int tile, int end) const {
        if (tile < end) {
            const State* const head = tile < Traits::kTiles ? from : from + next;
#pragma unroll
            for (int i = 0; i < kTileVecs; i += kWarpSize) {
                const int group = i / kPairVecs + lane_id() / kPairVecs;
                StateVec* const to = staged + tile % Traits::kPart * kTileVecs + i + (lane_id() ^ group % 2 * 4);
                copy_async<16, false, true>(to, head + (tile % Traits::kTiles * kTileVecs + i) * Traits::kVecs);
            }
        }
        end_copy_group();
    }

    // Starts to copy the first tiles of a range.
    __device__ __forceinline__ void start(const TileRange& range) const {
#pragma unroll
        for (int m = 0; m < Traits::kPart; ++m) start(range.begin + m, range.end);
    }

    // Waits for the oldest tile on its way.
    __device__ __forceinline__ void wait() const {
        wait_for_copy_groups<Traits::kPart - 1>();
        sync_warp();
    }

    __device__ __forceinline__ void read(int tile, StateVec (&raw)[2][Traits::kChunks]) const {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
#pragma unroll
            for (int i = 0; i < Traits::kChunks; ++i) {
                const int group = lane_id() / 4;
                const int number = ((r * kRowVecs + i * 4) ^ group % 2 * 4) + lane_id() % 4;
                const StateVec* from = staged + tile % Traits::kPart * kTileVecs + group * kPairVecs + number;
                raw[r][i] = ::load<Traits::kVecs, Memory::kMutable>(reinterpret_cast<const State*>(from));
            }
        }
    }
};

// C of the new tokens, in the order in which the lane has elements of states.
template <typename Traits>
struct FloatFactors {
    static constexpr bool kIsSplit = false;
    using Vector = PackedVec<__nv_bfloat16, Traits::kVecs>;

    const __nv_bfloat16* from;
    int token_stride;
    int tokens;
    Vector C[Traits::kChunks];  // of the first token
    float unit = 1.0f;          // by which products are to be multiplied

    __device__ __forceinline__ FloatFactors(const __nv_bfloat16* from, int token_stride, int tokens)
        : from(from), token_stride(token_stride), tokens(tokens) {
        load(0, C);
    }

    __device__ __forceinline__ void load(int token, Vector (&to)[Traits::kChunks]) const {
#pragma unroll
        for (int i = 0; i < Traits::kChunks; ++i) {
            to[i].template load<Memory::kConstant>(from + token * token_stride + Traits::element(i));
        }
    }

    // C * S of the group's two rows of a tile, for the new token of lane q.
    __device__ __forceinline__ void multiply(const typename Traits::StateVec (&raw)[2][Traits::kChunks],
                                             float (&y)[2]) const {
        y[0] = y[1] = 0.0f;
        // C of several tokens would take too many registers.
#pragma unroll 1
        for (int t = 0; t < Traits::kTokens; ++t) {
            Vector of_token[Traits::kChunks];
            if constexpr (Traits::kHasMany) load(min(t, tokens - 1), of_token);
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                float sum = 0.0f;
#pragma unroll
                for (int i = 0; i < Traits::kElements; ++i) {
                    const int chunk = i / Traits::kVecs, at = i % Traits::kVecs;
                    const float factor = (Traits::kHasMany ? of_token : C)[chunk].to_float(at);
                    sum = fmaf(raw[r][chunk].to_float(at), factor, sum);
                }
                sum = sum_over_lanes(sum, 4);
                y[r] = !Traits::kHasMany || lane_id() % 4 == t ? sum : y[r];
            }
        }
    }
};

// The lane's part of C as a column of products with states on tensor cores, in pieces of kWidth elements: it is that of
// the new token that the lane's group stands for.
template <typename Traits, int kWidth>
struct ColumnPieces {
    static constexpr int kPieces = Traits::kVecs / (2 * kWidth);  // of a chunk

    Vec<__nv_bfloat16, kWidth> pieces[Traits::kChunks * kPieces];
    float magnitude = 0.0f;  // of the column's largest element

    __device__ __forceinline__ ColumnPieces(const __nv_bfloat16* from, int token_stride, int tokens) {
        const __nv_bfloat16* const own = from + new_token<Traits>(tokens) * token_stride + lane_id() / 4 % 2 * kWidth;
#pragma unroll
        for (int i = 0; i < Traits::kChunks * kPieces; ++i) {
            pieces[i] = ::load<kWidth>(own + Traits::element(i / kPieces) + i % kPieces * 2 * kWidth);
#pragma unroll
            for (int e = 0; e < kWidth; ++e) magnitude = max_or_nan(magnitude, fabsf(pieces[i].to_float(e)));
        }
        magnitude = max_over_lanes<8>(magnitude);
    }
};

// C for tensor cores, and states of bfloat16. The four words that a lane reads of a row go to a tile's rows g and g + 8
// in turn, as they lie in registers: the columns 2 q and 2 q + 1 have C of token q, one for the even words, the other
// for the odd ones.
template <typename Traits>
struct PairFactors {
    static constexpr bool kIsSplit = false;
    unsigned columns[Traits::kChunks][2];
    float unit = 1.0f;

    __device__ __forceinline__ PairFactors(const __nv_bfloat16* from, int token_stride, int tokens) {
        const ColumnPieces<Traits, 2> C(from, token_stride, tokens);
#pragma unroll
        for (int i = 0; i < 2 * Traits::kChunks; ++i) columns[i / 2][i % 2] = C.pieces[i].words[0];
    }

    __device__ __forceinline__ void multiply(const typename Traits::StateVec (&raw)[2][Traits::kChunks],
                                             float (&y)[2]) const {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
            for (int i = 0; i < Traits::kChunks; ++i) {
                multiply_add<__nv_bfloat16>(sums, raw[r][i].words, columns[i]);
            }
            y[r] = sums[0] + sums[3];
        }
    }
};

// The same for codes of 8 bits, which tensor cores multiply by the digits of C. Of several tokens, the columns 2 q and
// 2 q + 1 have a digit of token q; of one they have digit q, and lane q the product with it.
template <typename Traits>
struct CodeFactors {
    static constexpr bool kIsSplit = !Traits::kHasMany;  // the lanes of a group have parts of a sum
    static constexpr int kPasses = kIsSplit ? 1 : CodeScale::kDigits;

    unsigned columns[Traits::kChunks][kPasses][2];
    float unit;  // of lane q's token; NaN where C is not finite

    __device__ __forceinline__ CodeFactors(const __nv_bfloat16* from, int token_stride, int tokens) {
        const ColumnPieces<Traits, 4> C(from, token_stride, tokens);
        const CodeScale scale(C.magnitude);
        unit = from_lane(scale.unit, lane_id() % 4 * 8);
#pragma unroll
        for (int i = 0; i < 2 * Traits::kChunks; ++i) {
            unsigned digits[4];
#pragma unroll
            for (int e = 0; e < 4; ++e) digits[e] = scale.digits(C.pieces[i].to_float(e));
#pragma unroll
            for (int d = 0; d < kPasses; ++d) {
                columns[i / 2][d][i % 2] = digits_of(digits, kIsSplit ? lane_id() / 8 : d);
            }
        }
    }

    __device__ __forceinline__ void multiply(const typename Traits::StateVec (&raw)[2][Traits::kChunks],
                                             float (&y)[2]) const {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            int products[kPasses];
#pragma unroll
            for (int d = 0; d < kPasses; ++d) {
                int sums[4] = {0, 0, 0, 0};
#pragma unroll
                for (int i = 0; i < Traits::kChunks; ++i) multiply_add_codes(sums, raw[r][i].words, columns[i][d]);
                products[d] = sums[0] + sums[3];
            }
            if constexpr (kIsSplit) {
                y[r] = times_digit(products[0], lane_id() % 4);
            } else {
                y[r] =
                    fmaf(static_cast<float>(products[2] * 256 + products[1]), 256.0f, static_cast<float>(products[0]));
            }
        }
    }
};

// Whether instructions convert 8-bit floats; a CPU does what they do.
inline constexpr bool kConvertsFloat8 = kArch == 0 || kArch >= 89;

// The same for 8-bit floats, which are exact as __half; so is C, in a unit in which its largest element has 14 bits
// before the point, but for what is smaller than that by 2**38. Words go to rows as those of PairFactors do.
template <typename Traits>
struct HalfFactors {
    static constexpr bool kIsSplit = false;

    unsigned columns[Traits::kChunks][2][2];
    float unit;  // of lane q's token; NaN where C is not finite

    __device__ __forceinline__ HalfFactors(const __nv_bfloat16* from, int token_stride, int tokens) {
        const ColumnPieces<Traits, 2> C(from, token_stride, tokens);
        const CodeScale scale(C.magnitude);
        unit = from_lane(scale.unit * 128.0f, lane_id() % 4 * 8);
        const float inverse = scale.inverse * 0.0078125f;
#pragma unroll
        for (int i = 0; i < 4 * Traits::kChunks; ++i) {
            const float pair[2] = {C.pieces[i].to_float(0) * inverse, C.pieces[i].to_float(1) * inverse};
            columns[i / 4][i % 4 / 2][i % 2] = Dtype<__half>::pack(pair);
        }
    }

    __device__ __forceinline__ void multiply(const typename Traits::StateVec (&raw)[2][Traits::kChunks],
                                             float (&y)[2]) const {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
            for (int i = 0; i < 2 * Traits::kChunks; ++i) {
                unsigned halves[4];
#pragma unroll
                for (int word = 0; word < 4; ++word) {
                    halves[word] = e4m3_to_halves(raw[r][i / 2].words[i % 2 * 2 + word / 2], word % 2);
                }
                multiply_add<__half>(sums, halves, columns[i / 2][i % 2]);
            }
            y[r] = sums[0] + sums[3];
        }
    }
};

template <typename Traits>
using StateFactors = Select<!kMultipliesCodes, FloatFactors<Traits>,
                            Select<Traits::kIsInt8, CodeFactors<Traits>,
                                   Select<Traits::kIsFloat8 && kConvertsFloat8, HalfFactors<Traits>,
                                          Select<Traits::kIsBfloat16, PairFactors<Traits>, FloatFactors<Traits>>>>>;
