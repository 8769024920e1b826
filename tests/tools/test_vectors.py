"""Vectors of every function: written, read by an independent script, replayed, and damaged."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

import fast
from conformance.adapters import Deviation
from conformance.adapters.base import FastAdapter
from conformance.cases.check import replay
from conformance.checks.registry import contracts
from conformance.messages.mismatch import Mismatch
from conformance.targets.implementations import Implementation
from conformance.targets.target import TARGETS, Target
from conformance.values.call import Call
from conformance.vectors import vector_checks
from conformance.vectors.folder import functions, uncovered
from kvtwin import vectors

READER = Path(__file__).with_name("read_vectors.py")

HOST = TARGETS["host"]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with vectors of every function, one valid call of each."""
    folder = tmp_path_factory.mktemp("vectors") / "out"
    assert 0 == vectors.main(["--out", str(folder), "--examples", "1"])
    return folder


@pytest.fixture(scope="module")
def more(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a few vectors of some functions."""
    folder = tmp_path_factory.mktemp("vectors") / "more"
    names = "get_dcp_local_seq_lens,compute_slot_mapping,CpuGpuBuffer"
    assert 0 == vectors.main(["--out", str(folder), "--examples", "3", "--functions", names])
    return folder


@pytest.fixture
def few(more: Path, tmp_path: Path) -> Path:
    """Return a folder with vectors of some functions, which a test may damage."""
    return Path(shutil.copytree(more, tmp_path / "few"))


def read_with_the_standard_library(folder: Path) -> tuple[int, list[str]]:
    """Return the status and the lines of the reader, in a process that imports nothing else."""
    command = [sys.executable, "-I", "-S", str(READER), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # ours
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def failures(folder: Path, target: Target) -> list[str]:
    """Return the names of the cases that a target gets wrong."""
    found = []
    for check in vector_checks(folder):
        try:
            check.bind(target)()
        except Mismatch:
            found.append(check.name)
    return found


def test_every_function_has_vectors(written: Path) -> None:
    """Each has its folder and a case of each invalid input; other names have a reason."""
    index = json.loads((written / "index.json").read_text())
    assert functions() == list(index["functions"])
    assert [] == uncovered()
    manifests = [json.loads(p.read_text()) for p in written.glob("*/manifest.json")]
    assert [] == [m["function"] for m in manifests if "invalid_inputs_without_a_case" in m]
    for manifest in manifests:
        files = sorted(p.name for p in (written / manifest["function"]).iterdir())
        assert sorted(["manifest.json", *(case["file"] for case in manifest["cases"])]) == files
        contract = contracts().get(manifest["function"])
        abouts = {case["about"] for case in manifest["cases"] if case["kind"] == "refusal"}
        invalid_inputs = contract.invalid_inputs if contract else ()
        assert {invalid.name for invalid in invalid_inputs} <= abouts


def test_an_independent_script_reads_them(written: Path) -> None:
    """A script that uses only the standard library finds no error in any file."""
    status, [line] = read_with_the_standard_library(written)
    assert 0 == status
    counts = {kind: int(number) for number, kind in map(str.split, line.split(", "))}
    assert {"index": 1, "manifest": len(functions())}.items() <= counts.items()
    total = counts["answer"] + counts["refusal"] + counts["session"]
    assert total == len(vector_checks(written))


@pytest.mark.parametrize("target", ["host", "sim"])
def test_fast_does_what_they_say(written: Path, target: str) -> None:
    """`fast` passes every case of every function."""
    if target == "sim":
        checks = [check for check in vector_checks(written) if check.kind.value == "same answer"]
    else:
        checks = vector_checks(written)
    for check in checks:
        check.bind(TARGETS[target])()


def leaves(node: Any) -> Iterator[tuple[Any, Any]]:  # noqa: ANN401  # JSON
    """Yield the places of the numbers and bools in a result, without its metadata."""
    how = {"$", "id", "memory", "offset_bytes", "strides_bytes", "shape", "dtype", "class"}
    entries = node.items() if isinstance(node, dict) else enumerate(node)
    for place, value in entries:
        if isinstance(value, dict | list):
            yield from leaves(value) if place not in how else ()
        elif isinstance(value, bool | int | float) and place not in how:
            yield node, place


def another(value: float) -> float:
    """Return a different number, or a different bool."""
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) or not value else -value


def test_another_result_is_distinguished(written: Path) -> None:
    """A replay fails if a number or bool of its recorded result is changed."""
    tried = set()
    for path in sorted(written.glob("*/answer-*.json")):
        case, function = json.loads(path.read_text()), path.parent.name
        said = {name: case[name] for name in ("result", "after") if name in case}
        places = [*leaves(said)]
        for node, place in places[:: max(len(places) // 5, 1)]:
            holder, before = case if node is said else node, node[place]
            holder[place] = another(before)
            with pytest.raises((Mismatch, ValueError)):
                replay(case, HOST, function)
            holder[place] = before
            tried.add(function)
    assert 40 < len(tried)


def wrong(name: str, make: Callable[[Any], Any]) -> Target:
    """Return `fast` as a target with one function replaced."""
    module = types.ModuleType("wrong")
    vars(module).update({n: v for n, v in vars(fast).items() if not n.startswith("__")})
    setattr(module, name, make(getattr(fast, name)))
    return Target("host", Implementation("host", module))


def changing(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a decorator that changes the results of a function."""
    return lambda function: lambda *args, **keywords: change(function(*args, **keywords))


def refusing(error: Exception) -> Callable[[Any], Any]:
    """Return a decorator that makes every call raise an error."""
    return lambda _: mock.Mock(side_effect=error)


def _that_writes_out_of_bounds(function: Any) -> Any:  # noqa: ANN401  # a function
    def other(seq_lens: torch.Tensor, *args: Any, **keywords: Any) -> Any:  # noqa: ANN401
        found = function(seq_lens, *args, **keywords)
        torch.as_strided(seq_lens, (1,), (1,), 0).fill_(77)
        return found

    return other


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("get_dcp_local_seq_lens", changing(lambda found: found + 1)),
        ("get_dcp_local_seq_lens", changing(lambda found: found.to(torch.float64))),
        ("get_dcp_local_seq_lens", _that_writes_out_of_bounds),
        ("get_dcp_local_seq_lens", refusing(ValueError("seq_lens is bad"))),
        ("compute_slot_mapping", changing(lambda found: found + 1)),
        ("compute_slot_mapping", changing(torch.clone)),
        ("compute_slot_mapping", refusing(ValueError("no"))),
    ],
)
def test_wrong_implementations_are_found(name: str, make: Callable[[Any], Any], more: Path) -> None:
    """A wrong value, dtype, memory, class of refusal or name in its message fails some case."""
    found = failures(more, wrong(name, make))
    assert {name} == {case.split("/")[0] for case in found}


