// The gradients of a selective scan as selective_scan_bwd computes them, of rows of up to 256 tokens and up to 16
// states, with variable B and C.
//
// Layout: arrays of any strides. A block has room for 256 tokens, so for rows of kRows neighbouring channels of one
// batch entry side by side, and walks channels of a group, kRows at a time. A warp owns up to four of the states,
// kLanes lanes a row, and a lane 8 consecutive tokens, whose dB and dC stay in its registers from channel to channel.
// At the end the sums of lanes that have the same tokens of different rows are added up. A row is one chunk: blocks do
// not wait for each other, and recurrences begin and end with the states and gradients that the caller gives.
//
// Several warps share the work on tokens, kOwn consecutive ones a thread: it prepares them, each warp takes its states
// through all of them, and the thread finishes them with the sums of all warps. One warp alone does all of it for the
// tokens of its lanes. Where tokens are apart, threads access neighbouring channels of a token, and turn them to rows
// in shared memory.
//
// input_t  u, delta, z, dout, B and C, and their gradients    kVec    tokens an access, 0 where they may be apart
// kStates  d_state or more, up to four a warp    kLanes  lanes a row, with 8 tokens each
#include "common/tokens.cuh"
#include "selective_scan/scan_bwd_tokens.cuh"

struct SelectiveScanBwdShortParams {
    SelectiveScanBwdOperands operands;
};

template <typename T, int kAllStates_, int kLanes_>
struct ShortShape : ChunkShape<T> {
    static constexpr int kAllStates = kAllStates_;
    static constexpr int kStates = kAllStates < 4 ? kAllStates : 4;  // of a warp
    static constexpr int kWarps = kAllStates / kStates;
    static constexpr int kThreads = kWarps * kWarpSize;
    static constexpr int kOwn = kChunk / kThreads;
    static constexpr int kLanes = kLanes_;
    static constexpr int kRows = kWarpSize / kLanes;
    static constexpr int kRowTokens = kChunk / kRows;
    static constexpr int kMatrixHalf = kRowTokens / 2;
    // Threads of a warp that share a row's tokens, and warps that do.
    static constexpr int kRowThreads = kRowTokens / kOwn < kWarpSize ? kRowTokens / kOwn : kWarpSize;
    static constexpr int kRowWarps = kRowTokens / kOwn / kRowThreads;
    static_assert(kStates <= kLanes, "there is a thread for each state of each row");

    // Where a token is in a row of a matrix.
    __device__ __forceinline__ static int matrix_place(int token) {
        return sizeof(T) == 4
                   ? token % ChunkShape<T>::kTokens / 4 * kMatrixHalf + token / ChunkShape<T>::kTokens * 4 + token % 4
                   : token;
    }

    __device__ __forceinline__ static int row_lane(int lane) { return lane % kLanes; }
};

template <typename input_t, int kVec, int kStates, int kLanes>
struct SelectiveScanBwdShortTraits {
    using Shape = ShortShape<input_t, kStates, kLanes>;
    static constexpr int kThreads = Shape::kThreads;
    // Blocks per multiprocessor, by states.
    static constexpr int kBlocksOf2 = 8;
    static constexpr int kBlocksOf4 = 8;
    static constexpr int kBlocksOf8 = 4;
    static constexpr int kBlocksOf16 = 2;
    static constexpr int kMinBlocks = kStates == 2   ? kBlocksOf2
                                      : kStates == 4 ? kBlocksOf4
                                      : kStates == 8 ? kBlocksOf8
                                                     : kBlocksOf16;
    // Whether products of C are computed again where sums are left, or a thread would spill.
    static constexpr bool kIsTight = kStates == 4 || (kStates > 4 && sizeof(input_t) == 4);
};

// What the rows of a step need beside tokens.
template <typename Shape>
struct RowNumbers {
    using States = float[Shape::kAllStates];
    alignas(16) States A[Shape::kRows];
    States starts[Shape::kRows];  // the states before the rows
    States ends[Shape::kRows];    // the gradients of the states behind them
    float D[Shape::kRows];
    float bias[Shape::kRows];
};

