// Sequences of few tokens (selective_scan/scan_few.cuh) where tokens are contiguous and aligned. The next window of
// tokens, past the L1 cache, and the states of the next sequence are on their way to shared memory; results take the
// way back. Where each lane accesses vectors of its own row the L2 cache gets twice as many requests: 512 sequences of
// 8192 tokens in all keep its tags busy for 64 % of 677 us.
#pragma once

#include "common/activation.cuh"
#include "selective_scan/scan_few.cuh"

// What a warp has in shared memory.
template <typename Shape>
struct WindowShared {
    using T = typename Shape::input_t;
    using State = typename Shape::state_t;
    static constexpr int kVec = Shape::kVec;
    static constexpr int kChunks = 2;  // vectors of a window's row: a lane copies one of them, of two rows
    using Rows = Vec<T, kVec>[kWarpSize * kChunks];
    struct Step {
        float dt;
        float dt_u;
    };
    alignas(16) Rows u[2];  // by stage
    alignas(16) Rows z[2];  // in its place the results
    alignas(16) Rows delta;
    alignas(16) Rows matrix;  // B, then C
    alignas(16) PackedVec<State, Shape::kStates> states[Shape::kRows][kWarpSize];
    alignas(16) float matrices[kVec][2 * Shape::kHalf];  // B, then C of a batch
    alignas(16) Step steps[kVec][kWarpSize];             // of a batch by channel; then the sums of its lanes

    // The place of a row's vector: those that neighbouring lanes read are in different banks.
    __device__ __forceinline__ static int place(int row, int chunk) {
        return row * kChunks + (chunk ^ row / 4 % kChunks);
    }
};

// Batches are the vectors of a window.
template <typename Shape_>
struct WindowScan : FewStates<Shape_> {
    using Shape = Shape_;
    using Base = FewStates<Shape>;
    using T = typename Base::T;
    using State = typename Base::State;
    using Shared = WindowShared<Shape>;
    using Base::kLanes, Base::kStates, Base::kRows, Base::kGroups;
    using Base::p, Base::n, Base::rate, Base::D, Base::bias;
    static constexpr int kSums = kLanes / 2;  // that lanes leave of a channel, for neighbours add up theirs
    static_assert(kSums == 1 || kSums == 2, "a step has room for two sums");
    static constexpr int kVec = Shape::kVec;
    static constexpr int kChunks = Shared::kChunks;
    static constexpr int kBatch = kVec;
    static constexpr int kWindow = kChunks * kVec;
    static constexpr int kApart = kWarpSize / kChunks;  // rows between the two that a lane copies
    static constexpr unsigned kAll = (1u << kWindow) - 1;

    Shared& shared;
    const T* from_u;  // the first row that the lane copies, at its vector of a window at token 0
    const T* from_delta;
    const T* from_z;
    const T* from_B;
    const T* from_C;
    T* to_out;
    int rows_apart;                   // channels to its second row
    int rows_exist;                   // of the two
    const float* own_matrices;        // B of the lane's states at the first token of a batch
    float* own_steps;                 // the step of its first row there
    float* own_sums;                  // and its own part of that row's sum
    float scales[kRows];              // of the next sequence's states
    int batch;                        // the first token of the batch that is scanned
    int end;                          // the token behind the last sequence
    int started;                      // the first token of the window that was copied last
    bool states_last = false;         // whether states are what was started last
    unsigned scanned = 0, zeros = 0;  // tokens of the window that have results, and those of padding

