"""The streaming scanner of the tool-call grammar, and the typing of arguments."""

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotstream_core.text.argument_types import convert_argument, declared_type
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

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "write_file",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "mode": {"type": "integer"}, "tags": {"type": "array"}},
            },
        },
    },
    {"type": "function", "function": {"name": "ns.ping", "parameters": {}}},
]
FUNCTIONS = declared_functions(TOOLS)
CALL = (
    '<tool_call>\n<function=write_file>\n<parameter=path>\na "quoted"\n<b>.txt\n</parameter>\n'
    "<parameter=mode>\n 420 \n</parameter>\n</function>\n</tool_call>"
)
CALL_ARGUMENTS = {"path": 'a "quoted"\n<b>.txt', "mode": 420}


def scan(text: str, pieces: list[str] | None = None) -> list[ScanEvent]:
    """Scan a text, in the given pieces, and merge neighbouring events of one kind."""
    scanner = ToolCallScanner(FUNCTIONS)
    events = [event for piece in pieces or [text] for event in scanner.feed(piece)] + scanner.finish()
    merged: list[ScanEvent] = []
    for event in events:
        last = merged[-1] if merged else None
        if isinstance(event, AnswerText) and isinstance(last, AnswerText):
            merged[-1] = AnswerText(text=last.text + event.text)
        elif isinstance(event, CallArguments) and isinstance(last, CallArguments) and last.index == event.index:
            merged[-1] = CallArguments(index=event.index, fragment=last.fragment + event.fragment)
        else:
            merged.append(event)
    return merged


@pytest.mark.parametrize("kind", ["object", "unknown"])
def test_half_a_pair_in_a_models_json_becomes_a_replacement_character(kind: str) -> None:
    schema = {} if kind == "unknown" else {"type": kind}
    text = r'{"a\ud800": ["\udc00x", "\ud83d\ude00", {"b": "\\ud800"}]}'
    value = convert_argument(text, schema, {})
    assert value == {"a\ufffd": ["\ufffdx", "\U0001f600", {"b": r"\ud800"}]}


def test_half_a_pair_nested_too_deeply_stays_the_text_it_is() -> None:
    text = "[" * 5000 + r'"\ud800"' + "]" * 5000
    assert convert_argument(text, {"type": "array"}, {}) == text


def cut(text: str, seed: int) -> list[str]:
    rng, pieces = random.Random(seed), []
    while text:
        size = rng.choice([1, 1, 2, 3, 5, 17])
        pieces.append(text[:size])
        text = text[size:]
    return pieces


def test_a_call_between_text_becomes_events_in_order() -> None:
    events = scan(f"Sure.\n\n{CALL}\nDone.")
    assert [type(e) for e in events] == [AnswerText, CallStarted, CallArguments, CallFinished, AnswerText]
    finished = events[3]
    assert isinstance(finished, CallFinished)
    assert (finished.index, finished.name) == (0, "write_file")
    assert json.loads(finished.arguments) == CALL_ARGUMENTS
    assert events[0] == AnswerText(text="Sure.")
    assert events[4] == AnswerText(text="\nDone.")


PIECES = st.lists(
    st.sampled_from(
        [
            CALL,
            "text ",
            "\n\n",
            "<tool_call>",
            "</tool_call>",
            "<function=write_file>",
            "<function=ns.ping>",
            "<function=unknown>",
            "</function>",
            "<parameter=path>",
            "<parameter=mode>",
            "</parameter>",
            "<para",
            "<tool",
            "5",
            "\N{FOX FACE}\\",
        ]
    ),
    max_size=9,
)


@settings(max_examples=300)
@given(PIECES, st.integers(0, 2**32))
def test_how_the_text_is_cut_changes_nothing(parts: list[str], seed: int) -> None:
    text = "".join(parts)
    assert scan(text, cut(text, seed)) == scan(text)


@given(PIECES)
def test_fragments_join_to_the_finished_arguments(parts: list[str]) -> None:
    events = scan("".join(parts))
    for event in events:
        if isinstance(event, CallFinished):
            fragments = [e.fragment for e in events if isinstance(e, CallArguments) and e.index == event.index]
            assert "".join(fragments) == event.arguments
            assert isinstance(json.loads(event.arguments), dict)


@given(st.text(), st.integers(0, 2**32))
def test_any_string_argument_arrives_verbatim(value: str, seed: int) -> None:
    if "</parameter>" in value:
        value = value.replace("</parameter>", "")
    text = f"<tool_call>\n<function=write_file>\n<parameter=path>\n{value}\n</parameter>\n</function>\n</tool_call>"
    finished = [e for e in scan(text, cut(text, seed)) if isinstance(e, CallFinished)]
    assert [json.loads(e.arguments) for e in finished] == [{"path": value}]


