// h = h * exp(dt * A) + dt * B * u, y = sum over n of C * h + D * u, out = y * silu(z), with dt = delta + delta_bias or
// the softplus of that, for packed sequences with their states in a pool.
//
// Layout: u, delta, z and out (dim, total), B and C (ngroups, d_state, total), the tokens contiguous and rows aligned
// to 16 bytes, wherever among them a sequence begins, or the channels and the states contiguous and tokens aligned;
// d_state up to 16, or up to 256; the pool (slots, dim, d_state) of any strides.
// kLanes lanes own a channel of a sequence and kTokens consecutive tokens each of a tile, or kParts times as many
// lanes, each with a part of the states; one lane of several parts walks all tokens. When sequences are alike a block
// has one of them. When they are mixed the first blocks visit the long ones `before`, `before + long_at_a_time`, … The
// other blocks have runs of neighbouring sequences and walk the short ones token by token
// (selective_scan/scan_few_windows.cuh; where channels are contiguous selective_scan/scan_few_rows.cuh, in float32
// selective_scan/scan_few_apart.cuh). The padding before the first sequence and behind the last then counts as
// sequences, too. Its results are zeros. Shared memory: B and C of the tile, decay rates and states of the block's
// channels.
//
// input_t    u, delta, z, out, B and C   state_t  the pool of states  kLanes  lanes that share a channel's tokens
// kParts     partitions of d_state       kAtOnce  states computed interleaved
// kTokens    tokens per lane of a tile
// kResident  blocks per multiprocessor   kByChannel  channels and states are contiguous, not tokens
// kMixed     there are long sequences and others
// kSnapshots states inside sequences are kept, too
// kMostStates  states per channel at most  kPhases  rows of contiguous tokens have phases, others are aligned
#include "selective_scan/scan_few_apart.cuh"
#include "selective_scan/scan_few_rows.cuh"
#include "selective_scan/scan_few_windows.cuh"
#include "selective_scan/scan_sweeps.cuh"

struct SelectiveScanVarlenTilesFwdParams {
    SelectiveScanVarlenOperands operands;
};

template <typename input_t, typename state_t, int kLanes, int kParts, int kAtOnce, int kTokens, int kResident,
          bool kByChannel, bool kMixed, bool kSnapshots, int kMostStates, bool kPhases>
struct SelectiveScanVarlenTilesFwdTraits {
    static constexpr int kThreads = 128;
    // Rows of short sequences in float32 would take all of a block's shared memory.
    static constexpr bool kHasRows = kByChannel && sizeof(input_t) == 2;
    // Walking token by token takes registers: snapshots some more, and tokens apart those of their accesses. With codes
    // and contiguous channels, 64 sequences of 128 tokens of 8192 channels, int8, with a snapshot every 64 took 935 us
    // on an H200 with three blocks and 763 with two.
    static constexpr bool kStoresCodes = kByChannel && kSnapshots && kIsQuantised<state_t>;
    static constexpr int kMixedBlocks = (kByChannel && !kHasRows ? 3 : 4 - kSnapshots) - kStoresCodes;
    // Snapshots take registers from lanes with two states of 16 tokens at a time, which reload what they spill in order
    // behind the copies of the next tile. On an H200 one sequence of 4096 tokens of 4096 channels with a snapshot every
    // 256 took 303 us with three blocks and 242 with two.
    static constexpr int kLongBlocks = kSnapshots && kParts == 1 && kAtOnce == 2 ? 2 : kResident;
    static constexpr int kMinBlocks = kMixed && kLongBlocks > kMixedBlocks ? kMixedBlocks : kLongBlocks;
    // States per lane of short sequences, and the same in windows of contiguous tokens where states are narrower than
    // float and there are no snapshots: two lanes a channel instead of four. On an H200 512 random lengths take 562 us
    // so instead of 613 with int8 and 539 instead of 556 with bfloat16, 1024 x 8 with int8 644 instead of 740, but with
    // float 730 instead of 719.
    static constexpr int kFewStates = 4;
    static constexpr int kNarrowStates = 8;
    static constexpr bool kIsNarrow = sizeof(state_t) < sizeof(float) && !kSnapshots;
    static constexpr int kWindowStates = kIsNarrow ? kNarrowStates : kFewStates;
    static constexpr bool kSweeps = kLanes == 1 && kParts > 1;
    using Long = TileShape<kThreads, input_t, kLanes, kParts, kAtOnce, kTokens, kByChannel, kSnapshots && !kSweeps,
                           kMostStates, kPhases>;
    static_assert(!(kMixed && kPhases), "short sequences are accessed by aligned windows");
    using Apart = FewShape<kThreads, input_t, state_t, 4, kFewStates, 1>;
    using Few = Select<kByChannel, Select<kHasRows, RowsScan<Apart>, FewScan<Apart>>,
                       WindowScan<FewShape<kThreads, input_t, state_t, 16 / kWindowStates, kWindowStates, Long::kVec>>>;
    // What short sequences need is larger. Where there are none it would be missing in the L1 cache: on an H200 one
    // sequence of 8192 tokens with a snapshot every 256 takes 638 us without it and 677 with it.
    union Shared {
        TileShared<Long> of_long;
        Select<kMixed, typename Few::Shared, char> of_few[kThreads / kWarpSize];
    };
};

// Where a walk by sweeps keeps states.
template <typename state_t>
struct SweepSnapshots {
    static constexpr bool kExist = true;

    const SelectiveScanVarlenOperands& p;
    SnapshotCursor& cursor;  // of the warp

    // The token in front of which the next states are kept.
    __device__ __forceinline__ int next() const { return cursor.token(); }

