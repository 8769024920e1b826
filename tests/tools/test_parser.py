"""The parser of all command lines: help, `--json`, and one-line errors."""

from __future__ import annotations

import argparse
import importlib
import json
import re
import shlex
from pathlib import Path

import pytest

from kvtwin.commands import COMMANDS, main
from kvtwin.parser import STDOUT, Parser, redirect_stdout_for_json, write_json

MODULES = [command.module for name, command in COMMANDS.items() if name != "conformance"]


@pytest.mark.parametrize("module", MODULES)
def test_help_has_examples_and_exit_statuses(
    module: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = importlib.import_module(module).main
    with pytest.raises(SystemExit) as ended:
        run(["--help"])
    printed = capsys.readouterr().out
    assert 0 == ended.value.code
    usage, _, rest = printed.partition("examples:\n")
    examples, _, statuses = rest.partition("exit status:\n")
    assert {"0", "2", "130"} <= set(re.findall(r"^  (\d+) +\w", statuses, re.MULTILINE))
    assert max(map(len, printed.splitlines())) <= 100
    [prog] = re.findall(r"^usage: (.+?) \[-h\]", usage)
    lines = examples.strip().splitlines()
    assert lines
    parse_args = argparse.ArgumentParser.parse_args
    for line in lines:
        assert line.strip().startswith(prog)

        def parse(self: argparse.ArgumentParser, _: object, line: str = line) -> None:
            parse_args(self, shlex.split(line.strip().removeprefix(prog)))
            raise StopIteration  # what follows would run it

        monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse)
        with pytest.raises(StopIteration):
            run([])


def test_an_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser("kvtwin toy", "It does nothing.")
    for action, line in (
        (lambda: Path("nowhere.csv").read_bytes(), "nowhere.csv: No such file or directory"),
        (lambda: {}["it"], "it"),
        (lambda: int("seven"), "invalid literal for int() with base 10: 'seven'"),
    ):
        with pytest.raises(SystemExit) as ended, parser.reporting_errors():
            action()
        assert (2, f"kvtwin toy: {line}\n") == (ended.value.code, capsys.readouterr().err)


def test_json_has_stdout_for_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser("kvtwin toy", "It does nothing.")
    parser.add_json("the result")
    file = tmp_path / "result.json"
    for arguments, out, err in (
        (["--json"], {"µs": 3}, "table\n"),
        (["--json", str(file)], "table\n", ""),
        ([], "table\n", ""),
    ):
        path = parser.parse_args(arguments).json
        with redirect_stdout_for_json(path):
            print("table")  # noqa: T201  # as a command line does
        if path is not None:
            write_json({"µs": 3}, path)
        printed = capsys.readouterr()
        assert err == printed.err
        assert out == (json.loads(printed.out) if path == STDOUT else printed.out)
    assert {"µs": 3} == json.loads(file.read_text(encoding="utf-8"))
    with pytest.raises(SystemExit):
        parser.parse_args(["--json", str(tmp_path / "nowhere" / "result.json")])
    assert f"there is no folder {tmp_path / 'nowhere'}\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "status", "printed"),
    [
        (["vector"], 2, "kvtwin: there is no command 'vector'; try vectors"),
        ([], 0, "\n  bench        time fast and a baseline\n"),
        (["--version"], 0, "kvtwin 0."),
    ],
)
def test_commands_are_found(
    arguments: list[str],
    status: int,
    printed: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.argv", ["kvtwin", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert status == ended.value.code
    assert printed in "".join(capsys.readouterr())
