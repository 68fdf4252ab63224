// Sequences of few tokens (selective_scan/scan_few.cuh) where tokens may be at any distance: a lane loads the tokens of
// its own channel, one access each, a batch ahead of those that are scanned.
#pragma once

#include "common/activation.cuh"
#include "common/tokens.cuh"
#include "selective_scan/scan_few.cuh"

// What the lanes of a warp tell each other of a batch of tokens.
template <typename Shape>
struct FewShared {
    static constexpr int kBatch = 8;
    struct Step {
        float dt;
        float dt_u;
    };
    alignas(16) float matrices[kBatch][2 * Shape::kHalf];  // B, then C
    alignas(8) Step steps[kBatch][kWarpSize];              // by channel
    float y[kBatch][kWarpSize];
};

template <typename Shape_>
struct FewScan : FewStates<Shape_> {
    using Shape = Shape_;
    using Base = FewStates<Shape>;
    using T = typename Base::T;
    using State = typename Base::State;
    using Shared = FewShared<Shape>;
    using Base::kLanes, Base::kStates, Base::kRows, Base::kGroups;
    using Base::p, Base::n, Base::is_idle, Base::rate, Base::D, Base::bias;
    static constexpr int kBatch = Shared::kBatch;
    static constexpr int kWindow = kBatch;
    using Batch = Tokens<T, kBatch, 16 / static_cast<int>(sizeof(T))>;

    // The inputs of a batch, as they are in memory; `matrix` is an element of B or C.
    struct Inputs {
        Batch u;
        Batch delta;
        Batch z;
        Batch matrix;
    };

    Shared& shared;   // of the warp
    bool has_matrix;  // the lane loads an element of B or C
    const T* u;       // its own channel at token 0, as delta, z and out
    const T* delta;
    const T* z;
    T* out;
    const T* matrix;  // its element of B or C at token 0
    index_t matrix_step;
    typename Base::StateVec raw[kRows];  // the states before the next sequence, with their scales
    float scales[kRows];
    Inputs inputs, ahead;
    int batch;                        // the first token of the batch that is scanned
    int end;                          // the token behind the last sequence
    unsigned scanned = 0, zeros = 0;  // tokens of the batch that have results, and those of padding

    __device__ __forceinline__ FewScan(const SelectiveScanVarlenOperands& p_, Shared& shared_, int first_channel)
        : Base(p_, first_channel), shared(shared_) {
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

    // Loads the states before sequence i of the run.
    __device__ __forceinline__ void start_states(const SequenceRun& run, int i) {
        if (run.has_past_of(i)) {
            const int slot = run.slot_of(i);
            const StateSlots<State> pool = pool_of<State>(p);
            Base::template load_rows<Memory::kMutable>(pool.states + slot * pool.stride[0], pool.stride + 1,
                                                       p.states_is_vectors, raw);
            Base::load_scales(pool, slot, scales);
            return;
        }
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            raw[r] = Base::StateVec::zero();
            scales[r] = 1.0f;
        }
    }

    __device__ __forceinline__ void take_states(float (&h)[kRows][kStates]) const {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
#pragma unroll
            for (int i = 0; i < kStates; ++i) h[r][i] = raw[r].to_float(i) * scales[r];
        }
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

    // Advances all rows by kCount tokens of the batch, from token `first` on. All that they need is loaded before the
    // first of them is waited for.
    template <int kCount>
    __device__ __forceinline__ void advance(int first, float (&h)[kRows][kStates]) const {
        Vec<float, kStates> b[kCount], c[kCount];
        typename Shared::Step steps[kCount][kRows];
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
#pragma unroll
            for (int r = 0; r < kRows; ++r) steps[i][r] = shared.steps[first + i][r * kGroups + lane_id() / kLanes];
            const float* const matrices = shared.matrices[first + i];
            b[i] = ::load<kStates, Memory::kMutable>(matrices + n);
            c[i] = ::load<kStates, Memory::kMutable>(matrices + Shape::kHalf + n);
        }
        float sums[kCount][kRows];
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                sums[i][r] = 0.0f;
#pragma unroll
                for (int s = 0; s < kStates; ++s) {
                    const float decay = exp2_approx(steps[i][r].dt * rate[r][s]);
                    h[r][s] = fmaf(h[r][s], decay, steps[i][r].dt_u * b[i].to_float(s));
                    sums[i][r] = fmaf(c[i].to_float(s), h[r][s], sums[i][r]);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            shared.y[first + i][lane_id() % kLanes * kGroups + lane_id() / kLanes] =
                sum_rows_over_lanes<kRows, kLanes>(sums[i]);
        }
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