    __device__ __forceinline__ WindowScan(const SelectiveScanVarlenOperands& p_, Shared& shared_, int first_channel)
        : Base(p_, first_channel),
          shared(shared_),
          own_matrices(opaque_shared(shared_.matrices[0] + n)),
          own_steps(opaque_shared(&shared_.steps[0][lane_id() / kLanes].dt)),
          own_sums(opaque_shared(&shared_.steps[0][lane_id() / kLanes + lane_id() % 2 * kGroups].dt +
                                 lane_id() / 2 % kSums)) {
        const int row = lane_id() / kChunks, chunk = lane_id() % kChunks * kVec;
        const int channel = min(first_channel + row, p.dim - 1);
        rows_apart = min(first_channel + row + kApart, p.dim - 1) - channel;
        rows_exist = (first_channel + row < p.dim) + (first_channel + row + kApart < p.dim);
        const index_t group = divide(first_channel, p.group_dim).quotient;
        from_u = static_cast<const T*>(p.u) + channel * p.u_stride[1] + chunk;
        from_delta = static_cast<const T*>(p.delta) + channel * p.delta_stride[1] + chunk;
        from_z = p.z != nullptr ? static_cast<const T*>(p.z) + channel * p.z_stride[1] + chunk : from_u;
        from_B = static_cast<const T*>(p.B) + group * p.B_stride[1] + row * p.B_stride[2] + chunk;
        from_C = static_cast<const T*>(p.C) + group * p.C_stride[1] + row * p.C_stride[2] + chunk;
        to_out = static_cast<T*>(p.out) + channel * p.out_stride[1] + chunk;
#pragma unroll
        for (int i = 0; i < kChunks; ++i) shared.matrix[i * kWarpSize + lane_id()] = Vec<T, kVec>::zero();
        sync_warp();
    }

    // Starts to copy the states before sequence i of the run, every lane its own.
    __device__ __forceinline__ void start_states(const SequenceRun& run, int i) {
        const bool has_past = run.has_past_of(i);
        const int slot = has_past ? run.slot_of(i) : 0;
        const StateSlots<State> pool = pool_of<State>(p);
        const State* const first = pool.states + slot * pool.stride[0];
        if (has_past && p.states_is_vectors) {
            Base::each_row(pool.stride + 1, [&](int r, index_t at, bool exists) {
                auto& to = shared.states[r][lane_id()];
                if (exists) {
                    constexpr int kWidth = Base::StateVec::kVec;
#pragma unroll
                    for (int k = 0; k < kStates / kWidth; ++k) {
                        copy_vector_async(&to.parts[k], first + at + k * kWidth);
                    }
                } else {
                    to = Base::StateVec::zero();
                }
            });
        } else {
            Base::each_row(pool.stride + 1, [&](int r, index_t at, bool exists) {
                shared.states[r][lane_id()] = Base::load_apart(first + at, pool.stride[2], has_past && exists);
            });
        }
#pragma unroll
        for (int r = 0; r < kRows; ++r) scales[r] = 1.0f;
        if (has_past) Base::load_scales(pool, slot, scales);
        end_copy_group();
        states_last = true;
    }

