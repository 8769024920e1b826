"""Invariants of each step of a runner, checked without comparing it with another runner.

Each function here raises `BrokenInvariantError` with one sentence, in terms of requests.
"""

from __future__ import annotations

from itertools import pairwise

from conformance.stateful.model_cache import Key, ModelCache
from conformance.stateful.snapshot import RequestSnapshot
from conformance.stateful.view import BrokenInvariantError, View
from reference import NULL_BLOCK_ID

REGIONS = ("a decode", "an extend", "a prefill")
"""The parts of a batch, in order."""


def check_blocks(view: View) -> None:
    """Check that requests share a block only if both have computed the prefix that it ends.

    Rows are taken from the batch, or from the engine for requests without tokens in the step.
    """
    holders: dict[int, tuple[int, int, RequestSnapshot]] = {}
    for group, metadata in enumerate(view.metadata):
        size = view.groups[group].block_size
        rows = zip(view.batch.req_ids, metadata.block_table_tensor.tolist(), strict=False)
        requests = [(view.snapshot.requests[req_id], row) for req_id, row in rows]
        requests += [(request, list(request.block_ids[group])) for request in view.snapshot.others]
        for request, row in requests:
            for column, block_id in enumerate(row[: -(-request.stop // size)]):
                where = f"{view.group_name(group)}: block {block_id} is block {column} of "
                if block_id == NULL_BLOCK_ID:
                    raise BrokenInvariantError(
                        f"{where}{request.request_id}, but is the null block"
                    )
                _check_holder(holders, block_id, (group, column, request), where, size)


def _check_holder(
    holders: dict[int, tuple[int, int, RequestSnapshot]],
    block_id: int,
    holder: tuple[int, int, RequestSnapshot],
    where: str,
    size: int,
) -> None:
    """Check a holder of a block against its first holder."""
    group, column, request = holder
    other_group, other_column, other = holders.setdefault(block_id, holder)
    if other is request and (group, column) == (other_group, other_column):
        return
    end = (column + 1) * size
    is_prefix = (
        (group, column) == (other_group, other_column)
        and end <= min(request.start, other.start)
        and request.prefixes[end - 1] == other.prefixes[end - 1]
    )
    if not is_prefix:
        raise BrokenInvariantError(
            f"{where}{request.request_id}, but also block {other_column} of {other.request_id} in "
            f"group {other_group}, and they have no common computed prefix that ends with it"
        )


def check_writes(view: View, model: ModelCache, step: int) -> None:
    """Check the slots that the step's keys are written to, and write them to the model.

    Every token is written to a slot of its own, in a block that its request holds; padding is not
    written.
    """
    for group, access in enumerate(view.access):
        size, name = view.groups[group].block_size, view.group_name(group)
        slots = dict(sorted(access.writes))
        taken: dict[int, int] = {}
        for token, slot in slots.items():
            who = f"{name}: {view.token_name(token)}"
            if token >= len(view.tokens):
                raise BrokenInvariantError(f"{who} is written to slot {slot}")
            if slot in taken:
                other = view.token_name(taken[slot])
                raise BrokenInvariantError(f"{who} and {other} are both written to slot {slot}")
            taken[slot] = token
            req_id, position = view.tokens[token]
            block_id, request = slot // size, view.snapshot.requests[req_id]
            where = f"{who} is written to slot {slot} in block {block_id}, which"
            if block_id in view.snapshot.free_block_ids:
                raise BrokenInvariantError(f"{where} is free")
            if block_id not in request.block_ids[group]:
                raise BrokenInvariantError(
                    f"{where} is not one of its request's blocks, {list(request.block_ids[group])}"
                )
            key = Key(request.prefixes[position], position, req_id, step)
            model.write(group, slot, key)
        for token in range(len(view.tokens)):
            if token not in slots:
                raise BrokenInvariantError(f"{name}: {view.token_name(token)} is written nowhere")


def check_reads(view: View, model: ModelCache) -> None:
    """Check that every token reads the keys of its own sequence, up to its own, and no others."""
    for group, access in enumerate(view.access):
        name = view.group_name(group)
        positions: dict[int, set[int]] = {token: set() for token in range(len(view.tokens))}
        for token, key_position, slot in sorted(access.reads):
            who = f"{name}: {view.token_name(token)}"
            what = f"{who} reads slot {slot} for position {key_position}"
            if token >= len(view.tokens):
                raise BrokenInvariantError(what)
            req_id, position = view.tokens[token]
            positions[token].add(key_position)
            if key_position > position:
                raise BrokenInvariantError(f"{what}, which comes after it")
            key = model.read(group, slot)
            if key is None:
                raise BrokenInvariantError(f"{what}, {_why_empty(model, group, slot)}")
            if key.prefix != view.snapshot.requests[req_id].prefixes[key_position]:
                raise BrokenInvariantError(f"{what}, which holds {key}")
        for token, seen in positions.items():
            for position in range(view.tokens[token][1] + 1):
                if position not in seen:
                    who = view.token_name(token)
                    raise BrokenInvariantError(f"{name}: {who} does not read position {position}")


def check_rows(view: View) -> None:
    """Check that rows have their requests' blocks, then null blocks; rows of padding only these.

    A wrong row may still lead to the right keys for a while: those of a block that is free by now,
    or of another block with the same prefix.
    """
    req_ids = view.batch.req_ids
    for group, metadata in enumerate(view.metadata):
        for place, row in enumerate(metadata.block_table_tensor[: metadata.num_reqs].tolist()):
            is_padding = place >= len(req_ids)
            who = (
                f"request {place} of the batch, which is padding," if is_padding else req_ids[place]
            )
            given = () if is_padding else view.snapshot.requests[req_ids[place]].block_ids[group]
            for column, block_id in enumerate(row):
                expected = given[column] if column < len(given) else NULL_BLOCK_ID
                if block_id != expected:
                    raise BrokenInvariantError(
                        f"{view.group_name(group)}: block {column} of {who} is {block_id}, but "
                        f"should be {expected}"
                    )
            seq_len = int(metadata.seq_lens[place])
            if is_padding and seq_len:
                raise BrokenInvariantError(
                    f"{view.group_name(group)}: {who} has a sequence of {seq_len} tokens"
                )


def check_order(view: View) -> None:
    """Check that decodes come first, then extends, then prefills."""
    regions = {}
    for req_id in view.batch.req_ids:
        request = view.snapshot.requests[req_id]
        is_decode = request.stop - request.start <= view.batch.settings.decode_threshold
        regions[req_id] = 0 if is_decode else 1 if request.start else 2
    for (before, region), (after, next_region) in pairwise(regions.items()):
        if region > next_region:
            raise BrokenInvariantError(
                f"{before}, {REGIONS[region]}, comes before {after}, {REGIONS[next_region]}"
            )


def _why_empty(model: ModelCache, group: int, slot: int) -> str:
    """Describe why a slot has no key of a group."""
    owner = model.owner(group, slot)
    if owner is None or owner == group:
        return "which was never written"
    return f"whose block was overwritten by group {owner}"
