"""The block of Mamba-2, its scan and norms, and the block around a mixer, against plain torch."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import Any

import pytest

from tests.torch import inputs
from tests.torch.inputs import Adapted, random

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch._dynamo.testing import CompileCounter  # noqa: E402

from cuconv.torch import Mamba, blocks, ssd  # noqa: E402
from cuconv.torch.mamba2 import Mamba2  # noqa: E402

F = torch.nn.functional
CLOSE = {"rtol": 1e-9, "atol": 1e-11}


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def scan_inputs(batch: int = 2, seqlen: int = 11, groups: int = 2) -> tuple[Any, ...]:
    """x, dt, A, B and C of four heads of three channels and five states."""
    matrix = batch, seqlen, groups, 5
    rows = random(batch, seqlen, 4, 3), random(batch, seqlen, 4)
    return (*rows, random(4, low=-1.0, high=-0.1), random(*matrix), random(*matrix))


def by_steps(x: Any, dt: Any, A: Any, B: Any, C: Any, state: Any = None, **named: Any) -> tuple[Any, Any]:
    """The scan token by token, and the last state."""
    state = x.new_zeros(x.shape[0], 4, 3, 5) if state is None else state
    dt = dt if named.get("dt_bias") is None else dt + named["dt_bias"]
    dt = F.softplus(dt) if named.get("dt_softplus") else dt
    dt = dt.clamp(*named.get("dt_limit", (-math.inf, math.inf)))
    B, C = (each.repeat_interleave(4 // each.shape[2], dim=2) for each in (B, C))
    results = []
    for t in range(x.shape[1]):
        step = dt[:, t, :, None, None]
        state = torch.exp(step * A[:, None, None]) * state + step * x[:, t, :, :, None] * B[:, t, :, None]
        results.append((state * C[:, t, :, None]).sum(-1))
    y = torch.stack(results, dim=1)
    D, z = named.get("D"), named.get("z")
    y = y if D is None else y + x * (D if D.dim() == 2 else D[:, None])
    return (y if z is None else y * F.silu(z)), state


def parts_of(tokens: tuple[Any, ...], borders: list[int]) -> list[tuple[Any, ...]]:
    """x, dt, A, B and C of each packed sequence."""
    x, dt, A, B, C = tokens
    return [(x[:, i:j], dt[:, i:j], A, B[:, i:j], C[:, i:j]) for i, j in pairwise(borders)]


@pytest.mark.parametrize("chunk", [1, 2, 4, 11, 64])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("has_options", [False, True])
def test_scan(chunk: int, groups: int, has_options: bool) -> None:
    given = scan_inputs(groups=groups)
    named: dict[str, Any] = {}
    state = None
    if has_options:
        state, z, bias = random(2, 4, 3, 5), random(2, 11, 4, 3), random(4)
        named = {"D": random(4, 3), "z": z, "dt_bias": bias, "dt_softplus": True, "dt_limit": (0.3, 0.9)}
    needed = [*given, *[each for each in (state, *named.values()) if torch.is_tensor(each)]]
    wanted = by_steps(*given, state, **named)
    got = ssd.mamba_chunk_scan_combined(*given, chunk, **named, initial_states=state, return_final_states=True)
    torch.testing.assert_close(got, wanted, **CLOSE)
    grads = (torch.autograd.grad(y.sin().sum() + last.sum(), needed) for y, last in (got, wanted))
    torch.testing.assert_close(*grads, **CLOSE)
    alone = ssd.mamba_chunk_scan_combined(*given, chunk, **named, initial_states=state)
    torch.testing.assert_close(alone, wanted[0], **CLOSE)
    assert alone.is_contiguous()


@pytest.mark.parametrize("chunk", [1, 3, 4, 64])
@pytest.mark.parametrize("borders", [[0, 11], [0, 1, 11], [0, 4, 5, 8, 11], [0, 3, 6, 9, 11]])
def test_states_do_not_pass_between_packed_sequences(chunk: int, borders: list[int]) -> None:
    tokens, D, state = scan_inputs(batch=1), random(4), random(1, 4, 3, 5)
    lengths = torch.tensor(borders).diff()
    seq_idx = torch.repeat_interleave(torch.arange(len(lengths), dtype=torch.int32), lengths)[None]
    found = [by_steps(*own, None if n else state, D=D) for n, own in enumerate(parts_of(tokens, borders))]
    wanted = torch.cat([y for y, _ in found], dim=1), found[-1][1]
    named: dict[str, Any] = {"D": D, "seq_idx": seq_idx, "return_final_states": True}
    got = ssd.mamba_chunk_scan_combined(*tokens, chunk, initial_states=state, **named)
    torch.testing.assert_close(got, wanted, **CLOSE)
    needed = *tokens, D, state
    grads = (torch.autograd.grad(y.sin().sum() + last.sum(), needed) for y, last in (got, wanted))
    torch.testing.assert_close(*grads, **CLOSE)
    cu_seqlens = torch.tensor(borders)
    own_states = torch.cat([by_steps(*own)[1] for own in parts_of(tokens, borders)])
    for told in (named, {**named, "seq_idx": None}):
        y, _, states = ssd.mamba_chunk_scan_combined(
            *tokens, chunk, **told, cu_seqlens=cu_seqlens, return_varlen_states=True
        )
        torch.testing.assert_close(states, own_states, **CLOSE)
    own_y = torch.cat([by_steps(*own, D=D)[0] for own in parts_of(tokens, borders)], dim=1)
    torch.testing.assert_close(y, own_y, **CLOSE)


def test_one_graph_has_any_number_of_chunks() -> None:
    """Models see prompts of all lengths, and a graph for each would soon be too many for torch."""
    graphs = CompileCounter()

    def scan(tokens: Any, state: Any, seq_idx: Any) -> Any:
        named: dict[str, Any] = {"initial_states": state, "seq_idx": seq_idx, "return_final_states": True}
        return ssd.mamba_chunk_scan_combined(*tokens, 4, dt_softplus=True, **named)

    torch._dynamo.reset()
    compiled = torch.compile(scan, fullgraph=True, dynamic=True, backend=graphs)
    for seqlen in (10, 18, 42):
        tokens, state = scan_inputs(seqlen=seqlen), random(2, 4, 3, 5)
        seq_idx = (torch.arange(seqlen, dtype=torch.int32) // 7).expand(2, -1)
        got, wanted = (each(tokens, state, seq_idx) for each in (compiled, scan))
        torch.testing.assert_close(got, wanted, **CLOSE)
        grads = (torch.autograd.grad(y.sin().sum() + last.sum(), (*tokens, state)) for y, last in (got, wanted))
        torch.testing.assert_close(*grads, **CLOSE)
    assert graphs.frame_count == 1


@pytest.mark.parametrize(("seqlen", "borders"), [(5, [0, 0, 5]), (5, [0, 5, 5]), (0, [0, 0])])
def test_sequences_may_be_empty(seqlen: int, borders: list[int]) -> None:
    tokens = scan_inputs(batch=1, seqlen=seqlen)
    named: dict[str, Any] = {"return_final_states": True, "return_varlen_states": True}
    y, last, states = ssd.mamba_chunk_scan_combined(*tokens, 4, cu_seqlens=torch.tensor(borders), **named)
    assert y.shape == (1, seqlen, 4, 3) and len(states) == len(borders) - 1
    for state, length in zip(states, torch.tensor(borders).diff(), strict=True):
        torch.testing.assert_close(state, last[0] if length else torch.zeros_like(state), **CLOSE)


def test_states_behind_no_token_are_not_the_arguments_memory() -> None:
    before = random(2, 4, 3, 5)
    _, states = ssd.mamba_chunk_scan_combined(
        *scan_inputs(seqlen=0), 4, initial_states=before, return_final_states=True
    )
    assert torch.equal(states, before)
    states.detach().zero_()
    assert before.all()


@pytest.mark.parametrize(
    ("argument", "shape", "wanted"),
    [
        ("dt", (2, 11, 1), "(2, 11, 4) (batch, seqlen, nheads of x)"),
        ("A", (1,), "(4,) (nheads of x)"),
        ("B", (1, 11, 2, 5), "(2, 11, 2, 5) (batch, seqlen of x, ngroups, d_state)"),
        ("C", (2, 11, 4, 5), "(2, 11, 2, 5) (the shape of B)"),
        ("D", (3,), "(4,) or (4, 3)"),
        ("z", (2, 1, 4, 3), "(2, 11, 4, 3) (the shape of x)"),
        ("dt_bias", (1,), "(4,) (nheads of x)"),
        ("initial_states", (1, 4, 3, 5), "(2, 4, 3, 5) (batch, nheads, headdim of x, d_state)"),
        ("seq_idx", (1, 11), "(2, 11) (batch, seqlen of x)"),
    ],
)
def test_arguments_of_a_scan_are_not_repeated(argument: str, shape: tuple[int, ...], wanted: str) -> None:
    """torch would broadcast them. C of more groups than B would even give more heads."""
    given = dict(zip(("x", "dt", "A", "B", "C"), scan_inputs(), strict=True)) | {argument: torch.zeros(shape)}
    with pytest.raises(ValueError, match="^" + re.escape(f"{argument}: got shape {shape}; wanted {wanted}")):
        ssd.mamba_chunk_scan_combined(**given, chunk_size=4)


def test_groups_of_a_scan_divide_the_heads() -> None:
    with pytest.raises(ValueError, match=r"^ngroups of B: got 3; wanted a divisor of nheads of x, 4$"):
        ssd.mamba_chunk_scan_combined(*scan_inputs(groups=1)[:3], *(random(2, 11, 3, 5) for _ in range(2)), 4)


def test_states_of_sequences_need_borders() -> None:
    given = scan_inputs()
    for borders, got in ((None, "None"), (torch.tensor([0, 11]), "a batch of 2")):
        with pytest.raises(ValueError, match=f"^cu_seqlens: got {got}; wanted the borders of sequences in a batch of"):
            ssd.mamba_chunk_scan_combined(*given, 4, cu_seqlens=borders, return_varlen_states=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_scan_of_16_bits_is_one_of_float32(dtype: Any) -> None:
    """Autocast would round the factors of its products."""
    given = [each.detach().to(dtype) for each in scan_inputs()]
    wide = [each.float() for each in given]
    wanted, last = ssd.mamba_chunk_scan_combined(*wide, 4, return_final_states=True)
    with torch.autocast("cpu", torch.bfloat16):
        got, state = ssd.mamba_chunk_scan_combined(*given, 4, return_final_states=True)
    assert torch.equal(got, wanted.to(dtype)) and torch.equal(state, last)
    _, state = ssd.mamba_chunk_scan_combined(*given, 4, return_final_states=True, state_dtype=dtype)
    assert torch.equal(state, last.to(dtype))


def plain_block(block: Any, u: Any) -> Any:
    """The block of Mamba-2 in torch."""
    others, groups = block.d_inner - block.d_ssm, block.ngroups
    sizes = [others, others, block.d_ssm, block.conv1d.weight.shape[0], block.nheads]
    z0, x0, z, xBC, dt = block.in_proj(u).split(sizes, dim=-1)
    filtered, _ = inputs.conv(xBC.mT, block.conv1d.weight.squeeze(1), block.conv1d.bias)
    x, B, C = filtered.mT.split([block.d_ssm, groups * block.d_state, groups * block.d_state], dim=-1)
    heads = [each.unflatten(-1, (block.nheads, -1)) for each in (x, z)]
    B, C = (each.unflatten(-1, (groups, -1)) for each in (B, C))
    named = {"D": block.D.unflatten(0, (block.nheads, -1)) if block.D_has_hdim else block.D}
    named |= {"z": None if block.rmsnorm else heads[1], "dt_bias": block.dt_bias, "dt_limit": block.dt_limit}
    y = by_steps(heads[0], dt, -block.A_log.exp(), B, C, **named, dt_softplus=True)[0].flatten(2)
    if block.rmsnorm:
        y = y if block.norm_before_gate else y * F.silu(z)
        size = block.d_ssm // groups
        y = F.rms_norm(y.unflatten(-1, (groups, size)), (size,), None, 1e-5).flatten(-2) * block.norm.weight
        y = y * F.silu(z) if block.norm_before_gate else y
    return block.out_proj(torch.cat((block.act(z0) * x0, y), dim=-1))


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "norm in front": {"norm_before_gate": True, "ngroups": 2},
    "no norm": {"rmsnorm": False, "D_has_hdim": True, "bias": True},
    "other channels": {"expand": 3, "d_ssm": 12, "dt_limit": (0.01, 0.05), "conv_bias": False, "conv_init": 0.5},
}


def block_of(name: str, **named: Any) -> Any:
    """A block of four heads of three channels and five states, with a bit of noise in its parameters."""
    sizes = {"d_state": 5, "headdim": 3, "chunk_size": 4}
    block = Mamba2(6, **{**sizes, **OPTIONS[name], **named}, dtype=torch.float64)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter += 0.1 * torch.rand_like(parameter)
    return block


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("is_adapted", [False, True])
def test_a_block_trains_as_in_torch(name: str, is_adapted: bool) -> None:
    block, u = block_of(name), random(2, 9, 6)
    if is_adapted:
        block.in_proj, block.out_proj = Adapted(block.in_proj), Adapted(block.out_proj)
    arguments = u, *block.parameters()
    got, wanted = block(u), plain_block(block, u)
    torch.testing.assert_close(got, wanted, **CLOSE)
    grads = (torch.autograd.grad(each.sin().sum(), arguments) for each in (got, wanted))
    torch.testing.assert_close(*grads, **CLOSE)
    torch.testing.assert_close(block(u.flatten(0, 1), seqlen=9), got.flatten(0, 1), **CLOSE)


class Inference:
    """Inference parameters of mamba_ssm's kind."""

    def __init__(self) -> None:
        self.key_value_memory_dict: dict[Any, Any] = {}
        self.seqlen_offset = 0


