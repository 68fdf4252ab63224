// causal_conv1d_varlen_fwd with a prefix cache that keeps the state at the end of every block of tokens: the state of
// sequence i at the end of block j, for the blocks before its last one, after (j + 1) * block_size -
// num_computed_tokens[i] tokens, goes to slot cache_indices[i, j], and its final state to the slot of the last one.
//
// Layout: as causal_conv1d_varlen_fwd, with one range. A block's snapshots are rows: those of a sequence begin at first
// token / block_size + its number, so that each sequence has as many rows as blocks may end in it, whatever the others
// have. Which snapshot a row has is found where it is stored.
//
// kWidth    filter taps              input_t   x and out                 weight_t  weight, and bias unless float
// state_t   the pool of states       kVec      channels an access        kTokens   tokens a thread
// kSilu     silu after the sum
#include "causal_conv1d/conv_tile.cuh"

struct CausalConv1dVarlenCachedFwdParams {
    const void* num_computed_tokens;
    const void* block_idx_last_scheduled_token;
    CausalConv1dVarlenOperands operands;  // with snapshots that go to conv_states
    index_t num_computed_tokens_stride;
    index_t block_idx_last_scheduled_token_stride;
    FastDiv block_size;
    FastDiv block_vecs;  // channel vectors per block
    FastDiv dim_blocks;  // blocks across the channels, which make a group
    BlockGroups mix;
    unsigned tiles;  // tiles, or prefixes where a thread has one, per block
    int num_computed_tokens_is_int64;
    int block_idx_last_scheduled_token_is_int64;
};

template <int kWidth, typename input_t, typename weight_t, typename state_t, int kVec, int kTokens, bool kSilu>
struct CausalConv1dVarlenCachedFwdTraits {
    static constexpr int kThreads = 128;
    // The tiles are causal_conv1d_varlen_fwd's, and so are the bounds on registers and their reasons.
    static constexpr bool kIsLean = kWidth <= 4;
    static constexpr int kLeanBlocks = kArch >= 90 && (sizeof(weight_t) == 2 || sizeof(input_t) == 4) ? 8 : 7;
    static constexpr int kMinBlocks = kIsLean ? kLeanBlocks : 1;
    static constexpr Ranges kRanges = Ranges::kOne;
    static constexpr bool kIsScaled = kSilu && kIsLean;
    static_assert(kIsWidth<kWidth> && kTokens >= 1 && kTokens < 32);
};

// The blocks of a sequence that end in tokens of this call, before its last block.
struct CachedBlocks {
    index_t computed;  // tokens before those of this call
    index_t first;
    index_t last;  // the last block, which need not end

    __device__ __forceinline__ CachedBlocks(const CausalConv1dVarlenCachedFwdParams& params, int number) {
        RawIndex computed_raw, last_raw;
        computed_raw.load(params.num_computed_tokens, number * params.num_computed_tokens_stride,
                          params.num_computed_tokens_is_int64);
        last_raw.load(params.block_idx_last_scheduled_token, number * params.block_idx_last_scheduled_token_stride,
                      params.block_idx_last_scheduled_token_is_int64);
        computed = bounded(computed_raw.value(params.num_computed_tokens_is_int64));
        last = bounded(last_raw.value(params.block_idx_last_scheduled_token_is_int64));
        if (computed >> 31 == 0) {
            first = params.block_size.quotient(static_cast<unsigned>(computed));
        } else {
            first = computed > 0 ? computed / params.block_size.divisor : 0;
        }
    }

    // The number of the snapshots of a sequence with `length` tokens in the call, at most.
    __device__ __forceinline__ int count(const CausalConv1dVarlenCachedFwdParams& params, int length) const {
        const index_t most = params.block_size.quotient(static_cast<unsigned>(length)) + 1;
        return static_cast<int>(max(static_cast<index_t>(0), min(last - first, most)));
    }

    // Snapshot i of sequence `number`; one that counts for nothing where there is none.
    __device__ __forceinline__ Snapshot snapshot(const CausalConv1dVarlenCachedFwdParams& params, int number,
                                                 int i) const {
        if (i < 0 || i >= last - first) return {-1, 0, 0};
        const index_t position = (first + i + 1) * static_cast<index_t>(params.block_size.divisor) - computed;
        return checked_snapshot(params.operands, number, position,
                                load_slot_in_column(params.operands, number, first + i));
    }
};

// Where the rows of a sequence begin.
__device__ __forceinline__ int first_row(const CausalConv1dVarlenCachedFwdParams& params, int number) {
    const unsigned token = static_cast<unsigned>(first_token(params.operands, number));
    return static_cast<int>(params.block_size.quotient(token)) + number;
}

// The sequence that a row is of, if it is of any. All lanes of the warp take part, with the same row, and look at 32
// sequences in one step.
__device__ __forceinline__ int sequence_of_row(const CausalConv1dVarlenCachedFwdParams& params, int row) {
    int low = 0;
    for (int high = params.operands.sequences; high - low > 1;) {
        const int step = (high - low + kWarpSize - 1) / kWarpSize;
        const int number = low + lane_id() * step;
        const bool is_behind = lane_id() == 0 || (number < high && first_row(params, number) <= row);
        low += step * (__popc(lanes_where(is_behind)) - 1);
        high = min(high, low + step);
    }
    return low;
}

