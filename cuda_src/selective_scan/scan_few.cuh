// The recurrence of a selective scan through sequences of few tokens, one token after another: the states of a channel
// are in consecutive lanes, as vectors, and those of the next sequence are loaded while this one's are used. What does
// not depend on states is computed for a batch of tokens at once, by sequences or not.
#pragma once

#include "common/activation.cuh"
#include "common/tokens.cuh"
#include "selective_scan/runs.cuh"
#include "selective_scan/scan_varlen.cuh"

// kLanes lanes share kLanes channels, each lane kStates consecutive states of every one of them; and every lane of a
// warp owns one channel, for which it computes what does not depend on states. kVec tokens per access: as many as are
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
    static constexpr int kChannels = kThreads;      // per block
    static constexpr int kHalf = kLanes * kStates;  // states per channel at most
    // A lane loads one element of B or C of a token for all.
    static constexpr bool kIsPossible = 2 * kHalf <= kWarpSize;
};

// The channels of a warp, all of one group of channels, and their states. Lanes beyond the last channel repeat that
// one's work and store nothing.
template <typename Shape>
struct FewStates {
    using T = typename Shape::input_t;
    using State = typename Shape::state_t;
    static constexpr int kLanes = Shape::kLanes;
    static constexpr int kStates = Shape::kStates;
    static constexpr int kRows = Shape::kRows;
    static constexpr int kGroups = Shape::kGroups;
    using StateVec = PackedVec<State, kStates>;

    const SelectiveScanVarlenOperands& p;
    int n;                       // the first state of the lane
    int row_channel;             // the channel of its first row of states; the next row's is kGroups further
    int behind;                  // rows r with r * kGroups < behind exist
    bool is_idle;                // the lane's own channel does not exist
    float rate[kRows][kStates];  // A / log(2)
    float D;
    float bias;