    __device__ __forceinline__ void take_states(float (&h)[kRows][kStates]) const {
        wait(states_last);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            const auto raw = shared.states[r][lane_id()];
#pragma unroll
            for (int i = 0; i < kStates; ++i) h[r][i] = raw.to_float(i) * scales[r];
        }
        sync_warp();
    }

    // Makes the batch of token t ready; the last one ends before `end_`.
    __device__ __forceinline__ void begin(int t, int end_) {
        end = end_;
        batch = t / kBatch * kBatch;
        start(t / kWindow * kWindow);
        wait_for_copies();
        sync_warp();
        prepare();
    }

    // Keeps the results of a batch and makes that of token t ready.
    __device__ __forceinline__ void go_on(int t) {
        finish_batch();
        const int window = t / kWindow * kWindow;
        if (window > batch) {
            store_window();
            scanned = zeros = 0;
            if (started != window) {
                // Another window is on its way to the same place, perhaps.
                wait_for_copies();
                start(window);
            }
            wait(!states_last);
            sync_warp();
        }
        batch = t / kBatch * kBatch;
        prepare();
    }

    __device__ __forceinline__ void finish() {
        finish_batch();
        store_window();
    }

    // Advances all rows by kCount tokens of the batch, from token `first` on.
    template <int kCount>
    __device__ __forceinline__ void advance(int first, float (&h)[kRows][kStates]) const {
        PackedVec<float, kStates> b[kCount], c[kCount];
        Vec<float, 2> steps[kCount][kRows];
        const float* const matrices = own_matrices + first * (2 * Shape::kHalf);
        const float* const from = own_steps + first * (2 * kWarpSize);
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                steps[i][r] = ::load<2, Memory::kMutable>(from + (i * kWarpSize + r * kGroups) * 2);
            }
            b[i].template load<Memory::kMutable>(matrices + 2 * i * Shape::kHalf);
            c[i].template load<Memory::kMutable>(matrices + (2 * i + 1) * Shape::kHalf);
        }
        // All lanes have read the steps in whose place sums are left. The exchange of sums waits for them, too, but
        // shuffles promise no order of memory.
        sync_warp();
        float* const to = own_sums + first * (2 * kWarpSize);
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            float sums[kRows];
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
#pragma unroll
                for (int s = 0; s < kStates; ++s) {
                    const float decay = exp2_approx(steps[i][r].to_float(0) * rate[r][s]);
                    h[r][s] = fmaf(h[r][s], decay, steps[i][r].to_float(1) * b[i].to_float(s));
                    const float of_C = c[i].to_float(s);
                    sums[r] = s == 0 ? of_C * h[r][0] : fmaf(of_C, h[r][s], sums[r]);
                }
            }
            halve_rows(sums);
