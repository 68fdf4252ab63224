// out[t] = act(bias + sum_w weight[w] * x[t - (width - 1) + w]) for packed sequences with contiguous channels, where
// out is x itself and most sequences are short. A block walks the sequences that begin in its tokens from their states
// to their ends. Only a longer sequence than a block has tokens is cut at the borders between blocks, and what another
// block reads there is handed over (conv_neighbours.cuh). A small launch in front, causal_conv1d_varlen_over_start,
// sets the counters for that; this one starts early and waits for it when its loads are on their way.
//
// Layout: x (dim, total), dim stride 1, and states with channels contiguous and aligned, too. A thread owns kVec
// channels in all tokens of its block. What it walks is a list of rows, the columns of a state as well as tokens, each
// of which is on its way to the thread's own shared memory long before its turn comes. Blocks have the last tokens
// first, so that a border's reader mostly comes before its writer.
//
// kWidth    filter taps              input_t   x and out                 weight_t  weight, and bias unless float
// state_t   the pool of states       kVec      channels an access        kSilu     silu after the sum
#include "causal_conv1d/conv_channels.cuh"
#include "causal_conv1d/conv_neighbours.cuh"

struct CausalConv1dVarlenOvershortFwdParams {
    CausalConv1dVarlenOperands operands;
    FastDiv dim_blocks;   // blocks across the channels
    index_t counters_at;  // bytes of scratch before the counters
    int windows;          // blocks along the tokens
};

template <int kWidth, typename input_t, typename weight_t, typename state_t, int kVec, bool kSilu>
struct CausalConv1dVarlenOvershortFwdTraits {
    static constexpr int kThreads = 128;
    static constexpr int kMinBlocks = 4;
    // Tokens per block. With 24, 48 and 64 the 512 sequences take 97.7, 97.4 and 110.7 us where 32 take 97.4.
    static constexpr int kTokens = 32;
    // Rows per stage: the window turns once, or twice.
    static constexpr int kRows = kWidth == 3 ? 6 : 4;
    static constexpr int kRowBytes =
        kThreads * kVec * static_cast<int>(sizeof(state_t) > sizeof(input_t) ? sizeof(state_t) : sizeof(input_t));
    // Stages on their way at a time. With five, 512 sequences of random lengths and 8192 channels take 97.4 us on an
    // H200, with three 95.9; 64 x 128 take 85.5 and 80.6.
    static constexpr int kRoom = 40960 / kRowBytes / kRows;
    static constexpr int kStages = kRoom < 3 ? kRoom : 3;
    // Rows of a block at most: every token of its own may be a sequence, and the last of them may go on. Some rows that
    // do nothing fill up stages.
    static constexpr int kMostRows = (kWidth + 1) * kTokens + 3 * kRows;
    static constexpr bool kIsScaled = kSilu;
    static_assert(kWidth >= 2 && kWidth <= 4 && kTokens >= kWidth);
};

// What a block does at one step of its walk.
struct alignas(16) WalkedRow {
    static constexpr int kInput = 1, kState = 2;  // what is loaded: inputs, a column of a state, or zeros
    static constexpr int kResult = 4;             // the result goes over the inputs
    static constexpr int kPadding = 8;            // zeros go over them
    static constexpr int kEnd = 16;               // the sequence ends, and its state goes to slot `target`

    const void* at;  // channel 0
    int what;
    int target;
};

// The list of a block's rows, and where in it something meets another block. Rows are -1 where there is no such thing.
struct WalkFacts {
    int rows;
    bool comes_in;   // a sequence is cut at the border in front: its rows are the first
    int next_last;   // the last window of that sequence, if its state is read here, too, and overwritten there; or 0
    int out_row;     // the first row of a state that is overwritten in another window
    int out_last;    // and that window
    int give_row;    // the first row whose inputs the next window reads
    int give_token;  // and its token
    int end_row;     // the last row of a sequence with a state that another window has read
    int end_slot;    // and the slot of that state
    bool has_next_read;  // and whether two windows have
};

