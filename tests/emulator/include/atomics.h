// Atomics. Threads switch only in calls of the runtime, so a plain update is atomic. Each lets others go first, as a
// GPU may.
#pragma once

#include "emulator.h"
#include "intrinsics.h"

namespace emulator {

template <typename T, typename Update>
__forceinline__ T update(T* address, Update updated) {
    yield();
    const T old = *address;
    *address = updated(old);
    return old;
}

// The second argument of an atomic converts to what the address holds.
template <typename T>
struct Same {
    using Type = T;
};

}  // namespace emulator

template <typename T>
__forceinline__ T atomicAdd(T* address, typename emulator::Same<T>::Type value) {
    // The hardware's integers wrap around; in C++ only unsigned ones may.
    if constexpr (std::is_integral_v<T>) {
        using U = std::make_unsigned_t<T>;
        return emulator::update(address,
                                [=](T old) { return static_cast<T>(static_cast<U>(old) + static_cast<U>(value)); });
    } else {
        return emulator::update(address, [=](T old) { return old + value; });
    }
}

template <typename T>
__forceinline__ T atomicMax(T* address, typename emulator::Same<T>::Type value) {
    return emulator::update(address, [=](T old) { return old < value ? value : old; });
}

template <typename T>
__forceinline__ T atomicOr(T* address, typename emulator::Same<T>::Type value) {
    return emulator::update(address, [=](T old) { return old | value; });
}

// Memory is written in the order of the program. Others may go first, as at an atomic.
__forceinline__ void __threadfence() {
    emulator::yield();
}
