// A selective scan by lanes that each have some of a channel's states in registers and walk all of its tokens, a sweep
// at a time. With B and C of a tile turned into floats once for all channels of a block it takes 8 to 11 instructions
// per exponential, where lanes that share tokens (selective_scan/scan_tiles.cuh) take 12 to 15, but it needs channels
// to fill a GPU with. On an H200, of 4096 tokens of 5120 channels or 2048 of 8 x 5120: loading a sweep's inputs where
// they are used takes 242 us instead of 203, and 691 instead of 571; five blocks of 96 registers 693; preparing the
// next sweep among the exponentials of this one 201 and 702. Warps that take the tokens of the same channels in turn
// read B and C too often for the bandwidth of shared memory: 338 us.
#pragma once

#include "selective_scan/scan_tiles.cuh"

// In place of what a walk calls to keep states inside of it.
struct NoSnapshots {
    static constexpr bool kExist = false;
};

// One channel of a sequence, in the lanes of a group, as a TileBlock.
template <typename Shape, typename Operands>
struct SweepScan : TileBlock<Shape, Operands> {
    using Base = TileBlock<Shape, Operands>;
    using T = typename Base::T;
    using Own = typename Base::Own;
    using Inputs = typename Base::Inputs;
    using Sweep = SweepShared<Shape>;
    using Matrices = typename Base::MatrixLoads;
    using Rows = typename Base::Rows;
    using Base::kByChannel;
    using Base::kVec, Base::p, Base::shared, Base::channel, Base::local, Base::part, Base::bias, Base::D;
    using Base::u, Base::delta, Base::z, Base::out, Base::is_idle, Base::B, Base::C;
    static constexpr int kOwn = Shape::kOwn;
    static constexpr int kParts = Shape::kParts;
    static constexpr int kStates = Shape::kAtOnce;
    static constexpr int kSweep = Shape::kSweep;
    static constexpr int kMatrix = Shape::kStates * Sweep::kPitch;          // floats of one matrix
    static constexpr int kStep = Sweep::kWarpChannels * Sweep::kStepPitch;  // floats of dt, with those of dt * u behind

    using Base::Base;

