// All that a kernel finds without including anything, for g++.
#pragma once

#include "atomics.h"
#include "intrinsics.h"
#include "qualifiers.h"
#include "warp.h"
