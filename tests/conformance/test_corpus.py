from __future__ import annotations

import importlib
import json
import shutil
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import numpy as np
import pytest
import torch

import fast
from conformance.arrays.guard_bands import guarded
from conformance.cases import replay, store
from conformance.cases.replay import corpus_checks
from conformance.cases.store import CORPUS, add_to_corpus, case_of_call, case_of_example, check_of
from conformance.checks.contract_checks import checks_in
from conformance.coverage.presets import MINIMAL
from conformance.generation.drawing import drawn
from conformance.generation.profiles import Kind
from conformance.targets.implementations import Implementation
from conformance.targets.target import TARGETS, Target
from conformance.values.call import Call

HOST = TARGETS["host"]
NAME = "get_dcp_local_seq_lens"


def lengths(*seq_lens: int) -> Call:
    arguments = {"seq_lens": guarded(seq_lens, np.int32), "dcp_size": 2, "dcp_rank": 1}
    return Call(NAME, arguments)


def wrong(function: Callable[..., Any]) -> Target:
    module = types.ModuleType("wrong")
    vars(module).update({n: v for n, v in vars(fast).items() if not n.startswith("__")})
    setattr(module, NAME, function)
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


def test_the_corpus_is_of_the_schema_and_passes() -> None:
    schema = json.loads((Path(store.__file__).parent / "schema.json").read_text())
    paths = sorted(CORPUS.glob("*.json"))
    assert 5 <= len(paths)
    for path in paths:
        case = json.loads(path.read_text())
        jsonschema.Draft202012Validator(schema).validate(case)
        assert path.name.startswith(f"{case['contract']}-")
    assert [] == failures(CORPUS, HOST)


def test_an_installed_package_stores_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "site-packages" / "conformance" / "corpus"
    installed.mkdir(parents=True)
    for module in (store, replay):
        monkeypatch.setattr(module, "CORPUS", installed)
    monkeypatch.chdir(tmp_path)
    path = add_to_corpus(case_of_call(lengths(5), "an odd length"))
    assert Path("conformance-corpus") == path.parent
    assert [] == list(installed.iterdir())
    shutil.copy(path, installed)
    add_to_corpus(case_of_call(lengths(7), "another"))
    found = sorted(check.description for check in corpus_checks())
    assert ["an odd length", "an odd length", "another"] == found


def rounds_up(seq_lens: torch.Tensor, dcp_size: int = 1, *_: Any, **__: Any) -> torch.Tensor:  # noqa: ANN401
    return (seq_lens + dcp_size - 1) // dcp_size


def refuses_otherwise(*_: Any, **__: Any) -> None:  # noqa: ANN401
    raise ValueError("nonsense")


@pytest.mark.parametrize(
    ("call", "function"),
    [(lengths(5, 0, 7), rounds_up), (lengths(5).replacing(dcp_rank=2), refuses_otherwise)],
    ids=["a call", "a refusal"],
)
def test_a_stored_call_is_replayed(
    call: Call, function: Callable[..., Any], tmp_path: Path
) -> None:
    names = ["dcp_rank"] if function is refuses_otherwise else []
    path = add_to_corpus(case_of_call(call, "as stored", names=names), tmp_path)
    assert path == add_to_corpus(case_of_call(call, "again", names=names), tmp_path)
    assert [] == failures(tmp_path, HOST)
    assert ["as stored"] == failures(tmp_path, wrong(function))


@pytest.mark.parametrize("name", ["conformance.test_ubatch", "conformance.test_ubatch_slices"])
def test_examples_of_laws_are_stored(name: str, tmp_path: Path) -> None:
    module = importlib.import_module(name)
    laws = [(n, check) for n, check in checks_in(vars(module)) if check.kind is Kind.LAW]
    assert laws
    for test, check in laws:
        where = f"{name}:{test}" + (f"[{check.law}]" if check.law else "")
        assert check.law == check_of(where).law
        example = drawn(check.examples(MINIMAL), 6, "corpus")[-1]
        add_to_corpus(case_of_example(where, example, where, function=check.function), tmp_path)
    assert [] == failures(tmp_path, HOST)


def test_what_cannot_be_stored_is_refused() -> None:
    with pytest.raises(KeyError, match="slots has no contract"):
        case_of_call(Call("slots", {}), "?")
    with pytest.raises(ValueError, match=r"check 'conformance.test_slots:gone' does not exist"):
        case_of_example("conformance.test_slots:gone", 1, "?", function="f")
