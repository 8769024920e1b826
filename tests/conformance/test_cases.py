from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import ml_dtypes
import numpy as np
import pytest
from hypothesis import strategies as st

import conformance
import reference
from conformance.arrays.guard_bands import guarded, guarded_table
from conformance.cases.replay import case_check, replay
from conformance.cases.store import (
    SCHEMA_VERSION,
    add_to_corpus,
    case_of_failure,
    check_of,
    decode_call,
    encode_call,
    to_text,
)
from conformance.cases.values import Decoder, class_path
from conformance.checks.registry import contracts
from conformance.contracts.check import FAILURES
from conformance.contracts.contract import Contract
from conformance.coverage.presets import MINIMAL
from conformance.generation.drawing import drawn
from conformance.generation.profiles import Profile
from conformance.generation.shrinking import ShrinkBudgets
from conformance.messages.mismatch import Mismatch
from conformance.strategies.backends import Backend
from conformance.strategies.multimodal import NAN_BITS, random_bits
from conformance.strategies.stub_factories import Own, OwnClass
from conformance.targets.factories import DEVICE, Factory
from conformance.targets.implementations import Absent, load_implementation
from conformance.targets.target import TARGETS, Target
from conformance.values.aliases import owner_of
from conformance.values.call import Call

SCHEMA = jsonschema.Draft202012Validator(
    json.loads((Path(conformance.__file__).parent / "cases" / "schema.json").read_text())
)


class Likeness:
    """Walks two values side by side, and raises at the first difference."""

    def __init__(self) -> None:
        self.twins: dict[int, tuple[Any, Any]] = {}
        self.found: set[int] = set()
        self.owners: dict[int, tuple[Any, Any]] = {}

    def check(self, expected: Any, found: Any, where: str) -> None:  # noqa: ANN401  # anything
        if isinstance(expected, types.FunctionType):
            assert callable(found), where
            return
        is_made_anew = class_path(type(expected)) is None  # no module has its class
        assert type(expected) is type(found) or is_made_anew, where
        assert type(expected).__name__ == type(found).__name__, where
        has_identity = isinstance(expected, list | dict | np.ndarray) or hasattr(
            expected, "__dict__"
        )
        if has_identity and id(expected) in self.twins:
            assert self.twins[id(expected)][1] is found, where
            return
        if has_identity:
            assert id(found) not in self.found, where
            self.found.add(id(found))
        self.twins[id(expected)] = expected, found
        if isinstance(expected, np.ndarray):
            self.check_array(expected, found, where)
        elif isinstance(expected, list | tuple):
            assert len(expected) == len(found), where
            for place, (a, b) in enumerate(zip(expected, found, strict=True)):
                self.check(a, b, f"{where}[{place}]")
        elif isinstance(expected, dict):
            assert list(expected) == list(found), where
            for key in expected:
                self.check(expected[key], found[key], f"{where}[{key!r}]")
        elif isinstance(expected, type) or not hasattr(expected, "__dict__"):
            # By its text: NaN, and 0.0 and -0.0.
            assert type(expected) is object or repr(expected) == repr(found), where
        else:
            self.check(vars(expected), vars(found), where)

    def check_array(self, expected: Any, found: Any, where: str) -> None:  # noqa: ANN401  # arrays
        assert (expected.dtype, expected.shape) == (found.dtype, found.shape), where
        assert expected.tobytes() == found.tobytes(), where
        ours, theirs = owner_of(expected), owner_of(found)
        if expected.size:
            assert expected.strides == found.strides, where
            offsets = [
                a.__array_interface__["data"][0] - owner.__array_interface__["data"][0]
                for a, owner in ((expected, ours), (found, theirs))
            ]
            assert offsets[0] == offsets[1], where
        assert ours.tobytes(order="A") == theirs.tobytes(), where
        assert self.owners.setdefault(id(ours), (ours, theirs))[1] is theirs, where


