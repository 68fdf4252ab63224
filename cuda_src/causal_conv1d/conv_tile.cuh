// The tile of packed tokens that one thread convolves in kVec channels, and whose its tokens are.
#pragma once

#include "causal_conv1d/conv_state.cuh"

// How a launch's groups of blocks fall into those of tiles and those of heads: evenly mixed, so that a sequence's head
// is near its tokens in time as well, and finds them in the L2 cache. Counted from behind, there are floor(n *
// heads_of_groups / 2**32) groups of heads among n.
struct BlockGroups {
    unsigned groups;
    unsigned head_groups;
    unsigned heads_of_groups;
};

struct GroupRole {
    bool is_head;
    unsigned number;  // among the groups of its kind

    __device__ __forceinline__ GroupRole(unsigned group, const BlockGroups& of) {
        const unsigned behind = of.groups - 1 - group;
        const unsigned heads = __umulhi(behind + 1, of.heads_of_groups);
        is_head = heads > __umulhi(behind, of.heads_of_groups);
        number = is_head ? of.head_groups - heads : group - (of.head_groups - heads);
    }
};

// Which of kTokens tokens are inside a sequence, behind its head, and which are nobody's: a bit each.
template <int kTokens>
struct TokenRoles {
    static constexpr unsigned kAll = (1u << kTokens) - 1;
    unsigned inner;
    unsigned nobodys;

    // The roles of the tokens from `token` on. All lanes take part, and theirs lie between `from` and `to` - 1.
    __device__ __forceinline__ static TokenRoles find(const CausalConv1dVarlenOperands& p, int from, int to, int token,
                                                      int halo) {
        TokenRoles roles{0, 0};
        visit_sequences(p, from, to,
                        [&](int begin, int end, bool is_someones) { roles.add(begin, end, is_someones, token, halo); });
        return roles;
    }

    // Adds what a run of tokens means for those from `token` on.
    __device__ __forceinline__ void add(int begin, int end, bool is_someones, int token, int halo) {
        if (is_someones) {
            inner |= bits(begin + halo - token, end - token);
        } else {
            nobodys |= bits(begin - token, end - token);
        }
    }

 private:
    __device__ __forceinline__ static unsigned bits(int begin, int end) { return below(end) & ~below(begin); }
    __device__ __forceinline__ static unsigned below(int i) { return (1u << max(0, min(i, kTokens))) - 1; }
};

// The roles of the tokens of a block's tiles, which its first warps find for all: a search has as many instructions as
// a fifth of a tile. Between find() and get() there is time to convolve.
template <int kTokens, int kThreads>
struct BlockRoles {
    TokenRoles<kTokens>* roles;  // shared, one a tile

    __device__ __forceinline__ BlockRoles() {
        __shared__ TokenRoles<kTokens> shared[kThreads];
        roles = shared;
    }

    // All threads call this, for the tiles of the tokens from `first` on.
    __device__ __forceinline__ void find(const CausalConv1dVarlenOperands& p, int first, int tiles, int halo) const {
        const int first_of_warp = static_cast<int>(threadIdx.x) - lane_id();
        if (first_of_warp >= tiles) return;
        const int from = first + first_of_warp * kTokens;
        const int to = first + min(tiles, first_of_warp + kWarpSize) * kTokens;
        const int own = min(static_cast<int>(threadIdx.x), tiles - 1);
        roles[threadIdx.x] = TokenRoles<kTokens>::find(p, from, to, first + own * kTokens, halo);
    }

    // All threads call this.
    __device__ __forceinline__ TokenRoles<kTokens> get(int tile) const {
        __syncthreads();
        return roles[tile];
    }
};

// The inputs of a tile's tokens and of the kWidth - 1 before it.
template <int kWidth, typename input_t, int kVec, int kTokens>
struct TileInputs {
    static constexpr int kHalo = kWidth - 1;
    static constexpr int kRows = kHalo + kTokens;

    Vec<input_t, kVec> x[kRows];

    __device__ __forceinline__ TileInputs(const CausalConv1dVarlenOperands& p, int token, index_t channel) {
        const int from = token - kHalo;
        const index_t step = p.x_stride[1];
        const input_t* at =
            static_cast<const input_t*>(p.x) + along_channels<kVec>(channel, p.x_stride[0]) + from * step;
        if (from >= 0 && from + kRows <= p.total) {
#pragma unroll
            for (int i = 0; i < kRows; ++i, at += step) x[i] = load<kVec>(at);
        } else {
#pragma unroll
            for (int i = 0; i < kRows; ++i, at += step) {
                x[i] = Vec<input_t, kVec>::zero();
                if (from + i >= 0 && from + i < p.total) x[i] = load<kVec>(at);
            }
        }
    }

    // The output of the i-th token; kIsScaled says that taps and bias are already scaled for silu.
    template <bool kSilu, bool kIsScaled = false>
    __device__ __forceinline__ float output(int i, int c, const float (&taps)[kWidth], float bias) const {
        float window[kWidth];
#pragma unroll
        for (int k = 0; k < kWidth; ++k) window[k] = x[i + k].to_float(c);
        return activate<input_t, kSilu, false, kIsScaled>(convolve<false>(taps, bias, window, nullptr), 0);
    }
};
