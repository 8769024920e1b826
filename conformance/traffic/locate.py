"""From the place of a difference to the requests it concerns.

A difference is at a field and an index. What the index means depends on the field: a row, a token,
or a boundary between rows; and which request a row or a token belongs to, on the part of the result
that the field is in: in a micro-batch, row 0 is the batch's request `r0`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

ROWS = "rows"
TOKENS = "tokens"
BOUNDARIES = "boundaries"

AXES = {
    "block_table_tensor": ROWS,
    "dcp_local_seq_lens": ROWS,
    "encoder_seq_lens": ROWS,
    "logits_indices_padded": ROWS,  # one for each request: a runner wants its last token's logits
    "num_computed_tokens_cpu": ROWS,
    "query_start_loc": BOUNDARIES,
    "query_start_loc_cpu": BOUNDARIES,
    "seq_lens": ROWS,
    "seq_lens_cpu": ROWS,
    "slot_mapping": TOKENS,
    "state_indices": ROWS,
}
"""What an index means in the arrays of a metadata, by the name of the field."""

PADDING = "padding"
MAX_NAMED = 3


@dataclass(frozen=True)
class Coordinates:
    """Which request each row and each token of a part of a result belongs to.

    Attributes:
        rows: The request of each row, None for padding.
        tokens: The request of each token, None for padding.
        axis: What an index means in an array that is no field of a metadata: "rows", "tokens" (the
            last axis), or "boundaries" (where each row starts, and where the last one ends).
    """

    rows: Sequence[str | None] = ()
    tokens: Sequence[str | None] = ()
    axis: str = ROWS

    def of_element(self, field: str, index: tuple[int, ...] | None) -> str | None:
        """Return the request of an element of a field; None where it has no single one."""
        axis = AXES.get(field) if field else self.axis
        if index is None or axis is None:
            return None
        owners = self.tokens if axis == TOKENS else self.rows
        number = index[-1] if axis == TOKENS else index[0]
        if axis == BOUNDARIES:
            number = max(number - 1, 0)
        return (owners[number] or PADDING) if number < len(owners) else PADDING


def locate(
    path: str, index: tuple[int, ...] | None, coordinates: Mapping[str, Coordinates]
) -> list[str]:
    """Find the requests that a difference concerns.

    Args:
        path: Of the difference: `micro_batches[0][1].seq_lens`.
        index: In the array at the path; None where the difference is not an array's element.
        coordinates: Those of the parts of a result, by the path of the part: the longest that the
            difference's path begins with counts. That of the whole batch is at "".

    Returns:
        The one request, or all those of the part where it is no single one's (a wrong shape, a
        count), or `PADDING`.

    Example:
        >>> rows = Coordinates(rows=["b", "a", None], tokens=["b", "b", "a", None])
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
    """Return the request of which each virtual request of chunked local attention was made.

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
