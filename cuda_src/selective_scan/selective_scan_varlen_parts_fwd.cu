// h = h * exp(dt * A) + dt * B * u, y = sum over n of C * h + D * u, out = y * silu(z), with dt = delta + delta_bias or
// the softplus of that, for packed sequences that are short, few or not aligned, with their states in a pool: up to 16
// states.
//
// Layout: u, delta, z and out (dim, total), B and C (ngroups, d_state, total), tokens contiguous; the pool (slots, dim,
// d_state) of any strides. A block has channels of one sequence. Where tokens have vectors, its tiles begin with the
// vector that the first token is in. The blocks of the first and the last sequence store zeros for the padding in front
// and behind.
//
// input_t  u, delta, z, out, B and C    kVec       tokens an access            kLanes   lanes of a warp per channel
// kStates  of a warp                    kResident  blocks per multiprocessor  state_t  the pool of states
#include "selective_scan/scan_parts.cuh"
#include "selective_scan/scan_varlen.cuh"

struct SelectiveScanVarlenPartsFwdParams {
    SelectiveScanVarlenOperands operands;
};

template <typename input_t, int kVec, int kLanes, int kStates, int kResident, typename state_t>
struct SelectiveScanVarlenPartsFwdTraits {
    static constexpr int kThreads = 128;
    static constexpr int kMinBlocks = kResident;
    using Shape = PartsShape<kThreads, input_t, kVec, kLanes, kStates>;
};

// A packed sequence, or a row of a batch.
template <typename state_t, int kVec>
struct PackedRow {
    static constexpr bool kHasLead = kVec > 1;
    static constexpr bool kHasChunks = false;
    using State = Vec<state_t, 1>;

    struct Place {
        state_t* at;
        index_t by_channel;
        index_t by_state;

        __device__ __forceinline__ void store(index_t channel, int n, float state) const {
            at[channel * by_channel + n * by_state] = Dtype<state_t>::from_float(state);
        }
    };

    const SelectiveScanVarlenOperands& p;
    int batch;
    int first_channel;
    int first;
    int lead;
    int tokens;
    int from;  // the slot that it goes on from; -1 where it begins with zeros
    int to;    // the slot of its final state; -1 where that is not kept

    __device__ __forceinline__ int length() const { return tokens; }

    __device__ __forceinline__ Place place(int slot) const {
        const index_t* const stride = p.ssm_states_stride;
        return {static_cast<state_t*>(p.ssm_states) + slot * stride[0], stride[1], stride[2]};
    }

    __device__ __forceinline__ State load_state(index_t channel, int n) const {
        if (from < 0) return State::zero();
        const Place pool = place(from);
        return load<1, Memory::kMutable>(pool.at + channel * pool.by_channel + n * pool.by_state);
    }

    __device__ __forceinline__ bool keeps_last() const { return to >= 0; }

    __device__ __forceinline__ Place last() const { return place(to); }
};

template <typename input_t, int kVec, int kLanes, int kStates, int kResident, typename state_t,
          typename Traits = SelectiveScanVarlenPartsFwdTraits<input_t, kVec, kLanes, kStates, kResident, state_t>>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinBlocks)
    selective_scan_varlen_parts_fwd_kernel(const SelectiveScanVarlenPartsFwdParams params) {
    using Shape = typename Traits::Shape;
    const SelectiveScanVarlenOperands& p = params.operands;
    __shared__ PartsShared<Shape> shared;
    const QuotientRemainder row_block = divide(blockIdx.x, p.dim_blocks);
    const int number = static_cast<int>(row_block.quotient);
    const int first_channel = static_cast<int>(row_block.remainder) * Shape::kChannels;
    const SequenceStart start = SequenceStart::load<true>(p, number);
    const int begin = uniform(start.begin), end = uniform(start.end), slot = uniform(start.slot);
    if (begin < end && slot >= 0) {
        const int first = begin / kVec * kVec, from = p.has_states && start.goes_on ? slot : -1;
        const PackedRow<state_t, kVec> row{p,
                                           number,
                                           first_channel,
                                           first,
                                           begin - first,
                                           end - first,
                                           uniform(from),
                                           uniform(load_target(p, number, slot))};
        scan_parts<Shape>(p, shared, row);
    }
    for (int base = first_channel; base < p.dim; base += static_cast<int>(p.dim_blocks.divisor) * Shape::kChannels) {
        if (slot < 0 && !p.keeps_padding) store_zeros<Shape>(p, number, base, begin, end);
        store_padding<Shape>(p, base, number);
    }
}
