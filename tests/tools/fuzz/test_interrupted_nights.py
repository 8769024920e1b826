"""A night keeps its findings if some or all of its processes are killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

from tests.tools.fuzz import nights
from tests.tools.fuzz.nights import PLANTED

WITH_A_BUG = ("--impl", PLANTED, "--target", "host", "--functions", "extract_layer_index")
BUG = {"PLANTED_BUGS": "modules ignored"}


def end_by(number: signal.Signals, night: subprocess.Popen[str], out: Path) -> dict[str, Any]:
    """End a night by a signal; return its report.

    The exit status is the signal's, and no process is left.
    """
    assert len(nights.processes(night.pid)) > 2
    night.send_signal(number)
    status, printed = nights.ended(night)
    assert (128 + number, False) == (status, "Traceback" in printed), printed
    assert (out / "report.html").exists()
    assert (out / "report.md").exists()
    nights.until(lambda: not nights.processes(night.pid), 10)
    report = nights.report(out)
    assert number.name == report["interrupted_by"]
    return report


def test_a_signal_ends_a_night_with_its_report(tmp_path: Path) -> None:
    """The report has the findings after Ctrl-C; the next test sends SIGTERM."""
    night = nights.start(*WITH_A_BUG, "--minutes", "5", "--workers", "2", "--out", tmp_path, **BUG)
    nights.until(lambda: nights.findings(tmp_path))
    report = end_by(signal.SIGINT, night, tmp_path)
    assert ["extract_layer_index"] == [one["function"] for one in report["findings"]]


def ignores_ctrl_c(pid: int) -> bool:
    """Return whether a process ignores SIGINT, as while it starts the fork server."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    [ignored] = re.findall(r"^SigIgn:\t(\w+)$", status, re.MULTILINE)
    return bool(int(ignored, 16) >> (signal.SIGINT - 1) & 1)


def test_ctrl_c_of_a_terminal_before_a_night(tmp_path: Path) -> None:
    """Ctrl-C reaches the fork server too, while it imports: one line, and no process is left."""
    night = nights.start(*WITH_A_BUG, "--minutes", "5", "--out", tmp_path / "night")
    nights.until(lambda: len(nights.processes(night.pid)) > 2 and not ignores_ctrl_c(night.pid))
    os.killpg(night.pid, signal.SIGINT)
    assert (130, "kvtwin fuzz: interrupted\n") == nights.ended(night)
    nights.until(lambda: not nights.processes(night.pid), 5)
    assert not (tmp_path / "night").exists()


def test_a_killed_worker_is_replaced(tmp_path: Path) -> None:
    """The night continues with a new worker; the report has the findings and the lost worker."""
    night = nights.start(*WITH_A_BUG, "--minutes", "5", "--workers", "1", "--out", tmp_path, **BUG)
    nights.until(lambda: nights.findings(tmp_path))
    [before] = nights.workers(night.pid)
    os.kill(before, signal.SIGKILL)
    nights.until(lambda: set(nights.workers(night.pid)) - {before})
    # The worker's last input is replayed, and does not crash again.
    nights.until(lambda: any(one["failure"]["tries"] > 5 for one in nights.findings(tmp_path)))
    report = end_by(signal.SIGTERM, night, tmp_path)
    assert ["signal SIGKILL"] == [one["reason"] for one in report["workers_lost"]]
    answers = [one for one in report["findings"] if one["kind"] != "crash"]
    assert {"extract_layer_index"} == {one["function"] for one in answers}
    assert all(
        (1, True) == (one["fails"], one["attempts"] > 5)
        for one in report["findings"]
        if one["kind"] == "crash"
    )


def test_a_killed_coordinator_leaves_what_was_found(tmp_path: Path) -> None:
    """The workers end, and the next night reads the findings and tries them first."""
    night = nights.start(*WITH_A_BUG, "--minutes", "5", "--workers", "2", "--out", tmp_path, **BUG)
    nights.until(lambda: nights.findings(tmp_path))
    running = nights.workers(night.pid)
    night.kill()  # without reaping it, like a slow supervisor
    nights.until(lambda: not set(running) & set(nights.processes(night.pid)), 10)
    nights.ended(night)
    nights.until(lambda: not nights.processes(night.pid), 10)
    [one] = nights.findings(tmp_path)
    assert one["failure"]["input"]
    options = ("--minutes", "0.1", "--workers", "1", "--out", tmp_path)
    status, out = nights.run(*WITH_A_BUG, *options, **BUG)
    assert 1 == status, out
    assert "known" in {found["status"] for found in nights.report(tmp_path)["findings"]}
