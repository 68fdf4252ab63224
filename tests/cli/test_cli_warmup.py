"""`cuconv warmup`: that what it compiles is what calls load, that it compiles nothing twice, and how it fails."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuconv import causal_conv1d_fn, causal_conv1d_varlen_fn, selective_scan_fn, selective_scan_varlen_fn
from cuconv.bench import compiling, device
from cuconv.bench.compiling import kernels_of
from cuconv.bench.gpus import KNOWN
from cuconv.bench.makers import MAKERS
from cuconv.bench.models import MODELS
from cuconv.bench.workloads import REPORT, SMALL, of_model, workloads
from cuconv.cli import options_for, warmup
from cuconv.cli.console import CANNOT, OK, WRONG
from cuconv.jit import nvrtc, source
from cuconv.jit.build import build
from cuconv.jit.cache import Artifact, Resources
from cuconv.jit.source import Source
from cuconv.runtime.abstract import AbstractArray, launches_of
from cuconv.runtime.dtypes import BFLOAT16, BOOL, FLOAT32, INT32, DType
from cuconv.runtime.kernel import Kernel
from cuconv.runtime.layout import dense_strides
from cuconv.runtime.workload import Workload
from cuconv.selective_scan.kernels import SelectiveScanVarlenTilesFwd
from cuconv.selective_scan.plan_varlen import PROMPT
from tests.conftest import missing_gpu
from tests.support.command_line import Capture, cuconv, error_of, text_of, value_of

FEW = ("warmup", "--op", "causal_conv1d_update_qkv_split")
"""A function of few kernels."""


pytestmark = pytest.mark.usefixtures("folder")


def expressions_of(workloads: Iterable[Workload]) -> frozenset[str]:
    """The kernels of some of these calls: of few prefills and decode steps of models, which take a second a model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warmup, "TOKENS", warmup.TOKENS[::16])
        patch.setattr(warmup, "BATCHES", warmup.BATCHES[::16])
        return frozenset(kernel.expression for kernel in kernels_of(workloads))


@cache
def chosen(*words: str) -> frozenset[str]:
    """The kernels that a command line asks for, of models those of few calls."""
    return expressions_of(warmup.choose(options_for(["warmup", *words])))


def expressions(found: dict[str, Any]) -> set[str]:
    return {row["kernel"] for row in found["kernels"]}


def test_what_is_compiled_is_what_calls_load(folder: Path, capsys: Capture) -> None:
    code, found = value_of(capsys, *FEW, "--arch", "90")
    assert (code, found["failed"], found["folder"]) == (OK, 0, str(folder))
    assert found["compiled"] == len(found["kernels"]) > 0 == found["found"]
    for row in found["kernels"]:
        artifact = build(row["file"], row["kernel"], 90)
        assert artifact.from_cache and str(artifact.path) == row["path"]
        assert artifact.resources is not None and row["resources"]["registers"] == artifact.resources.registers > 0
    called = [w for table in (SMALL, REPORT) for w in workloads(table, FEW[2], dtype="bfloat16")]
    assert {kernel.expression for kernel in kernels_of(called)} <= expressions(found)
    code, again = value_of(capsys, *FEW, "--arch", "90")
    assert (code, again["compiled"], again["found"]) == (OK, 0, found["compiled"])
    assert expressions(again) == expressions(found)


def test_an_architecture_may_be_written_in_three_ways_and_is_compiled_for_once(capsys: Capture) -> None:
    words = [*FEW, "--shape", "batch=4", "--arch", "90", "--arch", "sm_90", "--arch", "9.0", "--arch", "80"]
    _, found = value_of(capsys, *words)
    assert sorted(row["arch"] for row in found["kernels"]) == ["sm_80", "sm_90"]
    assert sorted(Path(row["path"]).parent.name for row in found["kernels"]) == ["sm_80", "sm_90"]


