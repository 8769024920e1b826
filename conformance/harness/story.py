"""Stories: a call of both twins, where its memory lies, and what else happens."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

from conformance.harness.contract import Arguments


class Verdict(enum.Enum):
    """What a failure is; the status of a run follows wrong answers alone, unless it is strict."""

    WRONG_ANSWER = "wrong answer"
    ROBUSTNESS = "robustness"
    MISSING_REFUSAL = "missing refusal"
    OTHER = "other difference"


@dataclasses.dataclass(frozen=True)
class Difference:
    """The first difference between a target and `reference`.

    Attributes:
        where: An expression: `result[2].seq_lens`, `out`, `gc.isenabled()`.
        got: What the target has there: a tensor, an array, a value, an exception.
        expected: What `reference` has there.
        kind: A few words: "wrong value", "wrong dtype", "writes to an argument".
        verdict: What the failure is.
        index: The index of the first element that differs, if they are arrays of one shape.
    """

    where: str
    got: Any
    expected: Any
    kind: str
    verdict: Verdict = Verdict.WRONG_ANSWER
    index: tuple[int, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Circumstances:
    """Where the memory of a call lies, and how the call is made.

    Attributes:
        layouts: Names in `memory.LAYOUTS`; array k of the call has the k-th, in turn.
        is_negated: Whether tensors are lazy negations (`torch._neg_view`).
        has_numpy_scalars: Whether ints are NumPy's.
        is_positional: Whether arguments are passed by position.
        is_checked: Whether `fast` is in checked mode.
        mode: A name in `pair.MODES`.
        objects: Whose classes lists and objects are of: a name in `pair.OBJECTS`.
    """

    layouts: tuple[str, ...] = ("dense",)
    is_negated: bool = False
    has_numpy_scalars: bool = False
    is_positional: bool = False
    is_checked: bool = False
    mode: str = ""
    objects: str = ""


@dataclasses.dataclass(frozen=True)
class Story:
    """One example.

    Attributes:
        function: The function, or `Class.method`.
        arguments: The arguments of the call, as `reference` takes them.
        other: The arguments of a second valid call, of which conditions make use.
        circumstances: Where memory lies, and how the call is made.
        conditions: Names in `conditions.CONDITIONS`, one after the other.
        seed: Of what conditions choose by themselves.
        changed: For a refusal: the path of the one place that was changed, such as
            `("common_attn_metadata", "seq_lens")`, or `()` for several; None for a valid call.
        is_loose: For a refusal: whether the messages of exceptions may differ.
    """

    function: str
    arguments: Arguments
    other: Arguments | None = None
    circumstances: Circumstances = Circumstances()
    conditions: tuple[str, ...] = ()
    seed: int = 0
    changed: tuple[Any, ...] | None = None
    is_loose: bool = False

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        """Leave it to `show`: Hypothesis would read fields that a refusal has removed."""
        printer.text("the story above")


class Failure(AssertionError):  # noqa: N818  # a finding, not an error of the program
    """A target does not do what `reference` does.

    Args:
        story: The example.
        target: The name of the target.
        difference: The first difference.
        condition: What was needed for it, in a few words; empty if the call alone shows it.
        arguments: Those of the call that shows it, if it is another one than the story's.
    """

    def __init__(
        self,
        story: Story,
        target: str,
        difference: Difference,
        condition: str = "",
        arguments: Arguments | None = None,
    ) -> None:
        self.story, self.target = story, target
        self.arguments = story.arguments if arguments is None else arguments
        self.difference, self.condition = difference, condition
        super().__init__(f"{difference.where} = {difference.got!r}, not {difference.expected!r}")
