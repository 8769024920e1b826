"""Laws: what functions of a batch promise, in terms of the slots that tokens read and write.

A batch has an access relation (`conformance.laws.access`), which each function preserves or changes
in a stated way. A law is stated once, for all functions whose `Description` says how arguments and
results describe a batch.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

import reference
from conformance.harness.contract import Arguments, Contract
from conformance.laws.access import Access, Half, as_reference
from conformance.laws.batches import Batch, batches, layouts

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

Array: TypeAlias = npt.NDArray[Any]

Call: TypeAlias = Callable[[str, Arguments], Any]
"""Calls a function of the target with NumPy arrays; the arrays of its result are NumPy's too."""


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a result: the metadata of consecutive tokens, from the `first` on."""

    metadata: Any
    first: int = 0


@dataclasses.dataclass(frozen=True)
class Description:
    """How the arguments and results of a function describe a batch.

    Attributes:
        arguments: Returns the arguments for a batch and options.
        parts: Returns the parts of a result, of its batch and arguments: metadata, or its access
            relation with the batch's token numbers.
        options: Draws, for a batch, what the arguments need besides.
        tokens: Returns the tokens that the result is about, of the batch and the arguments; None
            for all.
        shows: The half of the relation that the result determines.
        has_ranks: Whether the batch may lie on several ranks.
        causal: Whether its batches are causal; None for both.
        least_tokens: The fewest tokens, 0 or 1.
    """

    arguments: Callable[[Batch, Any], Arguments]
    parts: Callable[[Batch, Arguments, Any], Sequence[Part | Access]]
    options: Callable[[Batch], SearchStrategy[Any]] = lambda _: st.none()
    tokens: Callable[[Batch, Arguments], range] | None = None
    shows: Half = Half.BOTH
    has_ranks: bool = True
    causal: bool | None = None
    least_tokens: int = 0


@dataclasses.dataclass(frozen=True)
class Case:
    """A batch for which a law must hold, the options of the call, and what the law drew."""

    batch: Batch
    options: Any
    choice: Any


@dataclasses.dataclass(frozen=True)
class Reading:
    """A case, and the target's results for its batch and for changed ones."""

    case: Case
    contract: Contract
    call: Call
    half: Half

    @property
    def batch(self) -> Batch:
        """The case's batch."""
        return self.case.batch

    @property
    def description(self) -> Description:
        """How the function describes a batch."""
        found: Description = self.contract.description
        return found

    def arguments(self, batch: Batch | None = None) -> Arguments:
        """Return the arguments for a batch; None for the case's own."""
        return self.description.arguments(self.batch if batch is None else batch, self.case.options)

    def parts(self, batch: Batch | None = None) -> Sequence[Part | Access]:
        """Call the target for a batch, and return the parts of its result."""
        batch = self.batch if batch is None else batch
        arguments = self.arguments(batch)
        return self.description.parts(
            batch, arguments, self.call(self.contract.function, arguments)
        )

    def access(self, batch: Batch | None = None) -> list[Access]:
        """Return the access relation of each part of the target's result for a batch."""
        layout: Any = (self.batch if batch is None else batch).layout
        half = self.half & self.description.shows
        return [
            part.only(half)
            if isinstance(part, Access)
            else Access.of(part.metadata, layout, half).shifted(part.first)
            for part in self.parts(batch)
        ]

    def whole(self, half: Half = Half.BOTH) -> Access:
        """Return the access relation of the batch itself."""
        layout: Any = self.batch.layout
        return Access.of(self.batch.metadata(), layout, half)

    def expected(self) -> Access:
        """Return what the parts of the result must read and write together."""
        found = self.whole(self.half & self.description.shows)
        tokens = self.description.tokens
        return found if tokens is None else found.of_tokens(tokens(self.batch, self.arguments()))


