from __future__ import annotations

import dataclasses
import json
import types
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]
import pytest
import torch
from conformance.cases import store
from conformance.cases.replay import replayed_checks
from conformance.targets.target import TARGETS, Target
from conformance.values.call import Call

import fast
from conformance.adapters import Deviation
from conformance.adapters.base import FastAdapter
from conformance.adapters.implementations import Implementation
from kvtwin import vectors

LENGTHS = "get_dcp_local_seq_lens"
NAMES = (LENGTHS, "compute_slot_mapping", "BlockTables", "init_kv_cache", "KVCacheSpec.merge")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vectors") / "out"
    assert 0 == vectors.main(
        ["--out", str(folder), "--examples", "2", "--functions", ",".join(NAMES)]
    )
    return folder


def failures(folder: Path, target: Target) -> set[str]:
    """Return the functions whose cases a target gets wrong."""
    found = set()
    for check in replayed_checks(folder):
        try:
            check.bind(target)()
        except AssertionError:
            found.add(check.function)
    return found


def test_files_are_of_the_schema(written: Path) -> None:
    schema = json.loads((Path(store.__file__).parent / "schema.json").read_text())
    index = json.loads((written / "index.json").read_text())
    assert sorted(NAMES) == sorted(index["functions"])
    for path in written.rglob("*.json"):
        jsonschema.Draft202012Validator(schema).validate(json.loads(path.read_text()))
    for name, counts in index["functions"].items():
        found = [json.loads(path.read_text()) for path in sorted((written / name).iterdir())]
        calls = sum("refusal" not in case for case in found)
        # `BlockTables` has state: no result can be written.
        assert counts["calls"] == calls == (0 if name == "BlockTables" else 2)
        assert counts["refusals"] == sum("refusal" in case for case in found)
    assert "result" in json.loads((written / LENGTHS / "call-001.json").read_text())
    assert "after" in json.loads((written / "init_kv_cache" / "call-001.json").read_text())
    refusal = json.loads((written / LENGTHS / "refusal-000.json").read_text())
    assert refusal["raises"]["class"] == refusal["refusal"]["error"]


def test_they_are_replayed(written: Path) -> None:
    assert set() == failures(written, TARGETS["host"])
    module = types.ModuleType("wrong")
    vars(module).update({n: v for n, v in vars(fast).items() if not n.startswith("__")})

    def widened(*arguments: object, **keywords: object) -> torch.Tensor:
        return fast.get_dcp_local_seq_lens(*arguments, **keywords).long()  # type: ignore[arg-type]

    module.get_dcp_local_seq_lens = widened  # type: ignore[attr-defined]
    target = Target("host", Implementation("host", module))
    assert {LENGTHS} == failures(written, target)

    class Widening(FastAdapter):
        deviations = (Deviation(LENGTHS, "kernels want int64", Call(LENGTHS, {}), "int64"),)

    implementation = Implementation("wide", module, Widening(module))
    assert set() == failures(written, dataclasses.replace(target, implementation=implementation))


def test_the_same_command_writes_the_same_files(written: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    arguments = ["--out", str(again), "--examples", "2", "--functions", "KVCacheSpec.merge"]
    assert 0 == vectors.main(arguments)
    files = [*again.glob("*/*.json")]
    assert len(files) > 5
    for path in files:
        assert (written / path.parent.name / path.name).read_text() == path.read_text()


def test_a_folder_without_cases_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no cases"):
        replayed_checks(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "the following arguments are required: --out"),
        ("--out {new} --functions slots", "no vectors of 'slots'; similar names: "),
        ("--out {full}", "is there already, and not an empty folder"),
        ("--out {full}/file/below", "Not a directory"),
    ],
)
def test_a_wrong_call_is_one_line(
    arguments: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    with pytest.raises(SystemExit) as ended:
        vectors.main(arguments.format(new=tmp_path / "new", full=tmp_path / "full").split())
    assert 2 == ended.value.code
    printed = capsys.readouterr().err
    assert message in printed
    assert 1 == printed.count("\n")
