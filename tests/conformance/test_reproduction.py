"""Stored cases and scripts show what a failing run showed, until the bug is mended."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conformance import (
    test_batch_order,
    test_block_table,
    test_buffers,
    test_builders,
    test_context_parallel,
    test_kv_binding,
    test_kv_cache,
    test_local_attention,
    test_metadata,
    test_multimodal,
    test_slots,
    test_ubatch,
)
from conformance.cases.check import read_case, replay
from conformance.cases.compared import case_of_failure, check_of
from conformance.checks import FAILURES, Check
from conformance.encoding import write_case
from conformance.implementations import load_implementation
from conformance.profiles import Profile
from conformance.report import Mismatch
from conformance.reproduction import replay_command
from conformance.script import script_of
from conformance.shrinking import ShrinkBudgets
from conformance.targets import TARGETS, Target, choose_targets
from tests.conformance.conftest import RunScript

FEW = Profile("few", 60, 60)

RIGHT = "from fast import *\nfrom fast import checks\nimport fast, torch\n"


@dataclasses.dataclass(frozen=True)
class Planted:
    """A function made wrong, in a file that re-exports the others.

    Attributes:
        module: The conformance module of the function.
        test: The check that is to see it; a law has its name after a slash.
        source: The wrong function.
        shows: What the first difference begins with.
        target: The target on which it is run.
        has_script: Whether there is a script too.
    """

    module: Any
    test: str
    source: str
    shows: str
    target: str = "host"
    has_script: bool = False

    @property
    def name(self) -> str:
        """What its test is called."""
        return f"{self.test} {self.target}"


PLANTED = [
    Planted(
        test_slots,
        "test_compute_slot_mapping",
        "def compute_slot_mapping(*args, **keywords):\n"
        "    slots = fast.compute_slot_mapping(*args, **keywords)\n"
        "    return slots.clamp_(min=0)\n",
        "result[",
        has_script=True,
    ),
    Planted(
        test_slots,
        "test_compute_slot_mapping_refuses",
        "def compute_slot_mapping(*args, cp_rank=0, cp_world_size=1, **keywords):\n"
        "    if cp_rank == cp_world_size:\n"
        "        cp_rank -= 1\n"
        "    keywords['cp_rank'] = cp_rank\n"
        "    return fast.compute_slot_mapping(*args, cp_world_size=cp_world_size, **keywords)\n",
        "the call = returned",
        has_script=True,
    ),
    Planted(
        test_slots,
        "test_compute_slot_mapping_laws/slots_are_distinct",
        "def compute_slot_mapping(*args, **keywords):\n"
        "    slots = fast.compute_slot_mapping(*args, **keywords)\n"
        "    slots[1:] = slots[:1]\n"
        "    return slots\n",
        "",
    ),
    Planted(
        test_slots,
        "test_compute_slot_mapping",
        "def compute_slot_mapping(block_table, query_start_loc, positions, *args, **keywords):\n"
        "    slots = fast.compute_slot_mapping(\n"
        "        block_table, query_start_loc, positions, *args, **keywords)\n"
        "    positions += 1\n"
        "    return slots\n",
        "positions[",
        has_script=True,
    ),
    Planted(
        test_slots,
        "test_compute_slot_mapping",
        "def compute_slot_mapping(*args, **keywords):\n"
        "    slots = fast.compute_slot_mapping(*args, **keywords)\n"
        "    if len(slots): slots[-1:] = -1\n"
        "    return slots\n",
        "result[",
        target="sim",
    ),
    Planted(
        test_ubatch,
        "test_split_attn_metadata",
        "def split_attn_metadata(*args, **keywords):\n"
        "    parts = fast.split_attn_metadata(*args, **keywords)\n"
        "    parts[-1].max_query_len += 1\n"
        "    return parts\n",
        "result[",
    ),
    Planted(
        test_ubatch,
        "test_create_ubatch_slices",
        "def create_ubatch_slices(*args, **keywords):\n"
        "    return fast.create_ubatch_slices(*args, **keywords)[:1]\n",
        "len(result)",
        has_script=True,
    ),
    Planted(
        test_batch_order,
        "test_split_decodes_and_prefills",
        "def split_decodes_and_prefills(*args, **keywords):\n"
        "    return (*fast.split_decodes_and_prefills(*args, **keywords)[:3], 0)\n",
        "result[3] = 0, but should be ",
        has_script=True,
    ),
    Planted(
        test_context_parallel,
        "test_get_dcp_local_seq_lens",
        "def get_dcp_local_seq_lens(*args, **keywords):\n"
        "    return fast.get_dcp_local_seq_lens(*args, **keywords).to(torch.int64)\n",
        "result.dtype = torch.int64, but should be torch.int32",
        has_script=True,
    ),
    Planted(
        test_context_parallel,
        "test_get_dcp_local_seq_lens",
        "def get_dcp_local_seq_lens(seq_lens, *args, **keywords):\n"
        "    lens = fast.get_dcp_local_seq_lens(seq_lens, *args, **keywords)\n"
        "    return seq_lens if torch.equal(lens, seq_lens) else lens\n",
        "result = seq_lens itself, or a view of it",
    ),
    Planted(
        test_local_attention,
        "test_local_attention_laws/chunks_restrict",
        "def make_local_attention_virtual_batches(*args, **keywords):\n"
        "    made = fast.make_local_attention_virtual_batches(*args, **keywords)\n"
        "    made.block_table_tensor.fill_(0)\n"
        "    return made\n",
        "",
    ),
    Planted(
        test_metadata,
        "test_unpadded",
        "class CommonAttentionMetadata(fast.CommonAttentionMetadata):\n"
        "    def unpadded(self, *args, **keywords):\n"
        "        raise ValueError('no')\n",
        "the call = raised ValueError: no, but should be a result",
        has_script=True,
    ),
    Planted(
        test_kv_binding,
        "test_extract_layer_index",
        "def extract_layer_index(*args, **keywords):\n"
        "    return fast.extract_layer_index(*args, **keywords) + 1\n",
        "result = ",
        has_script=True,
    ),
    Planted(
        test_kv_cache,
        "test_init_kv_cache",
        "def init_kv_cache(runner_kv_caches, *args, **keywords):\n"
        "    found = fast.init_kv_cache(runner_kv_caches, *args, **keywords)\n"
        "    runner_kv_caches.clear()\n"
        "    return found\n",
        "",
    ),
    Planted(
        test_builders,
        "test_create_with_metadata_builders",
        "class AttentionGroup(fast.AttentionGroup):\n"
        "    def create_with_metadata_builders(*args, **keywords):\n"
        "        made = fast.AttentionGroup.create_with_metadata_builders(*args, **keywords)\n"
        "        made.metadata_builders.reverse()\n"
        "        made.layer_names = []\n"
        "        return made\n",
        "",
    ),
    Planted(
        test_multimodal,
        "test_gather_mm_placeholders",
        "def gather_mm_placeholders(*args, **keywords):\n"
        "    return fast.gather_mm_placeholders(*args, **keywords) * 2\n",
        "result[",
    ),
    Planted(
        test_block_table,
        "test_block_tables",
        "class BlockTables(fast.BlockTables):\n"
        "    def append_block_ids(self, req_indices, cu_num_new_blocks, new_block_ids, overwrite):"
        "\n        always = [True] * len(overwrite)\n"
        "        super().append_block_ids(req_indices, cu_num_new_blocks, new_block_ids, always)\n",
        "",
    ),
    Planted(
        test_block_table,
        "test_block_tables_refuse",
        "class BlockTables(fast.BlockTables):\n"
        "    def move_row(self, src, dst):\n"
        "        super().move_row(src % 1, dst % 1)\n",
        "",
    ),
    Planted(
        test_buffers,
        "test_buffers_copy",
        "class CpuGpuBuffer(fast.CpuGpuBuffer):\n"
        "    def copy_to_gpu(self, n=None):\n"
        "        return super().copy_to_gpu(None)\n",
        "",
    ),
]


def target_of(planted: Planted, path: Path) -> Target:
    """Return a target whose implementation is the file of a bug."""
    path.write_text(RIGHT + planted.source)
    implementation = load_implementation(str(path))
    return dataclasses.replace(
        TARGETS[planted.target],
        implementation=implementation,
    )


def failure_of(planted: Planted, target: Target) -> tuple[str, tuple[Check, Any, BaseException]]:
    """Return where the check that sees a bug stands, and what failed it, shrunk as in a run."""
    test, _, law = planted.test.partition("/")
    where = f"{planted.module.__name__}:{test}" + (f"[{law}]" if law else "")
    check = check_of(where)
    FAILURES.clear()
    shrinking = ShrinkBudgets(FEW.shrink_seconds).limiting(check.function)
    with shrinking, pytest.raises(Exception):  # noqa: B017, PT011  # whatever the verdict is
        check.bind(target, FEW, check.sizes(target)[0])()
    return where, FAILURES[-1]


def difference_of(case: Path, target: Target) -> str:
    """Return what a stored case says of a target in a line, "" where it passes."""
    try:
        replay(read_case(case), target)
    except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever the verdict is
        return error.difference.line if isinstance(error, Mismatch) else repr(error)
    return ""


@pytest.mark.parametrize("planted", PLANTED, ids=[p.name for p in PLANTED])
def test_a_failure_is_reproduced(planted: Planted, tmp_path: Path, run_script: RunScript) -> None:
    """The case fails as the test did, and so does the script, if there is one."""
    impl = tmp_path / f"impl_{PLANTED.index(planted)}.py"
    target = target_of(planted, impl)
    where, (check, example, error) = failure_of(planted, target)
    case = tmp_path / "case.json"
    write_case(case_of_failure(check, where, example, error), case)
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
    planted = Planted(test_context_parallel, "test_get_dcp_local_seq_lens", source, "")
    target = target_of(planted, path)
    _, (check, example, error) = failure_of(planted, target)
    return script_of(check, target, example, error)


def test_a_script_ends_with_what_is_raised(tmp_path: Path, run_script: RunScript) -> None:
    """A call that raises where an answer is due shows its traceback."""
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
    """Its stored case is all there is."""
    assert None is script_of_lengths(line, tmp_path / name)


def test_an_adapter_is_part_of_the_command() -> None:
    """What is replayed is under test as it was."""
    path = Path(__file__).with_name("engine_style.py")
    adapter = path.with_name("engine_adapter.py")
    [target] = choose_targets("host", [load_implementation(str(path), str(adapter))])
    words = f"--replay case.json --impl {path} --adapter {adapter} --target host"
    assert f"python -m conformance {words}" == replay_command(Path("case.json"), target)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read: "),
        ('{"schema_version": "9.0"}', "is of schema 9.0, but this is a reader of 1"),
        ('{"schema_version": "1.0"}', "is damaged: KeyError: 'kind'"),
        ('{"schema_version": "1.0", "kind": "call"}', "is damaged: KeyError: 'contract'"),
        ('{"schema_version": "1.0", "kind": "recipe"}', "kind 'recipe' is none of call, example, "),
        (
            '{"schema_version": "1.0", "kind": "example", "check": "conformance.gone:test_x"}',
            "check 'conformance.gone:test_x' is not there",
        ),
        (
            '{"schema_version": "1.1", "kind": "input", "input": ""}',
            "is drawn by the fuzzer: python -m tools.fuzz --replay ",
        ),
    ],
)
def test_a_file_that_is_no_case(content: str, message: str, tmp_path: Path) -> None:
    """It ends the run before anything runs, in a line that says what is wrong."""
    path = tmp_path / "case.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=re.escape(message)) as refused:
        read_case(path)
    assert str(path) in str(refused.value)


def test_a_wrong_file_is_a_usage_error(tmp_path: Path) -> None:
    """`--replay` of what is not there says so, with status 4."""
    command = [sys.executable, "-m", "conformance", "--replay", str(tmp_path / "none.json")]
    found = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    assert pytest.ExitCode.USAGE_ERROR == found.returncode
    assert f"ERROR: {tmp_path / 'none.json'} cannot be read" in found.stderr
