// The recurrence of a selective scan through sequences of few tokens, one token after another: the states of a channel
// are in consecutive lanes, as vectors, and those of the next sequence are loaded while this one's are used. What does
// not depend on states is computed for a batch of tokens at once, by sequences or not.
#pragma once

#include "common/activation.cuh"
#include "common/tokens.cuh"
#include "selective_scan/runs.cuh"
#include "selective_scan/scan_varlen.cuh"

// kLanes lanes share kLanes channels, each lane kStates consecutive states of every one of them; and every lane of a
// warp owns one channel, for which it loads u, delta and z and stores results, kBatch tokens at a time. kVec tokens per
// access: as many as are aligned together, or 1 with any strides.
template <int kThreads_, typename T, typename State, int kLanes_, int kStates_, int kVec_>
struct FewShape {
    using input_t = T;
    using state_t = State;
    static constexpr int kThreads = kThreads_;
    static constexpr int kLanes = kLanes_;
    static constexpr int kStates = kStates_;
    static constexpr int kVec = kVec_;
    static constexpr int kBatch = 8;
    static constexpr int kRows = kLanes;
    static constexpr int kGroups = kWarpSize / kLanes;
    static constexpr int kChannels = kThreads;  // per block
    // A lane loads one element of B or C of a token for all.
    static constexpr bool kIsPossible = 2 * kLanes * kStates <= kWarpSize;
};

// What the lanes of a warp tell each other of a batch of tokens.
template <typename Shape>
struct FewShared {
    struct Step {
        float dt;
        float dt_u;
    };
    static constexpr int kHalf = Shape::kLanes * Shape::kStates;
    alignas(16) float matrices[Shape::kBatch][2 * kHalf];  // B, then C
    alignas(8) Step steps[Shape::kBatch][kWarpSize];       // by channel
    float y[Shape::kBatch][kWarpSize];
};

// The channels of a warp, all of one group of channels. Lanes beyond the last channel repeat that one's work and store
// nothing.
template <typename Shape>
struct FewScan {
    using T = typename Shape::input_t;
    using State = typename Shape::state_t;
    using Shared = FewShared<Shape>;
    static constexpr int kLanes = Shape::kLanes;
    static constexpr int kStates = Shape::kStates;
    static constexpr int kRows = Shape::kRows;
    static constexpr int kGroups = Shape::kGroups;
    static constexpr int kVec = Shape::kVec;
    static constexpr int kBatch = Shape::kBatch;
    using StateVec = PackedVec<State, kStates>;
    using Batch = Tokens<T, kBatch, 16 / static_cast<int>(sizeof(T))>;

    // The inputs of a batch, as they are in memory; `matrix` is an element of B or C.
    struct Inputs {
        Batch u;
        Batch delta;
        Batch z;
        Batch matrix;
    };

    const SelectiveScanVarlenOperands& p;
    Shared& shared;   // of the warp
    int n;            // the first state of the lane
    int row_channel;  // the channel of its first row of states; the next row's is kGroups further
    int behind;       // rows r with r * kGroups < behind exist
    bool is_idle;     // the lane's own channel does not exist
    bool has_matrix;  // the lane loads an element of B or C
    const T* u;       // its own channel at token 0, as delta, z and out
    const T* delta;
    const T* z;
    T* out;
    const T* matrix;  // its element of B or C at token 0
    index_t matrix_step;
    float rate[kRows][kStates];  // A / log(2)
    float D;
    float bias;

