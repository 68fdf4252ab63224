// What all broken kernels take: one row of floats in, one out.
#pragma once

struct Row {
    const float* x;
    float* out;
    int length;
    int step;
};
