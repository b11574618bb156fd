"""A whole reply, put together from its events."""

from collections.abc import Sequence
from dataclasses import dataclass

from slotstream_serve.reply import (
    ReplyEvent,
    ReplyFinished,
    TextDelta,
    ThinkingDelta,
    ToolCallFinished,
    ToolCallStarted,
)


@dataclass(frozen=True, kw_only=True)
class CollectedReply:
    """What a finished reply said.

    Attributes:
        text: The answer.
        thinking: The reasoning before it.
        calls: The complete calls, in order.
        cut_call: Whether a further call was begun and not completed.
        end: How it ended.
    """

    text: str
    thinking: str
    calls: tuple[ToolCallFinished, ...]
    cut_call: bool
    end: ReplyFinished


def collect_reply(events: Sequence[ReplyEvent]) -> CollectedReply:
    """Return a whole reply from the events of one that ended with `ReplyFinished`."""
    end = events[-1]
    if not isinstance(end, ReplyFinished):
        raise TypeError(f"the reply ended with {type(end).__name__}, not with ReplyFinished")
    calls = tuple(event for event in events if isinstance(event, ToolCallFinished))
    begun = sum(isinstance(event, ToolCallStarted) for event in events)
    return CollectedReply(
        text="".join(event.text for event in events if isinstance(event, TextDelta)),
        thinking="".join(event.text for event in events if isinstance(event, ThinkingDelta)),
        calls=calls,
        cut_call=begun > len(calls),
        end=end,
    )
