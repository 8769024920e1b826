import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fast

Make = Callable[..., fast.CommonAttentionMetadata]


class Builder(fast.AttentionMetadataBuilder[Any]):
    """A builder that records its arguments, and returns a given result."""

    result: Any = None

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: fast.CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> Any:  # noqa: ANN401  # whatever a test says
        """Return the result."""
        self.given = (common_prefix_len, common_attn_metadata, fast_build)
        return self.result


class Paged(fast.AttentionBackend):
    """A backend of that builder."""

    @staticmethod
    def get_name() -> str:
        """Return a name."""
        return "PAGED"

    @staticmethod
    def get_builder_cls() -> type[Any]:
        """Return the class of its builders."""
        return Builder

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_size: int,
        cache_dtype_str: str = "auto",
    ) -> tuple[int, ...]:
        """Return a shape."""
        del cache_dtype_str
        return (num_blocks, block_size, num_kv_heads, head_size)


def make_builder(result: object) -> Any:  # noqa: ANN401  # a class that is made
    """Make a builder of fast prefill whose underlying builder builds this."""
    made = fast.create_fast_prefill_custom_backend("Fast", Paged).get_builder_cls()
    builder = made("spec", ["0"], None, "cpu")
    builder.result = result
    return builder


@pytest.fixture
def batch(make_batch: Make) -> fast.CommonAttentionMetadata:
    """Return a batch with logits for two tokens."""
    indices = torch.tensor([2, 4])
    return make_batch([3, 2], [0, 1], logits_indices_padded=indices, num_logits_indices=2)


def test_classes_lie_where_the_others_do(batch: fast.CommonAttentionMetadata) -> None:
    """What is made says that it is of the module of what it extends."""
    backend = fast.create_fast_prefill_custom_backend("Fast", Paged)
    own = type("Own", (), {"__module__": "an.engine"})()
    made = [backend, backend.get_builder_cls()]
    made += [type(make_builder(result).build(0, batch)) for result in (Lengths(3), own)]
    assert [__name__, __name__, __name__, "an.engine"] == [cls.__module__ for cls in made]


@dataclasses.dataclass
class Lengths(fast.AttentionMetadata):
    """A metadata without defaults, with a field that no constructor sets."""

    longest: int
    total: int = dataclasses.field(init=False)

    @property
    def twice(self) -> int:
        """A property."""
        return 2 * self.longest
