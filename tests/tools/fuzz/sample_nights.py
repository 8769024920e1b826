"""Sample nights for the tests of the report: good, bad, empty, interrupted, hostile, long."""

from __future__ import annotations

import dataclasses
import math
from datetime import UTC, datetime, timedelta
from typing import Any

from kvtwin.fuzz.report.history import History
from kvtwin.fuzz.report.record import (
    Error,
    Finding,
    Implementation,
    LostWorker,
    Machine,
    Night,
    PastNight,
    Point,
    Profile,
    Scope,
    WorkerMemory,
)
from kvtwin.fuzz.report.seen import digest
from kvtwin.fuzz.report.tally import Tally, with_tables

NASTY = 'a </pre></details><script>alert(1)</script> | `b` <img src=x> & "c" \ud800 \x00 \u202e end'
"""Text that a page or a table must escape."""

FUNCTIONS = (
    "compute_slot_mapping",
    "split_decodes_and_prefills",
    "make_kv_sharing_fast_prefill_common_attn_metadata",
    "BlockTables.append_block_ids",
    "compute_causal_conv1d_metadata",
    "get_dcp_local_seq_lens",
)
TARGETS = ("host", "simulator")
STARTED = datetime(2026, 11, 22, 1, 0, tzinfo=UTC)

SCRIPT = '''"""compute_slot_mapping on host: result[1] = 3, but should be 2"""

import numpy as np

import fast
import reference

query_start_loc = np.array([0, 2, 2, 5], dtype=np.int32)
expected = reference.compute_slot_mapping(query_start_loc, block_size=2)
assert expected == fast.compute_slot_mapping(query_start_loc, block_size=2)
'''

CELL = {"kind": "new", "position": 2, "token": 0, "block": 4, "slot": 8, "is_marked": False}
PICTURE: dict[str, Any] = {
    "title": "",
    "block_size": 2,
    "rows": [
        {
            "label": f"request {i}",
            "is_marked": False,
            "cells": [{**CELL, "position": j, "is_marked": i == j == 1} for j in range(4 * i)],
        }
        for i in range(3)
    ],
}


def make_night(**changes: object) -> Night:
    """Return a passing night of half an hour, without tables, with the given fields changed."""
    night = Night(
        started=STARTED.isoformat(timespec="seconds"),
        seconds_budgeted=1800,
        seconds=1802.34567,
        command=["--minutes", "30", "--workers", "2", "--out", "out"],
        seed=20261122,
        workers=2,
        machines=[Machine(name="vm", cpu="AMD EPYC", cores=2, memory_bytes=24 * 2**30)],
        versions={"python": "3.11.9 (CPython)", "kvtwin": "0.1.0", "torch": "2.13.0"},
        targets=TARGETS,
        implementations=[
            Implementation(
                name="fast",
                module="fast",
                version="0.1.0",
                file="/work/main/fast/__init__.py",
                commit="301f9ba51f2c",
            )
        ],
        profile=Profile(is_random=True, database="/work/out/examples", ci="true"),
        cases=1_234_567,
        discarded=4_321,
        curve=make_curve(1800, 1_234_567),
        memory=[
            WorkerMemory(worker="worker 0", peak_bytes=700 * 2**20),
            WorkerMemory(worker="worker 1", peak_bytes=1200 * 2**20),
        ],
    )
    return dataclasses.replace(night, **changes)


def make_curve(seconds: float, cases: int, failures: int = 0) -> list[Point]:
    """Return a night's progress over time: fast at first."""
    found = []
    for i in range(301):
        part = i / 300
        share = 1 - math.exp(-5 * part)
        found.append(
            Point(
                seconds=seconds * part,
                cases=round(cases * part),
                met={
                    "goals": round(63 * share),
                    "pairs": round(308 * share),
                    "branches": round(240 * share),
                },
                failures=round(failures * share),
            )
        )
    return found


def make_tallies(cases: int = 1_234_567) -> list[Tally]:
    """Return the event counts of each property: some events occur often, some once."""
    found = []
    for f, function in enumerate(FUNCTIONS):
        for target in TARGETS:
            for kind in ("answer", "refusal", "law"):
                number = cases // 36
                met = [f"{function}: goal {i}" for i in range(8 + f)]
                found.append(
                    Tally(
                        name=f"test_{function}[{target}-{kind}]",
                        function=function,
                        target=target,
                        kind=kind,
                        cases=number,
                        seconds=98.7 + f,
                        slices=17 + f,
                        counts={
                            "goals": {name: 1 + 100 * i for i, name in enumerate(met)},
                            "pairs": {
                                f"{a} + {b}": (i * j + len(kind) + len(target)) % 5
                                for i, a in enumerate(met)
                                for j, b in enumerate(met[:i])
                            }
                            | {
                                f"{function}: rare {target} {kind} {i}": 1 + i % 4 for i in range(9)
                            },
                            "branches": {f"fast/{f}.py:{i}->{i + 1}": i + 3 for i in range(40)},
                        }
                        if number
                        else {},
                    )
                )
    return found


def declared() -> dict[str, list[str]]:
    """Return all goals, of which a night misses a few."""
    return {
        "goals": [
            f"{function}: goal {i}" for f, function in enumerate(FUNCTIONS) for i in range(9 + f)
        ]
    }


