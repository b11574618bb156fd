"""Tool declarations, histories, levels, ids and JSON text that the dialects share."""

import itertools
import json
from typing import Any

import pytest

from slotstream_core.text.messages import ChatMessage, ToolCall
from slotstream_serve.conversation import Reasoning, ToolChoice, ToolSpec
from slotstream_serve.dialects.fields import Field, FieldReader, FieldTable
from slotstream_serve.dialects.requests import check_model, profile_for, sampling_overrides, stop_texts
from slotstream_serve.dialects.tool_history import GivenResult, MadeCall, ToolHistory
from slotstream_serve.dialects.tools import (
    arguments_object,
    checked_choice,
    derived_hex,
    distinct_tools,
    json_text,
    reasoning_of,
    tool_spec,
)
from slotstream_serve.errors import Refused
from tests.serve.conftest import model_facts


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        (r'{"a\ud800": ["\udfffx", "\ud83d\ude00"]}', {"a\ufffd": ["\ufffdx", "\U0001f600"]}),
        (r'{"a": "\\ud800"}', {"a": r"\ud800"}),
    ],
)
def test_half_a_pair_in_the_arguments_of_a_history_becomes_a_replacement_character(
    text: str, arguments: dict[str, Any]
) -> None:
    assert arguments_object(text, path="here") == arguments


def call(name: str, id: str | None = None) -> MadeCall:
    return MadeCall(call=ToolCall(name=name, arguments={}), id=id, path=f"at.{id or name}")


def result(text: str, id: str | None = None, name: str | None = None) -> GivenResult:
    return GivenResult(text=text, id=id, name=name, path="here")


def asked(*calls: MadeCall) -> ToolHistory:
    history = ToolHistory()
    history.add(ChatMessage(role="user", content="go"), path="messages.0")
    history.add_assistant("", path="messages.1", calls=calls)
    return history


def results_of(history: ToolHistory) -> list[str]:
    return [message.content for message in history.finish() if message.role == "tool"]


@pytest.mark.parametrize("order", list(itertools.permutations("abc")))
def test_results_come_out_in_call_order_however_they_came_in(order: tuple[str, ...]) -> None:
    history = asked(*(call("f", id) for id in "abc"))
    for id in order:
        history.add_result(result(f"result {id}", id))
    assert results_of(history) == ["result a", "result b", "result c"]


def test_results_without_ids_go_by_name_and_then_by_order() -> None:
    history = asked(call("f"), call("g"), call("f"))
    for text, name in (("g", "g"), ("f1", "f"), ("f2", None)):
        history.add_result(result(text, name=name))
    assert results_of(history) == ["f1", "g", "f2"]


def test_a_result_with_an_id_may_answer_a_call_whose_id_was_lost() -> None:
    history = asked(call("f"), call("g"))
    history.add_result(result("g", "call_9", "g"))
    history.add_result(result("f", "call_8"))
    assert results_of(history) == ["f", "g"]


def test_an_id_may_come_again_in_a_later_turn() -> None:
    history = asked(call("f", "same"))
    history.add_result(result("1", "same"))
    history.add_assistant("", path="messages.3", calls=[call("f", "same")])
    history.add_result(result("2", "same"))
    assert results_of(history) == ["1", "2"]
    assert [message.role for message in history.finish()] == ["user", "assistant", "tool", "assistant", "tool"]


def test_an_id_may_not_come_twice_in_one_turn() -> None:
    with pytest.raises(Refused, match="repeats the call id a"):
        asked(call("f", "a"), call("g", "a"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (result("x", "z"), "here answers the call id z, which is not open; waiting for a result: a, b"),
        (result("x", "a", "g"), "here is a result of g, but the call a is of f"),
        (result("x", name="h"), "here answers a call of h, which is not open"),
    ],
)
def test_a_result_that_fits_no_call_is_refused(given: GivenResult, message: str) -> None:
    history = asked(call("f", "a"), call("g", "b"))
    with pytest.raises(Refused) as caught:
        history.add_result(given)
    assert message in str(caught.value)


def test_a_second_result_is_refused() -> None:
    history = asked(call("f", "a"), call("g", "b"))
    history.add_result(result("1", "a"))
    with pytest.raises(Refused, match="second result for the call a"):
        history.add_result(result("2", "a"))


def test_a_result_without_any_call_is_refused() -> None:
    with pytest.raises(Refused, match="no call waits for a result"):
        ToolHistory().add_result(result("x", "a"))


def test_the_conversation_may_not_go_on_before_every_result_and_only_missing_ones_are_named() -> None:
    history = asked(call("f", "a"), call("g", "b"))
    history.add_result(result("1", "a"))
    assert [missing.id for missing in history.unanswered] == ["b"]
    for go_on in (
        lambda: history.add(ChatMessage(role="user", content="?"), path="messages.3"),
        lambda: history.add_assistant("", path="messages.3"),
        history.finish,
    ):
        with pytest.raises(Refused, match=r"before the result of: b;"):
            go_on()


def test_the_last_role_counts_open_calls() -> None:
    assert ToolHistory().last_role is None
    history = asked(call("f", "a"))
    assert history.last_role == "assistant"
    history.add_result(result("1", "a"))
    assert history.last_role == "tool"


def test_a_tool_declares_its_schema_or_none() -> None:
    assert tool_spec("f", None, None, path="t").parameters == {"type": "object", "properties": {}}
    declared = tool_spec("ns.f-1", "does", {"type": "object", "x": {"default": None}}, path="t")
    assert declared == ToolSpec(
        name="ns.f-1", description="does", parameters={"type": "object", "x": {"default": None}}
    )


