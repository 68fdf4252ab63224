// Tiles of tokens that lanes share: how a block is divided, and what its threads have in shared memory.
#pragma once

#include "common/vec.cuh"

// kParts times kLanes lanes own a channel: each lane kTokens consecutive tokens of a tile, and one of kParts
// interleaved partitions of the states. Work that does not depend on the state is shared out among the partitions. With
// one lane and several partitions each lane walks all tokens (selective_scan/scan_sweeps.cuh).
// kByChannel: channels are contiguous in global memory, and states in B and C, not tokens. kTakes: states inside a tile
// can be taken, behind one token of a lane at most and behind kTaken in all. kIsWide: channels have more than kStates
// states, and a tile's B and C are in shared memory for kStates of them at a time.
template <int kThreads_, typename T, int kLanes_, int kParts_, int kAtOnce_, int kTokens_, bool kByChannel_,
          bool kTakes_, bool kIsWide_ = false>
struct TileShape {
    using input_t = T;
    static constexpr bool kByChannel = kByChannel_;
    static constexpr bool kTakes = kTakes_;
    static constexpr int kThreads = kThreads_;
    static constexpr int kLanes = kLanes_;
    static constexpr int kParts = kParts_;
    static constexpr int kAtOnce = kAtOnce_;  // states that a lane computes interleaved, to hide latency
    static constexpr int kGroup = kLanes * kParts;
    static constexpr bool kSweeps = kLanes == 1 && kParts > 1;
    // Rows of more tokens of a sweep's channels would not fit in shared memory.
    static constexpr int kTokens = kSweeps && kByChannel ? 16 / int{sizeof(T)} * kParts : kTokens_;
    // Tokens per sweep, of which a lane itself loads, prepares and finishes kOwn.
    static constexpr int kSweep = kParts == 2 && !(kByChannel && sizeof(T) == 4) ? 16 : 4 * kParts;
    static constexpr int kOwn = (kSweeps ? kSweep : kTokens) / kParts;
    static constexpr int kTile = kLanes * kTokens;
    static constexpr int kChannels = kThreads / kGroup;  // per block
    static constexpr int kStates = 16;
    static constexpr int kWideStates = 256;
    static constexpr bool kIsWide = kIsWide_;
    static constexpr int kMost = kIsWide ? kWideStates : kStates;  // states per channel
    static constexpr int kTaken = kTile > 64 && !kIsWide ? kTile / 64 : 1;
    static constexpr int kVec = 16 / static_cast<int>(sizeof(T));
    static constexpr int kAlign = kByChannel ? 1 : kVec;  // a tile begins with a multiple of this many tokens
    static constexpr int kVectors = kTokens / kVec;       // per lane of a tile
    // Stages of what is in shared memory for a tile: with two, the next tile's is copied while this tile's is used.
    static constexpr bool kHasRoom = kByChannel ? sizeof(T) == 2 && !kIsWide : kTile * sizeof(T) <= 512;
    static constexpr int kStages = kHasRoom && !kSweeps ? 2 : 1;

    // The number of this thread's part, and of its channel in the block. In sweeps the lowest bit and the highest ones
    // of a lane's number in the warp say its part: a vector per lane then takes half the accesses to shared memory, if
    // each lane reads the same as a neighbour.
    __device__ __forceinline__ static int part() {
        const unsigned thread = threadIdx.x;
        if (!kSweeps) return static_cast<int>(thread) / kLanes % kParts;
        return static_cast<int>(thread % 2 + thread % 32 / (64 / kParts) * 2);
    }
    __device__ __forceinline__ static int channel() {
        const unsigned thread = threadIdx.x;
        if (!kSweeps) return static_cast<int>(thread) / kGroup;
        return static_cast<int>(thread / 32 * (32 / kParts) + thread / 2 % (32 / kParts));
    }
};

// u, delta and z of a tile's tokens in the channels of a block, as they are in global memory: channels are contiguous.
// A gap behind the tokens that a lane reads at a time keeps them in different banks.
template <typename Shape>
struct TileRows {
    using T = typename Shape::input_t;
    static constexpr int kVec = Shape::kChannels < Shape::kVec ? Shape::kChannels : Shape::kVec;  // channels per access
    static constexpr int kU = 0;
    static constexpr int kDelta = 1;
    static constexpr int kZ = 2;                                                // and in its place the results
    static constexpr int kGap = Shape::kSweeps ? Shape::kOwn : Shape::kTokens;  // tokens between gaps
    static constexpr int kStages = Shape::kSweeps ? 2 : Shape::kStages;
    using Tile = T[Shape::kTile * Shape::kChannels + Shape::kTile / kGap * kVec];
    alignas(16) Tile elements[kStages][3];

