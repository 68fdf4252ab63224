"""Measurements on disk: JSON lines, for each run first its machine and then a line for every measurement."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from types import UnionType
from typing import Any, BinaryIO, get_args, get_origin, get_type_hints

from cuconv.bench.timing import Percentiles
from cuconv.runtime.errors import message, one_of

SCHEMA = 1

OURS = "cuconv"
"""The name of this library among those that are timed."""


@dataclass(frozen=True)
class Header:
    """The machine and the versions of a run."""

    time: str
    """Start of the run, ISO 8601 in UTC."""
    gpu: str
    compute_capability: int
    driver: str
    cuda: str
    cupy: str
    torch: str | None
    peers: dict[str, str]
    """The versions of other libraries."""
    python: str
    cuconv: str
    source_digest: str
    """First digits of the SHA-256 of the device code."""


@dataclass(frozen=True)
class Kernel:
    """A library's time on the GPU for one workload, in microseconds; none when its numbers are wrong or it failed."""

    function: str
    sizes: dict[str, Any]
    library: str
    kernel_us: Percentiles | None
    copy_us: float | None
    """Microseconds of a copy that moves the same number of bytes."""
    bytes_moved: int
    gb_per_s: float | None
    fraction_of_copy: float | None
    exponentials: int
    fraction_of_exponentials: float | None
    """Exponentials per second as a fraction of the GPU's rate; None for a call without exponentials."""
    error: float | None
    """The largest error, in tolerances; None when there is no such number."""
    is_right: bool
    note: str = ""


@dataclass(frozen=True)
class Host:
    """Microseconds until a call of cuconv returns, without waiting for the GPU."""

    function: str
    sizes: dict[str, Any]
    arrays: str
    """The library whose arrays it is called with: cupy or torch."""
    out: bool
    """Whether `out` is given."""
    host_us: float
    bound: bool = False
    """Whether the call was prepared by cuconv.bind."""


@dataclass(frozen=True)
class Step:
    """Milliseconds of one step of a model, host and GPU together, by one library's functions."""

    model: str
    sizes: dict[str, Any]
    step: str
    """prefill, decode or training."""
    library: str
    step_ms: float


@dataclass(frozen=True)
class Drift:
    """The errors of state updates after many steps, relative to the results' root mean square."""

    state_dtype: str
    is_random: bool
    """Whether states are rounded up or down at random, else to nearest."""
    inputs: str
    """The kind of inputs: "random" or "steady"."""
    decay: float
    """The factor of the state in one step."""
    steps: int
    error: float
    """The root mean square of the errors of the last steps."""
    bias: float
    """The mean of the errors in the direction of the results."""


Row = Kernel | Host | Step | Drift


@dataclass(frozen=True)
class Run:
    """A header and the rows that were measured in that run, in order."""

    header: Header
    rows: list[Row] = field(default_factory=list)


KINDS: dict[str, type[Header | Row]] = {"run": Header, "kernel": Kernel, "host": Host, "step": Step, "drift": Drift}


def to_json(item: Header | Row) -> dict[str, Any]:
    """The JSON value of a line."""
    kind = next(name for name, known in KINDS.items() if known is type(item))
    return {"kind": kind, **({"schema": SCHEMA} if kind == "run" else {}), **asdict(item)}


def append(path: str | Path, *items: Header | Row) -> None:
    """Add lines to a file, which need not exist. ValueError, without any change, for a file that has no results."""
    with Path(path).open("a+b") as file:
        try:
            _mend(file)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        for item in items:
            file.write(json.dumps(to_json(item), allow_nan=False).encode() + b"\n")


_BEGIN = b'{"kind": "run"'
"""How a file of results begins."""


def _mend(file: BinaryIO) -> None:
    """Let the file end with a whole line: the rest of one that a crash cut off would spoil the next."""
    file.seek(0)
    text = file.read()
    first = text.partition(b"\n")[0]
    if not (first.startswith(_BEGIN) or _BEGIN.startswith(first)):
        raise ValueError(message("the first line", repr(first[:20]), f"results, which begin with {_BEGIN.decode()}"))
    last = text[text.rfind(b"\n") + 1 :]
    if last and _is_json(last):
        file.write(b"\n")
    elif last:
        file.truncate(len(text) - len(last))


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def read(path: str | Path) -> list[Run]:
    """The runs of a file. A last line that a crash cut off is left out; ValueError for anything else that is no
    result."""
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ValueError(message(str(path), f"byte {error.start} that is not UTF-8", "JSON lines of results")) from None
    runs: list[Run] = []
    for number, line in enumerate(lines, start=1):
        if not line or (number == len(lines) and not _is_json(line.encode())):
            continue
        try:
            item = _parse(line)
            if isinstance(item, Header):
                runs.append(Run(item))
            elif not runs:
                raise ValueError("a measurement before the first run")
            else:
                runs[-1].rows.append(item)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}:{number}: {error}") from None
    return runs


def _parse(line: str) -> Header | Row:
    value = json.loads(line)
    kind = value.pop("kind", None) if isinstance(value, dict) else None
    if kind not in KINDS:
        raise ValueError(message("kind", repr(kind), one_of(KINDS)))
    if kind == "run" and (schema := value.pop("schema", None)) != SCHEMA:
        raise ValueError(message("schema", repr(schema), SCHEMA))
    known = KINDS[kind]
    names = [each.name for each in fields(known)]
    needed = {each.name for each in fields(known) if each.default is MISSING}
    if not needed <= value.keys() <= set(names):
        raise ValueError(message(f"keys of a {kind}", ", ".join(value), ", ".join(names)))
    if isinstance(value.get("kernel_us"), dict):
        value["kernel_us"] = _percentiles(value["kernel_us"])
    _check(known, value)
    return known(**value)


def _percentiles(value: dict[str, Any]) -> Percentiles:
    names = [each.name for each in fields(Percentiles)]
    if list(value) != names:
        raise ValueError(message("keys of kernel_us", ", ".join(value), ", ".join(names)))
    _check(Percentiles, value)
    return Percentiles(**value)


def _check(known: type[Any], value: dict[str, Any]) -> None:
    """ValueError for a value that is not of its field's type."""
    for name, hint in get_type_hints(known).items():
        allowed = [get_origin(each) or each for each in (get_args(hint) if isinstance(hint, UnionType) else (hint,))]
        # A whole number is written without a point.
        allowed += [int] if float in allowed else []
        if name in value and type(value[name]) not in allowed:
            raise ValueError(message(name, repr(value[name]), one_of(each.__name__ for each in allowed)))


def _what(row: Kernel | Host | Step) -> tuple[Any, ...]:
    """What a row measures, except for its sizes."""
    if isinstance(row, Step):
        return row.model, row.step, row.library
    return row.function, *((row.library,) if isinstance(row, Kernel) else (row.arrays, row.out, row.bound))


def latest(paths: Iterable[str | Path]) -> list[tuple[Header, Row]]:
    """The newest row of each function or step, sizes and library, host times by kind of arrays, errors, and its run."""
    newest: dict[tuple[Any, ...], tuple[Header, Row]] = {}
    for path in paths:
        for run in read(path):
            for row in run.rows:
                if isinstance(row, Drift):
                    key: tuple[Any, ...] = row.state_dtype, row.is_random, row.inputs, row.decay
                else:
                    key = (*_what(row), json.dumps(row.sizes, sort_keys=True))
                if key not in newest or newest[key][0].time <= run.header.time:
                    newest[key] = (run.header, row)
    return list(newest.values())
