// The recurrence of a selective scan along the tokens of one channel: h = h * exp(dt * A) + dt * B * u, y = sum C * h.
#pragma once

#include "common/activation.cuh"
#include "common/fastdiv.cuh"
#include "common/tokens.cuh"
#include "common/warp.cuh"

// In place of the tokens per access of C: only the states are wanted.
inline constexpr int kUnused = -1;

// Registers that `count` tokens take as they are in memory.
template <typename T, int kVec>
__device__ constexpr int token_words(int count) {
    return kVec < 1 ? 0 : kVec == 1 ? count : (count + Dtype<T>::kPerWord - 1) / Dtype<T>::kPerWord;
}

// kLanes lanes own a channel, each kStates of its states. They walk its tokens in tiles of kTokens, of which a lane
// itself loads, prepares and finishes kOwn. kVec, kBVec and kCVec are tokens per access: of u, delta, z and out, of B
// and of C; 1 with any strides, 0 where B or C does not depend on the token, kUnused where C is not wanted.
template <int kThreads_, typename T, int kLanes_, int kStates_, int kVec_, int kBVec_, int kCVec_>
struct ScanShape {
    using input_t = T;
    static constexpr int kLanes = kLanes_;
    static constexpr int kStates = kStates_;
    static constexpr int kVec = kVec_;
    static constexpr int kBVec = kBVec_;
    static constexpr int kCVec = kCVec_;
    static constexpr int kThreads = kThreads_;
    static constexpr int kTokens = 8;
    static constexpr int kChannels = kThreads / kLanes;  // per block
    static constexpr int kOwners = kLanes < kTokens ? kLanes : kTokens;
    static constexpr int kOwn = kTokens / kOwners;
    // Registers for a lane's part of a tile: for B and C, which are loaded a tile ahead where registers allow it, and
    // for u, delta and z of this tile and the next.
    static constexpr int kMatrixWords = kStates * (token_words<T, kBVec>(kTokens) + token_words<T, kCVec>(kTokens));
    static constexpr int kWords = kMatrixWords + 2 * 3 * token_words<T, kVec>(kOwn);
    static constexpr bool kIsAhead = kMatrixWords <= 64 && kWords <= 100;
    static constexpr int kMinBlocks = kWords <= 40 && kStates <= 4 ? 4 : kWords <= 76 && kStates <= 4 ? 3 : 2;
    static_assert((kLanes & (kLanes - 1)) == 0 && kLanes <= kWarpSize, "a group of lanes is part of a warp");
};

// One channel of a sequence, in the lanes of a group. All lanes of a warp walk the same tokens; lanes beyond the last
// channel repeat that one's work and store nothing.
template <typename Shape, typename Operands>
struct ChannelScan {
    using T = typename Shape::input_t;
    static constexpr int kTokens = Shape::kTokens;
    static constexpr int kStates = Shape::kStates;
    static constexpr int kOwn = Shape::kOwn;
    static constexpr bool kTakes = false;  // states inside a tile cannot be taken
    static constexpr int kCopies = 1;      // and are stored in one slot at a time
    using Own = Tokens<T, kOwn, Shape::kVec>;
    template <int kVec>
    using Matrix = Tokens < T,
          kTokens, kVec<1 ? 1 : kVec>;

    struct Inputs {
        Own u;
        Own delta;
        Own z;
    };

    const Operands& p;
    int lane;  // its number in the group
    int own;   // the first token of a tile that this lane loads
    int channel;
    bool is_idle;
    const T* u;  // at this lane's tokens in the tile at token 0, as delta, z and out
    const T* delta;
    const T* z;
    T* out;
    const T* B;  // at this lane's first state, as C
    const T* C;
    float h[kStates];
    float rate[kStates];  // A / log(2)
    float b[kStates];     // B, if constant
    float c[kStates];
    float D;
    float bias;
    float steps;  // the sum of dt over the tokens that this lane loads
    Matrix<Shape::kBVec> b_tokens[Shape::kIsAhead ? kStates : 1];
    Matrix<Shape::kCVec> c_tokens[Shape::kIsAhead ? kStates : 1];

