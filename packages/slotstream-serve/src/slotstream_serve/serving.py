"""From a neutral request to an engine generation and back: prompt, sampling, budget, tool calls, failures.

Nothing here knows JSON, HTTP or threads.  `prepare` may run on any thread; `ReplyRun` only on the one that owns the
engine.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from slotstream_core.errors import (
    ContextLengthExceeded,
    EmptyPrompt,
    GenerationCancelled,
    MemoryUnavailable,
    RequestError,
    SlotstreamError,
    TemplateError,
)
from slotstream_core.events import (
    DraftCounts,
    ExpertTraffic,
    Finished,
    GenerationEvent,
    PromptProgress,
    TextDelta,
)
from slotstream_core.generation.control import CancelToken
from slotstream_core.generation.sampling import AGENT, ORDINARY, THINKING, SamplingParams
from slotstream_core.text.argument_types import Schema
from slotstream_core.text.messages import ChatMessage, JsonObject
from slotstream_core.text.template import ReasoningEffort
from slotstream_core.text.tool_calls import (
    AnswerText,
    CallArguments,
    CallFinished,
    CallMalformed,
    CallStarted,
    ScanEvent,
    ToolCallScanner,
    declared_functions,
)
from slotstream_planner import InsufficientMemory, MemoryPlan
from slotstream_serve.conversation import GenerationRequest, Profile
from slotstream_serve.errors import Failure, Refused
from slotstream_serve.reply import (
    Admitted,
    FinishReason,
    ReplyEvent,
    ReplyFailed,
    ReplyFinished,
    ReplyUsage,
    ToolCallArguments,
    ToolCallFinished,
    ToolCallStarted,
)

PROFILES: Mapping[Profile, SamplingParams] = {"ordinary": ORDINARY, "thinking": THINKING, "agent": AGENT}
ONE_CALL_LINE = "Call at most one tool in this response."


class TextEncoder(Protocol):
    """What the server needs of a tokenizer.  Any thread may call it."""

    def encode(self, text: str, *, within_tokens: int | None = None) -> list[int]:
        """Return the token ids of a text; raises `ContextLengthExceeded` of one far too long for a window."""


class ServableEngine(Protocol):
    """What the server needs of an engine.

    `generate` and its iterator are used by one thread only; the rest may be called from any thread at any time.
    """

    @property
    def window_tokens(self) -> int:
        """Most tokens a prompt and its reply may have together."""

    @property
    def plan(self) -> MemoryPlan | None:
        """The memory plan it runs under, if it has one."""

    @property
    def pinned_bytes(self) -> int:
        """Files of experts that are pinned now, for an NVIDIA GPU to fetch from."""

    @property
    def tokenizer(self) -> TextEncoder:
        """Its tokenizer."""

    def chat_ids(
        self,
        conversation: Sequence[ChatMessage],
        *,
        tools: Sequence[JsonObject] = (),
        thinking: bool = False,
        effort: ReasoningEffort | None = None,
        within_tokens: int | None = None,
    ) -> list[int]:
        """Return the prompt ids of a conversation; raises `TemplateError`, and `ContextLengthExceeded` as `encode`."""

    def generate(
        self,
        prompt: Sequence[int],
        *,
        sampling: SamplingParams = ...,
        max_tokens: int = 0,
        stop: Sequence[str] = (),
        thinking: bool = False,
        cancel: CancelToken | None = None,
        persist: bool = True,
    ) -> Iterator[GenerationEvent]:
        """Return the events of one reply, the last one `Finished`; raises a `SlotstreamError` at any point."""

    def reusable_tokens(self, prompt: Sequence[int]) -> int:
        """Return how many tokens of a prompt would not be read again.  For the thread of `generate`."""

    def prefix_status(self) -> Mapping[str, Any] | None:
        """Return what is kept of conversations, with the keys of the status document; None when nothing ever is."""

    def close(self) -> None:
        """Let files and memory go."""


@dataclass(frozen=True, kw_only=True)
class PreparedReply:
    """A request that passed every check which needs no waiting.

    Attributes:
        request: What was asked.
        ids: The prompt's token ids.
        sampling: How tokens are chosen.
        max_tokens: Output budget in tokens, at least 1.
        window_bound: Whether the window, not the client or the default, set the budget.
        functions: Parameter schemas of the functions that may be called; None when calls are not looked for.
    """

    request: GenerationRequest
    ids: Sequence[int]
    sampling: SamplingParams
    max_tokens: int
    window_bound: bool
    functions: Mapping[str, Schema] | None


def default_output_tokens(window_tokens: int) -> int:
    """Return the default and advertised reply budget: a quarter of the window, between 256 and 8,192 tokens."""
    return max(1, min(8192, max(256, window_tokens // 4), window_tokens - 1))


def prompt_ids(engine: ServableEngine, request: GenerationRequest, *, within_tokens: int | None = None) -> list[int]:
    """Return the token ids the model would read for a request.

    Args:
        engine: The engine.
        request: The request.
        within_tokens: A window to refuse a prompt by that is far too long for it; None to return ids of any length.

    Raises:
        Refused: The chat template refused the conversation, there is nothing to read, or far too much.
    """
    try:
        if request.raw_prompt is not None:
            ids = engine.tokenizer.encode(request.raw_prompt, within_tokens=within_tokens)
        else:
            declared = () if request.tool_choice.mode == "none" else request.tools
            ids = engine.chat_ids(
                _with_instructions(request),
                tools=[tool.as_template_value() for tool in declared],
                thinking=request.reasoning.enabled,
                effort=request.reasoning.effort,
                within_tokens=within_tokens,
            )
    except SlotstreamError as error:
        raise Refused(failure_of(error)) from error
    if not ids:
        raise Refused(failure_of(EmptyPrompt("the prompt has no tokens; write something to answer")))
    return ids


def prepare(engine: ServableEngine, request: GenerationRequest) -> PreparedReply:
    """Turn a request into what the engine is asked for.

    Raises:
        Refused: The prompt is empty, too long for the window, or refused by the chat template.
    """
    window = min(engine.window_tokens, request.window_limit or engine.window_tokens)
    ids = prompt_ids(engine, request, within_tokens=window)
    room = window - len(ids)
    if room < 1:
        raise Refused(_too_long(ContextLengthExceeded(len(ids), window)))
    wanted = request.max_output_tokens
    if wanted is None:
        wanted = request.default_output_tokens or default_output_tokens(window)
    elif wanted <= 0:
        wanted = engine.window_tokens
    called = request.tools if request.tool_choice.mode != "none" else ()
    return PreparedReply(
        request=request,
        ids=ids,
        sampling=_sampling(request),
        max_tokens=min(room, wanted),
        window_bound=wanted > room,
        functions=declared_functions([tool.as_template_value() for tool in called]) if called else None,
    )


def failure_of(error: Exception) -> Failure:
    """Return the neutral failure for anything an engine raises."""
    if isinstance(error, Refused):
        return error.failure
    if isinstance(error, ContextLengthExceeded):
        return _too_long(error)
    if isinstance(error, TemplateError):
        return Failure(code="invalid_request", message=str(error), details={"reason": "template_error"})
    if isinstance(error, EmptyPrompt):
        return Failure(code="invalid_request", message=str(error), details={"reason": "empty_prompt"})
    if isinstance(error, RequestError):
        return Failure(code="invalid_request", message=str(error))
    if isinstance(error, InsufficientMemory | MemoryUnavailable):
        sizes = {"required_bytes": error.required_bytes, "available_bytes": error.available_bytes}
        return Failure(code="insufficient_memory", message=str(error), details=sizes)
    if isinstance(error, GenerationCancelled):
        return Failure(code="client_cancelled", message="the client closed the request")
    if isinstance(error, SlotstreamError):
        return Failure(code="inference_error", message=str(error))
    return Failure(
        code="inference_error",
        message=f"the reply failed on an internal error ({type(error).__name__}); the server's log has the details",
    )


def _too_long(error: ContextLengthExceeded) -> Failure:
    """One token of the window must stay free for the reply, so the longest prompt is one less than the window."""
    prompt, window = error.prompt_tokens, error.window_tokens
    details = {"prompt_tokens": prompt, "window_tokens": window}
    return Failure(
        code="context_length_exceeded",
        message=f"prompt is too long: {'at least ' if error.at_least else ''}{prompt} tokens > {window - 1} maximum",
        details={**details, "prompt_tokens_at_least": True} if error.at_least else details,
    )


def _sampling(request: GenerationRequest) -> SamplingParams:
    base, own = PROFILES[request.profile], request.sampling
    return SamplingParams(
        temperature=base.temperature if own.temperature is None else own.temperature,
        top_p=base.top_p if own.top_p is None else own.top_p,
        top_k=base.top_k if own.top_k is None else own.top_k,
        min_p=base.min_p if own.min_p is None else own.min_p,
        presence_penalty=base.presence_penalty if own.presence_penalty is None else own.presence_penalty,
        seed=own.seed,
    )


def _with_instructions(request: GenerationRequest) -> Sequence[ChatMessage]:
    """Return the messages with the system lines that a tool choice adds."""
    lines: list[str] = []
    if request.tools and request.tool_choice.mode == "required":
        lines.append("You must call one of the available tools now.")
    if request.tools and request.tool_choice.mode == "named":
        lines.append(f"You must call the {request.tool_choice.name} tool now.")
    if request.tools and request.tool_choice.mode != "none" and not request.parallel_tool_calls:
        lines.append(ONE_CALL_LINE)
    if not lines:
        return request.messages
    text = "\n".join(lines)
    first, rest = request.messages[:1], request.messages[1:]
    if first and first[0].role == "system":
        return (replace(first[0], content=f"{first[0].content}\n\n{text}".lstrip()), *rest)
    return (ChatMessage(role="system", content=text), *request.messages)


class ReplyRun:
    """One generation, from its first check at the engine to its last reply event.

    Attributes:
        traffic: What the experts of the reply cost, once it has finished.
        drafts: What the draft head did for it, once it has finished; None without a draft head.
    """

    def __init__(self, engine: ServableEngine, prepared: PreparedReply, cancel: CancelToken, *, queue_s: float) -> None:
        self._engine = engine
        self._prepared = prepared
        self._cancel = cancel
        self._queue_s = queue_s
        self._scanner = None if prepared.functions is None else ToolCallScanner(prepared.functions)
        self._calls: list[str] = []
        self.traffic: ExpertTraffic | None = None
        self.drafts: DraftCounts | None = None

    def events(self) -> Iterator[ReplyEvent | PromptProgress]:
        """Generate, and yield `Admitted`, progress, deltas and `ReplyFinished` or `ReplyFailed`.

        Raises:
            Exception: Whatever the engine raises; `failure_of` turns it into a failure.
        """
        prepared = self._prepared
        generation = self._engine.generate(
            prepared.ids,
            sampling=prepared.sampling,
            max_tokens=prepared.max_tokens,
            stop=prepared.request.stop,
            thinking=prepared.request.reasoning.enabled and prepared.request.raw_prompt is None,
            cancel=self._cancel,
            persist=prepared.request.persist,
        )
        admitted = False
        for event in generation:
            if not admitted:
                admitted = True
                cached = event.cached_tokens if isinstance(event, PromptProgress) else 0
                yield Admitted(prompt_tokens=len(prepared.ids), cached_tokens=cached)
            if isinstance(event, Finished):
                yield from self._finish(event)
                return
            if self._scanner is None or not isinstance(event, TextDelta):
                yield event
            else:
                for scanned in self._scanner.feed(event.text):
                    reply = self._reply_to(scanned)
                    yield reply
                    if isinstance(reply, ReplyFailed):
                        self._stop(generation)
                        return
                    if isinstance(reply, ToolCallFinished) and not prepared.request.parallel_tool_calls:
                        yield from self._finish(self._enough(generation))
                        return
        raise SlotstreamError("the engine ended its reply without a last event")

    def _reply_to(self, scanned: ScanEvent) -> ReplyEvent:
        match scanned:
            case AnswerText():
                return TextDelta(text=scanned.text)
            case CallStarted():
                return ToolCallStarted(index=scanned.index, name=scanned.name)
            case CallArguments():
                return ToolCallArguments(index=scanned.index, fragment=scanned.fragment)
            case CallFinished():
                self._calls.append(scanned.name)
                return ToolCallFinished(index=scanned.index, name=scanned.name, arguments=scanned.arguments)
            case CallMalformed():
                if self._prepared.request.malformed_calls == "text":
                    return TextDelta(text=scanned.raw)
                return ReplyFailed(failure=_malformed(scanned))

    def _finish(self, event: Finished) -> Iterator[ReplyEvent]:
        self.traffic, self.drafts = event.experts, event.drafts
        for scanned in [] if self._scanner is None else self._scanner.finish():
            if event.reason == "length" and isinstance(scanned, CallMalformed):
                continue  # a call that the budget cut off
            if self._calls and isinstance(scanned, AnswerText) and not scanned.text.strip():
                continue  # what follows the last call is no answer
            reply = self._reply_to(scanned)
            yield reply
            if isinstance(reply, ReplyFailed):
                return
        if event.reason != "length" and (failure := self._unsatisfied_choice()) is not None:
            yield ReplyFailed(failure=failure)
            return
        reason: FinishReason = event.reason
        if self._calls:
            reason = "tool_calls"
        elif event.reason == "length" and self._prepared.window_bound:
            reason = "window"
        yield ReplyFinished(
            reason=reason,
            stop_string=event.stop_string if reason == "stop_string" else None,
            usage=ReplyUsage(
                prompt_tokens=event.usage.prompt_tokens,
                cached_tokens=event.usage.cached_tokens,
                completion_tokens=event.usage.completion_tokens,
                thinking_tokens=event.usage.thinking_tokens,
                queue_s=self._queue_s,
                prefill_s=event.timings.prefill_s,
                decode_s=event.timings.decode_s,
            ),
        )

    def _unsatisfied_choice(self) -> Failure | None:
        choice = self._prepared.request.tool_choice
        if choice.mode == "required" and not self._calls:
            message = "the model called no tool although tool_choice requires one; ask again or use auto"
        elif choice.mode == "named" and (not self._calls or any(name != choice.name for name in self._calls)):
            message = f"the model did not call {choice.name} although tool_choice names it; ask again or use auto"
        else:
            return None
        return Failure(code="tool_choice_unsatisfied", message=message)

    def _enough(self, generation: Iterator[GenerationEvent]) -> Finished:
        """End a reply after its only allowed call; what the model says on the way is not part of it."""
        self._cancel.finish()
        self._scanner = None
        for event in generation:
            if isinstance(event, Finished):
                return event
        raise SlotstreamError("the engine ended its reply without a last event")

    def _stop(self, generation: Iterator[GenerationEvent]) -> None:
        """End the generation at its next boundary, so that the engine is free again."""
        self._cancel.cancel()
        try:
            for event in generation:
                if isinstance(event, Finished):
                    self.traffic, self.drafts = event.experts, event.drafts
        except GenerationCancelled:
            pass


def _malformed(call: CallMalformed) -> Failure:
    meanings = {
        "unterminated": "it never ended",
        "duplicate_parameter": "it names a parameter twice",
        "unexpected_text": "it has text where a tag belongs",
        "undeclared_function": "it names a function that was not declared",
    }
    return Failure(
        code="inference_error",
        message=f"the model wrote a tool call that cannot be used: {meanings[call.reason]}; ask again",
        details={"reason": call.reason},
    )
