// h = h * exp(dt * A) + dt * B * u, y = sum over n of C * h + D * u, out = y * silu(z), with dt = delta + delta_bias or
// the softplus of that, for rows of many tokens. Or, for all segments of a row but the last, only the state behind the
// segment when it begins with zeros, and the sum of its dt: the first of three launches, of which this kernel's other
// form is the last.
//
// Layout: u, delta, z and out (batch, dim, seqlen), B and C (batch, ngroups, d_state, seqlen), the tokens contiguous
// and a block's rows of one phase, or the channels and the states contiguous and tokens aligned; d_state up to 16, or
// up to 256. kLanes lanes own a channel of a segment, the tokens of a row or some of its chunks, and kTokens
// consecutive tokens each of a tile; or kParts times as many lanes, each with a part of the states. One lane of several
// parts walks all tokens. The states before a segment are the initial ones or, when there are several, in scratch.
// Shared memory: B and C of the tile, decay rates and states of the block's channels.
//
// input_t  u, delta, z, out, B and C    kLanes     lanes that share a channel's tokens    kParts  partitions of d_state
// kAtOnce  states computed interleaved  kTokens    tokens per lane of a tile
// kResident  blocks per multiprocessor  kByChannel channels and states are contiguous, not tokens
// kStatesOnly  the states behind segments in place of results
// kMostStates  states per channel at most
// kPhases  rows of contiguous tokens have phases, others are aligned
// kKeeps  states before chunks are kept of rows that have phases
#include "selective_scan/scan_segments.cuh"
#include "selective_scan/scan_sweeps.cuh"

struct SelectiveScanTilesFwdParams {
    SelectiveScanOperands operands;
};

// The chunks of a row whose states sweeps keep.
struct KeptChunks {
    static constexpr bool kExist = true;

    int begin;
    int end;

    // The token in front of which the next states are kept: the first one of a chunk, or none.
    __device__ __forceinline__ int next() const { return begin; }

    template <typename Scan>
    __device__ __forceinline__ int store(const Scan& scan, const float* states, int token) const {
        scan.keep_own(states, token);
        const int next = token + Scan::kKeepsEvery;
        return next < end ? next : NextSnapshot::kNone;
    }
};

template <typename input_t, int kLanes, int kParts, int kAtOnce, int kTokens, int kResident, bool kByChannel,
          bool kStatesOnly, int kMostStates, bool kPhases, bool kKeeps>
struct SelectiveScanTilesFwdTraits {
    static constexpr int kThreads = 128;
    static constexpr int kMinBlocks = kResident;
    using Shape = TileShape<kThreads, input_t, kLanes, kParts, kAtOnce, kTokens, kByChannel, false, kMostStates,
                            kPhases, kKeeps ? ScanSegment<void>::kChunk : 0>;
    static_assert(ScanSegment<Shape>::kChunk % Shape::kTile == 0);
};

template <typename input_t, int kLanes, int kParts, int kAtOnce, int kTokens, int kResident, bool kByChannel,
          bool kStatesOnly, int kMostStates, bool kPhases, bool kKeeps,
          typename Traits = SelectiveScanTilesFwdTraits<input_t, kLanes, kParts, kAtOnce, kTokens, kResident,
                                                        kByChannel, kStatesOnly, kMostStates, kPhases, kKeeps>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    selective_scan_tiles_fwd_kernel(const SelectiveScanTilesFwdParams params) {
    using Shape = typename Traits::Shape;
    const SelectiveScanOperands& p = params.operands;
    __shared__ TileShared<Shape> shared;
    const ScanSegment<Shape> segment(p);
    if (kStatesOnly && segment.is_last(p)) return;
    const int first_channel = first_channel_of<Shape>(p, segment.first_channel / Shape::kChannels);
    if (kPhases && first_channel >= p.dim) return;
    const float* states = nullptr;
    index_t channel_step = p.initial_state_stride[1], step = p.initial_state_stride[2];
    if (!kStatesOnly && p.segments.divisor > 1) {
        states = ScanScratch(p).state(p, segment.batch, segment.number, 0);
        channel_step = p.d_state;
        step = 1;
    } else if (!kStatesOnly && p.initial_state != nullptr) {
        states = p.initial_state + segment.batch * p.initial_state_stride[0];
    }
    ScanOf<Shape, SelectiveScanOperands> scan(p, shared, segment.batch, first_channel, [&](index_t channel, int n) {
        if (states == nullptr) return 0.0f;
        return load<1, Memory::kMutable>(states + channel * channel_step + n * step).to_float(0);
    });
    if constexpr (kStatesOnly) {
        scan.template walk<false>(segment.begin, segment.end, [](int) {});
        const ScanScratch scratch(p);
        scan.store_states(scratch.state(p, segment.batch, segment.number, 0), p.d_state, 1);
        const float steps = sum_over_lanes(scan.steps, kLanes);
        if (scan.lane == 0 && scan.part == 0 && !scan.is_idle) {
            *scratch.step(p, segment.batch, segment.number, scan.channel) = steps;
        }
    } else {
        const auto before_tile = [&](int token) {
            if (kPhases || p.chunk_states == nullptr || token % segment.kChunk != 0) return;
            scan.wait_for_states();
            const index_t* const stride = p.chunk_states_stride;
            float* const kept = p.chunk_states + segment.batch * stride[0] + token / segment.kChunk * stride[1];
            scan.store_states(kept, stride[2], stride[3]);
        };
        if constexpr (kKeeps && Shape::kSweeps) {
            scan.template walk<true>(segment.begin, segment.end, before_tile, KeptChunks{segment.begin, segment.end});
        } else {
            scan.template walk<true>(segment.begin, segment.end, before_tile);
        }
        if (p.last_state != nullptr && segment.is_last(p)) {
            const index_t* const stride = p.last_state_stride;
            scan.store_states(p.last_state + segment.batch * stride[0], stride[1], stride[2]);
        }
    }
}
