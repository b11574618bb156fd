"""What Ollama's bodies mean, and which are refused."""

from typing import Any

import pytest

from slotstream_core.text.messages import ChatMessage, ToolCall
from slotstream_serve.conversation import GenerationRequest, Reasoning, ToolSpec
from slotstream_serve.dialects.base import ParsedRequest
from slotstream_serve.dialects.ollama.dialect import Ollama
from slotstream_serve.dialects.ollama.fields import CHAT, GENERATE, OPTIONS
from slotstream_serve.errors import Failure, Refused
from tests.serve.replies import context

USER = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS: dict[str, Any] = {
    "tools": [{"type": "function", "function": {"name": "weather", "description": "Tells.", "parameters": SCHEMA}}]
}
BODIES: dict[str, dict[str, Any]] = {"/api/chat": {"messages": [USER]}, "/api/generate": {"prompt": "hi"}}
PATHS = list(BODIES)


def parse(path: str = "/api/chat", **fields: Any) -> ParsedRequest:
    return Ollama(version="1").parse({"model": "tiny", **BODIES[path], **fields}, context(path))


def generation(path: str = "/api/chat", **fields: Any) -> GenerationRequest:
    request = parse(path, **fields).generation
    assert request is not None
    return request


def refusal(path: str = "/api/chat", **fields: Any) -> Failure:
    with pytest.raises(Refused) as caught:
        parse(path, **fields)
    return caught.value.failure


@pytest.mark.parametrize("path", PATHS)
def test_a_plain_question_uses_every_default_and_streams(path: str) -> None:
    parsed = parse(path)
    expected = GenerationRequest(messages=(ChatMessage(role="user", content="hi"),), default_output_tokens=512)
    assert parsed.generation == expected
    assert parsed.stream is True
    assert parse(path, stream=False).stream is False


@pytest.mark.parametrize("path", PATHS)
def test_null_is_unset_for_every_field(path: str) -> None:
    table = CHAT if path == "/api/chat" else GENERATE
    optional = {field.name: None for field in table.fields if field.name not in ("model", "messages", "prompt")}
    assert generation(path, **optional) == generation(path)
    empty_options = {field.name: None for field in OPTIONS.fields}
    assert generation(path, options=empty_options) == generation(path)


@pytest.mark.parametrize("path", PATHS)
def test_options_are_passed_on(path: str) -> None:
    request = generation(
        path,
        options={
            "temperature": 0.2,
            "top_p": 0.5,
            "top_k": 3,
            "min_p": 0.1,
            "presence_penalty": 0.5,
            "num_predict": 9,
            "seed": 7,
            "stop": ["x"],
            "num_ctx": 100,
            "repeat_penalty": 1.0,
            "frequency_penalty": 0,
        },
    )
    own = request.sampling
    assert (own.temperature, own.top_p, own.top_k, own.min_p, own.presence_penalty) == (0.2, 0.5, 3, 0.1, 0.5)
    assert (own.seed, request.max_output_tokens, request.stop, request.window_limit) == (7, 9, ("x",), 100)
    assert generation(path, options={"num_predict": -1}).max_output_tokens == -1
    assert generation(path, options={"num_predict": 0}).max_output_tokens == 0


@pytest.mark.parametrize("path", PATHS)
def test_thinking_is_off_unless_asked_for(path: str) -> None:
    assert generation(path).reasoning == Reasoning()
    thinking = generation(path, think=True)
    assert (thinking.reasoning, thinking.profile) == (Reasoning(enabled=True), "thinking")
    assert generation(path, think=False).profile == "ordinary"


@pytest.mark.parametrize("path", PATHS)
def test_a_client_may_ask_whether_the_model_is_loaded(path: str) -> None:
    empty: dict[str, Any] = {"messages": []} if path == "/api/chat" else {"prompt": "", "suffix": "", "template": ""}
    parsed = parse(path, **empty, keep_alive="5m", options=None)
    assert parsed.generation is None
    assert parsed.immediate is not None
    assert (parsed.immediate["done"], parsed.immediate["done_reason"]) == (True, "load")
    said = parsed.immediate["message"]["content"] if path == "/api/chat" else parsed.immediate["response"]
    assert said == ""
    assert "unknown field" in refusal(path, **empty, nonsense=1).message


def test_a_prompt_has_its_system_text_before_it() -> None:
    assert generation("/api/generate", system="be brief").messages == (
        ChatMessage(role="system", content="be brief"),
        ChatMessage(role="user", content="hi"),
    )
    assert generation("/api/generate", system="").messages == generation("/api/generate").messages


