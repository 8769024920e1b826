"""The metadata of a step's batch that attention backends share."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import numpy as np

from reference._checks import (
    MAX_INT32,
    Array,
    BoolArray,
    Int32Array,
    Int64Array,
    IntArray,
    check_array,
    check_at_least,
    check_int,
    check_list,
    check_one_each,
    check_strs,
    check_type,
)
from reference.metadata_validation import (
    FIELDS,
    check_computed,
    check_fields,
    check_lengths,
    cut_fields,
    validate_metadata,
)

__all__ = [
    "AttnMetadataPlan",
    "CommonAttentionMetadata",
    "build_attn_metadata",
    "validate_metadata",
]


@dataclasses.dataclass(eq=False)
class CommonAttentionMetadata:
    """The metadata of one step's batch, as every attention backend needs it.

    A request's query length `q_i` is `query_start_loc[i + 1] - query_start_loc[i]`, its sequence
    length `s_i` is `seq_lens[i]`. The constructor checks nothing; `validate` does.

    Attributes:
        query_start_loc: int32[num_reqs + 1], where each request's tokens start, and the end.
        query_start_loc_cpu: The same values on the host.
        seq_lens: int32[num_reqs], tokens of each request: computed tokens and those of this step.
        seq_lens_cpu: The same values on the host; None if the host does not know them, since drafts
            of the last step may yet be rejected.
        num_computed_tokens_cpu: int32[num_reqs], tokens of each request that are in the cache
            before the step; as far as the host knows, if `seq_lens_cpu` is None.
        num_reqs: Number of requests, padding included.
        num_actual_tokens: Number of tokens in the batch; may include padding.
        max_query_len: An upper bound of the query lengths, in tokens.
        max_seq_len: An upper bound of the sequence lengths, in tokens.
        block_table_tensor: int32[at least num_reqs, max_blocks_per_req], block IDs.
        slot_mapping: int64[at least num_actual_tokens], the slot that each token is written to.
        causal: Whether a token does not see later tokens.
        logits_indices_padded: int32 or int64[at least num_logits_indices], the tokens whose logits
            are needed, then padding.
        num_logits_indices: How many entries of it are tokens, not padding.
        encoder_seq_lens: int32 or int64[num_reqs], encoder tokens of each request, on the host.
        dcp_local_seq_lens: int32[num_reqs], tokens of each sequence that this context-parallel rank
            holds.
        is_prefilling: bool[num_reqs], whether some of the tokens that were known of a request
            before anything was sampled are not yet computed, on the host.
        positions: int64[at least num_actual_tokens], the position of each token in its sequence.
        seq_lens_cpu_upper_bound: int32[num_reqs], upper bounds of `seq_lens` on the host: exact but
            for drafts that may yet be rejected.
        dcp_local_seq_lens_cpu_upper_bound: int32[num_reqs], upper bounds of `dcp_local_seq_lens` on
            the host.
        max_logits_per_req: The most tokens of a request whose logits are needed.
        req_idx: int32[num_reqs], the request slot of each request, on the host.

    Example:
        >>> import numpy as np
        >>> starts, lens = np.array([0, 2, 3], np.int32), np.array([5, 1], np.int32)
        >>> metadata = CommonAttentionMetadata(
        ...     query_start_loc=starts,
        ...     query_start_loc_cpu=starts,
        ...     seq_lens=lens,
        ...     seq_lens_cpu=lens,
        ...     num_computed_tokens_cpu=np.array([3, 0], np.int32),
        ...     num_reqs=2,
        ...     num_actual_tokens=3,
        ...     max_query_len=2,
        ...     max_seq_len=5,
        ...     block_table_tensor=np.array([[7, 4], [2, 0]], np.int32),
        ...     slot_mapping=np.array([31, 16, 8]),
        ... )
        >>> metadata.validate(block_size=4)
        >>> metadata.validate(block_size=2)
        Traceback (most recent call last):
        ValueError: seq_lens[0] is 5 and needs 3 blocks of 2, but row 0 of block_table_tensor has 2
        >>> metadata.unpadded(2, 1).slot_mapping.tolist()
        [31, 16]

    Source: the definition is kvtwin's own; the names are vLLM's.
    """

    query_start_loc: Int32Array
    query_start_loc_cpu: Int32Array
    seq_lens: Int32Array
    seq_lens_cpu: Int32Array | None
    num_computed_tokens_cpu: Int32Array
    num_reqs: int
    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    block_table_tensor: Int32Array
    slot_mapping: Int64Array
    causal: bool = True
    logits_indices_padded: IntArray | None = None
    num_logits_indices: int | None = None
    encoder_seq_lens: IntArray | None = None
    dcp_local_seq_lens: Int32Array | None = None
    is_prefilling: BoolArray | None = None
    positions: Int64Array | None = None
    seq_lens_cpu_upper_bound: Int32Array | None = None
    dcp_local_seq_lens_cpu_upper_bound: Int32Array | None = None
    max_logits_per_req: int | None = None
    req_idx: Int32Array | None = None

    def unpadded(self, num_actual_tokens: int, num_actual_reqs: int) -> CommonAttentionMetadata:
        """Cut the batch to its first tokens and requests.

        Args:
            num_actual_tokens: How many tokens to keep.
            num_actual_reqs: How many requests to keep.

        Returns:
            A metadata of the same class. Every field by request is cut to `num_actual_reqs` entries
            (`query_start_loc` to one more), `slot_mapping` and `positions` to `num_actual_tokens`;
            these are views. `max_*`, `causal` and the logits fields are unchanged.

        Raises:
            TypeError: A number that is not an int, or a field of the wrong type or dtype.
            ValueError: A number that is negative or more than there are; fewer tokens than the kept
                requests have; fields whose lengths contradict each other.
        """
        check_lengths(check_fields(self))
        num_reqs = check_int("num_actual_reqs", num_actual_reqs, 0, self.num_reqs)
        num_tokens = check_int("num_actual_tokens", num_actual_tokens, 0, self.num_actual_tokens)
        if num_tokens < self.query_start_loc[num_reqs]:
            raise ValueError(
                f"num_actual_tokens is {num_tokens}, but the first {num_reqs} requests have "
                f"{self.query_start_loc[num_reqs]} tokens"
            )
        fields = cut_fields(self, slice(0, num_reqs), slice(0, num_tokens))
        fields |= {"num_reqs": num_reqs, "num_actual_tokens": num_tokens}
        return dataclasses.replace(self, **fields)

    def validate(self, block_size: int | None = None) -> None:
        """Raise on the first invariant that does not hold.

        Args:
            block_size: Positions in a block; None leaves the rows of the block table unchecked.

        Raises:
            TypeError: A field, or the block size, of the wrong type or dtype.
            ValueError: An invariant that does not hold;
                `reference.metadata_validation.validate_metadata` lists them.
        """
        validate_metadata(self, block_size)


class HostAndDevice(Protocol):
    """The attributes of a buffer that `build_attn_metadata` reads; a `CpuGpuBuffer` has them.

    Attributes:
        cpu: int32[entries], the half on the host; that of `seq_lens` may be None.
        gpu: int32[entries], the half on the device, with the same values.
    """

    cpu: Int32Array | None
    gpu: Int32Array


def build_attn_metadata(
    attn_metadata_builders: list[Any],
    num_reqs: int,
    num_tokens: int,
    query_start_loc: HostAndDevice,
    seq_lens: HostAndDevice,
    num_computed_tokens_cpu: Int32Array,
    block_tables: list[Int32Array] | tuple[Int32Array, ...],
    slot_mappings: list[Int64Array] | tuple[Int64Array, ...] | Int64Array,
    kv_cache_config: Any,
    max_query_len: int | None = None,
    max_seq_len: int | None = None,
    *,
    dcp_local_seq_lens: Int32Array | None = None,
    is_prefilling: BoolArray | None = None,
    positions: Int64Array | None = None,
    seq_lens_cpu_upper_bound: Int32Array | None = None,
    dcp_local_seq_lens_cpu_upper_bound: Int32Array | None = None,
    max_logits_per_req: int | None = None,
    req_idx: Int32Array | None = None,
) -> dict[str, Any]:
    """Build the metadata of every layer for a step.

    Each KV cache group gets a new, causal `CommonAttentionMetadata`, from which its builder builds
    the metadata of its layers: `build(common_prefix_len=0, common_attn_metadata=metadata)`. All
    groups are checked before the first builder is called. The vectors by request are views of the
    buffers, since a captured graph reads these; block tables and slots are passed on as they are,
    not cut.

    Args:
        attn_metadata_builders: The builders, one for each group.
        num_reqs: Number of requests, padding included.
        num_tokens: Number of tokens in the batch; may include padding.
        query_start_loc: A buffer of int32[at least num_reqs + 1], where each request's tokens
            start, and the end.
        seq_lens: A buffer of int32[at least num_reqs], tokens of each request: computed tokens and
            those of this step. Its half on the host may be None, as `seq_lens_cpu`.
        num_computed_tokens_cpu: int32[at least num_reqs], tokens of each request that are in the
            cache before the step.
        block_tables: For each group int32[at least num_reqs, max_blocks_per_req], block IDs; a list
            or tuple of arrays.
        slot_mappings: For each group int64[at least num_tokens], in slots; a list or tuple of
            arrays, or one int64[num_groups, at least num_tokens], whose rows are passed on as
            views.
        kv_cache_config: Its list `kv_cache_groups` is read, and the `layer_names` of each group.
        max_query_len: The `max_query_len` of the metadata, an upper bound of the requests' query
            lengths, in tokens; None: their maximum.
        max_seq_len: The `max_seq_len` of the metadata, an upper bound of the sequence lengths, in
            tokens; None: their maximum, or that of `seq_lens_cpu_upper_bound` if `seq_lens.cpu` is
            None.
        dcp_local_seq_lens: This and the following are the fields of the metadata of these names, or
            None. Vectors may have more entries than requests or tokens, and are cut to views.
        is_prefilling: bool[at least num_reqs].
        positions: int64[at least num_tokens].
        seq_lens_cpu_upper_bound: int32[at least num_reqs].
        dcp_local_seq_lens_cpu_upper_bound: int32[at least num_reqs].
        max_logits_per_req: At least 0.
        req_idx: int32[at least num_reqs].

    Returns:
        The built metadata by layer name, in the order of the groups and their layers: the same
        object for all layers of a group. A layer in several groups has that of the last one.

    Raises:
        TypeError: An argument of the wrong type or dtype.
        ValueError: A negative number; a bound above 2**31 - 1, or below what it bounds; a number of
            builders, tables or slot mappings other than that of the groups; fewer starts, lengths,
            computed tokens or rows than `num_reqs` needs, in either half of a buffer; fewer slots
            than tokens; no maximum and no lengths on the host; a batch that `validate` rejects; a
            request with query tokens whose sequence length, as the host knows it, is not the sum of
            its computed tokens and its query length.
        AttributeError: A buffer, a builder, the config or a group that lacks an attribute that is
            read.

    Example:
        >>> import numpy as np
        >>> from types import SimpleNamespace
        >>> starts, lens = np.array([0, 2, 3, 0], np.int32), np.array([5, 1, 0], np.int32)
        >>> class Builder:
        ...     def build(self, common_prefix_len, common_attn_metadata):
        ...         return common_attn_metadata.max_query_len, common_attn_metadata.max_seq_len
        >>> group = SimpleNamespace(layer_names=["layers.0", "layers.1"])
        >>> build_attn_metadata(
        ...     [Builder()],
        ...     num_reqs=2,
        ...     num_tokens=3,
        ...     query_start_loc=SimpleNamespace(cpu=starts, gpu=starts),
        ...     seq_lens=SimpleNamespace(cpu=lens, gpu=lens),
        ...     num_computed_tokens_cpu=np.array([3, 0], np.int32),
        ...     block_tables=[np.array([[7, 4], [2, 0]], np.int32)],
        ...     slot_mappings=[np.array([31, 16, 8])],
        ...     kv_cache_config=SimpleNamespace(kv_cache_groups=[group]),
        ... )
        {'layers.0': (2, 5), 'layers.1': (2, 5)}

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    num_reqs = check_int("num_reqs", num_reqs, 0)
    num_tokens = check_int("num_tokens", num_tokens, 0)
    if max_query_len is not None:
        max_query_len = check_int("max_query_len", max_query_len, 0, MAX_INT32)
    if max_seq_len is not None:
        max_seq_len = check_int("max_seq_len", max_seq_len, 0, MAX_INT32)
    groups = _check_groups(attn_metadata_builders, kv_cache_config)
    shared = _cut_buffers(
        num_reqs,
        num_tokens,
        query_start_loc,
        seq_lens,
        num_computed_tokens_cpu,
        dcp_local_seq_lens=dcp_local_seq_lens,
        is_prefilling=is_prefilling,
        positions=positions,
        seq_lens_cpu_upper_bound=seq_lens_cpu_upper_bound,
        dcp_local_seq_lens_cpu_upper_bound=dcp_local_seq_lens_cpu_upper_bound,
        max_logits_per_req=max_logits_per_req,
        req_idx=req_idx,
    )
    tables = _check_each("block_tables", block_tables, np.int32, 2, len(groups), num_reqs)
    all_slots: Any = slot_mappings
    if isinstance(slot_mappings, np.ndarray):
        all_slots = list(check_array("slot_mappings", slot_mappings, np.int64, ndim=2))
    slots = _check_each("slot_mappings", all_slots, np.int64, 1, len(groups), num_tokens)

    if max_query_len is None:
        starts = shared["query_start_loc_cpu"].tolist()
        max_query_len = max([0, *(starts[i + 1] - starts[i] for i in range(num_reqs))])
    if max_seq_len is None:
        max_seq_len = _get_longest(shared["seq_lens_cpu"], shared["seq_lens_cpu_upper_bound"])
    batches = []
    for i in range(len(groups)):
        batch = CommonAttentionMetadata(
            num_reqs=num_reqs,
            num_actual_tokens=num_tokens,
            max_query_len=max_query_len,
            max_seq_len=max_seq_len,
            block_table_tensor=tables[i],
            slot_mapping=slots[i],
            **shared,
        )
        batch.validate()
        check_computed(batch)
        batches.append(batch)

    metadata_of_layers: dict[str, Any] = {}
    for i, group in enumerate(groups):
        metadata = attn_metadata_builders[i].build(
            common_prefix_len=0, common_attn_metadata=batches[i]
        )
        for layer_name in group.layer_names:
            metadata_of_layers[layer_name] = metadata
    return metadata_of_layers


