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
    "causal_conv1d.cpp_functions.causal_conv1d_fwd_function": "x, weight, bias, seq_idx, initial_states, "
    "final_states_out, silu_activation",
    "causal_conv1d.cpp_functions.causal_conv1d_bwd_function": "x, weight, bias, dout, seq_idx, initial_states, "
    "dfinal_states, dx, return_dinitial_states, silu_activation",
    "causal_conv1d.cpp_functions.causal_conv1d_update_function": "x, conv_state, weight, bias, silu_activation, "
    "cache_seqlens, conv_state_indices",
    "mamba_ssm.ops.selective_scan_interface.selective_scan_fn": "u, delta, A, B, C, D=None, z=None, delta_bias=None, "
    "delta_softplus=False, return_last_state=False",
    "mamba_ssm.ops.selective_scan_interface.mamba_inner_fn": "xz, conv1d_weight, conv1d_bias, x_proj_weight, "
    "delta_proj_weight, out_proj_weight, out_proj_bias, A, B=None, C=None, D=None, delta_bias=None, B_proj_bias=None, "
    "C_proj_bias=None, delta_softplus=True, checkpoint_lvl=1, b_rms_weight=None, c_rms_weight=None, "
    "dt_rms_weight=None, b_c_dt_rms_eps=1e-06",
    "mamba_ssm.ops.triton.selective_state_update.selective_state_update": "state, x, dt, A, B, C, D=None, z=None, "
    "dt_bias=None, dt_softplus=False, state_batch_indices=None",
    "causal_conv1d.causal_conv1d_interface.causal_conv1d_ref": "x, weight, bias=None, initial_states=None, "
    "return_final_states=False, final_states_out=None, activation=None",
    "causal_conv1d.causal_conv1d_interface.causal_conv1d_update_ref": "x, conv_state, weight, bias=None, "
    "activation=None, cache_seqlens=None",
    "causal_conv1d.causal_conv1d_varlen.causal_conv1d_varlen_states_ref": "x, cu_seqlens, state_len",
    "mamba_ssm.ops.selective_scan_interface.selective_scan_ref": "u, delta, A, B, C, D=None, z=None, delta_bias=None, "
    "delta_softplus=False, return_last_state=False",
    "mamba_ssm.ops.selective_scan_interface.mamba_inner_ref": "xz, conv1d_weight, conv1d_bias, x_proj_weight, "
    "delta_proj_weight, out_proj_weight, out_proj_bias, A, B=None, C=None, D=None, delta_bias=None, B_proj_bias=None, "
    "C_proj_bias=None, delta_softplus=True",
    "mamba_ssm.ops.triton.selective_state_update.selective_state_update_ref": "state, x, dt, A, B, C, D=None, z=None, "
    "dt_bias=None, dt_softplus=False",
    "mamba_ssm.ops.triton.layernorm.layer_norm_fn": "x, weight, bias, residual=None, eps=1e-06, prenorm=False, "
    "residual_in_fp32=False, is_rms_norm=False",
    "mamba_ssm.ops.triton.layernorm.rms_norm_fn": "x, weight, bias, residual=None, prenorm=False, "
    "residual_in_fp32=False, eps=1e-06",
    "mamba_ssm.ops.triton.layer_norm.layer_norm_fn": "x, weight, bias, residual=None, x1=None, weight1=None, "
    "bias1=None, eps=1e-06, dropout_p=0.0, rowscale=None, prenorm=False, residual_in_fp32=False, is_rms_norm=False, "
    "return_dropout_mask=False",
    "mamba_ssm.ops.triton.layer_norm.rms_norm_fn": "x, weight, bias, residual=None, x1=None, weight1=None, bias1=None, "
    "eps=1e-06, dropout_p=0.0, rowscale=None, prenorm=False, residual_in_fp32=False, return_dropout_mask=False",
    "mamba_ssm.ops.triton.layer_norm.RMSNorm": "hidden_size, eps=1e-05, dropout_p=0.0, device=None, dtype=None",
    "mamba_ssm.ops.triton.layernorm_gated.layernorm_fn": "x, weight, bias, z=None, eps=1e-06, group_size=None, "
    "norm_before_gate=True, is_rms_norm=False",
    "mamba_ssm.ops.triton.layernorm_gated.rmsnorm_fn": "x, weight, bias, z=None, eps=1e-06, group_size=None, "
    "norm_before_gate=True",
    "mamba_ssm.ops.triton.layernorm_gated.LayerNorm": "hidden_size, eps=1e-05, group_size=None, norm_before_gate=True, "
    "device=None, dtype=None",
    "mamba_ssm.ops.triton.layernorm_gated.RMSNorm": "hidden_size, eps=1e-05, group_size=None, norm_before_gate=True, "
    "device=None, dtype=None",
    "mamba_ssm.ops.triton.ssd_combined.mamba_chunk_scan_combined": "x, dt, A, B, C, chunk_size, D=None, z=None, "
    "dt_bias=None, initial_states=None, seq_idx=None, cu_seqlens=None, dt_softplus=False, dt_limit=(0.0, inf), "
    "return_final_states=False, return_varlen_states=False, state_dtype=None",
    "mamba_ssm.ops.triton.ssd_combined.mamba_split_conv1d_scan_combined": "zxbcdt, conv1d_weight, conv1d_bias, "
    "dt_bias, A, D, chunk_size, initial_states=None, seq_idx=None, dt_limit=(0.0, inf), return_final_states=False, "
    "activation='silu', rmsnorm_weight=None, rmsnorm_eps=1e-06, outproj_weight=None, outproj_bias=None, headdim=None, "
    "ngroups=1, norm_before_gate=True, state_dtype=None",
    "mamba_ssm.modules.mamba2.Mamba2": "d_model, d_state=128, d_conv=4, conv_init=None, expand=2, headdim=64, "
    "d_ssm=None, ngroups=1, A_init_range=(1, 16), D_has_hdim=False, rmsnorm=True, norm_before_gate=False, "
    "dt_min=0.001, dt_max=0.1, dt_init_floor=0.0001, dt_limit=(0.0, inf), bias=False, conv_bias=True, chunk_size=256, "
    "use_mem_eff_path=True, layer_idx=None, process_group=None, sequence_parallel=True, device=None, dtype=None",
    "mamba_ssm.modules.mamba_simple.Block": "dim, mixer_cls, norm_cls=nn.LayerNorm, fused_add_norm=False, "
    "residual_in_fp32=False",
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
    assert ", ".join(told).replace(repr(torch.nn.LayerNorm), "nn.LayerNorm") == PARAMETERS[function]
    assert all(each.kind is each.POSITIONAL_OR_KEYWORD for each in found.parameters.values())


