// The gradients of a selective scan. With a = exp(dt A), gy = dout silu(z), and e the gradient of the state h behind a
// token, from the last token to the first:
//     e[t] = C[t] gy[t] + a[t + 1] e[t + 1]      dB[t] = sum over channels of e dt u    dC[t] = sum of gy h[t]
//     du[t] = dt sum over n of e B + D gy        dA = sum over t of e dt a h[t - 1]     dD = sum of gy u
//     ddt[t] = sum over n of e (A a h[t - 1] + B u)    dz = dout y silu'(z)
// ddelta is ddt, or with delta_softplus ddt sigmoid(delta + delta_bias), and ddelta_bias is its sum.
//
// Layout: arrays of any strides. A block owns one chunk of 256 tokens and walks channels of a group: a warp owns four
// of the states, a lane 8 consecutive tokens, whose dB and dC stay in its registers from channel to channel. The state
// before the chunk is in chunk_states. The gradient of the state behind it comes from the next chunk's block, which has
// a smaller number, and so runs already, and is a channel ahead. Sums over channels and over tokens leave the block as
// one number each; selective_scan_bwd_matrices and selective_scan_bwd_parameters add these in a fixed order.
//
// The four states are computed interleaved, which takes registers that leave room for two blocks per multiprocessor: on
// an H200 799 us (batch 1, dim 5120, seqlen 4096, bfloat16) instead of 847 one after the other in three blocks.
//
// input_t      u, delta, z, dout, variable B and C, and their gradients
// kVec         tokens per access, 0 where they may be apart           kManyStates  whether d_state exceeds 16
// kConstantB   whether B is (dim, d_state)                            kConstantC   whether C is
#include "selective_scan/scan_bwd.cuh"

struct SelectiveScanBwdParams {
    SelectiveScanBwdOperands operands;
};

template <typename input_t, int kVec, bool kManyStates, bool kConstantB, bool kConstantC>
struct SelectiveScanBwdTraits {
    static constexpr int kThreads = 128;
    using Shape = ChunkShape<input_t>;
    static constexpr int kMinBlocks = 2;
    static_assert(kThreads == Shape::kThreads);
};

// What a block reads of the states under way that does not depend on the token; last, the channel's delta_bias and D.
enum Number { kRate, kState, kAfter, kB, kC, kNumbers, kVectors = kNumbers };
static constexpr int kPlaces = (kVectors + 1) * kBlockStates;

// Where one number of one state lies, for the thread that loads it: kBlockStates threads per kind of number.
template <typename T, bool kConstantB, bool kConstantC>
struct NumberPlace {
    const char* at;        // of the block's first channel; null where numbers are zero
    index_t channel_step;  // in bytes
    index_t state_step;
    int bytes;
    int state;
    int waits;  // for the next chunk's block

    __device__ __forceinline__ void begin(const SelectiveScanBwdOperands& p, const ChunkShare& share,
                                          const ChunkTokens& tokens) {
        const int kind = static_cast<int>(threadIdx.x) / kBlockStates;
        at = nullptr;
        channel_step = state_step = 0;
        bytes = 4;
        state = kind < kVectors ? static_cast<int>(threadIdx.x) % kBlockStates : 0;
        waits = kind == kAfter && tokens.live > 0 && !tokens.is_last;
        if (kind == kRate) {
            take(p.A, p.A_stride[0], p.A_stride[1], 0, share);
        } else if (kind == kState && tokens.live > 0) {
            if (tokens.is_first) {
                const index_t* stride = p.initial_state_stride;
                take(p.initial_state, stride[1], stride[2], tokens.sequence * stride[0], share);
            } else {
                const float* const states = p.chunk_states != nullptr ? p.chunk_states : p.scratch + p.states_at;
                const index_t* stride = p.chunk_states_stride;
                take(states, stride[2], stride[3], share.batch * stride[0] + share.chunk * stride[1], share);
            }
        } else if (waits) {
            take(p.scratch + kCounters, p.d_state, 1, (share.number(p) + 1) * p.dim * p.d_state, share);
        } else if (kind == kAfter && (tokens.live > 0 || tokens.is_first)) {
            const index_t* stride = p.dlast_state_stride;
            take(p.dlast_state, stride[1], stride[2], tokens.sequence * stride[0], share);
        } else if (kConstantB && kind == kB) {
            bytes = p.B_is_float32 ? 4 : sizeof(T);
            take(p.B, p.B_stride[1], p.B_stride[2], 0, share);
        } else if (kConstantC && kind == kC) {
            bytes = p.C_is_float32 ? 4 : sizeof(T);
            take(p.C, p.C_stride[1], p.C_stride[2], 0, share);
        } else if (kind == kVectors && threadIdx.x % kBlockStates == 0) {
            bytes = p.delta_bias_is_float32 ? 4 : sizeof(T);
            take(p.delta_bias, p.delta_bias_stride, 0, 0, share);
        } else if (kind == kVectors && threadIdx.x % kBlockStates == 1) {
            bytes = p.D_is_float32 ? 4 : sizeof(T);
            take(p.D, p.D_stride, 0, 0, share);
        }
    }

