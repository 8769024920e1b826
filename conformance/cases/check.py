"""Reads stored cases of any kind, and makes checks that replay them on a target."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from conformance.cases.compared import contract_of, decode_example, replay_call, replay_example
from conformance.cases.recorded import read_recorded, replay_recorded
from conformance.checks.registry import find_contract
from conformance.contracts.check import Check, numbers_for
from conformance.coverage.goals import COVERAGE
from conformance.encoding import Json, decode_call, read_json
from conformance.generation.profiles import Kind
from conformance.strategies import cached as st
from conformance.targets.target import RAISED, Target


@dataclasses.dataclass(frozen=True)
class CaseCheck(Check):
    """The check of one stored case, which is its only example.

    Attributes:
        name: The name of its test, `compute_slot_mapping/answer-003`.
        path: The file; None if the case is not in a file.
    """

    name: str = ""
    path: Path | None = None

    @classmethod
    def of(
        cls,
        function: str,
        name: str,
        kind: Kind,
        description: str,
        body: Callable[[Target], None],
        path: Path | None = None,
    ) -> CaseCheck:
        """Return the check of a case whose test on a target is `body`."""

        def run(target: Target, _: object) -> None:
            __tracebackhide__ = True
            body(target)

        return cls(function, kind, lambda _: st.nothing(), run, description, name=name, path=path)

    def sizes(self, target: Target) -> list[str]:
        """Return the only size."""
        del target
        return ["stored"]

    def runs_on(self, target: Target) -> bool:
        """Return whether a target can replay it; a refusal needs one that validates."""
        return target.validates or self.kind is not Kind.SAME_REFUSAL

    def bind(self, target: Target, *_: object, **__: object) -> Callable[[], None]:
        """Return a test of this case on a target; see `Check.bind`."""

        def run() -> None:
            __tracebackhide__ = True
            COVERAGE.count(self.function, target.name, ())
            with numbers_for(target):
                self.body(target, None)

        run.__name__ = run.__qualname__ = re.sub(r"\W", "_", self.name)
        run.__doc__ = self.description
        return run


def replay(case: Json, target: Target, function: str = "") -> None:
    """Raise if a target fails a stored case, except for declared deviations.

    `function` is that of a test vector's contract; by default, the one in the case.
    """
    __tracebackhide__ = True
    if case["kind"] == "example":
        replay_example(case, target)
    elif case["kind"] == "call":
        replay_call(case, target)
    else:
        function = function or case["function"]
        try:
            replay_recorded(case, target, find_contract(function))
        except RAISED as error:
            if not target.excuses(function, error):
                raise


REFUSED = (
    *(ArithmeticError, AttributeError, LookupError, MemoryError),
    *(RecursionError, TypeError, ValueError),
)
"""What decoding a damaged file may raise."""


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn an error inside into a ValueError of one line that names the damaged file."""
    try:
        yield
    except REFUSED as error:
        message = (str(error).splitlines() or [""])[0]
        if str(path) in message:
            raise
        raise ValueError(f"{path} is damaged: {type(error).__name__}: {message}") from error


def read_case(path: Path) -> Json:
    """Return the stored case of a file, after decoding all of it.

    Raises:
        ValueError: The file is missing, damaged, or not a stored case.
    """
    with reading(path):
        case = read_json(path)
        if case["kind"] == "call":
            contract_of(case["contract"])
            decode_call(case)
        elif case["kind"] == "example":
            decode_example(case)
        else:
            read_recorded(case)
    return case


def case_check(
    path: Path, case: Json, *, name: str = "", function: str = "", about: str = ""
) -> CaseCheck:
    """Return the check that replays the case of a file.

    Args:
        path: The file, which is read again when the check runs: a folder of cases may be large.
        case: Its content.
        name: The name of the test; by default that of the file.
        function: The function of its contract; by default that of the case or of its folder.
        about: Its description; by default the reason or the invalid input in the case.
    """
    function = function or case.get("contract") or _contract_of_folder(path, case)

    def body(target: Target) -> None:
        __tracebackhide__ = True
        replay(read_json(path), target, function)

    about = about or case.get("reason") or case.get("refusal", {}).get("what", "")
    kinds = {"example": Kind.LAW, "refusal": Kind.SAME_REFUSAL}
    kind = kinds.get(case["kind"], Kind.SAME_ANSWER)
    return CaseCheck.of(function, name or path.stem, kind, about, body, path)


def _contract_of_folder(path: Path, case: Json) -> str:
    """Return the function of a test vector's contract, by which its folder is named."""
    folder = path.resolve().parent.name
    return folder if find_contract(folder) else str(case["function"])
