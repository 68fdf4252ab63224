// The state behind every segment of a selective scan but the last when it begins with zeros, and the sum of its dt: the
// first of three launches, of which selective_scan_fwd is the last.
//
// Layout: as selective_scan_fwd's, to scratch.
//
// input_t  u, delta and variable B              kLanes  lanes a channel              kStates  states a lane
// kVec     tokens an access of u and its kin    kBVec   of B, 0 when it is constant
#include "selective_scan/scan_segments.cuh"

struct SelectiveScanChunkParams {
    SelectiveScanOperands operands;
};

template <typename input_t, int kLanes, int kStates, int kVec, int kBVec>
struct SelectiveScanChunkTraits {
    static constexpr int kThreads = 128;
    using Shape = ScanShape<input_t, kLanes, kStates, kVec, kBVec, kNone>;
    static constexpr int kMinBlocks = Shape::kMinBlocks;
    static_assert(kThreads == Shape::kThreads);
};

template <typename input_t, int kLanes, int kStates, int kVec, int kBVec,
          typename Traits = SelectiveScanChunkTraits<input_t, kLanes, kStates, kVec, kBVec>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    selective_scan_chunk_kernel(const SelectiveScanChunkParams params) {
    using Shape = typename Traits::Shape;
    const SelectiveScanOperands& p = params.operands;
    const ScanShare<Shape> share(p);
    if (share.is_last(p)) return;
    ChannelScan<Shape, SelectiveScanOperands> scan(p, share.batch,
                                                   share.first_channel + static_cast<int>(threadIdx.x) / Shape::kLanes);
    scan.template walk<false>(share.begin, share.end, [](int) {});
    const ScanScratch scratch(p);
    store_states(scan, scratch.state(p, share.batch, share.segment, scan.channel), 1);
    const float steps = sum_over_lanes(scan.steps, Shape::kOwners);
    if (scan.lane == 0 && !scan.is_idle) *scratch.step(p, share.batch, share.segment, scan.channel) = steps;
}