    __device__ __forceinline__ static int index(int token, int channel) {
        return token * Shape::kChannels + token / kGap * kVec + channel;
    }
};

struct NoTileRows {};

// The states of the channels of a block, with a gap that keeps channels in different banks.
template <typename Shape>
using TileStates = float[Shape::kChannels][Shape::kMost + 1];

template <typename Shape>
using TakenStates = float[Shape::kTaken * Shape::kChannels][Shape::kMost + 1];

struct NoTileStates {};

// What sweeps have in shared memory besides: B and C of a tile and the next as floats, four tokens at a time
// in an order in which those that threads write at once are in different banks; and dt and dt * u of each warp's
// channels in a sweep.
template <typename Shape>
struct SweepShared {
    static constexpr int kHalves = Shape::kByChannel ? 1 : Shape::kVec / 4;
    static constexpr int kPitch = Shape::kTile + 4;
    static constexpr int kStepPitch = Shape::kSweep + 4;
    static constexpr int kWarpChannels = 32 / Shape::kParts;
    using Steps = float[kWarpChannels][kStepPitch];
    alignas(16) float matrices[2][2][Shape::kStates][kPitch];  // by stage, B and C
    alignas(16) Steps steps[Shape::kThreads / 32][2];          // by warp, dt and dt * u

    // The place in a row of the four tokens from token `t` on.
    __device__ __forceinline__ static constexpr int place(int t) {
        return t / 4 % kHalves * (Shape::kTile / kHalves) + t / (4 * kHalves) * 4;
    }
};

struct NoSweepShared {};

// The shared memory of a block: B and C of the tile's tokens, each state's in the order of its tokens but with vectors
// in an order in which those that neighbouring lanes read, and those that neighbouring threads write, are in different
// banks; the decay rates A / log(2), as states, the states of its channels and those taken; and, where channels are
// contiguous, u, delta and z.
template <typename Shape>
struct TileShared {
    using Matrix = typename Shape::input_t[Shape::kStates][Shape::kVectors][Shape::kLanes][Shape::kVec];
    alignas(16) Matrix B[Shape::kStages];
    alignas(16) Matrix C[Shape::kStages];
    TileStates<Shape> rate;
    TileStates<Shape> state;
    Select<Shape::kTakes, TakenStates<Shape>, NoTileStates> taken;
    Select<Shape::kByChannel, TileRows<Shape>, NoTileRows> rows;
    Select<Shape::kSweeps, SweepShared<Shape>, NoSweepShared> sweep;

    // The column of the i-th vector of a lane's tokens.
    __device__ __forceinline__ static unsigned column(unsigned i, unsigned lane) {
        return lane ^ i * (8 / Shape::kVectors) % Shape::kLanes;
    }
};

// Copies one matrix of a tile's tokens to shared memory, together with all other threads of the block.
template <typename Shape>
struct MatrixCopy {
    using T = typename Shape::input_t;
    using Matrix = typename TileShared<Shape>::Matrix;
    static constexpr int kVec = Shape::kVec;
    static constexpr unsigned kRowVectors = Shape::kTile / kVec;
    static constexpr unsigned kRows = Shape::kThreads / kRowVectors;  // copied at a time
    static constexpr unsigned kRounds = (Shape::kStates + kRows - 1) / kRows;
    static_assert(kRows * kRowVectors == Shape::kThreads, "all threads have as much to do");

    const T* at;  // the thread's vector of its first row, in the tile at token 0

    // Opaque, or else the address is computed again for every tile.
    __device__ __forceinline__ MatrixCopy(const T* matrix, index_t stride)
        : at(opaque(matrix + first_row() * stride + number() * kVec)) {}

    // All tokens of the tile, asynchronously, for kStates states from `first` on.
    __device__ __forceinline__ void copy(Matrix& to, index_t stride, unsigned d_state, int first, int tile) const {
        each_row(to, stride, d_state, first, tile, [](T* place, const T* from) { copy_async(place, from); });
    }

