"""The way into public functions: a call that is like an earlier one goes from its arguments to its launches at once.

What a function makes out of its arguments, the operation that it calls and what it returns of the results follow from
the facts of its arrays and from its other arguments. They are found out once, by calling the function with stand-ins
for the arrays, and written down as one function that compares these facts and arguments, and launches.
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
"""Most combinations of other arguments than arrays that a prepared call is entered with at once."""

MAX_MISSES = 2 * RECENT
"""Arrays in other shapes than those of the last calls, less twice as many others, from which on no call is run at once:
where shapes differ all the time, to compare them with those of the last calls takes a fourth of a call."""

CONSTANTS = (type(None), bool, int, float, str)
"""The types of other arguments that are compared, of which there may also be tuples."""

Function = TypeVar("Function", bound=Callable[..., Any])

Run = Callable[..., Any]
"""Runs a call on the arguments of its function; returns what that does, or True where it returns nothing, and None for
arguments that it is not for."""


def quick(function: Function) -> Function:
    """Let calls of a public function that are alike be run at once. A decorator."""
    parameters = _positional(function)
    defaults = {f"_{each.name}": each.default for each in parameters if each.default is not each.empty}
    names = ", ".join(each.name for each in parameters)
    arguments = [f"{each.name}=_{each.name}" if f"_{each.name}" in defaults else each.name for each in parameters]
    # What may only be given by keyword is in a dict: to fill in many defaults by name takes a good part of a call.
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
    """What is for no arguments."""


class Entry:
    """What runs calls of a function at once."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function, self._count = function, len(_positional(function))
        self._returns_nothing = inspect.signature(function).return_annotation in (None, "None")
        self.result = "None" if self._returns_nothing else "_result"
        """The code of what the function returns where `_result` is that of a `Run`."""
        self.forget()

    def forget(self) -> None:
        """Let the next call be the first one."""
        self._misses = 0
        self._run_none()

    def _run_none(self) -> None:
        self.first: Run = never
        """What is tried first without arguments that may only be given by keyword."""
        self.firsts: dict[tuple[str, ...], Run] = {}
        """The same for such arguments, by their names."""
        self._recent: dict[tuple[str, ...], tuple[Run, ...]] = {}
        """The last ones that ran a call, by these names."""

    def call(self, given: tuple[Any, ...], more: dict[str, Any]) -> Any:
        """Call the function with arguments that what is tried first is not for."""
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
        """Let calls like this one be run at once: its arrays were recognised, and `names` are those of the last values.

        A function that makes other arrays out of them, for one, goes its own way every time.
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
        """What runs such calls; None where a call does more than to hand over its arrays."""
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
    """Lines that leave by `return None` unless arguments are as in a call, and name the arrays by their places."""

    def __init__(self, places: dict[int, list[int]]) -> None:
        """Take the places of the arrays, by the identities of what stands for them."""
        self.lines: list[str] = []
        self.values: dict[str, Any] = {}
        """The values of names in them."""
        self._places = places
        self._has_surplus = False

    @property
    def is_complete(self) -> bool:
        """Whether all places have an array, and all arrays a place."""
        return not any(self._places.values()) and not self._has_surplus

    def compare(self, name: str, value: Any, is_fixed: bool = False) -> str:
        """Add the lines for an argument; its name, which may be another one unless it is fixed."""
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
    """A call of an operation that a public function makes of stand-ins for arrays."""

    operation: Operation[Any]
    given: tuple[Any, ...]
    results: list[object]
    """What stands for its results."""
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
            # Which of equal arguments goes where is known only where arrays are compared with each other.
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
    """The code of what stands for no results."""
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
"""Those of all functions."""
