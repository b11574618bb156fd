"""What a Messages request means, and what it may not ask for."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotstream_core.text.messages import ChatMessage, ToolCall
from slotstream_serve.conversation import GenerationRequest, Reasoning, ToolChoice
from slotstream_serve.dialects.anthropic_messages import AnthropicMessages
from slotstream_serve.dialects.anthropic_messages.fields import REQUEST
from slotstream_serve.dialects.anthropic_messages.signing import PREFIX, restored_thinking, sign_thinking
from slotstream_serve.errors import Refused
from tests.serve.replies import context, status_of

HELLO = [{"role": "user", "content": "hi"}]
WEATHER = {"name": "weather", "description": "Says it.", "input_schema": {"type": "object"}}
WEB_SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}


def parsed(**fields: Any) -> GenerationRequest:
    body = {"model": "tiny", "max_tokens": 64, "messages": HELLO, **fields}
    generation = AnthropicMessages().parse(body, context()).generation
    assert generation is not None
    return generation


def refused(**fields: Any) -> str:
    with pytest.raises(Refused) as caught:
        parsed(**fields)
    assert caught.value.failure.http_status == 400
    return caught.value.failure.message


def use(tool_id: str, name: str = "weather", **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": tool_id, "name": name, "input": arguments}


def result(tool_id: str, content: Any = "fine", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": tool_id, "content": content, **fields}


def turns(*messages: tuple[str, Any], **fields: Any) -> tuple[ChatMessage, ...]:
    return parsed(messages=[{"role": role, "content": content} for role, content in messages], **fields).messages


def test_a_plain_message_is_one_user_turn() -> None:
    request = parsed(system="Be brief.", stop_sequences=["END", ""], temperature=-2, top_k=5, top_p=2)
    assert request.messages == (ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content="hi"))
    assert (request.max_output_tokens, request.stop, request.profile) == (64, ("END",), "ordinary")
    assert (request.sampling.temperature, request.sampling.top_p, request.sampling.top_k) == (0.0, 1.0, 5)
    assert request.reasoning == Reasoning()


def test_null_is_unset_everywhere() -> None:
    names = [field.name for field in REQUEST.fields if field.name not in ("model", "max_tokens", "messages")]
    assert parsed(**dict.fromkeys(names)) == parsed()


def test_unknown_top_level_fields_have_no_effect_and_are_named() -> None:
    body = {"model": "tiny", "max_tokens": 9, "messages": HELLO, "speed": "fast", "betas": [], "metadata": {}}
    assert AnthropicMessages().parse(body, context()).ignored_fields == ("betas", "speed")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("container", "c_1"),
        ("mcp_servers", [{"url": "https://x.org"}]),
        ("output_config", {"format": {"type": "json_schema"}}),
        ("output_format", {"type": "json_schema"}),
        ("max_tokens", 0),
        ("max_tokens", None),
        ("max_tokens", True),
        ("max_tokens", 1.5),
        ("stream", "yes"),
        ("messages", []),
        ("messages", None),
        ("messages", "hi"),
        ("stop_sequences", [3]),
        ("temperature", True),
        ("thinking", {"type": "sometimes"}),
        ("thinking", {"type": "enabled"}),
        ("thinking", {"type": "enabled", "budget_tokens": 0}),
        ("output_config", {"effort": "colossal"}),
        ("tool_choice", {"type": "any"}),
        ("tool_choice", {"type": "tool", "name": "x"}),
        ("tool_choice", {"type": "maybe"}),
        ("tool_choice", "auto"),
        ("system", [{"type": "image"}]),
        ("system", 3),
        ("tools", [{"name": "x"}]),
        ("tools", [{"type": "bash_20250124", "name": "bash"}]),
        ("tools", [WEATHER, WEATHER]),
    ],
)
def test_what_is_refused_says_which_field(field: str, value: Any) -> None:
    assert field in refused(**{field: value})


def test_an_empty_list_of_tool_servers_is_harmless() -> None:
    assert parsed(mcp_servers=[]) == parsed()


def test_another_model_is_not_found() -> None:
    assert status_of(AnthropicMessages(), {"model": "claude-x", "max_tokens": 1, "messages": HELLO}) == 404


@pytest.mark.parametrize(
    ("thinking", "effort", "reasoning"),
    [
        (None, "low", Reasoning()),
        ({"type": "disabled"}, "max", Reasoning()),
        ({"type": "adaptive"}, None, Reasoning(enabled=True, effort="xhigh")),
        ({"type": "adaptive"}, "medium", Reasoning(enabled=True, effort="medium")),
        ({"type": "enabled", "budget_tokens": 1}, None, Reasoning(enabled=True, effort="low")),
        ({"type": "enabled", "budget_tokens": 4095}, None, Reasoning(enabled=True, effort="low")),
        ({"type": "enabled", "budget_tokens": 4096}, None, Reasoning(enabled=True, effort="medium")),
        ({"type": "enabled", "budget_tokens": 16383}, None, Reasoning(enabled=True, effort="medium")),
        ({"type": "enabled", "budget_tokens": 16384}, None, Reasoning(enabled=True, effort="xhigh")),
        ({"type": "enabled", "budget_tokens": 99999}, "low", Reasoning(enabled=True, effort="low")),
    ],
)
def test_thinking_follows_its_type_budget_and_effort(thinking: Any, effort: str | None, reasoning: Reasoning) -> None:
    request = parsed(thinking=thinking, output_config={"effort": effort})
    assert request.reasoning == reasoning
    assert request.profile == ("thinking" if reasoning.enabled else "ordinary")


def test_the_attribution_line_is_dropped_from_the_instructions() -> None:
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=9f2;"},
        {"type": "text", "text": "You code.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "x-anthropic-billing-header: a\nBe brief."},
    ]
    assert parsed(system=system).messages[0].content == "You code.\n\nBe brief."
    assert parsed(system="x-anthropic-billing-header: a").messages == parsed().messages


def test_a_system_message_joins_the_instructions_only_before_the_conversation() -> None:
    later = [{"type": "text", "text": "It is Monday."}, {"type": "tool_addition", "tool": {}}]
    found = turns(("system", "Be kind."), ("user", "hi"), ("system", later), system="Be brief.")
    assert found == (
        ChatMessage(role="system", content="Be brief.\n\nBe kind."),
        ChatMessage(role="user", content="hi\n\nIt is Monday."),
    )


def test_blocks_of_a_user_turn_are_read_as_text() -> None:
    content = [
        {"type": "text", "text": "Compare.", "cache_control": {"type": "ephemeral"}},
        {
            "type": "document",
            "title": "Log",
            "context": "From today",
            "source": {"type": "text", "media_type": "text/plain", "data": "all well"},
        },
        {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "inline"}]}},
        {"type": "search_result", "title": "T", "source": "s.org", "content": [{"type": "text", "text": "found"}]},
    ]
    (turn,) = turns(("user", content))
    assert turn.content == "Compare.\n\nLog\nFrom today\nall well\n\ninline\n\nT\ns.org\nfound"


@pytest.mark.parametrize("source", [{"type": "base64", "data": "AA=="}, {"type": "url", "url": "u"}, {"type": "file"}])
def test_a_document_that_is_no_text_becomes_a_note(source: dict[str, Any]) -> None:
    (turn,) = turns(("user", [{"type": "document", "title": "a.pdf", "source": source}]))
    assert turn.content.startswith("a.pdf\n[")
    assert "cannot see" in turn.content


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"type": "base64", "media_type": "image/png", "data": "AA=="}, "reads text only"),
        ({"type": "base64", "media_type": "image/tiff", "data": "AA=="}, "media_type"),
        ({"type": "url", "url": "https://x.org/a.png"}, "fetches nothing"),
        ({"type": "file", "file_id": "f"}, "fetches nothing"),
    ],
)
def test_images_are_refused_by_place(source: dict[str, Any], words: str) -> None:
    message = refused(messages=[{"role": "user", "content": [{"type": "image", "source": source}]}])
    assert words in message
    assert "messages.0.content.0" in message


def test_consecutive_messages_of_one_role_are_one_turn() -> None:
    found = turns(
        ("user", "a"),
        ("user", "b"),
        ("assistant", [{"type": "text", "text": "One. "}, use("1", city="Bern")]),
        ("assistant", [use("2")]),
        ("user", [result("2", "second")]),
        ("system", "Note."),
        ("user", [result("1", "first"), {"type": "text", "text": "Go on."}]),
    )
    calls = (ToolCall(name="weather", arguments={"city": "Bern"}), ToolCall(name="weather", arguments={}))
    assert found == (
        ChatMessage(role="user", content="a\n\nb"),
        ChatMessage(role="assistant", content="One. ", tool_calls=calls),
        ChatMessage(role="tool", content="first"),
        ChatMessage(role="tool", content="second"),
        ChatMessage(role="user", content="Note.\n\nGo on."),
    )


def test_a_result_may_be_an_error_empty_or_made_of_blocks() -> None:
    blocks = [{"type": "text", "text": "a"}, {"type": "tool_reference", "tool_name": "grep"}]
    found = turns(
        ("user", "hi"),
        ("assistant", [use("1"), use("2"), use("3")]),
        ("user", [result("1", "no", is_error=True), result("2", blocks), result("3", None)]),
    )
    assert [turn.content for turn in found[2:]] == ["Error: no", "a\nTool available: grep", ""]


def test_a_missing_result_names_only_the_calls_still_open() -> None:
    message = refused(
        messages=[
            *HELLO,
            {"role": "assistant", "content": [use("toolu_a"), use("toolu_b")]},
            {"role": "user", "content": [result("toolu_a"), {"type": "text", "text": "x"}]},
        ]
    )
    assert "toolu_b" in message
    assert "toolu_a" not in message


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([("user", "hi"), ("user", [result("1")])], "messages.1.content.0"),
        ([("user", "hi"), ("assistant", [use("1")]), ("user", [result("1"), result("1")])], "second result"),
        ([("user", "hi"), ("assistant", [use("1"), use("1")]), ("user", [result("1")])], "repeats"),
        ([("user", [{"type": "video"}])], "messages.0.content.0"),
        ([("user", [{"text": "no type"}])], "messages.0.content.0.type"),
        ([("user", ["hi"])], "messages.0.content.0"),
        ([("user", None)], "messages.0.content"),
        ([("critic", "hi")], "messages.0.role"),
        ([("user", "hi"), ("assistant", [{"type": "image"}]), ("user", "x")], "messages.1.content.0"),
        ([("user", "hi"), ("assistant", [{"type": "tool_use", "id": "1", "name": "x"}])], "input"),
        ([("system", "only")], "messages"),
        ([("user", "hi"), ("assistant", "2")], "messages.1"),
    ],
)
def test_histories_that_cannot_be_read_are_refused(messages: list[tuple[str, Any]], words: str) -> None:
    assert words in refused(messages=[{"role": role, "content": content} for role, content in messages])


def test_a_tool_id_may_come_again_in_a_later_turn() -> None:
    loop = [("assistant", [use("1")]), ("user", [result("1")])]
    assert len(turns(("user", "hi"), *loop, *loop)) == 5


def test_a_signature_restores_reasoning_whose_text_was_left_out() -> None:
    block = {"type": "thinking", "thinking": "", "signature": sign_thinking("Zwölf, weil…")}
    found = turns(("user", "hi"), ("assistant", [block, {"type": "text", "text": "12"}]), ("user", "why?"))
    assert found[1] == ChatMessage(role="assistant", content="12", reasoning="Zwölf, weil…")


def test_thinking_of_other_providers_is_read_when_shown_and_left_out_when_hidden() -> None:
    shown = {"type": "thinking", "thinking": "Hm.", "signature": "EqQBCgIYAhIk"}
    hidden = [{"type": "thinking", "thinking": "", "signature": "EqQB"}, {"type": "redacted_thinking", "data": "x"}]
    assert turns(("user", "a"), ("assistant", [shown]), ("user", "b"))[1].reasoning == "Hm."
    assert turns(("user", "a"), ("assistant", hidden), ("user", "b"))[1].reasoning is None


def test_a_damaged_signature_without_text_is_refused() -> None:
    block = {"type": "thinking", "thinking": "", "signature": PREFIX + "%%%"}
    message = refused(messages=[*HELLO, {"role": "assistant", "content": [block]}, *HELLO])
    assert "messages.1.content.0.signature" in message


@given(st.text())
def test_every_reasoning_survives_its_signature(reasoning: str) -> None:
    assert restored_thinking("", sign_thinking(reasoning), path="x") == reasoning


@pytest.mark.parametrize(
    "kind",
    [
        "web_search_20250305",
        "web_fetch_20250910",
        "code_execution_20250825",
        "advisor_20260301",
        "mcp_toolset",
        "tool_search_tool_bm25_20251119",
    ],
)
def test_tools_that_run_on_anthropics_servers_are_left_out(kind: str) -> None:
    assert [tool.name for tool in parsed(tools=[{"type": kind, "name": "x"}, WEATHER]).tools] == ["weather"]


def test_a_choice_of_a_hosted_tool_is_refused() -> None:
    message = refused(tools=[WEB_SEARCH, WEATHER], tool_choice={"type": "tool", "name": "web_search"})
    assert "Anthropic's servers" in message


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, ToolChoice()),
        ({"type": "any"}, ToolChoice(mode="required")),
        ({"type": "none"}, ToolChoice(mode="none")),
        ({"type": "tool", "name": "weather"}, ToolChoice(mode="named", name="weather")),
    ],
)
def test_tool_choices_and_parallel_use(choice: dict[str, Any], expected: ToolChoice) -> None:
    tools = [{**WEATHER, "type": "custom", "strict": True}]
    request = parsed(tools=tools, tool_choice={**choice, "disable_parallel_tool_use": True})
    assert request.tool_choice == expected
    assert not request.parallel_tool_calls
    assert parsed(tools=tools, tool_choice=choice).parallel_tool_calls
    assert request.profile == "agent"


def test_a_count_needs_no_budget_and_may_end_with_the_assistant() -> None:
    messages = [*HELLO, {"role": "assistant", "content": [{"type": "text", "text": "So"}, use("1")]}]
    request = AnthropicMessages().parse_count({"model": "tiny", "messages": messages}, context()).generation
    assert request is not None
    assert [message.role for message in request.messages] == ["user", "assistant"]
    assert AnthropicMessages().count_body(12) == {"input_tokens": 12}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KINDS = st.sampled_from(["text", "thinking", "tool_use", "tool_result", "document", "search_result", "image"])
KEYS = st.sampled_from(["text", "thinking", "signature", "id", "name", "input", "tool_use_id", "content", "source"])
BLOCKS = st.lists(st.builds(lambda kind, rest: {**rest, "type": kind}, KINDS, st.dictionaries(KEYS, JSON)), max_size=3)


@settings(max_examples=150)
@given(
    st.dictionaries(st.sampled_from([field.name for field in REQUEST.fields]), JSON, max_size=4),
    st.lists(st.tuples(st.sampled_from(["user", "assistant", "system"]), JSON | BLOCKS), max_size=4),
)
def test_any_body_is_understood_or_refused(body: dict[str, Any], messages: list[tuple[str, Any]]) -> None:
    history = [{"role": role, "content": content} for role, content in messages]
    for tried in (body, {"model": "tiny", "max_tokens": 5, "messages": history}):
        assert status_of(AnthropicMessages(), tried) in (200, 400, 404)
