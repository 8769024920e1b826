"""What is made of a step's batch must read and write what the batch does, each in a stated way."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import product

import reference
from conformance.stateful.view import BrokenInvariantError, Reads, View, Writes, as_reference
from conformance.targets import Answer
from conformance.traffic.buffers import NUM_CP_RANKS
from conformance.traffic.derived import BLOCKS_IN_SMALL_CHUNK
from conformance.zoo.layer import CHUNKED_LOCAL


def check_unpadded(view: View) -> None:
    """Check that the batch without its padding reads and writes what it does with it."""
    numbers = range(len(view.groups))
    for group, metadata in zip(numbers, view.results["unpadded"], strict=True):
        _check_same(view, group, "the batch without padding", [(0, as_reference(metadata))])


def check_micro_batches(view: View) -> None:
    """Check that micro-batches together read and write what the batch does, each token once."""
    if view.batch.settings.micro_batches == 1:
        return
    for group, parts in zip(_groups_in_turn(view), view.results["micro_batches"], strict=True):
        slices = view.results["micro_batch_slices"]
        firsts = [part.token_slice.start for part in slices]
        metadata = [as_reference(part) for part in parts]
        _check_same(view, group, "micro-batches", list(zip(firsts, metadata, strict=True)))


def check_virtual_batches(view: View) -> None:
    """Check that virtual batches read the pairs within a chunk, and write what the batch does."""
    numbers = _groups_in_turn(view)
    for group, virtual in zip(numbers, view.results["small_chunks"], strict=True):
        chunk = BLOCKS_IN_SMALL_CHUNK * view.groups[group].block_size
        _check_chunks(view, group, chunk, virtual)
    chunked = [number for number in numbers if view.groups[number].kind == CHUNKED_LOCAL]
    for group, virtual in zip(chunked, view.results["local_attention"], strict=True):
        _check_chunks(view, group, view.groups[group].attention_chunk_size or 0, virtual)


def check_built(view: View) -> None:
    """Check that what builders were given for their layers is the batch of their group."""
    built = view.results["attn_metadata"]
    of_layers = view.results["attn_metadata_of_layers"]
    for number, group in enumerate(view.groups):
        common = built[of_layers[group.layer_names[0]]].common
        if group.kind == CHUNKED_LOCAL:
            _check_chunks(view, number, group.attention_chunk_size or 0, common)
        else:
            _check_same(view, number, "the layer's batch", [(0, as_reference(common))])


def check_fast_prefill(view: View) -> None:
    """Check that the tokens with logits read what they did."""
    starts = view.metadata[0].query_start_loc.tolist()
    last_tokens = [start - 1 for start in starts[1 : view.batch.num_reqs + 1]]
    for group, metadata in enumerate(view.metadata):
        indices = () if metadata.logits_indices_padded is None else metadata.logits_indices_padded
        logits_tokens = [int(token) for token in indices[: metadata.num_logits_indices]]
        if logits_tokens != last_tokens:
            raise BrokenInvariantError(
                f"{view.group_name(group)}: logits are needed of the tokens {logits_tokens} of the "
                f"batch, but its requests' last ones are {last_tokens}"
            )
    for group, made in zip(_groups_in_turn(view), view.results["logits_tokens"], strict=True):
        is_whole = int(view.metadata[group].max_query_len) == 1  # then the batch itself comes back
        names = range(starts[-1]) if is_whole else last_tokens
        got = view.reads_of(as_reference(made), view.groups[group].block_size)
        renamed = {(names[token], key, slot) for token, key, slot in got}
        expected = {read for read in view.reads[group] if read[0] in last_tokens}
        _raise_difference(view, group, "the batch of tokens with logits", renamed, expected)


def check_kernel_blocks(view: View) -> None:
    """Check that through tables of kernel blocks the same slots are read and written."""
    if view.batch.step_index % 4 >= 2:  # these are a rank's
        return
    numbers = _groups_in_turn(view)
    tables, slots = view.results["kernel_block_tables"], view.results["kernel_slot_mappings"]
    for group, table, slot_mapping in zip(numbers, tables, slots, strict=True):
        metadata = dataclasses.replace(
            view.metadata[group],
            block_table_tensor=_array(table),
            slot_mapping=_array(slot_mapping),
        )
        size = view.groups[group].block_size
        width = view.metadata[group].max_seq_len
        blocks_per_kv_block = table.shape[1] // -(-int(width) // size)
        reads = view.reads_of(metadata, size, kernel_block_size=size // blocks_per_kv_block)
        _raise_difference(view, group, "the table of kernel blocks", reads, view.reads[group])
        writes = view.writes_of(metadata)
        _raise_difference(view, group, "the table of kernel blocks", writes, view.writes[group])


def check_ranks(view: View) -> None:
    """Check that each context-parallel rank writes its tokens to where it reads them, no others."""
    places = product(_groups_in_turn(view), range(NUM_CP_RANKS))
    slot_mappings = view.results["cp_slot_mappings"]
    for (group, rank), slot_mapping in zip(places, slot_mappings, strict=True):
        cache_group = view.groups[group]
        reads = view.reads_of(
            view.metadata[group],
            cache_group.block_size,
            cp_world_size=NUM_CP_RANKS,
            cp_rank=rank,
            cp_kv_cache_interleave_size=view.batch.interleave(cache_group),
        )
        expected = {(token, slot) for token, key, slot in reads if key == view.tokens[token][1]}
        on_rank = dataclasses.replace(view.metadata[group], slot_mapping=_array(slot_mapping))
        what = f"the slots of rank {rank}"
        _raise_difference(view, group, what, view.writes_of(on_rank), expected)


CHECKS: tuple[Callable[[View], None], ...] = (
    check_unpadded,
    check_micro_batches,
    check_virtual_batches,
    check_built,
    check_fast_prefill,
    check_kernel_blocks,
    check_ranks,
)
"""All of them."""


def _groups_in_turn(view: View) -> list[int]:
    """Return the numbers of the groups for which a runner makes what takes a while."""
    return [view.groups.index(group) for group, _ in view.batch.groups_in_turn]


def _array(values: Answer) -> Answer:
    """Return an array of either kind as NumPy's."""
    return values.cpu().numpy() if hasattr(values, "cpu") else values


