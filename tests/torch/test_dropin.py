"""cuconv in the place of causal-conv1d and mamba_ssm: names, parameters, and what is absent."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cuconv
from tests.torch import inputs

torch = pytest.importorskip("torch", reason="torch is not installed")

from cuconv.torch import causal_conv1d as conv  # noqa: E402
from cuconv.torch import dropin  # noqa: E402
from cuconv.torch import mamba_ssm as mamba  # noqa: E402

ROOT = Path(cuconv.__file__).parents[1]

PARAMETERS = {
    "causal_conv1d.causal_conv1d_fn": "x, weight, bias=None, seq_idx=None, initial_states=None, "
    "return_final_states=False, final_states_out=None, activation=None",
    "causal_conv1d.causal_conv1d_update": "x, conv_state, weight, bias=None, activation=None, cache_seqlens=None, "
    "conv_state_indices=None",
    "causal_conv1d.causal_conv1d_varlen.causal_conv1d_varlen_states": "x, cu_seqlens, state_len",
    "mamba_ssm.ops.selective_scan_interface.selective_scan_fn": "u, delta, A, B, C, D=None, z=None, delta_bias=None, "
    "delta_softplus=False, return_last_state=False",
    "mamba_ssm.ops.selective_scan_interface.mamba_inner_fn": "xz, conv1d_weight, conv1d_bias, x_proj_weight, "
    "delta_proj_weight, out_proj_weight, out_proj_bias, A, B=None, C=None, D=None, delta_bias=None, B_proj_bias=None, "
    "C_proj_bias=None, delta_softplus=True, checkpoint_lvl=1, b_rms_weight=None, c_rms_weight=None, "
    "dt_rms_weight=None, b_c_dt_rms_eps=1e-06",
    "mamba_ssm.ops.triton.selective_state_update.selective_state_update": "state, x, dt, A, B, C, D=None, z=None, "
    "dt_bias=None, dt_softplus=False, state_batch_indices=None",
}
"""The parameters of functions, as their packages declare them."""


@pytest.fixture
def installed() -> Iterator[None]:
    if any(importlib.util.find_spec(name) for name in dropin.VERSIONS):
        pytest.skip("a package that cuconv stands in for is installed")
    dropin.install()
    yield
    dropin.uninstall()


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("function", PARAMETERS)
def test_parameters_are_the_packages(function: str) -> None:
    module, _, name = function.rpartition(".")
    found = inspect.signature(getattr(importlib.import_module(module), name))
    told = [
        each.name if each.default is each.empty else f"{each.name}={each.default!r}"
        for each in found.parameters.values()
    ]
    assert ", ".join(told) == PARAMETERS[function]
    assert all(each.kind is each.POSITIONAL_OR_KEYWORD for each in found.parameters.values())


@pytest.mark.usefixtures("installed")
def test_modules_are_found_in_every_way() -> None:
    import causal_conv1d
    import mamba_ssm
    from causal_conv1d import causal_conv1d_fn, causal_conv1d_update  # noqa: F401

    assert mamba_ssm.ops.triton.selective_state_update.selective_state_update.__module__.startswith("cuconv.")
    assert importlib.util.find_spec("causal_conv1d") is not None
    assert importlib.metadata.version("causal-conv1d") == causal_conv1d.__version__ == "1.7.0+cuconv"
    for absent in ("mamba_ssm.ops.triton.ssd_combined", "mamba_ssm.ops.triton.layernorm_gated", "causal_conv1d_cuda"):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(absent)
    with pytest.raises(ImportError):
        from mamba_ssm import Mamba2  # noqa: F401


def test_uninstalled_is_gone() -> None:
    if importlib.util.find_spec("causal_conv1d"):
        pytest.skip("causal-conv1d is installed")
    assert dropin.install("causal_conv1d") == ("causal_conv1d",)
    dropin.uninstall()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("causal_conv1d")
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("causal-conv1d")
    with pytest.raises(ValueError, match="packages: got 'flash_attn'; wanted one of 'causal_conv1d', 'mamba_ssm'"):
        dropin.install("flash_attn")


def test_an_installed_package_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "causal_conv1d").mkdir()
    (tmp_path / "causal_conv1d" / "__init__.py").write_text("causal_conv1d_fn = 'the real one'\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "causal_conv1d", raising=False)
    importlib.invalidate_caches()
    try:
        assert "causal_conv1d" not in dropin.install("causal_conv1d")
        assert importlib.import_module("causal_conv1d").causal_conv1d_fn == "the real one"
        assert "causal_conv1d" in dropin.install("causal_conv1d", replace=True)
        assert callable(importlib.import_module("causal_conv1d").causal_conv1d_fn)
    finally:
        dropin.uninstall()
    assert importlib.import_module("causal_conv1d").causal_conv1d_fn == "the real one"
    del sys.modules["causal_conv1d"]


@pytest.mark.usefixtures("installed")
def test_meanings_are_the_packages() -> None:
    from causal_conv1d import causal_conv1d_fn, causal_conv1d_update
    from mamba_ssm.ops.triton.selective_state_update import selective_state_update

    torch.manual_seed(0)
    x, weight, bias, states = inputs.conv_inputs(dtype=torch.float32)
    wanted, wanted_final = inputs.conv(x, weight, bias, states)
    final_out = torch.empty(2, 6, 3)
    out, final = causal_conv1d_fn(x, weight, bias, None, states, True, final_out, "silu")
    assert final is final_out
    torch.testing.assert_close((out, final), (wanted, wanted_final), rtol=1e-5, atol=1e-5)
    got = torch.autograd.grad(final.sum() + out.sum(), (x, states))
    for one, other in zip(got, torch.autograd.grad(wanted.sum() + wanted_final.sum(), (x, states)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    with pytest.raises(NotImplementedError, match="activation must be None, silu, or swish"):
        causal_conv1d_fn(x, weight, activation="gelu")
    # Parameters require grad, and a decode step is no part of any graph.
    state = torch.zeros(2, 6, 4)
    assert not causal_conv1d_update(x[:, :, 0], state, weight, bias, "silu").requires_grad and state.any()
    ssm = torch.zeros(2, 6, 5, dtype=torch.bfloat16)
    half = x[:, :, 0].bfloat16()
    y = selective_state_update(ssm, half, half, -torch.ones(6, 5), torch.ones(2, 5), torch.ones(2, 5), D=torch.ones(6))
    assert y.dtype == torch.bfloat16 and not y.requires_grad and ssm.any()


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
@pytest.mark.parametrize(
    ("target", "error", "refused"),
    [
        (torch.ones(3, 6, 3), ValueError, r"shape \(3, 6, 3\); wanted \(1, 6, 3\)"),
        (torch.ones(5, 1, 6, 3), ValueError, r"shape \(5, 1, 6, 3\); wanted \(1, 6, 3\)"),
        (torch.ones(1, 6, 3, dtype=torch.float16), TypeError, "dtype float16; wanted float32"),
        (torch.ones(1, 6, 3, dtype=torch.int32), TypeError, "dtype int32; wanted float32"),
        (torch.ones(1, 6, 3, device="meta"), ValueError, "a tensor on meta; wanted"),
    ],
    ids=["more rows", "more axes", "half", "integers", "elsewhere"],
)
def test_given_final_states_that_do_not_fit_are_refused(target: Any, error: Any, refused: str, mode: Any) -> None:
    x, weight = torch.ones(1, 6, 9), torch.ones(6, 4, requires_grad=True)
    with mode(), pytest.raises(error, match=f"^(final_states_out|device): got {refused}"):
        conv.causal_conv1d_fn(x, weight, return_final_states=True, final_states_out=target)
    assert target.is_meta or bool((target == 1).all())


def updated_convolution(state: Any) -> None:
    conv.causal_conv1d_update(torch.ones(2, 6), state, torch.ones(6, 4))


def updated_scan(state: Any) -> None:
    rows = torch.ones(2, 3)
    mamba.selective_state_update(state, torch.ones(2, 6), torch.ones(2, 6), -torch.ones(6, 3), rows, rows)


@pytest.mark.parametrize("update", [updated_convolution, updated_scan])
def test_autograd_notices_an_update_of_what_it_has_saved(update: Any) -> None:
    state = torch.zeros(2, 6, 3)
    product = (torch.ones(2, 6, 3, requires_grad=True) * state).sum()
    update(state)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("wide", ["delta", "B and C", "z"])
def test_a_scan_takes_any_mixture_of_dtypes(wide: str) -> None:
    """Under autocast norms give float32 and projections 16 bits."""
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn

    u, delta, z = (torch.rand(2, 4, 6).bfloat16() for _ in range(3))
    B, C = (torch.rand(2, 3, 6).bfloat16() for _ in range(2))
    A, D, bias = -torch.rand(4, 3), torch.rand(4).bfloat16(), torch.rand(4)
    exact = [each.double() for each in (u, delta, A, B, C, D, z, bias)]
    delta = delta.float() if wide == "delta" else delta
    B, C = (each.float() if wide == "B and C" else each for each in (B, C))
    z = z.float() if wide == "z" else z
    given = u.requires_grad_(), delta, A, B, C, D, z, bias, True, True
    (out, state), (wanted, last) = selective_scan_fn(*given), cuconv.selective_scan_fn(*exact, True, True)
    assert out.dtype == torch.bfloat16 and state.dtype == torch.float32
    torch.testing.assert_close(out.double(), wanted, rtol=2**-8, atol=1e-5)
    torch.testing.assert_close(state.double(), last, rtol=1e-5, atol=1e-5)
    out.float().sum().backward()
    assert u.grad is not None and u.grad.dtype == torch.bfloat16


@pytest.mark.usefixtures("installed")
def test_complex_states_are_refused() -> None:
    from mamba_ssm.ops.selective_scan_interface import mamba_inner_fn, selective_scan_fn
    from mamba_ssm.ops.triton.selective_state_update import selective_state_update

    u, A, B = torch.zeros(2, 4, 6), torch.zeros(4, 3, dtype=torch.complex64), torch.zeros(2, 3, 12)
    with pytest.raises(TypeError, match=r"^A: got dtype complex64; wanted float32$"):
        selective_scan_fn(u, u, A, B, B)
    with pytest.raises(TypeError, match=r"^A: got dtype complex64; wanted float32$"):
        # Of complex B and C two numbers for each state come out of the projection.
        mamba_inner_fn(
            *(torch.zeros(2, 8, 6), torch.zeros(4, 1, 3), None, torch.zeros(1 + 4 * 3, 4), torch.zeros(4, 1)),
            *(torch.zeros(5, 4), None, A),
        )
    with pytest.raises(TypeError, match=r"^A: got dtype complex64; wanted"):
        selective_state_update(torch.zeros(2, 4, 3), u[:, :, 0], u[:, :, 0], A, B[:, :, 0], B[:, :, 0])


PROGRAM = """
import sys
from causal_conv1d import causal_conv1d_fn
import mamba_ssm
print(sys.argv, __name__, causal_conv1d_fn.__module__, mamba_ssm.__version__)
sys.exit(7 if "fail" in sys.argv else 0)
"""


def test_exec_runs_a_program(tmp_path: Path) -> None:
    if any(importlib.util.find_spec(name) for name in dropin.VERSIONS):
        pytest.skip("a package that cuconv stands in for is installed")
    (tmp_path / "program.py").write_text(PROGRAM)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "cuconv", "exec", *words]
        environment = {"PYTHONPATH": f"{ROOT}", "PATH": "/usr/bin:/bin"}
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    done = run("program.py", "--json", "x")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "['program.py', '--json', 'x'] __main__ cuconv.torch.causal_conv1d 2.3.2+cuconv\n"
    assert run("-m", "program", "fail").returncode == 7
    missing = run("nothing.py")
    assert missing.returncode != 0 and "nothing.py" in missing.stderr
    absent = run("-m", "nothing.there")
    assert absent.returncode == missing.returncode and absent.stderr == "cuconv: there is no module nothing\n"
    assert run().returncode == 2
