"""`python -m cuconv`: convolutions with the shapes of published models, checked against the oracle and timed."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from cuconv import reference
from cuconv.dtypes import BFLOAT16, FLOATS, DType
from cuconv.jit import nvrtc, source
from cuconv.kernel import Kernel
from cuconv.kernels.copy import Copy
from cuconv.layout import Layout
from cuconv.models import MODELS, ConvShape
from cuconv.ops.causal_conv1d_fn import causal_conv1d_fn
from cuconv.ops.causal_conv1d_plan import Operands, plan
from cuconv.timing import Replay, copy_time, host_time, sets_needed

CHECKED_CHANNELS = 64
TOLERANCE = {"float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}
"""Largest error relative to the largest output: a few roundings of the dtype."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the table; 0 when every result is right."""
    options = _parse(arguments)
    problem = _missing_gpu()
    if problem is None:
        return _run_on_gpu(options)
    print(f"No GPU here ({problem}): running NumPy's path and compiling the kernels for sm_{options.arch}.\n")
    right = _run_on_cpu(options)
    print()
    _compile(options)
    return right


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m cuconv", description=__doc__)
    parser.add_argument("--model", choices=sorted(MODELS), action="append", help="these only; may be repeated")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seqlen", type=int, help="tokens a row; 4096 on a GPU, 256 without one")
    parser.add_argument("--dtype", choices=[dtype.name for dtype in FLOATS], default=BFLOAT16.name)
    parser.add_argument("--arch", type=int, default=90, help="compute capability to compile for without a GPU")
    return parser.parse_args(arguments)


def _missing_gpu() -> str | None:
    try:
        import cupy

        cupy.cuda.runtime.getDeviceCount()
    except Exception as error:
        # Without a driver CuPy fails in more than one way.
        return str(error).partition("\n")[0]
    return None


def _chosen(options: argparse.Namespace) -> Iterator[tuple[str, ConvShape]]:
    for name in options.model or MODELS:
        yield name, MODELS[name]


def _dtype(options: argparse.Namespace) -> DType:
    return next(dtype for dtype in FLOATS if dtype.name == options.dtype)


def _inputs(shape: ConvShape, batch: int, seqlen: int, dtype: DType) -> dict[str, Any]:
    """x, weight and bias on the host, x laid out as the model does."""
    random = np.random.default_rng(0)

    def draw(*sizes: int) -> Any:
        return random.standard_normal(sizes, np.float32).astype(dtype.numpy)

    x = draw(batch, seqlen, shape.dim).transpose(0, 2, 1) if shape.channel_last else draw(batch, shape.dim, seqlen)
    return {"x": x, "weight": draw(shape.dim, shape.width), "bias": draw(shape.dim) if shape.bias else None}