    // The same for those in front of `end`; the others become zero.
    __device__ __forceinline__ void copy_front(Matrix& to, index_t stride, unsigned d_state, int first, int tile,
                                               int end) const {
        const int bytes = min(max(end - token(tile), 0), kVec) * static_cast<int>(sizeof(T));
        each_row(to, stride, d_state, first, tile,
                 [=](T* place, const T* from) { copy_front_async(place, from, bytes); });
    }

    // Makes zeros of what this thread has copied of tokens in front of `begin`, which is less than a vector.
    __device__ __forceinline__ void clear_front(Matrix& to, unsigned d_state, int first, int tile, int begin) const {
        const int count = begin - token(tile);
        if (count <= 0) return;
        each_row(to, 0, d_state, first, tile, [=](T* place, const T*) {
            store(place, keep_part(load<kVec, Memory::kMutable>(place), count, kVec));
        });
    }

    // Where this thread's first vector of a matrix is as it was copied, and as floats.
    __device__ __forceinline__ static T* copied(Matrix& matrix) {
        const unsigned lane = number() / Shape::kVectors, i = number() % Shape::kVectors;
        return matrix[first_row()][i][TileShared<Shape>::column(i, lane)];
    }
    template <typename Rows>
    __device__ __forceinline__ static float* turned(Rows& rows) {
        return rows[first_row()] + SweepShared<Shape>::place(number() * kVec);
    }

    // Turns what this thread has copied into floats.
    __device__ __forceinline__ static void to_floats(const T* from, float* to) {
        using Sweep = SweepShared<Shape>;
#pragma unroll
        for (unsigned round = 0; round < kRounds; ++round) {
            const auto v = load<kVec, Memory::kMutable>(from + round * kRows * Shape::kTile);
#pragma unroll
            for (int j = 0; j < kVec; j += 4) {
                const float four[4] = {v.to_float(j), v.to_float(j + 1), v.to_float(j + 2), v.to_float(j + 3)};
                ::store(to + round * kRows * Sweep::kPitch + Sweep::place(j), Vec<float, 4>::from_floats(four));
            }
        }
    }

 private:
    __device__ __forceinline__ static unsigned first_row() { return threadIdx.x / kRowVectors; }
    // The number of the thread's vector in a row, and its first token.
    __device__ __forceinline__ static unsigned number() { return threadIdx.x % kRowVectors; }
    __device__ __forceinline__ static int token(int tile) { return tile + static_cast<int>(number()) * kVec; }

    template <typename Copy>
    __device__ __forceinline__ void each_row(Matrix& to, index_t stride, unsigned d_state, int first, int tile,
                                             Copy copy) const {
        const unsigned lane = number() / Shape::kVectors, i = number() % Shape::kVectors;
        const T* from = at + tile;
        if (Shape::kIsWide) {
            from += first * stride;
            d_state -= first;
        }
#pragma unroll
        for (unsigned round = 0; round < kRounds; ++round) {
            const unsigned n = first_row() + round * kRows;
            if (n < d_state) copy(to[n][i][TileShared<Shape>::column(i, lane)], from);
            // Opaque, or else every round's address takes a register through the whole walk.
            from = opaque(from + kRows * stride);
        }
    }
};

// Brings one matrix with contiguous states to shared memory, together with all other threads of the block: through
// registers, because there a state's tokens are contiguous.
template <typename Shape>
struct MatrixTurn {
    using T = typename Shape::input_t;
    static constexpr int kVec = Shape::kVec;                                // states per access
    static constexpr int kTokens = sizeof(T) < 4 ? 4 / int{sizeof(T)} : 1;  // stored at a time
    static constexpr int kColumns = Shape::kTile / kTokens;
    static constexpr int kVectors = Shape::kStates / kVec * kColumns;
    static constexpr int kRounds = (kVectors + Shape::kThreads - 1) / Shape::kThreads;

    const T* matrix;  // at token 0
    Vec<T, kVec> raw[kRounds][kTokens];

    __device__ __forceinline__ MatrixTurn(const T* matrix_, index_t) : matrix(matrix_) {}

    // The tokens `begin` to `end` - 1 of a tile, for kStates states from `first` on; the others become zero.
    __device__ __forceinline__ void load(index_t step, int d_state, int first, int tile, int begin, int end) {
#pragma unroll
        for (int round = 0; round < kRounds; ++round) {
#pragma unroll
            for (int t = 0; t < kTokens; ++t) {
                const int token = tile + token_of(round) + t, n = (Shape::kIsWide ? first : 0) + state_of(round);
                raw[round][t] = Vec<T, kVec>::zero();
                if (n < d_state && token >= begin && token < end) {
                    raw[round][t] = ::load<kVec>(matrix + token * step + n);
                }
            }
        }
    }

