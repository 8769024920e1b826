"""Test vectors: cases in plain JSON, for implementations in any language, and their replay.

`kvtwin vectors --out DIR` writes them, `vector_checks(DIR)` replays them; `schema.json`
defines the format, `docs/vectors.md` explains it.
"""

from pathlib import Path

from conformance.vectors.folder import vector_checks

SCHEMA = Path(__file__).with_name("schema.json")
"""The JSON Schema of the format."""

__all__ = ["SCHEMA", "vector_checks"]