@dataclasses.dataclass(frozen=True)
class Law:
    """A statement about functions of a batch.

    Attributes:
        body: Raises AssertionError if a reading contradicts it.
        half: The half of the access relation that it is about.
        choices: Draws `Case.choice`, for a batch.
    """

    body: Callable[[Reading], None]
    half: Half
    choices: Callable[[Batch], SearchStrategy[Any]]

    @property
    def name(self) -> str:
        """Its name."""
        return self.body.__name__

    @property
    def statement(self) -> str:
        """The law in a sentence."""
        return " ".join((self.body.__doc__ or "").split())

    def cases(self, contract: Contract) -> SearchStrategy[Case]:
        """Return a strategy of small batches: all pairs of a token and a key can be listed."""
        return _cases(contract.description, self)

    def check(self, contract: Contract, call: Call, case: Case) -> None:
        """Raise AssertionError, with a message of one line, if a target violates the law."""
        try:
            self.body(Reading(case, contract, call, self.half))
        except (ValueError, TypeError, IndexError) as error:
            raise AssertionError(f"what the result describes is not valid: {error}") from error


@st.composite
def _cases(draw: st.DrawFn, description: Description, law: Law) -> Case:
    layout = draw(layouts(most=4, has_ranks=description.has_ranks))
    least = description.least_tokens or draw(st.sampled_from((1, 1, 1, 0)))
    batch = draw(draw(batches(layout, most=(4, 12, 4), longest=40, least_tokens=least)))
    if description.causal is not None:
        batch = dataclasses.replace(batch, causal=description.causal)
    return Case(batch, draw(description.options(batch)), draw(law.choices(batch)))


def law(
    half: Half = Half.BOTH, choices: Callable[[Batch], SearchStrategy[Any]] = lambda _: st.none()
) -> Callable[[Callable[[Reading], None]], Law]:
    """Return a decorator that makes a `Law`."""
    return lambda body: Law(body, half, choices)


# Changes of a batch.