class AttnMetadataPlan:
    """Builds the metadata of every layer, step after step, from buffers that are checked once.

    A runner makes one for its builders and buffers, and calls `build` in each step. The vectors of
    a step's batch are views of the buffers, which may be the same view objects as in other steps:
    a caller may write through them, but not change their shapes.

    After the plan is made only the contents of its arrays may change: not the lists of builders, of
    groups and of layer names, nor the halves of a buffer or the shape of an array.

    Args:
        attn_metadata_builders: These are the arguments of `build_attn_metadata` with these names;
            vectors with any number of entries.
        query_start_loc: With at least one entry.
        seq_lens: Its half on the host may be None.
        num_computed_tokens_cpu: See `build_attn_metadata`; so are the following.
        kv_cache_config: Its groups and their layers.
        dcp_local_seq_lens: This and the following are optional fields of the metadata.
        is_prefilling: bool[max_num_reqs].
        positions: int64[max_num_tokens].
        seq_lens_cpu_upper_bound: int32[max_num_reqs].
        dcp_local_seq_lens_cpu_upper_bound: int32[max_num_reqs].
        req_idx: int32[max_num_reqs].

    Raises:
        TypeError: An argument of the wrong type or dtype.
        ValueError: A number of builders other than that of the groups; an array with another number
            of dimensions; starts without an entry.
        AttributeError: A buffer, the config or a group that lacks an attribute that is read.

    Example:
        >>> import numpy as np
        >>> from types import SimpleNamespace
        >>> starts, lens = np.array([0, 2, 3, 0], np.int32), np.array([5, 1, 0], np.int32)
        >>> class Builder:
        ...     def build(self, common_prefix_len, common_attn_metadata):
        ...         return common_attn_metadata.max_query_len, common_attn_metadata.max_seq_len
        >>> plan = AttnMetadataPlan(
        ...     [Builder()],
        ...     query_start_loc=SimpleNamespace(cpu=starts, gpu=starts),
        ...     seq_lens=SimpleNamespace(cpu=lens, gpu=lens),
        ...     num_computed_tokens_cpu=np.array([3, 0, 0], np.int32),
        ...     kv_cache_config=SimpleNamespace(
        ...         kv_cache_groups=[SimpleNamespace(layer_names=["layers.0"])]
        ...     ),
        ... )
        >>> block_tables, slots = (np.array([[7, 4], [2, 0]], np.int32),), np.array([[31, 16, 8]])
        >>> plan.build(2, 3, block_tables, slots)
        {'layers.0': (2, 5)}
        >>> starts[:3], lens[:2] = (0, 1, 2), (4, 1)
        >>> plan.build(2, 2, block_tables, slots)
        {'layers.0': (1, 4)}

    Source: kvtwin's own.
    """

    def __init__(
        self,
        attn_metadata_builders: list[Any],
        query_start_loc: HostAndDevice,
        seq_lens: HostAndDevice,
        num_computed_tokens_cpu: Int32Array,
        kv_cache_config: Any,
        *,
        dcp_local_seq_lens: Int32Array | None = None,
        is_prefilling: BoolArray | None = None,
        positions: Int64Array | None = None,
        seq_lens_cpu_upper_bound: Int32Array | None = None,
        dcp_local_seq_lens_cpu_upper_bound: Int32Array | None = None,
        req_idx: Int32Array | None = None,
    ) -> None:
        self._given: dict[str, Any] = {
            "attn_metadata_builders": attn_metadata_builders,
            "kv_cache_config": kv_cache_config,
        }
        self._buffers: dict[str, Any] = {
            "query_start_loc": query_start_loc,
            "seq_lens": seq_lens,
            "num_computed_tokens_cpu": num_computed_tokens_cpu,
            "dcp_local_seq_lens": dcp_local_seq_lens,
            "is_prefilling": is_prefilling,
            "positions": positions,
            "seq_lens_cpu_upper_bound": seq_lens_cpu_upper_bound,
            "dcp_local_seq_lens_cpu_upper_bound": dcp_local_seq_lens_cpu_upper_bound,
            "req_idx": req_idx,
        }
        _check_groups(**self._given)
        _cut_buffers(0, 0, **self._buffers)

    def build(
        self,
        num_reqs: int,
        num_tokens: int,
        block_tables: list[Int32Array] | tuple[Int32Array, ...],
        slot_mappings: list[Int64Array] | tuple[Int64Array, ...] | Int64Array,
        max_query_len: int | None = None,
        max_seq_len: int | None = None,
        *,
        max_logits_per_req: int | None = None,
    ) -> dict[str, Any]:
        """Build the metadata of every layer for a step, as `build_attn_metadata` does.

        The shapes of the tables and slots of a step must not change later either: rows of an array
        of slots may be the same view objects in other steps.

        Args:
            num_reqs: These are the arguments of `build_attn_metadata` with these names.
            num_tokens: Number of tokens in the batch; may include padding.
            block_tables: For each group int32[at least num_reqs, max_blocks_per_req].
            slot_mappings: For each group int64[at least num_tokens].
            max_query_len: An upper bound of the query lengths; None: their maximum.
            max_seq_len: An upper bound of the sequence lengths; None: their maximum.
            max_logits_per_req: At least 0.

        Returns:
            The built metadata by layer name.

        Raises:
            TypeError: As `build_attn_metadata` does.
            ValueError: As `build_attn_metadata` does.
            AttributeError: A builder that lacks `build`.
        """
        return build_attn_metadata(
            num_reqs=num_reqs,
            num_tokens=num_tokens,
            block_tables=block_tables,
            slot_mappings=slot_mappings,
            max_query_len=max_query_len,
            max_seq_len=max_seq_len,
            max_logits_per_req=max_logits_per_req,
            **self._given,
            **self._buffers,
        )


