"""Small models of transformers with random weights, by transformers' own torch code and with cuconv in it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import cuconv
from cuconv.runtime.operation import Operation
from tests.support.entries import the_whole_way

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from cuconv.torch import patch_transformers, unpatch_transformers  # noqa: E402
from cuconv.torch.inner import Inner  # noqa: E402
from tests.torch.inputs import Adapted  # noqa: E402

ROOT = Path(cuconv.__file__).parents[1]

SIZES = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2}
ATTENTION = {"intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
MAMBA = {"state_size": 4, "conv_kernel": 4, "expand": 2, "time_step_rank": 4}
HEADS = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 8, "mamba_chunk_size": 8}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}
EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1}

MODELS: dict[str, dict[str, Any]] = {
    "Mamba": {**SIZES, **MAMBA},
    "FalconMamba": {**SIZES, **MAMBA},
    "Jamba": {
        **SIZES,
        **ATTENTION,
        **EXPERTS,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "mamba_d_state": 4,
        "mamba_dt_rank": 4,
    },
    "Zamba": {
        **SIZES,
        **ATTENTION,
        "num_key_value_heads": 4,
        "num_hidden_layers": 5,
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid", "hybrid"],
        "n_mamba_heads": 2,
        "mamba_d_state": 4,
        "mamba_dt_rank": 4,
        "attention_hidden_size": 64,
    },
    "Mamba2": {**SIZES, "state_size": 8, "expand": 2, "head_dim": 8, "num_heads": 8, "n_groups": 2, "chunk_size": 8},
    "Bamba": {**SIZES, **ATTENTION, **HEADS, "attn_layer_indices": [1]},
    "Zamba2": {
        **SIZES,
        **ATTENTION,
        "num_key_value_heads": 4,
        "layers_block_type": ["linear_attention", "hybrid"],
        "mamba_d_state": 8,
        "n_mamba_heads": 8,
        "mamba_headdim": 8,
        "mamba_ngroups": 1,
        "num_mem_blocks": 1,
        "chunk_size": 8,
        "adapter_rank": 4,
    },
    "NemotronH": {
        **SIZES,
        **ATTENTION,
        "layers_block_type": ["linear_attention", "full_attention"],
        "head_dim": 8,
        "mamba_num_heads": 8,
        "mamba_head_dim": 8,
        "n_groups": 1,
        "ssm_state_size": 8,
        "chunk_size": 8,
    },
    "FalconH1": {**SIZES, **ATTENTION, **HEADS, "head_dim": 8, "mamba_d_ssm": 64},
    "GraniteMoeHybrid": {
        **SIZES,
        **ATTENTION,
        **HEADS,
        "layer_types": ["mamba", "attention"],
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "shared_intermediate_size": 32,
    },
    "Qwen3Next": {
        **SIZES,
        **ATTENTION,
        **DELTA,
        **EXPERTS,
        "head_dim": 8,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
    },
    "Qwen3_5Text": {**SIZES, **ATTENTION, **DELTA, "head_dim": 8},
    "Lfm2": {**SIZES, **ATTENTION, "layer_types": ["conv", "full_attention"], "conv_L_cache": 3},
    "OlmoHybrid": {**SIZES, **ATTENTION, **DELTA, "pad_token_id": 0},
    "KimiLinear": {
        **SIZES,
        **ATTENTION,
        "num_key_value_heads": 4,
        "pad_token_id": 0,
        "kv_lora_rank": 8,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
        "num_experts": 2,
        "num_experts_per_token": 1,
        "moe_intermediate_size": 16,
        "linear_head_dim": 8,
        "linear_num_heads": 4,
        "layer_types": ["linear_attention", "full_attention"],
        "mlp_layer_types": ["dense", "sparse"],
    },
    "Lfm3": {**SIZES, **ATTENTION, "head_dim": 8, "layer_types": ["conv", "full_attention"], "pad_token_id": 0},
}
"""The sizes of each model, by its configuration class."""

CONVOLUTION = {"causal_conv1d_fn", "causal_conv1d_update", "causal_conv1d_bwd"}
STEP = {"selective_state_update"}
SCAN = {"selective_scan_fn", "selective_scan_bwd"}

CALLED = {
    **dict.fromkeys(("Mamba", "FalconMamba", "Jamba", "Zamba"), CONVOLUTION | STEP | SCAN),
    **dict.fromkeys(("Mamba2", "Bamba", "Zamba2", "NemotronH", "FalconH1", "GraniteMoeHybrid"), CONVOLUTION | STEP),
    **dict.fromkeys(("Qwen3Next", "Qwen3_5Text", "Lfm2", "OlmoHybrid", "KimiLinear", "Lfm3"), CONVOLUTION),
}
"""The operations that generating and training call."""


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """What is called of cuconv."""
    count: Counter[str] = Counter()
    run = Operation.__call__

    def counted(self: Any, *arguments: Any, **named: Any) -> Any:
        count[self.name] += 1
        return run(self, *arguments, **named)

    monkeypatch.setattr(Operation, "__call__", counted)
    with the_whole_way():
        yield count
    unpatch_transformers()


def model_of(name: str) -> Any:
    config = getattr(transformers, f"{name}Config", None)
    if config is None:
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config(**MODELS[name])).float().eval()


def generated(model: Any, ids: Any, mask: Any) -> Any:
    with torch.no_grad():
        return model.generate(
            ids, attention_mask=mask, max_new_tokens=6, do_sample=False, pad_token_id=0, eos_token_id=None
        )


def gradients(model: Any, ids: Any, mask: Any) -> tuple[float, dict[str, Any]]:
    """The loss of a training step, and the gradients by name."""
    model.train()
    model.zero_grad()
    loss = model(ids, attention_mask=mask, labels=ids, use_cache=False).loss
    loss.backward()
    model.eval()
    return loss.item(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def assert_close(got: dict[str, Any], wanted: dict[str, Any]) -> None:
    """These gradients are alike: sums of some hundred products in float32, in two orders."""
    largest = max(gradient.abs().max() for gradient in wanted.values())
    for parameter, gradient in wanted.items():
        bound = 1e-4 * gradient.abs().max() + 1e-6 * largest
        assert (got[parameter] - gradient).abs().max() <= bound, parameter


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_model_computes_the_same(device: str, name: str, called: Counter[str]) -> None:
    model = model_of(name).to(device)
    ids, mask = torch.randint(3, 64, (2, 7)).to(device), torch.ones(2, 7, dtype=torch.int64, device=device)
    padded = mask.clone()
    padded[0, :3] = 0
    tokens = [generated(model, ids, each) for each in (mask, padded)]
    losses = [gradients(model, ids, each) for each in (mask, padded)]
    assert not called
    assert patch_transformers()[type(model).__module__]
    for each, wanted in zip((mask, padded), tokens, strict=True):
        assert torch.equal(generated(model, ids, each), wanted)
    for each, (loss, wanted) in zip((mask, padded), losses, strict=True):
        got_loss, got = gradients(model, ids, each)
        assert abs(got_loss - loss) <= 1e-5 * abs(loss) and got.keys() == wanted.keys()
        assert_close(got, wanted)
    # On a GPU a training step of a whole block begins with a copy.
    is_copied = device == "cuda" and name in ("Mamba", "FalconMamba")
    assert set(called) == CALLED[name] | ({"with_contiguous_tokens"} if is_copied else set())


@pytest.mark.parametrize("name", ["Mamba", "FalconMamba", "Jamba", "Zamba", "Bamba"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_model_computes_the_same_under_autocast(device: str, name: str, called: Counter[str]) -> None:
    """Norms give float32 there, beside 16 bits of projections."""
    model = model_of(name).to(device)
    ids, mask = torch.randint(3, 64, (2, 7)).to(device), torch.ones(2, 7, dtype=torch.int64, device=device)
    found = []
    for is_patched in (False, True):
        if is_patched:
            patch_transformers()
        with torch.autocast(device, torch.bfloat16), torch.no_grad():
            logits = model(ids, attention_mask=mask, use_cache=True).logits.float()
            generated(model, ids, mask)
        with torch.autocast(device, torch.bfloat16):
            loss = model.train()(ids, attention_mask=mask, labels=ids, use_cache=False).loss
        loss.backward()
        found.append((logits, loss.item(), torch.cat([p.grad.flatten() for p in model.parameters()])))
        model.eval().zero_grad()
    (wanted_logits, wanted_loss, wanted), (logits, loss, gradient) = found
    assert abs(loss - wanted_loss) <= 2e-3 * wanted_loss
    assert (logits - wanted_logits).norm() <= 0.02 * wanted_logits.norm()
    assert (gradient - wanted).norm() <= 0.02 * wanted.norm()
    assert called["selective_state_update"] and called["causal_conv1d_bwd"]


@pytest.mark.parametrize("rank", [4, 64])
@pytest.mark.usefixtures("called")
def test_a_block_with_norms_is_one_function(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where delta is made from as many numbers as it has channels, which of them is normalised cannot be told."""
    monkeypatch.setitem(MODELS["FalconMamba"], "time_step_rank", rank)
    model = model_of("FalconMamba")
    ids, mask = torch.randint(3, 64, (2, 7)), torch.ones(2, 7, dtype=torch.int64)
    _, wanted = gradients(model, ids, mask)
    blocks, compute = [], Inner.eager
    monkeypatch.setattr(Inner, "eager", lambda *given: blocks.append(given) or compute(*given))
    patch_transformers()
    _, got = gradients(model, ids, mask)
    assert len(blocks) == (2 if rank == 4 else 0)
    assert_close(got, wanted)


