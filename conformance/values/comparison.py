"""The exact comparator: finds the first difference between an expected and an actual result.

`reference` returns NumPy arrays, a target tensors, so two trees are walked side by side. Structure
is compared before values, over the whole tree: type, shape, dtype, device; then values, bit for
bit. There is no tolerance anywhere. If only a type, a dtype or a device differs, the values are
compared too, as numbers: a wrong value is reported first.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

import numpy as np
import torch

from conformance.values.aliases import is_guessed
from conformance.values.differences import Difference, Finding, Index, Verdict, most_severe
from conformance.values.parts import child_path, children, has_entries, has_only_plain

GOT, EXPECTED = "got       ", "expected  "
"""Prefixes of the report lines that show the actual and the expected values."""

ResultName: TypeAlias = str | tuple[str, ...]
"""The name of a result, or the names of the entries of a returned tuple."""

NUMPY_IN_BOTH_TWINS = frozenset({"encoder_seq_lens", "num_scheduled_tokens"})
"""Fields that hold a NumPy array in `fast` too."""

ON_HOST = frozenset({"cpu", "mlist", "nums", "offsetlist"})
"""Fields that hold a tensor on the CPU, though their names do not end in `_cpu`."""


def first_difference(
    expected: object, actual: object, path: ResultName = "result", device: str = "cpu"
) -> Difference | None:
    """Return the first difference between an expected and an actual answer, or None.

    Args:
        expected: The answer of `reference`: NumPy arrays, Python scalars, None, slices, and tuples,
            lists, dicts and dataclasses of these.
        actual: The answer of a target: the same with torch tensors for arrays.
        path: The name of the answer in messages; or, for a tuple, the names of its entries.
        device: The required device type of tensors. Tensors in fields whose name ends in `_cpu`
            or is in `ON_HOST` must be on the CPU.

    Returns:
        The first difference that makes the answer wrong; structure comes before values. If there
        is none, the first difference of type, dtype or device.

    >>> first_difference([1, 2], [1, 3]).line
    'result[1] = 3, but should be 2'
    >>> first_difference(np.zeros(2, np.int32), torch.zeros(2, dtype=torch.int64)).line
    'result.dtype = torch.int64, but should be torch.int32'
    >>> first_difference({"slots": np.arange(3)}, {"slots": torch.tensor([0, 1, 9])}).line
    "result['slots'][2] = 9, but should be 2"
    >>> first_difference((1, 2), (1, 3), ("num_decodes", "num_prefills")).line
    'num_prefills = 3, but should be 2'
    >>> first_difference((np.arange(3), 5), (torch.arange(3), 5)) is None
    True
    """
    found = most_severe(_differences(expected, actual, path, device))
    if found is None or found.verdict is not Verdict.VALUE or isinstance(path, str):
        return found
    return dataclasses.replace(found, context=_entries(expected, actual, path) or found.context)


def _entries(expected: Any, actual: Any, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return all entries of a tuple with named entries, as report lines, if they are ints."""
    if not isinstance(actual, tuple) or not all(isinstance(v, int) for v in (*expected, *actual)):
        return ()
    return tuple(
        whose + ", ".join(f"{name} {value}" for name, value in zip(names, values, strict=True))
        for whose, values in ((GOT, actual), (EXPECTED, expected))
    )


_Leaf: TypeAlias = tuple[object, object, str]


def _differences(
    expected: object, actual: object, path: ResultName, device: str
) -> Iterator[Difference]:
    leaves: list[_Leaf] = []
    for leaf in _walk(expected, actual, path):
        if not isinstance(leaf, Difference) and is_guessed(leaf[1]):
            continue
        found = leaf if isinstance(leaf, Difference) else _structure(*leaf, device)
        if found is not None:
            yield found
        elif not isinstance(leaf, Difference):
            leaves.append(leaf)
    for leaf in leaves:
        found = _values(*leaf)
        if found is not None:
            yield found


