"""A step's metadata for each group's builder, as one writes it in a hurry."""

# ruff: noqa: ANN401, C901, PLR0912  # engines' own objects; a branch for each bug

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import fast
from known_bad.entries import rewritten

REAL_BUILD = fast.build_attn_metadata


class _Dry:
    """A builder for the real function's checks, so that the given ones are not asked by it."""

    def build(self, **_: object) -> None:
        """Build nothing."""


def _check(
    bug: str | None, builders: Any, arguments: tuple[Any, ...], bounds: dict[str, Any]
) -> None:
    """Refuse what the real function refuses, but for a bug."""
    config = arguments[-1]
    dry = type(builders)(_Dry() for _ in builders)
    counts = list(arguments)
    if bug == "the shorter of builders and groups wins" and isinstance(builders, list):
        count = min(len(dry), len(config.kv_cache_groups))
        dry = dry[:count] + [_Dry()] * (len(config.kv_cache_groups) - count)
    if bug == "tables too short pass":
        rows = torch.zeros((max(int(arguments[0]), 0), 0), dtype=torch.int32)
        counts[5] = [t if len(t) >= len(rows) else rows for t in arguments[5]]
    if bug == "the batch is believed":
        with fast.checks(False):
            REAL_BUILD(dry, *counts, **bounds)
        return
    if bug == "a bound is believed":
        with fast.checks(False):
            REAL_BUILD(dry, *counts, **bounds)
        bounds = {}
    if bug == "a bool is a bound":
        bounds = {name: int(n) if isinstance(n, bool) else n for name, n in bounds.items()}
    if bug == "a bound may be any int":
        bounds = {n: b if isinstance(b, bool | float) else None for n, b in bounds.items()}
    if bug == "a bool is a count":
        counts[:2] = [int(n) if isinstance(n, bool) else n for n in counts[:2]]
    REAL_BUILD(dry, *counts, **bounds)


def _longest_query(bug: str | None, starts: torch.Tensor, lens: torch.Tensor) -> Any:
    if bug == "max_query_len is the longest sequence's":
        return int(lens.max()) if len(lens) else 0
    if bug == "max_query_len is the first request's":
        return int(starts[1]) if len(lens) else 0
    if not len(lens):
        return 1 if bug == "the longest of nothing is 1" else 0
    longest = starts.diff().max()
    return longest if bug == "maxima are tensors" else int(longest)


def _bounds(bug: str | None, given: dict[str, Any], *found: Any) -> list[Any]:
    """Return the two bounds: what is given, otherwise what was found."""
    bounds = list(given.values())
    if bug == "bounds are swapped" and None not in bounds:
        bounds.reverse()
    if bug == "bounds are ignored" or (bug == "one bound alone is ignored" and None in bounds):
        bounds = [None, None]
    return [f if b is None else int(b) for f, b in zip(found, bounds, strict=True)]


def _make(bug: str | None) -> Callable[..., dict[str, Any]]:
    def build_attn_metadata(
        attn_metadata_builders: Any,
        num_reqs: int,
        num_tokens: int,
        query_start_loc: Any,
        seq_lens: Any,
        num_computed_tokens_cpu: torch.Tensor,
        block_tables: Any,
        slot_mappings: Any,
        kv_cache_config: Any,
        max_query_len: Any = None,
        max_seq_len: Any = None,
    ) -> dict[str, Any]:
        given = (num_reqs, num_tokens, query_start_loc, seq_lens, num_computed_tokens_cpu)
        bounds = {"max_query_len": max_query_len, "max_seq_len": max_seq_len}
        rest = (block_tables, slot_mappings, kv_cache_config)
        _check(bug, attn_metadata_builders, (*given, *rest), bounds)
        n, tokens = int(num_reqs), int(num_tokens)
        cut = len(query_start_loc.cpu) if bug == "the starts are not cut" else n + 1
        starts, starts_cpu = query_start_loc.gpu[:cut], query_start_loc.cpu[:cut]
        lens, lens_cpu = seq_lens.gpu[:n], seq_lens.cpu[:n]
        computed = num_computed_tokens_cpu
        if bug != "computed counts are not cut":
            computed = computed[:n]
        if bug == "buffers are copied":
            starts, lens = starts.clone(), lens.clone()
        if bug == "the host's starts are those on the device":
            starts_cpu = starts
        if bug == "the lengths on the device are the host's":
            lens = lens_cpu
        longest = max(lens_cpu.tolist(), default=0)
        if bug == "max_seq_len is the whole buffer's":
            longest = max(seq_lens.cpu.tolist(), default=0)
        longest_query = _longest_query(bug, starts_cpu[: n + 1], lens_cpu)
        if bug == "max_query_len is the whole buffer's":
            longest_query = max(query_start_loc.cpu.diff().tolist(), default=0)
        longest_query, longest = _bounds(bug, bounds, longest_query, longest)
        if bug == "padded tokens are dropped":
            tokens = int(starts_cpu[-1])
        if bug == "padded requests are dropped":
            n = int((starts_cpu.diff() > 0).sum())
            starts, starts_cpu = starts[: n + 1], starts_cpu[: n + 1]
            lens, lens_cpu, computed = lens[:n], lens_cpu[:n], computed[:n]
        found: dict[str, Any] = {}
        first = None
        for i, group in enumerate(kv_cache_config.kv_cache_groups[: len(attn_metadata_builders)]):
            table, slots = block_tables[i], slot_mappings[i]
            if bug == "tables are cut":
                table = table[:n]
            if bug == "slots are cut":
                slots = slots[:tokens]
            batch = fast.CommonAttentionMetadata(
                query_start_loc=starts,
                query_start_loc_cpu=starts_cpu,
                seq_lens=lens,
                seq_lens_cpu=lens_cpu,
                num_computed_tokens_cpu=computed,
                num_reqs=n,
                num_actual_tokens=tokens,
                max_query_len=longest_query,
                max_seq_len=longest,
                block_table_tensor=table,
                slot_mapping=slots,
                causal=bug != "causal is left to the builder",
            )
            first = first or batch
            is_alike = table is block_tables[0] and slots is slot_mappings[0]
            if bug == "one metadata for all groups" or (
                bug == "one metadata for groups of one table" and is_alike
            ):
                batch = first
            if bug == "slots are those of the first group":
                batch.slot_mapping = first.slot_mapping
            found |= _built(bug, attn_metadata_builders[i], batch, list(group.layer_names))
        return found

    return build_attn_metadata


