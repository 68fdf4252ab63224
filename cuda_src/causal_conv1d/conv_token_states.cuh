// States of columns with any strides, and the states that a decode step leaves after its single tokens.
#pragma once

#include "causal_conv1d/conv_update.cuh"

template <typename state_t, int kVec>
struct StateColumns {
    const CausalConv1dUpdateOperands* p;
    int slot;
    index_t channel;
    bool is_fresh;  // all columns count as zeros

    __device__ __forceinline__ Vec<state_t, kVec> load(int column) const {
        return is_fresh ? Vec<state_t, kVec>::zero() : at(column).load_all();
    }

    __device__ __forceinline__ StateColumn<state_t, kVec> at(int column) const {
        const index_t* stride = p->conv_state_stride;
        return {static_cast<state_t*>(p->conv_state) + slot * stride[0] + channel * stride[1] + column * stride[2],
                stride[1], p->states_are_packed != 0};
    }

    // Copies `count` columns of another slot, or of this one, from column `from` on to the front, in rising order: each
    // is read before it is overwritten.
    __device__ __forceinline__ void take(const StateColumns& source, int count, int from) const {
#pragma unroll 1
        for (int i = 0; i < count; ++i) at(i).store_all(source.load(from + i));
    }

    // The same columns of another slot.
    __device__ __forceinline__ StateColumns in(int slot_) const { return {p, slot_, channel, false}; }
};

// The columns of a token's intermediate window in a thread's channels.
template <typename state_t, int kVec>
struct WindowColumns {
    const CausalConv1dUpdateOperands* p;
    state_t* first;

    __device__ __forceinline__ StateColumn<state_t, kVec> at(int column) const {
        const index_t* stride = p->intermediate_conv_window_stride;
        return {first + column * stride[3], stride[2], p->window_columns_are_packed != 0};
    }
};

// The tokens of a sequence, each of which follows the one before it.
template <typename input_t, int kVec, bool kPacked>
struct Chain {
    const CausalConv1dUpdateOperands& p;
    const SequenceTokens<kPacked>& tokens;
    index_t channel;

    __device__ __forceinline__ Vec<input_t, kVec> load(int token) const {
        return load_token<kVec, input_t>(p, tokens.entry, channel, tokens.begin + token);
    }
    // The token that a token follows; -1 where it follows the state.
    __device__ __forceinline__ int parent(int token) const { return token - 1; }
    // Tokens from the first one after the state to this one, at most `most`.
    __device__ __forceinline__ int depth(int token, int most) const { return min(token + 1, most); }
};

// The columns of a sequence's slot that hold its state before the first token.
template <typename state_t, int kVec>
struct StateBefore {
    const StateColumns<state_t, kVec>& in;
    int first;
    int count;
};

// Writes to the first columns of the target the state that there is after a token. The target may be the slot that the
// state before is in: columns that move are read before they are overwritten.
template <typename Path, typename state_t, int kVec, typename Target>
__device__ __forceinline__ void store_state(const Path& path, const StateBefore<state_t, kVec>& before,
                                            const Target& target, int token) {
    const int depth = path.depth(token, before.count);
#pragma unroll 1
    for (int i = 0; i < before.count - depth; ++i) { target.at(i).store_all(before.in.load(before.first + depth + i)); }
#pragma unroll 1
    for (int i = before.count; i > before.count - depth; --i, token = path.parent(token)) {
        target.at(i - 1).store_all(convert<state_t>(path.load(token)));
    }
}

// Writes the state after each token to the token's slot and, whole, to the intermediate windows. Returns the token with
// the slot that the sequence starts from, which has to be written last, or -1.
template <typename Path, typename state_t, int kVec>
__device__ __forceinline__ int store_token_states(const Path& path, const CausalConv1dUpdateOperands& p, int batch,
                                                  const StateBefore<state_t, kVec>& before, WindowRow row) {
    int own = -1;
#pragma unroll 1
    for (int t = 0; t < path.tokens.count(p); ++t) {
        if (row.exists && p.windows_are_whole && t < p.intermediate_steps) {
            const WindowColumns<state_t, kVec> whole{&p, window_at<state_t>(p, row.number, t, before.in.channel)};
            store_state(path, before, whole, t);
        }
        const int slot = load_token_slot(p, batch, t);
        if (slot == before.in.slot) own = t;
        if (slot >= 0 && slot != before.in.slot) store_state(path, before, before.in.in(slot), t);
    }
    return own;
}