    // That of the i-th of the block's channels, as it is in memory.
    __device__ __forceinline__ unsigned load(int i, int first_state, int d_state) const {
        if (at == nullptr || first_state + state >= d_state) return 0;
        const char* const place = at + static_cast<unsigned>(i) * channel_step + first_state * state_step;
        if (bytes == 2) return *reinterpret_cast<const unsigned short*>(place);
        return load_relaxed(reinterpret_cast<const float*>(place));
    }

    // The same when it is needed: before, it may not have been there yet.
    __device__ __forceinline__ float to_float(unsigned bits, int i, int first_state, int d_state) const {
        if (bytes == 2) return Dtype<T>::unpack(bits, 0);
        while (waits && bits == kUnset) bits = load(i, first_state, d_state);
        return __uint_as_float(bits);
    }

 private:
    __device__ __forceinline__ void take(const void* base, index_t of_channel, index_t of_state, index_t offset,
                                         const ChunkShare& share) {
        if (base == nullptr) return;
        at = static_cast<const char*>(base) + bytes * (offset + share.first_channel * of_channel + state * of_state);
        channel_step = bytes * of_channel;
        state_step = bytes * of_state;
    }
};

template <typename Shape, bool kConstantB, bool kConstantC>
struct BwdShared {
    using T = typename Shape::input_t;
    using Place = NumberPlace<T, kConstantB, kConstantC>;
    static constexpr bool kKeeps = Shape::kKeeps;
    alignas(16) T B[kBlockStates][kChunk];
    alignas(16) T C[kBlockStates][kChunk];
    // Of this channel and, where there is room, of the next.
    static constexpr int kTurns = kKeeps ? 2 : 1;
    alignas(16) float dt[kTurns][Shape::kRow];
    alignas(16) float dt_u[kTurns][Shape::kRow];
    alignas(16) float gy[kTurns][Shape::kRow];
    // Sums over each warp's states: of e B, of e A a h[t - 1], and of C h.
    alignas(16) float sums[Shape::kWarps][3][Shape::kSumsRow];
    // A, the state before the chunk, the gradient of the state behind it, and B and C where they are constant.
    float numbers[kNumbers][kBlockStates];
    float bias[4];  // of the last channels and of the next, in turns
    float D[4];
    float before[kBlockStates];  // the gradients of the states before the chunk
    // What one thread leaves for itself: its tokens of the next channel, and what those of this channel end with.
    alignas(16) T ahead[4][kKeeps ? kChunk : 1];
    alignas(16) float ends[kTurns][3][kKeeps ? kChunk : 1];
    Place places[kKeeps ? kPlaces : 1];
    ChunkRows<const T> u, delta, z, dout;
    ChunkRows<T> du, ddelta, dz;
    unsigned number;
};

// A thread's tokens of one channel, as they are in memory.
template <typename T>
struct OwnTokens {
    Vec<T, 2> u;
    Vec<T, 2> delta;
    Vec<T, 2> z;
    Vec<T, 2> dout;
};

// What the gradients of a thread's tokens take besides dt and gy.
struct OwnEnds {
    Vec<float, 2> u;
    Vec<float, 2> slope;    // the derivative of dt with respect to delta
    Vec<float, 2> dresult;  // dz per unit of the result before the gate
};

