"""Arrays of any library as an address and a layout, and new arrays of the caller's kind.

A family is the arrays of one library: NumPy, CuPy or torch; other libraries' arrays come in by DLPack through `dlpack`.
CuPy is imported when the first of its arrays comes, torch never: a torch tensor can only come from a program that has
imported it.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NoReturn

import numpy as np

from cuconv.runtime import graphs
from cuconv.runtime.dtypes import BFLOAT16, BY_NAME, BY_NUMPY, FLOAT8_E4M3FN, FLOAT64, DType
from cuconv.runtime.environment import CHECK, contents_are_checked, variable
from cuconv.runtime.errors import message
from cuconv.runtime.generated import Part
from cuconv.runtime.graphs import Launch
from cuconv.runtime.layout import ALIGNMENT, HOST, Layout, in_bytes
from cuconv.runtime.recogniser import Recogniser
from cuconv.runtime.torch_internals import IN_MODE, Memory, internals

Facts = tuple[Any, ...]
"""Shape, strides, dtype, device and address modulo ALIGNMENT of an array, in its family's own types: equivalent to a
Layout as a key, and cheaper to get."""

untraced: tuple[type, ...] = (np.ndarray,)
"""Array types that torch never traces, so that calls on them need not ask."""

Maker = Callable[[], tuple[Any, int]]
"""Makes an array; returns it and its address."""


class NotPlain(Exception):
    """Raised for tensors that autograd follows or that have no memory, which `cuconv.torch` handles."""


class Family:
    """The arrays of one library."""

    name = ""
    has_host = False
    """Whether its arrays may be on the CPU, where the references compute them."""
    has_float64 = False
    """Whether float64 may stand in for float32 on the CPU, so that derivatives can be checked by differences."""
    stream: Callable[[int], int]
    """The raw handle of the caller's current stream on a device."""
    address: Callable[[Any], int]
    """The address of an array's first element."""

    def inspect(self, arguments: Sequence[str], given: Sequence[Any]) -> tuple[list[int], list[Facts | None]]:
        """The addresses of a call's arrays, without absent ones, and the facts of all, None for an absent one.

        TypeError for an array of another family, ValueError for one that cannot take part. One call inspects all
        arrays, because this is on the path of every call.
        """
        raise NotImplementedError

    recogniser: Callable[[Sequence[Any]], Recogniser | None] | None = None
    """Makes a quicker `inspect` for arrays like those of a call, where the library has one; None where it cannot."""

    def layout(self, argument: str, facts: Facts) -> Layout:
        """The layout for these facts; ValueError when elements are not aligned to their own size."""
        raise NotImplementedError

    def is_writable(self, array: Any) -> bool:
        """Whether the array's elements may be written."""
        return True

    def _reject(self, argument: str, array: Any) -> NoReturn:
        refuse_other_arithmetic(argument, array)
        raise TypeError(message(argument, describe(array), f"a {self.name} array, as the first is"))

    def current(self, device: int) -> Part:
        """Code that has the raw handle of the caller's current stream on a device."""
        return Part("stream(device)", {"stream": self.stream, "device": device})

    def repeated(self, launches: Sequence[Launch], device: int) -> Part:
        """Code that makes these launches on the raw stream `on`, again and again."""
        return graphs.one_by_one(launches)

    def moved(self, given: list[Any], pointers: list[int]) -> Part | None:
        """Code that says whether an array has left its address; None for arrays that never do."""
        values = {"address": self.address, "arrays": given, "pointers": list(pointers)}
        return Part("list(map(address, arrays)) != pointers", values)

    def followed(self, given: list[Any]) -> Part | None:
        """Code that says whether autograd follows one of these arrays at present; None where it never does."""
        return None

    through: Callable[..., Sequence[Any]] | None = None
    """Makes calls on its arrays, from the operation and the arguments of Operation.__call__; None for the ordinary
    way."""

    def maker(self, layout: Layout) -> Maker:
        """A function that makes new arrays with a `dense` layout, on its device."""
        raise NotImplementedError

    def maker_here(self, layout: Layout) -> Callable[[], Any]:
        """A function that makes arrays of this layout while its device is the current one."""
        raise NotImplementedError

    def keep_if_captured(self, array: Any, device: int) -> None:
        """While a graph is captured, keep an array that only the launches use, because the graph may repeat them at any
        time."""

    def to_host(self, array: Any) -> np.ndarray[Any, Any]:
        """A copy of the array's contents; waits for the device."""
        raise NotImplementedError

    def as_numpy(self, array: Any) -> np.ndarray[Any, Any]:
        """A NumPy array over the memory of an array on the CPU."""
        raise NotImplementedError

    is_grad_enabled: Callable[[], bool] | None = None
    """Whether autograd follows calls at present; None for a library without autograd."""
    counts_writes = False
    """Whether `mark_written` has to tell the library that a caller's arrays have new contents."""

    def mark_written(self, written: Sequence[Any]) -> None:
        """Tell the library that a caller's arrays have new contents."""

    def marked(self, written: Sequence[Any]) -> Part | None:
        """Code that tells the library that these arrays have new contents; None where it need not know."""
        return None

    def checks_contents(self) -> bool:
        """Whether CUCONV_CHECK asks for index arrays to be read back and checked."""
        word = variable(CHECK)
        return word is not None and contents_are_checked(word.decode(errors="replace"))

    def load(self, kernel: Any, device: int, defined: tuple[str, ...] = ()) -> Any:
        """A kernel that is ready to be launched."""
        return kernel.load(device, defined)


