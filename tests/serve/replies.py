"""Reply events as a generation sends them, and the context of a request, for tests of dialects."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from slotstream_serve.dialects.base import Dialect, Frame, JsonObject, ReplyEncoder, RequestContext
from slotstream_serve.errors import Failure, Refused
from slotstream_serve.reply import (
    Admitted,
    FinishReason,
    ReplyEvent,
    ReplyFailed,
    ReplyFinished,
    ReplyUsage,
    TextDelta,
    ThinkingDelta,
    ToolCallArguments,
    ToolCallFinished,
    ToolCallStarted,
)
from tests.serve.conftest import model_facts

UNIQUE = "0123456789abcdef0123456789abcdef"
NOW_S = 1_790_000_000.25
USAGE = ReplyUsage(
    prompt_tokens=11, cached_tokens=4, completion_tokens=7, thinking_tokens=2, queue_s=0.5, prefill_s=1.25, decode_s=2.0
)
ADMITTED = Admitted(prompt_tokens=11, cached_tokens=4)
FAILED = ReplyFailed(failure=Failure(code="inference_error", message="experts.bin: read 3 of 9 bytes"))


def context(path: str = "/x", **model: Any) -> RequestContext:
    return RequestContext(model=model_facts(**model), now_s=NOW_S, unique=UNIQUE, path=path, headers={})


def finished(reason: FinishReason = "stop") -> ReplyFinished:
    return ReplyFinished(reason=reason, stop_string=None, usage=USAGE)


def text(*pieces: str) -> list[ReplyEvent]:
    return [TextDelta(text=piece) for piece in pieces]


def thinking(*pieces: str) -> list[ReplyEvent]:
    return [ThinkingDelta(text=piece) for piece in pieces]


def begun_call(index: int, name: str, *fragments: str) -> list[ReplyEvent]:
    return [
        ToolCallStarted(index=index, name=name),
        *(ToolCallArguments(index=index, fragment=fragment) for fragment in fragments),
    ]


def call(index: int, name: str, *fragments: str) -> list[ReplyEvent]:
    return [
        *begun_call(index, name, *fragments),
        ToolCallFinished(index=index, name=name, arguments="".join(fragments)),
    ]


def frames(encoder: ReplyEncoder, events: Sequence[ReplyEvent]) -> list[Frame]:
    return [frame for event in events for frame in encoder.stream(event)]


def payloads(sent: Sequence[Frame]) -> list[Any]:
    return [json.loads(frame.data) for frame in sent if frame.data and frame.data != "[DONE]"]


def status_of(dialect: Dialect, body: JsonObject, *, headers: Mapping[str, str] | None = None) -> int:
    """Return the HTTP status that a body gets before anything is generated."""
    try:
        dialect.parse(body, replace(context(), headers=headers or {}))
    except Refused as refusal:
        return refusal.failure.http_status
    return 200