    // As TileScan::walk(). States inside of it go to `snapshots`.
    template <bool kHasOutput, typename BeforeTile, typename Snapshots = NoSnapshots>
    __device__ __forceinline__ void walk(int begin, int end, BeforeTile before_tile, Snapshots snapshots = {}) {
        const int warp = static_cast<int>(threadIdx.x / 32u), in_warp = local % Sweep::kWarpChannels;
        const T* const copied = opaque_shared(Matrices::copied(shared.B[0]));
        float* const turned = opaque_shared(Matrices::turned(shared.sweep.matrices[0][0]));
        float* const matrices = opaque_shared(shared.sweep.matrices[0][0][part]);
        float* const steps = opaque_shared(shared.sweep.steps[warp][0][in_warp]);
        float* const state = opaque_shared(&shared.state[local][part]);
        int tile = kByChannel ? begin : Base::first_tile(begin), stage = 0;
        fetch<kHasOutput>(stage, tile, begin, end);
        Inputs inputs;
        if constexpr (!kByChannel) load_inputs(inputs, tile, begin, end);
        float rate[kStates], h[kStates];
        // The next states are kept in front of token `kept`, in the sweep from `kept_in` on.
        const int origin = tile;
        int kept = 0, kept_in = 0;
        const auto keep_next = [&](int token) {
            kept = token;
            // Unsigned, for no token is as far as can be, and a row's phase lies in front of its first one.
            const unsigned from = static_cast<unsigned>(origin);
            kept_in = static_cast<int>(from + (static_cast<unsigned>(token) - from) / kSweep * kSweep);
        };
        if constexpr (Snapshots::kExist) keep_next(snapshots.next());
        for (bool is_first = true;; is_first = false) {
            before_tile(tile);
            const int next = tile + Shape::kTile;
            if constexpr (kByChannel) {
                wait_for_copies();
            } else {
                Base::template await<kHasOutput>(0, 0, tile, begin);
            }
            Matrices::to_floats(copied, turned + stage * 2 * kMatrix);
            if (kHasOutput) {
                Matrices::to_floats(copied + Shape::kStates * Shape::kTile, turned + stage * 2 * kMatrix + kMatrix);
            }
            // The matrices of this tile have arrived, and all threads have used those of the tile before.
            __syncthreads();
            if constexpr (kByChannel) {
                // Each thread copies to where it has just read results.
                if (kHasOutput && !is_first) Base::store_rows(stage ^ 1, tile - Shape::kTile, end);
            }
            if (next < end) fetch<kHasOutput>(stage ^ 1, next, begin, end);
            if (is_first) {
#pragma unroll
                for (int s = 0; s < kStates; ++s) {
                    rate[s] = shared.rate[local][part + s * kParts];
                    h[s] = state[s * kParts];
                }
            }
            const float* from = matrices + stage * 2 * kMatrix;
#pragma unroll 1
            for (int at = tile; at < min(next, end); at += kSweep) {
                if constexpr (kByChannel)
                    inputs = {own(stage, Rows::kU, at - tile), own(stage, Rows::kDelta, at - tile)};
                // Nothing else reads the lane's states in shared memory before the walk ends.
                if (Snapshots::kExist && at == kept_in) keep_states(state, h);
                if (at < begin || at + kSweep > end) {
                    sweep<kHasOutput, true>(inputs, from, steps, rate, h, stage, tile, at, begin, end);
                } else {
                    sweep<kHasOutput, false>(inputs, from, steps, rate, h, stage, tile, at, begin, end);
                }
                if constexpr (Snapshots::kExist) {
                    // The sweep's tokens in front of each snapshot once more: code that takes states among the tokens
                    // would take registers from all sweeps.
                    for (int first = 0; at == kept_in;) {
                        repeat(from, steps, rate, state, first, kept - at);
                        first = kept - at;
                        keep_next(snapshots.store(*this, state, kept));
                    }
                }
                from += Sweep::place(kSweep);
            }
            keep_states(state, h);
            if (next >= end) break;
            stage ^= 1;
            tile = next;
        }
        if constexpr (Snapshots::kExist) {
            if (kept == end) snapshots.store(*this, state, kept);
        }
        __syncthreads();
        if constexpr (kByChannel) {
            if (kHasOutput) Base::store_rows(stage, tile, end);
        }
    }

    // Stores this lane's states of its channel.
    template <typename State>
    __device__ __forceinline__ void store_own(const float* states, const StateSlots<State>& to, int slot,
                                              const StateTime& time) const {
        float factor = 1.0f;
        if constexpr (kIsQuantised<State>) {
            float magnitude = 0.0f;
#pragma unroll
            for (int s = 0; s < kStates; ++s) magnitude = max_or_nan(magnitude, fabsf(states[s * kParts]));
#pragma unroll
            for (int parts = 2, step = 1; parts <= kParts; parts *= 2, step = 64 / parts) {
                magnitude = max_or_nan(magnitude, from_lane(magnitude, lane_id() ^ step));
            }
            factor = code_factor<State>(magnitude);
        }
        if (is_idle) return;
        // Opaque, or else what follows from them takes registers through the whole walk.
        const int own = opaque(channel), first = opaque(part);
        State* const at = to.states + slot * to.stride[0] + own * to.stride[1] + first * to.stride[2];
        const index_t number = static_cast<index_t>(own) * p.d_state + first;
#pragma unroll
        for (int s = 0; s < kStates; ++s) {
            store_state(p, at + s * kParts * to.stride[2], states[s * kParts], factor, number + s * kParts, time);
        }
        if (kIsQuantised<State> && first == 0) *to.scale(slot, own) = scale_of_factor(factor);
    }

