"""Tests of stored cases: the corpus, `--replay`, and the witnesses of declared deviations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from conformance import FOLDER
from conformance.adapters.deviation import Deviation
from conformance.cases.replay import TRIES, CaseCheck, check_of_call
from conformance.checks.registry import contracts
from conformance.generation.profiles import Kind
from conformance.messages.formatting import printable
from conformance.results.run import CHECKED, Run
from conformance.targets.target import Target, explains
from conformance.values.call import Call


class CaseItem(pytest.Item):
    """A test of one stored case on one target.

    Args:
        test: Raises if the target fails the case.
        about: The description of the case.
    """

    def __init__(self, *, test: Callable[[], None], about: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.test, self.about = test, about

    def runtest(self) -> None:
        """Run the test."""
        self.test()

    def reportinfo(self) -> tuple[Any, None, str]:
        """Return the heading of the report."""
        return self.path, None, f"{self.name}: {printable(self.about)}"

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the message of a failed assertion, without the traceback of the harness."""
        if isinstance(excinfo.value, AssertionError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)


class _CaseCollector(pytest.Collector):
    """The parent node of case items."""

    def collect(self) -> Iterable[pytest.Item]:
        """Return nothing: `case_items` makes the tests when all others are collected."""
        return ()


def case_items(
    session: pytest.Session, name: str, cases: Sequence[tuple[CaseCheck, Target]]
) -> list[pytest.Item]:
    """Return the items of cases, each on a target: `corpus::a_function-1cd2fdf6[host-stored]`."""
    # The path determines which `conftest.py` applies to the items: that of the package.
    collector = _CaseCollector.from_parent(session, name=name, nodeid=name, path=FOLDER)
    found: list[pytest.Item] = []
    for case, target in cases:
        item = CaseItem.from_parent(
            collector,
            name=f"{case.name.removeprefix(f'{name}/')}[{target.name}-stored]",
            test=case.bind(target),
            about=case.description,
        )
        item.stash[CHECKED] = (case, target)
        session.config.hook.pytest_itemcollected(item=item)
        found.append(item)
    return found


def deviation_checks(run: Run, functions: set[str]) -> list[tuple[CaseCheck, Target]]:
    """Return the checks that the declared deviations of functions still occur."""
    found = []
    for implementation in run.implementations:
        targets = [target for target in run.targets if target.implementation is implementation]
        for number, deviation in enumerate(implementation.deviations):
            if run.functions is not None and deviation.function not in run.functions:
                continue
            is_known = deviation.function in contracts()
            is_offered = implementation.offers(deviation.function)
            if is_known and is_offered and deviation.function not in functions:
                continue  # it is not checked in this run
            wrong = "" if is_known and is_offered else "matches no function under test"
            if is_offered and not is_known:
                wrong = "cannot be checked: it has no contract, so its witness cannot be called"
            case = _case(deviation, f"{deviation.function}-{number}", wrong)
            found += [(case, target) for target in (targets if not wrong else targets[:1])]
    return found


def _case(deviation: Deviation, name: str, wrong: str) -> CaseCheck:
    def body(target: Target) -> None:
        __tracebackhide__ = True
        declared_name = f"the declared deviation of {deviation.function} ({deviation.reason})"
        if wrong:
            raise AssertionError(f"{declared_name} {wrong}")
        call = Call(deviation.function, {**deviation.witness})
        check = check_of_call(contracts()[deviation.function], call, deviation.names)
        # Undeclared, or its own declaration would excuse the witness.
        try:
            check.bind(target.undeclared(), TRIES, "minimal")()
        except Exception as error:
            if explains(deviation, error):
                return
            raise AssertionError(
                f"the witness of {declared_name} fails, but not as declared: {deviation.fails!r}"
            ) from error
        raise AssertionError(
            f"the witness of {declared_name} no longer fails; remove the declaration"
        )

    return CaseCheck.of(deviation.function, name, Kind.SAME_ANSWER, deviation.reason, body)
