"""What a correct selective scan may be off by: how the rounding errors of every token add up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from cuconv.selective_scan.reference import Scan, Steps, recurrence
from cuconv.selective_state_update.reference import Token
from tests.support import bounds
from tests.support.bounds import HALF_ULP
from tests.support.placement import Array

SECOND_ORDER = 1.1
"""Products of errors: of 2**18 tokens each decay is off by less than 2**-21 of itself, all of them together by less
than an eighth, and so is what they carry on."""


class Off(NamedTuple):
    """By how much arrays may be off, in their own shapes."""

    out: Array
    last_state: Array
    chunk_states: Array


def scan_off(scan: Scan, before: Array, segment: int, chunk: int) -> Off:
    """Of a call that begins with these states and may cut its rows into segments of so many tokens."""
    batch, dim, d_state = scan.shape
    out = np.empty(scan.u.shape)
    chunk_states = np.zeros((batch, -(-scan.u.shape[2] // chunk), dim, d_state))
    last = np.zeros(scan.shape)
    for steps, before_off, after_off, out_off in _blocks(scan, before, segment, chunk):
        if steps.begin % chunk == 0:
            chunk_states[:, steps.begin // chunk] = before_off
        out[..., steps.begin : steps.begin + len(out_off)] = out_off.transpose(1, 2, 0)
        last = after_off
    return Off(SECOND_ORDER * out, SECOND_ORDER * last, SECOND_ORDER * chunk_states)


def _blocks(scan: Scan, before: Array, segment: int, chunk: int) -> Iterator[tuple[Steps, Array, Array, Array]]:
    """Of consecutive tokens: the errors of the states before and after them, and those of their results.

    States are bounded by what they are without any cancellation: what a segment by itself starts from zero with, and
    what the segments before it leave, are parts of that.
    """
    size = np.abs(before)
    off = np.zeros(scan.shape)
    begin_size, dt_sum = size, np.zeros(scan.shape[:2])
    for steps in scan.blocks(segment, chunk):
        if steps.begin and steps.begin % segment == 0:
            # The sum of dt rounds with every token, and the exponent feels that.
            exponent = dt_sum[..., None] * scan.A
            off = off + begin_size * np.exp(exponent) * np.abs(exponent) * (segment * HALF_ULP)
            begin_size, dt_sum = size, np.zeros(scan.shape[:2])
        dt_sum = dt_sum + steps.dt.sum(axis=0)
        sizes = recurrence(steps.decay, np.abs(steps.added), size)
        token = _token(scan, steps, np.concatenate([size[None], sizes[:-1]]))
        own = bounds.state_after(token, 0.0)
        offs = recurrence(steps.decay, own, off)
        yield steps, off, offs[-1], bounds.result(token, offs)
        size, off = sizes[-1], offs[-1]


def _token(scan: Scan, steps: Steps, before: Array) -> Token:
    """All these tokens as one, of sizes and not of values; dt must not be negative."""
    return Token(
        sequence=0,
        number=0,
        place=(),
        slot=None,
        row=None,
        before=before,
        x=np.abs(steps.u),
        biased_dt=steps.biased_dt,
        A=scan.A.astype(np.float64),
        B=np.abs(steps.B),
        C=np.abs(steps.C),
        D=None if scan.D is None else np.abs(scan.D.astype(np.float64)),
        z=steps.z,
        dt_softplus=scan.delta_softplus,
    )
