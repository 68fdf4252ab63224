// The block that is running: its threads, and what those that cannot go on wait for.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "emulator.h"
#include "fiber.h"
#include "qualifiers.h"

namespace emulator {

enum class State { kReady, kYielded, kWaiting, kReturned };

struct Wait {
    const char* what;
    const void* where;
    unsigned mask;  // the lanes waited for; none stands for all threads of the block
};

struct Thread {
    std::unique_ptr<Fiber> fiber;
    uint3 index;
    State state;
    Wait wait;
    std::uint64_t value;  // brought to what it waits for
    Lanes lanes;          // got from the last operation of its warp
};

// Threads in the order of their number in the block; 32 consecutive ones are a warp.
struct Block {
    static constexpr unsigned kNobody = ~0u;

    std::vector<Thread> threads;
    unsigned running;  // or kNobody
    unsigned at_barrier;

    Thread& self() { return threads[running]; }
    unsigned first_of_warp() const { return running / kWarp * kWarp; }
};

extern Block block;

// Set when the parent has waited for too long.
extern volatile bool is_late;

void begin_shared_memory(unsigned dynamic_bytes);
void forget_shared_contents();

// All end the process. The first says who waits where.
[[noreturn]] void report_deadlock();
[[noreturn]] void report_divergence(const Wait& a, const Wait& b);
[[noreturn]] void fail(const void* where, const char* format, ...) __attribute__((format(printf, 2, 3)));

}  // namespace emulator
