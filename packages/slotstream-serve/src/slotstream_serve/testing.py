"""An engine that plays scripts, for the tests of this package and of apps that talk to the server.

A script is what a model would write, cut into the pieces it would come in, with pauses and faults between them:

    engine = ScriptedEngine([["Good", " day"], [tool_call("weather", {"city": "Bern"})], ["so", Fault(OSError("x"))]])

Requests play the scripts in turn; after the last one the first comes again.  Thinking is written as the model writes
it: text up to `</think>` when the request asked for thinking.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slotstream_core.errors import ContextLengthExceeded, EngineBusy
from slotstream_core.events import (
    DraftCounts,
    ExpertTraffic,
    Finished,
    FinishReason,
    GenerationEvent,
    PromptProgress,
    TextDelta,
    ThinkingDelta,
    Timings,
    Usage,
)
from slotstream_core.generation.control import CancelToken
from slotstream_core.generation.sampling import ORDINARY, SamplingParams
from slotstream_core.text.messages import ChatMessage, JsonObject
from slotstream_core.text.stop_strings import StopStrings
from slotstream_core.text.template import ReasoningEffort
from slotstream_core.text.thinking import Piece, ThinkingSplitter
from slotstream_planner import MemoryPlan

__all__ = ["Fault", "Hold", "ScriptedEngine", "ScriptedRequest", "Silence", "tool_call", "write_in_pieces"]

POLL_S = 0.002


@dataclass(frozen=True, kw_only=True)
class Silence:
    """Nothing comes for a while; a cancelled request does not wait it out."""

    seconds: float


@dataclass(frozen=True)
class Hold:
    """Nothing comes until a test sets the event, or the request is cancelled.

    Attributes:
        until: What the engine waits for.
        reached: Set when the engine has come to this point.
    """

    until: threading.Event
    reached: threading.Event


@dataclass(frozen=True)
class Fault:
    """The engine raises this error here."""

    error: Exception


Step = str | Silence | Hold | Fault
Script = Sequence[Step]


@dataclass(frozen=True, kw_only=True)
class ScriptedRequest:
    """What the engine was asked for."""

    prompt: str
    sampling: SamplingParams
    max_tokens: int
    stop: Sequence[str]
    thinking: bool
    script: Script
    persist: bool


class ByteEncoder:
    """One token a byte."""

    def encode(self, text: str, *, within_tokens: int | None = None) -> list[int]:
        """Return the UTF-8 bytes of a text; raises `ContextLengthExceeded` where they are too many for a window."""
        data = text.encode("utf-8")
        if within_tokens is not None and len(data) >= within_tokens:
            raise ContextLengthExceeded(len(data), within_tokens)
        return list(data)


class ScriptedEngine:
    """Stands in for an engine wherever the server takes one.

    Attributes:
        requests: Every generation that was asked for, in order.
        closed: Whether `close` was called.
        cancelled: How many generations ended because they were cancelled.
        reading: Steps played before the prompt is read, for tests of waiting and of clients that leave early.
        cached_tokens: How many tokens of every prompt to call reused.
    """

    def __init__(
        self,
        scripts: Sequence[Script] | Callable[[str], Script],
        *,
        window_tokens: int = 4096,
        reading: Script = (),
        plan: MemoryPlan | None = None,
    ) -> None:
        """Prepare the scripts, or a function from the prompt's text to its script."""
        self._scripts = scripts
        self._window_tokens = window_tokens
        self._plan = plan
        self._gate = threading.Lock()
        self._played = 0
        self.tokenizer = ByteEncoder()
        self.reading = reading
        self.cached_tokens = 0
        self.requests: list[ScriptedRequest] = []
        self.cancelled = 0
        self.closed = False

    @property
    def window_tokens(self) -> int:
        """Most tokens a prompt and its reply may have together."""
        return self._window_tokens

    @property
    def plan(self) -> MemoryPlan | None:
        """The memory plan given at construction."""
        return self._plan

    @property
    def pinned_bytes(self) -> int:
        """Return 0: nothing is pinned."""
        return 0

    def close(self) -> None:
        """Note that the engine was closed."""
        self.closed = True

    def reusable_tokens(self, prompt: Sequence[int]) -> int:
        """Return `cached_tokens`, or the prompt's length when that is less."""
        return min(self.cached_tokens, len(prompt))

    def prefix_status(self) -> Mapping[str, Any] | None:
        """Return None: nothing is kept."""
        return None

    def chat_ids(
        self,
        conversation: Sequence[ChatMessage],
        *,
        tools: Sequence[JsonObject] = (),
        thinking: bool = False,
        effort: ReasoningEffort | None = None,
        within_tokens: int | None = None,
    ) -> list[int]:
        """Return the bytes of a plain rendering: every turn, tool and thinking setting can be found in it."""
        lines = [json.dumps({"tools": list(tools)})] if tools else []
        lines += [json.dumps(message.as_template_value(), ensure_ascii=False) for message in conversation]
        lines.append(f"assistant thinking={effort or 'on'}" if thinking else "assistant")
        return self.tokenizer.encode("\n".join(lines), within_tokens=within_tokens)

    def generate(
        self,
        prompt: Sequence[int],
        *,
        sampling: SamplingParams = ORDINARY,
        max_tokens: int = 0,
        stop: Sequence[str] = (),
        thinking: bool = False,
        cancel: CancelToken | None = None,
        persist: bool = True,
    ) -> Iterator[GenerationEvent]:
        """Play the next script, one piece a token."""
        room = self._window_tokens - len(prompt)
        if room < 1:
            raise ContextLengthExceeded(len(prompt), self._window_tokens)
        text = bytes(prompt).decode("utf-8")
        script = self._scripts(text) if callable(self._scripts) else self._scripts[self._played % len(self._scripts)]
        self._played += 1
        request = ScriptedRequest(
            prompt=text,
            sampling=sampling,
            max_tokens=max_tokens,
            stop=stop,
            thinking=thinking,
            script=script,
            persist=persist,
        )
        self.requests.append(request)
        budget = min(room, max_tokens if max_tokens > 0 else room)
        return self._run(request, len(prompt), budget, cancel or CancelToken())

    def _run(
        self, request: ScriptedRequest, prompt_tokens: int, budget: int, cancel: CancelToken
    ) -> Iterator[GenerationEvent]:
        if not self._gate.acquire(blocking=False):
            raise EngineBusy("the scripted engine is making another reply")
        try:
            yield from self._play(request, prompt_tokens, budget, cancel)
        finally:
            self.cancelled += cancel.cancelled
            self._gate.release()

    def _play(
        self, request: ScriptedRequest, prompt_tokens: int, budget: int, cancel: CancelToken
    ) -> Iterator[GenerationEvent]:
        started = time.perf_counter()
        cached = min(self.cached_tokens, prompt_tokens)
        yield PromptProgress(done_tokens=cached, total_tokens=prompt_tokens, elapsed_s=0.0, cached_tokens=cached)
        for step in self.reading:
            _pause(step, cancel)
        cancel.check()
        elapsed = time.perf_counter() - started
        yield PromptProgress(
            done_tokens=prompt_tokens, total_tokens=prompt_tokens, elapsed_s=elapsed, cached_tokens=cached
        )
        prefilled = time.perf_counter()
        reply = _Reply(thinking=request.thinking, stop=request.stop)
        reason: FinishReason = "stop"
        made = 0
        for step in request.script:
            if made == budget:
                reason = "length"
                break
            if isinstance(step, str):
                made += 1
                yield from reply.feed(step)
                if reply.stop_string is not None or cancel.enough:
                    break
                cancel.check()
            else:
                _pause(step, cancel)
        yield from reply.finish()
        yield Finished(
            reason="stop_string" if reply.stop_string is not None else reason,
            stop_string=reply.stop_string,
            token_ids=tuple(range(made)),
            seed=request.sampling.seed or 0,
            usage=Usage(
                prompt_tokens=prompt_tokens,
                completion_tokens=made,
                thinking_tokens=min(reply.thought_pieces, made),
                cached_tokens=cached,
            ),
            timings=Timings(prefill_s=prefilled - started, decode_s=time.perf_counter() - prefilled),
            experts=ExpertTraffic(hits=3 * made, misses=made, bytes_read=1000 * made, read_wait_s=0.0),
            drafts=DraftCounts(drafted=2 * made, accepted=made, passes_by_depth=(made, 0, made)),
        )