def test_a_raw_prompt_goes_without_the_template() -> None:
    request = generation("/api/generate", raw=True)
    assert (request.raw_prompt, request.messages) == ("hi", ())
    assert generation("/api/generate", raw=False).raw_prompt is None


def test_the_command_line_clients_own_requests_are_accepted() -> None:
    chat: dict[str, Any] = {
        "messages": [{**USER, "images": None}],
        "format": None,
        "keep_alive": None,
        "options": {},
        "tools": None,
    }
    assert generation(**chat) == generation()
    once: dict[str, Any] = {
        "suffix": "",
        "template": "",
        "system": "",
        "images": [],
        "keep_alive": 300,
        "options": {},
        "raw": False,
    }
    assert generation("/api/generate", **once) == generation("/api/generate")


def test_instructions_come_first_and_are_joined() -> None:
    messages = [{"role": "system", "content": "one"}, {"role": "system", "content": "two"}, USER]
    assert generation(messages=messages).messages[0] == ChatMessage(role="system", content="one\n\ntwo")


def test_content_may_be_text_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert generation(messages=[{"role": "user", "content": parts}]).messages[0].content == "a\nb"


def call(name: str, arguments: Any, **more: Any) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": arguments}, **more}


def result(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "tool", "content": text, **more}


def results_of(*messages: dict[str, Any]) -> list[str]:
    turns = generation(messages=[USER, *messages], **TOOLS).messages
    return [turn.content for turn in turns if turn.role == "tool"]


def test_tools_are_declared_and_a_replayed_turn_is_taken_back() -> None:
    turn = {
        "role": "assistant",
        "content": "",
        "thinking": "hm",
        "tool_calls": [call("weather", {"city": "Bern", "days": None}), call("weather", '{"city": "Basel"}')],
    }
    request = generation(messages=[USER, turn, result("1", tool_name="weather"), result("2")], **TOOLS)
    assert request.tools == (ToolSpec(name="weather", description="Tells.", parameters=SCHEMA),)
    assert request.profile == "agent"
    assert request.messages[1] == ChatMessage(
        role="assistant",
        content="",
        reasoning="hm",
        tool_calls=(
            ToolCall(name="weather", arguments={"city": "Bern", "days": None}),
            ToolCall(name="weather", arguments={"city": "Basel"}),
        ),
    )
    assert [turn.content for turn in request.messages[2:]] == ["1", "2"]


def test_results_are_paired_by_id_by_name_or_by_order() -> None:
    by_id = {"role": "assistant", "tool_calls": [call("f", {}, id="a", type="function"), call("g", {}, id="b")]}
    assert results_of(by_id, result("g", tool_call_id="b"), result("f", tool_call_id="a")) == ["f", "g"]
    by_name = {"role": "assistant", "content": None, "tool_calls": [call("f", {}), call("g", {})]}
    assert results_of(by_name, result("g", tool_name="g"), result("f", name="f")) == ["f", "g"]
    assert results_of(by_name, result("f"), result("g")) == ["f", "g"]


def test_a_tool_may_leave_out_its_type() -> None:
    assert generation(tools=[{"function": {"name": "now"}}]).tools[0].name == "now"


