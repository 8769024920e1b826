"""The checks of laws: one for each law of each contract."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis.strategies import SearchStrategy

from conformance.contracts.check import Check
from conformance.contracts.contract import Contract
from conformance.coverage.goals import reached_goals
from conformance.coverage.presets import Preset
from conformance.generation.profiles import Kind
from conformance.laws.access import Half
from conformance.laws.interpretation import Interpretation
from conformance.laws.law import Law, LawCase
from conformance.laws.statements import LAWS, PAIRS
from conformance.messages.call_table import render
from conformance.messages.mismatch import CALLED_WITH
from conformance.strategies import cached as st
from conformance.targets.target import RAISED, REFERENCE, Target
from conformance.values.call import Call
from conformance.values.differences import Finding, finding_of, raised


class LawViolation(AssertionError):  # noqa: N818  # a finding, not an error of the program
    """A law that a target violates.

    Args:
        law_case: The call, shrunk, and the target.
        law: The law.
        how: How it is violated.
        finding: The kind of finding.
    """

    def __init__(self, law_case: LawCase, law: Law, how: str, finding: Finding) -> None:
        self.finding = finding
        call = law_case.call
        lines = [
            f"{call.function} on {law_case.target.name} violates {law.name}: {law.statement}",
            f"    {how}",
            CALLED_WITH,
            render(call),
        ]
        if law_case.interpretation.groups is not None:
            for group, batch in enumerate(law_case.batches):
                seen = Call("", {"metadata": batch.metadata()})
                lines += [f"    group {group}, block size {batch.layout.block_size}:", render(seen)]
        super().__init__("\n".join(lines))


def law_checks(contract: Contract) -> list[Check]:
    """Return a check of each law that a contract names.

    Raises:
        ValueError: The contract names an unknown law, or one twice, or has no `interpretation`.
    """
    names, interpretation = contract.laws, contract.interpretation
    unknown = [name for name in names if name not in LAWS]
    if unknown or len(set(names)) < len(names):
        wrong = f"unknown laws {', '.join(unknown)}" if unknown else f"a law twice in {names}"
        raise ValueError(
            f"{contract.function} has {wrong}; expected each at most once of {', '.join(LAWS)}"
        )
    if interpretation is None:
        if names:
            raise ValueError(f"{contract.function} has laws, but no interpretation")
        return []
    return [_check(contract, interpretation, LAWS[name]) for name in names]


def _check(contract: Contract, interpretation: Interpretation, law: Law) -> Check:
    half = law.half & interpretation.shows
    calls = interpretation.calls or contract.calls

    def examples(preset: Preset) -> SearchStrategy[_Case]:
        return st.builds(_Case, calls(preset), law.choices)

    def law_case(target: Target, case: _Case) -> LawCase:
        return LawCase(target, case.call, interpretation, law.half, case.choice)

    def body(target: Target, case: _Case) -> None:
        __tracebackhide__ = True
        evaluated = law_case(target, case)
        try:
            law.body(evaluated)
        except AssertionError as error:
            raise LawViolation(evaluated, law, str(error), finding_of(error)) from error
        except RAISED as error:  # by the target, to a valid call
            raise LawViolation(evaluated, law, raised(error), finding_of(error)) from error

    body.__name__ = law.name
    return Check(
        contract.function,
        Kind.LAW,
        examples,
        body,
        f"{contract.function} obeys: {law.statement}",
        list(law.goals),
        lambda case: reached_goals(law_case(REFERENCE, case), law.goals),
        contract.has_kernel and law.in_simulator,
        presets=law.presets or (PAIRS if Half.READS in half else None),
        law=law.name,
    )


@dataclasses.dataclass(frozen=True)
class _Case:
    """A call, and the additional value that a law drew."""

    call: Call
    choice: Any

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        """Leave out the call, which the report prints better than Hypothesis does."""
        printer.text("the call above" if self.choice is None else f"the call above, {self.choice}")