#pragma unroll
            for (int r = 0; r < kRows / 2; ++r) to[(i * kWarpSize + 2 * r * kGroups) * 2] = sums[r];
        }
    }

 private:
    // Neighbouring lanes add up their sums of two rows, and keep one row each.
    __device__ __forceinline__ static void halve_rows(float (&sums)[kRows]) {
        const bool is_upper = lane_id() % 2 != 0;
#pragma unroll
        for (int r = 0; r < kRows / 2; ++r) {
            const float kept = is_upper ? sums[2 * r + 1] : sums[2 * r];
            const float sent = is_upper ? sums[2 * r] : sums[2 * r + 1];
            sums[r] = kept + from_lane(sent, lane_id() ^ 1);
        }
    }

    // Waits for what was started before the last copies, or for those, too.
    __device__ __forceinline__ static void wait(bool for_last) {
        if (for_last) {
            wait_for_copy_groups<0>();
        } else {
            wait_for_copy_groups<1>();
        }
    }

    // Starts to copy the window from token t on, the lanes of a row together.
    __device__ __forceinline__ void start(int t) {
        if (t + kWindow <= p.total) {
            each_vector(t, [](Vec<T, kVec>* to, const T* from, int, bool is_shared) {
                if (is_shared) {
                    copy_vector_async(to, from);
                } else {
                    copy_async<16, false, true>(to, from);
                }
            });
        } else {
            each_vector(
                t, [](Vec<T, kVec>* to, const T* from, int count, bool) { *to = load_part<kVec>(from, 0, count); });
        }
        end_copy_group();
        started = t;
        states_last = false;
    }

    // Visits the lane's vectors of a window: calls copy(place, from, how many tokens there are, whether the warps of a
    // block share it).
    template <typename Copy>
    __device__ __forceinline__ void each_vector(int t, Copy copy) const {
        const int lane = lane_id(), place = Shared::place(lane / kChunks, lane % kChunks);
        const int count = p.total - t - lane % kChunks * kVec, into = t / kWindow % 2;
        const index_t z_stride = p.z != nullptr ? p.z_stride[1] : p.u_stride[1];
        Vec<T, kVec>*const u = shared.u[into] + place, *const z = shared.z[into] + place;
        Vec<T, kVec>*const delta = shared.delta + place, *const matrix = shared.matrix + place;
        copy(u, from_u + t, count, false);
        copy(u + kWarpSize, from_u + rows_apart * p.u_stride[1] + t, count, false);
        copy(delta, from_delta + t, count, false);
        copy(delta + kWarpSize, from_delta + rows_apart * p.delta_stride[1] + t, count, false);
        copy(z, from_z + t, count, false);
        copy(z + kWarpSize, from_z + rows_apart * z_stride + t, count, false);
        if (lane / kChunks < p.d_state) {
            copy(matrix, from_B + t, count, true);
            copy(matrix + kWarpSize, from_C + t, count, true);
        }
    }

    // The stage of the batch's window.
    __device__ __forceinline__ int stage() const { return batch / kWindow % 2; }

    // The place of the lane's own row in the batch.
    __device__ __forceinline__ int own() const { return Shared::place(lane_id(), batch / kVec % kChunks); }

    // Tells the warp the steps and the matrices of the batch. The last one of a window starts the next one's copies.
    __device__ __forceinline__ void prepare() {
        const auto raw_delta = shared.delta[own()], raw_u = shared.u[stage()][own()], raw_matrix = shared.matrix[own()];
        float dt[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) dt[i] = raw_delta.to_float(i) + bias;
        if (p.delta_softplus) {
#pragma unroll
            for (int i = 0; i < kBatch; ++i) dt[i] = softplus(dt[i]);
        }
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
            shared.steps[i][lane_id()] = {dt[i], dt[i] * raw_u.to_float(i)};
            shared.matrices[i][lane_id()] = raw_matrix.to_float(i);
        }
        sync_warp();
        const int next = batch + kBatch;
        if (next % kWindow == 0 && next < end) start(next);
    }

    // Leaves the results of the batch in the place of z.
    __device__ __forceinline__ void finish_batch() const {
        sync_warp();
        float results[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
            const auto sums = ::load<2, Memory::kMutable>(&shared.steps[i][lane_id()].dt);
            results[i] = kSums == 2 ? sums.to_float(0) + sums.to_float(1) : sums.to_float(0);
        }
        sync_warp();
        if (p.D != nullptr) {
            const auto raw_u = shared.u[stage()][own()];
#pragma unroll
            for (int i = 0; i < kBatch; ++i) results[i] = fmaf(D, raw_u.to_float(i), results[i]);
        }
        if (p.z != nullptr) {
            const auto raw_z = shared.z[stage()][own()];
#pragma unroll
            for (int i = 0; i < kBatch; ++i) results[i] *= silu_gate(raw_z.to_float(i));
        }
        if (zeros != 0) {
#pragma unroll
            for (int i = 0; i < kBatch; ++i) {
                if ((zeros >> (batch % kWindow + i) & 1) != 0) results[i] = 0.0f;
            }
        }
        shared.z[stage()][own()] = Vec<T, kVec>::from_floats(results);
    }

    // Stores the results of the window that the batch is the last of.
    __device__ __forceinline__ void store_window() const {
        sync_warp();
        const int lane = lane_id();
        const Vec<T, kVec>* const from = shared.z[stage()] + Shared::place(lane / kChunks, lane % kChunks);
        T* const to = to_out + batch / kWindow * kWindow;
        const index_t apart = rows_apart * p.out_stride[1];
        if (scanned == kAll) {
            if (rows_exist > 0) store(to, from[0]);
            if (rows_exist > 1) store(to + apart, from[kWarpSize]);
            return;
        }
        const unsigned bits = scanned >> lane % kChunks * kVec;
#pragma unroll 1
        for (int i = 0; i < rows_exist; ++i) {
            const Vec<T, kVec> v = from[i * kWarpSize];
#pragma unroll
            for (int j = 0; j < kVec; ++j) {
                if ((bits >> j & 1) != 0) to[i * apart + j] = v.element(j);
            }
        }
    }
};
