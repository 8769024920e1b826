"""The corpus: stored cases are read and replayed as tests, and bugs fail them again."""

from __future__ import annotations

import importlib
import json
import shutil
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fast
from conformance.arrays.guard_bands import guarded
from conformance.cases import corpus
from conformance.cases.compared import (
    case_of_call,
    case_of_example,
    check_of,
)
from conformance.cases.corpus import (
    add_to_corpus,
    corpus_checks,
    read_corpus,
)
from conformance.checks.contract_checks import checks_in
from conformance.coverage.goals import COVERAGE
from conformance.coverage.presets import MINIMAL
from conformance.generation.profiles import PROFILES, Kind
from conformance.targets.implementations import Implementation
from conformance.targets.target import TARGETS, Target
from conformance.values.call import Call
from conformance.vectors import SCHEMA
from conformance.vectors.drawing import drawn
from tests.tools import read_vectors

HOST = TARGETS["host"]


def lengths(*seq_lens: int) -> Call:
    """Return a call that shares sequences among two ranks."""
    arguments = {"seq_lens": guarded(seq_lens, np.int32), "dcp_size": 2, "dcp_rank": 1}
    return Call("get_dcp_local_seq_lens", arguments)


def wrong(name: str, function: Callable[..., Any]) -> Target:
    """Return `fast` as a target, with one function replaced."""
    module = types.ModuleType("wrong")
    vars(module).update({n: v for n, v in vars(fast).items() if not n.startswith("__")})
    setattr(module, name, function)
    return Target("host", Implementation("host", module))


def failures(directory: Path, target: Target) -> list[str]:
    """Return the descriptions of the cases that a target fails."""
    found = []
    for check in corpus_checks(directory):
        try:
            check.bind(target)()
        except AssertionError:
            found.append(check.description)
    return found


def test_the_corpus_is_of_the_schema() -> None:
    """Each file matches the schema, and its name begins with the name of its contract."""
    schema = read_vectors.Schema(json.loads(SCHEMA.read_text()))
    for path, case in read_corpus():
        schema.check(case, "corpus_case", path.name)
        read_vectors.Case(case)
        assert path.name.startswith(f"{case['contract']}-")


def test_an_installed_package_stores_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written to an installed package; cases in the working directory are read too."""
    installed = tmp_path / "site-packages" / "conformance" / "corpus"
    installed.mkdir(parents=True)
    monkeypatch.setattr(corpus, "CORPUS", installed)
    monkeypatch.chdir(tmp_path)
    path = add_to_corpus(case_of_call(lengths(5), "an odd length"))
    assert Path("conformance-corpus") == path.parent
    assert [] == list(installed.iterdir())
    shutil.copy(path, installed)
    add_to_corpus(case_of_call(lengths(7), "another"))
    assert ["an odd length", "an odd length", "another"] == sorted(
        check.description for check in corpus_checks()
    )


def test_a_stored_call_is_replayed(tmp_path: Path) -> None:
    """A wrong result of a stored call fails its check, which counts its examples."""
    path = add_to_corpus(case_of_call(lengths(5, 0, 7), "an odd length"), tmp_path)
    assert [] == failures(tmp_path, HOST)

    def rounds_up(seq_lens: torch.Tensor, dcp_size: int = 1, *_: Any, **__: Any) -> torch.Tensor:  # noqa: ANN401
        return (seq_lens + dcp_size - 1) // dcp_size

    assert ["an odd length"] == failures(tmp_path, wrong("get_dcp_local_seq_lens", rounds_up))
    [check] = corpus_checks(tmp_path)
    assert ("get_dcp_local_seq_lens", f"corpus/{path.stem}") == (check.function, check.name)
    before = COVERAGE.examples["get_dcp_local_seq_lens", "host"]
    check.bind(HOST, PROFILES["dev"], "stored", shrink=False)()
    assert COVERAGE.examples["get_dcp_local_seq_lens", "host"] > before


def test_a_stored_refusal_is_replayed(tmp_path: Path) -> None:
    """An invalid call must raise the class that `reference` raises, with the declared names."""
    bad = lengths(5).replacing(dcp_rank=2)
    add_to_corpus(case_of_call(bad, "a rank outside", names=["dcp_rank"]), tmp_path)
    assert [] == failures(tmp_path, HOST)
    for error in (TypeError("dcp_rank"), ValueError("nonsense"), None):

        def answer(*_: Any, error: Any = error, **__: Any) -> Any:  # noqa: ANN401
            if error is not None:
                raise error
            return torch.zeros(1, dtype=torch.int32)

        found = failures(tmp_path, wrong("get_dcp_local_seq_lens", answer))
        assert ["a rank outside"] == found


def test_one_input_is_one_file(tmp_path: Path) -> None:
    """Storing the same call again leaves its file unchanged; another call gets another file."""
    path = add_to_corpus(case_of_call(lengths(5), "first"), tmp_path / "new")
    text = path.read_text()
    assert path == add_to_corpus(case_of_call(lengths(5), "second"), tmp_path / "new")
    assert text == path.read_text()
    assert path != add_to_corpus(case_of_call(lengths(6), "first"), tmp_path / "new")
    assert 2 == len(read_corpus(tmp_path / "new"))


@pytest.mark.parametrize("name", ["conformance.test_ubatch", "conformance.test_ubatch_slices"])
def test_law_cases_are_stored_as_examples(name: str, tmp_path: Path) -> None:
    """Examples of the laws of micro-batches are stored, read back with their source, and pass."""
    module = importlib.import_module(name)
    laws = [(n, check) for n, check in checks_in(vars(module)) if check.kind is Kind.LAW]
    assert laws
    for test, check in laws:
        where = f"{name}:{test}" + (f"[{check.law}]" if check.law else "")
        assert check.law == check_of(where).law
        example = drawn(check.examples(MINIMAL), 6, "corpus")[-1]
        function = check.function
        add_to_corpus(case_of_example(where, example, where, function=function), tmp_path)
    assert [] == failures(tmp_path, HOST)
    assert len(laws) >= len(read_corpus(tmp_path))


@pytest.mark.parametrize(
    ("act", "error", "message"),
    [
        (lambda: case_of_call(Call("slots", {}), "?"), KeyError, "slots has no contract"),
        (
            lambda: case_of_call(lengths(1).replacing(dcp_size=print), "?"),
            TypeError,
            "cannot be written",
        ),
        (
            lambda: case_of_example("conformance.test_slots:gone", 1, "?", function="f"),
            ValueError,
            "check 'conformance.test_slots:gone' does not exist",
        ),
        (
            lambda: case_of_example("conformance.gone:test_x", 1, "?", function="f"),
            ValueError,
            "check 'conformance.gone:test_x' does not exist",
        ),
    ],
)
def test_what_cannot_be_stored_is_refused(
    act: Callable[[], object], error: type[Exception], message: str
) -> None:
    """Functions without a contract, unencodable arguments and unknown checks are refused."""
    with pytest.raises(error) as refusal:
        act()
    assert message in str(refusal.value)


def test_a_spoiled_corpus_says_so(tmp_path: Path) -> None:
    """A file that is not JSON, or has another version, is reported before anything runs."""
    path = Path(shutil.copy(read_corpus()[0][0], tmp_path))
    path.write_text(path.read_text().replace('"1.0"', '"9.0"', 1))
    with pytest.raises(ValueError, match=rf"{path.name} has schema 9.0"):
        corpus_checks(tmp_path)
    path.write_text("{")
    with pytest.raises(ValueError, match=rf"{path.name} cannot be read"):
        corpus_checks(tmp_path)
