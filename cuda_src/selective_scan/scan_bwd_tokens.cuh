// What a thread of the scan's backward pass does for its own tokens of a channel: before the states are scanned, and
// after.
#pragma once

#include "selective_scan/scan_bwd_channels.cuh"
#include "selective_scan/scan_bwd_states.cuh"

// The shared memory of a block. What one warp alone uses is in an array over warps.
template <typename Shape, bool kIsAhead>
struct BwdShared {
    using T = typename Shape::input_t;
    alignas(16) T B[kBlockStates][kChunk];
    alignas(16) T C[kBlockStates][kChunk];
    alignas(16) float dt[Shape::kRow];
    alignas(16) float dt_u[Shape::kRow];
    alignas(16) float gy[Shape::kRow];
    // What lanes hand to each other while states are scanned, and then sums over each warp's states: of e B, of e A a
    // h[t - 1], and of C h.
    union Warp {
        WarpScan<Shape::kStates> scan;
        float sums[3][Shape::kSumsRow];
    };
    alignas(16) Warp warps[Shape::kWarps];
    alignas(16) T ahead[4][kIsAhead ? kChunk : 4];  // the next channel's u, delta, dout and z
    ChunkRows<const T> u, delta, dout, z;
    ChunkRows<T> du, ddelta, dz;
    unsigned number;
    float* matrices;  // ChannelSums::matrices of a block that is short of registers
    int front;        // ChunkTokens::front
    Cuts<Shape> cuts;
};

// What a token brings to the recurrences, and what its gradients take besides.
struct TokenTerms {
    float dt;
    float dt_u;
    float gy;
    float slope;    // the derivative of dt with respect to delta
    float dresult;  // dz per unit of the result before the gate

    // Of delta with its bias. Computed in any case: without branches all this goes along with what is around it.
    __device__ __forceinline__ TokenTerms(const SelectiveScanBwdOperands& p, float u, float v, float z, float dout,
                                          bool is_live) {
        const float bent = softplus(v), sigmoid = reciprocal_approx(1.0f + exp2_approx(v * -kLog2E));
        const float gate = reciprocal_approx(1.0f + exp2_approx(z * -kLog2E));
        dt = is_live ? (p.delta_softplus ? bent : v) : 0.0f;
        slope = is_live ? (p.delta_softplus ? sigmoid : 1.0f) : 0.0f;
        dt_u = dt * u;
        gy = dout * (p.z != nullptr ? z * gate : 1.0f);
        dresult = dout * gate * fmaf(z, 1.0f - gate, 1.0f);
    }
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
    float u[2];
    float slope[2];    // the derivative of dt with respect to delta
    float dresult[2];  // dz per unit of the result before the gate
};

__device__ __forceinline__ Vec<float, 2> pair(const float (&values)[2]) {
    return Vec<float, 2>::from_floats(values);
}

__device__ __forceinline__ Vec<float, 2> load_pair(const float* at) {
    return load<2, Memory::kMutable>(at);
}

// Sums over the states that a group of channels has been walked for: a thread's own tokens of BwdShared::Warp::sums.
template <int kGroup>
struct GroupSums {
    alignas(16) float of[kGroup][3][kChunk];
};

// What a group of channels has in shared memory.
template <typename Shape>
using Group = ChannelGroup<typename Shape::input_t, 4, Shape::kThreads>;

// Puts where the block's rows are in shared memory.
template <typename Shared, typename Share>
__device__ __forceinline__ void begin_rows(const SelectiveScanBwdOperands& p, Shared& shared, const Share& share,
                                           const ChunkTokens& tokens) {
    shared.u.begin(p.u, p.u_stride, share, tokens);
    shared.delta.begin(p.delta, p.delta_stride, share, tokens);
    shared.dout.begin(p.dout, p.dout_stride, share, tokens);
    shared.z.begin(p.z, p.z_stride, share, tokens);
    shared.du.begin(p.du, p.du_stride, share, tokens);
    shared.ddelta.begin(p.ddelta, p.ddelta_stride, share, tokens);
    shared.dz.begin(p.dz, p.dz_stride, share, tokens);
}

// A thread's tokens of one of the block's channels.
template <typename Shape, typename Shared, int kVec, bool kIsAhead, bool kIsOneByOne, bool kSharesChunks,
          bool kByChannel = false>