def _error(inputs: dict[str, Any], shape: ConvShape, out: Any) -> float:
    """The largest error of some channels, relative to their largest value, by the float64 oracle."""
    some = slice(None, None, max(1, shape.dim // CHECKED_CHANNELS))
    bias = None if inputs["bias"] is None else inputs["bias"][some]
    wanted, _ = reference.causal_conv1d_fn(
        inputs["x"][:, some], inputs["weight"][some], bias, activation=shape.activation
    )
    # A NaN stays one: it compares false with every tolerance.
    return float(np.max(np.abs(out[:, some].astype(np.float64) - wanted)) / np.max(np.abs(wanted)))


def _describe(shape: ConvShape, batch: int, seqlen: int) -> str:
    layout = "channel-last" if shape.channel_last else "channel-first"
    return f"{layout:13}  B{batch} D{shape.dim} L{seqlen} W{shape.width}"


def _run_on_gpu(options: argparse.Namespace) -> int:
    import cupy

    dtype = _dtype(options)
    properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
    seqlen = options.seqlen or 4096
    print(f"{properties['name'].decode()}, {dtype}, kernel times by graph replay with a cold L2 cache\n")
    print(f"{'model':20}{'layout':15}{'shape':27}{'kernel us':>10}{'GB/s':>8}{'of copy':>9}{'host us':>9}  error")
    failed = 0
    for name, shape in _chosen(options):
        host = _inputs(shape, options.batch, seqlen, dtype)
        moved = 2 * host["x"].nbytes
        sets = [{key: _upload(array) for key, array in host.items()} for _ in range(sets_needed(moved))]
        outs = [causal_conv1d_fn(**arrays, activation=shape.activation) for arrays in sets]
        error = _error(host, shape, _download(outs[0]))

        def call(index: int, sets: Any = sets, outs: Any = outs, activation: Any = shape.activation) -> Any:
            return lambda: causal_conv1d_fn(**sets[index], activation=activation, out=outs[index])

        described = f"{name:20}{_describe(shape, options.batch, seqlen):42}"
        if not error <= TOLERANCE[dtype.name]:
            failed += 1
            print(f"{described}WRONG: error {error:.2g}, at most {TOLERANCE[dtype.name]:.2g} is right")
            continue
        seconds = Replay([call(index) for index in range(len(sets))]).seconds()
        fraction = copy_time(moved) / seconds
        waited = host_time(call(0), cupy.cuda.Device().synchronize)
        rate = moved / seconds * 1e-9
        print(f"{described}{seconds * 1e6:10.1f}{rate:8.0f}{fraction:9.2f}{waited * 1e6:9.1f}  {error:.1e}")
    return min(failed, 1)


def _upload(array: Any) -> Any:
    """The array on the GPU, laid out as on the host."""
    import cupy

    if array is None:
        return None
    order = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
    # By way of bytes: not every CuPy copies bfloat16.
    dense = np.ascontiguousarray(array.transpose(order))
    copied = cupy.asarray(dense.view(np.uint8)).view(dense.dtype)
    return copied.transpose(np.argsort(order).tolist())


def _download(array: Any) -> Any:
    import cupy

    order = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
    dense = cupy.asnumpy(array.transpose(order).view(np.uint8)).view(array.dtype)
    return dense.transpose(np.argsort(order).tolist())


def _run_on_cpu(options: argparse.Namespace) -> int:
    dtype = _dtype(options)
    seqlen = options.seqlen or 256
    print(f"{'model':20}{'layout':15}{'shape':27}{'NumPy ms':>10}  error")
    failed = 0
    for name, shape in _chosen(options):
        inputs = _inputs(shape, options.batch, seqlen, dtype)
        start = time.perf_counter()
        out = causal_conv1d_fn(**inputs, activation=shape.activation)
        seconds = time.perf_counter() - start
        error = _error(inputs, shape, out)
        verdict = "" if error <= TOLERANCE[dtype.name] else "  WRONG"
        failed += bool(verdict)
        print(f"{name:20}{_describe(shape, options.batch, seqlen):42}{seconds * 1e3:10.1f}  {error:.1e}{verdict}")
    return min(failed, 1)


def _compile(options: argparse.Namespace) -> None:
    """Compile what the models' layers run, and report what the compiler says of it."""
    kernels: dict[Kernel, None] = {Copy(): None}
    for _, shape in _chosen(options):
        # Odd, short and long rows run a kernel each.
        for length in (63, 64, options.seqlen or 4096):
            kernels[_kernel(shape, options.batch, length, _dtype(options))] = None
    print(f"{'registers':>9} {'spilled':>8}  kernel")
    for file in dict.fromkeys(kernel.file for kernel in kernels):
        expressions = [kernel.expression for kernel in kernels if kernel.file == file]
        target = nvrtc.target(options.arch)
        compiled = nvrtc.compile(source.load(), file, expressions, target.arch)
        for expression in expressions:
            used = compiled.resources.get(expression)
            numbers = f"{used.registers:9} {used.spill_store_bytes:6} B" if used else f"{'PTX':>9} {'':8}"
            print(f"{numbers}  {expression}")


def _kernel(shape: ConvShape, batch: int, seqlen: int, dtype: DType) -> Kernel:
    order = (seqlen * shape.dim, 1, shape.dim) if shape.channel_last else (seqlen * shape.dim, seqlen, 1)
    x = Layout((batch, shape.dim, seqlen), order, dtype, 0, 0)
    weight = Layout((shape.dim, shape.width), (shape.width, 1), dtype, 0, 0)
    bias = Layout((shape.dim,), (1,), dtype, 0, 0) if shape.bias else None
    launch = plan(Operands(x, weight, bias, None, None, x, None, shape.activation is not None))
    assert launch is not None  # no published shape is empty
    return launch.kernel


if __name__ == "__main__":
    sys.exit(main())
