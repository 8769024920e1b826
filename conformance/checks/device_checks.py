"""Checks that tensors on the wrong device are refused: each tensor of a call separately.

`reference` has no devices, so there is no result to compare with. A target must raise a
`ValueError` that names the tensor. The checks use torch's device `meta`, which exists without a
GPU. Code that reads a tensor on it gets a different error, or no values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from conformance.contracts.check import Check, property_check
from conformance.contracts.contract import Contract
from conformance.contracts.evaluation import check_error, exception_of
from conformance.execution.invocations import Invocation
from conformance.targets.target import Target
from conformance.values.call import Call

OTHER_DEVICE = "meta"
"""A device that no tensor of a valid call is on."""


def refuses_wrong_device(contract: Contract) -> Check:
    """Return the check that a tensor on another device than the others is refused, by name.

    Calls without the tensor are skipped.
    """

    @property_check(
        contract.function,
        contract.calls,
        goals={
            f"on another device: {path}": lambda call, path=path: _has(call, path)  # type: ignore[misc]  # which of them
            for path in contract.on_device
        },
        has_kernel=contract.has_kernel,
        tests_invalid_inputs=True,
    )
    def check(target: Target, call: Call) -> None:
        """A tensor on another device than the others is refused, by name."""
        __tracebackhide__ = True
        for path in filter(functools.partial(_has, call), contract.on_device):
            for checked in (True, False):
                _check_refused(target, call, path, checked=checked)

    return check


def _has(call: Call, path: str) -> bool:
    return _follow({**call.arguments, **call.hints}, path.split(".")) is not None


def _follow(arguments: dict[str, Any], parts: Sequence[str]) -> Any:
    found = arguments.get(parts[0])
    for name in parts[1:]:
        found = getattr(found, name, None)
    return found


def _check_refused(target: Target, call: Call, path: str, *, checked: bool) -> None:
    __tracebackhide__ = True
    invocation = Invocation(target, call)
    *owners, name = path.split(".")
    is_taken = path not in call.hints or invocation.takes(path)
    if name in target.missing_fields or not is_taken:
        return
    held = invocation.hints if path in invocation.hints else invocation.arguments
    tensor = _follow(held, path.split(".")).to(OTHER_DEVICE)
    if owners:
        setattr(_follow(held, owners), name, tensor)
    else:
        held[name] = tensor
    check_refuses_wrong_device(target, call, path, invocation.run, checked=checked)


def check_refuses_wrong_device(
    target: Target, call: Call, path: str, run: Callable[[], object], *, checked: bool
) -> None:
    """Raise `Mismatch` unless a call is refused for a tensor on another device than the others.

    Args:
        target: The target under test.
        call: The call before the tensor was moved.
        path: The path of the tensor.
        run: Makes the call.
        checked: Whether in checked mode.
    """
    __tracebackhide__ = True
    name = path.rpartition(".")[2]
    with target.running(checked=checked):
        error = exception_of(run)
    mode = "" if checked else ", with checks off"
    what = f"{path} is on the device {OTHER_DEVICE!r}{mode}"
    check_error(target, call, error, (ValueError, name), what)