struct OwnRows {
    using T = typename Shape::input_t;
    // Where registers are few, tokens that are apart are accessed one by one.
    static constexpr int kUnrolled = kIsOneByOne ? 1 : 2;
    const SelectiveScanBwdOperands& p;
    Shared& shared;
    int live;
    int stored;
    int thread;
    Group<Shape>* group;  // of kByChannel: rows of contiguous channels

    template <typename Share>
    __device__ __forceinline__ void begin(const Share& share, const ChunkTokens& tokens) const {
        if (threadIdx.x == 0) {
            begin_rows(p, shared, share, tokens);
            if constexpr (kSharesChunks) shared.front = tokens.front;
        }
    }

    // Leaves zeros where a channel's tokens come to that are on their way while another one is walked.
    template <typename Turn>
    __device__ __forceinline__ void clear(Turn& turn) const {
#pragma unroll
        for (int array = 0; array < 4; ++array) {
            ::store(turn.ahead[array] + own_token(), Vec<T, 2>::zero());
            if (kHasHalves && thread == 0) ::store(turn.ahead[array] + kChunk, Vec<T, 2>::zero());
        }
    }

    // Loads those of the i-th channel.
    __device__ __forceinline__ void load(OwnTokens<T>& own, int i) const {
        load(shared.u, p.u_stride[2], own.u, i);
        load(shared.delta, p.delta_stride[2], own.delta, i);
        load(shared.dout, p.dout_stride[2], own.dout, i);
        own.z = Vec<T, 2>::zero();
        if (p.z != nullptr) load(shared.z, p.z_stride[2], own.z, i);
        drop_padding(own);
    }

    // Starts to bring the group of channels that begins with the block's i-th one.
    template <typename Share>
    __device__ __forceinline__ void fetch_group(const Share& share, int i) const {
        const auto has = [&](int j) { return this->has(j); };
        const int first = share.channel(i);
        group->fetch(0, shared.u, p.u_stride[2], first, thread, has);
        group->fetch(1, shared.delta, p.delta_stride[2], first, thread, has);
        group->fetch(2, shared.dout, p.dout_stride[2], first, thread, has);
        if (p.z != nullptr) group->fetch(3, shared.z, p.z_stride[2], first, thread, has);
    }

    // Takes what has been fetched, and goes on to fetch the next group, which begins with the block's i-th channel.
    template <typename Share>
    __device__ __forceinline__ void turn_group(const Share& share, int i) const {
        wait_for_copies();
        group->turn(thread);
        if (i < share.channels) fetch_group(share, i);
    }

    // Loads those of the i-th channel of the block, whose group is there.
    __device__ __forceinline__ void take_turned(OwnTokens<T>& own, int i) const {
        i %= kGroupChannels<T>;
        own.u = group->take(0, i, thread);
        own.delta = group->take(1, i, thread);
        own.dout = group->take(2, i, thread);
        own.z = group->take(3, i, thread);
    }

    // Stores the results of the group that the block's i-th channel is in.
    template <typename Share>
    __device__ __forceinline__ void flush_group(const Share& share, int i) const {
        const int first = share.channel(i / kGroupChannels<T> * kGroupChannels<T>);
        group->flush(0, shared.du, p.du_stride[2], first, thread, stored);
        group->flush(1, shared.ddelta, p.ddelta_stride[2], first, thread, stored);
        if (p.dz != nullptr) group->flush(3, shared.dz, p.dz_stride[2], first, thread, stored);
    }

    // Where this lane finds its part of a channel's tokens: each warp brings those of one array.
    __device__ __forceinline__ const T* fetched_from(int i) const {
        static_assert(Shape::kWarps == 4);
        const int array = thread / kWarpSize;
        return array == 3 && p.z == nullptr ? nullptr : (&shared.u)[array].place(i, thread % kWarpSize * 2, 1);
    }

    // Starts to bring them to shared memory, and goes on to the next channel. Pairs are brought whole; behind them
    // shared memory has zeros. Without branches this goes along with what is around it.
    template <bool kBranches, typename Turn>
    __device__ __forceinline__ void fetch(const T*& from, Turn& turn) const {
        const int array = thread / kWarpSize, first = thread % kWarpSize * 2;
        if (kBranches && from == nullptr) return;
        T* const to = turn.ahead[array] + first;
        const int end = !kBranches && from == nullptr ? 0 : live;
        if constexpr (kVec == 1) {
            fetch_words(to, from, first, end);
            from += (&shared.u)[array].channel_step;
            return;
        }
        if (!kBranches || live == kChunk) {
#pragma unroll
            for (int part = 0; part < kChunk; part += 2 * kWarpSize) {
                if (kBranches || first + part < end) copy_async<2 * sizeof(T)>(to + part, from + part);
            }
        } else {
            for (int part = 0; first + part < live; part += 2 * kWarpSize) {
                copy_async<2 * sizeof(T)>(to + part, from + part);
            }
        }
        from += (&shared.u)[array].channel_step;
    }