def make_history(number: int) -> History:
    """Return earlier nights, whose last one met fewer events."""
    nights = [
        PastNight(
            started=(STARTED - timedelta(days=number - i)).isoformat(timespec="seconds"),
            seconds=1800,
            cases=1_000_000 + 9_000 * i + 50_000 * (i % 3),
            workers=2,
            verdict="failed" if i % 4 == 0 else "passed",
            new=int(i % 7 == 0),
            known=max(0, 3 - i // 6),
            fixed=int(i % 6 == 5),
            met={"goals": 55 + i // 4, "pairs": 240 + 2 * i, "branches": 230 + i // 3},
            commit="301f9ba51f2c",
        )
        for i in range(number)
    ]
    tally = make_tallies()[0]
    seen = {kind: frozenset(map(digest, counts)) for kind, counts in tally.counts.items()}
    return History(nights, seen if number else None)


def make_finding(number: int, **changes: object) -> Finding:
    """Return a finding."""
    function = FUNCTIONS[number % len(FUNCTIONS)]
    found = Finding(
        id=f"{function}-{number}",
        function=function,
        target=TARGETS[number % 2],
        property=f"test_{function}[{TARGETS[number % 2]}-answer]",
        kind="mismatch",
        field="result",
        error="Mismatch",
        line=f"result[{number}] = {number + 3}, but should be {number + 2}",
        table="query_start_loc = [0, 2, 2, 5]  # int32\nblock_size = 2",
        status="new",
        fails=5,
        attempts=5,
        seen=17,
        first_seen="2026-11-22T01:04:05+00:00",
        case=f"out/cases/{function}-{number}.json",
        script=f"out/scripts/{function}-{number}.py",
        script_text=SCRIPT,
        pictures=[PICTURE],
    )
    return dataclasses.replace(found, **changes)


def good_night(history: int = 0) -> Night:
    """Return a night without failures."""
    return _with_tables(make_night(), history)


def bad_night(history: int = 30) -> Night:
    """Return a night with twelve open failures with long scripts, and much else."""
    long = SCRIPT + "\n".join(f"x{i} = [{', '.join(map(str, range(i)))}]" for i in range(300))
    findings = [
        make_finding(i, script_text=long if i % 2 else SCRIPT, status="known" if i % 3 else "new")
        for i in range(9)
    ]
    findings += [
        make_finding(9, kind="crash", error="", field="", line="SIGSEGV", pictures=[], attempts=3),
        make_finding(10, kind="hang", error="", line="no answer for 60 s", fails=3, attempts=20),
        make_finding(
            11,
            kind="law",
            error="ValueError",
            line="ValueError: ranks do not partition the tokens of the batch",
            also=FUNCTIONS[:3],
            message="ValueError: ranks do not partition\n" + "detail\n" * 50,
        ),
        make_finding(12, status="fixed", seen=0),
    ]
    night = make_night(
        findings=findings,
        curve=make_curve(1800, 1_234_567, 12),
        workers_lost=[
            LostWorker(
                worker="worker 1",
                seconds=812.5,
                reason="SIGSEGV",
                property=findings[9].property,
                action="restarted; its input is finding 10",
            )
        ],
        machines=[
            *make_night().machines,
            Machine(name="node-2", cpu="Xeon", cores=8, gpus=["H100"]),
        ],
        exhaustive=[
            Scope(
                name="slots",
                functions=FUNCTIONS[:2],
                bounds="batch of at most 3 requests of at most 4 tokens",
                cases=345_678,
                seconds=912.0,
                different=0,
                is_finished=True,
                total=345_678,
            ),
            Scope(
                name="reordering",
                functions=FUNCTIONS[2:3],
                bounds="order of at most 5 requests",
                cases=1_200,
                seconds=12.0,
                different=2,
                is_finished=False,
                total=99_000,
            ),
        ],
    )
    return _with_tables(night, history)


def empty_night() -> Night:
    """Return a night that ran no case."""
    changes = {"cases": 0, "discarded": 0, "curve": [], "memory": []}
    night = make_night(
        errors=[Error(where="worker 0", message="no module named engine")], **changes
    )
    return with_tables(night, make_tallies(0), declared=declared())


def interrupted_night() -> Night:
    """Return a night that was stopped after 12 minutes, before it found anything."""
    return _with_tables(
        make_night(interrupted_by="SIGTERM", seconds=721.0, curve=make_curve(720, 480_000)), 3
    )


def hostile_night() -> Night:
    """Return a night whose texts contain markup or are very long."""
    findings = [
        make_finding(
            i,
            **dict.fromkeys(
                ("function", "line", "message", "table", "script_text", "field", "case"), text
            ),
            also=[text],
            id=f"{text}{i}",
        )
        for i, text in enumerate((NASTY, "x" * 20_000, "word " * 4_000, "\n" * 3_000))
    ]
    night = make_night(
        findings=findings,
        errors=[Error(where=NASTY, message=NASTY)],
        workers_lost=[
            LostWorker(worker="w", seconds=1, reason=NASTY * 9, property=NASTY, action="x" * 3000)
        ],
        interrupted_by=NASTY,
        seed=-1,
    )
    tally = dataclasses.replace(make_tallies()[0], name=NASTY * 3, function=NASTY)
    night = with_tables(night, [tally], declared={"goals": [NASTY, "y" * 500]})
    return dataclasses.replace(night, history_notes=[NASTY, "z" * 2000])


def _with_tables(night: Night, history: int) -> Night:
    return with_tables(night, make_tallies(), declared=declared(), history=make_history(history))


NIGHTS = {
    "good": good_night,
    "good-30": lambda: good_night(30),
    "bad": bad_night,
    "empty": empty_night,
    "interrupted": interrupted_night,
    "hostile": hostile_night,
}
"""Nights by name."""
