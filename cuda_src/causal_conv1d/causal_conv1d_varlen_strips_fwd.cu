// out[t] = act(bias + sum_w weight[w] * x[t - (width - 1) + w]) for packed sequences, where out is x itself.
//
// Layout: x (dim, total), dim stride 1; any strides when kVec is 1. A warp has a tile of tokens in 32 channel vectors, one
// a lane, and walks its tokens in order, kAhead of which it has loaded ahead. A window of the last kWidth - 1 inputs goes
// with it, into which a sequence's state goes where one begins, and out of which its final state comes where it ends. What
// lies before the tile comes from scratch: conv_borders.cuh.
//
// kWidth    filter taps              input_t   x and out                 weight_t  weight, and bias unless float
// state_t   the pool of states       kVec      channels an access        kSilu     silu after the sum
#include "causal_conv1d/conv_borders.cuh"

struct CausalConv1dVarlenStripsFwdParams {
    CausalConv1dVarlenOperands operands;
    FastDiv dim_warps;  // warps across the channels
    unsigned tiles;
};

template <int kWidth, typename input_t, typename weight_t, typename state_t, int kVec, bool kSilu>
struct CausalConv1dVarlenStripsFwdTraits {
    static constexpr int kThreads = 128;
    static constexpr int kMinBlocks = kWidth <= 4 ? 5 : 1;
    static constexpr int kWarps = kThreads / kWarpSize;
    static constexpr int kAhead = 8;  // tokens that are loaded ahead
    static_assert(kIsWidth<kWidth>);
};

// One lane's share of a tile.
template <typename Traits, int kWidth, typename input_t, typename weight_t, typename state_t, int kVec, bool kSilu>
struct Strip {
    static constexpr int kHalo = kWidth - 1, kAhead = Traits::kAhead;
    using Vector = Vec<input_t, kVec>;
    using Column = StateColumn<state_t, kVec>;

    const CausalConv1dVarlenOperands& p;
    int tile;
    int first;  // tokens of the tile: `first` to `last` - 1
    int last;
    index_t channel;
    bool is_idle;
    input_t* x;  // at token `first`
    index_t step;
    Vector ahead[kAhead];    // the next inputs: token t, counted from `first`, in t % kAhead
    Vector halo[kHalo + 1];  // the inputs before the tile
    float bias[kVec];
    float taps[kVec][kWidth];
    float window[kVec][kWidth];  // the inputs before the next token, and room for its own

    __device__ __forceinline__ Strip(const CausalConv1dVarlenOperands& p_, int tile_, index_t channel_)
        : p(p_), tile(tile_) {
        first = tile * p.border_tokens;
        last = min(first + p.border_tokens, p.total);
        is_idle = channel_ >= p.dim;
        // Idle lanes read another lane's memory: all take part in searches.
        channel = is_idle ? 0 : channel_;
        step = p.x_stride[1];
        x = static_cast<input_t*>(p.out[0]) + along_channels<kVec>(channel, p.x_stride[0]) + first * step;
#pragma unroll
        for (int i = 0; i < kAhead; ++i) load_ahead(i, i);
        if (tile > 0) {
            const Border<kWidth, input_t, state_t, kVec> border(p, tile, channel);
#pragma unroll
            for (int i = 0; i < kHalo; ++i) halo[i] = border.load_input(i);
        }
        ChannelFilter<kWidth, weight_t, kVec>(p, channel).to_floats(taps, bias);
#pragma unroll
        for (int c = 0; c < kVec; ++c) {
            if (kSilu) scale_for_silu<input_t>(taps[c], bias[c]);
        }
    }

    // Convolves the tokens of a run, a sequence or padding, that lie in the tile. All lanes of the warp call this, for
    // one run after another.
    __device__ __forceinline__ void walk(int number, int begin, int end, int slot, const SnapshotRows& snapshots) {
        const bool is_padding = slot < 0, is_inside = begin >= first && end <= last;
        if (!is_padding) enter(number, begin, is_inside, slot);
        int token = max(begin, first) - first;
        const int to = min(end, last) - first;
        int position = is_inside && slot >= 0 ? find_over_start(number, end - begin, slot, snapshots) : -1;
        for (int stop = position < 0 ? to : token + position;; stop = to) {
            while (token < stop) {
                const int from = token % kAhead, group = token - from, count = min(stop - group, kAhead);
                if (is_padding) {
                    pass(group, from, count);
                } else if (from == 0 && count == kAhead) {
                    convolve_group<true>(group, 0, kAhead);
                } else {
                    convolve_group<false>(group, from, count);
                }
                token = group + count;
            }
            if (position < 0) break;
            leave(slot);
            position = -1;
        }
        if (is_inside && slot >= 0 && p.has_states) leave(load_target<true>(p, number, slot));
    }

 private:
    // The position of the snapshot that overwrites the slot which a sequence in the tile goes on from; -1 for none.
    __device__ __forceinline__ int find_over_start(int number, int length, int slot,
                                                   const SnapshotRows& snapshots) const {
        for (int row = snapshots.begin; row < snapshots.end; ++row) {
            const Snapshot snapshot = load_snapshot(p, row);
            if (snapshot.sequence == number && snapshot.slot == slot && snapshot.position <= length) {
                return goes_on<true>(p, number) ? snapshot.position : -1;
            }
        }
        return -1;
    }

