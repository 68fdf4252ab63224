// Waiting for the preceding kernel, by the name of CUDA's device runtime.
#pragma once

#include "emulator.h"
#include "qualifiers.h"

__forceinline__ void cudaGridDependencySynchronize() {
#if !defined(EMULATOR_ORDINARY)
    emulator::wait_for_preceding();
#endif
}
