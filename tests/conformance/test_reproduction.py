"""Stored cases and scripts reproduce a failure until the bug is fixed."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.cases.check import read_case, replay
from conformance.cases.compared import case_of_failure, check_of
from conformance.cases.corpus import add_to_corpus
from conformance.contracts.check import FAILURES, Check
from conformance.generation.profiles import Profile
from conformance.generation.shrinking import ShrinkBudgets
from conformance.messages.mismatch import Mismatch
from conformance.reproduction.files import replay_command
from conformance.reproduction.script import script_of
from conformance.targets.implementations import Absent, load_implementation
from conformance.targets.target import TARGETS, Target, choose_targets
from tests.conformance.conftest import RunScript

FEW = Profile("few", 60, 60)

RIGHT = "from fast import *\nfrom fast import checks\nimport fast, torch\n"

RESULT = """
def {name}(*args, **keywords):
    result = fast.{name}(*args, **keywords)
    {body}
    return result
"""
METHOD = """
class {name}(fast.{name}):
    {body}
"""
SLOTS_THAT_CHANGE_POSITIONS = """
def compute_slot_mapping(block_table, query_start_loc, positions, *args, **keywords):
    slots = fast.compute_slot_mapping(block_table, query_start_loc, positions, *args, **keywords)
    positions += 1
    return slots
"""
SLOTS_OF_ANY_RANK = """
def compute_slot_mapping(*args, cp_rank=0, cp_world_size=1, **keywords):
    keywords["cp_rank"] = cp_rank - 1 if cp_rank == cp_world_size else cp_rank
    return fast.compute_slot_mapping(*args, cp_world_size=cp_world_size, **keywords)
"""
LENGTHS_THAT_ARE_A_VIEW = """
def get_dcp_local_seq_lens(seq_lens, *args, **keywords):
    lens = fast.get_dcp_local_seq_lens(seq_lens, *args, **keywords)
    return seq_lens if torch.equal(lens, seq_lens) else lens
"""
CACHES_THAT_ARE_LOST = """
def init_kv_cache(runner_kv_caches, *args, **keywords):
    fast.init_kv_cache(runner_kv_caches, *args, **keywords)
    runner_kv_caches.clear()