def test_what_is_patched_is_undone(called: Counter[str]) -> None:
    model = model_of("Mamba")
    patch_transformers()
    patch_transformers()
    unpatch_transformers()
    generated(model, torch.randint(3, 64, (1, 5)), torch.ones(1, 5, dtype=torch.int64))
    assert not called


@torch.no_grad()
def test_another_activation_and_float64_stay_with_the_model(called: Counter[str]) -> None:
    model = model_of("Mamba")
    patch_transformers()
    ids = torch.randint(3, 64, (1, 5))
    model.double()(ids)
    assert not called
    model.float()(ids)
    assert called["causal_conv1d_fn"] == 2
    called.clear()
    for block in model.backbone.layers:
        block.mixer.activation = "gelu"
    model(ids)
    assert "causal_conv1d_fn" not in called and called["selective_scan_fn"] == 2


def test_packed_sequences_that_cannot_be_kept_apart_stay_with_the_model(called: Counter[str]) -> None:
    from transformers.models.lfm2 import modeling_lfm2 as lfm2
    from transformers.models.mamba import modeling_mamba as mamba

    x, weight = torch.rand(1, 6, 9), torch.rand(6, 3)
    borders, seq_idx = torch.tensor([0, 4, 9]), torch.tensor([[0] * 4 + [1] * 5], dtype=torch.int32)
    rows = torch.rand(1, 6), torch.rand(1, 6), -torch.rand(6, 4), torch.rand(1, 4), torch.rand(1, 4)
    calls = (
        lambda: lfm2.causal_conv1d_fn(x, weight, cu_seqlens=borders),
        lambda: lfm2.causal_conv1d_update(x[:, :, :1], torch.zeros(1, 6, 3), weight, cu_seqlens=borders),
        lambda: mamba.mamba_selective_state_update(torch.zeros(1, 6, 4), *rows, seq_idx=seq_idx),
    )
    for call in calls:
        try:
            wanted = call()
        except ValueError as error:
            wanted = str(error)
        patch_transformers()
        if isinstance(wanted, str):
            with pytest.raises(ValueError, match=re.escape(wanted)):
                call()
        else:
            torch.testing.assert_close(call(), wanted)
        assert not called
        unpatch_transformers()
    patch_transformers()
    apart = lfm2.causal_conv1d_fn(x, weight, cu_seqlens=borders, seq_idx=seq_idx)
    assert called["causal_conv1d_fn"] == 1
    torch.testing.assert_close(apart[:, :, 4:], lfm2.causal_conv1d_fn(x[:, :, 4:], weight))


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.usefixtures("called")
def test_a_model_trains_with_checkpoints(device: str, name: str, reentrant: bool) -> None:
    model = model_of(name).to(device)
    ids, mask = torch.randint(3, 64, (2, 7)).to(device), torch.ones(2, 7, dtype=torch.int64, device=device)
    _, wanted = gradients(model, ids, mask)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    patch_transformers()
    _, got = gradients(model, ids, mask)
    assert_close(got, wanted)