def _built(bug: str | None, builder: Any, batch: Any, names: list[str]) -> dict[str, Any]:
    """Return what a group's layers get."""
    if bug == "the prefix is what all have computed":
        prefix = min(batch.num_computed_tokens_cpu.tolist(), default=0)
        built = builder.build(common_prefix_len=prefix, common_attn_metadata=batch)
    elif bug == "asked by position":
        built = builder.build(0, batch)
    elif bug == "asked to be quick":
        built = builder.build(common_prefix_len=0, common_attn_metadata=batch, fast_build=True)
    else:
        built = builder.build(common_prefix_len=0, common_attn_metadata=batch)
    if bug == "built once to warm up":
        built = builder.build(common_prefix_len=0, common_attn_metadata=batch)
    if bug == "built anew for each layer":
        return {
            name: builder.build(common_prefix_len=0, common_attn_metadata=batch) for name in names
        }
    if bug == "the first layer stands for its group":
        names = names[:1]
    return dict.fromkeys(names, built)


ATTN_METADATA = rewritten(
    "build_attn_metadata",
    _make,
    answers={
        "max_query_len is the longest sequence's": "An upper bound, and a grid far too large.",
        "max_query_len is the whole buffer's": "Right in a fresh buffer, which is zeros.",
        "max_query_len is the first request's": "Right for uniform decodes.",
        "max_seq_len is the whole buffer's": "Right until a long request has left its row.",
        "the longest of nothing is 1": "A dummy run launches a grid for nobody.",
        "maxima are tensors": "They compare and print like ints; a kernel's launch waits for them.",
        "bounds are ignored": "The same, unless a bound is above the maximum.",
        "bounds are swapped": "The first test has one request, which is a prefill.",
        "one bound alone is ignored": "One pass finds both.",
        "the starts are not cut": "The first entries are right.",
        "computed counts are not cut": "Likewise.",
        "buffers are copied": "The right values; a captured graph reads the copy.",
        "the host's starts are those on the device": "Equal; reading them synchronises.",
        "the lengths on the device are the host's": "Equal on the CPU.",
        "padded tokens are dropped": "Right without CUDA graphs.",
        "padded requests are dropped": "Likewise.",
        "one metadata for groups of one table": "A builder that writes into it changes both.",
        "one metadata for all groups": "Right for models of one group.",
        "slots are those of the first group": "Reads are right; writes land in another group.",
        "tables are cut": "The same rows; a graph was captured over all of them.",
        "slots are cut": "Likewise.",
        "causal is left to the builder": "The default is True, and this is not the default.",
        "the prefix is what all have computed": "Cascade attention of requests with no prefix.",
        "asked by position": "Right for builders with the parameters in this order.",
        "asked to be quick": "The same metadata from builders that do not know how.",
        "the first layer stands for its group": "Right for groups of one layer.",
        "built anew for each layer": "Equal objects; plans are made once a layer.",
    },
    refusals={
        "the shorter of builders and groups wins": "`zip`: the last group's layers have none.",
        "tables too short pass": "The last requests read another's blocks.",
        "the batch is believed": "Nobody looks at the values, in checked mode either.",
        "a bool is a count": "`True` is one request.",
        "a bound is believed": "Checked mode looks at the batch without the bounds.",
        "a bool is a bound": "`True` is 1.",
        "a bound may be any int": "A negative one, or one that no int32 holds.",
    },
    laws={
        "test_each_builder_builds_once": {
            "built once to warm up": "The same metadata, in twice the time."
        },
    },
)
