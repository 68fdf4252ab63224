// One to four tokens of a selective state space model with one decay a head, by replay: the formula, and when states
// are written, are selective_state_update_replay.cu's, for x, B and C of bfloat16, contiguous rows of heads, and a
// window of at most 16 tokens.
//
// Layout: a warp has 64 rows of some heads of one group, one head after the other, and needs no other warp. Tiles are
// 16 of the rows, and lane 4 g + q has every fourth 16 bytes of the rows 2 g and 2 g + 1 of each. With one token it
// finishes the two of tile q, with several all eight for token q.
//
// kDState  d_state    state_t  the pool of states    a_t  A    kMany  several tokens
#include "selective_state_update/replay_fold.cuh"
#include "selective_state_update/replay_products.cuh"

inline constexpr int kMostRanked = 256;  // sequences

struct SelectiveStateUpdateReplayFewParams {
    ReplayFewOperands operands;
};

template <typename Base, bool kMany>
struct ReplayFewRows : Base {
    static constexpr bool kHasMany = kMany;
    static constexpr int kWindows = 16;
    static constexpr int kXVecs = 8;
    static constexpr int kTiles = 4;
    static constexpr int kWarpRows = kTiles * Base::kTile;
    static constexpr int kTokens = kMany ? 4 : 1;
    static constexpr int kOwnRows = kMany ? 8 : 2;  // that a lane finishes, for one token
    // Tiles that are on their way at once, 8 KiB of a warp: with 12 KiB the steps below take 52 and 44 us.
    static constexpr int kPart = Base::kChunks > 4 ? 1 : Base::kChunks > 2 ? 2 : 4;
    static constexpr bool kIsInt8 = kIsSame<typename Base::State, signed char>;
    static constexpr bool kIsBfloat16 = kIsSame<typename Base::State, __nv_bfloat16>;
    static constexpr int kMatrixChunks = Base::kElements / 8;  // of B or C, 16 bytes each

    // Row r of the lane's group in the tile that begins at the first row.
    __device__ __forceinline__ static int row(const WarpRows& warp, int r) {
        return warp.first_row + lane_id() / 4 * 2 + r;
    }
};

template <int kDState, typename state_t, typename a_t, bool kMany>
struct SelectiveStateUpdateReplayFewTraits {
    static constexpr int kThreads = 128;
    // On an H200 steps of 64 sequences of Mamba-2 with 128 heads and states of bfloat16, some of which flush, take 50
    // us with 3 blocks, 51 with 4 and 64 with 5, which spill; 4 tokens of 32 sequences 41 with 2, 45 with 3 and 52
    // with 4.
    // Without tensor cores their products take registers.
    static constexpr int kMinBlocks = kMany || !kHasTensorCores ? 2 : 3;
    static constexpr int kVec = 16 / static_cast<int>(sizeof(state_t));
    using Rows = ReplayFewRows<RowTraits<kDState, __nv_bfloat16, state_t, a_t, __nv_bfloat16, kVec, 2, true, false,
                                         false, false, false, false, true, 4, SelectiveStateUpdateSingleOperands>,
                               kMany>;
};

// The new token that the lane's group stands for, as a column of products: lane q gets those of token q.
template <typename Traits>
__device__ __forceinline__ int new_token(int tokens) {
    return Traits::kHasMany ? min(lane_id() / 8, tokens - 1) : 0;
}

// The lane's part of B or C of a token, in accesses of 16 bytes that the lanes of a row take in turn.
template <typename Traits>
struct TokenMatrix {
    Vec<__nv_bfloat16, 8> parts[Traits::kMatrixChunks];

    __device__ __forceinline__ void load(const __nv_bfloat16* from, bool exists = true) {
#pragma unroll
        for (int i = 0; i < Traits::kMatrixChunks; ++i) {
            parts[i] = Vec<__nv_bfloat16, 8>::zero();
            if (exists) parts[i] = ::load<8, Memory::kMutable>(from + (i * 4 + lane_id() % 4) * 8);
        }
    }

    // The products of the group's two rows with the new tokens' parts: sums[0] and sums[2] are those of the lane's.
    __device__ __forceinline__ void multiply(const TokenMatrix& first, const TokenMatrix& second,
                                             float (&sums)[4]) const {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[i] = 0.0f;
#pragma unroll
        for (int i = 0; i < Traits::kMatrixChunks; ++i) {
#pragma unroll
            for (int w = 0; w < 4; w += 2) {
                const unsigned a[4] = {first.parts[i].words[w], second.parts[i].words[w], first.parts[i].words[w + 1],
                                       second.parts[i].words[w + 1]};
                const unsigned b[2] = {parts[i].words[w], parts[i].words[w + 1]};
                multiply_add<__nv_bfloat16>(sums, a, b);
            }
        }
    }
};

// B_j . C of live tokens, which heads of a group share. Lane 4 g + q has those of the tokens g, g + 8 and so on, for
// new token q.
template <typename Traits>
struct LiveProducts {
    static constexpr int kCount = Traits::kWindows / 8;

    float own[kCount];

