"""Fast prefill for layers that share a KV cache: only the tokens whose logits are needed.

Layers that only read another layer's cache need no other tokens in a prefill.
"""

from __future__ import annotations

import bisect
import dataclasses
from typing import Any, Protocol, runtime_checkable

import numpy as np

from reference._checks import (
    MAX_INT32,
    MAX_INT64,
    Array,
    check_at_least,
    check_int,
    check_ints,
    check_order,
    check_type,
)
from reference.backend import subclass_attention_backend
from reference.class_cache import make_once
from reference.extended_metadata import extend_metadata, extend_metadata_cls
from reference.metadata import CommonAttentionMetadata, validate_metadata
from reference.metadata_validation import FIELDS

KV_SHARING_FAST_PREFILL_METADATA_FIELDS: list[tuple[str, Any, Any]] = [
    ("logits_indices_padded", Array | None, None),
    ("num_logits_indices", int, 0),
]
"""The fields that fast prefill adds to a backend's metadata: name, type and default."""


@runtime_checkable
class KVSharingFastPrefillMetadata(Protocol):
    """A backend's metadata that has the tokens whose logits are needed.

    `isinstance` checks that the two attributes exist, whatever their values.

    Attributes:
        logits_indices_padded: int32 or int64[at least num_logits_indices], the tokens, then
            padding; None: not known.
        num_logits_indices: How many entries of it are tokens, not padding.

    Example:
        >>> from types import SimpleNamespace
        >>> metadata = SimpleNamespace(logits_indices_padded=None, num_logits_indices=0)
        >>> isinstance(metadata, KVSharingFastPrefillMetadata)
        True

    Source: the definition is kvtwin's own; the names are vLLM's.
    """

    logits_indices_padded: Array | None
    num_logits_indices: int | None


