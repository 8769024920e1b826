"""`BlockTables`, step by step: the rows of request slots, and gathered tables."""

from __future__ import annotations

from typing import Any


def make_tables(twin: Any, block_sizes: list[int] | None = None) -> Any:
    """Make tables for 4 requests of at most 7 tokens, 6 tokens in a step."""
    sizes = [2, 4] if block_sizes is None else block_sizes
    return twin.BlockTables(sizes, 4, 6, 7, device="cpu", pin_memory=False)


def append(tables: Any, slot: int, *ids: list[int], overwrite: bool = False) -> None:
    """Append ids to one request slot, a list for each group."""
    tables.append_block_ids([slot], [[0, len(i)] for i in ids], list(ids), [overwrite])


def gather(twin: Any, tables: Any, *slots: int) -> list[list[list[int]]]:
    """Gather request slots, as lists."""
    return [table.tolist() for table in tables.gather_block_tables(twin.array(slots, "int32"))]


def test_append_to_several_slots(twin: Any) -> None:
    tables = make_tables(twin)
    append(tables, 0, [9], [])
    tables.append_block_ids([3, 1], [[0, 1, 3], [0, 2, 2]], [[5, 6, 7], [8, 4]], [False, False])
    expected = [
        [[9, 0, 0, 0], [6, 7, 0, 0], [0, 0, 0, 0], [5, 0, 0, 0]],
        [[0, 0], [0, 0], [0, 0], [8, 4]],
    ]
    assert expected == gather(twin, tables, 0, 1, 2, 3)


def test_append_and_overwrite(twin: Any) -> None:
    tables = make_tables(twin, [2])
    ids = [5, 6]
    append(tables, 1, ids)
    ids[0] = 99
    append(tables, 1, [7])
    append(tables, 1, [])
    tables.append_block_ids([], [[0]], [[]], [])
    assert [[[5, 6, 7, 0]]] == gather(twin, tables, 1)
    append(tables, 1, [1, 2, 3, 4], overwrite=True)
    assert [[[1, 2, 3, 4]]] == gather(twin, tables, 1)
    append(tables, 1, [8], overwrite=True)
    assert [[[8, 0, 0, 0]]] == gather(twin, tables, 1)
    append(tables, 1, [], overwrite=True)
    assert [[[0, 0, 0, 0]]] == gather(twin, tables, 1)


def test_move_swap_and_clear(twin: Any) -> None:
    tables = make_tables(twin)
    append(tables, 0, [5, 6], [7])
    append(tables, 1, [8], [9])
    tables.swap_rows(0, 1)
    assert [[[8, 0, 0, 0], [5, 6, 0, 0]], [[9, 0], [7, 0]]] == gather(twin, tables, 0, 1)
    tables.move_row(1, 0)
    assert [[[5, 6, 0, 0], [0, 0, 0, 0]], [[7, 0], [0, 0]]] == gather(twin, tables, 0, 1)
    tables.move_row(0, 0)
    tables.swap_rows(0, 0)
    assert [[[5, 6, 0, 0]], [[7, 0]]] == gather(twin, tables, 0)
    tables.move_row(0, 3)
    append(tables, 0, [4], [4])
    assert [[[4, 0, 0, 0], [5, 6, 0, 0]], [[4, 0], [7, 0]]] == gather(twin, tables, 0, 3)
    tables.clear_row(3)
    assert [[[0, 0, 0, 0]], [[0, 0]]] == gather(twin, tables, 3)


def test_gathered_rows_change_at_the_next_gather_only(twin: Any) -> None:
    tables = make_tables(twin, [2])
    append(tables, 0, [5, 6])
    (gathered,) = tables.gather_block_tables(twin.int32(0))
    append(tables, 0, [7])
    tables.move_row(0, 2)
    tables.clear_row(2)
    assert [[5, 6, 0, 0]] == gathered.tolist()
    gather(twin, tables, 0)
    assert [[0, 0, 0, 0]] == gathered.tolist()


