"""What Chat Completions bodies mean, and which are refused."""

from typing import Any

import pytest

from slotstream_core.text.messages import ChatMessage, ToolCall
from slotstream_serve.conversation import GenerationRequest, Reasoning, ToolChoice, ToolSpec
from slotstream_serve.dialects.base import ParsedRequest
from slotstream_serve.dialects.openai_chat.dialect import OpenAIChat
from slotstream_serve.dialects.openai_chat.fields import REQUEST
from slotstream_serve.errors import Failure, Refused
from tests.serve.replies import context

USER = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "default": None}}}
TOOL = {"type": "function", "function": {"name": "weather", "description": "Tells.", "parameters": SCHEMA}}
TOOLS = {"tools": [TOOL]}


def parse(**fields: Any) -> ParsedRequest:
    return OpenAIChat().parse({"model": "tiny", "messages": [USER], **fields}, context())


def generation(**fields: Any) -> GenerationRequest:
    request = parse(**fields).generation
    assert request is not None
    return request


def refusal(**fields: Any) -> Failure:
    with pytest.raises(Refused) as caught:
        parse(**fields)
    return caught.value.failure


def test_a_plain_question_uses_every_default() -> None:
    parsed = parse()
    assert parsed.generation == GenerationRequest(messages=(ChatMessage(role="user", content="hi"),))
    assert parsed.stream is False
    assert parsed.immediate is None


def test_null_is_unset_for_every_field() -> None:
    optional = {field.name: None for field in REQUEST.fields if field.name not in ("model", "messages")}
    assert generation(**optional) == generation()


def test_sampling_and_budget_are_passed_on() -> None:
    request = generation(
        temperature=0, top_p=0.5, top_k=3, min_p=0.1, presence_penalty=-1, seed=7, max_tokens=5, stop=["a", "b"]
    )
    own = request.sampling
    assert (own.temperature, own.top_p, own.top_k, own.min_p, own.presence_penalty, own.seed) == (0, 0.5, 3, 0.1, -1, 7)
    assert (request.max_output_tokens, request.stop) == (5, ("a", "b"))
    assert request.default_output_tokens is None
    assert generation(max_completion_tokens=6).max_output_tokens == 6
    assert generation(max_completion_tokens=6, max_tokens=6).max_output_tokens == 6
    assert generation(stop="x").stop == ("x",)
    assert generation(options={"num_ctx": 100}).window_limit == 100


def test_instructions_of_both_roles_are_joined_in_order() -> None:
    messages = [
        {"role": "developer", "content": "one"},
        {"role": "system", "content": [{"type": "text", "text": "two"}, {"type": "text", "text": "three"}]},
        USER,
    ]
    assert generation(messages=messages).messages[0] == ChatMessage(role="system", content="one\n\ntwo\nthree")


def test_text_parts_of_a_turn_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert generation(messages=[{"role": "user", "content": parts}]).messages[0].content == "a\nb"


def call(id: str, arguments: str = "{}", name: str = "weather") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(id: str, text: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": text}


def test_a_replayed_tool_turn_is_taken_back_and_results_are_put_in_call_order() -> None:
    turn = {
        "role": "assistant",
        "content": None,
        "reasoning_content": "think",
        "tool_calls": [call("a", '{"city": "Bern", "days": null}'), call("b", "")],
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
    }
    messages = [USER, turn, result("b", "two"), result("a", [{"type": "text", "text": "one"}])]
    assert generation(messages=messages, **TOOLS).messages[1:] == (
        ChatMessage(
            role="assistant",
            content="",
            reasoning="think",
            tool_calls=(
                ToolCall(name="weather", arguments={"city": "Bern", "days": None}),
                ToolCall(name="weather", arguments={}),
            ),
        ),
        ChatMessage(role="tool", content="one"),
        ChatMessage(role="tool", content="two"),
    )


def test_the_assistants_text_parts_are_joined_as_they_were_written() -> None:
    parts = [{"type": "output_text", "text": "Good", "annotations": []}, {"type": "text", "text": "bye"}]
    turns = generation(messages=[USER, {"role": "assistant", "content": parts}, USER]).messages
    assert turns[1].content == "Goodbye"


def test_bookkeeping_of_clients_on_messages_has_no_effect() -> None:
    extra = {"name": "Ann", "effect_disposition": "x", "display_kind": {"a": 1}, "display_metadata": None}
    assert generation(messages=[{**USER, **extra}]).messages == generation().messages


def test_tools_are_declared_with_their_schemas_untouched() -> None:
    request = generation(tools=[TOOL, {"type": "function", "function": {"name": "now", "strict": False}}])
    assert request.tools == (
        ToolSpec(name="weather", description="Tells.", parameters=SCHEMA),
        ToolSpec(name="now", description="", parameters={"type": "object", "properties": {}}),
    )
    assert request.profile == "agent"
    assert request.malformed_calls == "fail"
    assert generation(tools=[]).profile == "ordinary"


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ToolChoice()),
        ("auto", ToolChoice()),
        ("none", ToolChoice(mode="none")),
        ("required", ToolChoice(mode="required")),
        ({"type": "function", "function": {"name": "weather"}}, ToolChoice(mode="named", name="weather")),
    ],
)
def test_a_tool_choice_is_understood(choice: Any, expected: ToolChoice) -> None:
    request = generation(tool_choice=choice, parallel_tool_calls=False, **TOOLS)
    assert request.tool_choice == expected
    assert request.parallel_tool_calls is False


