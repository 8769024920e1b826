"""Build the metadata of a batch that attention backends share."""

import dataclasses
from dataclasses import dataclass
from operator import countOf
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch

from fast._checks import (
    CPU,
    INT32,
    INT64,
    MAX_SIZE,
    IntArray,
    check_at_least,
    check_entries,
    check_int,
    check_list,
    check_on,
    check_one_each,
    check_strs,
    check_tensor,
    check_type,
)
from fast._native.memory import check_memory, first_of, to_host
from fast._native.metadata import find_maxima
from fast.checked_mode import is_checked
from fast.metadata_validation import (
    FIELDS,
    check_computed,
    check_field,
    check_fields,
    check_lengths,
    cut_fields,
    validate_metadata,
)
from fast.operators import check_not_traced, is_traced


@dataclass(eq=False)
class CommonAttentionMetadata:
    """The metadata of one step's batch, as every attention backend needs it.

    Fields whose name ends in `_cpu` are on the CPU and hold the values of the field without the
    suffix; `is_prefilling` and the upper bounds are on the CPU too. `encoder_seq_lens` and
    `req_idx` are NumPy arrays. All other tensors are on one device.

    Definition: `reference.CommonAttentionMetadata`.
    """

    query_start_loc: torch.Tensor
    query_start_loc_cpu: torch.Tensor
    seq_lens: torch.Tensor
    seq_lens_cpu: torch.Tensor | None
    num_computed_tokens_cpu: torch.Tensor
    num_reqs: int
    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    block_table_tensor: torch.Tensor
    slot_mapping: torch.Tensor
    causal: bool = True
    logits_indices_padded: torch.Tensor | None = None
    num_logits_indices: int | None = None
    encoder_seq_lens: IntArray | None = None
    dcp_local_seq_lens: torch.Tensor | None = None
    is_prefilling: torch.Tensor | None = None
    positions: torch.Tensor | None = None
    seq_lens_cpu_upper_bound: torch.Tensor | None = None
    dcp_local_seq_lens_cpu_upper_bound: torch.Tensor | None = None
    max_logits_per_req: int | None = None
    req_idx: npt.NDArray[np.int32] | None = None

    def unpadded(self, num_actual_tokens: int, num_actual_reqs: int) -> Self:
        """Cut the batch to its first tokens and requests; synchronises in checked mode.

        Definition: `reference.CommonAttentionMetadata.unpadded`.
        """
        fields = check_fields(self)
        check_lengths(fields)
        reqs = check_int("num_actual_reqs", num_actual_reqs, 0, self.num_reqs)
        tokens = check_int("num_actual_tokens", num_actual_tokens, 0, self.num_actual_tokens)
        # Equal in a valid batch, so outside checked mode nothing waits for the device.
        name = "query_start_loc" if is_checked() else "query_start_loc_cpu"
        needed = int(to_host(name, getattr(self, name))[reqs])
        if tokens < needed:
            raise ValueError(
                f"num_actual_tokens is {tokens}, but the first {reqs} requests have {needed} tokens"
            )
        with_axis = {name: value for name, value in fields.items() if FIELDS[name].axis}
        cut = {"seq_lens_cpu": None, **cut_fields(with_axis, 0, reqs, 0, tokens)}
        return dataclasses.replace(self, **cut | {"num_reqs": reqs, "num_actual_tokens": tokens})

    def validate(self, block_size: int | None = None) -> None:
        """Raise on the first invariant that does not hold; synchronises on a GPU.

        Definition: `reference.CommonAttentionMetadata.validate`.
        """
        validate_metadata(self, block_size)


