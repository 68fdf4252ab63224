"""The decode step of a state space model: the checks of its arguments, and running it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cuconv import arrays, checks, dlpack, reference
from cuconv.arrays import Facts, Family
from cuconv.call import Call, Prepared
from cuconv.errors import message
from cuconv.layout import HOST, Layout, dense
from cuconv.ops.selective_state_update_operands import ARGUMENTS, Operands, operands
from cuconv.ops.selective_state_update_plan import plan

STATE, X, OUT = map(ARGUMENTS.index, ("state", "x", "out"))
BUFFER, RAND_SEED = map(ARGUMENTS.index, ("intermediate_states_buffer", "rand_seed"))
MAX_ROUNDS = 20


def run(
    given: tuple[Any, ...],
    dt_softplus: bool,
    disable_state_update: bool,
    pad_slot_id: int,
    seed: int | None,
    philox_rounds: int,
) -> Any:
    """Update; `given` are in the order of ARGUMENTS. The result, in a new array where none was given."""
    family = arrays.family(given[STATE])
    options = bool(dt_softplus), bool(disable_state_update), pad_slot_id, seed, philox_rounds
    if family is None:
        return _through_dlpack(given, *options)
    pointers, facts = family.inspect(ARGUMENTS, given)
    call = _prepare((family, options), facts)
    call.check_overlap(pointers)
    if family.checks_contents():
        _check_indices(call.operands, given, family)
    out = given[OUT]
    if out is None:
        out, pointers[OUT] = family.new(given[X], call.out)
    if call.device == HOST:
        _run_reference(call.operands, given, out)
    else:
        call.enqueue(pointers, family)
    return out


class _Call(Call):
    """An update on arrays with these facts."""

    def __init__(self, layouts: Sequence[Layout | None], operands: Operands) -> None:
        self.operands = operands
        x = layouts[X]
        assert x is not None
        self.out = layouts[OUT] or dense(x.shape, tuple(range(len(x.shape))), x)
        launch = None if x.device == HOST else plan(operands)
        written = [OUT, BUFFER] + [STATE] * (not operands.disable_state_update)
        written = [i for i in written if layouts[i] is not None]
        in_place = (OUT, X) if layouts[OUT] == x else None
        super().__init__(ARGUMENTS, (*layouts[:OUT], self.out), launch, written, in_place)


Options = tuple[bool, bool, int, int | None, int]


@Prepared
def _prepare(family: Family, options: Options, *facts: Facts | None) -> _Call:
    """Check the arguments and decide how to run them; raises before anything is launched or written."""
    layouts = [
        None if fact is None else family.layout(argument, fact) for argument, fact in zip(ARGUMENTS, facts, strict=True)
    ]
    state = layouts[STATE]
    assert state is not None
    if family.name != "NumPy":
        checks.on_gpu("state", state.device, "NumPy arrays are updated on the CPU")
    return _Call(layouts, operands(layouts, *options))


def _check_indices(o: Operands, given: Sequence[Any], family: Family) -> None:
    """ValueError when what index arrays contain cannot be right; reads them back."""
    named = dict(zip(ARGUMENTS, given, strict=True))

    def read(name: str) -> Any:
        return None if named[name] is None else family.to_host(named[name])

    lengths = np.full(o.sequences, o.x.shape[1])
    if (starts := read("cu_seqlens")) is not None:
        checks.boundaries("cu_seqlens", starts, o.x.shape[1])
        lengths = np.diff(starts)
    slots, sources, targets = o.state.shape[0], read("state_batch_indices"), read("dst_state_batch_indices")
    own = np.arange(o.sequences) if sources is None else sources
    if (accepted := read("num_accepted_tokens")) is not None:
        columns = sources.shape[1]
        if (many := accepted[(lengths > 0) & (accepted > columns)]).size:
            wanted = f"at most {columns}, the columns of state_batch_indices"
            raise ValueError(message("num_accepted_tokens", many[0], wanted))
        own = sources[np.arange(o.sequences), np.clip(accepted, 1, columns) - 1]
    live = (lengths > 0) & (own != o.pad_slot_id)
    checks.inside("state_batch_indices", own[live], slots)
    if not o.disable_state_update:
        name = "state_batch_indices" if targets is None else "dst_state_batch_indices"
        written = targets if targets is not None else own if accepted is None else sources
        # A row for every sequence, of which each token has a column.
        used = written.reshape(o.sequences, -1)
        column = np.arange(used.shape[1])
        is_used = live[:, None] & (used != o.pad_slot_id) & ((column < lengths[:, None]) | (written.ndim == 1))
        checks.slots(name, used[is_used], slots)
        sequence = np.broadcast_to(np.arange(o.sequences)[:, None], used.shape)[is_used]
        checks.not_read_by_others(name, used[is_used], sequence, own[live], np.flatnonzero(live))
    if o.intermediate_states_buffer is not None:
        rows = read("intermediate_state_indices")
        name = "state_batch_indices" if rows is None else "intermediate_state_indices"
        used = (own if rows is None else rows)[live]
        checks.rows(name, used, o.intermediate_states_buffer.shape[0], o.pad_slot_id)


def _run_reference(o: Operands, given: Sequence[Any], out: Any) -> None:
    named = dict(zip(ARGUMENTS[:OUT], given, strict=False))
    if o.seed is not None:
        named["rand_seed"] = o.seed
    results = reference.selective_state_update(
        **named, dt_softplus=o.dt_softplus, disable_state_update=o.disable_state_update, pad_slot_id=o.pad_slot_id,
        philox_rounds=o.philox_rounds,
    )  # fmt: skip
    out[...] = results.out.astype(out.dtype)
    if not o.disable_state_update:
        given[STATE][...] = results.state
    if results.intermediate_states_buffer is not None:
        given[BUFFER][...] = results.intermediate_states_buffer


def _through_dlpack(given: Sequence[Any], *options: Any) -> Any:
    """The same call on CuPy or NumPy arrays over the same memory, its result handed back to the state's library."""
    result = run(dlpack.imported(ARGUMENTS, given, "state"), *options)
    return dlpack.exported([result], [given[OUT]], like=given[STATE])[0]