    // Those of the i-th channel that have been fetched and have arrived.
    template <typename Turn>
    __device__ __forceinline__ void take_fetched(OwnTokens<T>& own, const Turn& turn, int i = 0) const {
        const bool is_odd = kHasHalves && is_odd_element(shared.u.place(i, 0, 1));
        own.u = fetched(turn, 0, is_odd);
        own.delta = fetched(turn, 1, is_odd);
        own.dout = fetched(turn, 2, is_odd);
        own.z = fetched(turn, 3, is_odd);
        drop_padding(own);
    }

    // Leaves dt, dt u and gy in shared memory, for all lanes, and what only this thread needs of its tokens in `ends`.
    template <typename Turn>
    __device__ __forceinline__ void prepare(const OwnTokens<T>& own, float bias, OwnEnds& ends, Turn& turn) const {
        float dt[2], dt_u[2], gy[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const float v = own.delta.to_float(j) + bias;
            const TokenTerms terms(p, own.u.to_float(j), v, own.z.to_float(j), own.dout.to_float(j), has(j));
            dt[j] = terms.dt;
            dt_u[j] = terms.dt_u;
            gy[j] = terms.gy;
            ends.u[j] = own.u.to_float(j);
            ends.slope[j] = terms.slope;
            ends.dresult[j] = terms.dresult;
        }
        const int place = Shape::place(own_token(), Shape::kGap);
        ::store(turn.dt + place, pair(dt));
        ::store(turn.dt_u + place, pair(dt_u));
        ::store(turn.gy + place, pair(gy));
    }

