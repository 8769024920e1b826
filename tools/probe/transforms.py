"""Cases of calls inside torch's transforms."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from conformance.arrays.guard_bands import Array
from conformance.targets.factories import Factory, FactoryContext
from conformance.values.call import Call
from conformance.values.comparison import NUMPY_IN_BOTH_TWINS, first_difference
from conformance.values.parts import arrays_in
from tools.probe.calling import Outcome, call_reference
from tools.probe.case import Case, array_sites, named
from tools.probe.sites import Site, replaced_at
from tools.probe.valid_calls import valid
from tools.probe.violation import Finding


@dataclasses.dataclass(frozen=True, eq=False)
class Transformed(Factory):
    """An array that `fast` gets as a tensor of a transform.

    Attributes:
        array: The values.
        path: The path of the argument.
        tensor: The tensor for `fast`.
    """

    array: Array
    path: str
    tensor: torch.Tensor

    def make(self, converter: FactoryContext) -> Any:
        """Return the array for `reference`, and the tensor for `fast`."""
        is_reference = converter.device is None
        return converter.convert(self.array, self.path) if is_reference else self.tensor


def transforms(case: Case) -> Iterator[Finding]:
    """Check that inside `vmap` and `functionalize` the result is right, or the call is refused."""
    call, expected = case.choose_answered()
    sites = [site for site in array_sites(call) if not _is_numpy(site.path)]
    if not sites or expected is None:
        yield from valid(case)
        return
    site = case.random.choice(sites)
    if any(other.value is site.value and other is not site for other in sites):
        # `reference` gets separate arrays too.
        call = replaced_at(call, site, site.value.copy())
        expected = call_reference(call)
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
        given = Transformed(site.value, site.path, tensor)
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


def _is_numpy(path: str) -> bool:
    """Return whether an argument is a NumPy array in both twins."""
    return path.rsplit(".", 1)[-1] in NUMPY_IN_BOTH_TWINS or "input_batch" in path


def _tensors(result: Any) -> dict[str, torch.Tensor]:
    return {path: p for path, p in arrays_in(result, "result") if isinstance(p, torch.Tensor)}
