"""The kernels: one module a file of cuda_src, of the same name."""
