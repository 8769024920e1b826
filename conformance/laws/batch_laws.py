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

from conformance.harness.contract import Arguments, Contract
from conformance.laws.access import Access, Half
from conformance.laws.batches import Batch, batches, layouts
from reference.metadata_validation import FIELDS

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

Array: TypeAlias = npt.NDArray[Any]

Call: TypeAlias = Callable[[str, Arguments], Any]
"""Calls a function of the target with NumPy arrays; the arrays of its result are NumPy's too."""


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a result: the metadata of consecutive tokens, from the `first` on."""

    metadata: Any  # the metadata
    first: int = 0  # the first token
    tokens: Sequence[int] | None = None  # the tokens of its rows, if they are not consecutive


@dataclasses.dataclass(frozen=True)
class Description:
    """How the arguments and results of a function describe a batch."""

    arguments: Callable[[Batch, Any], Arguments]  # returns the arguments for a batch and options
    # Returns the parts of a result, of its batch and arguments: metadata, or its access relation
    # with the batch's token numbers.
    parts: Callable[[Batch, Arguments, Any], Sequence[Part | Access]]
    # Draws, for a batch, what the arguments need besides.
    options: Callable[[Batch], SearchStrategy[Any]] = lambda _: st.none()
    # Returns the tokens that the result is about, of the batch and the arguments; None for all.
    tokens: Callable[[Batch, Arguments], Sequence[int]] | None = None
    shows: Half = Half.BOTH  # the half of the relation that the result determines
    # Returns, of the arguments, the size of chunks: the parts' tokens read within their own chunk,
    # and count key positions from its start.
    chunk: Callable[[Arguments], int | None] = lambda _: None
    has_ranks: bool = True  # whether the batch may lie on several ranks
    causal: bool | None = None  # whether its batches are causal; None for both
    least_tokens: int = 0  # the fewest tokens, 0 or 1


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
        return self.case.batch

    @property
    def description(self) -> Description:
        found: Description = self.contract.description
        return found

    def arguments(self, batch: Batch | None = None) -> Arguments:
        return self.description.arguments(self.batch if batch is None else batch, self.case.options)

    def parts(self, batch: Batch | None = None) -> Sequence[Part | Access]:
        batch = self.batch if batch is None else batch
        arguments = self.arguments(batch)
        return self.description.parts(
            batch, arguments, self.call(self.contract.function, arguments)
        )

    def access(self, batch: Batch | None = None) -> list[Access]:
        """Return the access relation of each part of the target's result for a batch."""
        batch = self.batch if batch is None else batch
        half = self.half & self.description.shows
        chunk, places = self.description.chunk(self.arguments(batch)), batch.places.tolist()
        found = []
        for part in self.parts(batch):
            if isinstance(part, Access):
                found.append(part.only(half))
                continue
            access = Access.of(part.metadata, _layout(batch), half).shifted(part.first)
            if part.tokens is not None:
                access = access.renamed(dict(enumerate(part.tokens)))
            if chunk is not None:
                access = access.with_keys(lambda token, key: places[token] // chunk * chunk + key)
            found.append(access)
        return found

    def whole(self, half: Half = Half.BOTH) -> Access:
        """Return the access relation of the batch itself."""
        return Access.of(self.batch.metadata(), _layout(self.batch), half)

    def tokens(self, batch: Batch | None = None) -> Sequence[int]:
        batch, tokens = self.batch if batch is None else batch, self.description.tokens
        return range(batch.num_tokens) if tokens is None else tokens(batch, self.arguments(batch))

    def expected(self) -> Access:
        """Return what the parts of the result must read and write together."""
        found = self.whole(self.half & self.description.shows).of_tokens(self.tokens())
        chunk = self.description.chunk(self.arguments())
        return found if chunk is None else found.within_chunks(chunk, _positions(self.batch))


def _layout(batch: Batch) -> Any:
    return batch.layout


@dataclasses.dataclass(frozen=True)
class Law:
    """A statement about functions of a batch."""

    body: Callable[[Reading], None]  # raises AssertionError if a reading contradicts it
    half: Half  # the half of the access relation that it is about
    choices: Callable[[Batch], SearchStrategy[Any]]  # draws `Case.choice`, for a batch

    @property
    def name(self) -> str:
        return self.body.__name__

    @property
    def statement(self) -> str:
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
def logits_tokens_keep_their_reads(reading: Reading) -> None:
    """Tokens with logits that are the last of their requests read the same keys as before."""
    Access.union(reading.access()).assert_equal(reading.expected())


@law()
def chunks_restrict(reading: Reading) -> None:
    """In virtual batches, each query reads exactly the keys of its chunk, up to its own."""
    Access.union(reading.access()).assert_equal(reading.expected())


@law(choices=lambda batch: st.integers(0, batch.num_reqs))
def unpadding_removes_nothing(reading: Reading) -> None:
    """The remaining requests read and write what they do in the padded batch."""
    case = dataclasses.replace(reading.case, options=reading.case.choice)
    cut = dataclasses.replace(reading, case=case)
    Access.union(cut.access()).assert_equal(cut.expected())


@law()
def a_slice_keeps_its_tokens(reading: Reading) -> None:
    """The tokens of a slice read and write what they do in the whole batch."""
    Access.union(reading.access()).assert_equal(reading.expected())


@law()
def reordering_renames(reading: Reading) -> None:
    """Each token of a reordered batch reads and writes what it did before."""
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


BLOCK_M: Final = 8
"""Tokens of one program of a causal convolution."""


@law(Half.WRITES)
def programs_cover(reading: Reading) -> None:
    """The programs cover each token exactly once, in runs of at most 8 tokens of one sequence."""
    runs = [sorted(token for token, _ in part.writes) for part in reading.access()]
    covered = [token for run in runs for token in run]
    number, owners = reading.batch.num_tokens, reading.batch.owners
    assert covered == list(range(number)), (
        f"the programs cover the tokens {covered[:40]}, expected each of {number} tokens once"
    )
    for run in runs:
        assert 1 <= len(run) <= BLOCK_M, f"a program covers {len(run)} tokens"
        assert len({*owners[run]}) == 1, f"a program covers {run}, of several sequences"


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


def with_all_fields(batch: Batch, flags: int) -> Batch:
    """Return a batch with all fields that parts of it keep; `flags` has a bit for each request."""
    number, tokens = batch.num_reqs, np.arange(batch.num_actual_tokens)
    requests = np.arange(number)
    lens = batch.seq_lens.astype(np.int32)
    return dataclasses.replace(
        batch,
        optional={
            "is_prefilling": (flags >> requests) % 2 == 1,
            "positions": 1000 + tokens,
            "seq_lens_cpu_upper_bound": lens + 2,
            "dcp_local_seq_lens_cpu_upper_bound": lens,
            "max_logits_per_req": 3,
            "req_idx": (90 - requests).astype(np.int32),
        },
    )


@law(choices=lambda _: st.integers(0, 15))
def fields_follow_their_axes(reading: Reading) -> None:
    """A result keeps each field of its batch, or cuts it by its axis: request, token or none."""
    batch = with_all_fields(reading.batch, reading.case.choice)
    whole = batch.metadata()
    chunks = reading.description.chunk(reading.arguments(batch)) is not None
    for part in reading.parts(batch):
        assert isinstance(part, Part)
        made, number = part.metadata, int(part.metadata.num_actual_tokens)
        tokens = range(part.first, part.first + number) if part.tokens is None else part.tokens
        rows = np.flatnonzero(np.diff(made.query_start_loc))  # those with tokens
        first = np.array(tokens, np.int64)[made.query_start_loc[rows]]
        for name, field in FIELDS.items():
            value, got = getattr(whole, name), getattr(made, name)
            if name in batch.optional and not (chunks and name.startswith("dcp")):
                assert got is not None, f"{name} is dropped"
            is_bound = name.endswith("_bound")
            if field.axis == "request" and name in batch.optional and not is_bound:
                expected, got = value[batch.owners[first]], got[rows]
            elif name == "positions":
                expected = value[np.array(tokens, np.int64)]
            elif name == "max_logits_per_req" or (name == "causal" and not chunks):
                expected = value
            else:
                continue  # other laws are about these
            assert np.array_equal(expected, got), f"{name} is {got}, expected {expected}"


@law(choices=lambda batch: st.permutations(range(batch.num_reqs)))
def any_order_means_the_same(reading: Reading) -> None:
    """Reordering the requests does not change what each token reads and writes."""
    changed, names = in_order(reading.batch, reading.case.choice)
    found = [part.renamed(names) for part in reading.access(changed)]
    Access.union(found).assert_equal(Access.union(reading.access()))