@pytest.mark.parametrize("name", ["plain", "norm in front", "no norm"])
@pytest.mark.parametrize("prompt", [1, 3, 7])
def test_prompts_and_steps_continue_each_other(name: str, prompt: int) -> None:
    block, u, kept = block_of(name, layer_idx=2), random(2, 9, 6, grad=False), Inference()
    parts = [block(u[:, :prompt], inference_params=kept)]
    for token in range(prompt, 9):
        kept.seqlen_offset = token
        parts.append(block(u[:, token : token + 1], inference_params=kept))
    torch.testing.assert_close(torch.cat(parts, dim=1), plain_block(block, u), **CLOSE)
    assert list(kept.key_value_memory_dict) == [2]


def test_packed_prompts_leave_a_state_each() -> None:
    block, u, borders = block_of("plain", layer_idx=0), random(1, 9, 6, grad=False), torch.tensor([0, 2, 9])
    seq_idx, kept, rows = torch.tensor([[0] * 2 + [1] * 7], dtype=torch.int32), Inference(), (u[:, :2], u[:, 2:])
    got = block(u, seq_idx=seq_idx, cu_seqlens=borders, inference_params=kept)
    wanted = torch.cat([plain_block(block, each) for each in rows], dim=1)
    torch.testing.assert_close(got, wanted, **CLOSE)
    torch.testing.assert_close(block(u, seq_idx=seq_idx), wanted, **CLOSE)
    tokens = random(2, 1, 6, grad=False)
    kept.seqlen_offset = 1
    step = block(tokens, inference_params=kept)
    longer = [torch.cat((each, token[None]), dim=1) for each, token in zip(rows, tokens, strict=True)]
    torch.testing.assert_close(step, torch.cat([plain_block(block, each)[:, -1:] for each in longer]), **CLOSE)


