"""The script of a failure that has no other: the input is drawn again as the fuzzer drew it.

Scripts that build an input are written when it is minimized. Until then, where a night ends before
or a worker is lost, and for stateful tests, whose input has no other form, this one shows it.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Final

from tools.fuzz.failures import Failure
from tools.fuzz.properties import Subject

SCRIPT: Final = '''"""{line}

The input is drawn as the fuzzer drew it, and checked once.
"""
import sys
sys.path.insert(0, {root!r})
from tools.fuzz import profile
from tools.fuzz.cases import Input, run_case
from tools.fuzz.properties import Subject, properties_of
profile.load()
wanted = Input.from_bytes({input!r})
case = run_case(properties_of({subject!r})[wanted.property_name], wanted)
sys.exit(case.error and f"{{type(case.error).__name__}}: {{case.error}}")
'''


def with_script(failure: Failure, subject: Subject) -> Failure:
    """Return a failure with a script, which draws its input if it has no other.

    Args:
        failure: The failure.
        subject: What is fuzzed.
    """
    if failure.script is not None or not failure.input:
        return failure
    root = str(Path(__file__).parents[2])
    line = failure.line.replace("\\", "/").replace('"""', "'''")
    script = SCRIPT.format(line=line, root=root, input=failure.input, subject=subject)
    return dataclasses.replace(failure, script=script)
