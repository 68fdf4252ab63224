"""A workload's call on NumPy arrays, with everything as it is afterwards: a right runner, to be broken by tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cuconv.bench.makers import called
from cuconv.runtime.workload import Workload
from tests.support.placement import Array


def numpy_path(workload: Workload, arrays: Mapping[str, Array], **options: Any) -> dict[str, Array]:
    """The arguments, some of them updated in place, and the results by their names."""
    results = called(workload)(**{**workload.call(arrays), **options})
    return {**arrays, **workload.named(results)}
