"""Calls and results as plain JSON and back, exactly: what vectors and the corpus are written in.

`docs/vectors.md` describes the format, `vectors/schema.json` defines it.
"""

from conformance.encoding.calls import SCHEMA_VERSION, decode_call, encode_call
from conformance.encoding.decoder import Decoder
from conformance.encoding.encoder import Encoder
from conformance.encoding.pruning import pruned
from conformance.encoding.text import to_text

__all__ = [
    "SCHEMA_VERSION",
    "Decoder",
    "Encoder",
    "decode_call",
    "encode_call",
    "pruned",
    "to_text",
]
