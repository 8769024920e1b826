from __future__ import annotations

import json
import types
from pathlib import Path

import pytest
import torch

import fast
from conformance.adapters.implementations import Implementation
from conformance.functions import contracts
from conformance.harness import cases, checks
from conformance.harness.story import Failure
from conformance.harness.targets import Target
from kvtwin import vectors

LENGTHS = "get_dcp_local_seq_lens"
NAMES = (LENGTHS, "compute_slot_mapping", "BlockTables", "slice_query_start_locs")
CONTRACTS = {contract.function: contract for contract in contracts()}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vectors") / "out"
    assert 0 == vectors.main(
        ["--out", str(folder), "--examples", "4", "--functions", ",".join(NAMES)]
    )
    return folder


def failures(folder: Path, target: Target) -> set[str]:
    found = set()
    for case in cases.load(folder):
        try:
            checks.tell(CONTRACTS[case.story.function], target, case.story)
        except Failure:
            found.add(case.story.function)
    return found


def test_each_call_has_its_result_and_each_refusal_its_exception(written: Path) -> None:
    index = json.loads((written / "index.json").read_text())
    assert sorted(NAMES) == sorted(index["functions"])
    for name, counts in index["functions"].items():
        found = [json.loads(path.read_text()) for path in sorted((written / name).iterdir())]
        assert {"calls": 4, "refusals": 4} == counts
        assert counts["calls"] == sum("result" in case for case in found)
        assert counts["refusals"] == sum("raises" in case for case in found)


def test_what_the_harness_raises_is_no_refusal(tmp_path: Path) -> None:
    vectors.write_function(CONTRACTS["BlockTables"], tmp_path / "cases", 20)
    found = [json.loads(path.read_text()) for path in (tmp_path / "cases").glob("refusal-*")]
    assert 20 == len(found)
    assert not any("has no attribute 'on'" in case["raises"]["message"] for case in found)


def test_they_are_replayed(written: Path) -> None:
    assert set() == failures(written, Target("host"))
    module = types.ModuleType("wrong")
    vars(module).update({n: v for n, v in vars(fast).items() if not n.startswith("__")})

    def widened(*arguments: object, **keywords: object) -> torch.Tensor:
        return fast.get_dcp_local_seq_lens(*arguments, **keywords).long()  # type: ignore[arg-type]

    module.get_dcp_local_seq_lens = widened  # type: ignore[attr-defined]
    assert {LENGTHS} == failures(written, Target("host", Implementation("host", module)))


def test_the_same_command_writes_the_same_files(written: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    assert 0 == vectors.main(["--out", str(again), "--examples", "4", "--functions", LENGTHS])
    files = [*again.glob("*/*.json")]
    assert 8 == len(files)
    for path in files:
        assert (written / path.parent.name / path.name).read_text() == path.read_text()


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
