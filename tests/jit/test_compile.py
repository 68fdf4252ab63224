"""Kernels compiled for every architecture, without a GPU: no spills but those that are known.

There are too many variants to compile them all. A covering set has every value of every axis, every pair of vector
width and dtype, and of the other pairs of values many. One architecture compiles a quarter of it, each of the others a
forty-eighth of a set of its own; which part, follows from the source, so that another state of it compiles another one.
With CUCONV_EVERY=1 in the environment all of it is compiled. What the compiler said is kept in pytest's cache under the
digest of all that decides it.
"""

from __future__ import annotations

import hashlib
import random
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, fields
from functools import cache
from itertools import combinations
from operator import attrgetter

import pytest

from cuconv.jit import nvrtc, source
from cuconv.jit.cache import Resources
from cuconv.runtime.dtypes import BFLOAT16
from cuconv.runtime.kernel import Kernel
from cuconv.selective_scan.kernels import SelectiveScanTilesFwd
from tests.support import sampling
from tests.support.discovery import all_kernels
from tests.support.plans import variants
from tests.support.processors import processors

ARCHS = (75, 80, 86, 89, 90, 100, 120)
THOROUGH = 90
SHARES = {arch: 4 if arch == THOROUGH else 48 for arch in ARCHS}
"""The variants of a covering set, as a multiple of those of them that are compiled, by architecture."""

CORE = ("vec", "input_t")
CANDIDATES = 40
VARIANTS_A_PROGRAM = 2

Axes = tuple[str, ...]
Values = tuple[Axes, object]
"""Some axes of a variant and their values."""


@cache
def getter(*axes: str) -> Callable[[Kernel], object]:
    """A kernel's values of these axes, which may be none."""
    return attrgetter(*axes) if axes else lambda kernel: None


def values_of(kernel: Kernel, axes: Axes) -> Values:
    return axes, getter(*axes)(kernel)


Required = list[Axes]


@cache
def holders_of(cls: type[Kernel]) -> tuple[Required, dict[Values, list[Kernel]]]:
    """What a covering set must have, and the variants that have it."""
    axes = [field.name for field in fields(cls)]
    core = tuple(axis for axis in CORE if axis in axes)
    required: Required = [*((axis,) for axis in axes), core]
    holders: dict[Values, list[Kernel]] = defaultdict(list)
    everything = list(cls.variants())
    columns = [[(chosen, values) for values in map(getter(*chosen), everything)] for chosen in required]
    for kernel, *held in zip(everything, *columns, strict=True):
        for values in held:
            holders[values].append(kernel)
    return required, dict(holders)


def covering(cls: type[Kernel], arch: int) -> list[Kernel]:
    """Variants in which every value of every axis appears and all that the CORE axes can be together."""
    axes = [field.name for field in fields(cls)]
    required, holders = holders_of(cls)
    choose = random.Random(f"{cls.__name__} {arch}")
    missing, rows, seen = dict.fromkeys(holders), [], set[Values]()

    def gain(kernel: Kernel) -> tuple[int, int]:
        needed = sum(values_of(kernel, chosen) in missing for chosen in required)
        return needed, sum(values_of(kernel, pair) not in seen for pair in combinations(axes, 2))

    # The largest combinations first: they bring the single values along.
    for values in sorted(holders, key=lambda values: len(values[0]), reverse=True):
        if values in missing:
            some = holders[values]
            rows.append(max(choose.sample(some, min(CANDIDATES, len(some))), key=gain))
            for chosen in required:
                missing.pop(values_of(rows[-1], chosen), None)
            seen.update(values_of(rows[-1], pair) for pair in combinations(axes, 2))
    assert not missing
    return rows


def part_of(rows: list[Kernel], cls: type[Kernel], arch: int) -> list[Kernel]:
    """The variants of a covering set that are compiled."""
    share = 1 if sampling.EVERY else SHARES[arch]
    first = int(source.load().of(cls.file).digest[:8], 16) + ARCHS.index(arch)
    # The only variant of a kernel is always compiled for one architecture.
    return rows[first % (min(share, len(rows)) if arch == THOROUGH else share) :: share]