def test_what_a_block_cannot_be() -> None:
    with pytest.raises(ValueError, match=r"^headdim: got 7; wanted a divisor of the 16 channels of heads$"):
        Mamba2(8, headdim=7)
    with pytest.raises(ValueError, match=r"^ngroups: got 3; wanted a divisor of the 4 heads$"):
        Mamba2(8, headdim=4, ngroups=3)
    with pytest.raises(ValueError, match=r"^process_group: got a object; wanted None$"):
        Mamba2(8, headdim=4, process_group=object())
    block = Mamba2(8, headdim=4)
    with pytest.raises(ValueError, match=r"^tokens of hidden_states: got 2; wanted 1$"):
        block.step(torch.zeros(1, 2, 8), *block.allocate_inference_cache(1))
    given = block.conv1d.weight[:, 0], None, block.dt_bias, -block.A_log.exp(), block.D, 4
    with pytest.raises(ValueError, match=r"^headdim: got None; wanted the channels of a head"):
        ssd.mamba_split_conv1d_scan_combined(block.in_proj(torch.zeros(1, 2, 8)), *given)
    with pytest.raises(ValueError, match=r"^the last axis of zxbcdt: got 9; wanted 292 or an even number more"):
        ssd.mamba_split_conv1d_scan_combined(torch.zeros(1, 2, 9), *given, headdim=4)


