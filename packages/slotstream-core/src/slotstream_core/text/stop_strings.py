"""Stop strings in a stream: nothing that could begin one is emitted too early."""

from collections.abc import Sequence


def held_suffix(text: str, markers: Sequence[str]) -> int:
    """Return the length of the longest end of `text` that is a proper beginning of any marker."""
    longest = max((len(marker) for marker in markers), default=0)
    for length in range(min(longest - 1, len(text)), 0, -1):
        tail = text[-length:]
        if any(len(marker) > length and marker.startswith(tail) for marker in markers):
            return length
    return 0


class StopStrings:
    """Cuts a stream of text at the first stop string; the match itself is removed.

    Attributes:
        matched: The stop string that was found, or None.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = [string for string in strings if string]
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """Return the text that may be shown now; empty for ever after a match."""
        if self.matched is not None:
            return ""
        self._held += text
        found = [(at, -len(string), string) for string in self._strings if (at := self._held.find(string)) >= 0]
        if found:
            at, _length, self.matched = min(found)
            shown, self._held = self._held[:at], ""
            return shown
        keep = held_suffix(self._held, self._strings)
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def finish(self) -> str:
        """Return what was held back because it could have begun a stop string."""
        shown, self._held = self._held, ""
        return shown