@pytest.mark.parametrize("name", ["Mamba2", "Bamba", "Zamba2", "NemotronH", "FalconH1", "GraniteMoeHybrid"])
@pytest.mark.usefixtures("called")
def test_packed_sequences_of_models_of_mamba2_are_kept_apart(name: str) -> None:
    """The states of their convolutions and scans; attention is told of them in another way."""
    model, ids = model_of(name).train(), torch.randint(3, 64, (1, 9))
    blocks = [each for each in model.modules() if hasattr(each, "conv1d")]
    assert blocks
    x = torch.rand(1, 9, blocks[0].in_proj.in_features)
    seq_idx = torch.tensor([[0] * 4 + [1] * 5], dtype=torch.int32)
    with pytest.raises(ValueError, match="can't keep packed sequences apart"):
        blocks[0](x, seq_idx=seq_idx)
    patch_transformers()
    wanted = torch.cat([blocks[0](x[:, :4]), blocks[0](x[:, 4:])], dim=1)
    torch.testing.assert_close(blocks[0](x, seq_idx=seq_idx), wanted, rtol=1e-5, atol=1e-6)
    assert model(ids).logits.isfinite().all()


def _skip_unless_torch_can(call: Callable[[], Any]) -> None:
    try:
        call()
    except RuntimeError as error:
        pytest.skip(f"torch {torch.__version__} cannot do it itself: {error}")