def _walk(expected: Any, actual: Any, path: ResultName) -> Iterator[_Leaf | Difference]:
    """Yield the leaves of two trees side by side, and the differences of their shapes.

    Equal lists of plain leaves are skipped, since they may be long.
    """
    if _are_equal_lists(expected, actual):
        return
    inside, is_entry = children(expected), has_entries(expected)
    whole = path if isinstance(path, str) else "result"
    if not (inside or is_entry):
        yield expected, actual, whole
        return
    difference = _tree_difference(expected, actual, whole)
    if difference is not None:
        yield difference
        if difference.finding is Finding.WRONG_ANSWER:
            return
    for key, child in inside.items():
        where = path[key] if isinstance(path, tuple) else child_path(path, key, is_entry=is_entry)
        if is_entry:
            yield from _walk(child, actual[key], where)
        elif hasattr(actual, key):
            yield from _walk(child, getattr(actual, key), where)
        else:
            yield Difference(Verdict.SHAPE, where, None, "absent", "a field")
            return


def _are_equal_lists(expected: Any, actual: Any) -> bool:
    """Return whether two lists or tuples have the same plain leaves, of the same types."""
    return (
        type(actual) is type(expected)
        and has_only_plain(expected)
        and [*map(type, actual)] == [*map(type, expected)]
        and bool(actual == expected)
    )


def _tree_difference(expected: Any, actual: Any, path: str) -> Difference | None:
    """Compare the type of a collection or an object, and its keys or its length."""
    is_same_type = type(actual).__name__ == type(expected).__name__
    if not is_same_type and not _has_same_parts(expected, actual):
        return dataclasses.replace(_type_difference(expected, actual, path), verdict=Verdict.VALUE)
    if not is_same_type:
        return _type_difference(expected, actual, path)
    if not has_entries(expected):
        return None
    what, count = ("list", list) if isinstance(expected, Mapping) else ("len", len)
    got, expected_count = count(actual), count(expected)
    is_same = got == expected_count
    return (
        None if is_same else Difference(Verdict.SHAPE, f"{what}({path})", None, got, expected_count)
    )


def _has_same_parts(expected: Any, actual: Any) -> bool:
    """Return whether a value of another type has the same keys, length or fields."""
    for kind in (list | tuple, Mapping):
        if isinstance(expected, kind):
            return isinstance(actual, kind) and [*children(actual)] == [*children(expected)]
    return all(hasattr(actual, name) for name in children(expected))


@functools.lru_cache(4096)
def field_name(path: str) -> str:
    """Return the last name in a path: `query_start_loc` of `result[0].query_start_loc`.

    >>> field_name("result[1].seq_lens_cpu"), field_name("result['a'][0]"), field_name("result")
    ('seq_lens_cpu', 'a', 'result')
    >>> field_name("result['layers.0.attn.1'][2]")
    'layers.0.attn.1'
    """
    found = re.findall(r"\['(.*?)'\]|([^\W\d]\w*)", path)
    return "".join(found[-1])


def _type_difference(expected: object, actual: object, path: str) -> Difference:
    kinds = type(actual), type(expected)
    names = [kind.__name__ for kind in kinds]
    if names[0] == names[1]:  # NumPy's bool is not Python's
        names = [f"{kind.__module__}.{kind.__name__}" for kind in kinds]
    return Difference(Verdict.TYPE, f"type({path})", None, names[0], names[1])


@functools.cache
def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    """Return torch's dtype of the same name.

    >>> torch_dtype(np.dtype("int32")), torch_dtype(np.dtype("bool"))
    (torch.int32, torch.bool)
    """
    found = getattr(torch, dtype.name)
    if not isinstance(found, torch.dtype):
        raise TypeError(f"torch has no dtype {dtype.name}")
    return found


