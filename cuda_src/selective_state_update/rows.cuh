// Rows of the state: a group of lanes shares a row, and every lane stands for one of the rows of its warp.
#pragma once

#include "selective_state_update/update.cuh"

// Traits: how a kernel divides rows among lanes (RowTraits in steps.cuh).

// Offsets of a token's inputs and result: x, z, dt and out of the lane's own row, and the lane's part of B and C.
template <typename Traits>
struct TokenCursor {
    using input_t = typename Traits::Input;
    using Offset = typename Traits::Offset;

    bool is_row;  // the lane has a row of its own
    Offset x;
    Offset z;
    Offset dt;
    Offset out;
    Offset B;  // at the lane's first element of d_state
    Offset C;

    __device__ __forceinline__ TokenCursor(const typename Traits::Operands& p, const WarpRows& warp, int entry,
                                           int token) {
        is_row = warp.is_row(p, Traits::kTile);
        const int row = warp.own_row(p);
        const auto place = [&](const typename Traits::Stride* stride) {
            return entry * to_offset(stride[0]) + token * to_offset(stride[1]) + warp.head * to_offset(stride[2]) +
                   row * to_offset(stride[3]);
        };
        x = place(p.x_stride);
        z = p.z == nullptr ? 0 : place(p.z_stride);
        dt = place(p.dt_stride);
        out = place(p.out_stride);
        const int group = static_cast<int>(p.group_heads.quotient(warp.head));
        const auto element = [&](const typename Traits::Stride* stride) {
            const int n = Traits::element(0);
            return entry * to_offset(stride[0]) + token * to_offset(stride[1]) + group * to_offset(stride[2]) +
                   n * (Traits::kVecs > 1 ? 1 : to_offset(stride[3]));
        };
        B = element(p.B_stride);
        C = element(p.C_stride);
    }

    // The same offsets, `tokens` tokens further on.
    __device__ __forceinline__ TokenCursor after(const typename Traits::Operands& p, int tokens) const {
        TokenCursor moved = *this;
        moved.x += tokens * to_offset(p.x_stride[1]);
        moved.z += tokens * to_offset(p.z_stride[1]);
        moved.dt += tokens * to_offset(p.dt_stride[1]);
        moved.out += tokens * to_offset(p.out_stride[1]);
        moved.B += tokens * to_offset(p.B_stride[1]);
        moved.C += tokens * to_offset(p.C_stride[1]);
        return moved;
    }

    // Goes on by some rows of the head.
    __device__ __forceinline__ void move_rows(const typename Traits::Operands& p, int rows) {
        x += rows * to_offset(p.x_stride[3]);
        z += rows * to_offset(p.z_stride[3]);
        out += rows * to_offset(p.out_stride[3]);
    }

    __device__ __forceinline__ void store(const typename Traits::Operands& p, float y) const {
        if (is_row) static_cast<input_t*>(p.out)[out] = Dtype<input_t>::from_float(y);
    }

 private:
    __device__ __forceinline__ static Offset to_offset(index_t stride) { return static_cast<Offset>(stride); }
};

// A token's x, z and dt in the lane's own row, as they are in memory.
template <typename Traits>
struct TokenInputs {
    using input_t = typename Traits::Input;

    Vec<input_t, 1> x = Vec<input_t, 1>::zero();
    Select<Traits::kIsWide, RawNumber<input_t>, Vec<input_t, 1>> z;
    RawNumber<input_t> dt;

    __device__ __forceinline__ void load(const typename Traits::Operands& p, const TokenCursor<Traits>& at) {
        // The call may write its outputs over x.
        x = ::load<1, Memory::kMutable>(static_cast<const input_t*>(p.x) + at.x);
        dt.load(p.dt, at.dt, p.dt_is_float32);
        if constexpr (Traits::kIsWide) {
            if (p.z != nullptr) z.load(p.z, at.z, p.z_is_float32);
        } else {
            z = Vec<input_t, 1>::zero();
            if (p.z != nullptr) z = ::load<1>(static_cast<const input_t*>(p.z) + at.z);
        }
    }
};

// The lane's part of a token's B and C, as it is in memory.
template <typename Traits>
struct TokenMatrices {
    using Vector = PackedVec<typename Traits::Matrix, Traits::kVecs>;

    Vector B[Traits::kChunks];
    Vector C[Traits::kChunks];

    __device__ __forceinline__ void load(const typename Traits::Operands& p, const TokenCursor<Traits>& at) {
        load(p, p.B, at.B, p.B_stride[3], B);
        load(p, p.C, at.C, p.C_stride[3], C);
    }

 private:
    __device__ __forceinline__ static void load(const typename Traits::Operands& p, const void* from,
                                                typename Traits::Offset at, index_t stride,
                                                Vector (&to)[Traits::kChunks]) {
        constexpr int kStep = Traits::kLanes * Traits::kVecs;
#pragma unroll
        for (int i = 0; i < Traits::kChunks; ++i) {
            to[i] = Vector::zero();
            if (Traits::element(i) < Traits::d_state(p)) {
                to[i].template load<Memory::kConstant>(static_cast<const typename Traits::Matrix*>(from) + at +
                                                       i * kStep * (Traits::kVecs > 1 ? 1 : stride));
            }
        }
    }
};

// The parameters of rows as they are in memory: A, and D and dt_bias of the lane's own row.
template <typename Traits>
struct RowParameters {
    using input_t = typename Traits::Input;
    using Vector = PackedVec<typename Traits::A, Traits::kVecs>;

    Vector A[Traits::kHasSharedDecay ? 1 : Traits::kRowsOfGroup][Traits::kChunks];
    RawNumber<input_t> D;
    RawNumber<input_t> dt_bias;

