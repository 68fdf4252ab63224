// h = h * exp(dt * A) + dt * B * u, y = sum over n of C * h + D * u, out = y * silu(z), with dt = delta + delta_bias or
// the softplus of that, for rows of many tokens.
//
// Layout: u, delta, z and out (batch, dim, seqlen), B and C (batch, ngroups, d_state, seqlen), the tokens contiguous
// and rows aligned to 16 bytes, d_state up to 16. kLanes lanes own a channel of a segment, the tokens of a row or some
// of its chunks, and 16 consecutive tokens each of a tile: the states before a segment are the initial ones or, when
// there are several, in scratch. Shared memory: B and C of the tile, rates and states of the block's channels.
//
// input_t  u, delta, z, out, B and C    kLanes  lanes a channel
#include "common/scan_segments.cuh"
#include "common/scan_tiles.cuh"

struct SelectiveScanTilesFwdParams {
    SelectiveScanOperands operands;
};

template <typename input_t, int kLanes>
struct SelectiveScanTilesFwdTraits {
    static constexpr int kThreads = 64;
    static constexpr int kChunk = 256;  // tokens between the states that a backward pass starts from
    using Shape = TileShape<input_t, kLanes>;
    static_assert(kThreads == Shape::kThreads && kChunk % Shape::kTile == 0);
};

template <typename input_t, int kLanes>
__global__ void __launch_bounds__(64, SelectiveScanTilesFwdTraits<input_t, kLanes>::Shape::kMinBlocks)
    selective_scan_tiles_fwd_kernel(const SelectiveScanTilesFwdParams params) {
    using Traits = SelectiveScanTilesFwdTraits<input_t, kLanes>;
    using Shape = typename Traits::Shape;
    const SelectiveScanOperands& p = params.operands;
    __shared__ TileShared<Shape> shared;
    const ScanShare<Shape> share(p);
    TileScan<Shape, SelectiveScanOperands> scan(p, shared, share.batch,
                                                share.channel - static_cast<int>(threadIdx.x) / kLanes);
    const index_t* stride = p.initial_state_stride;
    if (p.segments.divisor > 1) {
        scan.load_states(ScanScratch(p).state(p, share.batch, share.segment, scan.channel), 1);
    } else if (p.initial_state != nullptr) {
        scan.load_states(p.initial_state + share.batch * stride[0] + scan.channel * stride[1], stride[2]);
    }
    scan.template walk<true>(share.begin, share.end, [&](int token) {
        if (p.chunk_states == nullptr || token % Traits::kChunk != 0) return;
        const index_t* stride = p.chunk_states_stride;
        float* const states = p.chunk_states + share.batch * stride[0] + token / Traits::kChunk * stride[1];
        scan.store_states(states + scan.channel * stride[2], stride[3]);
    });
    if (p.last_state != nullptr && share.is_last(p)) {
        stride = p.last_state_stride;
        scan.store_states(p.last_state + share.batch * stride[0] + scan.channel * stride[1], stride[2]);
    }
}
