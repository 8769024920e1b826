"""One case: draw an input, run the check on it, and record how to draw it again.

An input is a seed and a prefix of choices, Hypothesis' record of its draws. The same seed and
prefix give the same input. Once the input is drawn, all of its choices are known, and the seed is
no longer needed.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import random
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from typing import Any, Final

from hypothesis.database import choices_from_bytes, choices_to_bytes
from hypothesis.errors import StopTest, UnsatisfiedAssumption
from hypothesis.internal.conjecture.choice import ChoiceT
from hypothesis.internal.conjecture.data import ConjectureData

from conformance.coverage.goals import COVERAGE
from conformance.generation.choice_data import ChoiceContext, ChoiceData
from conformance.generation.hypothesis_provider import FreshProvider
from conformance.targets.implementations import Absent
from conformance.targets.target import LOOKED_UP, RAISED
from kvtwin.fuzz.cases.properties import Property

_JSON_TYPES: Final = frozenset({bool, int})


@dataclasses.dataclass(frozen=True)
class Input:
    """How a case of a property is drawn.

    Attributes:
        property_name: The name of the property.
        seed: The seed of all draws after the prefix.
        prefix: The first choices.
    """

    property_name: str
    seed: int
    prefix: tuple[ChoiceT, ...] = ()

    def to_bytes(self) -> bytes:
        """Return it as bytes, to be recorded before the case runs.

        Ints and bools, which nearly all choices are, are written as JSON: Hypothesis' own format
        takes 1.5% of the time of a night.
        """
        is_json = _JSON_TYPES.issuperset(map(type, self.prefix))
        prefix = self.prefix if is_json else b64encode(choices_to_bytes(self.prefix)).decode()
        return json.dumps([self.property_name, self.seed, prefix]).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Input:
        """Return the input that `to_bytes` wrote.

        Raises:
            ValueError: Bytes in another format.

        >>> Input.from_bytes(Input("a", 3, (1, True)).to_bytes())
        Input(property_name='a', seed=3, prefix=(1, True))
        """
        name, seed, prefix = json.loads(data)
        choices = prefix if isinstance(prefix, list) else choices_from_bytes(b64decode(prefix))
        if choices is None:
            raise ValueError(f"{prefix!r} is not a record of choices")
        return cls(name, seed, tuple(choices))


def readable_input(data: bytes) -> Input | None:
    """Return the input that `Input.to_bytes` wrote; None if it was cut, or has another format.

    >>> print(readable_input(b"[1"))
    None
    """
    try:
        return Input.from_bytes(data)
    except (ValueError, TypeError):
        return None


class Status(enum.Enum):
    """The result of a case."""

    PASSED = "passed"
    INVALID = "invalid"
    FAILED = "failed"


@dataclasses.dataclass(frozen=True)
class Case:
    """A case that ran.

    Attributes:
        status: Its result.
        choices: All of its draws.
        example: The example that the property's strategy drew; None if that failed.
        goals: The coverage goals that it met.
        error: The exception with which it failed; None if it did not fail.
        used: The functions that it looked up in the target.
    """

    status: Status
    choices: tuple[ChoiceT, ...] = ()
    example: Any = None
    goals: Sequence[str] = ()
    error: BaseException | None = None
    used: frozenset[str] = frozenset()

    @property
    def raised(self) -> BaseException:
        """The exception of a failed case.

        Raises:
            ValueError: It did not fail.
        """
        if self.error is None:
            raise ValueError(f"the case {self.status.value}")
        return self.error


def run_case(
    prop: Property,
    input_: Input,
    note: Callable[[bytes], None] = lambda _: None,
) -> Case:
    """Pass an input to `note`, draw it, and check it."""
    note(input_.to_bytes())
    chance = random.Random(input_.seed)  # noqa: S311  # no secret
    data = ChoiceData(random=chance, provider=FreshProvider, prefix=input_.prefix)
    return run_data(prop, data)


def run_data(
    prop: Property,
    data: ConjectureData,
    note: Callable[[bytes], None] = lambda _: None,
) -> Case:
    """Draw an example from Hypothesis' data, and check it; see `run_case`.

    The choices are passed to `note` before the check. A stateful test draws while it runs, and
    notes nothing.
    """
    example: Any = None
    error: BaseException | None = None
    is_drawn = False
    status = Status.PASSED
    LOOKED_UP.clear()
    with ChoiceContext(data, is_final=False, wrapped_test=prop.run):
        try:
            example = data.draw(prop.strategy)
            is_drawn = True
            COVERAGE.reached.clear()  # filled by checks that find goals while they run
            if not prop.is_stateful:
                note(Input(prop.name, 0, tuple(data.choices)).to_bytes())
            prop.run(example)
        except (StopTest, UnsatisfiedAssumption, Absent):
            status = Status.INVALID
        except RAISED as raised:
            if prop.target.excuses(prop.check.function, raised):
                status = Status.INVALID
            else:
                status, error = Status.FAILED, raised
    goals: tuple[str, ...] = ()
    if is_drawn:
        reached = sorted({name for _, name in COVERAGE.reached})
        goals = (*prop.goals_of(example), *reached)
    return Case(status, tuple(data.choices), example, goals, error, frozenset(LOOKED_UP))