    // Keeps them as those before a token.
    static constexpr int kKeepsEvery = Shape::kKeepsEvery;
    __device__ __forceinline__ void keep_own(const float* states, int token) const {
        if (is_idle) return;
        float* const kept = Base::kept_states(token) + part * p.chunk_states_stride[3];
#pragma unroll
        for (int s = 0; s < kStates; ++s) kept[s * kParts * p.chunk_states_stride[3]] = states[s * kParts];
    }

 private:
    __device__ __forceinline__ static void keep_states(float* to, const float (&h)[kStates]) {
#pragma unroll
        for (int s = 0; s < kStates; ++s) to[s * kParts] = h[s];
    }

    // Advances states in shared memory by the tokens `first` to `behind` - 1 of the sweep that has just been done.
    __device__ __forceinline__ static void repeat(const float* from, const float* steps, const float (&rate)[kStates],
                                                  float* state, int first, int behind) {
        float h[kStates];
#pragma unroll
        for (int s = 0; s < kStates; ++s) h[s] = state[s * kParts];
#pragma unroll 1
        for (int t = first; t < behind; ++t) {
            const float dt = steps[t], dt_u = steps[t + kStep];
            const float* const row = from + Sweep::place(t / 4 * 4) + t % 4;
#pragma unroll
            for (int s = 0; s < kStates; ++s) {
                const float decay = exp2_approx(dt * rate[s]);
                h[s] = fmaf(h[s], decay, dt_u * row[s * kParts * Sweep::kPitch]);
            }
        }
        keep_states(state, h);
    }

    // Starts the copies of a tile.
    template <bool kHasOutput>
    __device__ __forceinline__ void fetch(int stage, int tile, int begin, int end) const {
        if constexpr (kByChannel) {
            B.copy(shared.B[0], p.B_stride[3], tile, begin, end);
            if (kHasOutput) C.copy(shared.C[0], p.C_stride[3], tile, begin, end);
            Base::template copy_rows<kHasOutput>(stage, tile, end);
        } else {
            Base::template fetch<kHasOutput>(0, 0, tile, end);
        }
    }

    // The lane's own tokens of a row in the sweep `token` tokens behind the beginning of the tile.
    __device__ __forceinline__ T* own_place(int stage, int row, int token) const {
        return shared.rows.elements[stage][row] + Rows::index(token + part * kOwn, local);
    }
    __device__ __forceinline__ Own own(int stage, int row, int token) const { return {own_place(stage, row, token)}; }

    // Loads the lane's own tokens of the sweep from token `at` on.
    __device__ __forceinline__ void load_inputs(Inputs& to, int at, int begin, int end) const {
        const int first = begin - at - part * kOwn, behind = end - at - part * kOwn;
        if (at < begin || at + kSweep > end) {
            Base::template load_own<true>(to.u, u + at, first, behind);
            Base::template load_own<true>(to.delta, delta + at, first, behind);
        } else {
            Base::template load_own<false>(to.u, u + at, first, behind);
            Base::template load_own<false>(to.delta, delta + at, first, behind);
        }
    }

