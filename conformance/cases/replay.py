"""Replays one stored case, of any kind: what `--replay FILE` does."""

from __future__ import annotations

from pathlib import Path

from conformance.cases.check import CaseCheck, read_json
from conformance.cases.compared import contract_of, decode_example, replay_call, replay_example
from conformance.cases.recorded import read_recorded, reading, replay_recorded
from conformance.cases.subjects import find_contract
from conformance.encoding import decode_call
from conformance.encoding.elements import Json
from conformance.profiles import Kind
from conformance.targets import RAISED, Target

KINDS = {"example": Kind.LAW, "refusal": Kind.SAME_REFUSAL}
"""What a case of a kind looks at, where it is not the same answer."""


def replay(case: Json, target: Target, function: str = "") -> None:
    """Raise where a target gets a stored case wrong, unless it is declared to.

    Args:
        case: It, as JSON.
        target: What is under test.
        function: The function of its contract, where the case does not say.
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


def read_case(path: Path) -> Json:
    """Return the stored case of a file, all of which can be decoded.

    Raises:
        ValueError: A file that is not there, is damaged, or is not a stored case.
    """
    with reading(path):
        case = read_json(path)
        if case["kind"] == "call":
            contract_of(case["contract"])
            decode_call(case)
        elif case["kind"] == "example":
            decode_example(case)
        elif case["kind"] == "input":
            raise ValueError(f"{path} is drawn by the fuzzer: python -m tools.fuzz --replay {path}")
        else:
            read_recorded(case)
    return case


def case_check(
    path: Path, case: Json, *, name: str = "", function: str = "", about: str = ""
) -> CaseCheck:
    """Return the check that a target gets the case of a file right.

    Args:
        path: The file, which is read again when the check runs: a folder of cases may be large.
        case: What is in it.
        name: What the test is called; nothing for the name of the file.
        function: The function of its contract; nothing for the one that the case says.
        about: What is particular about it; nothing for what the case says.
    """
    function = function or case.get("contract") or _contract_beside(path, case)

    def body(target: Target) -> None:
        __tracebackhide__ = True
        replay(read_json(path), target, function)

    about = about or case.get("reason") or case.get("refusal", {}).get("what", "")
    kind = KINDS.get(case["kind"], Kind.SAME_ANSWER)
    return CaseCheck(function, name or path.stem, kind, about, body, path)


def _contract_beside(path: Path, case: Json) -> str:
    """Return the function of a test vector's contract, which its folder is named after."""
    folder = path.resolve().parent.name
    return folder if find_contract(folder) else str(case["function"])
