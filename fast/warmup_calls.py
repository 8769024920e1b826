"""Compile, load and call everything before the first request."""

import warnings
from types import SimpleNamespace
from typing import Final

import numpy as np
import torch

from fast._native.compiler import compile_loops
from fast.batch_order import (
    reorder_batch_to_split_decodes_and_prefills,
    split_decodes_and_prefills,
    split_decodes_prefills_and_extends,
)
from fast.block_table import BlockTables
from fast.buffers import CpuGpuBuffer
from fast.causal_conv1d import compute_causal_conv1d_metadata
from fast.context_parallel import get_dcp_local_seq_lens
from fast.kernels.cuda import KERNELS
from fast.launchers import load
from fast.local_attention import make_local_attention_virtual_batches
from fast.logits_indices import make_kv_sharing_fast_prefill_common_attn_metadata
from fast.metadata import CommonAttentionMetadata, build_attn_metadata
from fast.multimodal import gather_mm_placeholders, scatter_mm_placeholders
from fast.numba_cuda import is_installed
from fast.pinned import prepare_graphs
from fast.slots import compute_slot_mapping
from fast.ubatch import create_ubatch_slices, split_attn_metadata

NUM_REHEARSALS: Final = 20
"""How often everything is called. Python specialises a function's bytecode within about ten calls,
and torch's first call of each kind takes 100 us."""


def warmup() -> None:
    """Compile everything that `fast` compiles, and call it, so that no request waits for it.

    The loops of the host path are loaded from numba's cache on disk if possible; those that check
    bounds in checked mode are compiled when they are first called. If there is a GPU and
    numba-cuda, the kernels are compiled for the current device and loaded, which must happen before
    a CUDA graph captures them. If numba-cuda finds no compiler, a `RuntimeWarning` says what to
    set, and only the host path is warmed up. Then every hot function is called for a small batch on
    the CPU: without that, its first call takes much longer than later ones.

    Example:
        >>> import fast
        >>> fast.warmup()

    Source: kvtwin's own.
    """
    compile_loops()
    if torch.cuda.is_available():
        _load_kernels()
    rehearsal = _Rehearsal()
    for _ in range(NUM_REHEARSALS):
        rehearsal.run()


def _load_kernels() -> None:
    if not is_installed():
        return  # the host path is all there is
    try:
        for kernel in KERNELS:
            load(kernel, torch.cuda.current_device())
    except ImportError as error:
        message = f"kernels are not loaded, so calls with CUDA tensors will fail: {error}"
        warnings.warn(message, RuntimeWarning, stacklevel=3)
        return
    prepare_graphs()


class _Rehearsal:
    """A batch of a decode, an extend and a prefill on the CPU, and a step over it."""

    def __init__(self) -> None:
        self._starts, self._lens = (
            CpuGpuBuffer(4, dtype=torch.int32, device="cpu", pin_memory=False) for _ in range(2)
        )
        self._starts.np[:] = 0, 1, 4, 8
        self._lens.np[:3] = 6, 6, 4
        self._computed = torch.tensor([5, 3, 0], dtype=torch.int32, device="cpu")
        self._positions = torch.tensor([5, 3, 4, 5, 0, 1, 2, 3], device="cpu")
        self._everyone = torch.arange(3, dtype=torch.int32, device="cpu")
        self._tables = BlockTables([2, 4], 4, 8, 8, "cpu", pin_memory=False)
        self._embeds = torch.zeros(2, 8, dtype=torch.bfloat16, device="cpu")
        self._is_embed = torch.tensor([True, False, True], device="cpu")

    def run(self) -> None:
        """Call every hot function once."""
        starts = self._starts.copy_to_gpu()
        self._lens.copy_to_gpu()
        ids = [4, 5, 6, 7]
        self._tables.append_block_ids([0, 1, 2], [[0, 1, 2, 4]] * 2, [ids, ids], [True] * 3)
        self._tables.append_block_ids([], [[0]] * 2, [[]] * 2, [])
        block_tables = self._tables.gather_block_tables(self._everyone)
        slots = self._tables.compute_slot_mappings(starts, self._positions)
        compute_slot_mapping(block_tables[0], starts, self._positions, 2)
        groups = [SimpleNamespace(layer_names=[name]) for name in ("0", "1")]
        built = build_attn_metadata(
            [self, self],
            num_reqs=3,
            num_tokens=8,
            query_start_loc=self._starts,
            seq_lens=self._lens,
            num_computed_tokens_cpu=self._computed,
            block_tables=block_tables,
            slot_mappings=slots,
            kv_cache_config=SimpleNamespace(kv_cache_groups=groups),
        )
        self._derive(built["0"])
        self._reorder()
        rows = scatter_mm_placeholders(self._embeds, self._is_embed)
        gather_mm_placeholders(rows, self._is_embed)

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata
    ) -> CommonAttentionMetadata:
        """Return the batch of a group, as its builder."""
        del common_prefix_len
        return common_attn_metadata

    def _derive(self, batch: CommonAttentionMetadata) -> None:
        """Call the functions that split a batch or make another one from it."""
        for threshold in (1, 8):
            split_decodes_and_prefills(batch, threshold)
            split_decodes_prefills_and_extends(batch, threshold)
        split_decodes_and_prefills(batch, 1, require_uniform=True)
        split_attn_metadata(create_ubatch_slices(np.array([1, 3, 4], np.int32), 4), batch)
        make_local_attention_virtual_batches(4, batch, 2)
        compute_causal_conv1d_metadata(batch.query_start_loc)
        for rank in (None, 1):
            get_dcp_local_seq_lens(batch.seq_lens, 2, rank)
        batch.logits_indices_padded = torch.tensor([0, 3, 7], device="cpu")
        batch.num_logits_indices = 3
        make_kv_sharing_fast_prefill_common_attn_metadata(batch)

    def _reorder(self) -> None:
        """Reorder requests that are in the opposite order."""
        requests = SimpleNamespace(
            req_ids=["c", "b", "a"],
            num_computed_tokens_cpu=np.array([0, 3, 5], np.int32),
            swap_states=_swap_nothing,
        )
        step = SimpleNamespace(num_scheduled_tokens={"a": 1, "b": 3, "c": 4})
        reorder_batch_to_split_decodes_and_prefills(requests, step)


def _swap_nothing(_i: int, _j: int) -> None:
    """Swap the states of two requests without state."""
