"""Token ids to text events: decoding, the thinking split and stop strings, in that order."""

from collections.abc import Sequence

from slotstream_core.events import TextDelta, ThinkingDelta
from slotstream_core.text.stop_strings import StopStrings
from slotstream_core.text.thinking import Piece, ThinkingSplitter
from slotstream_core.text.tokenizer import Detokenizer

TextEvent = TextDelta | ThinkingDelta


class ReplyAssembler:
    """Assembles one reply.  The concatenated events are the same however the tokens are grouped."""

    def __init__(self, detokenizer: Detokenizer, *, thinking: bool, stop: Sequence[str]) -> None:
        self._detokenizer = detokenizer
        self._splitter = ThinkingSplitter(inside=thinking)
        self._stops = StopStrings(stop)
        self.thinking_tokens = 0

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the reply, if one did."""
        return self._stops.matched

    @property
    def thinking(self) -> bool:
        """Whether the reply is inside a thinking block."""
        return self._splitter.inside

    def feed(self, token: int) -> list[TextEvent]:
        """Return the events this token completes."""
        self.thinking_tokens += self._splitter.inside
        return self._events(self._splitter.feed(self._detokenizer.feed(token)))

    def finish(self) -> list[TextEvent]:
        """Return the events that were held back."""
        pieces = [*self._splitter.feed(self._detokenizer.finish()), *self._splitter.finish()]
        events = self._events(pieces)
        rest = self._stops.finish()
        return [*events, TextDelta(text=rest)] if rest else events

    def _events(self, pieces: Sequence[Piece]) -> list[TextEvent]:
        events: list[TextEvent] = []
        for piece in pieces:
            if piece.kind == "thinking":
                events.append(ThinkingDelta(text=piece.text))
            elif shown := self._stops.feed(piece.text):
                events.append(TextDelta(text=shown))
        return events