@pytest.mark.parametrize(
    ("path", "accepted"),
    [
        ("/api/chat", {"keep_alive": -1, "logprobs": False, "top_logprobs": 0, "format": ""}),
        (
            "/api/generate",
            {
                "keep_alive": "1h",
                "suffix": "",
                "template": "",
                "images": [],
                "logprobs": False,
                "top_logprobs": 0,
                "format": "",
            },
        ),
    ],
)
def test_every_field_said_to_have_no_effect_has_none(path: str, accepted: dict[str, Any]) -> None:
    table = CHAT if path == "/api/chat" else GENERATE
    assert set(accepted) == {field.name for field in table.fields if field.use == "accepted"}
    assert generation(path, **accepted) == generation(path)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (path, field.name)
        for path, table in zip(PATHS, (CHAT, GENERATE), strict=True)
        for field in table.fields
        if field.use == "refused"
    ],
)
def test_every_field_said_to_be_refused_is_refused(path: str, name: str) -> None:
    for value in ("json", {"type": "object"}, [1], True):
        assert refusal(path, **{name: value}).param == name


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": "llama3"}, "model"),
        ({"model": None}, "model"),
        ({"model": 1}, "model"),
        ({"stream": "yes"}, "stream"),
        ({"stream": 0}, "stream"),
        ({"think": "high"}, "think"),
        ({"think": 1}, "think"),
        ({"keep_alive": True}, "keep_alive"),
        ({"keep_alive": {}}, "keep_alive"),
        ({"options": []}, "options"),
        ({"options": {"temperature": "1"}}, "options.temperature"),
        ({"options": {"seed": True}}, "options.seed"),
        ({"options": {"num_predict": 1.5}}, "options.num_predict"),
        ({"options": {"stop": [1]}}, "options.stop.0"),
        ({"options": {"num_ctx": 4097}}, "options.num_ctx"),
        ({"options": {"num_ctx": 0}}, "options.num_ctx"),
        ({"options": {"repeat_penalty": 1.1}}, "options.repeat_penalty"),
        ({"options": {"frequency_penalty": 1}}, "options.frequency_penalty"),
        ({"options": {"mirostat": 1}}, "options.mirostat"),
        ({"format": "json"}, "format"),
        ({"format": {"type": "object"}}, "format"),
        ({"logprobs": True}, "logprobs"),
        ({"temperature": 1}, "temperature"),
    ],
)
def test_a_wrong_field_is_refused_with_its_path(path: str, fields: dict[str, Any], param: str) -> None:
    failure = refusal(path, **fields)
    assert failure.param == param
    assert failure.http_status == 400


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"prompt": 1}, "prompt", "must be text"),
        ({"suffix": "x"}, "suffix", "may only be"),
        ({"template": "x"}, "template", "may only be"),
        ({"raw": True, "system": "x"}, "system", "combined"),
        ({"raw": True, "think": True}, "think", "combined"),
        ({"raw": 1}, "raw", "true or false"),
        ({"tools": []}, "tools", "use /api/chat or /v1/chat/completions"),
        ({"images": ["AAAA"]}, "images.0", "reads text only"),
        ({"images": "AAAA"}, "images", "an array"),
        ({"context": [1, 2]}, "context", "/api/chat"),
    ],
)
def test_what_generate_cannot_do_is_refused(fields: dict[str, Any], param: str, words: str) -> None:
    failure = refusal("/api/generate", **fields)
    assert failure.param == param
    assert words in failure.message


ASKED = {"role": "assistant", "content": "", "tool_calls": [call("f", {}), call("g", {})]}


@pytest.mark.parametrize(
    ("messages", "param", "words"),
    [
        (["hi"], "messages.0", "must be an object"),
        ([{"content": "x"}], "messages.0.role", "required"),
        ([{"role": "developer", "content": "x"}], "messages.0.role", "use one of system, user, assistant, tool"),
        ([{"role": "user"}], "messages.0.content", "required"),
        ([{"role": "user", "content": "x", "tool_calls": []}], "messages.0.tool_calls", "unknown field"),
        ([{"role": "user", "content": "x", "images": ["AAAA"]}], "messages.0.images.0", "reads text only"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages.0.content.0", "reads text only"),
        ([{"role": "user", "content": [{"type": "audio"}]}], "messages.0.content.0.type", "use text"),
        ([{"role": "user", "content": [{"text": "x"}]}], "messages.0.content.0.type", "required"),
        ([USER, {"role": "system", "content": "late"}], "messages.1", "put it first"),
        ([USER, {"role": "assistant", "content": "so"}], "messages.1", "end with a user message"),
        ([USER, {"role": "assistant"}, USER], "messages.1.content", "required"),
        ([USER, ASKED, USER], "messages.1.tool_calls.0", "before the result of: f, g"),
        ([USER, ASKED, result("1", tool_name="h")], "messages.2", "not open"),
        ([USER, result("1")], "messages.1", "no call waits"),
        ([USER, {**ASKED, "tool_calls": [{}]}], "messages.1.tool_calls.0.function", "required"),
        ([USER, {**ASKED, "tool_calls": [call("f", [])]}], "messages.1.tool_calls.0.function.arguments", "an object"),
        ([USER, {**ASKED, "tool_calls": [call("f", "{")]}], "messages.1.tool_calls.0.function.arguments", "not valid"),
    ],
)
def test_a_wrong_message_is_refused_with_its_path(messages: list[Any], param: str, words: str) -> None:
    failure = refusal(messages=messages)
    assert failure.param == param
    assert words in failure.message


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ({}, "tools"),
        (["x"], "tools.0"),
        ([{"type": "web", "function": {"name": "f"}}], "tools.0.type"),
        ([{"type": "function"}], "tools.0.function"),
        ([{"type": "function", "function": {"name": ""}}], "tools.0.function.name"),
        ([{"type": "function", "function": {"name": "f", "strict": True}}], "tools.0.function.strict"),
        ([*TOOLS["tools"], *TOOLS["tools"]], "tools"),
    ],
)
def test_a_wrong_tool_is_refused_with_its_path(tools: Any, param: str) -> None:
    assert refusal(tools=tools).param == param
