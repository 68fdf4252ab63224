// What the threads of a block have of a selective scan by tiles, and how states, B, C and rows come and go.
#pragma once

#include "common/fastdiv.cuh"
#include "common/tokens.cuh"
#include "selective_scan/scan_states.cuh"
#include "selective_scan/tile_matrices.cuh"

// The first channel of a block, by the block's number in a row.
//
// The phase of a row is how many elements lie in front of it in its first vector of 16 bytes. Where rows of contiguous
// tokens have phases, those of u, delta, z and out have the same one in each channel, channels that are 1 << phase_bits
// apart have one phase, and a block has such channels. From first_phase on B and C have a copy for each phase whose
// rows have it, too; the distance of these is matrix_phase_step times that of their phases.
template <typename Shape, typename Operands>
__device__ __forceinline__ int first_channel_of(const Operands& p, unsigned block) {
    if constexpr (Shape::kHasPhases) {
        const unsigned phases = 1u << p.phase_bits;
        return static_cast<int>(block / phases * phases * Shape::kChannels + block % phases);
    }
    return static_cast<int>(block) * Shape::kChannels;
}

// One channel of a sequence, in the lanes of a group. The groups of a block have the same tokens; groups beyond the
// last channel repeat that one's work and store nothing.
template <typename Shape, typename Operands>
struct TileBlock {
    using T = typename Shape::input_t;
    static constexpr int kVec = Shape::kVec;
    static constexpr int kTokens = Shape::kTokens;
    static constexpr int kLanes = Shape::kLanes;
    static constexpr int kParts = Shape::kParts;
    static constexpr int kOwn = Shape::kOwn;
    static constexpr int kTile = Shape::kTile;
    static constexpr bool kByChannel = Shape::kByChannel;
    static constexpr bool kHasPhases = Shape::kHasPhases;
    // Threads that visit states together, their channels, and in how many slots they can store states at once.
    static constexpr int kStateThreads = Shape::kSweeps ? Shape::kThreads : kWarpSize;
    static constexpr int kStateChannels = kStateThreads / Shape::kGroup;
    static constexpr int kCopies = Shape::kMost * kStateChannels < kStateThreads ? 2 : 1;
    // Tokens of a lane: as they are in memory or, where channels are contiguous, as they are in shared memory.
    struct TurnedTokens {
        const T* elements;  // the first token

        __device__ __forceinline__ float to_float(int t) const {
            return Dtype<T>::to_float(elements[t * Shape::kChannels]);
        }
    };
    using Own = Select<kByChannel, TurnedTokens, Tokens<T, kOwn, kVec>>;
    using Rows = TileRows<Shape>;
    using MatrixTurns = Select<Shape::kByState, MatrixByState<Shape>, MatrixTurn<Shape>>;
    using MatrixLoads = Select<kByChannel, Select<Shape::kSweeps, MatrixRows<Shape>, MatrixTurns>, MatrixCopy<Shape>>;

    using States = float[Shape::kMost + 1];  // of a channel
    struct Inputs {
        Own u;
        Own delta;
    };

    const Operands& p;
    TileShared<Shape>& shared;
    int batch;
    int first_channel;  // of the block
    int phase;          // of its rows
    int lane;           // its number among the lanes of its part
    int part;
    int local;  // its channel's number in the block
    int channel;
    bool is_idle;
    // In the tile at token 0, as delta, z and out: at the first token that this lane loads or, where channels are
    // contiguous, at this thread's first vector of channels.
    const T* u;
    const T* delta;
    const T* z;
    T* out;
    MatrixLoads B;  // for the block's group of channels
    MatrixLoads C;
    float D;
    float bias;