def _structure(expected: object, actual: object, path: str, device: str) -> Difference | None:
    """Compare type, shape, dtype and device of one leaf."""
    if isinstance(expected, np.dtype):
        expected_dtype = torch_dtype(expected)
        is_so = actual is expected_dtype
        return None if is_so else Difference(Verdict.VALUE, path, None, actual, expected_dtype)
    if isinstance(expected, np.ndarray):
        found = _array_structure(expected, actual, path, device)
    else:
        found = None if _is_alike(expected, actual) else _type_difference(expected, actual, path)
    if found is None or found.finding is Finding.WRONG_ANSWER:
        return found
    return _difference_of_numbers(expected, actual, path, found)


def _difference_of_numbers(
    expected: Any, actual: Any, path: str, found: Difference
) -> Difference | None:
    """Return a difference of type, dtype or device if the numbers agree, or else one of values."""
    try:
        ours, theirs = (
            np.array(value.tolist() if hasattr(value, "tolist") else value, object)
            for value in (expected, actual)
        )
        if ours.shape == theirs.shape:
            unequal = np.argwhere((ours != theirs) & ((ours == ours) | (theirs == theirs)))  # noqa: PLR0124  # NaN
            if not len(unequal):
                return found
            index = tuple(map(int, unequal[0]))
            got, should_be = _quoted(theirs[index]), _quoted(ours[index])
            return Difference(Verdict.VALUE, path, index or None, got, should_be)
    except Exception:  # noqa: BLE001, S110  # what cannot be read is not the expected value
        pass
    return dataclasses.replace(found, verdict=Verdict.VALUE)


def _quoted(value: object) -> object:
    """Return a value as a difference shows it: strings get quotes, to tell "None" from None."""
    return repr(value) if type(value) is str else value


def _is_alike(expected: object, actual: object) -> bool:
    """Return whether a value that is not an array is of the expected type.

    Each implementation has its own enums and classes, which are compared by name.
    """
    if isinstance(expected, type):
        return isinstance(actual, type)
    if isinstance(expected, enum.Enum):
        return type(actual).__name__ == type(expected).__name__
    return type(actual) is type(expected)


def _array_structure(
    expected: np.ndarray[Any, Any], actual: Any, path: str, device: str
) -> Difference | None:
    """Compare type, shape, dtype and device of an array."""
    name = field_name(path)
    expected_count = np.ndarray if name in NUMPY_IN_BOTH_TWINS else torch.Tensor
    if not isinstance(actual, np.ndarray | torch.Tensor) or type(actual) is not expected_count:
        where = f"type({path})"
        return Difference(Verdict.TYPE, where, None, type(actual).__name__, expected_count.__name__)
    is_tensor = isinstance(actual, torch.Tensor)
    dtype = torch_dtype(expected.dtype) if is_tensor else expected.dtype
    is_on_host = name.endswith("_cpu") or name in ON_HOST or not is_tensor
    place = "cpu" if is_on_host else device
    facts = (
        (Verdict.SHAPE, "shape", tuple(actual.shape), expected.shape),
        (Verdict.DTYPE, "dtype", actual.dtype, dtype),
        (Verdict.DEVICE, "device", torch.device(actual.device).type, place),
    )
    for verdict, fact, got, should_be in facts:
        if got != should_be:
            return Difference(verdict, f"{path}.{fact}", None, got, should_be)
    return None


def _values(expected: object, actual: object, path: str) -> Difference | None:
    """Compare the values of one leaf, whose structure is equal."""
    if isinstance(expected, np.dtype):
        return None
    is_named = isinstance(expected, enum.Enum | type)
    if is_named:
        expected, actual = _name(expected), _name(actual)
    if not isinstance(expected, np.ndarray):
        if actual == expected or (expected != expected and actual != actual):  # noqa: PLR0124  # NaN
            return None
        found = (actual, expected) if is_named else (_quoted(actual), _quoted(expected))
        return Difference(Verdict.VALUE, path, None, *found)
    index = first_unequal(expected, actual)
    if index is None:
        return None
    got, should_be = actual[index], expected[index]  # type: ignore[index]  # as its structure is
    values = got.item(), should_be.item()
    if str(values[0]) == str(values[1]):  # NaNs of different bits
        values = f"{values[0]} (0x{_bits(got)})", f"{values[1]} (0x{_bits(should_be)})"
    context = _around(expected, actual, path, index)
    return Difference(Verdict.VALUE, path, index, *values, context)


