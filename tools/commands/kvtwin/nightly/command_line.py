"""The command line of a night."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from collections.abc import Sequence
from pathlib import Path

from conformance.entry_point import INTERRUPTS
from kvtwin.machine import num_cores
from kvtwin.parser import Parser

EXAMPLES = (
    "--minutes 480",
    "--minutes 60 --impl ./mine.py --adapter ./my_adapter.py --target host",
    "--minutes 480 --ray auto --database redis://host:6379/0",
)
STATUSES = {
    0: "nothing fails",
    1: "a function fails, or nothing was checked",
    130: "ended by Ctrl-C or SIGTERM, with its report written",
}


PASSED_ON = {
    "--impl": "the implementation under test; may be repeated; default: fast",
    "--adapter": "the adapter for its objects; may be repeated",
    "--target": "targets to run: host, native, cuda",
    "--functions": "check only these functions",
    "--hang-seconds": "a call that takes longer counts as hung; default: 30",
}
"""Options of the conformance run; those that may be repeated are about modules and files."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a night, and return its exit status."""
    parser = _make_parser()
    options = parser.parse_args(arguments)
    # These imports take seconds, and `--help` needs none of them.
    with INTERRUPTS.importing(lambda: None):
        from kvtwin.nightly.cluster import run_on_cluster  # noqa: PLC0415
        from kvtwin.nightly.night import Night, end_at_signals, run_here  # noqa: PLC0415

    out: Path = options.out.resolve()
    databases = [options.database or str(out / "examples")]
    if options.ray and not options.database:
        parser.error("--ray needs --database: a server, or a folder that all nodes share")
    if "://" in databases[0] and not options.ray:  # a server may be away
        databases.insert(0, str(out / "examples"))
    others = ["--strict"] if options.strict else []
    for option in PASSED_ON:
        given = getattr(options, option.removeprefix("--").replace("-", "_")) or []
        for word in [given] if isinstance(given, str) else given:
            others += [option, str(Path(word).resolve()) if word.endswith(".py") else word]
    with parser.reporting_errors():
        out.mkdir(parents=True, exist_ok=True)
        for name in ("report.md", "report.html"):  # of the last night
            (out / name).unlink(missing_ok=True)
        workers = options.workers or num_cores()
        night = Night(60 * options.minutes, out, workers, databases, others)
        if options.ray is None:
            end_at_signals(night)
            run_here(night)
        else:
            run_on_cluster(night, options.ray, options.workers)
        night.write()
    print(f"report: {out / 'report.html'}")
    return night.status()


def _make_parser() -> Parser:
    about = "Repeat the conformance run with new inputs until the time is over."
    parser = Parser("kvtwin nightly", about, examples=EXAMPLES, statuses=STATUSES)
    parser.add_argument(
        "--minutes", type=_minutes, default=10.0, metavar="N", help="default: %(default)g"
    )
    keep = "the folder of the report; keep it from night to night; default: %(default)s"
    parser.add_argument("--out", type=Path, default=Path("night"), metavar="DIR", help=keep)
    parser.add_number("--workers", "processes of a round, by default one for each core")
    where = "where failing examples are stored: a folder (default: OUT/examples) or redis://..."
    parser.add_argument("--database", metavar="DIR_OR_URL", help=where)
    nodes = "run rounds on the nodes of a Ray cluster: HOST:PORT of its head, or auto"
    parser.add_argument("--ray", metavar="ADDRESS", help=nodes)
    for option, meaning in PASSED_ON.items():
        action = "append" if "repeated" in meaning else "store"
        parser.add_argument(option, action=action, metavar="X", help=meaning)
    strict = "missing refusals and other differences fail the night too"
    parser.add_argument("--strict", action="store_true", help=strict)
    return parser


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = math.nan
    if not 0 < minutes < math.inf:
        raise ArgumentTypeError(f"must be a positive number, got {text!r}")
    return minutes
