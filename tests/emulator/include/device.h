// Everything that a kernel may use without including a header, for g++.
#pragma once

#include "atomics.h"
#include "grid.h"
#include "intrinsics.h"
#include "pipeline.h"
#include "qualifiers.h"
#include "warp.h"
