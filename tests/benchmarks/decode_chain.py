"""The kernels of a Mamba-2 layer's decode step between its projections, one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cupy
import numpy as np

import cuconv
from cuconv.bench import device
from cuconv.runtime.dtypes import BFLOAT16
from cuconv.runtime.kernel import LoadedKernel, Params
from cuconv.runtime.launch import LaunchConfig

HEADS, HEAD_DIM, D_STATE, GROUPS, WIDTH = 128, 64, 128, 8, 4
DIM = HEADS * HEAD_DIM
CHANNELS = DIM + 2 * GROUPS * D_STATE
GROUP_DIM = DIM // GROUPS
VEC = 8
REPEATED = 2**20
"""Random numbers of a layer, one after the other in all its arrays: to draw them all takes seconds."""

GATED_NORM = r"""
struct Params { const uint4* y; const uint4* z; const uint4* weight; uint4* out; };
__device__ float2 pair(unsigned word) {
    return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
}
// out = y * silu(z) / rms(y * silu(z)) * weight over groups of 1024 channels: a block has a group, a thread 8 channels.
extern "C" __global__ void gated_norm(const Params p) {
    __shared__ float sums[4];
    const int vec = blockIdx.x * blockDim.x + threadIdx.x;
    const uint4 weight = __ldg(p.weight + vec % 1024);
    // z comes from the projection in front of the chain.
    const uint4 z = __ldg(p.z + vec);
#ifdef STARTS_EARLY
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
    const uint4 y = p.y[vec];
    const unsigned *ys = &y.x, *zs = &z.x, *weights = &weight.x;
    float2 gated[4];
    float sum = 0.0f;
    for (int i = 0; i < 4; ++i) {
        const float2 a = pair(ys[i]), b = pair(zs[i]);
        gated[i] = make_float2(a.x * b.x / (1.0f + __expf(-b.x)), a.y * b.y / (1.0f + __expf(-b.y)));
        sum += gated[i].x * gated[i].x + gated[i].y * gated[i].y;
    }
    for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    const float scale = rsqrtf((sums[0] + sums[1] + sums[2] + sums[3]) / 1024.0f + 1e-5f);
    unsigned out[4];
    for (int i = 0; i < 4; ++i) {
        const float2 w = pair(weights[i]);
        const float low = gated[i].x * scale * w.x, high = gated[i].y * scale * w.y;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out[i]) : "f"(high), "f"(low));
    }
    p.out[vec] = make_uint4(out[0], out[1], out[2], out[3]);
}
"""


@dataclass
class Layer:
    """The arrays of one layer, and its step."""

    arrays: dict[str, Any]
    batch: int

    @property
    def bytes_moved(self) -> int:
        """Bytes that a step reads and writes, results that the next kernel reads twice."""
        twice = ("conv_state", "conv", "state", "y")
        once = ("xBC", "conv_weight", "conv_bias", "z", "norm_weight", "out")
        return sum(self.arrays[name].nbytes for name in (*twice, *twice, *once))

    @property
    def written(self) -> dict[str, Any]:
        """The arrays that a step writes."""
        return {name: cupy.ascontiguousarray(self.arrays[name]) for name in ("conv", "conv_state", "state", "y", "out")}

    def step(self, norm: LoadedKernel) -> None:
        """Enqueue the convolution, the state update and the gated norm on CuPy's current stream."""
        a = self.arrays
        cuconv.causal_conv1d_update(a["xBC"], a["conv_state"], a["conv_weight"], a["conv_bias"], "silu", out=a["conv"])
        cuconv.selective_state_update(
            a["state"], a["x"], a["dt"], a["A"], a["B"], a["C"], a["D"], None, a["dt_bias"], True, out=a["y"]
        )
        config = LaunchConfig((self.batch * GROUPS, 1, 1), (GROUP_DIM // VEC, 1, 1))
        pointers = [a[name].data.ptr for name in ("y", "z", "norm_weight", "out")]
        norm.bound(config, b"")(pointers, cupy.cuda.get_current_stream().ptr)


def load_norm(starts_early: bool) -> LoadedKernel:
    """The gated norm, compiled."""
    options = ("-std=c++17", *(("-DSTARTS_EARLY",) if starts_early else ()))
    module = cupy.RawModule(code=GATED_NORM, options=options)
    pointer, params = module.get_function("gated_norm").kernel.ptr, Params(("y", "z", "weight", "out"))
    return LoadedKernel(module, pointer, cupy.cuda.Device().id, params, starts_early)


def layer(batch: int, seed: int) -> Layer:
    """A layer with random arrays for this many sequences."""
    random = np.random.default_rng(seed)
    values = random.standard_normal(REPEATED, np.float32).astype(BFLOAT16.numpy)

    def normal(*shape: int) -> Any:
        return device.upload(np.resize(np.roll(values, random.integers(REPEATED)), shape))

    def spread(array: Any, *shape: int) -> Any:
        strides = array.strides + (0,) * (len(shape) - array.ndim)
        return cupy.lib.stride_tricks.as_strided(array, shape, strides)

    conv = normal(batch, CHANNELS)
    groups = [conv[:, DIM + i * GROUPS * D_STATE : DIM + (i + 1) * GROUPS * D_STATE] for i in range(2)]
    decay = device.upload(-random.uniform(0.5, 4.0, HEADS).astype(np.float32))
    arrays = {
        "xBC": normal(batch, CHANNELS),
        "conv_state": normal(batch, WIDTH - 1, CHANNELS).transpose(0, 2, 1),
        "conv_weight": normal(CHANNELS, WIDTH),
        "conv_bias": normal(CHANNELS),
        "conv": conv,
        "state": normal(batch, HEADS, HEAD_DIM, D_STATE),
        "x": conv[:, :DIM].reshape(batch, HEADS, HEAD_DIM),
        "dt": spread(normal(batch, HEADS), batch, HEADS, HEAD_DIM),
        "A": spread(decay, HEADS, HEAD_DIM, D_STATE),
        **{name: part.reshape(batch, GROUPS, D_STATE) for name, part in zip("BC", groups, strict=True)},
        "D": spread(normal(HEADS), HEADS, HEAD_DIM),
        "dt_bias": spread(normal(HEADS), HEADS, HEAD_DIM),
        "y": normal(batch, HEADS, HEAD_DIM),
        "z": normal(batch, DIM),
        "norm_weight": normal(DIM),
        "out": normal(batch, DIM),
    }
    return Layer(arrays, batch)
