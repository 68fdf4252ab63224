"""Functions of cuconv in the place of an engine's, in modules that stand in for the engine."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from cuconv.engines import _installing, vllm


def replacement(*arguments: Any) -> str:
    return "cuconv"


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType]:
    """A module with a function and one that has imported it by name."""

    def original(*arguments: Any) -> str:
        return "engine"

    package, ops, layer = ModuleType("engine"), ModuleType("engine.ops"), ModuleType("engine.layer")
    package.__path__ = []
    for module in (package, ops, layer):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for module in (ops, layer):
        module.__dict__["conv"] = original
    return ops, layer


def test_whoever_has_imported_the_function_has_the_other_one(engine: tuple[ModuleType, ModuleType]) -> None:
    modules = {"engine.ops": {"conv": replacement, "absent": replacement}, "engine.gone": {"conv": replacement}}
    assert _installing.install(modules) == ("engine.ops.conv",)
    assert [module.__dict__["conv"]() for module in engine] == ["cuconv", "cuconv"]
    assert _installing.install(modules) == ()


def test_an_engine_that_is_not_there_has_nothing_replaced() -> None:
    assert _installing.install({"no_such_engine.ops": {"conv": replacement}}) == ()


def test_a_module_of_the_engine_that_fails_to_import_says_so(
    engine: tuple[ModuleType, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(path: str) -> ModuleType:
        raise ModuleNotFoundError("No module named 'other'", name="other")

    monkeypatch.setattr(_installing.importlib, "import_module", missing)
    with pytest.raises(ModuleNotFoundError, match="other"):
        _installing.install({"engine.ops": {"conv": replacement}})


def test_a_function_of_a_version_that_means_something_else_stays_as_it_is(
    engine: tuple[ModuleType, ModuleType],
) -> None:
    def older(x: Any, pad_slot_id: int = -1) -> str:
        return "older"

    def ours(x: Any, null_block_id: int = 0) -> str:
        return "cuconv"

    ops, _ = engine
    ops.__dict__["update"] = older
    modules = {"engine.ops": {"conv": replacement, "update": ours}}
    with pytest.warns(RuntimeWarning, match=r"engine\.ops\.update has no null_block_id, and is not replaced"):
        assert _installing.install(modules, "null_block_id") == ("engine.ops.conv",)
    assert ops.__dict__["update"] is older


@pytest.mark.filterwarnings("error")
def test_aphrodite_gets_vllm_s_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    path = "aphrodite.model_executor.layers.mamba.ops.causal_conv1d"
    names = path.split(".")
    for end in range(1, len(names) + 1):
        module = ModuleType(".".join(names[:end]))
        module.__path__ = []
        monkeypatch.setitem(sys.modules, module.__name__, module)
    module.__dict__["causal_conv1d_update"] = lambda x, conv_state, null_block_id=0: None
    assert f"{path}.causal_conv1d_update" in vllm.install()
    assert module.__dict__["causal_conv1d_update"] is vllm.causal_conv1d_update