@pytest.mark.usefixtures("installed")
def test_modules_are_found_in_every_way() -> None:
    import causal_conv1d
    import mamba_ssm
    from causal_conv1d import causal_conv1d_fn, causal_conv1d_update  # noqa: F401

    assert mamba_ssm.ops.triton.selective_state_update.selective_state_update.__module__.startswith("cuconv.")
    assert importlib.util.find_spec("causal_conv1d") is not None
    assert importlib.metadata.version("causal-conv1d") == causal_conv1d.__version__ == "1.7.0+cuconv"
    assert not hasattr(importlib.import_module("selective_scan_cuda"), "__version__")
    for absent in ("mamba_ssm.ops.triton.ssd_bmm", "mamba_ssm.modules.mamba3"):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(absent)
    with pytest.raises(ImportError):
        from mamba_ssm import Mamba3  # noqa: F401


def test_uninstalled_is_gone() -> None:
    if importlib.util.find_spec("causal_conv1d"):
        pytest.skip("causal-conv1d is installed")
    assert dropin.install("causal_conv1d") == ("causal_conv1d",)
    dropin.uninstall()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("causal_conv1d")
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("causal-conv1d")
    with pytest.raises(ValueError, match="packages: got 'flash_attn'; wanted one of 'causal_conv1d', 'causal_conv1d_"):
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


