// Findings of the runtime itself, and for all findings the block and thread that were running.
#include <sanitizer/common_interface_defs.h>
#include <unistd.h>

#include <csignal>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "block.h"

namespace emulator {

namespace {

// The stack frames of these calls: several for one where functions were inlined.
std::string frames(const Calls& where) {
    std::string lines;
    for (const void* const address : where.addresses) {
        if (address == nullptr) break;
        char text[4096] = {};
        // The address is the one to return to. The call that is reported lies just before it.
        const char* const call = static_cast<const char*>(address) - 1;
        __sanitizer_symbolize_pc(const_cast<char*>(call), "    #%n in %f %s:%l", text, sizeof text - 1);
        for (const char* frame = text; *frame != '\0'; frame += std::strlen(frame) + 1) {
            lines += std::string(frame) + "\n";
        }
    }
    return lines;
}

std::string thread_name(const uint3& index) {
    return "(" + std::to_string(index.x) + ", " + std::to_string(index.y) + ", " + std::to_string(index.z) + ")";
}

// "(0, 0, 0) to (31, 0, 0)" for every run of consecutive threads.
std::string thread_names(const std::vector<unsigned>& threads) {
    std::string names;
    for (std::size_t i = 0, end; i < threads.size(); i = end) {
        for (end = i + 1; end < threads.size() && threads[end] == threads[end - 1] + 1;) ++end;
        names += (i == 0 ? "" : ", ") + thread_name(block.threads[threads[i]].index);
        if (end > i + 1) names += " to " + thread_name(block.threads[threads[end - 1]].index);
    }
    return names;
}

std::string position() {
    const std::string in_block = "emulator: in block " + thread_name(blockIdx);
    return in_block + (block.running == Block::kNobody ? "" : ", thread " + thread_name(threadIdx)) + "\n";
}

// Handles SIGABRT, by which the sanitizers and the runtime end this process.
void on_abort(int) {
    const std::string text = position();
    _exit(write(STDERR_FILENO, text.data(), text.size()) < 0 ? 2 : 1);
}

// Handles SIGUSR1. A thread that lets others run first notices `is_late` by itself. One that never does is ended here,
// at the second signal.
void on_late(int) {
    if (!is_late) {
        is_late = true;
        return;
    }
    std::fputs("emulator: the launch does not end\n", stderr);
    __sanitizer_print_stack_trace();
    std::abort();
}

}  // namespace

volatile bool is_late = false;

extern "C" void emulator_handle_signals() {
    std::signal(SIGABRT, on_abort);
    std::signal(SIGUSR1, on_late);
}

void fail(const Calls& where, const char* format, ...) {
    char text[500];
    std::va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    std::fprintf(stderr, "emulator: %s\n%s", text, frames(where).c_str());
    std::abort();
}

void report_divergence(const Wait& a, const Wait& b) {
    std::fprintf(stderr, "emulator: threads that wait for each other came to different places: %s\n%sand %s\n%s",
                 a.what, frames(a.where).c_str(), b.what, frames(b.where).c_str());
    std::abort();
}

void report_deadlock() {
    std::map<std::string, std::vector<unsigned>> groups;
    for (unsigned i = 0; i < block.threads.size(); ++i) {
        const Thread& thread = block.threads[i];
        char mask[40] = "";
        if (thread.wait.mask != 0) std::snprintf(mask, sizeof mask, " with mask 0x%08x", thread.wait.mask);
        const bool has_returned = thread.state == State::kReturned;
        groups[has_returned ? "have returned\n"
                            : std::string("wait at ") + thread.wait.what + mask + "\n" + frames(thread.wait.where)]
            .push_back(i);
    }
    std::fprintf(stderr, "emulator: deadlock\n");
    for (const auto& [what, threads] : groups) {
        std::fprintf(stderr, "threads %s %s", thread_names(threads).c_str(), what.c_str());
    }
    std::abort();
}

}  // namespace emulator
