"""Builders as factories: they record what they are made with and what they are given."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import strategies as st

from conformance.harness.objects import Factory, Twin


class Built:
    """What a builder builds: the arguments of `build`."""

    compared = ("args", "keywords")

    def __init__(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self.args, self.keywords = args, dict(sorted(keywords.items()))


class _Records:
    compared = ("given", "has_device", "num_builds", "reorder_batch_threshold")
    reorder_batch_threshold: int | None = None
    twins_device: str | None

    def __init__(self, *args: Any) -> None:  # by position alone
        super().__init__(*args)
        self.given, self.num_builds = args[:-1], 0

    @property
    def has_device(self) -> bool:
        made: Any = self
        return bool(made.device == made.twins_device)

    def build(self, *args: Any, **keywords: Any) -> Built:
        self.num_builds += 1
        return Built(args, keywords)


class _Stores:
    def __init__(self, *args: Any) -> None:
        self.kv_cache_spec, self.layer_names, self.vllm_config, self.device = args


@dataclasses.dataclass
class BuilderClass(Factory):
    """A class that extends `AttentionMetadataBuilder`."""

    def base(self, twin: Twin) -> type:
        has_base = twin.target is None or twin.target.offers("AttentionMetadataBuilder")
        found: type = twin.find("AttentionMetadataBuilder") if has_base else _Stores
        return found

    def make(self, twin: Twin) -> type:
        # No closure of the twin: classes stay alive.
        return type("Builder", (_Records, self.base(twin)), {"twins_device": twin.device})


@dataclasses.dataclass
class OwnBuilderClass(BuilderClass):
    """An engine's own class, without a base class of the implementation."""

    def base(self, _: Twin) -> type:
        return _Stores


def builder_classes() -> st.SearchStrategy[BuilderClass]:
    return st.builds(BuilderClass) | st.builds(OwnBuilderClass)


@dataclasses.dataclass
class Builder(Factory):
    """A builder of a class, made with `given`."""

    cls: BuilderClass
    given: list[Any] = dataclasses.field(default_factory=lambda: [None, ["layers.0"], None, None])

    def make(self, _: Twin) -> Any:
        made: Any = self.cls
        return made(*self.given)

    def state(self, made: Any) -> Any:
        threshold = vars(made).get("reorder_batch_threshold", "that of its class")
        return made.num_builds, threshold, type(made).reorder_batch_threshold