    __device__ __forceinline__ void store(typename TileShared<Shape>::Matrix& to, int d_state) const {
#pragma unroll
        for (int round = 0; round < kRounds; ++round) {
            const unsigned token = token_of(round), n = state_of(round);
            const unsigned lane = token / Shape::kTokens, i = token % Shape::kTokens / Shape::kVec;
            if (n >= d_state) continue;
#pragma unroll
            for (int s = 0; s < kVec; ++s) {
                Vec<T, kTokens> tokens = Vec<T, kTokens>::zero();
#pragma unroll
                for (int t = 0; t < kTokens; ++t) tokens.put(t, raw[round][t].element(s));
                ::store(&to[n + s][i][TileShared<Shape>::column(i, lane)][token % Shape::kVec], tokens);
            }
        }
    }

 private:
    // Neighbouring threads have neighbouring tokens, which they store in different banks.
    __device__ __forceinline__ static int vector(int round) {
        return static_cast<int>(threadIdx.x) + round * Shape::kThreads;
    }
    __device__ __forceinline__ static int token_of(int round) { return vector(round) % kColumns * kTokens; }
    // The first state of the thread's vector, beyond the last where there is no such vector.
    __device__ __forceinline__ static int state_of(int round) { return vector(round) / kColumns * kVec; }
};

// Copies one matrix with contiguous states to shared memory, every thread its vectors of states in places of its own,
// and turns them into rows of floats.
template <typename Shape>
struct MatrixRows {
    using T = typename Shape::input_t;
    using Matrix = typename TileShared<Shape>::Matrix;
    static constexpr int kVec = Shape::kVec;  // states per access
    static constexpr int kPitch = SweepShared<Shape>::kPitch;
    static constexpr int kVectors = Shape::kStates / kVec * Shape::kTile;
    static constexpr int kRounds = (kVectors + Shape::kThreads - 1) / Shape::kThreads;

    const T* matrix;  // at token 0

    __device__ __forceinline__ MatrixRows(const T* matrix_, index_t) : matrix(matrix_) {}

    // The tokens `begin` to `end` - 1 of a tile, asynchronously; the others become zero.
    __device__ __forceinline__ void copy(Matrix& to, index_t step, int tile, int begin, int end) const {
#pragma unroll
        for (int round = 0; round < kRounds; ++round) {
            if (vector(round) >= kVectors) continue;
            const int token = tile + token_of(round);
            T* const place = &to[0][0][0][0] + vector(round) * kVec;
            if (token >= begin && token < end) {
                copy_async(place, matrix + token * step + state_of(round));
            } else {
                ::store(place, Vec<T, kVec>::zero());
            }
        }
    }

    // Where this thread's first vector of a matrix is as it was copied, and as floats.
    __device__ __forceinline__ static T* copied(Matrix& matrix) { return &matrix[0][0][0][0] + vector(0) * kVec; }
    template <typename Rows>
    __device__ __forceinline__ static float* turned(Rows& rows) {
        return &rows[0][0] + state_of(0) * kPitch + token_of(0);
    }

    // Turns what this thread has copied into floats.
    __device__ __forceinline__ static void to_floats(const T* from, float* to) {
        constexpr int kStep = Shape::kThreads / Shape::kTile * kVec * kPitch;
        static_assert(Shape::kThreads % Shape::kTile == 0);
#pragma unroll
        for (int round = 0; round < kRounds; ++round) {
            if (vector(round) >= kVectors) continue;
            const auto v = ::load<kVec, Memory::kMutable>(from + round * Shape::kThreads * kVec);
#pragma unroll
            for (int s = 0; s < kVec; ++s) to[round * kStep + s * kPitch] = v.to_float(s);
        }
    }

 private:
    __device__ __forceinline__ static int vector(int round) {
        return static_cast<int>(threadIdx.x) + round * Shape::kThreads;
    }
    __device__ __forceinline__ static int token_of(int round) { return vector(round) % Shape::kTile; }
    __device__ __forceinline__ static int state_of(int round) { return vector(round) / Shape::kTile * kVec; }
};
