"""Splits a reply into reasoning and answer at the closing thinking tag."""

from dataclasses import dataclass
from typing import Literal

from slotstream_core.text.stop_strings import held_suffix

CLOSING_TAG = "</think>"


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A run of text of one kind."""

    kind: Literal["thinking", "text"]
    text: str


class ThinkingSplitter:
    """Sends everything before `</think>` to thinking and the rest, less its leading newlines, to text.

    A reply whose tag never closes is all thinking.  Up to seven characters are held while they could begin the tag.
    """

    def __init__(self, *, inside: bool) -> None:
        self._inside = inside
        self._strip = inside
        self._held = ""

    @property
    def inside(self) -> bool:
        """Whether the stream is still in the thinking block."""
        return self._inside

    def feed(self, text: str) -> list[Piece]:
        """Return the pieces that this text completes, in order."""
        pieces: list[Piece] = []
        if self._inside:
            self._held += text
            at = self._held.find(CLOSING_TAG)
            if at < 0:
                cut = len(self._held) - held_suffix(self._held, [CLOSING_TAG])
                thought, self._held = self._held[:cut], self._held[cut:]
                return [Piece(kind="thinking", text=thought)] if thought else []
            thought, text = self._held[:at], self._held[at + len(CLOSING_TAG) :]
            self._inside, self._held = False, ""
            if thought:
                pieces.append(Piece(kind="thinking", text=thought))
        if self._strip:
            text = text.lstrip("\n")
            self._strip = not text
        if text:
            pieces.append(Piece(kind="text", text=text))
        return pieces

    def finish(self) -> list[Piece]:
        """Return what was held back; it is thinking, because the tag never closed."""
        held, self._held = self._held, ""
        return [Piece(kind="thinking", text=held)] if held else []
