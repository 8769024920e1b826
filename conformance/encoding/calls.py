"""A call as plain JSON, and back."""

from __future__ import annotations

from typing import Any

from conformance.calls import Call
from conformance.encoding.decoder import Decoder
from conformance.encoding.elements import Json
from conformance.encoding.encoder import Encoder
from conformance.encoding.pruning import pruned

SCHEMA_VERSION = "1.1"
"""The version of the format: the first number changes where an old reader would be wrong."""


def encode_call(call: Call) -> dict[str, Json]:
    """Return a call as JSON: its arguments, its hints, and the memories that they lie in.

    Raises:
        TypeError: An argument of a kind that has no form in JSON.

    >>> encode_call(Call("f", {"block_size": 2}))
    {'function': 'f', 'arguments': {'block_size': 2}}
    """
    encoder = Encoder()
    case = start_call(encoder, call)
    return pruned(case, encoder.memories)


def start_call(encoder: Encoder, call: Call) -> dict[str, Json]:
    """Return a call as an encoder writes it, before it is pruned."""
    case: dict[str, Json] = {"function": call.function}
    case["arguments"] = {name: encoder.encode(value) for name, value in call.arguments.items()}
    if call.hints:
        case["hints"] = {name: encoder.encode(value) for name, value in call.hints.items()}
    return case


def decode_call(case: Json, decoder: Decoder | None = None) -> Call:
    """Return the call that `encode_call` wrote; its facts are not written.

    Args:
        case: It, as JSON.
        decoder: What reads it; None for one of its own.

    >>> decode_call({"function": "f", "arguments": {"block_size": 2}})
    f(block_size=2)
    """
    decoder = decoder or Decoder(case.get("memories", ()))
    parts: list[dict[str, Any]] = [
        {name: decoder.decode(value) for name, value in case.get(part, {}).items()}
        for part in ("arguments", "hints")
    ]
    return Call(case["function"], parts[0], hints=parts[1])
