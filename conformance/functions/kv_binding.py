"""Binding: each layer of a model gets its cache, and the runner gets them in layer order."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import torch
from hypothesis import strategies as st

import reference
from conformance.harness.contract import Arguments, Contract
from conformance.harness.objects import Factory, Fresh, Twin
from conformance.harness.sizes import sizes
from conformance.laws.batches import choices, deferred

NO_INTEGERS: Final = (
    *("model", "layers", "mixer", "h", "", "-1", "+3", "1_0", "²", "٣", "1e3", " 4", "0x5", "½"),
    *("7\n", "v2", "encoder"),
)
"""Components that are not integers, although `isdigit` or `int` accepts some of them."""


@st.composite
def names(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    number, places = draw(sizes(0, 2000, small=3)), st.integers(0, 10**20)
    modules, has_attn = choices(draw, (1, 2, None, 3, 64, 0), (True, False))
    if modules == 0:
        modules = draw(st.integers(1, 10**12))
    is_stated = modules != 1 or draw(st.booleans())

    def contents(draw: st.DrawFn) -> Arguments:
        can_have_two = has_attn and modules not in {1, None}
        parts = draw(st.lists(places.map(str), min_size=1, max_size=1 + can_have_two))
        parts[0] = draw(st.sampled_from(("", "", "00"))) + parts[0]
        seed = draw(st.integers(0, 2**16))
        rng = random.Random(seed)  # noqa: S311  # no secret
        parts += rng.choices(NO_INTEGERS, k=number)
        if has_attn:
            parts.append(rng.choice(("attn", "self_attn", "cross_attn2", "attn²", "1attn")))
        if seed:
            rng.shuffle(parts)
        arguments: Arguments = {"layer_name": ".".join(parts)}
        return {**arguments, "num_attn_module": modules} if is_stated else arguments

    return deferred(contents)


def too_many_integers(arguments: Arguments, rng: random.Random) -> Arguments:
    """Let a name have no integer, or two or three of them."""
    parts = [part for part in arguments["layer_name"].split(".") if not part.isdigit()]
    more = [str(rng.randrange(100)) for _ in range(rng.randrange(4))]
    name = ".".join(rng.sample(parts + more, len(parts + more)))
    modules = rng.choice((arguments.get("num_attn_module", 1), 2))
    return {"layer_name": name, "num_attn_module": modules}


@dataclasses.dataclass
class Cache(Factory):
    """The cache of a layer, which is handed on and never read."""

    number: int  # what it contains
    has_states: bool = False  # whether it is a list of the states of a Mamba layer

    def make(self, twin: Twin) -> Any:
        new: Any = (
            np.full if twin.target is None else functools.partial(torch.full, device=twin.device)
        )
        made = [new((2,), int(self.number) % 100) for _ in range(1 + self.has_states)]
        return made if self.has_states else made[0]


@dataclasses.dataclass
class Layer(Factory):
    """A layer of a model."""

    kv_cache: Any = None  # what it had before
    is_new: bool = False  # whether it had no `kv_cache`
    is_bindable: bool = True  # whether its `kv_cache` can be set

    def make(self, _: Twin) -> Any:
        if not self.is_bindable:
            return _Fixed()
        return SimpleNamespace() if self.is_new else SimpleNamespace(kv_cache=self.kv_cache)

    def state(self, made: Any) -> Any:
        return dict(vars(made))


class _Fixed:
    @property
    def kv_cache(self) -> None:
        """It cannot be set."""


def layer_names(rng: random.Random, number: int, first: int = 0) -> tuple[list[str], int]:
    """Choose names of layers in any order, and how many attention modules a layer has.

    Indices may pass 10, so that they do not sort like text. Two names have the same index if a
    layer has self and cross attention.
    """
    first, step = rng.choice((first, first, 8, 98)), rng.choice((1, 1, 1, rng.randint(2, 500)))
    prefix = rng.choice(("layers", "model.layers", "transformer.h", "language_model.model.layers"))
    scheme = rng.choice(("plain", "plain", "cross", "modules", "modules", "mixer"))
    modules = rng.randint(2, 3) if scheme == "modules" else 1
    found = []
    for k in range(number):
        # A name with one integer has that index, which another layer may have too.
        kind = rng.choice(("attn", "attn", "attn", "attn", "self_attn", "mixer"))
        if scheme == "cross":
            part = ("self_attn", "encoder_attn")[k % 2]
            found.append(f"decoder.layers.{first + k // 2 * step}.{part}.attn")
        elif scheme == "modules" and kind == "attn":
            found.append(f"{prefix}.{first + k // modules * step}.attn.{k % modules}")
        elif scheme == "modules":
            found.append(f"{prefix}.{first + k * step}.{kind}.of{k}")
        elif scheme == "mixer":
            found.append(f"{first + k * step}.mixer")
        else:
            found.append(f"{prefix}.{first + k * step}.self_attn.attn")
    order = rng.choice((found, found[::-1], rng.sample(found, number)))
    return order, modules


def forward_context(rng: random.Random, of_caches: Iterable[str], number: int) -> dict[str, Layer]:
    others = [*("head", "layers.1.2.3")[:number], *map("layers.{}.mlp".format, range(number - 2))]
    found = [*of_caches, *others]
    if rng.random() < 0.5:
        rng.shuffle(found)
    had: tuple[Any, ...] = None, [], ["an old cache"]
    return {name: Layer(rng.choice(had), is_new=rng.random() < 0.3) for name in found}


def identities(*values: Any) -> list[int]:
    """Return a number for each value, which is the same for the same object."""
    numbers: dict[int, int] = {}
    return [numbers.setdefault(id(value), len(numbers)) for value in values]


def held(layers: dict[str, Any], runner_kv_caches: list[Any]) -> dict[str, Any]:
    caches = {name: layer.kv_cache for name, layer in layers.items() if hasattr(layer, "kv_cache")}
    lists = [cache for cache in caches.values() if isinstance(cache, list)]
    entries = [entry for cache in lists for entry in cache]
    return {
        "layers": caches,
        "runner_kv_caches": runner_kv_caches,
        "identities": identities(*runner_kv_caches, *entries, *lists),
    }


@st.composite
def bound(draw: st.DrawFn) -> st.SearchStrategy[Arguments]:
    number, without, first = draw(sizes(0, 70)), draw(sizes(0, 20, small=2)), draw(sizes(0, 10**9))
    seeds = st.integers(0, 2**32 - 1)
    has_modules = draw(st.sampled_from((True, None, False)))

    def contents(draw: st.DrawFn) -> Arguments:
        rng = random.Random(draw(seeds))  # noqa: S311  # no secret
        found, modules = layer_names(rng, number, first)
        caches: dict[str, Cache] = {}
        for i, name in enumerate(found):
            caches[name] = Cache(i, has_states=rng.random() < 0.3)
            if rng.random() < 0.2:
                caches[name] = caches[rng.choice(found[: i + 1])]
        arguments = {
            "kv_caches": caches,
            "forward_context": forward_context(rng, found, without),
            "runner_kv_caches": Fresh([]),
        }
        if modules != 1 or has_modules is not False:
            arguments["num_attn_module"] = None if modules == 1 and has_modules is None else modules
        return arguments

    return deferred(contents)


def bind(twin: Twin, **arguments: Any) -> dict[str, Any]:
    returned = twin.function("bind_kv_cache")(**arguments)
    return {
        "returned": returned,
        **held(arguments["forward_context"], arguments["runner_kv_caches"]),
    }


def wrong_layer(arguments: Arguments, rng: random.Random) -> Arguments | None:
    """Give a layer a name without an index, or with too many integers; leave it out; bind twice."""
    if not arguments["kv_caches"]:
        return None
    if rng.random() < 0.2:
        return {**arguments, "runner_kv_caches": Fresh([0])}
    if rng.random() < 0.3:
        del arguments["forward_context"][rng.choice([*arguments["kv_caches"]])]
        return arguments
    old, new = rng.choice([*arguments["kv_caches"]]), rng.choice(("layers.x", "1.2.attn.3", "4.5"))
    for name in ("kv_caches", "forward_context"):
        found = arguments[name].items()
        arguments[name] = {new if key == old else key: value for key, value in found}
    return arguments


def _indices(arguments: Arguments) -> list[int]:
    modules = arguments.get("num_attn_module", 1)
    return [reference.extract_layer_index(name, modules) for name in arguments["kv_caches"]]


CONTRACTS = [
    Contract(
        function="extract_layer_index",
        calls=names(),
        specials=(too_many_integers,),
        hard_cases={
            "digits that are not ASCII's": lambda args: bool(
                {"²", "٣"} & {*args["layer_name"].split(".")}
            ),
            "one integer, several modules": lambda args: (
                (args.get("num_attn_module", 1) or 1) > 1
                and sum(p.isascii() and p.isdigit() for p in args["layer_name"].split(".")) == 1
            ),
        },
        examples=0.5,
    ),
    Contract(
        function="bind_kv_cache",
        calls=bound(),
        run=bind,
        has_objects=True,
        specials=(wrong_layer,),
        hard_cases={
            "layers of one index, not by name": lambda args: (
                len({*_indices(args)}) < len(args["kv_caches"])
                and sorted(args["kv_caches"]) != [*args["kv_caches"]]
            ),
            "indices before and after 1024": lambda args: (
                min(_indices(args), default=1024) < 1024 < max(_indices(args))
            ),
            "indices that text orders otherwise": lambda args: (
                sorted(_indices(args)) != sorted(_indices(args), key=str)
            ),
        },
        examples=0.4,
    ),
]