def compiled(cls: type[Kernel], rows: list[Kernel], arch: int, memory: pytest.Cache | None) -> dict[str, Resources]:
    """What ptxas reports of every row, by expression."""
    code, target = source.load(), f"sm_{arch}"
    expressions = [kernel.expression for kernel in rows]
    told = repr((code.of(cls.file).digest, expressions, nvrtc.options(target), nvrtc.version()))
    key = f"cuconv/resources/{hashlib.sha256(told.encode()).hexdigest()}"
    if memory is not None and (kept := memory.get(key, None)) is not None:
        return {expression: Resources(**resources) for expression, resources in kept.items()}
    programs = [expressions[i : i + VARIANTS_A_PROGRAM] for i in range(0, len(rows), VARIANTS_A_PROGRAM)]
    with ThreadPoolExecutor(processors()) as pool:
        done = pool.map(lambda program: nvrtc.compile(code, cls.file, program, target).resources, programs)
        found = {expression: resources for each in done for expression, resources in each.items()}
    if memory is not None:
        memory.set(key, {expression: asdict(resources) for expression, resources in found.items()})
    return found


SPILLS = {
    "SelectiveScanPartsFwd": 64,
    "SelectiveScanShortFwd": 112,
    "SelectiveScanTilesFwd": 384,
    "SelectiveScanVarlenFwd": 256,
    "SelectiveScanVarlenPartsFwd": 64,
    "SelectiveScanVarlenTilesFwd": 384,
    "SelectiveScanBwd": 16,
    "SelectiveScanBwdFewStates": 256,
    "SelectiveScanBwdShort": 128,
    "CausalConv1dChannellastBwd": 64,
    "CausalConv1dRowpartsBwd": 8,
    "CausalConv1dOddchannelsFwd": 64,
    "CausalConv1dVarlenFwd": 64,
    "CausalConv1dVarlenL2normFwd": 64,
    "CausalConv1dVarlenL2normShortFwd": 64,
    "CausalConv1dVarlenShortrowsFwd": 8,
    "CausalConv1dVarlenRowstripsFwd": 24,
    "CausalConv1dVarlenPrefixes": 256,
    "CausalConv1dUpdateSeveral": 96,
    "SelectiveStateUpdate": 8,
    "SelectiveStateUpdateReplay": 384,
    "SelectiveStateUpdateReplayFew": 96,
    "SelectiveStateUpdateQuantisedFold": 32,
    "SelectiveStateUpdateFoldSingle": 16,
}
"""Bytes per thread that kernels may keep in local memory, none where not named.

Scans access it once a tile and not in their loops over states; those with snapshots in runs of short
sequences need the most. Scans whose lanes all walk all tokens keep some words for a third or a fourth block, with
snapshots: on an H200 16 x 512 tokens of 2048 channels of 64 states took 1515 us so and 1735 with two blocks. The
gradient of a scan keeps one word there for a second block, and up to four where float32 sequences with states share
chunks: 64 of 128 tokens take 810 us so, and 1048 where they do not share any. That of two states keeps what a channel's
end takes, for twelve blocks: 8 x 1536 x 2048 take 201 us so and 214 with eight, which keep nothing there. That of
short rows side by side keeps up to 32 words where tokens are apart, and up to 12 elsewhere with four states.
Gradients of filters of more than 8 taps whose tokens have sequence numbers use all 255 registers that a thread can
have. Steps with rings keep a part of their inputs there while they put live tokens in states, in one step of a
window: four blocks on a multiprocessor take 45 us for 64 sequences of bfloat16, three 52. Those of few tokens keep up
to 22 words with states of int16, and fewer with others.
Decode steps of several tokens keep some words, so that a multiprocessor has eight blocks of them: 6.15 us instead of
6.75 for 4 tokens of 64 sequences of 8192 channels.
What is in front of results over x has six blocks on a multiprocessor, and keeps there what it knows of snapshots.
Unaligned channels with states, or sequence numbers, keep up to six words there for a sixth block on a multiprocessor:
86 us instead of 96 for 8 x 4097 x 2048 with states.
Packed sequences that a warp walks as a whole keep up to ten words there, so that a multiprocessor has eight blocks of
them: 96 us instead of 99 for 2048 sequences of two tokens. With normalised heads it is up to four words, for seven.
Gradients of rows by short blocks keep a word there in a few variants, so that a multiprocessor has eight blocks: 28.2
us instead of 30.0 with seven or six for 16 channels of 2**20 tokens.
Short rows with snapshots and results over x keep up to six words in a few variants, even with 80 registers.
Tokens put at once in states of 8-bit codes keep one word there before compute capability 9.0, with two blocks of 128
registers a thread on a multiprocessor, and up to eight words since then with x of float32.
Tokens of float32 put at once in states of 16 bits keep up to four words where an eighth block lets all run at once.
Several tokens of states of 16 bits keep a word there for a fifth block.
"""

