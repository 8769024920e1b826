"""Calls as JSON: reading them back restores the bits, the memory around, and shared objects."""

from __future__ import annotations

import dataclasses
import importlib
import json
import pkgutil
import types
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import strategies as st

import reference
from conformance import invalid_inputs, strategies
from conformance.arrays.guard_bands import guarded, guarded_table
from conformance.arrays.overwrites import Overwrite
from conformance.checks.contract_checks import InvalidExample, ValidExample
from conformance.checks.registry import contracts
from conformance.contracts.contract import Contract, InvalidInput
from conformance.coverage.presets import MINIMAL, Preset
from conformance.encoding import Decoder, Encoder, decode_call, encode_call, to_text
from conformance.encoding.arrays import decode_elements, encode_elements
from conformance.encoding.classes import class_path, find_class, is_plain
from conformance.execution.invocations import CallVariant
from conformance.strategies.backends import Backend
from conformance.strategies.multimodal import NAN_BITS, random_bits
from conformance.strategies.stub_factories import Own, OwnClass
from conformance.targets.factories import DEVICE, Device, Factory
from conformance.targets.target import REFERENCE
from conformance.values.aliases import owner_of
from conformance.values.call import Call
from conformance.vectors.drawing import drawn

FLOATS = [
    *map(np.dtype, (np.float16, np.float32, np.float64)),
    *(np.dtype(getattr(ml_dtypes, name)) for name in dir(ml_dtypes) if name.startswith("float8_e")),
    np.dtype(ml_dtypes.bfloat16),
]
FLOATS = [dtype for dtype in FLOATS if dtype.name in {*vars(ml_dtypes), *vars(np)}]


class Likeness:
    """Walks two values side by side, and raises at the first difference."""

    def __init__(self) -> None:
        self.twins: dict[int, tuple[Any, Any]] = {}
        self.found: set[int] = set()
        self.owners: dict[int, tuple[Any, Any]] = {}

    def check(self, expected: Any, found: Any, where: str) -> None:  # noqa: ANN401  # anything
        """Check type, content, and that shared objects are still shared."""
        if isinstance(expected, types.FunctionType):
            assert callable(found), where
            return
        is_made_anew = class_path(type(expected)) is None  # no module has its class
        assert type(expected) is type(found) or is_made_anew, where
        assert type(expected).__name__ == type(found).__name__, where
        can_be_distinguished = isinstance(expected, list | dict | np.ndarray) or hasattr(
            expected, "__dict__"
        )
        if can_be_distinguished and id(expected) in self.twins:
            assert self.twins[id(expected)][1] is found, where
            return
        if can_be_distinguished:
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
        """Check an array, and all of the memory that it is a view of."""
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
        assert ours.tobytes() == theirs.tobytes(), where
        assert self.owners.setdefault(id(ours), (ours, theirs))[1] is theirs, where


def read_again(call: Call) -> Call:
    """Return a call after it was written as text and read again."""
    return decode_call(json.loads(to_text(encode_call(call))))


def check_round_trip(call: Call) -> None:
    """Raise if a call changes when it is written and read again."""
    found = read_again(call)
    assert call.function == found.function
    Likeness().check([call.arguments, call.hints], [found.arguments, found.hints], "call")


@pytest.mark.parametrize("contract", contracts().values(), ids=contracts())
def test_every_call_reads_as_it_was_written(contract: Contract) -> None:
    """Valid and invalid calls of every function, with the memory around arrays, read back alike."""
    invalid_inputs: dict[str, InvalidInput] = {
        invalid.name: invalid for invalid in contract.invalid_inputs
    }

    def look(call: Call) -> None:
        check_round_trip(call)
        for name in list(invalid_inputs):
            bad = invalid_inputs[name].change(call)
            if bad is not None:
                check_round_trip(bad)
                del invalid_inputs[name]

    assert drawn(contract.calls(MINIMAL), 3, contract.function, look)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.name)
def test_floats_keep_their_bits(dtype: np.dtype[Any]) -> None:
    """All words of 8 and 16 bits, and NaNs of all payloads, -0.0 and infinities of wider ones."""
    if dtype.itemsize <= 2:
        words = np.arange(2 ** (8 * dtype.itemsize)).astype(f"u{dtype.itemsize}")
        values = words.view(dtype)
    else:
        values = random_bits((40, 50), dtype, seed=3).reshape(-1)
    written = json.loads(to_text(encode_elements(values)))
    assert values.tobytes() == decode_elements(written, dtype).tobytes()
    is_number = [not isinstance(element, str) for element in written]
    with np.errstate(invalid="ignore"):
        assert np.isfinite(values.astype(np.float64)).tolist() == is_number


