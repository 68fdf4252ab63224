// What a warp of the scan's backward pass needs of each channel beside its tokens: a lane has one number of it.
#pragma once

#include "selective_scan/scan_bwd.cuh"

// One number of every channel that the block walks. A few lanes have those of one state and one direction. For the
// warp's state s, that is lanes from 4 s on: the first has the state before the chunk, the second A, and the third a
// constant C. Lanes from 16 + 4 s on: the first has the gradient of the state behind the chunk, the second a constant
// B, and the last hands over the gradient of the state before the chunk. The third ones have delta_bias and D.
template <typename Shape, bool kManyStates, bool kConstantB, bool kConstantC, bool kSharesChunks, int kTurn = 0>
struct LaneNumber {
    using T = typename Shape::input_t;
    using Share = ChunkShare<kTurn>;
    // Whether numbers do not lie one step after the other.
    static constexpr bool kJumps = kManyStates || kTurn > 0;
    static constexpr int kStates = Shape::kStates;
    static constexpr int kLanes = kWarpSize / (2 * kStates);  // per state and direction
    static constexpr int kUpper = kStates * kLanes;
    static_assert(kStates >= 2 && kLanes >= 4, "there is a lane for every number");
    static constexpr int kBiasLane = kUpper + 2;
    static constexpr int kDLane = kUpper + kLanes + 2;

    char* at;              // what is loaded next, with kJumps what the first step has; null for zeros
    index_t channel_step;  // in bytes
    index_t state_step;
    int state;     // less the first of those under way
    int channels;  // of the block, less those by which this one number is ahead of the channel that is walked
    bool is_half;
    bool waits;       // for the next chunk's block
    bool hands_over;  // instead of loading

    __device__ __forceinline__ void begin(const SelectiveScanBwdOperands& p, const Share& share,
                                          const ChunkTokens& tokens) {
        const int kind = lane_id() % kLanes;
        const bool is_upper = lane_id() >= kUpper;
        const bool is_bias = lane_id() == kBiasLane, is_D = lane_id() == kDLane;
        at = nullptr;
        channel_step = state_step = 0;
        state =
            is_bias || is_D ? 0 : static_cast<int>(threadIdx.x) / kWarpSize * kStates + lane_id() / kLanes % kStates;
        waits = kind == 0 && is_upper && tokens.live > 0 && !tokens.is_last;
        hands_over = kind == kLanes - 1 && is_upper;
        is_half = false;
        channels = share.channels - (kJumps ? 0 : !waits + is_bias);
        if (kind == 0 && !is_upper && tokens.live > 0) {
            if (tokens.is_first) {
                // Sequences that share chunks begin at tokens, and end there.
                const index_t* stride = p.initial_state_stride;
                if (!kSharesChunks) take(p.initial_state, stride[1], stride[2], tokens.sequence * stride[0], share);
            } else {
                const float* const states = p.chunk_states != nullptr ? p.chunk_states : p.scratch + p.states_at;
                const index_t* stride = p.chunk_states_stride;
                take(states, stride[2], stride[3], share.batch * stride[0] + share.chunk * stride[1], share);
            }
        } else if (waits || hands_over) {
            take(p.scratch + kCounters, p.d_state, 1, (share.number(p) + waits) * p.dim * p.d_state, share);
        } else if (kind == 0 && is_upper && (tokens.live > 0 || tokens.is_first)) {
            const index_t* stride = p.dlast_state_stride;
            if (!kSharesChunks) take(p.dlast_state, stride[1], stride[2], tokens.sequence * stride[0], share);
        } else if (kind == 1 && !is_upper) {
            take(p.A, p.A_stride[0], p.A_stride[1], 0, share);
        } else if (kConstantB && kind == 1) {
            is_half = sizeof(T) == 2 && !p.B_is_float32;
            take(p.B, p.B_stride[1], p.B_stride[2], 0, share);
        } else if (kConstantC && kind == 2 && !is_upper) {
            is_half = sizeof(T) == 2 && !p.C_is_float32;
            take(p.C, p.C_stride[1], p.C_stride[2], 0, share);
        } else if (is_bias) {
            is_half = sizeof(T) == 2 && !p.delta_bias_is_float32;
            take(p.delta_bias, p.delta_bias_stride, 0, 0, share);
            if (!kJumps && at != nullptr && share.channels > 1) at += channel_step;
        } else if (is_D) {
            is_half = sizeof(T) == 2 && !p.D_is_float32;
            take(p.D, p.D_stride, 0, 0, share);
        }
        if (state >= p.d_state && !kManyStates) {
            at = nullptr;
            channel_step = 0;
        }
        if (at == nullptr || hands_over) channels = -1;
    }

