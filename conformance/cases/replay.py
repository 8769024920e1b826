"""Replays stored cases on a target, and makes the checks of the corpus and of `--replay`."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from conformance.cases.store import (
    CORPUS,
    already_invalid,
    check_of,
    contract_of,
    decode_call,
    decode_refusal,
    folder_for,
    read_json,
)
from conformance.cases.values import Decoder, Json
from conformance.checks.contract_checks import ValidExample, same_answer, same_refusal
from conformance.contracts.check import Check, numbers_for
from conformance.contracts.contract import ANY_NAME, Contract, InvalidInput
from conformance.coverage.goals import COVERAGE
from conformance.execution.invocations import CallVariant, Invocation
from conformance.generation.profiles import Kind, Profile
from conformance.harness.plugin import is_story
from conformance.strategies import cached as st
from conformance.targets.target import RAISED, REFERENCE, Target
from conformance.values.aliases import Alias
from conformance.values.call import Arguments, Call

TRIES = Profile("corpus", 8, 4)
"""The profile of a replayed call, which is repeated in different call variants."""

REFUSED = (
    *(ArithmeticError, AttributeError, LookupError, MemoryError),
    *(RecursionError, TypeError, ValueError),
)
"""What decoding a damaged file may raise."""


@dataclasses.dataclass(frozen=True)
class CaseCheck(Check):
    """The check of one stored case, which is its only example.

    Attributes:
        name: The name of its test, `corpus/get_dcp_local_seq_lens-1cd2fdf6`.
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


def case_check(path: Path, name: str = "", *, decodes: bool = True) -> CaseCheck:
    """Return the check that replays the case of a file.

    Args:
        path: The file, which is read again when the check runs: a folder of cases may be large.
        name: The name of the test; by default that of the file.
        decodes: Whether all of it is decoded now, for which modules of contracts are imported.

    Raises:
        ValueError: The file is missing, damaged, or not a stored case.
    """
    with _reading(path):
        case = read_json(path)
        if decodes:
            _decoded(case)
        kind = Kind.LAW if case["kind"] == "example" else Kind.SAME_ANSWER
        if "refusal" in case:
            kind = Kind.SAME_REFUSAL
        function, about = str(case["contract"]), str(case["reason"])

    def body(target: Target) -> None:
        __tracebackhide__ = True
        replay(read_json(path), target)

    return CaseCheck.of(function, name or path.stem, kind, about, body, path)


def corpus_checks(directory: Path | None = None) -> list[CaseCheck]:
    """Return the checks of a corpus; they run before all others.

    Args:
        directory: The corpus; None for this project's, followed by the folder in which
            `--corpus-add` stores cases if the package is installed.

    Raises:
        ValueError: A file is not a stored case.
    """
    folders = [CORPUS, folder_for(CORPUS)] if directory is None else [directory]
    paths = [path for folder in dict.fromkeys(folders) for path in sorted(folder.glob("*.json"))]
    paths = [path for path in paths if not is_story(path)]
    return [case_check(path, f"corpus/{path.stem}", decodes=False) for path in paths]


def replayed_checks(path: Path) -> list[CaseCheck]:
    """Return the checks of `--replay`: of a file, or of all cases in a folder.

    Raises:
        ValueError: A file is not a stored case, or the folder has none.
    """
    if not path.is_dir():
        return [] if is_story(path) else [case_check(path)]
    files = [file for file in sorted(path.rglob("*.json")) if file.name != "index.json"]
    paths = [file for file in files if not is_story(file)]
    if not files:
        raise ValueError(f"{path} has no cases")
    return [case_check(one, str(one.relative_to(path).with_suffix(""))) for one in paths]


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn an error inside into a ValueError of one line that names the damaged file."""
    try:
        yield
    except REFUSED as error:
        message = (str(error).splitlines() or [""])[0]
        if str(path) in message:
            raise
        raise ValueError(f"{path} is damaged: {type(error).__name__}: {message}") from error


def _decoded(case: Json) -> tuple[Check, Any] | tuple[Contract, Call]:
    """Return the check and the example of a case, or the contract and the call."""
    # First the check or contract: its import loads the classes that the case names.
    if case["kind"] == "example":
        return check_of(case["check"]), Decoder().decode(case["example"])
    if case["kind"] != "call":
        raise ValueError(f"kind is {case['kind']!r}, expected call or example")
    if "refusal" in case:
        decode_refusal(case["refusal"])
    CallVariant(**dict.fromkeys(case.get("variant", ()), True))
    return contract_of(case["contract"]), decode_call(case)


def replay(case: Json, target: Target) -> None:
    """Raise if a target fails a stored case, except for declared deviations.

    A target must answer a call as `reference` does, in its stored variant and in others. It must
    refuse an invalid call as stored, or, if no refusal is stored, as `reference` refuses it today.
    """
    __tracebackhide__ = True
    subject, example = _decoded(case)
    if isinstance(subject, Check):
        _examine(subject, example, target, case["contract"])
        return
    invalid = decode_refusal(case["refusal"]) if "refusal" in case else None
    check = check_of_call(subject, example, case.get("names", ()), invalid)
    if "seed" in case:
        variant = CallVariant(**dict.fromkeys(case["variant"], True))
        _examine(check, ValidExample(example, case["seed"], variant), target, case["contract"])
    check.bind(target, TRIES, "minimal")()


def _examine(check: Check, example: object, target: Target, function: str) -> None:
    __tracebackhide__ = True
    try:
        check.examine(target, example)
    except RAISED as error:
        if not target.excuses(function, error):
            raise


def check_of_call(
    contract: Contract, call: Call, names: Sequence[str] = (), invalid: InvalidInput | None = None
) -> Check:
    """Return the check that a target answers, or refuses, one call as `reference` does.

    Args:
        contract: The contract of the function.
        call: The call, valid or bad.
        names: For an invalid call, names of which the message must have one; empty for any.
        invalid: The invalid input; None to infer it from `reference`'s exception, if any.
    """
    if invalid is None:
        made = Invocation(REFERENCE, call)
        try:
            result = made.run()
        except Exception as error:  # noqa: BLE001  # a refusal, whatever it is
            named = "|".join(map(re.escape, names)) or ANY_NAME
            invalid = InvalidInput(
                "an implementation failed it before",
                type(error),
                f"({named})",
                already_invalid,
                is_value=True,
            )
        else:
            # `applies` may depend on the source of a call, which is not stored.
            aliases = [
                dataclasses.replace(alias, applies=lambda _: True)
                for alias in contract.aliases
                if _holds(alias, result, made.arguments)
            ]
            return same_answer(dataclasses.replace(_of_one(contract, call), aliases=aliases))
    # A target that lacks the keyword of a bad hint is not given it.
    rest = {
        name: hint for name, hint in call.hints.items() if not re.search(invalid.argument, name)
    }
    valid = dataclasses.replace(call, hints=rest) if invalid.is_hint else call
    bad = dataclasses.replace(invalid, change=lambda _: call)
    contract = dataclasses.replace(contract, invalid_inputs=(bad,))
    return same_refusal(_of_one(contract, valid))


def _holds(alias: Alias, result: object, arguments: Arguments) -> bool:
    """Return whether a result conforms to an alias of an argument, which must be given."""
    is_given = alias.argument.partition(".")[0] in arguments
    return is_given and next(alias.differences(result, arguments), None) is None


def _of_one(contract: Contract, call: Call) -> Contract:
    """Return a contract of one call, without goals: they read its source, which is not stored."""
    return dataclasses.replace(contract, calls=lambda _: st.just(call), goals={}, axes={}, pairs=())
