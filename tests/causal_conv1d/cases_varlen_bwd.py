"""causal_conv1d_varlen_bwd: packed sequences of any lengths, with the states that they start from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cuconv.causal_conv1d import reference_backward
from cuconv.runtime.dtypes import BY_NAME
from tests.causal_conv1d.channels import OfTaps
from tests.causal_conv1d.varlen import without
from tests.support.compare import ROUNDING
from tests.support.layouts import OTHERS, PACKED, POOLS
from tests.support.placement import Array, Placement, place
from tests.support.sequences import OfSequences

EXPANDED: dict[str, Any] = {"expanded": {"repeated": (0, 1)}, "expanded_tokens": {"repeated": (1,)}}
"""How the gradients of sums and means lie."""


@dataclass(frozen=True)
class Case(OfTaps, OfSequences):
    """One call."""

    FUNCTION = "causal_conv1d_varlen_bwd"
    OUTPUTS = ("dx", "dweight", "dbias", "dinitial_states")
    STARTS_BY_DEFAULT = True

    dim: int
    batch: str
    width: int = 4
    dtype: str = "bfloat16"
    weight_dtype: str = ""  # x's when empty
    state_dtype: str = ""  # x's when empty, or "float32"
    bias: str | None = "weight"  # or "float32"
    layout: str = "channels"
    dx: str = ""  # as x when empty
    dout: str = ""  # as dx when empty
    others: str = "dense"
    pool: str | None = "channels"
    spare: int = 2
    slots: str | None = "permuted"
    index: str = "int32"
    initial: str | None = "mixed"
    final: bool = True
    pad_slot_id: int = -1
    activation: str | None = "silu"
    float32: bool = False  # dweight and dbias

    def placements(self) -> dict[str, Placement]:
        count, total, state_t = self.packed.count, self.packed.total, BY_NAME[self.state_dtype or self.dtype]
        x_lies, dx_lies = PACKED[self.layout], PACKED[self.dx or self.layout]
        dout_lies = (EXPANDED | PACKED)[self.dout] if self.dout else dx_lies
        by_token = {"x": x_lies, "dout": dout_lies, "dx": dx_lies}
        placed = {name: place(self.input_t, (self.dim, total), **lies) for name, lies in by_token.items()}
        placed |= self.taps() | self.gradients_of_taps(float32=self.float32)
        placed |= {name: self.other(name, *each) for name, each in self.indices().items()}
        states = count, self.dim, self.width - 1
        if self.pool is not None:
            longer, lies = POOLS[self.pool]
            placed["initial_states"] = place(state_t, (self.pool_slots, self.dim, self.width - 1 + longer), **lies)
            placed["dinitial_states"] = self.other("initial_states", state_t, states)
        if self.final:
            placed["dfinal_states"] = self.other("final_states_out", state_t, states)
        return placed

    def spoil(self, arrays: dict[str, Array]) -> None:
        """Make what no gradient may depend on NaN."""
        live = list(self.live(arrays))
        if "dfinal_states" in arrays:
            arrays["dfinal_states"][
                np.isin(np.arange(self.packed.count), [each.number for each in live], invert=True)
            ] = np.nan
        is_padding = np.ones(self.packed.total, bool)
        for each in live:
            is_padding[each.begin : each.end] = False
        for name in ("x", "dout"):
            if 0 not in arrays[name].strides:
                arrays[name][:, is_padding] = np.nan
        if "initial_states" in arrays:
            pool = arrays["initial_states"]
            is_dead = np.ones(pool.shape, bool)
            for each in live:
                if each.starts_from_slot:
                    is_dead[each.slot, :, pool.shape[2] - (self.width - 1) :] = False
            pool[is_dead] = np.nan

    def options(self) -> dict[str, Any]:
        bias = {"bias": None} if self.bias is None else {}
        return {**bias, "activation": self.activation, "pad_slot_id": self.pad_slot_id}

    def oracle(self, arrays: dict[str, Array]) -> dict[str, Array]:
        gradients = reference_backward.causal_conv1d_varlen_bwd(**self.arguments(arrays))._asdict()
        return {name: gradients[name] for name in self.placements() if name in self.OUTPUTS}


ROWS: Any = {"layout": "tokens"}
ODD: Any = {"slots": "odd"}

UNIT = (
    # Channels contiguous: more than a block's, fewer than a warp's, every access width.
    Case(136, "60"),
    Case(136, "150+0+2x1+113+38x2+off6", **ODD),
    Case(130, "21+0+1+8x1+30", 4, "float32", initial=None),
    Case(128, "30+off5", 3, "float16", "float32", "float32", index="int64"),
    without(Case(3, "all65", 2)),
    Case(6, "2+1+0+35", 5, "float16", bias=None, pool="columns", **ODD),
    Case(8, "off3+0+0+40+2+0", 16, "float32", activation=None),
    Case(12, "24+3+16+1", 16, "bfloat16", "float32", "float32", others="offset", float32=True),
    Case(16, "33+2x9", 8, "float16", "bfloat16", layout="channels_sliced", others="backward", pool="backward"),
    Case(10, "5x7", 9, "float32", "bfloat16", layout="channels_sliced_by_2", activation="swish", pad_slot_id=0, **ODD),
    Case(12, "17+1", 1, dx="channels_sliced_by_3", bias="float32"),
    Case(20, "19+5x2+off2", 6, "bfloat16", "float16", others="strided", pool="channels_longer", index="int64", **ODD),
    Case(9, "19+4", 7, "float32", layout="channels_offset_by_1", pool="channels_offset"),
    Case(36, "16+9x1+off4", 12, dx="channels_offset_by_2", activation=None, final=False),
    Case(24, "22+3", 10, "float16", layout="channels_backward", pool="spaced", index="mixed"),
    Case(7, "20+2", layout="channels_backward_dim", pool="columns_longer", bias="float32"),
    Case(7, "20+2", 13, "float32", "float16", layout="channels_spaced", others="strided"),
    Case(10, "9+8+3", 11, "float16", dx="tokens", pool="slots", slots=None),
    Case(4, "5+5", 14, "float32", pool="columns_offset", slots=None),
    Case(136, "40x1", initial=None),
    Case(136, "2x0+19+2+0+3x1+50+0", index="int64", **ODD),
    Case(136, "off9+8+16+off17", pool="columns", others="strided", pad_slot_id=0, **ODD),
    Case(136, "40in100", pool="channels_sliced", others="backward", dout="expanded_tokens", **ODD),
    without(Case(136, "off2+40+0+33+off3", float32=True)),
    without(Case(136, "33+20", dout="tokens", final=False)),
    Case(136, "off20"),
    # Tokens contiguous: long and short rows, every access width.
    Case(5, "1029", **ROWS),
    Case(3, "513+0+260+1", 6, "float16", layout="tokens_aligned", pool="columns"),
    Case(2, "300+2+1", 5, "float32", pool="columns_longer", float32=True, **ROWS),
    Case(9, "150+off3", 16, "float32", bias=None, activation=None, **ROWS),
    Case(3, "21x3+0", 3, index="int64", others="strided", state_dtype="float32", **ROWS, **ODD),
    Case(3, "100+off7", 9, "float16", "bfloat16", layout="tokens_offset_by_1", dx="tokens", pool="slots"),
    Case(2, "off3+70+2x1", 7, layout="tokens_offset_by_2", dx="tokens", state_dtype="float32", pool="backward"),
    Case(3, "33+16+40", 10, layout="tokens_offset_by_4", dx="tokens", weight_dtype="float16", activation="swish"),
    without(Case(3, "45+off4", 8, "bfloat16", "float32", layout="tokens_sliced")),
    Case(3, "45+1", 15, "float32", layout="tokens_spaced", dx="tokens_backward", **ODD),
    Case(36, "off3+253+1+255+1+2+3+63+65+off9+20x1+0+93", initial=None, **ROWS, **ODD),
    Case(33, "255+3+600+30x1+49", pool="slots", index="mixed", others="strided", **ROWS, **ODD),
    without(Case(34, "250+9+off3+9x20", 4, "float16", "float32", dout="expanded", **ROWS)),
    Case(5, "7+0+90in200", pool="columns", initial=None, **ROWS, **ODD),
    Case(5, "all33", dx="channels", pool="columns", slots=None, **ROWS),
    # The same in walks along 32 channels: sequences that begin and end around the borders of walks, and without tokens.
    Case(40, "off3+70+1+2+3+0+63+65+off2+20x1+0+19+0", **ROWS, **ODD),
    Case(33, "128+0+0+127+1+128+2+126+4", 3, "float32", "bfloat16", pool="slots", index="int64", **ROWS),
    Case(70, "0+300+3x2+31+33+off6+136", 5, "float16", "float32", "float32", others="strided", pool="columns", **ROWS),
    Case(32, "64x1", 2, others="backward", initial=None, float32=True, **ROWS),
    without(Case(34, "250+9+off3+9x20+46", 4, "float32", bias=None, activation=None, final=False, **ROWS)),
    Case(32, "2x0+5+0+11+0", 3, weight_dtype="float16", initial="all", **ROWS),
    Case(34, "9+10+11+12+13+0+14+15+off1+17+18+19+3+21+2x1+20+15x1+16", **ROWS),
    Case(34, "9+10+11+12+13+14+15+17+33x1+10", 2, "float16", state_dtype="float32", initial="all", **ROWS),
    # Nothing to convolve.
    Case(5, "3x0"),
    Case(5, "0", 3, "float32", **ROWS),
    Case(0, "7+2"),
)

_BATCHES = ("1", "2", "3", "4", "7+8+9", "64", "255+257", "1023+1", "2000x1", "2000in2000", "2000in9000", "1500+500x1",
            "4096+16x256", "off7+300+0+off60", "50x3+50x0+50x5")  # fmt: skip
_BOTH = ("channels", "tokens")

EDGE = tuple(
    dict.fromkeys(
        [
            *(Case(24, spec, layout=a, **ODD) for spec in _BATCHES for a in _BOTH),
            *(Case(8, spec, 4, "float32", layout=a, initial=None) for spec in _BATCHES for a in _BOTH),
            *(Case(n, "300+3+70", layout=a) for n in (1, 3, 64, 100, 200, 4128) for a in _BOTH),
            *(Case(12, "200+9x20+12x1+off3", n, layout=a, **ODD) for n in range(1, 17) for a in _BOTH),
            *(Case(36, "40+9x3", n, "float32", layout=a, initial=None) for n in range(1, 17) for a in _BOTH),
            *(Case(20, "90+11x4", 4, a, b, layout=c) for a in ROUNDING for b in ROUNDING for c in _BOTH),
            *(Case(40, "130+2x1+61", 4, a, layout=b) for a in ("bfloat16", "float32") for b in PACKED),
            *(Case(24, "60+7x3", layout=a, others=b, index="mixed", **ODD) for a in _BOTH for b in OTHERS),
            *(Case(24, "60+7x3", layout=a, pool=b) for a in _BOTH for b in POOLS),
            *(Case(2, f"{2**20}+1", layout=a) for a in _BOTH),
        ]
    )
)
