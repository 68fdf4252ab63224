// The tile of packed tokens that one thread convolves in kVec channels, and the sequences of its tokens.
#pragma once

#include "causal_conv1d/conv_state.cuh"

// How many of a launch's groups of blocks have tiles, and how many have prefixes. The two are evenly mixed, so that a
// prefix is computed at about the time of its sequence's tiles and finds its tokens in the L2 cache: among the last n
// groups, floor(n * prefix_share / 2**32) have prefixes.
struct BlockGroups {
    unsigned groups;
    unsigned prefix_groups;
    unsigned prefix_share;  // prefix_groups / groups * 2**32, rounded up
};

struct GroupRole {
    bool is_prefix;
    unsigned number;  // counted among the groups of its kind

    __device__ __forceinline__ GroupRole(unsigned group, const BlockGroups& of) {
        const unsigned behind = of.groups - 1 - group;
        const unsigned prefixes = __umulhi(behind + 1, of.prefix_share);
        is_prefix = prefixes > __umulhi(behind, of.prefix_share);
        number = is_prefix ? of.prefix_groups - prefixes : group - (of.prefix_groups - prefixes);
    }
};

// The tokens in prefixes of sequences, a bit per token, for kernels that store their results.
template <bool kArePrefixes>
struct PrefixRoles {};
template <>
struct PrefixRoles<true> {
    unsigned prefix;
};

// The roles of kTokens tokens, a bit per token: `inner` ones are in a sequence, behind its prefix; `padding` is in no
// sequence, or in one without a slot.
template <int kTokens, bool kArePrefixes = false>
struct TokenRoles : PrefixRoles<kArePrefixes> {
    static constexpr unsigned kAll = (1u << kTokens) - 1;
    unsigned inner;
    unsigned padding;

    // The roles of the tokens from `token` on. All lanes take part; the tokens of each lie between `from` and `to` - 1.
    // Sequences of up to `whole` tokens are all prefix, and left out: the compiler, which does not know that, makes
    // code that is 2 % quicker where it may choose (256 single tokens of 8192 channels on an H200, 13.2 and 13.4 us).
    template <bool kAddressed>
    __device__ __forceinline__ static TokenRoles find(const CausalConv1dVarlenOperands& p, int from, int to, int token,
                                                      int halo, int whole) {
        static_assert(!kArePrefixes, "sequences that are all prefix are left out");
        TokenRoles roles{};
        visit_sequences<kAddressed>(p, from, to, max(halo, whole), [&](int begin, int end, bool is_sequence) {
            roles.add(begin, end, is_sequence, token, end - begin <= whole ? whole : halo);
        });
        return roles;
    }

    // Adds the roles that a run, a sequence or padding, gives to the tokens from `token` on.
    __device__ __forceinline__ void add(int begin, int end, bool is_sequence, int token, int halo) {
        if (is_sequence) {
            inner |= bits(begin + halo - token, end - token);
            if constexpr (kArePrefixes) this->prefix |= bits(begin - token, min(begin + halo, end) - token);
        } else {
            padding |= bits(begin - token, end - token);
        }
    }

 private:
    __device__ __forceinline__ static unsigned bits(int begin, int end) { return below(end) & ~below(begin); }
    __device__ __forceinline__ static unsigned below(int i) { return (1u << max(0, min(i, kTokens))) - 1; }
};

// The roles of the tokens of a block's tiles, which its first warps find for all of its threads: a search takes a fifth
// of the instructions of a tile. Threads load between find() and get().
template <int kTokens, int kThreads>
struct BlockRoles {
    TokenRoles<kTokens>* roles;  // in shared memory, one per tile

    __device__ __forceinline__ BlockRoles() {
        __shared__ TokenRoles<kTokens> shared[kThreads];
        roles = shared;
    }

