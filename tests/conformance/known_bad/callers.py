"""Bugs that show in what callers, signals and threads do between calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import pytest
import torch

import fast
from conformance.profiles import Kind
from fast._native import memory
from known_bad.entries import KnownBad

Tables = fast.BlockTables


def _bad(
    function: str,
    bug: str,
    why: str,
    owner: Any,  # noqa: ANN401  # a module or class
    name: str,
    wrong: object,
    seen_by: Kind | str = Kind.SAME_ANSWER,
) -> KnownBad:
    """Return a function of which one part is wrong."""

    def install(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(owner, name, wrong)

    return KnownBad(function, bug, why, install, seen_by=seen_by)


def _overlook(_: Any) -> None:  # noqa: ANN401  # the tables
    """Notice no write."""


def _row_by_row(append: Callable[..., None]) -> Callable[..., None]:
    """Append to one request slot after another."""

    def broken(
        self: object,
        req_indices: list[int],
        cu_num_new_blocks: list[list[int]],
        new_block_ids: list[list[int]],
        overwrite: list[bool],
    ) -> None:
        if len(req_indices) < 2:
            append(self, req_indices, cu_num_new_blocks, new_block_ids, overwrite)
            return
        for j, row in enumerate(req_indices):
            pairs = zip(new_block_ids, cu_num_new_blocks, strict=True)
            ids = [of_group[ends[j] : ends[j + 1]] for of_group, ends in pairs]
            append(self, [row], [[0, len(new)] for new in ids], ids, [overwrite[j]])

    return broken


def _with_the_memorys_sign(name: str, value: torch.Tensor) -> torch.Tensor:
    """Take a tensor for what its memory holds."""
    memory.check_memory(name, value)
    return value


class _ProcessWide:
    """Checked mode that a block switches for all threads, and puts back as it found it."""

    checked = False

    def __init__(self, enabled: bool) -> None:
        self._before = _ProcessWide.checked
        _ProcessWide.checked = enabled

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        _ProcessWide.checked = self._before


def _process_wide() -> KnownBad:
    """Return checked mode whose blocks hold for the whole process."""
    bug, why = "a block holds for all threads", "Right with one thread."

    def install(patch: pytest.MonkeyPatch) -> None:
        real = fast.get_dcp_local_seq_lens

        def compute(*args: Any, **keywords: Any) -> torch.Tensor:  # noqa: ANN401  # the real one's
            with checks(_ProcessWide.checked):
                return real(*args, **keywords)

        checks = fast.checks
        patch.setattr(_ProcessWide, "checked", False)
        patch.setattr(fast, "checks", _ProcessWide)
        patch.setattr(fast, "get_dcp_local_seq_lens", compute)

    return KnownBad("checks", bug, why, install, seen_by=Kind.LAW)


INTERRUPTED = "test_interrupted_operations_happen_or_not"

CALLERS = [
    _bad(
        "BlockTables",
        "rows that a caller wrote into are kept",
        "Right until a runner fills padded rows with -1.",
        Tables,
        "_notice_table_writes",
        _overlook,
    ),
    _bad(
        "BlockTables",
        "slots that a caller wrote stay behind the tokens",
        "Right until a runner pads the slots of a captured graph by itself.",
        Tables,
        "_notice_slot_writes",
        _overlook,
    ),
    _bad(
        "a runner's life",
        "rows that the runner wrote into are kept",
        "Right until a runner fills padded rows with -1.",
        Tables,
        "_notice_table_writes",
        _overlook,
        Kind.LIFE,
    ),
    _bad(
        "BlockTables",
        "blocks are appended row by row",
        "A timeout between two rows leaves half of the batch with its new blocks.",
        Tables,
        "append_block_ids",
        _row_by_row(Tables.append_block_ids),
        INTERRUPTED,
    ),
    _bad(
        "compute_slot_mapping",
        "a lazy negation is read without its sign",
        "Nobody hands over negated tables, until a compiler does.",
        memory,
        "plain",
        _with_the_memorys_sign,
    ),
    _process_wide(),
]
