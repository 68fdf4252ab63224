"""The dtype table: the element types that kernels read and write, and their names in each language."""

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np


@dataclass(frozen=True, eq=False)
class DType:
    """One element type: its name in NumPy, CuPy and torch alike, its C++ type and its size in bytes."""

    name: str
    cpp: str
    itemsize: int
    numpy: np.dtype[Any]

    def __str__(self) -> str:
        return self.name


FLOAT32 = DType("float32", "float", 4, np.dtype(np.float32))
FLOAT16 = DType("float16", "__half", 2, np.dtype(np.float16))
BFLOAT16 = DType("bfloat16", "__nv_bfloat16", 2, np.dtype(ml_dtypes.bfloat16))
INT32 = DType("int32", "int", 4, np.dtype(np.int32))
INT64 = DType("int64", "long long", 8, np.dtype(np.int64))
INT16 = DType("int16", "short", 2, np.dtype(np.int16))
INT8 = DType("int8", "signed char", 1, np.dtype(np.int8))
FLOAT8_E4M3FN = DType("float8_e4m3fn", "float8_e4m3fn", 1, np.dtype(ml_dtypes.float8_e4m3fn))
BOOL = DType("bool", "bool", 1, np.dtype(np.bool_))
BYTE = DType("uint8", "unsigned char", 1, np.dtype(np.uint8))
FLOAT64 = DType("float64", "double", 8, np.dtype(np.float64))
"""No kernel reads it; it may replace float32 where the references compute torch tensors."""

FLOATS = (FLOAT32, FLOAT16, BFLOAT16)
CODES = (INT16, INT8, FLOAT8_E4M3FN)
"""The dtypes of codes, which stand for numbers as multiples of a scale."""
STATES: tuple[DType, ...] = FLOATS + CODES
"""The dtypes that states are kept in."""
INDICES = (INT32, INT64)

TABLE = (*FLOATS, *CODES, *INDICES, BOOL, BYTE)
BY_NAME = {dtype.name: dtype for dtype in TABLE}
BY_NUMPY = {dtype.numpy: dtype for dtype in TABLE}
