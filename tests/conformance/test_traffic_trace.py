"""Traces of requests: reading them, and the project's own."""

from itertools import pairwise
from pathlib import Path

import pytest

from conformance.traffic.trace import (
    DEFAULT_TRACE,
    TraceRequest,
    format_trace,
    make_trace,
    read_trace,
)

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
AZURE_TRACE = Path(__file__).parents[3] / "shared" / "data" / "azure_llm_2023_code.csv"


def write(folder: Path, text: str) -> Path:
    """Write a trace file, and return its path."""
    path = folder / "trace.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_default_trace_is_what_the_function_makes() -> None:
    """The file that is shipped is the one that `make_trace` makes, to the byte."""
    assert format_trace(make_trace()) == DEFAULT_TRACE.read_text(encoding="utf-8")


def test_the_default_trace_is_like_real_traffic() -> None:
    """Most prompts are short, some long, one longer than a chunk; arrivals come in bursts."""
    requests = make_trace()
    prompts = sorted(request.context_tokens for request in requests)
    gaps = sorted(b.arrival_seconds - a.arrival_seconds for a, b in pairwise(requests))
    assert len(requests) == 200
    assert prompts[100] < 200
    assert prompts[180] > 2000
    assert prompts[-1] > 8192
    assert gaps[150] < 0.06
    assert gaps[-1] > 1


def test_another_seed_makes_another_trace() -> None:
    """The seed matters, and the same seed makes the same trace."""
    assert make_trace(5, seed=1) == make_trace(5, seed=1) != make_trace(5, seed=2)


def test_reads_what_was_written() -> None:
    """Reading gives back the requests, in order, and no more than a limit says."""
    assert make_trace() == read_trace(DEFAULT_TRACE)
    assert make_trace()[:7] == read_trace(DEFAULT_TRACE, limit=7)


def test_reads_the_azure_format(tmp_path: Path) -> None:
    """Seven digits of a second, other columns, a byte order mark, and unordered rows are read."""
    path = write(
        tmp_path,
        "\ufeffTIMESTAMP,ContextTokens,GeneratedTokens,Model\n"
        "2023-11-16 18:17:04.2500000,9,2,x\n"
        "2023-11-16 18:17:03.0000000,5,1,y\n",
    )
    assert [TraceRequest(0.0, 5, 1), TraceRequest(1.25, 9, 2)] == read_trace(path)


@pytest.mark.skipif(not AZURE_TRACE.exists(), reason="the Azure trace is not here")
def test_reads_the_azure_trace() -> None:
    """The trace published by Azure is read whole."""
    requests = read_trace(AZURE_TRACE)
    assert len(requests) == 8819
    assert TraceRequest(0.0, 4808, 10) == requests[0]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        *(
            (
                f"2023-11-16 18:17:04,{values}",
                f"column {name}: must be an integer >= 1, got {shown}",
            )
            for values, name, shown in (
                ("x,2", "ContextTokens", "'x'"),
                ("-4,2", "ContextTokens", "'-4'"),
                ("9,0", "GeneratedTokens", "'0'"),
                ("9,1.5", "GeneratedTokens", "'1.5'"),
                ("9", "GeneratedTokens", "None"),
            )
        ),
        ("yesterday,9,2", "column TIMESTAMP: must be a date"),
        ("2023-11-16 18:17:04+00:00,9,2", "column TIMESTAMP: .* has a time zone"),
    ],
)
def test_a_bad_value_is_refused(tmp_path: Path, row: str, message: str) -> None:
    """A bad value is a `ValueError` that names the file, the line and the column."""
    path = write(tmp_path, f"{HEADER}2023-11-16 18:17:03,5,1\n{row}\n")
    with pytest.raises(ValueError, match=rf"trace.csv, line 3, {message}"):
        read_trace(path)


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"", KeyError, "no column TIMESTAMP, ContextTokens, GeneratedTokens"),
        (HEADER.encode(), ValueError, "has no requests"),
        (b"\xff\xfe\x00", ValueError, "is not a CSV file in UTF-8"),
        (f'{HEADER}"2023'.encode(), ValueError, "is not a CSV file in UTF-8: unexpected end of da"),
        (f"{HEADER}2023-11-16 18:17:04,9,2,7".encode(), ValueError, "line 2: 4 values, but the he"),
        (
            b"TIMESTAMP,Tokens\n",
            KeyError,
            r"trace.csv, line 1: no column ContextTokens, GeneratedTokens .*'Tokens'",
        ),
    ],
)
def test_a_file_that_is_no_trace_is_refused(
    tmp_path: Path, content: bytes, error: type[Exception], message: str
) -> None:
    """Files without requests or columns, or not in CSV, are refused with the reason."""
    path = tmp_path / "trace.csv"
    path.write_bytes(content)
    with pytest.raises(error, match=message):
        read_trace(path)