// A thread's part of them, as it is in memory.
template <typename Shape>
struct OwnNumbers {
    float A, start, end;
    RawNumber<typename Shape::input_t> of_channel;  // D or delta_bias

    // Those of channels from `first` to `last` - 1.
    __device__ __forceinline__ void load(const SelectiveScanBwdOperands& p, int batch, int first, int last,
                                         int thread) {
        const int channel = first + thread / Shape::kAllStates, n = thread % Shape::kAllStates;
        A = start = end = 0.0f;
        if (thread < Shape::kRows * Shape::kAllStates && channel < last && n < p.d_state) {
            A = static_cast<const float*>(p.A)[channel * p.A_stride[0] + n * p.A_stride[1]];
            if (p.initial_state != nullptr) start = p.initial_state[place(p.initial_state_stride, batch, channel, n)];
            if (p.dlast_state != nullptr) end = p.dlast_state[place(p.dlast_state_stride, batch, channel, n)];
        }
        of_channel.word = 0;
        if (thread < 2 * Shape::kRows && first + thread / 2 < last) {
            const index_t number = first + thread / 2;
            if (thread % 2 == 0) {
                if (p.D != nullptr) of_channel.load(p.D, number * p.D_stride, p.D_is_float32);
            } else if (p.delta_bias != nullptr) {
                of_channel.load(p.delta_bias, number * p.delta_bias_stride, p.delta_bias_is_float32);
            }
        }
    }

    __device__ __forceinline__ void put(const SelectiveScanBwdOperands& p, RowNumbers<Shape>& to, int thread) const {
        if (thread < Shape::kRows * Shape::kAllStates) {
            const int row = thread / Shape::kAllStates, n = thread % Shape::kAllStates;
            to.A[row][n] = A;
            to.starts[row][n] = start;
            to.ends[row][n] = end;
        }
        if (thread < 2 * Shape::kRows) {
            if (thread % 2 == 0) {
                to.D[thread / 2] = of_channel.to_float(p.D_is_float32);
            } else {
                to.bias[thread / 2] = of_channel.to_float(p.delta_bias_is_float32);
            }
        }
    }

    __device__ __forceinline__ static index_t place(const index_t* stride, int batch, int channel, int n) {
        return batch * stride[0] + channel * stride[1] + n * stride[2];
    }
};

// Decay rates of a lane's row, of the states of its warp.
template <int kStates>
struct RowRates {
    Vec<float, kStates> rates;
    __device__ __forceinline__ static float A(const RowRates& own, int k) { return own.rates.to_float(k); }
};

// A thread's tokens of its row, as they are in memory.
template <typename Shape, int kVec>
struct ShortTokens {
    // Single ones are packed, too.
    using Some = Tokens<typename Shape::input_t, Shape::kOwn, (kVec > 1 ? kVec : 2)>;
    Some u;
    Some delta;
    Some dout;
    Some z;
};

template <typename Shape, bool kIsTurned>
struct ShortShared {
    using T = typename Shape::input_t;
    using Scan = WarpScan<Shape::kStates, Shape::kLanes>;
    static constexpr bool kHasSums = Shape::kWarps > 1;
    alignas(16) T B[Shape::kAllStates][Shape::kRowTokens];
    alignas(16) T C[Shape::kAllStates][Shape::kRowTokens];
    RowNumbers<Shape> numbers[2];  // of a step and the next one
    alignas(16) float dt[kHasSums ? Shape::kRow : 4];
    alignas(16) float dt_u[kHasSums ? Shape::kRow : 4];
    alignas(16) float gy[kHasSums ? Shape::kRow : 4];
    // What lanes hand to each other while states are scanned, and then sums over each warp's states.
    union Warp {
        Scan scan;
        float sums[3][kHasSums ? Shape::kSumsRow : 4];
    };
    alignas(16) Warp warps[Shape::kWarps];
    // Rows of a step; those that a warp accesses a few tokens of are in different banks.
    using Turned = T[kIsTurned ? Shape::kRows : 1][kIsTurned ? Shape::kRowTokens + Shape::kLanes : 2];
    alignas(16) Turned landed[4];  // u, delta, dout and z
    alignas(16) Turned left[3];    // du, ddelta and dz
    ChunkRows<const T> u, delta, dout, z;
    ChunkRows<T> du, ddelta, dz;
};

