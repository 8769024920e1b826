"""Cases of `BlockTables`: what is done to one object, in order, with bad calls among it."""

from __future__ import annotations

import copy
import io
import pickle
import signal
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from random import Random
from types import ModuleType
from typing import Any

import numpy as np
import torch

import reference
from conformance.comparison import first_difference
from conformance.contracts import Call, Contract
from conformance.strategies.block_table import Operation, Session, block_tables_sessions
from conformance.strategies.presets import MINIMAL, REAL
from conformance.vectors.drawing import drawn
from tools.probe.array_values import other_array
from tools.probe.calling import BEFORE_A_CALL, POISONS, Outcome, call_fast, poison
from tools.probe.cases import Interrupted, told
from tools.probe.guarded_memory import GuardedMemory
from tools.probe.judging import Finding, judge_error, judge_resources, judge_unchanged, path_of
from tools.probe.sites import replaced_at, sites_of
from tools.probe.strange_objects import StrangeObject, other_value
from tools.probe.target import ProbedTarget
from tools.probe.violation import Violation, innermost_frame

METHOD = "BlockTables."
NOTHING = Contract("BlockTables", lambda _: None, {})  # type: ignore[arg-type, return-value]

STRANGERS = ("written to", "interrupted", "bad", "copied")
"""What may happen between the operations of a session."""


class SessionProber:
    """Runs sessions of `BlockTables`, each a case.

    Args:
        implementation: the module that is probed.
        seed: of the run.
    """

    def __init__(self, implementation: ModuleType, seed: int) -> None:
        self.seed = seed
        self.memory = GuardedMemory()
        self.target = ProbedTarget("probed", implementation, memory=self.memory)
        self.sessions: list[Session] = drawn(block_tables_sessions(MINIMAL), 60, "probe sessions")
        self.sessions += drawn(block_tables_sessions(REAL), 5, "probe sessions real")
        self.counts: dict[str, int] = {}
        self.call: Call | None = None

    def run(self, number: int) -> list[Violation]:
        """Run a case and return what it found."""
        random = Random(f"BlockTables:{self.seed}:{number}")  # noqa: S311  # no secret
        self.target.random.seed(random.random())
        self.memory.forget()
        poison(POISONS[number % 2])
        session = random.choice(self.sessions)
        self.call = session.constructor
        findings = list(_Life(self, session, random).go())
        text = told(self.call)
        return [
            Violation("BlockTables", self.seed, number, kind, where, detail, text)
            for kind, where, detail in dict.fromkeys(findings)
        ]


