"""Block tables: the blocks of each request slot, gathered in batch order, step after step."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
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
from conformance.laws.batches import MAX_INT32, Batch, choices, deferred
from reference import PAD_SLOT_ID

if TYPE_CHECKING:
    from conformance.harness.targets import Target

CELLS: Final = 10_000
"""The most entries of all tables of a session, of which copies are made after each operation."""

LISTED: Final = 4097
"""The most blocks that are appended to a row."""

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
    *("append", "append", "apply", "gather", "slots") * 2,
    *("dummy_tables", "dummy_slots", "write"),
)


def appending(slot: int, blocks: list[Any], *, overwrite: bool) -> Operation:
    """Return the operation that stages blocks: a list for each group."""
    ids = [[int(one) for one in of_group] for of_group in blocks]
    arguments = {"req_index": slot, "new_block_ids": ids, "overwrite": overwrite}
    return Operation("append_block_ids", arguments)


APPLY: Final = Operation("apply_staged_writes", {})


def gathering(slots: Any, **options: Any) -> Operation:
    """Return the operation that gathers the rows of some slots, and none besides."""
    idx_mapping = np.array(slots, np.int32)
    given = {"idx_mapping": idx_mapping, "num_reqs_padded": len(idx_mapping)}
    return Operation("gather_block_tables", {**given, **options})


class Session:
    """Makes operations of numbers, so that each is valid after those before it.

    So any of them may be left out, and those after it stay valid.
    """

    def __init__(self, made: Arguments) -> None:
        self.sizes = np.array(made["block_sizes"], np.int64)
        self.rows, self.tokens = made["max_num_reqs"], made["max_num_batched_tokens"]
        self.widths = np.array(made["max_num_blocks_per_group"], np.int64)
        self.lengths = np.zeros((2, len(self.sizes), self.rows), np.int64)
        ranks = np.where(made.get("dcp_sharded") or True, made.get("cp_size", 1), 1)
        has_slots = np.full(len(self.sizes), made.get("slot_mapping_enabled") or True)
        ends = self.widths * self.sizes * ranks
        # Positions from here on are in no column of some row.
        self.end = int(ends[has_slots].min(initial=2**40))
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

    def slots(self, rng: np.random.Generator) -> Any:
        """Return the request slots of some rows, with dummies or without."""
        which, is_long, every = self.take(8), self.take(2), np.arange(self.rows)
        number = rng.integers(self.rows, endpoint=True)
        found: Any = (
            *([self.row()], every, every, rng.permutation(every), every[:number]),
            *(rng.permutation(every)[:number], [], rng.permutation(every)),
        )[which]
        slots = np.array(found, (np.int32, np.int64)[is_long])
        if which >= 5:
            slots[rng.random(len(slots)) < 0.3] = -1
        return slots

    @property
    def rng(self) -> np.random.Generator:
        """What is left of the number, for larger contents."""
        return np.random.default_rng(self.number)

    def _append(self) -> Operation:
        replaced, count, kind, slot = self.take(3), self.take(5), self.take(3), self.row()
        blocks, rng, overwrite = list[Any](), self.rng, replaced == 2
        for lengths, width in zip(self.lengths[self.on], self.widths.tolist(), strict=True):
            before = 0 if overwrite else int(lengths[slot])
            number = min((1, 2, width, 0, int(rng.integers(0, 5)))[count], width - before, LISTED)
            lengths[slot] = before + number
            first = (self.next_id, 0, MAX_INT32 - 8)[kind]
            self.next_id += number * (not kind)
            blocks.append(first + (rng.integers(0, 9, number) if kind else np.arange(number)))
        return appending(slot, blocks, overwrite=overwrite)

    def _apply(self) -> Operation:
        return APPLY

    def _gather(self) -> Operation:
        has_computed, kind, rng = self.take(3), self.take(4), self.rng
        slots = self.slots(rng)
        padded = (len(slots), self.rows, int(rng.integers(len(slots), self.rows, endpoint=True)))
        options: Arguments = {"idx_mapping": slots, "num_reqs_padded": padded[self.take(3)]}
        if has_computed:
            near = int((3 * self.sizes).max(initial=9))
            last = (near, min(int((self.widths * self.sizes).max(initial=9)), MAX_INT32))[kind % 2]
            computed: Any = rng.integers(0, min(last, MAX_INT32), self.rows, endpoint=True)
            computed[rng.random(self.rows) < 0.1] = (0, MAX_INT32)[kind // 2]
            is_read = np.isin(np.arange(self.rows), slots)
            options["num_computed_tokens"] = np.where(is_read, computed, -1).astype(np.int32)
        return gathering([], **options)

    def _slots(self) -> Operation:
        count = self.some(1, self.tokens, most=self.tokens)
        padding, kind, more, rng = self.take(3), self.take(4), self.take(3), self.rng
        slots = self.slots(rng)
        starts = np.sort(rng.integers(0, count, len(slots) + 1, endpoint=True))
        starts[-1] = count
        starts[0] = 0
        count = int(starts[-1])
        padded = (count, self.tokens, int(rng.integers(count, self.tokens, endpoint=True)))[padding]
        near = min(self.end - 1, 3 * int(self.sizes.min(initial=9)))
        last = self.end - 1 if kind == 3 else near
        positions = rng.integers(0, last, count, endpoint=True)
        rows = np.repeat(np.arange(len(slots)), np.diff(starts))
        if kind == 2:  # one after the other
            run = np.arange(count) - starts[rows]
            positions = (positions[starts[rows]] + run) % self.end
        # The positions of dummies and of padding are not read.
        positions[slots[rows] < 0] = -1
        positions = np.append(positions, np.full((0, 1, 300)[more], (7, -1, 2**40)[padding]))
        starts = np.append(starts, np.full((0, 0, 3)[more], (7, -1, MAX_INT32)[padding]))
        located = {"query_start_loc": starts.astype(np.int32), "positions": positions}
        options = {"idx_mapping": slots, **located, "num_tokens_padded": padded}
        return Operation("compute_slot_mappings", options)

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
    others = st.sampled_from((size, max(1, size // 2), min(2 * size, MAX_INT32), 16))
    widths = st.sampled_from((width, max(1, width // 2), 1))
    block_sizes = [size, *(draw(others) for _ in range(groups - 1))][:groups]
    made: Arguments = {
        "block_sizes": block_sizes,
        "max_num_reqs": rows,
        "max_num_batched_tokens": tokens,
        "max_num_blocks_per_group": [width, *(draw(widths) for _ in range(groups - 1))][:groups],
        "device": Device(),
    }
    kind, ranks, number = choices(
        draw, ("plain", "windows", "windows", "ranks", "any"), (2, 3, 4, 7), range(2**10)
    )
    if kind in {"windows", "any"}:
        reaches = (1, size, 2 * size + 1, 0, MAX_INT32)
        found = [min(reaches[(number + k) % 5], MAX_INT32) for k in range(groups)]
        made["sliding_window_reach"] = found
    if kind in {"ranks", "any"}:
        ranks = min(ranks, MAX_INT32 // max(block_sizes, default=1))
        common = int(np.gcd.reduce([0, *block_sizes])) or 1
        interleaves = [d for d in (1, 2, 4, common) if common % d == 0]
        made |= {"cp_size": ranks, "cp_rank": number % ranks}
        made["cp_interleave"] = interleaves[number % len(interleaves)]
    if kind != "plain" and number % 8 > 0:
        made["dcp_sharded"] = [(number // 8 + k) % 2 == 0 for k in range(groups)]
    if kind != "plain" and number % 4 == 0:
        made["slot_mapping_enabled"] = [(number >> k % 10) % 3 > 0 for k in range(groups)]
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
    widths = [max(width, 1) for width in arguments["max_num_blocks_per_group"]]
    entries = arguments["max_num_reqs"] * (1 + sum(widths))
    entries += arguments["max_num_batched_tokens"] * (1 + len(widths))
    return not 10**6 < entries < 2**61


def too_large(arguments: Arguments, rng: random.Random) -> Arguments:
    """Let the tables, or the tables and the slots, have just more than 2**63 bytes."""
    width, tokens = rng.choice(((2**30 + 1, 1), (2**30, 2**29 + 1)))
    made: Arguments = {"max_num_reqs": MAX_INT32, "max_num_batched_tokens": tokens}
    made |= {"block_sizes": [1], "max_num_blocks_per_group": [width], "operations": []}
    return {**made, "device": arguments["device"]}


def shared_wrongly(arguments: Arguments, rng: random.Random) -> Arguments | None:
    """Let ranks share blocks of a size that the interleave does not divide, or of too many."""
    if not arguments["block_sizes"]:
        return None
    groups = len(arguments["block_sizes"])
    size, ranks, interleave = rng.choice(((4, 2, 3), (2**30, 2, 1), (4, 2, 8)))
    made: Arguments = {"block_sizes": [size] * groups, "cp_size": ranks}
    made |= {"cp_interleave": interleave}
    made |= {"cp_rank": 0, "dcp_sharded": [False] * (groups - 1) + [True]}
    return {**arguments, **made, "operations": []}


def one_more(arguments: Arguments, rng: random.Random) -> Arguments | None:
    """Let a row outgrow its width by what is staged, or a batch have what does not fit."""
    rows, widths = arguments["max_num_reqs"], arguments["max_num_blocks_per_group"]
    tokens = arguments["max_num_batched_tokens"]
    if not widths:
        return None
    full = [[5] * width for width in widths[:-1]] + [[5] * (widths[-1] - 1)]
    first, empty = appending(rows - 1, full, overwrite=True), [list[int]()] * (len(widths) - 1)
    twice = np.zeros(2, np.int32)
    starts, positions = np.array([0, 1], np.int32), np.zeros(tokens, np.int64)
    slots = {"idx_mapping": twice[:1], "query_start_loc": starts, "positions": positions}
    wrong = rng.choice(
        (
            [first, appending(rows - 1, [*empty, [5, 5]], overwrite=False)],
            [gathering(twice[:rows], num_reqs_padded=rows - 1)],
            [gathering(twice, num_reqs_padded=max(rows, 2))] * (rows > 1),
            [Operation("compute_slot_mappings", {**slots, "num_tokens_padded": 0})],
            [Operation("compute_slot_mappings", {**slots, "num_tokens_padded": tokens + 1})],
            [
                Operation(
                    "compute_slot_mappings",
                    {**slots, "positions": positions[:0], "num_tokens_padded": tokens},
                )
            ],
        )
    )
    operations = arguments["operations"]
    at = rng.randint(0, len(operations))
    return {**arguments, "operations": [*operations[:at], *wrong, *operations[at:]]}


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
    if not is_short:
        return  # it takes long
    nothing = [list[int]()] * len(arguments["block_sizes"])
    clears = [appending(slot, nothing, overwrite=True) for slot in range(rows)]
    many = {**arguments, "operations": [*operations[:10], *clears, APPLY] * 300}
    pair = Pair(dataclasses.replace(CONTRACTS[0], run=_results), target, many)
    difference = pair.comparison.difference(pair.expected().value, pair.outcome().value)
    if difference is not None:
        raise Found(difference)


def bad_entries_give_nothing(target: Target, arguments: Arguments) -> None:
    """With checks off, a missing row has null blocks, and a misplaced token has no slot."""
    rows, before, sizes = (arguments[k] for k in ("max_num_reqs", "operations", "block_sizes"))
    if not target.has_checks or rows > 99:
        return
    bad = np.array([rows, -2, MAX_INT32, *range(rows)][:rows], np.int64)
    good = np.where((bad >= 0) & (bad < rows), bad, -1)
    last, tokens = len(before), arguments["max_num_batched_tokens"]
    write = Operation("=", {"step": last, "value": -1 if last % 2 else 3})
    # A row that was full, and has one block in each group.
    full = [[5] * width for width in arguments["max_num_blocks_per_group"]]
    one = [[3]] * len(sizes)
    owned = [appending(0, blocks, overwrite=True) for blocks in (full, one)]
    owned = [owned[0], APPLY, owned[1], APPLY]
    ends = [w * size for w, size in zip(arguments["max_num_blocks_per_group"], sizes, strict=True)]
    found = [0, -1, 2**40, -(2**40), 2**63 - 1, *ends, *sizes][: max(tokens - 2, 0)]
    positions = np.array([*found, 0, 0][:tokens])
    for beyond in (0, 1):  # more tokens than positions
        ours = {**arguments, "operations": [*before, gathering(good), write, *owned]}
        expected = Pair(CONTRACTS[0], target, ours).expected().value.steps[last].returned
        starts = np.array([0, len(found), len(positions) + beyond], np.int32)
        located = {"query_start_loc": starts, "positions": positions}
        for slots in ([0, -2], [0, rows]):
            located["idx_mapping"] = np.array(slots[: rows + 1], np.int32)
            if rows < 2:
                located |= {"idx_mapping": np.array([0]), "query_start_loc": starts[:2]}
            slots_of = Operation("compute_slot_mappings", {**located, "num_tokens_padded": tokens})
            operations = [*before, gathering(bad), write, *owned, slots_of]
            pair = Pair(CONTRACTS[0], target, {**arguments, "operations": operations})
            with target.running(checked=False):
                got = pair.outcome()
            assert got.error is None, f"raises {got.error!r} with checks off"
            steps = got.value.steps
            difference = pair.comparison.difference(expected, steps[last].returned)
            if difference is not None:
                raise Found(difference)
            _check_few_slots(arguments, positions, len(found), steps[-1].returned)


def _check_few_slots(arguments: Arguments, positions: Any, num_owned: int, slots: Any) -> None:
    """Check the slots of a row with the block 3, and of a row that is not there."""
    groups, ranks = len(arguments["block_sizes"]), arguments.get("cp_size", 1)
    has_slots = arguments.get("slot_mapping_enabled") or [True] * groups
    is_shared = arguments.get("dcp_sharded") or [True] * groups
    for group, row in enumerate(slots.tolist()):
        size, width = (arguments[k][group] for k in ("block_sizes", "max_num_blocks_per_group"))
        if ranks > 1 and is_shared[group]:
            continue
        table = [3] + [0] * (width - 1)
        right = [
            table[p // size] * size + p % size if 0 <= p < width * size else PAD_SLOT_ID
            for p in positions[:num_owned].tolist()
        ]
        right = right if has_slots[group] else [PAD_SLOT_ID] * len(right)
        right += [PAD_SLOT_ID] * (len(row) - len(right))
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
        tables.compute_slot_mappings(ones[:0], starts[:1], ones[:0].long(), 0)
        assert bool((slots == PAD_SLOT_ID).all()), "slots of another call stay"
        [table, *_] = tables.gather_block_tables(ones - 1, 1)
        target.function(fillers[1])(torch.ones_like(table), one_row, out=table)
        assert bool((table == 1).all()), "another call does not write into a gathered table"
        tables.gather_block_tables(ones - 1, 1)
        assert not bool(table.any()), "blocks of another call stay"


def tables_are_on_their_device(target: Target, arguments: Arguments) -> None:
    """Tables are made on the requested device."""
    changes = {"block_sizes": [1], "max_num_reqs": 9, "max_num_blocks_per_group": [7]}
    made = {"max_num_batched_tokens": 5, "operations": [], "device": None}
    tables = _made(target, made, **changes, device="meta") if arguments else None
    assert tables is not None
    found = *tables.get_dummy_block_tables(8), tables.get_dummy_slot_mappings(1)
    kinds = [(one.device.type, one.dtype, tuple(one.shape)) for one in found]
    shapes = (torch.int32, (8, 7)), (torch.int64, (1, 1))
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
    at, every = rng.choice(changing), range(rows)
    blocks = [[50]] * len(arguments["block_sizes"])
    # Some are refused, since the row is full.
    appends = [appending(row, blocks, overwrite=False) for row in [*every] * 3]
    later = [gathering(every), APPLY, gathering(every), *appends, APPLY, gathering(every)]
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


@dataclasses.dataclass
class _Requests:
    """Requests that come, grow and end, and the blocks that they own, behind their windows too."""

    rng: np.random.Generator
    size: int
    reach: int
    width: int
    free: list[int]
    computed: npt.NDArray[np.int32]
    owned: dict[int, list[int]] = dataclasses.field(default_factory=dict)  # by slot; 0: free again

    def step(self) -> list[Operation]:
        """End some requests, let others come and grow; return what is appended."""
        longest = self.width * self.size
        for slot in [*self.owned]:
            if self.computed[slot] == longest or self.rng.random() < 0.1:
                self.free += filter(None, self.owned.pop(slot))
        come = self.rng.random(len(self.computed)) < 0.7
        return [self._grow(slot) for slot, comes in enumerate(come) if comes or slot in self.owned]

    def _grow(self, slot: int) -> Operation:
        is_new, row = slot not in self.owned, self.owned.setdefault(slot, [])
        before = 0 if is_new else int(self.computed[slot])
        after = min(before + int(self.rng.integers(2 * self.size + 1)), self.width * self.size)
        self.computed[slot] = after
        for k in range(min(max(after - self.reach, 0) // self.size, len(row))):
            self.free += [row[k]] * (row[k] > 0)
            row[k] = 0
        needed = min(after // self.size + 1, self.width) - len(row)
        at = [int(self.rng.integers(len(self.free) - k)) for k in range(max(needed, 0))]
        row += (new := [self.free.pop(k) for k in at])
        return appending(slot, [new, new], overwrite=is_new)


def freed_blocks_are_not_read(target: Target, arguments: Arguments) -> None:
    """Attention over a cache that is NaN wherever a block is free has a finite result.

    What is behind the window of a request is free, and is given to others. Attention reads every
    block that a row lists, with a weight of 0 outside the window.
    """
    rng = np.random.default_rng(len(arguments["operations"]) + arguments["max_num_reqs"])
    size, reach, width, num_slots = (int(rng.integers(1, most)) for most in (5, 9, 12, 6))
    blocks, none = [*range(1, 1 + num_slots * width)], np.zeros(num_slots, np.int32)
    requests = _Requests(rng, size, reach, width, blocks, none)
    operations: list[Operation] = []
    held: list[tuple[dict[int, list[int]], Any]] = []  # at each gather
    for _ in range(20):
        operations += [*requests.step(), APPLY]
        slots = rng.permutation([*requests.owned])[: rng.integers(num_slots, endpoint=True)]
        operations.append(gathering(slots, num_computed_tokens=requests.computed.copy()))
        held.append(({int(s): [*requests.owned[s]] for s in slots}, requests.computed.copy()))
    made = {
        "block_sizes": [size, size],
        "max_num_reqs": num_slots,
        "max_num_batched_tokens": 1,
        "max_num_blocks_per_group": [width, width],
        "device": Device(),
        "sliding_window_reach": [reach, 0],
    }
    # Nothing else is called, so that nothing is cleared for another reason.
    contract = dataclasses.replace(CONTRACTS[0], run=_results)
    with target.running():
        got = Pair(contract, target, {**made, "operations": operations}).outcome()
    if got.error is not None:
        raise got.error
    refused = [error.__name__ for _, error in got.value if error is not type(None)]
    assert not refused, f"valid operations raise {refused}"
    played = zip(operations, got.value, strict=True)
    gathers = [tables[0] for one, (tables, _) in played if one.method == "gather_block_tables"]
    places = np.arange(width * size)
    for (rows, computed), table in zip(held, gathers, strict=True):
        for (slot, row), listed in zip(rows.items(), table, strict=True):
            cache = np.full((1 + num_slots * width, size), np.nan)
            cache[[0, *row]] = 1.0
            is_seen = (places < computed[slot]) & (places >= computed[slot] - reach)
            output = (is_seen * cache[listed].reshape(-1)).sum()
            assert output == is_seen.sum(), (
                f"request slot {slot} with {computed[slot]} tokens reads free blocks: its row is "
                f"{listed.tolist()}, its blocks are {row}"
            )


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
        "max_num_blocks_per_group": [-(-longest // one) for one in groups],
        "device": Device(),
    }
    tables = [rng.integers(0, 99, (rows, -(-longest // one))) for one in groups]
    own, columns = tables[len(groups) // 2], batch.block_table.shape[1]
    own[: batch.num_reqs, :columns] = batch.block_table[: batch.num_reqs, : own.shape[1]]
    needed = [-(-batch.seq_lens // one) for one in groups]
    slots = rng.permutation(rows)[: batch.num_reqs].tolist()
    full = [[9] * table.shape[1] for table in tables]
    operations = [
        *(appending(slot, full, overwrite=True) for slot in range(rows)),
        *(APPLY, gathering(range(rows))),
    ]
    for j, slot in enumerate(slots):
        blocks = [table[j, : counts[j]] for table, counts in zip(tables, needed, strict=True)]
        cut = 0 if j % 2 else len(blocks[0]) // 2
        operations.append(appending(slot, [row[:cut] for row in blocks], overwrite=True))
        operations += [APPLY] * (j % 3 == 0)
        operations.append(appending(slot, [row[cut:] for row in blocks], overwrite=False))
    # A padded request has no row.
    busy = int(np.flatnonzero(batch.query_lens).max(initial=-1)) + 1
    mapping = np.array([slot if j < busy else -1 for j, slot in enumerate(slots)], np.int64)
    located: Arguments = {"query_start_loc": batch.query_start_loc()}
    located |= {"positions": batch.positions()}
    located |= {"idx_mapping": mapping, "num_tokens_padded": batch.num_actual_tokens}
    operations += [
        *(APPLY, gathering([], idx_mapping=mapping, num_reqs_padded=len(mapping))),
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
        specials=(too_large, shared_wrongly, one_more),
        properties=(
            a_long_session_is_like_a_short_one,
            bad_entries_give_nothing,
            views_may_be_the_out_of_other_calls,
            tables_are_on_their_device,
            interrupted_operations_happen_or_not,
            freed_blocks_are_not_read,
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
                len(ids) > 256 and not one.arguments["overwrite"]
                for one in args["operations"]
                if one.method == "append_block_ids"
                for ids in one.arguments["new_block_ids"]
            ),
            "a window cuts rows": lambda args: (
                args.get("cp_size", 1) == 1
                and any(args.get("sliding_window_reach") or ())
                and sum("num_computed_tokens" in one.arguments for one in args["operations"]) > 1
            ),
            "ranks share some groups": lambda args: (
                args.get("cp_size", 1) > 1 and len({*(args.get("dcp_sharded") or ())}) == 2
            ),
            "two writes of a row are staged": lambda args: any(
                one.method == after.method == "append_block_ids"
                and one.arguments["req_index"] == after.arguments["req_index"]
                for one, after in itertools.pairwise(args["operations"])
            ),
            "more than 1,024 tokens": lambda args: args["max_num_batched_tokens"] > 1024,
        },
    )
]
