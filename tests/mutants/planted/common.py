"""Bugs in the device code that families share."""

from __future__ import annotations

from tests.mutants import Mutant
from tests.mutants.planted.ids import FWD, STATE_RANDOM

_SOFTPLUS = "selective_state_update/test_softplus.py::test_softplus_is_as_exact_as_it_is_said_to_be[unit-emulated]"
_STATE_LOUD = "selective_state_update-4-2-3-16-dtype_float32-loud_60"

_LENGTHS = "45,3,0,33,16,1,40,7-20,0,32,15,16,31,3,0"
_BLOCKS = f"convolve_by_blocks-12-{_LENGTHS}-16", f"scan_by_blocks-12-{_LENGTHS}-16"
_CACHED = (f"convolve_by_blocks-16-{_LENGTHS}-16-by_channel",)

MUTANTS = (
    Mutant(
        "A final state goes to the slot before that of the last block.",
        "common/blocks.cuh",
        "slot_of_block(p, number, last_block(p, number));",
        "slot_of_block(p, number, last_block(p, number) - 1);",
        _BLOCKS,
    ),
    Mutant(
        "The state at the end of the block before a sequence's last one is not kept.",
        "causal_conv1d/causal_conv1d_varlen_blocks.cu",
        "i < kept ?",
        "i + 1 < kept ?",
        _BLOCKS[:1],
    ),
    Mutant(
        "Blocks are counted from a sequence's first token in this call.",
        "causal_conv1d/causal_conv1d_varlen_blocks.cu",
        "(first + i + 1) * size - computed;",
        "(i + 1) * size;",
        _BLOCKS[:1],
    ),
    Mutant(
        "A prefix cache gets the final state in the slot before that of the last block.",
        "causal_conv1d/causal_conv1d_varlen_cached_fwd.cu",
        "CachedBlocks(params, prefix.number).last));",
        "CachedBlocks(params, prefix.number).last - 1));",
        _CACHED,
    ),
    Mutant(
        "A step of the search for the sequence of a row leads nowhere.",
        "causal_conv1d/causal_conv1d_varlen_cached_fwd.cu",
        "low += step * (__popc(lanes_where(is_behind)) - 1);",
        "low += step * __popc(lanes_where(is_behind) >> 31);",
        _CACHED,
    ),
    Mutant(
        "The last snapshot of a prefix is not stored.",
        "causal_conv1d/causal_conv1d_varlen_cached_fwd.cu",
        "own = {min(own.begin, from + lowest(hits)), max(own.end, from + highest(hits) + 1)};",
        "own = {min(own.begin, from + lowest(hits)), max(own.end, from + lowest(hits))};",
        _CACHED,
    ),
    Mutant(
        "A first chunk begins a block.",
        "selective_scan/selective_scan_varlen_blocks.cu",
        "begun = missing < p.block_size ? p.block_size - missing : 0;",
        "begun = 0;",
        _BLOCKS[1:],
    ),
    Mutant(
        "The state after the chunk before a sequence's last one is not kept.",
        "selective_scan/selective_scan_varlen_blocks.cu",
        "begin + i < last && block(i) < block(i + 1) ? block(i) : -1;",
        "begin + i + 1 < last && block(i) < block(i + 1) ? block(i) : -1;",
        _BLOCKS[1:],
    ),
    Mutant(
        "softplus drops the low-order term of the exponent.",
        "common/activation.cuh",
        "__saturatef(fmaf(power, rest, power))",
        "__saturatef(power)",
        (_SOFTPLUS,),
    ),
    Mutant(
        "softplus multiplies by one part of log(2) only, of 12 bits.",
        "common/activation.cuh",
        "fmaf(exponent, -0.693147182f, -fabsf(v))",
        "fmaf(exponent, -0.693115234f, -fabsf(v))",
        (_STATE_LOUD,),
    ),
    Mutant(
        "softplus is NaN where the exponent overflows.",
        "common/activation.cuh",
        "__saturatef(fmaf(power, rest, power))",
        "fmaf(power, rest, power)",
        (
            (
                "families/test_special_values.py::test_a_masked_token_changes_no_state"
                "[unit-emulated-updates-9-0-40-16-dtype_float32]"
            ),
        ),
    ),
    Mutant(
        "softplus swallows NaN.",
        "common/activation.cuh",
        "max_or_nan(v, 0.0f)",
        "fmaxf(v, 0.0f)",
        (
            (
                "families/test_special_values.py::test_infinities_and_nan_are_those_of_the_formula"
                "[unit-emulated-step-updates-9-0-40-16-dtype_float32]"
            ),
        ),
    ),
    Mutant(
        "The derivative of silu lacks its second term.",
        "common/activation.cuh",
        "return dout * fmaf(s, fmaf(-s, scaled, scaled), s);",
        "return dout * s;",
        ("causal_conv1d_bwd-1-2-260-width_10-dtype_float32-weight_dtype_bfloat16-layout_offset_by_2-initial",),
    ),
    Mutant(
        "A bfloat16's upper half keeps the lower one's bits.",
        "common/dtype.cuh",
        "word & 0xffff0000u",
        "word",
        (FWD,),
    ),
    Mutant(
        "A division by a known number forgets the carry.",
        "common/fastdiv.cuh",
        "(__umulhi(n, multiplier) + n) >> shift",
        "__umulhi(n, multiplier) >> shift",
        (FWD,),
    ),
    Mutant(
        "A slot behind the pool's last one is taken.",
        "common/sequences.cuh",
        "slot >= p.slots ? -1",
        "slot > p.slots ? -1",
        (
            (
                "causal_conv1d_varlen_fn-20-19+5x2+off2-width_6-weight_dtype_float16-others_strided"
                "-pool_channels_longer-slots_odd-index_int64"
            ),
        ),
    ),
    Mutant(
        "A partial load reads one element too many.",
        "common/vec.cuh",
        "if (i >= begin && i < end) v.put(i, p[i]);",
        "if (i >= begin && i <= end) v.put(i, p[i]);",
        (FWD,),
    ),
    Mutant(
        "A partial store writes one element too many.",
        "common/vec.cuh",
        "if (i >= begin && i < end) p[i] = v.element(i);",
        "if (i >= begin && i <= end) p[i] = v.element(i);",
        (FWD,),
    ),
    Mutant(
        "Sums of rows over lanes keep and send the same half.",
        "common/warp.cuh",
        "const float sent = is_upper ? values[2 * i] : values[2 * i + 1];",
        "const float sent = is_upper ? values[2 * i + 1] : values[2 * i];",
        ("selective_state_update-2-2-37-128-per_head_all-force_rows=16_stream=0_index32=0",),
    ),
    Mutant(
        "The lowest lanes of a shifted vector get their own warp's highest ones.",
        "common/warp.cuh",
        "lane_id() >= kWarpSize - distance ? wrapped.words[i] : v.words[i]",
        "v.words[i]",
        (FWD,),
    ),
    Mutant(
        "Stochastic rounding uses fifteen of sixteen random bits.",
        "common/philox.cuh",
        "(__float_as_uint(v) + random) >> 16",
        "(__float_as_uint(v) + (random & 0x7fffu)) >> 16",
        (STATE_RANDOM,),
    ),
    Mutant(
        "The two halves of Philox's key advance by the same step.",
        "common/philox.cuh",
        "key.y += 0xBB67AE85u;",
        "key.y += 0x9E3779B9u;",
        (STATE_RANDOM,),
    ),
)