    __device__ __forceinline__ ChannelScan(const Operands& p_, int batch, int channel_)
        : p(p_),
          lane(lane_id() % Shape::kLanes),
          own(lane % Shape::kOwners * kOwn),
          channel(min(channel_, p.dim - 1)),
          is_idle(channel_ >= p.dim),
          steps(0.0f) {
        const index_t group = divide(channel, p.group_dim).quotient;
        u = row<const T>(p.u, p.u_stride, batch);
        delta = row<const T>(p.delta, p.delta_stride, batch);
        z = row<const T>(p.z, p.z_stride, batch);
        out = row<T>(p.out, p.out_stride, batch);
        const index_t* stride = p.B_stride;
        const index_t b_at = batch * stride[0] + (Shape::kBVec == 0 ? channel : group) * stride[1] + lane * stride[2];
        B = static_cast<const T*>(p.B) + b_at;
        stride = p.C_stride;
        const index_t c_at = batch * stride[0] + (Shape::kCVec == 0 ? channel : group) * stride[1] + lane * stride[2];
        C = static_cast<const T*>(p.C) + c_at;

        float a[kStates];
        RawNumber<T> raw_b[kStates], raw_c[kStates], raw_d, raw_bias;
#pragma unroll
        for (int s = 0; s < kStates; ++s) {
            a[s] = 0.0f;
            if (!is_state(s)) continue;
            a[s] = load<1>(static_cast<const float*>(p.A) + channel * p.A_stride[0] + number(s) * p.A_stride[1])
                       .to_float(0);
            if constexpr (Shape::kBVec == 0)
                raw_b[s].load(p.B, b_at + s * Shape::kLanes * p.B_stride[2], p.B_is_float32);
            if constexpr (Shape::kCVec == 0)
                raw_c[s].load(p.C, c_at + s * Shape::kLanes * p.C_stride[2], p.C_is_float32);
        }
        if (p.D != nullptr) raw_d.load(p.D, channel * p.D_stride, p.D_is_float32);
        if (p.delta_bias != nullptr) {
            raw_bias.load(p.delta_bias, channel * p.delta_bias_stride, p.delta_bias_is_float32);
        }
#pragma unroll
        for (int s = 0; s < kStates; ++s) {
            h[s] = 0.0f;
            rate[s] = a[s] * kLog2E;
            if (Shape::kIsAhead || s == 0) clear_matrices(b_tokens[s], c_tokens[s]);
            if constexpr (Shape::kBVec == 0) b[s] = raw_b[s].to_float(p.B_is_float32);
            if constexpr (Shape::kCVec == 0) c[s] = raw_c[s].to_float(p.C_is_float32);
        }
        D = raw_d.to_float(p.D_is_float32);
        bias = raw_bias.to_float(p.delta_bias_is_float32);
    }

    // The number of state s of this lane, and whether the channel has it.
    __device__ __forceinline__ int number(int s) const { return s * Shape::kLanes + lane; }
    __device__ __forceinline__ bool is_state(int s) const { return number(s) < p.d_state; }

    // Walks the tokens `begin` to `end` - 1; calls before_tile(token) before each tile's first.
    template <bool kHasOutput, typename BeforeTile>
    __device__ __forceinline__ void walk(int begin, int end, BeforeTile before_tile) {
        for (int tile = begin / kTokens * kTokens; tile < end;) {
            if (tile < begin || tile + kTokens > end) {
                before_tile(tile);
                Inputs inputs;
                load_edge(inputs, tile, begin, end);
                advance<kHasOutput, true>(inputs, tile, begin, end, tile);
                tile += kTokens;
                continue;
            }
            const int last = (end - kTokens) / kTokens * kTokens;
            Inputs next;
            load_whole(next, tile);
#pragma unroll
            for (int s = 0; s < (Shape::kIsAhead ? kStates : 0); ++s) {
                load_matrices<false>(s, tile, begin, end, b_tokens[s], c_tokens[s]);
            }
            for (; tile <= last; tile += kTokens) {
                before_tile(tile);
                const Inputs inputs = next;
                const int ahead = min(tile + kTokens, last);
                load_whole(next, ahead);
                advance<kHasOutput, false>(inputs, tile, begin, end, ahead);
            }
        }
    }

    // Stores zeros as the results of the tokens `begin` to `end` - 1.
    __device__ __forceinline__ void store_zeros(int begin, int end) const {
        if (is_idle) return;
        const index_t step = p.out_stride[2];
        for (int t = begin + lane; t < end; t += Shape::kLanes) out[(t - own) * step] = Dtype<T>::from_float(0.0f);
    }

 private:
    template <typename Pointee, typename Pointer>
    __device__ __forceinline__ Pointee* row(Pointer base, const index_t* stride, int batch) const {
        return static_cast<Pointee*>(base) + batch * stride[0] + channel * stride[1] + own * stride[2];
    }

    __device__ __forceinline__ void load_whole(Inputs& to, int tile) const {
        to.u.load(u + tile * p.u_stride[2], p.u_stride[2]);
        to.delta.load(delta + tile * p.delta_stride[2], p.delta_stride[2]);
        if (p.z != nullptr) to.z.load(z + tile * p.z_stride[2], p.z_stride[2]);
    }

    __device__ __forceinline__ void load_edge(Inputs& to, int tile, int begin, int end) {
        const int first = begin - tile - own, behind = end - tile - own;
        to.u.load_edge(u + tile * p.u_stride[2], p.u_stride[2], first, behind);
        to.delta.load_edge(delta + tile * p.delta_stride[2], p.delta_stride[2], first, behind);
        if (p.z != nullptr) to.z.load_edge(z + tile * p.z_stride[2], p.z_stride[2], first, behind);
#pragma unroll
        for (int s = 0; s < (Shape::kIsAhead ? kStates : 0); ++s) {
            load_matrices<true>(s, tile, begin, end, b_tokens[s], c_tokens[s]);
        }
    }

