// out[t] = act(bias + sum_w weight[w] * x[t - (width - 1) + w]) for packed sequences, where out is x itself.
//
// Layout: x (dim, total), dim stride 1; any strides when kVec is 1. A warp has a tile of tokens in 32 channel vectors,
// one a lane, and walks its tokens in order, kAhead of which it has loaded ahead. A window of the last kWidth - 1
// inputs goes with it, into which a sequence's state goes where one begins, and out of which its final state comes
// where it ends. What lies before the tile comes from scratch: conv_borders.cuh.
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
    static constexpr int kLeanBlocks = 4;
    static constexpr int kMinBlocks = kWidth <= 4 ? kLeanBlocks : 1;
    static constexpr int kWarps = kThreads / kWarpSize;
    static constexpr int kAhead = 8;  // tokens that are loaded ahead
    static constexpr int kFar = 6;    // runs that are between one and another with a state that is prefetched
    static_assert(kIsWidth<kWidth>);
};

// A run of tokens that reaches into a tile: a sequence, or padding between sequences.
struct StripRun {
    int number;
    int begin;
    int end;
    int slot;    // -1 for padding
    int target;  // the slot of the final state, -1 for none
    bool has_past;
};

// One lane's share of a tile.
template <typename Traits, int kWidth, typename input_t, typename weight_t, typename state_t, int kVec, bool kSilu>
struct Strip {
    static constexpr int kHalo = kWidth - 1, kAhead = Traits::kAhead;
    using Vector = Vec<input_t, kVec>;
    using State = Vec<state_t, kVec>;
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
    State past[kHalo + 1];   // the state that the next run goes on from
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

    // Starts to load the state that a run goes on from, if results of the tile need it.
    __device__ __forceinline__ void load_past(const StripRun& run) {
#pragma unroll
        for (int i = 0; i < kHalo; ++i) past[i] = State::zero();
        if (!run.has_past) return;
        if (is_inside(run)) {
            const Column column = column_in(states_of<true, state_t>(p), run.slot);
#pragma unroll
            for (int i = 0; i < kHalo; ++i) past[i] = (column + i * p.conv_states_stride[2]).load_all();
        } else {
            const int before = tokens_before(run);
            const Border<kWidth, input_t, state_t, kVec> border(p, before > 0 ? tile : tile + 1, channel);
#pragma unroll
            for (int i = 0; i < kHalo; ++i) {
                if (i < kHalo - before) past[i] = border.load_state(before + i);
            }
        }
    }

    // Brings the state that a sequence in the tile goes on from into the L2 cache, for all lanes of the warp.
    __device__ __forceinline__ void prefetch_state(int slot, index_t first_channel) const {
        constexpr int kLine = 128, kLines = (kWarpSize * Vec<state_t, kVec>::kBytes + kLine - 1) / kLine;
        const index_t at = first_channel + lane_id() % kLines * (kLine / static_cast<int>(sizeof(state_t)));
        if (lane_id() < kHalo * kLines && at < p.dim) {
            prefetch(states_of<true, state_t>(p) + slot * p.conv_states_stride[0] + at * p.conv_states_stride[1] +
                     (p.first_column + lane_id() / kLines) * p.conv_states_stride[2]);
        }
    }

    // Begins a run: the window before its first token in the tile.
    __device__ __forceinline__ void enter(const StripRun& run) {
        const int before = tokens_before(run);
#pragma unroll
        for (int i = 0; i < kHalo; ++i) {
            if (i >= kHalo - before) {
                see(i, halo[i]);
            } else {
                see(i, past[i]);
            }
        }
    }

    // Convolves the tokens of a run that lie in the tile. All lanes of the warp call this, for one run after another.
    __device__ __forceinline__ void walk(const StripRun& run, const SnapshotRows& snapshots) {
        const bool is_padding = run.slot < 0;
        int token = max(run.begin, first) - first;
        const int to = min(run.end, last) - first;
        int position = is_inside(run) && run.has_past ? find_over_start(run, snapshots) : -1;
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
            leave(run.slot);
            position = -1;
        }
        if (is_inside(run)) leave(run.target);
    }

 private:
    // Whether all of a run lies in the tile.
    __device__ __forceinline__ bool is_inside(const StripRun& run) const {
        return run.begin >= first && run.end <= last;
    }

    // Inputs of a sequence that lie before the tile.
    __device__ __forceinline__ int tokens_before(const StripRun& run) const { return max(0, first - run.begin); }

    // The first column that the filter reads in a slot.
    __device__ __forceinline__ Column column_in(state_t* pool, int slot) const {
        return {pool + p.first_column * p.conv_states_stride[2] + slot * p.conv_states_stride[0] +
                    channel * p.conv_states_stride[1],
                p.conv_states_stride[1], p.states_are_packed != 0};
    }

    // The position of the snapshot that overwrites the slot which a sequence in the tile goes on from; -1 for none.
    __device__ __forceinline__ int find_over_start(const StripRun& run, const SnapshotRows& snapshots) const {
        for (int row = snapshots.begin; row < snapshots.end; ++row) {
            const Snapshot snapshot = load_snapshot(p, row);
            const bool is_own = snapshot.sequence == run.number && snapshot.slot == run.slot;
            if (is_own && snapshot.position <= run.end - run.begin) return snapshot.position;
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

    // Leaves the window in a slot of the pool, -1 for none.
    __device__ __forceinline__ void leave(int target) const {
        if (target < 0 || is_idle) return;
        const Column state = column_in(static_cast<state_t*>(p.conv_states), target);
#pragma unroll
        for (int i = 0; i < kHalo; ++i) {
            float values[kVec];
#pragma unroll
            for (int c = 0; c < kVec; ++c) values[c] = window[c][i];
            (state + i * p.conv_states_stride[2]).store_all(Vec<state_t, kVec>::from_floats(values));
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
    const index_t first_channel = static_cast<index_t>(tile_dim.remainder) * kWarpSize * kVec;
    Strip<Traits, kWidth, input_t, weight_t, state_t, kVec, kSilu> strip(p, static_cast<int>(tile_dim.quotient),
                                                                         first_channel + lane_id() * kVec);
    const SnapshotRows snapshots = find_snapshots_of_tile(p, strip.first, strip.last);
    visit_runs<true>(p, strip.first, strip.last, [&](int number, int begin, int end, int slot, unsigned left) {
        const bool has_past = kWidth > 1 && slot >= 0 && goes_on<true>(p, number);
        const unsigned going_on = lanes_where(has_past),
                       inside = lanes_where(begin >= strip.first && end <= strip.last);
        const int target = slot >= 0 && p.has_states ? load_target<true>(p, number, slot) : -1;
        const auto run_of = [&](int lane) {
            return StripRun{from_lane(number, lane), from_lane(begin, lane),  from_lane(end, lane),
                            from_lane(slot, lane),   from_lane(target, lane), (going_on >> lane & 1) != 0};
        };
        if (left == 0) return;
        StripRun next = run_of(lowest(left));
        strip.load_past(next);
        while (left != 0) {
            const StripRun run = next;
            const int far = lowest(left) + Traits::kFar;
            if (far < kWarpSize && (left & going_on & inside) >> far & 1) {
                strip.prefetch_state(from_lane(slot, far), first_channel);
            }
            strip.enter(run);
            left &= left - 1;
            if (left != 0) {
                next = run_of(lowest(left));
                strip.load_past(next);
            }
            strip.walk(run, snapshots);
        }
    });
}
