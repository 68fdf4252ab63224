// Asynchronous copies to shared memory, by the names of CUDA's pipeline primitives. They happen as late as they may:
// when the thread that started them waits for them.
#pragma once

#include "emulator.h"
#include "qualifiers.h"
#include "vector_types.h"

namespace emulator {

// Reads where the copy will read and writes a NaN where it will write, so that a wrong place is found at the line that
// names it, and a target that is read before the wait holds no result.
template <typename Words>
__forceinline__ void start_copy_of(void* shared, const void* global) {
    Words words = *static_cast<const Words*>(global);
    std::memset(&words, 0xff, sizeof words);
    *static_cast<Words*>(shared) = words;
    start_copy(shared, global, sizeof words);
}

}  // namespace emulator

// Of the bytes the last `zeros` are not read, but become zero at once.
__forceinline__ void __pipeline_memcpy_async(void* shared, const void* global, std::size_t bytes,
                                             std::size_t zeros = 0) {
    if (zeros > 0) {
        const std::size_t front = bytes - zeros;
        for (std::size_t i = 0; i < front; ++i) static_cast<void>(static_cast<const volatile char*>(global)[i]);
        std::memset(shared, 0xff, front);
        std::memset(static_cast<char*>(shared) + front, 0, zeros);
        if (front > 0) emulator::start_copy(shared, global, front);
    } else if (bytes == sizeof(uint4)) {
        emulator::start_copy_of<uint4>(shared, global);
    } else if (bytes == sizeof(uint2)) {
        emulator::start_copy_of<uint2>(shared, global);
    } else {
        emulator::start_copy_of<unsigned>(shared, global);
    }
}

__forceinline__ void __pipeline_commit() {
    emulator::end_copy_group();
}

__forceinline__ void __pipeline_wait_prior(std::size_t pending) {
    emulator::wait_for_copy_groups(pending);
}
