"""Tables of a JSON object's fields, and the reader that holds a request to its table.

A table is data: the reader checks a request against it, and the pages under `docs/api/` are written from it, so that
what is documented is what is checked.  Booleans and numbers are strictly distinct, and null means unset everywhere.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from slotstream_serve.dialects.base import JsonObject
from slotstream_serve.errors import Refused, invalid

Kind = Literal["text", "boolean", "number", "integer", "array", "object"]
Use = Literal["used", "accepted", "refused"]

KIND_NAMES: Mapping[Kind, str] = {
    "text": "text",
    "boolean": "true or false",
    "number": "a number",
    "integer": "a whole number",
    "array": "an array",
    "object": "an object",
}
LARGEST_WHOLE = 2**53
"""Whole numbers beyond this lose digits in most JSON libraries, so a float is only taken as one below it."""


@dataclass(frozen=True, kw_only=True)
class Field:
    """One field of a JSON object.

    Attributes:
        name: Its key.
        use: Whether it changes the reply, is accepted without effect, or is refused whatever its value.
        note: For the documentation: what it does, or why it is refused.  A sentence without a full stop.
        kinds: JSON types it may have; empty for any.
        only: The only values it may have.
        least: Smallest number it may be.
        code: The dialect's own error code when it is refused.
    """

    name: str
    use: Use
    note: str
    kinds: tuple[Kind, ...] = ()
    only: tuple[Any, ...] | None = None
    least: int | None = None
    code: str | None = None


@dataclass(frozen=True, kw_only=True)
class FieldTable:
    """Every field of one kind of JSON object.

    Attributes:
        title: What the object is, as a heading of the documentation.
        fields: The known fields, in the order of the documentation.
        unknown: What an unknown field does: the request is refused, or the field has no effect and its name is
            reported, or it has no effect.
        code: The dialect's own error code for an unknown or refused field.
    """

    title: str
    fields: tuple[Field, ...]
    unknown: Literal["refused", "ignored", "skipped"] = "refused"
    code: str | None = None

    def field(self, name: str) -> Field | None:
        """Return the entry of a field, if it is known."""
        return next((field for field in self.fields if field.name == name), None)

    @property
    def taken(self) -> tuple[str, ...]:
        """Names of the fields that are not refused."""
        return tuple(field.name for field in self.fields if field.use != "refused")


class FieldReader:
    """A JSON object that was held to its table.

    The readers return None for a field that is absent or null.  Asking for a field that the table does not have is a
    mistake of the program and raises `KeyError`.

    Attributes:
        ignored: Unknown fields, where the table allows them.
    """

    def __init__(self, values: JsonObject, table: FieldTable, *, path: str = "") -> None:
        """Check every field.

        Args:
            values: The object.
            table: Its table.
            path: Where the object is in the request, such as `messages.0`; empty for the request itself.

        Raises:
            Refused: A field is unknown or refused, or its value is of the wrong type or out of range.
        """
        self._values = values
        self._table = table
        self._path = path
        self.ignored: tuple[str, ...] = ()
        unknown: list[str] = []
        for name, value in values.items():
            field = table.field(name)
            if field is None:
                unknown.append(name)
            elif value is not None:
                self._check(field, value)
        if unknown and table.unknown == "refused":
            raise self._unknown(sorted(unknown))
        self.ignored = tuple(sorted(unknown))

    def path(self, name: str) -> str:
        """Return where a field is in the request."""
        return joined_path(self._path, name)

    def has(self, name: str) -> bool:
        """Return whether a field is set."""
        return self.value(name) is not None

    def value(self, name: str) -> Any:
        """Return a field's value as it came."""
        if self._table.field(name) is None:
            raise KeyError(name)
        return self._values.get(name)

    def text(self, name: str) -> str | None:
        """Return a text."""
        value = self.value(name)
        if value is not None and not isinstance(value, str):
            raise wrong_kind(self.path(name), value, "text")
        return value

    def required_text(self, name: str) -> str:
        """Return a text that must be there.

        Raises:
            Refused: It is not.
        """
        value = self.text(name)
        if value is None:
            raise missing(self.path(name))
        return value

    def boolean(self, name: str) -> bool | None:
        """Return true or false."""
        value = self.value(name)
        if value is not None and not isinstance(value, bool):
            raise wrong_kind(self.path(name), value, "boolean")
        return value

    def number(self, name: str) -> float | None:
        """Return a finite number."""
        value = self.value(name)
        if value is None:
            return None
        if not is_kind(value, "number"):
            raise wrong_kind(self.path(name), value, "number")
        return _finite(self.path(name), value)

    def integer(self, name: str) -> int | None:
        """Return a whole number; 3.0 is 3."""
        value = self.value(name)
        if value is None:
            return None
        if not is_kind(value, "integer"):
            raise wrong_kind(self.path(name), value, "integer")
        return int(value)

    def array(self, name: str) -> list[Any] | None:
        """Return an array."""
        value = self.value(name)
        if value is not None and not isinstance(value, list):
            raise wrong_kind(self.path(name), value, "array")
        return value

    def object(self, name: str) -> JsonObject | None:
        """Return an object."""
        value = self.value(name)
        if value is not None and not isinstance(value, dict):
            raise wrong_kind(self.path(name), value, "object")
        return value

    def _check(self, field: Field, value: Any) -> None:
        path = self.path(field.name)
        if field.use == "refused":
            raise invalid(
                f"{path} is not supported: {_plain(field.note)}",
                param=path,
                dialect_code=field.code or self._table.code,
            )
        if field.kinds and not any(is_kind(value, kind) for kind in field.kinds):
            raise wrong_kind(path, value, *field.kinds)
        if field.only is not None and not any(same_json(value, allowed) for allowed in field.only):
            allowed = " or ".join(json_words(item) for item in field.only)
            raise invalid(
                f"{path} may only be {allowed} here: {_plain(field.note)}",
                param=path,
                dialect_code=field.code or self._table.code,
            )
        if is_kind(value, "number"):
            number = _finite(path, value)
            if field.least is not None and number < field.least:
                raise invalid(f"{path} must be at least {field.least}", param=path)

    def _unknown(self, names: list[str]) -> Refused:
        paths = [self.path(name)[:200] for name in names[:5]]
        plural = "fields" if len(names) > 1 else "field"
        return invalid(
            f"unknown {plural}: {', '.join(paths)}; known here: {', '.join(self._table.taken)}",
            param=paths[0],
            dialect_code=self._table.code,
        )


