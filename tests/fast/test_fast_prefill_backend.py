import dataclasses
from typing import Any

import torch

import fast
from tests.fast.conftest import make_batch


class Builder(fast.AttentionMetadataBuilder[Any]):
    """A builder that returns a given result."""

    result: Any = None

    def build(self, *_: object, **__: object) -> Any:  # noqa: ANN401  # whatever a test says
        return self.result


class Paged(fast.AttentionBackend):
    """A backend of that builder."""

    get_name = staticmethod(lambda: "PAGED")
    get_builder_cls = staticmethod(lambda: Builder)


def make_builder(result: object) -> Any:  # noqa: ANN401  # a class that is made
    """Make a builder of fast prefill whose underlying builder builds this."""
    made = fast.create_fast_prefill_custom_backend("Fast", Paged).get_builder_cls()
    builder = made("spec", ["0"], None, "cpu")
    builder.result = result
    return builder


def test_classes_are_of_the_module_of_what_they_extend() -> None:
    indices = torch.tensor([2, 4])
    batch = make_batch([3, 2], [0, 1], logits_indices_padded=indices, num_logits_indices=2)
    backend = fast.create_fast_prefill_custom_backend("Fast", Paged)
    own = type("Own", (), {"__module__": "an.engine"})()
    made = [backend, backend.get_builder_cls()]
    made += [type(make_builder(result).build(0, batch)) for result in (Lengths(3), own)]
    assert [__name__, __name__, __name__, "an.engine"] == [cls.__module__ for cls in made]


@dataclasses.dataclass
class Lengths(fast.AttentionMetadata):
    """A metadata."""

    longest: int