// A thread's tokens of one channel, ready for all lanes, and what only the thread itself needs of them.
struct PreparedTokens {
    Vec<float, 2> dt;
    Vec<float, 2> dt_u;
    Vec<float, 2> gy;
    OwnEnds ends;
};

__device__ __forceinline__ Vec<float, 2> pair(float first, float second) {
    const float values[2] = {first, second};
    return Vec<float, 2>::from_floats(values);
}

__device__ __forceinline__ Vec<float, 2> load_pair(const float* at) {
    return load<2, Memory::kMutable>(at);
}

// A thread's tokens of one of the block's channels.
template <typename Shape, typename Shared, int kVec>
struct OwnRows {
    using T = typename Shape::input_t;
    const SelectiveScanBwdOperands& p;
    Shared& shared;
    int live;
    int stored;

    // Those of the i-th channel.
    __device__ __forceinline__ void load(OwnTokens<T>& own, int i) const {
        load(shared.u, p.u_stride[2], own.u, i);
        load(shared.delta, p.delta_stride[2], own.delta, i);
        load(shared.dout, p.dout_stride[2], own.dout, i);
        own.z = Vec<T, 2>::zero();
        if (p.z != nullptr) load(shared.z, p.z_stride[2], own.z, i);
    }

    // Whether tokens are on their way to shared memory while the channel before them is walked.
    static constexpr bool kIsAhead = Shape::kKeeps && kVec == 2;

    // Starts to bring those of the i-th channel.
    __device__ __forceinline__ void fetch(int i) const {
        fetch(shared.u, shared.ahead[0], i);
        fetch(shared.delta, shared.ahead[1], i);
        fetch(shared.dout, shared.ahead[2], i);
        if (p.z != nullptr) fetch(shared.z, shared.ahead[3], i);
    }

    // Those fetched, which have arrived.
    __device__ __forceinline__ void take_fetched(OwnTokens<T>& own) const {
        own.u = fetched(0);
        own.delta = fetched(1);
        own.dout = fetched(2);
        own.z = p.z != nullptr ? fetched(3) : Vec<T, 2>::zero();
    }

    __device__ __forceinline__ PreparedTokens prepare(const OwnTokens<T>& own, float bias) const {
        float dt[2], dt_u[2], gy[2], slope[2], dresult[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            // Computed in any case: without branches all this goes along with what is around it.
            const float v = own.delta.to_float(j) + bias, z = own.z.to_float(j), dout = own.dout.to_float(j);
            const float bent = softplus(v), sigmoid = reciprocal_approx(1.0f + exp2_approx(v * -kLog2E));
            const float gate = reciprocal_approx(1.0f + exp2_approx(z * -kLog2E));
            const bool is_live = Shape::own_token() + j < live;
            dt[j] = is_live ? (p.delta_softplus ? bent : v) : 0.0f;
            slope[j] = is_live ? (p.delta_softplus ? sigmoid : 1.0f) : 0.0f;
            dt_u[j] = dt[j] * own.u.to_float(j);
            gy[j] = dout * (p.z != nullptr ? z * gate : 1.0f);
            dresult[j] = dout * gate * fmaf(z, 1.0f - gate, 1.0f);
        }
        const OwnEnds ends = {pair(own.u.to_float(0), own.u.to_float(1)), pair(slope[0], slope[1]),
                              pair(dresult[0], dresult[1])};
        return {pair(dt[0], dt[1]), pair(dt_u[0], dt_u[1]), pair(gy[0], gy[1]), ends};
    }

    // Those of the i-th channel, to shared memory and what only this thread needs of them back.
    __device__ __forceinline__ void put(const PreparedTokens& tokens, int i) const {
        const int place = Shape::place(Shape::own_token(), Shape::kGap), turn = i % Shared::kTurns;
        ::store(shared.dt[turn] + place, tokens.dt);
        ::store(shared.dt_u[turn] + place, tokens.dt_u);
        ::store(shared.gy[turn] + place, tokens.gy);
        if constexpr (Shape::kKeeps) {
            ::store(shared.ends[turn][0] + Shape::own_token(), tokens.ends.u);
            ::store(shared.ends[turn][1] + Shape::own_token(), tokens.ends.slope);
            ::store(shared.ends[turn][2] + Shape::own_token(), tokens.ends.dresult);
        }
    }

