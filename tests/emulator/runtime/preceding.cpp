// Waiting for the preceding kernel: until its wait a thread may read what that kernel cannot have written, and write
// nothing. All threads of a block come to the wait before one of them goes on.
#include <cstring>

#include "block.h"

namespace emulator {

namespace {

// A range of memory that kernels may access before they wait, with what it held when the block began.
struct Early {
    const char* begin;
    std::vector<char> content;
};

// A window with the ranges that are open before the wait and behind it.
struct Window {
    char* begin;
    std::size_t bytes;
    std::vector<std::uint64_t> before;
    std::vector<std::uint64_t> behind;
};

std::vector<Window> windows;
std::vector<Early> early;
bool is_expected;

}  // namespace

// Says that the next launch waits, in each of its windows; open ranges are pairs of a begin and an end.
extern "C" void emulator_expect_wait(char* window, std::size_t bytes, const std::uint64_t* before,
                                     std::size_t before_count, const std::uint64_t* behind, std::size_t behind_count) {
    windows.push_back({window, bytes, {before, before + 2 * before_count}, {behind, behind + 2 * behind_count}});
    is_expected = true;
}

void forget_wait() {
    windows.clear();
    is_expected = false;
}

void close_before_wait() {
    block.has_waited = !is_expected;
    early.clear();
    for (const Window& window : windows) {
        for (std::size_t i = 0; i < window.before.size(); i += 2) {
            const char* const begin = window.begin + window.before[i];
            early.push_back({begin, {begin, begin + (window.before[i + 1] - window.before[i])}});
        }
        emulator_fence(window.begin, window.bytes, window.before.data(), window.before.size() / 2);
    }
}

// Lets the threads that wait go on, when no other thread can. Returns whether there are any.
bool open_behind_wait() {
    bool is_any = false;
    for (Thread& thread : block.threads) {
        if (thread.state != State::kPreceded) continue;
        thread.state = State::kReady;
        is_any = true;
    }
    if (!is_any || block.has_waited) return is_any;
    block.has_waited = true;
    for (const Early& range : early) {
        if (std::memcmp(range.begin, range.content.data(), range.content.size()) != 0) {
            fail(kNowhere, "a store before the wait for the preceding kernel");
        }
    }
    for (const Window& window : windows) {
        emulator_fence(window.begin, window.bytes, window.behind.data(), window.behind.size() / 2);
    }
    return true;
}

void wait_for_preceding() {
    const Calls where = calls_here();
    Thread& self = block.self();
    if (!is_expected) fail(where, "a wait for the preceding kernel, and the kernel's class does not say EARLY");
    if (self.has_waited) fail(where, "a second wait for the preceding kernel");
    self.has_waited = true;
    self.state = State::kPreceded;
    Fiber::suspend();
}

void check_waited() {
    if (is_expected && !block.self().has_waited)
        fail(kNowhere, "a thread that ends without a wait for the preceding kernel");
}

}  // namespace emulator
