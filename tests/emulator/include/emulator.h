// What the device functions of these headers ask of the runtime, which runs a block's threads as fibers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace emulator {

constexpr int kWarp = 32;

// What every lane of a warp brought to an operation; what nobody brought is all ones, a NaN.
struct Lanes {
    unsigned brought;
    std::uint64_t values[kWarp];
};

// Waits for the warp's lanes in `mask`. `what` names the operation; all lanes must come with the same.
const Lanes& exchange(const char* what, unsigned mask, std::uint64_t value);

// Waits for all threads of the block; how many of them came with a true `predicate`.
int barrier(const char* what, bool predicate);

// Lets other threads go on first.
void yield();

unsigned lane();
unsigned active_lanes();

[[noreturn]] void refuse_width(const char* what, int width);

// One variable in shared memory. It gets its place, between guards, when a launch first comes across it.
struct SharedVariable {
    std::size_t bytes;
    std::size_t alignment;
    void* address;
    std::uint64_t launch;
};

void place(SharedVariable& variable);
void* dynamic_shared();

// The variable of one `__shared__` declaration: the type of `site` is the declaration's own in every instantiation.
template <typename T, typename Site>
inline __attribute__((always_inline)) T& shared(Site, std::size_t alignment = alignof(T)) {
    static SharedVariable variable{sizeof(T), alignment, nullptr, 0};
    place(variable);
    return *static_cast<T*>(variable.address);
}

}  // namespace emulator
