"""The multimodal budget: how many items of each modality a prompt and a batch may have."""

from __future__ import annotations

import dataclasses
import random
from typing import Any, Final

import numpy as np
from hypothesis import strategies as st

import reference
from conformance.harness.contract import Arguments, Contract
from conformance.harness.objects import Factory, Operation, Twin, play
from conformance.harness.sizes import rngs, sizes, vectors
from conformance.laws.batches import choices, deferred

MODALITIES: Final = ("image", "video", "audio", "", "Image")

LARGE: Final = (2**31, 2**40, 2**63 - 1, 2**70)
"""Numbers that no int of a machine holds, or their products."""


class Cache:
    """A processor cache, which counts how often it is cleared."""

    compared = ("cleared",)

    def __init__(self) -> None:
        self.cleared = 0

    def clear_cache(self) -> None:
        self.cleared += 1


class _Registry:
    """An engine's registry, which notes its calls, and whether it got the same objects again."""

    def __init__(self, limits: Any, tokens: Any, cache: Cache | None) -> None:
        self.limits, self.tokens, self.cache = limits, tokens, cache
        self.calls: list[Any] = []

    def _note(self, model: Any, **given: Any) -> None:
        known = {"cache": self.cache, "profiler_limits": self.limits}
        is_same = {name: value is known[name] for name, value in given.items()}
        self.calls.append([type(model).__name__, dict(given), is_same])

    def get_mm_limits_per_prompt(self, model_config: Any, *, cache: Any) -> Any:
        self._note(model_config, cache=cache)
        return self.limits

    def get_max_tokens_per_item_by_modality(
        self, model_config: Any, *, cache: Any, profiler_limits: Any
    ) -> Any:
        self._note(model_config, cache=cache, profiler_limits=profiler_limits)
        return self.tokens


class _CachingRegistry(_Registry):
    def processor_only_cache_from_config(self, model_config: Any) -> Cache | None:
        self._note(model_config)
        return self.cache


class _NoCacheRegistry(_Registry):
    processor_only_cache_from_config = None


CLASSES: Final = {
    "no method": _Registry,
    "None": _NoCacheRegistry,
    "no cache": _CachingRegistry,
    "a cache": _CachingRegistry,
}


@dataclasses.dataclass
class Registry(Factory):
    """Makes a registry of modalities."""

    limits: Any  # items of a prompt by modality
    tokens: Any  # tokens of the largest item by modality
    kind: str  # what it has for a processor cache: a key of `CLASSES`

    def make(self, _: Twin) -> Any:
        """Return the registry, with dicts of its own, of Python's ints: a budget shows them."""
        dicts = [
            {k: int(v) if isinstance(v, np.integer) else v for k, v in given.items()}
            if isinstance(given, dict)
            else given
            for given in (self.limits, self.tokens)
        ]
        cls: Any = CLASSES[self.kind]
        return cls(*dicts, Cache() if self.kind == "a cache" else None)

    def state(self, made: Any) -> Any:
        return [made.calls, made.cache]


def _tokens(draw: st.DrawFn, number: int) -> dict[str, int]:
    names = draw(st.permutations(MODALITIES))[:number]
    names += [f"modality {k}" for k in range(number - len(names))]
    most = draw(st.sampled_from((1, 3, 8, 1500)))
    counts = draw(vectors(number, 0, most, object, rare=(576, 0)))
    if number and draw(st.integers(0, 9)) == 9:
        counts[-1] = draw(st.sampled_from(LARGE))
    return {name: int(count) for name, count in zip(names, counts, strict=True)}