    __device__ __forceinline__ OwnEnds kept(int i) const {
        const float (&ends)[3][Shape::kKeeps ? kChunk : 1] = shared.ends[i % Shared::kTurns];
        return {load_pair(ends[0] + Shape::own_token()), load_pair(ends[1] + Shape::own_token()),
                load_pair(ends[2] + Shape::own_token())};
    }

    // Stores the gradients of the i-th channel; leaves this thread's parts of dD and ddelta_bias.
    __device__ __forceinline__ void finish(const OwnEnds& ends, int i, float D, float& dD, float& dbias) const {
        float du[2], ddelta[2], dz[2];
        dD = dbias = 0.0f;
        Vec<float, 2> parts[3][Shape::kWarps];
#pragma unroll
        for (int k = 0; k < 3; ++k) {
#pragma unroll
            for (int w = 0; w < Shape::kWarps; ++w) {
                parts[k][w] = load_pair(shared.sums[w][k] + Shape::place(Shape::own_token(), Shape::kSumsGap));
            }
        }
        const Vec<float, 2> dt =
            load_pair(shared.dt[i % Shared::kTurns] + Shape::place(Shape::own_token(), Shape::kGap));
        const Vec<float, 2> gy =
            load_pair(shared.gy[i % Shared::kTurns] + Shape::place(Shape::own_token(), Shape::kGap));
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            float sums[3];
#pragma unroll
            for (int k = 0; k < 3; ++k) {
                sums[k] = parts[k][0].to_float(j);
#pragma unroll
                for (int w = 1; w < Shape::kWarps; ++w) sums[k] += parts[k][w].to_float(j);
            }
            du[j] = fmaf(dt.to_float(j), sums[0], D * gy.to_float(j));
            ddelta[j] = ends.slope.to_float(j) * fmaf(ends.u.to_float(j), sums[0], sums[1]);
            dz[j] = ends.dresult.to_float(j) * fmaf(D, ends.u.to_float(j), sums[2]);
            dD = fmaf(gy.to_float(j), ends.u.to_float(j), dD);
            dbias += ddelta[j];
        }
        store(shared.du, p.du_stride[2], du, i);
        store(shared.ddelta, p.ddelta_stride[2], ddelta, i);
        if (p.dz != nullptr) store(shared.dz, p.dz_stride[2], dz, i);
    }

 private:
    __device__ __forceinline__ void fetch(const ChunkRows<const T>& rows, T* to, int i) const {
        if (Shape::own_token() >= live) return;
        copy_few_async<2 * sizeof(T)>(to + Shape::own_token(), rows.place(i, Shape::own_token(), 1));
    }

    // There is an even number of tokens.
    __device__ __forceinline__ Vec<T, 2> fetched(int array) const {
        if (Shape::own_token() >= live) return Vec<T, 2>::zero();
        return ::load<2, Memory::kMutable>(shared.ahead[array] + Shape::own_token());
    }

    __device__ __forceinline__ void load(const ChunkRows<const T>& rows, index_t step, Vec<T, 2>& values, int i) const {
        const index_t token_step = kVec > 0 ? 1 : step;
        const T* const at = rows.place(i, Shape::own_token(), token_step);
        values = Vec<T, 2>::zero();
        if constexpr (kVec == 2) {
            // There is an even number of tokens.
            if (Shape::own_token() < live) values = ::load<2>(at);
        } else {
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                if (Shape::own_token() + j < live) values.put(j, at[j * token_step]);
            }
        }
    }

    __device__ __forceinline__ void store(const ChunkRows<T>& rows, index_t step, const float (&values)[2],
                                          int i) const {
        const index_t token_step = kVec > 0 ? 1 : step;
        T* const at = rows.place(i, Shape::own_token(), token_step);
        if constexpr (kVec == 2) {
            if (Shape::own_token() < stored) ::store(at, Vec<T, 2>::from_floats(values));
        } else {
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                if (Shape::own_token() + j < stored) at[j * token_step] = Dtype<T>::from_float(values[j]);
            }
        }
    }
};

