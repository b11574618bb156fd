"""JSON of other people is changed in place."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotstream_cli.launching.errors import NotPlainJson
from slotstream_cli.launching.json_text import ABSENT, JsonText

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.text(max_size=3)
ODD = '{\r\n\t"b" : 1.50e+3,\r\n\r\n\t"a":[1 ,2.0,\r\n  3],"c":{ }\r\n}\r\n'


@settings(max_examples=50)
@given(
    document=st.dictionaries(KEYS, VALUES, max_size=4),
    key=KEYS,
    value=VALUES,
    indent=st.sampled_from([None, 1, 2, 4, "\t"]),
)
def test_a_change_means_what_it_says_in_any_layout(document: dict[str, Any], key: str, value: Any, indent: Any) -> None:
    text = json.dumps(document, indent=indent)
    changed = JsonText(text).with_value([key], value)
    assert json.loads(changed.text) == {**document, key: value}
    assert list(json.loads(changed.text)) == list({**document, key: value})


@settings(max_examples=50)
@given(document=st.dictionaries(KEYS, VALUES, max_size=4), value=VALUES)
def test_a_new_member_leaves_every_character_in_its_place(document: dict[str, Any], value: Any) -> None:
    kept = [*json.dumps(document, indent=3)]
    for character in JsonText("".join(kept)).with_value(["a new one"], value).text:
        if kept and character == kept[0]:
            kept.pop(0)
    assert kept == []


def test_spelling_order_and_line_ends_stay() -> None:
    changed = JsonText(ODD).with_value(["c", "d"], {"e": 1}).with_value(["b"], 1500).with_element(["a"], "x").text
    begins = '{\r\n\t"b" : 1500,\r\n\r\n\t"a":[1 ,2.0,\r\n  3, "x"],'
    ends = '"c":{\r\n    "d": {\r\n      "e": 1\r\n    }\r\n  }\r\n}\r\n'
    assert changed == begins + ends


def test_an_equal_value_keeps_its_spelling_and_true_is_not_one() -> None:
    text = '{"a": 1e2, "b": "\\u0041", "c": 1}'
    same = JsonText(text).with_value(["a"], 100.0).with_value(["b"], "A")
    assert same.text == text
    assert same.with_value(["c"], True).get("c") is True


def test_missing_objects_on_the_way_are_made() -> None:
    changed = JsonText('{"a": 1}').with_value(["x", "y", "z"], 2)
    assert changed.text == '{"a": 1, "x": {"y": {"z": 2}}}'
    assert changed.get("x", "y", "z") == 2
    assert changed.get("x", "q", "z") is ABSENT


def test_the_last_of_two_equal_names_is_the_one_that_counts() -> None:
    assert JsonText('{"a": 1, "a": 2}').with_value(["a"], 3).text == '{"a": 1, "a": 3}'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "{",
        "[",
        "{]",
        "[1,]",
        '{"a": 1,}',
        '{"a" 1}',
        "{'a': 1}",
        '{"a": 1} x',
        "// c\n{}",
        '{"a": NaN}',
        '{"a": 01}',
        '{"a": "\n"}',
        "\ufeff{}",
        "[" * 100_000,
        '{"a":' * 100_000,
        "nul",
        '"a',
    ],
)
def test_what_is_not_json_is_refused(text: str) -> None:
    with pytest.raises(NotPlainJson):
        JsonText(text)


def test_a_place_that_is_no_object_is_named() -> None:
    with pytest.raises(NotPlainJson, match=r"providers\.mine is not an object") as refused:
        JsonText('{"providers": {"mine": []}}').with_value(["providers", "mine", "url"], "x")
    assert refused.value.path == ("providers", "mine")
    with pytest.raises(NotPlainJson, match="models is not an array"):
        JsonText('{"models": {}}').with_element(["models"], 1)
