"""One call on the next tokens of every sequence, as a value: what the case tables of decode steps are made of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from cuconv.causal_conv1d.form import Form
from cuconv.runtime.dtypes import DType
from tests.support.channels import OfChannels
from tests.support.layouts import POOLS
from tests.support.placement import Array, Placement, place


@dataclass(frozen=True)
class Step(OfChannels):
    """One call on the next tokens of every sequence; a subclass knows its outputs."""

    channels: int | tuple[int, ...]  # dim, or what makes it up
    batch: int
    seqlen: int | None = None  # None: x is (batch, dim)
    width: int = 4
    dtype: str = "bfloat16"
    weight_dtype: str = ""  # x's when empty
    state_dtype: str = ""  # x's when empty
    bias: str | None = "weight"  # or "float32"
    layout: str = "channel_last"
    out: str = ""  # as x when empty; several are taken in turn
    others: str = "dense"
    pool: str = "channels"
    spare: int = 2  # slots that no sequence has
    slots: str | None = "permuted"  # "odd": some numbers of slots, tokens and rows are none
    index: str = "int32"  # or "int64" or "mixed"
    mode: str = "shift"  # or "circular" or "accepted"
    window: str | None = None
    rows: bool = False  # whether windows have rows of their own
    frozen: bool = False
    pad_slot_id: int = -1
    activation: str | None = "silu"
    scale: float = 1.0  # of x and the states

    @property
    def id(self) -> str:
        """The case in one word; what is left at its default is not named."""
        words = [f"{self.channel_word}of{self.batch}", f"w{self.width}", self.dtype, self.layout, self.mode]
        words[1:1] = [f"t{self.seqlen}"] * (self.seqlen is not None)
        words += [f"to_{self.out}"] * bool(self.out) + [f"weight_{self.weight_dtype}"] * bool(self.weight_dtype)
        words += {None: ["no_bias"], "weight": [], "float32": ["bias_float32"]}[self.bias]
        words += [self.others] * (self.others != "dense") + [f"pool_{self.pool}"] * (self.pool != "channels")
        words += [f"state_{self.state_dtype}"] * bool(self.state_dtype)
        words += [f"slots_{self.slots}"] * (self.slots != "permuted") + [self.index] * (self.index != "int32")
        words += [f"window_{self.window}"] * bool(self.window) + ["rows"] * self.rows + ["frozen"] * self.frozen
        words += [f"pad{self.pad_slot_id}"] * (self.pad_slot_id != -1) + ["linear"] * (self.activation is None)
        words += [f"spare{self.spare}"] * (self.spare != 2) + [f"scale{self.scale:g}"] * (self.scale != 1)
        return "-".join(words + ["swish"] * (self.activation == "swish"))

    @property
    def halo(self) -> int:
        """The inputs before a token that its output depends on."""
        return self.width - 1

    @property
    def tokens(self) -> int:
        """How many every sequence has."""
        return 1 if self.seqlen is None else self.seqlen

    @property
    def state_len(self) -> int:
        """The columns of a state."""
        return self.halo + POOLS[self.pool][0] + (max(self.tokens - 1, 0) if self.mode == "accepted" else 0)

    @property
    def form(self) -> Form:
        """What the public function makes of its ranges."""
        raise NotImplementedError

    def outputs(self) -> dict[str, Placement]:
        """Where the outputs lie, in the order in which the call returns them."""
        raise NotImplementedError

    def divide(self, out: Array) -> dict[str, Array]:
        """The outputs, in float64, of which (batch, dim, tokens) is made up."""
        raise NotImplementedError

    def options(self) -> dict[str, Any]:
        """The arguments that are not arrays."""
        frozen = {"disable_state_update": True} if self.frozen else {}
        return {"activation": self.activation, "pad_slot_id": self.pad_slot_id, **frozen}

    def lay(self, dtype: DType, shape: tuple[int, ...], lies: dict[str, Any], axis: int = -1) -> Placement:
        """Place what is of x's rank: without the axis of tokens when x is."""
        placed = place(dtype, shape, **lies)
        if self.seqlen is not None:
            return placed
        kept = [i for i in range(len(shape)) if i != axis % len(shape)]
        shape, strides = (tuple(numbers[i] for i in kept) for numbers in (shape, placed.strides))
        return replace(placed, shape=shape, strides=strides)
