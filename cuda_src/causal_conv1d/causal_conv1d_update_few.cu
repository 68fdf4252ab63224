// out = post_gate * act(bias + sum_w weight[w] * input[w]) + residual for one token of each sequence: input
// is the last kWidth - 1 columns of the sequence's state and then pre_gate * x, and the state moves left to make room
// for the latter.
//
// A step of few sequences takes as long as its launch, its code and its arguments do to arrive, and as two dependent
// accesses. So the kernel does few things: its struct is small and its strides have 32 bits, there is no code for what
// a call does not ask for, and all loads but those of states in slots that are looked up are issued at once.
//
// A packed sequence is taken to have the token of its own number, as where each has one, until its borders are there:
// 128 x 6144 take 5.0 us so, 5.5 if they wait for the borders, and 4.9 where tokens are not packed (H200). One that has
// its token elsewhere then loads that one. What only such sequences and padding need lies behind all else: 8 x 6144
// take 2.37 us so, as where tokens are not packed, and 2.41 with a second pass for them.
//
// Layout: x and the results of any strides, channels contiguous and aligned when kVec > 1; the filter contiguous. A
// state is kStateLen columns: contiguous, one channel after another (kRows), or of any strides, with vectors of
// channels contiguous and aligned. A thread owns kVec channels of one sequence, a block those of one sequence only.
//
// kWidth     filter taps                 input_t  x and outputs         weight_t  weight, and bias unless float
// state_t    the pool of states          kVec     channels a thread     kSilu     silu after the sum
// kStateLen  columns of a state, kWidth - 1 or kWidth                   kRows     whether columns are contiguous
// kIndexed    whether conv_state_indices has slots, or each sequence that of its number
// kMoved      whether dst_state_indices has the slots that states go to, and the call asks for nothing of kAddressed
// kAddressed  slots may be in columns, states may go to other slots or start from zeros, padding may stay as it is
// kPacked     sequences have any numbers of tokens, one behind the other, of which the first has a result
// kGated      there are gates or a residual
// kSplit      the channels fall into ranges with a result each, which has contiguous channels
#include "causal_conv1d/conv_column.cuh"
#include "causal_conv1d/conv_few.cuh"
#include "common/warp.cuh"

// The most ranges of channels.
inline constexpr int kMaxFewRanges = 3;

// Strides are in elements. Arguments arrive by cache lines, one miss after another: what most launches read are the
// first pointers, and the last one with the numbers behind it up to x_dim_stride.
struct CausalConv1dUpdateFewParams {
    const void* x;
    void* conv_state;
    const void* weight;
    const void* bias;
    const void* conv_state_indices;
    void* out[kMaxFewRanges];
    const void* state_column;
    const void* dst_state_indices;
    const void* has_initial_state;
    const void* pre_gate;
    const void* post_gate;
    const void* residual;
    const void* query_start_loc;
    int dim;
    int bias_bytes;            // per channel, 0 without bias
    int x_stride;              // sequence or token
    int out_stride;            // sequence or token
    int conv_state_stride[2];  // slot, column
    int is_read_only;          // states are not written
    int total;                 // tokens of all sequences and of padding, with query_start_loc
    int slots;                 // slots of conv_state
    int pad_slot_id;
    int conv_state_indices_words;  // words from one slot to the next
    int conv_state_indices_is_int64;
    int query_start_loc_words;  // words from one border to the next
    int x_dim_stride;
    int conv_state_dim_stride;
    int out_dim_stride;
    int keeps_padding;  // results of sequences without a slot are not written, instead of zeros
    int state_column_stride;
    int state_column_is_int64;
    int slot_columns;  // columns of conv_state_indices, with state_column
    int slot_column_words;
    int dst_state_indices_stride;
    int dst_state_indices_is_int64;
    int has_initial_state_stride;
    int pre_gate_stride;  // sequence or token
    int pre_gate_dim_stride;
    int post_gate_stride;
    int post_gate_dim_stride;
    int residual_stride;
    int residual_dim_stride;
    int range_begin[kMaxFewRanges];   // the first channel of each range; of those that are absent, beyond all channels
    int range_stride[kMaxFewRanges];  // of its result: sequence
};

template <int kWidth, typename input_t, typename weight_t, typename state_t, int kVec, bool kSilu, int kStateLen,
          bool kRows, bool kIndexed, bool kMoved, bool kAddressed, bool kPacked, bool kGated, bool kSplit>
