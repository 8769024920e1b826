"""vLLM as the baseline, `kvtwin bench --baseline vllm`: its functions, without the adapter's work.

Arguments are converted, and a block table is filled, before a call is timed. Only vLLM's function
is timed, or its method if there is no function.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch

from conformance.adapters.base import Unsupported
from conformance.adapters.vllm.objects import VllmAdapter
from conformance.adapters.vllm.places import find
from kvtwin.bench.jobs import Call


def _prepare_slots(
    block_table: torch.Tensor, query_start_loc: torch.Tensor, positions: torch.Tensor, size: int
) -> Call:
    """Make the `BlockTable` of a KV cache group as vLLM's runner for CPUs does."""
    num_reqs, num_columns = block_table.shape
    device = torch.device("cpu")
    table = find("BlockTable")(size, num_reqs, num_columns, len(positions), False, device, 1)
    for buffer in (table.block_table, table.slot_mapping):
        buffer.gpu = buffer.cpu
    table.block_table.cpu.copy_(block_table)
    slots: torch.Tensor = table.slot_mapping.gpu

    def call() -> torch.Tensor:
        table.compute_slot_mapping(num_reqs, query_start_loc, positions)
        return slots

    return call


def _prepare_reorder(
    input_batch: Any, scheduler_output: Any, decode_threshold: int, *, regions: int = 3
) -> Call:
    if regions != 4:
        raise Unsupported("other than four regions")
    found = find("reorder_batch_to_split_decodes_and_prefills")
    return lambda: found(input_batch, scheduler_output, decode_threshold)


def _prepare_conv1d(query_start_loc_p: torch.Tensor) -> Call:
    found, device = find("compute_causal_conv1d_metadata"), query_start_loc_p.device
    return lambda: found(query_start_loc_p, device=device)


def _prepare_build(
    attn_metadata_builders: list[Any],
    num_reqs: int,
    num_tokens: int,
    query_start_loc: Any,
    seq_lens: Any,
    num_computed_tokens_cpu: torch.Tensor,
    block_tables: Any,
    slot_mappings: torch.Tensor,
    kv_cache_config: Any,
    max_query_len: int | None = None,
    max_seq_len: int | None = None,
) -> Call:
    """Make vLLM's attention groups, one for each builder."""
    del num_computed_tokens_cpu  # vLLM has no such field
    if max_query_len is None or max_seq_len is None:
        raise Unsupported("maxima that are not given")
    group_class = importlib.import_module("vllm.v1.worker.utils").AttentionGroup
    groups = []
    for builder, group in zip(attn_metadata_builders, kv_cache_config.kv_cache_groups, strict=True):
        theirs = SimpleNamespace(build=builder.build, supports_update_block_table=False)
        groups.append([group_class(None, group.layer_names, None, 0, metadata_builders=[theirs])])
    build = find("build_attn_metadata")
    # With keywords, as vLLM's runner calls it; the timed call makes the views, as that of `fast`.
    return lambda: build(
        attn_groups=groups,
        num_reqs=num_reqs,
        num_tokens=num_tokens,
        query_start_loc_gpu=query_start_loc.gpu[: num_reqs + 1],
        query_start_loc_cpu=query_start_loc.cpu[: num_reqs + 1],
        max_query_len=max_query_len,
        seq_lens=seq_lens.gpu,
        max_seq_len=max_seq_len,
        block_tables=block_tables,
        slot_mappings=slot_mappings,
        kv_cache_config=kv_cache_config,
        seq_lens_cpu_upper_bound=seq_lens.cpu,
    )


_PREPARED: Mapping[str, Callable[..., Call]] = {
    "compute_slot_mapping": _prepare_slots,
    "reorder_batch_to_split_decodes_and_prefills": _prepare_reorder,
    "compute_causal_conv1d_metadata": _prepare_conv1d,
    "build_attn_metadata": _prepare_build,
}
"""How calls are prepared whose parameters differ from those of `reference`."""


class VllmBaseline(VllmAdapter):
    """The adapter of vLLM, with calls that are prepared once and made many times."""

    def prepare(self, function: str, *args: Any, **kwargs: Any) -> Call:
        """Return a call of a function, whose arguments are already converted to vLLM's.

        Raises:
            Unsupported: vLLM's function does not support an argument.
        """
        if function in _PREPARED:
            return _PREPARED[function](*args, **kwargs)
        found = find(function)
        return lambda: found(*args, **kwargs)

    def result(self, function: str, theirs: Any, arguments: Mapping[str, Any]) -> Any:
        if function == "make_local_attention_virtual_batches":
            theirs, _ = theirs  # without vLLM's function that makes other tables
        return super().result(function, theirs, arguments)
