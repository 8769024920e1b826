"""The lines of which scripts are made, beside what they call."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from conformance.script.arrays import is_odd
from conformance.values import compared_fields

TENSOR = """
def tensor(values, dtype): return torch.tensor(values, dtype=getattr(torch, dtype))
"""

TENSOR_BY_BITS = """
def tensor(values, dtype):  # of the bits that NumPy's array has
    made = np.array(values, dtype)
    flat = torch.from_numpy(made.reshape(-1).view(np.uint8)).view(getattr(torch, dtype))
    return flat.reshape(made.shape)
"""

STRIDED = """
def strided(memory, shape, strides, at):  # strides and offset in elements
    if isinstance(memory, torch.Tensor): return memory.as_strided(shape, strides, at)
    steps = [stride * memory.itemsize for stride in strides]
    return np.lib.stride_tricks.as_strided(memory.reshape(-1)[at:], shape, steps)
"""

START = """
def told(value, path):  # yields facts: (0: what a thing is, 1: its values; where; what; its bits)
"""

ARRAYS = """
    if isinstance(value, (torch.Tensor, np.ndarray)):
        value = {to_numpy} if isinstance(value, torch.Tensor) else value
        yield from ((0, f"{path}.{fact}", str(getattr(value, fact))) for fact in ("shape", "dtype"))
        yield from ((1, f"{path}{list(i)}", str(x), x.tobytes()) for i, x in np.ndenumerate(value))
        return
"""

DTYPES = """
    is_dtype = isinstance(value, (torch.dtype, np.dtype))
    value = str(value).removeprefix("torch.") if is_dtype else value
"""

ENUMS = """
    value = value.name if hasattr(type(value), "__members__") else value
"""

SETS = """
    value = sorted(map(str, value)) if isinstance(value, (set, frozenset)) else value
"""

SLICES = """
    value = (value.start, value.stop, value.step) if isinstance(value, slice) else value
"""

TYPES = """
    yield 0, f"type({path})", type(value).__name__
"""

OBJECTS = """
    names = getattr(value, "compared", None) or getattr(value, "__dataclass_fields__", None)
    names = () if isinstance(value, type) else names or getattr(value, "__dict__", ())
    inner = [(f".{name}", getattr(value, name, "absent")) for name in names]
"""

SEQUENCES = """
    if isinstance(value, (list, tuple, dict)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        inner = [(f"[{key!r}]", part) for key, part in items]
"""

INSIDE = """
    yield 0, f"len({path})", len(inner)
    for name, part in inner: yield from told(part, path + name)
"""

VALUES = (
    "    if isinstance(value, (int, float, str, type)):"
    ' yield 1, path, getattr(value, "__name__", str(value))'
)

COMPARE = """
def compare(wanted, got):  # ends the script at the first difference
    def facts(a): return sorted((f for n in a for f in told(a[n], n)), key=lambda fact: fact[0])
    for want, have in itertools.zip_longest(*map(facts, (wanted, got)), fillvalue=(0, "end", "-")):
        if want != have: sys.exit(f"{have[1]} = {have[2]}, but should be {want[2]}")
"""

PLAIN = "value.detach().cpu().numpy()"

BY_BITS = (
    "value.detach().cpu().clone(memory_format=torch.contiguous_format).reshape(-1)"
    ".view(torch.uint8).numpy().view(str(value.dtype)[6:]).reshape(value.shape)"
)


def lines_of(*texts: str) -> list[str]:
    """Return the lines of some pieces of a script."""
    return [line for text in texts for line in text.strip("\n").splitlines()]


def comparison_of(values: Iterable[Any]) -> list[str]:
    """Return the functions of a script that find the first difference of an answer.

    Args:
        values: What is expected, as `reference` answers; a script tells apart no other kinds.
    """
    kinds = set()
    for value in values:
        kinds |= set(_kinds(value, 0))
    arrays = ARRAYS.replace("{to_numpy}", BY_BITS if "odd" in kinds else PLAIN)
    has_inner = bool(kinds & {"object", "sequence"})
    branches = (
        ("dtype" in kinds, DTYPES),
        ("array" in kinds, arrays),
        ("enum" in kinds, ENUMS),
        ("set" in kinds, SETS),
        ("slice" in kinds, SLICES),
        (True, TYPES),
        ("object" in kinds, OBJECTS),
        (has_inner and "object" not in kinds, "    inner = []"),
        ("sequence" in kinds, SEQUENCES),
        (has_inner, INSIDE),
        (True, VALUES),
    )
    return lines_of(START, *(text for is_met, text in branches if is_met), COMPARE)


def _kinds(value: Any, depth: int) -> Iterator[str]:  # noqa: C901  # one for each kind
    """Yield the kinds of values in a tree."""
    inner: list[Any] = []
    if isinstance(value, np.ndarray):
        yield "array"
        if is_odd(value.dtype):
            yield "odd"
    elif isinstance(value, np.dtype):
        yield "dtype"
    elif isinstance(value, enum.Enum):
        yield "enum"
    elif isinstance(value, dict):
        yield "sequence"
        inner = list(value.values())
    elif isinstance(value, list | tuple):
        yield "sequence"
        inner = list(value)
    elif isinstance(value, set | frozenset):
        yield from ("set", "sequence")
    elif isinstance(value, slice):
        yield from ("slice", "sequence")
    elif compared_fields(value):
        yield "object"
        inner = [getattr(value, name, None) for name in compared_fields(value)]
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        yield "object"
        inner = list(vars(value).values())
    for part in inner if depth < 8 else ():
        yield from _kinds(part, depth + 1)
