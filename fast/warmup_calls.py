"""Compile, load and call everything before the first request."""

import warnings
from types import SimpleNamespace
from typing import Any, Final

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
from fast.context_parallel import get_dcp_local_seq_lens, prepare_dcp_local_seq_lens
from fast.kernels.cuda import KERNELS
from fast.launch import launcher
from fast.local_attention import make_local_attention_virtual_batches
from fast.logits_indices import make_kv_sharing_fast_prefill_common_attn_metadata
from fast.metadata import AttnMetadataPlan, CommonAttentionMetadata, build_attn_metadata
from fast.multimodal import gather_mm_placeholders, scatter_mm_placeholders
from fast.numba_cuda import is_installed
from fast.pinned import prepare_graphs
from fast.slots import compute_slot_mapping
from fast.step_inputs import (
    combine_sampled_and_draft_tokens,
    expand_idx_mapping,
    prepare_pos_seq_lens,
    prepare_prefill_inputs,
)
from fast.step_results import (
    get_num_sampled_and_rejected,
    post_update,
    post_update_num_computed_tokens,
)
from fast.ubatch import create_ubatch_slices, split_attn_metadata

NUM_REHEARSALS: Final = 20
"""How often everything is called. Python specialises a function's bytecode within about ten calls,
and torch's first call of each kind takes 100 us."""


def warmup() -> None:
    """Compile everything that `fast` compiles, and call it, so that no request waits for it.

    The loops of the host path are loaded from numba's cache on disk if possible; those that check
    bounds in checked mode are compiled when they are first called. If there is a GPU and
    numba-cuda, the kernels are compiled for the current device and loaded, which must happen before
    a CUDA graph captures them. If that is impossible with what is installed, a `RuntimeWarning`
    says what to change, and only the host path is warmed up. Then every hot function is called for
    a small batch on the CPU: without that, its first call takes much longer than later ones.

    Example:
        >>> import fast
        >>> fast.warmup()

    Source: kvtwin's own.
    """
    compile_loops()
    if torch.cuda.is_available():
        _load_kernels()
    for _ in range(NUM_REHEARSALS):
        _rehearse()


def _load_kernels() -> None:
    if not is_installed():
        return  # the host path is all there is
    try:
        for kernel in KERNELS:
            launcher().load(kernel, torch.cuda.current_device())
    except ImportError as error:
        message = f"kernels are not loaded, so calls with CUDA tensors will fail: {error}"
        warnings.warn(message, RuntimeWarning, stacklevel=3)
        return
    prepare_graphs()


def _rehearse() -> None:
    """Call every hot function for a decode, an extend and a prefill on the CPU."""
    starts, lens = (
        CpuGpuBuffer(4, dtype=torch.int32, device="cpu", pin_memory=False) for _ in range(2)
    )
    starts.np[:] = 0, 1, 4, 8
    lens.np[:3] = 6, 6, 4
    starts.copy_to_gpu()
    lens.copy_to_gpu()
    positions = torch.tensor([5, 3, 4, 5, 0, 1, 2, 3], device="cpu")
    tables = BlockTables([2, 4], 4, 8, 8, "cpu", pin_memory=False)
    ids = [4, 5, 6, 7]
    tables.append_block_ids([0, 1, 2], [[0, 1, 2, 4]] * 2, [ids, ids], [True] * 3)
    tables.append_block_ids([], [[0]] * 2, [[]] * 2, [])
    block_tables = tables.gather_block_tables(torch.arange(3, dtype=torch.int32, device="cpu"))
    slots = tables.compute_slot_mappings(starts.gpu, positions)
    compute_slot_mapping(block_tables[0], starts.gpu, positions, 2)
    groups = [SimpleNamespace(layer_names=[name]) for name in ("0", "1")]
    buffers: dict[str, Any] = {
        "attn_metadata_builders": [SimpleNamespace(build=_take_batch)] * 2,
        "query_start_loc": starts,
        "seq_lens": lens,
        "num_computed_tokens_cpu": torch.tensor([5, 3, 0], dtype=torch.int32, device="cpu"),
        "kv_cache_config": SimpleNamespace(kv_cache_groups=groups),
    }
    of_step: dict[str, Any] = {
        "num_reqs": 3,
        "num_tokens": 8,
        "block_tables": block_tables,
        "slot_mappings": slots,
    }
    batch = build_attn_metadata(**buffers, **of_step)["0"]
    plan = AttnMetadataPlan(**buffers)
    plan.build(**of_step)
    plan.build(**of_step, max_query_len=4, max_seq_len=6)
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
    requests = SimpleNamespace(
        req_ids=["c", "b", "a"],
        num_computed_tokens_cpu=np.array([0, 3, 5], np.int32),
        swap_states=lambda _i, _j: None,
    )
    step = SimpleNamespace(num_scheduled_tokens={"a": 1, "b": 3, "c": 4})
    reorder_batch_to_split_decodes_and_prefills(requests, step)
    counts = np.array([4, 3, 1], np.int32)
    reorder_batch_to_split_decodes_and_prefills(requests, None, num_scheduled_tokens=counts)
    is_embed = torch.tensor([True, False, True], device="cpu")
    rows = scatter_mm_placeholders(torch.zeros(2, 8, dtype=torch.bfloat16, device="cpu"), is_embed)
    gather_mm_placeholders(rows, is_embed)
    _rehearse_inputs(starts.gpu, positions)
    _rehearse_results(starts.gpu, lens.gpu[:3])


def _rehearse_inputs(starts: torch.Tensor, pos: torch.Tensor) -> None:
    """Prepare the inputs of the same requests, of which the first two are past their prompts."""
    rows, computed = torch.arange(3, dtype=torch.int32, device="cpu"), starts.new_tensor([5, 3, 0])
    lens, ids, tokens = starts.new_empty(3), starts.new_empty(8), starts.new_ones((3, 8))
    prepare_pos_seq_lens(rows, starts, computed, pos, lens)
    prefill_len = starts.new_tensor([4, 3, 4])
    prepare_prefill_inputs(ids, tokens[:1, :3].clone(), rows, starts, tokens, prefill_len, computed)
    drafts, logits = pos.new_ones((3, 2)), starts.new_tensor([0, 1, 4, 5])
    sampled = (rows, pos[:3], starts, lens, prefill_len, drafts)
    combine_sampled_and_draft_tokens(ids, *sampled, logits, 5)
    expand_idx_mapping(rows, 5, logits, 3)
    prepare_dcp_local_seq_lens(starts.new_empty(4), lens, 3, 2, 1, 1)


def _rehearse_results(starts: torch.Tensor, lens: torch.Tensor) -> None:
    rows = torch.arange(3, dtype=torch.int32, device="cpu")
    known, total = lens.clone(), lens.clone()
    counts = get_num_sampled_and_rejected(torch.ones_like(lens), lens, starts, rows, known)
    tokens = torch.zeros(3, 4, dtype=torch.int64, device="cpu")
    ids, drafts = torch.zeros(3, 8, dtype=torch.int32, device="cpu"), torch.zeros_like(tokens)
    post_update_num_computed_tokens(rows, known, starts)
    state = known, tokens[:, 0].clone(), torch.zeros_like(ids)
    post_update(rows, *state, tokens, *counts, starts, ids, total, tokens, drafts)


def _take_batch(
    common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata
) -> CommonAttentionMetadata:
    del common_prefix_len
    return common_attn_metadata