def test_a_device_that_is_newer_than_the_compiler_gets_ptx(capsys: Capture) -> None:
    newest = nvrtc.supported_archs()[-1]
    _, found = value_of(capsys, *FEW, "--shape", "batch=4", "--arch", str(newest + 20))
    (row,) = found["kernels"]
    assert (row["arch"], row["resources"], row["error"]) == (f"compute_{newest}", None, None)


def test_people_are_told_what_was_done(folder: Path, capsys: Capture) -> None:
    code, text = text_of(capsys, *FEW, "--shape", "batch=4", "--arch", "90")
    assert code == OK
    assert "kernels: 1, for sm_90" in text
    assert "compiled 1, found 0 on disk, failed 0, in " in text and str(folder) in text


def test_functions_models_dtypes_widths_and_shapes_are_chosen() -> None:
    models = expressions_of(warmup.calls_of("lfm2-1.2b", "float16"))
    assert chosen("--model", "lfm2-1.2b", "--dtype", "float16") == models
    assert all("<3, __half" in expression for expression in models)
    both = chosen("--model", "lfm2-1.2b", "--dtype", "float16", "--dtype", "float32")
    assert models < both and any("float" in expression for expression in both - models)
    function = "causal_conv1d_varlen_fn"
    of_function = chosen("--op", function)
    assert of_function <= chosen()
    assert {e for e in chosen("--model", "mamba-130m", "--op", function)} < of_function
    assert chosen("--op", function, "--op", FEW[2]) == of_function | chosen(*FEW[1:])
    wide = chosen("--op", "causal_conv1d_fn", "--width", "2", "--width", "5")
    assert {expression.partition("<")[2][0] for expression in wide} == {"2", "5"}
    shaped = chosen("--op", "causal_conv1d_fn", "--shape", "width=7,dim=64", "--dtype", "float32")
    assert shaped == {k.expression for k in kernels_of([MAKERS["causal_conv1d_fn"](width=7, dim=64, dtype="float32")])}


def test_everything_is_compiled_where_nothing_is_named() -> None:
    everything = chosen()
    for function in MAKERS:
        for table in (SMALL, REPORT):
            called = kernels_of(workloads(table, function, dtype="bfloat16"))
            assert {kernel.expression for kernel in called} <= everything


@cache
def compiled_for(model: str, dtype: str) -> frozenset[Kernel]:
    return frozenset(kernels_of(warmup.calls_of(model, dtype)))


def layer(model: str, dtype: str, tokens: int, sequences: int, batch: int) -> set[Kernel]:
    """The kernels of a layer's prefill, dense and packed, and of its decode step with states of either dtype."""
    packed = f"{sequences - 1}x0+{tokens}" if sequences > 1 else str(tokens)
    calls = list(of_model(model, dtype, tokens, (batch,), packed))
    calls += [MAKERS[w.function](**{**w.sizes, "state_dtype": "float32"}) for w in calls if "state_dtype" in w.sizes]
    return set(kernels_of(calls))


class OfMamba:
    """The prefills of one of Mamba's layers as libraries call them: most arrays are parts of what a product returns."""

    def __init__(self, model: str, dtype: DType, tokens: int, lead: tuple[int, ...]) -> None:
        states, conv = MODELS[model].states, MODELS[model].conv
        assert states is not None
        self._dtype, self._tokens, self._lead = dtype, tokens, lead
        self.dim, self.d_state, self._rank = conv.dim, states.d_state, conv.dim // 32
        self.x, self.u, self.z = (self._part(*part) for part in ((0, 2), (0, 1), (1, 2)))
        self.weights = {"weight": self.array(self.dim, conv.width), "bias": self.array(self.dim)}

    def array(self, *shape: int, dtype: DType | None = None) -> AbstractArray:
        return AbstractArray(shape, dense_strides(shape, tuple(range(len(shape)))), dtype or self._dtype)

    def _part(self, number: int, of: int) -> AbstractArray:
        """One of the parts of a product with as many times the channels."""
        return self._channels(number * self.dim, self.dim, of * self.dim)

    def _channels(self, first: int, count: int, of: int) -> AbstractArray:
        strides = (*(self._tokens * of for _ in self._lead), 1, of)
        return AbstractArray((*self._lead, count, self._tokens), strides, self._dtype, first)

    def scanned(self, normalised: bool) -> dict[str, Any]:
        """All arguments of a scan but delta and states. Some models normalise B and C, which makes new arrays."""
        n, rank, places = self.d_state, self._rank, ("B", "C")
        first = dict.fromkeys(places, 0) if normalised else {"B": rank, "C": rank + n}
        return {
            "u": self.u,
            "A": self.array(self.dim, n, dtype=FLOAT32),
            **{name: self._channels(first[name], n, n if normalised else rank + 2 * n) for name in places},
            **{name: self.array(self.dim, dtype=FLOAT32) for name in ("D", "delta_bias")},
            "z": self.z,
            "delta_softplus": True,
        }


