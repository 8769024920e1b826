"""Finds the requests that a difference concerns, from the place of the difference.

A difference has a field and an index. The field determines whether the index is a row, a token, or
a boundary between rows. The part of the result that has the field determines which request a row or
a token belongs to: in a micro-batch, row 0 is the batch's request `r0`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from conformance.model_runner.batch import Batch
from conformance.targets.target import Answer

ROWS = "rows"
TOKENS = "tokens"
BOUNDARIES = "boundaries"

AXES = {
    "block_table_tensor": ROWS,
    "dcp_local_seq_lens": ROWS,
    "encoder_seq_lens": ROWS,
    "logits_indices_padded": ROWS,  # one for each request: its last token
    "num_computed_tokens_cpu": ROWS,
    "query_start_loc": BOUNDARIES,
    "query_start_loc_cpu": BOUNDARIES,
    "seq_lens": ROWS,
    "seq_lens_cpu": ROWS,
    "slot_mapping": TOKENS,
}
"""The meaning of an index in the arrays of a metadata, by the name of the field."""

PADDING = "padding"
MAX_NAMED = 3


@dataclass(frozen=True)
class RequestIndex:
    """Which request each row and each token of a part of a result belongs to.

    Attributes:
        rows: The request of each row, None for padding.
        tokens: The request of each token, None for padding.
        axis: The meaning of an index in an array that is no metadata field: "rows", "tokens" (the
            last axis), or "boundaries" (where each row starts, and where the last one ends).
    """

    rows: Sequence[str | None] = ()
    tokens: Sequence[str | None] = ()
    axis: str = ROWS

    def of_element(self, field: str, index: tuple[int, ...] | None) -> str | None:
        """Return the request of an element of a field; None if it has no single one."""
        axis = AXES.get(field) if field else self.axis
        if index is None or axis is None:
            return None
        owners = self.tokens if axis == TOKENS else self.rows
        number = index[-1] if axis == TOKENS else index[0]
        if axis == BOUNDARIES:
            number = max(number - 1, 0)
        return (owners[number] or PADDING) if number < len(owners) else PADDING


def locate(
    path: str, index: tuple[int, ...] | None, coordinates: Mapping[str, RequestIndex]
) -> list[str]:
    """Find the requests that a difference concerns.

    Args:
        path: The path of the difference: `micro_batches[0][1].seq_lens`.
        index: The index in the array at the path; None if the difference is not an array's element.
        coordinates: The coordinates of parts of a result, by path. The longest path with which that
            of the difference begins is used; that of the whole batch is "".

    Returns:
        The single request, or all requests of the part if there is no single one (a wrong shape, a
        count), or `PADDING`.

    Example:
        >>> rows = RequestIndex(rows=["b", "a", None], tokens=["b", "b", "a", None])
        >>> locate("metadata[0].slot_mapping", (1,), {"": rows})
        ['b']
        >>> locate("metadata[0].seq_lens", (2,), {"": rows})
        ['padding']
        >>> locate("metadata[0].num_reqs", None, {"": rows})
        ['b', 'a']
    """
    inner = path.partition("(")[2].rstrip(")") if "(" in path else path  # len(path), type(path)
    part = max((key for key in coordinates if _is_part(inner, key)), key=len)
    found = coordinates[part]
    rest = inner[len(part) :]
    request = found.of_element(rest.rpartition(".")[2] if "." in rest else "", index)
    if request is not None:
        return [request]
    return list(dict.fromkeys(row for row in found.rows if row is not None)) or [PADDING]


def _is_part(path: str, key: str) -> bool:
    """Return whether a path begins with another, name by name."""
    return path.startswith(key) and (key == "" or path[len(key) :][:1] in ("", ".", "["))


def describe(req_ids: Sequence[str]) -> str:
    """Return requests as text: their names, or the first ones and how many more.

    Example:
        >>> describe(["a"]), describe(["a", "b", "c", "d"])
        ('a', 'a, b, c and 1 more')
    """
    named = ", ".join(req_ids[:MAX_NAMED])
    return named if len(req_ids) <= MAX_NAMED else f"{named} and {len(req_ids) - MAX_NAMED} more"


def owners_of_virtual_requests(
    rows: Iterable[str | None], query_lens: Iterable[int], virtual_query_lens: Iterable[int]
) -> list[str | None]:
    """Return the request that each virtual request of chunked local attention was made from.

    `virtual_query_lens` are those of `reference`.

    Example:
        >>> owners_of_virtual_requests(["a", "b"], [3, 0], [2, 1, 0])
        ['a', 'a', 'b']
    """
    owners: list[str | None] = []
    lengths = iter(virtual_query_lens)
    for row, query_len in zip(rows, query_lens, strict=True):
        owners.append(row)
        missing = query_len - next(lengths)
        while missing > 0:
            owners.append(row)
            missing -= next(lengths)
    return owners


PLAIN_TOKENS = (
    "slot_mappings",
    "all_slot_mappings",
    "cp_slot_mappings",
    "kernel_slot_mappings",
    "kernel_slot_mapping_outputs",
)
"""Results that are arrays indexed by token."""
BLOCK_M = 8
"""Tokens of a convolution's program, the key of its metadata."""
PROGRAM_LISTS = ("mlist", "offsetlist", "batch_ptr", "token_chunk_offset_ptr")
"""The convolution's results that are arrays indexed by program."""
SPLITS = (
    "decodes_and_prefills",
    "uniform_decodes_and_prefills",
    "decodes_extends_and_prefills",
)