    // All threads call this, for the tiles of the tokens from `first` on.
    template <bool kAddressed>
    __device__ __forceinline__ void find(const CausalConv1dVarlenOperands& p, int first, int tiles, int halo,
                                         int whole = 0) const {
        const int first_of_warp = static_cast<int>(threadIdx.x) - lane_id();
        if (first_of_warp >= tiles) return;
        const int from = first + first_of_warp * kTokens;
        const int to = first + min(tiles, first_of_warp + kWarpSize) * kTokens;
        const int own = min(static_cast<int>(threadIdx.x), tiles - 1);
        roles[threadIdx.x] =
            TokenRoles<kTokens>::template find<kAddressed>(p, from, to, first + own * kTokens, halo, whole);
    }

    // All threads call this.
    __device__ __forceinline__ TokenRoles<kTokens> get(int tile) const {
        __syncthreads();
        return roles[tile];
    }

    // The same: whether one of the tiles has tokens that are in no prefix.
    __device__ __forceinline__ bool have_tokens(int tiles) const {
        __syncthreads();
        unsigned tokens = 0;
        for (int i = 0; i < tiles; ++i) tokens |= roles[i].inner | roles[i].padding;
        __syncthreads();
        return tokens != 0;
    }
};

// The gates of a tile, from `token` on.
template <typename Gates, typename input_t, int kVec>
__device__ __forceinline__ Gates gates_of(const CausalConv1dVarlenOperands& p, int token, index_t channel) {
    if constexpr (kIsSame<Gates, NoGates>) {
        return {};
    } else {
        return {beside_x<input_t, kVec>(p.post_gate, p.post_gate_stride, channel, token),
                p.post_gate_stride[1],
                beside_x<input_t, kVec>(p.residual, p.residual_stride, channel, token),
                p.residual_stride[1],
                token,
                p.total};
    }
}

// A payload keeps what a later replay of the tokens needs: a row a token of the raw inputs behind the first range (k
// and v), then of two gates. The tiles store it, of all of their tokens.

// Stores the raw inputs of a tile's tokens in kVec channels, which are all of one range.
template <typename Inputs, typename input_t, int kVec, int kTokens>
__device__ __forceinline__ void store_payload(const CausalConv1dVarlenOperands& p, const Inputs& inputs, int token,
                                              index_t channel) {
    const index_t column = channel - p.range_end[0];
    if (column < 0) return;
    input_t* to = static_cast<input_t*>(p.payload) + along_channels<kVec>(column, p.payload_stride[1]) +
                  token * p.payload_stride[0];
#pragma unroll
    for (int i = 0; i < kTokens; ++i, to += p.payload_stride[0]) {
        if (token + i < p.total) store(to, inputs.x[Inputs::kHalo + i]);
    }
}

// Copies the gates of the tokens `token` to `token + count - 1`, shared out among `threads` threads.
template <typename input_t>
__device__ __forceinline__ void store_payload_gates(const CausalConv1dVarlenOperands& p, int token, int count,
                                                    int thread, int threads) {
    const int heads = static_cast<int>(p.payload_heads), last = min(token + count, p.total);
    const index_t first_column = p.range_end[p.ranges - 1] - p.range_end[0];
    for (int t = token; t < last; ++t) {
        input_t* const to =
            static_cast<input_t*>(p.payload) + t * p.payload_stride[0] + first_column * p.payload_stride[1];
        for (int i = thread; i < 2 * heads; i += threads) {
            const int gate = i < heads ? 0 : 1;
            const index_t* stride = p.payload_gates_stride + 2 * gate;
            const input_t* const from = static_cast<const input_t*>(p.payload_gates[gate]);
            to[i * p.payload_stride[1]] = from[t * stride[0] + (i - gate * heads) * stride[1]];
        }
    }
}

// The inputs of a tile's tokens and of the kWidth - 1 before it.
template <int kWidth, typename input_t, int kVec, int kTokens, bool kGated = false, Memory kMemory = Memory::kConstant>
struct TileInputs {
    static constexpr int kHalo = kWidth - 1;
    static constexpr int kRows = kHalo + kTokens;

    Vec<input_t, kVec> x[kRows];

    TileInputs() = default;