def of_transformers(model: str, dtype: DType, tokens: int, normalised: bool) -> set[Kernel]:
    """The kernels of a prefill of transformers."""
    mamba = OfMamba(model, dtype, tokens, (1,))
    delta = mamba.array(1, mamba.dim, tokens)
    convolved = launches_of(causal_conv1d_fn, x=mamba.x, **mamba.weights, activation="silu")
    scanned = launches_of(selective_scan_fn, delta=delta, **mamba.scanned(normalised), return_last_state=True)
    return {launch.kernel for launch in (*convolved, *scanned)}


def of_vllm(model: str, dtype: DType, tokens: int, sequences: int, state: DType, normalised: bool) -> set[Kernel]:
    """The kernels of a packed prefill of vLLM, the states of which are in the slots of a pool."""
    mamba = OfMamba(model, dtype, tokens, ())
    slots, dim = sequences + 1, mamba.dim
    packed = {
        "query_start_loc": mamba.array(sequences + 1, dtype=INT32),
        "cache_indices": mamba.array(sequences, dtype=INT32),
        "has_initial_state": mamba.array(sequences, dtype=BOOL),
    }
    conv_states = AbstractArray((slots, dim, 3), (3 * dim, 1, dim), dtype)
    states = {"ssm_states": mamba.array(slots, dim, mamba.d_state, dtype=state), "delta": mamba.u}
    given = {**mamba.scanned(normalised), **states, **packed, "out": mamba.z, "pad_output": "keep"}
    convolution = {"x": mamba.x, **mamba.weights, "conv_states": conv_states, **packed, "activation": "silu"}
    convolved = launches_of(causal_conv1d_varlen_fn, **convolution)
    scanned = launches_of(selective_scan_varlen_fn, **given)
    return {launch.kernel for launch in (*convolved, *scanned)}


FEW_MODELS = random.sample(list(MODELS), 2)
"""Some models, others in every run: planning all calls of one takes up to five seconds for each dtype."""


@settings(max_examples=150)
@given(
    model=st.sampled_from(FEW_MODELS),
    dtype=st.sampled_from(["bfloat16", "float32"]),
    tokens=st.one_of(st.integers(1, 600), st.integers(1, 65536), st.integers(1, 8192).map(lambda vectors: 8 * vectors)),
    sequences=st.one_of(st.integers(1, 400), st.integers(1, 65536)),
    batch=st.one_of(st.integers(1, 64), st.integers(1, 4096)),
)
def test_a_models_layers_need_no_other_kernels(model: str, dtype: str, tokens: int, sequences: int, batch: int) -> None:
    """Warming up a model compiles every kernel that its layers launch, as the help of `cuconv warmup` promises."""
    assert layer(model, dtype, tokens, min(sequences, tokens), batch) <= compiled_for(model, dtype)


OF_MAMBA = [name for name, model in MODELS.items() if model.is_mamba1]


