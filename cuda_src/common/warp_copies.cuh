// Stages in shared memory that a warp fills with contiguous memory, several of them at a time.
#pragma once

#include "common/warp.cuh"

// A barrier per stage.
template <int kStages>
struct WarpBarriers {
    unsigned long long of_stage[kStages];
};

// Brings contiguous vectors of 16 bytes to stages that are waited for, in turn, in the order in which they were filled.
// A stage is filled by expect(), any number of copy() and end(), all by the whole warp, once every lane has read what
// it held; end() is called as often when there is nothing left to bring. From compute capability 9.0 on a copy is one
// instruction of one lane, before that one for each vector.
template <int kStages>
struct WarpCopies {
    static constexpr bool kIsBulk = kArch >= 90;

    WarpBarriers<kStages>& barriers;
    unsigned parities = 0;  // a bit for each stage

    __device__ __forceinline__ explicit WarpCopies(WarpBarriers<kStages>& barriers_) : barriers(barriers_) {
        if constexpr (kIsBulk) {
            if (lane_id() < kStages) init_barrier(&barriers.of_stage[lane_id()]);
            sync_warp();
        }
    }

    // The bytes that all copies to a stage bring.
    __device__ __forceinline__ void expect(int stage, int bytes) {
        if (kIsBulk && lane_id() == 0) expect_bytes(&barriers.of_stage[stage], bytes);
    }

    template <typename T, int kVec>
    __device__ __forceinline__ void copy(int stage, Vec<T, kVec>* shared, const T* global, int count) {
        static_assert(sizeof(Vec<T, kVec>) == 16);
        if constexpr (kIsBulk) {
            if (lane_id() == 0) copy_bulk(shared, global, count * 16, &barriers.of_stage[stage]);
        } else {
#pragma unroll 1
            for (int i = lane_id(); i < count; i += kWarpSize) copy_vector_async(shared + i, global + i * kVec);
        }
    }

    __device__ __forceinline__ void end() {
        if constexpr (!kIsBulk) end_copy_group();
    }

    // Makes ordinary stores to shared memory come before the copies that are started after the warp's next
    // synchronisation.
    __device__ __forceinline__ void order_stores() {
        if constexpr (kIsBulk) order_before_copy_bulk();
    }

    // Waits for the stage that was filled first of those that have not been waited for.
    __device__ __forceinline__ void wait(int stage) {
        if constexpr (kIsBulk) {
            wait_for_bytes(&barriers.of_stage[stage], parities >> stage & 1);
            parities ^= 1u << stage;
        } else {
            wait_for_copy_groups<kStages - 1>();
        }
        sync_warp();
    }
};

// Sends contiguous vectors of 16 bytes, which the lanes have stored to a place in shared memory, to global memory. From
// compute capability 9.0 on it is one instruction of one lane, before that one store for each vector. The lanes write
// the place again after wait_for_sent().
template <typename T, int kVec>
__device__ __forceinline__ void send_vectors(T* global, const Vec<T, kVec>* shared, int count) {
    static_assert(sizeof(Vec<T, kVec>) == 16);
    if constexpr (kArch >= 90) {
        order_before_copy_bulk();
        sync_warp();
        if (lane_id() == 0) copy_bulk_out(global, shared, count * 16);
    } else {
        sync_warp();
#pragma unroll 1
        for (int i = lane_id(); i < count; i += kWarpSize) store(global + i * kVec, shared[i]);
    }
}

__device__ __forceinline__ void wait_for_sent() {
    if (kArch >= 90 && lane_id() == 0) wait_for_bulk_reads();
    sync_warp();
}