def build_attn_metadata(
    attn_metadata_builders: list[Any],
    num_reqs: int,
    num_tokens: int,
    query_start_loc: Any,
    seq_lens: Any,
    num_computed_tokens_cpu: torch.Tensor,
    block_tables: list[torch.Tensor] | tuple[torch.Tensor, ...],
    slot_mappings: list[torch.Tensor] | tuple[torch.Tensor, ...] | torch.Tensor,
    kv_cache_config: Any,
    max_query_len: int | None = None,
    max_seq_len: int | None = None,
    *,
    dcp_local_seq_lens: torch.Tensor | None = None,
    is_prefilling: torch.Tensor | None = None,
    positions: torch.Tensor | None = None,
    seq_lens_cpu_upper_bound: torch.Tensor | None = None,
    dcp_local_seq_lens_cpu_upper_bound: torch.Tensor | None = None,
    max_logits_per_req: int | None = None,
    req_idx: npt.NDArray[np.int32] | None = None,
) -> dict[str, Any]:
    """Build the metadata of every layer for a step.

    The call does not synchronise, except in checked mode. The groups' batches share views of the
    buffers, so a captured graph reads values that are written there later. The maxima come from the
    `cpu` halves, or from the bounds; with both `max_query_len` and `max_seq_len` no value of the
    buffers is read. Only checked mode rejects an invalid batch, and a maximum that a value exceeds.

    Definition: `reference.build_attn_metadata`.
    """
    num_reqs, num_tokens, max_query_len, max_seq_len = _check_numbers(
        num_reqs, num_tokens, max_query_len, max_seq_len
    )
    groups = _check_groups(attn_metadata_builders, kv_cache_config)
    views = _cut_buffers(
        num_reqs,
        num_tokens,
        query_start_loc,
        seq_lens,
        num_computed_tokens_cpu,
        {
            "dcp_local_seq_lens": dcp_local_seq_lens,
            "is_prefilling": is_prefilling,
            "positions": positions,
            "seq_lens_cpu_upper_bound": seq_lens_cpu_upper_bound,
            "dcp_local_seq_lens_cpu_upper_bound": dcp_local_seq_lens_cpu_upper_bound,
            "req_idx": req_idx,
        },
    )
    tables = _pair_tables(views, block_tables, slot_mappings, len(groups))
    batches = _make_batches(views, tables, max_query_len, max_seq_len, max_logits_per_req)
    if is_checked():
        _check_layer_names(groups)
        for batch in batches:
            validate_metadata(batch)
            check_computed(batch)
    return _build(attn_metadata_builders, batches, groups)


class AttnMetadataPlan:
    """Builds the metadata of every layer, step after step, from buffers that are checked once.

    Views of the buffers are cut once for each pair of `num_reqs` and `num_tokens`, and handed out
    again: the same view objects are in all steps of these sizes. Block tables and slots are checked
    again unless they are the same tuple or tensor object as in the last step of these sizes, which
    the plan keeps alive. So shapes must not change later. The metadata objects are new ones in each
    step. In checked mode, or traced, `build` checks and cuts everything anew.

    Definition: `reference.AttnMetadataPlan`.
    """

    def __init__(
        self,
        attn_metadata_builders: list[Any],
        query_start_loc: Any,
        seq_lens: Any,
        num_computed_tokens_cpu: torch.Tensor,
        kv_cache_config: Any,
        *,
        dcp_local_seq_lens: torch.Tensor | None = None,
        is_prefilling: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
        seq_lens_cpu_upper_bound: torch.Tensor | None = None,
        dcp_local_seq_lens_cpu_upper_bound: torch.Tensor | None = None,
        req_idx: npt.NDArray[np.int32] | None = None,
    ) -> None:
        self._groups = _check_groups(attn_metadata_builders, kv_cache_config)
        _check_layer_names(self._groups)
        self._builders, self._config = attn_metadata_builders, kv_cache_config
        self._buffers = query_start_loc, seq_lens, num_computed_tokens_cpu
        self._optional: dict[str, Any] = {
            "dcp_local_seq_lens": dcp_local_seq_lens,
            "is_prefilling": is_prefilling,
            "positions": positions,
            "seq_lens_cpu_upper_bound": seq_lens_cpu_upper_bound,
            "dcp_local_seq_lens_cpu_upper_bound": dcp_local_seq_lens_cpu_upper_bound,
            "req_idx": req_idx,
        }
        _cut_buffers(0, 0, *self._buffers, self._optional)
        self._steps: dict[tuple[int, int], _Step] = {}

    def build(
        self,
        num_reqs: int,
        num_tokens: int,
        block_tables: list[torch.Tensor] | tuple[torch.Tensor, ...],
        slot_mappings: list[torch.Tensor] | tuple[torch.Tensor, ...] | torch.Tensor,
        max_query_len: int | None = None,
        max_seq_len: int | None = None,
        *,
        max_logits_per_req: int | None = None,
    ) -> dict[str, Any]:
        """Build the metadata of every layer for a step, as `build_attn_metadata` does.

        Definition: `reference.AttnMetadataPlan.build`.
        """
        if is_checked() or is_traced():
            return build_attn_metadata(
                self._builders,
                num_reqs,
                num_tokens,
                *self._buffers,
                block_tables,
                slot_mappings,
                self._config,
                max_query_len,
                max_seq_len,
                max_logits_per_req=max_logits_per_req,
                **self._optional,
            )
        num_reqs, num_tokens, max_query_len, max_seq_len = _check_numbers(
            num_reqs, num_tokens, max_query_len, max_seq_len
        )
        step = self._steps.get((num_reqs, num_tokens))
        if (
            step is None
            or step.block_tables is not block_tables
            or step.slot_mappings is not slot_mappings
        ):
            views = (
                step.views
                if step
                else _cut_buffers(num_reqs, num_tokens, *self._buffers, self._optional)
            )
            tables = _pair_tables(views, block_tables, slot_mappings, len(self._groups))
            step = _Step(views, block_tables, slot_mappings, tables)
            self._keep(step)
        batches = _make_batches(
            step.views, step.tables, max_query_len, max_seq_len, max_logits_per_req
        )
        return _build(self._builders, batches, self._groups)

    def _keep(self, step: "_Step") -> None:
        """Keep what was made for the sizes of a step, in place of what was kept for them."""
        sizes = step.views.shared[-2:]
        if len(self._steps) == MOST_STEPS and sizes not in self._steps:
            self._steps.clear()
        if type(step.block_tables) is not tuple or isinstance(step.slot_mappings, list):
            step = step._replace(block_tables=MUTABLE)
        self._steps[sizes] = step


