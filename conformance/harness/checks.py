"""The tests of a contract: its answers, its refusals, its laws; and one story told."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import hypothesis
import numpy as np
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky

from conformance.adapters import Deviation, Unsupported
from conformance.harness import limits
from conformance.harness.compare import as_numpy
from conformance.harness.conditions import CONDITIONS, Stage
from conformance.harness.contract import Arguments, Contract
from conformance.harness.database import Examples
from conformance.harness.long_life import check_life
from conformance.harness.memory import LAYOUTS
from conformance.harness.objects import RAISED, attempt, possible
from conformance.harness.pair import (
    MODES,
    OBJECTS,
    Found,
    Pair,
    reference_answer,
)
from conformance.harness.process import unchanged
from conformance.harness.refusals import check_refusal, invalid
from conformance.harness.severity import (
    RANKS,
    cause_of,
    gravity_of,
    place_of,
    rank_of,
    takes_long,
)
from conformance.harness.show import one_line
from conformance.harness.sizes import mostly_small
from conformance.harness.story import Circumstances, Difference, Failure, Story, Verdict
from conformance.harness.targets import Target
from conformance.harness.values import (
    copied,
    fingerprint,
    parts,
    places,
    put,
    rebuilt,
)


@dataclasses.dataclass(frozen=True)
class Profile:
    """How much is drawn."""

    name: str  # its name on the command line
    answers: int  # examples of valid calls
    refusals: int  # examples of changed calls
    laws: int  # examples of each law
    # The part of these that runs on `native` and `cuda`, where a call takes longer.
    native: float = 0.35
    has_long_lives: bool = True  # whether a function is called many times
    seed: int | None = None  # the seed of Hypothesis; None for the same examples each time
    shrink_seconds: float = 20.0  # how long a failure is shrunk; 0 for not at all
    # Where failing examples are kept, and tried first in the next run.
    database: Examples | None = None

    def of(self, contract: Contract, target: Target, kind: str) -> Profile:
        """Return the numbers for a function on a target, and the database for a kind of test."""
        part = contract.examples * (1 if target.kind == "host" else self.native)
        counts: Any = {kind: max(int(getattr(self, kind) * part), 5) for kind in KINDS}
        test = f"{contract.function} {kind} {target.name}"
        database = self.database and self.database.of(test)
        return dataclasses.replace(self, **counts, database=database)


KINDS: Final = ("answers", "refusals", "laws")

PROFILES: Final = {
    profile.name: profile
    for profile in (
        Profile("brief", 40, 25, 10, has_long_lives=False),
        Profile("dev", 60, 40, 15, has_long_lives=False),
        Profile("default", 170, 70, 25),
        Profile("nightly", 3000, 1500, 400, native=0.4),
    )
}

COUNTS: Final[Counter[tuple[str, str]]] = Counter()
"""The number of examples drawn, by function and target."""

UNSUPPORTED: Final[Counter[tuple[str, str, str]]] = Counter()
"""The number of examples that an adapter does not support: function, target and reason."""

SIMPLE: Final = 0.2
"""A contract with so few examples is of a function too simple for a long life."""

MET: Final[set[tuple[str, str]]] = set()
"""The hard cases that were drawn: function and name."""

MOST_CAUSES: Final = 8
"""The most causes of one function that a test looks for."""

MOST_SECONDS: Final = 60.0
"""How long a test looks for a cause after the first."""

AGAIN: Final = 25
"""How often a failure that may depend on timing is repeated before it is reported."""


# Drawing.


FEATURES: Final = [
    *[("layout", name) for name in LAYOUTS],
    ("is_negated", True),
    ("has_numpy_scalars", True),
    ("is_positional", True),
    *[("is_checked", True)] * 4,
    *[("mode", name) for name in MODES if name],
    *[("objects", name) for name in OBJECTS if name],
]
"""What circumstances may have; a list of features shrinks better than a record of all of them."""

features = st.lists(st.sampled_from(FEATURES), max_size=6)


def circumstances(found: list[tuple[str, Any]]) -> Circumstances:
    """Return the circumstances with some features; of two that exclude each other, the last."""
    layouts = tuple(name for feature, name in found if feature == "layout")
    others = {feature: value for feature, value in found if feature != "layout"}
    return Circumstances(layouts or ("dense",), **others)


@st.composite
def stories(
    draw: st.DrawFn, contract: Contract, target: Target, *, is_quick: bool = False
) -> Story:
    """Draw a story; its conditions are drawn first, so that shrinking removes them first."""
    adapter = target.implementation.adapter
    takes_objects = contract.takes_own_objects and adapter.takes_own_objects
    left_out: list[Any] = [("objects", "own classes")] * (not takes_objects)
    left_out += [("mode", name) for name in adapter.unsupported_modes]
    takes_scalars = adapter.takes_numpy_scalars and not contract.is_long
    left_out += [("has_numpy_scalars", True)] * (not takes_scalars)
    names = [
        name
        for name, condition in CONDITIONS.items()
        for _ in range(condition.weight)
        if not contract.is_long
        and not (is_quick and condition.takes_long)
        and (takes_objects or not condition.needs_objects)
    ]
    conditions = draw(st.lists(st.sampled_from(names), max_size=2)) if names else []
    how = circumstances([one for one in draw(features) if one not in left_out])
    calls = draw(contract.calls)
    arguments = draw(calls)
    other = None
    if any(CONDITIONS[name].needs_other for name in conditions):
        same = any(CONDITIONS[name].same_sizes for name in conditions)
        is_alike = draw(st.integers(0, 9)) < (8 if same else 5)
        other = draw(calls if is_alike else draw(contract.calls))
    seed = draw(st.integers(0, 2**16))
    return Story(contract.function, arguments, other, how, tuple(conditions), seed)


@st.composite
def changed_calls(draw: st.DrawFn, contract: Contract, target: Target) -> list[Story]:
    """Draw a valid call, and eight of which one place is changed."""
    with mostly_small():
        arguments = possible(target, contract, draw(draw(contract.calls)))
    found = [Story(contract.function, arguments)]
    for k in range(8):  # Hypothesis likes to draw equal numbers
        rng = random.Random(draw(st.integers(0, 2**32 - 1)) + k)  # noqa: S311  # no secret
        made = invalid(contract, arguments, rng, target.implementation.adapter)
        if made is not None:
            path, changed, is_loose = made
            found.append(Story(contract.function, changed, changed=path, is_loose=is_loose))
    return found


# Telling.


def tell(contract: Contract, target: Target, story: Story) -> None:
    """Run a story, and raise `Failure` if the target does not do what `reference` does.

    A declared deviation is no failure.
    """
    if story.changed is None:
        arguments = possible(target, contract, story.arguments)
        other = story.other and possible(target, contract, story.other)
        story = dataclasses.replace(story, arguments=arguments, other=other)
    try:
        _tell(contract, target, story)
    except Failure as failure:
        if not target.excuses(failure):
            raise
    except Unsupported as reason:
        UNSUPPORTED[contract.function, target.name, str(reason)] += story.changed is None
        raise


def _tell(contract: Contract, target: Target, story: Story) -> None:
    stage: list[str] = []
    try:
        with limits.call(target, story):
            if story.changed is not None:
                check_refusal(contract, target, story)
            else:
                _tell_answer(contract, target, story, stage)
    except Failure as failure:  # of the limits
        if stage[1:]:
            words, verdict = CONDITIONS[stage[-1]].words, CONDITIONS[stage[-1]].verdict
            failure.condition = words
            failure.difference = dataclasses.replace(failure.difference, verdict=verdict)
        raise
    except Found as found:
        difference, words, verdict = found.difference, "", Verdict.WRONG_ANSWER
        if stage[1:]:
            words, verdict = CONDITIONS[stage[-1]].words, CONDITIONS[stage[-1]].verdict
        if difference.verdict is verdict is Verdict.WRONG_ANSWER and story.changed is None:
            needed = _needed(
                contract, target, dataclasses.replace(story, conditions=tuple(stage[1:]))
            )
            verdict = Verdict.ROBUSTNESS if needed not in {"", EARLIER} else verdict
            words = needed if not words or verdict is Verdict.ROBUSTNESS else words
        if difference.verdict is Verdict.WRONG_ANSWER:
            difference = dataclasses.replace(difference, verdict=verdict)
        reported = Failure(story, target.name, difference, words, found.arguments)
        reported.needs_circumstances = _needs_circumstances(
            contract, target, dataclasses.replace(story, conditions=tuple(stage[1:])), difference
        )
        raise reported from None


def _needs_circumstances(
    contract: Contract, target: Target, story: Story, difference: Difference
) -> bool:
    """Return whether an engine is right if layouts, modes and classes are the ordinary ones."""
    is_plain = story.circumstances == Circumstances()
    if is_plain or target.is_strict or story.changed is not None:
        return False
    plain = dataclasses.replace(story, circumstances=Circumstances())
    found = attempt(_tell_answer, contract, target, plain, []).error
    return not isinstance(found, Found) or place_of(found.difference) != place_of(difference)


EARLIER: Final = "earlier calls: this one alone is right"


def _needed(contract: Contract, target: Target, story: Story) -> str:
    """Return what was needed for a failure, if the call is right in ordinary circumstances."""
    how = story.circumstances
    if attempt(_tell_answer, contract, target, story, []).error is None:
        return EARLIER
    kinds: dict[str, dict[str, Any]] = {
        how.mode: {"mode": ""},
        "tensors that are lazy negations" if how.is_negated else "": {"is_negated": False},
        f"objects of {how.objects}" if how.objects else "": {"objects": ""},
    }
    kinds = {words: ordinary for words, ordinary in kinds.items() if words}
    kinds[", ".join(kinds)] = {key: value for one in kinds.values() for key, value in one.items()}
    for words, ordinary in kinds.items():
        plain = dataclasses.replace(story, circumstances=dataclasses.replace(how, **ordinary))
        if words and attempt(_tell_answer, contract, target, plain, []).error is None:
            return words
    return ""


def _tell_answer(contract: Contract, target: Target, story: Story, stage: list[str]) -> None:
    """Run a story about a valid call; `stage` is not empty once the call alone was right."""
    how = story.circumstances
    arguments = OBJECTS[how.objects](story.arguments)
    if how.objects and reference_answer(contract, copied(arguments)).error is not None:
        arguments = story.arguments  # `reference` takes no such objects
    if "expanded" in how.layouts:
        arguments = _with_equal_entries(contract, arguments)
    with target.running(checked=how.is_checked, seed=story.seed):
        x = Pair(contract, target, arguments, how)
        with unchanged(slow=True) as settings:
            x.call()
        if settings:
            raise Found(settings[0])
        x.check_sharing()
        stage.append("answered")
        is_whole = not target.implementation.lacks_of(contract.function)
        # Promises need all of a class.
        if is_whole and (contract.is_long or story.seed % 3 == 0):
            for promise in contract.properties:
                _keep(promise, target, story)
        for name in story.conditions:
            stage.append(name)
            rng = random.Random(story.seed)  # noqa: S311  # no secret
            CONDITIONS[name].run(Stage(contract, target, story, x, rng))
            x.check_held()


def _with_equal_entries(contract: Contract, arguments: Arguments) -> Arguments:
    """Let the entries of each array be equal if that is valid, so that one can be expanded.

    A field and its copy on the CPU stay equal, although a function may not compare them.
    """
    found = dict(places(arguments))
    for path, value in found.items():
        if isinstance(value, np.ndarray) and value.size > 1 and path[0] not in contract.written:
            name = str(path[-1])
            if name.endswith("_cpu") and (*path[:-1], name.removesuffix("_cpu")) in found:
                continue
            changed, copy = arguments, (*path[:-1], f"{name}_cpu")
            for place in (path, copy) if copy in found else (path,):
                changed = put(changed, place, np.full_like(value, value.reshape(-1)[-1]))
            if reference_answer(contract, copied(changed)).error is None:
                arguments = changed
    return arguments


def _keep(promise: Callable[[Target, Arguments], None], target: Target, story: Story) -> None:
    try:
        promise(target, copied(story.arguments))
    except Found:
        raise
    except RAISED as error:
        where = promise.__name__.replace("_", " ")
        is_broken = isinstance(error, AssertionError)  # pytest adds lines to its message
        got = str(error).partition("\n")[0] if is_broken else error
        raise Found(Difference(where, got, "kept", "breaks a promise")) from None


# Tests.


def answers(contract: Contract, target: Target, profile: Profile) -> Callable[[], None]:
    counts = profile.of(contract, target, "answers")
    kept: list[Story] = []
    is_quick = target.kind != "host"

    def body(story: Story) -> None:
        tell(contract, target, story)
        _count(contract, target, story)
        kept.append(story)

    def test() -> None:
        drawn = stories(contract, target, is_quick=is_quick)
        _run(body, drawn, counts.answers, counts, is_strict=target.is_strict)
        if not is_quick:
            _meet_hard_cases(body, drawn, contract, counts, is_strict=target.is_strict)
            with contextlib.suppress(Unsupported):
                is_simple = contract.is_long or contract.examples <= SIMPLE
                if counts.has_long_lives and not is_simple:
                    check_life(contract, target, kept)

    return test


class _Met(Exception):  # noqa: N818  # no error
    """A hard case was drawn."""


def _meet_hard_cases(
    body: Callable[[Story], None],
    drawn: st.SearchStrategy[Story],
    contract: Contract,
    profile: Profile,
    *,
    is_strict: bool,
) -> None:
    """Tell a story of each hard case that chance has left out."""
    for name, holds in contract.hard_cases.items():
        if (contract.function, name) in MET:
            continue

        def seek(story: Story, holds: Callable[[Arguments], bool] = holds) -> None:
            if holds(story.arguments):
                raise _Met

        def tell_hard(story: Story, holds: Callable[[Arguments], bool] = holds) -> None:
            if holds(story.arguments):
                body(story)

        for seed in range(8):
            one = dataclasses.replace(profile, seed=seed, shrink_seconds=0.0, database=None)
            try:
                _search(seek, drawn, profile.answers, one)
            except _Met:
                one = dataclasses.replace(one, shrink_seconds=profile.shrink_seconds)
                _run(tell_hard, drawn, profile.answers, one, is_strict=is_strict)
                break


def _count(contract: Contract, target: Target, story: Story) -> None:
    COUNTS[contract.function, target.name] += 1
    for name, holds in contract.hard_cases.items():
        if (contract.function, name) not in MET and holds(story.arguments):
            MET.add((contract.function, name))


def refusals(contract: Contract, target: Target, profile: Profile) -> Callable[[], None]:
    counts = profile.of(contract, target, "refusals")

    def body(found: list[Story]) -> None:
        valid, *changed = found
        with target.running(checked=True):
            outcome = attempt(Pair(contract, target, valid.arguments).outcome)
        if outcome.error is not None or outcome.value.error is not None:
            return  # the test of answers is about this
        for story in changed:
            with contextlib.suppress(Unsupported):
                tell(contract, target, story)
                COUNTS[contract.function, target.name] += 1

    drawn = changed_calls(contract, target)
    return lambda: _run(body, drawn, counts.refusals, counts, is_strict=target.is_strict)


def laws(contract: Contract, target: Target, profile: Profile) -> Callable[[], None]:
    counts = profile.of(contract, target, "laws")

    def test() -> None:
        for law in contract.laws:

            def body(case: Any, law: Any = law) -> None:
                _check_law(contract, target, law, case)
                COUNTS[contract.function, target.name] += 1

            drawn = law.cases(contract)
            database = counts.database and counts.database.of(f"{counts.database.test} {law.name}")
            own = dataclasses.replace(counts, database=database)
            _run(body, drawn, counts.laws, own, is_strict=target.is_strict)

    return test


def deviations(contract: Contract, target: Target) -> Callable[[], None]:
    """Return the test that the witness of each declared deviation still fails as declared."""

    def test() -> None:
        for known in target.implementation.deviations:
            if known.function == contract.function:
                _check_witness(contract, target, known)

    return test


def _check_witness(contract: Contract, target: Target, known: Deviation) -> None:
    arguments = dict(known.witness)
    is_valid = reference_answer(contract, copied(arguments)).error is None
    story = Story(known.function, arguments, changed=None if is_valid else known.names)
    undeclared = copy.copy(target.implementation)
    undeclared.deviations = ()
    outcome = attempt(
        _tell, contract, dataclasses.replace(target, implementation=undeclared), story
    )
    line = str(outcome.error or "nothing")
    if isinstance(outcome.error, Failure):
        line = one_line(outcome.error)
        if known.explains(line):
            return
    words = "the declared deviation", f"a failure that matches {known.fails!r}"
    kind = f"is out of date ({known.reason})"
    raise Failure(story, target.name, Difference(words[0], line, words[1], kind))


def _check_law(contract: Contract, target: Target, law: Any, case: Any) -> None:
    called: list[Arguments] = []

    def call(function: str, arguments: Arguments) -> Any:
        if possible(target, contract, arguments).get("operations") is not arguments.get(
            "operations"
        ):
            raise Unsupported(f"methods that {function} lacks")
        called.append(arguments)
        own = (
            contract
            if function == contract.function
            else Contract(function=function, calls=st.nothing())
        )
        pair = Pair(own, target, arguments)
        with limits.call(target, Story(function, arguments)):
            got = pair.outcome()
        if got.error is not None:
            raise Found(Difference("the call", got.error, "an answer", "raises"))
        return as_reference(got.value)

    try:
        with target.running(checked=True):
            law.check(contract, call, case)
    except Failure:  # of the limits
        raise
    except AssertionError as error:
        kind = f"violates the law {law.name}"
        found = Difference(law.statement, str(error), "holds", kind)
    except Found as error:
        found = error.difference
    else:
        return
    story = Story(contract.function, called[0] if called else {})
    failure = Failure(story, target.name, found)
    if not target.excuses(failure):
        raise failure


def as_reference(value: Any) -> Any:
    """Return a result of a target with NumPy arrays for tensors."""
    if isinstance(value, torch.Tensor):
        return as_numpy(value)
    if isinstance(value, slice) or not parts(value):
        return value
    return rebuilt(value, [(key, as_reference(part)) for key, part in parts(value)])


# Hypothesis.


def _run(
    body: Callable[[Any], None],
    examples: st.SearchStrategy[Any],
    number: int,
    profile: Profile,
    *,
    is_strict: bool,
) -> None:
    """Run a property, and raise the `Failure` of the smallest example.

    Unless it is strict, other causes are sought too.
    """
    if is_strict:
        _search(body, examples, number, profile)
        return
    found = sorted(_causes(body, examples, number, profile), key=gravity_of)
    if found:
        found[0].others = found[1:]
        raise found[0]


def _causes(
    body: Callable[[Any], None], examples: st.SearchStrategy[Any], number: int, profile: Profile
) -> list[Failure]:
    """Return a failure of each cause, the gravest severity first: smaller examples may hide them.

    What is no wrong answer is only sought if there is no wrong answer, and then one cause.
    """
    found: list[Failure] = []
    rank = 0
    later = dataclasses.replace(profile, database=None, shrink_seconds=profile.shrink_seconds / 4)
    end = time.monotonic() + MOST_SECONDS
    while len(found) < MOST_CAUSES and rank < RANKS - bool(found):
        if found and (takes_long(found[-1]) or time.monotonic() > end):
            break
        known = {cause_of(one) for one in found}
        one, others = _gravest(body, examples, number, later if found else profile, rank, known)
        if one is None:
            rank = min(others, default=RANKS)
        else:
            found.append(one)
    return found


def _gravest(
    body: Callable[[Any], None],
    examples: st.SearchStrategy[Any],
    number: int,
    profile: Profile,
    rank: int,
    known: set[Any],
) -> tuple[Failure | None, set[int]]:
    """Return the smallest failure of an unknown cause, and which less grave ones were seen."""
    others: set[int] = set()

    def grave(example: Any) -> None:
        try:
            body(example)
        except Failure as failure:
            own = rank_of(failure)
            if cause_of(failure) not in known:
                if own <= rank or takes_long(failure):
                    raise
                others.add(own)

    try:
        _search(grave, examples, number, profile)
    except Failure as failure:
        return failure, others
    return None, others


def _search(
    body: Callable[[Any], None], examples: st.SearchStrategy[Any], number: int, profile: Profile
) -> None:
    """Run a property with Hypothesis, and raise the `Failure` of the smallest example."""
    failures: dict[str, Failure] = {}
    deadline: list[float] = []

    def test(example: Any) -> None:
        if deadline and time.monotonic() > deadline[0]:
            # Shrinking has taken long enough: only what has failed before fails.
            if _key(example) in failures:
                raise failures[_key(example)]
            return
        try:
            with contextlib.suppress(Unsupported):
                body(example)
        except Failure as failure:
            failures[_key(example)] = failure
            deadline[:] = deadline or [time.monotonic() + profile.shrink_seconds]
            raise

    seeded = given(_one_of_unique(examples))(test)
    if profile.seed is not None:  # first, since it removes the database from the settings
        seeded = hypothesis.seed(profile.seed)(seeded)
    configured = settings(
        max_examples=number,
        derandomize=profile.seed is None,
        database=profile.database,
        deadline=None,
        phases=[Phase.reuse, Phase.generate, *[Phase.shrink] * (profile.shrink_seconds > 0)],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
        verbosity=hypothesis.Verbosity.quiet,
    )(seeded)
    try:
        configured()
    except Flaky:
        if not failures:  # a strategy is
            raise
        last = [*failures.values()][-1]
        if is_confirmed(last, body):
            raise last from None


def _one_of_unique(examples: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return the same strategy, within a collection that Hypothesis does not mutate.

    Otherwise it draws five of six examples by copying a part of one over another part, so that most
    are nearly equal.
    """
    return st.lists(examples, min_size=1, max_size=1, unique_by=id).map(lambda found: found[0])


def is_confirmed(failure: Failure, body: Callable[[Any], None]) -> bool:
    """Return whether to report a failure that did not happen again.

    If it may depend on timing, it must happen once in 25 further runs.
    """
    if not any(CONDITIONS[name].may_vary for name in failure.story.conditions):
        return True
    return any(attempt(body, failure.story).error is not None for _ in range(AGAIN))


def _key(example: Any) -> str:
    stories = example if isinstance(example, list) else [example]
    return repr([_text(story) if isinstance(story, Story) else repr(story) for story in stories])


def _text(story: Story) -> str:
    arguments = fingerprint([story.arguments, story.other])
    return f"{story.conditions} {story.seed} {story.circumstances} {story.changed} {arguments}"
