// A selective scan with the tokens of a tile shared among lanes: a tile, and the loop over tiles.
#pragma once

#include "common/activation.cuh"
#include "common/snapshots.cuh"
#include "selective_scan/tile_block.cuh"
#include "selective_scan/tile_states.cuh"

// One channel of a sequence, as a TileBlock.
template <typename Shape, typename Operands>
struct TileScan : TileBlock<Shape, Operands> {
    using Base = TileBlock<Shape, Operands>;
    using T = typename Base::T;
    using Own = typename Base::Own;
    using Inputs = typename Base::Inputs;
    using Rows = typename Base::Rows;
    using Base::is_whole, Base::own_offset, Base::store_rows;
    using Base::kByChannel;
    using Base::kVec, Base::kTokens, Base::kLanes, Base::kParts, Base::kOwn;
    using Base::p, Base::shared, Base::first_channel, Base::phase, Base::lane, Base::part, Base::local, Base::is_idle;
    using Base::u, Base::delta, Base::z, Base::out, Base::B, Base::C, Base::D, Base::bias;
    static constexpr int kAtOnce = Shape::kAtOnce;
    static constexpr bool kTakes = Shape::kTakes;
    static constexpr int kTaken = Shape::kTaken;
    // Loads z at a tile's start and holds it: 2 % quicker where registers allow it, else up to 10 % slower.
    static constexpr bool kHoldsZ = kAtOnce > 1 && !kByChannel;
    // Loads the next tile's inputs while this one is scanned. The compiler of CUDA 12.9 ends abnormally with that for
    // compute capability 12.
    static constexpr bool kIsAhead = !kByChannel && kTokens < 16 && kArch < 120;
    // Loads the next tile's inputs behind this one's states, four of which at a time leave no registers before. On an
    // H200 one sequence of 8192 tokens of 2048 channels takes 172 us so and 181 with inputs loaded where they are
    // needed. With snapshots it takes 187 and 178: storing those fills the time of such loads.
    static constexpr bool kIsSoon = !kByChannel && kTokens == 16 && kAtOnce == 4 && sizeof(T) == 2 && !kTakes;

    float steps = 0.0f;            // the sum of dt over the tokens of this lane
    const SnapshotCursor* cursor;  // of the warp, where states inside of tiles are taken
    unsigned takers = 0;           // lanes that take states in this tile, as SnapshotCursor has it

    using Base::Base;

    // Walks the tokens `begin` to `end` - 1; calls before_tile(token) before each tile's first token, which is `begin`
    // or a whole number of tiles behind it. States are in the block's shared memory, before and after; before_tile has
    // to call wait_for_states() to store them.
    template <bool kHasOutput, typename BeforeTile>
    __device__ __forceinline__ void walk(int begin, int end, BeforeTile before_tile) {
        if constexpr (Shape::kByState) {
            walk_by_state<kHasOutput>(begin, end, before_tile);
        } else if constexpr (kByChannel) {
            walk_by_channel<kHasOutput>(begin, end, before_tile);
        } else {
            walk_by_token<kHasOutput>(begin, end, before_tile);
        }
    }

 private:
    template <bool kHasOutput, typename BeforeTile>
    __device__ __forceinline__ void walk_by_token(int begin, int end, BeforeTile before_tile) {
        constexpr bool kIsDouble = Shape::kStages > 1;
        int tile = Base::first_tile(begin), stage = 0;
        if (kIsDouble) Base::template fetch<kHasOutput>(stage, 0, tile, end);
        Inputs inputs;
        if (kIsAhead || (kIsSoon && tile < end)) load_inputs(inputs, tile, begin, end);
        while (tile < end) {
            const int next = tile + Shape::kTile;
            // Brings B and C of the states from `first` on, and starts those that follow: of this tile or the next.
            const auto bring = [&](int first) {
                if (!kIsDouble) {
                    __syncthreads();
                    Base::template fetch<kHasOutput>(stage, first, tile, end);
                }
                if (!kIsAhead && !kIsSoon && first == 0) load_inputs(inputs, tile, begin, end);
                // While what has been asked for is under way.
                if (first == 0) before_tile(tile);
                if (kIsDouble && first > 0) stage ^= 1;
                Base::template await<kHasOutput>(stage, first, tile, begin);
                // They have arrived, and all threads have used those before them.
                __syncthreads();
                if (!kIsDouble) return;
                if (Shape::kIsWide && first + Shape::kStates < p.d_state) {
                    Base::template fetch<kHasOutput>(stage ^ 1, first + Shape::kStates, tile, end);
                } else if (next < end) {
                    Base::template fetch<kHasOutput>(stage ^ 1, 0, next, end);
                }
            };
            bring(0);
            const Inputs now = inputs;
            if (kIsAhead && next < end) load_inputs(inputs, next, begin, end);
            const auto load_next = [&] {
                if (kIsSoon && next < end) load_inputs(inputs, next, begin, end);
            };
            const auto nothing = [] {};
            if (is_edge(tile, begin, end) || (kTakes && (takers & SnapshotCursor::kCut) != 0)) {
                advance<kHasOutput, true>(now, stage, stage, tile, begin, end, bring, load_next, nothing);
            } else {
                advance<kHasOutput, false>(now, stage, stage, tile, begin, end, bring, load_next, nothing);
            }
            if (kIsDouble) stage ^= 1;
            tile = next;
        }
        __syncthreads();
    }