MOST_STEPS: Final = 64
"""Of so many sizes at most a plan keeps views."""

MUTABLE: Final = object()
"""In place of a list of tables or slots, which may have other entries in the next step."""


class _Views(NamedTuple):
    """The fields that the batches of all groups share, cut to the sizes of a step."""

    # Those from `query_start_loc` to `num_actual_tokens`.
    shared: tuple[Any, Any, Any, Any, Any, int, int]
    optional: dict[str, Any]  # those that are given, by name


class _Step(NamedTuple):
    """What a plan keeps for the sizes of a step."""

    views: _Views
    block_tables: Any  # as they were passed, and checked
    slot_mappings: Any
    tables: list[tuple[torch.Tensor, torch.Tensor]]  # of each group: its block table and slots


def _check_numbers(
    num_reqs: Any, num_tokens: Any, max_query_len: Any, max_seq_len: Any
) -> tuple[int, int, int | None, int | None]:
    """Return the numbers of a step as Python's ints."""
    # The usual case in one expression, which saves 0.3 us.
    if (
        type(num_reqs) is type(num_tokens) is type(max_query_len) is type(max_seq_len) is int
        and num_reqs >= 0
        and num_tokens >= 0
        and 0 <= max_query_len <= MAX_SIZE
        and 0 <= max_seq_len <= MAX_SIZE
    ):
        return num_reqs, num_tokens, max_query_len, max_seq_len
    num_reqs = check_int("num_reqs", num_reqs, 0, None)
    num_tokens = check_int("num_tokens", num_tokens, 0, None)
    if max_query_len is not None:
        max_query_len = check_int("max_query_len", max_query_len, 0)
    if max_seq_len is not None:
        max_seq_len = check_int("max_seq_len", max_seq_len, 0)
    return num_reqs, num_tokens, max_query_len, max_seq_len


def _check_groups(builders: list[Any], kv_cache_config: Any) -> list[Any]:
    """Return the KV cache groups, which have a builder each."""
    groups: list[Any] = kv_cache_config.kv_cache_groups
    check_list("kv_cache_config.kv_cache_groups", groups)
    check_list("attn_metadata_builders", builders)
    check_one_each("attn_metadata_builders", builders, len(groups))
    return groups


def _cut_buffers(
    num_reqs: int,
    num_tokens: int,
    query_start_loc: Any,
    seq_lens: Any,
    num_computed_tokens_cpu: torch.Tensor,
    optional: dict[str, Any],
) -> _Views:
    """Return views of the first requests and tokens of buffers."""
    starts_cpu = _first_of("query_start_loc.cpu", query_start_loc.cpu, num_reqs + 1, CPU)
    starts = _first_of("query_start_loc.gpu", query_start_loc.gpu, num_reqs + 1)
    lens_cpu: torch.Tensor | None = seq_lens.cpu
    if lens_cpu is not None:
        lens_cpu = _first_of("seq_lens.cpu", lens_cpu, num_reqs, CPU)
    lens = _first_of("seq_lens.gpu", seq_lens.gpu, num_reqs, starts.device)
    computed = _first_of("num_computed_tokens_cpu", num_computed_tokens_cpu, num_reqs, CPU)
    shared = starts, starts_cpu, lens, lens_cpu, computed, num_reqs, num_tokens
    return _Views(shared, _cut_optional(num_reqs, num_tokens, starts.device, optional))


