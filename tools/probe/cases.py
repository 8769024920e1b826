"""Makes a case of a number: a call, at random from valid ones, and holds it to the promises."""

from __future__ import annotations

import copy
import os
import pickle
import re
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from random import Random
from types import ModuleType
from typing import Any, Final, NoReturn

import numpy as np
import torch

from conformance.comparison import Verdict, first_difference, parts
from conformance.contracts import Call
from conformance.sides import PLAIN, Manner, Side
from tools.probe.array_values import other_array, other_layout
from tools.probe.calling import (
    BEFORE_A_CALL,
    POISONS,
    Outcome,
    call_fast,
    call_reference,
    compare,
    contents,
    difference_of,
    poison,
)
from tools.probe.guarded_memory import GuardedMemory
from tools.probe.judging import (
    Finding,
    is_refusal,
    judge_error,
    judge_resources,
    judge_result,
    judge_twins,
    judge_unchanged,
    path_of,
)
from tools.probe.sites import Site, replaced_at, sites_of
from tools.probe.strange_objects import StrangeObject, other_value
from tools.probe.subjects import Subject
from tools.probe.target import ProbedTarget
from tools.probe.tensor_kinds import NoSuchKindError, OfKind, some_kind
from tools.probe.violation import Violation, innermost_frame

LAYOUT_MATTERS: Final = ("reshape_", "_reshape_kv_cache", "init_kv_cache", "bind_kv_cache")
"""What hands out views, and refuses memory that allows none."""


class Interrupted(BaseException):  # like KeyboardInterrupt
    """Raised by the signal handler."""


