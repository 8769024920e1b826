"""The conformance run catches every bug of the catalogue, by the check that is declared."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conformance.generation.profiles import PROFILES, Kind, Profile
from conformance.messages.formatting import MAX_VALUE, WIDTH
from conformance.messages.mismatch import Mismatch
from conformance.results.failure_text import FULL, MAX_LINES, failure_text
from conformance.targets.target import TARGETS, Target

import fast
import reference
from conformance.adapters.implementations import load_implementation
from fast._native.compiler import COMPILED
from fast.kernels import block_table
from tests.bugs.catalogue import (
    FOLDER,
    Bug,
    all_checks,
    checks_of,
    find,
    first_failure,
    read_catalogue,
)

torch.set_num_threads(1)  # as in the conformance run

BUGS = list(read_catalogue())
FEWER = Profile("fewer", 20, 6, refusal_examples=6)


@contextlib.contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise TimeoutError in a block that takes longer: a patch may loop forever."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"still running after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("bug", BUGS, ids=[bug.name for bug in BUGS])
def test_bugs_are_caught(bug: Bug, record_property: Callable[[str, object], None]) -> None:
    """The check that is declared fails in the default run, and for no other reason.

    `--junitxml FILE` records which test fails, and after how many examples.
    """
    if bug.target == "native":
        pytest.importorskip("numba_cuda")
    with time_limit(120):
        found = find(bug, PROFILES["default"])
    if found is None:
        pytest.fail(f"not caught: {bug.name}: {bug.why}", pytrace=False)
    record_property("caught_by", found.test)
    record_property("examples", found.examples)
    if not found.shows(bug):
        pytest.fail(f"broken patch: {bug.name}: {found.line}", pytrace=False)
    check_report(found.error)


def check_report(error: Exception) -> None:
    """Assert that a report fits in a terminal, and has both values of the difference in full."""
    if not isinstance(error, FULL):
        return
    lines = failure_text(None, TARGETS["host"], None, error, []).splitlines()
    assert len(lines) <= MAX_LINES, lines
    assert max(map(len, lines)) <= WIDTH, lines
    if isinstance(error, Mismatch):
        text = "".join("".join(lines).split())
        for value in (str(error.difference.got), str(error.difference.expected)):
            assert len(value) > MAX_VALUE or "".join(value.split()) in text


CHECKED_TABLES = fast.BlockTables


class ReferenceTables:
    """Block tables of `reference` over torch's tensors; those of `fast` refuse invalid calls."""

    __signature__ = inspect.signature(CHECKED_TABLES)

    def __init__(self, *args: Any, **keywords: Any) -> None:  # noqa: ANN401  # as fast.BlockTables
        self.checked = CHECKED_TABLES(*args, **keywords)
        self.tables = reference.BlockTables(*args, **keywords)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # a method or a number
        checked, method = getattr(self.checked, name), getattr(self.tables, name)
        if not callable(checked):
            return checked

        @functools.wraps(checked)
        def call(*args: Any, **keywords: Any) -> Any:  # noqa: ANN401  # likewise
            checked(*args, **keywords)
            arrays = {name: as_numpy(value) for name, value in keywords.items()}
            found = method(*map(as_numpy, args), **arrays)
            if isinstance(found, tuple):
                return tuple(map(torch.from_numpy, found))
            return found if found is None else torch.from_numpy(found)

        return call


def as_numpy(value: object) -> object:
    return value.numpy() if isinstance(value, torch.Tensor) else value


def test_block_tables_of_another_design_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast, "BlockTables", ReferenceTables)
    # Other laws call `fast` unchecked, where `reference` still refuses. `as_numpy` cannot convert
    # other kinds of tensors.
    checks = [
        named
        for named in checks_of("BlockTables", "host")
        if named.check.kind not in {Kind.LAW, Kind.OTHER_TENSORS} or named.check.law
    ]
    assert first_failure(checks, "host", FEWER) is None


@pytest.mark.parametrize(
    "function",
    ["compute_slot_mapping", "compute_causal_conv1d_metadata"],
)
def test_functions_of_another_design_pass(function: str) -> None:
    """What the benchmark's baselines return for valid calls is not reported."""
    target = Target("host", load_implementation("kvtwin.baselines"), "cpu")
    [check] = [
        named.check for named in checks_of(function, "host") if named.check.kind is Kind.SAME_ANSWER
    ]
    for preset in check.sizes(target):
        check.bind(target, FEWER, preset)()


