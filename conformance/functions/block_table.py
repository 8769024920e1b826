"""Block tables: the blocks of each request slot, gathered in batch order, step after step."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from hypothesis import strategies as st

from conformance.harness.conditions import Interrupt
from conformance.harness.contract import Arguments, Contract
from conformance.harness.objects import Device, Operation, Twin, attempt, frozen, play
from conformance.harness.pair import Found, Pair
from conformance.harness.sizes import fit, sizes
from conformance.harness.story import Difference, Verdict
from conformance.laws import batch_laws as laws
from conformance.laws.attention import attention_is_dense
from conformance.laws.batch_laws import Description, Part
from conformance.laws.batches import MAX_INT32, Batch, deferred
from reference import PAD_SLOT_ID

if TYPE_CHECKING:
    from conformance.harness.targets import Target

CELLS: Final = 10_000
"""The most entries of all tables of a session, of which copies are made after each operation."""

LISTED: Final = 4097
"""The most blocks that are appended to a row; those of several rows are at most a tenth."""

VIEWS: Final = frozenset(
    {
        "gather_block_tables",
        "compute_slot_mappings",
        "get_dummy_block_tables",
        "get_dummy_slot_mappings",
    }
)
"""The methods that return views."""

KINDS: Final = (
    *("append", "gather", "slots") * 2,
    *("move", "swap", "clear", "dummy_tables", "dummy_slots", "write"),
)


def appending(slots: list[int], blocks: list[Any], overwrite: list[bool]) -> Operation:
    """Return the operation that appends blocks: a list for each group, and in it for each slot."""
    arguments = {
        "req_indices": slots,
        "cu_num_new_blocks": [[0, *accumulate(map(len, of_slots))] for of_slots in blocks],
        "new_block_ids": [[int(one) for ids in of_slots for one in ids] for of_slots in blocks],
        "overwrite": overwrite,
    }
    return Operation("append_block_ids", arguments)


class Session:
    """Makes operations of numbers, so that each is valid after those before it.

    So any of them may be left out, and those after it stay valid.
    """

    def __init__(self, made: Arguments) -> None:
        self.sizes = np.array(made["block_sizes"], np.int64)
        self.rows, self.tokens = made["max_num_reqs"], made["max_num_batched_tokens"]
        self.widths = -(-made["max_model_len"] // self.sizes)
        self.lengths = np.zeros((2, len(self.sizes), self.rows), np.int64)
        self.operations: list[Operation] = []
        self.number = self.on = 0
        self.next_id = 1

    def add(self, kind: str, number: int) -> None:
        self.number = number
        self.on = int(self.take(8) == 7)
        made = getattr(self, f"_{kind}")()
        self.operations.append(dataclasses.replace(made, on=self.on))

    def take(self, count: int) -> int:
        """Return what the number says about a choice among `count`."""
        self.number, at = divmod(self.number, count)
        return at

    def some(self, *options: int, most: int) -> int:
        at = self.take(len(options) + 1)
        return options[at] if at < len(options) else self.take(most + 1)

    def row(self) -> int:
        at = self.take(6)
        found: int = ((0, 1, 2, -1)[at] if at < 4 else self.take(self.rows)) % self.rows
        return found

    @property
    def rng(self) -> np.random.Generator:
        """What is left of the number, for larger contents."""
        return np.random.default_rng(self.number)

    def _append(self) -> Operation:
        which, replaced, count, kind = (self.take(k) for k in (5, 4, 4, 3))
        every, rng = np.arange(self.rows)[: (70, 70, 70, None)[self.take(4)]], self.rng
        some = rng.permutation(self.rows)[: rng.integers(len(every), endpoint=True)]
        one = [self.row()]
        listed = (one, one, every, some, every[:0])[which]
        is_new = rng.random(len(listed)) < (0.0, 1.0, 0.5, 0.5)[replaced]
        blocks: list[Any] = []
        for lengths, width in zip(self.lengths[self.on], self.widths.tolist(), strict=True):
            room = width - np.where(is_new, 0, lengths[listed])
            counts = (1, 2, width, rng.integers(0, 5, len(listed)))[count]
            most = LISTED if len(listed) == 1 else LISTED // 10 // max(len(listed), 1)
            counts = np.minimum(counts, np.minimum(room, most))
            lengths[listed] = width - room + counts
            total = int(counts.sum())
            first = (self.next_id, 0, MAX_INT32 - 8)[kind]
            ids = np.arange(total) if not kind else rng.integers(0, 9, total)
            self.next_id += total * (not kind)
            blocks.append(np.split(first + ids, np.cumsum(counts))[: len(listed)])
        return appending([*map(int, listed)], blocks, is_new.tolist())

    def _gather(self) -> Operation:
        which, every = self.take(8), np.arange(self.rows)
        one, shuffled = [self.row()], self.rng.permutation(every)
        number = self.rng.integers(self.rows, endpoint=True)
        found: Any = (one, every, every, shuffled, shuffled, shuffled[:number], [], None)[which]
        if found is None:
            found = self.rng.integers(-1, self.rows, number)
        return Operation("gather_block_tables", {"idx_mapping": np.array(found, np.int32)})

    def _slots(self) -> Operation:
        count = self.some(1, self.tokens, most=self.tokens)
        number = self.some(1, self.rows, most=self.rows)
        has_padding, kind, rng = self.take(2), self.take(4), self.rng
        starts = np.sort(rng.integers(0, count, number + 1, endpoint=True))
        starts[-1] = starts[-1] if has_padding else count
        starts[0] = 0
        last = int((self.widths * self.sizes).min(initial=2**40)) - 1
        near = min(last, 3 * int(self.sizes.min(initial=9)))
        positions = rng.integers(0, last if kind == 3 else near, count, endpoint=True)
        if kind == 2:  # one after the other
            first = np.searchsorted(starts, np.arange(count), side="right") - 1
            run = np.arange(count) - starts[first]
            positions = (positions[starts[first].clip(max=count - 1)] + run) % (last + 1)
        positions[starts[-1] :] = (0, -1, 7)[kind % 3]  # of padding, which nobody reads
        located = {"query_start_loc": starts.astype(np.int32), "positions": positions}
        return Operation("compute_slot_mappings", located)

    def _move(self) -> Operation:
        src, dst = self.row(), self.row()
        if src != dst:
            lengths = self.lengths[self.on]
            lengths[:, dst] = lengths[:, src]
            lengths[:, src] = 0
        return Operation("move_row", {"src": src, "dst": dst})

    def _swap(self) -> Operation:
        a, b = self.row(), self.row()
        self.lengths[self.on][:, [a, b]] = self.lengths[self.on][:, [b, a]]
        return Operation("swap_rows", {"a": a, "b": b})

    def _clear(self) -> Operation:
        row = self.row()
        self.lengths[self.on][:, row] = 0
        return Operation("clear_row", {"r": row})

    def _dummy_tables(self) -> Operation:
        return Operation(
            "get_dummy_block_tables", {"num_reqs": self.some(1, self.rows, most=self.rows)}
        )

    def _dummy_slots(self) -> Operation:
        return Operation("get_dummy_slot_mappings", {"num_tokens": self.some(1, most=self.tokens)})

    def _write(self) -> Operation:
        found = [k for k, one in enumerate(self.operations) if one.method in VIEWS]
        if not found:
            return self._gather()
        step = found[-1 - self.take(len(found))]
        return Operation("=", {"step": step, "value": self.take(100)})


@st.composite
def calls(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    groups = draw(st.sampled_from((1, 2, 3, 2, 0, None)))
    groups = draw(sizes(0, 65)) if groups is None else groups
    rows, width = draw(sizes(1, 4097, small=4)), draw(sizes(1, 4097, small=4))
    if draw(st.integers(0, 9)) == 9:  # few rows that are longer than a block of threads
        rows, width = 1 + rows % 4, 257 + width
    _, rows, width = fit(CELLS, max(groups, 1), rows, width)
    tokens = min(draw(sizes(1, 4097, small=8)), 2 * CELLS // max(groups, 1))
    size = draw(st.sampled_from((*[None] * 9, 2**16, 2**26, MAX_INT32)))
    size = draw(sizes(1, small=4)) if size is None else size
    longest = width * size - draw(st.sampled_from((0, 0, 1, size - 1)))
    longest = max(1, min(longest, MAX_INT32))
    others = st.sampled_from((size, size // 2, 2 * size, 3 * size, 16))
    least = -(-longest * rows * groups // CELLS)
    block_sizes = [max(1, least, min(draw(others), MAX_INT32)) for _ in range(groups - 1)]
    made = {
        "block_sizes": [size, *block_sizes][:groups],
        "max_num_reqs": rows,
        "max_num_batched_tokens": tokens,
        "max_model_len": longest,
        "device": Device(),
        "pin_memory": draw(st.booleans()),
    }
    number = st.integers(0, 2**24 - 1)  # greater ones are mostly small
    least = draw(st.sampled_from((0, 10, 20)))
    numbers = st.lists(st.tuples(st.sampled_from(KINDS), number), min_size=least, max_size=30)

    def contents(draw: st.DrawFn) -> Arguments:
        session = Session(made)
        for kind, number in draw(numbers):
            session.add(kind, number)
        return {**made, "operations": session.operations}

    return deferred(contents)


def views(tables: Any, made: Arguments) -> Any:
    return (
        tables.get_dummy_block_tables(made["max_num_reqs"]),
        tables.get_dummy_slot_mappings(made["max_num_batched_tokens"]),
    )


def is_affordable(arguments: Arguments) -> bool:
    """Return whether tables have few entries, or too many for any memory."""
    block_sizes, length = arguments["block_sizes"], arguments["max_model_len"]
    width = 1 + sum(-(-length // max(size, 1)) for size in block_sizes)
    entries = arguments["max_num_reqs"] * width
    entries += arguments["max_num_batched_tokens"] * (1 + len(block_sizes))
    return not 10**6 < entries < 2**61


def too_large(arguments: Arguments, rng: random.Random) -> Arguments:
    """Let the tables, or the tables and the slots, have just more than 2**63 bytes."""
    width, tokens = rng.choice(((2**30 + 1, 1), (2**30, 2**29 + 1)))
    made = {"max_num_reqs": MAX_INT32, "max_model_len": width, "max_num_batched_tokens": tokens}
    return {**arguments, **made, "block_sizes": [1], "operations": []}


def listed_wrongly(arguments: Arguments, rng: random.Random) -> Arguments | None:
    """List a row twice, let counts fall, or let a row outgrow its width, with the rest in order."""
    rows, groups = arguments["max_num_reqs"], arguments["block_sizes"]
    if not groups:
        return None
    widths = [-(-arguments["max_model_len"] // size) for size in groups]
    slots, counts, ids, flags = rng.choice(
        (
            ([0, 0], [0, 0, 0], [], [True, True]),
            ([0, 1, 2][:rows], [0, 1, 0, 1][: rows + 1], [5], [True] * min(rows, 3)),
            ([rows - 1], [0, widths[-1] + 1], [5] * (widths[-1] + 1), [True]),
            ([], [rng.choice((1, -1, False))], [], []),
            ([], [0], [5], []),
        )
    )
    append = appending(slots, [[[]] * len(slots)] * len(groups), flags)
    append.arguments["cu_num_new_blocks"][-1] = counts
    append.arguments["new_block_ids"][-1] = ids
    operations = arguments["operations"]
    at = rng.randint(0, len(operations))
    return {**arguments, "operations": [*operations[:at], append, *operations[at:]]}


# Properties.


def _results(
    twin: Twin,
    *,
    operations: list[Operation],
    run: Callable[[int, Callable[[], Any]], Any] = lambda _, call: call(),
    **made: Any,
) -> list[Any]:
    tables, found = twin.function("BlockTables")(**made), []
    for k, one in enumerate(operations):
        if not one.on and one.method not in {"", "="}:
            method = twin.method("BlockTables", tables, one.method)
            got = attempt(run, k, functools.partial(method, **one.arguments))
            found.append((frozen(got.value), type(got.error)))
    return found


def a_long_session_is_like_a_short_one(target: Target, arguments: Arguments) -> None:
    """The operations do the same when counters of a byte have wrapped."""
    operations, rows = arguments["operations"], arguments["max_num_reqs"]
    is_short = 5 <= len(operations) <= 20 and rows <= 4 and len(arguments["block_sizes"]) <= 3
    if not (is_short and target.offers("BlockTables.clear_row")):
        return  # it takes long
    clears = [Operation("clear_row", {"r": r}) for r in range(rows)]
    many = {**arguments, "operations": [*operations[:10], *clears] * 300}
    pair = Pair(dataclasses.replace(CONTRACTS[0], run=_results), target, many)
    difference = pair.comparison.difference(pair.expected().value, pair.outcome().value)
    if difference is not None:
        raise Found(difference)


def bad_entries_give_nothing(target: Target, arguments: Arguments) -> None:
    """With checks off, a missing row has null blocks, and a misplaced token has no slot."""
    rows, before, sizes = (arguments[k] for k in ("max_num_reqs", "operations", "block_sizes"))
    if not target.has_checks or rows > 99:
        return
    bad = np.array([rows, -2, MAX_INT32, *range(rows)][:rows], np.int32)
    good = np.where((bad >= 0) & (bad < rows), bad, -1).astype(np.int32)
    ends = [-(-arguments["max_model_len"] // size) * size for size in sizes]
    found = [0, -1, *ends, 2**40, -(2**40)]
    positions = np.array(found[: arguments["max_num_batched_tokens"]])
    write = Operation("=", {"step": len(before), "value": -1 if len(before) % 2 else 3})
    gathers = [Operation("gather_block_tables", {"idx_mapping": x}) for x in (good, bad)]
    pair = Pair(CONTRACTS[0], target, {**arguments, "operations": [*before, gathers[0], write]})
    expected = pair.expected().value
    for beyond in (0, 1):  # more tokens than positions
        starts = np.array([0, len(positions) + beyond], np.int32)
        slots = {"query_start_loc": starts, "positions": positions}
        operations = [*before, gathers[1], write, Operation("compute_slot_mappings", slots)]
        pair = Pair(CONTRACTS[0], target, {**arguments, "operations": operations})
        with target.running(checked=False):
            got = pair.outcome()
        if beyond and type(got.error) is ValueError:
            continue
        assert got.error is None, f"raises {got.error!r} with checks off"
        *_, gathered, _, last = got.value.steps
        difference = pair.comparison.difference(expected.steps[-2].returned, gathered.returned)
        if difference is not None:
            raise Found(difference)
        for size, end, table, row in zip(
            sizes, ends, expected.results[-2], last.returned.tolist(), strict=True
        ):
            blocks = [int(table[0, p // size]) if 0 <= p < end else -1 for p in positions]
            right = [
                block * size + int(p) % size if block >= 0 else PAD_SLOT_ID
                for block, p in zip(blocks, positions, strict=True)
            ]
            assert row == right, f"positions {positions.tolist()} have slots {row}, not {right}"


def _made(target: Target, arguments: Arguments, **changes: Any) -> Any:
    made = {**arguments, "device": target.device, **changes}
    del made["operations"]
    return target.function("BlockTables")(**made)


def views_may_be_the_out_of_other_calls(target: Target, arguments: Arguments) -> None:
    """What another function writes into a view is gone after the next step."""
    fillers = "compute_slot_mapping", "gather_mm_placeholders"
    if not arguments["block_sizes"] or not all(map(target.offers, fillers)):
        return
    tables = _made(target, arguments)
    ones, one_row = (
        torch.ones(1, dtype=d, device=target.device) for d in (torch.int32, torch.bool)
    )
    starts = torch.tensor([0, 1], dtype=torch.int32, device=target.device)
    with target.running():
        slots = tables.get_dummy_slot_mappings(arguments["max_num_batched_tokens"])
        target.function(fillers[0])(ones[None], starts, ones.long(), 2, out=slots[-1])
        tables.compute_slot_mappings(starts[:1], ones[:0].long())
        assert bool((slots == PAD_SLOT_ID).all()), "slots of another call stay"
        [table, *_] = tables.gather_block_tables(ones - 1)
        target.function(fillers[1])(torch.ones_like(table), one_row, out=table)
        assert bool((table == 1).all()), "another call does not write into a gathered table"
        tables.gather_block_tables(ones - 1)
        assert not bool(table.any()), "blocks of another call stay"


def tables_are_on_their_device(target: Target, arguments: Arguments) -> None:
    """Tables are made on the requested device; those of 2**55 bytes take no more."""
    changes = {"block_sizes": [1], "max_num_reqs": 2**22, "max_model_len": MAX_INT32}
    tables = _made(target, arguments, device="meta", **changes)
    found = *tables.get_dummy_block_tables(2**22), tables.get_dummy_slot_mappings(1)
    kinds = [(one.device.type, one.dtype, tuple(one.shape)) for one in found]
    shapes = (torch.int32, (2**22, MAX_INT32)), (torch.int64, (1, 1))
    if kinds != [("meta", *shape) for shape in shapes]:
        raise Found(_robustness(f"on the device meta they are {kinds}"))


def interrupted_operations_happen_or_not(target: Target, arguments: Arguments) -> None:
    """An exception of a signal handler comes before or after an operation, not in its middle."""
    operations, rows = arguments["operations"], arguments["max_num_reqs"]
    rng = random.Random(len(operations))  # noqa: S311  # no secret
    left_out = VIEWS - {"gather_block_tables"} | {"", "="}
    changing = [k for k, one in enumerate(operations) if not one.on and one.method not in left_out]
    if not changing or rows > 9 or target.kind == "cuda":
        return
    at = rng.choice(changing)
    gather = Operation("gather_block_tables", {"idx_mapping": np.arange(rows, dtype=np.int32)})
    blocks = [[[50]]] * len(arguments["block_sizes"])
    # Some are refused, since the row is full.
    appends = [appending([row], blocks, [False]) for row in [*range(rows)] * 3]
    later = [gather, *appends, gather]
    interrupt = Interrupt(str(Path(target.implementation.file).parent), 0)

    def interrupted(k: int, call: Callable[[], Any]) -> Any:
        return interrupt.run(call) if k == at else call()

    def run(twin: Twin, **made: Any) -> list[Any]:
        hook: dict[str, Any] = {} if twin.target is None else {"run": interrupted}
        return _results(twin, **made, **hook)[-len(later) :]

    def pair(*done: Operation) -> Pair:
        contract = dataclasses.replace(CONTRACTS[0], run=run)
        return Pair(contract, target, {**arguments, "operations": [*done, *later]})

    unbegun, done = pair(*operations[:at]), pair(*operations[: at + 1])
    possible = [one.expected().value for one in (unbegun, done)]
    with target.running(checked=True):
        done.outcome()
        for line in [rng.randint(1, max(interrupt.seen, 1)) for _ in range(3)]:
            interrupt = Interrupt(interrupt.package, line)
            got = done.outcome().value
            if all(done.comparison.difference(one, got) is not None for one in possible):
                raise Found(_robustness(f"{operations[at].method} is half done at line {line}"))


def _robustness(what: str) -> Difference:
    return Difference("block tables", what, "kept", "breaks a promise", Verdict.ROBUSTNESS)


# Laws.


def _steps(batch: Batch, seed: int) -> Arguments:
    """Return tables whose middle group is a batch's, in rows that others had, in two steps."""
    rng = np.random.default_rng(seed)
    layout, rows = batch.layout, batch.num_reqs + 2
    size = layout.kernel_block_size or layout.block_size
    groups = [size, *rng.integers(1, 5, seed % 3).tolist()]
    groups[0], groups[len(groups) // 2] = groups[len(groups) // 2], size
    longest = max(int(batch.seq_lens.max(initial=0)), 1)
    made = {
        "block_sizes": groups,
        "max_num_reqs": rows,
        "max_num_batched_tokens": max(batch.num_actual_tokens, 1),
        "max_model_len": longest,
        "device": Device(),
        "pin_memory": False,
    }
    tables = [rng.integers(0, 99, (rows, -(-longest // one))) for one in groups]
    own, columns = tables[len(groups) // 2], batch.block_table.shape[1]
    own[: batch.num_reqs, :columns] = batch.block_table[: batch.num_reqs, : own.shape[1]]
    needed = [-(-batch.seq_lens // one) for one in groups]
    blocks = [
        [row[:n].tolist() for row, n in zip(table, counts, strict=False)]
        for table, counts in zip(tables, needed, strict=True)
    ]
    slots = rng.permutation(rows)[: batch.num_reqs].tolist()
    halves = [[row[: len(row) // 2] for row in one[::2]] for one in blocks]
    rests = [[row[0 if j % 2 else len(row) // 2 :] for j, row in enumerate(one)] for one in blocks]
    is_odd = [j % 2 == 1 for j in range(len(slots))]
    full = [[[9] * table.shape[1]] * rows for table in tables]
    every = np.arange(rows, dtype=np.int32)
    operations = [
        appending(every.tolist(), full, [True] * rows),
        Operation("gather_block_tables", {"idx_mapping": every}),
        appending(slots[::2], halves, [True] * len(halves[0])),
        appending(slots, rests, is_odd),
    ]
    a, b = rng.integers(rows, size=2).tolist()
    operations.append(Operation("swap_rows", {"a": a, "b": b}))
    slots = [{a: b, b: a}.get(slot, slot) for slot in slots]
    if slots:
        free = min({*range(rows)} - {*slots})
        operations.append(Operation("move_row", {"src": slots[0], "dst": free}))
        slots[0] = free
    # A padded request has no row.
    busy = int(np.flatnonzero(batch.query_lens).max(initial=-1)) + 1
    mapping = [slot if j < busy else -1 for j, slot in enumerate(slots)]
    located = {"query_start_loc": batch.query_start_loc(), "positions": batch.positions()}
    operations += [
        Operation("gather_block_tables", {"idx_mapping": np.array(mapping, np.int32)}),
        Operation("compute_slot_mappings", located),
    ]
    return {**made, "operations": operations}


def _own_group(batch: Batch, arguments: Arguments, played: Any) -> list[Part]:
    group = len(arguments["block_sizes"]) // 2
    gathered, slots = (step.returned for step in played.steps[-2:])
    changes = {"block_table_tensor": gathered[group], "slot_mapping": slots[group]}
    return [Part(dataclasses.replace(batch.metadata(), **changes))]


CONTRACTS = [
    Contract(
        function="BlockTables",
        calls=calls(),
        run=play("BlockTables", views),
        has_objects=True,
        has_kernel=True,
        examples=0.5,
        is_affordable=is_affordable,
        specials=(too_large, listed_wrongly),
        checked_only=r"but positions has",
        properties=(
            a_long_session_is_like_a_short_one,
            bad_entries_give_nothing,
            views_may_be_the_out_of_other_calls,
            tables_are_on_their_device,
            interrupted_operations_happen_or_not,
        ),
        laws=(
            laws.slots_are_distinct,
            laws.writes_are_read_back,
            laws.a_slice_keeps_its_tokens,
            laws.padding_adds_nothing,
            laws.any_order_means_the_same,
            attention_is_dense,
        ),
        description=Description(
            _steps, _own_group, options=lambda _: st.integers(0, 2**16), has_ranks=False
        ),
        hard_cases={
            "several groups, of different blocks": lambda args: len({*args["block_sizes"]}) > 1,
            "more than 256 blocks are appended to a row": lambda args: any(
                len(ids) > 256 and not one.arguments["overwrite"][0]
                for one in args["operations"]
                if one.method == "append_block_ids" and len(one.arguments["req_indices"]) == 1
                for ids in one.arguments["new_block_ids"]
            ),
            "more than 1,024 tokens": lambda args: args["max_num_batched_tokens"] > 1024,
        },
    )
]