def _check_same(
    view: View,
    group: int,
    what: str,
    parts: list[tuple[int, reference.CommonAttentionMetadata]],
) -> None:
    """Check that parts of a batch, given with their first tokens, are the whole of it."""
    reads: list[tuple[int, int, int]] = []
    writes: list[tuple[int, int]] = []
    size = view.groups[group].block_size
    for first, part in parts:
        reads += [(first + t, key, slot) for t, key, slot in view.reads_of(part, size)]
        writes += [(first + t, slot) for t, slot in view.writes_of(part)]
    _raise_difference(view, group, what, set(reads), view.reads[group])
    _raise_difference(view, group, what, set(writes), view.writes[group])
    if len(reads) > len(set(reads)) or len(writes) > len(set(writes)):
        raise BrokenInvariantError(f"{view.group_name(group)}: {what}: a token is in two parts")


def _check_chunks(view: View, group: int, chunk: int, virtual: Answer) -> None:
    """Check a virtual batch against the pairs of a query and a key in one chunk."""
    expected = {
        (token, key % chunk, slot)
        for token, key, slot in view.reads[group]
        if key // chunk == view.tokens[token][1] // chunk
    }
    made, what = as_reference(virtual), f"the virtual batch of chunks of {chunk}"
    got = view.reads_of(made, view.groups[group].block_size)
    _raise_difference(view, group, what, got, expected)
    _raise_difference(view, group, what, view.writes_of(made), view.writes[group])


def _raise_difference(
    view: View, group: int, what: str, got: Reads | Writes, expected: Reads | Writes
) -> None:
    """Raise where two relations differ, with the first pair that only one has."""
    if got == expected:
        return
    token, *rest = min(got ^ expected)
    does = "does not" if (token, *rest) in expected else "does"
    if len(rest) == 1:
        access = f"write slot {rest[0]}"
    else:
        access = f"read slot {rest[1]} for position {rest[0]}"
    raise BrokenInvariantError(
        f"{view.group_name(group)}: in {what}, {view.token_name(token)} {does} {access}"
    )
