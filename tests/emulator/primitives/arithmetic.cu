// Functions of one or two numbers, a row of `out` each.
struct Arithmetic {
    const int* a;
    const int* b;
    const float* u;
    const float* v;
    int* integers;
    float* floats;
};

template <int kThreads>
__global__ void arithmetic_kernel(const Arithmetic p) {
    const int a = p.a[threadIdx.x], b = p.b[threadIdx.x];
    const float u = p.u[threadIdx.x], v = p.v[threadIdx.x];
    const unsigned ua = static_cast<unsigned>(a), ub = static_cast<unsigned>(b);
    const int integers[] = {static_cast<int>(__umulhi(ua, ub)), __popc(ua), __clz(a), __ffs(a), min(a, b), max(a, b),
                            static_cast<int>(min(ua, ub))};
    for (int i = 0; i < 7; ++i) p.integers[i * kThreads + threadIdx.x] = integers[i];
    const float floats[] = {min(u, v),       max(u, v), __fdividef(u, v), fmaf(u, v, u), __expf(fminf(u, 80.0f)),
                            rsqrtf(fabsf(u))};
    for (int i = 0; i < 6; ++i) p.floats[i * kThreads + threadIdx.x] = floats[i];
}
