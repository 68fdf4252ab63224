"""The way into public functions: a call like an earlier one goes from its arguments directly to its launches.

The facts of its arrays and its other arguments determine which operation a function calls, with which arguments, and
what it returns. These are found out once, by calling the function with stand-ins for the arrays, and become one
generated function that compares facts and arguments, and launches.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import update_wrapper
from typing import Any, NamedTuple, TypeVar

from cuconv.runtime import generated, tracing
from cuconv.runtime.call import Code, Known, all_of
from cuconv.runtime.held import Held, held, is_array, taking
from cuconv.runtime.operation import RECENT, Operation, latest, preparing
from cuconv.runtime.plan import NO_NUMBERS, Late
from cuconv.runtime.recogniser import repeated

MAX_ENTRIES = 16
"""Most combinations of non-array arguments for which a prepared call has a generated function."""

MAX_MISSES = 2 * RECENT
"""Misses, less twice the hits, from which on arrays are no longer compared with those of the last calls: where shapes
differ all the time, comparing takes a fourth of a call."""

CONSTANTS = (type(None), bool, int, float, str)
"""The types of non-array arguments, or parts of tuples, that can be compared."""

Function = TypeVar("Function", bound=Callable[..., Any])

Run = Callable[..., Any]
"""Runs a call on the arguments of its function. It returns what the function does, or True where that returns nothing,
and None for arguments of other calls."""


def quick(function: Function) -> Function:
    """Decorator of a public function: calls like earlier ones go directly to their launches."""
    parameters = _positional(function)
    defaults = {f"_{each.name}": each.default for each in parameters if each.default is not each.empty}
    names = ", ".join(each.name for each in parameters)
    arguments = [f"{each.name}=_{each.name}" if f"_{each.name}" in defaults else each.name for each in parameters]
    # Keyword-only arguments stay in a dict: filling in many defaults by name takes a good part of a call.
    traced = "_torch.compiler.is_dynamo_compiling()"
    if (torch := tracing.torch) is None:
        traced = f"(_torch := _tracing.torch) is not None and {traced}"
    entries.append(entry := Entry(function))
    lines = [
        f"if {traced}: return _function({names}, **_more)",
        f"if _more: _result = _entry.firsts.get(tuple(_more), _never)({names}, **_more)",
        f"else: _result = _entry.first({names})",
        f"return _entry.call(({names},), _more) if _result is None else {entry.result}",
    ]
    values = {"_function": function, "_entry": entry, "_never": never, **defaults}
    values |= {"_tracing": tracing} if torch is None else {"_torch": torch}
    made = generated.function(f"{', '.join(arguments)}, **_more", lines, values)
    return update_wrapper(made, function)  # type: ignore[return-value]


def never(*args: Any, **kwargs: Any) -> None:
    """A `Run` for no arguments at all."""


class Entry:
    """The generated functions for calls of one public function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function, self._count = function, len(_positional(function))
        self._returns_nothing = inspect.signature(function).return_annotation in (None, "None")
        self.result = "None" if self._returns_nothing else "_result"
        """Code of what the public function returns, where `_result` is what a `Run` has returned."""
        self.forget()

    def forget(self) -> None:
        """Forget all earlier calls."""
        self._misses = 0
        self._run_none()

    def _run_none(self) -> None:
        self.first: Run = never
        """The `Run` that is tried first for calls without keyword-only arguments."""
        self.firsts: dict[tuple[str, ...], Run] = {}
        """The `Run` that is tried first for calls with keyword-only arguments, by their names."""
        self._recent: dict[tuple[str, ...], tuple[Run, ...]] = {}
        """The last `Run`s that ran a call, by the names of keyword-only arguments."""

    def call(self, given: tuple[Any, ...], more: dict[str, Any]) -> Any:
        """Call the function with arguments that the `Run` tried first is not for."""
        names = tuple(more)
        for run in self._recent.get(names, ())[1:]:
            if (result := run(*given, **more)) is not None:
                self._try_first(names, run)
                return None if self._returns_nothing else result
        latest.known = None
        result = self._function(*given, **more)
        if latest.known is None:
            self._misses = min(self._misses + 1, MAX_MISSES)
            if self._misses == MAX_MISSES and self._recent:
                self._run_none()
        else:
            self._misses = max(self._misses - 2, 0)
            if self._misses < RECENT:
                self._enter(latest.known, (*given, *more.values()), names)
        return result

    def _try_first(self, names: tuple[str, ...], run: Run) -> None:
        self._recent[names] = (run, *[each for each in self._recent.get(names, ()) if each is not run][: RECENT - 1])
        if names:
            self.firsts[names] = run
        else:
            self.first = run

    def _enter(self, known: Known, values: tuple[Any, ...], names: tuple[str, ...]) -> None:
        """Let calls like this one go directly to their launches. Its arrays were recognised; `names` are those of the
        last values.

        A function that makes other arrays out of its arguments, for example, always runs as it is written.
        """
        others = tuple(map(_without_arrays, values))
        if not all(map(_is_constant, others)):
            return
        # 1, 1.0 and True are equal.
        key = self, names, others, types_of(others), known.follower
        entries = known.call.entries
        with preparing:
            if key not in entries and len(entries) < MAX_ENTRIES:
                entries[key] = self._made(known, values, names)
        if (run := entries.get(key)) is not None:
            self._try_first(names, run)

    def _made(self, to: Known, values: tuple[Any, ...], names: tuple[str, ...]) -> Run | None:
        """The `Run` of such calls; None where a call does more than hand over its arrays."""
        known: dict[int, Held] = {}
        standing = [held(each, known) for each in values]
        made: list[_Made] = []

        def take(operation: Operation[Any], given: tuple[Any, ...], *more: Any) -> Sequence[Any]:
            made.append(_Made(operation, given, [object() for _ in given[len(operation.inputs) :]], *more))
            return made[-1].results

        try:
            with taking(take):
                by_name = dict(zip(names, standing[self._count :], strict=True))
                returned = self._function(*standing[: self._count], **by_name)
        except Exception:
            return None
        if len(made) != 1 or not made[0].is_of(to):
            return None
        given, form = made[0].given, _done if self._returns_nothing else made[0].form(returned)
        if form is None:
            return None
        code = _Lines({id(each): [n for n, one in enumerate(given) if one is each] for each in known.values()})
        arguments = [code.compare(f"x{number}", each) for number, each in enumerate(standing[: self._count])]
        for name, each in zip(names, standing[self._count :], strict=True):
            code.compare(name, each, is_fixed=True)
        if not code.is_complete:
            return None
        taken = all_of(["None" if each is None else f"a{n}" for n, each in enumerate(given)])
        code.values["kind"] = type(returned)
        return to.call.enter(", ".join((*arguments, *names)), code.lines, code.values, taken, form, to.follower)


