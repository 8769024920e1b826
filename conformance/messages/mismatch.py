"""The error for a wrong answer of a target, and its message: the difference and the call."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, Final

from conformance.messages.call_table import definition_of, render
from conformance.messages.formatting import INDENT, WIDTH, around_difference
from conformance.messages.places import describe_place
from conformance.values.call import Call
from conformance.values.differences import Difference, Verdict

CALLED_WITH: Final = "called with"

TITLES: Final = {
    Verdict.TYPE: "wrong type",
    Verdict.SHAPE: "wrong shape",
    Verdict.STRIDES: "wrong strides",
    Verdict.DTYPE: "wrong dtype",
    Verdict.DEVICE: "wrong device",
    Verdict.IDENTITY: "wrong object or memory",
    Verdict.PLACE: "wrong place in memory",
    Verdict.VALUE: "wrong value",
    Verdict.WORDING: "wrong error message",
    Verdict.CHANGE: "changes an argument that it must not change",
}
"""What is wrong, by verdict, as reports describe it."""

KEPT_ALIVE: Final = "kept alive"
"""The `got` of a difference for an object that should have been freed."""


class Mismatch(AssertionError):  # noqa: N818  # it is a verdict about a target, not a program's error
    """Raised for an answer that differs from that of `reference`.

    Args:
        call: The call, shrunk.
        target: The name of the target.
        difference: The first difference.
        condition: The condition under which it was called, if any: "after refused calls".
        title: What is wrong, in a few words; None for `title_of(difference)`.

    Attributes:
        title: What is wrong.
        variant: The `CallVariant` with which it was called; None for that of the example.
        explain: Yields more lines, which take longer to compute; None if there are none.
    """

    def __init__(
        self,
        call: Call,
        target: str,
        difference: Difference,
        condition: str = "",
        title: str | None = None,
    ) -> None:
        self.call, self.target, self.difference = call, target, difference
        self.condition = condition
        self.title = title or title_of(difference)
        self.variant: Any = None
        self.explain: Callable[[], Iterator[str]] | None = None
        self.finding = difference.finding
        under = f", {condition}" if condition else ""
        where = describe_place(call, difference)
        lines = difference_lines(difference, f"  ({where})" if where else "")
        rendered = render(call, difference)
        super().__init__(
            "\n".join(
                [
                    f"{call.function} on {target}{under}: {self.title}",
                    *(f"{INDENT}{line}" for line in lines),
                    *_meaning(call, difference),
                    *(f"{INDENT}{line}" for line in difference.context),
                    *([CALLED_WITH, rendered] if rendered else []),
                ]
            )
        )


def title_of(difference: Difference) -> str:
    """Return what is wrong, in a few words."""
    if difference.verdict is Verdict.CHANGE and difference.path.startswith("memory around"):
        return "writes outside an argument"
    if difference.got == KEPT_ALIVE:
        return "keeps an argument or a result alive"
    if difference.verdict is not Verdict.OUTCOME:
        return TITLES[difference.verdict]
    got = str(difference.got)
    if got.startswith("returned"):
        return "no error for an invalid call"
    if not got.startswith("raised"):
        return "a hang" if "did not return within" in got else "a crash"
    return "an error" if str(difference.expected).startswith("return") else "wrong error"


def difference_lines(difference: Difference, where: str = "") -> list[str]:
    """Return the actual and the expected value, on two lines if they are long.

    >>> difference_lines(Difference(Verdict.VALUE, "result", (2,), 9, 8), "  (token 2)")
    ['result[2] = 9, but should be 8  (token 2)']
    """
    if len(difference.line) + len(where) <= WIDTH - len(INDENT):
        return [difference.line + where]
    if where and len(difference.line) <= WIDTH - len(INDENT):
        return [difference.line, where.strip()]
    got, expected = around_difference(str(difference.got), str(difference.expected))
    is_outcome = difference.verdict is Verdict.OUTCOME
    lines = [
        f"{difference.path} {got}" if is_outcome else f"{difference.place} = {got}{where}",
        f"but should {expected}" if is_outcome else f"but should be {expected}",
    ]
    return [
        part
        for line in lines
        for text in line.splitlines()
        for part in textwrap.wrap(text, WIDTH - 2 * len(INDENT), subsequent_indent=INDENT)
    ]


def _meaning(call: Call, difference: Difference) -> Iterator[str]:
    """Yield the definition of the result, if that is a single value and wrong."""
    if (difference.verdict, difference.path, difference.index) != (Verdict.VALUE, "result", None):
        return
    returns = (inspect.getdoc(definition_of(call)) or "").partition("\nReturns:\n")[2]
    sentence = re.match(r"\s*(.*?\.)(?=\s|$)", returns, re.DOTALL)
    if sentence:
        text = f"definition of the result: {' '.join(sentence[1].split())}"
        yield from textwrap.wrap(text, WIDTH, initial_indent=INDENT, subsequent_indent=2 * INDENT)
