// A fiber: a stack, and the switch to it and back, of which AddressSanitizer is told.
#pragma once

#include <cstddef>

class Fiber {
 public:
    // `body` runs on the first resume and never returns.
    explicit Fiber(void (*body)());
    ~Fiber();
    Fiber(const Fiber&) = delete;
    Fiber& operator=(const Fiber&) = delete;

    // Runs the fiber until it suspends itself.
    void resume();

    bool has_on_stack(const void* address) const;

    // Returns to the caller of the running fiber's resume().
    static void suspend();

 private:
    static void start();

    void (*body_)();
    char* mapping_;
    bool started_ = false;
    void* fake_stack_ = nullptr;
    void* context_[5];
};
