"""Sequences of steps on the KV cache layout: it is set, read, and set from outside."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from conformance.coverage.presets import Preset
from conformance.strategies import cached as st
from conformance.strategies.repeated import repeated
from conformance.values.call import Call

TEXT_LENGTH: Final = "length of the text"

LAYOUTS = ("NHD", "HND")

INVALID_LAYOUTS: tuple[Callable[[], object], ...] = (
    *(lambda text=text: text for text in ("", "nhd", "HND ", "NHDX", "DHN", "None", "NHD,HND")),
    *(lambda value=value: value for value in (0, True, 1.5, b"NHD", ("NHD", "HND"), ("NHD",))),
    lambda: ["NHD"],
    lambda: {"NHD": 1},
    lambda: {"HND"},
    *(lambda values=values: np.array(values) for values in ([0, 1], [], [2.5], 1, [[1], [0]])),
    object,
    lambda: str,
    lambda: np.array(["NHD", "HND"]),
    lambda: np.array("NHD"),
)
"""Makers of values that are not layouts, of all types; the last two are arrays of text."""

NUM_CONVERTIBLE = len(INVALID_LAYOUTS) - 2
"""The number of them that every implementation can take; torch has no arrays of text."""


VARIABLE: Final = "VLLM_KV_CACHE_LAYOUT"
"""The environment variable that a layout is read from."""

OVERRIDE: Final = "_KV_CACHE_LAYOUT_OVERRIDE"
"""The attribute with the layout that was set, in an implementation that has it."""


@dataclasses.dataclass(frozen=True, repr=False)
class Step:
    """One step on the layout.

    Attributes:
        what: A call of "set" or "get", or a write to the "attribute" or the "environment".
        value: The new value, None to remove it; an int is an index in `INVALID_LAYOUTS`.
    """

    what: str
    value: str | int | None = None

    def made(self) -> Any:
        """Return the value."""
        return INVALID_LAYOUTS[self.value]() if isinstance(self.value, int) else self.value

    def __repr__(self) -> str:
        value = repr(self.made())
        if self.what == "environment":
            name = f"os.environ[{VARIABLE!r}]"
            return f"del {name}" if self.value is None else f"{name} = {value}"
        words = {
            "get": "get_kv_cache_layout()",
            "set": f"set_kv_cache_layout({value})",
            "attribute": f"{OVERRIDE} = {value}",
        }
        return words.get(self.what, value)


@st.composite
def is_valid_calls(draw: st.DrawFn, preset: Preset) -> Call:
    """Draw calls of `is_valid_kv_cache_layout`, of values of any type."""
    if preset.axis == TEXT_LENGTH:
        text = "".join(repeated(draw, preset, TEXT_LENGTH, "NHD"))
        return Call("is_valid_kv_cache_layout", {"value": text}, text)
    number = draw(
        st.one_of(st.sampled_from(LAYOUTS), st.integers(0, NUM_CONVERTIBLE - 1), st.none())
    )
    return Call("is_valid_kv_cache_layout", {"value": Step("", number).made()}, number)


@st.composite
def histories(draw: st.DrawFn, _preset: Preset) -> tuple[Step, ...]:
    """Draw steps on a layout; it is read after most changes, and at the end."""
    known = st.sampled_from((*LAYOUTS, *LAYOUTS, None))
    strange = st.integers(0, len(INVALID_LAYOUTS) - 1)
    texts = st.integers(0, 6)
    steps = [Step("get")] if draw(st.booleans()) else []
    start = draw(st.sampled_from(("nothing", "set and removed", "set over the environment")))
    first, second = draw(st.sampled_from((LAYOUTS, LAYOUTS[::-1])))
    if start == "set and removed":
        steps += [Step("set", first), Step("get"), Step("set"), Step("get")]
    elif start == "set over the environment":
        steps += [Step("environment", first), Step("set", second), Step("get")]
    for _ in range(draw(st.integers(1, 6))):
        what = draw(st.sampled_from(("set", "set", "environment", "environment", "attribute")))
        odd = texts if what == "environment" else strange
        steps.append(Step(what, draw(st.one_of(known, known, known, odd))))
        if draw(st.MOSTLY):
            steps.append(Step("get"))
    return (*steps, Step("get"))