// A lane's tokens of a channel.
template <typename Shape, typename Shared, bool kConstantB, bool kConstantC>
struct LaneTokens {
    using T = typename Shape::input_t;
    static constexpr int kTokens = Shape::kTokens;
    static constexpr int kStates = Shape::kStates;
    float dt[kTokens];
    float dt_u[kTokens];
    float gy[kTokens];
    float steps;         // the sum of dt
    float e_B[kTokens];  // sums over the states that this warp has taken
    float e_Aah[kTokens];
    float y[kTokens];

    // Those of the i-th channel.
    __device__ __forceinline__ void take(const Shared& shared, int i) {
        take_tokens<Shape, Shape::kGap>(shared.dt[i % Shared::kTurns], dt);
        take_tokens<Shape, Shape::kGap>(shared.dt_u[i % Shared::kTurns], dt_u);
        take_tokens<Shape, Shape::kGap>(shared.gy[i % Shared::kTurns], gy);
        steps = 0.0f;
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
            steps += dt[t];
            e_B[t] = e_Aah[t] = y[t] = 0.0f;
        }
    }

    // Takes this warp's states through the chunk, forward and back, interleaved: adds to this lane's dB and dC and to
    // the sums over states. Leaves this lane's parts of dA, and the gradients of the states before its tokens in
    // `before`.
    __device__ __forceinline__ void pass(const Shared& shared, int n, float (&dB)[kStates][kTokens],
                                         float (&dC)[kStates][kTokens], float (&dA)[kStates],
                                         float (&before)[kStates]) {
        float decay[kStates][kTokens], pull[kStates][kTokens], kept[kStates][kTokens], b[kStates][kTokens];
        float c[kStates][kTokens], A[kStates], h[kStates], whole[kStates], back[kStates], state[kStates];
        float after[kStates], begin[kStates], then[kStates];
#pragma unroll
        for (int k = 0; k < kStates; ++k) {
            A[k] = shared.numbers[kRate][n + k];
            state[k] = shared.numbers[kState][n + k];
            after[k] = shared.numbers[kAfter][n + k];
            const float rate = A[k] * kLog2E;
            matrix<kConstantB>(shared.B[n + k], shared.numbers[kB][n + k], b[k]);
            matrix<kConstantC>(shared.C[n + k], shared.numbers[kC][n + k], c[k]);
            h[k] = 0.0f;
            whole[k] = back[k] = exp2_approx(steps * rate);
#pragma unroll
            for (int t = 0; t < kTokens; ++t) {
                decay[k][t] = exp2_approx(dt[t] * rate);
                pull[k][t] = gy[t] * c[k][t];
                h[k] = fmaf(h[k], decay[k][t], dt_u[t] * b[k][t]);
            }
            float e = pull[k][kTokens - 1];
#pragma unroll
            for (int t = kTokens - 1; t > 0; --t) e = fmaf(e, decay[k][t], pull[k][t - 1]);
            before[k] = e * decay[k][0];
        }
        scan_back_over_lanes<kWarpSize>(back, after, before, then);
        scan_over_lanes<kWarpSize>(whole, state, h, begin);
#pragma unroll
        for (int k = 0; k < kStates; ++k) {
            float now = begin[k];
#pragma unroll
            for (int t = 0; t < kTokens; ++t) {
                kept[k][t] = now * decay[k][t];
                now = fmaf(dt_u[t], b[k][t], kept[k][t]);
                dC[k][t] = fmaf(gy[t], now, dC[k][t]);
                y[t] = fmaf(c[k][t], now, y[t]);
            }
            float e = pull[k][kTokens - 1] + then[k];
            dA[k] = 0.0f;
#pragma unroll
            for (int t = kTokens - 1; t >= 0; --t) {
                const float product = e * kept[k][t];
                dB[k][t] = fmaf(e, dt_u[t], dB[k][t]);
                e_B[t] = fmaf(e, b[k][t], e_B[t]);
                e_Aah[t] = fmaf(product, A[k], e_Aah[t]);
                dA[k] = fmaf(product, dt[t], dA[k]);
                if (t > 0) e = fmaf(e, decay[k][t], pull[k][t - 1]);
            }
        }
    }

    __device__ __forceinline__ void put_sums(float (&sums)[3][Shape::kSumsRow]) const {
        put_tokens<Shape, Shape::kSumsGap>(sums[0], e_B);
        put_tokens<Shape, Shape::kSumsGap>(sums[1], e_Aah);
        put_tokens<Shape, Shape::kSumsGap>(sums[2], y);
    }

 private:
    template <bool kIsConstant>
    __device__ __forceinline__ static void matrix(const T* row, float number, float (&values)[kTokens]) {
        if constexpr (kIsConstant) {
#pragma unroll
            for (int t = 0; t < kTokens; ++t) values[t] = number;
        } else {
            MatrixTokens<Shape>(row).to_floats(values);
        }
    }
};