    // C: of the new token that the lane's group stands for.
    __device__ __forceinline__ LiveProducts(const ReplayFewOperands& p, const Ring<Traits>& ring,
                                            const RingCursor& cursor, int live, const TokenMatrix<Traits>& C) {
#pragma unroll
        for (int i = 0; i < kCount; i += 2) {
            own[i] = own[i + 1] = 0.0f;
            if (8 * i >= live) continue;
            TokenMatrix<Traits> B[2];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int token = 8 * (i + half) + lane_id() / 4;
                B[half].load(ring.B + cursor.row(p, token) * Traits::d_state(p.operands), token < live);
            }
            float sums[4];
            C.multiply(B[0], B[1], sums);
            own[i] = sums[0];
            own[i + 1] = sums[2];
        }
    }
};

// The weights of live tokens in results, exp(s_j) * dt'_j * (B_j . C), of the same tokens.
template <typename Traits>
struct LiveWeights {
    float own[LiveProducts<Traits>::kCount];

    __device__ __forceinline__ LiveWeights(const LiveProducts<Traits>& products, const Weights& weights, int live) {
#pragma unroll
        for (int i = 0; i < LiveProducts<Traits>::kCount; ++i) {
            const int token = 8 * i + lane_id() / 4;
            const float weight = from_lane(weights.own, token);
            // What a token beyond the live ones has is whatever the memory held.
            own[i] = token < live ? weight * products.own[i] : 0.0f;
        }
    }

    // The weight of live token `begin + distance`, both of one eight of tokens, for the new token of lane q.
    __device__ __forceinline__ float of(int begin, int distance) const {
        return from_lane(own[begin / 8], (begin % 8 + distance) * 4 + lane_id() % 4);
    }
};

// x of live tokens in shared memory, of one head and of the next. Tokens that are not live are zeros.
template <typename Traits>
struct StagedTokens {
    using input_t = __nv_bfloat16;
    using TokenVec = Vec<input_t, 8>;
    static constexpr int kPasses = Traits::kWindows / 4;
    static constexpr int kRowVecs = Traits::kWarpRows / 8;  // of a token
    static constexpr int kVecs = 2 * Traits::kWindows * kRowVecs;

    TokenVec* staged;
    int places[kPasses];  // of what the lane copies in a head's ring; negative where a token is not live

    // The lane's tokens: every fourth, from q on.
    __device__ __forceinline__ static int token(int pass) { return 4 * pass + lane_id() % 4; }

    __device__ __forceinline__ StagedTokens(const ReplayFewOperands& p, const RingCursor& cursor, TokenVec* staged)
        : staged(staged) {
#pragma unroll
        for (int i = 0; i < kPasses; ++i) {
            places[i] = -1;
            if (token(i) < cursor.live) places[i] = cursor.row(p, token(i)) * p.operands.headdim + lane_id() / 4 * 8;
            if (places[i] >= 0) continue;
#pragma unroll
            for (int parity = 0; parity < 2; ++parity) {
                ::store(reinterpret_cast<input_t*>(place(parity, i, lane_id() % 4, lane_id() / 4)), TokenVec::zero());
            }
        }
    }

    // Where eight rows of token 4 * pass + q lie: those of the four tokens of a pass are read at once, and would meet
    // in the same banks.
    __device__ __forceinline__ TokenVec* place(int parity, int pass, int q, int number) const {
        return staged + ((parity * kPasses + pass) * 4 + q) * kRowVecs + (number + 2 * q) % kRowVecs;
    }

    // Starts to copy the tokens of a head, which is an even or an odd one; from: its warp's first row.
    __device__ __forceinline__ void start(const input_t* from, int parity) const {
#pragma unroll
        for (int i = 0; i < kPasses; ++i) {
            if (places[i] >= 0)
                copy_async<16, false, true>(place(parity, i, lane_id() % 4, lane_id() / 4), from + places[i]);
        }
    }

    // x of token 4 * pass + q in the two rows of the lane's group in a tile.
    __device__ __forceinline__ Vec<input_t, 2> read(int parity, int pass, int q, int tile) const {
        const TokenVec* const from = place(parity, pass, q, 2 * tile + lane_id() / 16);
        return ::load<2, Memory::kMutable>(reinterpret_cast<const input_t*>(from) + lane_id() / 4 % 4 * 2);
    }

    // The sums of weight * x over all live tokens, of the lane's own rows and token.
    __device__ __forceinline__ void sum(const LiveWeights<Traits>& weights, int live, int parity,
                                        float (&own)[Traits::kOwnRows]) const {
        float sums[8] = {};
#pragma unroll
        for (int i = 0; i < kPasses; ++i) {
            if (Traits::kHasMany && 4 * i >= live) break;
#pragma unroll
            for (int t = 0; t < (Traits::kHasMany ? 4 : 1); ++t) {
                const int q = Traits::kHasMany ? t : lane_id() % 4;
                const float weight = weights.of(4 * i, q);
#pragma unroll
                for (int m = 0; m < Traits::kTiles; ++m) {
                    const Vec<input_t, 2> x = read(parity, i, q, m);
#pragma unroll
                    for (int r = 0; r < 2; ++r) sums[2 * m + r] = fmaf(weight, x.to_float(r), sums[2 * m + r]);
                }
            }
        }
        // A lane has a part of the tokens of its own token's sums, or all of them.
        if constexpr (!Traits::kHasMany) sum_parts_over_lanes<4>(sums);
#pragma unroll
        for (int r = 0; r < Traits::kOwnRows; ++r) own[r] = sums[r];
    }