def test_the_activation_may_be_where_older_versions_have_it() -> None:
    x, weight, bias, _ = inputs.conv_inputs()
    wanted = conv.causal_conv1d_fn(x, weight, bias, activation="silu")
    seq_idx = torch.tensor([[0] * 4 + [1] * 5] * 2, dtype=torch.int32)
    assert torch.equal(conv.causal_conv1d_fn(x, weight, bias, "silu"), wanted)
    assert torch.equal(conv.causal_conv1d_fn(x, weight, bias, None, "swish"), wanted)
    apart = conv.causal_conv1d_fn(x, weight, bias, seq_idx, activation="silu")
    assert torch.equal(conv.causal_conv1d_fn(x, weight, bias, seq_idx, "silu"), apart)
    with pytest.raises(NotImplementedError, match="activation must be None, silu, or swish"):
        conv.causal_conv1d_fn(x, weight, bias, "gelu")


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


def test_a_compiled_module_stands_in_beside_its_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Built without its compiled module mamba_ssm still has functions that cuconv lacks."""
    (tmp_path / "mamba_ssm").mkdir()
    (tmp_path / "mamba_ssm" / "__init__.py").write_text("from selective_scan_cuda import bwd, fwd\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mamba_ssm", raising=False)
    importlib.invalidate_caches()
    try:
        assert set(dropin.install()) >= {"selective_scan_cuda"}
        package = importlib.import_module("mamba_ssm")
        assert package.__file__ is not None and package.fwd.__module__.startswith("cuconv.")
    finally:
        dropin.uninstall()
        sys.modules.pop("mamba_ssm", None)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("selective_scan_cuda")


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("is_given", [False, True])
def test_convolutions_within_functions_of_others(is_given: bool) -> None:
    """mamba_ssm gives a part of a larger tensor for the gradient of x."""
    from causal_conv1d import causal_conv1d_interface
    from causal_conv1d.cpp_functions import (
        causal_conv1d_bwd_function,
        causal_conv1d_fwd_function,
        causal_conv1d_update_function,
    )

    assert causal_conv1d_interface.causal_conv1d_bwd_function is causal_conv1d_bwd_function
    torch.manual_seed(0)
    x, weight, bias, states = inputs.conv_inputs(dtype=torch.float32)
    final = torch.empty(2, 6, 3) if is_given else None
    before = states if is_given else None
    wanted, wanted_final = inputs.conv(x, weight, bias, before)
    out = causal_conv1d_fwd_function(x, weight, bias, None, before, final, True)
    torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-5)
    dout, dfinal = torch.rand_like(out), torch.rand_like(wanted_final) if is_given else None
    loss = (wanted * dout).sum()
    if is_given:
        torch.testing.assert_close(final, wanted_final)
        loss = loss + (wanted_final * dfinal).sum()
    whole = torch.zeros(2, 8, x.shape[2])
    dx = whole[:, 1:7] if is_given else None
    found = causal_conv1d_bwd_function(x, weight, bias, dout, None, before, dfinal, dx, is_given, True)
    needed = (x, weight, bias, states) if is_given else (x, weight, bias)
    for one, other in zip(found, torch.autograd.grad(loss, needed), strict=False):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert (found[3] is not None) == is_given and (not is_given or torch.equal(whole[:, 1:7], found[0]))
    assert not whole[:, [0, 7]].any() and not out.requires_grad
    *_, of_zeros = causal_conv1d_bwd_function(x, weight, bias, dout, None, None, None, None, True, True)
    assert of_zeros.shape == (2, 6, 3) and of_zeros.any()
    state, same = torch.rand(2, 6, 4), torch.rand(2, 6, 4)
    same.copy_(state)
    step = causal_conv1d_update_function(x[:, :, 0], state, weight, bias, False, None, None)
    assert torch.equal(step, conv.causal_conv1d_update(x[:, :, 0], same, weight, bias)) and torch.equal(state, same)


@pytest.mark.usefixtures("installed")
def test_the_compiled_convolutions_of_every_version() -> None:
    """Each version of mamba_ssm, and what was made of it, calls that of its day, with other arguments."""
    import causal_conv1d_cuda as compiled
    from causal_conv1d import cpp_functions

    torch.manual_seed(0)
    x, weight, bias, states = (each.detach() for each in inputs.conv_inputs(dtype=torch.float32))
    dout, seq_idx, out = torch.rand_like(x), torch.zeros(2, x.shape[2], dtype=torch.int32), torch.empty_like(x)
    wanted = cpp_functions.causal_conv1d_fwd_function(x, weight, bias, None, None, None, True)
    for others in ((), (seq_idx,), (None, None, None)):
        assert torch.equal(compiled.causal_conv1d_fwd(x, weight, bias, *others, True), wanted)
    assert compiled.causal_conv1d_fwd(x, weight, bias, None, None, out, None, True) is None and torch.equal(out, wanted)
    of_wanted = cpp_functions.causal_conv1d_bwd_function(x, weight, bias, dout, None, None, None, None, False, True)
    dx, dweight, dbias = torch.empty_like(x), torch.zeros_like(weight), torch.zeros_like(bias)
    for others in ((dx,), (None, dx), (None, None, None, dx, False)):
        found = compiled.causal_conv1d_bwd(x, weight, bias, dout, *others, True)
        assert len(found) == (4 if len(others) == 5 else 3) and found[0] is dx
        torch.testing.assert_close(found, list(of_wanted[: len(found)]))
        dx.zero_()
    dinitial = torch.empty_like(states)
    given = None, states, None, dx, dweight, dbias, dinitial, True
    assert compiled.causal_conv1d_bwd(x, weight, bias, dout, *given) is None
    of_states = cpp_functions.causal_conv1d_bwd_function(x, weight, bias, dout, None, states, None, None, True, True)
    torch.testing.assert_close((dx, dweight, dbias, dinitial), of_states)
    assert compiled.causal_conv1d_bwd(x, weight, None, dout, None, None, None, dx, dweight, None, None, False) is None
    token, lengths, slots = x[:, :, 0], torch.tensor([1, 5], dtype=torch.int32), torch.tensor([1, 0], dtype=torch.int32)
    for others in ((), (None,), (lengths,), (None, slots), (lengths, slots)):
        pools = [torch.arange(48.0).view(2, 6, 4) for _ in range(3)]
        wanted = cpp_functions.causal_conv1d_update_function(
            token, pools[0], weight, bias, True, *(*others, None, None)[:2]
        )
        assert torch.equal(compiled.causal_conv1d_update(token, pools[1], weight, bias, True, *others), wanted)
        assert torch.equal(pools[0], pools[1])
        if len(others) == 2:
            row = torch.empty_like(token)
            assert compiled.causal_conv1d_update(token, pools[2], weight, bias, row, True, *others) is None
            assert torch.equal(row, wanted) and torch.equal(pools[2], pools[0])
    with pytest.raises(TypeError, match=r"^arguments of causal_conv1d_fwd: got 6; wanted one of 4, 5, 7, 8$"):
        compiled.causal_conv1d_fwd(x, weight, bias, None, None, True)


class Scan(torch.autograd.Function):
    """A scan as programs make it of mamba_ssm's compiled module."""

    @staticmethod
    def forward(ctx: Any, recompute: bool, *given: Any) -> Any:
        import selective_scan_cuda

        out, x, *gated = selective_scan_cuda.fwd(*given)
        ctx.recompute = recompute
        *tensors, ctx.softplus = given
        ctx.save_for_backward(*tensors, x, out)
        return gated[0] if gated else out, x[:, :, -1, 1::2]

    @staticmethod
    def backward(ctx: Any, dout: Any, _: Any) -> Any:
        import selective_scan_cuda

        *tensors, x, out = ctx.saved_tensors
        z = tensors[6]
        dz = None if z is None else torch.empty_like(z)
        found = selective_scan_cuda.bwd(*tensors, dout, x, out, dz, ctx.softplus, ctx.recompute)
        du, ddelta, dA, dB, dC, dD, dbias, *others = found
        assert len(others) == (0 if z is None else 1 + ctx.recompute)
        assert not others or others[0].data_ptr() == dz.data_ptr()
        assert not ctx.recompute or z is None or others[1] is out
        return None, du, ddelta, dA, dB, dC, dD, others[0] if others else None, dbias, None


