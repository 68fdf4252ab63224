// Operations in which threads wait for each other: the block's barrier, and shuffles and votes of a warp.
#include <cstring>

#include "block.h"

namespace emulator {

namespace {

void suspend_until_ready(const Wait& wait) {
    block.self().wait = wait;
    block.self().state = State::kWaiting;
    Fiber::suspend();
}

bool waits_for_lanes(const Thread& thread) {
    return thread.state == State::kWaiting && thread.wait.mask != 0;
}

}  // namespace

void yield() {
    block.self().state = State::kYielded;
    Fiber::suspend();
    if (is_late) fail(calls_here(), "the launch does not end");
}

void barrier(const char* what) {
    const Wait here{what, calls_here(), 0};
    if (++block.at_barrier < block.threads.size()) {
        suspend_until_ready(here);
        return;
    }
    block.at_barrier = 0;
    for (Thread& thread : block.threads) {
        if (thread.state == State::kWaiting && thread.wait.where != here.where) {
            report_divergence(thread.wait, here);
        }
    }
    for (Thread& thread : block.threads) thread.state = State::kReady;
    // Which thread goes on first is the schedule's choice, not that of the thread that came last.
    Fiber::suspend();
}

void refuse_width(const char* what, int width) {
    fail(calls_here(), "%s with a width of %d, which is no power of two up to 32", what, width);
}

unsigned lane() {
    return block.running % kWarp;
}

// The lanes of this warp that exist: the last warp of a block may have fewer than 32.
static unsigned existing_lanes() {
    const std::size_t count = block.threads.size() - block.first_of_warp();
    return count >= kWarp ? ~0u : (1u << count) - 1;
}

const Lanes& exchange(const char* what, unsigned mask, std::uint64_t value) {
    Thread& self = block.self();
    const Wait here{what, calls_here(), mask};
    if ((mask >> lane() & 1) == 0)
        fail(here.where, "%s with mask 0x%08x, which does not name the calling lane", what, mask);
    self.value = value;

    Thread* const warp = &block.threads[block.first_of_warp()];
    Lanes lanes{};
    for (std::uint64_t& unknown : lanes.values) unknown = ~std::uint64_t{0};
    const unsigned wanted = mask & existing_lanes();
    for (int i = 0; i < kWarp; ++i) {
        if ((wanted >> i & 1) == 0) continue;
        if (&warp[i] != &self && !(waits_for_lanes(warp[i]) && warp[i].wait.mask == mask)) continue;
        lanes.brought |= 1u << i;
        lanes.values[i] = warp[i].value;
    }
    if (lanes.brought != wanted) {
        suspend_until_ready(here);
        return self.lanes;
    }
    // The lanes of a __syncwarp may come from different lines, those that exchange values may not.
    const bool is_anywhere = std::strcmp(what, "__syncwarp") == 0;
    for (int i = 0; i < kWarp; ++i) {
        if ((wanted >> i & 1) == 0) continue;
        const Wait& other = &warp[i] == &self ? here : warp[i].wait;
        if (std::strcmp(other.what, what) != 0 || (!is_anywhere && other.where != here.where)) {
            report_divergence(other, here);
        }
        warp[i].lanes = lanes;
        warp[i].state = State::kReady;
    }
    // Which thread goes on first is the schedule's choice, not that of the thread that came last.
    Fiber::suspend();
    return self.lanes;
}

}  // namespace emulator