    // The lane's tokens times their weights in the two rows of a tile.
    __device__ __forceinline__ void multiply(const Weights& weights, int parity, int tile,
                                             unsigned (&inputs)[kFoldTerms][4]) const {
        float products[2][4];
#pragma unroll
        for (int i = 0; i < kPasses; ++i) {
            const Vec<input_t, 2> x = read(parity, i, lane_id() % 4, tile);
            const float weight = from_lane(weights.own, token(i));
#pragma unroll
            for (int r = 0; r < 2; ++r) products[r][i] = weight * x.to_float(r);
        }
        split_products<input_t>(products, inputs);
    }
};

// B of the live tokens as they are put in states: the lane's ones are those of StagedTokens.
template <typename Traits>
struct FoldTokens {
    using Live = StagedTokens<Traits>;

    TokenPairs<Traits> B[Traits::kChunks];

    __device__ __forceinline__ FoldTokens(const ReplayFewOperands& p, const RingCursor& cursor,
                                          const __nv_bfloat16* ring, int live) {
#pragma unroll
        for (int chunk = 0; chunk < Traits::kChunks; ++chunk) {
            PackedVec<__nv_bfloat16, Traits::kVecs / 2> parts[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                parts[i] = PackedVec<__nv_bfloat16, Traits::kVecs / 2>::zero();
                const int element = (chunk * 8 + lane_id() / 4) * (Traits::kVecs / 2);
                if (Live::token(i) < live) {
                    const int row = cursor.row(p, Live::token(i));
                    parts[i].template load<Memory::kMutable>(ring + row * Traits::kElements * 4 + element);
                }
            }
            B[chunk] = TokenPairs<Traits>(parts);
        }
    }
};

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

    // Starts to copy a tile of the head, or of the next one if there is one; the copies of a tile are a group. In odd
    // groups of lanes every other 64 bytes change places, for the lanes of two groups read at once, and would meet in
    // the same banks.
    __device__ __forceinline__ void start(int tile, bool is_last) const {
        if (tile < Traits::kTiles || !is_last) {
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

// The same for tensor cores, and states of bfloat16. The four words that a lane reads of a row go to a tile's rows g
// and g + 8 in turn, as they lie in registers: the columns 2 q and 2 q + 1 have C of token q, one for the even words,
// the other for the odd ones.
template <typename Traits>
struct PairFactors {
    unsigned columns[Traits::kChunks][2];
    float unit = 1.0f;

    __device__ __forceinline__ PairFactors(const __nv_bfloat16* from, int token_stride, int tokens) {
        const __nv_bfloat16* const own = from + new_token<Traits>(tokens) * token_stride + lane_id() / 4 % 2 * 2;
#pragma unroll
        for (int i = 0; i < 2 * Traits::kChunks; ++i) {
            columns[i / 2][i % 2] = ::load<2>(own + Traits::element(i / 2) + i % 2 * 4).words[0];
        }
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

// The same for codes of 8 bits, which tensor cores multiply by other codes: C is a sum of three, times 2**16, 2**8 and
// 1, in a unit in which its largest element has 22 bits. So products are exact, and no code becomes a float.
template <typename Traits>
struct CodeFactors {
    static constexpr int kDigits = 3;

    unsigned columns[Traits::kChunks][kDigits][2];
    float unit;  // of lane q's token; NaN where C is not finite

    __device__ __forceinline__ CodeFactors(const __nv_bfloat16* from, int token_stride, int tokens) {
        const __nv_bfloat16* const own = from + new_token<Traits>(tokens) * token_stride + lane_id() / 4 % 2 * 4;
        Vec<__nv_bfloat16, 4> C[Traits::kChunks][2];
        float magnitude = 0.0f;
#pragma unroll
        for (int i = 0; i < 2 * Traits::kChunks; ++i) {
            C[i / 2][i % 2] = ::load<4>(own + Traits::element(i / 2) + i % 2 * 8);
#pragma unroll
            for (int e = 0; e < 4; ++e) magnitude = max_or_nan(magnitude, fabsf(C[i / 2][i % 2].to_float(e)));
        }
        magnitude = max_over_lanes<8>(magnitude);
        // Powers of two by their exponents: 2**(21 - e) and 2**(e - 21) where the magnitude is 2**e to 2**(e + 1).
        const unsigned exponent = max(__float_as_uint(magnitude) & 0x7f800000u, 22u << 23);
        const float scale = __uint_as_float((275u << 23) - exponent);
        const float step = __uint_as_float(exponent - (21u << 23));
        unit = from_lane(magnitude <= 3.402823466e38f ? step : magnitude - magnitude, lane_id() % 4 * 8);
#pragma unroll
        for (int i = 0; i < 2 * Traits::kChunks; ++i) {
            unsigned digits[4];
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                // Bytes of a sum with 128 in each are those of digits of -128 to 127, with the sign the other way.
                const unsigned integer = integer_bits(C[i / 2][i % 2].to_float(e), scale) - 0x4b400000u;
                digits[e] = (integer + 0x808080u) ^ 0x808080u;
            }
#pragma unroll
            for (int d = 0; d < kDigits; ++d) {
                const unsigned both = 0x40u + 0x11u * d;
                columns[i / 2][d][i % 2] = __byte_perm(__byte_perm(digits[0], digits[1], both),
                                                       __byte_perm(digits[2], digits[3], both), 0x5410u);
            }
        }
    }

    __device__ __forceinline__ void multiply(const typename Traits::StateVec (&raw)[2][Traits::kChunks],
                                             float (&y)[2]) const {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            int products[kDigits];
#pragma unroll
            for (int d = 0; d < kDigits; ++d) {
                int sums[4] = {0, 0, 0, 0};
#pragma unroll
                for (int i = 0; i < Traits::kChunks; ++i) multiply_add_codes(sums, raw[r][i].words, columns[i][d]);
                products[d] = sums[0] + sums[3];
            }
            y[r] = fmaf(static_cast<float>(products[2] * 256 + products[1]), 256.0f, static_cast<float>(products[0]));
        }
    }
};

template <typename Traits>
using StateFactors = Select<Traits::kIsInt8, CodeFactors<Traits>,
                            Select<Traits::kIsBfloat16, PairFactors<Traits>, FloatFactors<Traits>>>;

// Decays of the new token that lane q stands for: exp(p_q), and of each token up to it exp(p_q - p_i) * dt'_i.
template <typename Traits>
struct NewDecays {
    float whole;
    float inputs[Traits::kTokens];

    // rate: A in powers of two; step: dt' of the lane's token, 0 beyond the last one.
    __device__ __forceinline__ NewDecays(float rate, float step) {
        float power = 0.0f;
#pragma unroll
        for (int i = Traits::kTokens - 1; i >= 0; --i) {
            const float of_token = Traits::kHasMany ? from_lane(step, i) : step;
            inputs[i] = exp2_approx(power) * of_token;
            if (!Traits::kHasMany || i <= lane_id() % 4) power += rate * of_token;
        }
        whole = exp2_approx(power);
    }
};

// The lane's own rows of one token, as they are in memory: two of one tile, or of each tile.
template <typename Traits>
struct OwnRows {
    using input_t = __nv_bfloat16;
    static constexpr int kPairs = Traits::kOwnRows / 2;

    Vec<input_t, 2> pairs[kPairs];

    // How far row i is behind the first one.
    __device__ __forceinline__ static int row(int i) { return i / 2 * Traits::kTile + i % 2; }

    __device__ __forceinline__ static OwnRows zero() {
        OwnRows rows;
#pragma unroll
        for (int i = 0; i < kPairs; ++i) rows.pairs[i] = Vec<input_t, 2>::zero();
        return rows;
    }

    template <Memory kMemory>
    __device__ __forceinline__ void load(const input_t* from) {
#pragma unroll
        for (int i = 0; i < kPairs; ++i) pairs[i] = ::load<2, kMemory>(from + row(2 * i));
    }

    __device__ __forceinline__ void store(input_t* to) const {
#pragma unroll
        for (int i = 0; i < kPairs; ++i) ::store(to + row(2 * i), pairs[i]);
    }

    __device__ __forceinline__ float to_float(int i) const { return pairs[i / 2].to_float(i % 2); }

    __device__ __forceinline__ void take(bool condition, const OwnRows& other) {
#pragma unroll
        for (int i = 0; i < kPairs; ++i) pairs[i] = select(condition, other.pairs[i], pairs[i]);
    }
};

// What the results of a head take besides its states and x of its live tokens, as it is in memory.
template <typename Traits>
struct HeadTokens {
    using input_t = __nv_bfloat16;
    using Own = OwnRows<Traits>;

    RowParameters<Traits> parameters;
    RawNumber<input_t> dt;  // of the lane's new token
    float live_step;        // dt' of the lane's live token
    Own x[Traits::kTokens];
    Own z;
    RawNumber<input_t> D[Traits::kOwnRows];
    float scale[2];  // of the rows of the lane's group in tile q

    // row: the lane's first own one; token: its own one; scales: of those rows.
    __device__ __forceinline__ void load(const ReplayFewOperands& p, const WarpRows& warp, int tokens, int row,
                                         int token, const float* scales) {
        const SelectiveStateUpdateSingleOperands& s = p.operands;
        const auto place = [&](const int* stride, int of_token, int of_row) {
            return warp.batch * stride[0] + of_token * stride[1] + warp.head * stride[2] + of_row;
        };
        if constexpr (Traits::kIsQuantised) {
            scale[0] = scales[0];
            scale[1] = scales[1];
        }
        parameters.load(s, warp);
        dt.load(s.dt, place(s.dt_stride, Traits::kHasMany ? min(lane_id(), tokens - 1) : 0, 0), s.dt_is_float32);
#pragma unroll
        for (int i = 0; i < Traits::kTokens; ++i) {
            x[i] = Own::zero();
            if (i < tokens) {
                // The call may write its outputs over x.
                x[i].template load<Memory::kMutable>(static_cast<const input_t*>(s.x) + place(s.x_stride, i, row));
            }
        }
        z = Own::zero();
        if (s.z != nullptr && token < tokens) {
            z.template load<Memory::kConstant>(static_cast<const input_t*>(s.z) + place(s.z_stride, token, row));
        }
        if (s.D != nullptr) {
#pragma unroll
            for (int r = 0; r < Traits::kOwnRows; ++r) {
                D[r].load(s.D, warp.head * s.D_stride[0] + (row + Own::row(r)) * s.D_stride[1], s.D_is_float32);
            }
        }
    }
};

template <typename Traits>
struct ReplayFewShared {
    typename Traits::StateVec tiles[StagedTiles<Traits>::kVecs];
    typename StagedTokens<Traits>::TokenVec tokens[StagedTokens<Traits>::kVecs];
};

// The scales of a head's rows, from `row` on; nullptr for states without scales.
template <typename Traits>
__device__ __forceinline__ float* scales_of(const ReplayFewOperands& p, int slot, int head, int row) {
    if constexpr (Traits::kIsQuantised) {
        return static_cast<float*>(p.state_scale) + slot * static_cast<index_t>(p.scale_stride[0]) +
               head * p.scale_stride[1] + row;
    } else {
        return nullptr;
    }
}

// What a warp knows of its sequence, and of the group of its heads.
template <typename Traits>
struct ReplayFewWarp {
    using input_t = __nv_bfloat16;

    const ReplayFewOperands& p;
    const SequenceStep& step;
    const RingCursor& cursor;
    const StagedTokens<Traits>& old;
    const LiveProducts<Traits>& live_products;
    const float (&products)[4];  // B . C of the new tokens
    const StateFactors<Traits>& factors;
    int row;    // the lane's first own one
    int token;  // the lane's own one

    // Of the lane's rows in tile q of a head.
    __device__ __forceinline__ float* scales(const WarpRows& warp) const {
        return scales_of<Traits>(p, step.slot, warp.head, Traits::row(warp, lane_id() % 4 * Traits::kTile));
    }

    __device__ __forceinline__ OwnRows<Traits> own_x(const HeadTokens<Traits>& head) const {
        OwnRows<Traits> own = head.x[0];
#pragma unroll
        for (int i = 1; i < Traits::kTokens; ++i) own.take(i == token, head.x[i]);
        return own;
    }

    __device__ __forceinline__ void load(HeadTokens<Traits>& head, const WarpRows& warp, const Ring<Traits>& ring,
                                         bool has_past = true) const {
        head.load(p, warp, step.tokens, row, token, scales(warp));
        if (has_past) head.live_step = load_steps<Traits>(p, ring, cursor, step.live);
    }

    // Brings what a head needs to the L2 cache.
    __device__ __forceinline__ void prefetch_next(const WarpRows& warp, const Ring<Traits>& ring) const {
        const SelectiveStateUpdateSingleOperands& s = p.operands;
        const auto place = [&](const int* stride) {
            return warp.batch * stride[0] + token * stride[1] + warp.head * stride[2] + row;
        };
        prefetch(ring.dt + cursor.row(p, 0));
        if constexpr (Traits::kIsQuantised) prefetch(scales(warp));
        if (token < step.tokens) {
            prefetch(static_cast<const input_t*>(s.x) + place(s.x_stride));
            if (s.z != nullptr) prefetch(static_cast<const input_t*>(s.z) + place(s.z_stride));
        }
    }

    // Puts the live tokens in a tile of a head's states, which is in shared memory.
    __device__ __forceinline__ void fold(const StagedTiles<Traits>& tiles, WarpRows warp, int number, int parity,
                                         const HeadTokens<Traits>& head, const Weights& weights,
                                         const FoldTokens<Traits>& tokens) const {
        typename Traits::StateVec raw[2][Traits::kChunks];
        tiles.read(number, raw);
        unsigned inputs[kFoldTerms][4];
        old.multiply(weights, parity, number, inputs);
        float left[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            left[r] = weights.state;
            if constexpr (Traits::kIsQuantised) left[r] *= from_lane(head.scale[r], lane_id() / 4 * 4 + number);
        }
        warp.first_row += Traits::kTile * number;
        float* const to = scales_of<Traits>(p, step.slot, warp.head, Traits::row(warp, 0));
        const SelectiveStateUpdateSingleOperands& s = p.operands;
        StateRows<Traits> rows =
            StateRows<Traits>(s.state, s.state_stride + 1, warp) + step.slot * static_cast<index_t>(s.state_stride[0]);
        rows.row_step = Traits::kElements * 4;
        RowFactors<Traits> found;
        fold_two_rows<Traits>(s, warp, rows, raw, left, found, [&](int chunk, float (&state)[2][Traits::kVecs]) {
            add_products<Traits>(inputs, tokens.B[chunk], state);
        });
        if constexpr (Traits::kIsQuantised) {
            if (lane_id() % 4 < 2) to[lane_id() % 4] = scale_of_factor(found.kept);
        }
    }

    // Stores the results of a head. of_states: C * S of the lane's own rows, which are still to be multiplied by what
    // is left of them.
    __device__ __forceinline__ void finish(input_t* out, const HeadTokens<Traits>& head, const Weights& weights,
                                           float rate, float own_step, int parity,
                                           const float (&of_states)[Traits::kOwnRows]) const {
        const SelectiveStateUpdateSingleOperands& s = p.operands;
        float y[Traits::kOwnRows];
        old.sum(LiveWeights<Traits>(live_products, weights, step.live), step.live, parity, y);
        const NewDecays<Traits> decays(rate, own_step);
#pragma unroll
        for (int r = 0; r < Traits::kOwnRows; ++r) {
            float unit = weights.state * factors.unit;
            if constexpr (Traits::kIsQuantised) {
                unit *= Traits::kHasMany ? from_lane(head.scale[r % 2], lane_id() / 4 * 4 + r / 2) : head.scale[r];
            }
            y[r] = fmaf(of_states[r], unit, y[r]) * decays.whole;
        }
#pragma unroll
        for (int i = 0; i < Traits::kTokens; ++i) {
            const float product = Traits::kHasMany ? from_lane(products[0], i * 4 + token) : products[0];
            const float input = decays.inputs[i] * product;
            // A later token may be NaN, and is rejected then.
            if (i > token) continue;
#pragma unroll
            for (int r = 0; r < Traits::kOwnRows; ++r) y[r] = fmaf(input, head.x[i].to_float(r), y[r]);
        }
        const OwnRows<Traits> own = own_x(head);
#pragma unroll
        for (int r = 0; r < Traits::kOwnRows; ++r) {
            if (s.D != nullptr) y[r] = fmaf(head.D[r].to_float(s.D_is_float32), own.to_float(r), y[r]);
            if (s.z != nullptr) y[r] *= silu<float>(head.z.to_float(r));
        }
        // Results may lie where x does, which the other lanes have loaded.
        if constexpr (Traits::kHasMany) sync_warp();
        if (token >= step.tokens) return;
#pragma unroll
        for (int i = 0; i < Traits::kOwnRows; i += 2) {
            const float pair[2] = {y[i], y[i + 1]};
            ::store(out + OwnRows<Traits>::row(i), Vec<input_t, 2>::from_floats(pair));
        }
    }

    // Replays the heads from that of `warp` on. What is in shared memory is on its way, and `next` has been loaded.
    // With kFolds live tokens are put in states, which takes the registers for what is loaded ahead: this is a function
    // of its own for the compiler, which would keep that in memory in the other case, too.
    template <bool kFolds>
    __device__ __forceinline__ void replay(WarpRows warp, StagedTiles<Traits>& tiles, Ring<Traits>& ring,
                                           HeadTokens<Traits>& next, input_t* out) const {
        const SelectiveStateUpdateSingleOperands& s = p.operands;
#pragma unroll 1
        for (int heads = p.warp_heads, parity = 0; heads > 0; --heads, parity ^= 1) {
            const bool is_last = heads == 1;
            HeadTokens<Traits> head;
            if constexpr (kFolds) {
                load(head, warp, ring);
            } else {
                head = next;
            }
            float own_step = 0.0f;
            if (!Traits::kHasMany || lane_id() < step.tokens) {
                own_step = step_length<Traits>(s, head.parameters, head.dt);
            }
            // What the new tokens leave for later steps.
            if (token < step.tokens) own_x(head).store(ring.x_at(p, cursor.row(p, cursor.live + token), row));
            if (warp.first_row == 0 && lane_id() < step.tokens) {
                ring.dt[cursor.row(p, cursor.live + lane_id())] = own_step;
            }
            ring.x += p.ring_rows * s.headdim;
            ring.dt += p.ring_rows;
            if (!is_last) {
                WarpRows following = warp;
                ++following.head;
                if constexpr (kFolds) {
                    prefetch_next(following, ring);
                } else {
                    // The next head's inputs are on their way while this one's are used.
                    load(next, following, ring);
                }
            }
            const float rate = kLog2E * head.parameters.A[0][0].to_float(0);
            const Weights weights(rate, head.live_step);
            float of_states[Traits::kOwnRows] = {};
            const auto read_tile = [&](int m) {
                typename Traits::StateVec raw[2][Traits::kChunks];
                tiles.wait();
                tiles.read(m, raw);
                float of_tile[2];
                factors.multiply(raw, of_tile);
#pragma unroll
                for (int i = 0; i < Traits::kOwnRows; ++i) {
                    const bool is_own = Traits::kHasMany ? i / 2 == m : lane_id() % 4 == m;
                    of_states[i] = is_own ? of_tile[i % 2] : of_states[i];
                }
            };
            const auto start_next = [&](int m) {
                sync_warp();
                if (m == 0 && !is_last) old.start(ring.x + warp.first_row, parity ^ 1);
                tiles.start(m + Traits::kPart, is_last);
            };
            if constexpr (kFolds) {
                // All that the tiles share: their loop waits for little but states.
                const FoldTokens<Traits> tokens(p, cursor, ring.B, step.live);
#pragma unroll 1
                for (int m = 0; m < Traits::kTiles; ++m) {
                    read_tile(m);
                    // Reads the tile once more, instead of keeping it in registers.
                    sync_warp();
                    fold(tiles, warp, m, parity, head, weights, tokens);
                    start_next(m);
                }
                // Loads once more what would take registers all the time.
                WarpRows same = warp;
                same.head = opaque(warp.head);
                HeadTokens<Traits> again;
                load(again, same, ring, false);
                again.scale[0] = head.scale[0];
                again.scale[1] = head.scale[1];
                finish(out, again, weights, rate, own_step, parity, of_states);
            } else {
#pragma unroll
                for (int m = 0; m < Traits::kTiles; ++m) {
                    read_tile(m);
                    start_next(m);
                }
                finish(out, head, weights, rate, own_step, parity, of_states);
            }
            tiles.from += tiles.next;
            out += s.out_stride[2];
            ++warp.head;
        }
    }
};

// Replays the heads of a warp from when its cursor is known. C, B: of the new tokens, as columns and as rows of
// products.
template <bool kFolds, typename Traits>
__device__ __forceinline__ void replay_heads(const ReplayFewOperands& p, const SequenceStep& step, const WarpRows& warp,
                                             const RingCursor& cursor, const TokenMatrix<Traits>& C,
                                             const TokenMatrix<Traits>& B, const StateFactors<Traits>& factors,
                                             StagedTiles<Traits>& tiles, HeadTokens<Traits>& next,
                                             typename StagedTokens<Traits>::TokenVec* staged, __nv_bfloat16* out) {
    using input_t = __nv_bfloat16;
    constexpr int kDState = Traits::kElements * 4;
    const SelectiveStateUpdateSingleOperands& s = p.operands;
    const int row = Traits::row(warp, Traits::kHasMany ? 0 : lane_id() % 4 * Traits::kTile);
    const int token = Traits::kHasMany ? lane_id() % 4 : 0;
    const int appended = Traits::kHasMany ? min(lane_id() / 4, step.tokens - 1) : 0;
    Ring<Traits> ring(p, step.slot, warp.head);
    next.live_step = load_steps<Traits>(p, ring, cursor, step.live);
    const StagedTokens<Traits> old(p, cursor, staged);
    old.start(ring.x + warp.first_row, 0);
    end_copy_group();
    const LiveProducts<Traits> live_products(p, ring, cursor, step.live, C);
    float products[4];
    C.multiply(B, B, products);
    if (warp.first_row == 0) {
        if (warp.head % static_cast<int>(s.group_heads.divisor) == 0 && lane_id() / 4 < step.tokens) {
            input_t* const to = ring.B + cursor.row(p, cursor.live + appended) * kDState;
#pragma unroll
            for (int i = 0; i < Traits::kMatrixChunks; ++i) ::store(to + (i * 4 + lane_id() % 4) * 8, B.parts[i]);
        }
        if (warp.head == 0 && lane_id() == 0) cursor.leave(step.tokens, kFolds ? cursor.live : 0);
    }
    wait_for_copies();
    const ReplayFewWarp<Traits> own{p, step, cursor, old, live_products, products, factors, row, token};
    own.template replay<kFolds>(warp, tiles, ring, next, out);
}

// The sequence that is the `rank`-th when those that flush come first. They take longest: the last warps would go on
// while most of the GPU has nothing to do.
template <typename Traits>
__device__ __forceinline__ int sequence_of_rank(const ReplayFewOperands& p, int rank) {
    constexpr int kParts = kMostRanked / kWarpSize;
    const SelectiveStateUpdateSingleOperands& s = p.operands;
    bool flushes[kParts];
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
        flushes[i] = false;
        if (i * kWarpSize >= s.batch) continue;
        const int sequence = i * kWarpSize + lane_id();
        const int slot = sequence < s.batch ? load_slot<Traits>(s, sequence) : -1;
        if (slot < 0) continue;
        const int live = min(max(static_cast<int>(RingCursor::load(p, slot).y), 0), p.window);
        flushes[i] = live + (Traits::kHasMany ? p.tokens : 1) > p.window;
        if (p.force_flush != nullptr) {
            flushes[i] |= static_cast<const unsigned char*>(p.force_flush)[sequence * p.force_flush_stride] != 0;
        }
    }
    unsigned flushing[kParts];
    int count = 0;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
        flushing[i] = lanes_where(flushes[i]);
        count += __popc(flushing[i]);
    }
    const bool is_first = rank < count;
    if (!is_first) rank -= count;
    unsigned among = 0;
    int begin = 0, place = 0;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
        const int rest = s.batch - i * kWarpSize;
        const unsigned all = rest >= kWarpSize ? kAllLanes : rest > 0 ? (1u << rest) - 1u : 0u;
        const unsigned candidates = (is_first ? flushing[i] : ~flushing[i]) & all;
        if (rank >= 0 && rank < __popc(candidates)) {
            among = candidates;
            begin = i * kWarpSize;
            place = rank;
        }
        rank -= __popc(candidates);
    }
    const unsigned below = among & ((1u << lane_id()) - 1u);
    return begin + lowest(lanes_where((among >> lane_id() & 1u) != 0 && __popc(below) == place));
}