def cloned(tensor: Any) -> Any:
    """What an offloaded tensor comes back as."""
    return tensor.clone()


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("seqlen", [1, 300, 2049])
def test_scans_within_functions_of_others(seqlen: int, is_gated: bool) -> None:
    torch.manual_seed(0)
    rows = [torch.rand(2, 4, seqlen, requires_grad=True) for _ in range(2)]
    A, (B, C) = (-torch.rand(4, 3)).requires_grad_(), (torch.rand(2, 1, 3, seqlen, requires_grad=True) for _ in "BC")
    D, bias, z = (torch.rand(*shape, requires_grad=True) for shape in ((4,), (4,), (2, 4, seqlen)))
    given = (*rows, A, B, C, D, z if is_gated else None, bias, True)
    needed = [each for each in given[:-1] if each is not None]
    wanted, last = cuconv.selective_scan_fn(*given, True)
    of_wanted = torch.autograd.grad(wanted.sin().sum(), needed)
    for is_offloaded in (False, True):
        with torch.autograd.graph.saved_tensors_hooks(cloned if is_offloaded else lambda tensor: tensor, lambda t: t):
            out, state = Scan.apply(not is_offloaded, *given)
        assert torch.equal(out, wanted) and torch.equal(state, last)
        got = torch.autograd.grad(out.sin().sum(), needed)
        torch.testing.assert_close(got, of_wanted, rtol=1e-5, atol=1e-6)


