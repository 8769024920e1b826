"""One case: a valid call of a function, the random changes to it, and the violations found."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np

from conformance.execution.invocations import PLAIN, CallVariant
from conformance.values.call import Call
from tools.probe.calling import Outcome, call_fast
from tools.probe.checks import check_error, check_resources, check_result
from tools.probe.pools import Pool
from tools.probe.sites import Site, sites_of
from tools.probe.subjects import Subject
from tools.probe.target import ProbedTarget
from tools.probe.violation import Finding, innermost_frame


@dataclasses.dataclass
class Case:
    """The inputs of a case, and the calls that it made.

    Attributes:
        subject: The function.
        target: The implementation that is probed.
        pool: Valid calls.
        random: The source of all random choices.
        valid: The valid call that the case starts from.
        call: The last call that was made, for the report.
    """

    subject: Subject
    target: ProbedTarget
    pool: Pool
    random: Random
    valid: Call | None = None
    call: Call | None = None

    def choose(self) -> tuple[Call, Outcome | None]:
        """Return a valid call, and the outcome of `reference`; None if that took too long."""
        call, expected = self.pool.choose(self.random)
        self.valid = self.call = call
        return call, expected

    def choose_answered(self) -> tuple[Call, Outcome | None]:
        """Return the same as `choose`; None also if `reference` refuses the call."""
        call, expected = self.choose()
        return call, expected if expected is not None and expected.error is None else None

    def call_fast(self, call: Call, **options: Any) -> Outcome:
        """Make a call, as `calling.call_fast` does."""
        self.call = call
        return call_fast(self.target, call, **options)

    def check_error(self, got: Outcome, **options: Any) -> Iterator[Finding]:
        """Check an exception of the call that was made."""
        assert self.call is not None and self.valid is not None  # noqa: S101, PT018
        return check_error(self.call, got, self.valid, **options)

    def check_answer(
        self, call: Call, expected: Outcome, variant: CallVariant = PLAIN
    ) -> Iterator[Finding]:
        """Make a valid call, and check that its result is `reference`'s."""
        is_protected, checked = self.random.random() < 0.5, self.random.random() < 0.4
        got = self.call_fast(call, checked=checked, variant=variant, is_protected=is_protected)
        yield from check_resources(got)
        if got.error is not None:
            yield from self.check_error(got)
            yield from refused(got.error)
        else:
            yield from check_result(self.subject.contract, expected, got)


def refused(error: BaseException) -> Iterator[Finding]:
    """Yield that a valid call was refused."""
    where = innermost_frame(error.__traceback__)
    yield "refused a valid call", where, f"{type(error).__name__}: {error}"


def named(name: str, findings: Iterator[Finding]) -> Iterator[Finding]:
    """Yield findings with a name appended to their kinds."""
    for kind, where, detail in findings:
        yield f"{kind} ({name})", where, detail


def array_sites(call: Call) -> list[Site]:
    """Return the places of arrays in a call."""
    return [site for site in sites_of(call) if isinstance(site.value, np.ndarray)]


def describe_call(call: Call | None) -> str:
    """Return a call as text, cut to a length; objects may raise in `__repr__`."""
    if call is None:
        return ""
    texts = []
    for name, value in {**call.arguments, **call.hints}.items():
        try:
            texts.append(f"{name}={value!r}"[:600])
        except Exception as error:  # noqa: BLE001  # a hostile object, or one that contains itself
            texts.append(f"{name}=<{type(value).__name__}: {type(error).__name__}>")
    return re.sub(r"\s+", " ", f"{call.function}({', '.join(texts)})")[:2500]
