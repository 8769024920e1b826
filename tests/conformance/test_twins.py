"""The twins offer the same names, with the same parameters in the same order."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import pytest

import fast
import reference

REFERENCE_ALONE = {"kv_reads", "kv_writes"}
FAST_ALONE = {"checks", "warmup"}
KEYWORDS_OF_FAST = {
    "compute_causal_conv1d_metadata": "query_start_loc_p_cpu",
    "gather_mm_placeholders": "num_embeds",
    "make_kv_sharing_fast_prefill_common_attn_metadata": "logits_indices_cpu",
}
"""What spares a function of `fast` waiting for the device, and means nothing to `reference`."""

SHARED = sorted(set(reference.__all__) - REFERENCE_ALONE)
CLASSES = [name for name in SHARED if inspect.isclass(getattr(reference, name))]
FUNCTIONS = [name for name in SHARED if inspect.isfunction(getattr(reference, name))]


def parameters(function: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    """Return the name, kind and default of each parameter."""
    found = inspect.signature(function).parameters.values()
    return [(p.name, p.kind, p.default) for p in found]


def test_the_twins_offer_the_same_names() -> None:
    """Each name is in both twins, but for those that belong to one alone."""
    assert set(reference.__all__) - REFERENCE_ALONE == set(fast.__all__) - FAST_ALONE
    assert len(SHARED) >= 25


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_take_the_same_parameters(name: str) -> None:
    """A function has the same parameters, in order, and defaults, but for keywords of `fast`."""
    theirs = parameters(getattr(fast, name))
    if name in KEYWORDS_OF_FAST:
        alone = (KEYWORDS_OF_FAST[name], inspect.Parameter.KEYWORD_ONLY, None)
        assert alone == theirs.pop()
    assert parameters(getattr(reference, name)) == theirs


def test_keywords_of_fast_are_of_functions_that_are_there() -> None:
    """The table of keywords names no function that is gone."""
    assert set(FUNCTIONS) >= set(KEYWORDS_OF_FAST)


@pytest.mark.parametrize("name", CLASSES)
def test_classes_have_the_same_methods(name: str) -> None:
    """A class is made in the same way, and its public methods take the same parameters."""
    ours, theirs = getattr(reference, name), getattr(fast, name)
    assert parameters(ours) == parameters(theirs)
    for method, function in inspect.getmembers(ours, inspect.isfunction):
        if not method.startswith("_"):
            assert parameters(function) == parameters(getattr(theirs, method)), method


@pytest.mark.parametrize("name", [n for n in CLASSES if n.endswith("Config")])
def test_configs_have_the_same_fields(name: str) -> None:
    """A config has the same fields in the same order, and its defaults are the same."""
    fields = [
        [(f.name, f.default, getattr(f.default_factory, "__name__", None)) for f in found]
        for found in (
            dataclasses.fields(getattr(reference, name)),
            dataclasses.fields(getattr(fast, name)),
        )
    ]
    assert fields[0] == fields[1]


@pytest.mark.parametrize("name", sorted(REFERENCE_ALONE))
def test_what_a_batch_means_is_said_by_reference_alone(name: str) -> None:
    """The access relation is in `reference` alone."""
    assert hasattr(reference, name)
    assert not hasattr(fast, name)
