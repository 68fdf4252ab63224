"""The wording of all argument errors: the argument, the value given, and the value wanted."""

from collections.abc import Iterable


def message(argument: str, got: object, wanted: object) -> str:
    """The text of an argument error."""
    return f"{argument}: got {got}; wanted {wanted}"


def one_of(choices: Iterable[object]) -> str:
    """Choices as prose: `one of float32, float16`."""
    items = [str(choice) for choice in choices]
    return items[0] if len(items) == 1 else f"one of {', '.join(items)}"