def joined_path(path: str, name: str | int) -> str:
    """Return the path of a member: `messages` and 0 give `messages.0`."""
    return f"{path}.{name}" if path else str(name)


def required_object(value: Any, path: str) -> JsonObject:
    """Return a value that must be an object.

    Raises:
        Refused: It is none.
    """
    if not isinstance(value, dict):
        raise wrong_kind(path, value, "object")
    return value


def is_kind(value: Any, kind: Kind) -> bool:
    """Return whether a JSON value is of a type; a boolean is never a number."""
    match kind:
        case "text":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "integer":
            if isinstance(value, float):
                return value.is_integer() and abs(value) < LARGEST_WHOLE
            return isinstance(value, int) and not isinstance(value, bool)
        case "array":
            return isinstance(value, list)
        case "object":
            return isinstance(value, dict)


def same_json(value: Any, other: Any) -> bool:
    """Return whether two JSON values are equal; `true` is not 1, but 1.0 is."""
    if isinstance(value, bool) or isinstance(other, bool):
        return value is other
    return bool(value == other)


def kind_of(value: Any) -> str:
    """Return the name of a JSON value's type, for messages."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    return {"str": "text", "list": "an array", "dict": "an object"}.get(type(value).__name__, "something else")


def wrong_kind(path: str, value: Any, *kinds: Kind) -> Refused:
    """Return the refusal of a value of the wrong type, to be raised."""
    wanted = " or ".join(KIND_NAMES[kind] for kind in kinds)
    return invalid(f"{path} must be {wanted}, not {kind_of(value)}", param=path)


def missing(path: str) -> Refused:
    """Return the refusal of a request without a required field, to be raised."""
    return invalid(f"{path} is required", param=path)


def json_words(value: Any) -> str:
    """Return a JSON value as text for a message."""
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)


def _plain(note: str) -> str:
    """Return a documentation note without its Markdown quotes."""
    return note.replace("`", "")


def _finite(path: str, value: float) -> float:
    """Return a number as a float, if one holds it; whole numbers may be larger."""
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise invalid(f"{path} is too large a number", param=path)
    return number
