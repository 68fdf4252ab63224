// What a warp of a step with rings loads: of its sequence, of its heads, and of their tiles of rows.
#pragma once

#include "selective_state_update/replay.cuh"

// What a warp does for a sequence.
struct SequenceStep {
    int slot;
    int entry;
    int begin;
    int tokens;
    int live;      // live tokens that count
    bool goes_on;  // from the state in memory
    bool folds;    // the live tokens go to the state
};

// x of the live tokens in the rows of a tile, by accesses of kXVecs rows of one token a lane.
template <typename Traits>
struct LiveInputs {
    using input_t = typename Traits::Input;
    static constexpr int kVec = Traits::kXVecs;
    static constexpr int kRowLanes = Traits::kTile / kVec;  // lanes that share a token's rows
    static constexpr int kTokens = kWarpSize / kRowLanes;   // tokens at once
    static constexpr int kPasses = (Traits::kWindows + kTokens - 1) / kTokens;

    Vec<input_t, kVec> x[kPasses];

    // The lane's token of a pass.
    __device__ __forceinline__ static int token(int pass) { return pass * kTokens + lane_id() / kRowLanes; }

    __device__ __forceinline__ void load(const ReplayOperands& p, const RingCursor& cursor, const WarpRows& warp,
                                         const input_t* ring, int live) {
        const int row = warp.first_row + lane_id() % kRowLanes * kVec;
#pragma unroll
        for (int pass = 0; pass < kPasses; ++pass) {
            x[pass] = Vec<input_t, kVec>::zero();
            if (token(pass) < live && row < p.operands.headdim) {
                x[pass] = ::load<kVec, Memory::kMutable>(ring + cursor.row(p, token(pass)) * p.operands.headdim + row);
            }
        }
    }

    // The sum of weight * x over the tokens, of the row that the lane stands for; each lane has one token's weight.
    __device__ __forceinline__ float sum(float weight) const {
        float sums[kVec];
#pragma unroll
        for (int i = 0; i < kVec; ++i) sums[i] = 0.0f;
#pragma unroll
        for (int pass = 0; pass < kPasses; ++pass) {
            const float own = from_lane(weight, token(pass));
#pragma unroll
            for (int i = 0; i < kVec; ++i) sums[i] = fmaf(own, x[pass].to_float(i), sums[i]);
        }
        sum_parts_over_lanes<kTokens, kRowLanes>(sums);
        const int row = lane_id() % Traits::kTile;
        if constexpr (kVec <= kTokens) {
            return from_lane(sums[0], row % kVec * kRowLanes + row / kVec);
        } else {
            constexpr int kLeft = kVec / kTokens;
            float found = 0.0f;
#pragma unroll
            for (int i = 0; i < kLeft; ++i) {
                const float each = from_lane(sums[i], row % kVec / kLeft * kRowLanes + row / kVec);
                if (row % kLeft == i) found = each;
            }
            return found;
        }
    }
};

// The inputs of one tile, as they are in memory.
template <typename Traits>
struct TileInputs {
    typename Traits::StateVec raw[Traits::kRowsOfGroup][Traits::kChunks];
    LiveInputs<Traits> old;
    float scale;
    RawNumber<typename Traits::Input> D;
    TokenInputs<Traits> inputs;  // of the first new token
};

// The inputs of one head, as they are in memory.
template <typename Traits>
struct HeadInputs {
    float step;                            // dt' of the lane's live token
    RawNumber<typename Traits::Input> dt;  // of the lane's new token
    RowParameters<Traits> parameters;
};

// Where the inputs of a tile are.
template <typename Traits>
struct TileCursor {
    using input_t = typename Traits::Input;

    WarpRows warp;
    StateRows<Traits> rows;
    Ring<Traits> ring;
    TokenCursor<Traits> token;  // the first new one
    int row;                    // the row that the lane stands for

    // Goes on to the next tile of the head.
    __device__ __forceinline__ void advance(const SelectiveStateUpdateOperands& p) {
        warp.first_row += Traits::kTile;
        rows = rows + Traits::kRowsOfGroup * rows.row_step;
        const int before = row;
        row = min(warp.first_row + lane_id() % Traits::kTile, p.headdim - 1);
        token.move_rows(p, row - before);
        token.is_row = warp.is_row(p, Traits::kTile);
    }

    __device__ __forceinline__ TileCursor(const ReplayOperands& p, const WarpRows& warp, const SequenceStep& step)
        : warp(warp),
          rows(StateRows<Traits>(p.operands.state, p.operands.state_stride + 1, warp) +
               step.slot * p.operands.state_stride[0]),
          ring(p, step.slot, warp.head),
          token(p.operands, warp, step.entry, step.begin) {
        row = min(warp.first_row + lane_id() % Traits::kTile, p.operands.headdim - 1);
    }

    __device__ __forceinline__ void load(const ReplayOperands& p, const RingCursor& cursor, const SequenceStep& step,
                                         TileInputs<Traits>& to) const {
        if (step.goes_on && warp.first_row + Traits::kTile <= p.operands.headdim) {
#pragma unroll
            for (int r = 0; r < Traits::kRowsOfGroup; ++r) {
#pragma unroll
                for (int i = 0; i < Traits::kChunks; ++i) {
                    to.raw[r][i] = Traits::StateVec::zero();
                    if (Traits::element(i) < Traits::d_state(p.operands)) {
                        to.raw[r][i] = ::load<Traits::kVecs, Memory::kMutable>(rows.at(r, i));
                    }
                }
            }
        } else {
#pragma unroll
            for (int r = 0; r < Traits::kRowsOfGroup; ++r) {
                load_row<Traits>(p.operands, warp, rows, r, to.raw[r], step.goes_on);
            }
        }
        to.scale = 1.0f;
        if (Traits::kIsQuantised && step.goes_on) {
            to.scale = load_scale<Traits>(scale_of_slot<Traits>(p, warp, step.slot));
        }
        to.old.load(p, cursor, warp, ring.x, step.live);
        // The other lanes stand for no row, or for one that another lane stands for.
        if (!token.is_row) return;
        to.inputs.load(p.operands, token);
        if (p.operands.D != nullptr) {
            const index_t* stride = p.operands.D_stride;
            to.D.load(p.operands.D, warp.head * stride[0] + warp.own_row(p.operands) * stride[1],
                      p.operands.D_is_float32);
        }
    }

    __device__ __forceinline__ void load(const ReplayOperands& p, const RingCursor& cursor, const SequenceStep& step,
                                         HeadInputs<Traits>& to) const {
        to.step = load_steps<Traits>(p, ring, cursor, step.live);
        to.parameters.load(p.operands, warp);
        const int own = Traits::kHasMany ? min(lane_id(), step.tokens - 1) : 0;
        to.dt.load(p.operands.dt, token.after(p.operands, own).dt, p.operands.dt_is_float32);
    }
};

// What the tiles of a head share: decays, and the weights of tokens.
template <typename Traits>
struct Head {
    Weights weights;
    float step;   // dt' of the lane's new token; 0 beyond them
    float power;  // of 2, by which that token decays what was before it

    __device__ __forceinline__ Head(const ReplayOperands& p, const HeadInputs<Traits>& inputs, int tokens)
        : weights(kLog2E * inputs.parameters.A[0][0].to_float(0), inputs.step) {
        step = step_length<Traits>(p.operands, inputs.parameters, inputs.dt);
        if (lane_id() >= tokens) step = 0.0f;
        power = kLog2E * inputs.parameters.A[0][0].to_float(0) * step;
    }
};