def _check_groups(attn_metadata_builders: list[Any], kv_cache_config: Any) -> list[Any]:
    """Return the KV cache groups, which have a builder each."""
    groups = check_list("kv_cache_config.kv_cache_groups", kv_cache_config.kv_cache_groups)
    check_list("attn_metadata_builders", attn_metadata_builders)
    check_one_each("attn_metadata_builders", attn_metadata_builders, len(groups))
    for i, group in enumerate(groups):
        check_strs(f"kv_cache_groups[{i}].layer_names", group.layer_names)
    return groups


def _cut_buffers(
    num_reqs: int,
    num_tokens: int,
    query_start_loc: HostAndDevice,
    seq_lens: HostAndDevice,
    num_computed_tokens_cpu: Int32Array,
    **optional: Any,
) -> dict[str, Any]:
    """Return the fields that all groups share, as views of the first requests and tokens."""
    has_lens_cpu = seq_lens.cpu is not None
    return {
        "query_start_loc_cpu": _cut("query_start_loc.cpu", query_start_loc.cpu, num_reqs + 1),
        "query_start_loc": _cut("query_start_loc.gpu", query_start_loc.gpu, num_reqs + 1),
        "seq_lens_cpu": _cut("seq_lens.cpu", seq_lens.cpu, num_reqs) if has_lens_cpu else None,
        "seq_lens": _cut("seq_lens.gpu", seq_lens.gpu, num_reqs),
        "num_computed_tokens_cpu": _cut(
            "num_computed_tokens_cpu", num_computed_tokens_cpu, num_reqs
        ),
        **_cut_optional(num_reqs, num_tokens, **optional),
    }


