// The functions of the runtime, which runs a block's threads as fibers, that the device functions of these headers
// call.
#pragma once

#include <cstddef>
#include <cstdint>

namespace emulator {

constexpr int kWarp = 32;

// The values that the lanes of a warp bring to an operation. That of a lane that takes no part is all ones, a NaN.
struct Lanes {
    unsigned brought;
    std::uint64_t values[kWarp];
};

// Waits for the warp's lanes in `mask` and returns their values. `what` names the operation, the same for all of them.
const Lanes& exchange(const char* what, unsigned mask, std::uint64_t value);

// Waits for all threads of the block.
void barrier(const char* what);

// Starts a copy that belongs to the running thread's current group of copies.
void start_copy(void* to, const void* from, std::size_t bytes);

// Ends the current group, so that later copies belong to the next.
void end_copy_group();

// Does the copies of all groups that have ended but the last `pending`.
void wait_for_copy_groups(std::size_t pending);

// Waits for the preceding kernel.
void wait_for_preceding();

// Lets other threads run first.
void yield();

unsigned lane();

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

// The variable of one `__shared__` declaration. Every instantiation of a declaration has a type `Site` of its own.
template <typename T, typename Site>
inline __attribute__((always_inline)) T& shared(Site, std::size_t alignment = alignof(T)) {
    static SharedVariable variable{sizeof(T), alignment, nullptr, 0};
    place(variable);
    return *static_cast<T*>(variable.address);
}

}  // namespace emulator
