"""Checks that the results derived from a step's batch read and write what the batch does.

The laws state this for calls of one function; here it is checked for the results of a runner.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import product

from conformance.laws.access import Access, Half, Token
from conformance.model_runner.buffers import NUM_CP_RANKS
from conformance.model_runner.derived import BLOCKS_IN_SMALL_CHUNK
from conformance.stateful.view import BrokenInvariantError, View
from conformance.targets.target import Answer
from conformance.zoo.models import CHUNKED_LOCAL


def check_unpadded(view: View) -> None:
    """Check that the batch without its padding reads and writes what it does with it."""
    numbers = range(len(view.groups))
    for group, metadata in zip(numbers, view.results["unpadded"], strict=True):
        view.check_equal(group, "the batch without padding", [view.access_of(group, metadata)])


def check_micro_batches(view: View) -> None:
    """Check that micro-batches together read and write what the batch does, each token once."""
    if view.batch.settings.micro_batches == 1:
        return
    slices = view.results["micro_batch_slices"]
    for group, parts in zip(_rotating_groups(view), view.results["micro_batches"], strict=True):
        pairs = zip(slices, parts, strict=True)
        found = (view.access_of(group, part).shifted(s.token_slice.start) for s, part in pairs)
        view.check_equal(group, "micro-batches", found)


def check_virtual_batches(view: View) -> None:
    """Check that virtual batches read the pairs within a chunk, and write what the batch does."""
    numbers = _rotating_groups(view)
    for group, virtual in zip(numbers, view.results["small_chunks"], strict=True):
        _check_chunks(view, group, BLOCKS_IN_SMALL_CHUNK * view.groups[group].block_size, virtual)
    chunked = [number for number in numbers if view.groups[number].kind == CHUNKED_LOCAL]
    for group, virtual in zip(chunked, view.results["local_attention"], strict=True):
        _check_chunks(view, group, view.groups[group].attention_chunk_size or 0, virtual)


def check_built(view: View) -> None:
    """Check that builders were given the batch of their layers' group."""
    built = view.results["attn_metadata"]
    of_layers = view.results["attn_metadata_of_layers"]
    for number, group in enumerate(view.groups):
        common = built[of_layers[group.layer_names[0]]].common
        if group.kind == CHUNKED_LOCAL:
            _check_chunks(view, number, group.attention_chunk_size or 0, common)
        else:
            view.check_equal(number, "the layer's batch", [view.access_of(number, common)])


def check_fast_prefill(view: View) -> None:
    """Check that the tokens with logits read what they read in the whole batch."""
    starts = view.metadata[0].query_start_loc.tolist()
    last_tokens = [start - 1 for start in starts[1 : view.batch.num_reqs + 1]]
    for group, metadata in enumerate(view.metadata):
        indices = () if metadata.logits_indices_padded is None else metadata.logits_indices_padded
        logits_tokens = [int(token) for token in indices[: metadata.num_logits_indices]]
        if logits_tokens != last_tokens:
            raise BrokenInvariantError(
                f"{view.group_name(group)}: the tokens with logits are {logits_tokens}, but the "
                f"last tokens of the requests are {last_tokens}"
            )
    for group, made in zip(_rotating_groups(view), view.results["logits_tokens"], strict=True):
        is_whole = int(view.metadata[group].max_query_len) == 1  # then the batch itself comes back
        names = dict(enumerate(range(starts[-1]) if is_whole else last_tokens))
        got = view.access_of(group, made).only(Half.READS).renamed(names)
        expected = view.access[group].only(Half.READS).of_tokens(last_tokens)
        view.check_equal(group, "the batch of tokens with logits", [got], expected)


def check_kernel_blocks(view: View) -> None:
    """Check that tables of kernel blocks lead to the same reads and writes."""
    if view.batch.step_index % 4 >= 2:  # these slots are one rank's
        return
    numbers = _rotating_groups(view)
    tables, slots = view.results["kernel_block_tables"], view.results["kernel_slot_mappings"]
    for group, table, slot_mapping in zip(numbers, tables, slots, strict=True):
        metadata = dataclasses.replace(
            view.metadata[group], block_table_tensor=table, slot_mapping=slot_mapping
        )
        size = view.groups[group].block_size
        blocks_per_kv_block = table.shape[1] // -(-int(view.metadata[group].max_seq_len) // size)
        got = view.access_of(group, metadata, kernel_block_size=size // blocks_per_kv_block)
        view.check_equal(group, "the table of kernel blocks", [got])


def check_ranks(view: View) -> None:
    """Check that each context-parallel rank writes its tokens to where it reads them, no others."""
    places = product(_rotating_groups(view), range(NUM_CP_RANKS))
    for (group, rank), slots in zip(places, view.results["cp_slot_mappings"], strict=True):
        got = view.access_of(
            group,
            dataclasses.replace(view.metadata[group], slot_mapping=slots),
            cp_world_size=NUM_CP_RANKS,
            cp_rank=rank,
            cp_kv_cache_interleave_size=view.batch.interleave(view.groups[group]),
        )
        expected = got.read_back(view.positions)
        view.check_equal(group, f"the slots of rank {rank}", [got.only(Half.WRITES)], expected)


CHECKS: tuple[Callable[[View], None], ...] = (
    check_unpadded,
    check_micro_batches,
    check_virtual_batches,
    check_built,
    check_fast_prefill,
    check_kernel_blocks,
    check_ranks,
)
"""All checks."""


def _rotating_groups(view: View) -> list[int]:
    """Return the indices of the groups that the runner's slower functions processed."""
    return [view.groups.index(group) for group, _ in view.batch.rotating_groups]


def _check_chunks(view: View, group: int, chunk: int, virtual: Answer) -> None:
    """Check that a virtual batch reads the pairs of a query and a key that are in one chunk."""

    def in_chunk(_: Token, key: int) -> int:
        return key % chunk

    expected: Access = view.access[group].within_chunks(chunk, view.positions).with_keys(in_chunk)
    what = f"the virtual batch of chunks of {chunk}"
    view.check_equal(group, what, [view.access_of(group, virtual)], expected)
