"""Checks a folder of test vectors with only the standard library, independently of kvtwin.

    python read_vectors.py DIR

checks every file against DIR's own schema.json, and the rules that a schema cannot express: arrays
have their declared shapes, fit in their memories and hold elements of their dtypes; references
refer to earlier objects; listed files exist. It prints the number of files of each kind. The exit
status is 0, or 1 with a line for each error.
"""

from __future__ import annotations

import json
import re
import struct
import sys
from collections import Counter
from pathlib import Path
from typing import Any, TypeAlias

Json: TypeAlias = Any
"""A parsed JSON value."""

TYPES = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}

KNOWN = {
    *("$ref", "$defs", "$schema", "title", "description", "type", "const", "enum", "pattern"),
    *("minimum", "maximum", "items", "minItems", "maxItems", "properties", "required"),
    *("additionalProperties", "dependentSchemas", "oneOf"),
}
"""The JSON Schema keywords that this script supports."""


class Wrong(Exception):  # noqa: N818  # a verdict about a file
    """An error in a file, with its place."""


class Schema:
    """A validator for the JSON Schema keywords that the vectors' schema uses.

    Args:
        root: The schema.

    Raises:
        Wrong: The schema has an unsupported keyword.
    """

    def __init__(self, root: Json) -> None:
        self.definitions = root["$defs"]
        self._check_words(root)

    def _check_words(self, schema: Json) -> None:
        unknown = set(schema) - KNOWN
        if unknown:
            raise Wrong(f"schema.json: {sorted(unknown)} are not understood")
        for word in ("properties", "$defs", "dependentSchemas"):
            for inner in schema.get(word, {}).values():
                self._check_words(inner)
        for inner in [schema.get("items"), schema.get("additionalProperties")]:
            if isinstance(inner, dict):
                self._check_words(inner)
        for inner in schema.get("oneOf", ()):
            self._check_words(inner)

    def check(self, value: Json, schema: Json, where: str) -> None:
        """Raise `Wrong` if a value does not match a schema."""
        if isinstance(schema, str):
            schema = self.definitions[schema]
        if "$ref" in schema:
            self.check(value, schema["$ref"].removeprefix("#/$defs/"), where)
        self._check_constants(value, schema, where)
        if isinstance(value, str):
            if re.search(schema.get("pattern", ""), value) is None:
                raise Wrong(f"{where}: {value!r:.60} is not like {schema['pattern']}")
        elif isinstance(value, list):
            self._check_list(value, schema, where)
        elif isinstance(value, dict):
            self._check_object(value, schema, where)
        elif TYPES["number"](value) and not (
            schema.get("minimum", value) <= value <= schema.get("maximum", value)
        ):
            raise Wrong(f"{where}: {value} is too small or too large")
        if "oneOf" in schema:
            self._check_one(value, schema["oneOf"], where)

    def _check_constants(self, value: Json, schema: Json, where: str) -> None:
        kinds = schema.get("type", list(TYPES))
        kinds = kinds if isinstance(kinds, list) else [kinds]
        if not any(TYPES[kind](value) for kind in kinds):
            raise Wrong(f"{where}: {value!r:.60} is not one of {', '.join(kinds)}")
        if "const" in schema and (value, type(value)) != (schema["const"], type(schema["const"])):
            raise Wrong(f"{where}: {value!r:.60} is not {schema['const']!r}")
        if "enum" in schema and value not in schema["enum"]:
            raise Wrong(f"{where}: {value!r:.60} is none of {schema['enum']}")

    def _check_list(self, value: list[Json], schema: Json, where: str) -> None:
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            raise Wrong(f"{where}: has {len(value)} entries")
        if "items" in schema:
            for place, entry in enumerate(value):
                self.check(entry, schema["items"], f"{where}[{place}]")

    def _check_object(self, value: dict[str, Json], schema: Json, where: str) -> None:
        for name in schema.get("required", ()):
            if name not in value:
                raise Wrong(f"{where}: lacks {name!r}")
        known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
        for name, entry in value.items():
            if name in known:
                self.check(entry, known[name], f"{where}.{name}")
            elif others is False:
                raise Wrong(f"{where}: {name!r} is unknown")
            elif others is not True:
                self.check(entry, others, f"{where}.{name}")
        for name, rule in schema.get("dependentSchemas", {}).items():
            if name in value:
                self.check(value, rule, where)

    def _check_one(self, value: Json, rules: list[Json], where: str) -> None:
        """Check that exactly one rule holds, among those whose constants a value has."""
        fitting = [rule for rule in rules if self._could_be(value, rule)]
        if len(fitting) == 1:
            self.check(value, fitting[0], where)
            return
        held = 0
        for rule in fitting:
            try:
                self.check(value, rule, where)
            except Wrong:
                continue
            held += 1
        if held != 1:
            raise Wrong(f"{where}: {value!r:.60} is of {held} of {len(rules)} kinds")

    def _could_be(self, value: Json, rule: Json) -> bool:
        """Return whether a value has the required constants of a rule, which distinguish kinds."""
        while "$ref" in rule:
            rule = self.definitions[rule["$ref"].removeprefix("#/$defs/")]
        if "properties" not in rule or not isinstance(value, dict):
            return True
        return all(
            value.get(name) == inner["const"]
            for name, inner in rule["properties"].items()
            if "const" in inner and name in rule["required"]
        )


