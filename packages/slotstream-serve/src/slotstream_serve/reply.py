"""What a generation says to its dialect: neutral reply events, always in this order.

    Admitted  (ThinkingDelta | TextDelta | ToolCallStarted | ToolCallArguments | ToolCallFinished)*  ReplyFinished
                                                                                                    | ReplyFailed

`ReplyFailed` may come at any point, also first.  Exactly one of the two last events ends a reply.

A `ToolCallStarted` without its `ToolCallFinished` before `ReplyFinished` is a call that the output budget cut off (or,
with `malformed_calls="text"`, one that turned out to be none): it must not be delivered as a call.  A dialect that
streams arguments and has already shown such a call must not end the reply with a reason that invites executing it.
"""

from dataclasses import dataclass
from typing import Literal

from slotstream_core.events import TextDelta, ThinkingDelta
from slotstream_serve.errors import Failure

__all__ = [
    "Admitted",
    "ReplyEvent",
    "ReplyFailed",
    "ReplyFinished",
    "ReplyUsage",
    "TextDelta",
    "ThinkingDelta",
    "ToolCallArguments",
    "ToolCallFinished",
    "ToolCallStarted",
]

FinishReason = Literal["stop", "stop_string", "length", "window", "tool_calls"]


@dataclass(frozen=True, kw_only=True)
class Admitted:
    """The request passed every check and reading its prompt begins."""

    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, kw_only=True)
class ToolCallStarted:
    """A call has named its function; `index` counts the reply's calls from 0."""

    index: int
    name: str


@dataclass(frozen=True, kw_only=True)
class ToolCallArguments:
    """More of a call's arguments; fragments join to one compact JSON object."""

    index: int
    fragment: str


@dataclass(frozen=True, kw_only=True)
class ToolCallFinished:
    """A call is complete; `arguments` is the whole JSON object as text."""

    index: int
    name: str
    arguments: str


@dataclass(frozen=True, kw_only=True)
class ReplyUsage:
    """Token counts and durations (seconds) of one reply."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    thinking_tokens: int
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ReplyFinished:
    """The reply ended as it should.

    Attributes:
        reason: `tool_calls` whenever a complete call was made; `window` when the context window ended the reply
            rather than the client's budget (`length`).
        stop_string: The stop string that was met, with reason `stop_string`.
        usage: Counts and durations.
    """

    reason: FinishReason
    stop_string: str | None
    usage: ReplyUsage


@dataclass(frozen=True, kw_only=True)
class ReplyFailed:
    """The reply did not end as it should; what was sent before it must not be taken for a success."""

    failure: Failure


ReplyEvent = (
    Admitted
    | ThinkingDelta
    | TextDelta
    | ToolCallStarted
    | ToolCallArguments
    | ToolCallFinished
    | ReplyFinished
    | ReplyFailed
)