@pytest.mark.parametrize("is_rms", [False, True])
@pytest.mark.parametrize("is_before", [False, True])
@pytest.mark.parametrize("size", [None, 4])
def test_gated_norms(is_rms: bool, is_before: bool, size: int | None) -> None:
    made = blocks.GatedRMSNorm if is_rms else blocks.GatedLayerNorm
    norm, x, z = made(8, 1e-5, size, is_before), random(2, 8, dtype=torch.float32), random(2, 8, dtype=torch.float32)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.uniform_()

    def normed(rows: Any) -> Any:
        groups = rows.unflatten(-1, (-1, size or 8))
        groups = groups if is_rms else groups - groups.mean(-1, keepdim=True)
        rows = (groups / (groups.square().mean(-1, keepdim=True) + 1e-5).sqrt()).flatten(-2) * norm.weight
        return rows if is_rms else rows + norm.bias

    wanted = normed(x) * F.silu(z) if is_before else normed(x * F.silu(z))
    torch.testing.assert_close(norm(x, z), wanted)
    torch.testing.assert_close(norm(x), normed(x))
    norm.reset_parameters()
    assert norm.weight.eq(1).all() and (is_rms or norm.bias.eq(0).all())


@pytest.mark.parametrize("argument", ["weight", "bias", "z", "residual"])
def test_arguments_of_a_norm_are_not_repeated(argument: str) -> None:
    """torch would broadcast them; the weight of one group would count for all."""
    shape = (1, 6) if argument in ("z", "residual") else (1,) if argument == "bias" else (3,)
    given = {"x": random(4, 6), "weight": random(6), "bias": None, argument: random(*shape)}
    norm: Any = blocks.layer_norm_fn if argument == "residual" else blocks.layernorm_fn
    with pytest.raises(ValueError, match="^" + re.escape(f"{argument}: got shape {shape}; wanted (")):
        norm(**given, **({} if argument == "residual" else {"group_size": 3}))


