"""Every bug can be planted, and the harness catches a sample; `tests/bugs/run.py` tries all."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from conformance.functions import contracts
from tests.bugs.run import CLASSES, HERE, read_bugs

MISSED: Final = {
    "BlockTables: slots: starts of another stride": "needs more examples than native has",
    "CommonAttentionMetadata.unpadded: checked mode reads the copy on the CPU": "needs a copy",
    "MultiModalBudget.reset_cache: a reset by a counter of one byte": "shows in the 256th reset",
    "_make_metadata_with_slice: long slots in one piece": "needs slots of 128 tokens, strided",
    "_make_metadata_with_slice: the vectors of the batch at hand": "two threads show it, mostly",
    "add_kv_sharing_layers_to_kv_cache_groups: an empty set passes for any that is empty": "rare",
    "compute_slot_mapping: a decode's block by the reciprocal": "wrong for three block sizes",
    "compute_slot_mapping: a scratch for strided slots": "shows in the first call of a process",
    "compute_slot_mapping: an arena of 16,384 slots": "two threads show it, mostly",
    "create_ubatch_slices: cuts are collected in one list": "two threads show it, mostly",
    "create_ubatch_slices: the time of each call is noted": "shows in the 65,537th call",
    "gather_mm_placeholders: kernel: a dense mask": "needs more examples than native has",
    "gather_mm_placeholders: rows: the units fit the source only": "likewise",
    "get_dcp_local_seq_lens: 16,384 entries at a time": "needs lengths as many, of many ranks",
    "get_dcp_local_seq_lens: 192 at a time, from all but the last": "needs 193 requests, or 385",
    "get_dcp_local_seq_lens: a table of 256 layouts": "needs more layouts than a run draws",
    "get_dcp_local_seq_lens: the first thread has the buffers": "two threads show it, mostly",
    "infer_global_hyperparameters: a layer is added and removed in one statement": "two threads",
    "make_kv_sharing_fast_prefill_common_attn_metadata: kernel: dense positions": "few are strided",
    "make_local_attention_virtual_batches: kernel: the last vector is a part": "needs wider rows",
    "map_to_kernel_blocks: the number is set for all threads": "two threads, for a microsecond",
}
"""The bugs that the default run misses, always or at times, by name, and why."""

BUGS: Final = list(read_bugs())
TARGETS: Final = ("host", "native") if find_spec("numba_cuda") else ("host",)
SAMPLE: Final = {
    "AttentionCGSupport: its members are ints",
    "KVCacheSpec.page_size_bytes: a key and a value",
    "MultiModalBudget.get_modality_with_max_tokens: the last by name",
    "compute_causal_conv1d_metadata: kernel: a program more at a multiple",
    "gather_mm_placeholders: kernel: no barrier before a step of the scan",
    "get_dcp_local_seq_lens: remembered without the interleave",
    "split_attn_metadata: the rows of many micro-batches follow one another",
    "stateful test: reordering: computed tokens stay where they are",
}


def test_every_bug_can_be_planted() -> None:
    functions = {contract.function for contract in contracts()}
    for bug in BUGS:
        right, wrong = (compile(source, bug.module, "exec") for source in bug.sources())
        assert right != wrong, bug.name
        assert {bug.function, bug.function.partition(".")[0]} & functions, bug.name
        assert bug.letter in {"", *CLASSES}
    names = [(bug.module, bug.name) for bug in BUGS]
    assert len(set(names)) == len(names)
    assert {*MISSED, *SAMPLE} <= {bug.name for bug in BUGS}


def test_a_sample_is_caught(tmp_path: Path) -> None:
    sample = [bug.name for bug in BUGS if bug.name in SAMPLE and bug.target in TARGETS]
    pattern = "|".join(map(re.escape, sample))
    output = tmp_path / "found.jsonl"
    options = ["--quick", "-k", f"^({pattern})$", "--output", output]
    command = [sys.executable, "-W", "ignore", HERE / "run.py", *options]
    subprocess.run(command, check=True)  # noqa: S603  # our own
    found = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert len(found) >= len(sample) > 0
    assert ["caught"] * len(found) == [one["verdict"] for one in found], found