class UngatedScan(torch.autograd.Function):
    """A scan as VMamba makes it of one of its compiled modules."""

    @staticmethod
    def forward(ctx: Any, module: Any, *given: Any) -> Any:
        is_flexible = module.__name__ == "selective_scan_cuda_oflex"
        out, x = module.fwd(*given, 1, *[True] * is_flexible)
        *tensors, ctx.softplus = given
        ctx.module = module
        ctx.save_for_backward(*tensors, x)
        return out

    @staticmethod
    def backward(ctx: Any, dout: Any) -> Any:
        *tensors, x = ctx.saved_tensors
        return None, *ctx.module.bwd(*tensors, dout, x, ctx.softplus, 1), None


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("sharing", [1, 2, 4])
@pytest.mark.parametrize("has_options", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["core", "oflex"])
def test_scans_within_functions_of_vmamba(name: str, dtype: Any, has_options: bool, sharing: int) -> None:
    torch.manual_seed(0)
    u, delta = (torch.rand(2, dim, 300, dtype=dtype, requires_grad=True) for dim in (4, 4 // sharing))
    B, C = (torch.rand(2, 2, 3, 300, dtype=dtype, requires_grad=True) for _ in range(2))
    A = (-torch.rand(4, 3)).requires_grad_()
    D, bias = (torch.rand(dim, requires_grad=True) if has_options else None for dim in (4, 4 // sharing))
    given = u, delta, A, B, C, D, bias
    needed = [each for each in given if each is not None]
    module = importlib.import_module(f"selective_scan_cuda_{name}")
    out = UngatedScan.apply(module, *given, has_options)
    assert out.dtype == (torch.float32 if name == "oflex" else dtype)
    wide_u, wide_delta, wide_B, wide_C = (each.float() for each in (u, delta, B, C))
    steps = wide_delta.repeat_interleave(sharing, dim=1)
    biases = None if bias is None else bias.repeat_interleave(sharing)
    wanted = cuconv.selective_scan_fn(wide_u, steps, A, wide_B, wide_C, D, None, biases, has_options)
    is_rounded = dtype == torch.bfloat16
    bound = {"rtol": 2**-7, "atol": 1e-3} if is_rounded and name == "core" else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(out.float(), wanted, **bound)
    got, of_wanted = (torch.autograd.grad(each.float().sin().sum(), needed) for each in (out, wanted))
    for one, other in zip(got, of_wanted, strict=True):
        assert (one - other).abs().max() <= (2**-5 if is_rounded else 1e-5) * other.abs().max()


@pytest.mark.usefixtures("installed")
def test_channels_that_share_delta_are_alike_in_number() -> None:
    import selective_scan_cuda_core

    u, delta, B = torch.rand(1, 4, 5), torch.rand(1, 3, 5), torch.rand(1, 1, 2, 5)
    with pytest.raises(ValueError, match=r"^channels of delta: got 3; wanted a divisor of dim of u, 4$"):
        selective_scan_cuda_core.fwd(u, delta, -torch.ones(4, 2), B, B, None, None, False, 1)


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


@pytest.mark.parametrize(("given", "meant"), [(None, False), (2, True)])
def test_flags_are_whatever_is_true_or_false(given: Any, meant: bool) -> None:
    """MambaVision and others say None."""
    u, A, B, state = torch.rand(2, 4, 6), -torch.rand(4, 3), torch.rand(2, 3, 6), torch.rand(2, 4, 3)
    for scan in (
        lambda flag: mamba.selective_scan_fn(u, u, A, B, B, delta_softplus=flag, return_last_state=flag),
        lambda flag: mamba.selective_state_update(
            state.clone(), u[..., 0], u[..., 0], A, B[..., 0], B[..., 0], dt_softplus=flag
        ),
        lambda flag: conv.causal_conv1d_fn(u, A, return_final_states=flag),
    ):
        torch.testing.assert_close(scan(given), scan(meant), rtol=0, atol=0)


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


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("argument", ["delta", "B", "C", "D", "z", "delta_bias"])
def test_a_complex_argument_of_a_real_scan_is_refused(argument: str) -> None:
    """A conversion would drop its imaginary part."""
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn

    shapes = {"delta": (2, 4, 6), "B": (4, 3), "C": (4, 3), "D": (4,), "z": (2, 4, 6), "delta_bias": (4,)}
    given = {name: torch.zeros(shape) for name, shape in shapes.items()}
    given[argument] = given[argument].to(torch.complex64)
    for kind in (torch.float32, torch.bfloat16):
        with pytest.raises(TypeError, match=f"^{argument}: got dtype complex64; wanted "):
            selective_scan_fn(torch.zeros(2, 4, 6, dtype=kind), A=torch.zeros(4, 3), **given)


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


PARENT = """
import importlib.metadata, multiprocessing
import causal_conv1d

def work():
    import mamba_ssm
    import marked
    print(mamba_ssm.ops.triton.__name__, causal_conv1d.__spec__.origin, importlib.metadata.version("mamba-ssm"))
    try:
        import mamba_ssm.modules.mamba3
    except ModuleNotFoundError:
        print("none")

if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=work)
    child.start()
    child.join()
"""


def test_exec_reaches_the_processes_of_a_program(tmp_path: Path) -> None:
    """What other files named sitecustomize do for them is still done."""
    if any(importlib.util.find_spec(name) for name in dropin.VERSIONS):
        pytest.skip("a package that cuconv stands in for is installed")
    (tmp_path / "program.py").write_text(PARENT)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import sys\nsys.modules['marked'] = sys\n")
    environment = {"PYTHONPATH": f"{ROOT}:{tmp_path / 'site'}", "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-m", "cuconv", "exec", "program.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout == "mamba_ssm.ops.triton cuconv 2.3.2+cuconv\nnone\n", done.stderr
