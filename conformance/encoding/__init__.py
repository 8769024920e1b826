"""Encodes calls and results as JSON, and decodes them without loss.

Test vectors and the corpus have this format.

`docs/vectors.md` describes the format, `vectors/schema.json` defines it.
"""

from conformance.encoding.arrays import Json
from conformance.encoding.decoder import Decoder, decode_call
from conformance.encoding.encoder import Encoder, encode_call
from conformance.encoding.files import SCHEMA_VERSION, folder_for, read_json, to_text, write_case

__all__ = [
    "SCHEMA_VERSION",
    "Decoder",
    "Encoder",
    "Json",
    "decode_call",
    "encode_call",
    "folder_for",
    "read_json",
    "to_text",
    "write_case",
]
