// Runs the blocks of a launch one after the other, and the threads of a block by turns.
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

// Orders that a seed decides. Seeds 2k and 2k + 1 begin in opposite ways: of two threads that should have waited for
// each other, each goes first under one of them.
class Orders {
 public:
    explicit Orders(std::uint64_t seed) : state_(seed / 2), is_reverse_(seed % 2 == 1) {}

    // The numbers from 0 to count - 1.
    std::vector<unsigned> draw(std::size_t count) {
        std::vector<unsigned> order(count);
        std::iota(order.begin(), order.end(), 0u);
        for (std::size_t i = count; i > 1; --i) std::swap(order[i - 1], order[random() % i]);
        if (is_reverse_) std::vector<unsigned>(order.rbegin(), order.rend()).swap(order);
        return order;
    }

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

void run_block(Orders& orders) {
    forget_shared_contents();
    block.at_barrier = 0;
    for (Thread& thread : block.threads) thread.state = State::kReady;
    for (std::size_t left = block.threads.size(); left > 0;) {
        bool anyone_ran = false;
        for (const unsigned i : orders.draw(block.threads.size())) {
            Thread& thread = block.threads[i];
            if (thread.state != State::kReady) continue;
            block.running = i;
            threadIdx = thread.index;
            thread.fiber->resume();
            block.running = Block::kNobody;
            anyone_ran = true;
            if (thread.state == State::kReturned) --left;
        }
        if (!anyone_ran) report_deadlock();
    }
}

}  // namespace

extern "C" void emulator_launch(void (*entry)(const void*), const void* params, const unsigned* grid,
                                const unsigned* threads, unsigned shared_bytes, unsigned long long seed) {
    if (std::size_t{threads[0]} * threads[1] * threads[2] > kMaxThreads) {
        fail(nullptr, "%u x %u x %u threads in a block, %u is the most", threads[0], threads[1], threads[2],
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
    std::fflush(stdout);
}

}  // namespace emulator