@pytest.mark.parametrize(
    ("name", "description", "parameters", "path"),
    [
        (1, None, None, "t.name"),
        ("", None, None, "t.name"),
        ("a b", None, None, "t.name"),
        ("a>b", None, None, "t.name"),
        ("x" * 129, None, None, "t.name"),
        ("f", 1, None, "t.description"),
        ("f", "", [], "t.parameters"),
    ],
)
def test_a_tool_that_could_not_be_called_is_refused(name: Any, description: Any, parameters: Any, path: str) -> None:
    with pytest.raises(Refused) as caught:
        tool_spec(name, description, parameters, path="t")
    assert caught.value.failure.param == path


def test_two_tools_of_one_name_are_refused() -> None:
    tool = ToolSpec(name="f", description="", parameters={})
    with pytest.raises(Refused, match="tools declares f twice"):
        distinct_tools([tool, tool], path="tools")


def test_a_choice_must_be_possible() -> None:
    tool = ToolSpec(name="f", description="", parameters={})
    assert checked_choice(ToolChoice(mode="named", name="f"), [tool], path="c").name == "f"
    with pytest.raises(Refused, match="c names g"):
        checked_choice(ToolChoice(mode="named", name="g"), [tool], path="c")
    with pytest.raises(Refused, match="no tools are declared"):
        checked_choice(ToolChoice(mode="required"), [], path="c")


def test_arguments_in_history_are_json_objects_and_null_survives() -> None:
    assert arguments_object('{"a": null, "b": [1]}', path="p") == {"a": None, "b": [1]}
    assert arguments_object(" ", path="p") == {}
    for text in ("{", "[]", '"x"', '{"a": NaN}', "[" * 100_000):
        with pytest.raises(Refused, match=r"^p "):
            arguments_object(text, path="p")
    for text in ('{"a": 1e999}', '{"a": [{"b": -1e999}]}'):
        with pytest.raises(Refused, match=r"^p is not valid JSON: -?1e999 is too large a number; the largest is "):
            arguments_object(text, path="p")
    assert arguments_object('{"a": 1.7e308}', path="p") == {"a": 1.7e308}


@pytest.mark.parametrize(
    ("level", "reasoning"),
    [
        ("none", Reasoning(enabled=False)),
        ("minimal", Reasoning(enabled=False)),
        ("off", Reasoning(enabled=False)),
        ("low", Reasoning(enabled=True, effort="low")),
        ("medium", Reasoning(enabled=True, effort="medium")),
        ("high", Reasoning(enabled=True, effort="xhigh")),
        ("xhigh", Reasoning(enabled=True, effort="xhigh")),
        ("max", Reasoning(enabled=True, effort="xhigh")),
    ],
)
def test_levels_of_clients_are_levels_of_the_template(level: str, reasoning: Reasoning) -> None:
    assert reasoning_of(level, path="p") == reasoning


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(Refused, match="p is 'deep'; use one of none, minimal"):
        reasoning_of("deep", path="p")


def test_ids_of_one_request_differ_from_each_other_and_repeat_for_the_same_request() -> None:
    ids = {derived_hex("ab" * 16, f"call {index}") for index in range(100)}
    assert len(ids) == 100
    assert {len(id) for id in ids} == {32}
    assert derived_hex("x", "call 1", 8) == derived_hex("x", "call 1")[:8]


def test_json_text_is_one_line_for_every_client() -> None:
    value = {"t": "a\u2028b\u2029c\x85d\ne\x1cf é \U0001f600", "n": None}
    text = json_text(value)
    assert json.loads(text) == value
    assert len(text.splitlines()) == 1
    assert "é" in text
    assert json_text({"b": 1, "a": 2}, sort_keys=True) == '{"a":2,"b":1}'


def test_stop_texts_are_one_or_several() -> None:
    assert stop_texts(None, path="stop") == ()
    assert stop_texts("a", path="stop") == ("a",)
    assert stop_texts(["a", "", "b"], path="stop") == ("a", "b")
    for wrong in (1, ["a", 2], {"a": 1}, ["x"] * 65):
        with pytest.raises(Refused, match="^stop"):
            stop_texts(wrong, path="stop")


def test_another_models_name_is_refused() -> None:
    check_model("tiny", model_facts())
    with pytest.raises(Refused, match="'gpt-4' is not served here; the model is 'tiny:4bit'") as caught:
        check_model("gpt-4", model_facts(), status=404)
    assert caught.value.failure.http_status == 404


def test_sampling_values_are_passed_on_and_seeds_are_64_bits() -> None:
    names = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "seed")
    table = FieldTable(
        title="", fields=tuple(Field(name=name, use="used", note="", kinds=("number",)) for name in names)
    )
    empty = sampling_overrides(FieldReader({}, table))
    assert all(getattr(empty, name) is None for name in names)
    own = sampling_overrides(FieldReader({"temperature": 0, "top_k": -4, "seed": -1}, table))
    assert (own.temperature, own.top_k, own.seed) == (0.0, 0, 2**64 - 1)


def test_tools_decide_the_sampling_profile_before_thinking_does() -> None:
    tool = ToolSpec(name="f", description="", parameters={})
    assert profile_for([tool], Reasoning(enabled=True)) == "agent"
    assert profile_for([], Reasoning(enabled=True)) == "thinking"
    assert profile_for([], Reasoning()) == "ordinary"
