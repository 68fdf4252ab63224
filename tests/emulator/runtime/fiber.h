// A stack of its own and the switching to it and back; AddressSanitizer is told of every switch.
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

    // Goes back to whoever resumed the running fiber.
    static void suspend();

 private:
    static void start();

    void (*body_)();
    char* mapping_;
    bool started_ = false;
    void* fake_stack_ = nullptr;
    void* context_[5];
};