def padded(batch: Batch, stale_lens: Sequence[int], num_tokens: int) -> Batch:
    """Return a batch with more padded requests, in the null block, and more padding tokens."""
    count, lens = batch.num_reqs, np.array(stale_lens, np.int64)
    needed = int((-(-lens // batch.layout.virtual_block_size)).max(initial=0))
    columns = max(batch.block_table.shape[1], needed * batch.layout.blocks_per_kv_block)
    table = np.zeros((len(batch.block_table) + len(lens), columns), np.int32)
    at = np.r_[:count, count + len(lens) : len(table)]
    table[at, : batch.block_table.shape[1]] = batch.block_table
    return dataclasses.replace(
        batch,
        query_lens=np.concatenate([batch.query_lens, 0 * lens]),
        num_computed_tokens=np.concatenate([batch.num_computed_tokens, lens]),
        block_table=table,
        num_padding_tokens=batch.num_padding_tokens + num_tokens,
        optional={},
    )


def unpadded(batch: Batch) -> Batch:
    """Return a batch without padded requests at its end, and without padding tokens."""
    count = int(np.flatnonzero(batch.query_lens).max(initial=-1)) + 1
    return dataclasses.replace(
        batch,
        query_lens=batch.query_lens[:count],
        num_computed_tokens=batch.num_computed_tokens[:count],
        num_padding_tokens=0,
        optional={},
    )


def in_order(batch: Batch, order: Sequence[int]) -> tuple[Batch, dict[int, int]]:
    """Return a batch with its requests in another order, and the old number of each token."""
    new = np.array(order, np.int64)
    rows = np.concatenate([new, np.arange(len(new), len(batch.block_table))])
    changed = dataclasses.replace(
        batch,
        query_lens=batch.query_lens[new],
        num_computed_tokens=batch.num_computed_tokens[new],
        block_table=batch.block_table[rows],
        optional={},
    )
    old = [t for i in order for t in range(batch.starts[i], batch.starts[i + 1])]
    return changed, dict(enumerate(old))


def on_rank(batch: Batch, rank: int) -> Batch:
    """Return the batch on another rank."""
    return dataclasses.replace(batch, layout=dataclasses.replace(batch.layout, cp_rank=rank))


def in_managers_blocks(batch: Batch) -> Batch:
    """Return a batch whose table lists the manager's blocks instead of kernel blocks."""
    pieces = batch.layout.blocks_per_kv_block
    layout = dataclasses.replace(batch.layout, kernel_block_size=None)
    table = batch.block_table[:, ::pieces] // pieces
    return dataclasses.replace(batch, layout=layout, block_table=table.astype(np.int32))


# Laws.


def _positions(batch: Batch) -> dict[int, int]:
    return dict(enumerate(batch.places.tolist()))


@law(Half.WRITES)
def slots_are_distinct(reading: Reading) -> None:
    """No two new tokens of a step get the same slot of a cache."""
    slots = Counter(slot for _, slot in Access.union(reading.access()).writes)
    twice = [slot for slot, count in slots.items() if count > 1]
    assert not twice, f"slot {min(twice)} is given to {slots[min(twice)]} tokens"


@law()
def writes_are_read_back(reading: Reading) -> None:
    """A request reads each of its positions from the slot that it wrote it to."""
    got = Access.union(reading.access())
    has_reads = Half.READS in reading.description.shows
    reads = got.reads if has_reads else reading.whole(Half.READS).reads
    got.only(Half.WRITES).assert_equal(Access(reads).read_back(_positions(reading.batch)))


@law()
def a_slice_keeps_its_tokens(reading: Reading) -> None:
    """The tokens of a slice read and write what they do in the whole batch."""
    Access.union(reading.access()).assert_equal(reading.expected())


@law()
def split_partitions(reading: Reading) -> None:
    """The parts together read and write what the batch does; each token is in one part."""
    Access.partition(reading.access()).assert_equal(reading.expected())


@law()
def ranks_partition(reading: Reading) -> None:
    """Exactly one rank holds each pair of a token and a key, and the slot of each new token."""
    batch, shown = reading.batch, reading.description.shows
    ranks = range(batch.layout.cp_world_size)
    parts = [part for rank in ranks for part in reading.access(on_rank(batch, rank))]
    holders: Counter[str] = Counter()
    expected: set[str] = set()
    for token, position in _positions(batch).items():
        last = position + 1 if batch.causal else batch.seq_lens[batch.owners[token]]
        if Half.READS in shown:
            expected |= {f"token {token} and key position {key}" for key in range(last)}
        if Half.WRITES in shown:
            expected.add(f"token {token}")
    for part in parts:
        holders.update(f"token {token} and key position {key}" for token, key, _ in part.reads)
        holders.update(f"token {token}" for token, _ in part.writes)
    for held in sorted(expected | holders.keys()):
        right = int(held in expected)
        assert holders[held] == right, f"{held}: held by {holders[held]} ranks, expected {right}"


@law()
def kernel_blocks_rename(reading: Reading) -> None:
    """A slot is the same whether a table lists the manager's blocks or kernel blocks."""
    other = Access.union(reading.access(in_managers_blocks(reading.batch)))
    Access.union(reading.access()).assert_equal(other)


PADDINGS: Final = st.tuples(
    st.sampled_from(((0,), (5, 0), (), (1, 0, 5))), st.sampled_from((2, 0, 1))
)
"""The sequence lengths of padded requests, 0 or left from an older step, and padding tokens."""


@law(choices=lambda _: PADDINGS)
def padding_adds_nothing(reading: Reading) -> None:
    """Added padding does not change what each part of a result reads and writes."""
    without = _filled(reading.access(unpadded(reading.batch)))
    with_padding = _filled(reading.access(padded(reading.batch, *reading.case.choice)))
    assert len(without) == len(with_padding), (
        f"{len(with_padding)} parts with padding, but {len(without)} without"
    )
    for expected, actual in zip(without, with_padding, strict=True):
        actual.assert_equal(expected)


def _filled(parts: list[Access]) -> list[Access]:
    """Return the parts without empty ones at the end, which hold only padding."""
    count = max((i + 1 for i, part in enumerate(parts) if part), default=0)
    return parts[:count]


@law(choices=lambda batch: st.permutations(range(batch.num_reqs)))
def any_order_means_the_same(reading: Reading) -> None:
    """Reordering the requests does not change what each token reads and writes."""
    changed, names = in_order(reading.batch, reading.case.choice)
    found = [part.renamed(names) for part in reading.access(changed)]
    Access.union(found).assert_equal(Access.union(reading.access()))


@law()
def attention_is_dense(reading: Reading) -> None:
    """Attention over each rank's cache, NaN where a request may not read, merges to dense one."""
    batch, layout = reading.batch, reading.batch.layout
    context, none = batch.num_computed_tokens, np.zeros_like(batch.query_lens)
    earlier = dataclasses.replace(
        batch, query_lens=context, num_computed_tokens=none, num_padding_tokens=0, optional={}
    )
    last_block = max(_blocks(step).max(initial=0) for step in (earlier, batch))
    if last_block > MOST_BLOCKS:
        return
    rng = np.random.default_rng(batch.num_tokens)
    contents = rng.normal(size=(2, last_block + 1, layout.virtual_block_size, 1, 2))
    queries = rng.normal(size=(batch.num_actual_tokens, 1, 2))
    states = [
        _attention(reading, on_rank(earlier, rank), on_rank(batch, rank), contents, queries)
        for rank in range(layout.cp_world_size)
    ]
    outputs, lses = (np.stack(half) for half in zip(*states, strict=True))
    output, _ = reference.merge_attention_states(outputs, lses)
    for token, request in enumerate(batch.owners.tolist()):
        stop = batch.places[token] + 1 if batch.causal else batch.seq_lens[request]
        block, offset = np.divmod(np.arange(stop), layout.virtual_block_size)
        block = batch.block_table[request, block * layout.blocks_per_kv_block]
        keys, values = contents[:, block // layout.blocks_per_kv_block, offset]
        mask = np.ones((1, len(keys)), np.bool_)
        [expected], _ = reference.dense_attention(queries[[token]], keys, values, mask)
        assert np.allclose(output[token], expected, atol=1e-9), (
            f"the attention of token {token} is {output[token, 0].tolist()} over the cache, "
            f"expected {expected[0].tolist()}"
        )


MOST_BLOCKS: Final = 99
"""The last block of a cache that attention is computed over."""


def _blocks(batch: Batch) -> Array:
    """Return the manager's block that each token lies in."""
    pieces = batch.layout.blocks_per_kv_block
    column = batch.places // batch.layout.virtual_block_size * pieces
    blocks: Array = batch.block_table[batch.owners, column] // pieces
    return blocks


def _attention(
    reading: Reading, earlier: Batch, batch: Batch, contents: Array, queries: Array
) -> tuple[Array, Array]:
    """Write the context and the batch as the target says; return the attention of its tokens."""
    layout = batch.layout
    kernel_block_size = layout.kernel_block_size or layout.block_size
    size = contents.shape[1] * layout.block_size
    caches = np.full((batch.num_reqs, 2, size, 1, 2), np.nan)  # as each request may read it
    output = np.zeros((batch.num_tokens, 1, 2))
    lse = np.full((batch.num_tokens, 1), -np.inf)
    keywords = layout.keywords()
    del keywords["kernel_block_size"]
    for step in (earlier, batch):
        blocks = _blocks(step)
        for part in reading.parts(step):
            assert isinstance(part, Part)
            metadata = as_reference(part.metadata)
            stop = part.first + metadata.num_actual_tokens
            tokens = np.arange(part.first, min(stop, step.num_tokens))
            slots = metadata.slot_mapping[: len(tokens)]
            assert slots.max(initial=0) < size, f"slot {slots.max()} is outside the cache"
            for request in range(batch.num_reqs):
                own = _blocks(earlier)[earlier.owners == request]
                own = np.append(own, _blocks(batch)[batch.owners == request])
                at = tokens[np.isin(blocks[tokens], own) & (slots != reference.PAD_SLOT_ID)]
                places = blocks[at], step.places[at] % layout.virtual_block_size
                caches[request][:, slots[at - part.first]] = contents[:, *places]
            for request in np.unique(batch.owners[tokens]) if step is batch else ():
                cache = caches[request].reshape(2, -1, kernel_block_size, 1, 2)
                rows = queries[part.first : stop]
                found = reference.paged_attention(rows, cache, metadata, **keywords)
                at = tokens[batch.owners[tokens] == request]
                output[at], lse[at] = (state[at - part.first] for state in found)
    return output, lse
