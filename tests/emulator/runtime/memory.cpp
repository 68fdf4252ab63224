// Global memory: one buffer for all tensors, of which a kernel may access the ranges that the worker opens.
#include <sanitizer/asan_interface.h>
#include <sys/mman.h>

#include <cstdlib>

#include "block.h"

namespace emulator {

namespace {

// Bytes on each side of the buffer in which nothing is mapped, so that a wrong access that far off is found.
constexpr std::size_t kReach = std::size_t{64} << 30;

char* map(char* at, std::size_t bytes, int access, int flags) {
    void* mapped = mmap(at, bytes, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
    if (mapped == MAP_FAILED) fail(nullptr, "no memory for %zu bytes", bytes);
    return static_cast<char*>(mapped);
}

}  // namespace

// Maps a buffer in the middle of a range of addresses in which nothing else is mapped.
extern "C" char* emulator_begin_memory(std::size_t bytes) {
    static char* const middle = map(nullptr, 2 * kReach, PROT_NONE, 0) + kReach;
    return map(middle, bytes, PROT_READ | PROT_WRITE, MAP_FIXED);
}

extern "C" void emulator_end_memory(char* buffer, std::size_t bytes) {
    map(buffer, bytes, PROT_NONE, MAP_FIXED);
}

// Closes the buffer but for `count` ranges, each a begin and an end as offsets in the buffer.
extern "C" void emulator_fence(char* buffer, std::size_t bytes, const std::uint64_t* ranges, std::size_t count) {
    __asan_poison_memory_region(buffer, bytes);
    for (std::size_t i = 0; i < count; ++i) {
        __asan_unpoison_memory_region(buffer + ranges[2 * i], ranges[2 * i + 1] - ranges[2 * i]);
    }
}

extern "C" void emulator_unfence(char* buffer, std::size_t bytes) {
    __asan_unpoison_memory_region(buffer, bytes);
}

}  // namespace emulator