    __device__ __forceinline__ void load(const typename Traits::Operands& p, const WarpRows& warp) {
        using Offset = typename Traits::Offset;
        const int own = warp.own_row(p);
        const auto of_own = [&](const typename Traits::Stride* stride) {
            return warp.head * static_cast<Offset>(stride[0]) + own * static_cast<Offset>(stride[1]);
        };
        if (p.dt_bias != nullptr) dt_bias.load(p.dt_bias, of_own(p.dt_bias_stride), p.dt_bias_is_float32);
        if (p.D != nullptr) D.load(p.D, of_own(p.D_stride), p.D_is_float32);
        const auto* head = static_cast<const typename Traits::A*>(p.A) + warp.head * static_cast<Offset>(p.A_stride[0]);
        if constexpr (Traits::kHasSharedDecay) {
            A[0][0] = Vector::zero();
            A[0][0].put(0, *head);
        } else {
            const Offset step = static_cast<Offset>(p.A_stride[2]);
#pragma unroll
            for (int r = 0; r < Traits::kRowsOfGroup; ++r) {
                const int row = min(Traits::row(warp, r), p.headdim - 1);
                const auto* at = head + row * static_cast<Offset>(p.A_stride[1]);
#pragma unroll
                for (int i = 0; i < Traits::kChunks; ++i) {
                    const int n = Traits::element(i);
                    A[r][i] = Vector::zero();
                    if (n < Traits::d_state(p)) {
                        A[r][i].template load<Memory::kConstant>(at + n * (Traits::kVecs > 1 ? 1 : step));
                    }
                }
            }
        }
    }
};

// dt' from dt.
template <typename Traits>
__device__ __forceinline__ float step_length(const typename Traits::Operands& p,
                                             const RowParameters<Traits>& parameters,
                                             const RawNumber<typename Traits::Input>& dt) {
    float step = dt.to_float(p.dt_is_float32);
    if (p.dt_bias != nullptr) step += parameters.dt_bias.to_float(p.dt_bias_is_float32);
    return p.dt_softplus ? softplus(step) : step;
}

// dt' of the lane's own row, and exp(dt' * A) when the rows of a head share it.
template <typename Traits>
struct TokenStep {
    float step;   // dt'
    float decay;  // exp(dt' * A) * scale, if shared
    float scale;  // of the own row's codes, if the states before are codes

    __device__ __forceinline__ TokenStep(const typename Traits::Operands& p, const RowParameters<Traits>& parameters,
                                         const TokenInputs<Traits>& inputs, float scale)
        : scale(scale) {
        step = step_length(p, parameters, inputs.dt);
        if constexpr (Traits::kHasSharedDecay) {
            decay = exp2_approx(step * kLog2E * parameters.A[0][0].to_float(0));
            if constexpr (Traits::kIsQuantised) decay *= scale;
        }
    }
};

// Advances row r of the group by one token and returns this lane's partial sum of C * S. `input` is dt' * x of the
// lane's own row.
template <typename Traits>
__device__ __forceinline__ float advance_row(const RowParameters<Traits>& parameters, const TokenMatrices<Traits>& maps,
                                             const TokenStep<Traits>& pace, float input, int r,
                                             float (&state)[Traits::kElements]) {
    const float row_input = Traits::of_row(input, r);
    float scaled_step = 0.0f, scale = 1.0f, decay = 1.0f;
    if constexpr (!Traits::kHasSharedDecay) {
        scaled_step = Traits::of_row(pace.step, r) * kLog2E;
        if constexpr (Traits::kIsQuantised) scale = Traits::of_row(pace.scale, r);
    } else {
        decay = Traits::kIsQuantised ? Traits::of_row(pace.decay, r) : pace.decay;
    }
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < Traits::kElements; ++i) {
        const int chunk = i / Traits::kVecs, at = i % Traits::kVecs;
        if constexpr (!Traits::kHasSharedDecay) {
            decay = exp2_approx(scaled_step * parameters.A[r][chunk].to_float(at)) * scale;
        }
        const float entry = maps.B[chunk].to_float(at);
        // States of codes are rounded as advance_codes does.
        state[i] =
            Traits::kIsQuantised ? fmaf(row_input, entry, state[i] * decay) : fmaf(state[i], decay, row_input * entry);
        sum = fmaf(state[i], maps.C[chunk].to_float(at), sum);
    }
    return sum;
}

// The sum of the lane's own row, from the partial sums of all rows of the group.
template <typename Traits>
__device__ __forceinline__ float gather_own_sum(float (&sums)[Traits::kRowsOfGroup]) {
    const float sum = sum_rows_over_lanes<Traits::kRowsOfGroup, Traits::kLanes>(sums);
    constexpr int kGroups = Traits::kGroups;
    return from_lane(sum, lane_id() % kGroups * Traits::kLanes + lane_id() / kGroups);
}

// The result of the lane's own row, from C * S.
template <typename Traits>
__device__ __forceinline__ float finish_result(const typename Traits::Operands& p,
                                               const RowParameters<Traits>& parameters,
                                               const TokenInputs<Traits>& inputs, float y) {
    if (p.D != nullptr) y = fmaf(parameters.D.to_float(p.D_is_float32), inputs.x.to_float(0), y);
    if (p.z != nullptr) y *= silu<float>(inputs.z.to_float(Traits::kIsWide ? p.z_is_float32 : 0));
    return y;
}

template <typename Traits>
__device__ __forceinline__ float gather_result(const typename Traits::Operands& p,
                                               const RowParameters<Traits>& parameters,
                                               const TokenInputs<Traits>& inputs, float (&sums)[Traits::kRowsOfGroup]) {
    return finish_result<Traits>(p, parameters, inputs, gather_own_sum<Traits>(sums));
}
