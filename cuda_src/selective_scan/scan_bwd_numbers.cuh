// What a warp of the scan's backward pass needs of each channel beside its tokens: a lane loads one number of it.
#pragma once

#include "selective_scan/scan_bwd.cuh"

// One number of every channel, or none: lane 4 s has the state before the chunk of the warp's state s, lane 16 + 4 s the
// gradient of the state behind it, lanes 4 s + 1 A, 16 + 4 s + 1 and 4 s + 2 constant B and C, 18 the next channel's
// delta_bias and 22 D.
template <typename Shape, bool kConstantB, bool kConstantC>
struct LaneNumber {
    using T = typename Shape::input_t;
    static constexpr int kStates = Shape::kStates;
    static constexpr int kScan = kWarpSize / (2 * kStates);  // lanes per state and direction
    static constexpr int kUpper = kStates * kScan;
    static_assert(kStates >= 2 && kScan >= 3, "there is a lane for every number");
    static constexpr int kBiasLane = kUpper + 2;
    static constexpr int kDLane = kUpper + kScan + 2;

    const char* at;        // of the block's first channel; null where the number is zero
    index_t channel_step;  // in bytes
    index_t state_step;
    int bytes;
    int state;  // less the first of those under way
    int ahead;  // channels by which the number belongs to a later one than what it comes with
    int waits;  // for the next chunk's block

    __device__ __forceinline__ void begin(const SelectiveScanBwdOperands& p, const ChunkShare& share,
                                          const ChunkTokens& tokens) {
        const int kind = lane_id() % kScan, s = lane_id() / kScan % kStates;
        const bool is_upper = lane_id() >= kUpper;
        at = nullptr;
        channel_step = state_step = 0;
        bytes = 4;
        ahead = 0;
        state = static_cast<int>(threadIdx.x) / kWarpSize * kStates + s;
        waits = kind == 0 && is_upper && tokens.live > 0 && !tokens.is_last;
        if (kind == 0 && !is_upper && tokens.live > 0) {
            if (tokens.is_first) {
                const index_t* stride = p.initial_state_stride;
                take(p.initial_state, stride[1], stride[2], tokens.sequence * stride[0], share);
            } else {
                const float* const states = p.chunk_states != nullptr ? p.chunk_states : p.scratch + p.states_at;
                const index_t* stride = p.chunk_states_stride;
                take(states, stride[2], stride[3], share.batch * stride[0] + share.chunk * stride[1], share);
            }
        } else if (waits) {
            take(p.scratch + kCounters, p.d_state, 1, (share.number(p) + 1) * p.dim * p.d_state, share);
        } else if (kind == 0 && is_upper && (tokens.live > 0 || tokens.is_first)) {
            const index_t* stride = p.dlast_state_stride;
            take(p.dlast_state, stride[1], stride[2], tokens.sequence * stride[0], share);
        } else if (kind == 1 && !is_upper) {
            take(p.A, p.A_stride[0], p.A_stride[1], 0, share);
        } else if (kConstantB && kind == 1) {
            bytes = p.B_is_float32 ? 4 : sizeof(T);
            take(p.B, p.B_stride[1], p.B_stride[2], 0, share);
        } else if (kConstantC && kind == 2 && !is_upper) {
            bytes = p.C_is_float32 ? 4 : sizeof(T);
            take(p.C, p.C_stride[1], p.C_stride[2], 0, share);
        } else if (lane_id() == kBiasLane) {
            bytes = p.delta_bias_is_float32 ? 4 : sizeof(T);
            ahead = 1;
            state = 0;
            take(p.delta_bias, p.delta_bias_stride, 0, 0, share);
        } else if (lane_id() == kDLane) {
            bytes = p.D_is_float32 ? 4 : sizeof(T);
            state = 0;
            take(p.D, p.D_stride, 0, 0, share);
        }
    }

    // That of the i-th of the block's channels, as it is in memory.
    __device__ __forceinline__ unsigned load(int i, int channels, int first_state, int d_state) const {
        if (at == nullptr || first_state + state >= d_state) return 0;
        const char* const place =
            at + static_cast<unsigned>(min(i + ahead, channels - 1)) * channel_step + first_state * state_step;
        if (bytes == 2) return *reinterpret_cast<const unsigned short*>(place);
        return load_relaxed(reinterpret_cast<const float*>(place));
    }

    __device__ __forceinline__ float to_float(unsigned bits) const {
        return bytes == 2 ? Dtype<T>::unpack(bits, 0) : __uint_as_float(bits);
    }

    // What the scan of this lane's state begins with: the number, or once it is there the one that `bits` are of.
    __device__ __forceinline__ float seed(float number, unsigned bits, int i, int channels, int first_state,
                                          int d_state) const {
        if (!waits) return number;
        while (bits == kUnset) bits = load(i, channels, first_state, d_state);
        return __uint_as_float(bits);
    }

    // Whether this lane ends with what goes back to before the chunk, of the state that it has a number of.
    __device__ __forceinline__ static bool has_before(int lane) {
        return lane >= kUpper && lane % kScan == kScan - 1;
    }

    // What lanes have of the warp's state s.
    __device__ __forceinline__ static float rate(float number, int s) { return from_lane(number, s * kScan + 1); }
    __device__ __forceinline__ static float B(float number, int s) { return from_lane(number, kUpper + s * kScan + 1); }
    __device__ __forceinline__ static float C(float number, int s) { return from_lane(number, s * kScan + 2); }

 private:
    __device__ __forceinline__ void take(const void* base, index_t of_channel, index_t of_state, index_t offset,
                                         const ChunkShare& share) {
        if (base == nullptr) return;
        at = static_cast<const char*>(base) + bytes * (offset + share.first_channel * of_channel + state * of_state);
        channel_step = bytes * of_channel;
        state_step = bytes * of_state;
    }
};
