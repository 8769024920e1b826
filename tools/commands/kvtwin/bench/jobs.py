"""The hot functions, with their calls for the batches that are timed."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, TypeAlias

import ml_dtypes
import numpy as np
import torch

import reference
from conformance.adapters.implementations import Implementation

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Call: TypeAlias = Callable[[], Any]

KINDS: Final = ("decode", "speculative", "mixed", "prefill")
SIZES: Final = (8, 256, 1024)
"""The numbers of requests in the timed batches."""

MAX_CONTEXT: Final = 8000
BLOCK_SIZE: Final = 16
NUM_COLUMNS: Final = MAX_CONTEXT // BLOCK_SIZE
MAX_MODEL_LEN: Final = 8192  # each request has room for blocks that are appended
MAX_APPENDED: Final = 12  # blocks that each has room for
NUM_GROUPS: Final = 4  # KV cache groups, each with blocks of `BLOCK_SIZE`
NUM_DRAFTS: Final = 3  # draft tokens of a speculative decode
TOKEN_BUDGET: Final = 8192  # the tokens of a step that prefills share
MIN_CHUNK: Final = 16  # the least tokens of a prefill, on average
MAX_NUM_REQS: Final = 1024  # rows of block tables, however few requests a batch has
EMBED_DIM: Final = 4096
BIG_CHUNK, SMALL_CHUNK = 8192, 512  # positions in a chunk of local attention
DCP_SIZE: Final = 4


@dataclass(frozen=True)
class Batch:
    """One step's batch, in batch order: decodes, then extends, then prefills."""

    kind: str
    num_reqs: int
    num_tokens: int
    decode_threshold: int  # the most new tokens of a decode
    query_lens: Array  # int32[num_reqs], new tokens
    num_computed_tokens: Array  # int32[num_reqs], tokens in the cache before the step
    seq_lens: Array  # int32[num_reqs]
    starts: Array  # int32[num_reqs + 1], each request's first token, then their number
    positions: Array  # int64[num_tokens]
    num_blocks: Array  # int64[num_reqs]
    block_ids: Array  # int32[all blocks], the blocks of one request after another, from a pool
    block_table: Array  # int32[num_reqs, NUM_COLUMNS]
    arrival: Array  # int64[num_reqs], in order of arrival: some are out of batch order
    rows: Array  # bfloat16[num_reqs, EMBED_DIM], placeholders of embeddings
    is_embed: Array  # bool[num_reqs], half of the placeholders