class _Reply:
    """Splits pieces into thinking and answer, and looks for stop strings."""

    def __init__(self, *, thinking: bool, stop: Sequence[str]) -> None:
        self._splitter = ThinkingSplitter(inside=thinking)
        self._stops = StopStrings(stop)
        self.thought_pieces = 0

    @property
    def stop_string(self) -> str | None:
        return self._stops.matched

    def feed(self, piece: str) -> Iterator[GenerationEvent]:
        self.thought_pieces += self._splitter.inside
        yield from self._events(self._splitter.feed(piece))

    def finish(self) -> Iterator[GenerationEvent]:
        yield from self._events(self._splitter.finish())
        if rest := self._stops.finish():
            yield TextDelta(text=rest)

    def _events(self, pieces: Sequence[Piece]) -> Iterator[GenerationEvent]:
        for piece in pieces:
            if piece.kind == "thinking":
                yield ThinkingDelta(text=piece.text)
            elif shown := self._stops.feed(piece.text):
                yield TextDelta(text=shown)


def tool_call(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a call as the model writes it; values that are no strings are written as JSON."""
    parameters = "".join(
        f"<parameter={key}>\n{value if isinstance(value, str) else json.dumps(value)}\n</parameter>\n"
        for key, value in arguments.items()
    )
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def write_in_pieces(text: str, size: int) -> list[str]:
    """Return a text in pieces of a size, as if each were one token."""
    return [text[at : at + size] for at in range(0, len(text), size)]


def _pause(step: Step, cancel: CancelToken) -> None:
    """Play a step that writes nothing."""
    if isinstance(step, Fault):
        raise step.error
    if isinstance(step, Hold):
        step.reached.set()
        while not step.until.wait(POLL_S):
            cancel.check()
    elif isinstance(step, Silence):
        ends = time.monotonic() + step.seconds
        while (left := ends - time.monotonic()) > 0:
            cancel.check()
            time.sleep(min(POLL_S, left))
    cancel.check()