struct CausalConv1dUpdateFewTraits {
    static constexpr int kThreads = 256;       // at most, in large packed steps
    static constexpr int kUsualThreads = 128;  // in all others
    static constexpr bool kIsHalf = sizeof(input_t) == 2 && sizeof(weight_t) == 2 && sizeof(state_t) == 2;
    // 128 x 6144 is one wave of blocks then, as where tokens are not packed: 4.93 us instead of 5.32.
    // Rows would be spilled then.
    static constexpr int kMinBlocks = !kPacked || kGated || kWidth > 4 || !kIsHalf ? 1 : kRows ? 4 : 6;
    // Lanes with four channels load one border each, in turns, and vote: the compiler has two borders that all lanes
    // load in uniform registers, and waits for them before it loads states. They vote before they compute, while states
    // are on their way: 16 x 6144 take 2.18 us so, and 2.19 behind it. With fewer channels 8 x 6144 would take 2.47 us
    // instead of 2.03.
    static constexpr bool kBordersInTurns = kVec >= 4;
    static_assert(kIsWidth<kWidth> && kStateLen > 0 && (kStateLen == kWidth || kStateLen == kWidth - 1));
    static_assert(!kSplit || (!kMoved && !kAddressed && !kPacked && !kGated));
};

// Where a sequence's state is and goes, and its token.
template <bool kIndexed, bool kMoved, bool kAddressed>
struct FewIndices {
    RawIndex slot;
    RawIndex target;
    unsigned past;
    bool has_column;

    // The slot to start from comes first: what is in it waits for nothing else.
    __device__ __forceinline__ FewIndices(const CausalConv1dUpdateFewParams& p, int batch) : past(1), has_column(true) {
        if constexpr (kIndexed) {
            const int* place = static_cast<const int*>(p.conv_state_indices) + batch * p.conv_state_indices_words;
            if (kAddressed && p.state_column != nullptr) {
                RawIndex column;
                column.load(p.state_column, batch * p.state_column_stride, p.state_column_is_int64);
                const int number = column.below(p.slot_columns, -1);
                has_column = number >= 0;
                place += max(number, 0) * p.slot_column_words;
            }
            slot.low = load_word<Memory::kMutable, int>(place);
            if (p.conv_state_indices_is_int64) slot.high = load_word<Memory::kMutable, int>(place + 1);
        }
    }

    // What is not needed before all else.
    __device__ __forceinline__ void load_addresses(const CausalConv1dUpdateFewParams& p, int batch) {
        // A null pointer is jumped over, which takes as long as an access: 0.15 us of 2.33.
        if (kMoved || p.dst_state_indices != nullptr) {
            target.template load<Memory::kMutable>(p.dst_state_indices, batch * p.dst_state_indices_stride,
                                                   p.dst_state_indices_is_int64);
        }
        if (kAddressed && p.has_initial_state != nullptr) {
            past = load_constant(static_cast<const unsigned char*>(p.has_initial_state) +
                                 batch * p.has_initial_state_stride);
        }
    }
};

// The borders of a packed sequence, the lowest words of them: wrong ones give wrong results, not wrong accesses.
template <bool kInTurns>
struct FewBorders {
    unsigned begin;  // with kInTurns what the lane has loaded, which is the end in odd lanes
    unsigned end;

    __device__ __forceinline__ void load(const CausalConv1dUpdateFewParams& p, int batch) {
        const int next = p.query_start_loc_words;
        const int* const border =
            static_cast<const int*>(p.query_start_loc) + (batch + (kInTurns ? lane_id() % 2 : 0)) * next;
        begin = load_word<Memory::kMutable, unsigned>(border);
        if (!kInTurns) end = load_word<Memory::kMutable, unsigned>(border + next);
    }

    // Whether the sequence has just this token and `holds` is true, with kInTurns in all lanes.
    __device__ __forceinline__ bool are_around(int token, bool holds) const {
        const unsigned row = static_cast<unsigned>(token);
        if (!kInTurns) return holds & (begin == row) & (end == row + 1);
        return lanes_where(holds & (begin == row + lane_id() % 2)) == kAllLanes;
    }

    // Brings both to all lanes, which take part together.
    __device__ __forceinline__ void share() {
        if (!kInTurns) return;
        end = static_cast<unsigned>(from_lane(static_cast<int>(begin), 1));
        begin = static_cast<unsigned>(from_lane(static_cast<int>(begin), 0));
    }
};

template <int kWidth, typename input_t, typename weight_t, typename state_t, int kVec, bool kSilu, int kStateLen,
          bool kRows, bool kIndexed, bool kMoved, bool kAddressed, bool kPacked, bool kGated, bool kSplit,
          typename Traits>
