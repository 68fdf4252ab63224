"""Calls that are prepared once for given arrays and then repeated at the cost of their launches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from cuconv.runtime import arrays, dlpack, generated
from cuconv.runtime.call import Call
from cuconv.runtime.dependent import contexts
from cuconv.runtime.errors import message
from cuconv.runtime.generated import Part
from cuconv.runtime.held import Held, held, taking
from cuconv.runtime.operation import Operation
from cuconv.runtime.plan import NO_NUMBERS, Late
from cuconv.runtime.tracing import is_recorded, is_traced


def bind(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Bound:
    """Prepare a call of one of cuconv's functions, to be repeated with `()`; nothing is computed yet.

    `step = bind(causal_conv1d_update, x, conv_state, weight, bias, "silu")` checks and plans the call, makes its
    results and packs the arguments of its kernels. Then `step()` computes what the function would, from the current
    contents of the arrays, on the current stream. It is for loops that cannot be captured in a CUDA graph.

    * It returns the same arrays every time, so each call overwrites the results of the call before. `bind` makes them
      on the stream that is current then.
    * It holds its arrays, results and scratch memory, so keep it as long as a graph that has captured `step()`.
    * `step()` raises ValueError for an array that has got other memory since (`Tensor.resize_`, `Tensor.set_`,
      `Tensor.data`). Shapes and strides stay those of `bind`, and so does an integer `rand_seed`, which rounds alike in
      every call.
    * Calls that share scratch memory or results must not run at the same time: use one `bind` per stream.
    * The first call on a stream makes a CUDA graph of its launches, which the later ones launch.
    * NumPy arrays and tensors on the CPU are computed by the reference.
    * With CUCONV_CHECK=1 in the environment of `bind`, every call checks the contents of index arrays.

    Args:
        function: a function of cuconv that takes arrays.
        args, kwargs: its arguments.

    Returns:
        A callable without arguments, which returns what the function does.

    Raises:
        TypeError: `function` is not one of cuconv's.
        ValueError: a tensor that autograd follows: one that requires grad while grad mode is on, in `bind` or in a
            call.
        TypeError, ValueError: what the function raises for these arguments.
        RuntimeError: torch traces.
    """
    name = getattr(function, "__name__", "")
    if name == "bind" or not callable(function) or getattr(sys.modules["cuconv"], name, None) is not function:
        raise TypeError(message("function", repr(function), "a function of cuconv that takes arrays"))
    if is_traced() or is_recorded():
        raise RuntimeError("cuconv.bind cannot be traced: call the function itself, or bind outside")
    prepared: list[_Prepared] = []
    with taking(partial(_prepare, prepared)):
        known: dict[int, Held] = {}
        results = function(
            *(held(value, known) for value in args), **{name: held(value, known) for name, value in kwargs.items()}
        )
    if not prepared:
        # Without arrays the function has raised, unless it takes none at all.
        raise TypeError(message("function", name, "a function of cuconv that takes arrays"))
    return prepared[0].bound(name, results)


class Bound(Protocol):
    """A prepared call; calling it runs it."""

    results: Any
    """What every call returns."""

    def __call__(self) -> Any:
        """Run the call on the current stream; returns its results."""


class _Prepared:
    """What a call needs to be repeated on given arrays."""

    def __init__(self, call: Call[Any], given: tuple[Any, ...], pointers: list[int], late: Late) -> None:
        self._call, self._given = call, given
        self._arrays = [array for array in given if array is not None]
        self._pointers = list(pointers)
        results, self._replays, self._scratch = call.fixed(given, pointers, late)
        self._addresses, self._late = pointers, late
        self.results: Sequence[Any] = results
        """The results of the operation."""

    def bound(self, name: str, returned: Any) -> Bound:
        """A function that runs the call of the function `name`; it returns the same arrays every time.

        All of it is one generated function, which checks only what can change for these arrays: an object with methods
        for the parts of a call took 0.6 us more.
        """
        call, family = self._call, self._call.family
        values: dict[str, Any] = {"returned": returned}

        def using(part: Part) -> str:
            assert values.keys().isdisjoint(part.values)
            values.update(part.values)
            return part.text

        lines = []
        if (moved := family.moved(self._arrays, self._pointers)) is not None:
            lines += [f"if {using(moved)}: refuse_moved()"]
            values["refuse_moved"] = self._refuse_moved
        if (followed := family.followed(self._arrays)) is not None:
            lines += [f"if {using(followed)}: refuse_followed()"]
            values["refuse_followed"] = partial(_refuse_followed, call.names, self._given)
        if call.definition.contents is not None and family.checks_contents():
            lines += ["check_contents()"]
            values["check_contents"] = partial(call.check_contents, self._given)
        repeat = family.repeated(self._replays, call.device)
        if call.on_host:
            # Arrays on the CPU have no stream; the function that computes them takes any number.
            lines += ["on = 0", *using(repeat).splitlines()]
        else:
            # The function holds the arrays and the scratch memory by this method.
            values |= {"contexts": contexts, "launch_early": self._launch_early}
            lines += [f"on = {using(family.current(call.device))}", "if contexts:", "    launch_early(on)", "else:"]
            lines += [f"    {line}" for line in using(repeat).splitlines()]
        new = [each for each in self.results if each is not None and not any(each is array for array in self._arrays)]
        if (marked := family.marked([*call.written(self._given), *new])) is not None:
            lines += [using(marked)]
        made: Any = generated.function("", [*lines, "return returned"], values)
        made.__qualname__ = f"bound {name}"
        made.results = returned
        bound: Bound = made
        return bound

    def _launch_early(self, stream: int) -> None:
        self._call.launch_early(self._addresses, stream, self._late)

    def _refuse_moved(self) -> None:
        names = [name for name, array in zip(self._call.names, self._given, strict=True) if array is not None]
        for name, array, pointer in zip(names, self._arrays, self._pointers, strict=True):
            if self._call.family.address(array) != pointer:
                raise ValueError(message(name, "an array with other memory than in bind", "bind for it anew"))


def _prepare(
    prepared: list[_Prepared],
    operation: Operation[Any],
    standing: tuple[Any, ...],
    options: tuple[Any, ...],
    outputs: tuple[str, ...] | None = None,
    late: Late = NO_NUMBERS,
) -> Sequence[Any]:
    """Prepare the call of an operation instead of running it; returns its results."""
    given = original = tuple(each.array if isinstance(each, Held) else each for each in standing)
    names = operation.names(outputs)
    family = arrays.family(original[operation.place_of_leader])
    is_foreign = family is None
    if family is None:
        given = dlpack.imported(names, original, operation.leader)
        family = arrays.family(given[operation.place_of_leader])
        assert family is not None
    try:
        call, pointers = operation.find(family, given, options, outputs)
    except arrays.NotPlain:
        _refuse_followed(names, given)
        raise TypeError(message(operation.leader, "a tensor without memory", "a plain one")) from None
    if is_foreign:
        dlpack.refuse_immutable(names, original, given, call.written(given))
    each = _Prepared(call, given, pointers, late)
    prepared.append(each)
    if is_foreign:
        return dlpack.exported(each.results, original[len(operation.inputs) :], original[operation.place_of_leader])
    return each.results


def _refuse_followed(names: Sequence[str], given: Sequence[Any]) -> None:
    """Raise ValueError for a tensor that requires grad."""
    for name, array in zip(names, given, strict=True):
        if getattr(array, "requires_grad", False):
            wanted = "torch.no_grad() or a detached tensor: autograd does not follow bound calls"
            raise ValueError(message(name, "a tensor that requires grad while grad mode is on", wanted))
