// The recurrence of a selective scan through sequences of few tokens, one token after another: the states of a channel
// are in consecutive lanes, as vectors, and those of the next sequence are loaded while this one's are used.
#pragma once

#include "common/activation.cuh"
#include "common/tokens.cuh"
#include "selective_scan/runs.cuh"
#include "selective_scan/scan_varlen.cuh"

// kLanes lanes share kLanes channels, each lane kStates consecutive states of every one of them; and every lane of a
// warp owns one channel, for which it loads u, delta and z and stores results. kVec tokens per access: as many as are
// aligned together, or 1 with any strides.
template <int kThreads_, typename T, typename State, int kLanes_, int kStates_, int kVec_>
struct FewShape {
    using input_t = T;
    using state_t = State;
    static constexpr int kThreads = kThreads_;
    static constexpr int kLanes = kLanes_;
    static constexpr int kStates = kStates_;
    static constexpr int kVec = kVec_;
    static constexpr int kRows = kLanes;
    static constexpr int kGroups = kWarpSize / kLanes;
    static constexpr int kChannels = kThreads;  // per block
    // A lane loads one element of B or C of a token for all.
    static constexpr bool kIsPossible = 2 * kLanes * kStates <= kWarpSize;
};

// The channels of a warp, all of one group of channels. Lanes beyond the last channel repeat that one's work and store
// nothing.
template <typename Shape>
struct FewScan {
    using T = typename Shape::input_t;
    using State = typename Shape::state_t;
    static constexpr int kLanes = Shape::kLanes;
    static constexpr int kStates = Shape::kStates;
    static constexpr int kRows = Shape::kRows;
    static constexpr int kGroups = Shape::kGroups;
    static constexpr int kVec = Shape::kVec;
    using StateVec = PackedVec<State, kStates>;

    // The inputs of kVec tokens, as they are in memory; `matrices` is an element of B or C.
    struct Inputs {
        Vec<T, kVec> u;
        Vec<T, kVec> delta;
        Vec<T, kVec> z;
        Vec<T, kVec> matrices;
    };

    const SelectiveScanVarlenOperands& p;
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

