"""The way of every call: inspect → look up, or check and plan → run; or torch's dispatch, or DLPack."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from cuconv.runtime import arrays, dlpack
from cuconv.runtime.arrays import Facts, Family
from cuconv.runtime.call import Call, Known
from cuconv.runtime.definition import Definition
from cuconv.runtime.memo import remembered
from cuconv.runtime.plan import NO_NUMBERS, Late, Operands
from cuconv.runtime.tracing import is_recorded, is_traced

RECENT = 4
"""Most recent calls of an operation that arrays are compared with before all remembered calls are searched."""

ThroughTorch = Callable[..., Sequence[Any]]
"""Makes the call of an operation on tensors that torch traces, that autograd follows or that have no memory; takes the
operation and the arguments of its __call__."""


def _no_torch(*call: Any) -> Sequence[Any]:
    raise RuntimeError("cuconv.torch has not been named")


through_torch: ThroughTorch = _no_torch
"""Set by the package, because the runtime may not import cuconv.torch."""

preparing = threading.RLock()
"""Held while recognisers are made or dropped. Calls that are recognised need no lock."""


class _Latest(threading.local):
    """How the last recognised arrays of this thread were handled: a hint that such calls are worth a generated
    function."""

    known: Known | None = None


latest = _Latest()


@dataclass(eq=False)
class Operation(Definition[Operands]):
    """A public function that can be called: for the arrays of a call it finds a prepared call or prepares one."""

    named: ClassVar[dict[str, Operation[Any]]] = {}
    """All operations that have a name."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name:
            self.named[self.name] = self
        self._remembered: Callable[..., Call[Operands]] = partial(_prepared, self)
        self.recent: tuple[Call[Operands], ...] = ()
        """The last different calls that were looked up, the latest first."""
        self.known: tuple[Known, ...] = ()
        """How arrays like those of recent calls are handled, the latest first."""

    def __call__(
        self,
        given: tuple[Any, ...],
        options: tuple[Any, ...] = (),
        outputs: tuple[str, ...] | None = None,
        late: Late = NO_NUMBERS,
        may_be_traced: bool = True,
    ) -> Sequence[Any]:
        """Run a call; returns its results, None for each that is not wanted.

        Args:
            given: the arrays in the order of inputs and outputs.
            options: the other arguments of `check`, hashable.
            outputs: the names of the results where they differ from call to call.
            late: integers for fields of argument structs and for the reference, which do not affect checks or plans.
            may_be_traced: False for the call of an operator in a graph, which runs even while torch traces.
        """
        leader = given[self.place_of_leader]
        may_be_traced = may_be_traced and not isinstance(leader, arrays.untraced)
        if may_be_traced and is_traced():
            return through_torch(self, given, options, outputs, late)
        # The last calls are tried first, because the layers of a model make equal calls one after another. Recognising
        # arrays is quicker than comparing facts, and comparing takes half as long as hashing.
        for known in (recent := self.known):
            if known.options == options and known.outputs == outputs:
                results = known.run(given, late)
                if results is not None:
                    if known is not recent[0]:
                        self._known_first(known)
                    latest.known = known
                    return results
        if may_be_traced and is_recorded():
            return through_torch(self, given, options, outputs, late)
        family = arrays.family(leader)
        if family is None:
            return self._through_dlpack(given, options, outputs, late)
        if family.through is not None:
            return family.through(self, given, options, outputs, late)
        try:
            call, pointers = self.find(family, given, options, outputs)
        except arrays.NotPlain:
            return through_torch(self, given, options, outputs, late)
        return call.run(given, pointers, late)

    def find(
        self, family: Family, given: tuple[Any, ...], options: tuple[Any, ...], outputs: tuple[str, ...] | None
    ) -> tuple[Call[Operands], list[int]]:
        """The prepared call with the facts of these arrays, and their addresses; raises for what does not fit."""
        pointers, facts = family.inspect(self.names(outputs), given)
        call = self.recent[0] if self.recent else None
        if (
            call is None
            or call.facts != facts
            or call.options != options
            or call.outputs != outputs
            or call.family is not family
        ):
            call = self._remembered(family, outputs, options, *facts)
        with preparing:
            if family.recogniser is not None and call in self.recent:
                # Making a recogniser takes longer than a call, so it is made for the second of equal calls.
                call.recognise(None if call.recogniser else family.recogniser(given))
            self.recent = (call, *[each for each in self.recent if each is not call][: RECENT - 1])
            self.find_known()
        return call, pointers

    def find_known(self) -> None:
        """Make the known calls those of the recent calls."""
        self.known = tuple(known for call in self.recent for known in call.known)

    def _known_first(self, known: Known) -> None:
        """Try one of the known calls first from now on."""
        # If another thread replaces them meanwhile, that costs only a little time.
        self.known = (known, *[each for each in self.known if each is not known])

    def _prepare(
        self, family: Family, outputs: tuple[str, ...] | None, options: tuple[Any, ...], *facts: Facts | None
    ) -> Call[Operands]:
        return Call(self, family, outputs, options, list(facts))

    def _through_dlpack(
        self, given: tuple[Any, ...], options: tuple[Any, ...], outputs: tuple[str, ...] | None, late: Late
    ) -> list[Any]:
        """Run a call on CuPy or NumPy arrays over the same memory; its results go back to the leader's library."""
        names = self.names(outputs)
        imported = dlpack.imported(names, given, self.leader)
        if any(map(dlpack.is_immutable, given)):
            family = arrays.family(imported[self.place_of_leader])
            assert family is not None
            call, _ = self.find(family, imported, options, outputs)
            dlpack.refuse_immutable(names, given, imported, call.written(imported))
        results = self(imported, options, outputs, late)
        return dlpack.exported(results, given[len(self.inputs) :], like=given[self.place_of_leader])


@remembered
def _prepared(operation: Operation[Any], *key: Any) -> Call[Any]:
    return operation._prepare(*key)
