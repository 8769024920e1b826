"""Stories as files: the round trip is exact; a broken or hostile file is an error that names it."""

from __future__ import annotations

import base64
import copy
import json
import math
import struct
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import reference
from conformance.harness.cases import DTYPES, decode, encode, load, store
from conformance.harness.story import Circumstances, Story
from conformance.harness.values import root_of


def trip(story: Story) -> Story:
    return decode(json.loads(json.dumps(encode(story), allow_nan=False)))


def same(a: object, b: object) -> bool:
    assert type(a) is type(b)
    if isinstance(a, np.ndarray | np.generic):
        return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) or hasattr(a, "__dict__"):
        fields = [[*(x if isinstance(x, dict) else vars(x)).items()] for x in (a, b)]
        return same(*fields)
    return bool(a == b)


def all_bits(dtype: np.dtype[Any]) -> st.SearchStrategy[Any]:
    shapes = npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=20)

    def of_shape(shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
        size = math.prod(shape) * dtype.itemsize
        mask = 1 if dtype.kind == "b" else 255
        return st.binary(min_size=size, max_size=size).map(
            lambda data: np.array([*data], np.uint8).__and__(mask).view(dtype).reshape(shape)
        )

    return shapes.flatmap(of_shape)


arrays = st.sampled_from([*DTYPES.values()]).flatmap(all_bits)
hashable = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.sampled_from([-(2**2000), -(2**64), -0.0, np.int8(-3), np.float32("nan"), np.dtype("f2")])
    | st.just(reference.UBatchSlice)
    | st.builds(reference.UBatchSlice, st.just(slice(0, 2)), st.just(slice(1, None, 2)))
)
values = st.recursive(
    hashable | arrays,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.integers() | st.text() | st.tuples(st.booleans()), inner, max_size=4)
        | st.sets(st.integers() | st.text(), max_size=4)
        | st.builds(lambda a, b: SimpleNamespace(a=a, b=b), inner, inner)
    ),
    max_leaves=8,
)


@given(
    st.dictionaries(st.text(), values, max_size=4), st.none() | st.dictionaries(st.text(), values)
)
def test_round_trip_is_exact(arguments: dict[str, Any], other: dict[str, Any] | None) -> None:
    how = Circumstances(("strided", "offset"), is_negated=True, mode="inference")
    story = Story("f", arguments, other, how, ("in_threads",), 3, ("m", "seq_lens", 3))
    assert same(vars(story), vars(trip(story)))


def test_one_object_stays_one_and_views_share_memory() -> None:
    memory = np.arange(40, dtype=np.int32)
    starts, fields = memory[:4], [1, 2]
    arguments = {
        "starts": starts,
        "again": (starts, {"of": fields}),
        "fields": fields,
        "backward": memory[20:3:-2],
        "columns": memory.reshape(5, 8)[:, 2:4].T,
        "bytes": memory[1:3].view(np.uint8),
        "empty": memory[:0],
    }
    story = trip(Story("f", arguments, {"starts": starts}))
    found, other = story.arguments, story.other or {}
    assert same(arguments, found)
    assert found["again"][0] is found["starts"] is other["starts"]
    assert found["again"][1]["of"] is found["fields"]
    assert arguments["columns"].strides == found["columns"].strides
    for name in ("starts", "backward", "columns", "bytes"):
        arguments[name].reshape(-1)[0] = found[name].reshape(-1)[0] = 77
        arguments[name][..., -1] = found[name][..., -1] = 78
    assert same(arguments, found)


def test_metadata_that_lacks_a_field(tmp_path: Path) -> None:
    starts = np.array([0, 1], np.int32)
    metadata = reference.CommonAttentionMetadata.__new__(reference.CommonAttentionMetadata)
    vars(metadata).update(query_start_loc=starts, query_start_loc_cpu=starts, num_reqs=1)
    story = Story("split_attn_metadata", {"common_attn_metadata": metadata}, changed=("m", 0))
    path = store(story, tmp_path, "host", "result[0] = 1, but should be 2")
    assert path.name.startswith("split_attn_metadata-")
    assert path == store(copy.deepcopy(story), tmp_path, "native", "other")
    (case,) = load(tmp_path)
    assert (path, "native", "other") == (case.path, case.target, case.difference)
    found = case.story.arguments["common_attn_metadata"]
    assert found.query_start_loc is found.query_start_loc_cpu
    assert not hasattr(found, "seq_lens")