@pytest.mark.parametrize("choice", ["any", {"type": "function"}, {"type": "custom", "name": "x"}, {"name": "weather"}])
def test_other_tool_choices_are_refused(choice: Any) -> None:
    assert refusal(tool_choice=choice, **TOOLS).param == "tool_choice"


def test_a_choice_that_cannot_be_satisfied_is_refused() -> None:
    assert "no tools are declared" in refusal(tool_choice="required").message
    named = {"type": "function", "function": {"name": "other"}}
    assert "names other" in refusal(tool_choice=named, **TOOLS).message


@pytest.mark.parametrize(
    ("fields", "reasoning"),
    [
        ({}, Reasoning()),
        ({"think": True}, Reasoning(enabled=True)),
        ({"think": False, "reasoning_effort": "none"}, Reasoning()),
        ({"reasoning_effort": "minimal"}, Reasoning()),
        ({"reasoning_effort": "low", "think": True}, Reasoning(enabled=True, effort="low")),
        ({"reasoning_effort": "max"}, Reasoning(enabled=True, effort="xhigh")),
    ],
)
def test_thinking_follows_the_flag_or_the_level(fields: dict[str, Any], reasoning: Reasoning) -> None:
    request = generation(**fields)
    assert request.reasoning == reasoning
    assert request.profile == ("thinking" if reasoning.enabled else "ordinary")


@pytest.mark.parametrize(
    "fields",
    [{"think": True, "reasoning_effort": "none"}, {"think": False, "reasoning_effort": "low"}],
)
def test_a_flag_that_contradicts_the_level_is_refused(fields: dict[str, Any]) -> None:
    assert refusal(**fields).param == "think"


ACCEPTED: dict[str, Any] = {
    "n": 1,
    "frequency_penalty": 0.0,
    "logprobs": False,
    "logit_bias": {},
    "response_format": {"type": "text"},
    "modalities": ["text"],
    "store": False,
    "metadata": {"a": "b"},
    "user": "u",
    "prompt_cache_key": "k",
    "safety_identifier": "s",
    "service_tier": "auto",
}


def test_every_field_said_to_have_no_effect_has_none() -> None:
    assert set(ACCEPTED) == {field.name for field in REQUEST.fields if field.use == "accepted"}
    assert generation(**ACCEPTED) == generation()


@pytest.mark.parametrize("name", [field.name for field in REQUEST.fields if field.use == "refused"])
def test_every_field_said_to_be_refused_is_refused(name: str) -> None:
    values: tuple[Any, ...] = ("x", 0, False, {}, [])
    for value in values:
        failure = refusal(**{name: value})
        assert (failure.param, failure.dialect_code) == (name, "unsupported_field")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"frequency_penalty": 0.1}, "frequency_penalty"),
        ({"logprobs": True}, "logprobs"),
        ({"logit_bias": {"1": 2}}, "logit_bias"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
        ({"store": True}, "store"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": "a"}, "metadata"),
        ({"user": 1}, "user"),
        ({"unheard_of": 1}, "unheard_of"),
        ({"model": "gpt-4"}, "model"),
        ({"model": None}, "model"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages.0"),
        ({"stream": 1}, "stream"),
        ({"stream": "true"}, "stream"),
        ({"temperature": "0.5"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_k": 1.5}, "top_k"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens"),
        ({"stop": 1}, "stop"),
        ({"stop": ["a", 1]}, "stop.1"),
        ({"reasoning_effort": "deep"}, "reasoning_effort"),
        ({"think": "low"}, "think"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"stream_options": {"other": 1}}, "stream_options.other"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"options": {"num_ctx": 5000}}, "options.num_ctx"),
        ({"options": {"num_ctx": 0}}, "options.num_ctx"),
        ({"options": {"temperature": 1}}, "options.temperature"),
        ({"tools": {}}, "tools"),
        ({"tools": ["x"]}, "tools.0"),
        ({"tools": [{"type": "custom", "custom": {}}]}, "tools.0.type"),
        ({"tools": [{"type": "custom", "function": {}}]}, "tools.0.type"),
        ({"tools": [{"type": "function"}]}, "tools.0.function"),
        ({"tools": [{"function": {"name": "f"}}]}, "tools.0.type"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools.0.function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]}, "tools.0.function.strict"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}, "tools.0.function.parameters"),
        ({"tools": [TOOL, TOOL]}, "tools"),
    ],
)
def test_a_wrong_field_is_refused_with_its_path(fields: dict[str, Any], param: str) -> None:
    failure = refusal(**fields)
    assert failure.param == param
    assert failure.http_status == 400