def test_a_wrong_object_is_found(tmp_path: Path) -> None:
    """A buffer whose copies go nowhere fails a session."""
    folder = tmp_path / "buffers"
    arguments = ["--out", str(folder), "--examples", "8", "--functions", "CpuGpuBuffer"]
    assert 0 == vectors.main(arguments)

    class Buffer(fast.CpuGpuBuffer):
        def copy_to_gpu(self, n: int | None = None) -> torch.Tensor:
            return torch.zeros_like(super().copy_to_gpu(n))

    assert failures(folder, wrong("CpuGpuBuffer", lambda _: Buffer))
    assert [] == failures(folder, HOST)


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (
            lambda case: case["arguments"]["query_start_loc"].update(dtype="int33"),
            r"arguments.query_start_loc.dtype: 'int33' is none of",
        ),
        (
            lambda case: case["arguments"]["query_start_loc"].update(shape=[99]),
            "arguments.query_start_loc: values are not of shape [99]",
        ),
        (
            lambda case: case["arguments"]["query_start_loc"].update(dtype="bool"),
            "arguments.query_start_loc: 0 is not of dtype bool",
        ),
        (
            lambda case: case["arguments"]["query_start_loc"].update(offset_bytes=4000),
            "arguments.query_start_loc: reaches outside memory",
        ),
        (
            lambda case: case["arguments"].update(other=1),
            "compute_slot_mapping/answer-000.json: other is not a parameter",
        ),
        (lambda case: case.update(result={"$": "ref", "id": 77}), "result: there is no object 77"),
        (lambda case: case.update(result={"$": "tensor"}), "result.$: 'tensor' is none of"),
        (lambda case: case.update(result={"$": "slice"}), "result: lacks 'start'"),
        (lambda case: case.update(result=2**53), "result: 9007199254740992 is too small or too"),
        (lambda case: case.update(result=0.5), "result: 0.5 is not one of null, boolean, integer"),
        (lambda case: case.update(schema_version="2.0"), "'2.0' is not like"),
        (lambda case: case.pop("result"), "lacks 'result'"),
        (lambda case: case.update(remark="?"), "'remark' is unknown"),
    ],
)
def test_the_reader_finds_what_is_wrong(
    damage: Callable[[Any], object], line: str, few: Path
) -> None:
    """A violation of each rule, in the schema or beyond it, is reported with its file."""
    path = few / "compute_slot_mapping" / "answer-000.json"
    case = json.loads(path.read_text())
    damage(case)
    path.write_text(json.dumps(case))
    status, lines = read_with_the_standard_library(few)
    assert 1 == status
    assert any(line in printed and "answer-000.json" in printed for printed in lines), lines


def test_the_reader_finds_what_is_not_there(few: Path) -> None:
    """The reader reports a missing case, one in no manifest, and a wrong number of cases."""
    folder = few / "get_dcp_local_seq_lens"
    (folder / "refusal-000.json").rename(folder / "refusal-999.json")
    index = json.loads((few / "index.json").read_text())
    index["functions"]["CpuGpuBuffer"] += 1
    (few / "index.json").write_text(json.dumps(index))
    status, lines = read_with_the_standard_library(few)
    assert 1 == status
    assert any("refusal-000.json: [Errno 2]" in line for line in lines)
    assert any("refusal-999.json: is in no manifest" in line for line in lines)
    assert any("CpuGpuBuffer: has" in line for line in lines)