def small_floats(exponent_bits: int, bias: int, *, finite_to: int) -> set[float]:
    """Return the finite values of an 8-bit float format.

    Args:
        exponent_bits: The bits of the exponent; the others are the sign and the fraction.
        bias: The exponent bias.
        finite_to: The largest finite bit pattern, without the sign.
    """
    fraction_bits = 7 - exponent_bits
    found = set()
    for word in range(finite_to + 1):
        exponent, fraction = divmod(word, 1 << fraction_bits)
        lead = 0 if exponent == 0 else 1
        scale = max(exponent, 1) - bias - fraction_bits
        number = ((lead << fraction_bits) + fraction) * 2.0**scale
        found |= {number, -number}
    return found


SMALL = {
    "float8_e4m3fn": small_floats(4, 7, finite_to=0x7E),
    "float8_e5m2": small_floats(5, 15, finite_to=0x7B),
    "float8_e4m3fnuz": small_floats(4, 8, finite_to=0x7F),
    "float8_e5m2fnuz": small_floats(5, 16, finite_to=0x7F),
    "float8_e8m0fnu": {2.0**exponent for exponent in range(-127, 128)},
}
"""The finite values of each 8-bit float dtype."""

STRUCTS = {"float16": "<e", "float32": "<f", "float64": "<d"}
PARTS = {"complex64": "float32", "complex128": "float64"}


def element_size(dtype: str) -> int:
    """Return the size of an element in bytes."""
    bits = re.search(r"\d+", dtype)
    return int(bits.group()) // 8 if bits else 1


def is_of(value: Json, dtype: str) -> bool:
    """Return whether a dtype represents a value exactly."""
    if dtype == "bool":
        return isinstance(value, bool)
    if dtype in PARTS:
        return isinstance(value, list) and all(is_of(part, PARTS[dtype]) for part in value)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return False
    return is_int(value, dtype) if "int" in dtype else is_float(value, dtype)


def is_int(value: float | str, dtype: str) -> bool:
    """Return whether an integer dtype represents a number or a decimal string."""
    if isinstance(value, float):
        return False
    bits = 8 * element_size(dtype)
    first = 0 if dtype.startswith("u") else -(2 ** (bits - 1))
    return first <= int(value) < first + 2**bits


def is_float(value: float | str, dtype: str) -> bool:
    """Return whether a float dtype represents a number, or has the width of a hexadecimal word."""
    if isinstance(value, str):
        return re.fullmatch(f"0x[0-9a-f]{{{2 * element_size(dtype)}}}", value) is not None
    if dtype in SMALL:
        return value in SMALL[dtype]
    if dtype == "bfloat16":  # the upper half of a float32
        return is_float(value, "float32") and struct.pack("<f", value)[:2] == b"\0\0"
    try:
        return bool(struct.unpack(STRUCTS[dtype], struct.pack(STRUCTS[dtype], value))[0] == value)
    except OverflowError:
        return False


