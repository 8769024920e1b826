"""Threads share block tables, or write to the inputs of a call: no memory outside is accessed.

Numbers may be wrong then. Each program runs in a new process, since a failure may be a crash.
"""

import subprocess
import sys
import textwrap
from array import array

import numpy as np
import pytest

import fast

PREAMBLE = """
import threading, time
import numpy as np, torch, fast

fast.warmup()

def together(seconds, *works):
    stop = time.monotonic() + seconds
    def repeat(work):
        while time.monotonic() < stop:
            try:
                work()
            except (ValueError, MemoryError):
                pass
    threads = [threading.Thread(target=repeat, args=(work,)) for work in works]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
"""


def run(program: str) -> None:
    """Run a program in a new process, which must succeed."""
    text = PREAMBLE + textwrap.dedent(program)
    done = subprocess.run(  # noqa: S603  (our own program)
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr


@pytest.mark.parametrize("one", ["1", "np.int64(1)"])
def test_threads_share_block_tables(one: str) -> None:
    run(f"""
    width = 4096
    tables = fast.BlockTables([1], 4, 8, [width], "cpu")
    tables.append_block_ids(2, [[7, 8, 9]], False)
    tables.apply_staged_writes()
    ids = [{one}] * (width // 4)
    def append(row):
        try:
            tables.append_block_ids(row, [ids], False)
        except ValueError:
            tables.append_block_ids(row, [[]], True)
    def step():
        tables.apply_staged_writes()
        rows = torch.tensor([1, 3, 0, 2], dtype=torch.int32)
        tables.gather_block_tables(rows, 4)
        starts = torch.tensor([0, 1, 2], dtype=torch.int32)
        tables.compute_slot_mappings(rows[:2], starts, torch.tensor([5, width - 1]), 8)
    together(1.5, *[lambda: append(1)] * 4, lambda: append(3), step, step)
    tables.apply_staged_writes()
    assert tables._num_blocks.max() <= width
    assert (tables._staged.counts == tables._num_blocks.numpy()).all()
    rows = torch.tensor([0, 2], dtype=torch.int32)
    gathered = tables.gather_block_tables(rows, 2)[0]
    assert gathered[:, :4].tolist() == [[0] * 4, [7, 8, 9, 0]] and not gathered[:, 4:].any()
    """)


def test_writes_of_any_values() -> None:
    """Lists may change while they are packed; nothing outside a row is written then."""
    tables = fast.BlockTables([1, 2], 3, 8, [8, 4], "cpu")
    chance = np.random.default_rng(7)
    accepted = 0
    with fast.checks(True):  # loops check their indices
        for _ in range(20_000):
            values = chance.integers(-1, 4, 4 + chance.integers(6))
            accepted += tables._staged.stage(array("i", values.tolist()))
    assert 0 < accepted < 20_000
    assert (tables._staged.counts <= [[8], [4]]).all()


WRITTEN = [
    """
        n = 2000
        starts = torch.arange(n + 1, dtype=torch.int32) * 4
        lens = torch.full((n,), 9, dtype=torch.int32)
        table, slots = torch.zeros((n, 4), dtype=torch.int32), torch.arange(4 * n)
        metadata = fast.CommonAttentionMetadata(
            starts, starts, lens, lens, lens - 4, n, 4 * n, 4, 9, table, slots
        )
        call = lambda: fast.make_local_attention_virtual_batches(4, metadata, 1)
        write = lambda: (lens.fill_(2**20), lens.fill_(9))
    """,
    """
        starts = torch.arange(0, 8001, 2, dtype=torch.int32)
        table, positions = torch.ones((4000, 4), dtype=torch.int32), torch.arange(8000) % 64
        call = lambda: fast.compute_slot_mapping(table, starts, positions, 16)
        write = lambda: (positions.sub_(2**40), positions.add_(2**40), starts.neg_(), starts.neg_())
    """,
    """
        mask = torch.zeros(100_000, dtype=torch.bool)
        rows = torch.ones((100_000, 1))
        call = lambda: fast.gather_mm_placeholders(rows, mask)
        write = lambda: (mask.fill_(True), mask.fill_(False))
    """,
    """
        mask = torch.zeros(100_000, dtype=torch.bool)
        mask[::2] = True
        rows, memory = torch.ones((100_000, 1)), torch.zeros((100_000, 1))
        call = lambda: fast.gather_mm_placeholders(rows, mask, out=memory[:50_000])
        write = lambda: (mask.fill_(True), mask[1::2].fill_(False))
        check = lambda: not memory[50_000:].any()
    """,
]


def test_inputs_that_change_during_a_call() -> None:
    run(
        "\n".join(
            f"check = lambda: True\n{textwrap.dedent(program)}"
            "together(0.7, call, write, write)\nassert check()"
            for program in WRITTEN
        )
    )
