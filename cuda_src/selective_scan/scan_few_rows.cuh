// Sequences of few tokens (selective_scan/scan_few.cuh) where channels, and states in B and C, are contiguous and
// aligned: the rows of the next batch of tokens are on their way to shared memory, and results take the way back.
#pragma once

#include "common/activation.cuh"
#include "selective_scan/scan_few.cuh"

// What a warp has in shared memory.
template <typename Shape>
struct RowsShared : BatchShared<Shape> {
    using T = typename Shape::input_t;
    using BatchShared<Shape>::kBatch;
    using Rows = T[kBatch][kWarpSize];
    static_assert(2 * Shape::kHalf == kWarpSize, "a token has as many numbers of B and C as a warp has channels");
    // The tokens of a batch, for the channels of the warp.
    struct Inputs {
        alignas(16) Rows u;
        alignas(16) Rows delta;
        alignas(16) Rows z;       // in its place the results
        alignas(16) Rows matrix;  // B, then C
    };
    Inputs inputs[2];  // by stage
};

template <typename Shape_>
struct RowsScan : BatchScan<Shape_, RowsShared<Shape_>> {
    using Base = BatchScan<Shape_, RowsShared<Shape_>>;
    using Shape = Shape_;
    using T = typename Shape::input_t;
    using Shared = typename Base::Shared;
    using Rows = typename Shared::Rows;
    using Base::batch, Base::end, Base::scanned, Base::zeros, Base::kBatch;
    using Base::p, Base::shared, Base::D, Base::bias;
    static constexpr int kVec = 16 / static_cast<int>(sizeof(T));
    static constexpr int kChunks = kWarpSize / kVec;     // vectors of a token
    static constexpr int kAtOnce = kWarpSize / kChunks;  // tokens that a warp copies at a time
    static constexpr int kRounds = kBatch / kAtOnce;
    static_assert(kRounds > 0, "all lanes copy as much");

    bool has_channels;  // those of the vectors that the lane copies exist
    bool has_states;    // the same of states
    const T* u;         // the first of them at token 0, as delta, z and out
    const T* delta;
    const T* z;
    T* out;
    const T* matrix;  // of B or C
    index_t matrix_step;
    int stage = 0;  // of the batch
    int started;    // the first token of the batch that was copied last

    __device__ __forceinline__ RowsScan(const SelectiveScanVarlenOperands& p_, Shared& shared_, int first_channel)
        : Base(p_, shared_, first_channel) {
        const int own = lane_id() % kChunks * kVec, channel = first_channel + own, state = own % Shape::kHalf;
        has_channels = channel < p.dim;
        has_states = state < p.d_state;
        u = static_cast<const T*>(p.u) + channel;
        delta = static_cast<const T*>(p.delta) + channel;
        z = static_cast<const T*>(p.z) + channel;
        out = static_cast<T*>(p.out) + channel;
        const index_t group = divide(first_channel, p.group_dim).quotient;
        const index_t* const stride = own < Shape::kHalf ? p.B_stride : p.C_stride;
        matrix = static_cast<const T*>(own < Shape::kHalf ? p.B : p.C) + group * stride[1] + state;
        matrix_step = stride[3];
        // Of states and channels that do not exist nothing is copied.
#pragma unroll
        for (int to = 0; to < 2; ++to) {
            typename Shared::Inputs& inputs = shared.inputs[to];
            clear(inputs.u);
            clear(inputs.delta);
            clear(inputs.z);
            clear(inputs.matrix);
        }
        sync_warp();
    }

    // Makes the batch of token t ready; the last one ends before `end_`.
    __device__ __forceinline__ void begin(int t, int end_) {
        end = end_;
        batch = t / kBatch * kBatch;
        start(stage, batch);
        prepare();
    }

    // Stores the results of a batch and makes that of token t ready.
    __device__ __forceinline__ void go_on(int t) {
        finish();
        scanned = zeros = 0;
        batch = t / kBatch * kBatch;
        stage ^= 1;
        if (started != batch) {
            // Another batch is on its way to the same place, perhaps.
            wait_for_copies();
            start(stage, batch);
        }
        prepare();
    }

    // Stores the results of the batch, those of a token by the lanes that copied it.
    __device__ __forceinline__ void finish() const {
        typename Shared::Inputs& inputs = shared.inputs[stage];
        sync_warp();
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
            float result = ((scanned & ~zeros) >> i & 1) != 0 ? shared.y[i][lane_id()] : 0.0f;
            if (p.D != nullptr) result = fmaf(D, Dtype<T>::to_float(inputs.u[i][lane_id()]), result);
            if (p.z != nullptr) result *= silu_gate(Dtype<T>::to_float(inputs.z[i][lane_id()]));
            inputs.z[i][lane_id()] = Dtype<T>::from_float((zeros >> i & 1) != 0 ? 0.0f : result);
        }
        sync_warp();
#pragma unroll
        for (int round = 0; round < kRounds; ++round) {
            if (!has_channels || (scanned >> token(round) & 1) == 0) continue;
            store(out + (batch + token(round)) * p.out_stride[2], load<kVec, Memory::kMutable>(place(inputs.z, round)));
        }
    }

 private:
    // The token of a batch of which the lane copies a vector, and where it is copied to.
    __device__ __forceinline__ static int token(int round) { return round * kAtOnce + lane_id() / kChunks; }
    __device__ __forceinline__ static T* place(Rows& rows, int round) {
        return &rows[token(round)][lane_id() % kChunks * kVec];
    }

    __device__ __forceinline__ static void clear(Rows& rows) {
#pragma unroll
        for (int round = 0; round < kRounds; ++round) store(place(rows, round), Vec<T, kVec>::zero());
    }

    // Starts to copy the batch of tokens from t on.
    __device__ __forceinline__ void start(int to, int t) {
        typename Shared::Inputs& inputs = shared.inputs[to];
        copy(inputs.u, u, p.u_stride[2], t, has_channels);
        copy(inputs.delta, delta, p.delta_stride[2], t, has_channels);
        if (p.z != nullptr) copy(inputs.z, z, p.z_stride[2], t, has_channels);
        copy(inputs.matrix, matrix, matrix_step, t, has_states);
        started = t;
    }

    __device__ __forceinline__ void copy(Rows& to, const T* from, index_t step, int t, bool exists) const {
#pragma unroll
        for (int round = 0; round < kRounds; ++round) {
            const int own = t + token(round);
            if (exists && own < p.total) copy_async(place(to, round), from + own * step);
        }
    }

    // Waits for the batch, tells the warp its steps and matrices, and starts to copy the next one.
    __device__ __forceinline__ void prepare() {
        const typename Shared::Inputs& inputs = shared.inputs[stage];
        wait_for_copies();
        sync_warp();
        float dt[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) dt[i] = Dtype<T>::to_float(inputs.delta[i][lane_id()]) + bias;
        if (p.delta_softplus) {
#pragma unroll
            for (int i = 0; i < kBatch; ++i) dt[i] = softplus(dt[i]);
        }
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
            shared.steps[i][lane_id()] = {dt[i], dt[i] * Dtype<T>::to_float(inputs.u[i][lane_id()])};
            shared.matrices[i][lane_id()] = Dtype<T>::to_float(inputs.matrix[i][lane_id()]);
        }
        sync_warp();
        if (batch + kBatch < end) start(stage ^ 1, batch + kBatch);
    }
};
