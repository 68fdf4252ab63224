// The states before chunks of 256 tokens, for the backward pass of a scan of many channels that has left none: by lanes
// that sweep all tokens of a row, as selective_scan_tiles_fwd does. On an H200 that takes 154 us (1 x 5120 x 4096,
// bfloat16) where selective_scan_bwd_states, with lanes that share the tokens of a chunk, takes 264.
//
// Layout: u and delta (batch, dim, seqlen), B (batch, ngroups, d_state, seqlen), the tokens contiguous and rows aligned
// to 16 bytes, or the channels and the states contiguous and tokens aligned; d_state up to 16. kParts lanes own a
// channel, each some of its states.
//
// input_t  u, delta and B                 kParts      lanes per channel
// kAtOnce  states computed interleaved    kByChannel  channels and states are contiguous, not tokens
#include "selective_scan/scan_bwd.cuh"
#include "selective_scan/scan_sweeps.cuh"

struct SelectiveScanBwdSweepsParams {
    SelectiveScanBwdOperands operands;
};

template <typename input_t, int kParts, int kAtOnce, bool kByChannel>
struct SelectiveScanBwdSweepsTraits {
    static constexpr int kThreads = 128;
    // With two lanes per channel, four blocks would spill 8 bytes.
    static constexpr int kMinBlocks = kParts == 2 ? 3 : 4;
    using Shape = TileShape<kThreads, input_t, 1, kParts, kAtOnce, 64, kByChannel, false>;
    static_assert(kChunk % Shape::kTile == 0);
};

// The operands under the names of a scan that has no results.
struct SweptOperands : SelectiveScanBwdOperands {
    static constexpr void* out = nullptr;
    static constexpr index_t out_stride[3] = {0, 0, 0};
};

template <typename input_t, int kParts, int kAtOnce, bool kByChannel,
          typename Traits = SelectiveScanBwdSweepsTraits<input_t, kParts, kAtOnce, kByChannel>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    selective_scan_bwd_sweeps_kernel(const SelectiveScanBwdSweepsParams params) {
    using Shape = typename Traits::Shape;
    const SweptOperands& p = static_cast<const SweptOperands&>(params.operands);
    __shared__ TileShared<Shape> shared;
    const QuotientRemainder row_block = divide(blockIdx.x, p.dim_blocks);
    const int batch = static_cast<int>(row_block.quotient);
    const int first_channel = static_cast<int>(row_block.remainder) * Shape::kChannels;
    SweepScan<Shape, SweptOperands> scan(p, shared, batch, first_channel, [&](index_t channel, int n) {
        if (p.initial_state == nullptr) return 0.0f;
        const index_t* const stride = p.initial_state_stride;
        const float* const at = p.initial_state + batch * stride[0] + channel * stride[1] + n * stride[2];
        return load<1, Memory::kMutable>(at).to_float(0);
    });
    const auto store_states = [&](int token) {
        if (token == 0 || token % kChunk != 0) return;
        scan.wait_for_states();
        const index_t chunk = static_cast<index_t>(batch) * p.chunks + token / kChunk;
        scan.store_states(p.scratch + p.states_at + chunk * p.dim * p.d_state, p.d_state, 1);
    };
    // No chunk begins with the state behind the last one.
    const int last = (p.chunks - 1) * kChunk;
    scan.template walk<false>(0, last, store_states);
    store_states(last);
}
