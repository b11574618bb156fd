"""From a request to an engine generation and back, without HTTP and threads."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotstream_core.errors import (
    ContextLengthExceeded,
    EmptyPrompt,
    EngineBusy,
    ExpertReadError,
    GenerationCancelled,
    InvalidSampling,
    MemoryUnavailable,
    TemplateError,
)
from slotstream_core.events import PromptProgress
from slotstream_core.generation.control import CancelToken
from slotstream_core.text.messages import ChatMessage
from slotstream_planner import InsufficientMemory
from slotstream_serve.conversation import GenerationRequest, SamplingOverrides, ToolChoice
from slotstream_serve.errors import Refused
from slotstream_serve.reply import (
    Admitted,
    ReplyEvent,
    ReplyFailed,
    ReplyFinished,
    TextDelta,
    ThinkingDelta,
    ToolCallArguments,
    ToolCallFinished,
    ToolCallStarted,
)
from slotstream_serve.serving import ReplyRun, default_output_tokens, failure_of, prepare, prompt_ids
from slotstream_serve.testing import ScriptedEngine, tool_call, write_in_pieces
from tests.serve.plain_dialect import plain_request

CITY = {"weather": {"properties": {"city": {"type": "string"}}}, "time": {}}
CALL = tool_call("weather", {"city": "Bern"})


def play(engine: ScriptedEngine, request: GenerationRequest) -> list[ReplyEvent]:
    run = ReplyRun(engine, prepare(engine, request), CancelToken(), queue_s=0.5)
    return [event for event in run.events() if not isinstance(event, PromptProgress)]


def reply(script: Sequence[str], **fields: Any) -> list[ReplyEvent]:
    return play(ScriptedEngine([script]), plain_request("hi", fields))


def text_of(events: Sequence[ReplyEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def end_of(events: Sequence[ReplyEvent]) -> ReplyFinished:
    last = events[-1]
    assert isinstance(last, ReplyFinished)
    return last


def failure_in(events: Sequence[ReplyEvent]) -> str:
    last = events[-1]
    assert isinstance(last, ReplyFailed)
    return last.failure.code


@pytest.mark.parametrize(
    ("window", "budget"),
    [(1, 1), (2, 1), (100, 99), (256, 255), (1000, 256), (4096, 1024), (32_768, 8192), (262_144, 8192)],
)
def test_the_default_budget_is_a_quarter_of_the_window_within_bounds(window: int, budget: int) -> None:
    assert default_output_tokens(window) == budget


def test_a_profile_gives_what_the_client_did_not_set() -> None:
    engine = ScriptedEngine([["x"]])
    request = plain_request("hi")
    agent = replace(request, profile="agent", sampling=SamplingOverrides(top_p=0.5, seed=7, temperature=0.0))
    assert prepare(engine, request).sampling.temperature == 0.7
    sampling = prepare(engine, agent).sampling
    assert (sampling.temperature, sampling.top_p, sampling.seed, sampling.presence_penalty) == (0.0, 0.5, 7, 0.0)
    assert prepare(engine, replace(request, profile="thinking")).sampling.top_p == 0.95


@pytest.mark.parametrize(
    ("fields", "tokens", "bound"),
    [
        ({"max_output_tokens": 5}, 5, False),
        ({"max_output_tokens": 0}, None, True),
        ({"max_output_tokens": -1}, None, True),
        ({"max_output_tokens": 10**9}, None, True),
        ({"default_output_tokens": 512}, 512, False),
        ({}, 1024, False),
        ({"window_limit": 100, "default_output_tokens": 512}, None, True),
    ],
)
def test_the_budget_is_the_clients_within_the_room_that_is_left(
    fields: dict[str, Any], tokens: int | None, bound: bool
) -> None:
    engine = ScriptedEngine([["x"]])
    prepared = prepare(engine, replace(plain_request("hi"), **fields))
    room = min(fields.get("window_limit", 4096), 4096) - len(prepared.ids)
    assert prepared.max_tokens == (room if tokens is None else tokens)
    assert prepared.window_bound is bound


def test_a_smaller_window_of_the_client_counts_for_the_prompt() -> None:
    request = replace(plain_request("x" * 100), window_limit=50)
    with pytest.raises(Refused, match="tokens > 49 maximum") as refusal:
        prepare(ScriptedEngine([["x"]]), request)
    assert refusal.value.failure.details["window_tokens"] == 50


def test_a_raw_prompt_goes_without_the_template() -> None:
    engine = ScriptedEngine([["x"]])
    request = GenerationRequest(messages=(), raw_prompt="once upon")
    assert bytes(prompt_ids(engine, request)) == b"once upon"
    with pytest.raises(Refused, match="no tokens"):
        prompt_ids(engine, replace(request, raw_prompt=""))


@pytest.mark.parametrize(
    ("choice", "parallel", "lines"),
    [
        ({"mode": "auto"}, True, []),
        ({"mode": "required"}, True, ["You must call one of the available tools now."]),
        ({"mode": "named", "name": "time"}, True, ["You must call the time tool now."]),
        ({"mode": "auto"}, False, ["Call at most one tool in this response."]),
        ({"mode": "none"}, False, []),
    ],
)
@pytest.mark.parametrize("system", [None, "Be brief."])
def test_a_tool_choice_adds_its_line_to_the_system_turn(
    choice: dict[str, str], parallel: bool, lines: list[str], system: str | None
) -> None:
    request = plain_request("hi", {"tools": CITY, "tool_choice": choice, "parallel": parallel})
    if system is not None:
        request = replace(request, messages=(ChatMessage(role="system", content=system), *request.messages))
    rows = bytes(prompt_ids(ScriptedEngine([["x"]]), request)).decode().splitlines()
    turns = [json.loads(row) for row in rows if row.startswith('{"role"')]
    found = turns[0]["content"] if turns[0]["role"] == "system" else ""
    assert found == "\n\n".join(part for part in [system or "", "\n".join(lines)] if part)
    assert any("weather" in row for row in rows) is (choice["mode"] != "none")


def test_thinking_and_answer_are_told_apart() -> None:
    events = reply(["I ", "wonder", "</think>", "\n\n", "Yes."], think=True)
    assert "".join(event.text for event in events if isinstance(event, ThinkingDelta)) == "I wonder"
    assert text_of(events) == "Yes."
    assert end_of(events).usage.thinking_tokens == 3


def test_a_stop_string_ends_the_reply_and_is_named() -> None:
    end = end_of(reply(["one ", "two ST", "OP three"], stop=["STOP"]))
    assert (end.reason, end.stop_string) == ("stop_string", "STOP")


@pytest.mark.parametrize(("limit", "reason"), [(2, "length"), (0, "stop"), (None, "stop")])
def test_the_budget_ends_a_reply_with_length(limit: int | None, reason: str) -> None:
    assert end_of(reply(["a", "b", "c"], max_output_tokens=limit)).reason == reason


def test_the_window_ends_a_reply_with_window() -> None:
    engine = ScriptedEngine([["piece "] * 100], window_tokens=90)
    end = end_of(play(engine, plain_request("hi", {"max_output_tokens": 1000})))
    assert end.reason == "window"
    assert end.usage.prompt_tokens + end.usage.completion_tokens == 90


def test_usage_holds_counts_and_waiting() -> None:
    usage = end_of(reply(["a", "b"])).usage
    assert (usage.completion_tokens, usage.queue_s) == (2, 0.5)
    assert usage.prefill_s >= 0
    assert usage.decode_s >= 0


def test_calls_are_numbered_and_the_newline_between_them_is_no_text() -> None:
    events = reply([CALL, "\n", tool_call("time", {})], tools=CITY)
    finished = [event for event in events if isinstance(event, ToolCallFinished)]
    assert [(event.index, event.name, event.arguments) for event in finished] == [
        (0, "weather", '{"city":"Bern"}'),
        (1, "time", "{}"),
    ]
    assert text_of(events) == ""
    assert end_of(events).reason == "tool_calls"


@settings(max_examples=40)
@given(size=st.integers(1, 40), fields=st.sampled_from([{}, {"think": True}, {"parallel": False}]))
def test_any_split_of_a_reply_gives_the_same_joined_events(size: int, fields: dict[str, Any]) -> None:
    text = f"Hm.</think>\n\nI look. \n{CALL}\n{tool_call('time', {'zone': 'UTC'})}"

    def joined(script: Sequence[str]) -> list[tuple[str, str]]:
        runs: list[tuple[str, str]] = []
        for event in reply(script, tools=CITY, max_output_tokens=0, **fields)[:-1]:
            value = event.text if isinstance(event, TextDelta | ThinkingDelta) else ""
            value = event.fragment if isinstance(event, ToolCallArguments) else value
            value = event.arguments if isinstance(event, ToolCallFinished) else value
            if runs and runs[-1][0] == type(event).__name__:
                value = runs.pop()[1] + value
            runs.append((type(event).__name__, value))
        return runs

    assert joined(write_in_pieces(text, size)) == joined([text])


def test_arguments_join_to_the_finished_arguments() -> None:
    events = reply(write_in_pieces(CALL, 3), tools=CITY)
    fragments = "".join(event.fragment for event in events if isinstance(event, ToolCallArguments))
    assert [fragments] == [event.arguments for event in events if isinstance(event, ToolCallFinished)]


def test_without_parallel_calls_the_reply_ends_after_the_first() -> None:
    engine = ScriptedEngine([[CALL, "\n", CALL, "and more"], ["next"]])
    events = play(engine, plain_request("hi", {"tools": CITY, "parallel": False}))
    end = end_of(events)
    assert end.reason == "tool_calls"
    assert sum(isinstance(event, ToolCallFinished) for event in events) == 1
    assert end.usage.completion_tokens == 1  # the script makes a whole call in one token
    assert text_of(play(engine, plain_request("hi"))) == "next"


@pytest.mark.parametrize(
    ("choice", "script", "satisfied"),
    [
        ({"mode": "required"}, ["no"], False),
        ({"mode": "required"}, [CALL], True),
        ({"mode": "named", "name": "time"}, [CALL], False),
        ({"mode": "named", "name": "time"}, ["no"], False),
        ({"mode": "named", "name": "weather"}, [CALL], True),
    ],
)
@pytest.mark.parametrize("parallel", [True, False])
def test_a_demanded_call_is_checked(choice: dict[str, str], script: list[str], satisfied: bool, parallel: bool) -> None:
    events = reply(script, tools=CITY, tool_choice=choice, parallel=parallel)
    assert isinstance(events[-1], ReplyFinished) is satisfied
    if not satisfied:
        assert failure_in(events) == "tool_choice_unsatisfied"


def test_a_demanded_call_that_the_budget_cut_off_is_no_failure() -> None:
    events = reply(write_in_pieces(CALL, 8), tools=CITY, tool_choice={"mode": "required"}, max_output_tokens=6)
    assert end_of(events).reason == "length"
    assert any(isinstance(event, ToolCallStarted) for event in events)
    assert not any(isinstance(event, ToolCallFinished) for event in events)
    assert text_of(events) == ""


BROKEN = [
    "<tool_call>\n<function=weather>\n",
    "<tool_call>\n<function=unknown>\n</function>\n</tool_call>",
    CALL.replace("</function>", "<parameter=city>\nx\n</parameter>\n</function>"),
    "<tool_call>\nsome words\n</tool_call>",
]


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_call_fails_the_reply_and_frees_the_engine(broken: str) -> None:
    engine = ScriptedEngine([["Look: ", broken, "after"], ["next"]])
    assert failure_in(play(engine, plain_request("hi", {"tools": CITY}))) == "inference_error"
    assert text_of(play(engine, plain_request("hi"))) == "next"


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_call_may_be_text_instead(broken: str) -> None:
    events = reply(["Look:", broken], tools=CITY, malformed_calls="text")
    assert text_of(events) == "Look:" + broken
    assert end_of(events).reason == "stop"


def test_without_tools_a_call_is_text() -> None:
    assert text_of(reply([CALL])) == CALL
    assert text_of(reply([CALL], tools=CITY, tool_choice={"mode": "none"})) == CALL


def test_the_first_event_is_admission_with_the_prompts_tokens() -> None:
    first = reply(["x"])[0]
    assert isinstance(first, Admitted)
    assert first.prompt_tokens == len(prompt_ids(ScriptedEngine([["x"]]), plain_request("hi")))


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (ContextLengthExceeded(10, 10), "context_length_exceeded", 400),
        (EmptyPrompt("nothing"), "invalid_request", 400),
        (TemplateError("no"), "invalid_request", 400),
        (InvalidSampling("no"), "invalid_request", 400),
        (InsufficientMemory("no", required_bytes=5, available_bytes=3), "insufficient_memory", 503),
        (MemoryUnavailable(required_bytes=5, available_bytes=3), "insufficient_memory", 503),
        (GenerationCancelled("gone"), "client_cancelled", 499),
        (ExpertReadError("short"), "inference_error", 500),
        (EngineBusy("busy"), "inference_error", 500),
        (RuntimeError("private words"), "inference_error", 500),
    ],
)
def test_every_error_of_an_engine_has_a_code_and_status(error: Exception, code: str, status: int) -> None:
    failure = failure_of(error)
    assert (failure.code, failure.http_status) == (code, status)
    assert "private words" not in failure.message


def test_a_prompt_that_was_not_counted_says_so_in_words_and_for_programs() -> None:
    failure = failure_of(ContextLengthExceeded(900, 101, at_least=True))
    assert failure.message == "prompt is too long: at least 900 tokens > 100 maximum"
    assert failure.details == {"prompt_tokens": 900, "window_tokens": 101, "prompt_tokens_at_least": True}


def test_a_choice_without_tools_adds_nothing() -> None:
    request = replace(plain_request("hi"), tool_choice=ToolChoice(mode="auto"), parallel_tool_calls=False)
    engine = ScriptedEngine([["x"]])
    assert prompt_ids(engine, request) == prompt_ids(engine, plain_request("hi"))
