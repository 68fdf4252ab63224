// h = h * exp(dt * A) + dt * B * u, y = sum over n of C * h + D * u, out = y * silu(z), with dt = delta + delta_bias or
// the softplus of that. Or, for all segments of a row but the last, only the state behind the segment when it begins
// with zeros, and the sum of its dt: the first of three launches, of which this kernel's other form is the last.
//
// Layout: u, delta, z and out (batch, dim, seqlen), variable B and C (batch, ngroups, d_state, seqlen), all of any
// strides; vectors lie along the tokens. kLanes lanes own a channel of a segment, the tokens of a row or some of its
// chunks: the states before a segment are the initial ones or, when there are several, in scratch.
//
// input_t  u, delta, z, out, variable B and C   kLanes  lanes per channel   kStates  states per lane
// kVec     tokens per access of u, delta, z and out
// kBVec    of B, 0 when it is constant          kCVec   of C, 0 when it is constant, -1 when only states are wanted
#include "selective_scan/scan_segments.cuh"

struct SelectiveScanFwdParams {
    SelectiveScanOperands operands;
};

template <typename input_t, int kLanes, int kStates, int kVec, int kBVec, int kCVec>
struct SelectiveScanFwdTraits {
    static constexpr int kThreads = 128;
    using Shape = ScanShape<kThreads, input_t, kLanes, kStates, kVec, kBVec, kCVec>;
    static constexpr int kMinBlocks = Shape::kMinBlocks;
    static constexpr bool kStatesOnly = kCVec == kUnused;
    static_assert(ScanSegment<Shape>::kChunk % Shape::kTokens == 0);
};

template <typename input_t, int kLanes, int kStates, int kVec, int kBVec, int kCVec,
          typename Traits = SelectiveScanFwdTraits<input_t, kLanes, kStates, kVec, kBVec, kCVec>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    selective_scan_fwd_kernel(const SelectiveScanFwdParams params) {
    using Shape = typename Traits::Shape;
    const SelectiveScanOperands& p = params.operands;
    const ScanSegment<Shape> segment(p);
    if (Traits::kStatesOnly && segment.is_last(p)) return;
    const int channel = segment.first_channel + static_cast<int>(threadIdx.x) / kLanes;
    ChannelScan<Shape, SelectiveScanOperands> scan(p, segment.batch, channel);
    if constexpr (Traits::kStatesOnly) {
        scan.template walk<false>(segment.begin, segment.end, [](int) {});
        const ScanScratch scratch(p);
        store_states(scan, scratch.state(p, segment.batch, segment.number, scan.channel), 1);
        const float steps = sum_over_lanes(scan.steps, Shape::kOwners);
        if (scan.lane == 0 && !scan.is_idle) *scratch.step(p, segment.batch, segment.number, scan.channel) = steps;
    } else {
        if (p.segments.divisor > 1) {
            load_states(scan, ScanScratch(p).state(p, segment.batch, segment.number, scan.channel), 1);
        } else if (p.initial_state != nullptr) {
            const index_t* stride = p.initial_state_stride;
            load_states(scan, p.initial_state + segment.batch * stride[0] + scan.channel * stride[1], stride[2]);
        }
        scan.template walk<true>(segment.begin, segment.end, [&](int token) {
            if (p.chunk_states == nullptr || token % segment.kChunk != 0) return;
            const index_t* stride = p.chunk_states_stride;
            float* const states = p.chunk_states + segment.batch * stride[0] + token / segment.kChunk * stride[1];
            store_states(scan, states + scan.channel * stride[2], stride[3]);
        });
        if (p.last_state != nullptr && segment.is_last(p)) {
            const index_t* stride = p.last_state_stride;
            store_states(scan, p.last_state + segment.batch * stride[0] + scan.channel * stride[1], stride[2]);
        }
    }
}
