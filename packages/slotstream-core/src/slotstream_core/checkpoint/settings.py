"""Typed access to a decoded settings object, with refusals that name the file and the setting."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slotstream_core.errors import CheckpointDamaged, UnsupportedModel

_MAX_COUNT = 2**40


@dataclass(frozen=True)
class Settings:
    """One object of a settings file.

    Every method takes the setting's name; without a default a missing setting is refused.  An explicit null counts as
    missing.

    Attributes:
        origin: The file, for messages.
        values: The decoded object.
    """

    origin: str
    values: Mapping[str, Any]

    def count(self, name: str, *, default: int | None = None, limit: int = _MAX_COUNT) -> int:
        """Return a whole number above zero and at most `limit`."""
        value = self._get(name, default)
        if type(value) is not int or not 0 < value <= limit:
            raise CheckpointDamaged(
                f"{self.origin}: {name} is {value!r}; a whole number from 1 to {limit:,} belongs there"
            )
        return value

    def integer(self, name: str, *, default: int | None = None) -> int:
        """Return a whole number of either sign, within 64 bits."""
        value = self._get(name, default)
        if type(value) is not int or abs(value) >= 2**63:
            raise CheckpointDamaged(f"{self.origin}: {name} is {value!r}; a whole number belongs there")
        return value

    def number(self, name: str, *, default: float | None = None) -> float:
        """Return a finite number above zero."""
        value = self._get(name, default)
        if type(value) not in (int, float) or not math.isfinite(value) or value <= 0:
            raise CheckpointDamaged(f"{self.origin}: {name} is {value!r}; a number above 0 belongs there")
        return float(value)

    def flag(self, name: str, *, default: bool) -> bool:
        """Return true or false."""
        value = self._get(name, default)
        if type(value) is not bool:
            raise CheckpointDamaged(f"{self.origin}: {name} is {value!r}; true or false belongs there")
        return value

    def text(self, name: str, *, default: str | None = None) -> str:
        """Return a string."""
        value = self._get(name, default)
        if not isinstance(value, str):
            raise CheckpointDamaged(f"{self.origin}: {name} is {value!r}; a string belongs there")
        return value

    def counts(self, name: str, *, length: int | None = None, default: Sequence[int] | None = None) -> tuple[int, ...]:
        """Return a list of whole numbers above zero, of the given length if one is given."""
        value = self._get(name, default)
        if (
            not isinstance(value, Sequence)
            or isinstance(value, str)
            or not all(type(item) is int and 0 < item < _MAX_COUNT for item in value)
            or (length is not None and len(value) != length)
        ):
            wanted = "whole numbers above 0" if length is None else f"{length} whole numbers above 0"
            raise CheckpointDamaged(f"{self.origin}: {name} is {value!r}; a list of {wanted} belongs there")
        return tuple(value)

    def section(self, name: str, *, fallback: str) -> "Settings":
        """Return the settings nested under `name`, or under `fallback` when that is absent."""
        value = self.values.get(name)
        found = name
        if value is None:
            value, found = self.values.get(fallback), fallback
        if not isinstance(value, dict):
            raise CheckpointDamaged(f"{self.origin}: {name} is {value!r}; an object belongs there")
        return Settings(f"{self.origin}: {found}", value)

    def token_id(self, name: str) -> int | None:
        """Return a token id, or None when the setting is absent."""
        value = self.values.get(name)
        if value is None:
            return None
        if type(value) is not int or not 0 <= value < _MAX_COUNT:
            raise CheckpointDamaged(f"{self.origin}: {name} is {value!r}; a token id belongs there")
        return value

    def token_ids(self, name: str) -> tuple[int, ...]:
        """Return one token id or a list of them as a tuple; empty when the setting is absent."""
        value = self.values.get(name)
        values = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(item) is int and 0 <= item < _MAX_COUNT for item in values):
            raise CheckpointDamaged(f"{self.origin}: {name} is {value!r}; token ids belong there")
        return tuple(values)

    def refuse_other(self, name: str, accepted: Sequence[object]) -> None:
        """Refuse a present setting whose value is not one of those that are implemented.

        Raises:
            UnsupportedModel: Naming the setting, its value and what is implemented.
        """
        value = self.values.get(name)
        if value is not None and not any(type(value) is type(item) and value == item for item in accepted):
            implemented = " or ".join(repr(item) for item in accepted)
            raise UnsupportedModel(f"{self.origin}: {name} is {value!r}; this version implements {implemented} only")

    def _get(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        if value is not None:
            return value
        if default is None:
            raise CheckpointDamaged(f"{self.origin}: {name} is missing")
        return default