template <typename Traits, int kWidth, typename input_t, typename state_t>
struct Walk {
    static constexpr int kHalo = kWidth - 1;
    WalkedRow* rows;  // in shared memory
    WalkFacts* facts;

    __device__ __forceinline__ Walk() {
        __shared__ WalkedRow shared_rows[Traits::kMostRows];
        __shared__ WalkFacts shared_facts;
        rows = shared_rows;
        facts = &shared_facts;
    }

    // The block's first warp calls this before a barrier.
    __device__ __forceinline__ void find(const CausalConv1dVarlenOperands& p, int window) const {
        constexpr int kTokens = Traits::kTokens;
        const int from = window * kTokens, to = min(from + kTokens, p.total);
        const input_t* const x = static_cast<const input_t*>(p.x);
        WalkFacts own{0, false, 0, -1, 0, -1, 0, -1, 0, false};
        int found = 0;
        visit_runs<true>(p, from, to, [&](int number, int begin, int end, int slot, unsigned left) {
            const bool is_sequence = slot >= 0;
            const bool is_long = is_sequence && end - begin > kTokens;
            if (p.keeps_padding) left &= lanes_where(is_sequence);
            left &= ~lanes_where(is_sequence && !is_long && begin < from);
            const bool is_taken = is_sequence && p.has_states;
            const bool has_past = is_taken && goes_on<true>(p, number);
            const int target = is_taken ? load_target<true>(p, number, slot) : -1;
            const unsigned sequences = lanes_where(is_sequence), cuts = lanes_where(is_long);
            const unsigned pasts = lanes_where(has_past);
            for (; left != 0; left &= left - 1) {
                const int lane = lowest(left);
                const int run_begin = from_lane(begin, lane), run_end = from_lane(end, lane);
                const int run_slot = from_lane(slot, lane), run_target = from_lane(target, lane);
                const bool has_results = (sequences >> lane & 1) != 0, is_run_long = (cuts >> lane & 1) != 0;
                const bool goes_on = (pasts >> lane & 1) != 0;
                const bool is_inside = !has_results || is_run_long;
                const int first = is_inside ? max(run_begin, from) : run_begin;
                const int last = is_inside ? min(run_end, to) : run_end;
                const int lead = has_results ? kHalo : 0;
                // Only borders that fall list more than there is room for: wrong results, not wrong accesses.
                if (last <= first || found + lead + last - first > Traits::kMostRows - 2 * Traits::kRows) continue;
                if (is_run_long) {
                    const int begin_window = run_begin / kTokens, last_window = (run_end - 1) / kTokens;
                    const bool is_written = goes_on && run_target == run_slot && begin_window < last_window;
                    own.comes_in = own.comes_in || run_begin < from;
                    if (run_begin >= from) {
                        // A state that may be patched is whole in one stage.
                        const int whole = (found + Traits::kRows - 1) / Traits::kRows * Traits::kRows;
                        if (found + lane_id() < whole) rows[found + lane_id()] = WalkedRow{nullptr, 0, -1};
                        found = whole;
                        if (is_written) {
                            own.out_row = found;
                            own.out_last = last_window;
                        }
                    } else if (is_written && run_begin > from - kHalo && last_window > window) {
                        own.next_last = last_window;
                    }
                    if (run_end > to) {
                        own.give_token = max(first, to - kHalo);
                        own.give_row = found + lead + own.give_token - first;
                    }
                    if (is_written && last_window == window) {
                        const int next = (begin_window + 1) * kTokens;
                        own.end_row = found + lead + run_end - 1 - first;
                        own.end_slot = run_slot;
                        own.has_next_read = run_begin > next - kHalo && next < from;
                    }
                }
                for (int i = lane_id(); i < lead + last - first; i += kWarpSize) {
                    const int token = first - lead + i;
                    WalkedRow row{x + token * p.x_stride[1], WalkedRow::kInput | WalkedRow::kResult, run_target};
                    if (!has_results) {
                        row.what = WalkedRow::kPadding;
                    } else if (i >= lead) {
                        if (token == run_end - 1 && run_target >= 0) row.what |= WalkedRow::kEnd;
                    } else if (token >= run_begin) {
                        row.what = WalkedRow::kInput;
                    } else if (!goes_on) {
                        row.what = 0;
                    } else {
                        row.what = WalkedRow::kState;
                        row.at = states_of<true, state_t>(p) + run_slot * p.conv_states_stride[0] +
                                 (p.first_column + token - run_begin + kHalo) * p.conv_states_stride[2];
                    }
                    rows[found + i] = row;
                }
                found += lead + last - first;
            }
        });
        // The last stage is filled up with steps that do nothing.
        own.rows = (found + Traits::kRows - 1) / Traits::kRows * Traits::kRows;
        if (found + lane_id() < own.rows) rows[found + lane_id()] = WalkedRow{nullptr, 0, -1};
        if (lane_id() == 0) *facts = own;
    }
};

