"""Train a small Mamba language model on the sources of Python's standard library, then let it generate text.

`python -m cuconv.torch.train` takes the GPU where there is one; with few steps and channels it runs on the CPU, too.
The loss goes to a picture, loss.svg. The decode functions generate text one byte after the other.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cuconv.torch.modules import Mamba

BYTES = 256


class Model(nn.Module):
    """Bytes in, logarithms of the next byte's probabilities out: normalised Mamba blocks with residuals."""

    def __init__(self, width: int, layers: int, d_state: int = 16, block: Callable[..., nn.Module] = Mamba) -> None:
        super().__init__()
        self.embedding = nn.Embedding(BYTES, width)
        self.blocks = nn.ModuleList(block(width, d_state, layer_idx=i) for i in range(layers))
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        with torch.no_grad():
            for each in self.blocks:
                # Residuals add up: the more layers there are, the less each may add.
                each.out_proj.weight /= math.sqrt(layers)  # type: ignore[union-attr, operator]

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, seqlen, 256) from (batch, seqlen)."""
        x = self.embedding(tokens)
        for block, norm in zip(self.blocks, self.norms, strict=True):
            x = x + block(norm(x))
        return self._logits(x)

    def _logits(self, x: Tensor) -> Tensor:
        return F.linear(self.norm(x), self.embedding.weight)

    @torch.no_grad()
    def write(self, prompt: bytes, count: int, temperature: float = 0.8) -> Iterator[int]:
        """`count` bytes after the prompt, drawn one by one: the prompt fills the states, and each byte updates them."""
        device = self.embedding.weight.device
        states = [block.allocate_inference_cache(1) for block in self.blocks]  # type: ignore[union-attr, operator]
        tokens = torch.tensor([list(prompt)], device=device)
        for number in range(count):
            x = self.embedding(tokens)
            for block, norm, state in zip(self.blocks, self.norms, states, strict=True):
                before = norm(x)
                x = x + (block.step(before, *state)[0] if number else block.prefill(before, *state))  # type: ignore[operator]
            probabilities = torch.softmax(self._logits(x[:, -1]).float() / temperature, dim=-1)
            tokens = torch.multinomial(probabilities, 1)
            yield int(tokens)


def library_text(most: int) -> bytes:
    """The sources of the standard library, one after the other, cut off at `most` bytes."""
    parts, size = [], 0
    for path in sorted(Path(os.__file__).parent.glob("*.py")):
        parts.append(path.read_bytes())
        size += len(parts[-1])
        if size >= most:
            break
    return b"\n".join(parts)[:most]


@dataclass(frozen=True)
class Trained:
    """The results of a training run."""

    model: Model
    losses: list[float]
    """The loss of every step, in bits per byte."""
    before: float
    """The loss on text that is not trained on, in bits per byte, before the first step."""
    after: float
    seconds: float


class Training:
    """A model, the text that it learns from, and the optimizer."""

    def __init__(self, options: argparse.Namespace, block: Callable[..., nn.Module] = Mamba) -> None:
        """Make model, text and optimizer from the command line's options; `block` takes the arguments of `Mamba`."""
        torch.manual_seed(options.seed)
        self.options = options
        device = torch.device(options.device)
        text = torch.frombuffer(bytearray(library_text(options.text_bytes)), dtype=torch.uint8)
        held_out = max(len(text) // 20, options.tokens + 1)
        self.known, self.unknown = text[:-held_out].to(device), text[-held_out:].to(device)
        self.model = Model(options.width, options.layers, block=block).to(device)
        self._forward = torch.compile(self.model) if options.compile else self.model
        self._optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=options.rate, betas=(0.9, 0.95), weight_decay=0.1
        )
        self._done = 0

    def loss(self, text: Tensor) -> Tensor:
        """The mean loss of a batch drawn from a text, in bits per byte."""
        tokens, device = self.options.tokens, text.device
        starts = torch.randint(len(text) - tokens, (self.options.batch, 1), device=device)
        batch = text[starts + torch.arange(tokens + 1, device=device)].long()
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits = self._forward(batch[:, :-1])
        return F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten()) / math.log(2)

    def step(self) -> Tensor:
        """Learn from one batch; returns its loss without waiting for the GPU."""
        steps = self.options.steps
        warm = min(1.0, (self._done + 1) / (0.05 * steps + 1))
        cooled = 0.5 * (1 + math.cos(math.pi * self._done / steps))
        for group in self._optimizer.param_groups:
            group["lr"] = self.options.rate * warm * (0.1 + 0.9 * cooled)
        self._optimizer.zero_grad(set_to_none=True)
        loss = self.loss(self.known)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimizer.step()
        self._done += 1
        return loss.detach()

    def held_out_loss(self) -> float:
        """The mean loss of batches of the text that is not trained on, the same ones every time."""
        state = torch.get_rng_state()
        torch.manual_seed(0)
        with torch.no_grad():
            losses = [self.loss(self.unknown).item() for _ in range(4)]
        torch.set_rng_state(state)
        return sum(losses) / len(losses)