    __device__ __forceinline__ FewScan(const SelectiveScanVarlenOperands& p_, int first_channel)
        : p(p_),
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
        // The first kLanes lanes load element 0 of every lane's states of B, the next element 1, …, and then those of
        // C.
        const int number = lane_id() / kLanes, state = n + number % kStates;
        const bool is_B = number < kStates;
        has_matrix = number < 2 * kStates && state < p.d_state;
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
        Inputs inputs;
        int first = run.begin_of(now) / kVec * kVec;
        load(inputs, first);
        // Each lane knows a row of snapshots: few runs have more of them than a warp has lanes.
        Snapshot own_snapshot{-1, 0, 0};
        if (kSnapshots && rows.begin + lane_id() < rows.end) own_snapshot = load_snapshot(p, rows.begin + lane_id());
#pragma unroll 1
        while (todo != 0) {
            todo &= todo - 1;
            const int begin = run.begin_of(now), end = run.end_of(now), slot = run.slot_of(now);
            const int target = run.target_of(now);
            const bool is_written = !is_idle && (slot >= 0 || !p.keeps_padding);
            const int next = todo == 0 ? now : lowest(todo);
            const int next_begin = run.begin_of(next);
            float h[kRows][kStates];
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
#pragma unroll
                for (int i = 0; i < kStates; ++i) h[r][i] = raw[r].to_float(i) * scales[r];
            }
            if (todo != 0) load_states(run, next, raw, scales);
#pragma unroll 1
            for (int t = begin; kSnapshots || t < end; ++t) {
                if constexpr (kSnapshots) {
                    if (slot >= 0) keep_snapshots(rows, own_snapshot, run.first + now, t - begin, h);
                    if (t == end) break;
                }
                const int following = (t + 1 < end ? t + 1 : next_begin) / kVec * kVec;
                Inputs ahead = inputs;
                // Several tokens take too many registers to hold the next ones, too.
                if (kVec == 1) load(ahead, following);
                const float result = advance(inputs, t - first, h);
                if (is_written)
                    out[static_cast<unsigned>(t) * p.out_stride[2]] = Dtype<T>::from_float(slot < 0 ? 0.0f : result);
                if (kVec == 1) inputs = ahead;
                if (kVec > 1 && following != first) load(inputs, following);
                first = following;
            }
            if (target >= 0) {
                store_states(pool_of<State>(p), p.states_is_vectors, target, h, {run.first + now, end - begin - 1});
            }
            now = next;
        }
    }

 private:
    // Stores the snapshots of sequence `number` after `position` tokens; `own` is the lane's one of the first rows.
    __device__ __forceinline__ void keep_snapshots(const SnapshotRows& rows, const Snapshot& own, int number,
                                                   int position, const float (&h)[kRows][kStates]) const {
        for (int from = rows.begin; from < rows.end; from += kWarpSize) {
            Snapshot row = own;
            if (from > rows.begin) {
                row = from + lane_id() < rows.end ? load_snapshot(p, from + lane_id()) : Snapshot{-1, 0, 0};
            }
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

    // Loads kVec tokens from t on. Unsigned, because a stride times a signed number takes twice the instructions.
    __device__ __forceinline__ void load(Inputs& to, unsigned t) const {
        const int there = p.total - static_cast<int>(t);
        load(to.u, u, t, p.u_stride[2], there);
        load(to.delta, delta, t, p.delta_stride[2], there);
        if (p.z != nullptr) load(to.z, z, t, p.z_stride[2], there);
        to.matrices = Vec<T, kVec>::zero();
        if (has_matrix) load(to.matrices, matrix, t, matrix_step, there);
    }

    __device__ __forceinline__ static void load(Vec<T, kVec>& to, const T* row, unsigned t, index_t step, int there) {
        if (kVec == 1) {
            to = ::load<kVec>(row + t * step);
        } else if (kVec > there) {
            to = load_part<kVec>(row + t, 0, there);
        } else {
            to = ::load<kVec>(row + t);
            if (2 * kVec <= there) prefetch(row + t + kVec);
        }
    }

    // Advances all rows by token `number` of the inputs and returns the result of the lane's own channel.
    __device__ __forceinline__ float advance(const Inputs& inputs, int number, float (&h)[kRows][kStates]) const {
        const float own_u = any_element(inputs.u, number);
        const float v = any_element(inputs.delta, number) + bias;
        const float dt = p.delta_softplus ? softplus(v) : v;
        const float dt_u = dt * own_u;
        const float matrices = any_element(inputs.matrices, number);
        float b[kStates], c[kStates];
#pragma unroll
        for (int i = 0; i < kStates; ++i) {
            b[i] = from_lane(matrices, i * kLanes + lane_id() % kLanes);
            c[i] = from_lane(matrices, (kStates + i) * kLanes + lane_id() % kLanes);
        }
        float sums[kRows];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            const int owner = r * kGroups + lane_id() / kLanes;
            const float row_dt = from_lane(dt, owner), row_dt_u = from_lane(dt_u, owner);
            sums[r] = 0.0f;
#pragma unroll
            for (int i = 0; i < kStates; ++i) {
                h[r][i] = fmaf(h[r][i], exp2_approx(row_dt * rate[r][i]), row_dt_u * b[i]);
                sums[r] = fmaf(c[i], h[r][i], sums[r]);
            }
        }
        const float sum = sum_rows_over_lanes<kRows, kLanes>(sums);
        float y = from_lane(sum, lane_id() % kGroups * kLanes + lane_id() / kGroups);
        if (p.D != nullptr) y = fmaf(D, own_u, y);
        return p.z == nullptr ? y : y * silu_gate(any_element(inputs.z, number));
    }
};

// Scans the sequences of a run that have few tokens, in the channels of a block from `first_channel` on.
template <typename Shape, bool kSnapshots>
__device__ __forceinline__ void scan_few(const SelectiveScanVarlenOperands& p, const SequenceRun& run,
                                         int first_channel) {
    const unsigned todo = run.between(0, p.few_tokens);
    const int channel = first_channel + static_cast<int>(threadIdx.x) / kWarpSize * kWarpSize;
    if (todo == 0 || channel >= p.dim) return;
    SnapshotRows rows{0, 0};
    if (kSnapshots) rows = find_snapshots(p, run.first, p.run_sequences, 0, kWarpSize, [](int) { return true; });
    FewScan<Shape>(p, channel).template walk<kSnapshots>(run, todo, rows);
}
