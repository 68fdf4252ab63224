// Runs the blocks of a launch one after the other, and the threads of a block in an order that a seed decides.
#include <algorithm>
#include <numeric>

#include "block.h"

uint3 threadIdx;
uint3 blockIdx;
dim3 blockDim;
dim3 gridDim;

namespace emulator {

Block block;

namespace {

constexpr unsigned kMaxThreads = 1024;

void (*kernel)(const void*);
const void* kernel_params;

// How threads that could go on take turns. A thread, once resumed, always runs until it waits.
enum class Manner {
    // All threads in a random order, each up to where it waits, and then again: warps stay close together.
    kTurns,
    // The same warp first whenever it can go on, and in it the same lane; the last warp only when no other can go on.
    kFixedPriority,
    // A random warp at a time, for a random number of rounds over its lanes: warps drift far apart.
    kBursts,
};

constexpr std::uint64_t kManners = 3;

// Orders that a seed decides. Seeds 2k and 2k + 1 are of one manner and opposite: of two threads that should have
// waited for each other, each goes first under one of them. The manner changes with every second seed.
class Orders {
 public:
    explicit Orders(std::uint64_t seed)
        : manner(static_cast<Manner>(seed / 2 % kManners)), state_(seed / 2), is_reverse_(seed % 2 == 1) {}

    const Manner manner;

    // The numbers from 0 to count - 1.
    std::vector<unsigned> draw(std::size_t count) {
        std::vector<unsigned> order(count);
        std::iota(order.begin(), order.end(), 0u);
        for (std::size_t i = count; i > 1; --i) std::swap(order[i - 1], order[random() % i]);
        if (is_reverse_) std::vector<unsigned>(order.rbegin(), order.rend()).swap(order);
        return order;
    }

    // Rounds of a burst, a power of two up to 128.
    unsigned burst() { return 1u << random() % 8; }

 private:
    // splitmix64
    std::uint64_t random() {
        std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        return z ^ z >> 31;
    }

    std::uint64_t state_;
    bool is_reverse_;
};

void thread_body() {
    for (;;) {
        kernel(kernel_params);
        check_waited();
        block.self().state = State::kReturned;
        Fiber::suspend();
    }
}

void make_threads(dim3 shape) {
    block.running = Block::kNobody;
    block.threads.resize(shape.x * shape.y * shape.z);
    for (unsigned i = 0; i < block.threads.size(); ++i) {
        Thread& thread = block.threads[i];
        if (thread.fiber == nullptr) thread.fiber = std::make_unique<Fiber>(thread_body);
        thread.index = {i % shape.x, i / shape.x % shape.y, i / shape.x / shape.y};
    }
}

unsigned count_warps() {
    return static_cast<unsigned>((block.threads.size() + kWarp - 1) / kWarp);
}

// Runs a thread until it waits, if it is ready. Returns whether it was.
bool run(unsigned number) {
    Thread& thread = block.threads[number];
    if (thread.state != State::kReady) return false;
    block.running = number;
    threadIdx = thread.index;
    thread.fiber->resume();
    block.running = Block::kNobody;
    return true;
}

// Makes threads ready again that have let others run first. Returns whether there are any.
bool wake_yielded() {
    bool is_any = false;
    for (Thread& thread : block.threads) {
        if (thread.state != State::kYielded) continue;
        thread.state = State::kReady;
        is_any = true;
    }
    return is_any;
}

bool has_returned() {
    return std::all_of(block.threads.begin(), block.threads.end(),
                       [](const Thread& thread) { return thread.state == State::kReturned; });
}

// Runs each ready lane of a warp once. Returns whether there was one.
bool run_warp(unsigned warp, const std::vector<unsigned>& lanes) {
    bool anyone_ran = false;
    for (const unsigned lane : lanes) {
        const unsigned number = warp * kWarp + lane;
        if (number < block.threads.size() && run(number)) anyone_ran = true;
    }
    return anyone_ran;
}

// Each of these is one step of a manner, and returns whether any thread was ready.
bool run_turns(Orders& orders) {
    bool anyone_ran = false;
    for (const unsigned i : orders.draw(block.threads.size())) anyone_ran |= run(i);
    return anyone_ran;
}

bool run_first(const std::vector<unsigned>& warps, const std::vector<unsigned>& lanes) {
    for (const unsigned warp : warps) {
        for (const unsigned lane : lanes) {
            const unsigned number = warp * kWarp + lane;
            if (number < block.threads.size() && run(number)) return true;
        }
    }
    return false;
}

bool run_burst(Orders& orders) {
    const unsigned rounds = orders.burst();
    for (const unsigned warp : orders.draw(count_warps())) {
        if (!run_warp(warp, orders.draw(kWarp))) continue;
        for (unsigned i = 1; i < rounds && run_warp(warp, orders.draw(kWarp));) ++i;
        return true;
    }
    return false;
}

void run_block(Orders& orders) {
    forget_shared_contents();
    close_before_wait();
    block.at_barrier = 0;
    for (Thread& thread : block.threads) {
        thread.state = State::kReady;
        thread.copies.clear();
        thread.copy_groups = 0;
        thread.has_waited = false;
    }
    const std::vector<unsigned> warps = orders.draw(count_warps()), lanes = orders.draw(kWarp);
    for (;;) {
        const bool anyone_ran = orders.manner == Manner::kTurns           ? run_turns(orders)
                                : orders.manner == Manner::kFixedPriority ? run_first(warps, lanes)
                                                                          : run_burst(orders);
        if (anyone_ran || open_behind_wait() || wake_yielded()) continue;
        if (has_returned()) return;
        report_deadlock();
    }
}

}  // namespace

extern "C" void emulator_launch(void (*entry)(const void*), const void* params, const unsigned* grid,
                                const unsigned* threads, unsigned shared_bytes, unsigned long long seed) {
    if (std::size_t{threads[0]} * threads[1] * threads[2] > kMaxThreads) {
        fail(kNowhere, "%u x %u x %u threads in a block, %u is the most", threads[0], threads[1], threads[2],
             kMaxThreads);
    }
    kernel = entry;
    kernel_params = params;
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {threads[0], threads[1], threads[2]};
    make_threads(blockDim);
    is_late = false;
    begin_shared_memory(shared_bytes);
    Orders orders(seed);
    for (const unsigned i : orders.draw(std::size_t{grid[0]} * grid[1] * grid[2])) {
        blockIdx = {i % grid[0], i / grid[0] % grid[1], i / grid[0] / grid[1]};
        run_block(orders);
    }
    forget_wait();
    std::fflush(stdout);
}

}  // namespace emulator