// Snapshots `begin` to `end` - 1 of each sequence.
struct CachedRows {
    const CausalConv1dVarlenCachedFwdParams& params;
    int begin;
    int end;
};

__device__ __forceinline__ Snapshot load_snapshot_of(const CausalConv1dVarlenOperands&, const CachedRows& rows,
                                                     int number, int row) {
    return CachedBlocks(rows.params, number).snapshot(rows.params, number, row);
}

// Snapshots among which those of the prefixes of `count` sequences all are. All threads of the block call this.
template <int kThreads, int kWidth>
__device__ __forceinline__ CachedRows find_prefix_snapshots(const CausalConv1dVarlenCachedFwdParams& params, int first,
                                                            int count) {
    constexpr int kWarps = kThreads / kWarpSize;
    const CausalConv1dVarlenOperands& p = params.operands;
    __shared__ SnapshotRows shared[kWarps];
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
    SnapshotRows own{0x7fffffff, 0};
    for (int number = first + warp; number < min(first + count, p.sequences); number += kWarps) {
        const CachedBlocks blocks(params, number);
        const SnapshotSource source(p, number);
        const int of_sequence = source.goes_on ? blocks.count(params, max(source.length, 0)) : 0;
        for (int from = 0; from < of_sequence; from += kWarpSize) {
            const int i = from + lane_id();
            const Snapshot snapshot = i < of_sequence ? blocks.snapshot(params, number, i) : Snapshot{-1, 0, 0};
            const unsigned hits = lanes_where(snapshot.sequence >= 0 && is_of_prefix<kWidth>(p, snapshot, source));
            if (hits != 0) own = {min(own.begin, from + lowest(hits)), max(own.end, from + highest(hits) + 1)};
        }
    }
    if (lane_id() == 0) shared[warp] = own;
    __syncthreads();
    CachedRows found{params, 0x7fffffff, 0};
#pragma unroll
    for (int i = 0; i < kWarps; ++i) {
        found.begin = min(found.begin, shared[i].begin);
        found.end = max(found.end, shared[i].end);
    }
    return found;
}

template <int kWidth, typename input_t, typename weight_t, typename state_t, int kVec, int kTokens, bool kSilu,
          typename Traits = CausalConv1dVarlenCachedFwdTraits<kWidth, input_t, weight_t, state_t, kVec, kTokens, kSilu>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    causal_conv1d_varlen_cached_fwd_kernel(const CausalConv1dVarlenCachedFwdParams params) {
    const CausalConv1dVarlenOperands& p = params.operands;

    const QuotientRemainder row_vec = divide(threadIdx.x, params.block_vecs);
    const QuotientRemainder group_dim = divide(blockIdx.x, params.dim_blocks);
    const index_t channel =
        (static_cast<index_t>(group_dim.remainder) * params.block_vecs.divisor + row_vec.remainder) * kVec;
    const int tiles = static_cast<int>(params.tiles);
    const int row = static_cast<int>(row_vec.quotient);
    const bool is_idle = row >= tiles || channel >= p.dim;
    const GroupRole group(group_dim.quotient, params.mix);
    const int first = static_cast<int>(group.number) * tiles;
    if (!group.is_prefix) {
        // Idle threads read another thread's memory: all of them take part in the search.
        convolve_tile<Traits, kWidth, input_t, weight_t, kVec, kTokens, kSilu, true, false, false, 0>(
            p, first * kTokens, tiles, min(row, tiles - 1), is_idle ? 0 : channel, is_idle);
        return;
    }
    const int snapshot_group = static_cast<int>(group.number - params.mix.prefix_groups + p.snapshot_groups);
    if (snapshot_group >= 0) {
        const int own = snapshot_group * tiles + row, last = from_lane(own, kWarpSize - 1);
        int number = 0;
        for (int each = from_lane(own, 0); each <= last; ++each) {
            const int found = sequence_of_row(params, each);
            number = each == own ? found : number;
        }
        if (is_idle || own >= p.snapshot_rows) return;
        const SnapshotSource source(p, number);
        const Snapshot snapshot =
            CachedBlocks(params, number).snapshot(params, number, own - first_row(params, number));
        if (snapshot.sequence < 0 || !source.has(snapshot) || is_of_prefix<kWidth>(p, snapshot, source)) return;
        const SnapshotCopy<kWidth, input_t, state_t, kVec, false> copy(
            p, snapshot, source, channel, source.template first<input_t, kVec>(p, channel));
        copy.copy(p, snapshot.slot, channel);
        return;
    }
    if constexpr (kWidth > 1) {
        const CachedRows rows = find_prefix_snapshots<Traits::kThreads, kWidth>(params, first, tiles);
        if (is_idle || first + row >= p.sequences) return;
        SequencePrefix<kWidth, input_t, state_t, kVec, true> prefix(p, first + row);
        if (prefix.length == 0) return;
        prefix.target =
            slot_in_pool(p, load_slot_in_column(p, prefix.number, CachedBlocks(params, prefix.number).last));
        convolve_found_prefix<kWidth, input_t, weight_t, state_t, kVec, kSilu, Traits::kRanges, true, false>(
            p, rows, prefix, channel);
    }
}
