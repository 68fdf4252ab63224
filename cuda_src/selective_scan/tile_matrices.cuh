// How B and C of a tile come to shared memory.
#pragma once

#include "selective_scan/tiles.cuh"

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

    // The tokens `begin` to `end` - 1 of a tile; the others become zero.
    __device__ __forceinline__ void load(index_t step, int d_state, int tile, int begin, int end) {
#pragma unroll
        for (int round = 0; round < kRounds; ++round) {
#pragma unroll
            for (int t = 0; t < kTokens; ++t) {
                const int token = tile + token_of(round) + t, n = state_of(round);
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

// Copies one matrix with contiguous states to shared memory, together with all other threads of the block. The states
// of a token stay contiguous, but vectors of them are in an order in which those that neighbouring lanes read are in
// different banks.
template <typename Shape>
struct MatrixByState {
    using T = typename Shape::input_t;
    using Matrix = typename TileShared<Shape>::Matrix;
    static constexpr int kVec = Shape::kVec;  // states per access
    static constexpr int kRowVectors = Shape::kStates / kVec;
    static constexpr int kRoundTokens = Shape::kThreads / kRowVectors;
    static constexpr int kRounds = Shape::kTile / kRoundTokens;
    static constexpr unsigned kRoundLanes = kRoundTokens / Shape::kTokens;
    static_assert(kRounds * kRoundTokens == Shape::kTile, "all threads have as much to do");
    static_assert(kRoundLanes * Shape::kTokens == kRoundTokens && kRoundLanes <= 8, "a round has all tokens of lanes");
    static constexpr int kLine = 128 / static_cast<int>(sizeof(T));  // elements in all banks
    static_assert(Shape::kTokens * Shape::kStates % kLine == 0, "lanes begin in the same bank");
    // More than 8 lanes have no vectors in different banks. Where they read half of one at most, the halves of the
    // others' vectors change places.
    static constexpr bool kHasHalves = Shape::kLanes > 8 && Shape::kAtOnce < kVec;
    static constexpr int kHalf = kVec / 2;

    const T* from;  // this thread's first vector, in the tile at token 0

    __device__ __forceinline__ MatrixByState(const T* matrix, index_t step)
        : from(opaque(matrix + token() * step + state())) {}

    // Starts to copy the tokens `begin` to `end` - 1 of a tile, for kStates states from `first` on; the others become
    // zero.
    __device__ __forceinline__ void copy(Matrix& to, index_t step, int d_state, int first, int tile, int begin,
                                         int end) const {
        if (!Shape::kIsWide) first = 0;
        if (first + static_cast<int>(state()) >= d_state) return;
        if (tile >= begin && tile + Shape::kTile <= end) {
            copy_some<true>(to, step, first, tile, begin, end);
        } else {
            copy_some<false>(to, step, first, tile, begin, end);
        }
    }

    // The states from `n` on that a lane computes at a time, of its t-th token.
    __device__ __forceinline__ static Vec<T, Shape::kAtOnce> take(const Matrix& matrix, int n, int t, int lane) {
        const int order = n ^ lane % 8 * kVec ^ (kHasHalves ? lane / 8 * kHalf : 0), behind = t * Shape::kStates;
        return load<Shape::kAtOnce, Memory::kMutable>(matrix + lane * (Shape::kTokens * Shape::kStates) +
                                                      behind / kLine * kLine + (behind % kLine ^ order));
    }

 private:
    template <bool kIsWhole>
    __device__ __forceinline__ void copy_some(Matrix& to, index_t step, int first, int tile, int begin, int end) const {
        const T* at = from + tile * step + first;
        const unsigned lane = token() / Shape::kTokens, own = token() * Shape::kStates + state() ^ lane * kVec;
        const int own_token = tile + static_cast<int>(token());
#pragma unroll
        for (int round = 0; round < kRounds; ++round) {
            T* const place = to + round * kRoundTokens * Shape::kStates + (own ^ round * kRoundLanes % 8 * kVec);
            const int number = own_token + round * kRoundTokens;
            if (!kIsWhole && (number < begin || number >= end)) {
                store(place, Vec<T, kVec>::zero());
            } else if (kHasHalves && round * kRoundLanes >= 8) {
                copy_async<kHalf* int{sizeof(T)}>(place + kHalf, at);
                copy_async<kHalf* int{sizeof(T)}>(place, at + kHalf);
            } else {
                copy_async(place, at);
            }
            at += kRoundTokens * step;
        }
    }

    // The token in a tile, and the first state, of this thread's first vector.
    __device__ __forceinline__ static unsigned token() { return threadIdx.x / kRowVectors; }
    __device__ __forceinline__ static unsigned state() { return threadIdx.x % kRowVectors * kVec; }
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