def test_large_values_are_read_exactly() -> None:
    assert trip(Story("f", {"size": 10**5000})).arguments == {"size": 10**5000}
    owner = np.arange(1000)
    found = trip(Story("f", {"a": owner[:400], "b": owner[1:]})).arguments
    assert root_of(found["a"]) is root_of(found["b"])
    assert np.int64 == root_of(found["a"]).dtype


def test_what_cannot_be_stored() -> None:
    for value in (open, object(), np.array([None]), np.array("x"), np.zeros(2, "i4,f8"), Path()):
        with pytest.raises(TypeError, match="cannot be stored"):
            encode(Story("f", {"a": [value]}))


def nested(depth: int) -> object:
    return [nested(depth - 1)] if depth else 0


ARRAY = {"$": "ndarray", "dtype": "int32", "shape": [2], "values": [1, 2]}
PACKED = base64.b64encode(zlib.compress(bytes(10**6))).decode()
BROKEN = {
    "class of another module": {"$": "os.PathLike", "fields": {}},
    "function of reference": {"$": "compute_slot_mapping", "fields": {}},
    "unknown kind": {"$": "import", "items": ["os"]},
    "no kind": {"items": []},
    "kind is a list": {"$": [], "items": []},
    "unknown dtype": {**ARRAY, "dtype": "object"},
    "too few values": {**ARRAY, "shape": [3]},
    "another shape": {**ARRAY, "shape": [2, 1]},
    "shape is text": {**ARRAY, "shape": "ab"},
    "negative size": {**ARRAY, "shape": [-1]},
    "a terabyte": {**ARRAY, "shape": [2**40]},
    "a terabyte of none": {**ARRAY, "shape": [0, 2**80]},
    "a terabyte, packed": {"$": "ndarray", "dtype": "int8", "shape": [2**40], "zlib": PACKED},
    "other bytes": {"$": "ndarray", "dtype": "int8", "shape": [9], "zlib": PACKED},
    "no bytes": {"$": "ndarray", "dtype": "int8", "shape": [9], "zlib": "AAAA"},
    "value too large": {**ARRAY, "values": [1, 2**31]},
    "value is a float": {**ARRAY, "values": [1, 2.5]},
    "value is text": {**ARRAY, "values": [1, "2"]},
    "view outside": {**ARRAY, "of": ARRAY, "offset": 4, "strides": [4]},
    "view before": {**ARRAY, "of": ARRAY, "offset": -4, "strides": [4]},
    "view of a terabyte": {**ARRAY, "shape": [2**40], "of": ARRAY, "offset": 0, "strides": [0]},
    "view of no array": {**ARRAY, "of": 3, "offset": 0, "strides": [4]},
    "unknown id": {"$": "ref", "id": 7},
    "unhashable key": {"$": "dict", "items": [[[], 1]]},
    "too deep": nested(99),
    "int is not hex": {"$": "int", "hex": "xyz"},
}


STORED = json.dumps(encode(Story("f", {})))
TEXTS = [
    *("", "{", "[]", "3", "[" * 100_000),
    *('{"schema_version": "2.0"}', '{"schema_version": "3.0"}'),
    '{"schema_version": "3.0", "story": 3}',
    '{"schema_version": "3.0", "story": {"$": "Story", "fields": {}}}',
    STORED.replace('"f"', "7"),
    STORED.replace("[]", "[1]").replace("false", "0"),
]


def test_broken_files(tmp_path: Path) -> None:
    path = tmp_path / "case.json"
    broken = [text.encode() for text in TEXTS] + [b"\xff"]
    for value in BROKEN.values():
        case = encode(Story("f", {"a": 1}))
        case["story"]["fields"]["arguments"]["fields"]["a"] = value
        broken.append(json.dumps(case).encode())
    for text in broken:
        path.write_bytes(text)
        with pytest.raises(ValueError, match=r"case\.json: ."):
            load(path)
    with pytest.raises(ValueError, match=r"none\.json: No such file"):
        load(tmp_path / "none.json")