"""


@dataclasses.dataclass(frozen=True)
class Planted:
    """A wrong function, in a file that re-exports the others.

    Attributes:
        test: The module and the check that detects it; a law has its name after a slash.
        source: The wrong function.
        shows: What the first difference begins with.
        target: The target on which it is run.
        has_script: Whether there is a script too.
    """

    test: str
    source: str
    shows: str = ""
    target: str = "host"
    has_script: bool = False


def wrong_result(name: str, body: str) -> str:
    """Return a function that spoils the result of the right one."""
    return RESULT.format(name=name, body=body)


def wrong_method(name: str, body: str) -> str:
    """Return a class with a wrong method."""
    return METHOD.format(name=name, body=body)


def planted_bugs() -> Iterator[Planted]:
    """Yield a bug for each kind of check, of result and of change to an argument."""
    slots, lengths = "compute_slot_mapping", "get_dcp_local_seq_lens"
    test = f"slots:test_{slots}"
    source = wrong_result(slots, "result.clamp_(min=0)")
    yield Planted(test, source, "result[", has_script=True)
    source = wrong_result(slots, "if len(result): result[-1:] = -1")
    yield Planted(test, source, "result[", target="sim")
    yield Planted(test, SLOTS_THAT_CHANGE_POSITIONS, "positions[", has_script=True)
    unchecked = SLOTS_THAT_CHANGE_POSITIONS.replace("+= 1", "+= not is_checked()")
    source = f"from fast.checked_mode import is_checked\n{unchecked}"
    yield Planted(test, source, "positions[", has_script=True)
    yield Planted(f"{test}_refuses", SLOTS_OF_ANY_RANK, "the call returned", has_script=True)
    source = wrong_result(slots, "result[1:] = result[:1]")
    yield Planted(f"{test}_laws/slots_are_distinct", source)
    source = wrong_result("split_attn_metadata", "result[-1].max_query_len += 1")
    yield Planted("ubatch:test_split_attn_metadata", source, "result[")
    source = wrong_result("create_ubatch_slices", "result = result[:1]")
    yield Planted("ubatch_slices:test_create_ubatch_slices", source, "len(result)", has_script=True)
    source = wrong_result(lengths, "result = result.to(torch.int64)")
    shows = "result.dtype = torch.int64, but should be torch.int32"
    yield Planted(f"context_parallel:test_{lengths}", source, shows, has_script=True)
    shows = "result = seq_lens itself, or a view of it"
    yield Planted(f"context_parallel:test_{lengths}", LENGTHS_THAT_ARE_A_VIEW, shows)
    body = "def unpadded(self, *args, **keywords): raise ValueError('no')"
    shows = "the call raised ValueError: no, but should return a result"
    source = wrong_method("CommonAttentionMetadata", body)
    yield Planted("metadata:test_unpadded", source, shows, has_script=True)
    yield Planted("kv_cache:test_init_kv_cache", CACHES_THAT_ARE_LOST)
    body = (
        "def append_block_ids(self, a, b, c, d): super().append_block_ids(a, b, c, [True] * len(d))"
    )
    yield Planted("block_table:test_block_tables", wrong_method("BlockTables", body))
    body = "def move_row(self, src, dst): super().move_row(src % 1, dst % 1)"
    yield Planted("block_table:test_block_tables_refuse", wrong_method("BlockTables", body))
    body = "def copy_to_gpu(self, n=None): return super().copy_to_gpu(None)"
    yield Planted("buffers:test_buffers_copy", wrong_method("CpuGpuBuffer", body))


PLANTED = list(planted_bugs())


def target_of(planted: Planted, path: Path) -> Target:
    """Return a target whose implementation is the file of a bug."""
    path.write_text(RIGHT + planted.source)
    implementation = load_implementation(str(path))
    return dataclasses.replace(
        TARGETS[planted.target],
        implementation=implementation,
    )


def failure_of(planted: Planted, target: Target) -> tuple[str, tuple[Check, Any, BaseException]]:
    """Return the path of the check that detects a bug, and its failure, shrunk as in a run."""
    test, _, law = planted.test.partition("/")
    where = f"conformance.test_{test}" + (f"[{law}]" if law else "")
    check = check_of(where)
    FAILURES.clear()
    shrinking = ShrinkBudgets(FEW.shrink_seconds).limiting(check.function)
    with shrinking, pytest.raises(Exception):  # noqa: B017, PT011  # whatever the verdict is
        check.bind(target, FEW, check.sizes(target)[0])()
    return where, FAILURES[-1]


def difference_of(case: Path, target: Target) -> str:
    """Return a target's difference in a stored case, in a line, "" if it passes."""
    try:
        replay(read_case(case), target)
    except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever the verdict is
        return error.difference.line if isinstance(error, Mismatch) else repr(error)
    return ""


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: f"{planted.test} {planted.target}")
def test_a_failure_is_reproduced(planted: Planted, tmp_path: Path, run_script: RunScript) -> None:
    """The case fails as the test did, and so does the script, if there is one."""
    impl = tmp_path / f"impl_{PLANTED.index(planted)}.py"
    target = target_of(planted, impl)
    where, (check, example, error) = failure_of(planted, target)
    case = add_to_corpus(case_of_failure(check, where, example, error), tmp_path)
    expected = error.difference.line if isinstance(error, Mismatch) else repr(error)
    assert expected.startswith(planted.shows)
    assert expected == difference_of(case, target)
    assert "" == difference_of(case, TARGETS[planted.target])
    script = script_of(check, target, example, error)
    assert planted.has_script == (script is not None), script
    if script is None:
        return
    path = tmp_path / "script.py"
    path.write_text(script)
    found = run_script(path)
    assert (1, "") == (found.returncode, found.stdout), script
    assert found.stderr.strip().splitlines()[-1] in expected, found.stderr
    impl.write_text(RIGHT)
    mended = run_script(path)
    assert (0, "") == (mended.returncode, mended.stderr)