ELSEWHERE = {
    ("CausalConv1dChannellastFwd", 120): 24,
    ("CausalConv1dChannellastVarlenBwd", 100): 40,
    ("CausalConv1dChannellastVarlenBwd", 120): 40,
    ("CausalConv1dOddchannelsFwd", 75): 148,
    ("CausalConv1dShortrowsBwd", 80): 48,
    ("CausalConv1dVarlenCachedFwd", 100): 28,
    ("CausalConv1dVarlenL2normShortFwd", 75): 100,
    ("CausalConv1dVarlenShortrowsFwd", 100): 16,
    ("CausalConv1dVarlenShortrowsFwd", 120): 40,
    ("CausalConv1dWideFwd", 89): 8,
    ("SelectiveScanBwd", 80): 28,
    ("SelectiveScanBwd", 100): 100,
    ("SelectiveScanBwd", 120): 96,
    ("SelectiveScanBwdStates", 75): 16,
    ("SelectiveStateUpdateDecays", 100): 8,
    ("SelectiveStateUpdateQuantised", 80): 20,
    ("SelectiveStateUpdateQuantised", 86): 76,
    ("SelectiveStateUpdateQuantisedSingle", 80): 96,
}
"""Bytes per thread that variants of covering sets keep in local memory on architectures where SPILLS allows fewer.

Bounds on registers are those that were fastest on an H200, and the compiler needs other numbers of registers for other
GPUs. Whether other bounds would be faster there has not been measured.
"""


def allowed(cls: type[Kernel], arch: int) -> int:
    own = SPILLS.get(cls.__name__, 0)
    return max(own, ELSEWHERE.get((cls.__name__, arch), 0))


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("cls", all_kernels())
def test_kernels_compile_without_spills(cls: type[Kernel], arch: int, request: pytest.FixtureRequest) -> None:
    if arch not in nvrtc.supported_archs():
        pytest.skip(f"this NVRTC does not compile for sm_{arch}")
    rows = part_of(covering(cls, arch), cls, arch)
    if not rows:
        pytest.skip(f"{cls.__name__} has so few variants that other architectures compile them")
    found = compiled(cls, rows, arch, getattr(request.config, "cache", None))
    assert found.keys() == {kernel.expression for kernel in rows}
    spilling = [
        f"{expression}: {r.registers} registers, {r.stack_bytes} bytes of stack, {r.spill_store_bytes} spilled"
        for expression, r in found.items()
        if max(r.stack_bytes, r.spill_store_bytes, r.spill_load_bytes) > allowed(cls, arch)
    ]
    assert not spilling, "\n".join([f"{len(spilling)} of {len(rows)} kernels for sm_{arch}", *spilling])


CRASHED = SelectiveScanTilesFwd(BFLOAT16, 16, 1, 4, 8, 3, by_channel=False, states_only=False), 120
"""A kernel at which NVRTC 12.9 ended with a segmentation fault, and the architecture."""


def test_a_kernel_that_crashed_the_compiler_compiles() -> None:
    kernel, arch = CRASHED
    if arch not in nvrtc.supported_archs():
        pytest.skip(f"this NVRTC does not compile for sm_{arch}")
    assert compiled(type(kernel), [kernel], arch, None).keys() == {kernel.expression}


@pytest.mark.parametrize("cls", all_kernels() if sampling.EVERY else sampling.drawn(all_kernels(), 6))
def test_a_covering_set_covers(cls: type[Kernel]) -> None:
    axes = [field.name for field in fields(cls)]
    core = [axis for axis in CORE if axis in axes]
    rows = covering(cls, THOROUGH)
    assert len(rows) == len(set(rows)) and set(rows) <= variants(cls)
    for chosen in [*((axis,) for axis in axes), core]:
        values = getter(*chosen)
        assert set(map(values, rows)) == set(map(values, variants(cls)))