    // States begin with what begins(channel, n) returns.
    template <typename Begins>
    __device__ __forceinline__ TileBlock(const Operands& p_, TileShared<Shape>& shared_, int batch_, int first_channel_,
                                         Begins begins)
        : p(p_),
          shared(shared_),
          batch(batch_),
          first_channel(first_channel_),
          phase(phase_of()),
          lane(static_cast<int>(threadIdx.x) % kLanes),
          part(Shape::part()),
          local(Shape::channel()),
          channel(static_cast<int>(of_block(local))),
          is_idle(number_of(local) >= p.dim),
          B(matrix(p.B, p.B_stride) + matrix_copy(), p.B_stride[Shape::kByState ? 3 : 2]),
          C(matrix(p.C, p.C_stride) + matrix_copy(), p.C_stride[Shape::kByState ? 3 : 2]) {
        u = row<const T>(p.u, p.u_stride);
        delta = row<const T>(p.delta, p.delta_stride);
        z = row<const T>(p.z, p.z_stride);
        out = row<T>(p.out, p.out_stride);
        RawNumber<T> raw_d, raw_bias;
        if (p.D != nullptr) raw_d.load(p.D, channel * p.D_stride, p.D_is_float32);
        if (p.delta_bias != nullptr) {
            raw_bias.load(p.delta_bias, channel * p.delta_bias_stride, p.delta_bias_is_float32);
        }
        // All are asked for before the first one is waited for.
        const float* const A = static_cast<const float*>(p.A);
        float rates[kStateRounds], states[kStateRounds];
        each_state<kStateRounds>([&](int round, int c, int n) {
            rates[round] = load<1>(A + of_block(c) * p.A_stride[0] + n * p.A_stride[1]).to_float(0);
            states[round] = begins(of_block(c), n);
        });
        each_state<kStateRounds>([&](int round, int c, int n) {
            shared.rate[c][n] = rates[round] * kLog2E;
            shared.state[c][n] = states[round];
        });
        D = raw_d.to_float(p.D_is_float32);
        bias = raw_bias.to_float(p.delta_bias_is_float32);
    }

    // Waits until all threads that store states see those behind the tokens that have been walked.
    __device__ __forceinline__ static void wait_for_states() {
        if constexpr (Shape::kSweeps) {
            __syncthreads();
        } else {
            sync_warp();
        }
    }

    // Where this lane's channel has its states before the chunk from a token on, where kKeepsEvery is not 0.
    __device__ __forceinline__ float* kept_states(int token) const {
        const index_t* const stride = p.chunk_states_stride;
        return p.chunk_states + batch * stride[0] + token / Shape::kKeepsEvery * stride[1] + channel * stride[2];
    }

    // Copies the states of the block's channels to an array of them, in a walk or after it.
    template <typename State>
    __device__ __forceinline__ void store_states(State* at, index_t channel_step, index_t step) const {
        store_states<1>(shared.state, at, channel_step, step);
    }

    template <int kTimes, typename State>
    __device__ __forceinline__ void store_states(const States* states, State* at, index_t channel_step,
                                                 index_t step) const {
        // All 16 rounds at once would take registers from the walks of a lane that has a channel alone.
        each_state<Shape::kGroup == 1 ? 1 : kStateRounds, kTimes>([&](int, int c, int n) {
            if (number_of(c) < p.dim) {
                at[of_block(c) * channel_step + n * step] = Dtype<State>::from_float(states[c][n]);
            }
        });
    }

