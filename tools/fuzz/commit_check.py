"""Try a stored case with the implementation of one commit, in a process of its own.

The implementation comes from a worktree; the harness and `reference` are those of the checkout. The
process writes lines of JSON to a pipe: `{"status": "started"}` after its imports, and then the
result of the case. If the process ends without the second line, the case killed it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # it imports what belongs to a commit
    from conformance.encoding import Json


def main(text: str) -> None:
    """Try a case.

    Args:
        text: A JSON object: the descriptor of the `pipe`, the `case`, the name of the `target`, the
            module or file `impl`, its `adapter` or null, and the `worktree`.
    """
    request = json.loads(text)
    with os.fdopen(request["pipe"], "w", encoding="utf-8") as pipe:

        def report(**values: Json) -> None:
            pipe.write(json.dumps(values) + "\n")
            pipe.flush()

        try:
            attempt = _load(request)
        except BaseException as error:  # noqa: BLE001  # whatever an import may raise
            report(status="untestable", line=_first_line(error))
            return
        report(status="started")
        report(**attempt())


def _load(request: dict[str, Any]) -> Callable[[], dict[str, Json]]:
    """Import all that the case needs, and return what tries it."""
    import torch  # noqa: PLC0415  # what is imported here belongs to a commit, and may fail

    from conformance.cases.check import replay  # noqa: PLC0415
    from conformance.functions import find_contract  # noqa: PLC0415
    from conformance.implementations import Absent, load_implementation  # noqa: PLC0415
    from conformance.targets import RAISED, choose_targets  # noqa: PLC0415
    from tools.fuzz.failures import key_of  # noqa: PLC0415
    from tools.fuzz.properties import Subject  # noqa: PLC0415
    from tools.fuzz.replay import attempt_of_input  # noqa: PLC0415

    torch.set_num_threads(1)
    find_contract(request["case"]["contract"])  # imports it before the case is timed
    implementation = load_implementation(request["impl"], request["adapter"])
    worktree = Path(request["worktree"]).resolve()
    if worktree not in Path(implementation.file).resolve().parents:
        raise ImportError(f"{request['impl']} was imported from {implementation.file}")
    [target] = choose_targets(request["target"], [implementation])
    case = request["case"]
    adapters = (request["adapter"],) if request["adapter"] else ()
    run = lambda: replay(case, target)  # noqa: E731  # like the other
    if case["kind"] == "input":
        run = attempt_of_input(case, Subject((request["impl"],), adapters, target.name))

    def attempt() -> dict[str, Json]:
        try:
            run()
        except Absent as error:
            return {"status": "untestable", "line": _first_line(error)}
        except RAISED as error:
            key = list(key_of(case["contract"], error))
            return {"status": "fails", "key": key, "line": _line_of(error)}
        return {"status": "passes"}

    return attempt


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"[:500]


def _line_of(error: BaseException) -> str:
    """Return the first difference in a line, or the exception."""
    difference = getattr(error, "difference", None)
    return _first_line(error) if difference is None else str(difference.line)[:500]


CODE = "import sys, tools.fuzz.commit_check as check; check.main(sys.argv[1])"
COMMAND = (sys.executable, "-P", "-c", CODE)
"""What runs `main`: `-P`, so that nothing is imported from the working directory."""
