"""The package: its names, its imports, and the examples in its docstrings."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import subprocess
import sys
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

import reference

MODULES = sorted(module.name for module in pkgutil.iter_modules(reference.__path__))

NAMES = """
VllmConfig ModelConfig CacheConfig ParallelConfig SchedulerConfig CompilationConfig PassConfig
SpeculativeConfig CpuGpuBuffer PAD_SLOT_ID NULL_BLOCK_ID BlockTables compute_slot_mapping
map_to_kernel_blocks CommonAttentionMetadata split_decodes_and_prefills
split_decodes_prefills_and_extends reorder_batch_to_split_decodes_and_prefills UBatchSlice
create_ubatch_slices slice_query_start_locs _make_metadata_with_slice split_attn_metadata
make_local_attention_virtual_batches get_dcp_local_seq_lens kv_reads kv_writes
"""


def test_names() -> None:
    """Every name of these modules is importable from the package, which states it in __all__."""
    assert set(NAMES.split()) <= set(reference.__all__)
    assert len(reference.__all__) == len(set(reference.__all__))
    for name in reference.__all__:
        assert hasattr(reference, name), name


SIGNATURES = {
    "compute_slot_mapping": "block_table, query_start_loc, positions, block_size, *, "
    "kernel_block_size=None, cp_world_size=1, cp_rank=0, cp_kv_cache_interleave_size=1, out=None",
    "map_to_kernel_blocks": "block_ids, blocks_per_kv_block",
    "BlockTables": "block_sizes, max_num_reqs, max_num_batched_tokens, max_model_len, device, "
    "pin_memory",
    "BlockTables.append_block_ids": "self, req_indices, cu_num_new_blocks, new_block_ids, "
    "overwrite",
    "BlockTables.move_row": "self, src, dst",
    "BlockTables.swap_rows": "self, a, b",
    "BlockTables.clear_row": "self, r",
    "BlockTables.gather_block_tables": "self, idx_mapping",
    "BlockTables.compute_slot_mappings": "self, query_start_loc, positions",
    "BlockTables.get_dummy_block_tables": "self, num_reqs",
    "BlockTables.get_dummy_slot_mappings": "self, num_tokens",
    "CpuGpuBuffer": "*size, dtype, device, pin_memory",
    "CpuGpuBuffer.copy_to_gpu": "self, n=None",
    "CpuGpuBuffer.copy_to_cpu": "self, n=None",
    "CommonAttentionMetadata.unpadded": "self, num_actual_tokens, num_actual_reqs",
    "CommonAttentionMetadata.validate": "self, block_size=None",
    "split_decodes_and_prefills": "common_attn_metadata, decode_threshold=1, require_uniform=False",
    "split_decodes_prefills_and_extends": "common_attn_metadata, decode_threshold=1",
    "reorder_batch_to_split_decodes_and_prefills": "input_batch, scheduler_output, "
    "decode_threshold=1, *, regions=3",
    "UBatchSlice": "request_slice, token_slice",
    "UBatchSlice.is_empty": "self",
    "create_ubatch_slices": "num_scheduled_tokens, split_points",
    "slice_query_start_locs": "query_start_loc, request_slice",
    "_make_metadata_with_slice": "ubatch_slice, attn_metadata",
    "split_attn_metadata": "ubatch_slices, common_attn_metadata",
    "make_local_attention_virtual_batches": "attn_chunk_size, common_attn_metadata, block_size=0",
    "get_dcp_local_seq_lens": "seq_lens, dcp_size=1, dcp_rank=None, cp_kv_cache_interleave_size=1",
    "kv_reads": "metadata, block_size, *, kernel_block_size=None, cp_world_size=1, cp_rank=0, "
    "cp_kv_cache_interleave_size=1",
    "kv_writes": "metadata",
}


@pytest.mark.parametrize(("name", "expected"), SIGNATURES.items())
def test_signatures(name: str, expected: str) -> None:
    """Parameters have these names, this order and these defaults."""
    signature = inspect.signature(attrgetter(name)(reference))
    parameters = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    bare = signature.replace(parameters=parameters, return_annotation=signature.empty)
    assert f"({expected})" == str(bare)


def test_sentinels() -> None:
    """The sentinels are what engines' kernels take them to be."""
    assert (-1, 0) == (reference.PAD_SLOT_ID, reference.NULL_BLOCK_ID)


def test_imports_without_torch_or_numba() -> None:
    """It works where neither torch nor numba can be imported, nor its twin nor the harness."""
    blocked = ("torch", "numba", "fast", "conformance", "hypothesis", "pytest")
    code = (
        f"import sys\nfor name in {blocked}: sys.modules[name] = None\n"
        "import importlib, pkgutil, reference\n"
        "for module in pkgutil.iter_modules(reference.__path__):\n"
        "    importlib.import_module(f'reference.{module.name}')\n"
        "import numpy as np\n"
        "print(reference.map_to_kernel_blocks(np.array([0, 3]), 2))\n"
    )
    root = Path(reference.__file__).parents[1]
    result = subprocess.run(  # noqa: S603  # our own code
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False
    )
    assert ("[0 1 6 7]\n", "") == (result.stdout, result.stderr)


@pytest.mark.parametrize("name", ["__init__", *MODULES])
def test_doctests(name: str) -> None:
    """The examples of every docstring give what they say."""
    module = importlib.import_module(f"reference.{name}" if name != "__init__" else "reference")
    assert doctest.testmod(module).failed == 0


def examined(name: str) -> Any:  # noqa: ANN401  # a function or a class
    """Return what a name stands for."""
    return getattr(reference, name)


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in reference.__all__
        if inspect.isroutine(examined(name))
        or (inspect.isclass(examined(name)) and not name.endswith("Config"))
    ],
)
def test_docstrings_are_definitions(name: str) -> None:
    """Each public function and class has an example that runs, and says where it comes from."""
    documented = examined(name)
    assert inspect.getdoc(documented)
    assert "\n    Source: " in documented.__doc__
    (found,) = doctest.DocTestFinder(recurse=False).find(documented, name)
    assert found.examples


@pytest.mark.parametrize(
    "name", [name for name in reference.__all__ if inspect.isfunction(examined(name))]
)
def test_docstrings_name_every_argument(name: str) -> None:
    """Each parameter of a public function has its line."""
    for parameter in inspect.signature(examined(name)).parameters:
        assert f"\n        {parameter}: " in (examined(name).__doc__ or ""), parameter
