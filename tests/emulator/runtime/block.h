// The block that is running: its threads and their states.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "emulator.h"
#include "fiber.h"
#include "qualifiers.h"

namespace emulator {

// kPreceded: waits for the preceding kernel.
enum class State { kReady, kYielded, kWaiting, kPreceded, kReturned };

// The calls that led from a kernel to the runtime, by the addresses to return to, the innermost first. Two calls of one
// device function are two places, so that threads which wait in different branches are found also where the branches
// call the same function.
struct Calls {
    static constexpr int kMost = 32;

    const void* addresses[kMost];  // null behind the last

    bool operator==(const Calls& other) const { return std::equal(addresses, addresses + kMost, other.addresses); }
    bool operator!=(const Calls& other) const { return !(*this == other); }
};

inline constexpr Calls kNowhere{};

struct Wait {
    const char* what;
    Calls where;
    unsigned mask;  // lanes of the warp to wait for; 0 stands for all threads of the block
};

struct Copy {
    void* to;
    const void* from;
    std::size_t bytes;
    std::size_t group;
};

struct Thread {
    std::unique_ptr<Fiber> fiber;
    uint3 index;
    State state;
    Wait wait;
    std::uint64_t value;       // brought to the operation that the thread waits in
    Lanes lanes;               // result of the last operation of the thread's warp
    std::vector<Copy> copies;  // started and not waited for
    std::size_t copy_groups;   // that have ended
    bool has_waited;           // for the preceding kernel
};

// Threads in the order of their number in the block; 32 consecutive ones are a warp.
struct Block {
    static constexpr unsigned kNobody = ~0u;

    std::vector<Thread> threads;
    unsigned running;  // the number of the running thread, or kNobody
    unsigned at_barrier;
    bool has_waited;  // for the preceding kernel, with all threads

    Thread& self() { return threads[running]; }
    unsigned first_of_warp() const { return running / kWarp * kWarp; }
};

extern Block block;

// The calls that led the running thread to the function that calls this one. Device code and the runtime keep frame
// pointers: each points at the caller's, and next to that lies the address to return to.
inline __attribute__((always_inline)) Calls calls_here() {
    Calls calls{};
    const Fiber& fiber = *block.self().fiber;
    const auto* frame = static_cast<void* const*>(__builtin_frame_address(0));
    for (int i = 0; i < Calls::kMost && fiber.has_on_stack(frame); ++i) {
        calls.addresses[i] = frame[1];
        frame = static_cast<void* const*>(frame[0]);
    }
    return calls;
}

// Set when the launch has reached its time limit.
extern volatile bool is_late;

void begin_shared_memory(unsigned dynamic_bytes);

// Closes, for a new block, what no thread may access before it has waited for the preceding kernel.
void close_before_wait();
bool open_behind_wait();
void check_waited();
void forget_wait();

extern "C" void emulator_fence(char* window, std::size_t bytes, const std::uint64_t* ranges, std::size_t count);

void forget_shared_contents();

// All of these end the process. The first reports which threads wait where.
[[noreturn]] void report_deadlock();
[[noreturn]] void report_divergence(const Wait& a, const Wait& b);
[[noreturn]] void fail(const Calls& where, const char* format, ...) __attribute__((format(printf, 2, 3)));

}  // namespace emulator