// How the threads of a block access the rows of a step.
template <typename Shape, int kVec>
struct ShortAccess {
    using T = typename Shape::input_t;
    using Shared = ShortShared<Shape, kVec == 0>;
    using Own = ShortTokens<Shape, kVec>;
    using Some = typename Own::Some;
    static constexpr int kOwn = Shape::kOwn;
    const SelectiveScanBwdOperands& p;
    Shared& shared;
    int live;
    int channels;
    int thread;

    __device__ __forceinline__ int row() const { return thread * kOwn / Shape::kRowTokens; }
    __device__ __forceinline__ int token() const { return thread * kOwn % Shape::kRowTokens; }

    // The thread's tokens that there are, of the step that begins with the block's i-th channel.
    __device__ __forceinline__ int count(int i) const { return i + row() < channels ? live - token() : 0; }

    __device__ __forceinline__ void load(Own& own, int i) const {
        load(own.u, shared.u, p.u_stride[2], i);
        load(own.delta, shared.delta, p.delta_stride[2], i);
        load(own.dout, shared.dout, p.dout_stride[2], i);
        own.z.clear();
        if (p.z != nullptr) load(own.z, shared.z, p.z_stride[2], i);
    }

    // Turns what has been loaded: a thread's part of the rows to its tokens of one of them, for take().
    __device__ __forceinline__ void land(const Own& own) const {
        land(own.u, 0);
        land(own.delta, 1);
        land(own.dout, 2);
        land(own.z, 3);
    }

    __device__ __forceinline__ void take(Own& own) const {
        take(own.u, 0);
        take(own.delta, 1);
        take(own.dout, 2);
        take(own.z, 3);
    }

    // Stores gradients of the thread's tokens, or leaves them for flush().
    __device__ __forceinline__ void store(const float (&du)[kOwn], const float (&ddelta)[kOwn], const float (&dz)[kOwn],
                                          int i) const {
        if constexpr (kVec == 0) {
            leave(du, 0);
            leave(ddelta, 1);
            leave(dz, 2);
        } else {
            store(shared.du, du, i);
            store(shared.ddelta, ddelta, i);
            if (p.dz != nullptr) store(shared.dz, dz, i);
        }
    }

    __device__ __forceinline__ void flush(int i) const {
        flush(shared.du, p.du_stride[2], 0, i);
        flush(shared.ddelta, p.ddelta_stride[2], 1, i);
        if (p.dz != nullptr) flush(shared.dz, p.dz_stride[2], 2, i);
    }

 private:
    __device__ __forceinline__ void load(Some& some, const ChunkRows<const T>& rows, index_t step, int i) const {
        some.clear();
        if constexpr (kVec == 0) {
#pragma unroll
            for (int j = 0; j < kOwn; ++j) {
                const int own_row = turned_row(j), at = turned_token(j);
                if (at < live && i + own_row < channels) put(some, j, *rows.place(i + own_row, at, step));
            }
        } else {
            const T* const from = rows.place(i + row(), token(), 1);
            const int own = count(i);
#pragma unroll
            for (int j = 0; j < kOwn; j += kVec) {
                // Rows are of whole vectors.
                if (j >= own) continue;
                if constexpr (kVec == 1) put(some, j, from[j]);
                if constexpr (kVec > 1) some.parts[j / kVec] = ::load<kVec>(from + j);
            }
        }
    }

    __device__ __forceinline__ void store(const ChunkRows<T>& rows, const float (&values)[kOwn], int i) const {
        T* const to = rows.place(i + row(), token(), 1);
        const int own = count(i);
#pragma unroll
        for (int j = 0; j < kOwn; j += kVec) {
            float some[kVec];
#pragma unroll
            for (int k = 0; k < kVec; ++k) some[k] = values[j + k];
            if (j < own) ::store(to + j, Vec<T, kVec>::from_floats(some));
        }
    }