def _pair_tables(
    views: _Views, block_tables: Any, slot_mappings: Any, num_groups: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the block table and the slots of each KV cache group, which suffice for a step."""
    starts, _, _, _, _, num_reqs, num_tokens = views.shared
    device = starts.device
    _check_each("block_tables", block_tables, INT32, 2, num_groups, num_reqs, device)
    slots = slot_mappings
    if isinstance(slot_mappings, torch.Tensor):
        check_tensor("slot_mappings", slot_mappings, INT64, 2)
        try:
            slots = slot_mappings.unbind()
        except RuntimeError:  # its storage was resized to less
            check_memory("slot_mappings", slot_mappings)
            raise
    _check_each("slot_mappings", slots, INT64, 1, num_groups, num_tokens, device)
    return list(zip(block_tables, slots, strict=True))


def _make_batches(
    views: _Views,
    tables: list[tuple[torch.Tensor, torch.Tensor]],
    max_query_len: int | None,
    max_seq_len: int | None,
    max_logits_per_req: int | None,
) -> list[CommonAttentionMetadata]:
    """Return the batch of each group; a maximum that is None is found."""
    shared, optional = views
    if max_logits_per_req is not None:
        most = check_field("max_logits_per_req", max_logits_per_req)
        optional = {**optional, "max_logits_per_req": most}
    if max_query_len is None or max_seq_len is None:
        check_not_traced("build_attn_metadata without max_query_len and max_seq_len")
        longest_query, longest_seq = _find_maxima(views, max_seq_len)
        max_query_len = longest_query if max_query_len is None else max_query_len
        max_seq_len = longest_seq if max_seq_len is None else max_seq_len
    # By position, which saves 0.2 us a group.
    return [
        CommonAttentionMetadata(
            *shared, max_query_len, max_seq_len, block_table, slot_mapping, **optional
        )
        for block_table, slot_mapping in tables
    ]


def _build(
    builders: list[Any], batches: list[CommonAttentionMetadata], groups: list[Any]
) -> dict[str, Any]:
    built: dict[str, Any] = {}
    for builder, batch, group in zip(builders, batches, groups, strict=True):
        metadata = builder.build(common_prefix_len=0, common_attn_metadata=batch)
        try:
            for name in group.layer_names:
                built[name] = metadata
        except TypeError:  # not a list, or its names cannot be keys
            _check_layer_names(groups)
            raise
    return built


def _find_maxima(views: _Views, max_seq_len: int | None) -> tuple[int, int]:
    """Return the longest query, and the longest sequence if that is not given."""
    _, starts_cpu, _, lens, _, num_reqs, _ = views.shared
    lens = views.optional.get("seq_lens_cpu_upper_bound") if lens is None else lens
    if lens is None and max_seq_len is None:
        raise ValueError(
            "max_seq_len is None, and so are seq_lens.cpu and seq_lens_cpu_upper_bound: expected"
            " one of them"
        )
    return find_maxima(starts_cpu, lens, num_reqs)


def _cut_optional(
    num_reqs: int, num_tokens: int, device: torch.device, fields: dict[str, Any]
) -> dict[str, Any]:
    """Return the optional fields that are not None, those with an axis as views of their length."""
    given: dict[str, Any] = {}
    if countOf(map(type, fields.values()), type(None)) == len(fields):
        return given  # the usual case, in a third of the time
    for name, value in fields.items():
        if value is None:
            continue
        given[name] = check_field(name, value)
        axis, role = FIELDS[name][:2]
        if axis is not None:
            check_at_least(name, value.shape[0], num_tokens if axis == "token" else num_reqs)
        if role == "device":
            check_on(name, value, device)
    return cut_fields(given, 0, num_reqs, 0, num_tokens)


def _first_of(
    name: str, buffer: torch.Tensor, length: int, device: torch.device | None = None
) -> torch.Tensor:
    """Return a view of the first entries of a buffer, int32[at least `length`], on `device`."""
    check_entries(name, buffer, INT32, 1, length, device)
    return first_of(name, buffer, length)


def _check_each(
    name: str,
    tensors: Any,
    dtype: torch.dtype,
    ndim: int,
    num_groups: int,
    length: int,
    device: torch.device,
) -> None:
    """Check that each KV cache group has a tensor with at least `length` entries, or rows."""
    check_type(name, tensors, list | tuple, "a list or tuple")
    check_one_each(name, tensors, num_groups)
    for group, tensor in enumerate(tensors):
        check_entries(f"{name}[{group}]", tensor, dtype, ndim, length, device)


def _check_layer_names(groups: list[Any]) -> None:
    for g, group in enumerate(groups):
        check_strs(f"kv_cache_groups[{g}].layer_names", group.layer_names)
