// Results over x: a tile of packed tokens may find other tiles' results in the place of the inputs before it, and a
// state that is final already. So an earlier launch, causal_conv1d_varlen_borders, keeps both in scratch: at each
// border between two tiles the kWidth - 1 inputs before it, and the state that a sequence which crosses the border has
// started from. That launch also updates the states of such sequences, so that each other sequence lies in one tile,
// with its state. Where channels are contiguous, causal_conv1d_varlen_prefixes keeps the inputs, and has all states.
#pragma once

#include "causal_conv1d/conv_snapshots.cuh"

// The scratch memory of one border, in kVec channels: (kWidth - 1, dim) inputs, and as many columns of a state.
template <int kWidth, typename input_t, typename state_t, int kVec>
struct Border {
    static constexpr int kHalo = kWidth - 1;

    input_t* input;
    state_t* state;
    index_t step;

    // The border in front of tile `tile`, which is not the first.
    __device__ __forceinline__ Border(const CausalConv1dVarlenOperands& p, int tile, index_t channel) : step(p.dim) {
        const index_t at = (tile - 1) * kHalo * step + channel;
        input = static_cast<input_t*>(p.scratch) + at;
        state = reinterpret_cast<state_t*>(static_cast<char*>(p.scratch) + p.border_states_at) + at;
    }

    // Keeps the inputs before the border.
    __device__ __forceinline__ void keep_inputs(const CausalConv1dVarlenOperands& p, int tile, index_t channel) const {
        const input_t* const x = static_cast<const input_t*>(p.x) + along_channels<kVec>(channel, p.x_stride[0]) +
                                 (tile * p.border_tokens - kHalo) * p.x_stride[1];
        Vec<input_t, kVec> inputs[kHalo];
#pragma unroll
        for (int i = 0; i < kHalo; ++i) inputs[i] = load<kVec>(x + i * p.x_stride[1]);
#pragma unroll
        for (int i = 0; i < kHalo; ++i) store(input + i * step, inputs[i]);
    }

    __device__ __forceinline__ input_t* input_at(int i) const { return input + i * step; }
    __device__ __forceinline__ state_t* state_at(int i) const { return state + i * step; }

    // Input i of those before the border.
    __device__ __forceinline__ Vec<input_t, kVec> load_input(int i) const {
        return load<kVec, Memory::kMutable>(input + i * step);
    }
    // Column i of the state that the sequence across the border has started from.
    __device__ __forceinline__ Vec<state_t, kVec> load_state(int i) const { return load<kVec>(state + i * step); }
};

// Whether a sequence lies in one tile.
__device__ __forceinline__ bool is_in_tile(const CausalConv1dVarlenOperands& p, const SnapshotSource& source) {
    return source.begin / p.border_tokens == (source.begin + source.length - 1) / p.border_tokens;
}

// Whether the launch that keeps borders leaves a snapshot to the tile of its sequence, which reads the slot that the
// snapshot overwrites.
__device__ __forceinline__ bool is_left_to_tile(const CausalConv1dVarlenOperands& p, const Snapshot& snapshot,
                                                const SnapshotSource& source) {
    return source.goes_on && source.is_over_start(p, snapshot) && is_in_tile(p, source);
}

// The rows that have all snapshots that are left to the tile of the tokens `from` to `to` - 1. All lanes of a warp take
// part.
__device__ __forceinline__ SnapshotRows find_snapshots_of_tile(const CausalConv1dVarlenOperands& p, int from, int to) {
    if (p.snapshot_rows == 0 || !p.snapshots_in_pool) return {0, 0};
    return find_snapshots(p, 0, p.sequences, 0, kWarpSize, [&](int row) {
        const Snapshot snapshot = load_snapshot(p, row);
        if (snapshot.sequence < 0) return false;
        const SnapshotSource source(p, snapshot.sequence);
        return source.begin >= from && source.begin < to && source.has(snapshot) &&
               is_left_to_tile(p, snapshot, source);
    });
}