@settings(max_examples=150)
@given(
    model=st.sampled_from([random.choice(OF_MAMBA)]),
    dtype=st.sampled_from([BFLOAT16, FLOAT32]),
    tokens=st.one_of(st.integers(1, 600), st.integers(1, 65536)),
    sequences=st.one_of(st.integers(1, 400), st.integers(1, 65536)),
    normalised=st.booleans(),
    wide=st.booleans(),
)
def test_prefills_of_other_libraries_need_no_other_kernels(
    model: str, dtype: DType, tokens: int, sequences: int, normalised: bool, wide: bool
) -> None:
    """Models of Mamba in transformers and vLLM lay arrays out otherwise than mamba_ssm does."""
    compiled = compiled_for(model, dtype.name)
    assert of_transformers(model, dtype, tokens, normalised) <= compiled
    states = FLOAT32 if wide else dtype
    assert of_vllm(model, dtype, tokens, min(sequences, tokens), states, normalised) <= compiled


@pytest.mark.parametrize("model", ["mamba-130m", "mamba2-130m"])
def test_no_short_prefill_and_no_small_batch_needs_another_kernel(model: str) -> None:
    """Every number of tokens and of sequences, as far as most thresholds are."""
    for count in range(1, 513):
        missing = layer(model, "bfloat16", count, 1, count) - compiled_for(model, "bfloat16")
        assert not missing, f"{count} tokens or sequences: {missing}"


def test_no_number_of_packed_sequences_needs_another_kernel() -> None:
    """The quickest shape of tiles goes back and forth with the number of sequences."""
    shapes = set()
    for sequences in range(1, 129):
        needed = layer("mamba-130m", "bfloat16", PROMPT * sequences, sequences, 1)
        missing = needed - compiled_for("mamba-130m", "bfloat16")
        assert not missing, f"{sequences} sequences of {PROMPT} tokens: {missing}"
        shapes |= {(k.lanes, k.parts) for k in needed if isinstance(k, SelectiveScanVarlenTilesFwd)}
    assert shapes == {(16, 1), (16, 2), (1, 2), (1, 4), (1, 8)}


def test_kernels_are_those_of_the_gpus_of_an_architecture() -> None:
    """The shape of a scan's tiles depends on the number of multiprocessors."""
    options = options_for(["warmup", "--op", "selective_scan_varlen_fn", "--shape", "sequences=6x256,dim=1536"])
    on_a100, on_h200 = (kernels_of(warmup.choose(options), KNOWN[name]) for name in ("A100", "H200"))
    assert on_a100 != on_h200
    assert warmup._kernels_on(80, [], on_h200, options) == on_a100
    assert warmup._kernels_on(90, [], on_h200, options) == on_h200
    # One that is here and unlike the known ones of its capability.
    cut_down = replace(KNOWN["H200"], multiprocessors=KNOWN["A100"].multiprocessors)
    assert set(warmup._kernels_on(90, [cut_down], on_h200, options)) == {*on_a100, *on_h200}


def fake(file: str, expression: str, capability: int) -> Artifact:
    return Artifact(warmup.cache.folder() / "x.cubin", "symbol", Resources(1, 0, 0, 0, 0), "cubin", from_cache=False)