    // Where channels are contiguous, rows are copied to shared memory, a tile ahead, and turned by reading them there.
    // Results take the way back.
    template <bool kHasOutput, typename BeforeTile>
    __device__ __forceinline__ void walk_by_channel(int begin, int end, BeforeTile before_tile) {
        static_assert(!Shape::kIsWide, "B and C of all states are turned at once");
        constexpr bool kIsDouble = Shape::kStages > 1;
        // No tokens have no tile, and no chunk whose state would be kept.
        if (begin >= end) return;
        int tile = begin, stage = 0;
        Base::template copy_rows<kHasOutput>(stage, tile, end);
        if (kIsDouble) load_matrices<kHasOutput>(tile, begin, end);
        for (;;) {
            // Twice the registers: they are not held while results are finished.
            if (!kIsDouble) load_matrices<kHasOutput>(tile, begin, end);
            store_matrices<kHasOutput>(stage);
            before_tile(tile);
            const int next = tile + Shape::kTile, other = kIsDouble ? stage ^ 1 : stage;
            wait_for_copies();
            // What this tile needs has arrived, and all threads have used what was there before, and left results.
            __syncthreads();
            if (kIsDouble) {
                if (kHasOutput && tile > begin) store_rows(other, tile - Shape::kTile, end);
                // Each thread copies to where it has just read results.
                if (next < end) Base::template copy_rows<kHasOutput>(other, next, end);
            }
            const Inputs inputs{own_tokens(stage, Rows::kU), own_tokens(stage, Rows::kDelta)};
            const auto load_next = [&] {
                if (kIsDouble && next < end) load_matrices<kHasOutput>(next, begin, end);
            };
            const auto nothing = [] {};
            const auto bring = [](int) {};
            if (is_edge(tile, begin, end) || (kTakes && (takers & SnapshotCursor::kCut) != 0)) {
                advance<kHasOutput, true>(inputs, stage, stage, tile, begin, end, bring, load_next, nothing);
            } else {
                advance<kHasOutput, false>(inputs, stage, stage, tile, begin, end, bring, load_next, nothing);
            }
            if (!kIsDouble || next >= end) {
                __syncthreads();
                if (kHasOutput) store_rows(stage, tile, end);
                if (next >= end) break;
                Base::template copy_rows<kHasOutput>(stage, next, end);
            }
            stage = other;
            tile = next;
        }
        __syncthreads();
    }

