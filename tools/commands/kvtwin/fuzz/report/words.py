"""The text of the reports, the same in Markdown and HTML."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from conformance.reports.words import date_words, duration


def count(number: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun.

    >>> count(0, "failure"), count(1, "case"), count(12345, "case"), count(1234567, "case")
    ('0 failures', '1 case', '12,345 cases', '1.2 million cases')
    """
    named = noun if number == 1 else plural or f"{noun}s"
    if number >= 1_000_000:
        return f"{number / 1e6:,.1f} million {named}"
    return f"{number:,} {named}"


def size(num_bytes: float) -> str:
    """Return a number of bytes in readable units.

    >>> size(312), size(2048), size(3.5 * 2**20), size(24 * 2**30)
    ('312 B', '2 KiB', '3.5 MiB', '24 GiB')
    """
    for unit in ("B", "KiB", "MiB"):
        if abs(num_bytes) < 1000:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:,.3g} GiB" if num_bytes < 1000 else f"{num_bytes:,.0f} GiB"


def headline(record: Mapping[str, Any]) -> str:
    """Return the result of a night, in a sentence."""
    names = " and ".join(one["name"] for one in record["implementations"]) or "nothing"
    cases = count(record["cases"], "case")
    return shorten(f"{names}: {_result(record)}; {cases} in {_time(record)}")


def _result(record: Mapping[str, Any]) -> str:
    numbers = {status: len(findings(record, status)) for status in ("new", "known", "fixed")}
    parts = []
    if not has_cases(record):
        parts.append("nothing was checked")
    if numbers["new"]:
        parts.append(f"{numbers['new']:,} new {'failure' if numbers['new'] == 1 else 'failures'}")
    elif numbers["known"]:
        parts.append("no new failures")
    if numbers["fixed"]:
        parts.append(f"{numbers['fixed']:,} fixed")
    if numbers["known"]:
        parts.append(f"{numbers['known']:,} still open")
    if has_cases(record) and not numbers["new"] and not numbers["known"]:
        parts.insert(0, "no failures")
    different = [scope["name"] for scope in record["exhaustive"] if scope["different"]]
    if different:
        parts.append(f"{count(len(different), 'small scope')} with differences")
    if record["errors"]:
        parts.append(f"{count(len(record['errors']), 'error')} in the run itself")
    return ", ".join(parts)


def has_cases(record: Mapping[str, Any]) -> bool:
    """Return whether cases were run; a resumed exhaustive run may have none left to compare."""
    return bool(record["cases"]) or is_complete(record)


def is_complete(record: Mapping[str, Any]) -> bool:
    """Return whether this is an exhaustive run that has compared all cases, and so has ended."""
    scopes = record["exhaustive"]
    return bool(scopes) and all(scope["is_finished"] for scope in scopes)


def _time(record: Mapping[str, Any]) -> str:
    took = about(record["seconds"])
    if record["interrupted_by"] is None:
        return took
    return f"{took} of {about(record['seconds_budgeted'])}, stopped by {record['interrupted_by']}"


def about(seconds: float) -> str:
    """Return a duration, rounded to minutes from ten minutes on.

    >>> about(61), about(1802.3)
    ('61 s', '30 min')
    """
    return duration(seconds if seconds < 600 else 60 * round(seconds / 60))


def shorten(text: str, maximum: int = 500) -> str:
    """Truncate a text to the length of a line in a list.

    >>> shorten("short"), shorten("x" * 12, 8)
    ('short', 'xxxxxxxx... (12 characters)')
    """
    return text if len(text) <= maximum else f"{text[:maximum]}... ({len(text):,} characters)"


def findings(record: Mapping[str, Any], status: str) -> list[Mapping[str, Any]]:
    """Return the findings of a status."""
    return [finding for finding in record["findings"] if finding["status"] == status]


def status_words(finding: Mapping[str, Any]) -> str:
    """Return the status of a finding in words.

    >>> status_words({"status": "known"})
    'still open'
    """
    return "still open" if finding["status"] == "known" else str(finding["status"])


def flaky_words(finding: Mapping[str, Any]) -> str:
    """Return how often a finding fails; empty if it fails each time or was not tried again.

    >>> flaky_words({"fails": 3, "attempts": 20, "status": "new"})
    'flaky: fails 3 of 20'
    >>> flaky_words({"fails": 20, "attempts": 20, "status": "new"})
    ''
    """
    if finding["status"] == "fixed" or finding["fails"] >= finding["attempts"]:
        return ""
    return f"flaky: fails {finding['fails']:,} of {finding['attempts']:,}"


