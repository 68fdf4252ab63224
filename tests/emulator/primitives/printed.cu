// Prints what the first thread reads.
struct Printed {
    const float* x;
};

template <int kThreads>
__global__ void printed_kernel(const Printed p) {
    if (threadIdx.x == 0) printf("x[0] is %g\n", p.x[0]);
}
