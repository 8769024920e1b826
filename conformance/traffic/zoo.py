"""The model zoo: the real shapes of published models, as far as a KV cache sees them."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

FULL = "full"
SLIDING_WINDOW = "sliding_window"
CHUNKED_LOCAL = "chunked_local"


@dataclass(frozen=True, kw_only=True)
class CacheGroup:
    """The layers of a model whose KV caches share one block table.

    Attributes:
        kind: Of attention: "full", "sliding_window" or "chunked_local".
        layer_names: Its layers, in the model's order.
        block_size: Tokens in one block.
        sliding_window: Keys that a query sees, in tokens, itself among them; None: all.
        attention_chunk_size: Tokens of a chunk of chunked local attention; None: no chunks.
    """

    kind: str
    layer_names: tuple[str, ...]
    block_size: int
    sliding_window: int | None = None
    attention_chunk_size: int | None = None


@dataclass(frozen=True, kw_only=True)
class Model:
    """The shape of a published model.

    Attributes:
        name: As one types it at a command line.
        published_as: Its name at the Hugging Face hub.
        source: Where the numbers come from.
        num_layers: Decoder layers.
        num_query_heads: Query heads of a layer.
        num_kv_heads: Key/value heads of a layer.
        head_size: Elements of a head.
        max_context_tokens: The longest sequence that it was published for.
        layer_pattern: The kinds of attention of the first layers; the pattern repeats.
        layer_name: The name of a layer's attention, with `{}` for the layer's number.
        sliding_window: Of its sliding window layers, in tokens.
        attention_chunk_size: Of its chunked local layers, in tokens.
    """

    name: str
    published_as: str
    source: str
    num_layers: int
    num_query_heads: int
    num_kv_heads: int
    head_size: int
    max_context_tokens: int
    layer_pattern: tuple[str, ...]
    layer_name: str
    sliding_window: int | None = None
    attention_chunk_size: int | None = None

    def layers(self) -> dict[str, str]:
        """Say which kind of attention each layer has.

        Returns:
            The kind by the layer's name, in the model's order.

        Example:
            >>> dict(list(get_model("gpt-oss-20b").layers().items())[:2])
            {'model.layers.0.self_attn': 'sliding_window', 'model.layers.1.self_attn': 'full'}
        """
        return {
            self.layer_name.format(layer): self.layer_pattern[layer % len(self.layer_pattern)]
            for layer in range(self.num_layers)
        }

    def cache_groups(self, block_size: int = 16) -> tuple[CacheGroup, ...]:
        """Sort the layers into KV cache groups, one for each kind of attention.

        One pool of blocks serves all groups, so a block has the same number of bytes in each: a
        group of fewer layers has as many times more tokens in a block.

        Args:
            block_size: Tokens in a block of the group with the most layers.

        Returns:
            The groups, in the order of their first layers.

        Raises:
            ValueError: A group's layers do not divide the largest group's.

        Example:
            >>> groups = get_model("llama-4-scout").cache_groups(16)
            >>> [(group.kind, len(group.layer_names), group.block_size) for group in groups]
            [('chunked_local', 36, 16), ('full', 12, 48)]
        """
        layers = self.layers()
        names_by_kind: dict[str, list[str]] = {}
        for name, kind in layers.items():
            names_by_kind.setdefault(kind, []).append(name)
        most = max(len(names) for names in names_by_kind.values())
        groups = []
        for kind, names in names_by_kind.items():
            if most % len(names) != 0:
                raise ValueError(
                    f"{self.name} has {len(names)} {kind} layers, which do not divide the "
                    f"{most} of its largest group, so their blocks cannot be of one size in bytes"
                )
            groups.append(
                CacheGroup(
                    kind=kind,
                    layer_names=tuple(names),
                    block_size=block_size * (most // len(names)),
                    sliding_window=self.sliding_window if kind == SLIDING_WINDOW else None,
                    attention_chunk_size=(
                        self.attention_chunk_size if kind == CHUNKED_LOCAL else None
                    ),
                )
            )
        return tuple(groups)

    def block_size_bytes(self, group: CacheGroup, bytes_per_element: int = 2) -> int:
        """Compute the bytes of one block of a group, over all of its layers.

        Args:
            group: One of `cache_groups`.
            bytes_per_element: Of a key or value; 2 for bfloat16.

        Returns:
            Bytes of the keys and values.

        Example:
            >>> model = get_model("llama-3.1-8b")
            >>> model.block_size_bytes(model.cache_groups(16)[0])
            2097152
        """
        per_token = 2 * self.num_kv_heads * self.head_size * bytes_per_element
        return per_token * group.block_size * len(group.layer_names)


_MODELS = (
    Model(
        name="llama-3.1-8b",
        published_as="meta-llama/Llama-3.1-8B",
        source="config.json at the hub; The Llama 3 Herd of Models (arXiv 2407.21783), table 3",
        num_layers=32,
        num_query_heads=32,
        num_kv_heads=8,
        head_size=128,
        max_context_tokens=131_072,
        layer_pattern=(FULL,),
        layer_name="model.layers.{}.self_attn",
    ),
    Model(
        name="gpt-oss-20b",
        published_as="openai/gpt-oss-20b",
        source="config.json at the hub; the gpt-oss model card (arXiv 2508.10925), section 2",
        num_layers=24,
        num_query_heads=64,
        num_kv_heads=8,
        head_size=64,
        max_context_tokens=131_072,
        layer_pattern=(SLIDING_WINDOW, FULL),
        layer_name="model.layers.{}.self_attn",
        sliding_window=128,
    ),
    Model(
        name="llama-4-scout",
        published_as="meta-llama/Llama-4-Scout-17B-16E-Instruct",
        source="text_config of config.json at the hub (no_rope_layers: every fourth is full)",
        num_layers=48,
        num_query_heads=40,
        num_kv_heads=8,
        head_size=128,
        max_context_tokens=10_485_760,
        layer_pattern=(CHUNKED_LOCAL, CHUNKED_LOCAL, CHUNKED_LOCAL, FULL),
        layer_name="language_model.model.layers.{}.self_attn",
        attention_chunk_size=8192,
    ),
)

MODELS: Mapping[str, Model] = MappingProxyType({model.name: model for model in _MODELS})
"""All models of the zoo, by name."""


def get_model(name: str) -> Model:
    """Look a model of the zoo up.

    Args:
        name: As in `Model.name`.

    Returns:
        The model.

    Raises:
        KeyError: There is none of that name; the message lists the names.

    Example:
        >>> get_model("llama-3.1-8b").num_kv_heads
        8
    """
    if name not in MODELS:
        raise KeyError(f"no model {name!r} in the zoo, which has {', '.join(MODELS)}")
    return MODELS[name]
