"""Conditions for what no comparison of values tells: whose memory, which object, which device."""

from __future__ import annotations

import re

from conformance.comparison import Difference, Verdict


def pointed_at(difference: Difference) -> tuple[str, str] | None:
    """Return a condition that is false where there is the difference, and what to say then.

    None for differences that a script's comparison finds by itself, and for those that no condition
    on one answer tells.

    >>> pointed_at(Difference(Verdict.DEVICE, "result.device", None, "cuda", "cpu"))[0]
    "torch.device(result.device).type == 'cpu'"
    """
    condition = None
    if difference.verdict is Verdict.DEVICE:
        condition = f"torch.device({difference.path}).type == {difference.expected!r}"
    elif difference.verdict is Verdict.TYPE and difference.expected in {"Tensor", "ndarray"}:
        condition = f"{difference.path}.__name__ == {difference.expected!r}"
    elif difference.verdict is Verdict.IDENTITY:
        condition = _identity(difference.path, str(difference.got), str(difference.expected))
    return None if condition is None else (condition, difference.line)


def _identity(path: str, got: str, wanted: str) -> str | None:
    """Return the condition of a difference of identity."""
    alias = re.fullmatch(r"(the same object|a view) \(of (.*)\)", wanted)
    owner = re.fullmatch(r"(.*) itself, or a view of it", got)
    if alias is not None:
        is_same = alias[1] == "the same object"
        return f"{path} is {alias[2]}" if is_same else f"{_memory(path)} == {_memory(alias[2])}"
    if owner is not None:
        shares = f"hasattr({path}, 'untyped_storage') and {_memory(path)} == {_memory(owner[1])}"
        return f"{path} is not {owner[1]} and not ({shares})"
    if got == "the memory of another call's result":
        again = path.replace("result", "answer(impl, tensor)['result']", 1)
        return f"{_memory(path)} != {_memory(again)}"
    return f"0 not in {path}.stride()" if got == "one element repeated" else None


def _memory(expression: str) -> str:
    return f"{expression}.untyped_storage().data_ptr()"
