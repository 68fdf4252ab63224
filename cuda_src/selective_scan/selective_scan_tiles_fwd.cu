// h = h * exp(dt * A) + dt * B * u, y = sum over n of C * h + D * u, out = y * silu(z), with dt = delta + delta_bias or
// the softplus of that, for rows of many tokens.
//
// Layout: u, delta, z and out (batch, dim, seqlen), B and C (batch, ngroups, d_state, seqlen), the tokens contiguous
// and rows aligned to 16 bytes, d_state up to 16. kLanes lanes own a channel of a segment, the tokens of a row or some
// of its chunks, and 16 or 8 consecutive tokens each of a tile; or kParts times as many, each with a part of the
// states. The states before a segment are the initial ones or, when there are several, in scratch. Shared memory: B and
// C of the tile, rates and states of the block's channels.
//
// input_t  u, delta, z, out, B and C    kLanes  that have a channel's tokens    kParts  of its states
// kAtOnce  of which a lane has under way
#include "selective_scan/scan_segments.cuh"
#include "selective_scan/scan_tiles.cuh"

struct SelectiveScanTilesFwdParams {
    SelectiveScanOperands operands;
};

template <typename input_t, int kLanes, int kParts, int kAtOnce>
struct SelectiveScanTilesFwdTraits {
    static constexpr int kChunk = 256;  // tokens between the states that a backward pass starts from
    static constexpr int kThreads = 128;
    using Shape = TileShape<input_t, kLanes, kParts, kAtOnce>;
    static constexpr int kMinBlocks = Shape::kMinBlocks;
    static_assert(kThreads == Shape::kThreads && kChunk % Shape::kTile == 0);
};

template <typename input_t, int kLanes, int kParts, int kAtOnce,
          typename Traits = SelectiveScanTilesFwdTraits<input_t, kLanes, kParts, kAtOnce>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    selective_scan_tiles_fwd_kernel(const SelectiveScanTilesFwdParams params) {
    using Shape = typename Traits::Shape;
    const SelectiveScanOperands& p = params.operands;
    __shared__ TileShared<Shape> shared;
    const ScanShare<Shape> share(p);
    TileScan<Shape, SelectiveScanOperands> scan(p, shared, share.batch, share.first_channel);
    const index_t* stride = p.initial_state_stride;
    if (p.segments.divisor > 1) {
        scan.load_states(ScanScratch(p).state(p, share.batch, share.segment, 0), p.d_state, 1);
    } else if (p.initial_state != nullptr) {
        scan.load_states(p.initial_state + share.batch * stride[0], stride[1], stride[2]);
    }
    scan.template walk<true>(share.begin, share.end, [&](int token) {
        if (p.chunk_states == nullptr || token % Traits::kChunk != 0) return;
        __syncthreads();
        const index_t* stride = p.chunk_states_stride;
        scan.store_states(p.chunk_states + share.batch * stride[0] + token / Traits::kChunk * stride[1], stride[2],
                          stride[3]);
    });
    if (p.last_state != nullptr && share.is_last(p)) {
        stride = p.last_state_stride;
        scan.store_states(p.last_state + share.batch * stride[0], stride[1], stride[2]);
    }
}