    // Starts to load a token, counted from `first`, as number i of those ahead.
    __device__ __forceinline__ void load_ahead(int i, int token) {
        if (token < last - first) ahead[i] = load<kVec, Memory::kMutable>(x + token * step);
    }

    template <typename T>
    __device__ __forceinline__ void see(int i, const Vec<T, kVec>& v) {
#pragma unroll
        for (int c = 0; c < kVec; ++c) window[c][i] = v.to_float(c);
    }

    // The window before the first token of a sequence in the tile. is_inside: all of the sequence lies there.
    __device__ __forceinline__ void enter(int number, int begin, bool is_inside, int slot) {
        if constexpr (kWidth > 1) {
            const bool has_past = goes_on<true>(p, number);
            if (is_inside) {
                const index_t column = p.conv_states_stride[2];
                const Column past{states_of<true, state_t>(p) + p.first_column * column +
                                      slot * p.conv_states_stride[0] + channel * p.conv_states_stride[1],
                                  p.conv_states_stride[1], p.states_are_packed != 0};
#pragma unroll
                for (int i = 0; i < kHalo; ++i) {
                    see(i, has_past ? (past + i * column).load_all() : Vec<state_t, kVec>::zero());
                }
                return;
            }
            // Inputs of the sequence that lie before the tile; those before the sequence are in its state.
            const int before = max(0, first - begin);
            const Border<kWidth, input_t, state_t, kVec> border(p, before > 0 ? tile : tile + 1, channel);
#pragma unroll
            for (int i = 0; i < kHalo; ++i) {
                if (i >= kHalo - before) {
                    see(i, halo[i]);
                } else {
                    see(i, has_past ? border.load_state(before + i) : Vec<state_t, kVec>::zero());
                }
            }
        }
    }

    // Leaves the window in a slot of the pool, -1 for none.
    __device__ __forceinline__ void leave(int target) const {
        if (target < 0 || is_idle) return;
        const index_t column = p.conv_states_stride[2];
        const Column state{static_cast<state_t*>(p.conv_states) + p.first_column * column +
                               target * p.conv_states_stride[0] + channel * p.conv_states_stride[1],
                           p.conv_states_stride[1], p.states_are_packed != 0};
#pragma unroll
        for (int i = 0; i < kHalo; ++i) {
            float values[kVec];
#pragma unroll
            for (int c = 0; c < kVec; ++c) values[c] = window[c][i];
            (state + i * column).store_all(Vec<state_t, kVec>::from_floats(values));
        }
    }

    // Passes the tokens `from` to `count` - 1 of a group, which are padding.
    __device__ __forceinline__ void pass(int group, int from, int count) {
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
            if (i < from || i >= count) continue;
            if (!is_idle && !p.keeps_padding) store(x + (group + i) * step, Vector::zero());
            load_ahead(i, group + i + kAhead);
        }
    }

    // Convolves the tokens `from` to `count` - 1 of a group. kWhole: all of its tokens.
    template <bool kWhole>
    __device__ __forceinline__ void convolve_group(int group, int from, int count) {
        input_t* at = x + group * step;
#pragma unroll
        for (int i = 0; i < kAhead; ++i, at += step) {
            if (!kWhole && (i < from || i >= count)) continue;
            see(kHalo, ahead[i]);
            load_ahead(i, group + i + kAhead);
            float y[kVec];
#pragma unroll
            for (int c = 0; c < kVec; ++c) {
                y[c] = activate<input_t, kSilu, false, kSilu>(convolve<false>(taps[c], bias[c], window[c], nullptr), 0);
#pragma unroll
                for (int k = 0; k < kHalo; ++k) window[c][k] = window[c][k + 1];
            }
            if (!is_idle) store(at, Vector::from_floats(y));
        }
    }
};

template <int kWidth, typename input_t, typename weight_t, typename state_t, int kVec, bool kSilu,
          typename Traits = CausalConv1dVarlenStripsFwdTraits<kWidth, input_t, weight_t, state_t, kVec, kSilu>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_varlen_strips_fwd_kernel(const CausalConv1dVarlenStripsFwdParams params) {
    const CausalConv1dVarlenOperands& p = params.operands;

    const unsigned warp = blockIdx.x * Traits::kWarps + threadIdx.x / kWarpSize;
    const QuotientRemainder tile_dim = divide(warp, params.dim_warps);
    if (tile_dim.quotient >= params.tiles) return;  // whole warps leave: the shuffles stay complete
    const index_t channel = (static_cast<index_t>(tile_dim.remainder) * kWarpSize + lane_id()) * kVec;
    Strip<Traits, kWidth, input_t, weight_t, state_t, kVec, kSilu> strip(p, static_cast<int>(tile_dim.quotient),
                                                                         channel);
    const SnapshotRows snapshots = find_snapshots_of_tile(p, strip.first, strip.last);
    visit_runs<true>(p, strip.first, strip.last, [&](int number, int begin, int end, int slot, unsigned left) {
        for (; left != 0; left &= left - 1) {
            const int lane = lowest(left);
            strip.walk(from_lane(number, lane), from_lane(begin, lane), from_lane(end, lane), from_lane(slot, lane),
                       snapshots);
        }
    });
}
