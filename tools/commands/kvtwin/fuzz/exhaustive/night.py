"""A night of `--exhaustive`: run the scopes, and convert the failures to findings and a report."""

from __future__ import annotations

import dataclasses
import time
from datetime import UTC, datetime

from conformance.targets.target import RAISED
from kvtwin.fuzz.cases.properties import Property
from kvtwin.fuzz.display import Display, State
from kvtwin.fuzz.exhaustive.examples import example_of
from kvtwin.fuzz.exhaustive.jobs import CaseFailure, targets_of
from kvtwin.fuzz.exhaustive.progress import Progress
from kvtwin.fuzz.exhaustive.run import run
from kvtwin.fuzz.findings.failures import Failure, failure_of, with_artefacts
from kvtwin.fuzz.findings.forked_draws import ProcessDiedError
from kvtwin.fuzz.findings.records import Findings
from kvtwin.fuzz.interrupts import catching_signals
from kvtwin.fuzz.options import Options
from kvtwin.fuzz.report.record import Night, Scope
from kvtwin.fuzz.report.words import scope_words
from kvtwin.fuzz.summary import reported_findings, start_of_night
from kvtwin.fuzz.workers.jobs import Pool


def enumerate_scopes(options: Options, scale: int, pool: Pool, display: Display) -> Night:
    """Compare the cases that are left of all scopes, and return the record of the night.

    Args:
        options: The options of the night.
        scale: How large the bounds of the scopes are.
        pool: The workers, which are closed at the end.
        display: Shows the progress and the failures.

    Raises:
        ValueError: The options have unknown names; the folder has the progress of another run, or
            findings that cannot be read.
    """
    started, began = datetime.now(UTC), time.monotonic()
    findings = Findings(options.out / "findings")
    progress = Progress.resume(options.out, options.subject, scale)
    earlier = progress.cases
    signals: list[str] = []

    def show() -> None:
        display.show(
            State(
                time.monotonic() - began,
                progress.cases - earlier,
                open=len(progress.failures),
                workers=pool.size,
                earlier=earlier,
                total=progress.total,
            )
        )

    with catching_signals(signals.append):
        try:
            error = run(
                progress,
                pool,
                options.out,
                is_over=lambda: bool(signals) or time.monotonic() - began > options.seconds,
                note=display.note,
                show=show,
            )
            workers = pool.size
        finally:
            pool.close()
    _note_fixed(findings, progress, display)
    for found in progress.failures.values():
        findings.add(failure_of_case(found, progress))
    findings.write()
    scopes = _scopes(progress)
    for scope in scopes:
        display.note(f"{scope.name}: {scope_words(vars(scope))}")
    return dataclasses.replace(
        start_of_night(options, progress.targets.values(), started, options.seed or 0),
        seconds=time.monotonic() - began,
        workers=workers,
        cases=progress.cases - earlier,
        interrupted_by=signals[0] if signals else None,
        findings=reported_findings(findings, options.subject),
        exhaustive=scopes,
        errors=[] if error is None else [error],
    )


def _scopes(progress: Progress) -> list[Scope]:
    return [
        Scope(
            name=f"{name} on {target}",
            functions=scope.functions,
            bounds=scope.bounds,
            cases=done.cases,
            seconds=done.seconds,
            different=done.failed,
            is_finished=done.cases == scope.cases.count,
            total=scope.cases.count,
            declared=done.declared,
        )
        for (target, name), scope in progress.scopes.items()
        for done in [progress.done[target, name]]
    ]


def _note_fixed(findings: Findings, progress: Progress, display: Display) -> None:
    """Record which findings of earlier runs are fixed: their cases were compared and are equal.

    If any case of a scope failed, its findings stay open: only the first failure of each key is
    known by its case.
    """
    scopes = {
        (target, _scope_at_scale(name, progress)): done
        for (target, name), done in progress.done.items()
    }
    for known, found in findings.by_id.items():
        scope, _, index = found.failure.property_name.rpartition(":")
        done = scopes.get((found.failure.target, scope))
        if found.is_open and done is not None and not done.failed and done.has(int(index)):
            findings.note_fixed(known)
            display.note(f"fixed: {found.failure.line}")


def _scope_at_scale(name: str, progress: Progress) -> str:
    """Return the name of a scope in findings; at another scale, an index is of another case."""
    return f"scale {progress.scale}, {name}"


def failure_of_case(found: CaseFailure, progress: Progress) -> Failure:
    """Convert a failing case of an exhaustive run to a failure, with its stored case and script.

    Args:
        found: The failing case.
        progress: The run's progress.
    """
    target = targets_of(progress.subject)[found.target]
    example = example_of(found.scope, found.index, progress.scale)
    prop = Property(example.where, example.check, target)
    error: BaseException = AssertionError(found.line)
    if found.is_crash:
        error = ProcessDiedError(found.line)
    else:
        try:
            example.check.body(target, example.value)
        except RAISED as raised:
            error = raised
    name = f"{_scope_at_scale(found.scope, progress)}:{found.index}"
    failure = failure_of(prop, example.value, error, property_name=name, is_minimal=True)
    return with_artefacts(failure, prop, example.value, error, is_safe=not found.is_crash)