def test_string_arguments_stream_and_others_wait() -> None:
    scanner = ToolCallScanner(FUNCTIONS)
    scanner.feed("<tool_call><function=write_file><parameter=path>")
    assert scanner.feed("\nhello") == [CallArguments(index=0, fragment="hello")]
    assert scanner.feed("\n</param") == []
    assert scanner.feed("x") == [CallArguments(index=0, fragment="\\n</paramx")]
    scanner.feed("</parameter><parameter=mode>")
    assert scanner.feed("42") == []


def test_nothing_of_a_tag_leaks_into_the_answer() -> None:
    scanner = ToolCallScanner(FUNCTIONS)
    shown = [event for piece in ["a <", "tool", "_ca", "ll>"] for event in scanner.feed(piece)]
    assert shown == [AnswerText(text="a")]


def test_a_call_may_close_without_its_function_tag() -> None:
    events = scan("<tool_call><function=ns.ping></tool_call>")
    assert events[-1] == CallFinished(index=0, name="ns.ping", arguments="{}")


def test_an_empty_block_is_dropped() -> None:
    assert scan("a<tool_call>\n</tool_call>b") == [AnswerText(text="ab")]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("<tool_call><function=write_file><parameter=path>x", "unterminated"),
        ("<tool_call>", "unterminated"),
        (
            "<tool_call><function=write_file><parameter=path>x</parameter><parameter=path>y</parameter></tool_call>",
            "duplicate_parameter",
        ),
        ("<tool_call>{}</tool_call>", "unexpected_text"),
        ("<tool_call><function=nobody></function></tool_call>", "undeclared_function"),
    ],
)
def test_a_malformed_call_keeps_its_text(text: str, reason: str) -> None:
    (event,) = [e for e in scan(text) if isinstance(e, CallMalformed)]
    assert (event.raw, event.reason) == (text, reason)


def test_text_goes_on_after_a_malformed_call() -> None:
    assert scan("<tool_call>{}</tool_call>ok")[-1] == AnswerText(text="ok")


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string"}, ("string", False)),
        ({"type": ["integer", "null"]}, ("integer", True)),
        ({"anyOf": [{"type": "null"}, {"$ref": "#/$defs/flag"}]}, ("boolean", True)),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, ("unknown", False)),
        ({"$ref": "#/$defs/loop"}, ("unknown", False)),
        ({"$ref": "elsewhere.json"}, ("unknown", False)),
        ({}, ("unknown", False)),
        (None, ("unknown", False)),
        (True, ("unknown", False)),
    ],
)
def test_the_declared_type(schema: object, expected: tuple[str, bool]) -> None:
    root = {"$defs": {"flag": {"type": "boolean"}, "loop": {"$ref": "#/$defs/loop"}}}
    assert declared_type(schema, root) == expected


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("5", "string", "5"),
        ("5", "integer", 5),
        ("5.0", "integer", 5),
        ("5.5", "integer", 5.5),
        ("1e3", "number", 1000),
        ("1e20", "number", 1e20),
        ("1e999", "number", "1e999"),
        ("five", "integer", "five"),
        ("true", "boolean", True),
        ("True", "boolean", "True"),
        ('{"a": [1]}', "object", {"a": [1]}),
        ("[1]", "object", "[1]"),
        ("{a}", "object", "{a}"),
        ('["x"]', "array", ["x"]),
        ("[NaN]", "array", "[NaN]"),
        ("[1e999]", "array", "[1e999]"),
        ('{"a": -1e999}', "object", '{"a": -1e999}'),
        ("[1e20]", "array", [1e20]),
        ("12", "unknown", 12),
        ("1.5", "unknown", "1.5"),
        ("false", "unknown", False),
        ("[1, 2]", "unknown", [1, 2]),
        ("[1, 2", "unknown", "[1, 2"),
        ("9" * 5000, "integer", "9" * 5000),
        ("[" * 100_000, "array", "[" * 100_000),
    ],
)
def test_argument_text_becomes_its_declared_type(text: str, kind: str, value: Any) -> None:
    schema = {} if kind == "unknown" else {"type": kind}
    converted = convert_argument(text, schema, {})
    assert converted == value
    assert type(converted) is type(value)


def test_null_is_null_only_where_it_is_allowed() -> None:
    assert convert_argument("null", {"type": ["integer", "null"]}, {}) is None
    assert convert_argument("null", {"type": "integer"}, {}) == "null"
    assert convert_argument("null", {"type": ["string", "null"]}, {}) == "null"
