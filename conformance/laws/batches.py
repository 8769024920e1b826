"""A step's batch: its requests and tokens, and what the arguments about them hold.

All contents are NumPy arrays, so that a batch of a thousand requests is made in a millisecond.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

import reference
from conformance.engine.trace import traffic
from conformance.harness.contract import Arguments, Special
from conformance.harness.sizes import rngs, sizes, vectors

IntArray: TypeAlias = npt.NDArray[Any]
T = TypeVar("T")

MAX_INT32: Final = 2**31 - 1

FILLERS: Final = (0, -1, 7, MAX_INT32)
"""Values that must not be read: past the end of a table row, and in padding positions."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a request's positions lie in blocks: the parameters of `compute_slot_mapping`."""

    block_size: int
    kernel_block_size: int | None = None
    cp_world_size: int = 1
    cp_rank: int = 0
    cp_kv_cache_interleave_size: int = 1

    @property
    def blocks_per_kv_block(self) -> int:
        """How many of the table's blocks make one of the manager's."""
        return self.block_size // (self.kernel_block_size or self.block_size)

    @property
    def virtual_block_size(self) -> int:
        """Positions in a block on all ranks."""
        return self.block_size * self.cp_world_size

    def keywords(self) -> dict[str, Any]:
        """Return the keyword arguments of the functions that read a layout."""
        return {name: value for name, value in vars(self).items() if name != "block_size"}

    def on_rank(self, positions: IntArray) -> IntArray:
        """Return the positions of this rank in the same rounds of the ranks."""
        interleave = self.cp_kv_cache_interleave_size
        in_round = positions % (self.cp_world_size * interleave)
        found: IntArray = positions - in_round + self.cp_rank * interleave + in_round % interleave
        return found