    // Scans the tokens of one sweep with B, and behind it C, at `from`; leaves the inputs of the next.
    template <bool kHasOutput, bool kIsEdge>
    __device__ __forceinline__ void sweep(Inputs& inputs, const float* from, float* steps, const float (&rate)[kStates],
                                          float (&h)[kStates], int stage, int tile, int at, int begin, int end) {
        const int first = begin - at - part * kOwn, behind = end - at - part * kOwn;
        float own_dt[kOwn], own_dt_u[kOwn];
#pragma unroll
        for (int t = 0; t < kOwn; ++t) own_dt[t] = inputs.delta.to_float(t) + bias;
        if (p.delta_softplus) {
#pragma unroll
            for (int t = 0; t < kOwn; ++t) own_dt[t] = softplus(own_dt[t]);
        }
#pragma unroll
        for (int t = 0; t < kOwn; ++t) {
            if (kIsEdge && (t < first || t >= behind)) own_dt[t] = 0.0f;
            own_dt_u[t] = own_dt[t] * inputs.u.to_float(t);
        }
        // All lanes have used the steps of the sweep before.
        sync_warp();
        store_packed(steps + part * kOwn, own_dt);
        store_packed(steps + part * kOwn + kStep, own_dt_u);
        sync_warp();
        const Own raw_u = inputs.u;
        Own raw_z;
        if constexpr (kByChannel) {
            raw_z = own(stage, Rows::kZ, at - tile);
        } else {
            if (kHasOutput && p.z != nullptr) Base::template load_own<kIsEdge>(raw_z, z + at, first, behind);
            if (at + kSweep < end) load_inputs(inputs, at + kSweep, begin, end);
        }
        float y[kSweep];
#pragma unroll
        for (int t = 0; t < kSweep; t += 4) {
            const auto dt = load<4, Memory::kMutable>(steps + t), dt_u = load<4, Memory::kMutable>(steps + t + kStep);
#pragma unroll
            for (int s = 0; s < kStates; ++s) {
                const float* const row = from + s * kParts * Sweep::kPitch + Sweep::place(t);
                const auto b = load<4, Memory::kMutable>(row);
                Vec<float, 4> c;
                if (kHasOutput) c = load<4, Memory::kMutable>(row + kMatrix);
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const float decay = exp2_approx(dt.to_float(j) * rate[s]);
                    h[s] = fmaf(h[s], decay, dt_u.to_float(j) * b.to_float(j));
                    if (kHasOutput) y[t + j] = s == 0 ? c.to_float(j) * h[s] : fmaf(c.to_float(j), h[s], y[t + j]);
                }
            }
        }
        if (kHasOutput) finish<kIsEdge>(raw_u, raw_z, y, stage, tile, at, first, behind);
    }

    // Sums results up over the lanes, applies D and z, and stores.
    template <bool kIsEdge>
    __device__ __forceinline__ void finish(const Own& raw_u, const Own& raw_z, float (&y)[kSweep], int stage, int tile,
                                           int at, int first, int behind) {
        if constexpr (kParts > 2) halve_over_lanes<1, 16, kSweep / 2>(y);
        if constexpr (kParts > 4) halve_over_lanes<1, 8, kSweep / 4>(y);
        halve_over_lanes<1, 1, kOwn>(y);
        float results[kOwn];
#pragma unroll
        for (int t = 0; t < kOwn; ++t) {
            const float with_D = fmaf(D, raw_u.to_float(t), y[t]);
            // Without D not with 0 * u, which for an infinite u is NaN.
            results[t] = p.D != nullptr ? with_D : y[t];
        }
        if (p.z != nullptr) {
#pragma unroll
            for (int t = 0; t < kOwn; ++t) results[t] *= silu_gate(raw_z.to_float(t));
        }
        if constexpr (kByChannel) {
            T* const place = own_place(stage, Rows::kZ, at - tile);
#pragma unroll
            for (int t = 0; t < kOwn; ++t) place[t * Shape::kChannels] = Dtype<T>::from_float(results[t]);
            return;
        }
        if (is_idle) return;
        T* const to = out + at;
        if (!kIsEdge || (first <= 0 && behind >= kOwn)) {
            store_tokens<kVec>(to, 1, results);
            return;
        }
#pragma unroll
        for (int t = 0; t < kOwn; ++t) {
            if (t >= first && t < behind) to[t] = Dtype<T>::from_float(results[t]);
        }
    }
};

// The scan of a shape.
template <typename Shape, typename Operands>
using ScanOf = Select<Shape::kSweeps, SweepScan<Shape, Operands>, TileScan<Shape, Operands>>;
