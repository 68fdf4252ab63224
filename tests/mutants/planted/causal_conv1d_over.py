"""Bugs in convolutions of packed sequences with results over x."""

from __future__ import annotations

from tests.mutants import Mutant

_OVER = "causal_conv1d_varlen_fn-136-off62+64+1+1+2x3+120+62+5+0+3x1+off66-slots_odd-initial_all-snapshots_pool-over"
_OVER_SHARES = "causal_conv1d_varlen_fn-140-off5+60+3x1+99+40x2-slots_odd-initial_all-over-processors_1"
_OVER_ROWS = (
    "causal_conv1d_varlen_fn-36-off126+128+1+1+2x3+250+126+5+0+3x1+off130-layout_tokens-slots_odd"
    "-initial_all-snapshots_pool-over"
)
_OVER_LONG = (
    "causal_conv1d_varlen_fn-3-300+600-state_dtype_float32-layout_tokens_aligned-initial_all-snapshots_pool-over"
)
_OVER_STRIPS = (
    "causal_conv1d_varlen_fn-36-off126+128+1+1+2x3+250+126+5+0+3x1+off130+600+126+4+9-layout_tokens"
    "-slots_odd-initial_all-snapshots_pool-over-processors_1"
)
_OVER_MOVED = (
    "causal_conv1d_varlen_fn-33-60+190+150+90+250+200-width_5-dtype_float32-layout_tokens-initial_all-moved-snapshots_pool"
    "-over-processors_1"
)
_OVER_KEPT = (
    "causal_conv1d_varlen_fn-33-off3+127+130+off9+255+1+125+2+off4-width_2-dtype_float16-layout_tokens-pool_columns"
    "-moved-keep-over"
)

_OVER_SHORT = "causal_conv1d_varlen_fn-1032-off5+30+32+33+3x1+62+40x1+0+2+off7+31+1+1+off9-slots_odd-over-processors_1"
_OVER_CUT = "causal_conv1d_varlen_fn-24-62+67+1+62+130-dtype_float16-index_int64-initial_all-over-processors_1"

MUTANTS = (
    Mutant(
        "The first tile of a block over x sees zeros before it.",
        "causal_conv1d/causal_conv1d_varlen_over_fwd.cu",
        "inputs.x[i] = border.load_input(kWidth - 1 - before + i);",
        "inputs.x[i] = Vec<input_t, kVec>::zero();",
        (_OVER,),
    ),
    Mutant(
        "A border keeps the inputs one token later.",
        "causal_conv1d/conv_borders.cuh",
        "(tile * p.border_tokens - kHalo) * p.x_stride[1];",
        "(tile * p.border_tokens - kHalo + 1) * p.x_stride[1];",
        (_OVER, _OVER_ROWS),
    ),
    Mutant(
        "All results of a prefix over x are those of its first token.",
        "causal_conv1d/causal_conv1d_varlen_over_fwd.cu",
        "rows[prefix - first] = run_row + lane_id();",
        "rows[prefix - first] = run_row;",
        (_OVER,),
    ),
    Mutant(
        "A warp that has prefixes before results over x takes only the first channels of its share.",
        "causal_conv1d/causal_conv1d_varlen_prefixes.cu",
        "first_channel + params.share",
        "first_channel + kWarpSize * kVec",
        (_OVER_SHARES,),
    ),
    Mutant(
        "The state of a sequence across two borders is taken at the second one again.",
        "causal_conv1d/causal_conv1d_varlen_borders.cu",
        "has_state = slot >= 0 && from_lane(begin, lane) >= token - p.border_tokens;",
        "has_state = slot >= 0;",
        (_OVER_LONG,),
    ),
    Mutant(
        "A border keeps no state.",
        "causal_conv1d/causal_conv1d_varlen_borders.cu",
        "store(border.state + i * border.step, prefix.past[i]);",
        "{}",
        (_OVER_ROWS,),
    ),
    Mutant(
        "The snapshots of sequences across a border are stored by two warps, one of them behind the final state.",
        "causal_conv1d/conv_borders.cuh",
        "return source.goes_on && source.is_over_start(p, snapshot) && is_in_tile(p, source);",
        "return source.goes_on && is_in_tile(p, source);",
        (_OVER_ROWS,),
    ),
    Mutant(
        "A tile of a strip sees the inputs before the strip.",
        "causal_conv1d/causal_conv1d_varlen_rowstrips_fwd.cu",
        "        keep_last_inputs(shared);\n",
        "",
        (_OVER_STRIPS,),
    ),
    Mutant(
        "A strip's first tile sees zeros before it.",
        "causal_conv1d/causal_conv1d_varlen_rowstrips_fwd.cu",
        "if (strip > 0 && row < channels) input",
        "if (strip < 0 && row < channels) input",
        (_OVER_ROWS,),
    ),
    Mutant(
        "Padding that is to stay becomes zeros over x.",
        "causal_conv1d/causal_conv1d_varlen_rowstrips_fwd.cu",
        "p.keeps_padding ? x[i] : Dtype<T>::from_float(0.0f)",
        "Dtype<T>::from_float(0.0f)",
        (_OVER_KEPT,),
    ),
    Mutant(
        "A snapshot over its sequence's own start is stored in every tile of a strip.",
        "causal_conv1d/causal_conv1d_varlen_rowstrips_fwd.cu",
        "if (end <= 0 || end > Tile::kTile) continue;",
        "",
        (_OVER_MOVED,),
    ),
    Mutant(
        "Counters of results over x begin as if a block had read.",
        "causal_conv1d/causal_conv1d_varlen_over_start.cu",
        "0xffffffffu",
        "0u",
        (_OVER_CUT,),
    ),
    Mutant(
        "A short sequence over x leaves its last inputs one column too early in its state.",
        "causal_conv1d/causal_conv1d_varlen_overshort_fwd.cu",
        "last[c] = window[c][(i + 2 + k) % kWidth];",
        "last[c] = window[c][(i + 1 + k) % kWidth];",
        (_OVER_SHORT,),
    ),
    Mutant(
        "A block over x does not save the inputs that the block behind it has not read.",
        "causal_conv1d/causal_conv1d_varlen_overshort_fwd.cu",
        "v.store(kept.input_at(token - to + kHalo));",
        "{}",
        (_OVER_CUT,),
    ),
    Mutant(
        "A state over which another block has stored is not loaded again.",
        "causal_conv1d/causal_conv1d_varlen_overshort_fwd.cu",
        "ring.put(slot + i, kept.state_at(i));",
        "{}",
        (_OVER_CUT,),
    ),
    Mutant(
        "A block that comes late over x takes what it has loaded.",
        "causal_conv1d/conv_neighbours.cuh",
        "return draw() != 0;",
        "return draw() == ~0u;",
        (_OVER_CUT,),
    ),
)
