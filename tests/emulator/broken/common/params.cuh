// The arguments of all broken kernels: one row of floats to read, one to write.
#pragma once

struct Row {
    const float* x;
    float* out;
    int length;
    int step;
};
