"""Cases of valid calls: the result must equal `reference`'s, however the call is made."""

from __future__ import annotations

import copy
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import fast
from conformance.execution.interrupts import Interrupter
from conformance.execution.invocations import CallVariant
from conformance.values.comparison import first_difference
from conformance.values.parts import is_array, is_object, walk
from tools.probe.array_values import other_layout
from tools.probe.calling import Outcome, call_reference, copy_arguments
from tools.probe.case import Case, array_sites, named, refused
from tools.probe.checks import check_result, check_unchanged, path_of
from tools.probe.differences import difference_in
from tools.probe.sites import replaced_at
from tools.probe.violation import Finding, innermost_frame

LAYOUT_MATTERS: Final = ("reshape_", "_reshape_kv_cache", "init_kv_cache", "bind_kv_cache")
"""Functions that return views, and refuse memory layouts that allow none."""


def valid(case: Case) -> Iterator[Finding]:
    """Check the result of a valid call, with any memory layout and call variant."""
    call, expected = case.choose_answered()
    if expected is None:
        return
    random, contract = case.random, case.subject.contract
    sites = [site for site in array_sites(call) if site.path not in contract.changes]
    if sites and random.random() < 0.3 and not case.subject.name.startswith(LAYOUT_MATTERS):
        site = random.choice(sites)
        call = replaced_at(call, site, other_layout(random, site.value))
    variant = CallVariant(
        has_numpy_scalars=random.random() < 0.2 and case.subject.is_compared,
        is_positional=random.random() < 0.2 and case.subject.is_compared,
        has_own_objects=random.random() < 0.2 and contract.takes_objects,
        has_negated_tensors=random.random() < 0.1,
    )
    if variant.has_numpy_scalars:  # results may contain them
        expected = call_reference(call.with_numpy_scalars()) or expected
    yield from case.check_answer(call, expected, variant)


def interrupted(case: Case) -> Iterator[Finding]:
    """Check that an interrupted call changes no input, and that the next call is correct."""
    call, expected = case.choose_answered()
    if expected is None:
        return
    at = int(10 ** case.random.uniform(0, 3.3))
    with case.target.find("checks")(case.random.random() < 0.3):
        got = Outcome(copy_arguments(case.target, call))
        assert got.invocation is not None  # noqa: S101
        try:
            Interrupter(fast, at).run(got.invocation.run)
        except Exception as error:  # noqa: BLE001  # is the finding
            yield from named("interrupted", refused(error))
    yield from named("interrupted", check_unchanged(case.subject.contract, got))
    yield from named("after an interrupt", case.check_answer(call, expected))


def in_threads(case: Case) -> Iterator[Finding]:
    """Check that several threads at once get the same results as one."""
    chosen = [case.choose_answered() for _ in range(3)]
    jobs = [(call, expected) for call, expected in chosen if expected is not None]
    if not jobs:
        return
    invocations = [[copy_arguments(case.target, call) for _ in range(4)] for call, _ in jobs]
    got: list[list[Outcome]] = [[] for _ in jobs]
    start = threading.Barrier(len(jobs))

    def work(at: int) -> None:
        start.wait()
        for turn, invocation in enumerate(invocations[at]):
            outcome = Outcome(invocation)
            try:
                with case.target.find("checks")(at == 0 and turn % 2 == 0):
                    outcome.result = invocation.run()
            except Exception as error:  # noqa: BLE001  # is the finding
                outcome.error = error
            got[at].append(outcome)

    threads = [threading.Thread(target=work, args=(at,)) for at in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for (call, expected), outcomes in zip(jobs, got, strict=True):
        case.call = call
        for outcome in outcomes:
            if outcome.error is not None:
                yield from named("threads", refused(outcome.error))
            else:
                contract = case.subject.contract
                yield from named("threads", check_result(contract, expected, outcome))


def copied(case: Case) -> Iterator[Finding]:
    """Check that a copied and a pickled result equal the result, or raise TypeError."""
    call, expected = case.choose_answered()
    if expected is None:
        return
    got = case.call_fast(call, checked=False)
    if got.error is not None or not _has_no_class_of_callers(got.result):
        return
    for name, make in (("deepcopy", copy.deepcopy), ("pickle", pickled)):
        try:
            made = make(got.result)
        except TypeError:
            continue
        except Exception as error:  # noqa: BLE001  # is the finding
            yield f"{name} fails", innermost_frame(error.__traceback__), repr(error)
            continue
        shows: Callable[[Any], Any] = case.subject.contract.shows or (lambda same: same)
        difference = first_difference(shows(expected.result), shows(made))
        if difference is not None:
            yield f"{name} differs", path_of(difference.line), difference.line


def forked(case: Case) -> Iterator[Finding]:
    """Check that a forked process gets the same result."""
    call, expected = case.choose_answered()
    if expected is None:
        return
    child = os.fork()
    if child == 0:
        status = 3
        try:
            got = case.call_fast(call, checked=False)
            contract = case.subject.contract
            is_same = got.error is None and difference_in(contract, expected, got) is None
            status = 0 if is_same else 4
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    if status != 0:
        yield "another result in a forked process", "", f"wait status {status}"


def pickled(value: Any) -> Any:
    """Pickle and unpickle an object."""
    return pickle.loads(pickle.dumps(value))  # noqa: S301  # it was pickled just now


def _has_no_class_of_callers(result: Any) -> bool:
    return all(
        type(part).__module__.split(".")[0] in {"fast", "torch", "numpy", "builtins"}
        and "float8" not in str(getattr(part, "dtype", ""))  # torch cannot pickle them
        for _, part in walk(result, "result")
        if is_array(part) or is_object(part)
    ) and not isinstance(result, type)