def test_distributed_tensors_stay_with_the_model(called: Counter[str], tmp_path: Path) -> None:
    """torch has rules for its own operations only, which say how the parts of such tensors belong together."""
    from torch.distributed.tensor import Replicate, distribute_tensor, init_device_mesh
    from transformers.models.lfm2 import modeling_lfm2 as lfm2

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        x, weight = torch.rand(1, 6, 9), torch.rand(6, 3)
        parts = [distribute_tensor(each, mesh, [Replicate()]) for each in (x, weight)]
        _skip_unless_torch_can(lambda: lfm2.causal_conv1d_fn(*parts, activation="silu"))
        patch_transformers()
        got = lfm2.causal_conv1d_fn(*parts, activation="silu").full_tensor()
        assert not called
        torch.testing.assert_close(got, lfm2.causal_conv1d_fn(x, weight, activation="silu"), rtol=1e-5, atol=1e-6)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("is_there", [False, True])
def test_kernels_of_mamba_ssm_stay(is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.mamba2 import modeling_mamba2 as module

    if is_there:
        folder = tmp_path / "mamba_ssm" / "ops" / "triton"
        folder.mkdir(parents=True)
        for each in (folder, *folder.parents[:2]):
            (each / "__init__.py").touch()
        (folder / "ssd_combined.py").touch()
        monkeypatch.syspath_prepend(tmp_path)
    patch_transformers()
    try:
        assert hasattr(module.mamba2_chunk_scan, "cuconv_original") is not is_there
        assert hasattr(module.mamba2_split_conv1d_scan_combined, "cuconv_original") is not is_there
        assert hasattr(module.mamba2_selective_state_update, "cuconv_original")
    finally:
        unpatch_transformers()
        for name in [name for name in sys.modules if name.partition(".")[0] == "mamba_ssm"]:
            del sys.modules[name]
    assert not hasattr(module.mamba2_chunk_scan, "cuconv_original")


def adapt(model: Any) -> None:
    """Give projections of blocks low-rank adapters."""
    for block in model.backbone.layers:
        for name in ("in_proj", "x_proj", "out_proj"):
            setattr(block.mixer, name, Adapted(getattr(block.mixer, name)))


def hook(model: Any) -> None:
    """Let hooks replace the results of projections."""
    for block in model.backbone.layers:
        for name in ("x_proj", "out_proj"):
            getattr(block.mixer, name).register_forward_hook(lambda module, given, result: result * 1.25)


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("change", [adapt, hook])
@pytest.mark.parametrize("name", ["Mamba", "FalconMamba"])
@pytest.mark.usefixtures("called")
def test_a_block_calls_projections_that_are_more_than_weights(
    name: str, change: Callable[[Any], None], is_compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The function of a whole block is given weights alone, and so would train without adapters and hooks."""
    model, plain = model_of(name), model_of(name)
    change(model)
    ids, mask = torch.randint(3, 64, (2, 7)), torch.ones(2, 7, dtype=torch.int64)
    _, wanted = gradients(model, ids, mask)
    blocks, compute = [], Inner.eager
    monkeypatch.setattr(Inner, "eager", lambda *given: blocks.append(given) or compute(*given))
    patch_transformers()
    if is_compiled:
        model.compile(backend="aot_eager")
    _, got = gradients(model, ids, mask)
    assert got.keys() == wanted.keys() and not blocks
    assert_close(got, wanted)
    gradients(plain, ids, mask)
    assert len(blocks) == 2


@torch.no_grad()
def test_transforms_and_traces_stay_with_the_model(called: Counter[str]) -> None:
    """Gradients of single examples and programs of torch.jit are made of torch's own operations."""
    model, ids = model_of("Mamba").requires_grad_(False), torch.randint(3, 64, (2, 1, 5))

    def logits(ids: Any) -> Any:
        return model(ids, use_cache=False).logits

    def tangent() -> Any:
        weight = model.backbone.norm_f.weight
        return torch.func.jvp(
            lambda own: torch.func.functional_call(model, {"backbone.norm_f.weight": own}, (ids[0],)).logits,
            (weight,),
            (weight,),
        )[1]

    def trace() -> Any:
        return torch.jit.trace(logits, ids[0], check_trace=False)

    wanted = [logits(each) for each in ids]
    _skip_unless_torch_can(lambda: (tangent(), torch.vmap(logits)(ids), trace()))
    patch_transformers()
    torch.testing.assert_close(torch.vmap(logits)(ids), torch.stack(wanted), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(tangent(), wanted[0], rtol=1e-5, atol=1e-5)
    assert not called
    torch.testing.assert_close(trace()(ids[1]), wanted[1], rtol=1e-5, atol=1e-5)
    assert not called


def test_a_model_compiles(called: Counter[str]) -> None:
    model = model_of("Mamba")
    patch_transformers()
    ids = torch.randint(3, 64, (2, 7))
    with torch.no_grad():
        wanted = model(ids, use_cache=False).logits
        got = torch.compile(model, backend="aot_eager")(ids, use_cache=False).logits
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


LATER = """
import torch
from cuconv.torch import patch_transformers
assert patch_transformers() == {}
from transformers.models.mamba import modeling_mamba
assert modeling_mamba.causal_conv1d_fn.cuconv_original
model = modeling_mamba.MambaForCausalLM(modeling_mamba.MambaConfig(vocab_size=8, hidden_size=8, num_hidden_layers=1))
assert model(torch.tensor([[1, 2]])).logits.shape == (1, 2, 8)
"""


def test_models_imported_later_are_patched() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", LATER], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