    __device__ __forceinline__ static void clear_matrices(Matrix<Shape::kBVec>& to_b, Matrix<Shape::kCVec>& to_c) {
        to_b.clear();
        to_c.clear();
    }

    // Loads B and C of a tile for one state. A state that the channel does not have keeps its zeros.
    template <bool kIsEdge>
    __device__ __forceinline__ void load_matrices(int s, int tile, int begin, int end, Matrix<Shape::kBVec>& to_b,
                                                  Matrix<Shape::kCVec>& to_c) const {
        if (!is_state(s)) return;
        const index_t b_at = s * Shape::kLanes * p.B_stride[2] + tile * p.B_stride[3];
        const index_t c_at = s * Shape::kLanes * p.C_stride[2] + tile * p.C_stride[3];
        if (Shape::kBVec > 0 && !kIsEdge) to_b.load(B + b_at, p.B_stride[3]);
        if (Shape::kBVec > 0 && kIsEdge) to_b.load_edge(B + b_at, p.B_stride[3], begin - tile, end - tile);
        if (Shape::kCVec > 0 && !kIsEdge) to_c.load(C + c_at, p.C_stride[3]);
        if (Shape::kCVec > 0 && kIsEdge) to_c.load_edge(C + c_at, p.C_stride[3], begin - tile, end - tile);
    }

    // Scans a tile. B and C that were loaded ahead make room for those of tile `ahead` as soon as they are used.
    template <bool kHasOutput, bool kIsEdge>
    __device__ __forceinline__ void advance(const Inputs& inputs, int tile, int begin, int end, int ahead) {
        float dt[kTokens], dt_u[kTokens];
        share_steps<kIsEdge>(inputs, begin - tile - own, end - tile - own, dt, dt_u);
        float y[kTokens];
#pragma unroll
        for (int t = 0; t < kTokens; ++t) y[t] = 0.0f;
#pragma unroll
        for (int s = 0; s < kStates; ++s) {
            Matrix<Shape::kBVec> b_now;
            Matrix<Shape::kCVec> c_now;
            if constexpr (Shape::kIsAhead) {
                b_now = b_tokens[s];
                c_now = c_tokens[s];
                if (!kIsEdge) load_matrices<false>(s, ahead, begin, end, b_tokens[s], c_tokens[s]);
            } else {
                clear_matrices(b_now, c_now);
                load_matrices<kIsEdge>(s, tile, begin, end, b_now, c_now);
            }
#pragma unroll
            for (int t = 0; t < kTokens; ++t) {
                const float decay = exp2_approx(dt[t] * rate[s]);
                h[s] = fmaf(h[s], decay, dt_u[t] * (Shape::kBVec == 0 ? b[s] : b_now.to_float(t)));
                if (kHasOutput) y[t] = fmaf(Shape::kCVec == 0 ? c[s] : c_now.to_float(t), h[s], y[t]);
            }
        }
        if (kHasOutput) finish<kIsEdge>(inputs, tile, begin, end, y);
    }

    // Every lane computes dt and dt * u of its own tokens and gets those of all tokens of the tile. Outside `begin` to
    // `end` - 1 dt is zero, which leaves states as they are.
    template <bool kIsEdge>
    __device__ __forceinline__ void share_steps(const Inputs& inputs, int begin, int end, float (&dt)[kTokens],
                                                float (&dt_u)[kTokens]) {
        float own_dt[kOwn], own_dt_u[kOwn];
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
            const float v = inputs.delta.to_float(i) + bias;
            own_dt[i] = p.delta_softplus ? softplus(v) : v;
            if (kIsEdge && (i < begin || i >= end)) own_dt[i] = 0.0f;
            own_dt_u[i] = own_dt[i] * inputs.u.to_float(i);
            steps += own_dt[i];
        }
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
            dt[t] = from_group_lane<Shape::kLanes>(own_dt[t % kOwn], t / kOwn);
            dt_u[t] = from_group_lane<Shape::kLanes>(own_dt_u[t % kOwn], t / kOwn);
        }
    }

    // Sums results up over the lanes, applies D and z, and stores.
    template <bool kIsEdge>
    __device__ __forceinline__ void finish(const Inputs& inputs, int tile, int begin, int end, float (&y)[kTokens]) {
        sum_parts_over_lanes<Shape::kLanes>(y);
        float result[kOwn];
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
            result[i] = y[i];
            if (p.D != nullptr) result[i] = fmaf(D, inputs.u.to_float(i), result[i]);
            if (p.z != nullptr) result[i] *= silu<float>(inputs.z.to_float(i));
        }
        if (is_idle || lane >= Shape::kOwners) return;
        const index_t step = p.out_stride[2];
        T* const at = out + tile * step;
        if (!kIsEdge) {
            store_tokens<Shape::kVec>(at, step, result);
            return;
        }
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
            const int token = tile + own + i;
            if (token >= begin && token < end) at[i * step] = Dtype<T>::from_float(result[i]);
        }
    }
};