@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
    """One step, in batch order, padded requests included."""

    query_lens: IntArray  # int64[N], new tokens of each request
    num_computed_tokens: IntArray  # int64[N], its tokens in the cache before the step
    layout: Layout  # how positions lie in blocks
    block_table: IntArray  # int32[at least N, columns]
    num_padding_tokens: int = 0  # tokens past the last request's
    filler: int = 0  # the positions of padding
    # How far `max_query_len` and `max_seq_len` lie above the true maxima.
    raised: tuple[int, int] = (0, 0)
    causal: bool = True  # whether attention is causal
    # How far `num_computed_tokens_cpu` is below the tokens before the query, as after fast prefill;
    # for a request without a query, how far above, as left by an earlier step.
    drift: int = 0
    extra_slots: int = 0  # slots past the last token
    has_copies: bool = False  # whether a field and its copy on the CPU are two arrays
    has_numpy_ints: bool = False  # whether counts are NumPy's ints, and `causal` its bool
    # Further fields of the metadata.
    optional: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def num_reqs(self) -> int:
        """The number of requests, padding included."""
        return len(self.query_lens)

    @functools.cached_property
    def starts(self) -> IntArray:
        """int64[N + 1], where the tokens of each request start."""
        return np.concatenate([[0], np.cumsum(self.query_lens)]).astype(np.int64)

    @property
    def num_tokens(self) -> int:
        return int(self.starts[-1])

    @property
    def num_actual_tokens(self) -> int:
        """The number of tokens, padding included."""
        return self.num_tokens + self.num_padding_tokens

    @property
    def is_padded(self) -> bool:
        return self.num_reqs > 0 and not self.query_lens[-1]

    @property
    def seq_lens(self) -> IntArray:
        """int64[N], each request's sequence length."""
        return self.query_lens + self.num_computed_tokens

    @functools.cached_property
    def owners(self) -> IntArray:
        return np.repeat(np.arange(self.num_reqs), self.query_lens)

    @functools.cached_property
    def places(self) -> IntArray:
        """int64[num_tokens], the position of each token."""
        before = (self.num_computed_tokens - self.starts[:-1])[self.owners]
        return before + np.arange(self.num_tokens)

    def query_start_loc(self) -> IntArray:
        return self.starts.astype(np.int32)

    def positions(self) -> IntArray:
        return np.concatenate([self.places, np.full(self.num_padding_tokens, self.filler)])

    def slot_mapping(self) -> IntArray:
        """Return every token's slot on this rank, and 7 for extra slots."""
        layout, world = self.layout, self.layout.cp_world_size
        kernel_block_size = layout.kernel_block_size or layout.block_size
        block, in_block = np.divmod(self.places, layout.virtual_block_size)
        turn, in_turn = np.divmod(in_block, layout.cp_kv_cache_interleave_size)
        offset = turn // world * layout.cp_kv_cache_interleave_size + in_turn
        column, offset = np.divmod(offset, kernel_block_size)
        ids = self.block_table[self.owners, block * layout.blocks_per_kv_block + column]
        slots = ids.astype(np.int64) * kernel_block_size + offset
        slots[turn % world != layout.cp_rank] = reference.PAD_SLOT_ID
        padding = np.full(self.num_padding_tokens, reference.PAD_SLOT_ID)
        return np.concatenate([slots, padding, np.full(self.extra_slots, 7)])

    def metadata(self) -> reference.CommonAttentionMetadata:
        starts, lens = self.query_start_loc(), self.seq_lens.astype(np.int32)
        is_idle = self.query_lens == 0
        computed = np.maximum(self.num_computed_tokens - self.drift, 0)
        computed = np.where(is_idle, self.num_computed_tokens + self.drift, computed)
        number: Callable[[int], Any] = np.int32 if self.has_numpy_ints else int
        made = reference.CommonAttentionMetadata(
            query_start_loc=starts,
            query_start_loc_cpu=starts.copy() if self.has_copies else starts,
            seq_lens=lens,
            seq_lens_cpu=lens.copy() if self.has_copies else lens,
            num_computed_tokens_cpu=np.minimum(computed, MAX_INT32).astype(np.int32),
            num_reqs=number(self.num_reqs),
            num_actual_tokens=number(self.num_actual_tokens),
            max_query_len=number(min(self.query_lens.max(initial=0) + self.raised[0], MAX_INT32)),
            max_seq_len=number(min(self.seq_lens.max(initial=0) + self.raised[1], MAX_INT32)),
            block_table_tensor=self.block_table,
            slot_mapping=self.slot_mapping(),
            causal=np.bool_(self.causal) if self.has_numpy_ints else self.causal,  # type: ignore[arg-type]  # NumPy's serves too
        )
        return dataclasses.replace(made, **self.optional)


@st.composite
def deferred(draw: st.DrawFn, make: Callable[[st.DrawFn], T]) -> T:
    """Draw what a function makes: the second phase of `Contract.calls`."""
    return make(draw)


def choices(draw: st.DrawFn, *options: Sequence[Any]) -> Iterator[Any]:
    """Draw one of each sequence, all by one number: a batch has many options, and a draw costs."""
    number = draw(st.integers(0, math.prod(map(len, options)) - 1))
    for option in options:
        number, at = divmod(number, len(option))
        yield option[at]


KINDS: Final = (*("any", "decodes", "uniform", "decodes first") * 4, "traffic")
"""Which query lengths there are: `traffic` is a step of a trace of real requests."""