    __device__ __forceinline__ FewStates(const SelectiveScanVarlenOperands& p_, int first_channel)
        : p(p_),
          n(lane_id() % kLanes * kStates),
          row_channel(first_channel + lane_id() / kLanes),
          behind(n < p.d_state ? p.dim - row_channel : 0),
          is_idle(first_channel + lane_id() >= p.dim) {
        const index_t channel = min(first_channel + lane_id(), p.dim - 1);
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

    // The least position from `from` on that has a snapshot of sequence `number`, of `length` tokens; one beyond the
    // sequence if there is none. `own` is the lane's one of the first rows.
    __device__ __forceinline__ int next_position(const SnapshotRows& rows, const Snapshot& own, int number, int from,
                                                 int length) const {
        int found = length + 1;
        for (int first = rows.begin; first < rows.end; first += kWarpSize) {
            const Snapshot row = snapshot_of(rows, own, first);
            if (row.sequence == number && row.position >= from) found = min(found, row.position);
        }
        return min_over_lanes(found);
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

    // Visits the lane's rows: calls take(row, offset of its first element, whether the row exists).
    template <typename Take>
    __device__ __forceinline__ void each_row(const index_t* stride, Take take) const {
        index_t at = row_channel * stride[0] + n * stride[1];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            take(r, at, r * kGroups < behind);
            at += kGroups * stride[0];
        }
    }

    // A row's elements at any distance; zeros where there is none.
    template <typename Element>
    __device__ __forceinline__ PackedVec<Element, kStates> load_apart(const Element* at, index_t step,
                                                                      bool exists) const {
        auto v = PackedVec<Element, kStates>::zero();
#pragma unroll
        for (int i = 0; i < kStates; ++i) {
            if (exists && n + i < p.d_state) v.put(i, at[i * step]);
        }
        return v;
    }

    // Loads elements of rows; zeros where there is no such row or element.
    template <Memory kMemory, typename Element>
    __device__ __forceinline__ void load_rows(const Element* first, const index_t* stride, int is_vectors,
                                              PackedVec<Element, kStates> (&to)[kRows]) const {
        if (is_vectors) {
            each_row(stride, [&](int r, index_t at, bool exists) {
                to[r] = PackedVec<Element, kStates>::zero();
                if (exists) to[r].template load<kMemory>(first + at);
            });
        } else {
            each_row(stride,
                     [&](int r, index_t at, bool exists) { to[r] = load_apart(first + at, stride[1], exists); });
        }
    }

    // The scales of the rows' states in a slot. Rows beyond the last channel are zeros, whatever their scale.
    __device__ __forceinline__ void load_scales(const StateSlots<State>& pool, int slot, float (&scales)[kRows]) const {
#pragma unroll
        for (int r = 0; r < kRows; ++r) scales[r] = pool.load_scale(slot, min(row_channel + r * kGroups, p.dim - 1));
    }

    __device__ __forceinline__ void store_states(const StateSlots<State>& to, int is_vectors, int slot,
                                                 const float (&h)[kRows][kStates], const StateTime& time) const {
        State* const first = to.states + slot * to.stride[0];
        float factors[kRows];
#pragma unroll
        for (int r = 0; r < kRows; ++r) factors[r] = find_factor<State, kLanes>(h[r]);
        if constexpr (kIsQuantised<State>) store_scales(to, slot, factors);
        if (is_vectors) {
            each_row(to.stride + 1, [&](int r, index_t at, bool exists) {
                if (exists) store_row(first + at, h[r], factors[r], number(r), time);
            });
        } else {
            each_row(to.stride + 1, [&](int r, index_t at, bool exists) {
#pragma unroll
                for (int i = 0; i < kStates; ++i) {
                    if (exists && n + i < p.d_state) {
                        store_state(p, first + at + i * to.stride[2], h[r][i], factors[r], number(r) + i, time);
                    }
                }
            });
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
};

// What the lanes of a warp tell each other of a batch of tokens.
template <typename Shape>
struct BatchShared {
    static constexpr int kBatch = 8;
    struct Step {
        float dt;
        float dt_u;
    };
    alignas(16) float matrices[kBatch][2 * Shape::kHalf];  // B, then C
    alignas(8) Step steps[kBatch][kWarpSize];              // by channel
    float y[kBatch][kWarpSize];
};

// What is the same however the tokens of a batch are brought. Windows are batches.
template <typename Shape_, typename Shared_>
struct BatchScan : FewStates<Shape_> {
    using Shape = Shape_;
    using Base = FewStates<Shape>;
    using State = typename Base::State;
    using Shared = Shared_;
    using Base::kLanes, Base::kStates, Base::kRows, Base::kGroups;
    using Base::p, Base::n, Base::rate;
    static constexpr int kBatch = Shared::kBatch;
    static constexpr int kWindow = kBatch;

    Shared& shared;                      // of the warp
    typename Base::StateVec raw[kRows];  // the states before the next sequence, with their scales
    float scales[kRows];
    int batch;                        // the first token of the batch that is scanned
    int end;                          // the token behind the last sequence
    unsigned scanned = 0, zeros = 0;  // tokens of the batch that have results, and those of padding

    __device__ __forceinline__ BatchScan(const SelectiveScanVarlenOperands& p_, Shared& shared_, int first_channel)
        : Base(p_, first_channel), shared(shared_) {}

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
};

// Scans the sequences of a run that have a bit in `todo`; `rows` have their snapshots.
template <bool kSnapshots, typename Scan>
__device__ __forceinline__ void walk_few(const SelectiveScanVarlenOperands& p, Scan& scan, const SequenceRun& run,
                                         unsigned todo, const SnapshotRows& rows) {
    int now = lowest(todo);
    scan.start_states(run, now);
    // Each lane knows a row of snapshots: few runs have more of them than a warp has lanes.
    Snapshot own_snapshot{-1, 0, 0};
    if (kSnapshots && rows.begin + lane_id() < rows.end) own_snapshot = load_snapshot(p, rows.begin + lane_id());
    scan.begin(uniform(run.begin_of(now)), uniform(run.end_of(highest(todo))));
#pragma unroll 1
    while (todo != 0) {
        todo &= todo - 1;
        const int begin = uniform(run.begin_of(now)), end = uniform(run.end_of(now));
        const int slot = uniform(run.slot_of(now)), target = uniform(run.target_of(now));
        const int number = run.first + now;
        float h[Scan::kRows][Scan::kStates];
        scan.take_states(h);
        if (todo != 0) {
            now = lowest(todo);
            scan.start_states(run, now);
        }
        int kept = end;  // the token in front of which the next snapshot is taken
        if (kSnapshots && slot >= 0) kept = begin + scan.next_position(rows, own_snapshot, number, 0, end - begin);
        // Borders that fall begin behind what the run has come to: wrong results, not wrong accesses.
        for (int t = max(begin, scan.batch);;) {
            if (kSnapshots && slot >= 0 && t == kept) {
                scan.keep_snapshots(rows, own_snapshot, number, t - begin, h);
                kept = begin + scan.next_position(rows, own_snapshot, number, t - begin + 1, end - begin);
            }
            if (t >= end) break;
            if (t >= scan.batch + Scan::kBatch) scan.go_on(t);
            int stop = min(end, scan.batch + Scan::kBatch);
            if (kSnapshots) stop = min(stop, max(kept, t + 1));
            const unsigned bits = ((1u << (stop - t)) - 1) << t % Scan::kWindow;
            scan.scanned |= slot >= 0 || !p.keeps_padding ? bits : 0;
            if (slot >= 0) {
                // Two at once: on an H200 0.69 ms instead of 0.72 for 512 sequences of 8192 tokens in all.
#pragma unroll 1
                for (; t + 2 <= stop; t += 2) scan.template advance<2>(t - scan.batch, h);
                if (t < stop) scan.template advance<1>(t - scan.batch, h);
            } else {
                scan.zeros |= bits;
            }
            t = stop;
        }
        if (target >= 0) {
            scan.store_states(pool_of<typename Scan::State>(p), p.states_is_vectors, target, h,
                              {number, end - begin - 1});
        }
    }
    scan.finish();
}

// Scans the sequences of a run that have few tokens, in the channels of a block from `first_channel` on.
template <typename Scan, bool kSnapshots>
__device__ __forceinline__ void scan_few(const SelectiveScanVarlenOperands& p,
                                         typename Scan::Shared (&shared)[Scan::Shape::kThreads / kWarpSize],
                                         const SequenceRun& run, int first_channel) {
    const unsigned todo = run.up_to(p.short_tokens);
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize, channel = first_channel + warp * kWarpSize;
    if (todo == 0 || channel >= p.dim) return;
    SnapshotRows rows{0, 0};
    if (kSnapshots) rows = find_snapshots(p, run.first, p.run_sequences, 0, kWarpSize, [](int) { return true; });
    Scan scan(p, shared[warp], channel);
    walk_few<kSnapshots>(p, scan, run, todo, rows);
}
