"""Which request each part of a runner's results belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from conformance.targets import Answer
from conformance.traffic.batch import Batch
from conformance.traffic.locate import (
    BOUNDARIES,
    TOKENS,
    Coordinates,
    owners_of_virtual_requests,
)

PLAIN_TOKENS = (
    "slot_mappings",
    "all_slot_mappings",
    "cp_slot_mappings",
    "kernel_slot_mappings",
    "kernel_slot_mapping_outputs",
)
"""Results that are arrays by token."""
BLOCK_M = 8
"""Tokens of a convolution's program, the key of its metadata."""
PROGRAM_LISTS = ("mlist", "offsetlist", "batch_ptr", "token_chunk_offset_ptr")
"""Those of the convolution's results that are arrays by program."""
SPLITS = (
    "decodes_and_prefills",
    "uniform_decodes_and_prefills",
    "decodes_extends_and_prefills",
)


def coordinates_of(batch: Batch, results: Mapping[str, Answer]) -> dict[str, Coordinates]:
    """Return the requests that the parts of a step's results belong to, by path, for `locate`.

    Args:
        batch: The step's batch.
        results: The results of `reference`, all or up to an exception: what a wrong
            implementation made of a batch may have no meaning.
    """
    rows, tokens = batch.padded_req_ids, batch.token_req_ids
    whole = Coordinates(rows, tokens)
    found = {"": whole}
    for name in PLAIN_TOKENS:
        found[name] = Coordinates(rows, tokens, TOKENS)
    for name in SPLITS:
        for number, counts in enumerate(results.get(name, ())):
            boundary = min(counts[0], batch.num_reqs - 1)
            found[f"{name}[{number}]"] = Coordinates([rows[boundary]])
    found.update(_of_micro_batches(batch, results, whole))
    for name in ("local_attention", "small_chunks"):
        found.update(_of_virtual_batches(name, results.get(name, ()), whole, batch))
    for number, group in enumerate(batch.groups):
        if group.attention_chunk_size is not None and "attn_metadata" in results:
            virtual = results["attn_metadata"][number].common
            name = f"attn_metadata[{number}]"
            found[name] = _of_virtual_batches(name, [virtual], whole, batch)[f"{name}[0]"]
    found.update(_of_model_inputs(batch, results))
    return found


def _of_model_inputs(batch: Batch, results: Mapping[str, Answer]) -> dict[str, Coordinates]:
    """Say whose the parts are of what layers are given besides attention's metadata."""
    found: dict[str, Coordinates] = {}
    if "convolution" in results:
        programs = results["convolution"][0][BLOCK_M]
        prefills = batch.req_ids[batch.num_decodes :]
        found["convolution"] = Coordinates(prefills)
        of_programs = Coordinates([prefills[sequence] for sequence in programs["mlist"].tolist()])
        for name in PROGRAM_LISTS:
            found[f"convolution[0][{BLOCK_M}]['{name}']"] = of_programs
        found["convolution[1]"] = found["convolution[2]"] = of_programs
    num_decodes, query_len = batch.uniform_decodes
    decodes = batch.req_ids[:num_decodes]
    by_token = Coordinates([req_id for req_id in decodes for _ in range(query_len)])
    for name in ("queries", "outputs", "outputs_as_they_were"):
        found[f"speculative_{name}"] = by_token
    found["speculative_queries_by_request"] = Coordinates(decodes)
    longest, start, stop = batch.longest_request
    for name in ("placeholders", "gathered_embeds"):
        found[name] = Coordinates([batch.req_ids[longest]] * (stop - start))
    return found


def _of_micro_batches(
    batch: Batch, results: Mapping[str, Answer], whole: Coordinates
) -> dict[str, Coordinates]:
    """Say whose the parts of micro-batches are: rows and tokens of their slices."""
    found: dict[str, Coordinates] = {}
    for number, part in enumerate(results.get("micro_batch_slices", ())):
        rows, tokens = whole.rows[part.request_slice], whole.tokens[part.token_slice]
        for name in ("micro_batch_slices", "micro_batch_sizes"):
            found[f"{name}[{number}]"] = Coordinates(rows, tokens)
        found[f"micro_batch_starts[{number}]"] = Coordinates(rows, tokens, BOUNDARIES)
        for group in range(len(batch.groups)):
            found[f"micro_batches[{group}][{number}]"] = Coordinates(rows, tokens)
    longest, start, stop = batch.longest_request
    found["middle_of_longest"] = Coordinates(
        [whole.rows[longest]], whole.tokens[start + 1 : stop - 1]
    )
    found["padding_alone"] = Coordinates()
    return found


def _of_virtual_batches(
    name: str, batches: Iterable[Answer], whole: Coordinates, batch: Batch
) -> dict[str, Coordinates]:
    """Say whose the virtual requests of virtual batches are."""
    num_padding = batch.num_padded_reqs - batch.num_reqs
    query_lens = [*batch.query_lens.tolist(), *[0] * num_padding]
    found = {}
    for number, virtual in enumerate(batches):
        starts: Sequence[int] = virtual.query_start_loc.tolist()
        lengths = [stop - start for start, stop in pairwise(starts)]
        owners = owners_of_virtual_requests(whole.rows, query_lens, lengths)
        found[f"{name}[{number}]"] = Coordinates(owners, whole.tokens)
    return found