def _cut(name: str, value: object, length: int) -> Int32Array:
    """Return the first entries of a vector, a view."""
    return check_array(name, value, np.int32, 1, length)[:length]


def _check_each(
    name: str, value: object, dtype: type[Any], ndim: int, num_groups: int, length: int
) -> list[Array]:
    """Return the array of each group, which must have at least `length` entries, or rows."""
    arrays = list(check_type(name, value, list | tuple))
    check_one_each(name, arrays, num_groups)
    return [
        check_array(f"{name}[{i}]", array, dtype, ndim, length) for i, array in enumerate(arrays)
    ]


def _cut_optional(num_reqs: int, num_tokens: int, **fields: Any) -> dict[str, Any]:
    """Return optional fields with checked types, those with an axis as views of their length."""
    for name, value in fields.items():
        if value is None:
            continue
        checked, axis = FIELDS[name].check(name, value), FIELDS[name].axis
        if axis is None:
            fields[name] = checked
            continue
        length = num_tokens if axis == "token" else num_reqs
        check_at_least(name, len(value), length)
        fields[name] = value[:length]
    return fields


def _get_longest(lens_cpu: Int32Array | None, bounds: Int32Array | None) -> int:
    """Return the longest sequence, or the greatest bound, that the host knows."""
    host_lens = bounds if lens_cpu is None else lens_cpu
    if host_lens is None:
        raise ValueError(
            "max_seq_len is None, and so are seq_lens.cpu and seq_lens_cpu_upper_bound: expected "
            "one of them"
        )
    longest: int = max([0, *host_lens.tolist()])
    return longest
