"""The progress display of a night: live in a terminal, else a line each minute."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Final, Self

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from kvtwin.fuzz.report.words import count

LINE_SECONDS: Final = 60.0
"""The time between two lines without a terminal."""


@dataclasses.dataclass
class State:
    """The numbers that are shown.

    Attributes:
        seconds: Seconds since the start.
        cases: Cases so far.
        met: Different events so far, by kind of coverage.
        open: Failures that are open.
        new: Failures that are new.
        workers: Workers now.
        earlier: Cases that earlier runs compared, if an exhaustive run was resumed.
        total: All cases of an exhaustive run; 0 for a night.
    """

    seconds: float = 0.0
    cases: int = 0
    met: Mapping[str, int] = dataclasses.field(default_factory=dict)
    open: int = 0
    new: int = 0
    workers: int = 0
    earlier: int = 0
    total: int = 0

    @property
    def rate(self) -> float:
        """Cases per second."""
        return self.cases / self.seconds if self.seconds else 0.0

    @property
    def done(self) -> str:
        """The cases, for an exhaustive run with those of earlier runs, and how many there are."""
        of_all = f" of {self.total:,}" if self.total else ""
        return f"{self.earlier + self.cases:,}{of_all}"

    @property
    def line(self) -> str:
        """The state in a line."""
        start = f"{self.seconds:,.0f} s: {self.done} cases ({self.rate:,.0f}/s);"
        if self.total:
            return f"{start} {count(self.open, 'failure')}; {count(self.workers, 'worker')}"
        met = ", ".join(f"{number:,} {kind}" for kind, number in self.met.items())
        return f"{start} {met or 'nothing met'}; {self.open} failures open, {self.new} of them new"


class Display:
    """Shows the progress of a night.

    Args:
        console: Where to print.
        budget: The seconds of the night.
    """

    def __init__(self, console: Console, budget: float) -> None:
        self._console, self._budget = console, budget
        self._last_line = time.monotonic()
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), console=console
        )
        self._task = self._progress.add_task("fuzzing", total=budget)
        self._live: Live | None = None
        if console.is_terminal:
            self._live = Live(self._progress, console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        """Start the live display."""
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop and remove the live display."""
        if self._live is not None:
            self._live.stop()

    def note(self, line: str) -> None:
        """Print a line that stays."""
        self._console.print(escape(line), soft_wrap=True, highlight=False)

    def show(self, state: State) -> None:
        """Show the state of the night."""
        if self._live is not None:
            total = state.total or self._budget
            done = state.earlier + state.cases if state.total else min(state.seconds, total)
            self._progress.update(self._task, completed=done, total=total)
            table = Table.grid(padding=(0, 2))
            table.add_row("cases", state.done, f"{state.rate:,.0f} per second")
            for kind, number in state.met.items():
                table.add_row(kind, f"{number:,}", "met")
            table.add_row("failures", f"{state.open}", "" if state.total else f"{state.new} new")
            table.add_row("workers", f"{state.workers}")
            frame = Table.grid()
            frame.add_row(self._progress)
            frame.add_row(table)
            self._live.update(frame)
        elif time.monotonic() - self._last_line > LINE_SECONDS:
            self._last_line = time.monotonic()
            self.note(state.line)
