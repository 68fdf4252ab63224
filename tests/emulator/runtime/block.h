// The block that is running: its threads and their states.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "emulator.h"
#include "fiber.h"
#include "qualifiers.h"

namespace emulator {

// kPreceded: waits for the preceding kernel.
enum class State { kReady, kYielded, kWaiting, kPreceded, kReturned };

struct Wait {
    const char* what;
    const void* where;
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
[[noreturn]] void fail(const void* where, const char* format, ...) __attribute__((format(printf, 2, 3)));

}  // namespace emulator