def script_of_lengths(body: str, path: Path) -> str | None:
    """Return the script of a `get_dcp_local_seq_lens` with this body, which is in a file."""
    source = f"def get_dcp_local_seq_lens(*args, **keywords):\n    {body}\n"
    planted = Planted("context_parallel:test_get_dcp_local_seq_lens", source)
    target = target_of(planted, path)
    _, (check, example, error) = failure_of(planted, target)
    return script_of(check, target, example, error)


def test_a_script_ends_with_what_is_raised(tmp_path: Path, run_script: RunScript) -> None:
    """A script whose call raises unexpectedly ends with the traceback."""
    script = script_of_lengths("raise KeyError('rank')", tmp_path / "impl_raises.py")
    assert script is not None
    path = tmp_path / "script.py"
    path.write_text(script)
    found = run_script(path)
    assert 1 == found.returncode
    assert "KeyError: 'rank'" == found.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("name", "line"),
    [("impl_exits.py", "import sys; sys.exit(0)"), ("impl-raises.v2.py", "raise KeyError")],
    ids=["a call that ends the process", "a file that no import finds"],
)
def test_what_has_no_script(name: str, line: str, tmp_path: Path) -> None:
    """A call that ends the process, or a file that cannot be imported, has no script."""
    assert None is script_of_lengths(line, tmp_path / name)


def test_an_adapter_is_part_of_the_command() -> None:
    """The replay command includes the implementation, its adapter and the target."""
    path = Path(__file__).with_name("engine_style.py")
    adapter = path.with_name("engine_adapter.py")
    [target] = choose_targets("host", [load_implementation(str(path), str(adapter))])
    words = f"--replay case.json --impl {path} --adapter {adapter} --target host"
    assert f"python -m conformance {words}" == replay_command(Path("case.json"), target)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read: "),
        ('{"schema_version": "9.0"}', "has schema 9.0, but this version reads 1"),
        ('{"schema_version": "1.0"}', "is damaged: KeyError: 'kind'"),
        ('{"schema_version": "1.0", "kind": "call"}', "is damaged: KeyError: 'contract'"),
        ('{"schema_version": "1.0", "kind": "recipe"}', "kind is 'recipe', expected one of call, "),
        (
            '{"schema_version": "1.0", "kind": "example", "check": "conformance.gone:test_x"}',
            "check 'conformance.gone:test_x' does not exist",
        ),
        (  # it would import a module of the folder that the run is in
            '{"schema_version": "1.0", "kind": "example", "check": "hostile:test_x"}',
            "check 'hostile:test_x' does not exist",
        ),
        (  # it would run a script
            '{"schema_version": "1.0", "kind": "example", "check": "conformance.failures.x:test"}',
            "check 'conformance.failures.x:test' does not exist",
        ),
        ("[" * 100_000, "cannot be read: maximum recursion depth exceeded"),
        (
            '{"schema_version": "1", "kind": "answer", "memories": [{"dtype": "i1", "size": 9e9}]}',
            "is damaged: ValueError: memories have more than 1,073,741,824 bytes",
        ),
        (
            """{"schema_version": "1", "kind": "session",
            "steps": [{"do": "set environment", "variable": "PATH"}]}""",
            "is damaged: ValueError: a case must not set PATH",
        ),
    ],
)
def test_a_file_that_is_no_case(content: str, message: str, tmp_path: Path) -> None:
    """A file that is no case is refused in one line, which says what is wrong."""
    path = tmp_path / "case.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=re.escape(message)) as refused:
        read_case(path)
    assert str(path) in str(refused.value)


def test_a_case_calls_public_functions_only() -> None:
    """A case whose function is another module's is not run."""
    call = {"function": "kv_layout.os.system", "arguments": {"command": "echo evil"}}
    case = {"kind": "call", "contract": "get_dcp_local_seq_lens", **call}
    with pytest.raises(Absent, match=r"needs kv_layout\.os\.system, which reference lacks"):
        replay(case, TARGETS["host"])


def test_a_wrong_file_is_a_usage_error(tmp_path: Path) -> None:
    """`--replay` of a missing file is a usage error, with status 4."""
    command = [sys.executable, "-m", "conformance", "--replay", str(tmp_path / "none.json")]
    found = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    assert pytest.ExitCode.USAGE_ERROR == found.returncode
    assert f"ERROR: {tmp_path / 'none.json'} cannot be read" in found.stderr