class _Lines:
    """Lines that `return None` unless arguments are as in a call, and that name the arrays by their places."""

    def __init__(self, places: dict[int, list[int]]) -> None:
        """Take the places of the arrays, by the identities of their stand-ins."""
        self.lines: list[str] = []
        self.values: dict[str, Any] = {}
        """The values of names in the lines."""
        self._places = places
        self._has_surplus = False

    @property
    def is_complete(self) -> bool:
        """Whether every place has an array, and every array a place."""
        return not any(self._places.values()) and not self._has_surplus

    def compare(self, name: str, value: Any, is_fixed: bool = False) -> str:
        """Add the lines for an argument; returns its name, which may be a new one unless it is fixed."""
        number = len(self.values)
        if isinstance(value, Held):
            places = self._places[id(value)]
            if not places:
                self._has_surplus = True
            elif is_fixed:
                self.lines.append(f"a{places.pop()} = {name}")
            else:
                return f"a{places.pop()}"
        elif type(value) is tuple and any(isinstance(each, Held) for each in value):
            self.lines.append(f"if type({name}) is not tuple or len({name}) != {len(value)}: return None")
            # The names are known when all parts are.
            number = len(self.lines)
            parts = [self.compare(f"{name}_{place}", each) for place, each in enumerate(value)]
            self.lines.insert(number, f"{''.join(f'{part}, ' for part in parts)} = {name}")
        elif value is None or isinstance(value, bool):
            self.lines.append(f"if {name} is not {value}: return None")
        else:
            self.values |= {f"value{number}": value, f"type{number}": types_of(value), "types_of": types_of}
            different = f"types_of({name}) != type{number} or {name} != value{number}"
            self.lines.append(f"if {name} is not value{number} and ({different}): return None")
        return name


class _Made(NamedTuple):
    """A call of an operation that a public function makes on stand-ins for arrays."""

    operation: Operation[Any]
    given: tuple[Any, ...]
    results: list[object]
    """The stand-ins for its results."""
    options: tuple[Any, ...]
    outputs: tuple[str, ...] | None = None
    late: Late = NO_NUMBERS

    def is_of(self, known: Known) -> bool:
        """Whether a known call is prepared for this."""
        recogniser = known.call.recogniser
        return (
            known.call.definition is self.operation
            and (known.options, known.outputs) == (self.options, self.outputs)
            and not self.late
            and recogniser is not None
            and recogniser.pointers == [f"p{n}" for n, each in enumerate(self.given) if each is not None]
            # Which of several equal arguments goes where is only known if arrays are compared with each other.
            and recogniser.same == repeated(self.given)
            and all(each is None or isinstance(each, Held) for each in self.given)
        )

    def form(self, returned: Any) -> Code | None:
        """The code of what the function returns; None where that is neither a result nor a tuple of some, plain or of a
        `kind` with names."""
        numbers = {id(result): number for number, result in enumerate(self.results)}
        if isinstance(returned, tuple) and all(each is None or id(each) in numbers for each in returned):
            parts = [None if each is None else numbers[id(each)] for each in returned]
            make = "" if type(returned) is tuple else "kind._make"
            return lambda results: f"{make}({all_of(['None' if n is None else results[n] for n in parts])})"
        number = numbers.get(id(returned))
        return None if number is None else lambda results: results[number]


def _done(results: Sequence[str]) -> str:
    """The code of stand-ins for no results."""
    return "True"


def _positional(function: Callable[..., Any]) -> list[inspect.Parameter]:
    parameters = inspect.signature(function).parameters.values()
    return [each for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]


def _without_arrays(value: Any) -> Any:
    """An argument with None in the place of arrays."""
    if type(value) is tuple:
        return tuple(map(_without_arrays, value))
    return None if is_array(value) else value


def types_of(value: Any) -> Any:
    """The type of an argument, or those of the parts of a tuple."""
    return tuple(map(types_of, value)) if type(value) is tuple else type(value)


def _is_constant(value: Any) -> bool:
    return type(value) in CONSTANTS or (type(value) is tuple and all(type(each) in CONSTANTS for each in value))


entries: list[Entry] = []
"""The entries of all public functions."""