def request_index_of(batch: Batch, results: Mapping[str, Answer]) -> dict[str, RequestIndex]:
    """Return the requests that the parts of a step's results belong to, by path, for `locate`.

    Args:
        batch: The step's batch.
        results: The results of `reference`, all or up to an exception. Those of a wrong
            implementation may be meaningless.
    """
    rows, tokens = batch.padded_req_ids, batch.token_req_ids
    whole = RequestIndex(rows, tokens)
    found = {"": whole}
    for name in PLAIN_TOKENS:
        found[name] = RequestIndex(rows, tokens, TOKENS)
    for name in SPLITS:
        for number, counts in enumerate(results.get(name, ())):
            boundary = min(counts[0], batch.num_reqs - 1)
            found[f"{name}[{number}]"] = RequestIndex([rows[boundary]])
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


def _of_model_inputs(batch: Batch, results: Mapping[str, Answer]) -> dict[str, RequestIndex]:
    """Return the coordinates of model inputs other than attention metadata."""
    found: dict[str, RequestIndex] = {}
    if "convolution" in results:
        programs = results["convolution"][0][BLOCK_M]
        prefills = batch.req_ids[batch.num_decodes :]
        found["convolution"] = RequestIndex(prefills)
        of_programs = RequestIndex([prefills[sequence] for sequence in programs["mlist"].tolist()])
        for name in PROGRAM_LISTS:
            found[f"convolution[0][{BLOCK_M}]['{name}']"] = of_programs
        found["convolution[1]"] = found["convolution[2]"] = of_programs
    num_decodes, query_len = batch.uniform_decodes
    decodes = batch.req_ids[:num_decodes]
    by_token = RequestIndex([req_id for req_id in decodes for _ in range(query_len)])
    for name in ("queries", "outputs", "outputs_as_they_were"):
        found[f"speculative_{name}"] = by_token
    found["speculative_queries_by_request"] = RequestIndex(decodes)
    longest, start, stop = batch.longest_request
    for name in ("placeholders", "gathered_embeds"):
        found[name] = RequestIndex([batch.req_ids[longest]] * (stop - start))
    return found


def _of_micro_batches(
    batch: Batch, results: Mapping[str, Answer], whole: RequestIndex
) -> dict[str, RequestIndex]:
    """Return the coordinates of micro-batches: the rows and tokens of their slices."""
    found: dict[str, RequestIndex] = {}
    for number, part in enumerate(results.get("micro_batch_slices", ())):
        rows, tokens = whole.rows[part.request_slice], whole.tokens[part.token_slice]
        for name in ("micro_batch_slices", "micro_batch_sizes"):
            found[f"{name}[{number}]"] = RequestIndex(rows, tokens)
        found[f"micro_batch_starts[{number}]"] = RequestIndex(rows, tokens, BOUNDARIES)
        for group in range(len(batch.groups)):
            found[f"micro_batches[{group}][{number}]"] = RequestIndex(rows, tokens)
    longest, start, stop = batch.longest_request
    found["middle_of_longest"] = RequestIndex(
        [whole.rows[longest]], whole.tokens[start + 1 : stop - 1]
    )
    found["padding_alone"] = RequestIndex()
    return found


def _of_virtual_batches(
    name: str, batches: Iterable[Answer], whole: RequestIndex, batch: Batch
) -> dict[str, RequestIndex]:
    """Return the coordinates of virtual batches: the owners of their virtual requests."""
    num_padding = batch.num_padded_reqs - batch.num_reqs
    query_lens = [*batch.query_lens.tolist(), *[0] * num_padding]
    found = {}
    for number, virtual in enumerate(batches):
        starts: Sequence[int] = virtual.query_start_loc.tolist()
        lengths = [stop - start for start, stop in pairwise(starts)]
        owners = owners_of_virtual_requests(whole.rows, query_lens, lengths)
        found[f"{name}[{number}]"] = RequestIndex(owners, whole.tokens)
    return found
