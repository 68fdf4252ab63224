// Sequences of few tokens (selective_scan/scan_few.cuh) where tokens may be at any distance: a lane loads the tokens of
// its own channel, one access each, a batch ahead of those that are scanned.
#pragma once

#include "common/activation.cuh"
#include "common/tokens.cuh"
#include "selective_scan/scan_few.cuh"

template <typename Shape_>
struct FewScan : BatchScan<Shape_, BatchShared<Shape_>> {
    using Base = BatchScan<Shape_, BatchShared<Shape_>>;
    using Shape = Shape_;
    using T = typename Shape::input_t;
    using Shared = typename Base::Shared;
    using Base::batch, Base::end, Base::scanned, Base::zeros, Base::kBatch;
    using Base::p, Base::shared, Base::is_idle, Base::D, Base::bias;
    using Batch = Tokens<T, kBatch, 16 / static_cast<int>(sizeof(T))>;

    // The inputs of a batch, as they are in memory; `matrix` is an element of B or C.
    struct Inputs {
        Batch u;
        Batch delta;
        Batch z;
        Batch matrix;
    };

    bool has_matrix;  // the lane loads an element of B or C
    const T* u;       // its own channel at token 0, as delta, z and out
    const T* delta;
    const T* z;
    T* out;
    const T* matrix;  // its element of B or C at token 0
    index_t matrix_step;
    Inputs inputs, ahead;

    __device__ __forceinline__ FewScan(const SelectiveScanVarlenOperands& p_, Shared& shared_, int first_channel)
        : Base(p_, shared_, first_channel) {
        const index_t channel = min(first_channel + lane_id(), p.dim - 1);
        const index_t group = divide(first_channel, p.group_dim).quotient;
        u = static_cast<const T*>(p.u) + channel * p.u_stride[1];
        delta = static_cast<const T*>(p.delta) + channel * p.delta_stride[1];
        z = static_cast<const T*>(p.z) + channel * p.z_stride[1];
        out = static_cast<T*>(p.out) + channel * p.out_stride[1];
        const bool is_B = lane_id() < Shape::kHalf;
        const int state = lane_id() % Shape::kHalf;
        has_matrix = lane_id() < 2 * Shape::kHalf && state < p.d_state;
        const index_t* stride = is_B ? p.B_stride : p.C_stride;
        matrix = static_cast<const T*>(is_B ? p.B : p.C) + group * stride[1] + state * stride[2];
        matrix_step = stride[3];
    }

    // Makes the batch of token t ready; the last one ends before `end_`.
    __device__ __forceinline__ void begin(int t, int end_) {
        end = end_;
        batch = t / kBatch * kBatch;
        load(inputs, batch);
        prepare();
        load(ahead, batch + kBatch < end ? batch + kBatch : batch);
    }

    // Stores the results of a batch and makes that of token t ready.
    __device__ __forceinline__ void go_on(int t) {
        finish();
        const int next = t / kBatch * kBatch;
        if (next != batch + kBatch) load(ahead, next);
        inputs = ahead;
        batch = next;
        scanned = zeros = 0;
        prepare();
        if (batch + kBatch < end) load(ahead, batch + kBatch);
    }

    // Stores the results of the batch.
    __device__ __forceinline__ void finish() const {
        sync_warp();
        float results[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
            results[i] = ((scanned & ~zeros) >> i & 1) != 0 ? shared.y[i][lane_id()] : 0.0f;
        }
        sync_warp();
        if (p.D != nullptr) {
#pragma unroll
            for (int i = 0; i < kBatch; ++i) results[i] = fmaf(D, inputs.u.to_float(i), results[i]);
        }
        if (p.z != nullptr) {
#pragma unroll
            for (int i = 0; i < kBatch; ++i) results[i] *= silu_gate(inputs.z.to_float(i));
        }
        if (zeros != 0) {
#pragma unroll
            for (int i = 0; i < kBatch; ++i) {
                if ((zeros >> i & 1) != 0) results[i] = 0.0f;
            }
        }
        if (is_idle) return;
        T* const at = out + batch * p.out_stride[2];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
            if ((scanned >> i & 1) != 0) at[i * p.out_stride[2]] = Dtype<T>::from_float(results[i]);
        }
    }

 private:
    // Loads the batch of tokens from t on, those of them that there are.
    __device__ __forceinline__ void load(Inputs& to, int t) const {
        load(to.u, u, t, p.u_stride[2]);
        load(to.delta, delta, t, p.delta_stride[2]);
        if (p.z != nullptr) load(to.z, z, t, p.z_stride[2]);
        to.matrix.clear();
        if (has_matrix) load(to.matrix, matrix, t, matrix_step);
    }

    __device__ __forceinline__ void load(Batch& to, const T* row, int t, index_t step) const {
        const T* const at = row + t * step;
        if (t + kBatch > p.total) {
            to.clear();
#pragma unroll
            for (int i = 0; i < kBatch; ++i) {
                if (t + i < p.total) to.parts[i / Batch::kAccess].put(i % Batch::kAccess, at[i * step]);
            }
        } else {
            to.clear();
#pragma unroll
            for (int i = 0; i < kBatch; ++i) to.parts[i / Batch::kAccess].put(i % Batch::kAccess, at[i * step]);
        }
    }

    // Tells the warp the steps and the matrices of a batch.
    __device__ __forceinline__ void prepare() const {
        float dt[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) dt[i] = inputs.delta.to_float(i) + bias;
        if (p.delta_softplus) {
#pragma unroll
            for (int i = 0; i < kBatch; ++i) dt[i] = softplus(dt[i]);
        }
#pragma unroll
        for (int i = 0; i < kBatch; ++i) shared.steps[i][lane_id()] = {dt[i], dt[i] * inputs.u.to_float(i)};
        if (lane_id() < 2 * Shape::kHalf) {
#pragma unroll
            for (int i = 0; i < kBatch; ++i) shared.matrices[i][lane_id()] = inputs.matrix.to_float(i);
        }
        sync_warp();
    }
};
