"""Reading other programs' command lines: options with a value, written in one word or in two."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["has_option", "option_value", "option_words"]


def option_words(arguments: Sequence[str], names: Iterable[str]) -> list[tuple[int, int, str | None]]:
    """Return where an option occurs: first word, word after it, and its value or None when that is missing.

    Short names such as `-m` also take their value in the same word.  Nothing after `--` is an option.
    """
    known = tuple(names)
    found: list[tuple[int, int, str | None]] = []
    at = 0
    while at < len(arguments) and arguments[at] != "--":
        word = arguments[at]
        end, value = at + 1, None
        if word in known:
            if end < len(arguments):
                end, value = end + 1, arguments[end]
            found.append((at, end, value))
        else:
            for name in known:
                joined = f"{name}=" if name.startswith("--") else name
                if word.startswith(joined) and (name.startswith("--") or not word.startswith("--")):
                    found.append((at, end, word.removeprefix(joined).removeprefix("=")))
                    break
        at = end
    return found


def option_value(arguments: Sequence[str], *names: str) -> str | None:
    """Return the last value an option is given, or None."""
    values = [value for _start, _end, value in option_words(arguments, names) if value is not None]
    return values[-1] if values else None


def has_option(arguments: Sequence[str], *names: str) -> bool:
    """Whether an option occurs, with or without a value."""
    return bool(option_words(arguments, names))