    // Stores the states in front of that token, `token`, wherever they go to; returns the next one.
    template <typename Scan>
    __device__ __forceinline__ int store(const Scan& scan, const float* states, int token) {
        int next = token;
        do {
            const int slot = cursor.template go_on<true>(p, next);
            scan.store_own(states, snapshots_of<state_t>(p), slot, {cursor.number, token - 1 - cursor.begin});
        } while (next == token);
        return next;
    }
};

// Scans one sequence in the channels of a block.
template <typename Shape, typename state_t, bool kMixed, bool kSnapshots>
__device__ __forceinline__ void scan_sequence(const SelectiveScanVarlenOperands& p, TileShared<Shape>& shared,
                                              int first_channel, int number) {
    const SequenceStart start = SequenceStart::load<!kMixed>(p, number);
    const int begin = uniform(start.begin), end = uniform(start.end), slot = uniform(start.slot);
    if (begin >= end) return;
    const int batch = kMixed ? 0 : number;
    const StateSlots<state_t> pool = pool_of<state_t>(p);
    using Scan = ScanOf<Shape, SelectiveScanVarlenOperands>;
    Scan scan(p, shared, batch, first_channel, [&](index_t channel, int n) {
        if (slot < 0 || !start.goes_on) return 0.0f;
        const state_t* const at = pool.states + slot * pool.stride[0] + channel * pool.stride[1] + n * pool.stride[2];
        return load<1, Memory::kMutable>(at).to_float(0) * pool.load_scale(slot, channel);
    });
    if (slot < 0) {
        const int phase_bits = Shape::kHasPhases ? p.phase_bits : 0;
        if (!p.keeps_padding) store_zeros<Shape>(p, batch, first_channel, begin, end, phase_bits);
        return;
    }
    if constexpr (kSnapshots) {
        __shared__ SnapshotCursor cursors[Shape::kThreads / kWarpSize];
        SnapshotCursor& cursor = cursors[threadIdx.x / kWarpSize];
        if constexpr (Shape::kSweeps) {
            cursor.start(p, number, begin, end);
            cursor.bring(p);
            scan.template walk<true>(begin, end, [](int) {}, SweepSnapshots<state_t>{p, cursor});
        } else {
            scan.cursor = &cursor;
            walk_by_snapshots(
                p, cursor, scan, number, begin, end,
                [&](int from, int token) {
                    const int inside = token - scan.first_tile(from);
                    return inside % Shape::kTile == 0 ? -1 : (inside - 1) / Shape::kTokens;
                },
                [&](int at, int token, int place) {
                    scan.template store_slot<Scan::kCopies>(
                        place < 0 ? shared.state : shared.taken + place * Shape::kChannels, snapshots_of<state_t>(p),
                        at, {number, token});
                });
        }
    } else {
        scan.template walk<true>(begin, end, [](int) {});
    }
    const int target = uniform(load_target(p, number, slot));
    if (target >= 0) scan.template store_slot<1>(shared.state, pool, target, {number, end - begin - 1});
}

template <
    typename input_t, typename state_t, int kLanes, int kParts, int kAtOnce, int kTokens, int kResident,
    bool kByChannel, bool kMixed, bool kSnapshots, int kMostStates, bool kPhases,
    typename Traits = SelectiveScanVarlenTilesFwdTraits<input_t, state_t, kLanes, kParts, kAtOnce, kTokens, kResident,
                                                        kByChannel, kMixed, kSnapshots, kMostStates, kPhases>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    selective_scan_varlen_tiles_fwd_kernel(const SelectiveScanVarlenTilesFwdParams params) {
    const SelectiveScanVarlenOperands& p = params.operands;
    constexpr int kCursors = kSnapshots ? Traits::kThreads / kWarpSize : 0;
    static_assert(sizeof(typename Traits::Shared) + kCursors * sizeof(SnapshotCursor) <= 48 * 1024,
                  "a block has 48 KB of shared memory without asking for more");
    __shared__ typename Traits::Shared shared;
    const QuotientRemainder row_block = divide(blockIdx.x, p.dim_blocks);
    const int row = static_cast<int>(row_block.quotient);
    const int channel = first_channel_of<typename Traits::Long>(p, row_block.remainder);
    if (kPhases && channel >= p.dim) return;
    if constexpr (!kMixed) {
        scan_sequence<typename Traits::Long, state_t, kMixed, kSnapshots>(p, shared.of_long, channel, row);
        // Divided once more: both numbers would take registers through the whole walk.
        const QuotientRemainder again = divide(opaque(blockIdx.x), p.dim_blocks);
        store_padding<typename Traits::Long>(p, first_channel_of<typename Traits::Long>(p, again.remainder),
                                             static_cast<int>(again.quotient), kPhases ? p.phase_bits : 0);
    } else if (row < p.long_at_a_time) {
        each_long<false>(p, row, [&](int number) {
            scan_sequence<typename Traits::Long, state_t, kMixed, kSnapshots>(p, shared.of_long, opaque(channel),
                                                                              number);
        });
    } else {
        const unsigned of_long = p.dim_blocks.divisor * p.long_at_a_time;
        const QuotientRemainder parts = divide(blockIdx.x - of_long, p.runs);
        const int number = static_cast<int>(p.run_by_run ? parts.quotient : parts.remainder);
        const int block = static_cast<int>(p.run_by_run ? parts.remainder : parts.quotient);
        const SequenceRun run(p, number * p.run_sequences - 1, p.run_sequences);
        const int first_channel = block * Traits::Few::Shape::kChannels;
        scan_few<typename Traits::Few, kSnapshots>(p, shared.of_few, run, first_channel);
    }
}