class PlainFamily(Family):
    """Arrays that have their shapes, strides and dtypes as attributes."""

    def _place(self, array: Any) -> tuple[int, int]:
        """The array's address and device."""
        raise NotImplementedError

    def inspect(self, arguments: Sequence[str], given: Sequence[Any]) -> tuple[list[int], list[Facts | None]]:
        pointers: list[int] = []
        facts: list[Facts | None] = []
        place, known = self._place, _family_of_type
        for array in given:
            if array is None:
                facts.append(None)
                continue
            if known.get(type(array)) is not self and family(array) is not self:
                self._reject(arguments[len(facts)], array)
            pointer, device = place(array)
            pointers.append(pointer)
            facts.append((array.shape, array.strides, array.dtype, device, pointer % ALIGNMENT))
        return pointers, facts


class ByteStrideFamily(PlainFamily):
    """Arrays with strides in bytes: those of NumPy and CuPy."""

    def layout(self, argument: str, facts: Facts) -> Layout:
        shape, strides, dtype, device, offset = facts
        itemsize = dtype.itemsize
        if offset % itemsize or any(stride % itemsize for stride in strides):
            got = f"an address {offset} bytes from a multiple of {ALIGNMENT} and byte strides {strides}"
            raise ValueError(message(argument, got, f"multiples of the {itemsize}-byte element"))
        elements = tuple(stride // itemsize for stride in strides)
        return Layout(shape, elements, BY_NUMPY.get(dtype, str(dtype)), device, offset)


class NumpyFamily(ByteStrideFamily):
    name = "NumPy"
    address = attrgetter("ctypes.data")
    has_host = True

    def _place(self, array: Any) -> tuple[int, int]:
        return array.ctypes.data, HOST

    def maker(self, layout: Layout) -> Maker:
        _, strides = in_bytes(layout.shape, layout.strides, layout.itemsize)
        assert isinstance(layout.dtype, DType)
        dtype = layout.dtype.numpy

        def make() -> tuple[Any, int]:
            array: np.ndarray[Any, Any] = np.ndarray(layout.shape, dtype, strides=strides)
            return array, array.ctypes.data

        return make

    def is_writable(self, array: Any) -> bool:
        writable: bool = array.flags.writeable
        return writable

    def to_host(self, array: Any) -> np.ndarray[Any, Any]:
        return np.asarray(array)

    def as_numpy(self, array: Any) -> np.ndarray[Any, Any]:
        return np.asarray(array)


class CupyFamily(ByteStrideFamily):
    name = "CuPy"
    address = attrgetter("data.ptr")

    def __init__(self) -> None:
        import cupy

        global untraced
        untraced = np.ndarray, cupy.ndarray
        self._cupy, self._ndarray, self._alloc = cupy, cupy.ndarray, cupy.cuda.alloc
        self._current_stream = cupy.cuda.get_current_stream
        self._get_device = cupy.cuda.runtime.getDevice
        self._captured: list[Any] = []

    def inspect(self, arguments: Sequence[str], given: Sequence[Any]) -> tuple[list[int], list[Facts | None]]:
        pointers: list[int] = []
        facts: list[Facts | None] = []
        known = _family_of_type
        for array in given:
            if array is None:
                facts.append(None)
                continue
            if known.get(type(array)) is not self and family(array) is not self:
                self._reject(arguments[len(facts)], array)
            data = array.data
            pointers.append(pointer := data.ptr)
            facts.append((array.shape, array.strides, array.dtype, data.device_id, pointer % ALIGNMENT))
        return pointers, facts

    def recogniser(self, given: Sequence[Any]) -> Recogniser | None:
        # Types that programs define must not be kept alive, and may redefine attributes.
        is_plain = all(array is None or type(array) is self._ndarray for array in given)
        return Recogniser(given, self._recognise, self.address, self.mark_written) if is_plain else None

    def _recognise(self, arrays: Mapping[int, Any]) -> tuple[list[str], dict[str, Any]]:
        lines, values = [], {"ndarray": self._ndarray}
        for n, array in arrays.items():
            lines += [
                f"if type(a{n}) is not ndarray or a{n}.shape != s{n} or a{n}.strides != t{n}: return None",
                f"m{n} = a{n}.data",
                f"if a{n}.dtype is not d{n} or m{n}.device_id != c{n}: return None",
                f"p{n} = m{n}.ptr",
            ]
            facts = array.shape, array.strides, array.dtype, array.data.device_id
            values |= zip((f"s{n}", f"t{n}", f"d{n}", f"c{n}"), facts, strict=True)
        return lines, values

    def maker(self, layout: Layout) -> Maker:
        make_here, device, get_device = self.maker_here(layout), layout.device, self._get_device

        def make() -> tuple[Any, int]:
            if get_device() != device:
                with self._cupy.cuda.Device(device):
                    return make()
            array = make_here()
            return array, array.data.ptr

        return make

    def maker_here(self, layout: Layout) -> Callable[[], Any]:
        assert isinstance(layout.dtype, DType)
        shape, dtype = layout.shape, layout.dtype.numpy
        nbytes, strides = in_bytes(shape, layout.strides, dtype.itemsize)
        if strides is None:
            return partial(self._ndarray, shape, dtype)
        ndarray, alloc = self._ndarray, self._alloc
        # To transpose a new array instead would take 1.5 times as long.
        return lambda: ndarray(shape, dtype, alloc(nbytes), strides)

    def current(self, device: int) -> Part:
        return Part("current_stream(device).ptr", {"current_stream": self._current_stream, "device": device})

    def repeated(self, launches: Sequence[Launch], device: int) -> Part:
        return graphs.repeated(launches, device)

    def moved(self, given: list[Any], pointers: list[int]) -> Part | None:
        # The memory of a CuPy array never changes.
        return None

    def keep_if_captured(self, array: Any, device: int) -> None:
        # torch has a memory pool for every graph; CuPy's pool would hand the memory out again.
        if self._current_stream(device).is_capturing():
            self._captured.append(array)

    def to_host(self, array: Any) -> np.ndarray[Any, Any]:
        copy: np.ndarray[Any, Any] = self._cupy.asnumpy(array)
        return copy

    def stream(self, device: int) -> int:
        pointer: int = self._current_stream(device).ptr
        return pointer


class TorchFamily(Family):
    name = "torch"
    has_host = True
    has_float64 = True
    counts_writes = True

    def __init__(self) -> None:
        torch = sys.modules["torch"]
        self._tensor = torch.Tensor
        self.address, self._empty_strided = torch.Tensor.data_ptr, torch.empty_strided
        # NumPy has no bfloat16 nor 8-bit floats of its own, and so torch gives it none.
        self._bits = {torch.bfloat16: (torch.int16, BFLOAT16.numpy)}
        self._bits[torch.float8_e4m3fn] = torch.uint8, FLOAT8_E4M3FN.numpy
        self._guards, self._modes, self._empty, self._increment_version, self.stream = internals()
        self.recogniser = None if self._guards is None else self._recogniser
        self._is_functional = torch._is_functional_tensor
        self._forward_mode, self._tangents = torch.autograd.forward_ad, torch.autograd.forward_ad.unpack_dual
        self._dtypes = {getattr(torch, name): dtype for name, dtype in BY_NAME.items()}
        self._dtypes[torch.float64] = FLOAT64
        self._torch_dtypes = {dtype: of_torch for of_torch, dtype in self._dtypes.items()}
        self._is_grad_enabled = self.is_grad_enabled = torch.is_grad_enabled
        self._is_in_inference_mode = torch.is_inference_mode_enabled

    def inspect(self, arguments: Sequence[str], given: Sequence[Any]) -> tuple[list[int], list[Facts | None]]:
        pointers: list[int] = []
        facts: list[Facts | None] = []
        tensor, is_grad_enabled = self._tensor, self._is_grad_enabled()
        try:
            for array in given:
                if array is None:
                    facts.append(None)
                    continue
                if type(array) is not tensor and (other := family(array)) is not self:
                    if isinstance(other, DispatchedFamily):
                        raise NotPlain
                    self._reject(arguments[len(facts)], array)
                if is_grad_enabled and array.requires_grad:
                    raise NotPlain
                if array.is_neg():
                    argument = arguments[len(facts)]
                    raise TypeError(message(argument, "a tensor to negate on reading", "its resolve_neg()"))
                pointer = array.data_ptr()
                if pointer == 0 and self._is_functional(array):
                    raise NotPlain
                pointers.append(pointer)
                place = array.get_device(), pointer % ALIGNMENT
                # Tensors that autograd follows, in whatever mode, are recognised by another call than others.
                facts.append((array.shape, array.stride(), array.dtype, *place, array.requires_grad))
        except RuntimeError as error:
            # A tensor without memory of its own, as torch.vmap has them.
            raise NotPlain from error
        if self._forward_mode._current_level >= 0 and any(
            self._tangents(array).tangent is not None for array in given if array is not None
        ):
            raise NotPlain
        return pointers, facts

    def _recogniser(self, given: Sequence[Any]) -> Recogniser | None:
        # Types that programs define must not be kept alive.
        if not _family_of_type.keys() >= {type(tensor) for tensor in given if tensor is not None}:
            return None
        is_followed = any(tensor is not None and tensor.requires_grad for tensor in given)
        inference = {place for place, tensor in enumerate(given) if tensor is not None and tensor.is_inference()}
        mark_written = self.mark_written if inference else self._increment_version
        # In inference mode only inference tensors have these dispatch keys.
        uncounted = frozenset(inference if self._is_in_inference_mode() else ())
        return Recogniser(given, self._recognise, self.address, mark_written, is_followed, uncounted)

    def _recognise(self, tensors: Mapping[int, Any]) -> tuple[list[str], dict[str, Any]]:
        check = self._guards(
            *tensors.values(),
            dynamic_dims_sizes=[list(tensor.shape) for tensor in tensors.values()],
            dynamic_dims_strides=[list(tensor.stride()) for tensor in tensors.values()],
        ).check
        checked = ", ".join(f"a{place}" for place in tensors)
        # Guards ignore the modes of torch's own tracers, such as make_fx.
        lines = [
            f"if forward_mode._current_level >= 0 or modes.{IN_MODE} or not check({checked}): return None",
            *(f"p{place} = address(a{place})" for place in tensors),
        ]
        values = {"check": check, "address": self.address, "forward_mode": self._forward_mode, "modes": self._modes}
        return lines, values

    def repeated(self, launches: Sequence[Launch], device: int) -> Part:
        return super().repeated(launches, device) if device == HOST else graphs.repeated(launches, device)

    def moved(self, given: list[Any], pointers: list[int]) -> Part | None:
        # Each tensor is asked in turn: lists take longer, and so does torch's own C function that compares addresses.
        places = range(len(given))
        values = {f"p{n}": pointers[n] for n in places} | {f"address{n}": given[n].data_ptr for n in places}
        return Part(" or ".join(f"address{n}() != p{n}" for n in places), values)

    def followed(self, given: list[Any]) -> Part | None:
        # Only numbers of these kinds can require grad.
        tensors = {f"a{n}": each for n, each in enumerate(given) if each.is_floating_point() or each.is_complex()}
        if not tensors:
            return None
        asked = " or ".join(f"{name}.requires_grad" for name in tensors)
        return Part(f"is_grad_enabled() and ({asked})", {"is_grad_enabled": self._is_grad_enabled, **tensors})

    def layout(self, argument: str, facts: Facts) -> Layout:
        shape, strides, dtype, device, offset, _ = facts
        known = self._dtypes.get(dtype, str(dtype).removeprefix("torch."))
        return Layout(tuple(shape), tuple(strides), known, device, offset)

    def maker(self, layout: Layout) -> Maker:
        make_here, device, address = self.maker_here(layout), layout.device, self.address
        get_device: Callable[[], int] = int
        if device != HOST:
            from cupy.cuda import runtime

            # It takes half as long as torch's own function.
            get_device = runtime.getDevice
        own = None if self._empty is None else device
        dispatched = self._dispatched_maker(layout)

        def make() -> tuple[Any, int]:
            array = make_here() if get_device() == own else dispatched()
            return array, address(array)

        return make

    def maker_here(self, layout: Layout) -> Callable[[], Any]:
        if self._empty is None:
            return self._dispatched_maker(layout)
        assert isinstance(layout.dtype, DType)
        return partial(self._empty, layout.shape, layout.strides, self._torch_dtypes[layout.dtype])

    def _dispatched_maker(self, layout: Layout) -> Callable[[], Any]:
        assert isinstance(layout.dtype, DType)
        dtype, device = self._torch_dtypes[layout.dtype], "cpu" if layout.device == HOST else f"cuda:{layout.device}"
        return partial(self._empty_strided, layout.shape, layout.strides, dtype=dtype, device=device)

    def to_host(self, array: Any) -> np.ndarray[Any, Any]:
        return self.as_numpy(array.cpu())

    def as_numpy(self, array: Any) -> np.ndarray[Any, Any]:
        if not array.is_cpu:
            raise ValueError(message("device", f"a tensor on {array.device}", "CUDA or the CPU"))
        plain = array.detach()
        if plain.dtype in self._bits:
            of_bits, dtype = self._bits[plain.dtype]
            return np.asarray(Memory(plain.view(of_bits))).view(dtype)
        return np.asarray(Memory(plain))

    def mark_written(self, written: Sequence[Any]) -> None:
        # Autograd cannot notice that a kernel overwrites a tensor through its address. This also matters without grad
        # mode, because the tensor may have been saved for a backward pass before.
        try:
            self._increment_version(written)
        except RuntimeError:
            # Inference tensors have no version.
            self._increment_version(_with_versions(written))

    def marked(self, written: Sequence[Any]) -> Part | None:
        counted = _with_versions(written)
        if not counted:
            return None
        return Part("increment_version(counted)", {"increment_version": self._increment_version, "counted": counted})


def _with_versions(tensors: Sequence[Any]) -> list[Any]:
    """The tensors for which autograd counts writes."""
    return [tensor for tensor in tensors if not tensor.is_inference()]


class DispatchedFamily(Family):
    """Tensor classes that handle operators themselves, such as FakeTensor; they have no memory that could be read."""

    name = "torch"

    def inspect(self, arguments: Sequence[str], given: Sequence[Any]) -> tuple[list[int], list[Facts | None]]:
        raise NotPlain


def _torch_family(kind: type) -> type[Family]:
    torch = sys.modules["torch"]
    is_plain = kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__  # type: ignore[attr-defined]
    return TorchFamily if is_plain else DispatchedFamily


def _torch_is(array: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def _cupy_is(array: Any) -> bool:
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(array, cupy.ndarray)


_families: dict[type[Family], Family] = {}
_families_lock = threading.Lock()
_family_of_type: dict[type, Family] = {}
"""The families of libraries' own array types, which live as long as the process."""
_family_of_subtype: weakref.WeakKeyDictionary[type, Family] = weakref.WeakKeyDictionary()
"""The families of types that programs derive from libraries' types. Slower to look up, but no type is kept alive."""


def _singleton(family: type[Family]) -> Family:
    # Calls compare families by identity, so two threads must not make two.
    with _families_lock:
        if family not in _families:
            _families[family] = family()
        return _families[family]


def register(kind: type, family: type[Family]) -> None:
    """Take the objects of a type as arrays of a family."""
    _family_of_type[kind] = _singleton(family)


def family(array: Any) -> Family | None:
    """The family of an array; None when it must come in through `dlpack.imported`."""
    kind = type(array)
    if (known := _family_of_type.get(kind)) is not None:
        return known
    if (known := _family_of_subtype.get(kind)) is not None:
        return known
    if isinstance(array, np.ndarray) and not _has_other_arithmetic(array):
        found = _singleton(NumpyFamily)
    elif _cupy_is(array):
        found = _singleton(CupyFamily)
    elif _torch_is(array):
        found = _singleton(_torch_family(kind))
    else:
        # Types of other libraries are not remembered: the import of their arrays takes much longer than these tests.
        return None
    if kind.__module__.partition(".")[0] in ("numpy", "cupy", "torch"):
        _family_of_type[kind] = found
    else:
        _family_of_subtype[kind] = found
    return found


def _has_other_arithmetic(array: Any) -> bool:
    """Whether an array is a NumPy matrix, with other products, or has a mask, with other meanings of elements."""
    return isinstance(array, np.matrix | np.ma.MaskedArray)


def refuse_other_arithmetic(argument: str, array: Any) -> None:
    """Raise TypeError for a NumPy matrix and for an array with a mask."""
    if _has_other_arithmetic(array):
        raise TypeError(message(argument, f"a {type(array).__name__}", "a plain NumPy array, as numpy.asarray gives"))


def describe(array: Any) -> str:
    """An argument's kind, for an error."""
    if isinstance(array, type):
        return f"the class {array.__name__}"
    known = family(array)
    return f"a {type(array).__name__}" if known is None else f"a {known.name} array"