class Prober:
    """Runs the cases of one function, one after another.

    Args:
        subject: the function.
        implementation: the module that is probed.
        seed: of the run.
    """

    def __init__(self, subject: Subject, implementation: ModuleType, seed: int) -> None:
        self.subject, self.seed = subject, seed
        self.memory = GuardedMemory()
        contract = subject.contract
        self.target = ProbedTarget(
            "probed",
            implementation,
            memory=self.memory,
            changes=contract.changes,
            may_span=contract.observe is None and not contract.compares_views,
        )
        self._wanted: dict[int, Outcome | None] = {}
        self.call: Call | None = None
        self._valid = subject.calls[0]
        self.counts: dict[str, int] = {}

    def run(self, number: int) -> list[Violation]:
        """Run a case and return what it found."""
        random = Random(f"{self.subject.name}:{self.seed}:{number}")  # noqa: S311  # no secret
        self.target.random.seed(random.random())
        self.memory.forget()
        poison(POISONS[0])
        kinds, weights = zip(*self._kinds.items(), strict=True)
        make: Callable[[Random], Iterator[Finding]] = random.choices(kinds, weights)[0]
        self.counts[make.__name__] = self.counts.get(make.__name__, 0) + 1
        self.call = None
        try:
            findings = list(make(random))
        except Exception:  # noqa: BLE001  # told like any finding, so that the run goes on
            findings = [("the probe itself failed", "", traceback.format_exc()[-1500:])]
        text = told(self.call)
        return [
            Violation(self.subject.name, self.seed, number, kind, where, detail, text)
            for kind, where, detail in dict.fromkeys(findings)
        ]

    @property
    def _kinds(self) -> dict[Callable[[Random], Iterator[Finding]], int]:
        return {
            self.valid: 18,
            self.bad_arrays: 28,
            self.bad_values: 25,
            self.other_kinds: 14,
            self.transforms: 3,
            self.interrupted: 5,
            self.in_threads: 4,
            self.copied: 2,
            self.forked: 1,
        }

    def _some_call(self, random: Random) -> tuple[Call, Outcome | None]:
        number = random.randrange(len(self.subject.calls))
        call = self._valid = self.subject.calls[number]
        if number not in self._wanted:
            self._wanted[number] = call_reference(call, seconds=10)
        return call, self._wanted[number]

    def _manner(self, random: Random) -> Manner:
        contract = self.subject.contract
        return Manner(
            has_numpy_scalars=random.random() < 0.2 and self.subject.is_compared,
            is_positional=random.random() < 0.2 and self.subject.is_compared,
            has_own_objects=random.random() < 0.2 and contract.takes_objects,
        )

    def valid(self, random: Random) -> Iterator[Finding]:
        """A valid call is answered as `reference` does, from any memory, and twice alike."""
        call, wanted = self._some_call(random)
        if wanted is None or wanted.error is not None:
            return
        arrays = [
            site
            for site in sites_of(call)
            if isinstance(site.value, np.ndarray) and site.path not in self.subject.contract.changes
        ]
        if arrays and random.random() < 0.3 and not self.subject.name.startswith(LAYOUT_MATTERS):
            site = random.choice(arrays)
            call = replaced_at(call, site, other_layout(random, site.value))
        self.call = call
        manner = self._manner(random)
        if manner.has_numpy_scalars:  # some are handed through
            again = call_reference(call.with_numpy_scalars())
            wanted = wanted if again is None else again
        yield from self._answered(call, wanted, random, manner)

    def _answered(
        self, call: Call, wanted: Outcome, random: Random, manner: Manner = PLAIN
    ) -> Iterator[Finding]:
        contract = self.subject.contract
        is_protected = random.random() < 0.5
        options: dict[str, Any] = {"manner": manner, "is_protected": is_protected}
        got = call_fast(self.target, call, checked=random.random() < 0.4, **options)
        yield from judge_resources(got)
        if got.error is not None:
            yield from judge_error(call, got, self._valid)
            where = innermost_frame(got.error.__traceback__)
            said = f"{type(got.error).__name__}: {got.error}"
            yield "refused a valid call", where, said
            return
        yield from judge_result(contract, wanted, got)

    def bad_arrays(self, random: Random) -> Iterator[Finding]:
        """What stands in arrays is refused as `reference` does, or does no harm."""
        yield from self._mutated(random, lambda site: isinstance(site.value, np.ndarray))

    def bad_values(self, random: Random) -> Iterator[Finding]:
        """The same of everything else: numbers, texts, lists, objects."""
        yield from self._mutated(random, lambda _: True)

    def _mutated(self, random: Random, is_wanted: Callable[[Site], bool]) -> Iterator[Finding]:  # noqa: C901, PLR0912, RUF100  # one story
        call, _ = self._some_call(random)
        are_arrays = True
        is_hint, is_plain, changed = bool(call.hints), True, []
        number = random.choice((1, 1, 1, 1, 2, 3))
        for _ in range(number):
            sites = sites_of(call)
            chosen = [site for site in sites if is_wanted(site)] or sites
            if not chosen:
                return
            site = random.choice(chosen)
            changed.append(site.path)
            is_hint |= "device" in site.path
            if isinstance(site.value, np.ndarray) and random.random() < 0.9:
                value: Any = other_array(random, site.value)
            else:
                value = other_value(random, site.value, site.path)
            are_arrays &= isinstance(value, np.ndarray)
            is_plain &= value is None or isinstance(value, int | float | str | np.ndarray)
            is_hint |= isinstance(value, StrangeObject) and "array" in value.name
            call = replaced_at(call, site, value)
            twin = next((other for other in sites if are_twins(site.path, other.path)), None)
            if twin is not None and random.random() < 0.9:
                call = replaced_at(call, twin, value)
            elif twin is not None:
                is_hint = True  # which of both is read, nobody says
        self.call = call
        wanted = call_reference(call)
        if wanted is None and not are_arrays:
            return  # a number asks for that much
        checked = random.random() < 0.5
        got = call_fast(self.target, call, checked=checked, is_protected=random.random() < 0.3)
        yield from judge_resources(got)
        if wanted is None:  # `reference` was too slow, or needs too much memory itself
            return
        for finding in judge_error(call, got, self._valid):
            is_same = type(wanted.error) is type(got.error) and not is_refusal(wanted)
            if not (finding[0] == "message names no argument" and is_same):
                yield finding
        if not is_hint and self.subject.is_compared:
            is_single = number == 1
            yield from judge_twins(
                self.subject.contract,
                wanted,
                got,
                changed,
                checked=checked and is_single,
                has_one_fault=is_plain,
            )
        elif got.error is None:
            yield from judge_unchanged(self.subject.contract, got)
        if got.error is None and not checked and random.random() < 0.5:
            yield from self._poisoned(call, got)

    def _poisoned(self, call: Call, first: Outcome) -> Iterator[Finding]:
        """Call again with other bytes in fresh memory: the answer must be the same."""
        try:
            seen = contents(first.result)
        except RecursionError:  # something in itself is handed through
            return
        poison(POISONS[1])
        second = call_fast(self.target, call, checked=False)
        if second.error is not None:
            told = f"{type(second.error).__name__}: {second.error}"
            yield "another answer the second time", "", told
            return
        for (path, ours), (_, theirs) in zip(seen, contents(second.result), strict=False):
            if ours != theirs:
                yield "uninitialised memory in a result", path_of(path), path

    def other_kinds(self, random: Random) -> Iterator[Finding]:
        """Another kind of tensor is refused by name, or answered rightly."""
        call, wanted = self._some_call(random)
        sites = [site for site in sites_of(call) if isinstance(site.value, np.ndarray)]
        if not sites or wanted is None or wanted.error is not None:
            yield from self.bad_values(random)
            return
        site = random.choice(sites)
        kind = some_kind(random, site.value, site.path)
        if kind.kind in {"expanded", "zero-stride"} and not _is_repeated(site.value):
            for twin in sites:
                if twin is site or are_twins(site.path, twin.path):
                    call = replaced_at(call, twin, _repeated(site.value))
            wanted = call_reference(call)
            if wanted is None or wanted.error is not None:
                return
            kind = OfKind(kind.kind, _repeated(site.value), site.path)
        call = replaced_at(call, site, kind)
        self.call = call
        checked = random.random() < 0.5
        got = call_fast(self.target, call, checked=checked)
        yield from judge_resources(got)
        if isinstance(got.error, NoSuchKindError):
            return
        if got.error is not None:
            for finding in judge_error(call, got, self._valid):
                yield f"{finding[0]} ({kind.kind})", *finding[1:]
            return
        is_kept = site.path == "out" or not self.subject.is_compared  # a copy takes what is written
        is_kept |= self.subject.contract.observe is not None
        difference = None if is_kept else _difference(self.subject, wanted, got, site.path)
        if difference is not None:
            yield f"wrong result ({kind.kind})", path_of(difference), f"{site.path}: {difference}"

    def transforms(self, random: Random) -> Iterator[Finding]:
        """Inside a transform or mode of torch the answer is right or a refusal."""
        call, wanted = self._some_call(random)
        sites = [site for site in sites_of(call) if isinstance(site.value, np.ndarray)]
        if not sites or wanted is None or wanted.error is not None:
            yield from self.valid(random)
            return
        site = random.choice(sites)
        name = random.choice(("vmap", "functionalize", "inference mode", "no grad"))
        if name in {"inference mode", "no grad"}:
            self.call = call
            mode = torch.inference_mode() if name == "inference mode" else torch.no_grad()
            got = call_fast(self.target, call, checked=random.random() < 0.5, inside=mode)
            if got.error is not None:
                for finding in judge_error(call, got, self._valid):
                    yield f"{finding[0]} ({name})", *finding[1:]
                yield f"refused a valid call ({name})", "", repr(got.error)
            else:
                yield from judge_result(self.subject.contract, wanted, got)
            return
        yield from self._transformed(name, call, site, wanted)

    def _transformed(self, name: str, call: Call, site: Site, wanted: Outcome) -> Iterator[Finding]:  # noqa: C901, PLR0912, RUF100  # one story
        if not isinstance(site.value, np.ndarray) or site.value.dtype.name == "bfloat16":
            return
        inner = OfKind("plain", site.value, site.path)
        found: list[Outcome] = []

        def run(tensor: torch.Tensor) -> Any:
            object.__setattr__(inner, "make", lambda carrier: _given(carrier, inner, tensor))
            got = call_fast(self.target, replaced_at(call, site, inner), checked=False)
            found.append(got)
            leaves = [part for _, part in parts(got.result, "r") if isinstance(part, torch.Tensor)]
            return tuple(leaves) or tensor

        self.call = call
        try:
            tensor = torch.from_numpy(np.ascontiguousarray(site.value).reshape(site.value.shape))
        except TypeError:
            return
        try:
            if name == "vmap":
                leaves = torch.func.vmap(run)(tensor[None].clone())
                leaves = [leaf[0] for leaf in leaves]
            else:
                leaves = list(torch.func.functionalize(run)(tensor.clone()))
        except Exception as error:  # noqa: BLE001  # torch's own refusal of what is returned
            if not found or found[0].error is None:
                del error
                return
        got = found[0]
        if got.error is not None:
            for finding in judge_error(call, got, self._valid):
                yield f"{finding[0]} ({name})", *finding[1:]
            return
        expected = [part for _, part in parts(wanted.result, "r") if isinstance(part, np.ndarray)]
        for at, (ours, theirs) in enumerate(zip(expected, leaves, strict=False)):
            if site.path == "out" or ours.dtype.name == "bfloat16":
                continue
            difference = first_difference(ours, theirs.detach().clone(), f"result{at}")
            if difference is not None:
                yield f"wrong result ({name})", site.path, f"{site.path}: {difference.line}"
                return

    def interrupted(self, random: Random) -> Iterator[Finding]:  # noqa: C901, PLR0912, RUF100  # one story
        """An exception out of a signal handler leaves inputs as they were, and nothing broken."""
        call, wanted = self._some_call(random)
        if wanted is None or wanted.error is not None:
            return
        self.call = call
        is_armed = True

        def ring(*_: object) -> None:
            if is_armed:
                raise Interrupted

        got = Outcome(call_side(self.target, call))
        previous = signal.signal(signal.SIGALRM, ring)
        try:
            with self.target.implementation.checks(random.random() < 0.3):
                try:
                    signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 3e-4))
                    for _ in range(20):
                        got.side.run()
                except Interrupted:
                    pass
                except Exception as error:  # noqa: BLE001  # a call made twice may be refused
                    got.error = error
                finally:
                    is_armed = False
        except Interrupted:  # on the way out of the calls
            pass
        finally:
            is_armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)
        if got.error is not None and not self.subject.contract.changes:
            yield "refused a valid call (interrupted)", "", repr(got.error)
        for finding in judge_unchanged(self.subject.contract, got):
            yield f"{finding[0]} (interrupted)", *finding[1:]
        for finding in self._answered(call, wanted, random):
            yield f"{finding[0]} (after an interrupt)", *finding[1:]

    def in_threads(self, random: Random) -> Iterator[Finding]:  # noqa: C901, PLR0912, RUF100  # one story
        """Several threads at once get the answers that one gets alone."""
        jobs: list[tuple[Call, Outcome]] = []
        for _ in range(3):
            call, wanted = self._some_call(random)
            if wanted is not None and wanted.error is None:
                jobs.append((call, wanted))
        if not jobs:
            return
        self.call = jobs[0][0]
        sides = [[call_side(self.target, call) for _ in range(4)] for call, _ in jobs]
        got: list[list[Outcome]] = [[] for _ in jobs]
        start = threading.Barrier(len(jobs))

        def work(at: int) -> None:
            start.wait()
            for turn, side in enumerate(sides[at]):
                outcome = Outcome(side)
                try:
                    if at == 0:
                        with self.target.implementation.checks(turn % 2 == 0):
                            outcome.result = side.run()
                    else:
                        outcome.result = side.run()
                except Exception as error:  # noqa: BLE001  # is judged
                    outcome.error = error
                got[at].append(outcome)

        threads = [threading.Thread(target=work, args=(at,)) for at in range(len(jobs))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for (_, wanted), outcomes in zip(jobs, got, strict=True):
            for outcome in outcomes:
                if outcome.error is not None:
                    where = innermost_frame(outcome.error.__traceback__)
                    yield "refused a valid call (threads)", where, repr(outcome.error)
                else:
                    for finding in judge_result(self.subject.contract, wanted, outcome):
                        yield f"{finding[0]} (threads)", *finding[1:]

    def copied(self, random: Random) -> Iterator[Finding]:
        """A copy of a result, and one that was pickled, equals it, or is refused by a TypeError."""
        call, wanted = self._some_call(random)
        if wanted is None or wanted.error is not None:
            return
        self.call = call
        got = call_fast(self.target, call, checked=False)
        if got.error is not None or not _is_ours(got.result):
            return
        for name, copies in (("deepcopy", copy.deepcopy), ("pickle", _pickled)):
            try:
                made = copies(got.result)
            except TypeError:
                continue
            except Exception as error:  # noqa: BLE001  # is the finding
                yield f"{name} fails", innermost_frame(error.__traceback__), repr(error)
                continue
            shows: Callable[[Any], Any] = self.subject.contract.shows or (lambda same: same)
            difference = first_difference(shows(wanted.result), shows(made))
            if difference is not None:
                yield f"{name} differs", path_of(difference.line), difference.line

    def forked(self, random: Random) -> Iterator[Finding]:
        """A forked process gets the same answers."""
        call, wanted = self._some_call(random)
        if wanted is None or wanted.error is not None:
            return
        self.call = call
        child = os.fork()
        if child == 0:
            code = 3
            try:
                got = call_fast(self.target, call, checked=False)
                is_so = got.error is None and compare(self.subject.contract, wanted, got) is None
                code = 0 if is_so else 4
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        if status != 0:
            yield "another answer in a forked process", "", f"wait status {status}"


def are_twins(path: str, other: str) -> bool:
    """Tell whether two places hold the same values, on the CPU and on a device.

    >>> are_twins("batch.seq_lens", "batch.seq_lens_cpu"), are_twins("a.cpu", "a.gpu")
    (True, True)
    """
    if {path[-4:], other[-4:]} == {".cpu", ".gpu"}:
        return path[:-4] == other[:-4]
    return path == f"{other}_cpu" or other == f"{path}_cpu"


def told(call: Call | None) -> str:
    """Return a call as text, cut; some objects in it refuse to be printed."""
    if call is None:
        return ""
    texts = []
    for name, value in {**call.arguments, **call.hints}.items():
        try:
            texts.append(f"{name}={value!r}"[:600])
        except Exception as error:  # noqa: BLE001  # a hostile object, or one in itself
            texts.append(f"{name}=<{type(value).__name__}: {type(error).__name__}>")
    return re.sub(r"\s+", " ", f"{call.function}({', '.join(texts)})")[:2500]


def call_side(target: ProbedTarget, call: Call) -> Any:
    """Return the copies of a call's arguments, not yet called."""
    for tell in BEFORE_A_CALL:
        tell(call)
    return Side(target, call)


def _difference(subject: Subject, wanted: Outcome, got: Outcome, path: str) -> str | None:
    leaves = [part for _, part in parts(got.result, "r") if isinstance(part, torch.Tensor)]
    try:
        if any(not leaf.untyped_storage().nbytes() and leaf.numel() for leaf in leaves):
            return None  # a view of a tensor without memory has none either
        difference = difference_of(subject.contract, wanted, got, [path])
        if difference is None or difference.verdict in {
            Verdict.TYPE,
            Verdict.DTYPE,
            Verdict.DEVICE,
        }:
            return None
        return difference.line
    except Exception:  # noqa: BLE001  # it hands through what cannot be read
        return None


def _given(carrier: Any, inner: OfKind, tensor: torch.Tensor) -> Any:
    return tensor if carrier.device is not None else carrier.carry(inner.array, inner.path)


def _is_repeated(array: Any) -> bool:
    if array.ndim == 0 or not array.size:
        return False
    with np.errstate(invalid="ignore"):
        return bool((array == array[:1]).all())


def _repeated(array: Any) -> Any:
    if array.ndim == 0 or not array.size:
        return array
    return np.ascontiguousarray(np.broadcast_to(array[:1], array.shape)).copy()


def _is_ours(result: Any) -> bool:
    """Tell whether a result has no class of a caller in it."""
    return all(
        type(part).__module__.split(".")[0] in {"fast", "torch", "numpy", "builtins"}
        and "float8" not in str(getattr(part, "dtype", ""))  # torch cannot pickle them
        for _, part in parts(result, "result")
    ) and not isinstance(result, type)


def _pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))  # noqa: S301  # it was pickled just now


def no_return() -> NoReturn:
    """End a case that cannot be."""
    raise AssertionError
