"""Scripts of failures: run in a fresh process, they show what the run showed, until mended."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

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
from conformance.checks import FAILURES, Check, checks_in
from conformance.implementations import load_implementation
from conformance.profiles import Kind, Profile
from conformance.script import save_script, script_of
from conformance.script.fitting import MOST_LINES
from conformance.targets import TARGETS, Target
from tests.conformance.conftest import RunScript

FEW = Profile("few", 60, 60)

RIGHT = "from fast import *\nfrom fast import checks\nimport fast, torch\n"


@dataclasses.dataclass(frozen=True)
class Planted:
    """A function made wrong, in a file that re-exports the others.

    Attributes:
        module: The conformance module of the function.
        test: The check that is to see it; a law has its name behind a slash.
        source: The wrong function.
        shows: What the script's first difference begins with.
        target: The target on which it is run.
        takes_harness: Whether the script may import the harness.
    """

    module: Any
    test: str
    source: str
    shows: str
    target: str = "host"
    takes_harness: bool = False

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
    ),
    Planted(
        test_slots,
        "test_compute_slot_mapping_laws/slots_are_distinct",
        "def compute_slot_mapping(*args, **keywords):\n"
        "    slots = fast.compute_slot_mapping(*args, **keywords)\n"
        "    slots[1:] = slots[:1]\n"
        "    return slots\n",
        "result[",
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
        takes_harness=True,
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
    ),
    Planted(
        test_batch_order,
        "test_split_decodes_and_prefills",
        "def split_decodes_and_prefills(*args, **keywords):\n"
        "    return (*fast.split_decodes_and_prefills(*args, **keywords)[:3], 0)\n",
        "result[3] = 0, but should be ",
    ),
    Planted(
        test_context_parallel,
        "test_get_dcp_local_seq_lens",
        "def get_dcp_local_seq_lens(*args, **keywords):\n"
        "    return fast.get_dcp_local_seq_lens(*args, **keywords).to(torch.int64)\n",
        "result.dtype = int64, but should be int32",
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
        "result.block_table_tensor",
    ),
    Planted(
        test_metadata,
        "test_unpadded",
        "class CommonAttentionMetadata(fast.CommonAttentionMetadata):\n"
        "    def unpadded(self, *args, **keywords):\n"
        "        raise ValueError('no')\n",
        "the call = raised ValueError: no, but should be a result",
    ),
    Planted(
        test_kv_binding,
        "test_extract_layer_index",
        "def extract_layer_index(*args, **keywords):\n"
        "    return fast.extract_layer_index(*args, **keywords) + 1\n",
        "result = ",
    ),
    Planted(
        test_kv_cache,
        "test_init_kv_cache",
        "def init_kv_cache(runner_kv_caches, *args, **keywords):\n"
        "    found = fast.init_kv_cache(runner_kv_caches, *args, **keywords)\n"
        "    runner_kv_caches.clear()\n"
        "    return found\n",
        "",
        takes_harness=True,
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
        takes_harness=True,
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
        takes_harness=True,
    ),
]


def check_of(planted: Planted) -> Check:
    """Return the check that is to see a bug."""
    test, _, law = planted.test.partition("/")
    return next(
        check for name, check in checks_in(vars(planted.module)) if (name, check.law) == (test, law)
    )


def failing_script(planted: Planted, path: Path) -> str:
    """Return the script of a bug, which stands in a file."""
    path.write_text(RIGHT + planted.source)
    implementation = load_implementation(str(path))
    target: Target = dataclasses.replace(
        TARGETS[planted.target],
        implementation=implementation,
    )
    check = check_of(planted)
    FAILURES.clear()
    with pytest.raises(Exception):  # noqa: B017, PT011  # whatever the verdict is
        check.bind(target, FEW, check.sizes(target)[0])()
    failed, example, error = FAILURES[-1]
    where = f"{planted.module.__name__}:{planted.test.replace('/', '[')}"
    where += "]" if "/" in planted.test else ""
    script = script_of(failed, target, example, error, where)
    assert script is not None
    return script


@pytest.mark.parametrize("planted", PLANTED, ids=[p.name for p in PLANTED])
def test_a_script_shows_the_difference(
    planted: Planted, tmp_path: Path, run_script: RunScript
) -> None:
    """It ends with status 1 and the first difference; some are seen to end with 0 once mended."""
    impl = tmp_path / f"impl_{PLANTED.index(planted)}.py"
    script = failing_script(planted, impl)
    assert len(script.splitlines()) <= MOST_LINES
    assert "hypothesis" not in script
    assert planted.takes_harness == ("from conformance" in script)
    path = save_script(script, "a test[host-minimal]", tmp_path / "failures")
    assert path.name == "a-test-host-minimal.py"
    found = run_script(path)
    assert (1, "") == (found.returncode, found.stdout), script
    last = found.stderr.strip().splitlines()[-1]
    assert last.startswith(planted.shows), found.stderr
    if PLANTED.index(planted) % 3:  # to run one again takes a second
        return
    impl.write_text(RIGHT)
    mended = run_script(path)
    assert 0 == mended.returncode, mended.stderr + script


RAISING = """
def get_dcp_local_seq_lens(*args, **keywords):
    {line}
"""


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("raise KeyError('rank\\nof two lines')", "raised KeyError: "),
        ("import sys; sys.exit(0)", "raised SystemExit: 0"),
    ],
    ids=["an error", "an exit"],
)
@pytest.mark.parametrize("name", ["impl_raising.py", "impl-raising.v2.py"])
def test_a_call_that_raises_is_one_line(
    name: str, line: str, told: str, tmp_path: Path, run_script: RunScript
) -> None:
    """Its script ends with status 1 and what was raised; a file of any name is found again."""
    planted = Planted(
        test_context_parallel, "test_get_dcp_local_seq_lens", RAISING.format(line=line), ""
    )
    script = failing_script(planted, tmp_path / name)
    for module in ("impl_raising", "impl_raising_v2"):
        sys.modules.pop(module, None)
    assert "from conformance" not in script
    found = run_script(save_script(script, "a test", tmp_path / "failures"))
    assert 1 == found.returncode, script
    [said] = found.stderr.splitlines()
    assert said.startswith(f"the call = {told}")
    assert said.endswith(", but should be a result")


def test_a_script_is_python_whatever_it_says() -> None:
    """Quotes and braces of a statement, or of what was raised, break no script of Python 3.11."""
    statement = "A \"{quoted}\" 'one' \\ is {right"
    toy = Check("toy", Kind.LAW, lambda _: st.none(), lambda *_: None, statement)
    for said in ('it is "{so}"', '"""', "{", ""):
        script = script_of(toy, TARGETS["host"], 3, AssertionError(said), "conformance.test_x:test")
        assert script is not None
        compile(script, "script", "exec")
