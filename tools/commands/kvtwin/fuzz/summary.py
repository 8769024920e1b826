"""Convert a night to the record from which the reports are rendered."""

from __future__ import annotations

import dataclasses
import os
import platform
import shlex
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from conformance.checks.registry import choose_functions
from conformance.reports.versions import versions
from conformance.targets.target import Target
from fast.memory import read_sysconf
from kvtwin.fuzz.bisection.repository import commit_of
from kvtwin.fuzz.cases.branches import observer_of_branches
from kvtwin.fuzz.cases.coverage import PLURALS, Event, goals_of
from kvtwin.fuzz.cases.properties import Subject
from kvtwin.fuzz.findings.failures import Failure
from kvtwin.fuzz.findings.records import Finding, Findings
from kvtwin.fuzz.options import Options
from kvtwin.fuzz.report.record import Finding as ReportedFinding
from kvtwin.fuzz.report.record import Implementation, Machine, Night, Profile, WorkerMemory
from kvtwin.fuzz.report.tally import Tally
from kvtwin.machine import cpu_model, num_cores

if TYPE_CHECKING:
    from kvtwin.fuzz.night import Fuzzing


def night_of(fuzzing: Fuzzing) -> Night:
    """Return the record of a night, without its tables."""
    targets = {prop.target.name: prop.target for prop in fuzzing.properties.values()}
    records = fuzzing.chooser.records.values()
    night = start_of_night(fuzzing.options, targets.values(), fuzzing.started, fuzzing.seed)
    trouble = fuzzing.database.status()
    largest = WorkerMemory(worker="the largest", peak_bytes=fuzzing.peak_bytes)
    cluster = Machine(name="nodes of the Ray cluster", cpu="", cores=fuzzing.cluster_cpus)
    return dataclasses.replace(
        night,
        versions={**night.versions, **({"example database": trouble} if trouble else {})},
        seconds=fuzzing.seconds,
        workers=fuzzing.num_workers,
        machines=[*night.machines, *([cluster] if cluster.cores else [])],
        cases=fuzzing.num_cases,
        discarded=sum(record.invalid for record in records),
        interrupted_by=fuzzing.interrupted_by,
        curve=fuzzing.curve,
        findings=reported_findings(fuzzing.findings, fuzzing.options.subject),
        workers_lost=fuzzing.lost,
        memory=[largest] if largest.peak_bytes else [],
        errors=fuzzing.errors,
    )


def start_of_night(
    options: Options, targets: Iterable[Target], started: datetime, seed: int
) -> Night:
    """Return the record of a night before it runs.

    Args:
        options: The options of the night.
        targets: The targets.
        started: When it began.
        seed: The seed of its draws.
    """
    targets = list(targets)
    tested = {target.implementation.name: target.implementation for target in targets}
    return Night(
        started=started.isoformat(timespec="seconds"),
        seconds_budgeted=options.seconds,
        seconds=0.0,
        command=list(options.command),
        seed=seed,
        workers=0,
        machines=[this_machine()],
        versions={**versions(), "branches observed by": observer_of_branches()},
        targets=[target.name for target in targets],
        implementations=[
            Implementation(
                name=one.name,
                module=one.module.__name__,
                version=one.version,
                file=one.file,
                commit=commit_of(Path(one.file)),
            )
            for one in tested.values()
        ],
        profile=Profile(
            is_random=options.seed is None,
            database=options.database_url or str(options.out / "examples"),
            ci=os.environ.get("CI"),
        ),
        cases=0,
        selected=choose_functions(options.subject.functions),
    )


def this_machine() -> Machine:
    """Return the description of this machine."""
    try:
        memory_bytes = read_sysconf()[1]
    except OSError:
        memory_bytes = None
    return Machine(
        name=platform.node(),
        cpu=cpu_model(),
        cores=num_cores(),
        memory_bytes=memory_bytes,
        gpus=[torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    )


def tallies_of(fuzzing: Fuzzing) -> list[Tally]:
    """Return the results of a night for each property."""
    found = []
    for name, record in fuzzing.chooser.records.items():
        prop = fuzzing.properties[name]
        counts: defaultdict[str, dict[str, int]] = defaultdict(dict)
        for event, number in record.events.items():
            counts[PLURALS[event[0]]][_name_of(event)] = number
        found.append(
            Tally(
                name=name,
                function=prop.check.function,
                target=prop.target.name,
                kind=prop.check.kind.value,
                cases=record.cases,
                seconds=record.seconds,
                slices=record.slices,
                counts=counts,
                observed={"branches": record.slices},
            )
        )
    return found


def declared_goals(fuzzing: Fuzzing) -> set[str]:
    """Return the goals that the harness declares for the properties of a night."""
    checks = (prop.check for prop in fuzzing.properties.values())
    return {_name_of(event) for check in checks for event in goals_of(check)}


def _name_of(event: Event) -> str:
    """Return an event as the reports name it.

    >>> _name_of(("pair", "f", "empty", "long"))
    'f: empty + long'
    """
    return f"{event[1]}: {' + '.join(event[2:])}"


def reported_findings(findings: Findings, subject: Subject) -> list[ReportedFinding]:
    """Return the findings for the reports, without those that others explain."""
    found = []
    for known, explained in findings.primary().items():
        one = findings.by_id[known]
        others = sorted({_also(one, other) for other in explained})
        found.append(_reported(findings, one, others, subject))
    return found


def _also(one: Finding, other: Finding) -> str:
    failure = other.failure
    same = failure.function == one.failure.function
    return f"{failure.function} ({failure.kind})" if same else failure.function


def _reported(
    findings: Findings, one: Finding, also: list[str], subject: Subject
) -> ReportedFinding:
    failure = one.failure
    case, script = findings.case_path(failure.id), findings.script_path(failure.id)
    details: dict[str, Any] = failure.details
    return ReportedFinding(
        id=failure.id,
        function=failure.function,
        target=failure.target,
        property=failure.property_name,
        kind=failure.kind,
        field=failure.field,
        error=failure.error,
        line=failure.line,
        message=failure.message,
        table=details.get("table", ""),
        status=one.status,
        fails=failure.fails,
        attempts=failure.tries,
        seen=one.seen,
        first_seen=one.first_seen,
        obstacle=one.obstacle,
        case=str(case) if case.exists() else "",
        script=str(script) if script.exists() else "",
        script_text=failure.script or "",
        command=_replay_command(case, failure, subject) if case.exists() else "",
        also=also,
        pictures=details.get("pictures", []),
    )


def _replay_command(case: Path, failure: Failure, subject: Subject) -> str:
    """Return the command line that replays the stored case of a failure."""
    # A night reports every failure; without --strict only wrong answers would fail the replay.
    command = ("fuzz",) if failure.case is None else ("conformance", "--strict")
    words = ["kvtwin", *command, "--replay", str(case)]
    for name in ("impl", "adapter"):
        for value in getattr(subject, name):
            words += [f"--{name}", value]
    return shlex.join([*words, "--target", failure.target.rpartition(":")[2]])