    // Stores the gradients of the i-th channel, where there is one; leaves this thread's parts of dD and ddelta_bias.
    // Among many states, `kept` has the sums over those before, and gets them with these where more are to come.
    template <typename Turn>
    __device__ __forceinline__ void finish(const Turn& turn, const OwnEnds& ends, int i, float D, float& dD,
                                           float& dbias, float (*kept)[kChunk] = nullptr, bool is_first = true,
                                           bool is_last = true) const {
        float du[2], ddelta[2], dz[2];
        dD = dbias = 0.0f;
        Vec<float, 2> parts[3][Shape::kWarps];
#pragma unroll
        for (int k = 0; k < 3; ++k) {
#pragma unroll
            for (int w = 0; w < Shape::kWarps; ++w) {
                parts[k][w] = load_pair(turn.warps[w].sums[k] + Shape::place(own_token(), Shape::kSumsGap));
            }
        }
        if (kept != nullptr) {
#pragma unroll
            for (int k = 0; k < 3; ++k) {
                float* const at = kept[k] + own_token();
                const Vec<float, 2> before = is_first ? Vec<float, 2>::zero() : load_pair(at);
                float sums[2];
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    sums[j] = before.to_float(j) + parts[k][0].to_float(j);
#pragma unroll
                    for (int w = 1; w < Shape::kWarps; ++w) sums[j] += parts[k][w].to_float(j);
                }
                if (!is_last) ::store(at, pair(sums));
                parts[k][0] = pair(sums);
            }
            if (!is_last) return;
        }
        const Vec<float, 2> dt = load_pair(turn.dt + Shape::place(own_token(), Shape::kGap));
        const Vec<float, 2> gy = load_pair(turn.gy + Shape::place(own_token(), Shape::kGap));
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            float sums[3];
#pragma unroll
            for (int k = 0; k < 3; ++k) {
                sums[k] = parts[k][0].to_float(j);
#pragma unroll
                for (int w = 1; w < Shape::kWarps && kept == nullptr; ++w) sums[k] += parts[k][w].to_float(j);
            }
            du[j] = fmaf(dt.to_float(j), sums[0], D * gy.to_float(j));
            ddelta[j] = ends.slope[j] * fmaf(ends.u[j], sums[0], sums[1]);
            dz[j] = ends.dresult[j] * fmaf(D, ends.u[j], sums[2]);
            dD = fmaf(gy.to_float(j), ends.u[j], dD);
            dbias += ddelta[j];
        }
        if constexpr (kByChannel) {
            i %= kGroupChannels<T>;
            group->put(0, i, thread, Vec<T, 2>::from_floats(du));
            group->put(1, i, thread, Vec<T, 2>::from_floats(ddelta));
            group->put(3, i, thread, Vec<T, 2>::from_floats(dz));
            return;
        }
        const int stored = i < 0 ? 0 : this->stored;
        store(shared.du, p.du_stride[2], du, i, stored);
        store(shared.ddelta, p.ddelta_stride[2], ddelta, i, stored);
        if (p.dz != nullptr) store(shared.dz, p.dz_stride[2], dz, i, stored);
    }

 private:
    __device__ __forceinline__ int own_token() const { return thread * Shape::kOwn; }

    // Whether the thread's j-th token is one of a sequence.
    __device__ __forceinline__ bool has(int j) const {
        if constexpr (kSharesChunks) {
            if (own_token() + j < shared.front) return false;
        }
        return own_token() + j < live;
    }

    // Leaves zeros of padding that has come with tokens of sequences.
    __device__ __forceinline__ void drop_padding(OwnTokens<T>& own) const {
        if constexpr (kSharesChunks) {
            if (shared.front == 0 && live % 2 == 0) return;
            const int begin = shared.front - own_token(), end = live - own_token();
            own.u = keep_part(own.u, begin, end);
            own.delta = keep_part(own.delta, begin, end);
            own.dout = keep_part(own.dout, begin, end);
            own.z = keep_part(own.z, begin, end);
        }
    }

    // Whether words of two halves are fetched, of rows that begin with the second half of one in some channels.
    static constexpr bool kHasHalves = kIsAhead && kVec == 1 && sizeof(T) == 2;
    __device__ __forceinline__ static bool is_odd_element(const T* at) {
        return reinterpret_cast<size_t>(at) / sizeof(T) % 2 != 0;
    }

    // Starts to bring this lane's words of a row whose tokens before `end` exist, from the token `first` on that `from`
    // is at. Behind them shared memory has zeros: rows have an odd number of tokens where some begin with a word and
    // others do not, and so as many words. The half in front of an odd element is another row's.
    __device__ __forceinline__ static void fetch_words(T* to, const T* from, int first, int end) {
        constexpr int kTokens = 4 / static_cast<int>(sizeof(T));
        const int odd = kHasHalves && is_odd_element(from) ? 1 : 0;
        const auto copy = [&](int part) {
            const int count = min(end - (first + part - odd), kTokens);
            if (count > 0) copy_front_async<4>(to + part, from + part - odd, count * static_cast<int>(sizeof(T)));
        };
#pragma unroll
        for (int part = 0; part < kChunk; part += 2 * kWarpSize) {
#pragma unroll
            for (int i = 0; i < 2; i += kTokens) copy(part + i);
        }
        if (kHasHalves && first == 0) copy(kChunk);
    }

    template <typename Turn>
    __device__ __forceinline__ Vec<T, 2> fetched(const Turn& turn, int array, bool is_odd) const {
        const T* const at = turn.ahead[array] + own_token();
        auto tokens = ::load<2, Memory::kMutable>(at);
        if constexpr (kHasHalves) {
            const unsigned behind = ::load<2, Memory::kMutable>(at + 2).words[0];
            tokens.words[0] = __byte_perm(tokens.words[0], behind, is_odd ? 0x5432u : 0x3210u);
        }
        return tokens;
    }

    __device__ __forceinline__ void load(const ChunkRows<const T>& rows, index_t step, Vec<T, 2>& values, int i) const {
        const index_t token_step = kVec > 0 ? 1 : step;
        const T* const at = rows.place(i, own_token(), token_step);
        values = Vec<T, 2>::zero();
        if constexpr (kVec == 2) {
            // There is an even number of tokens in a row.
            if (own_token() < live) values = ::load<2>(at);
        } else {
#pragma unroll kUnrolled
            for (int j = 0; j < 2; ++j) {
                if (own_token() + j < live) values.put(j, at[j * token_step]);
            }
        }
    }

    __device__ __forceinline__ void store(const ChunkRows<T>& rows, index_t step, const float (&values)[2], int i,
                                          int stored) const {
        const index_t token_step = kVec > 0 ? 1 : step;
        T* const at = rows.place(i, own_token(), token_step);
        if constexpr (kVec == 2) {
            if (own_token() < stored) ::store(at, Vec<T, 2>::from_floats(values));
        } else {
#pragma unroll kUnrolled
            for (int j = 0; j < 2; ++j) {
                if (own_token() + j < stored) at[j * token_step] = Dtype<T>::from_float(values[j]);
            }
        }
    }
};