    // The same with B and C as they are in global memory, copied ahead as well.
    template <bool kHasOutput, typename BeforeTile>
    __device__ __forceinline__ void walk_by_state(int begin, int end, BeforeTile before_tile) {
        constexpr bool kIsDouble = Shape::kStages > 1, kHasTwoRows = Rows::kStages > 1;
        // The load-store units take as long for 8 bytes of a token as for 128. What few channels need next is copied
        // between the states of this tile therefore: on an H200 one sequence of 8192 tokens of 512 channels takes 84 us
        // so and 96 with all copies at once, 1024 channels 126 and 144, but 2048 in blocks of 16 channels 292 and 260.
        // With a snapshot every 256 tokens 1536 channels take 204 and 226. 2048 in blocks of 8 took 238 and 225.
        constexpr bool kIsSpread = kHasTwoRows && Shape::kChannels <= (kTakes ? 4 : 8);
        if (begin >= end) return;
        int tile = begin, stage = 0, now = 0;
        Base::template copy_rows<kHasOutput>(now, tile, end);
        if (kIsDouble) copy_matrices<kHasOutput>(stage, 0, tile, begin, end);
        for (;;) {
            const int next = tile + Shape::kTile;
            const bool has_edge = is_edge(tile, begin, end);
            int left = 0;  // rows of the next tile that are still to be copied
            const auto copy_one = [&] {
                if (!kIsSpread) return;
                const bool is_left = left > 0;
                left -= is_left ? 1 : 0;
                const T* const from = left == Rows::kU ? u : left == Rows::kDelta ? delta : z;
                const index_t step = left == Rows::kU       ? p.u_stride[2]
                                     : left == Rows::kDelta ? p.delta_stride[2]
                                                            : p.z_stride[2];
                shared.rows.copy_if(is_left, now ^ 1, left, from, step, next);
            };
            // Starts what follows B and C of the states from `first` on: those of other states or of the next tile, and
            // its rows.
            const auto start_next = [&](int first) {
                if (kHasTwoRows && first == 0) {
                    if (kHasOutput && tile > begin) store_rows(now ^ 1, tile - Shape::kTile, end);
                    // Each thread copies to where it has just read results. Tiles with edges or with snapshots inside
                    // have no registers for more.
                    if (kIsSpread && is_whole(next, end) && !has_edge && (!kTakes || takers == 0)) {
                        left = kHasOutput && p.z != nullptr ? 3 : 2;
                    } else if (next < end) {
                        Base::template copy_rows<kHasOutput>(now ^ 1, next, end);
                    }
                }
                if (!kIsDouble) return;
                if (Shape::kIsWide && first + Shape::kStates < p.d_state) {
                    copy_matrices<kHasOutput>(stage ^ 1, first + Shape::kStates, tile, begin, end);
                } else if (next < end) {
                    copy_matrices<kHasOutput>(stage ^ 1, 0, next, begin, end);
                }
            };
            // Brings B and C of the states from `first` on.
            const auto bring = [&](int first) {
                if (!kIsDouble) {
                    __syncthreads();
                    copy_matrices<kHasOutput>(stage, first, tile, begin, end);
                }
                if (first == 0) before_tile(tile);
                if (kIsDouble && first > 0) stage ^= 1;
                wait_for_copies();
                // They have arrived, and all threads have used those before them, and left results.
                __syncthreads();
                if (first > 0) start_next(first);
            };
            bring(0);
            const Inputs inputs{own_tokens(now, Rows::kU), own_tokens(now, Rows::kDelta)};
            const auto start = [&] { start_next(0); };
            const auto nothing = [] {};
            if (has_edge || (kTakes && (takers & SnapshotCursor::kCut) != 0)) {
                advance<kHasOutput, true>(inputs, stage, now, tile, begin, end, bring, start, nothing);
            } else {
                advance<kHasOutput, false>(inputs, stage, now, tile, begin, end, bring, start, copy_one);
            }
            while (kIsSpread && left > 0) copy_one();
            if (!kHasTwoRows || next >= end) {
                __syncthreads();
                if (kHasOutput) store_rows(now, tile, end);
                if (next >= end) break;
                Base::template copy_rows<kHasOutput>(now, next, end);
            }
            if (kIsDouble) stage ^= 1;
            if (kHasTwoRows) now ^= 1;
            tile = next;
        }
        __syncthreads();
    }

    template <bool kHasOutput>
    __device__ __forceinline__ void copy_matrices(int stage, int first, int tile, int begin, int end) const {
        B.copy(shared.B[stage], p.B_stride[3], p.d_state, first, tile, begin, end);
        if (kHasOutput) C.copy(shared.C[stage], p.C_stride[3], p.d_state, first, tile, begin, end);
    }

    template <bool kHasOutput>
    __device__ __forceinline__ void load_matrices(int tile, int begin, int end) {
        B.load(p.B_stride[3], p.d_state, tile, begin, end);
        if (kHasOutput) C.load(p.C_stride[3], p.d_state, tile, begin, end);
    }

    template <bool kHasOutput>
    __device__ __forceinline__ void store_matrices(int stage) const {
        B.store(shared.B[stage], p.d_state);
        if (kHasOutput) C.store(shared.C[stage], p.d_state);
    }

    __device__ __forceinline__ int first_of_part() const { return Shape::kByState ? part * kAtOnce : part; }

    // The place of the first token that this lane loads in a row in shared memory.
    __device__ __forceinline__ T* own_place(int stage, int row) const {
        return shared.rows.elements[stage][row] + Rows::index(lane * kTokens, local) + part * kOwn * Shape::kChannels;
    }

