"""The JSON type of a tool argument: what its schema declares, and how the model's text becomes that type."""

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Literal

from slotstream_core.text.strict_json import parse_strict
from slotstream_core.text.surrogates import SURROGATE_ESCAPE, without_surrogates

ArgumentType = Literal["string", "integer", "number", "boolean", "object", "array", "unknown"]
Schema = Mapping[str, Any]

REAL_TYPES: Mapping[str, ArgumentType] = {
    "string": "string",
    "integer": "integer",
    "number": "number",
    "boolean": "boolean",
    "object": "object",
    "array": "array",
}
WHOLE_NUMBER = re.compile(r"[+-]?\d+")
DECIMAL_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
LARGEST_WHOLE_DOUBLE = 1e15
MOST_REFERENCES = 16
MOST_DIGITS = 4_000
"""Longest run of digits taken as an integer; Python itself refuses to convert more than 4,300."""


def declared_type(schema: object, root: Schema) -> tuple[ArgumentType, bool]:
    """Return a schema's one real type and whether it also allows null.

    Local references are followed.  A union with exactly one type besides null is that type; any other union, and a
    schema that says nothing, is "unknown".

    Args:
        schema: The schema of one parameter.
        root: The document that `#/...` references point into.
    """
    resolved = _resolve(schema, root)
    if resolved is None:
        return "unknown", False
    direct = resolved.get("type")
    if isinstance(direct, str):
        return REAL_TYPES.get(direct, "unknown"), direct == "null"
    if isinstance(direct, list):
        return _only([{"type": item} for item in direct], root)
    for key in ("anyOf", "oneOf"):
        if isinstance(branches := resolved.get(key), list):
            return _only(branches, root)
    return "unknown", False


def convert_argument(text: str, schema: object, root: Schema) -> Any:
    """Return the JSON value of an argument's text; text that does not fit its declared type stays a string.

    Half a surrogate pair that JSON in it names becomes U+FFFD.
    """
    kind, nullable = declared_type(schema, root)
    stripped = text.strip()
    if nullable and kind != "string" and stripped == "null":
        return None
    if kind == "string":
        return text
    if kind in ("integer", "number"):
        return _number(stripped, text)
    if kind == "boolean":
        return {"true": True, "false": False}.get(stripped, text)
    if kind in ("object", "array"):
        value = _json(stripped, text)
        return value if isinstance(value, dict if kind == "object" else list) else text
    return _guess(stripped, text)


def compact_json(value: Any) -> str:
    """Return JSON without spaces, non-ASCII text as it is."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _resolve(schema: object, root: Schema) -> Schema | None:
    for _ in range(MOST_REFERENCES):
        if not isinstance(schema, Mapping):
            return None
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return schema
        if not reference.startswith("#"):
            return None
        schema = root
        for part in reference.removeprefix("#").split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            schema = schema.get(key) if isinstance(schema, Mapping) else None
    return None


def _only(branches: list[Any], root: Schema) -> tuple[ArgumentType, bool]:
    """Return the one type of a union besides null."""
    is_null = [isinstance(branch, Mapping) and branch.get("type") == "null" for branch in branches]
    real = [branch for branch, null in zip(branches, is_null, strict=True) if not null]
    if len(real) != 1:
        return "unknown", any(is_null)
    kind, nullable = declared_type(real[0], root)
    return kind, nullable or any(is_null)


def _number(text: str, original: str) -> Any:
    if WHOLE_NUMBER.fullmatch(text) and len(text) <= MOST_DIGITS:
        return int(text)
    if DECIMAL_NUMBER.fullmatch(text) and math.isfinite(value := float(text)):
        return int(value) if value.is_integer() and abs(value) < LARGEST_WHOLE_DOUBLE else value
    return original


def _json(text: str, original: str) -> Any:
    try:
        value = parse_strict(text)
        return without_surrogates(value) if SURROGATE_ESCAPE.search(text) else value
    except (ValueError, RecursionError):
        return original


def _guess(text: str, original: str) -> Any:
    if text[:1] in ("{", "["):
        return _json(text, original)
    if text in ("true", "false"):
        return text == "true"
    return int(text) if WHOLE_NUMBER.fullmatch(text) and len(text) <= MOST_DIGITS else original