    __device__ __forceinline__ static void put(Some& some, int j, T value) {
        some.parts[j / Some::kAccess].put(j % Some::kAccess, value);
    }

    __device__ __forceinline__ int turned_row(int j) const { return (thread + j * Shape::kThreads) % Shape::kRows; }
    __device__ __forceinline__ int turned_token(int j) const { return (thread + j * Shape::kThreads) / Shape::kRows; }

    __device__ __forceinline__ void land(const Some& some, int array) const {
#pragma unroll
        for (int j = 0; j < kOwn; ++j) {
            shared.landed[array][turned_row(j)][turned_token(j)] =
                some.parts[j / Some::kAccess].element(j % Some::kAccess);
        }
    }

    __device__ __forceinline__ void take(Some& some, int array) const {
#pragma unroll
        for (int j = 0; j < kOwn; j += Some::kAccess) {
            some.parts[j / Some::kAccess] =
                ::load<Some::kAccess, Memory::kMutable>(shared.landed[array][row()] + token() + j);
        }
    }

    __device__ __forceinline__ void leave(const float (&values)[kOwn], int array) const {
#pragma unroll
        for (int j = 0; j < kOwn; j += 2) {
            const float two[2] = {values[j], values[j + 1]};
            ::store(shared.left[array][row()] + token() + j, Vec<T, 2>::from_floats(two));
        }
    }

    __device__ __forceinline__ void flush(const ChunkRows<T>& rows, index_t step, int array, int i) const {
#pragma unroll
        for (int j = 0; j < kOwn; ++j) {
            const int own_row = turned_row(j), at = turned_token(j);
            if (at < live && i + own_row < channels) {
                *rows.place(i + own_row, at, step) = shared.left[array][own_row][at];
            }
        }
    }
};

// Brings the tokens of a matrix to shared memory; where there is no such token or state, zeros.
template <typename Shape>
__device__ __forceinline__ void take_short(typename Shape::input_t (&to)[Shape::kAllStates][Shape::kRowTokens],
                                           const void* base, const index_t* stride, const SelectiveScanBwdOperands& p,
                                           const ChunkShare<>& share, int live, int thread) {
    using T = typename Shape::input_t;
    constexpr int kVec = 16 / static_cast<int>(sizeof(T));
    constexpr int kCount = Shape::kAllStates * Shape::kRowTokens / Shape::kThreads;
    const T* const from = static_cast<const T*>(base) + share.batch * stride[0] + share.group * stride[1];
    if (stride[3] == 1 && stride[2] % kVec == 0 && reinterpret_cast<size_t>(from) % 16 == 0) {
        for (int i = thread * kVec; i < Shape::kAllStates * Shape::kRowTokens; i += Shape::kThreads * kVec) {
            const int n = i / Shape::kRowTokens, token = i % Shape::kRowTokens;
            const int count = n < p.d_state ? max(0, min(live - token, kVec)) : 0;
            copy_front_async(to[n] + Shape::matrix_place(token), count > 0 ? from + n * stride[2] + token : from,
                             count * static_cast<int>(sizeof(T)));
        }
        return;
    }
    constexpr int kAtOnce = kCount < 16 ? kCount : 16;
    // Neighbouring threads access neighbouring states or tokens, whichever are closer to each other.
    const bool is_by_state = stride[2] < stride[3];
    for (int begin = 0; begin < kCount; begin += kAtOnce) {
        T values[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            const int at = (begin + i) * Shape::kThreads + thread;
            const int n = is_by_state ? at % Shape::kAllStates : at / Shape::kRowTokens;
            const int token = is_by_state ? at / Shape::kAllStates : at % Shape::kRowTokens;
            values[i] = Dtype<T>::from_float(0.0f);
            if (token < live && n < p.d_state) values[i] = from[n * stride[2] + token * stride[3]];
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            const int at = (begin + i) * Shape::kThreads + thread;
            const int n = is_by_state ? at % Shape::kAllStates : at / Shape::kRowTokens;
            const int token = is_by_state ? at / Shape::kAllStates : at % Shape::kRowTokens;
            to[n][Shape::matrix_place(token)] = values[i];
        }
    }
}