ASKED = {"role": "assistant", "content": "", "tool_calls": [call("a"), call("b")]}


@pytest.mark.parametrize(
    ("messages", "param", "words"),
    [
        ([USER, {"role": "system", "content": "late"}], "messages.1", "put it first"),
        ([USER, {"role": "assistant", "content": "so"}], "messages.1", "end with a user message"),
        ([{"role": "robot", "content": "x"}], "messages.0.role", "use one of system, developer, user"),
        ([{"content": "x"}], "messages.0.role", "required"),
        ([{"role": 1, "content": "x"}], "messages.0.role", "must be text"),
        ([{"role": "user"}], "messages.0.content", "required"),
        ([{"role": "user", "content": 1}], "messages.0.content", "an array"),
        ([{"role": "user", "content": "x", "tool_calls": []}], "messages.0.tool_calls", "unknown field"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages.0.content.0.text", "required"),
        ([{"role": "user", "content": [{"text": "x"}]}], "messages.0.content.0.type", "required"),
        ([{"role": "user", "content": ["x"]}], "messages.0.content.0", "must be an object"),
        ([{"role": "user", "content": [{"type": "input_audio"}]}], "messages.0.content.0.type", "input_text or text"),
        ([USER, {"role": "assistant", "content": None}, USER], "messages.1.content", "required"),
        ([USER, {**ASKED, "function_call": {}}, USER], "messages.1.function_call", "use tool_calls"),
        ([USER, ASKED, result("a", "1"), USER], "messages.1.tool_calls.1", "before the result of: b"),
        ([USER, ASKED, result("a", "1")], "messages.1.tool_calls.1", "before the result of: b"),
        ([USER, ASKED, result("a", "1"), result("a", "1")], "messages.3", "second result"),
        ([USER, ASKED, result("z", "1")], "messages.2", "not open; waiting for a result: a, b"),
        ([USER, result("a", "1")], "messages.1", "no call waits"),
        ([USER, ASKED, {"role": "tool", "content": "x"}], "messages.2.tool_call_id", "required"),
        ([USER, ASKED, {**result("a", "x"), "name": "other"}], "messages.2", "is a result of other"),
        ([USER, {**ASKED, "tool_calls": [call("a"), call("a")]}], "messages.1.tool_calls.0", "repeats the call id"),
        ([USER, {**ASKED, "tool_calls": [call("a", "{")]}], "messages.1.tool_calls.0.function.arguments", "not valid"),
        ([USER, {**ASKED, "tool_calls": [call("a", "[]")]}], "messages.1.tool_calls.0.function.arguments", "object"),
        ([USER, {**ASKED, "tool_calls": [{"id": "a"}]}], "messages.1.tool_calls.0.function", "required"),
        ([USER, {**ASKED, "tool_calls": [{"function": {"name": "f"}}]}], "messages.1.tool_calls.0.id", "required"),
        (
            [USER, {**ASKED, "tool_calls": [{"id": "a", "function": {}}]}],
            "messages.1.tool_calls.0.function.name",
            "req",
        ),
    ],
)
def test_a_wrong_message_is_refused_with_its_path(messages: list[Any], param: str, words: str) -> None:
    failure = refusal(messages=messages)
    assert failure.param == param
    assert words in failure.message


@pytest.mark.parametrize("url", ["data:image/png;base64,AAAA", "http://127.0.0.1:1/x.png", "file:///etc/passwd"])
@pytest.mark.parametrize("role", ["user", "tool"])
def test_an_image_is_refused_clearly_and_never_fetched(url: str, role: str) -> None:
    image = {"type": "image_url", "image_url": {"url": url}}
    message = {"role": role, "content": [image], **({"tool_call_id": "a"} if role == "tool" else {})}
    turns = [USER, {**ASKED, "tool_calls": [call("a")]}, message] if role == "tool" else [message]
    failure = refusal(messages=turns)
    assert failure.message.endswith("is an image, and this server reads text only; send the request without images")


def test_the_answer_streams_when_asked() -> None:
    assert parse(stream=True).stream
    assert not parse(stream=False).stream