    // The same with a slot of a pool, where states may be codes; `states` are those of the block, or those taken. Where
    // kTimes is kCopies, that many parts of the threads that visit states together may each have a slot, or -1, and
    // states of its own.
    template <int kTimes, typename State>
    __device__ __forceinline__ void store_slot(const States* states, const StateSlots<State>& to, int slot,
                                               const StateTime& time) const {
        State* const at = to.states + slot * to.stride[0];
        if constexpr (!kIsQuantised<State>) {
            if (kTimes == 1 || slot >= 0) store_states<kTimes>(states, at, to.stride[1], to.stride[2]);
            return;
        }
        float own[kStateRounds], factors[kStateRounds];
#pragma unroll
        for (int round = 0; round < kStateRounds; ++round) own[round] = 0.0f;
        each_state<kStateRounds, kTimes>([&](int round, int c, int n) { own[round] = states[c][n]; });
        // All lanes find the factors, which those of a channel share.
        const float of_one = Shape::kIsWide ? find_factor<State, kWarpSize>(own) : 1.0f;
#pragma unroll
        for (int round = 0; round < kStateRounds; ++round) {
            const float state[1] = {own[round]};
            factors[round] = Shape::kIsWide ? of_one : find_factor<State, Shape::kStates>(state);
        }
        if (kTimes > 1 && slot < 0) return;
        each_state<kStateRounds, kTimes>([&](int round, int c, int n) {
            if (number_of(c) >= p.dim) return;
            const index_t channel = of_block(c);
            store_state(p, at + channel * to.stride[1] + n * to.stride[2], own[round], factors[round],
                        channel * p.d_state + n, time);
            if (n == 0) *to.scale(slot, channel) = scale_of_factor(factors[round]);
        });
    }

    // Where the first tile begins whose first token that counts is `begin`: with a vector.
    __device__ __forceinline__ int first_tile(int begin) const {
        return (begin + phase) / Shape::kAlign * Shape::kAlign - phase;
    }

 protected:
    // Visits states of the block's channels, neighbouring ones by neighbouring threads: calls body(round, the channel's
    // number in the block, the state's number). Lanes that share tokens visit those of their own warp's channels. Each
    // is visited kTimes, which is 1 or kCopies.
    static_assert(!Shape::kIsWide || kStateChannels == 1, "a warp has the states of one channel");
    static constexpr int kStateRounds = (kStateChannels * Shape::kMost + kStateThreads - 1) / kStateThreads;
    template <int kUnroll, int kTimes = 1, typename Body>
    __device__ __forceinline__ void each_state(Body body) const {
        const int thread = static_cast<int>(threadIdx.x), first = thread / kStateThreads * kStateChannels;
#pragma unroll kUnroll
        for (int round = 0; round < kStateRounds; ++round) {
            const int number = round * kStateThreads + thread % kStateThreads;
            const int c = number / Shape::kMost, n = number % Shape::kMost;
            if (c < kStateChannels * kTimes && n < p.d_state) body(round, first + (kStateChannels > 1 ? c : 0), n);
        }
    }

    // The number of a channel of the block, perhaps beyond the last; and then that of another one with its phase.
    __device__ __forceinline__ int number_of(int c) const {
        if constexpr (kHasPhases) c <<= p.phase_bits;
        return first_channel + c;
    }
    __device__ __forceinline__ index_t of_block(int c) const {
        const int number = number_of(c);
        return kHasPhases ? (number < p.dim ? number : first_channel) : min(number, p.dim - 1);
    }

    __device__ __forceinline__ int phase_of() const {
        if constexpr (kHasPhases) {
            const index_t row = batch * p.u_stride[0] + first_channel * p.u_stride[1];
            return static_cast<int>((reinterpret_cast<size_t>(p.u) / sizeof(T) + row) % kVec);
        }
        return 0;
    }

    // Where the copy of B or C for this phase has its first token.
    __device__ __forceinline__ index_t matrix_copy() const {
        if constexpr (kHasPhases) return (phase - p.first_phase) * p.matrix_phase_step + phase;
        return 0;
    }

    __device__ __forceinline__ int own_offset() const { return lane * kTokens + part * kOwn; }

    template <typename Pointee, typename Pointer>
    __device__ __forceinline__ Pointee* row(Pointer base, const index_t* stride) const {
        Pointee* const first = static_cast<Pointee*>(base) + batch * stride[0];
        // Opaque, or else the address is computed again for every tile.
        if (kByChannel) return as_global(opaque(first + first_channel + Rows::channel() + Rows::token() * stride[2]));
        return as_global(opaque(first + channel * stride[1] + own_offset()));
    }