// Adds up the sums of lanes that have the same tokens, and stores them: of dB, or of dC.
template <typename Shape>
__device__ __forceinline__ void store_row_sums(const float (&sums)[Shape::kStates][Shape::kTokens], float* matrix,
                                               int d_state, int lane, int warp) {
    constexpr int kTokens = Shape::kTokens, kAll = Shape::kStates * kTokens;
    float values[kAll];
#pragma unroll
    for (int i = 0; i < kAll; ++i) values[i] = sums[i / kTokens][i % kTokens];
    sum_parts_over_lanes<Shape::kRows, Shape::kLanes>(values);
    // A lane is left with some tokens of one state, or with all of its tokens of several.
    constexpr int kLeft = kAll / Shape::kRows, kSome = kLeft < kTokens ? kLeft : kTokens;
#pragma unroll
    for (int i = 0; i < kLeft; i += kSome) {
        const int at = lane / Shape::kLanes * kLeft + i, n = warp * Shape::kStates + at / kTokens;
        float some[kSome];
#pragma unroll
        for (int j = 0; j < kSome; ++j) some[j] = values[i + j];
        if (n < d_state) {
            store_packed<kSome>(matrix + n * kChunk + Shape::row_lane(lane) * kTokens + at % kTokens, some);
        }
    }
}