// Two of the threads have delta_bias and D of the i-th channel.
template <typename Shared>
__device__ __forceinline__ void put_vectors(Shared& shared, float value, int i) {
    if (threadIdx.x == kVectors * kBlockStates) shared.bias[i % 4] = value;
    if (threadIdx.x == kVectors * kBlockStates + 1) shared.D[i % 4] = value;
}

template <int kTokens>
__device__ __forceinline__ void clear(float (&values)[kTokens]) {
#pragma unroll
    for (int t = 0; t < kTokens; ++t) values[t] = 0.0f;
}

template <int kTokens>
__device__ __forceinline__ float sum(const float (&values)[kTokens]) {
    float total = 0.0f;
#pragma unroll
    for (int t = 0; t < kTokens; ++t) total += values[t];
    return total;
}

// Adds to what is at a place, or begins there.
template <int kTokens>
__device__ __forceinline__ void add_to(float* at, float (&values)[kTokens], bool begins) {
    if (!begins) {
#pragma unroll
        for (int t = 0; t < kTokens; t += 4) {
            const auto before = load<4, Memory::kMutable>(at + t);
#pragma unroll
            for (int j = 0; j < 4; ++j) values[t + j] += before.to_float(j);
        }
    }
    store_packed<kTokens>(at, values);
}

