// h = h * exp(dt * A) + dt * B * u, y = sum over n of C * h + D * u, out = y * silu(z), with dt = delta + delta_bias or
// the softplus of that.
//
// Layout: u, delta, z and out (batch, dim, seqlen), variable B and C (batch, ngroups, d_state, seqlen), all of any
// strides; vectors lie along the tokens. kLanes lanes own a channel of a segment, the tokens of a row or some of its
// chunks: the states before a segment are the initial ones or, when there are several, in scratch.
//
// input_t  u, delta, z, out, variable B and C   kLanes  lanes a channel              kStates  states a lane
// kVec     tokens an access of u and its kin    kBVec   of B, 0 when it is constant   kCVec    of C
#include "selective_scan/scan_segments.cuh"

struct SelectiveScanFwdParams {
    SelectiveScanOperands operands;
};

template <typename input_t, int kLanes, int kStates, int kVec, int kBVec, int kCVec>
struct SelectiveScanFwdTraits {
    static constexpr int kThreads = 128;
    static constexpr int kChunk = 256;  // tokens between the states that a backward pass starts from
    using Shape = ScanShape<input_t, kLanes, kStates, kVec, kBVec, kCVec>;
    static constexpr int kMinBlocks = Shape::kMinBlocks;
    static_assert(kThreads == Shape::kThreads && kChunk % Shape::kTokens == 0);
};

template <typename input_t, int kLanes, int kStates, int kVec, int kBVec, int kCVec,
          typename Traits = SelectiveScanFwdTraits<input_t, kLanes, kStates, kVec, kBVec, kCVec>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    selective_scan_fwd_kernel(const SelectiveScanFwdParams params) {
    using Shape = typename Traits::Shape;
    const SelectiveScanOperands& p = params.operands;
    const ScanShare<Shape> share(p);
    ChannelScan<Shape, SelectiveScanOperands> scan(p, share.batch,
                                                   share.first_channel + static_cast<int>(threadIdx.x) / Shape::kLanes);
    if (p.segments.divisor > 1) {
        load_states(scan, ScanScratch(p).state(p, share.batch, share.segment, scan.channel), 1);
    } else if (p.initial_state != nullptr) {
        const index_t* stride = p.initial_state_stride;
        load_states(scan, p.initial_state + share.batch * stride[0] + scan.channel * stride[1], stride[2]);
    }
    scan.template walk<true>(share.begin, share.end, [&](int token) {
        if (p.chunk_states == nullptr || token % Traits::kChunk != 0) return;
        const index_t* stride = p.chunk_states_stride;
        float* const states = p.chunk_states + share.batch * stride[0] + token / Traits::kChunk * stride[1];
        store_states(scan, states + scan.channel * stride[2], stride[3]);
    });
    if (p.last_state != nullptr && share.is_last(p)) {
        const index_t* stride = p.last_state_stride;
        store_states(scan, p.last_state + share.batch * stride[0] + scan.channel * stride[1], stride[2]);
    }
}
