"""The script of whatever failed: of a call, a refusal, a session, a law."""

from __future__ import annotations

import contextlib
import json
from typing import Any
from unittest import mock

from conformance.calls import Call, calls_in
from conformance.checks import Check
from conformance.comparison import Verdict, first_difference
from conformance.encoding import Encoder, pruned
from conformance.invocations import PLAIN, Invocation
from conformance.profiles import Kind
from conformance.report import Mismatch
from conformance.script.arrays import UnwritableError
from conformance.script.asked import Asked
from conformance.script.calls import script_of_call
from conformance.script.fitting import Block, TooLongError, fitted
from conformance.script.harnessed import loaded_by
from conformance.script.pointing import pointed_at
from conformance.script.sessions import script_of_session
from conformance.strategies.block_table import Session
from conformance.targets import RAISED, REFERENCE, Target


def script_of(
    check: Check, target: Target, example: Any, error: BaseException, where: str = ""
) -> str | None:
    """Return a standalone script of a failure, of at most 40 lines.

    It ends with exit status 1 and the first difference while there is one. Where it can it takes
    nothing but NumPy, torch, `reference` and the implementation; what needs the harness (an
    engine's objects, simulated kernels, laws that speak of more than answers) says so.

    Args:
        check: What failed.
        target: On which target.
        example: The example, shrunk.
        error: How it failed.
        where: Where the check stands, `conformance.test_slots:test_compute_slot_mapping`.

    Returns:
        The script; None where the example is of a kind that no script can say.
    """
    about = _about(check, target, error)
    session = _session_of(example)
    try:
        is_wording = isinstance(error, Mismatch) and error.difference.verdict is Verdict.WORDING
        is_plain = target.device == "cpu" and not target.is_simulated
        if session is not None and is_plain and not is_wording:
            return script_of_session(session, target, about, _num_steps(session, error))
        if session is None:
            asked = _asked(check, target, example, error, about)
            if asked is not None:
                return script_of_call(asked)
    except (UnwritableError, TooLongError):
        pass
    return _script_of_check(check, target, example, about, where)


def script_of_crash(
    check: Check, target: Target, example: Any, error: BaseException, where: str
) -> str | None:
    """Return a script of an example that ends the process, which is not tried again here.

    Args:
        check: What crashed.
        target: On which target.
        example: The example.
        error: How it crashed.
        where: Where the check stands, `conformance.test_slots:test_compute_slot_mapping`.

    Returns:
        The script; None where the example is of a kind that no script can say.
    """
    return _script_of_check(check, target, example, _about(check, target, error), where)


def _about(check: Check, target: Target, error: BaseException) -> str:
    """Return what is wrong, for a docstring."""
    line = str(error).strip().partition("\n")[0]
    if isinstance(error, Mismatch):
        line = f"{error.call.function} on {target.name}: {error.difference.line}"
    lines = [line if len(line) < MOST_SIGNS else f"{line[:MOST_SIGNS]} ..."]
    if check.kind is Kind.LAW:
        lines += ["", f"{check.function} on {target.name} breaks a law: {check.description}"]
    return "\n".join(lines).replace("\\", "/").replace('"""', "'''")


MOST_SIGNS = 300
"""How much of a message stands in a script."""


def _session_of(example: Any) -> Session | None:
    found = getattr(example, "session", example)
    return found if isinstance(found, Session) else None


def _num_steps(session: Session, error: BaseException) -> int:
    """Return how many operations were done up to the one that failed."""
    failed = error.call.arguments if isinstance(error, Mismatch) else None
    steps = [i for i, op in enumerate(session.operations) if op.arguments is failed]
    return steps[0] + 1 if steps else len(session.operations)


def _asked(
    check: Check, target: Target, example: Any, error: BaseException, about: str
) -> Asked | None:
    """Return the call that shows a failure, None where no call alone does."""
    if check.kind is Kind.LAW or not isinstance(error, Mismatch):
        return _told_apart(check, target, example, about)
    variant, seed = getattr(example, "manner", PLAIN), getattr(example, "seed", 0)
    call, invalid = error.call, None
    for known, bad in getattr(example, "ways", ()):
        if bad is call:
            invalid = known
    if check.kind is Kind.SAME_REFUSAL:
        is_outcome = error.difference.verdict is Verdict.OUTCOME
        if (
            invalid is None
            or error.difference.verdict is Verdict.WORDING
            or (invalid.is_value and not is_outcome)
            or ("an answer or a refusal" in str(error.difference.expected))
        ):
            return None
    elif call is not getattr(example, "call", call):
        call = example.call  # which has Python's ints yet
    pointed = pointed_at(error.difference)
    if error.difference.verdict in {Verdict.IDENTITY, Verdict.DEVICE} and pointed is None:
        return None
    raises = error.difference.verdict is Verdict.OUTCOME
    return Asked(call, target, about, variant, seed, invalid, pointed, raises)


def _told_apart(check: Check, target: Target, example: Any, about: str) -> Asked | None:
    """Return the first call of a law that both twins answer otherwise, None where there is none."""
    made: list[Call] = []
    real = Invocation.run

    def run(invocation: Invocation) -> Any:
        if invocation.target is target:
            made.append(invocation.call)
        return real(invocation)

    # It fails, as is known.
    with mock.patch.object(Invocation, "run", run), contextlib.suppress(*RAISED):
        check.body(target, example)
    made += calls_in(example)
    return next(
        (Asked(call, target, about) for call in made if _is_answered_otherwise(call, target)), None
    )


def _is_answered_otherwise(call: Call, target: Target) -> bool:
    both = Invocation(REFERENCE, call), Invocation(target, call)
    try:
        with target.running(checked=True):
            wanted, got = (invocation.run() for invocation in both)
    except RAISED:  # a law that refuses is another's
        return False
    return first_difference(wanted, got, "result", target.device or "cpu") is not None


def _script_of_check(
    check: Check, target: Target, example: Any, about: str, where: str
) -> str | None:
    """Return a script that tries the example again with the harness' own check."""
    if not where:
        return None
    encoder = Encoder()
    try:
        case = pruned({"example": encoder.encode(example)}, encoder.memories)
    except TypeError:
        return None
    name = target.name.rpartition(":")[2]
    statement = check.description.partition("\n")[0]  # for a plain `assert`, which says nothing
    body = [
        f"case = json.loads({json.dumps(case)!r})",
        'example = Decoder(case.get("memories", ())).decode(case["example"])',
        f"target = choose_targets({name!r}, [load_implementation({loaded_by(target)})])[0]",
        "try:",
        f"    check_of({where!r}).body(target, example)",
        "except (Exception, SystemExit) as error:",
        f"    said = str(error) or {statement!r}",
        '    sys.exit(f"{type(error).__name__}: {said}")',
        'print("no difference")',
    ]
    own = [
        "from conformance.corpus import check_of",
        "from conformance.encoding import Decoder",
        "from conformance.implementations import load_implementation",
        "from conformance.targets import choose_targets",
    ]
    about += "\n\nThe harness is imported: what is checked is more than two answers."
    return fitted(about, target, own, [Block(body)])