template <typename input_t, int kVec, bool kManyStates, bool kConstantB, bool kConstantC,
          typename Traits = SelectiveScanBwdTraits<input_t, kVec, kManyStates, kConstantB, kConstantC>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    selective_scan_bwd_kernel(const SelectiveScanBwdParams params) {
    using Shape = typename Traits::Shape;
    constexpr int kTokens = Shape::kTokens;
    constexpr int kStates = Shape::kStates;
    const SelectiveScanBwdOperands& p = params.operands;
    using Shared = BwdShared<Shape, kConstantB, kConstantC>;
    __shared__ Shared shared;
    if (threadIdx.x == 0) shared.number = next_number(p.scratch + kBwdCounter);
    __syncthreads();
    const ChunkShare share(p, shared.number, true);
    const ChunkTokens tokens(p, share.batch, share.chunk);
    const int lane = lane_id(), warp = static_cast<int>(threadIdx.x) / kWarpSize;

    using Rows = OwnRows<Shape, Shared, kVec>;
    const Rows rows = {p, shared, tokens.live, tokens.stored};
    typename Shared::Place own_place;
    own_place.begin(p, share, tokens);
    if (Shape::kKeeps && threadIdx.x < kPlaces) shared.places[threadIdx.x] = own_place;
    const auto number_place = [&] {
        return Shape::kKeeps ? shared.places[min(static_cast<int>(threadIdx.x), kPlaces - 1)] : own_place;
    };
    if (threadIdx.x == 0) {
        shared.u.begin(p.u, p.u_stride, share, tokens);
        shared.delta.begin(p.delta, p.delta_stride, share, tokens);
        shared.z.begin(p.z, p.z_stride, share, tokens);
        shared.dout.begin(p.dout, p.dout_stride, share, tokens);
        shared.du.begin(p.du, p.du_stride, share, tokens);
        shared.ddelta.begin(p.ddelta, p.ddelta_stride, share, tokens);
        shared.dz.begin(p.dz, p.dz_stride, share, tokens);
    }
    __syncthreads();
    const input_t* const B =
        static_cast<const input_t*>(p.B) + share.batch * p.B_stride[0] + share.group * p.B_stride[1];
    const input_t* const C =
        static_cast<const input_t*>(p.C) + share.batch * p.C_stride[0] + share.group * p.C_stride[1];
    // This block's sums over channels, (2, d_state, kChunk), and those over tokens of its first channel.
    const index_t share_number = share.number(p) * p.batch_rows.divisor + share.group * p.splits.divisor + share.split;
    float* const matrices = p.scratch + p.matrices_at + share_number * 2 * p.d_state * kChunk;
    const index_t first_vector = share.number(p) * p.dim + share.first_channel;

    float dB[kStates][kTokens], dC[kStates][kTokens];
#pragma unroll
    for (int s = 0; s < kStates; ++s) {
        clear(dB[s]);
        clear(dC[s]);
    }
    // A channel's parts of dA and, behind them, of dD and ddelta_bias, which are summed over lanes while the next
    // channel is walked.
    constexpr int kParts = 2 * kStates;
    float parts[kParts];
    clear(parts);
    const auto store_parts = [&](int i) {
        sum_parts_over_lanes<kWarpSize>(parts);
        const index_t at = first_vector + i;
        float* const rates = p.scratch + p.rates_at + at * p.d_state + warp * kStates + lane;
        float* const vectors = p.scratch + p.vectors_at + (at * Shape::kWarps + warp) * 2 + lane - kStates;
        const bool is_rate = lane < kStates && !kManyStates && warp * kStates + lane < p.d_state;
        const bool is_vector = lane >= kStates && lane < kStates + 2;
        if (i >= 0 && (is_rate || is_vector)) *(is_rate ? rates : vectors) = parts[0];
    };
    OwnTokens<input_t> own;
    rows.load(own, 0);
    unsigned number = 0;
    const bool has_number = threadIdx.x < kNumbers * kBlockStates;
    const bool has_vector = !has_number && threadIdx.x < kPlaces;
    if (has_number) number = number_place().load(0, 0, p.d_state);
    if (has_vector) {
        put_vectors(shared, number_place().to_float(number_place().load(0, 0, p.d_state), 0, 0, p.d_state), 0);
        if (share.channels > 1) number = number_place().load(1, 0, p.d_state);
    }
    if (!kManyStates) {
        if (!kConstantB) take_chunk<Shape>(shared.B, B, p.B_stride, 0, p.d_state, tokens);
        if (!kConstantC) take_chunk<Shape>(shared.C, C, p.C_stride, 0, p.d_state, tokens);
    }
    __syncthreads();
    rows.put(rows.prepare(own, shared.bias[0]), 0);
    for (int i = 0; i < share.channels; ++i) {
        const int channel = share.first_channel + i;
        const bool has_next = i + 1 < share.channels;
        LaneTokens<Shape, Shared, kConstantB, kConstantC> lanes;
        PreparedTokens prepared;
        if (has_vector) put_vectors(shared, number_place().to_float(number, i + 1, 0, p.d_state), i + 1);
        for (int first_state = 0; first_state < (kManyStates ? p.d_state : 1); first_state += kBlockStates) {
            if (has_number) {
                shared.numbers[threadIdx.x / kBlockStates][threadIdx.x % kBlockStates] =
                    number_place().to_float(number, i, first_state, p.d_state);
            }
            if (kManyStates) {
                if (!kConstantB) take_chunk<Shape>(shared.B, B, p.B_stride, first_state, p.d_state, tokens);
                if (!kConstantC) take_chunk<Shape>(shared.C, C, p.C_stride, first_state, p.d_state, tokens);
            }
            __syncthreads();
            const bool is_last = !kManyStates || first_state + kBlockStates >= p.d_state;
            if (has_number && (has_next || !is_last)) {
                number = number_place().load(is_last ? i + 1 : i, is_last ? 0 : first_state + kBlockStates, p.d_state);
            }
            if (has_vector && is_last && i + 2 < share.channels) number = number_place().load(i + 2, 0, p.d_state);
            if (first_state == 0) {
                if (has_next) {
                    if constexpr (Rows::kIsAhead) {
                        rows.fetch(i + 1);
                    } else {
                        rows.load(own, i + 1);
                    }
                }
                lanes.take(shared, i);
                store_parts(i - 1);
            }
#pragma unroll
            for (int s = 0; s < kStates; ++s) {
                if (kConstantB || kManyStates) clear(dB[s]);
                if (kConstantC || kManyStates) clear(dC[s]);
            }
            float sums[kStates], sums_B[kStates], sums_C[kStates], before[kStates];
            lanes.pass(shared, warp * kStates, dB, dC, sums, before);
#pragma unroll
            for (int s = 0; s < kStates; ++s) {
                if (lane == 0) shared.before[warp * kStates + s] = before[s];
                if (kConstantB) sums_B[s] = sum(dB[s]);
                if (kConstantC) sums_C[s] = sum(dC[s]);
                const int n = first_state + warp * kStates + s;
                if (kManyStates && n < p.d_state) {
                    // Goes on from what the channels before this one have left.
                    float* const at = matrices + n * kChunk + lane * kTokens;
                    if (!kConstantB) add_to(at, dB[s], i == 0);
                    if (!kConstantC) add_to(at + p.d_state * kChunk, dC[s], i == 0);
                }
            }
            const int n = first_state + warp * kStates + lane;
            const index_t at = (first_vector + i) * p.d_state + n;
            if (kManyStates || kConstantB || kConstantC) {
                float rates[kStates];
#pragma unroll
                for (int s = 0; s < kStates; ++s) rates[s] = sums[s];
                sum_parts_over_lanes<kWarpSize>(rates);
                if (kConstantB) sum_parts_over_lanes<kWarpSize>(sums_B);
                if (kConstantC) sum_parts_over_lanes<kWarpSize>(sums_C);
                if (lane < kStates && n < p.d_state) {
                    if (kManyStates) p.scratch[p.rates_at + at] = rates[0];
                    if (kConstantB) p.scratch[p.constants_at + at] = sums_B[0];
                    if (kConstantC) p.scratch[p.more_constants_at + at] = sums_C[0];
                }
            }
#pragma unroll
            for (int s = 0; s < kStates; ++s) {
                parts[s] = sums[s];
                parts[kStates + s] = 0.0f;
            }
            if (is_last) {
                lanes.put_sums(shared.sums[warp]);
                // Behind the last channel this prepares what nothing looks at.
                if constexpr (Rows::kIsAhead) {
                    wait_for_copies();
                    rows.take_fetched(own);
                }
                prepared = rows.prepare(own, shared.bias[(i + 1) % 4]);
                if (Shared::kTurns > 1) rows.put(prepared, i + 1);
            }
            __syncthreads();
            if (lane < kStates && n < p.d_state) {
                const float before = shared.before[warp * kStates + lane];
                hand_over(p.scratch + kCounters + at, before);
                if (tokens.is_first && p.dinitial_state != nullptr) {
                    const index_t* const stride = p.dinitial_state_stride;
                    p.dinitial_state[tokens.sequence * stride[0] + channel * stride[1] + n * stride[2]] = before;
                }
            }
        }
        if constexpr (Shape::kKeeps) {
            rows.finish(rows.kept(i), i, shared.D[i % 4], parts[kStates], parts[kStates + 1]);
        } else {
            OwnTokens<input_t> again;
            rows.load(again, i);
            rows.finish(rows.prepare(again, shared.bias[i % 4]).ends, i, shared.D[i % 4], parts[kStates],
                        parts[kStates + 1]);
        }
        if (Shared::kTurns == 1) rows.put(prepared, i + 1);
    }
    store_parts(share.channels - 1);
    if (kManyStates) return;
#pragma unroll
    for (int s = 0; s < kStates; ++s) {
        const int n = warp * kStates + s;
        if (n >= p.d_state) continue;
        float* const at = matrices + n * kChunk + lane * kTokens;
        if (!kConstantB) store_packed<kTokens>(at, dB[s]);
        if (!kConstantC) store_packed<kTokens>(at + p.d_state * kChunk, dC[s]);
    }
}