template <typename input_t, int kVec, int kStates, int kLanes,
          typename Traits = SelectiveScanBwdShortTraits<input_t, kVec, kStates, kLanes>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    selective_scan_bwd_short_kernel(const SelectiveScanBwdShortParams params) {
    using Shape = typename Traits::Shape;
    using Access = ShortAccess<Shape, kVec>;
    constexpr int kOfWarp = Shape::kStates, kWarps = Shape::kWarps;
    using Scan = WarpScan<kOfWarp, kLanes>;
    using Rates = RowRates<kOfWarp>;
    constexpr int kOwn = Shape::kOwn, kRows = Shape::kRows, kTokens = Shape::kTokens;
    using Own = Vec<float, kOwn>;
    constexpr int kParts = ChunkShape<input_t>::kWarps;  // that a channel's dD and ddelta_bias have in other kernels
    const SelectiveScanBwdOperands& p = params.operands;
    __shared__ typename Access::Shared shared;
    const ChunkShare<> share(p, blockIdx.x, true);
    const ChunkTokens tokens(p, share.batch, 0, false);
    const int thread = opaque(static_cast<int>(threadIdx.x)), lane = thread % kWarpSize, warp = thread / kWarpSize;
    const Access access = {p, shared, tokens.live, share.channels, thread};
    const int last = share.first_channel + share.channels;
    if (threadIdx.x == 0) begin_rows(p, shared, share, tokens);
    OwnNumbers<Shape> own_numbers;
    own_numbers.load(p, share.batch, share.first_channel, last, thread);
    take_short<Shape>(shared.B, p.B, p.B_stride, p, share, tokens.live, thread);
    take_short<Shape>(shared.C, p.C, p.C_stride, p, share, tokens.live, thread);
    __syncthreads();
    typename Access::Own own;
    access.load(own, 0);
    own_numbers.put(p, shared.numbers[0], thread);
    if constexpr (kVec == 0) access.land(own);
    wait_for_copies();
    __syncthreads();
    ChannelSums<Shape, false, false> channel_sums;
    channel_sums.begin(p, share, lane, warp);
    float u[kOwn], slope[kOwn], dresult[kOwn];
    LaneTokens<Shape> lanes = {lane};
    // Prepares the thread's tokens of a step, whose numbers are there.
    const auto prepare = [&](const RowNumbers<Shape>& numbers, int i) {
        if constexpr (kVec == 0) access.take(own);
        const float bias = numbers.bias[access.row()];
        const int count = access.count(i);
        float dt[kOwn], dt_u[kOwn], gy[kOwn];
#pragma unroll
        for (int j = 0; j < kOwn; ++j) {
            const TokenTerms terms(p, own.u.to_float(j), own.delta.to_float(j) + bias, own.z.to_float(j),
                                   own.dout.to_float(j), j < count);
            dt[j] = terms.dt;
            dt_u[j] = terms.dt_u;
            gy[j] = terms.gy;
            u[j] = own.u.to_float(j);
            slope[j] = terms.slope;
            dresult[j] = terms.dresult;
        }
        if constexpr (kWarps > 1) {
            const int place = Shape::place(thread * kOwn, Shape::kGap);
            store(shared.dt + place, Own::from_floats(dt));
            store(shared.dt_u + place, Own::from_floats(dt_u));
            store(shared.gy + place, Own::from_floats(gy));
        } else {
            lanes.steps = 0.0f;
#pragma unroll
            for (int t = 0; t < kTokens; ++t) {
                lanes.dt[t] = dt[t];
                lanes.dt_u[t] = dt_u[t];
                lanes.gy[t] = gy[t];
                lanes.steps += dt[t];
                lanes.e_B[t] = lanes.e_Aah[t] = lanes.y[t] = 0.0f;
            }
            lanes.cuts = 0;
        }
    };
    prepare(shared.numbers[0], 0);
    const index_t first_row = share.number(p) * p.dim + share.first_channel;
    int parity = 0;
    for (int i = 0; i < share.channels; i += kRows, parity ^= 1) {
        const RowNumbers<Shape>& numbers = shared.numbers[parity];
        __syncthreads();
        if constexpr (kVec == 0) {
            if (i > 0) access.flush(i - kRows);
        }
        const bool has_next = i + kRows < share.channels;
        if (has_next) {
            access.load(own, i + kRows);
            own_numbers.load(p, share.batch, share.first_channel + i + kRows, last, thread);
        }
        if constexpr (kWarps > 1) lanes.template take<false>(shared, shared);
        const int row = lane / kLanes;
        const Rates rates = {load<kOfWarp, Memory::kMutable>(numbers.A[row] + warp * kOfWarp)};
        Scan& scan = shared.warps[warp].scan;
        StatesPass<Shape, Rates, false, false, true, Traits::kIsTight, false> pass;
        pass.begin(lanes, shared, rates, warp * kOfWarp, scan);
        typename Scan::Links links;
        scan.take(lane, links);
        scan.join(lane, links);
        // A lane's recurrences go through a state of one or more rows, forward or back.
        const int scanned = lane / Scan::kShares, n = warp * kOfWarp + scanned % kOfWarp;
        const bool is_back = scanned >= kOfWarp;
        const auto scanned_row = [&](int chain) {
            const int number = lane % Scan::kShares * Scan::kLinks / kLanes + chain;
            return is_back ? kRows - 1 - number : number;
        };
        float before[Scan::kChains], behind[Scan::kChains];
#pragma unroll
        for (int c = 0; c < Scan::kChains; ++c)
            before[c] = (is_back ? numbers.ends : numbers.starts)[scanned_row(c)][n];
        scan.run(lane, links, before, behind);
        if (p.dinitial_state != nullptr && is_back && lane % Scan::kLanes == Scan::kLanes - 1 && n < p.d_state) {
#pragma unroll
            for (int c = 0; c < Scan::kChains; ++c) {
                const int channel = share.first_channel + i + scanned_row(c);
                if (channel >= last) continue;
                p.dinitial_state[own_numbers.place(p.dinitial_state_stride, share.batch, channel, n)] = behind[c];
            }
        }
        float dA[kOfWarp];
        pass.finish(lanes, shared, rates, warp * kOfWarp, scan, channel_sums, dA);
        sum_parts_over_lanes<kLanes>(dA);
        const int of_lane = warp * kOfWarp + Shape::row_lane(lane);
        if (Shape::row_lane(lane) < kOfWarp && of_lane < p.d_state && i + row < share.channels) {
            p.scratch[p.rates_at + (first_row + i + row) * p.d_state + of_lane] = dA[0];
        }
        float e_B[kOwn], e_Aah[kOwn], y[kOwn], dt[kOwn], gy[kOwn];
        const float D = numbers.D[access.row()];
        if constexpr (kWarps > 1) {
            sync_warp();
            lanes.put_sums(shared.warps[warp].sums);
        }
        if (has_next) {
            if constexpr (kVec == 0) access.land(own);
            own_numbers.put(p, shared.numbers[parity ^ 1], thread);
        }
        __syncthreads();
        if constexpr (kWarps > 1) {
            const Own own_dt = load<kOwn, Memory::kMutable>(shared.dt + Shape::place(thread * kOwn, Shape::kGap));
            const Own own_gy = load<kOwn, Memory::kMutable>(shared.gy + Shape::place(thread * kOwn, Shape::kGap));
            Own parts[3][kWarps];
#pragma unroll
            for (int w = 0; w < kWarps; ++w) {
#pragma unroll
                for (int k = 0; k < 3; ++k) {
                    parts[k][w] = load<kOwn, Memory::kMutable>(shared.warps[w].sums[k] +
                                                               Shape::place(thread * kOwn, Shape::kSumsGap));
                }
            }
#pragma unroll
            for (int j = 0; j < kOwn; ++j) {
                dt[j] = own_dt.to_float(j);
                gy[j] = own_gy.to_float(j);
                e_B[j] = parts[0][0].to_float(j);
                e_Aah[j] = parts[1][0].to_float(j);
                y[j] = parts[2][0].to_float(j);
#pragma unroll
                for (int w = 1; w < kWarps; ++w) {
                    e_B[j] += parts[0][w].to_float(j);
                    e_Aah[j] += parts[1][w].to_float(j);
                    y[j] += parts[2][w].to_float(j);
                }
            }
        } else {
#pragma unroll
            for (int t = 0; t < kTokens; ++t) {
                e_B[t] = lanes.e_B[t];
                e_Aah[t] = lanes.e_Aah[t];
                y[t] = lanes.y[t];
                dt[t] = lanes.dt[t];
                gy[t] = lanes.gy[t];
            }
        }
        float du[kOwn], ddelta[kOwn], dz[kOwn], vectors[2] = {0.0f, 0.0f};
#pragma unroll
        for (int j = 0; j < kOwn; ++j) {
            du[j] = fmaf(dt[j], e_B[j], D * gy[j]);
            ddelta[j] = slope[j] * fmaf(u[j], e_B[j], e_Aah[j]);
            dz[j] = dresult[j] * fmaf(D, u[j], y[j]);
            vectors[0] = fmaf(gy[j], u[j], vectors[0]);
            vectors[1] += ddelta[j];
        }
        access.store(du, ddelta, dz, i);
        sum_parts_over_lanes<Shape::kRowThreads>(vectors);
        if (i + access.row() < share.channels) {
            float* const to = p.scratch + p.vectors_at + (first_row + i + access.row()) * 2 * kParts;
            const int part = warp % Shape::kRowWarps, each = lane % Shape::kRowThreads;
            for (int j = each; part + j / 2 * Shape::kRowWarps < kParts; j += Shape::kRowThreads) {
                to[(part + j / 2 * Shape::kRowWarps) * 2 + j % 2] = j < 2 ? vectors[0] : 0.0f;
            }
        }
        if (has_next) prepare(shared.numbers[parity ^ 1], i + kRows);
    }
    if constexpr (kVec == 0) {
        __syncthreads();
        if (share.channels > 0) access.flush((share.channels - 1) / kRows * kRows);
    }
    store_row_sums<Shape>(channel_sums.dB, channel_sums.matrices, p.d_state, lane, warp);
    store_row_sums<Shape>(channel_sums.dC, channel_sums.matrices + p.d_state * kChunk, p.d_state, lane, warp);
}