def test_every_function_has_bugs() -> None:
    functions = {named.check.function for named in all_checks()}
    assert {bug.function for bug in BUGS} == functions
    assert len({bug.name for bug in BUGS}) == len(BUGS)
    assert all(bug.why.endswith(".") for bug in BUGS)


def test_the_file_names_the_module() -> None:
    files = {path.relative_to(FOLDER).with_suffix(".py") for path in FOLDER.rglob("*.toml")}
    root = Path(str(fast.__file__)).parents[1]
    assert not {file for file in files if not (root / file).is_file()}


def make_bug(module: str, old: str, new: str, within: str = "") -> Bug:
    return Bug(
        function="f", what="a toy", why="A toy.", module=module, old=old, new=new, within=within
    )


def local_lengths() -> list[int]:
    """Return the tokens that each of two ranks holds of a sequence of three."""
    seq_lens = torch.tensor([3], dtype=torch.int32)
    lengths: list[int] = fast.get_dcp_local_seq_lens(seq_lens, 2)[0].tolist()
    return lengths


def test_a_compiled_loop_is_compiled_again() -> None:
    """A loop runs the bug, in checked mode too, and the original code afterwards."""
    loops = {loop.py_func.__name__: loop for loop in COMPILED}
    local_lengths()
    code = loops["write_local_tokens"].warm_up()
    bug = make_bug("fast._native.context_parallel", "rounds * interleave + mine", "7 + k")
    with bug.planted():
        assert [7, 8] == local_lengths()
        with fast.checks(True):
            assert [7, 8] == local_lengths()
    assert [2, 1] == local_lengths()
    assert code is loops["write_local_tokens"].warm_up()


def test_a_part_of_loops_is_compiled_again() -> None:
    """A bug in an inlined function is compiled into every loop that calls it."""
    table, positions = torch.tensor([[5]], dtype=torch.int32), torch.tensor([0])
    starts = torch.tensor([0, 1], dtype=torch.int32)
    bug = make_bug("fast._native.slots", "return block_id * block_size", "return 7", "slot_of")
    with bug.planted():
        assert [7] == fast.compute_slot_mapping(table, starts, positions, 2).tolist()
    assert [10] == fast.compute_slot_mapping(table, starts, positions, 2).tolist()


def test_a_class_takes_the_place_of_the_old_one() -> None:
    """Every module that has imported the class gets the new one, and later the old one again."""
    old = fast.CacheConfig
    bug = make_bug("fast.config", "block_size: int = 16", "block_size: int = 8")
    with bug.planted():
        assert 8 == fast.CacheConfig().block_size
        assert fast.CacheConfig is importlib.import_module("fast.config").CacheConfig
    assert fast.CacheConfig is old


def test_a_kernel_is_declared_again() -> None:
    old = block_table.move_row
    with make_bug(
        "fast.kernels.block_table", "while k < count:", "while k <= count:", "move_row"
    ).planted():
        assert old is not block_table.move_row
        assert old.name == block_table.move_row.name
    assert old is block_table.move_row


@pytest.mark.parametrize(
    ("old", "within", "message"),
    [
        ("no such line", "", "'no such line' occurs 0 times in the module, expected once"),
        ("return", "", r"'return' occurs \d+ times in the module, expected once"),
        ("return False", "checks_that", "there is no checks_that"),
        ("return lengths", "RowCounts", "'return lengths' occurs 0 times in RowCounts"),
    ],
)
def test_a_patch_that_does_not_match_once_is_an_error(old: str, within: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        make_bug("fast._native.block_table", old, "", within).planted()


def test_a_patch_that_changes_nothing_is_an_error() -> None:
    piece = "# Unsigned, a negative position is far outside the table."
    with pytest.raises(ValueError, match="the source says the same"):
        make_bug("fast._native.slots", piece, "# Another comment.").planted().__enter__()


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ('why = "A toy."\nold = "a"', "missing 1 required keyword-only argument: 'new'"),
        ('why = "A toy."\nold = "a"\nnew = "b"\nwhat_else = 1', "what_else"),
    ],
)
def test_an_entry_has_known_fields(entry: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "slots.toml").write_text(f'[f."a toy"]\n{entry}\n')
    with pytest.raises(ValueError, match=f"slots.toml: f: a toy: .*{message}"):
        list(read_catalogue(tmp_path))
