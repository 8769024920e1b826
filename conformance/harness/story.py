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
    """The first difference between a target and `reference`."""

    where: str  # an expression: `result[2].seq_lens`, `out`, `gc.isenabled()`
    got: Any  # what the target has there: a tensor, an array, a value, an exception
    expected: Any  # what `reference` has there
    kind: str  # a few words: "wrong value", "wrong dtype", "writes to an argument"
    verdict: Verdict = Verdict.WRONG_ANSWER  # what the failure is
    # The index of the first element that differs, if they are arrays of one shape.
    index: tuple[int, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Circumstances:
    """Where the memory of a call lies, and how the call is made."""

    # Names in `memory.LAYOUTS`; array k of the call has the k-th, in turn.
    layouts: tuple[str, ...] = ("dense",)
    is_negated: bool = False  # whether tensors are lazy negations (`torch._neg_view`)
    has_numpy_scalars: bool = False  # whether ints are NumPy's
    is_positional: bool = False  # whether arguments are passed by position
    is_checked: bool = False  # whether `fast` is in checked mode
    mode: str = ""  # a name in `pair.MODES`
    objects: str = ""  # whose classes lists and objects are of: a name in `pair.OBJECTS`


@dataclasses.dataclass(frozen=True)
class Story:
    """One example."""

    function: str  # the function, or `Class.method`
    arguments: Arguments  # the arguments of the call, as `reference` takes them
    # The arguments of a second valid call, of which conditions make use.
    other: Arguments | None = None
    circumstances: Circumstances = Circumstances()  # where memory lies, and how the call is made
    conditions: tuple[str, ...] = ()  # names in `conditions.CONDITIONS`, one after the other
    seed: int = 0  # of what conditions choose by themselves
    # For a refusal: the path of the one place that was changed, such as `("common_attn_metadata",
    # "seq_lens")`, or `()` for several; None for a valid call.
    changed: tuple[Any, ...] | None = None
    is_loose: bool = False  # for a refusal: whether the messages of exceptions may differ

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        """Leave it to `show`: Hypothesis would read fields that a refusal has removed."""
        printer.text("the story above")


class Failure(AssertionError):  # noqa: N818  # a finding, not an error of the program
    """A target does not do what `reference` does."""

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
        self.needs_circumstances = False  # whether an ordinary call with these arguments is right
        self.others: list[Failure] = []  # of other causes, found by the same test
        super().__init__(f"{difference.where} = {difference.got!r}, not {difference.expected!r}")