@st.composite
def layouts(draw: st.DrawFn, *, most: int = 1100, has_ranks: bool = True) -> Layout:
    """Draw layouts: kernel blocks, and ranks, up to the greatest that is allowed."""
    kind, ranks, rank = choices(draw, range(16 if most > 8 else 1), (1, 0), (0.0, 1.0, 0.5, 0.3))
    if kind == 15:
        world = MAX_INT32 if has_ranks and not ranks else 1
        return Layout(MAX_INT32 // world, None, world, int((world - 1) * rank))
    kernel, pieces = draw(sizes(1, most)), draw(sizes(1, min(most, 70), small=4))
    if kind == 14:
        kernel, pieces = 1 + kernel % 4, 32_766 + min(pieces, 5)
    elif kind == 13:
        kernel, pieces = (2**16, 2**20, 2**29)[kernel % 3], 1 + pieces % 3
    block_size = kernel * pieces
    world = draw(sizes(1, most)) if has_ranks and not ranks else 1
    world = min(world, MAX_INT32 // block_size)
    divisors = [d for d in range(1, min(block_size, 64) + 1) if block_size % d == 0]
    divisors += [kernel, pieces, block_size]
    interleave = divisors[draw(st.integers(0, len(divisors) - 1))]
    return Layout(block_size, kernel, world, int((world - 1) * rank), interleave)


FEW: Final = (0, 0, 0, 0, 1, 2, 3, None)
"""Sizes of what is there besides; None for any."""


@st.composite
def batches(
    draw: st.DrawFn,
    layout: Layout | None = None,  # None: in blocks of one rank
    *,
    most: tuple[int, int, int] = (1100, 8193, 260),  # requests, tokens, blocks of a request
    longest: int = MAX_INT32,
    least_tokens: int = 0,  # 0 or 1
    has_optional: bool = False,  # whether metadata may have the optional fields
    may_lack_lens: bool = True,  # whether it may then lack `seq_lens_cpu`
) -> st.SearchStrategy[Batch]:
    """Draw the sizes of a batch; the strategy that it gives draws its contents."""
    if layout is None:
        layout = draw(layouts(most=min(most), has_ranks=False))
    busy, num_blocks = draw(sizes(least_tokens, most[0])), draw(sizes(least_tokens, most[2]))
    kind, per_request, has_room, gives_way = choices(
        draw, KINDS, (None, 1, 2, 5, 20, None), (True, False), (True, False)
    )
    per_request = {"decodes": 1, "uniform": 2 + busy % 3}.get(kind, per_request)
    any_number = draw(sizes(least_tokens, most[1])) if per_request is None else 0
    num_tokens = min(busy * per_request if per_request else any_number, most[1])
    pieces, block = layout.blocks_per_kv_block, layout.virtual_block_size
    if has_room and most[0] > 8:
        num_blocks = max(num_blocks, -(-num_tokens // max(busy * block, 1)))
    cells = max(40_000 // pieces, 1)
    if gives_way:
        num_blocks = min(num_blocks, max(cells // max(busy, 1), least_tokens))
    num_blocks = min(num_blocks, cells)
    busy = min(busy, cells // max(num_blocks, 1))
    step = draw(st.sampled_from(traffic())) if kind == "traffic" else None
    if step is not None:
        if not draw(st.integers(0, 9)):  # so that it shrinks
            none = (0,) * len(step.query_lens)
            step = dataclasses.replace(step, num_computed_tokens=none)
        ends = np.add(step.query_lens, step.num_computed_tokens)
        num_blocks = -(-max(ends.tolist()) // block)
        sizes_of_step = len(ends), sum(step.query_lens), num_blocks
        cut = (np.array(sizes_of_step) > most).any() or len(ends) * num_blocks > cells
        if cut or max(ends) > longest:
            step = None  # it is too large here
        else:
            busy, num_tokens, _ = sizes_of_step
    longest = min(longest, num_blocks * block)
    num_tokens = min(num_tokens, busy * longest)
    padded, padding, columns, rows, slots = (
        draw(sizes(0, min(most[0], 300))) if few is None else few
        for few in choices(draw, FEW, FEW, FEW, FEW, FEW)
    )
    columns += num_blocks * pieces
    rows = busy + padded + min(rows, 40_000 // max(columns, 1))
    excess = (0, 0, 3, 2**30)
    raised_query, raised, causal, drift, has_copies, has_numpy_ints, dtype, *optional = choices(
        *(draw, excess, excess, (True, True, False), (0, 0, 2), (False, True), (False, True)),
        *((np.int32, np.int64), *[(False, True)] * 8, (False, False, may_lack_lens)),
    )

    def contents(draw: st.DrawFn) -> Batch:
        if step is None:
            lens = _query_lens(draw, kind, busy, num_tokens, longest)
            lens = np.concatenate([lens, np.zeros(padded, np.int64)])
            computed = _contexts(draw, lens, longest, layout.virtual_block_size)
        else:
            lens, computed = (
                np.array([*counts, *[0] * padded], np.int64)
                for counts in (step.query_lens, step.num_computed_tokens)
            )
        [filler] = choices(draw, FILLERS)
        batch = Batch(
            query_lens=lens,
            num_computed_tokens=computed,
            layout=layout,
            block_table=_block_table(draw, layout, lens, computed, (rows, columns), filler),
            num_padding_tokens=padding,
            filler=filler,
            raised=(raised_query, raised),
            causal=causal,
            drift=drift,
            extra_slots=slots,
            has_copies=has_copies,
            has_numpy_ints=has_numpy_ints,
        )
        if not has_optional:
            return batch
        return dataclasses.replace(batch, optional=_optional(draw, batch, dtype, *optional))

    return deferred(contents)


def _query_lens(
    draw: st.DrawFn, kind: str, num_reqs: int, num_tokens: int, longest: int
) -> IntArray:
    if not num_reqs:
        return np.zeros(0, np.int64)
    if kind in {"decodes", "uniform"} and num_tokens % num_reqs == 0:
        return np.full(num_reqs, num_tokens // num_reqs)
    ones = draw(st.integers(0, min(num_reqs - 1, num_tokens)))
    left = num_tokens - ones
    cuts = np.sort(draw(vectors(num_reqs - ones - 1, 0, left)))
    found = np.concatenate([np.ones(ones, np.int64), np.diff(cuts, prepend=0, append=left)])
    found = np.minimum(found, longest)
    room = longest - found
    found += np.clip(num_tokens - found.sum() - (np.cumsum(room) - room), 0, room)
    if kind == "decodes first":
        return np.sort(found)
    return found if draw(st.booleans()) else draw(rngs()).permutation(found)


def _contexts(draw: st.DrawFn, lens: IntArray, longest: int, block: int) -> IntArray:
    room = longest - lens
    if not draw(st.integers(0, 4)):
        return np.zeros_like(lens)
    kind = draw(vectors(len(lens), 0, 3))
    ends = draw(vectors(len(lens), 0, longest // block)) * block
    ends += draw(vectors(len(lens), -1, 1))
    anywhere = draw(vectors(len(lens), 0, longest)) % (room + 1)
    found = np.choose(kind, (np.zeros_like(lens), anywhere, ends, ends - lens))
    clipped: IntArray = np.clip(found, 0, room)
    return clipped


def _block_table(
    draw: st.DrawFn,
    layout: Layout,
    lens: IntArray,
    computed: IntArray,
    shape: tuple[int, int],
    filler: int,
) -> IntArray:
    order, first, is_shared = choices(
        draw, ("ascending", "descending", "shuffled"), (1, 0, -1), (False, True)
    )
    pieces, columns = layout.blocks_per_kv_block, np.arange(shape[1])
    table = np.full(shape, filler, np.int32)
    needed = -(-(lens + computed) // layout.virtual_block_size) * pieces
    total = int(needed.sum()) // pieces
    ids = np.arange(total)
    last = 2**31 // pieces - 1
    first = max(min(first if first >= 0 else last + 1 - total, last + 1 - total), 0)
    if order == "descending":
        ids = ids[::-1]
    elif order == "shuffled":
        ids = draw(rngs()).permutation(total)
    ids = np.minimum(ids + first, last)  # `pieces` may leave too few numbers
    listed = ids[:, None] * pieces + np.arange(pieces)
    table[: len(lens)][columns < needed[:, None]] = listed.reshape(-1)
    if len(lens) and is_shared:
        # Only whole blocks, computed in both, can be shared.
        common = np.minimum(computed, computed[0]) // layout.virtual_block_size * pieces
        at = columns < common[:, None]
        table[: len(lens)][at] = np.broadcast_to(table[0], at.shape)[at]
    return table


def _optional(
    draw: st.DrawFn, batch: Batch, dtype: Any, has_logits: bool, has_encoder: bool, *has: bool
) -> Mapping[str, Any]:
    has_local, *has_others = has
    found: dict[str, Any] = _on_the_host(draw, batch, *has_others)
    if has_logits:
        # The last token of each request that has any; padding repeats the last one.
        last = batch.starts[1:][batch.query_lens > 0] - 1
        indices = np.zeros(batch.num_actual_tokens, dtype)
        indices[: len(last)] = last
        found["logits_indices_padded"] = indices
        found["num_logits_indices"] = len(last)
    if has_encoder:
        found["encoder_seq_lens"] = draw(vectors(batch.num_reqs, 0, 99, dtype))
    if has_local:
        found["dcp_local_seq_lens"] = (batch.seq_lens // 2).astype(np.int32)
    return found


def _on_the_host(
    draw: st.DrawFn,
    batch: Batch,
    has_flags: bool,
    has_positions: bool,
    has_bounds: bool,
    has_most: bool,
    has_slots: bool,
    lacks_lens: bool,
) -> dict[str, Any]:
    """Draw what a runner knows on the host, and the positions; it may know bounds only."""
    found: dict[str, Any] = {}
    number = batch.num_reqs
    if has_flags:
        found["is_prefilling"] = prefilling(draw, number)
    if has_positions:
        extra = np.full(batch.extra_slots, batch.filler)
        found["positions"] = np.concatenate([batch.positions(), extra]).astype(np.int64)
    if has_bounds:
        drafts = draw(vectors(number, 0, 3)) * (batch.query_lens > 0)
        bounds = np.minimum(batch.seq_lens + drafts, MAX_INT32)
        found["seq_lens_cpu_upper_bound"] = bounds.astype(np.int32)
        local = bounds - batch.seq_lens + batch.seq_lens // 2
        found["dcp_local_seq_lens_cpu_upper_bound"] = local.astype(np.int32)
    if has_most:
        most = int(batch.query_lens.max(initial=1))
        found["max_logits_per_req"] = np.int32(most) if batch.has_numpy_ints else most
    if has_slots:
        found["req_idx"] = draw(rngs()).permutation(number + 3)[:number].astype(np.int32)
    if lacks_lens:
        found["seq_lens_cpu"] = None
    if lacks_lens and has_bounds:  # all that the host knows
        computed = np.where(batch.query_lens, bounds - batch.query_lens, batch.num_computed_tokens)
        found["num_computed_tokens_cpu"] = computed.astype(np.int32)
    return found


def prefilling(draw: st.DrawFn, number: int) -> npt.NDArray[np.bool_]:
    """Draw which requests are prefilling: those behind one, mostly, or any."""
    [kind] = choices(draw, ("behind", "behind", "any"))
    if kind == "any":
        return draw(vectors(number, 0, 1)).astype(np.bool_)
    return np.arange(number) >= draw(st.integers(0, number))


def metadata_specials(argument: str) -> Sequence[Special]:
    """Return invalid calls in which several fields of a metadata are wrong in the same way."""
    lens = ("seq_lens", "seq_lens_cpu")
    by_request = (*lens, "num_computed_tokens_cpu")
    every = (*by_request, "query_start_loc", "query_start_loc_cpu")
    wrong: tuple[Callable[[Any], Any], ...] = (
        lambda array: array.astype(np.int64),
        lambda array: array[:-1].copy(),
        lambda array: array[None].copy(),
        lambda array: array.tolist(),
        lambda array: array.reshape(()) if array.size == 1 else array[:, None].copy(),
    )

    def change(arguments: Arguments, rng: random.Random) -> Arguments:
        names, change = rng.choice((lens, by_request, every)), rng.choice(wrong)
        made = arguments[argument]
        given = {name: getattr(made, name) for name in names}
        values = {name: change(value) for name, value in given.items() if value is not None}
        return {**arguments, argument: dataclasses.replace(made, **values)}

    return (change,)
