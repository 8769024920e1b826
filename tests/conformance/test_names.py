"""The public names of both packages, and their parameters, are those of `public_names.txt`.

A line names the package that has it (or both), the module, the name, and its parameters without
annotations; a constant, a type or an enum has none.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import fast
import reference

PACKAGES = {"reference": reference, "fast": fast}
LINES = Path(__file__).with_name("public_names.txt").read_text(encoding="utf-8").splitlines()
NAMES = {line.partition("(")[0].partition(".")[2]: line.partition(" ")[0] for line in LINES}

HINTS: dict[str, tuple[str, ...]] = {
    "compute_causal_conv1d_metadata": ("query_start_loc_p_cpu",),
    "gather_mm_placeholders": ("num_embeds",),
    "make_kv_sharing_fast_prefill_common_attn_metadata": ("logits_indices_cpu",),
}
"""Values that `fast` would otherwise read from the device: keywords of its own, None by default."""


def spelled(function: Callable[..., Any], hints: tuple[str, ...] = ()) -> str:
    """Return the parameters of a function without annotations, and without some keywords."""
    signature = inspect.signature(function)
    found = signature.parameters
    for hint in hints:
        assert (found[hint].KEYWORD_ONLY, None) == (found[hint].kind, found[hint].default)
    bare = [p.replace(annotation=p.empty) for p in found.values() if p.name not in hints]
    return str(signature.replace(parameters=bare, return_annotation=signature.empty))


@pytest.mark.parametrize("line", LINES, ids=NAMES)
def test_a_name_is_public(line: str) -> None:
    match = re.fullmatch(r"(\w+) (\w+)\.([\w.]+)(\(.*\))?", line)
    assert match is not None
    whose, module, name, parameters = match.groups()
    for package_name, package in PACKAGES.items():
        if whose not in {package_name, "both"}:
            with pytest.raises(AttributeError):
                attrgetter(name)(package)
            continue
        top = name.partition(".")[0]
        assert top in package.__all__
        inner = importlib.import_module(f"{package_name}.{module}")
        assert getattr(package, top) is getattr(inner, top)
        if parameters is not None:
            hints = HINTS.get(name, ()) if package is fast else ()
            assert parameters == spelled(attrgetter(name)(package), hints)


@pytest.mark.parametrize("package", PACKAGES.values(), ids=PACKAGES)
def test_there_are_no_other_names(package: ModuleType) -> None:
    listed = {name for name, whose in NAMES.items() if whose in {package.__name__, "both"}}
    assert sorted(name for name in listed if "." not in name) == sorted(package.__all__)
    methods = []
    for name in package.__all__:
        owner = getattr(package, name)
        for base in owner.__mro__ if inspect.isclass(owner) else ():
            if base.__name__ in NAMES and base.__module__.startswith(package.__name__):
                methods += [
                    f"{base.__name__}.{method}"
                    for method, member in vars(base).items()
                    if method[0] != "_" and inspect.isfunction(getattr(member, "__func__", member))
                ]
    assert set(methods) <= listed
