"""The display of a night: live counts in a terminal, otherwise a few lines."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from kvtwin.fuzz import display
from kvtwin.fuzz.display import Display, State

STATE = State(61.0, 12_345, {"goals": 1_000, "branches": 7}, 3, 1, 2)
EXHAUSTIVE = State(10.0, 50, open=1, workers=2, earlier=1_000, total=4_200)
LINE = "61 s: 12,345 cases (202/s); 1,000 goals, 7 branches; 3 failures open, 1 of them new"


def test_a_state_in_a_line() -> None:
    """The line has the counts, also before the first case."""
    assert LINE == STATE.line
    assert "0 s: 0 cases (0/s); nothing met; 0 failures open, 0 of them new" == State().line


def test_an_exhaustive_run_in_a_line() -> None:
    """The line has the cases of all runs, and the rate of this one."""
    assert "10 s: 1,050 of 4,200 cases (5/s); 1 failure; 2 workers" == EXHAUSTIVE.line


def test_without_a_terminal_there_are_few_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a line for each minute and each note, without control characters."""
    clock = [0.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: clock[0])
    text = io.StringIO()
    with Display(Console(file=text), 600.0) as shown:
        shown.note("FAILS: [bold]f[/bold] on host")
        for second in range(181):
            clock[0] = float(second)
            shown.show(STATE)
    lines = text.getvalue().splitlines()
    assert ["FAILS: [bold]f[/bold] on host", LINE, LINE] == lines
    assert text.getvalue().isprintable() or "\x1b" not in text.getvalue()


def test_in_a_terminal_the_counts_are_live() -> None:
    """The counts are shown while the night runs, and removed at its end; notes stay."""
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=100)
    with Display(console, 100.0) as shown:
        shown.show(STATE)
        shown.note("a note")
    during = text.getvalue()
    for word in ("12,345", "1,000", "goals", "3", "a note"):
        assert word in during
    assert during.endswith(("\x1b[2K", "\x1b[?25h")) or "\x1b[1A" in during


def test_the_bar_of_an_exhaustive_run_is_of_cases() -> None:
    """The progress bar shows the share of the cases, whatever the time."""
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with Display(console, 3600.0) as shown:
        shown.show(EXHAUSTIVE)
        assert 25 == shown._progress.tasks[0].percentage
