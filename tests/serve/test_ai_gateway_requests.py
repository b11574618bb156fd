"""What a gateway request means, and what it may not ask for."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotstream_core.text.messages import ChatMessage, ToolCall
from slotstream_serve.conversation import GenerationRequest, Reasoning, ToolChoice
from slotstream_serve.dialects.ai_gateway import AIGateway
from slotstream_serve.dialects.ai_gateway.fields import REQUEST
from slotstream_serve.dialects.base import ParsedRequest
from slotstream_serve.errors import Failure, Refused
from tests.serve.replies import context, status_of

HEADERS = {
    "ai-language-model-specification-version": "4",
    "ai-gateway-protocol-version": "0.0.1",
    "ai-language-model-id": "slotstream/tiny:4bit",
    "ai-language-model-streaming": "true",
}
HELLO = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
WEATHER = {"type": "function", "name": "weather", "inputSchema": {"type": "object"}}


def understood(fields: dict[str, Any], headers: dict[str, str]) -> ParsedRequest:
    return AIGateway().parse({"prompt": [HELLO], **fields}, replace(context(), headers=headers))


def parsed(**fields: Any) -> GenerationRequest:
    generation = understood(fields, HEADERS).generation
    assert generation is not None
    return generation


def refused(headers: dict[str, str] | None = None, **fields: Any) -> Failure:
    with pytest.raises(Refused) as caught:
        understood(fields, headers or HEADERS)
    assert caught.value.failure.http_status == 400
    return caught.value.failure


def code_of(failure: Failure) -> str:
    error: dict[str, str] = AIGateway().error_body(failure)["error"]
    assert error["type"] in ("invalid_request_error", "model_not_found")
    return error["code"]


def call(call_id: str, name: str = "weather", given: Any = None) -> dict[str, Any]:
    return {"type": "tool-call", "toolCallId": call_id, "toolName": name, "input": {} if given is None else given}


def result(call_id: str, output: Any, name: str = "weather") -> dict[str, Any]:
    return {"type": "tool-result", "toolCallId": call_id, "toolName": name, "output": output}


def fine(text: str = "fine") -> dict[str, Any]:
    return {"type": "text", "value": text}


def prompt(*messages: tuple[str, Any]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in messages]


def test_every_setting_is_used() -> None:
    request = parsed(
        maxOutputTokens=9,
        temperature=-1,
        topP=3,
        topK=4,
        presencePenalty=0.5,
        seed=7,
        stopSequences=["END"],
        reasoning="medium",
        tools=[WEATHER],
        toolChoice={"type": "tool", "toolName": "weather"},
        frequencyPenalty=0,
        responseFormat={"type": "text"},
        providerOptions={"x": {}},
        headers={"a": "b"},
        includeRawChunks=False,
    )
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.0, 1.0, 4)
    assert (sampling.presence_penalty, sampling.seed) == (0.5, 7)
    assert (request.max_output_tokens, request.stop) == (9, ("END",))
    assert request.reasoning == Reasoning(enabled=True, effort="medium")
    assert request.tool_choice == ToolChoice(mode="named", name="weather")


def test_the_agent_defaults_apply_without_tools_and_malformed_calls_are_text() -> None:
    assert parsed().profile == "agent"
    assert parsed().malformed_calls == "text"
    assert parsed().max_output_tokens is None


def test_null_is_unset_everywhere() -> None:
    assert parsed(**dict.fromkeys(field.name for field in REQUEST.fields if field.name != "prompt")) == parsed()


@pytest.mark.parametrize(("level", "enabled"), [("provider-default", False), ("none", False), ("max", True)])
def test_reasoning_levels(level: str, enabled: bool) -> None:
    assert parsed(reasoning=level).reasoning.enabled is enabled


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"ai-language-model-specification-version": "2"}, "unsupported_specification_version"),
        ({"ai-language-model-specification-version": None}, "unsupported_specification_version"),
        ({"ai-gateway-protocol-version": "0.0.2"}, "unsupported_protocol_version"),
        ({"ai-language-model-id": "openai/gpt-9"}, "model_not_found"),
        ({"ai-language-model-id": "slotstream/other"}, "model_not_found"),
    ],
)
def test_headers_are_checked(changes: dict[str, str | None], code: str) -> None:
    headers = {name: value for name, value in {**HEADERS, **changes}.items() if value is not None}
    assert code_of(refused(headers)) == code


@pytest.mark.parametrize(
    "model_id",
    ["slotstream/tiny:4bit", "tiny", "moonshotai/kimi-k3", "openai/gpt-5.6-luna", "google/gemini-2.5-flash", None],
)
def test_the_model_is_known_by_its_names_and_aliases(model_id: str | None) -> None:
    headers = {key: value for key, value in HEADERS.items() if key != "ai-language-model-id"}
    if model_id is not None:
        headers["ai-language-model-id"] = model_id
    assert understood({}, headers).generation is not None


@pytest.mark.parametrize("version", ["3", "4"])
def test_both_specifications_are_spoken_and_the_protocol_version_may_be_missing(version: str) -> None:
    headers = {"ai-language-model-specification-version": version}
    assert understood({}, headers).stream
    assert not understood({}, {**headers, "ai-language-model-streaming": "false"}).stream


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"logitBias": {}}, "unsupported_field"),
        ({"responseFormat": {"type": "json"}}, "response_format_unsupported"),
        ({"frequencyPenalty": 0.5}, "frequency_penalty_unsupported"),
        ({"tools": [{"type": "function"}]}, "invalid_tool"),
        ({"tools": [{"type": "custom", "name": "x"}]}, "invalid_tool"),
        ({"tools": [WEATHER, WEATHER]}, "invalid_tool"),
        ({"tools": ["weather"]}, "invalid_tool"),
        ({"toolChoice": {"type": "required"}}, "invalid_tool_choice"),
        ({"toolChoice": {"type": "tool"}}, "invalid_tool_choice"),
        ({"toolChoice": {"type": "tool", "toolName": "x"}}, "invalid_tool_choice"),
        ({"toolChoice": {"type": "any"}}, "invalid_tool_choice"),
        ({"maxOutputTokens": 0}, "invalid_request"),
        ({"reasoning": "colossal"}, "invalid_request"),
        ({"prompt": None}, "invalid_prompt"),
        ({"prompt": []}, "empty_prompt"),
        ({"prompt": ["hi"]}, "invalid_prompt"),
        ({"prompt": prompt(("critic", "hi"))}, "unsupported_role"),
        ({"prompt": [HELLO, *prompt(("system", "late"))]}, "system_after_conversation"),
        ({"prompt": [HELLO, *prompt(("assistant", [{"type": "text", "text": "x"}]))]}, "assistant_prefill_unsupported"),
        ({"prompt": prompt(("user", [{"type": "poem"}]))}, "unsupported_part"),
        ({"prompt": [HELLO, *prompt(("assistant", [{"type": "file"}]))]}, "unsupported_part"),
        ({"prompt": [HELLO, *prompt(("assistant", [{**call("a"), "providerExecuted": True}]))]}, "unsupported_part"),
        ({"prompt": [HELLO, *prompt(("tool", [{"type": "tool-approval-response"}]))]}, "unsupported_part"),
    ],
)
def test_what_is_refused_has_its_code(fields: dict[str, Any], code: str) -> None:
    assert code_of(refused(**fields)) == code


@pytest.mark.parametrize(
    ("part", "code"),
    [
        ({"mediaType": "application/pdf", "data": "AA=="}, "unsupported_file_part"),
        ({"data": "AA=="}, "unsupported_file_part"),
        ({"mediaType": "image/png", "data": "AA=="}, "unsupported_file_part"),
        ({"mediaType": "image/png", "data": {"type": "data", "data": "AA=="}}, "unsupported_file_part"),
        ({"mediaType": "image/png", "data": "data:image/png;base64,AA=="}, "unsupported_file_part"),
        ({"mediaType": "image/*", "data": "https://x.org/a.png"}, "invalid_image"),
        ({"mediaType": "image/png", "data": {"type": "url", "url": "https://x.org/a.png"}}, "invalid_image"),
    ],
)
def test_files_are_refused_by_kind(part: dict[str, Any], code: str) -> None:
    assert code_of(refused(prompt=prompt(("user", [{"type": "file", **part}])))) == code


def test_tools_of_hosted_providers_are_left_out_and_cannot_be_chosen() -> None:
    hosted = {"type": "provider", "id": "gateway.search", "name": "web_search", "args": {}}
    older = {"type": "provider-defined", "id": "x.y", "name": "y", "args": {}}
    assert [tool.name for tool in parsed(tools=[hosted, WEATHER, older]).tools] == ["weather"]
    failure = refused(tools=[hosted], toolChoice={"type": "tool", "toolName": "web_search"})
    assert code_of(failure) == "invalid_tool_choice"
    assert "hosted provider" in failure.message


def test_a_conversation_with_every_kind_of_output() -> None:
    outputs = [
        {"type": "text", "value": "plain"},
        {"type": "error-text", "value": "broken"},
        {"type": "json", "value": {"b": None, "a": [1, 2]}},
        {"type": "error-json", "value": None},
        {"type": "execution-denied", "reason": "no"},
        {"type": "content", "value": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]
    ids = [str(index) for index in range(len(outputs))]
    messages = prompt(
        ("system", "Be brief."),
        ("system", "No jokes."),
        ("user", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]),
        (
            "assistant",
            [
                {"type": "reasoning", "text": "Hm."},
                {"type": "text", "text": "One "},
                {"type": "text", "text": "two"},
                *[call(call_id, given='{"x":null}' if call_id == "0" else {"x": 1}) for call_id in ids],
            ],
        ),
        ("tool", [result(call_id, output) for call_id, output in list(zip(ids, outputs, strict=True))[::-1]]),
    )
    found = parsed(prompt=messages).messages
    assert found[:3] == (
        ChatMessage(role="system", content="Be brief.\n\nNo jokes."),
        ChatMessage(role="user", content="a\nb"),
        ChatMessage(
            role="assistant",
            content="One two",
            reasoning="Hm.",
            tool_calls=(
                ToolCall(name="weather", arguments={"x": None}),
                *[ToolCall(name="weather", arguments={"x": 1})] * 5,
            ),
        ),
    )
    results = [turn.content for turn in found[3:]]
    assert results == ["plain", "broken", '{"a":[1,2],"b":null}', "null", "Denied: no", "a\nb"]


def test_results_may_be_spread_over_messages_and_ids_may_come_again() -> None:
    first = prompt(
        ("assistant", [call("a"), call("b")]), ("tool", [result("b", fine("2"))]), ("tool", [result("a", fine("1"))])
    )
    later = prompt(("assistant", [call("a")]), ("tool", [result("a", fine("3"))]))
    found = parsed(prompt=[HELLO, *first, *later]).messages
    assert [turn.content for turn in found if turn.role == "tool"] == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        (prompt(("assistant", [call("a")]), ("user", [])), "a"),
        (prompt(("assistant", [call("a"), call("a")])), "repeats"),
        (prompt(("assistant", [call("a")]), ("tool", [result("b", fine())])), "b"),
        (prompt(("assistant", [call("a")]), ("tool", [result("a", fine()), result("a", fine())])), "second result"),
        (prompt(("assistant", [call("a")]), ("tool", [result("a", fine(), name="search")])), "search"),
        (prompt(("assistant", [call("a", given="[1]")])), "input"),
        (prompt(("assistant", [call("a")]), ("tool", [{"type": "tool-result", "toolCallId": "a"}])), "output"),
        (prompt(("tool", [result("a", fine())])), "no call waits"),
    ],
)
def test_results_that_do_not_match_are_refused(messages: list[Any], words: str) -> None:
    failure = refused(prompt=[HELLO, *messages])
    assert code_of(failure) == "invalid_prompt"
    assert words in failure.message


@pytest.mark.parametrize(
    ("output", "code"),
    [
        ({"type": "audio"}, "unsupported_tool_output"),
        ({"type": "content", "value": [{"type": "custom"}]}, "unsupported_tool_output"),
        (
            {"type": "content", "value": [{"type": "image-data", "mediaType": "image/png", "data": "AA=="}]},
            "unsupported_tool_output",
        ),
        ({"type": "text", "value": 3}, "invalid_prompt"),
        ({"type": "content", "value": "x"}, "invalid_prompt"),
    ],
)
def test_outputs_that_cannot_be_read_are_refused(output: dict[str, Any], code: str) -> None:
    messages = [HELLO, *prompt(("assistant", [call("a")]), ("tool", [result("a", output)]))]
    assert code_of(refused(prompt=messages)) == code


def test_a_null_in_a_schema_an_argument_or_an_output_stays_a_null() -> None:
    schema = {
        "type": "object",
        "properties": {"cwd": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}},
    }
    messages = [
        HELLO,
        *prompt(
            ("assistant", [call("a", given={"cwd": None})]),
            ("tool", [result("a", {"type": "json", "value": {"code": None}})]),
        ),
    ]
    request = parsed(prompt=messages, tools=[{**WEATHER, "inputSchema": schema}])
    assert request.tools[0].parameters["properties"]["cwd"]["default"] is None
    assert request.messages[1].tool_calls[0].arguments == {"cwd": None}
    assert request.messages[2].content == '{"code":null}'


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KINDS = st.sampled_from(["text", "file", "reasoning", "tool-call", "tool-result"])
KEYS = st.sampled_from(["text", "data", "mediaType", "toolCallId", "toolName", "input", "output"])
PARTS = st.lists(st.builds(lambda kind, rest: {**rest, "type": kind}, KINDS, st.dictionaries(KEYS, JSON)), max_size=3)


@settings(max_examples=150)
@given(
    st.dictionaries(st.sampled_from([field.name for field in REQUEST.fields]), JSON, max_size=4),
    st.lists(st.tuples(st.sampled_from(["system", "user", "assistant", "tool"]), JSON | PARTS), max_size=4),
)
def test_any_body_is_understood_or_refused(body: dict[str, Any], messages: list[tuple[str, Any]]) -> None:
    for tried in (body, {"prompt": prompt(*messages)}):
        assert status_of(AIGateway(), tried, headers=HEADERS) in (200, 400)
