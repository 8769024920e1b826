"""The known answer of a call: the result that it must have under any condition."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

from conformance.contracts.contract import Contract
from conformance.contracts.evaluation import changed_by, changes_difference, shown
from conformance.execution.invocations import Invocation
from conformance.messages.mismatch import Mismatch
from conformance.targets.target import RAISED, REFERENCE, Target
from conformance.values.call import Call, plain
from conformance.values.comparison import first_difference
from conformance.values.differences import Difference, Verdict, most_severe, raised
from conformance.values.parts import children, walk


@dataclasses.dataclass(frozen=True)
class KnownAnswer:
    """A call and `reference`'s answer, which is copied, since it may lie in the arguments.

    Attributes:
        contract: The contract of the function.
        call: The call.
        answer: What `reference` returns.
        changed: The values that `reference` changes, as `changed_by` returns them.
    """

    contract: Contract
    call: Call
    answer: Any
    changed: Mapping[str, Any]

    @classmethod
    def of(cls, contract: Contract, call: Call) -> KnownAnswer:
        """Return a call, without hints, with `reference`'s answer."""
        call = dataclasses.replace(call, hints={})
        return cls.of_invocation(contract, Invocation(REFERENCE, call), call)

    @classmethod
    def of_invocation(cls, contract: Contract, invocation: Invocation, call: Call) -> KnownAnswer:
        """Return a call with `reference`'s answer.

        Args:
            contract: The contract of the function.
            invocation: The call on `reference`, which is made now.
            call: The call for reports.
        """
        result = shown(contract, invocation.run())
        answer, changed = copy.deepcopy((result, changed_by(contract, invocation.arguments)))
        return cls(contract, call, answer, changed)

    def invocation(self, target: Target) -> Invocation:
        """Return the call on a target, with arguments of its own."""
        return Invocation(target, self.call, written=self.contract.changes)

    def check_alone(self, target: Target) -> None:
        """Make the call on a target, and compare its answer."""
        __tracebackhide__ = True
        self.check(self.invocation(target), "")

    def check(self, invocation: Invocation, condition: str) -> Any:
        """Make the call, compare its answer, and return it.

        Args:
            invocation: The call on a target.
            condition: The condition it is made under, for the report: "after another batch".
        """
        __tracebackhide__ = True
        got = self.run(invocation, condition)
        self.compare(got, invocation, condition)
        return got

    def run(self, invocation: Invocation, condition: str) -> Any:
        """Make the call, and return its answer.

        Raises:
            Mismatch: It raises.
        """
        __tracebackhide__ = True
        try:
            return invocation.run()
        except RAISED as error:
            got, expected = raised(error), "return a result"
            difference = Difference(Verdict.OUTCOME, "the call", None, got, expected)
            raise Mismatch(self.call, invocation.target.name, difference, condition) from error

    def compare(
        self, got: object, invocation: Invocation, condition: str, title: str | None = None
    ) -> None:
        """Raise `Mismatch` if an answer or a changed argument differs.

        Args:
            got: The answer.
            invocation: The call.
            condition: The condition it is made under, for the report.
            title: The title of the report; None for that of the difference.
        """
        __tracebackhide__ = True
        target = invocation.target
        found = shown(self.contract, got)
        device = target.device or "cpu"
        differences = (
            first_difference(self.answer, found, self.contract.returns, device),
            changes_difference(self.contract, self.changed, invocation),
        )
        difference = most_severe(differences)
        if difference is not None:
            raise Mismatch(self.call, target.name, difference, condition, title)

    def differs_from(self, other: KnownAnswer) -> bool:
        """Return whether the answer of another call differs from this one's.

        It is True for a call that neither returns nor changes anything.
        """
        has_nothing = self.answer is None and not self.changed
        return has_nothing or self._leaves() != other._leaves()

    def _leaves(self) -> dict[str, Any]:
        """Return the leaves of the answer and of the changed values, with arrays as lists."""
        found = walk([self.answer, self.changed], "")
        return {path: plain(part) for path, part in found if not children(part)}