def test_an_older_reader_says_so(few: Path) -> None:
    """Files of another schema version are rejected."""
    path = few / "index.json"
    path.write_text(path.read_text().replace('"1.1"', '"2.0"'))
    with pytest.raises(ValueError, match=r"index.json has schema 2.0, but this version reads 1"):
        vector_checks(few)
    with pytest.raises(ValueError, match=r"nowhere/index.json cannot be read"):
        vector_checks(few / "nowhere")


def test_vectors_do_not_change_from_run_to_run(written: Path, tmp_path: Path) -> None:
    """The same command writes the same files, in another process with other hashes too."""
    name = "UniformTypeKVCacheSpecs,add_kv_sharing_layers_to_kv_cache_groups"
    command = [sys.executable, "-m", "kvtwin.vectors", "--out", str(tmp_path / "again")]
    command += ["--examples", "1", "--functions", name]
    subprocess.run(command, check=True, capture_output=True, cwd=READER.parents[2])  # noqa: S603
    files = [*(tmp_path / "again").glob("*/*.json")]
    assert len(files) > 20
    for path in files:
        same = written / path.parent.name / path.name
        assert same.read_text() == path.read_text(), path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "the following arguments are required: --out"),
        (
            "--out {new} --examples 0",
            "argument --examples: must be an integer >= 1, got '0'",
        ),
        (
            "--out {new} --functions slots",
            "no vectors of 'slots'; similar names: ",
        ),
        ("--out {full}", "is there already, and not an empty folder"),
        ("--out {full}/file", "is there already, and not an empty folder"),
        ("--out {full}/file/below", "Not a directory"),
    ],
)
def test_a_wrong_call_is_one_line(
    arguments: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What cannot be used ends with status 2 and says why; nothing is written."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    call = arguments.format(new=tmp_path / "new", full=tmp_path / "full").split()
    with pytest.raises(SystemExit) as ended:
        vectors.main(call)
    assert 2 == ended.value.code
    printed = capsys.readouterr().err
    assert message in printed
    assert 1 == printed.count("\n")
    assert "mine" == (tmp_path / "full" / "file").read_text()


def test_the_table_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table counts the written cases by kind."""
    arguments = ["--out", str(tmp_path / "out"), "--functions", "MultipleOf,CpuGpuBuffer"]
    assert 0 == vectors.main([*arguments, "--examples", "4"])
    lines = [line for line in capsys.readouterr().out.splitlines() if "│" in line]
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines]
    assert ["MultipleOf", "4", "7", ""] == rows[0]
    assert ["CpuGpuBuffer", "", "", "2"] == rows[1]
    assert ["all", "4", "7", "2"] == rows[2]


def rewritten(path: Path, change: Callable[[Any], object]) -> None:
    """Change the content of a JSON file."""
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))


LENGTHS = "get_dcp_local_seq_lens"


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("index.json", lambda index: index["functions"].clear(), "has no cases"),
        ("index.json", lambda index: index.pop("functions"), "is damaged: KeyError: 'functions'"),
        ("index.json", lambda index: index.update(functions=[3]), "is damaged: TypeError: "),
        (
            "index.json",
            lambda index: index["functions"].update(slots=1),
            "has vectors of 'slots', which is unknown",
        ),
        (
            "index.json",
            lambda index: index["functions"].update({LENGTHS: 1}),
            "cases, but the index says 1",
        ),
        (f"{LENGTHS}/manifest.json", lambda found: found.pop("cases"), "is damaged: KeyError"),
        (
            f"{LENGTHS}/manifest.json",
            lambda found: found["cases"][0].update(file="../index.json"),
            "names '../index.json', which is not a file next to it",
        ),
        (f"{LENGTHS}/answer-000.json", lambda case: case.pop("result"), "damaged: KeyError: 'res"),
        (f"{LENGTHS}/answer-000.json", lambda case: case.update(kind="?"), "kind is '?', expec"),
        (f"{LENGTHS}/answer-000.json", lambda case: case.pop("schema_version"), "has schema None"),
        (f"{LENGTHS}/refusal-000.json", lambda case: case.pop("refusal"), "damaged: KeyError"),
        ("CpuGpuBuffer/session-000.json", lambda case: case.pop("steps"), "damaged: KeyError"),
    ],
)
def test_a_damaged_folder_is_one_line(
    file: str, change: Callable[[Any], object], message: str, few: Path
) -> None:
    """A damaged file is reported in one line with its path, before anything runs."""
    rewritten(few / file, change)
    with pytest.raises(ValueError, match=re.escape(message)) as refused:
        vector_checks(few)
    assert str(few) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_declared_deviation_excuses_vectors(few: Path) -> None:
    """A case that fails as declared is not a failure."""

    class Widening(FastAdapter):
        deviations = (Deviation(LENGTHS, "kernels want int64", Call(LENGTHS, {}), "int64"),)

    target = wrong(LENGTHS, changing(torch.Tensor.long))
    assert failures(few, target)
    module = target.implementation.module
    implementation = Implementation("wide", module, Widening(module))
    assert [] == failures(few, dataclasses.replace(target, implementation=implementation))
