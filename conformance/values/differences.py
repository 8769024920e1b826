"""Differences between an actual and an expected answer, classified as one of three findings.

A run reports the three findings separately, and by default fails only for wrong answers.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable
from pathlib import Path
from typing import Final, TypeAlias

import reference

Index: TypeAlias = tuple[int, ...]


class Finding(enum.Enum):
    """What is wrong with an implementation, the most severe first."""

    WRONG_ANSWER = "wrong answer"
    MISSING_REFUSAL = "missing refusal"
    OTHER_DIFFERENCE = "other difference"

    @property
    def weight(self) -> int:
        """Its severity: a higher number is worse."""
        return -list(Finding).index(self)

    @property
    def plural(self) -> str:
        """The plural of its name."""
        return f"{self.value}s"


class Verdict(enum.Enum):
    """The kinds of differences, in the order in which they are checked."""

    OUTCOME = "outcome"
    TYPE = "type"
    SHAPE = "shape"
    STRIDES = "strides"
    DTYPE = "dtype"
    DEVICE = "device"
    IDENTITY = "identity"
    PLACE = "place"
    VALUE = "value"
    WORDING = "wording of the refusal"
    CHANGE = "change"


REFERENCE_FOLDER: Final = str(Path(reference.__file__).parent)
"""The folder of the definitions."""

APART_FROM_VALUES: Final = frozenset(
    {Verdict.TYPE, Verdict.DTYPE, Verdict.DEVICE, Verdict.IDENTITY, Verdict.WORDING}
)
"""Verdicts of an answer whose values are right."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """The first place where an answer is not the expected one.

    If outcomes differ, `got` and `expected` describe what the call did and should do:
    "raised TypeError: ..." and "return a result".

    Attributes:
        verdict: The kind of difference.
        path: The field, as an expression on the result: `result[1].seq_lens`, `result.dtype`.
        index: The index of the element, if the field is an array and its values differ.
        got: The target's value there.
        expected: The value of `reference` there.
        context: More report lines, such as how many elements differ.
    """

    verdict: Verdict
    path: str
    index: Index | None
    got: object
    expected: object
    context: tuple[str, ...] = dataclasses.field(default=(), compare=False)

    @property
    def line(self) -> str:
        """The message: `field[index] = got, but should be expected`."""
        got, expected = (_shown(value) for value in (self.got, self.expected))
        if self.verdict is Verdict.OUTCOME:
            return f"{self.path} {got}, but should {expected}"
        return f"{self.place} = {got}, but should be {expected}"

    @property
    def finding(self) -> Finding:
        """The finding that it counts as.

        >>> Difference(Verdict.VALUE, "result", (2,), 9, 8).finding
        <Finding.WRONG_ANSWER: 'wrong answer'>
        """
        if self.verdict is Verdict.OUTCOME:
            got, is_invalid = str(self.got), str(self.expected).startswith("raise ")
            if is_invalid and got.startswith("returned"):
                return Finding.MISSING_REFUSAL
            is_refused = is_invalid and got.startswith("raised")  # otherwise it crashed
            return Finding.OTHER_DIFFERENCE if is_refused else Finding.WRONG_ANSWER
        is_right = self.verdict in APART_FROM_VALUES
        return Finding.OTHER_DIFFERENCE if is_right else Finding.WRONG_ANSWER

    @property
    def place(self) -> str:
        """The field, and its element."""
        index = "" if self.index is None else f"[{', '.join(map(str, self.index))}]"
        return f"{self.path}{index}"


def _shown(value: object) -> str:
    """Return a value as text, with quotes where white space would be invisible."""
    text = str(value)
    return text if text == text.strip() != "" else repr(text)


def raised(error: BaseException) -> str:
    """Return the `got` of an outcome for a call that raised.

    >>> raised(ValueError("longest is 9"))
    'raised ValueError: longest is 9'
    """
    return f"raised {type(error).__name__}: {error}"


def most_severe(differences: Iterable[Difference | None]) -> Difference | None:
    """Return the first difference that is a wrong answer, or else the first one.

    >>> wrong = Difference(Verdict.VALUE, "result", (2,), 9, 8)
    >>> most_severe(
    ...     [None, Difference(Verdict.TYPE, "type(result)", None, "list", "tuple"), wrong]
    ... ).line
    'result[2] = 9, but should be 8'
    """
    first = None
    for difference in differences:
        if difference is not None and difference.finding is Finding.WRONG_ANSWER:
            return difference
        first = first or difference
    return first


def finding_of(error: BaseException) -> Finding:
    """Return the finding that a test failure counts as.

    Laws pass results to `reference`. If that raises `TypeError`, a result has another type, which
    the plain comparison of answers reports too.
    """
    finding = getattr(error, "finding", None)
    if isinstance(finding, Finding):
        return finding
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    file = "" if frame is None else frame.tb_frame.f_code.co_filename
    is_about_a_type = isinstance(error, TypeError) and file.startswith(REFERENCE_FOLDER)
    return Finding.OTHER_DIFFERENCE if is_about_a_type else Finding.WRONG_ANSWER