def train(options: argparse.Namespace) -> Trained:
    """Train a model as the command line says."""
    training = Training(options)
    before, losses, begin = training.held_out_loss(), [], time.perf_counter()
    for number in range(options.steps):
        losses.append(training.step())
        # Reading a loss waits for the GPU.
        if number % options.report == 0 or number + 1 == options.steps:
            _show_progress(number + 1, options.steps, float(losses[-1]), time.perf_counter() - begin)
    found = [float(each) for each in losses]
    return Trained(training.model, found, before, training.held_out_loss(), time.perf_counter() - begin)


def _show_progress(done: int, steps: int, loss: float, seconds: float) -> None:
    width = 30
    bar = "#" * (width * done // steps)
    end = "\n" if done == steps else ""
    line = f"[{bar:<{width}}] {done}/{steps}  {loss:.3f} bits per byte  {1000 * seconds / done:.1f} ms a step"
    print(f"\r{line}", end=end, file=sys.stderr, flush=True)


def loss_picture(losses: Sequence[float]) -> str:
    """The losses over the steps, as SVG."""
    width, height, left, bottom = 640, 360, 56, 40
    top = math.ceil(max(losses))

    def place(step: float, loss: float) -> str:
        x = left + (width - left - 12) * step / max(len(losses) - 1, 1)
        return f"{x:.1f},{12 + (height - bottom - 12) * (1 - loss / top):.1f}"

    lines = []
    for loss in range(top + 1):
        begin, end = place(0, loss), place(len(losses) - 1, loss)
        x, y = begin.split(",")
        lines.append(f'<polyline points="{begin} {end}" stroke="#ddd"/>')
        lines.append(f'<text x="{float(x) - 8}" y="{float(y) + 4}" text-anchor="end">{loss}</text>')
    points = " ".join(place(step, loss) for step, loss in enumerate(losses))
    lines.append(f'<polyline points="{points}" fill="none" stroke="#1f77b4" stroke-width="1.5"/>')
    lines.append(f'<text x="{width // 2}" y="{height - 10}" text-anchor="middle">step (of {len(losses)})</text>')
    lines.append(f'<text transform="translate(14 {height // 2}) rotate(-90)" text-anchor="middle">bits per byte</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
    return head + 'font-size="12"><rect width="100%" height="100%" fill="white"/>' + "".join(lines) + "</svg>\n"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    on_gpu = torch.cuda.is_available()
    made = argparse.ArgumentParser(prog="python -m cuconv.torch.train", description=__doc__)
    made.add_argument("--device", default="cuda" if on_gpu else "cpu")
    made.add_argument("--steps", type=int, default=1500 if on_gpu else 60)
    made.add_argument("--batch", type=int, default=32 if on_gpu else 4)
    made.add_argument("--tokens", type=int, default=512 if on_gpu else 64, help="bytes in a row of a batch")
    made.add_argument("--width", type=int, default=384 if on_gpu else 32)
    made.add_argument("--layers", type=int, default=6 if on_gpu else 2)
    made.add_argument("--rate", type=float, default=2e-3 if on_gpu else 1e-2)
    made.add_argument("--text-bytes", type=int, default=5_000_000)
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--report", type=int, default=20 if on_gpu else 5, help="steps between two lines of progress")
    made.add_argument("--compile", action="store_true", help="with torch.compile")
    made.add_argument("--prompt", default="def ")
    made.add_argument("--write", type=int, default=300, help="bytes to write after training")
    made.add_argument("--picture", type=Path, default=Path("loss.svg"))
    return made


def main(arguments: Sequence[str] | None = None) -> Trained:
    """Train, draw the loss, and generate text."""
    options = parser().parse_args(arguments)
    done = train(options)
    options.picture.write_text(loss_picture(done.losses), encoding="utf-8")
    print(f"held-out text: {done.before:.3f} bits per byte before, {done.after:.3f} after {done.seconds:.1f} s")
    print(f"loss: {options.picture}\n")
    sys.stdout.write(options.prompt)
    begin = time.perf_counter()
    for byte in done.model.write(options.prompt.encode(), options.write):
        sys.stdout.write(chr(byte) if byte < 128 else "?")
        sys.stdout.flush()
    print(f"\n\n{options.write / (time.perf_counter() - begin):.0f} bytes a second")
    return done


if __name__ == "__main__":
    main()
