// The state behind every segment of a selective scan but the last when it begins with zeros, and the sum of its dt: the
// first of three launches, of which selective_scan_tiles_fwd is the last.
//
// Layout: as selective_scan_tiles_fwd's, to scratch.
//
// input_t  u, delta and B    kLanes  that have a channel's tokens    kParts  of its states
// kAtOnce  of which a lane has under way
#include "selective_scan/scan_segments.cuh"
#include "selective_scan/scan_tiles.cuh"

struct SelectiveScanTilesChunkParams {
    SelectiveScanOperands operands;
};

template <typename input_t, int kLanes, int kParts, int kAtOnce>
struct SelectiveScanTilesChunkTraits {
    static constexpr int kThreads = 128;
    using Shape = TileShape<input_t, kLanes, kParts, kAtOnce>;
    static constexpr int kMinBlocks = Shape::kMinBlocks;
    static_assert(kThreads == Shape::kThreads);
};

template <typename input_t, int kLanes, int kParts, int kAtOnce,
          typename Traits = SelectiveScanTilesChunkTraits<input_t, kLanes, kParts, kAtOnce>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    selective_scan_tiles_chunk_kernel(const SelectiveScanTilesChunkParams params) {
    using Shape = typename Traits::Shape;
    const SelectiveScanOperands& p = params.operands;
    __shared__ TileShared<Shape> shared;
    const ScanShare<Shape> share(p);
    if (share.is_last(p)) return;
    TileScan<Shape, SelectiveScanOperands> scan(p, shared, share.batch, share.first_channel);
    scan.template walk<false>(share.begin, share.end, [](int) {});
    const ScanScratch scratch(p);
    scan.store_states(scratch.state(p, share.batch, share.segment, 0), p.d_state, 1);
    const float steps = sum_over_lanes(scan.steps, kLanes);
    if (scan.lane == 0 && scan.part == 0 && !scan.is_idle) {
        *scratch.step(p, share.batch, share.segment, scan.channel) = steps;
    }
}