class _Life:
    """An object of both twins, to which the same is done."""

    def __init__(self, prober: SessionProber, session: Session, random: Random) -> None:
        self.prober, self.session, self.random = prober, session, random
        arguments = dict(session.constructor.arguments)
        self.ours: Any = reference.BlockTables(**arguments)
        self.theirs: Any = prober.target.implementation.BlockTables(**arguments)
        self.handed_out: list[tuple[Any, Any]] = []
        self.is_gathered_alike = True

    def go(self) -> Iterator[Finding]:
        """Do all operations, with other things between them."""
        for operation in self.session.operations:
            if self.random.random() < 0.4:
                stranger = self.random.choice(STRANGERS)
                counts = self.prober.counts
                counts[stranger] = counts.get(stranger, 0) + 1
                if stranger == "interrupted":
                    yield from self._interrupted(operation)
                    continue
                if stranger == "bad":
                    yield from self._bad(operation)
                elif stranger == "copied":
                    yield from self._copied()
                else:
                    self._write()
            found = list(self._do(operation))
            yield from found
            if found:
                return

    def _call(self, operation: Operation) -> Call:
        self.prober.call = Call(METHOD + operation.method, {"self": None, **operation.arguments})
        return Call(METHOD + operation.method, dict(operation.arguments))

    def _do(self, operation: Operation) -> Iterator[Finding]:
        """Do a valid operation to both, and compare what they hand out."""
        call = self._call(operation)
        wanted = _on(self.ours, call, None)
        checked = self.random.random() < 0.4
        got = _on(self.theirs, call, self.prober.target, checked=checked)
        yield from judge_resources(got)
        if wanted.error is not None:  # an earlier strange call was valid, so this one is not
            if checked and type(got.error) is not type(wanted.error):
                yield from self._torn(wanted, got)
            return
        if got.error is not None:
            where = innermost_frame(got.error.__traceback__)
            yield f"refused a valid call ({operation.method})", where, repr(got.error)
            return
        difference = first_difference(wanted.result, got.result)
        if difference is not None:
            yield f"wrong result ({operation.method})", path_of(difference.line), difference.line
        yield from judge_unchanged(NOTHING, got)
        self.handed_out.append((wanted.result, got.result))

    def _write(self) -> None:
        """Write into something that was handed out, through torch, as runners do."""
        if not self.handed_out:
            return
        ours, theirs = self.random.choice(self.handed_out[-3:])
        pairs = (
            list(zip(ours, theirs, strict=True))
            if isinstance(ours, list | tuple)
            else [(ours, theirs)]
        )
        for array, tensor in pairs:
            if array is not None and array.size and self.random.random() < 0.7:
                at = self.random.randrange(array.shape[0])
                array[at] = -1
                tensor[at] = -1

    def _bad(self, operation: Operation) -> Iterator[Finding]:
        """Try a bad call: what is refused has changed nothing."""
        call = valid = self._call(operation)
        site = self.random.choice(sites_of(call))
        if isinstance(site.value, np.ndarray):
            value: Any = other_array(self.random, site.value)
        else:
            value = other_value(self.random, site.value, site.path)
        call = replaced_at(call, site, value)
        self.prober.call = Call(call.function, {"self": None, **call.arguments})
        copied = copy.deepcopy(self.ours)
        wanted = _on(copied, call, None)
        if isinstance(value, StrangeObject) or wanted.error is None:
            # It may be valid, and then the twins go on from there.
            got = _on(self.theirs, call, self.prober.target, checked=True)
            yield from judge_error(call, got, valid)
            if wanted.error is None and got.error is None:
                _on(self.ours, call, None)
            elif wanted.error is None or got.error is None:
                yield from self._torn(wanted, got)
            return
        got = _on(self.theirs, call, self.prober.target, checked=True)
        yield from judge_resources(got)
        yield from judge_error(call, got, valid)
        if got.error is None:
            where = innermost_frame(wanted.error.__traceback__)
            yield f"accepted what reference refuses ({operation.method})", where, repr(wanted.error)

    def _torn(self, wanted: Outcome, got: Outcome) -> Iterator[Finding]:
        said = f"{got.error!r}; reference: {wanted.error!r}"
        yield "twins disagree on a strange call", "", said

    def _copied(self) -> Iterator[Finding]:
        """Go on with a copy, where the object allows one."""
        way = self.random.choice((copy.deepcopy, _pickled, _forking_pickled))
        try:
            self.theirs = way(self.theirs)
        except TypeError:
            return
        except Exception as error:  # noqa: BLE001  # is the finding
            yield f"{way.__name__} fails", innermost_frame(error.__traceback__), repr(error)
            return
        self.ours = copy.deepcopy(self.ours)
        self.handed_out.clear()

    def _interrupted(self, operation: Operation) -> Iterator[Finding]:
        """Interrupt an operation: it has happened or it has not."""
        call = self._call(operation)
        after = copy.deepcopy(self.ours)
        _on(after, call, None)
        is_armed = True

        def ring(*_: object) -> None:
            if is_armed:
                raise Interrupted

        previous = signal.signal(signal.SIGALRM, ring)
        carrier = self.prober.target.carrier()
        arguments = {n: carrier.carry(v, n) for n, v in call.arguments.items()}
        method = getattr(self.theirs, operation.method)
        is_interrupted = False
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, self.random.uniform(1e-6, 6e-5))
                method(**arguments)
            except Interrupted:
                is_interrupted = True
            finally:
                is_armed = False
        except Interrupted:  # on the way out of the call
            is_interrupted = True
        finally:
            is_armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)
        count = self.session.constructor.arguments["max_num_reqs"]
        rows = torch.arange(count, dtype=torch.int32)
        states = [after] if not is_interrupted else [after, self.ours]
        found = self.theirs.gather_block_tables(rows)
        differences = [
            first_difference(copy.deepcopy(state).gather_block_tables(rows.numpy()), found)
            for state in states
        ]
        same = [state for state, d in zip(states, differences, strict=True) if d is None]
        if not same:
            line = "; ".join(d.line for d in differences if d is not None)
            kind = "half done after an interrupt" if is_interrupted else "wrong result"
            yield f"{kind} ({operation.method})", "", line
            return
        self.ours = same[0]
        self.ours.gather_block_tables(rows.numpy())
        self.handed_out.clear()


def _on(tables: Any, call: Call, target: ProbedTarget | None, *, checked: bool = False) -> Outcome:
    """Call a method of one twin's object."""
    method = call.function.removeprefix(METHOD)
    if target is None:
        return _plainly(tables, method, call)
    for tell in BEFORE_A_CALL:
        tell(call)
    bound = _Bound(target, tables, method)
    return call_fast(bound, call, checked=checked)


def _plainly(tables: Any, method: str, call: Call) -> Outcome:
    from conformance.targets import REFERENCE  # noqa: PLC0415

    outcome = Outcome()
    try:
        carrier = REFERENCE.carrier()
        arguments = {name: carrier.carry(value, name) for name, value in call.arguments.items()}
        outcome.result = getattr(tables, method)(**arguments)
    except Exception as error:  # noqa: BLE001  # is compared
        outcome.error = error
    return outcome


class _Bound:
    """A target whose one function is a method of an object."""

    def __init__(self, target: ProbedTarget, tables: Any, method: str) -> None:
        self._target, self._method = target, getattr(tables, method)
        self.implementation = target.implementation
        self.name = target.name

    def carrier(self, *, has_own_objects: bool = False) -> Any:
        """Return a new carrier into guarded memory."""
        return self._target.carrier(has_own_objects=has_own_objects)

    def lookup(self, _: str) -> Any:
        """Return the method."""
        return self._method


def _pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))  # noqa: S301  # it was pickled just now


def _forking_pickled(value: Any) -> Any:
    written = io.BytesIO()
    ForkingPickler(written).dump(value)
    return pickle.loads(written.getvalue())  # noqa: S301  # it was pickled just now
