"""Renaming of the words that a conversation copies."""

import copy
import json
from random import Random
from typing import Any

import pytest

from tools.demo_model.renaming import rename_words, words_of

WORDS = ["zeppelin", "orchard", "quarrel", "blanket", "harbour", "lantern", "meadow", "pebble"]


def chat() -> dict[str, Any]:
    return {
        "kind": "chat",
        "messages": [
            {"role": "user", "content": "Mail Greta that the kettle boils."},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    {
                        "type": "function",
                        "function": {"name": "send_mail", "arguments": {"person": "Greta", "text": "the kettle boils"}},
                    }
                ],
            },
            {"role": "tool", "content": "sent to Greta"},
            {"role": "assistant", "content": "I told Greta."},
        ],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "send_mail",
                    "description": "Sends a mail to a person.",
                    "parameters": {
                        "type": "object",
                        "properties": {
                            "person": {"type": "string", "description": "Whom."},
                            "text": {"type": "string"},
                        },
                        "required": ["person", "text"],
                    },
                },
            }
        ],
    }


def renamed_chats() -> list[dict[str, Any]]:
    rng = Random(4)
    results = [rename_words(chat(), WORDS, rng) for _ in range(60)]
    return [result for result in results if result != chat()]


def test_most_chats_are_renamed_and_some_are_left() -> None:
    assert 15 < len(renamed_chats()) < 50


def test_a_value_is_still_what_the_user_wrote() -> None:
    for result in renamed_chats():
        asked = result["messages"][0]["content"]
        values = list(result["messages"][1]["tool_calls"][0]["function"]["arguments"].values())
        assert asked == f"{asked.split()[0]} {values[0]} that {values[1]}."


def test_a_call_still_fits_its_schema() -> None:
    for result in renamed_chats():
        call = result["messages"][1]["tool_calls"][0]["function"]
        declared = result["tools"][0]["function"]
        assert call["name"] == declared["name"]
        assert (
            list(call["arguments"]) == list(declared["parameters"]["properties"]) == declared["parameters"]["required"]
        )
        assert [part["type"] for part in declared["parameters"]["properties"].values()] == ["string", "string"]


def test_capitals_stay_where_they_were() -> None:
    names = {result["messages"][3]["content"] for result in renamed_chats()}
    assert len(names) > 3
    assert all(name.split()[2][0].isupper() for name in names)


def test_a_text_and_the_given_document_are_left_alone() -> None:
    text = {"kind": "text", "text": "Greta boils a kettle."}
    document = chat()
    before = copy.deepcopy(document)
    for seed in range(20):
        assert rename_words(text, WORDS, Random(seed)) is text
        rename_words(document, WORDS, Random(seed))
    assert document == before


def test_the_same_seed_renames_the_same_way() -> None:
    first, second = (json.dumps(rename_words(chat(), WORDS, Random(9))) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(("fewest", "found"), [(1, ["bee", "honey"]), (2, ["bee"])])
def test_words_are_counted_over_all_texts(fewest: int, found: list[str]) -> None:
    assert words_of(["A Bee, honey", "bee it"], fewest=fewest) == found