def make_kv_sharing_fast_prefill_common_attn_metadata(
    common_attn_metadata: CommonAttentionMetadata,
) -> CommonAttentionMetadata:
    """Make the metadata of the tokens whose logits are needed, request by request.

    The needed tokens are the first `num_logits_indices` entries of `logits_indices_padded`; the
    rest is padding and is not read. Request `i` has `n_i` of them, those in
    `query_start_loc[i] .. query_start_loc[i + 1] - 1`; it may have none, and there may be none at
    all. They are assumed to be the last tokens of their requests: then each one reads what it read
    before.

    If `max_query_len` is 1 (all logits are needed anyway), or neither logits field is set (this
    step does not use fast prefill), the metadata itself is returned, and nothing else of it is
    read.

    Args:
        common_attn_metadata: The batch, valid; it is not changed. It need not be causal.

    Returns:
        A new metadata, of the argument's class if that is a `CommonAttentionMetadata` or a subclass
        (with the fields that the subclass adds), else a `CommonAttentionMetadata`. Its starts are
        `0, n_0, n_0 + n_1, ...`, `num_actual_tokens` is `num_logits_indices`, and `max_query_len`
        is the greatest `n_i`. `positions` are those of the needed tokens. The logits fields,
        `encoder_seq_lens` and `dcp_local_seq_lens` are None, and it is causal. All other fields are
        unchanged: the vectors by request, the block table and `slot_mapping` are the same objects,
        not cut. So `num_computed_tokens_cpu` remains the batch's: it is not derived again from the
        lengths and the new starts.

    Raises:
        TypeError: A field of the wrong type or dtype.
        ValueError: Only one of the logits fields is set, which is checked first; an invalid
            metadata; fewer indices than `num_logits_indices`; indices that do not increase
            strictly, or are outside `0 .. query_start_loc[-1] - 1`.
        AttributeError: An engine's own metadata that lacks an attribute that is read.

    Example:
        >>> import numpy as np
        >>> starts, lens = np.array([0, 15, 20, 28], np.int32), np.array([15, 5, 8], np.int32)
        >>> batch = CommonAttentionMetadata(
        ...     starts, starts, lens, lens, np.zeros(3, np.int32), 3, 28, 15, 15,
        ...     np.zeros((3, 1), np.int32), np.arange(28),
        ...     logits_indices_padded=np.array([14, 18, 19, 27, 0, 0]), num_logits_indices=4,
        ... )  # fmt: skip
        >>> wanted = make_kv_sharing_fast_prefill_common_attn_metadata(batch)
        >>> wanted.query_start_loc.tolist(), wanted.max_query_len, wanted.num_actual_tokens
        ([0, 1, 3, 4], 2, 4)

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    logits_indices_padded = common_attn_metadata.logits_indices_padded
    num_logits_indices = common_attn_metadata.num_logits_indices
    if (logits_indices_padded is None) != (num_logits_indices is None):
        is_first = logits_indices_padded is None
        missing = "logits_indices_padded" if is_first else "num_logits_indices"
        raise ValueError(
            f"{missing} is None, but the other logits field is set: fast prefill needs both"
        )
    if logits_indices_padded is None or num_logits_indices is None:
        return common_attn_metadata
    max_query_len = check_int("max_query_len", common_attn_metadata.max_query_len, 0, MAX_INT64)
    if max_query_len == 1:
        return common_attn_metadata
    check_int("num_logits_indices", num_logits_indices, 0, MAX_INT32)
    validate_metadata(common_attn_metadata)
    all_starts: list[int] = common_attn_metadata.query_start_loc.tolist()
    indices = _check_indices(logits_indices_padded, int(num_logits_indices), all_starts[-1])

    # As many logits tokens as lie before each request's first token.
    starts = [bisect.bisect_left(indices, start) for start in all_starts]
    query_lens = [starts[i + 1] - starts[i] for i in range(len(starts) - 1)]
    changes: dict[str, Any] = {
        "query_start_loc": np.array(starts, dtype=np.int32),
        "query_start_loc_cpu": np.array(starts, dtype=np.int32),
        "num_reqs": int(common_attn_metadata.num_reqs),
        "num_actual_tokens": len(indices),
        "max_query_len": max(query_lens, default=0),
        "max_seq_len": int(common_attn_metadata.max_seq_len),
        "causal": True,
        "logits_indices_padded": None,
        "num_logits_indices": None,
        "encoder_seq_lens": None,
        "dcp_local_seq_lens": None,
    }
    positions = getattr(common_attn_metadata, "positions", None)
    if positions is not None:
        changes["positions"] = positions[np.array(indices, dtype=np.int64)]
    most_logits = getattr(common_attn_metadata, "max_logits_per_req", None)
    if most_logits is not None:
        changes["max_logits_per_req"] = int(most_logits)
    if isinstance(common_attn_metadata, CommonAttentionMetadata):
        return dataclasses.replace(common_attn_metadata, **changes)
    unchanged = {
        name: getattr(common_attn_metadata, name, None)
        if field.is_optional
        else getattr(common_attn_metadata, name)
        for name, field in FIELDS.items()
        if name not in changes
    }
    return CommonAttentionMetadata(**unchanged, **changes)


def _check_indices(
    logits_indices_padded: Array, num_logits_indices: int, num_tokens: int
) -> list[int]:
    """Return the indices that are not padding; they must increase strictly and be tokens."""
    name = "logits_indices_padded"
    of = "num_logits_indices = "
    check_at_least(name, len(logits_indices_padded), num_logits_indices, of)
    indices: list[int] = logits_indices_padded[:num_logits_indices].tolist()
    check_ints(name, indices, 0, num_tokens - 1)
    check_order(name, indices, strict=True)
    return indices


def create_fast_prefill_custom_backend(
    prefix: str, underlying_attn_backend: type[Any]
) -> type[Any]:
    """Make a backend that builds its metadata from the tokens whose logits are needed.

    The backend extends the underlying one, and its builders extend the underlying builders. Their
    `build(common_prefix_len, common_attn_metadata, fast_build=False)` calls the underlying `build`,
    with keywords, on `make_kv_sharing_fast_prefill_common_attn_metadata(common_attn_metadata)`; it
    passes `fast_build` only if that is True, so the underlying method may lack it. The result has
    all attributes of what the underlying builder built, and `logits_indices_padded` and
    `num_logits_indices` of `common_attn_metadata` itself, even if the step does not use fast
    prefill; these replace attributes of the same name. So it is a `KVSharingFastPrefillMetadata`.
    The object that the underlying builder built is neither changed nor returned.

    The class of the result extends the class of what was built, and has the prefix in its name too.
    If that class is a dataclass, so is the new one, with `KV_SHARING_FAST_PREFILL_METADATA_FIELDS`
    (as `subclass_attention_metadata` makes it); otherwise it compares and prints like that class.
    It is made once for each class. Its instances are made without calling `__init__`: the values in
    `__dict__` and in slots are copied by reference, and the entries if the object is a tuple.

    A backend class is made once: the same prefix and backend give the same class, as long as it is
    referenced anywhere.

    Args:
        prefix: The prefix of the names of the new classes.
        underlying_attn_backend: The underlying backend, a class. Neither it nor the class of its
            builders is changed.

    Returns:
        A subclass. Its `get_builder_cls()`, called on the class or on an instance, returns a
        subclass of what the underlying method returns.

    Raises:
        TypeError: A prefix that is not a str, a backend or builders that are not classes. From
            `build`: a metadata that cannot be extended, such as None, a dict or an array.
        AttributeError: A backend without `get_builder_cls`.

    Example:
        >>> import numpy as np
        >>> class Lengths:
        ...     pass
        >>> class Builder:
        ...     def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        ...         lengths = Lengths()
        ...         lengths.num_tokens = common_attn_metadata.num_actual_tokens
        ...         return lengths
        >>> class Plain:
        ...     get_builder_cls = staticmethod(lambda: Builder)
        >>> backend = create_fast_prefill_custom_backend("Fast", Plain)
        >>> backend.__name__, backend.get_builder_cls().__name__
        ('FastPlain', 'FastBuilder')
        >>> starts, lens = np.array([0, 15, 20, 28], np.int32), np.array([15, 5, 8], np.int32)
        >>> batch = CommonAttentionMetadata(
        ...     starts, starts, lens, lens, np.zeros(3, np.int32), 3, 28, 15, 15,
        ...     np.zeros((3, 1), np.int32), np.arange(28),
        ...     logits_indices_padded=np.array([14, 18, 19, 27]), num_logits_indices=4,
        ... )  # fmt: skip
        >>> metadata = backend.get_builder_cls()().build(0, batch)
        >>> isinstance(metadata, Lengths), isinstance(metadata, KVSharingFastPrefillMetadata)
        (True, True)
        >>> metadata.num_tokens, metadata.logits_indices_padded.tolist()
        (4, [14, 18, 19, 27])

    Source: the definition is kvtwin's own; the name is vLLM's.
    """
    check_type("prefix", prefix, str)
    backend = check_type("underlying_attn_backend", underlying_attn_backend, type)
    underlying_builder_cls = check_type(
        "the builder of underlying_attn_backend", backend.get_builder_cls(), type
    )
    builder_cls = make_once(
        ("fast prefill builder", prefix, id(underlying_builder_cls)),
        lambda: _make_builder_cls(prefix, underlying_builder_cls),
    )
    return subclass_attention_backend(prefix, backend, builder_cls)


def _make_builder_cls(prefix: str, underlying_builder_cls: type[Any]) -> type[Any]:
    """Make the class of the builders that build from the tokens whose logits are needed."""
    metadata_classes: dict[int, type[Any]] = {}  # by the id of the class that each extends

    def build(
        self: object,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> object:
        """Build the metadata of the tokens whose logits are needed."""
        names = [name for name, _, _ in KV_SHARING_FAST_PREFILL_METADATA_FIELDS]
        logits_fields = {name: getattr(common_attn_metadata, name) for name in names}
        wanted = make_kv_sharing_fast_prefill_common_attn_metadata(common_attn_metadata)
        underlying_builder: Any = super(builder_cls, self)
        metadata = underlying_builder.build(
            common_prefix_len=common_prefix_len,
            common_attn_metadata=wanted,
            **({"fast_build": fast_build} if fast_build else {}),
        )
        underlying_cls = type(metadata)
        try:
            if id(underlying_cls) not in metadata_classes:
                metadata_classes[id(underlying_cls)] = extend_metadata_cls(
                    prefix, underlying_cls, KV_SHARING_FAST_PREFILL_METADATA_FIELDS
                )
            return extend_metadata(metadata, metadata_classes[id(underlying_cls)], logits_fields)
        except TypeError as error:
            raise TypeError(
                f"{underlying_builder_cls.__name__} built a {underlying_cls.__name__}, which "
                f"cannot be extended by the logits fields: {error}"
            ) from error

    builder_cls = type(
        prefix + underlying_builder_cls.__name__, (underlying_builder_cls,), {"build": build}
    )
    return builder_cls
