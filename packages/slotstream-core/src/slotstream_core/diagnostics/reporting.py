"""The result every check returns: its name, whether it passed, and what it looked at."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["CheckItem", "CheckReport"]


@dataclass(frozen=True, kw_only=True)
class CheckItem:
    """One thing a check looked at.

    Attributes:
        name: What was expected, as a sentence.
        passed: Whether it held.
        detail: The numbers.
    """

    name: str
    passed: bool
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """What a check found.

    Attributes:
        name: The check.
        items: Everything it looked at, in order.
        facts: Measurements that are not judged, ready for JSON.
    """

    name: str
    items: tuple[CheckItem, ...]
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether there was something to look at and all of it held."""
        return bool(self.items) and all(item.passed for item in self.items)

    def to_json(self) -> dict[str, Any]:
        """Return the report, ready for ``json.dumps``."""
        return {
            "name": self.name,
            "passed": self.passed,
            "items": [{"name": item.name, "passed": item.passed, "detail": item.detail} for item in self.items],
            "facts": self.facts,
        }

    def to_text(self) -> str:
        """Return the report as lines for people."""
        lines = [
            f"{'pass' if item.passed else 'FAIL'}  {item.name}{f': {item.detail}' if item.detail else ''}"
            for item in self.items
        ]
        return "\n".join([*lines, f"{self.name}: {'passed' if self.passed else 'failed'}"])