// The stages in which a thread's own rows wait.
template <typename Traits, typename input_t, typename state_t, int kVec>
struct WalkedRing {
    static constexpr int kInputBytes = kVec * static_cast<int>(sizeof(input_t));
    static constexpr int kStateBytes = kVec * static_cast<int>(sizeof(state_t));
    static constexpr int kMost = kInputBytes > kStateBytes ? kInputBytes : kStateBytes;
    static constexpr int kPart = kMost < 16 ? kMost : 16;
    static constexpr int kParts = kMost / kPart;
    static constexpr int kSlots = Traits::kStages * Traits::kRows;

    unsigned char* own;

    __device__ __forceinline__ WalkedRing() {
        __shared__ __align__(16) unsigned char shared[kSlots][kParts][Traits::kThreads][kPart];
        own = shared[0][0][threadIdx.x];
    }

    __device__ __forceinline__ unsigned char* part(int slot, int i) const {
        return own + (slot * kParts + i) * Traits::kThreads * kPart;
    }

    __device__ __forceinline__ void bring(int slot, const WalkedRow& row, index_t channel) const {
        if ((row.what & WalkedRow::kInput) != 0) {
            copy<kInputBytes>(slot, static_cast<const input_t*>(row.at) + channel);
        } else if ((row.what & WalkedRow::kState) != 0) {
            copy<kStateBytes>(slot, static_cast<const state_t*>(row.at) + channel);
        }
    }

    // Puts a row there that was not copied.
    template <typename T>
    __device__ __forceinline__ void put(int slot, const T* from) const {
        PackedVec<T, kVec> v;
        v.template load<Memory::kMutable>(from);
#pragma unroll
        for (int i = 0; i < kVec / PackedVec<T, kVec>::kVec; ++i)
            store(reinterpret_cast<T*>(part(slot, i)), v.parts[i]);
    }

    template <int kWidth>
    __device__ __forceinline__ void take(int slot, int what, float (&window)[kVec][kWidth], int place) const {
        if constexpr (kIsSame<input_t, state_t>) {
            fill<input_t>(slot, (what & (WalkedRow::kInput | WalkedRow::kState)) != 0, window, place);
        } else if ((what & WalkedRow::kState) != 0) {
            fill<state_t>(slot, true, window, place);
        } else {
            fill<input_t>(slot, (what & WalkedRow::kInput) != 0, window, place);
        }
    }

 private:
    template <int kBytes>
    __device__ __forceinline__ void copy(int slot, const void* from) const {
        constexpr int kAtOnce = kBytes < 16 ? kBytes : 16;
#pragma unroll
        for (int i = 0; i < kBytes / kAtOnce; ++i) {
            copy_async<kAtOnce>(part(slot, i), static_cast<const unsigned char*>(from) + i * kAtOnce);
        }
    }