    __device__ __forceinline__ TileInputs(const CausalConv1dVarlenOperands& p, int token, index_t channel) {
        const int from = token - kHalo;
        const index_t step = p.x_stride[1];
        const input_t* at =
            static_cast<const input_t*>(p.x) + along_channels<kVec>(channel, p.x_stride[0]) + from * step;
        if (from >= 0 && from + kRows <= p.total) {
#pragma unroll
            for (int i = 0; i < kRows; ++i, at += step) x[i] = load<kVec, kMemory>(at);
        } else {
#pragma unroll
            for (int i = 0; i < kRows; ++i, at += step) {
                x[i] = Vec<input_t, kVec>::zero();
                if (from + i >= 0 && from + i < p.total) x[i] = load<kVec, kMemory>(at);
            }
        }
        if constexpr (kGated) {
            const input_t* const gate = beside_x<input_t, kVec>(p.pre_gate, p.pre_gate_stride, channel, from);
            if (gate == nullptr) return;
            Vec<input_t, kVec> gates[kRows];
            load_tokens(gates, gate, p.pre_gate_stride[1], from, p.total);
#pragma unroll
            for (int i = 0; i < kRows; ++i) x[i] = multiply(x[i], gates[i]);
        }
    }

    // The output of token i in channel c. kIsScaled: taps and bias are already scaled for silu.
    template <bool kSilu, bool kIsScaled = false>
    __device__ __forceinline__ float output(int i, int c, const float (&taps)[kWidth], float bias) const {
        float window[kWidth];
#pragma unroll
        for (int k = 0; k < kWidth; ++k) window[k] = x[i + k].to_float(c);
        return activate<input_t, kSilu, false, kIsScaled>(convolve<false>(taps, bias, window, nullptr), 0);
    }
};

// Convolves one tile. All threads of the block take part in the search; idle ones do not store.
template <typename Traits, int kWidth, typename input_t, typename weight_t, int kVec, int kTokens, bool kSilu,
          bool kAddressed, bool kGated, bool kPayload, int kWhole>
__device__ __forceinline__ void convolve_tile(const CausalConv1dVarlenOperands& p, int first_token, int tiles, int tile,
                                              index_t channel, bool is_idle) {
    const int token = first_token + tile * kTokens;
    const ChannelFilter<kWidth, weight_t, kVec> filter(p, channel);
    const TileInputs<kWidth, input_t, kVec, kTokens, kGated> inputs(p, token, channel);
    using Gates = Select<kGated, TileGates<input_t, kVec, kTokens>, NoGates>;
    const Gates gates = gates_of<Gates, input_t, kVec>(p, token, channel);
    const BlockRoles<kTokens, Traits::kThreads> block_roles;
    block_roles.template find<kAddressed>(p, first_token, tiles, kWidth - 1, whole_tokens<kWhole>(p));
    float bias[kVec];
    float taps[kVec][kWidth];
    filter.to_floats(taps, bias);
    if constexpr (Traits::kIsScaled) {
#pragma unroll
        for (int c = 0; c < kVec; ++c) scale_for_silu<input_t>(taps[c], bias[c]);
    }
    const TokenRoles<kTokens> roles = block_roles.get(tile);
    if (is_idle) return;
    if constexpr (kPayload) store_payload<decltype(inputs), input_t, kVec, kTokens>(p, inputs, token, channel);
    auto destination = destination_of<input_t, kVec, Traits::kRanges>(p, channel, 0, token);
    // Among the shortest sequences many tiles have nothing but prefixes.
    if (roles.inner == 0) {
        store_zeros(destination, roles.padding);
        return;
    }
#pragma unroll
    for (int i = 0; i < kTokens; ++i, destination.advance()) {
        float y[kVec];
#pragma unroll
        for (int c = 0; c < kVec; ++c) y[c] = inputs.template output<kSilu, Traits::kIsScaled>(i, c, taps[c], bias[c]);
        gates.apply(i, y);
        if (roles.inner >> i & 1) destination.store_vector(Vec<input_t, kVec>::from_floats(y));
    }
    store_zeros(destination_of<input_t, kVec, Traits::kRanges>(p, channel, 0, token), roles.padding);
}
