// States of columns with any strides, and the states that a decode step leaves after its single tokens.
#pragma once

#include "causal_conv1d/conv_update_sequence.cuh"

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

    // One channel of a column.
    __device__ __forceinline__ float element(int c, int column) const {
        return is_fresh ? 0.0f : ::load<1, Memory::kMutable>(at(column).at + c * at(column).channel_step).to_float(0);
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

// Column k of kColumns of each of kVec channels.
template <typename state_t, int kVec, int kColumns>
__device__ __forceinline__ Vec<state_t, kVec> column_of(const float (&window)[kVec * kColumns], int k) {
    float values[kVec];
#pragma unroll
    for (int c = 0; c < kVec; ++c) values[c] = window[c * kColumns + k];
    return Vec<state_t, kVec>::from_floats(values);
}

// Writes all of these columns to a state, from its column `first` on.
template <typename state_t, int kVec, int kColumns, typename Target>
__device__ __forceinline__ void store_columns(const Target& target, int first, const float (&window)[kVec * kColumns]) {
#pragma unroll
    for (int k = 0; k < kColumns; ++k) {
        target.at(first + k).store_all(column_of<state_t, kVec, kColumns>(window, k));
    }
}

// The row of the intermediate windows that belongs to a sequence, if there is one.
struct WindowRow {
    index_t number;
    bool exists;

    __device__ __forceinline__ WindowRow(const CausalConv1dUpdateOperands& p, int batch, int slot) : number(slot) {
        if (p.intermediate_state_indices != nullptr) {
            number = load_index(p.intermediate_state_indices, batch * p.intermediate_state_indices_stride,
                                p.intermediate_state_indices_is_int64);
        }
        exists = p.intermediate_conv_window != nullptr && number >= 0 && number < p.intermediate_rows;
    }
};

// The intermediate window of a token, in a thread's channels.
template <typename state_t, int kVec>
struct WindowColumns {
    const CausalConv1dUpdateOperands* p;
    state_t* first;

    __device__ __forceinline__ WindowColumns(const CausalConv1dUpdateOperands& p_, const WindowRow& row, int token,
                                             index_t channel)
        : p(&p_) {
        const index_t* stride = p->intermediate_conv_window_stride;
        first = static_cast<state_t*>(p->intermediate_conv_window) + row.number * stride[0] + token * stride[1] +
                channel * stride[2];
    }

    __device__ __forceinline__ StateColumn<state_t, kVec> at(int column) const {
        const index_t* stride = p->intermediate_conv_window_stride;
        return {first + column * stride[3], stride[2], p->window_columns_are_packed != 0};
    }
};

// Writes the last kColumns inputs of each channel up to a token to the intermediate window, unless that is for whole
// states of another length. Of windows that lie over each other each has one input that the one before does not have.
template <typename state_t, int kVec, int kColumns>
__device__ __forceinline__ void store_window(const CausalConv1dUpdateOperands& p, const WindowRow& row, int token,
                                             index_t channel, const float (&window)[kVec * kColumns]) {
    if (!row.exists || token >= p.intermediate_steps || p.windows_are_one) return;
    const WindowColumns<state_t, kVec> columns(p, row, token, channel);
    if (p.windows_are_packed) {
        store_packed(columns.first, window);
        return;
    }
    const int first = p.windows_are_overlaid && token > 0 ? kColumns - 1 : 0;
#pragma unroll
    for (int k = 0; k < kColumns; ++k) {
        if (k >= first) columns.at(k).store_all(column_of<state_t, kVec, kColumns>(window, k));
    }
}

// Writes the windows of all tokens at once where they lie over each other, channel after channel: all inputs but the
// earliest. The tokens come out of the caches once more: stored one by one they would be written in pieces of 2 bytes,
// which takes three times as long.
template <int kHalo, typename input_t, bool kGated, typename state_t, int kVec, bool kPacked>
__device__ __forceinline__ void store_windows(const CausalConv1dUpdateOperands& p, const WindowRow& row,
                                              const SequenceTokens<kPacked>& tokens,
                                              const StateColumns<state_t, kVec>& source) {
    if (!row.exists || !p.windows_are_one) return;
    state_t* to = WindowColumns<state_t, kVec>(p, row, 0, source.channel).first;
    const int columns = kHalo - 1 + tokens.count(p);
    int channel = 0;
    int column = 0;
#pragma unroll 1
    for (int i = 0; i < columns; ++i, to += kVec) {
        float values[kVec];
#pragma unroll
        for (int j = 0; j < kVec; ++j) {
            const int token = column - (kHalo - 1);
            values[j] =
                token >= 0
                    ? load_token<1, input_t, kGated>(p, tokens.entry, source.channel + channel, token).to_float(0)
                    : source.element(channel, p.state_len - kHalo + 1 + column);
            if (++column == columns) {
                column = 0;
                ++channel;
            }
        }
        store(to, Vec<state_t, kVec>::from_floats(values));
    }
}

// The slot that the state after a token goes to; -1 for none.
__device__ __forceinline__ int load_token_slot(const CausalConv1dUpdateOperands& p, int batch, int token) {
    if (p.token_state_indices == nullptr || token >= p.token_state_columns) return -1;
    const index_t* stride = p.token_state_indices_stride;
    return slot_in_pool(
        p, load_index(p.token_state_indices, batch * stride[0] + token * stride[1], p.token_state_indices_is_int64));
}

// The tokens of a sequence, each of which follows the one before it.
template <typename input_t, int kVec, bool kPacked, bool kGated = false>
struct Chain {
    const CausalConv1dUpdateOperands& p;
    const SequenceTokens<kPacked>& tokens;
    index_t channel;

    __device__ __forceinline__ Vec<input_t, kVec> load(int token) const {
        return load_token<kVec, input_t, kGated>(p, tokens.entry, channel, tokens.begin + token);
    }
    // The token that a token follows; -1 where it follows the state.
    __device__ __forceinline__ int parent(int token) const { return token - 1; }
    // Tokens from the first one after the state to this one, at most `most`.
    __device__ __forceinline__ int depth(int token, int most) const { return min(token + 1, most); }
};

// Writes the state of `state_len` columns that there is after a token. The target may be the source itself: columns
// that move are read before they are overwritten.
template <typename Path, typename state_t, int kVec, typename Target>
__device__ __forceinline__ void store_state(const Path& path, const StateColumns<state_t, kVec>& source,
                                            const Target& target, int token, int state_len) {
    const int depth = path.depth(token, state_len);
#pragma unroll 1
    for (int i = 0; i < state_len - depth; ++i) target.at(i).store_all(source.load(depth + i));
    // NVRTC 13 steps from token to token by a wrong address in the second copy of this loop that a kernel has, unless
    // the token's address is computed anew each time.
#pragma unroll 1
    for (int i = state_len; i > state_len - depth; --i, token = path.parent(token)) {
        token = opaque(token);
        target.at(i - 1).store_all(convert<state_t>(path.load(token)));
    }
}

// Writes the state after each token to the token's slot and, whole, to the intermediate windows. Returns the token with
// the slot that the sequence starts from, which has to be written last, or -1.
template <typename Path, typename state_t, int kVec>
__device__ __forceinline__ int store_token_states(const Path& path, const CausalConv1dUpdateOperands& p, int batch,
                                                  const StateColumns<state_t, kVec>& source, const WindowRow& row) {
    int own = -1;
#pragma unroll 1
    for (int t = 0; t < path.tokens.count(p); ++t) {
        if (row.exists && p.windows_are_whole && t < p.intermediate_steps) {
            store_state(path, source, WindowColumns<state_t, kVec>(p, row, t, source.channel), t, p.state_len);
        }
        const int slot = load_token_slot(p, batch, t);
        if (slot == source.slot) own = t;
        if (slot >= 0 && slot != source.slot) store_state(path, source, source.in(slot), t, p.state_len);
    }
    return own;
}
