"""The result that a call must have under any condition: the one that it has alone."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

from conformance.calls import Call
from conformance.comparison import Difference, Verdict, first_difference
from conformance.contracts import Contract
from conformance.evaluation import shown
from conformance.invocations import Invocation
from conformance.report import Mismatch
from conformance.targets import RAISED, REFERENCE, Target


@dataclasses.dataclass(frozen=True)
class KnownAnswer:
    """A call and `reference`'s answer, which is copied, since it may lie in the arguments.

    Attributes:
        contract: The contract of the function.
        call: The call.
        answer: What `reference` returns.
    """

    contract: Contract
    call: Call
    answer: Any

    @classmethod
    def of(cls, contract: Contract, call: Call) -> KnownAnswer:
        """Return a call, without hints, with `reference`'s answer."""
        invocation = Invocation(REFERENCE, dataclasses.replace(call, hints={}))
        return cls(contract, invocation.call, copied_answer(contract, invocation.run()))

    def invocation(self, target: Target) -> Invocation:
        """Return the call on a target, with arguments of its own."""
        return Invocation(target, self.call, written=self.contract.changes)

    def check(self, invocation: Invocation, condition: str) -> Any:
        """Make the call, compare its answer, and return it.

        Args:
            invocation: The call on a target.
            condition: Under which it is made, for the report: "after another batch".
        """
        __tracebackhide__ = True
        got = self.run(invocation, condition)
        self.compare(got, invocation.target, condition)
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
            raised = f"raised {type(error).__name__}: {error}"
            difference = Difference(Verdict.OUTCOME, "the call", None, raised, "a result")
            raise Mismatch(self.call, invocation.target.name, difference, condition) from error

    def compare(self, got: object, target: Target, condition: str) -> None:
        """Raise `Mismatch` if an answer differs."""
        __tracebackhide__ = True
        device = target.device or "cpu"
        difference = first_difference(self.answer, shown(self.contract, got), device=device)
        if difference is not None:
            raise Mismatch(self.call, target.name, difference, condition)


def copied_answer(contract: Contract, result: object) -> Any:
    """Return a copy of what is compared of a result."""
    return copy.deepcopy(shown(contract, result))