def test_gather_repeats_pads_and_clears(twin: Any) -> None:
    tables = make_tables(twin, [2])
    append(tables, 0, [5, 6, 7])
    append(tables, 2, [8])
    (whole,) = tables.gather_block_tables(twin.int32(0, 0, 0, 0))
    (gathered,) = tables.gather_block_tables(twin.int32(2, -1, 2))
    assert [[8, 0, 0, 0], [0, 0, 0, 0], [8, 0, 0, 0]] == gathered.tolist()
    assert [0, 0, 0, 0] == whole[3].tolist()
    assert twin.shares_memory(whole, gathered)
    assert (0, 4) == tables.gather_block_tables(twin.int32())[0].shape
    assert not whole.any()


def test_slots_of_all_groups(twin: Any) -> None:
    tables = make_tables(twin)
    append(tables, 2, [5, 9], [3])
    gather(twin, tables, 2)
    whole = tables.get_dummy_slot_mappings(6)
    starts = twin.int32(0, 3)
    slots = tables.compute_slot_mappings(starts, twin.int64(1, 2, 3, 99))
    assert [[11, 18, 19, -1], [13, 14, 15, -1]] == slots.tolist()
    assert twin.shares_memory(whole, slots)
    slots = tables.compute_slot_mappings(starts, twin.int64(0, 1, 2))
    assert [[10, 11, 18], [12, 13, 14]] == slots.tolist()
    assert [[10, 11, 18, -1, -1, -1], [12, 13, 14, -1, -1, -1]] == whole.tolist()


def test_rows_not_gathered_are_nulls(twin: Any) -> None:
    tables = make_tables(twin, [2])
    append(tables, 0, [5])
    gather(twin, tables, 0)
    slots = tables.compute_slot_mappings(twin.int32(0, 1, 2), twin.int64(1, 3))
    assert [[11, 1]] == slots.tolist()


def test_a_full_step(twin: Any) -> None:
    tables = make_tables(twin, [2])
    append(tables, 1, [5])
    gather(twin, tables, 1, -1, -1, -1)
    starts = twin.int32(0, 2, 4, 5, 6)
    slots = tables.compute_slot_mappings(starts, twin.int64(0, 1, 0, 7, 2, 4))
    assert [[10, 11, 0, 1, 0, 0]] == slots.tolist()
    assert (1, 0) == tables.get_dummy_slot_mappings(0).shape
    assert (0, 4) == tables.get_dummy_block_tables(0)[0].shape


def test_no_groups(twin: Any) -> None:
    tables = make_tables(twin, [])
    tables.append_block_ids([0], [], [], [False])
    assert tables.gather_block_tables(twin.int32(0)) == ()
    assert tables.get_dummy_block_tables(2) == ()
    starts = twin.int32(0, 1)
    assert tables.compute_slot_mappings(starts, twin.int64(0, 1, 2)).shape == (0, 3)
    with twin.refuses("ValueError: query_start_loc[-1] is 1, but positions has 0 entries"):
        tables.compute_slot_mappings(starts, twin.int64())


def test_dummies_clear_everything(twin: Any) -> None:
    tables = make_tables(twin, [2])
    append(tables, 0, [5, 6])
    (whole,) = tables.gather_block_tables(twin.int32(0, 0, 0, 0))
    slots = tables.compute_slot_mappings(twin.int32(0, 2), twin.int64(0, 1))
    (dummy,) = tables.get_dummy_block_tables(3)
    dummy_slots = tables.get_dummy_slot_mappings(5)
    assert [[0] * 4] * 3 == dummy.tolist()
    assert [[-1] * 5] == dummy_slots.tolist()
    assert not whole.any()
    assert [[-1, -1]] == slots.tolist()
    assert twin.shares_memory(whole, dummy)
    assert twin.shares_memory(slots, dummy_slots)
    assert [[[5, 6, 0, 0]]] == gather(twin, tables, 0)