// warp: from its first head on, and of a sequence's rank where those that flush come first.
template <typename Traits>
__device__ __forceinline__ void replay_few(const ReplayFewOperands& p, WarpRows warp, ReplayFewShared<Traits>& shared) {
    using input_t = __nv_bfloat16;
    constexpr int kDState = Traits::kElements * 4;
    const SelectiveStateUpdateSingleOperands& s = p.operands;
    SequenceStep step = {};
    if (p.flushes_first) {
        wait_for_preceding();
        warp.batch = sequence_of_rank<Traits>(p, warp.batch);
    }
    step.entry = warp.batch;
    step.tokens = Traits::kHasMany ? p.tokens : 1;
    step.goes_on = true;
    step.slot = uniform(load_slot<Traits>(s, warp.batch));
    if (!p.flushes_first) wait_for_preceding();
    const int row = Traits::row(warp, Traits::kHasMany ? 0 : lane_id() % 4 * Traits::kTile);
    const int token = Traits::kHasMany ? lane_id() % 4 : 0;
    input_t* out = static_cast<input_t*>(s.out) + warp.batch * s.out_stride[0] + token * s.out_stride[1] +
                   warp.head * s.out_stride[2] + row;
    if (step.slot < 0) {
        for (int heads = p.warp_heads; heads > 0; --heads, out += s.out_stride[2]) {
            if (token < step.tokens && !s.keeps_padding) OwnRows<Traits>::zero().store(out);
        }
        return;
    }
    const auto* const states = static_cast<const typename Traits::State*>(s.state) +
                               step.slot * static_cast<index_t>(s.state_stride[0]) + warp.head * s.state_stride[1] +
                               warp.first_row * kDState;
    StagedTiles<Traits> tiles(shared.tiles, states, s.state_stride[1]);
#pragma unroll
    for (int m = 0; m < Traits::kPart; ++m) tiles.start(m, false);
    const int group = static_cast<int>(s.group_heads.quotient(warp.head));
    const auto* const C_at = static_cast<const input_t*>(s.C) + warp.batch * s.C_stride[0] + group * s.C_stride[2];
    const auto* const B_at = static_cast<const input_t*>(s.B) + warp.batch * s.B_stride[0] + group * s.B_stride[2];
    TokenMatrix<Traits> C, B;
    // The compiler would put loads of constants behind the barrier.
    C.load(C_at + new_token<Traits>(step.tokens) * s.C_stride[1]);
    // The lane's group stands for another token here: as a row of the product, not as a column.
    const int appended = Traits::kHasMany ? min(lane_id() / 4, step.tokens - 1) : 0;
    B.load(B_at + appended * s.B_stride[1]);
    bool is_forced = false;
    if (p.force_flush != nullptr) {
        is_forced = static_cast<const unsigned char*>(p.force_flush)[warp.batch * p.force_flush_stride] != 0;
    }
    HeadTokens<Traits> next;
    next.load(p, warp, step.tokens, row, token,
              scales_of<Traits>(p, step.slot, warp.head, Traits::row(warp, lane_id() % 4 * Traits::kTile)));
    // The cursor comes last, behind a barrier: whatever is loaded after it the compiler would put behind the wait for
    // it.
    sync_warp();
    const uint2 words = RingCursor::load(p, step.slot);
    const StateFactors<Traits> factors(C_at, s.C_stride[1], step.tokens);
    const RingCursor cursor(p, step.slot, words);
    step.live = cursor.live;
    step.folds = uniform(static_cast<int>(is_forced)) != 0 || step.live + step.tokens > p.window;
    if (step.folds) {
        // Loads again what the other case has loaded ahead: else the compiler would keep it in memory for both.
        const StateFactors<Traits> again(opaque(C_at), s.C_stride[1], step.tokens);
        replay_heads<true, Traits>(p, step, warp, cursor, C, B, again, tiles, next, shared.tokens, out);
    } else {
        replay_heads<false, Traits>(p, step, warp, cursor, C, B, factors, tiles, next, shared.tokens, out);
    }
}

template <int kDState, typename state_t, typename a_t, bool kMany,
          typename Traits = SelectiveStateUpdateReplayFewTraits<kDState, state_t, a_t, kMany>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    selective_state_update_replay_few_kernel(const SelectiveStateUpdateReplayFewParams params) {
    using Rows = typename Traits::Rows;
    __shared__ alignas(16) ReplayFewShared<Rows> shared[Traits::kThreads / kWarpSize];
    const ReplayFewOperands& p = params.operands;
    const int number = uniform(static_cast<int>(threadIdx.x / kWarpSize));
    WarpRows warp(p.operands, blockIdx.x * (Traits::kThreads / kWarpSize) + number, Rows::kWarpRows);
    warp.head *= p.warp_heads;
    // Whole warps leave: the shuffles stay complete.
    if (warp.batch >= p.operands.batch) return wait_for_preceding();
    replay_few<Rows>(p, warp, shared[number]);
}
