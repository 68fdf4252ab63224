"""Times of whole steps, of transformers' models and of Mamba blocks, beside torch's own code and mamba_ssm."""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from cuconv.bench.results import OURS, Step

TORCH, PACKAGES = "torch", "mamba_ssm"
"""The codes that are compared with cuconv: transformers' own torch code, and mamba_ssm with causal_conv1d."""

EXAMPLE = "cuconv.torch.train"

BATCH, PROMPT, NEW_TOKENS = 2, 512, 32

_SIZES = {"vocab_size": 4096, "hidden_size": 1024, "num_hidden_layers": 4}
_ATTENTION = {"intermediate_size": 2816, "num_attention_heads": 16, "num_key_value_heads": 8}

MODELS: Mapping[str, Mapping[str, Any]] = {
    "Mamba": {**_SIZES, "state_size": 16},
    "Mamba2": {**_SIZES, "state_size": 128, "head_dim": 64, "num_heads": 32, "n_groups": 1},
    "FalconH1": {
        **_SIZES,
        **_ATTENTION,
        "head_dim": 64,
        "mamba_d_ssm": 2048,
        "mamba_n_heads": 32,
        "mamba_d_head": 64,
        "mamba_d_state": 128,
        "mamba_n_groups": 1,
    },
    # transformers keeps no count of tokens where no layer has attention.
    "Lfm2": {**_SIZES, **_ATTENTION, "layer_types": ["conv", "conv", "conv", "full_attention"]},
}
"""Configurations of transformers' models by the name before `Config`, with random weights in bfloat16."""

BLOCKS = {"batch": 8, "tokens": 2048, "d_model": 1024, "blocks": 4}
"""A stack of Mamba blocks that is trained in bfloat16 by autocast."""

CLOSE, CHECKED = 1e-3, 64
"""The largest difference of logits, relative to the largest logit, and the tokens of the prompt that they are compared
on before anything is timed. They are compared in float32, because rounding to bfloat16 would hide errors.
"""


def versions() -> dict[str, str]:
    """The versions of the libraries that steps are timed with, as far as they can be imported."""
    found = {}
    for name in ("transformers", "causal_conv1d", "mamba_ssm"):
        with contextlib.suppress(ImportError):
            found[name] = str(getattr(import_module(name), "__version__", ""))
    return found


def parts(quick: bool = False) -> dict[str, Callable[[], Iterator[Step]]]:
    """The parts that are timed on the current GPU, by the model's name. A part raises ImportError if a library that it
    needs is missing."""
    rounds = 2 if quick else 5
    found: dict[str, Callable[[], Iterator[Step]]] = {
        "Mamba blocks": lambda: of_blocks(BLOCKS, rounds),
        EXAMPLE: lambda: of_example(rounds),
    }
    for name, sizes in MODELS.items():
        found[name] = partial(of_transformers, name, sizes, rounds)
    return found


def of_transformers(
    name: str,
    sizes: Mapping[str, Any],
    rounds: int,
    device: str = "cuda",
    batch: int = BATCH,
    prompt: int = PROMPT,
    new: int = NEW_TOKENS,
) -> Iterator[Step]:
    """A model by its own torch code and with cuconv in it: a prompt, a token after others, and a training step."""
    import torch

    from cuconv.torch import patch_transformers, unpatch_transformers

    torch.manual_seed(0)
    transformers = import_module("transformers")
    with _absent("causal_conv1d", "mamba_ssm"):
        config = getattr(transformers, f"{name}Config")(**sizes)
        model = transformers.AutoModelForCausalLM.from_config(config).to(device).eval()
    ids = torch.randint(3, sizes["vocab_size"], (batch, prompt), device=device)
    told = {"batch": batch, "tokens": prompt, "layers": sizes["num_hidden_layers"], "hidden": sizes["hidden_size"]}

    def prefill(tokens: int = prompt) -> Any:
        with torch.no_grad():
            return model(ids[:, :tokens], use_cache=True).logits

    def write() -> None:
        first, count = ids[:, :1], {"max_new_tokens": new, "min_new_tokens": new}
        model.generate(first, attention_mask=torch.ones_like(first), do_sample=False, pad_token_id=0, **count)

    def train() -> None:
        model.train()
        model(ids, labels=ids, use_cache=False).loss.backward()
        model.zero_grad(set_to_none=True)
        model.eval()

    try:
        wanted = prefill(CHECKED)
        patch_transformers()
        off = float((prefill(CHECKED) - wanted).abs().max() / wanted.abs().max())
        if not off <= CLOSE:
            raise ArithmeticError(f"logits differ by {off:.2g} of the largest")
        model.bfloat16()
        for library, choose in ((TORCH, unpatch_transformers), (OURS, patch_transformers)):
            choose()
            yield Step(name, told, "prefill", library, milliseconds(prefill, rounds))
            yield Step(name, told, "decode", library, milliseconds(write, rounds) / new)
            yield Step(name, told, "training", library, milliseconds(train, rounds))
    finally:
        unpatch_transformers()


def of_blocks(sizes: Mapping[str, int], rounds: int, device: str = "cuda") -> Iterator[Step]:
    """Forward and backward pass of a stack of Mamba blocks, by cuconv and by mamba_ssm."""
    import torch

    for library, block in _mamba_blocks():
        torch.manual_seed(0)
        blocks = torch.nn.Sequential(*(block(sizes["d_model"]) for _ in range(sizes["blocks"]))).to(device)
        x = torch.randn(sizes["batch"], sizes["tokens"], sizes["d_model"], device=device, requires_grad=True)

        def train(blocks: Any = blocks, x: Any = x) -> None:
            with torch.autocast(device, torch.bfloat16):
                y = blocks(x)
            y.float().square().mean().backward()
            blocks.zero_grad(set_to_none=True)

        yield Step("Mamba blocks", dict(sizes), "training", library, milliseconds(train, rounds))


def of_example(rounds: int, arguments: Sequence[str] = ()) -> Iterator[Step]:
    """A whole training step of `cuconv.torch.train`, the optimizer's included, by cuconv and by mamba_ssm."""
    from cuconv.torch import train

    options = train.parser().parse_args(arguments)
    told = {name: getattr(options, name) for name in ("batch", "tokens", "width", "layers")}
    for library, block in _mamba_blocks():
        training = train.Training(options, block)
        yield Step(EXAMPLE, told, "training", library, milliseconds(training.step, 4 * rounds))


def _mamba_blocks() -> Iterator[tuple[str, Callable[..., Any]]]:
    """The Mamba block of every library that has one here."""
    from cuconv.torch import Mamba

    yield OURS, Mamba
    with contextlib.suppress(ImportError):
        yield PACKAGES, import_module("mamba_ssm.modules.mamba_simple").Mamba


def milliseconds(call: Callable[[], Any], rounds: int) -> float:
    """The median time of a call and the wait for it, host and GPU together; the first calls are not counted."""
    torch = import_module("torch")
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    times = []
    for _ in range(2 + rounds):
        wait()
        begin = time.perf_counter()
        call()
        wait()
        times.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(times[2:])


@contextlib.contextmanager
def _absent(*packages: str) -> Iterator[None]:
    """Make imports of packages fail as if they were not installed; transformers' models look for them only once."""
    hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in packages}
    sys.modules.update(dict.fromkeys(packages))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in packages:
            del sys.modules[name]
        sys.modules.update(hidden)