    __device__ __forceinline__ FewScan(const SelectiveScanVarlenOperands& p_, Shared& shared_, int first_channel)
        : p(p_),
          shared(shared_),
          n(lane_id() % kLanes * kStates),
          row_channel(first_channel + lane_id() / kLanes),
          behind(n < p.d_state ? p.dim - row_channel : 0),
          is_idle(first_channel + lane_id() >= p.dim) {
        const index_t channel = min(first_channel + lane_id(), p.dim - 1);
        const index_t group = divide(first_channel, p.group_dim).quotient;
        u = static_cast<const T*>(p.u) + channel * p.u_stride[1];
        delta = static_cast<const T*>(p.delta) + channel * p.delta_stride[1];
        z = static_cast<const T*>(p.z) + channel * p.z_stride[1];
        out = static_cast<T*>(p.out) + channel * p.out_stride[1];
        const bool is_B = lane_id() < Shared::kHalf;
        const int state = lane_id() % Shared::kHalf;
        has_matrix = lane_id() < 2 * Shared::kHalf && state < p.d_state;
        const index_t* stride = is_B ? p.B_stride : p.C_stride;
        matrix = static_cast<const T*>(is_B ? p.B : p.C) + group * stride[1] + state * stride[2];
        matrix_step = stride[3];
        RawNumber<T> raw_d, raw_bias;
        if (p.D != nullptr) raw_d.load(p.D, channel * p.D_stride, p.D_is_float32);
        if (p.delta_bias != nullptr) {
            raw_bias.load(p.delta_bias, channel * p.delta_bias_stride, p.delta_bias_is_float32);
        }
        PackedVec<float, kStates> a[kRows];
        load_rows<Memory::kConstant>(static_cast<const float*>(p.A), p.A_stride, p.A_is_vectors, a);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
#pragma unroll
            for (int i = 0; i < kStates; ++i) rate[r][i] = a[r].to_float(i) * kLog2E;
        }
        D = raw_d.to_float(p.D_is_float32);
        bias = raw_bias.to_float(p.delta_bias_is_float32);
    }

    // Scans the sequences of the run that have a bit in `todo`; `rows` have their snapshots.
    template <bool kSnapshots>
    __device__ __forceinline__ void walk(const SequenceRun& run, unsigned todo, const SnapshotRows& rows) {
        int now = lowest(todo);
        StateVec raw[kRows];
        float scales[kRows];
        load_states(run, now, raw, scales);
        // Each lane knows a row of snapshots: few runs have more of them than a warp has lanes.
        Snapshot own_snapshot{-1, 0, 0};
        if (kSnapshots && rows.begin + lane_id() < rows.end) own_snapshot = load_snapshot(p, rows.begin + lane_id());
        const int run_end = uniform(run.end_of(highest(todo)));
        int batch = uniform(run.begin_of(now)) / kBatch * kBatch;  // the first token of the batch that is scanned
        Inputs inputs, ahead;
        load(inputs, batch);
        unsigned scanned = 0, zeros = 0;  // tokens of the batch that have results, and those of padding
        prepare(inputs);
        load(ahead, batch + kBatch < run_end ? batch + kBatch : batch);
#pragma unroll 1
        while (todo != 0) {
            todo &= todo - 1;
            const int begin = uniform(run.begin_of(now)), end = uniform(run.end_of(now));
            const int slot = uniform(run.slot_of(now)), target = uniform(run.target_of(now));
            const int number = run.first + now;
            float h[kRows][kStates];
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
#pragma unroll
                for (int i = 0; i < kStates; ++i) h[r][i] = raw[r].to_float(i) * scales[r];
            }
            if (todo != 0) {
                now = lowest(todo);
                load_states(run, now, raw, scales);
            }
            int kept = end;  // the token in front of which the next snapshot is taken
            if (kSnapshots && slot >= 0) kept = begin + next_position(rows, own_snapshot, number, 0, end - begin);
            for (int t = begin;;) {
                if (kSnapshots && slot >= 0 && t == kept) {
                    keep_snapshots(rows, own_snapshot, number, t - begin, h);
                    kept = begin + next_position(rows, own_snapshot, number, t - begin + 1, end - begin);
                }
                if (t >= end) break;
                if (t >= batch + kBatch) {
                    finish(inputs, batch, scanned, zeros);
                    const int next = t / kBatch * kBatch;
                    if (next != batch + kBatch) load(ahead, next);
                    inputs = ahead;
                    batch = next;
                    scanned = zeros = 0;
                    prepare(inputs);
                    if (batch + kBatch < run_end) load(ahead, batch + kBatch);
                }
                int stop = min(end, batch + kBatch);
                if (kSnapshots) stop = min(stop, max(kept, t + 1));
                const unsigned bits = (1u << (stop - batch)) - (1u << (t - batch));
                scanned |= slot >= 0 || !p.keeps_padding ? bits : 0;
                if (slot >= 0) {
                    // Two at once: on an H200 0.69 ms instead of 0.72 for 512 sequences of 8192 tokens in all.
#pragma unroll 1
                    for (; t + 2 <= stop; t += 2) advance<2>(t - batch, h);
                    if (t < stop) advance<1>(t - batch, h);
                } else {
                    zeros |= bits;
                }
                t = stop;
            }
            if (target >= 0) {
                store_states(pool_of<State>(p), p.states_is_vectors, target, h, {number, end - begin - 1});
            }
        }
        finish(inputs, batch, scanned, zeros);
    }

 private:
    // The least position from `from` on that has a snapshot of sequence `number`, of `length` tokens; one beyond the
    // sequence if there is none. `own` is the lane's one of the first rows.
    __device__ __forceinline__ int next_position(const SnapshotRows& rows, const Snapshot& own, int number, int from,
                                                 int length) const {
        int found = length + 1;
        for (int first = rows.begin; first < rows.end; first += kWarpSize) {
            const Snapshot row = snapshot_of(rows, own, first);
            if (row.sequence == number && row.position >= from) found = min(found, row.position);
        }
#pragma unroll
        for (int distance = 1; distance < kWarpSize; distance *= 2) {
            found = min(found, from_lane(found, lane_id() ^ distance));
        }
        return uniform(found);
    }

    // The lane's row of the 32 rows from `first` on.
    __device__ __forceinline__ Snapshot snapshot_of(const SnapshotRows& rows, const Snapshot& own, int first) const {
        if (first == rows.begin) return own;
        return first + lane_id() < rows.end ? load_snapshot(p, first + lane_id()) : Snapshot{-1, 0, 0};
    }

    // Stores the snapshots of sequence `number` after `position` tokens; `own` is the lane's one of the first rows.
    __device__ __forceinline__ void keep_snapshots(const SnapshotRows& rows, const Snapshot& own, int number,
                                                   int position, const float (&h)[kRows][kStates]) const {
        for (int first = rows.begin; first < rows.end; first += kWarpSize) {
            const Snapshot row = snapshot_of(rows, own, first);
            unsigned hits = lanes_where(row.sequence == number && row.position == position);
            for (; hits != 0; hits &= hits - 1) {
                const int slot = from_lane(row.slot, lowest(hits));
                store_states(snapshots_of<State>(p), p.snapshots_is_vectors, slot, h, {number, position - 1});
            }
        }
    }

    // Loads elements of rows; zeros where there is no such row or element.
    template <Memory kMemory, typename Element>
    __device__ __forceinline__ void load_rows(const Element* first, const index_t* stride, int is_vectors,
                                              PackedVec<Element, kStates> (&to)[kRows]) const {
        const Element* at = first + row_channel * stride[0] + n * stride[1];
#pragma unroll
        for (int r = 0; r < kRows; ++r) to[r] = PackedVec<Element, kStates>::zero();
        if (is_vectors) {
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                if (r * kGroups < behind) to[r].template load<kMemory>(at);
                at += kGroups * stride[0];
            }
            return;
        }
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
#pragma unroll
            for (int i = 0; i < kStates; ++i) {
                if (r * kGroups < behind && n + i < p.d_state) to[r].put(i, at[i * stride[1]]);
            }
            at += kGroups * stride[0];
        }
    }

    // Loads the states before sequence i of the run.
    __device__ __forceinline__ void load_states(const SequenceRun& run, int i, StateVec (&raw)[kRows],
                                                float (&scales)[kRows]) const {
        if (run.has_past_of(i)) {
            const int slot = run.slot_of(i);
            const StateSlots<State> pool = pool_of<State>(p);
            load_rows<Memory::kMutable>(pool.states + slot * pool.stride[0], pool.stride + 1, p.states_is_vectors, raw);
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                // Rows beyond the last channel are zeros, whatever their scale.
                scales[r] = pool.load_scale(slot, min(row_channel + r * kGroups, p.dim - 1));
            }
            return;
        }
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            raw[r] = StateVec::zero();
            scales[r] = 1.0f;
        }
    }

    __device__ __forceinline__ void store_states(const StateSlots<State>& to, int is_vectors, int slot,
                                                 const float (&h)[kRows][kStates], const StateTime& time) const {
        const index_t* stride = to.stride;
        State* at = to.states + slot * stride[0] + row_channel * stride[1] + n * stride[2];
        float factors[kRows];
#pragma unroll
        for (int r = 0; r < kRows; ++r) factors[r] = find_factor<State, kLanes>(h[r]);
        if constexpr (kIsQuantised<State>) store_scales(to, slot, factors);
        if (is_vectors) {
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                if (r * kGroups < behind) store_row(at, h[r], factors[r], number(r), time);
                at += kGroups * stride[1];
            }
            return;
        }
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
#pragma unroll
            for (int i = 0; i < kStates; ++i) {
                if (r * kGroups < behind && n + i < p.d_state) {
                    store_state(p, at + i * stride[2], h[r][i], factors[r], number(r) + i, time);
                }
            }
            at += kGroups * stride[1];
        }
    }

    // The number in its slot of the lane's first state in row r.
    __device__ __forceinline__ index_t number(int r) const {
        return static_cast<index_t>(row_channel + r * kGroups) * p.d_state + n;
    }

    // Stores the lane's states of a row by as few accesses as possible.
    __device__ __forceinline__ void store_row(State* at, const float (&states)[kStates], float factor, index_t number,
                                              const StateTime& time) const {
        constexpr int kWidth = StateVec::kVec;
#pragma unroll
        for (int i = 0; i < kStates; i += kWidth) {
            float part[kWidth];
#pragma unroll
            for (int j = 0; j < kWidth; ++j) part[j] = states[i + j];
            ::store<Keep::kWhole>(at + i, round_states<State>(p, part, factor, number + i, time));
        }
    }

    // Stores the scales of a slot: lane r of a group that of its row r.
    __device__ __forceinline__ void store_scales(const StateSlots<State>& to, int slot,
                                                 const float (&factors)[kRows]) const {
        const int own = lane_id() % kLanes;
        float factor = factors[0];
#pragma unroll
        for (int r = 1; r < kRows; ++r) factor = own == r ? factors[r] : factor;
        const int channel = row_channel + own * kGroups;
        if (channel < p.dim) *to.scale(slot, channel) = scale_of_factor(factor);
    }

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
        } else if constexpr (kVec == 1) {
            to.clear();
#pragma unroll
            for (int i = 0; i < kBatch; ++i) to.parts[i / Batch::kAccess].put(i % Batch::kAccess, at[i * step]);
        } else {
            to.load(at, 1);
        }
    }

    // Tells the warp the steps and the matrices of a batch.
    __device__ __forceinline__ void prepare(const Inputs& inputs) const {
        float dt[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) dt[i] = inputs.delta.to_float(i) + bias;
        if (p.delta_softplus) {
#pragma unroll
            for (int i = 0; i < kBatch; ++i) dt[i] = softplus(dt[i]);
        }
#pragma unroll
        for (int i = 0; i < kBatch; ++i) shared.steps[i][lane_id()] = {dt[i], dt[i] * inputs.u.to_float(i)};
        if (lane_id() < 2 * Shared::kHalf) {
#pragma unroll
            for (int i = 0; i < kBatch; ++i) shared.matrices[i][lane_id()] = inputs.matrix.to_float(i);
        }
        sync_warp();
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
            c[i] = ::load<kStates, Memory::kMutable>(matrices + Shared::kHalf + n);
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

    // Stores the results of the batch of tokens from t on, a bit each in `scanned` and, for zeros, in `zeros`.
    __device__ __forceinline__ void finish(const Inputs& inputs, int t, unsigned scanned, unsigned zeros) const {
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
        T* const at = out + t * p.out_stride[2];
        if (kVec > 1 && scanned == (1u << kBatch) - 1) {
            store_tokens<kVec>(at, 1, results);
            return;
        }
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
            if ((scanned >> i & 1) != 0) at[i * p.out_stride[2]] = Dtype<T>::from_float(results[i]);
        }
    }
};

// Scans the sequences of a run that have few tokens, in the channels of a block from `first_channel` on.
template <typename Shape, bool kSnapshots>
__device__ __forceinline__ void scan_few(const SelectiveScanVarlenOperands& p,
                                         FewShared<Shape> (&shared)[Shape::kThreads / kWarpSize],
                                         const SequenceRun& run, int first_channel) {
    const unsigned todo = run.up_to(p.short_tokens);
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize, channel = first_channel + warp * kWarpSize;
    if (todo == 0 || channel >= p.dim) return;
    SnapshotRows rows{0, 0};
    if (kSnapshots) rows = find_snapshots(p, run.first, p.run_sequences, 0, kWarpSize, [](int) { return true; });
    FewScan<Shape>(p, shared[warp], channel).template walk<kSnapshots>(run, todo, rows);
}