    // Whether a tile is whole where channels are contiguous.
    __device__ __forceinline__ bool is_whole(int tile, int end) const {
        return tile + Shape::kTile <= end && first_channel + Shape::kChannels <= p.dim;
    }

    __device__ __forceinline__ bool has_row_channel() const { return first_channel + Rows::channel() < p.dim; }

    // Starts to copy the tokens of a tile before `end` to shared memory; the others become zero.
    template <bool kHasOutput>
    __device__ __forceinline__ void copy_rows(int stage, int tile, int end) const {
        if (Rows::kRounds > 1 && is_whole(tile, end)) {
            copy_rows<kHasOutput, true>(stage, tile, end);
        } else {
            copy_rows<kHasOutput, false>(stage, tile, end);
        }
    }
    template <bool kHasOutput, bool kIsWhole>
    __device__ __forceinline__ void copy_rows(int stage, int tile, int end) const {
        copy_row<kIsWhole>(stage, Rows::kU, u, p.u_stride[2], tile, end);
        copy_row<kIsWhole>(stage, Rows::kDelta, delta, p.delta_stride[2], tile, end);
        if (kHasOutput && p.z != nullptr) copy_row<kIsWhole>(stage, Rows::kZ, z, p.z_stride[2], tile, end);
    }
    template <bool kIsWhole>
    __device__ __forceinline__ void copy_row(int stage, int row, const T* from, index_t step, int tile, int end) const {
        shared.rows.template copy<kIsWhole>(stage, row, from, step, tile, end, has_row_channel());
    }

    // Stores the results of the tokens of a tile before `end`.
    __device__ __forceinline__ void store_rows(int stage, int tile, int end) const {
        if (Rows::kRounds > 1 && is_whole(tile, end)) {
            store_rows<true>(stage, tile, end);
        } else {
            store_rows<false>(stage, tile, end);
        }
    }
    template <bool kIsWhole>
    __device__ __forceinline__ void store_rows(int stage, int tile, int end) const {
        shared.rows.template store<kIsWhole>(stage, out, p.out_stride[2], tile, end, has_row_channel());
    }

    __device__ __forceinline__ const T* matrix(const void* base, const index_t* stride) const {
        const index_t group = divide(first_channel, p.group_dim).quotient;
        return static_cast<const T*>(base) + batch * stride[0] + group * stride[1];
    }

    template <bool kIsEdge>
    __device__ __forceinline__ static void load_own(Own& to, const T* at, int first, int behind) {
        if (kIsEdge && (first > 0 || behind < kOwn)) {
            to.load_edge(at, 1, first, behind);
        } else {
            to.load(at, 1);
        }
    }

    // Starts the copy of B and, for outputs, C of a tile to a stage of shared memory, for the states from `first` on:
    // zeros in place of tokens from `end` on.
    template <bool kHasOutput>
    __device__ __forceinline__ void fetch(int stage, int first, int tile, int end) const {
        if (tile + Shape::kTile > end) {
            B.copy_front(shared.B[stage], p.B_stride[2], p.d_state, first, tile, end);
            if (kHasOutput) C.copy_front(shared.C[stage], p.C_stride[2], p.d_state, first, tile, end);
        } else {
            B.copy(shared.B[stage], p.B_stride[2], p.d_state, first, tile);
            if (kHasOutput) C.copy(shared.C[stage], p.C_stride[2], p.d_state, first, tile);
        }
    }

    // Waits for the copies, and makes zeros of tokens in front of `begin`.
    template <bool kHasOutput>
    __device__ __forceinline__ void await(int stage, int first, int tile, int begin) {
        wait_for_copies();
        if (tile >= begin) return;
        B.clear_front(shared.B[stage], p.d_state, first, tile, begin);
        if (kHasOutput) C.clear_front(shared.C[stage], p.d_state, first, tile, begin);
    }
};