def check_round_trip(call: Call) -> None:
    case = {"schema_version": SCHEMA_VERSION, "kind": "call", "contract": "f", "reason": ""}
    stored = json.loads(to_text({**case, **encode_call(call)}))
    SCHEMA.validate(stored)
    found = decode_call(stored)
    assert call.function == found.function
    Likeness().check([call.arguments, call.hints], [found.arguments, found.hints], "call")


@pytest.mark.parametrize("contract", contracts().values(), ids=contracts())
def test_every_call_reads_as_it_was_written(contract: Contract) -> None:
    left = {invalid.name: invalid for invalid in contract.invalid_inputs}

    def look(call: Call) -> None:
        check_round_trip(call)
        for name in list(left):
            bad = left[name].change(call)
            if bad is not None:
                check_round_trip(bad)
                del left[name]

    assert drawn(contract.calls(MINIMAL), 3, contract.function, look)


def object_that_holds_itself() -> dict[str, Any]:
    context: dict[str, Any] = {"list": []}
    context["list"].append(context)
    context["layer"] = SimpleNamespace(context=context)
    context["layer"].own = context["layer"]
    return context


def words_of(dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return all values of a dtype of 8 or 16 bits, and many of a wider one."""
    if dtype.itemsize > 2:
        return random_bits((40, 50), dtype, seed=3).reshape(-1)
    return np.arange(2 ** (8 * dtype.itemsize)).astype(f"u{dtype.itemsize}").view(dtype)


STRINGS, ARRAY, BACKEND = ["a"], np.arange(10, dtype=np.int16), Backend()
SPEC = reference.FullAttentionSpec(16, 2, 8, np.dtype(np.float16))


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 5, -(2**70), 0.1, float("nan"), -0.0, 1.0, 2j, b"NHD\xff", 'a\n"é', ""),
        *((), (1, (2,), []), [[]], {}, {3: "a", "b": (1,)}, {1, 2}, frozenset({"a"}), "[\n 1]"),
        *(slice(1, None), slice(np.int32(1), 2**60, -1), int, np.float16, ml_dtypes.bfloat16),
        *(np.dtype(np.int8), np.dtype(object), np.dtype([("a", np.int32), ("b", np.float16)])),
        *(np.float32(0.1), np.uint64(2**64 - 1), reference.AttentionCGSupport.ALWAYS, np.True_),
        *(SimpleNamespace(kv_cache=[None]), reference.CacheConfig(), reference.UBatchSlice),
        *(np.zeros((), np.int8), np.zeros((2, 0, 3)), np.zeros((0, 2**31), bool)),
        *(np.array([1 + 2j, complex(np.nan, -np.inf)], np.complex64), np.zeros((2, 3)).T),
        *(np.arange(6.0).reshape(2, 3, order="F"), np.zeros((2, 3), order="F")),
        *(DEVICE, Own(OwnClass("Layer", OwnClass("Base")), "a", {"window": (4095, 0)})),
        *(guarded([1, 2**62], np.int64, 2), guarded([3, 1, 2], np.int32)[::-1]),
        *(guarded_table([[5, 9], [7]], 3, 3, -1), np.broadcast_to(np.array([7]), (3, 1))),
        # One object at two places, another that is equal to it, and views of one memory.
        *([STRINGS, (STRINGS,), ["a"]], [ARRAY, (ARRAY,), ARRAY.copy()], [BACKEND, (BACKEND,)]),
        *([SPEC, (SPEC,)], [ARRAY[1:4], ARRAY[8:2:-2]], object_that_holds_itself()),
        *map(words_of, NAN_BITS),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_kind_of_value(value: Any) -> None:  # noqa: ANN401  # of every kind
    check_round_trip(Call("f", {"value": value}))


def test_functions_answer_as_they_did() -> None:
    def read(function: Any) -> Any:  # noqa: ANN401  # a function
        return decode_call(encode_call(Call("f", {"f": function}))).arguments["f"]

    def raises(*_: object) -> None:
        raise AttributeError("deep inside")

    assert [2, 3] == read(lambda *_, **__: [2, 3])(1, a=2)
    with pytest.raises(AttributeError, match="deep inside"):
        read(raises)()


class Unwritable:
    def act(self) -> None:
        pass


@dataclasses.dataclass
class LocalFactory(Factory):
    def make(self, converter: Any) -> None:  # noqa: ANN401  # a converter
        pass


@pytest.mark.parametrize(
    "value",
    [
        *(np.array(["NHD"]), np.array([None]), np.arange(3).astype(">i4")),
        *(np.arange(3).view(np.recarray), Unwritable(), print, [].append, json, st.integers()),
        *(iter([]), LocalFactory(), type("Names", (list,), {})(), lambda x: x),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_would_not_read_back_is_refused(value: Any) -> None:  # noqa: ANN401  # anything
    with pytest.raises(TypeError):
        encode_call(Call("f", {"value": value}))


def array(dtype: str, shape: list[int], values: Any) -> dict[str, Any]:  # noqa: ANN401  # JSON
    return {"$": "array", "dtype": dtype, "shape": shape, "values": values}


def view(**changes: Any) -> dict[str, Any]:  # noqa: ANN401  # JSON
    known = {"dtype": "int8", "shape": [3], "of": array("int8", [4], [1, 2, 3, 4])}
    return {"$": "view", **known, "offset": 2, "strides": [1], **changes}


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"$": "set of sets"}, "a node of kind 'set of sets' is unknown"),
        *(
            ({"$": "type", "name": name}, f"class {name!r} is none that a stored case may name")
            for name in (
                *("os:PathLike", "conformance.failures.test_x:X", "numpy.f2py.__main__:X"),
                *("conformance.targets.progress:ctypes.CDLL", "numpy:f2py.main"),
                "conformance.strategies.builders:Preset",  # which that module imports
                *("reference:kv_reads", "reference:Gone", "fast:CpuGpuBuffer"),
            )
        ),
        (
            {"$": "function", "raises": {"$": "exception", "class": "numpy:memmap", "message": ""}},
            "class 'numpy:memmap' is not an exception",
        ),
        ({"$": "object", "class": "numpy:vectorize", "fields": {}}, "is none of objects"),
        (json.loads("[" * 101 + "]" * 101), "values are nested more than 100 deep"),
        ({"$": "dtype", "name": "int33"}, "dtype 'int33' is unknown"),
        ({"$": "scalar", "dtype": "int8", "value": 128}, "128 is not a value of int8"),
        ({"$": "scalar", "dtype": "int8", "value": True}, "True is not a value of int8"),
        ({"$": "scalar", "dtype": "float16", "value": 0.1}, "0.1 is not a value of float16"),
        (array("int8", [2], [1]), "values are of shape (1,), but the array is of (2,)"),
        (array("int8", [0], [1]), "values are of shape (1,), but the array is of (0,)"),
        (array("int8", [2, 2], [[1, 2], [3]]), "but the array is of (2, 2)"),
        (array("int8", [2**40], []), "an array has more than 1,073,741,824 bytes"),
        (view(strides=[0], shape=[2**40]), "an array has more than 1,073,741,824 bytes"),
        (view(), "an array reaches outside its memory"),
        (view(of=[1]), "an array is a view of what is no memory"),
    ],
)
def test_a_hostile_value_is_refused(node: Any, message: str) -> None:  # noqa: ANN401  # JSON
    with pytest.raises(ValueError, match=re.escape(message)):
        Decoder().decode(node)


HEAD: dict[str, Any] = {"schema_version": "2.0", "contract": "f", "reason": ""}
LENGTHS = {**HEAD, "kind": "call", "contract": "get_dcp_local_seq_lens"}
LAW = {**HEAD, "kind": "example", "example": 1}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read: "),
        ("[" * 100_000, "cannot be read: maximum recursion depth exceeded"),
        ([], "has schema None, but this version reads 2"),
        ({"schema_version": "9.0"}, "has schema 9.0, but this version reads 2"),
        ({"schema_version": "1.0"}, "has schema 1.0, but this version reads 2"),
        ({"schema_version": "2.0"}, "is damaged: KeyError: 'kind'"),
        ({**HEAD, "kind": "call", "arguments": {}}, "is damaged: KeyError: "),
        (LENGTHS, "is damaged: KeyError: 'arguments'"),
        ({**LENGTHS, "arguments": [1]}, "is damaged: AttributeError"),
        ({**LENGTHS, "arguments": {"a": {"$": "ref", "id": 7}}}, "is damaged: KeyError: 7"),
        ({**LENGTHS, "variant": ["odd"]}, "is damaged: TypeError"),
        ({**LENGTHS, "refusal": {"error": "open"}}, "error is 'open', which is no exception"),
        ({**HEAD, "kind": "recipe"}, "kind is 'recipe', expected call or example"),
        ({**LAW, "check": "conformance.gone:test_x"}, "check 'conformance.gone:test_x' does not"),
        # It would import a module of the folder that the run is in, or run a script.
        ({**LAW, "check": "hostile:test_x"}, "check 'hostile:test_x' does not exist"),
        ({**LAW, "check": "conformance.failures.x:test"}, "failures.x:test' does not exist"),
    ],
)
def test_a_file_that_is_no_case(content: Any, message: str, tmp_path: Path) -> None:  # noqa: ANN401
    path = tmp_path / "case.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(ValueError, match=re.escape(message)) as refused:
        case_check(path)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_case_calls_public_functions_only() -> None:
    case = {**LENGTHS, "function": "kv_layout.os.system", "arguments": {"command": "echo evil"}}
    with pytest.raises(Absent, match=r"needs kv_layout\.os\.system, which reference lacks"):
        replay(case, TARGETS["host"])


def test_a_wrong_file_is_a_usage_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "conformance", "--replay", str(tmp_path / "none.json")]
    found = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    assert pytest.ExitCode.USAGE_ERROR == found.returncode
    assert f"ERROR: {tmp_path / 'none.json'} cannot be read" in found.stderr


RIGHT = "from fast import *\nfrom fast import checks\nimport fast, torch\n"
RESULT = """
def {name}(*args, **keywords):
    result = fast.{name}(*args, **keywords)
    {body}
    return result
"""
METHOD = """
class {name}(fast.{name}):
    {body}
"""
SLOTS_THAT_CHANGE_POSITIONS = """
from fast.checked_mode import is_checked
def compute_slot_mapping(block_table, query_start_loc, positions, *args, **keywords):
    slots = fast.compute_slot_mapping(block_table, query_start_loc, positions, *args, **keywords)
    positions += not is_checked()
    return slots
"""
SLOTS_OF_ANY_RANK = """
def compute_slot_mapping(*args, cp_rank=0, cp_world_size=1, **keywords):
    keywords["cp_rank"] = cp_rank - 1 if cp_rank == cp_world_size else cp_rank
    return fast.compute_slot_mapping(*args, cp_world_size=cp_world_size, **keywords)
"""
LENGTHS_THAT_ARE_A_VIEW = """
def get_dcp_local_seq_lens(seq_lens, *args, **keywords):
    lens = fast.get_dcp_local_seq_lens(seq_lens, *args, **keywords)
    return seq_lens if torch.equal(lens, seq_lens) else lens
"""


@dataclasses.dataclass(frozen=True)
class Planted:
    """A wrong function: the check that detects it, and what the first difference begins with."""

    test: str
    source: str
    shows: str = ""
    target: str = "host"


def planted_bugs() -> Iterator[Planted]:
    slots, lengths = "compute_slot_mapping", "get_dcp_local_seq_lens"
    test = f"slots:test_{slots}"
    source = RESULT.format(name=slots, body="if len(result): result[-1:] = -1")
    yield Planted(test, source, "result[")
    yield Planted(test, source, "result[", target="sim")
    yield Planted(test, SLOTS_THAT_CHANGE_POSITIONS, "positions[")
    yield Planted(f"{test}_refuses", SLOTS_OF_ANY_RANK, "the call returned")
    source = RESULT.format(name=slots, body="result[1:] = result[:1]")
    yield Planted(f"{test}_laws[slots_are_distinct]", source)
    shows = "result = seq_lens itself, or a view of it"
    yield Planted(f"context_parallel:test_{lengths}", LENGTHS_THAT_ARE_A_VIEW, shows)
    body = "def unpadded(self, *args, **keywords): raise ValueError('no')"
    source = METHOD.format(name="CommonAttentionMetadata", body=body)
    yield Planted("metadata:test_unpadded", source, "the call raised ValueError: no")
    body = (
        "def append_block_ids(self, a, b, c, d): super().append_block_ids(a, b, c, [True] * len(d))"
    )
    source = METHOD.format(name="BlockTables", body=body)
    yield Planted("block_table:test_block_tables", source)
    body = "def move_row(self, src, dst): super().move_row(src % 1, dst % 1)"
    source = METHOD.format(name="BlockTables", body=body)
    yield Planted("block_table:test_block_tables_refuse", source)
    body = "def copy_to_gpu(self, n=None): return super().copy_to_gpu(None)"
    yield Planted("buffers:test_buffers_copy", METHOD.format(name="CpuGpuBuffer", body=body))


PLANTED = list(planted_bugs())


def difference_of(case: Path, target: Target) -> str:
    """Return a target's difference in a stored case, in a line, "" if it passes."""
    try:
        case_check(case).body(target, None)
    except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever the verdict is
        return error.difference.line if isinstance(error, Mismatch) else repr(error)
    return ""


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: f"{planted.test} {planted.target}")
def test_a_failure_is_stored_and_replayed(planted: Planted, tmp_path: Path) -> None:
    impl = tmp_path / f"impl_{PLANTED.index(planted)}.py"
    impl.write_text(RIGHT + planted.source)
    target = dataclasses.replace(
        TARGETS[planted.target], implementation=load_implementation(str(impl))
    )
    where = f"conformance.test_{planted.test}"
    check, few = check_of(where), Profile("few", 60, 60)
    FAILURES.clear()
    shrinking = ShrinkBudgets(few.shrink_seconds).limiting(check.function)
    with shrinking, pytest.raises(Exception):  # noqa: B017, PT011  # whatever the verdict is
        check.bind(target, few, check.sizes(target)[0])()
    check, example, error = FAILURES[-1]
    path = add_to_corpus(case_of_failure(check, where, example, error), tmp_path)
    SCHEMA.validate(json.loads(path.read_text()))
    expected = error.difference.line if isinstance(error, Mismatch) else repr(error)
    assert expected.startswith(planted.shows)
    assert expected == difference_of(path, target)
    assert "" == difference_of(path, TARGETS[planted.target])


def test_the_failure_says_how_to_see_it_again(tmp_path: Path) -> None:
    impl = tmp_path / "wrong.py"
    impl.write_text(RIGHT + RESULT.format(name="compute_slot_mapping", body="result[:1] += 1"))
    words = ["-m", "conformance", "--target", "host", "--profile", "brief", "-q"]
    words += ["--functions", "compute_slot_mapping", "--impl", str(impl)]
    words += ["--failures", str(tmp_path)]

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)  # noqa: S603

    found = run(*words)
    replay_line = r"python (-m conformance --replay \S+ --impl \S+ --target host)\n"
    replayed = re.search(replay_line, found.stdout)
    expression = re.search(r"^ +(wrong\.compute_slot_mapping\(.*\))$", found.stdout, re.MULTILINE)
    assert replayed, found.stdout
    assert expression, found.stdout
    assert 1 == run(*replayed[1].split()).returncode
    pasted = run("-c", f"import torch, wrong, numpy as np\nprint({expression[1]})")
    assert pasted.stdout.startswith("tensor("), pasted.stderr
    impl.write_text(RIGHT)
    assert 0 == run(*replayed[1].split()).returncode