    template <typename T, int kWidth>
    __device__ __forceinline__ void fill(int slot, bool is_there, float (&window)[kVec][kWidth], int place) const {
        constexpr int kOfPart = kPart / static_cast<int>(sizeof(T)) < kVec ? kPart / static_cast<int>(sizeof(T)) : kVec;
#pragma unroll
        for (int i = 0; i < kVec / kOfPart; ++i) {
            Vec<T, kOfPart> v = Vec<T, kOfPart>::zero();
            if (is_there) v = load<kOfPart, Memory::kMutable>(reinterpret_cast<const T*>(part(slot, i)));
#pragma unroll
            for (int c = 0; c < kOfPart; ++c) window[i * kOfPart + c][place] = v.to_float(c);
        }
    }
};

template <int kWidth, typename input_t, typename weight_t, typename state_t, int kVec, bool kSilu,
          typename Traits = CausalConv1dVarlenOvershortFwdTraits<kWidth, input_t, weight_t, state_t, kVec, kSilu>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_varlen_overshort_fwd_kernel(const CausalConv1dVarlenOvershortFwdParams params) {
    constexpr int kRows = Traits::kRows, kStages = Traits::kStages, kHalo = kWidth - 1;
    const CausalConv1dVarlenOperands& p = params.operands;

    const QuotientRemainder group_dim = divide(blockIdx.x, params.dim_blocks);
    const int window_number = params.windows - 1 - static_cast<int>(group_dim.quotient);
    const index_t channel = (static_cast<index_t>(group_dim.remainder) * Traits::kThreads + threadIdx.x) * kVec;
    // Idle lanes go along with their warp, and neither load nor store.
    const bool is_idle = channel >= p.dim;
    const ChannelFilter<kWidth, weight_t, kVec> filter(p, is_idle ? 0 : channel);
    const Walk<Traits, kWidth, input_t, state_t> walk;
    if (threadIdx.x < kWarpSize) walk.find(p, window_number);
    float bias[kVec];
    float taps[kVec][kWidth];
    filter.to_floats(taps, bias);
    if constexpr (Traits::kIsScaled) {
#pragma unroll
        for (int c = 0; c < kVec; ++c) scale_for_silu<input_t>(taps[c], bias[c]);
    }
    __syncthreads();
    const WalkedRing<Traits, input_t, state_t, kVec> ring;
    const WalkFacts& facts = *walk.facts;
    const int count = facts.rows;
    int coming = 0;  // the first row that is not on its way
    const auto bring = [&](int slot) {
        if (coming < count && !is_idle) {
#pragma unroll
            for (int i = 0; i < kRows; ++i) ring.bring(slot + i, walk.rows[coming + i], channel);
        }
        coming += kRows;
        end_copy_group();
    };
#pragma unroll
    for (int s = 0; s < kStages; ++s) bring(s * kRows);
    wait_for_leader();

    state_t* const pool = static_cast<state_t*>(p.conv_states) + p.first_column * p.conv_states_stride[2] + channel;
    using Kept = Border<kWidth, input_t, state_t, 1>;
    const auto meeting = [&](Handed kind, int border) {
        constexpr int kWarps = Traits::kThreads / kWarpSize;
        const int groups = static_cast<int>(params.dim_blocks.divisor) * kWarps;
        const int group = static_cast<int>(group_dim.remainder) * kWarps + static_cast<int>(threadIdx.x) / kWarpSize;
        return Meeting(p, params.counters_at, groups, group, kind, border);
    };
    // What is to be done before the stage with the rows from `first` on, which have come.
    const auto hand_over = [&](int first, int slot) {
        const auto has = [&](int row) { return row >= first && row < first + kRows; };
        if (first == 0 && facts.comes_in) {
            if (meeting(Handed::kInputs, window_number).comes_late() && !is_idle) {
                const Kept kept(p, window_number, channel);
#pragma unroll
                for (int i = 0; i < kHalo; ++i) {
                    if (walk.rows[i].what == WalkedRow::kInput) ring.put(i, kept.input_at(i));
                }
            }
            if (facts.next_last > 0 && meeting(Handed::kStateOfNext, facts.next_last).comes_late() && !is_idle) {
                // The last columns of the state come first.
                const Kept kept(p, facts.next_last, channel);
                int columns = 0;
#pragma unroll
                for (int i = 0; i < kHalo; ++i) columns += walk.rows[i].what == WalkedRow::kState;
#pragma unroll
                for (int i = 0; i < kHalo; ++i) {
                    if (i < columns) ring.put(i, kept.state_at(kHalo - columns + i));
                }
            }
        }
        if (has(facts.out_row) && meeting(Handed::kState, facts.out_last).comes_late() && !is_idle) {
            const Kept kept(p, facts.out_last, channel);
#pragma unroll
            for (int i = 0; i < kHalo; ++i) ring.put(slot + i, kept.state_at(i));
        }
        if (has(facts.give_row)) {
            const Meeting next = meeting(Handed::kInputs, window_number + 1);
            if (!next.has_been_read()) {
                const int to = (window_number + 1) * Traits::kTokens;
                const Kept kept(p, window_number + 1, channel);
                for (int token = facts.give_token; token < to && !is_idle; ++token) {
                    PackedVec<input_t, kVec> v;
                    v.template load<Memory::kMutable>(static_cast<const input_t*>(p.x) + token * p.x_stride[1] +
                                                      channel);
                    v.store(kept.input_at(token - to + kHalo));
                }
                next.leave_saved();
            }
        }
        if (has(facts.end_row)) {
            const Meeting one = meeting(Handed::kState, window_number);
            const Meeting other = meeting(Handed::kStateOfNext, window_number);
            const bool has_one = !one.has_been_read(), has_other = facts.has_next_read && !other.has_been_read();
            if (has_one || has_other) {
                const Kept kept(p, window_number, channel);
                const state_t* column = pool + facts.end_slot * p.conv_states_stride[0];
#pragma unroll
                for (int i = 0; i < kHalo; ++i, column += p.conv_states_stride[2]) {
                    if (is_idle) break;
                    PackedVec<state_t, kVec> v;
                    v.template load<Memory::kMutable>(column);
                    v.store(kept.state_at(i));
                }
                if (has_one) one.leave_saved();
                if (has_other) other.leave_saved();
            }
        }
    };
    float window[kVec][kWidth];
    int slot = 0;
#pragma unroll 1
    for (int first = 0; first < count; first += kRows) {
        wait_for_copy_groups<kStages - 1>();
        hand_over(first, slot);
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            const WalkedRow row = walk.rows[first + i];
            ring.take(slot + i, row.what, window, i % kWidth);
            if ((row.what & (WalkedRow::kResult | WalkedRow::kPadding)) != 0 && !is_idle) {
                float y[kVec];
#pragma unroll
                for (int c = 0; c < kVec; ++c) {
                    float inputs[kWidth];
#pragma unroll
                    for (int k = 0; k < kWidth; ++k) inputs[k] = window[c][(i + 1 + k) % kWidth];
                    y[c] = activate<input_t, kSilu, false, Traits::kIsScaled>(
                        convolve<false>(taps[c], bias[c], inputs, nullptr), 0);
                }
                Vec<input_t, kVec> v = Vec<input_t, kVec>::from_floats(y);
                if ((row.what & WalkedRow::kPadding) != 0) v = Vec<input_t, kVec>::zero();
                store<Keep::kWhole>(static_cast<input_t*>(const_cast<void*>(row.at)) + channel, v);
            }
            if ((row.what & WalkedRow::kEnd) != 0 && !is_idle) {
                state_t* to = pool + row.target * p.conv_states_stride[0];
#pragma unroll
                for (int k = 0; k < kHalo; ++k, to += p.conv_states_stride[2]) {
                    float last[kVec];
#pragma unroll
                    for (int c = 0; c < kVec; ++c) last[c] = window[c][(i + 2 + k) % kWidth];
                    store_packed<kVec, Keep::kWhole>(to, last);
                }
            }
        }
        bring(slot);
        slot = slot + kRows == kStages * kRows ? 0 : slot + kRows;
    }
}
