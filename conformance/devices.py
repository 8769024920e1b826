"""What is not where it must be: each tensor of a call in turn, alone on another device.

`reference` knows no device, so that there is nobody to compare with: the definition says that a
`ValueError` names what is elsewhere. Torch's own device `meta` is there without a GPU, and no
tensor of a call ever is on it; what reads one that is gets another error, or nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from conformance.calls import Call
from conformance.checks import Check, law
from conformance.comparison import Difference, Verdict
from conformance.contracts import Contract
from conformance.evaluation import is_named
from conformance.invocations import Invocation
from conformance.report import Mismatch
from conformance.targets import RAISED, Target

ELSEWHERE = "meta"
"""A device on which a call has nothing."""


def refuses_elsewhere(contract: Contract, *paths: str) -> Check:
    """Return the check that tensors on unlike devices are refused, by the name of the odd one.

    Args:
        contract: The function's.
        paths: The tensors that cannot be elsewhere alone: an argument or a hint, or a field of
            one, `self.seq_lens`. A call that has no such tensor is not made.
    """

    @law(
        contract.function,
        contract.calls,
        situations={
            f"on another device: {path}": lambda call, path=path: _has(call, path)  # type: ignore[misc]  # which of them
            for path in paths
        },
        has_kernel=contract.has_kernel,
    )
    def check(target: Target, call: Call) -> None:
        """A tensor that is not where the others are is refused, by its name."""
        __tracebackhide__ = True
        for path in paths:
            if _has(call, path) and _takes(target, call, path):
                for checked in (True, False):
                    _check_refused(target, call, path, checked=checked)

    return check


def _has(call: Call, path: str) -> bool:
    return _follow({**call.arguments, **call.hints}, path.split(".")) is not None


def _takes(target: Target, call: Call, path: str) -> bool:
    """Tell whether a target has the field, and the keyword that a hint is."""
    first, *fields = path.split(".")
    if not target.missing_fields.isdisjoint(fields):
        return False
    return first not in call.hints or first in _parameters(target, call)


def _parameters(target: Target, call: Call) -> Sequence[str]:
    return [*inspect.signature(target.lookup(call.function)).parameters]


def _follow(arguments: dict[str, Any], parts: Sequence[str]) -> Any:
    found = arguments.get(parts[0])
    for name in parts[1:]:
        found = getattr(found, name, None)
    return found


def _check_refused(target: Target, call: Call, path: str, *, checked: bool) -> None:
    __tracebackhide__ = True
    invocation = Invocation(target, call)
    *owners, name = path.split(".")
    held = invocation.hints if path in invocation.hints else invocation.arguments
    tensor = _follow(held, path.split(".")).to(ELSEWHERE)
    if owners:
        setattr(_follow(held, owners), name, tensor)
    else:
        held[name] = tensor
    check_refused_elsewhere(target, call, path, invocation.run, checked=checked)


def check_refused_elsewhere(
    target: Target, call: Call, path: str, ask: Callable[[], object], *, checked: bool
) -> None:
    """Raise `Mismatch` unless a call is refused for a tensor that is not where the others are.

    Args:
        target: What is called.
        call: With what, but for where the tensor is.
        path: The tensor.
        ask: Makes the call.
        checked: Whether in checked mode.
    """
    __tracebackhide__ = True
    name = path.rpartition(".")[2]
    try:
        with target.running(checked=checked):
            ask()
        got = "a result"
    except RAISED as error:  # whatever it raises is judged
        if is_named(ValueError, name, error):
            return
        got = f"raised {type(error).__name__}: {error}"
    mode = "" if checked else ", with checks off"
    wanted = f"ValueError naming {name} ({path} is on the device {ELSEWHERE!r}{mode})"
    raise Mismatch(call, target.name, Difference(Verdict.OUTCOME, "the call", None, got, wanted))
