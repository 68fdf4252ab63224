// glibc's swapcontext makes a system call for the signal mask at each switch, and AddressSanitizer forgets the guards
// on the stack that it leads to. So ucontext only enters a new stack; all other switches are those of __builtin_setjmp.
#include "fiber.h"

#include <sanitizer/common_interface_defs.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <new>

namespace {

// With sanitizers and little optimisation a wide kernel's frame takes tens of KiB. Only touched pages are real.
constexpr std::size_t kStackBytes = 512 * 1024;
constexpr std::size_t kGuardBytes = 64 * 1024;

Fiber* running;
void* resumer[5];
const void* resumer_stack;
std::size_t resumer_stack_bytes;

// A separate function, because one that calls __builtin_setjmp may not call __builtin_longjmp.
[[noreturn]] __attribute__((noinline)) void jump(void** context) {
    __builtin_longjmp(context, 1);
}

}  // namespace

Fiber::Fiber(void (*body)()) : body_(body) {
    mapping_ = static_cast<char*>(mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (mapping_ == MAP_FAILED || mprotect(mapping_, kGuardBytes, PROT_NONE) != 0) throw std::bad_alloc();
}

Fiber::~Fiber() {
    munmap(mapping_, kGuardBytes + kStackBytes);
}

bool Fiber::has_on_stack(const void* address) const {
    const char* const stack = mapping_ + kGuardBytes;
    return stack <= address && address < stack + kStackBytes;
}

void Fiber::start() {
    __sanitizer_finish_switch_fiber(nullptr, &resumer_stack, &resumer_stack_bytes);
    running->body_();
}

void Fiber::resume() {
    ucontext_t fresh;
    void* fake_stack;
    running = this;
    __sanitizer_start_switch_fiber(&fake_stack, mapping_ + kGuardBytes, kStackBytes);
    if (__builtin_setjmp(resumer) == 0) {
        if (started_) jump(context_);
        started_ = true;
        getcontext(&fresh);
        fresh.uc_stack.ss_sp = mapping_ + kGuardBytes;
        fresh.uc_stack.ss_size = kStackBytes;
        fresh.uc_link = nullptr;
        makecontext(&fresh, start, 0);
        setcontext(&fresh);
    }
    __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
}

void Fiber::suspend() {
    Fiber* self = running;
    __sanitizer_start_switch_fiber(&self->fake_stack_, resumer_stack, resumer_stack_bytes);
    if (__builtin_setjmp(self->context_) == 0) jump(resumer);
    // Not `self`: which registers and locals survive the jump is the compiler's choice, `running` is memory.
    __sanitizer_finish_switch_fiber(running->fake_stack_, &resumer_stack, &resumer_stack_bytes);
}