def _scheduler(draw: st.DrawFn, largest: int) -> reference.SchedulerConfig:
    """Draw limits near the largest item, or without effect."""
    near = (0, largest, largest + 1, 2 * largest, max(largest - 1, 0), 5 * largest, 2**70)
    steps = (largest, largest + 1, 2 * largest, largest // 2, 2**70)
    compute, cache, step, requests, is_spread, is_whole = choices(
        *(draw, near, near, steps, (1, 2, 3, 64, 2**40), (True, False), (False, False, True)),
    )
    return reference.SchedulerConfig(
        max_num_batched_tokens=max(step, largest if is_whole else 1, 1),
        max_num_seqs=requests,
        max_num_encoder_input_tokens=compute,
        encoder_cache_size=cache,
        enable_chunked_prefill=is_spread,
        disable_chunked_mm_input=is_whole,
    )


@st.composite
def computed(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    number = draw(sizes(0, 1100))

    def contents(draw: st.DrawFn) -> Arguments:
        tokens = _tokens(draw, number)
        config = _scheduler(draw, max(tokens.values(), default=0))
        is_read = bool(tokens) or draw(st.booleans())
        return {"scheduler_config": config if is_read else None, "max_tokens_by_modality": tokens}

    return deferred(contents)


METHODS: Final = (
    "get_encoder_budget",
    "get_modality_with_max_tokens",
    "get_max_items",
    "reset_cache",
)


@st.composite
def sessions(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    number, length = draw(sizes(0, 70, small=4)), draw(sizes(1, 20))
    methods: tuple[str, ...] = METHODS
    if draw(st.integers(0, 15)) == 15:
        number, length, methods = min(number, 3), 300, METHODS[-1:]

    def contents(draw: st.DrawFn) -> Arguments:
        tokens = _tokens(draw, number)
        largest = max(tokens.values(), default=0)
        most = draw(vectors(len(tokens), 0, 3, object, rare=(9, 999, 2**40)))
        limits = {name: int(limit) for name, limit in zip(tokens, most, strict=True)}
        limits["text"] = 2
        bounds = (1, largest - 1, largest, 2 * largest, 2 * largest + 1, 10**4, 2**70)
        longest, kind = choices(draw, bounds, tuple(CLASSES))
        scheduler = _scheduler(draw, largest)
        rng, operations, names = draw(rngs()), list[Operation](), tuple(limits)
        some = (0, 1, 2, 3, longest, longest + 1, largest, scheduler.max_num_batched_tokens)
        for _ in range(length):
            method, given = methods[rng.integers(len(methods))], {}
            if method == METHODS[1] and not tokens:
                continue
            if method == "get_max_items":
                name = names[rng.integers(len(names))]
                size = some[rng.integers(len(some))] if rng.random() < 0.7 else tokens.get(name, 5)
                given = {"modality": name, "max_tokens_per_item": max(size, 0)}
            operations.append(Operation(method, given))
        return {
            "model_config": reference.ModelConfig(max_model_len=max(longest, 1)),
            "scheduler_config": scheduler,
            "mm_registry": Registry(limits, tokens, kind),
            "operations": operations,
        }

    return deferred(contents)


SHOWN: Final = (
    *("max_model_len", "max_num_reqs", "mm_limits", "max_tokens_by_modality"),
    *("encoder_compute_budget", "encoder_cache_size"),
    *("max_items_per_prompt_by_modality", "max_items_per_batch_by_modality"),
)


def _play(twin: Twin, **arguments: Any) -> Any:
    shown: list[Any] = []

    def watch(budget: Any, given: Arguments) -> Any:
        registry: Any = given["mm_registry"]
        attributes = {name: getattr(budget, name) for name in SHOWN}
        limits, tokens = attributes["mm_limits"], attributes["max_tokens_by_modality"]
        shown.append([attributes, limits is registry.limits, tokens is registry.tokens])
        return registry.cache

    played = play("MultiModalBudget", watch)(twin, **arguments)
    return [*shown, played]


def no_modalities(arguments: Arguments, rng: random.Random) -> Arguments:
    """Let the largest of no modalities be wanted, or one without a limit."""
    registry: Registry = arguments["mm_registry"]
    wrong = rng.choice((Registry({}, {}, "None"), dataclasses.replace(registry, limits={})))
    unknown = {"modality": "smell", "max_tokens_per_item": rng.randrange(2)}
    operation = rng.choice((Operation(METHODS[1], {}), Operation("get_max_items", unknown)))
    return {**arguments, "mm_registry": wrong, "operations": [operation]}


CONTRACTS = [
    Contract(
        function="compute_mm_encoder_budget",
        calls=computed(),
        hard_cases={
            "an item fills a step in which it must stay": lambda args: (
                bool(args["max_tokens_by_modality"])
                and args["scheduler_config"].disable_chunked_mm_input
                and args["scheduler_config"].max_num_batched_tokens
                == max(args["max_tokens_by_modality"].values())
            ),
        },
        takes_own_objects=True,
    ),
    Contract(
        function="MultiModalBudget",
        calls=sessions(),
        run=_play,
        specials=(no_modalities,),
        hard_cases={
            "more than 256 resets": lambda args: (
                sum(step.method == "reset_cache" for step in args["operations"]) > 256
            ),
            "more than 16 modalities": lambda args: len(args["mm_registry"].tokens) > 16,
        },
        examples=0.4,
        takes_own_objects=True,
    ),
]
