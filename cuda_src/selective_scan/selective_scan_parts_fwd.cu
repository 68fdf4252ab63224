// h = h * exp(dt * A) + dt * B * u, y = sum over n of C * h + D * u, out = y * silu(z), with dt = delta + delta_bias or
// the softplus of that, for rows of contiguous tokens that are short, few or not aligned: up to 16 states.
//
// Layout: u, delta, z and out (batch, dim, seqlen), B and C (batch, ngroups, d_state, seqlen), tokens contiguous.
//
// input_t  u, delta, z, out, B and C    kVec       tokens an access    kLanes  lanes of a warp per channel
// kStates  of a warp                    kResident  blocks per multiprocessor
#include "selective_scan/scan_parts.cuh"
#include "selective_scan/scan_segments.cuh"

struct SelectiveScanPartsFwdParams {
    SelectiveScanOperands operands;
};

template <typename input_t, int kVec, int kLanes, int kStates, int kResident>
struct SelectiveScanPartsFwdTraits {
    static constexpr int kThreads = 128;
    static constexpr int kMinBlocks = kResident;
    using Shape = PartsShape<kThreads, input_t, kVec, kLanes, kStates>;
};

// A row of a batch. kChunk tokens are between states that are kept.
template <int kChunk>
struct DenseRow {
    static constexpr bool kHasLead = false;
    static constexpr bool kHasChunks = true;
    static constexpr int first = 0;
    static constexpr int lead = 0;
    using State = Vec<float, 1>;

    const SelectiveScanOperands& p;
    index_t batch;
    int first_channel;

    __device__ __forceinline__ int length() const { return p.seqlen; }

    __device__ __forceinline__ State load_state(index_t channel, int n) const {
        if (p.initial_state == nullptr) return State::zero();
        const index_t* const stride = p.initial_state_stride;
        return load<1, Memory::kMutable>(p.initial_state + batch * stride[0] + channel * stride[1] + n * stride[2]);
    }

    struct Place {
        float* at;
        index_t by_channel;
        index_t by_state;

        __device__ __forceinline__ void store(index_t channel, int n, float state) const {
            at[channel * by_channel + n * by_state] = state;
        }
    };

    __device__ __forceinline__ bool keeps_last() const { return p.last_state != nullptr; }

    __device__ __forceinline__ Place last() const {
        const index_t* const stride = p.last_state_stride;
        return {p.last_state + batch * stride[0], stride[1], stride[2]};
    }

    __device__ __forceinline__ bool keeps_chunk(int tile) const {
        return p.chunk_states != nullptr && tile % kChunk == 0;
    }

    __device__ __forceinline__ Place chunk(int tile) const {
        const index_t* const stride = p.chunk_states_stride;
        return {p.chunk_states + tile / kChunk * stride[1] + batch * stride[0], stride[2], stride[3]};
    }
};

template <typename input_t, int kVec, int kLanes, int kStates, int kResident,
          typename Traits = SelectiveScanPartsFwdTraits<input_t, kVec, kLanes, kStates, kResident>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    selective_scan_parts_fwd_kernel(const SelectiveScanPartsFwdParams params) {
    using Shape = typename Traits::Shape;
    using Segment = ScanSegment<Shape>;
    static_assert(Segment::kChunk % Shape::kTile == 0);
    const SelectiveScanOperands& p = params.operands;
    __shared__ PartsShared<Shape> shared;
    const Segment segment(p);
    scan_parts<Shape>(p, shared, DenseRow<Segment::kChunk>{p, segment.batch, segment.first_channel});
}