def test_what_a_number_looks_like() -> None:
    """Ints that a double holds are JSON numbers, others text; a float is marked as one."""
    encode = Encoder().encode
    assert [2**53 - 1, 1 - 2**53] == [encode(2**53 - 1), encode(1 - 2**53)]
    assert {"$": "int", "value": "9007199254740992"} == encode(2**53)
    assert {"$": "int", "value": f"{10**30}"} == encode(10**30)
    assert {"$": "float", "value": 1.0} == encode(1.0)
    assert {"$": "float", "value": "0xfff0000000000000"} == encode(-np.inf)
    assert {"$": "complex", "value": [0.0, -1.5]} == encode(-1.5j)
    assert {"$": "scalar", "dtype": "bool", "value": True} == encode(np.True_)
    assert {"$": "scalar", "dtype": "int64", "value": f"{-(2**63)}"} == encode(np.int64(-(2**63)))
    assert "-0.0" in to_text(encode(-0.0))


def object_that_holds_itself() -> dict[str, Any]:
    """Return a list, a dict and a namespace that contain themselves."""
    context: dict[str, Any] = {"list": []}
    context["list"].append(context)
    context["layer"] = SimpleNamespace(context=context)
    context["layer"].own = context["layer"]
    return context


STRINGS, ARRAY, BACKEND = ["a"], np.arange(10, dtype=np.int16), Backend()
SPEC = reference.FullAttentionSpec(16, 2, 8, np.dtype(np.float16))


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 5, -(2**70), 0.1, float("nan"), -0.0, 2j, b"NHD\xff", 'a\n"é', ""),
        *((), (1, (2,), []), [[]], {}, {3: "a", "b": (1,)}, {1, 2}, frozenset({"a"})),
        *(slice(1, None), slice(np.int32(1), 2**60, -1), int, np.float16, ml_dtypes.bfloat16),
        *(np.dtype(np.int8), np.dtype(object), np.dtype([("a", np.int32), ("b", np.float16)])),
        *(np.float32(0.1), np.uint64(2**64 - 1), reference.AttentionCGSupport.ALWAYS),
        *(SimpleNamespace(kv_cache=[None]), reference.CacheConfig(), reference.UBatchSlice),
        *(np.zeros((), np.int8), np.zeros((2, 0, 3)), np.zeros((0, 2**31), bool)),
        *(np.array([1 + 2j, complex(np.nan, -np.inf)], np.complex64), np.zeros((2, 3)).T),
        *(DEVICE, Own(OwnClass("Layer", OwnClass("Base")), "a", {"window": (4095, 0)})),
        *(guarded([1, 2**62], np.int64, 2), guarded([3, 1, 2], np.int32)[::-1]),
        *(guarded_table([[5, 9], [7]], 3, 3, -1), np.broadcast_to(np.array([7]), (3, 1))),
        # One object at two places, another that is equal to it, and views of one memory.
        *([STRINGS, (STRINGS,), ["a"]], [ARRAY, (ARRAY,), ARRAY.copy()], [BACKEND, (BACKEND,)]),
        *([SPEC, (SPEC,)], [ARRAY[1:4], ARRAY[8:2:-2]], object_that_holds_itself()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_kind_of_value(value: Any) -> None:  # noqa: ANN401  # of every kind
    """Every kind of value in an argument reads back unchanged."""
    check_round_trip(Call("f", {"value": value}))


def test_small_things_look_small() -> None:
    """Unused ids, memory that one array covers, and filler bytes are not written."""
    spec = reference.MultipleOf(4)
    assert {
        "function": "f",
        "arguments": {
            "a": {"$": "array", "dtype": "int32", "shape": [2], "values": [1, 2]},
            "b": ["layers.0"],
            "c": {"$": "object", "class": "reference:MultipleOf", "fields": {"base": 4}},
        },
    } == encode_call(Call("f", {"a": np.array([1, 2], np.int32), "b": ["layers.0"], "c": spec}))
    case = encode_call(Call("f", {"a": guarded([7], np.int64), "b": [spec, spec]}, hints={"h": 1}))
    assert [{"dtype": "int64", "size": 5, "filled_with": "0xaa"}] == case["memories"]
    assert {"memory": 0, "offset_bytes": 16, "strides_bytes": [8]}.items() <= (
        case["arguments"]["a"].items()
    )
    assert {"$": "ref", "id": 0} == case["arguments"]["b"][1]
    assert {"h": 1} == case["hints"]


def test_text_is_for_people() -> None:
    """Lines have at most 100 characters where possible, and a row is on one line."""
    value = {"values": [list(range(20)) for _ in range(30)], "flat": list(range(300))}
    text = to_text(value)
    assert value == json.loads(text)
    assert 100 >= max(map(len, text.splitlines()))
    assert 60 > len(text.splitlines())


def test_functions_answer_as_they_did() -> None:
    """Stored functions return the same constant, or raise the same exception."""

    def read(function: Any) -> Any:  # noqa: ANN401  # a function
        return read_again(Call("f", {"f": function})).arguments["f"]

    shape = [2, 3]
    assert shape == read(lambda *_, **__: shape)(1, a=2)
    with pytest.raises(AttributeError, match="deep inside"):
        read(_raises)()


def test_functions_of_an_earlier_version_are_read() -> None:
    """Functions that are still called are read as classes; the others raise if they are called."""
    module, name = "conformance.invalid_inputs.kv_backends", "_rank_grows.<locals>"
    closure = {"num_blocks": 3, "shape": {"$": "tuple", "items": [3, 5]}}
    node = {"$": "function", "code": f"{module}:{name}.get_kv_cache_shape", "closure": closure}
    found = Decoder().decode({**node, "defaults": []})
    assert [(3, 5), (3, 5, 2)] == [found(3, 1), found(4, 1)]
    changed = Decoder().decode({**node, "code": "conformance.gone:change"})
    with pytest.raises(ValueError, match=r"function conformance\.gone:change is not stored"):
        changed()


def _raises(*_: object) -> None:
    raise AttributeError("deep inside")


@pytest.mark.parametrize(
    ("former", "now"),
    [
        ("conformance.checks:InvalidExample", InvalidExample),
        ("conformance.checks:_Valid", ValidExample),
        ("conformance.factories:Device", Device),
        ("conformance.invocations:CallVariant", CallVariant),
        ("conformance.overwrites:Overwrite", Overwrite),
        ("conformance.strategies.engines:OwnClass", OwnClass),
        ("conformance.strategies.presets:Preset", Preset),
    ],
)
def test_classes_of_moved_modules_are_found(former: str, now: type) -> None:
    """Cases that were stored before a module moved or a class was renamed are still read."""
    assert now is find_class(former)


@pytest.mark.parametrize("package", [strategies, invalid_inputs], ids=lambda one: one.__name__)
def test_classes_of_examples_are_found(package: types.ModuleType) -> None:
    """A case may name each class of data that the strategies define."""
    for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        module = importlib.import_module(found.name)
        for value in vars(module).values():
            is_data = isinstance(value, type) and (is_plain(value) or issubclass(value, Factory))
            if is_data and value.__module__ == found.name and found.name not in OF_CONTRACTS:
                assert class_path(value) == f"{found.name}:{value.__name__}"


OF_CONTRACTS = ("conformance.invalid_inputs.arrays", "conformance.invalid_inputs.kinds")
"""Modules of which no example has an object."""


def test_former_names_of_fields_are_read() -> None:
    """An example that was stored before a field was renamed is still read."""
    encoder = Encoder()
    text = to_text(encoder.finish({"example": encoder.encode([Call("f", {"a": 1}, 7)])}))
    assert '"source"' in text
    stored = json.loads(text.replace('"source"', '"facts"'))
    assert [Call("f", {"a": 1}, 7)] == Decoder(stored.get("memories", {})).decode(stored["example"])


def test_what_the_harness_made_on_the_way() -> None:
    """An instance of a local class keeps the name of the class and its attributes."""
    foreign = type("MultipleOf", (), {"base": True})()
    foreign.more = [1]
    found = read_again(Call("f", {"a": [foreign]})).arguments["a"][0]
    assert ("MultipleOf", True, [1]) == (type(found).__name__, found.base, found.more)
    assert "MultipleOf(...)" == repr(found)


def test_results_are_described_by_what_is_compared() -> None:
    """A result object keeps its class name and `compared` attributes; a class keeps its name."""

    class Built:
        compared = ("rows", "cls")

        def __init__(self, rows: Any, cls: type) -> None:  # noqa: ANN401  # an array
            self.rows, self.cls, self.secret = rows, cls, object()

    rows = np.arange(3)
    encoder = Encoder()
    case = {"rows": encoder.encode(rows)}
    encoder.seal()
    case["result"] = encoder.encode([Built(rows, type("Fast", (), {})), Built(rows[1:], int)])
    case = encoder.finish(case)
    decoder, converter = Decoder(case["memories"]), REFERENCE.converter()
    converted = converter.convert(decoder.decode(case["rows"]), "rows")
    first, second = converter.convert(decoder.decode(case["result"]), "result")
    assert ("Built", ("rows", "cls")) == (type(first).__name__, type(first).compared)
    assert first.rows is converted
    assert np.shares_memory(second.rows, converted)
    assert ["Fast", "int"] == [first.cls.__name__, second.cls.__name__]


class _Unwritable:
    def act(self) -> None:
        """Do something that JSON cannot represent."""


@dataclasses.dataclass
class _Blueprint(Factory):
    def make(self, converter: Any) -> None:  # noqa: ANN401  # a converter
        """Make nothing."""


@pytest.mark.parametrize(
    "value",
    [
        *(
            np.array(["NHD"]),
            np.array([None]),
            np.arange(3).astype(">i4"),
            np.arange(3).view(np.recarray),
        ),
        *(_Unwritable(), print, [].append, json, st.integers(), iter([]), _Blueprint()),
        *(type("Names", (list,), {})(), lambda x: x),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_has_no_form_is_refused(value: Any) -> None:  # noqa: ANN401  # anything
    """A value that would not read back unchanged is refused."""
    with pytest.raises(TypeError):
        encode_call(Call("f", {"value": value}))


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"$": "set of sets"}, "a node of kind 'set of sets' is unknown"),
        *(
            ({"$": "type", "name": name}, f"class {name!r} is none that a stored case may name")
            for name in (
                "os:PathLike",
                "conformance.failures.test_x:X",  # importing a script runs it
                "numpy.f2py.__main__:X",
                "conformance.targets.progress:ctypes.CDLL",
                "conformance.strategies.builders:Preset",  # which that module imports
            )
        ),
        ({"$": "type", "name": "numpy:f2py.main"}, "class 'numpy:f2py.main' does not exist"),
        (
            {"$": "function", "raises": {"class": "numpy:memmap", "message": "file"}},
            "class 'numpy:memmap' is not an exception",
        ),
        (
            {"$": "object", "class": "numpy:vectorize", "fields": {}},
            "class 'numpy:vectorize' is none of objects that a stored case may have",
        ),
        (json.loads("[" * 101 + "]" * 101), "values are nested more than 100 deep"),
        ({"$": "type", "name": "reference:kv_reads"}, "class 'reference:kv_reads' is not a class"),
        ({"$": "type", "name": "reference:Gone"}, "class 'reference:Gone' does not exist"),
        ({"$": "dtype", "name": "int33"}, "dtype 'int33' is unknown"),
        ({"$": "scalar", "dtype": "int8", "value": 128}, "128 is not a value of int8"),
        ({"$": "scalar", "dtype": "int8", "value": True}, "True is not a value of int8"),
        ({"$": "scalar", "dtype": "float16", "value": 0.1}, "0.1 is not a value of float16"),
        (
            {"$": "array", "dtype": "int8", "shape": [2], "values": [1]},
            "values have 1 entries on an axis of 2",
        ),
        (
            {"$": "array", "dtype": "int8", "shape": [0], "values": [1]},
            "values are not empty, but the shape is (0,)",
        ),
        (
            {
                "$": "array",
                "dtype": "int8",
                "shape": [3],
                "values": [1, 2, 3],
                "memory": 0,
                "offset_bytes": 2,
                "strides_bytes": [1],
            },
            "an array reaches outside memory 0",
        ),
    ],
)
def test_what_cannot_be_read_is_refused(node: Any, message: str) -> None:  # noqa: ANN401  # JSON
    """Data that does not match the schema, or is missing, is refused with a sentence."""
    with pytest.raises(ValueError, match=r".") as refusal:
        Decoder([{"dtype": "int8", "size": 4}]).decode(node)
    assert message in str(refusal.value)


def test_nans_of_every_dtype_are_drawn() -> None:
    """`FLOATS` has every dtype that embeddings can have."""
    assert set(NAN_BITS) <= set(FLOATS)
