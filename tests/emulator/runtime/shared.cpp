// Shared memory: one region, poisoned but for the variables in it, which hold NaN when a block begins.
#include <sanitizer/asan_interface.h>

#include <cstring>

#include "block.h"

namespace emulator {

namespace {

// The most bytes that a block of any GPU may have, and the most that ptxas lets a kernel declare.
constexpr std::size_t kCapacity = 227 * 1024;
constexpr std::size_t kStaticCapacity = 48 * 1024;
constexpr std::size_t kGuard = 1024;
constexpr std::size_t kDynamicAlignment = 1024;

alignas(kDynamicAlignment) char region[4 * kCapacity];

struct Extent {
    char* begin;
    std::size_t bytes;
};

std::vector<Extent> extents;
std::size_t used;
std::size_t declared;
std::size_t dynamic_bytes;
std::uint64_t launch;

void* allocate(std::size_t bytes, std::size_t alignment, const Calls& where) {
    const std::size_t begin = (used + kGuard + alignment - 1) / alignment * alignment;
    if (begin + bytes + kGuard > sizeof region) fail(where, "the block wants more shared memory than any GPU has");
    used = begin + bytes;
    __asan_unpoison_memory_region(region + begin, bytes);
    std::memset(region + begin, 0xff, bytes);
    extents.push_back({region + begin, bytes});
    return region + begin;
}

}  // namespace

void begin_shared_memory(unsigned bytes) {
    ++launch;
    __asan_poison_memory_region(region, sizeof region);
    extents.clear();
    used = declared = 0;
    dynamic_bytes = bytes;
    allocate(bytes, kDynamicAlignment, kNowhere);
}

void forget_shared_contents() {
    for (const Extent& extent : extents) std::memset(extent.begin, 0xff, extent.bytes);
}

void place(SharedVariable& variable) {
    if (variable.launch == launch) return;
    const Calls where = calls_here();
    declared += variable.bytes;
    if (declared > kStaticCapacity) fail(where, "%zu bytes of static shared memory, 48 KiB is the most", declared);
    if (declared + dynamic_bytes > kCapacity) {
        fail(where, "%zu bytes of shared memory, 227 KiB is the most", declared + dynamic_bytes);
    }
    variable.address = allocate(variable.bytes, variable.alignment, where);
    variable.launch = launch;
}

void* dynamic_shared() {
    return extents.front().begin;
}

}  // namespace emulator