def finding_facts(finding: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the details of a finding: names and values."""
    found = [
        ("property", finding["property"]),
        ("first differing field", finding["field"]),
        ("exception", finding["error"]),
        ("also fails", ", ".join(finding["also"])),
        ("first seen", date_words(finding["first_seen"])),
        ("failing cases tonight", f"{finding['seen']:,}" if finding["seen"] else "none"),
        ("not tried again", finding["obstacle"]),
        ("stored case", finding["case"]),
        ("reproduce", command_of(finding)),
    ]
    return [(name, shorten(value)) for name, value in found if value]


def command_of(finding: Mapping[str, Any]) -> str:
    """Return the command line that reproduces a finding; empty if there is none."""
    if finding["command"] or not finding["script"]:
        return str(finding["command"])
    return shlex.join(["python", finding["script"]])


def unseen_words(coverage: Mapping[str, Any]) -> str:
    """Return the estimate of unseen events, in sentences.

    >>> found = {"once": 20, "new_per_case": 0.001, "unseen_at_least": 3}
    >>> unseen_words({"estimate": found})
    '20 were met once: about 1 in 1,000 cases meets a new one; an estimated 3 or more remain.'
    """
    found = coverage["estimate"]
    if found is None:
        return "Nothing was observed."
    if not found["once"]:
        return "Each was met by at least two cases, so the next case is unlikely to meet a new one."
    often = found["new_per_case"]
    meets = f"1 in {1 / often:,.0f} cases meets a new one"
    if often >= 1:
        meets = f"{often:,.1f} new ones in each case"
    minimum = found["unseen_at_least"]
    more = f"; an estimated {minimum:,} or more remain" if minimum else ""
    return f"{found['once']:,} were met once: about {meets}{more}."


def coverage_words(coverage: Mapping[str, Any]) -> str:
    """Return how many events of a kind of coverage were met.

    >>> coverage_words({"met": 1200, "total": 1210}), coverage_words({"met": 7, "total": None})
    ('1,200 of 1,210', '7')
    """
    of = "" if coverage["total"] is None else f" of {coverage['total']:,}"
    return f"{coverage['met']:,}{of}"


def scope_words(scope: Mapping[str, Any]) -> str:
    """Return the result of a small scope, in a sentence.

    >>> scope = {"bounds": "batch of at most 2 requests", "different": 0, "declared": 0}
    >>> scope_words({**scope, "cases": 90, "is_finished": True, "total": 90})
    'Every batch of at most 2 requests: 90 cases, all equal.'
    >>> scope_words({**scope, "cases": 90, "is_finished": False, "total": 200, "declared": 7})
    'Every batch of at most 2 requests: 90 of 200 cases so far, all equal but for 7 as declared.'
    """
    cases = count(scope["cases"], "case")
    if not scope["is_finished"]:
        cases = f"{scope['cases']:,} of {scope['total']:,} cases so far"
    result = f"{scope['different']:,} different" if scope["different"] else "all equal"
    if scope["declared"]:
        result += f" but for {scope['declared']:,} as declared"
    return f"Every {scope['bounds']}: {cases}, {result if scope['cases'] else 'not compared'}."


def attention(record: Mapping[str, Any]) -> list[str]:
    """Return the warnings of a night, one sentence each."""
    found = []
    if not has_cases(record):
        found.append("No case was run, so this night says nothing about the implementation.")
    late = record["seconds"] - record["seconds_budgeted"]
    if is_complete(record):
        late = max(late, 0)
    if record["interrupted_by"] is None and abs(late) > max(10, record["seconds_budgeted"] / 100):
        word = "longer" if late > 0 else "shorter"
        found.append(f"The night was {duration(abs(late))} {word} than its budget.")
    if not record["profile"]["is_random"]:
        found.append("The seed is fixed: other nights with it begin with the same cases.")
    lost = len(record["workers_lost"])
    if lost:
        found.append(f"{count(lost, 'worker')} died, hung or lost its node; see Workers.")
    starved = [row["name"] for row in record["properties"] if not row["cases"]]
    if starved and record["cases"]:
        names = ", ".join(starved[:5]) + (f" and {len(starved) - 5:,} more" * (len(starved) > 5))
        verb = "was" if len(starved) == 1 else "were"
        found.append(f"{count(len(starved), 'property', 'properties')} {verb} not run: {names}.")
    return [shorten(line) for line in (*found, *record["history_notes"])]


def facts(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the configuration of the night: names and values."""
    profile = record["profile"]
    found = [("under test", implementation_words(one)) for one in record["implementations"]]
    found += [
        ("targets", ", ".join(record["targets"]) or "none"),
        ("functions", ", ".join(record["selected"] or ["all"])),
        ("started", date_words(record["started"])),
        ("time", f"{duration(record['seconds'])} of {duration(record['seconds_budgeted'])}"),
        ("ended by", record["interrupted_by"] or _end(record)),
        ("workers", f"{record['workers']:,}"),
        *((f"machine {one['name']}", machine_words(one)) for one in record["machines"]),
        ("cases", f"{record['cases']:,}; {record['discarded']:,} draws gave no valid case"),
        ("cases per second", rate_words(record)),
        ("seed", str(record["seed"])),
        ("random", "yes" if profile["is_random"] else "the seed is fixed"),
        ("example database", profile["database"]),
        ("CI", "not set" if profile["ci"] is None else repr(profile["ci"])),
        ("command", shlex.join(record["command"])),
    ]
    return found + list(record["versions"].items())


def _end(record: Mapping[str, Any]) -> str:
    if is_complete(record):
        return "the last case of its scopes"
    return "an error" if record["exhaustive"] and record["errors"] else "the end of its time"


def rate_words(record: Mapping[str, Any]) -> str:
    """Return the speed of a night in words."""
    each = rate(record["cases_per_second_per_core"])
    return f"{rate(record['cases_per_second'])}; {each} for each core"


def rate(number: float) -> str:
    """Return a number of cases per second.

    >>> rate(0), rate(1.234), rate(1234.5)
    ('0', '1.23', '1,234')
    """
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def implementation_words(one: Mapping[str, Any]) -> str:
    """Return the description of an implementation."""
    commit = f", commit {one['commit']}" if one["commit"] else ""
    return f"{one['module']} {one['version']}{commit}, {one['file']}"


def machine_words(one: Mapping[str, Any]) -> str:
    """Return the description of a machine."""
    parts = [one["cpu"], count(one["cores"], "core")]
    if one["memory_bytes"] is not None:
        parts.append(f"{size(one['memory_bytes'])} of memory")
    parts += one["gpus"] or ["no GPU"]
    return ", ".join(parts)


def kinds_of(record: Mapping[str, Any]) -> Sequence[str]:
    """Return the kinds of coverage."""
    return [coverage["kind"] for coverage in record["coverage"]]
