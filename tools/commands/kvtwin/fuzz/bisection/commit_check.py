"""Try a stored case with the implementation of one commit, in a process that may crash or hang.

The implementation comes from a worktree; the harness and `reference` come from the checkout. The
process writes its outcome to a file: `started` after its imports, then the outcome of the case. If
the process ends while the file contains `started`, the case killed it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

START_SECONDS: Final = 300.0
"""The time limit of the imports, enough for a slow machine."""

CASE_SECONDS: Final = 60.0
"""A case that takes longer counts as hung."""

CODE: Final = "import sys, kvtwin.fuzz.bisection.commit_check as check; check.main(sys.argv[1])"
COMMAND: Final = (sys.executable, "-P", "-c", CODE)
"""The command that runs `main`: `-P`, so that nothing is imported from the working directory."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of a case at one commit.

    Attributes:
        status: `passes`, `fails`, or `untestable`; `started` while the case runs.
        key: The failure's deduplication key; empty if the case did not fail.
        line: The failure, or why the case could not be tried, in a line.
    """

    status: str
    key: tuple[str, ...] = ()
    line: str = ""


def try_case(
    request: Mapping[str, Any], environment: Mapping[str, str], seconds: float = CASE_SECONDS
) -> Outcome:
    """Try a case in a separate process.

    Args:
        request: The `case`, the name of the `target`, the module or file `impl`, its `adapter` or
            None, and the `worktree`.
        environment: The environment of the process.
        seconds: How long the case may take.
    """
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, "outcome.json")
        process = subprocess.Popen(  # noqa: S603  # our own
            [*COMMAND, json.dumps({**request, "seconds": seconds, "answer": str(answer)})],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for us
        )
        try:
            status = process.wait(START_SECONDS + seconds)
        except subprocess.TimeoutExpired:
            return Outcome("untestable", line=f"not imported within {START_SECONDS:g} s")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        how = signal.Signals(-status).name if status < 0 else f"exit {status}"
        if not answer.exists():
            return Outcome("untestable", line=f"the import ends the process: {how}")
        values = json.loads(answer.read_text(encoding="utf-8"))
    outcome = Outcome(values["status"], tuple(values["key"]), values["line"])
    if outcome.status != "started":
        return outcome
    if status == -signal.SIGALRM:
        return Outcome("fails", ("hang",), "the case hangs")
    return Outcome("fails", ("crash",), f"the process died: {how}")


def main(text: str) -> None:
    """Try a case.

    Args:
        text: A JSON object: the request of `try_case`, the `seconds`, and the file of the `answer`.
    """
    request = json.loads(text)
    answer = Path(request["answer"])

    def report(outcome: Outcome) -> None:
        written = answer.with_suffix(".part")
        written.write_text(json.dumps(dataclasses.asdict(outcome)), encoding="utf-8")
        written.replace(answer)

    try:
        attempt = _load(request)
    except BaseException as error:  # noqa: BLE001  # whatever an import may raise
        report(Outcome("untestable", line=_first_line(error)))
        return
    report(Outcome("started"))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process, even in native code
    signal.setitimer(signal.ITIMER_REAL, request["seconds"])
    report(attempt())


def _load(request: dict[str, Any]) -> Callable[[], Outcome]:
    """Import everything that the case needs, and return a function that tries it."""
    import torch  # noqa: PLC0415  # imports of a commit's code, which may fail

    from conformance.cases.check import replay  # noqa: PLC0415
    from conformance.checks.registry import find_contract  # noqa: PLC0415
    from conformance.targets.implementations import Absent, load_implementation  # noqa: PLC0415
    from conformance.targets.target import RAISED, choose_targets  # noqa: PLC0415
    from kvtwin.fuzz.cases.properties import Subject  # noqa: PLC0415
    from kvtwin.fuzz.findings.failures import key_of  # noqa: PLC0415
    from kvtwin.fuzz.findings.replay import attempt_of_input  # noqa: PLC0415

    torch.set_num_threads(1)
    find_contract(request["case"]["contract"])  # imports it before the case is timed
    implementation = load_implementation(request["impl"], request["adapter"])
    worktree = Path(request["worktree"]).resolve()
    if worktree not in Path(implementation.file).resolve().parents:
        raise ImportError(f"{request['impl']} was imported from {implementation.file}")
    [target] = choose_targets(request["target"], [implementation])
    case = request["case"]
    adapters = (request["adapter"],) if request["adapter"] else ()
    run: Callable[[], object] = lambda: replay(case, target)  # noqa: E731  # like the other
    if case["kind"] == "input":
        run = attempt_of_input(case, Subject((request["impl"],), adapters, target.name))

    def attempt() -> Outcome:
        try:
            run()
        except Absent as error:
            return Outcome("untestable", line=_first_line(error))
        except RAISED as error:
            difference = getattr(error, "difference", None)
            line = _first_line(error) if difference is None else str(difference.line)[:500]
            return Outcome("fails", key_of(case["contract"], error), line)
        return Outcome("passes")

    return attempt


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"[:500]