    __device__ __forceinline__ Own own_tokens(int stage, int row) const { return {own_place(stage, row)}; }

    // The tokens of a whole tile, or those that count.
    __device__ __forceinline__ static void load_some(Own& to, const T* at, int first, int behind, bool is_whole) {
        if (is_whole) {
            Base::template load_own<false>(to, at, first, behind);
        } else {
            Base::template load_own<true>(to, at, first, behind);
        }
    }

    // Whether some tokens of a tile are not among `begin` to `end` - 1.
    __device__ __forceinline__ static bool is_edge(int tile, int begin, int end) {
        return tile < begin || tile + Shape::kTile > end;
    }

    __device__ __forceinline__ void load_inputs(Inputs& to, int tile, int begin, int end) const {
        const int first = begin - tile - own_offset(), behind = end - tile - own_offset();
        if (is_edge(tile, begin, end)) {
            Base::template load_own<true>(to.u, u + tile, first, behind);
            Base::template load_own<true>(to.delta, delta + tile, first, behind);
        } else {
            Base::template load_own<false>(to.u, u + tile, first, behind);
            Base::template load_own<false>(to.delta, delta + tile, first, behind);
        }
    }

    // The one of this lane's tokens that a snapshot in front of token `behind` follows.
    __device__ __forceinline__ int taken_token(int tile, int behind) const {
        const int first = tile + lane * kTokens;
        int found = 0;
        for (int i = cursor->now; i < cursor->count; ++i) {
            const int token = cursor->begin + cursor->positions[i];
            if (token >= behind) break;
            if (token > first && token <= first + kTokens) found = token - 1 - first;
        }
        return found;
    }