struct FewStep {
    // Advances the block's sequence.
    __device__ __forceinline__ static void run(const CausalConv1dUpdateFewParams& p) {
        constexpr int kFirst = kStateLen - (kWidth - 1);  // first column that the filter reads
        let_next_start();
        const int batch = static_cast<int>(blockIdx.x);
        const int threads = kPacked ? static_cast<int>(blockDim.x) : Traits::kUsualThreads;
        // Threads beyond the last channel load what it has. To leave here would wait for `dim` before all else.
        const int own_channel = (static_cast<int>(blockIdx.y) * threads + static_cast<int>(threadIdx.x)) * kVec;
        const int channel = min(own_channel, p.dim - kVec);
        // Where tokens are packed, the compiler would compute addresses of indices, and slots, in uniform registers: 64
        // x 2048 take 2.27 us so, and 2.31 with those.
        const int index = kPacked ? of_own_lane(batch) : batch;
        FewIndices<kIndexed, kMoved, kAddressed> indices(p, index);
        // The slot is asked for before all else, which takes 2.37 us instead of 2.42 at 8 x 6144. What waits for an
        // index comes behind sync_warp(): else the compiler waits before it issues the loads in front of it, too. These
        // are not marked as constant, for it moves such ones behind.
        if (kIndexed) sync_warp();
        const FewFilter<kWidth, weight_t, kVec> raw(p, channel);
        int row = kPacked ? min(batch, p.total - 1) : batch, tokens = 1;
        // An array of x's shape, of which a thread has the part that begins at its token.
        const auto load_beside = [&](const void* array, int stride, int dim_stride) {
            return load<kVec, Memory::kMutable>(static_cast<const input_t*>(array) +
                                                (row * stride + (kVec > 1 ? channel : channel * dim_stride)));
        };
        Vec<input_t, kVec> x, pre, post, residual;
        const auto load_inputs = [&] {
            x = load_beside(p.x, p.x_stride, p.x_dim_stride);
            if (kGated && p.pre_gate != nullptr)
                pre = load_beside(p.pre_gate, p.pre_gate_stride, p.pre_gate_dim_stride);
            if (kGated && p.post_gate != nullptr) {
                post = load_beside(p.post_gate, p.post_gate_stride, p.post_gate_dim_stride);
            }
            if (kGated && p.residual != nullptr) {
                residual = load_beside(p.residual, p.residual_stride, p.residual_dim_stride);
            }
        };
        if (!kStartsEarly) load_inputs();
        FewBorders<Traits::kBordersInTurns> borders;
        if (kPacked) borders.load(p, index);
        if constexpr (kMoved || kAddressed) indices.load_addresses(p, batch);
        const auto store_result = [&](int token, const Vec<input_t, kVec>& result) {
            if constexpr (kSplit) {
                void* out = p.out[0];
                int at = token * p.range_stride[0] + channel;
#pragma unroll
                for (int i = 1; i < kMaxFewRanges; ++i) {
                    if (channel < p.range_begin[i]) continue;
                    out = p.out[i];
                    at = token * p.range_stride[i] + channel - p.range_begin[i];
                }
                store(static_cast<input_t*>(out) + at, result);
            } else {
                store(static_cast<input_t*>(p.out[0]) +
                          (token * p.out_stride + (kVec > 1 ? channel : channel * p.out_dim_stride)),
                      result);
            }
        };
        if (kIndexed) sync_warp();
        int slot = batch;
        if (kIndexed) slot = indices.has_column ? indices.slot.below(p.slots, p.pad_slot_id) : -1;
        const bool has_slot = !kIndexed || slot >= 0;
        // Zeros for a sequence's tokens from number `t` on, and behind the last sequence for those of none.
        const auto store_padding = [&](int t) {
            if ((kAddressed && p.keeps_padding) || own_channel >= p.dim) return;
            const int end = kPacked && batch + 1 == static_cast<int>(gridDim.x) ? p.total : row + tokens;
#pragma unroll 1
            for (t += row; t < end; ++t) store_result(t, Vec<input_t, kVec>::zero());
        };
        if (!kPacked && !has_slot) {
            wait_for_preceding();
            store_padding(0);
            return;
        }
        const auto state_at = [&](int slot_) {
            return static_cast<state_t*>(p.conv_state) + slot_ * static_cast<index_t>(p.conv_state_stride[0]) +
                   (kRows      ? channel * kStateLen
                    : kVec > 1 ? channel
                               : channel * p.conv_state_dim_stride);
        };
        PackedVec<state_t, kVec * kStateLen> whole;
        Vec<state_t, kVec> columns[kStateLen + 1];
        state_t* to = nullptr;
        const auto load_state = [&] {
            state_t* const from = state_at(slot);
            if (!kAddressed || indices.past != 0) {
                if constexpr (kRows) {
                    whole.template load<Memory::kMutable>(from);
                } else {
                    // The first column of a longer state leaves it unread.
#pragma unroll
                    for (int k = kFirst; k < kStateLen; ++k) {
                        columns[k] = load<kVec, Memory::kMutable>(from + k * p.conv_state_stride[1]);
                    }
                }
            } else {
                whole = {};
#pragma unroll
                for (int k = 0; k < kStateLen; ++k) columns[k] = {};
            }
            // Where the state goes is known before its columns are there.
            to = from;
            if (kMoved || (kAddressed && p.dst_state_indices != nullptr)) {
                const int target = indices.target.below(p.slots, p.pad_slot_id);
                to = target < 0 ? nullptr : state_at(target);
            }
            if (kStartsEarly) {
                wait_for_preceding();
                load_inputs();
            }
        };
        float inputs[kVec][kStateLen + 1], y[kVec];
        const auto compute = [&] {
            float taps[kVec][kWidth], bias[kVec];
            raw.to_floats(p, taps, bias);
            if (kGated && p.pre_gate != nullptr) x = multiply(x, pre);
#pragma unroll
            for (int c = 0; c < kVec; ++c) {
#pragma unroll
                for (int k = kRows ? 0 : kFirst; k < kStateLen; ++k) {
                    inputs[c][k] = kRows ? whole.to_float(c * kStateLen + k) : columns[k].to_float(c);
                }
                inputs[c][kStateLen] = x.to_float(c);
                y[c] =
                    activate<input_t, kSilu, false>(convolve<false>(taps[c], bias[c], inputs[c] + kFirst, nullptr), 0);
            }
            if (kGated && p.post_gate != nullptr) multiply_rounded(y, post);
            if (kGated && p.residual != nullptr) add(y, residual);
        };
        const auto store_all = [&] {
            store_result(row, Vec<input_t, kVec>::from_floats(y));
            if (p.is_read_only || ((kMoved || kAddressed) && to == nullptr)) return;
            if constexpr (kRows) {
                float moved[kVec * kStateLen];
#pragma unroll
                for (int i = 0; i < kVec * kStateLen; ++i) moved[i] = inputs[i / kStateLen][i % kStateLen + 1];
                store_packed(to, moved);
            } else {
                columns[kStateLen] = convert<state_t>(x);
#pragma unroll
                for (int k = 0; k < kStateLen; ++k) store(to + k * p.conv_state_stride[1], columns[k + 1]);
            }
        };
        if constexpr (!kPacked) {
            load_state();
            compute();
            if (own_channel < p.dim) store_all();
        } else {
            // Sequences that need nothing else: not the last one where padding follows it.
            const bool is_plain =
                (own_channel < p.dim) & ((batch + 1 < static_cast<int>(gridDim.x)) | (p.total <= batch + 1));
            if (has_slot) {
                load_state();
                if constexpr (Traits::kBordersInTurns) {
                    sync_warp();
                } else {
                    compute();
                }
                if (borders.are_around(row, is_plain)) {
                    if constexpr (Traits::kBordersInTurns) compute();
                    store_all();
                    return;
                }
            } else {
                wait_for_preceding();
            }
            borders.share();
            if (own_channel >= p.dim) return;
            const unsigned total = static_cast<unsigned>(p.total);
            row = static_cast<int>(min(borders.begin, total));
            tokens = max(static_cast<int>(min(borders.end, total)) - row, 0);
            if (!has_slot || tokens == 0) {
                store_padding(0);
                return;
            }
            load_inputs();
            compute();
            store_all();
            store_padding(1);
        }
    }
};

template <int kWidth, typename input_t, typename weight_t, typename state_t, int kVec, bool kSilu, int kStateLen,
          bool kRows, bool kIndexed, bool kMoved, bool kAddressed, bool kPacked, bool kGated, bool kSplit,
          typename Traits = CausalConv1dUpdateFewTraits<kWidth, input_t, weight_t, state_t, kVec, kSilu, kStateLen,
                                                        kRows, kIndexed, kMoved, kAddressed, kPacked, kGated, kSplit>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_update_few_kernel(const __grid_constant__ CausalConv1dUpdateFewParams p) {
    using Step = FewStep<kWidth, input_t, weight_t, state_t, kVec, kSilu, kStateLen, kRows, kIndexed, kMoved,
                         kAddressed, kPacked, kGated, kSplit, Traits>;
    Step::run(p);
}