def test_as_many_are_compiled_at_a_time_as_there_are_jobs(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once, most, lock = 0, 0, threading.Lock()

    def slow(*arguments: Any) -> Artifact:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        time.sleep(0.05)
        with lock:
            at_once -= 1
        return fake(*arguments)

    monkeypatch.setattr(compiling, "build", slow)
    for jobs in (1, 3):
        most = 0
        code, found = value_of(capsys, "warmup", "--op", "selective_state_update", "--arch", "90", "--jobs", str(jobs))
        assert (code, most) == (OK, jobs) and len(found["kernels"]) > 3


def test_an_interrupt_does_not_wait_for_all_that_is_to_come(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []

    def interrupted(file: str, expression: str, capability: int) -> Artifact:
        begun.append(expression)
        time.sleep(0.1)
        raise KeyboardInterrupt

    monkeypatch.setattr(compiling, "build", interrupted)
    code, text = error_of(capsys, "warmup", "--op", "selective_state_update", "--arch", "90", "--jobs", "1", "--json")
    assert (code, text) == (130, "cuconv: interrupted\n")
    assert len(begun) < 6 < len(chosen("--op", "selective_state_update"))


def test_a_kernel_that_does_not_compile_is_told_and_the_others_go_on(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = source.load()
    unit = "causal_conv1d/causal_conv1d_update_few.cu"
    broken = Source({**code.files, unit: f"{code.files[unit]}\n#error the dog ate it\n"})
    monkeypatch.setattr(source, "load", lambda: broken)
    words = ["warmup", "--op", "causal_conv1d_update", "--arch", "90"]
    words += ["--shape", "batch=1", "--shape", "batch=1,contiguous=tokens", "--shape", "batch=256,tokens=4"]
    status, found = value_of(capsys, *words)
    bad = [row for row in found["kernels"] if row["error"]]
    assert status == WRONG
    assert {row["file"] for row in bad} == {unit} and "the dog ate it" in bad[0]["error"]
    assert (found["failed"], found["compiled"]) == (len(bad), len(found["kernels"]) - len(bad))
    assert found["compiled"] > 0
    status, text = text_of(capsys, *words)
    assert status == WRONG
    assert f"failed for sm_90: {bad[0]['kernel']}" in text and "the dog ate it" in text
    assert f"found {found['compiled']} on disk, failed {len(bad)}" in text


def test_a_kernel_that_could_not_be_stored_has_failed(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that was writable when we began: the library compiles on, but in vain."""
    elsewhere = Artifact(tmp_path / "private" / "x.cubin", "symbol", None, "ptx", from_cache=False)
    monkeypatch.setattr(compiling, "build", lambda *arguments: elsewhere)
    code, found = value_of(capsys, *FEW, "--shape", "batch=4", "--arch", "90")
    assert (code, found["failed"]) == (WRONG, 1)
    assert "could not be written" in found["kernels"][0]["error"]


def test_a_folder_that_cannot_be_written_ends_it_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    done = cuconv(*FEW, "--arch", "90", CUCONV_CACHE_DIR=str(tmp_path / "file" / "cache"))
    assert (done.returncode, done.stdout) == (CANNOT, "")
    assert "cannot be written" in done.stderr and "set CUCONV_CACHE_DIR" in done.stderr
    assert done.stderr.count("\n") == 1


def test_without_a_gpu_an_architecture_must_be_named(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "missing", lambda: "no driver")
    code, text = error_of(capsys, *FEW)
    assert code == CANNOT
    assert "no driver" in text and "--arch 90" in text


@pytest.mark.gpu
def test_on_a_gpu_its_own_architecture_is_compiled_for(capsys: Capture) -> None:
    import cupy

    assert missing_gpu() is None
    code, found = value_of(capsys, *FEW, "--shape", "batch=4")
    wanted = {
        nvrtc.target(int(cupy.cuda.Device(n).compute_capability)).arch
        for n in range(cupy.cuda.runtime.getDeviceCount())
    }
    assert code == OK and {row["arch"] for row in found["kernels"]} == wanted


def test_an_architecture_that_is_too_old_is_refused(capsys: Capture) -> None:
    code, error = error_of(capsys, *FEW, "--arch", "10")
    assert code == CANNOT and "compute_capability is 10" in error


def test_a_process_of_its_own_prints_one_json_value_and_logs_beside_it() -> None:
    done = cuconv(*FEW, "--shape", "batch=4", "--arch", "90", "--json", "--verbose")
    assert done.returncode == OK
    assert json.loads(done.stdout)["compiled"] == 1
    assert done.stderr.startswith("cuconv: compiled causal_conv1d") and done.stderr.count("\n") == 1