    // Computes dt and dt * u of the tokens that this lane loads and joins them with those of the other parts.
    template <bool kIsEdge>
    __device__ __forceinline__ void prepare(const Inputs& inputs, TileTokens<Shape>& tokens) const {
        float own_dt[kOwn], own_dt_u[kOwn];
#pragma unroll
        for (int t = 0; t < kOwn; ++t) own_dt[t] = inputs.delta.to_float(t) + bias;
        if (p.delta_softplus) {
#pragma unroll
            for (int t = 0; t < kOwn; ++t) {
                if (!tokens.template is_empty<kIsEdge>(t / kVec)) own_dt[t] = softplus(own_dt[t]);
            }
        }
#pragma unroll
        for (int t = 0; t < kOwn; ++t) {
            if (kIsEdge && (t < tokens.first || t >= tokens.behind)) own_dt[t] = 0.0f;
            own_dt_u[t] = own_dt[t] * inputs.u.to_float(t);
        }
        share_parts_over_lanes<kParts, kLanes>(own_dt, tokens.dt);
        share_parts_over_lanes<kParts, kLanes>(own_dt_u, tokens.dt_u);
        tokens.sum = 0.0f;
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
            tokens.sum += tokens.dt[t];
            tokens.y[t] = 0.0f;
        }
    }

    // Keeps the states before token `token`, by its phase behind the first one of a tile: `count` of them from `first`
    // on. Each lane of a channel does so for some. They are advanced when all lanes have met in a shuffle.
    __device__ __forceinline__ void keep_states(int token, int stage, int first, int count,
                                                const TileTokens<Shape>& tokens) const {
        constexpr int kMost = kVec - 1;
        const int own = lane_id() % Shape::kGroup, first_lane = lane_id() - own;
        float dt[kMost], dt_u[kMost];
#pragma unroll
        for (int t = 0; t < kMost; ++t) {
            dt[t] = from_lane(tokens.dt[t], first_lane);
            dt_u[t] = from_lane(tokens.dt_u[t], first_lane);
        }
        float* const kept = Base::kept_states(token);
#pragma unroll 1
        for (int n = own; n < count; n += Shape::kGroup) {
            const float rate = shared.rate[local][first + n];
            float h = shared.state[local][first + n];
            const auto b = load<kVec, Memory::kMutable>(shared.B[stage][n][0][TileShared<Shape>::column(0, 0)]);
#pragma unroll
            for (int t = 0; t < kMost; ++t) {
                const float next = fmaf(h, exp2_approx(dt[t] * rate), dt_u[t] * b.to_float(t));
                h = t < phase ? next : h;
            }
            if (!is_idle) kept[(first + n) * p.chunk_states_stride[3]] = h;
        }
    }

    // Scans one tile; tokens outside `begin` to `end` - 1 do not count. B and C are there for the first kStates states;
    // bring(first) has to bring those of others, and may change the stage. Rows are in stage `rows`. Calls load_next()
    // once, and meanwhile() between states.
    template <bool kHasOutput, bool kIsEdge, typename Bring, typename LoadNext, typename Meanwhile>
    __device__ __forceinline__ void advance(const Inputs& inputs, int& stage, int rows, int tile, int begin, int end,
                                            Bring bring, LoadNext load_next, Meanwhile meanwhile) {
        const int first = begin - tile - own_offset(), behind = end - tile - own_offset();
        Own raw_z;
        // A tile in which states are taken behind any token may be whole, too.
        const bool is_whole = !kIsEdge || (kTakes && !is_edge(tile, begin, end));
        if constexpr (kHasOutput && kHoldsZ) {
            if (p.z != nullptr) load_some(raw_z, z + tile, first, behind, is_whole);
        }
        constexpr int kAhead = (kIsAhead ? 2 : 1) * Shape::kTile;
        if (!kByChannel && is_whole && tile + kAhead + Shape::kTile <= end) {
            prefetch(u + tile + kAhead);
            prefetch(delta + tile + kAhead);
            if (kHasOutput && p.z != nullptr) prefetch(z + tile + kAhead);
        }
        TileTokens<Shape> tokens;
        tokens.first = first;
        tokens.behind = behind;
        prepare<kIsEdge>(inputs, tokens);
        if (Shape::kByState) load_next();
        steps += tokens.sum;
        for (int at = 0;;) {
            const int count = Shape::kIsWide ? min(p.d_state - at, Shape::kStates) : p.d_state;
            if constexpr (Shape::kKeepsEvery > 0) {
                const int token = tile + phase;
                if (token % Shape::kKeepsEvery == 0 && token < end) keep_states(token, stage, at, count, tokens);
            }
            if (kTakes && takers != 0) {
                const int place = __popc(takers & ((1u << lane) - 1));
                // Opaque, or else it is computed again for every state.
                tokens.row = opaque((takers >> lane & 1) != 0 ? place * Shape::kChannels + local : -1);
                tokens.taken =
                    kIsEdge && tokens.row >= 0 ? taken_token(tile, min(end, tile + Shape::kTile)) : kTokens - 1;
                for (int n = 0; n < count; n += kParts * kAtOnce) {
                    advance_states<kHasOutput, kIsEdge, kTakes>(shared, stage, local, lane, at, n + first_of_part(),
                                                                tokens, [] {});
                }
            } else {
                for (int n = 0; n < count; n += kParts * kAtOnce) {
                    advance_states<kHasOutput, kIsEdge, false>(shared, stage, local, lane, at, n + first_of_part(),
                                                               tokens, meanwhile);
                }
            }
            at += Shape::kStates;
            if (!Shape::kIsWide || at >= p.d_state) break;
            bring(at);
        }
        if (!Shape::kByState) load_next();
        if (!kHasOutput) return;
        sum_parts_over_lanes<kParts, kLanes>(tokens.y);
        if constexpr (kByChannel) raw_z = own_tokens(rows, Rows::kZ);
        float results[kOwn];
#pragma unroll
        for (int t = 0; t < kOwn; ++t) {
            const float with_D = fmaf(D, inputs.u.to_float(t), tokens.y[t]);
            // Without D not with 0 * u, which for an infinite u is NaN.
            results[t] = p.D != nullptr ? with_D : tokens.y[t];
        }
        if (p.z != nullptr) {
            if constexpr (!kHoldsZ && !kByChannel) load_some(raw_z, z + tile, first, behind, is_whole);
#pragma unroll
            for (int t = 0; t < kOwn; ++t) results[t] *= silu_gate(raw_z.to_float(t));
        }
        if constexpr (kByChannel) {
            T* const place = own_place(rows, Rows::kZ);
#pragma unroll
            for (int t = 0; t < kOwn; ++t) place[t * Shape::kChannels] = Dtype<T>::from_float(results[t]);
            return;
        }
        if (is_idle) return;
        T* const at = out + tile;
        if (is_whole || (first <= 0 && behind >= kOwn)) {
            store_tokens<kVec>(at, 1, results);
            return;
        }
#pragma unroll
        for (int t = 0; t < kOwn; ++t) {
            if (t >= first && t < behind) at[t] = Dtype<T>::from_float(results[t]);
        }
    }
};
