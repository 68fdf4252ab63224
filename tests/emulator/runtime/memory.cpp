// Global memory: windows of a range of addresses, of which a kernel may access the ranges that the worker opens.
#include <sanitizer/asan_interface.h>
#include <sys/mman.h>

#include <cstdlib>

#include "block.h"

namespace emulator {

namespace {

// Bytes on each side of the first address in which nothing else is mapped, so that a wrong access that far off is
// found.
constexpr std::size_t kReach = std::size_t{64} << 30;

char* map(char* at, std::size_t bytes, int access, int flags) {
    void* mapped = mmap(at, bytes, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
    if (mapped == MAP_FAILED) fail(kNowhere, "no memory for %zu bytes", bytes);
    return static_cast<char*>(mapped);
}

}  // namespace

// The middle of a range of addresses in which nothing is mapped but windows.
extern "C" char* emulator_memory() {
    static char* const middle = map(nullptr, 2 * kReach, PROT_NONE, 0) + kReach;
    return middle;
}

// Maps memory for whole pages of the range.
extern "C" void emulator_begin_window(char* window, std::size_t bytes) {
    map(window, bytes, PROT_READ | PROT_WRITE, MAP_FIXED);
}

extern "C" void emulator_end_window(char* window, std::size_t bytes) {
    map(window, bytes, PROT_NONE, MAP_FIXED);
}

// Closes a window but for `count` ranges, each a begin and an end as offsets in the window.
extern "C" void emulator_fence(char* window, std::size_t bytes, const std::uint64_t* ranges, std::size_t count) {
    __asan_poison_memory_region(window, bytes);
    for (std::size_t i = 0; i < count; ++i) {
        __asan_unpoison_memory_region(window + ranges[2 * i], ranges[2 * i + 1] - ranges[2 * i]);
    }
}

extern "C" void emulator_unfence(char* window, std::size_t bytes) {
    __asan_unpoison_memory_region(window, bytes);
}

}  // namespace emulator
