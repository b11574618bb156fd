"""What a Responses request means, and what it may not ask for."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotstream_core.text.messages import ChatMessage, ToolCall
from slotstream_serve.conversation import GenerationRequest, Reasoning, ToolChoice
from slotstream_serve.dialects.openai_responses import OpenAIResponses
from slotstream_serve.dialects.openai_responses.fields import REQUEST
from slotstream_serve.errors import Refused
from tests.serve.replies import context, status_of

FUNCTION = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}, "strict": False}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: line+"},
}
USER = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}


def parsed(**fields: Any) -> GenerationRequest:
    body = {"model": "tiny", "input": "hi", **fields}
    generation = OpenAIResponses().parse(body, context()).generation
    assert generation is not None
    return generation


def refused(**fields: Any) -> tuple[str | None, str, str | None]:
    with pytest.raises(Refused) as caught:
        parsed(**fields)
    failure = caught.value.failure
    assert failure.http_status == 400
    return failure.dialect_code, failure.message, failure.param


def call(call_id: str, name: str = "weather", arguments: str = "{}") -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


def output(call_id: str, text: Any = "fine") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def said(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def test_text_is_one_user_turn_after_the_instructions() -> None:
    request = parsed(instructions="Be brief.", input="What is 2+2?")
    assert request.messages == (
        ChatMessage(role="system", content="Be brief."),
        ChatMessage(role="user", content="What is 2+2?"),
    )
    assert request.profile == "ordinary"
    assert request.max_output_tokens is None


def test_system_and_developer_messages_join_the_instructions_until_the_conversation_begins() -> None:
    items = [
        {"role": "developer", "content": "Use metres."},
        {"type": "message", "role": "system", "content": [{"type": "input_text", "text": "No jokes."}]},
        USER,
        {"type": "message", "role": "developer", "content": "It is Monday."},
    ]
    assert parsed(instructions="Be brief.", input=items).messages == (
        ChatMessage(role="system", content="Be brief.\n\nUse metres.\n\nNo jokes."),
        ChatMessage(role="user", content="hi"),
        ChatMessage(role="user", content="It is Monday."),
    )


def test_null_is_unset_everywhere() -> None:
    names = [field.name for field in REQUEST.fields if field.name not in ("model", "input")]
    assert parsed(**dict.fromkeys(names)) == parsed()


def test_fields_without_effect_are_accepted() -> None:
    plain = parsed()
    assert (
        parsed(
            store=True,
            include=["reasoning.encrypted_content"],
            metadata={"a": "b"},
            prompt_cache_key="k",
            prompt_cache_retention="24h",
            safety_identifier="s",
            user="u",
            service_tier="auto",
            stream_options={"include_obfuscation": False},
            text={"verbosity": "low", "format": {"type": "text"}},
            truncation="disabled",
            background=False,
            client_metadata={"x": 1},
            access_programs=[],
        )
        == plain
    )


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("previous_response_id", "resp_1", "stored_state_unsupported"),
        ("conversation", {"id": "c"}, "stored_state_unsupported"),
        ("background", True, "unsupported_field"),
        ("prompt", {"id": "p"}, "unsupported_field"),
        ("context_management", [], "unsupported_field"),
        ("max_tool_calls", 3, "unsupported_field"),
        ("top_logprobs", 2, "unsupported_field"),
        ("truncation", "auto", "unsupported_field"),
        ("frequency_penalty", 0, "unsupported_field"),
        ("text", {"format": {"type": "json_schema", "name": "x", "schema": {}}}, "unsupported_field"),
        ("text", {"format": {"type": "json_object"}}, "unsupported_field"),
        ("max_output_tokens", 0, None),
        ("max_output_tokens", "5", None),
        ("max_output_tokens", True, None),
        ("stream", 1, None),
        ("temperature", "0.5", None),
        ("reasoning", {"effort": "colossal"}, None),
        ("tool_choice", {"type": "allowed_tools", "mode": "auto", "tools": []}, None),
        ("tool_choice", "sometimes", None),
        ("tool_choice", "required", None),
        ("input", [], None),
        ("input", 3, None),
    ],
)
def test_what_is_refused_says_which_field(field: str, value: Any, code: str | None) -> None:
    found, message, param = refused(**{field: value})
    assert found == code
    assert field in message
    assert (param or "").startswith(field)


def test_another_model_is_refused_with_400() -> None:
    with pytest.raises(Refused) as caught:
        OpenAIResponses().parse({"model": "gpt-5", "input": "hi"}, context())
    assert caught.value.failure.code == "model_not_found"
    assert caught.value.failure.http_status == 400


@pytest.mark.parametrize(
    ("effort", "reasoning"),
    [
        ("none", Reasoning()),
        ("minimal", Reasoning()),
        ("low", Reasoning(enabled=True, effort="low")),
        ("medium", Reasoning(enabled=True, effort="medium")),
        ("high", Reasoning(enabled=True, effort="xhigh")),
        ("xhigh", Reasoning(enabled=True, effort="xhigh")),
        ("max", Reasoning(enabled=True, effort="xhigh")),
        (None, Reasoning()),
    ],
)
def test_reasoning_effort_maps_to_the_template(effort: str | None, reasoning: Reasoning) -> None:
    request = parsed(reasoning={"effort": effort, "summary": "auto"})
    assert request.reasoning == reasoning
    assert request.profile == ("thinking" if reasoning.enabled else "ordinary")


def test_tools_bring_the_agent_defaults_and_explicit_values_are_brought_into_range() -> None:
    request = parsed(tools=[FUNCTION], temperature=-1, top_p=7)
    assert request.profile == "agent"
    assert (request.sampling.temperature, request.sampling.top_p) == (0.0, 1.0)


def test_a_namespace_is_flattened_with_its_description() -> None:
    member = {"type": "function", "name": "search", "description": "Finds.", "parameters": {"type": "object"}}
    tools = [{"type": "namespace", "name": "docs", "description": "The manuals.", "tools": [member]}]
    request = parsed(tools=tools, tool_choice={"type": "function", "name": "search", "namespace": "docs"})
    assert [tool.name for tool in request.tools] == ["docs.search"]
    assert request.tools[0].description == "The manuals.\n\nFinds."
    assert request.tool_choice == ToolChoice(mode="named", name="docs.search")


def test_a_freeform_tool_is_a_function_of_one_text_and_shows_its_grammar() -> None:
    request = parsed(tools=[PATCH], tool_choice={"type": "custom", "name": "apply_patch"})
    (tool,) = request.tools
    assert tool.parameters["properties"]["input"]["type"] == "string"
    assert tool.parameters["required"] == ["input"]
    assert tool.description.startswith("Edits files.")
    assert "start: line+" in tool.description
    assert request.tool_choice == ToolChoice(mode="named", name="apply_patch")


@pytest.mark.parametrize("kind", ["web_search", "web_search_preview", "web_search_2025_08_26", "file_search"])
def test_hosted_tools_are_left_out(kind: str) -> None:
    assert [tool.name for tool in parsed(tools=[{"type": kind}, FUNCTION]).tools] == ["weather"]


@pytest.mark.parametrize(
    ("tool", "code"),
    [
        ({"type": "computer_use_preview"}, "unsupported_tool"),
        ({"type": "mcp", "server_label": "x"}, "unsupported_tool"),
        ({**FUNCTION, "strict": True}, "unsupported_tool"),
        ({"type": "namespace", "name": "a", "tools": [PATCH]}, "unsupported_tool"),
        ({"type": "namespace", "name": "a.b", "tools": []}, None),
        ({"type": "function"}, None),
        ({"type": "function", "name": "two words"}, None),
        ({"name": "no type"}, None),
        ("weather", None),
    ],
)
def test_tools_that_cannot_be_offered_are_refused(tool: Any, code: str | None) -> None:
    found, message, _param = refused(tools=[tool])
    assert found == code
    assert "tools.0" in message


def test_a_tool_declared_twice_is_refused_also_through_a_namespace() -> None:
    twice = {"type": "namespace", "name": "a", "tools": [FUNCTION, FUNCTION]}
    assert "a.weather twice" in refused(tools=[twice])[1]


def test_unknown_fields_of_the_reasoning_settings_have_no_effect_and_are_named() -> None:
    body = {"model": "tiny", "input": "hi", "reasoning": {"effort": "low", "mood": "calm"}}
    assert OpenAIResponses().parse(body, context()).ignored_fields == ("reasoning.mood",)


def test_outputs_in_any_order_come_out_in_call_order() -> None:
    items = [USER, call("a", "weather", '{"city":"Bern"}'), call("b"), output("b", "second"), output("a", "first")]
    assert parsed(input=items).messages == (
        ChatMessage(role="user", content="hi"),
        ChatMessage(
            role="assistant",
            content="",
            tool_calls=(ToolCall(name="weather", arguments={"city": "Bern"}), ToolCall(name="weather", arguments={})),
        ),
        ChatMessage(role="tool", content="first"),
        ChatMessage(role="tool", content="second"),
    )


def test_a_blank_message_between_parallel_calls_is_no_turn_of_its_own() -> None:
    plain = [USER, said("Looking."), call("a"), call("b"), output("a"), output("b")]
    blank = [USER, said("Looking."), call("a"), said("\n"), call("b"), output("a"), said("\n"), output("b")]
    assert parsed(input=blank).messages == parsed(input=plain).messages


def test_reasoning_comes_back_from_the_summary() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Two."}]}
    items = [USER, {**thought, "encrypted_content": None}, said("2"), USER]
    assert parsed(input=items).messages[1] == ChatMessage(role="assistant", content="2", reasoning="Two.")


def test_a_freeform_call_and_its_output_come_back() -> None:
    items = [
        USER,
        {
            "type": "custom_tool_call",
            "call_id": "c",
            "name": "apply_patch",
            "input": "*** Begin",
            "status": "completed",
        },
        {"type": "custom_tool_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "Done"}]},
    ]
    assert parsed(input=items).messages[1:] == (
        ChatMessage(
            role="assistant",
            content="",
            tool_calls=(ToolCall(name="apply_patch", arguments={"input": "*** Begin"}),),
        ),
        ChatMessage(role="tool", content="Done"),
    )


def test_a_call_of_a_namespace_comes_back_under_the_name_the_model_knows() -> None:
    items = [USER, {**call("a", "search"), "namespace": "docs"}, output("a")]
    assert parsed(input=items).messages[1].tool_calls[0].name == "docs.search"


def test_a_call_id_may_come_again_in_a_later_turn() -> None:
    items = [USER, call("a"), output("a", "1"), call("a"), output("a", "2")]
    assert [message.content for message in parsed(input=items).messages if message.role == "tool"] == ["1", "2"]


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ([USER, call("a"), USER], "a"),
        ([USER, call("a")], "a"),
        ([USER, call("a"), call("a"), output("a")], "repeats"),
        ([USER, output("a")], "input.1"),
        ([USER, call("a"), output("a"), output("a")], "input.3"),
        ([USER, call("a", arguments="[1]"), output("a")], "arguments"),
        ([USER, call("a", arguments="{"), output("a")], "arguments"),
        ([USER, {"type": "function_call", "call_id": "a", "arguments": "{}"}], "name"),
        ([USER, call("a"), {"type": "function_call_output", "call_id": "a"}], "output"),
        ([{"role": "critic", "content": "x"}], "role"),
        ([{"role": "user"}], "content"),
        (["hi"], "input.0"),
    ],
)
def test_histories_that_cannot_be_read_are_refused(items: list[Any], words: str) -> None:
    code, message, _param = refused(input=items)
    assert code is None
    assert words in message


@pytest.mark.parametrize(
    ("item", "code"),
    [
        ({"type": "item_reference", "id": "msg_1"}, "stored_state_unsupported"),
        ({"type": "computer_call"}, "unsupported_item"),
        ({"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"}, "unsupported_item"),
        ({"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}, "unsupported_item"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "unsupported_item"),
        ({"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}, None),
        ({"role": "user", "content": [{"type": "input_image", "image_url": "https://x.org/a.png"}]}, None),
        ({"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,AA=="}]}, None),
    ],
)
def test_items_that_cannot_be_read_are_refused_by_place(item: dict[str, Any], code: str | None) -> None:
    found, message, _param = refused(input=[USER, item])
    assert found == code
    assert "input.1" in message


def test_encrypted_tool_output_is_refused() -> None:
    items = [USER, call("a"), output("a", [{"type": "encrypted_content", "encrypted_content": "x"}])]
    assert refused(input=items)[0] == "unsupported_item"


@pytest.mark.parametrize("last", [said("2"), {"type": "reasoning", "summary": []}])
def test_an_input_that_ends_with_the_assistant_is_refused(last: dict[str, Any]) -> None:
    assert refused(input=[USER, last])[0] == "assistant_prefill_unsupported"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
ITEM_KINDS = st.sampled_from(["message", "reasoning", "function_call", "function_call_output", "custom_tool_call"])
ITEM_KEYS = st.sampled_from(["role", "content", "summary", "call_id", "name", "arguments", "output", "input", "text"])


@settings(max_examples=150)
@given(
    st.dictionaries(st.sampled_from([field.name for field in REQUEST.fields]), JSON, max_size=4),
    st.lists(st.builds(lambda kind, rest: {"type": kind, **rest}, ITEM_KINDS, st.dictionaries(ITEM_KEYS, JSON))),
)
def test_any_body_is_understood_or_refused(body: dict[str, Any], items: list[Any]) -> None:
    for tried in (body, {"model": "tiny", "input": items}):
        assert status_of(OpenAIResponses(), tried) in (200, 400)
