"""Cases of other kinds of tensors, and of torch's transforms and modes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from conformance.values.call import Call
from conformance.values.comparison import first_difference
from conformance.values.differences import Verdict
from conformance.values.parts import arrays_in
from tools.probe.bad_calls import bad_values
from tools.probe.calling import Outcome, call_reference
from tools.probe.case import Case, array_sites, named
from tools.probe.checks import check_resources, path_of
from tools.probe.differences import difference_in
from tools.probe.sites import Site, are_copies, replaced_at
from tools.probe.tensor_kinds import SAME_TYPE, NoSuchKindError, OfKind, is_numpy, some_kind
from tools.probe.valid_calls import valid
from tools.probe.violation import Finding


def other_kinds(case: Case) -> Iterator[Finding]:
    """Check that another kind of tensor is refused by name, or gives the right result."""
    call, expected = case.choose_answered()
    sites = array_sites(call)
    if not sites or expected is None:
        yield from bad_values(case)
        return
    site = case.random.choice(sites)
    kind, places, call, expected = _draw_kind(case, call, expected, site, sites)
    if expected is None or expected.error is not None:
        return
    for place in places:
        call = replaced_at(call, place, kind)
    got = case.call_fast(call, checked=case.random.random() < 0.5)
    yield from named(kind.kind, check_resources(got))
    if isinstance(got.error, NoSuchKindError):
        return
    yield from named(kind.kind, case.check_error(got))
    if got.error is None and case.subject.is_compared:
        yield from named(kind.kind, _wrong_result(case, expected, got, site.path, kind.kind))


def _places_of_same(site: Site, sites: list[Site]) -> list[Site]:
    """Return the other places of the same array, which both twins get as one object."""
    return [
        other
        for other in sites
        if other.value is site.value
        and other.steps != site.steps
        and is_numpy(other.path) == is_numpy(site.path)
    ]


def _draw_kind(
    case: Case, call: Call, expected: Outcome, site: Site, sites: list[Site]
) -> tuple[OfKind, list[Site], Call, Outcome | None]:
    """Return a kind, its places, the call of `reference`, and the outcome of that."""
    kind = some_kind(case.random, site.value, site.path)
    if kind.kind in {"expanded", "zero-stride"} and not _is_repeated(site.value):
        array = _repeated(site.value)
        for other in sites:
            if other is site or are_copies(site.path, other.path):
                call = replaced_at(call, other, array)
        return OfKind(kind.kind, array, site.path), [site], call, call_reference(call)
    same = _places_of_same(site, sites)
    if not same or case.random.random() < 0.5:
        return kind, [site, *same], call, expected
    return kind, [site], *_apart(call, site)


def _apart(call: Call, site: Site) -> tuple[Call, Outcome | None]:
    """Return a call with an array that other places do not share, and `reference`'s outcome."""
    call = replaced_at(call, site, site.value.copy())
    return call, call_reference(call)


def _wrong_result(
    case: Case, expected: Outcome, got: Outcome, path: str, kind: str
) -> Iterator[Finding]:
    if path == "out" or case.subject.contract.observe is not None:
        return  # the call wrote to a copy
    try:
        if any(
            not leaf.untyped_storage().nbytes() and leaf.numel()
            for leaf in _tensors(got.result).values()
        ):
            return  # a view of a tensor without storage
        difference = difference_in(case.subject.contract, expected, got, [path])
    except Exception:  # noqa: BLE001  # the result contains unreadable tensors
        return
    if difference is None or (kind not in SAME_TYPE and difference.verdict is not Verdict.VALUE):
        return
    yield "wrong result", path_of(difference.line), f"{path}: {difference.line}"


def modes(case: Case) -> Iterator[Finding]:
    """Check a valid call in inference mode or under `no_grad`."""
    call, expected = case.choose_answered()
    if expected is None:
        return
    is_inference = case.random.random() < 0.5
    name = "inference mode" if is_inference else "no grad"
    mode = torch.inference_mode() if is_inference else torch.no_grad()
    yield from named(name, case.check_answer(call, expected, inside=mode))


def transforms(case: Case) -> Iterator[Finding]:
    """Check that inside `vmap` and `functionalize` the result is right, or the call is refused."""
    call, expected = case.choose_answered()
    sites = [site for site in array_sites(call) if not is_numpy(site.path)]
    if not sites or expected is None:
        yield from valid(case)
        return
    site = case.random.choice(sites)
    if _places_of_same(site, sites):
        call, expected = _apart(call, site)
        if expected is None or expected.error is not None:
            return
    name = case.random.choice(("vmap", "functionalize"))
    done = _transformed(case, name, call, site)
    if done is None:
        return
    got, leaves = done
    yield from named(name, case.check_error(got))
    if got.error is not None or site.path == "out":
        return
    arrays = dict(arrays_in(expected.result, "result"))
    for path, tensor in leaves.items():
        array = arrays.get(path)
        if not isinstance(array, np.ndarray) or array.dtype.name == "bfloat16":
            continue
        difference = first_difference(array, tensor.detach().clone(), path)
        if difference is not None:
            yield f"wrong result ({name})", site.path, f"{site.path}: {difference.line}"
            return


def _transformed(
    case: Case, name: str, call: Call, site: Site
) -> tuple[Outcome, dict[str, torch.Tensor]] | None:
    """Make a call inside a transform; return its outcome, and the tensors of its result by path.

    Return None if torch cannot transform it.
    """
    found: list[Outcome] = []

    def run(tensor: torch.Tensor) -> Any:
        given = OfKind("given", site.value, site.path, tensor)
        found.append(case.call_fast(replaced_at(call, site, given), checked=False))
        return _tensors(found[0].result) or {"": tensor}

    try:
        array: Any = np.ascontiguousarray(site.value).reshape(site.value.shape)
        tensor = torch.from_numpy(array).clone()
        if name == "vmap":
            leaves = torch.func.vmap(run)(tensor[None])
            leaves = {path: leaf[0] for path, leaf in leaves.items()}
        else:
            leaves = torch.func.functionalize(run)(tensor)
    except Exception:  # noqa: BLE001  # torch refuses the dtype, or what is returned
        return (found[0], {}) if found and found[0].error is not None else None
    return found[0], leaves


def _tensors(result: Any) -> dict[str, torch.Tensor]:
    return {path: p for path, p in arrays_in(result, "result") if isinstance(p, torch.Tensor)}


def _is_repeated(array: Any) -> bool:
    if array.ndim == 0 or not array.size:
        return False
    with np.errstate(invalid="ignore"):
        return bool((array == array[:1]).all())


def _repeated(array: Any) -> Any:
    if array.ndim == 0 or not array.size:
        return array
    return np.ascontiguousarray(np.broadcast_to(array[:1], array.shape)).copy()