    // The numbers of the first step; others follow while the step before is taken. delta_bias is that of the step
    // behind.
    __device__ __forceinline__ unsigned load_first(const Share& share, Step second, int d_state) {
        if (waits || hands_over) return kUnset;
        if (at == nullptr || state >= d_state) return 0;
        const bool is_bias = kJumps && lane_id() == kBiasLane && second.channel < share.channels;
        const unsigned bits = load(is_bias ? place(share, {second.channel, 0}) : at);
        if (!kJumps) at += channel_step;
        return bits;
    }

    // While a step is taken, the numbers of the next one, or what another block computes of this one.
    __device__ __forceinline__ unsigned load_next(const Share& share, Step now, Step next, Step after_next,
                                                  int d_state) const {
        if constexpr (!kJumps) {
            return now.channel < channels ? load(at) : 0;
        } else {
            const bool is_bias = lane_id() == kBiasLane;
            const Step step = {waits     ? now.channel
                               : is_bias ? after_next.channel
                                         : next.channel,
                               waits ? now.first_state : next.first_state};
            if (step.channel >= channels || (!is_bias && step.first_state + state >= d_state)) return 0;
            return load(place(share, step));
        }
    }

    // What the scan of this lane's state begins with: the number, or the one that `bits` are of once it is there. With
    // kTogether all lanes wait where one does, and the warp stays whole.
    template <bool kTogether>
    __device__ __forceinline__ float seed(const Share& share, float number, unsigned bits, Step now) const {
        if constexpr (kTogether) {
            if (!waits) bits = 0;
            while (lanes_where(bits == kUnset) != 0) {
                if (bits == kUnset) bits = load_relaxed(reinterpret_cast<const float*>(place(share, now)));
            }
            return waits ? __uint_as_float(bits) : number;
        }
        if (!waits) return number;
        while (bits == kUnset) bits = load(place(share, now));
        return __uint_as_float(bits);
    }

    // Hands the gradient of this lane's state before the chunk to the block of the chunk before, or to the caller.
    __device__ __forceinline__ void hand_over(const SelectiveScanBwdOperands& p, const Share& share,
                                              const ChunkTokens& tokens, Step now, float value) const {
        const int n = now.first_state + state;
        if (!hands_over || n >= p.d_state) return;
        ::hand_over(reinterpret_cast<float*>(place(share, now)), value);
        if (!kSharesChunks && tokens.is_first && p.dinitial_state != nullptr) {
            const index_t* const stride = p.dinitial_state_stride;
            const int channel = share.first_channel + share.channel(now.channel);
            p.dinitial_state[tokens.sequence * stride[0] + channel * stride[1] + n * stride[2]] = value;
        }
    }

    // Goes on to the next channel.
    __device__ __forceinline__ void advance() {
        if (!kJumps) at += channel_step;
    }

    __device__ __forceinline__ float to_float(unsigned bits) const {
        return is_half ? Dtype<T>::unpack(bits, 0) : __uint_as_float(bits);
    }

    // What lanes have of the warp's state s.
    __device__ __forceinline__ static float A(float number, int s) { return from_lane(number, s * kLanes + 1); }
    __device__ __forceinline__ static float B(float number, int s) {
        return from_lane(number, kUpper + s * kLanes + 1);
    }
    __device__ __forceinline__ static float C(float number, int s) { return from_lane(number, s * kLanes + 2); }

 private:
    // Where the number of a step is, or is handed over.
    __device__ __forceinline__ char* place(const Share& share, Step step) const {
        return kJumps ? at + share.channel(step.channel) * channel_step + step.first_state * state_step : at;
    }

    __device__ __forceinline__ unsigned load(const char* place) const {
        if (is_half) return *reinterpret_cast<const unsigned short*>(place);
        return load_relaxed(reinterpret_cast<const float*>(place));
    }

    __device__ __forceinline__ void take(const void* base, index_t of_channel, index_t of_state, index_t offset,
                                         const Share& share) {
        if (base == nullptr) return;
        const int bytes = is_half ? 2 : 4;
        at = const_cast<char*>(static_cast<const char*>(base)) +
             bytes * (offset + share.first_channel * of_channel + state * of_state);
        channel_step = bytes * of_channel;
        state_step = bytes * of_state;
    }
};