class Case:
    """The checks of one file that a schema cannot express.

    Args:
        document: The parsed file.
    """

    def __init__(self, document: dict[str, Json]) -> None:
        self.memories = document.get("memories", [])
        self.ids: set[int] = set()
        for place, memory in enumerate(self.memories):
            where = f"memories[{place}]"
            if "values" in memory:
                self.elements(memory["values"], [memory["size"]], memory["dtype"], where)
        for name, value in document.items():
            if name != "memories":
                self.walk(value, name)

    def walk(self, value: Json, where: str) -> None:
        """Check every node, in order."""
        if isinstance(value, list):
            for place, entry in enumerate(value):
                self.walk(entry, f"{where}[{place}]")
        elif isinstance(value, dict):
            self.identity(value, where)
            kind = value.get("$")
            if kind == "array":
                self.array(value, where)
            elif kind in {"scalar", "float"}:
                self.elements(value["value"], [], value.get("dtype", "float64"), where)
            else:
                for name, entry in value.items():
                    self.walk(entry, f"{where}.{name}")

    def identity(self, node: dict[str, Json], where: str) -> None:
        """Check that the id of an object is new, and that the id of a reference is not."""
        if "$" not in node or "id" not in node:
            return
        is_known = node["id"] in self.ids
        if is_known != (node["$"] == "ref"):
            raise Wrong(
                f"{where}: there is {'an' if is_known else 'no'} object {node['id']} before"
            )
        self.ids.add(node["id"])

    def array(self, node: dict[str, Json], where: str) -> None:
        """Check an array: its elements, and its place in memory."""
        self.elements(node["values"], node["shape"], node["dtype"], where)
        if "memory" not in node:
            return
        if node["memory"] >= len(self.memories):
            raise Wrong(f"{where}: there is no memory {node['memory']}")
        memory = self.memories[node["memory"]]
        if len(node["strides_bytes"]) != len(node["shape"]):
            raise Wrong(f"{where}: {node['strides_bytes']} are no strides of {node['shape']}")
        if 0 in node["shape"]:
            return
        pairs = list(zip(node["shape"], node["strides_bytes"], strict=True))
        first = node["offset_bytes"] + sum(min(0, s * (n - 1)) for n, s in pairs)
        last = node["offset_bytes"] + sum(max(0, s * (n - 1)) for n, s in pairs)
        size = memory["size"] * element_size(memory["dtype"])
        if first < 0 or last + element_size(node["dtype"]) > size:
            raise Wrong(f"{where}: reaches outside memory {node['memory']}")

    def elements(self, values: Json, shape: list[int], dtype: str, where: str) -> None:
        """Check the shape of nested lists, and the dtype of their elements."""
        if not shape:
            if not is_of(values, dtype):
                raise Wrong(f"{where}: {values!r:.60} is not of dtype {dtype}")
            return
        expected = 0 if 0 in shape else shape[0]
        if not isinstance(values, list) or len(values) != expected:
            raise Wrong(f"{where}: values are not of shape {shape}")
        for entry in values:
            self.elements(entry, shape[1:], dtype, where)


def read(folder: Path) -> tuple[Counter[str], list[str]]:
    """Read a folder of vectors.

    Args:
        folder: The folder.

    Returns:
        The number of files of each kind, and a line for each error.
    """
    counts: Counter[str] = Counter()
    wrong: list[str] = []

    def load(path: Path, rule: str) -> Json:
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            schema.check(document, rule, "")
            if rule in {"case", "corpus_case"}:
                Case(document)
        except (OSError, ValueError, Wrong) as error:
            wrong.append(f"{path.relative_to(folder)}: {error}")
            return None
        counts[rule if rule != "case" else document["kind"]] += 1
        return document

    try:
        schema = Schema(json.loads((folder / "schema.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, Wrong) as error:
        return counts, [f"schema.json: {error}"]
    index = load(folder / "index.json", "index")
    known = {folder / "index.json", folder / "schema.json"}
    for function, number in (index or {"functions": {}})["functions"].items():
        manifest = load(folder / function / "manifest.json", "manifest")
        known.add(folder / function / "manifest.json")
        cases = (manifest or {"cases": []})["cases"]
        if manifest and (manifest["function"], len(cases)) != (function, number):
            wrong.append(f"{function}: has {len(cases)} cases of {manifest['function']}")
        for entry in cases:
            path = folder / function / entry["file"]
            known.add(path)
            case = load(path, "case")
            if case and case["kind"] != entry["kind"]:
                wrong.append(f"{function}/{entry['file']}: is of kind {case['kind']}")
            wrong += _unknown_arguments(case, manifest, path)
    wrong += [f"{p}: is in no manifest" for p in sorted(folder.rglob("*.json")) if p not in known]
    return counts, wrong


def _unknown_arguments(case: Json, manifest: Json, path: Path) -> list[str]:
    """Return a line for each argument of a case that its manifest lacks as a parameter."""
    if not case or case["kind"] == "session":
        return []
    entry = manifest["calls"].get(case["function"])
    if entry is None:
        return [f"{path}: {case['function']} is not in its manifest"]
    if any("takes_any_keyword" in parameter for parameter in entry["parameters"]):
        return []
    known = {parameter["name"] for parameter in entry["parameters"]}
    return [f"{path}: {name} is not a parameter" for name in case["arguments"] if name not in known]


def main() -> int:
    """Check the folder on the command line."""
    counts, wrong = read(Path(sys.argv[1]))
    for line in wrong:
        sys.stdout.write(f"{line}\n")
    sys.stdout.write(
        ", ".join(f"{number} {kind}" for kind, number in sorted(counts.items())) + "\n"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