NUM_AROUND: Final = 3
"""Elements that are shown before and after the first one that differs."""

LARGE: Final = 10**6
"""Rows with an element of this size are not shown: they do not fit on a line."""


def _around(
    expected: np.ndarray[Any, Any], actual: Any, path: str, index: Index
) -> tuple[str, ...]:
    """Return how many elements differ, and those around the first one, in its row."""
    if expected.size < 2 or expected.dtype.kind not in "biu":
        return ()
    *row, at = index
    first, stop = max(at - NUM_AROUND, 0), min(at + NUM_AROUND + 1, expected.shape[-1])
    where = f"{path}[{', '.join(map(str, [*row, f'{first}:{stop}']))}]"
    around: Any = (*row, slice(first, stop))
    got, wanted = (values[around].tolist() for values in (actual, expected))
    unequal = as_bytes(expected) != as_bytes(actual)
    number, total = int(unequal.any(axis=-1).sum()), expected.size
    differ = f"{number:,} of {total:,} elements {'differs' if number == 1 else 'differ'}"
    if max(map(abs, (*got, *wanted))) >= LARGE:
        return (differ,)
    return (f"{differ}; {where}:", f"{GOT}{got}", f"{EXPECTED}{wanted}")


def _bits(element: Any) -> str:
    """Return the bytes of an element of an array or a tensor as hex, most significant first.

    >>> _bits(np.float32(1)), _bits(torch.tensor(1.0))
    ('3f800000', '3f800000')
    """
    if isinstance(element, torch.Tensor):
        element = element.detach().cpu().reshape(1).view(torch.uint8).numpy()
    return bytes(element.tobytes()[::-1]).hex()


def _name(value: Any) -> str:
    """Return the name of a class, or of an enum's member."""
    return str(value.__name__ if isinstance(value, type) else value.name)


def first_unequal(expected: np.ndarray[Any, Any], actual: object) -> Index | None:
    """Return the first index at which two arrays of one shape and dtype differ in a bit.

    >>> first_unequal(np.array([0.0, 0.0]), torch.tensor([0.0, -0.0], dtype=torch.float64))
    (1,)
    """
    unequal = as_bytes(expected) != as_bytes(actual)
    if not unequal.any():
        return None
    flat = int(np.flatnonzero(unequal.any(axis=-1))[0])
    return tuple(int(i) for i in np.unravel_index(flat, expected.shape))


def as_bytes(array: object) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the bytes of an array or tensor, one row for each element."""
    if isinstance(array, torch.Tensor) and _has_numpy_view(array):
        array = array.detach().numpy()
    elif isinstance(array, torch.Tensor):
        # A copy: torch calls a view of one element contiguous whatever its stride is. Copies from a
        # device lose the sign of a strided lazy negation (torch 2.11), so it is resolved first.
        flat = torch.empty(array.numel(), dtype=array.dtype)
        flat.copy_(array.detach().resolve_neg().reshape(-1))
        data = flat.view(torch.uint8).numpy()
        return data.reshape(flat.numel(), array.element_size())
    contiguous = np.ascontiguousarray(array).reshape(-1)
    return contiguous.view(np.uint8).reshape(contiguous.size, contiguous.itemsize)


_IN_NUMPY = frozenset(map(torch_dtype, map(np.dtype, "?bhilBefd")))
"""The dtypes of tensors that NumPy has too."""


def _has_numpy_view(tensor: torch.Tensor) -> bool:
    """Return whether NumPy can view a tensor without a copy."""
    return tensor.device.type == "cpu" and tensor.dtype in _IN_NUMPY and not tensor.is_neg()