def make_batch(kind: str, num_reqs: int) -> Batch:
    """Make a batch of a kind, the same one in each call.

    All decode; all verify draft tokens; three of four decode, and the rest compute a further or a
    first chunk of their prompt; all compute their first. Prompt chunks share `TOKEN_BUDGET`.
    """
    random = np.random.default_rng([KINDS.index(kind), num_reqs])
    threshold = 1 + NUM_DRAFTS if kind == "speculative" else 1
    query_lens = np.full(num_reqs, threshold)
    num_chunks = {"mixed": -(-num_reqs // 4), "prefill": num_reqs}.get(kind, 0)
    if num_chunks:
        longest = max(2 * TOKEN_BUDGET // num_chunks, 2 * MIN_CHUNK)
        lengths = random.integers(threshold + 1, min(longest, MAX_CONTEXT) + 1, num_chunks)
        query_lens[num_reqs - num_chunks :] = lengths
    computed = random.integers(1, MAX_CONTEXT - query_lens + 1, num_reqs)
    num_first = num_reqs if kind == "prefill" else num_chunks // 2
    computed[num_reqs - num_first :] = 0
    seq_lens = computed + query_lens
    starts = np.concatenate([[0], np.cumsum(query_lens)])
    within = np.arange(starts[-1]) - np.repeat(starts[:-1], query_lens)
    num_blocks = -(-seq_lens // BLOCK_SIZE)
    ids = np.random.default_rng([0, num_reqs]).permutation(int(num_blocks.sum()))
    block_table = np.zeros((num_reqs, NUM_COLUMNS), np.int32)
    block_table[np.arange(NUM_COLUMNS) < num_blocks[:, None]] = ids + 1
    arrival = np.arange(num_reqs)
    moved = np.flatnonzero(np.random.default_rng([0, num_reqs]).random(num_reqs) < 0.2)
    arrival[moved] = np.random.default_rng([0, num_reqs]).permutation(moved)
    random = np.random.default_rng(num_reqs)
    is_embed = random.random(num_reqs) < 0.5
    is_embed[0] = True  # an item has an embedding
    rows = random.integers(0, 2**14, (num_reqs, EMBED_DIM), np.uint16)
    return Batch(
        kind=kind,
        num_reqs=num_reqs,
        num_tokens=int(starts[-1]),
        decode_threshold=threshold,
        query_lens=query_lens.astype(np.int32),
        num_computed_tokens=computed.astype(np.int32),
        seq_lens=seq_lens.astype(np.int32),
        starts=starts.astype(np.int32),
        positions=np.repeat(computed, query_lens) + within,
        num_blocks=num_blocks,
        block_ids=(ids + 1).astype(np.int32),
        block_table=block_table,
        arrival=arrival,
        rows=rows.view(ml_dtypes.bfloat16),
        is_embed=is_embed,
    )


class Prepared(NamedTuple):
    """A call that can be repeated, and its result in the form of `reference`'s, for comparison."""

    call: Call
    observe: Call  # makes the call; may be called once, before the call is timed
    reset: Call | None = None  # undoes what calls have changed
    most_calls: int | None = None  # before the next reset


@dataclass(frozen=True)
class Side:
    """What is timed, or compared with: `reference` has arrays, and no device.

    `is_gpu` says that kernels run for its tensors, which may be on the host (`bench.launches`).
    """

    name: str
    implementation: Implementation
    device: str | None = "cpu"
    is_gpu: bool = False

    def find(self, name: str) -> Any:
        return self.implementation.find(name)


REFERENCE: Final = Side("reference", Implementation("reference", reference), None)


@dataclass(frozen=True)
class Job:
    """A hot function, or a method as `Class.method`."""

    function: str
    prepare: Callable[[Batch, Side], Prepared]
    variant: str = ""  # the suffix of the function's name in tables
    num_groups: int | None = None  # KV cache groups, if it is timed for several numbers
    needs: str = ""  # the name that an implementation must have, if it is another one

    @property
    def name(self) -> str:
        groups = {None: "", 1: ", 1 group"}.get(self.num_groups, f", {self.num_groups} groups")
        return self.function + self.variant + groups


def prepare(target: Side, function: str, *args: Any, **kwargs: Any) -> Prepared:
    """Prepare a call with copies of NumPy arrays and objects of `reference`, as a target's.

    Only the target's function is timed. If an adapter has a method `prepare(function, *args,
    **kwargs)`, that makes the call.
    """
    adapter: Any = target.implementation.adapter
    renamed, done = adapter.parameters.get(function, {}), dict[Any, Any]()
    given = [adapter.theirs(_convert(value, "", target, done)) for value in args]
    named = {
        renamed.get(name, name): adapter.theirs(_convert(value, name, target, done))
        for name, value in kwargs.items()
    }
    call: Call
    if hasattr(adapter, "prepare"):
        call = adapter.prepare(function, *given, **named)
    else:
        found = target.find(function)
        call = lambda: found(*given, **named)  # noqa: E731  # one of two
    return Prepared(call, lambda: adapter.result(function, call(), kwargs))


def _convert(value: Any, name: str, target: Side, done: dict[Any, Any]) -> Any:
    """Convert an argument; an array named `cpu` or `*_cpu` stays on the host.

    An array that is passed twice, as a field and its `_cpu`, is one tensor if both are on the host.
    """
    if target.device is None or name in {"np", "num_scheduled_tokens"}:
        return value
    if isinstance(value, np.ndarray):
        where = "cpu" if name == "cpu" or name.endswith("_cpu") else target.device
        if (id(value), where) not in done:
            is_bfloat16 = value.dtype == ml_dtypes.bfloat16
            copied = torch.from_numpy((value.view(np.uint16) if is_bfloat16 else value).copy())
            copied = copied.view(torch.bfloat16) if is_bfloat16 else copied
            done[id(value), where] = copied.to(where)
        return done[id(value), where]
    first = isinstance(value, list | tuple) and value and value[0]
    if isinstance(first, np.ndarray | reference.UBatchSlice):
        return type(value)(_convert(each, name, target, done) for each in value)
    class_name = type(value).__name__
    if class_name in {"SimpleNamespace", "CommonAttentionMetadata", "UBatchSlice"}:
        fields = {name: _convert(each, name, target, done) for name, each in vars(value).items()}
        adapter = target.implementation.adapter
        make = adapter.new if target.implementation.offers(class_name) else adapter.made
        is_plain = class_name == "SimpleNamespace"
        return SimpleNamespace(**fields) if is_plain else make(class_name, **fields)
    return value


def _metadata(batch: Batch, **changes: Any) -> reference.CommonAttentionMetadata:
    fields: dict[str, Any] = {
        "query_start_loc": batch.starts,
        "query_start_loc_cpu": batch.starts,
        "seq_lens": batch.seq_lens,
        "seq_lens_cpu": batch.seq_lens,
        "num_computed_tokens_cpu": batch.num_computed_tokens,
        "num_reqs": batch.num_reqs,
        "num_actual_tokens": batch.num_tokens,
        "max_query_len": int(batch.query_lens.max()),
        "max_seq_len": int(batch.seq_lens.max()),
        "block_table_tensor": batch.block_table,
        "slot_mapping": np.arange(batch.num_tokens),
    }
    return reference.CommonAttentionMetadata(**fields, **changes)


def on_side(value: Any, target: Side, *, copy: bool = True) -> Any:
    """Return an array as a target's, by default a copy; other values as they are."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if not isinstance(value, np.ndarray):
        return value
    value = value.copy() if copy else value
    return value if target.device is None else torch.from_numpy(value).to(target.device)


def make_tables(batch: Batch, target: Side, num_groups: int) -> Any:
    """Return block tables that hold a batch, by request slots: row `r` has slot `arrival[r]`."""
    sizes = (MAX_NUM_REQS, max(batch.num_tokens, TOKEN_BUDGET))
    widths = [MAX_MODEL_LEN // BLOCK_SIZE] * num_groups
    made = ([BLOCK_SIZE] * num_groups, *sizes, widths, target.device or "cpu")
    tables = target.find("BlockTables")(*made)
    fill_tables(batch, tables, num_groups)
    return tables


def fill_tables(batch: Batch, tables: Any, num_groups: int) -> None:
    """Write the blocks of a batch in place of what tables hold."""
    ids = np.split(batch.block_ids, np.cumsum(batch.num_blocks)[:-1])
    for slot, of_row in zip(batch.arrival.tolist(), ids, strict=True):
        tables.append_block_ids(slot, [of_row.tolist()] * num_groups, overwrite=True)
    tables.apply_staged_writes()


class Appends:
    """Append a block to one sixteenth of the requests, each time to others.

    Args:
        append: Appends to the row of a request.
        of_rows: Its arguments for each row of a batch.
        fill: Undoes all appends.
    """

    def __init__(self, append: Callable[..., Any], of_rows: list[Any], fill: Call) -> None:
        self._append, self._fill, self._number = append, fill, 0
        size = -(-len(of_rows) // 16)
        self._turns = [of_rows[k : k + size] for k in range(0, len(of_rows), size)]
        self.most = MAX_APPENDED // 2 * len(self._turns)
        """So many calls have room after `reset`."""

    def __call__(self) -> Any:
        turn, append = self._turns[self._number % len(self._turns)], self._append
        self._number += 1
        for arguments in turn:
            append(*arguments)

    def reset(self) -> None:
        """Undo all appends, unless there is room for as many again."""
        if self._number > self.most:
            self._fill()
            self._number = 0


def new_blocks(batch: Batch, num_groups: int) -> list[list[list[int]]]:
    """Return a block for each row in each group."""
    return [[[1 + row + group] for group in range(num_groups)] for row in range(batch.num_reqs)]


def make_appends(batch: Batch, tables: Any, num_groups: int) -> Appends:
    slots, ids = batch.arrival.tolist(), new_blocks(batch, num_groups)
    of_rows = [(slot, new, False) for slot, new in zip(slots, ids, strict=True)]
    fill = partial(fill_tables, batch, tables, num_groups)
    return Appends(tables.append_block_ids, of_rows, fill)


def _append(batch: Batch, target: Side, num_groups: int) -> Prepared:
    tables = make_tables(batch, target, num_groups)
    append, apply = make_appends(batch, tables, num_groups), tables.apply_staged_writes

    def call() -> Any:
        append()
        return apply()

    gather = _gather_rows(tables, target, batch.arrival)
    return Prepared(call, lambda: (call(), gather.observe()), append.reset, append.most)


def _gather_rows(tables: Any, target: Side, order: Array) -> Prepared:
    rows = order.astype(np.int32)
    return prepare(target, "BlockTables.gather_block_tables", tables, rows, len(rows))


def _gather(batch: Batch, target: Side, num_groups: int) -> Prepared:
    """Gather the same rows as in the step before."""
    return _gather_rows(make_tables(batch, target, num_groups), target, batch.arrival)


def _gather_others(batch: Batch, target: Side, num_groups: int) -> Prepared:
    """Gather alternately in one order and its reverse, so that most of several rows change."""
    tables = make_tables(batch, target, num_groups)
    both = [_gather_rows(tables, target, order) for order in (batch.arrival, batch.arrival[::-1])]
    turns = cycle([prepared.call for prepared in both])

    def gather() -> Any:
        return next(turns)()

    # Both calls return views of the same memory: the second overwrites the first's result.
    return Prepared(gather, lambda: [deepcopy(each.observe()) for each in both])


def _slots_of_all(batch: Batch, target: Side, num_groups: int) -> Prepared:
    rows, tables = batch.arrival.astype(np.int32), make_tables(batch, target, num_groups)
    given = (tables, rows, batch.starts, batch.positions, len(batch.positions))
    return prepare(target, "BlockTables.compute_slot_mappings", *given)


class _InputBatch:
    """A runner's input batch in order of arrival, whose swaps take almost no time.

    In timed calls they do nothing, so that each call starts from the same order.
    """

    def __init__(self, batch: Batch, *, does_swap: bool) -> None:
        order = batch.arrival
        self.req_ids = [f"request-{i}" for i in order.tolist()]
        self.num_computed_tokens_cpu = batch.num_computed_tokens[order].astype(np.int32)
        is_decode = batch.query_lens <= batch.decode_threshold
        prompts = np.where(is_decode, batch.num_computed_tokens, batch.seq_lens)
        self.num_prompt_tokens = prompts[order].astype(np.int32)
        self._does_swap = does_swap

    def swap_states(self, i: int, j: int) -> None:
        if self._does_swap:
            ids = self.req_ids
            ids[i], ids[j] = ids[j], ids[i]
            for counts in (self.num_computed_tokens_cpu, self.num_prompt_tokens):
                counts[[i, j]] = counts[[j, i]]


def _reorder(batch: Batch, target: Side, *, has_counts: bool = False, **options: Any) -> Prepared:
    scheduled = {f"request-{i}": n for i, n in enumerate(batch.query_lens.tolist())}
    if has_counts:
        options["num_scheduled_tokens"] = batch.query_lens[batch.arrival]
    given = (SimpleNamespace(num_scheduled_tokens=scheduled), batch.decode_threshold)
    swapped = _InputBatch(batch, does_swap=True)
    once, call = (
        prepare(target, _REORDER, requests, *given, **options).call
        for requests in (swapped, _InputBatch(batch, does_swap=False))
    )
    return Prepared(call, lambda: (once(), list(swapped.req_ids)))


class Builder:
    """A builder that takes no time: it returns its input."""

    def build(self, common_prefix_len: int, common_attn_metadata: Any) -> Any:
        del common_prefix_len
        return common_attn_metadata


def _build(batch: Batch, target: Side, *, has_bounds: bool = False) -> Prepared:
    def buffer(values: Array) -> SimpleNamespace:
        return SimpleNamespace(cpu=values, gpu=values.copy(), np=values)

    longest = int(batch.query_lens.max()), int(batch.seq_lens.max())
    bounds = dict(zip(("max_query_len", "max_seq_len"), longest, strict=True))
    groups = [SimpleNamespace(layer_names=[f"layers.{i}.attn"]) for i in range(NUM_GROUPS)]
    return prepare(
        target,
        "build_attn_metadata",
        attn_metadata_builders=[Builder() for _ in groups],
        num_reqs=batch.num_reqs,
        num_tokens=batch.num_tokens,
        query_start_loc=buffer(batch.starts),
        seq_lens=buffer(batch.seq_lens),
        num_computed_tokens_cpu=batch.num_computed_tokens,
        block_tables=tuple(batch.block_table.copy() for _ in groups),
        slot_mappings=np.tile(np.arange(batch.num_tokens), (NUM_GROUPS, 1)),
        kv_cache_config=SimpleNamespace(kv_cache_groups=groups),
        **(bounds if has_bounds else {}),
    )


def _job(
    function: str,
    arguments: Callable[[Batch], list[Any] | dict[str, Any]],
    variant: str = "",
    hints: Callable[[Batch], dict[str, Any]] | None = None,
) -> Job:
    """Make a job from its arguments by position or by name.

    `hints` are keywords with which `fast` need not synchronise with a GPU; others do not get them.
    """

    def prepare_call(batch: Batch, target: Side) -> Prepared:
        given, hinted = arguments(batch), {}
        if hints is not None and target.is_gpu:
            hinted = hints(batch)
        if isinstance(given, dict):
            return prepare(target, function, **given, **hinted)
        return prepare(target, function, *given, **hinted)

    return Job(function, prepare_call, variant)


def _last_tokens(batch: Batch) -> Array:
    return batch.starts[1:].astype(np.int64) - 1


_REORDER: Final = "reorder_batch_to_split_decodes_and_prefills"
_LOCAL: Final = "make_local_attention_virtual_batches"

OF_FUNCTIONS: Final = (
    *(
        Job(f"BlockTables.{method}", partial(prepare, num_groups=number), variant, number)
        for method, prepare, variant in (
            ("append_block_ids", _append, ""),
            ("gather_block_tables", _gather, ""),
            ("gather_block_tables", _gather_others, ", other rows"),
            ("compute_slot_mappings", _slots_of_all, ""),
        )
        for number in (1, 4)
    ),
    _job("compute_slot_mapping", lambda b: [b.block_table, b.starts, b.positions, BLOCK_SIZE]),
    Job("build_attn_metadata", _build),
    Job("build_attn_metadata", partial(_build, has_bounds=True), " (bounds given)"),
    _job(
        "split_decodes_and_prefills",
        lambda b: {
            "common_attn_metadata": _metadata(b),
            "decode_threshold": b.decode_threshold,
            "require_uniform": b.decode_threshold > 1,
        },
    ),
    _job(
        "split_decodes_prefills_and_extends",
        lambda b: {
            "common_attn_metadata": _metadata(b),
            "decode_threshold": b.decode_threshold,
        },
    ),
    Job(_REORDER, _reorder),
    Job(_REORDER, partial(_reorder, has_counts=True), " (counts given)"),
    Job(_REORDER, partial(_reorder, regions=4), ", 4 regions"),
    _job(
        "create_ubatch_slices",
        lambda b: {"num_scheduled_tokens": b.query_lens, "split_points": b.num_tokens // 2},
    ),
    _job(
        "split_attn_metadata",
        lambda b: {
            "ubatch_slices": reference.create_ubatch_slices(b.query_lens, b.num_tokens // 2),
            "common_attn_metadata": _metadata(b),
        },
    ),
    _job(_LOCAL, lambda b: [BIG_CHUNK, _metadata(b), BLOCK_SIZE], f", chunk {BIG_CHUNK}"),
    _job(_LOCAL, lambda b: [SMALL_CHUNK, _metadata(b), BLOCK_SIZE], f", chunk {SMALL_CHUNK}"),
    _job(
        "make_kv_sharing_fast_prefill_common_attn_metadata",
        lambda b: [
            _metadata(b, logits_indices_padded=_last_tokens(b), num_logits_indices=b.num_reqs)
        ],
        hints=lambda b: {"logits_indices_cpu": _last_tokens(b)},
    ),
    _job(
        "compute_causal_conv1d_metadata",
        lambda b: [b.starts],
        hints=lambda b: {"query_start_loc_p_cpu": b.starts},
    ),
    _job("get_dcp_local_seq_lens", lambda b: [b.seq_lens, DCP_SIZE, 1, BLOCK_SIZE]),
    _job("scatter_mm_placeholders", lambda b: [b.rows[b.is_embed], b.is_embed]),
    _job(
        "gather_mm_placeholders",
        lambda b: [b.rows, b.is_embed],
        hints=lambda b: {"num_embeds": int(b.is_embed.sum())},
    ),
)
"""The jobs of every hot function but those of a step, in the order of the tables."""