def test_groups_of_a_norm_divide_the_channels() -> None:
    with pytest.raises(ValueError, match=r"^group_size: got 4; wanted a divisor of the channels of x, 6$"):
        blocks.rmsnorm_fn(random(2, 6), random(6), None, group_size=4)


def test_dropout_and_second_norms_are_refused() -> None:
    x, weight = torch.rand(2, 8), torch.ones(8)
    with pytest.raises(ValueError, match=r"^x1: got a tensor; wanted its default: cuconv has no dropout nor second"):
        blocks.rms_norm_fn(x, weight, None, x1=x)
    with pytest.raises(ValueError, match=r"^dropout_p: got 0.1; wanted its default"):
        blocks.RMSNorm(8, dropout_p=0.1)


@pytest.mark.parametrize("is_rms", [False, True])
@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms(is_rms: bool, has_residual: bool, dtype: Any) -> None:
    x, weight, bias = random(2, 5, 8, dtype=dtype, grad=False), random(8, dtype=dtype), random(8, dtype=dtype)
    residual = random(2, 5, 8, dtype=torch.float32, grad=False) if has_residual else None
    total = x.float() if residual is None else x.float() + residual
    centred = total if is_rms else total - total.mean(-1, keepdim=True)
    wanted = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.float() + bias.float()
    got, sums = blocks.early_layer_norm_fn(x, weight, bias, residual, 1e-5, True, True, is_rms)
    assert got.dtype == dtype and sums.dtype == torch.float32
    torch.testing.assert_close(got.float(), wanted, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-2)
    torch.testing.assert_close(sums, total, rtol=0, atol=0)
    assert torch.equal(blocks.layer_norm_fn(x, weight, bias, residual, eps=1e-5, is_rms_norm=is_rms), got)
    bare = blocks._layer_norm_fwd(x, weight, bias, 1e-5, residual, is_rms_norm=is_rms)
    assert torch.equal(bare[0], got) and not bare[0].requires_grad


@pytest.mark.parametrize("norm", [torch.nn.LayerNorm, blocks.RMSNorm])
@pytest.mark.parametrize("in_fp32", [False, True])
def test_a_block_around_a_mixer(norm: Any, in_fp32: bool) -> None:
    made = [blocks.Block(8, lambda dim: Mamba(dim, d_state=4), norm, is_fused, in_fp32) for is_fused in (False, True)]
    made[1].load_state_dict(made[0].state_dict())
    x = random(2, 5, 8, dtype=torch.float32)
    results = []
    for block in made:
        out, residual = block(x)
        results.append(block(out, residual))
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)
    assert results[0][1].dtype == torch.float32
    assert [each.shape for each in made[0].allocate_inference_cache(3, 5)] == [(3, 16, 4), (3, 16, 4)]
    with pytest.raises(TypeError, match=r"^norm_cls: got a Identity; wanted LayerNorm or RMSNorm of a fused sum"):
        blocks.Block(8, Mamba, torch.nn.Identity, True)
