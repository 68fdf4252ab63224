// What the CUDA compiler predefines: qualifiers, launch bounds, and the variables that tell a thread where it is.
#pragma once

// These headers must be included before the qualifiers become macros: libstdc++ uses __noinline__ itself.
#include <cassert>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <type_traits>

#include "vector_types.h"

#define __device__
#define __host__
#define __global__
#define __constant__
#define __grid_constant__
// Calls are faster to compile than copies of a function at every place that calls it: the builds of all small cases
// take less than half the time.
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)

// One thread runs at a time, so its coordinates are plain variables that the scheduler sets.
extern uint3 threadIdx;
extern uint3 blockIdx;
extern dim3 blockDim;
extern dim3 gridDim;
static constexpr int warpSize = 32;
