"""The tool-calling documents: they can be learned by copying, they keep to their schemas, and held-out is held out."""

import itertools
import json
import lzma
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from tools.demo_model.data import bfcl, clinc, json_answers, taskmaster, thinking, tool_calls, tool_dialogues
from tools.demo_model.data.documents import (
    ChatDocument,
    Document,
    assistant,
    chat_document,
    check_document,
    text_document,
    user,
)
from tools.demo_model.data.errors import CorpusError, DataError
from tools.demo_model.data.idle_tools import declare_idle_tools
from tools.demo_model.data.tool_entries import NUMBER_WORDS
from tools.demo_model.data.tool_eval import GROUP_SIZES, ParsedCall, draw_cases, parse_calls, score_outputs
from tools.demo_model.data.tool_exchanges import MAX_CHARACTERS, length_of, make_tool
from tools.demo_model.data.tool_lexicon import lexicon

GENERATORS: dict[str, Callable[[Random, int], Iterator[ChatDocument]]] = {
    "tool_calls": tool_calls.generate,
    "tool_dialogues": tool_dialogues.generate,
    "json_answers": json_answers.generate,
    "thinking": thinking.generate,
}
COUNT = 400
# Commands that stand for themselves: "run the tests" does not say them.
REMEMBERED = {"ls", "pytest", "pwd", "git status", "git diff"}
# Values that an entry fixes because the request says them in other words.
FIXED_NUMBERS = {5, 30, 60}


@pytest.fixture(scope="module", params=sorted(GENERATORS))
def documents(request: pytest.FixtureRequest) -> list[ChatDocument]:
    return list(GENERATORS[request.param](Random(11), COUNT))


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from itertools.chain.from_iterable(_strings(part) for part in value.values())
    elif isinstance(value, list):
        yield from itertools.chain.from_iterable(map(_strings, value))


def _was_said(text: str, said: str) -> bool:
    """Returns whether the text was said, whole, as a folder and a name, or as what a one-line script prints."""
    folder, _, name = text.rpartition("/")
    if text in said or (folder and folder in said and name in said):
        return True
    inner = re.fullmatch(r"""(?:print\("|echo "|console\.log\("|(?:python3?|sh|bash|node) )(.*?)(?:"\)?;?)?""", text)
    return inner is not None and inner[1] in said


def _check(value: object, schema: object, where: str) -> None:
    """Checks the part of JSON schema that the documents use."""
    assert isinstance(schema, dict)
    kind = schema["type"]
    if kind in ("integer", "number"):
        assert isinstance(value, int if kind == "integer" else int | float), where
        assert not isinstance(value, bool), where
    else:
        expected = {"string": str, "boolean": bool, "array": list, "object": dict}[kind]
        assert isinstance(value, expected), where
    if "enum" in schema:
        assert value in schema["enum"], where
    if isinstance(value, list) and "items" in schema:
        for part in value:
            _check(part, schema["items"], where)
    if isinstance(value, dict) and "properties" in schema:
        assert set(value) <= set(schema["properties"]), where
        for key, part in value.items():
            _check(part, schema["properties"][key], f"{where}.{key}")
    if isinstance(value, dict):
        assert set(schema.get("required", ())) <= set(value), where


def _check_calls(document: ChatDocument) -> int:
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in document.get("tools", [])}
    assert len(schemas) == len(document.get("tools", []))
    calls = [call["function"] for message in document["messages"] for call in message.get("tool_calls", ())]
    for call in calls:
        _check(call["arguments"], schemas[call["name"]], call["name"])
    return len(calls)


def test_documents_are_well_formed_and_short(documents: list[ChatDocument]) -> None:
    assert len(documents) == COUNT
    for document in documents:
        check_document(document)
        assert length_of(document) <= MAX_CHARACTERS
        assert json.loads(json.dumps(document)) == document


def test_arguments_fit_the_declared_schema(documents: list[ChatDocument]) -> None:
    calls = sum(map(_check_calls, documents))
    assert calls > COUNT // 3 or documents[0]["source"] == "json_answers"


def test_every_text_argument_was_said_before(documents: list[ChatDocument]) -> None:
    for document in documents:
        said = json.dumps(document.get("tools", []), ensure_ascii=False)
        for message in document["messages"]:
            for call in message.get("tool_calls", ()):
                for text in _strings(call["function"]["arguments"]):
                    assert _was_said(text, said) or text in REMEMBERED, (text, document["messages"])
            said += "\n" + message["content"]


def test_numbers_in_arguments_were_said_before(documents: list[ChatDocument]) -> None:
    for document in documents:
        said = ""
        for message in document["messages"]:
            for call in message.get("tool_calls", ()):
                for value in call["function"]["arguments"].values():
                    if isinstance(value, int | float) and not isinstance(value, bool):
                        spelled = value in range(13) and NUMBER_WORDS[int(value)] in said
                        assert spelled or json.dumps(value) in said or value in FIXED_NUMBERS, (value, said)
            said += "\n" + message["content"]


def test_train_documents_hold_no_held_out_word_in_names_and_arguments(documents: list[ChatDocument]) -> None:
    held_out = lexicon("heldout")
    words = {*held_out.nouns, *held_out.changing_verbs, *held_out.asking_verbs, *held_out.namespaces}
    words |= {word.lower() for word in (*held_out.cities, *held_out.first_names, *held_out.last_names)}
    for document in documents:
        if document["split"] == "train":
            calls = [call["function"] for message in document["messages"] for call in message.get("tool_calls", ())]
            names = [tool["function"]["name"] for tool in document.get("tools", [])]
            text = " ".join([*names, *(json.dumps(call["arguments"]) for call in calls)])
            found = {part.lower() for part in re.findall(r"[A-Z]?[a-z]+", text)} & words
            assert not found, document


def test_both_halves_and_both_stages_occur(documents: list[ChatDocument]) -> None:
    assert {document["split"] for document in documents} == {"train", "heldout"}
    assert {document["stage"] for document in documents} == {"pretrain", "finish"}


@pytest.mark.parametrize("name", sorted(GENERATORS))
def test_the_same_seed_gives_the_same_documents(name: str) -> None:
    first, second = (list(GENERATORS[name](Random(5), 40)) for _ in range(2))
    assert first == second
    assert first != list(GENERATORS[name](Random(6), 40))


def test_the_halves_of_the_words_share_nothing() -> None:
    train, held_out = lexicon("train"), lexicon("heldout")
    for field in ("changing_verbs", "asking_verbs", "nouns", "cities", "first_names", "topics", "items", "syllables"):
        assert not set(getattr(train, field)) & set(getattr(held_out, field)), field


def test_some_requests_call_and_some_do_not() -> None:
    documents = list(tool_calls.generate(Random(2), 300))
    calling = sum(bool(document["messages"][-1].get("tool_calls")) for document in documents)
    assert 150 < calling < 255
    assert any(len(document.get("tools", [])) >= 5 for document in documents)


def test_names_of_tools_are_many() -> None:
    documents = list(tool_calls.generate(Random(2), 600))
    names = {tool["function"]["name"] for document in documents for tool in document.get("tools", [])}
    assert len(names) > 600


def test_thinking_is_given_where_it_is_on_and_nowhere_else() -> None:
    for document in thinking.generate(Random(3), 200):
        assert document["enable_thinking"] is True
        assert document["messages"][-1].get("reasoning_content")
    for document in tool_dialogues.generate(Random(3), 100):
        assert not any("reasoning_content" in message for message in document["messages"])


def test_json_answers_parse() -> None:
    parsed = 0
    for document in json_answers.generate(Random(4), 300):
        answer = document["messages"][-1]["content"]
        if answer[0] in "[{":
            json.loads(answer)
            parsed += 1
    assert parsed > 220


def test_an_ordinary_chat_gets_tools_that_it_does_not_use() -> None:
    plain = chat_document("stories", [user("Tell me a story."), assistant("Once there was a fox.")], split="heldout")
    given: list[Document] = [text_document("books", "Some text."), plain, next(tool_dialogues.generate(Random(1), 1))]
    (document,) = declare_idle_tools(given, Random(3))
    check_document(document)
    assert document["messages"] == plain["messages"]
    assert document["tools"]
    assert document["split"] == "heldout"
    assert "tools" not in plain


# --- corpora -------------------------------------------------------------------------------------------------------


def _corpus(folder: Path, *rows: object) -> Path:
    path = folder / "rows.jsonl.xz"
    path.write_bytes(lzma.compress("\n".join(map(json.dumps, rows)).encode()))
    return path


def _bfcl_row(question: str, answer: object) -> dict[str, object]:
    parameters = {
        "type": "dict",
        "properties": {
            "city": {"type": "string", "description": "Name. More of it."},
            "days": {"type": "integer"},
            "limit": {"type": "float"},
        },
        "required": ["city"],
    }
    tool = {"name": "trip.plan", "description": "Plans a trip. Slowly.", "parameters": parameters}
    return {"id": "x", "tools": [tool], "question": [[{"role": "user", "content": question}]], "answer": answer}


def test_a_benchmark_row_becomes_a_call_with_json_schema_types(tmp_path: Path) -> None:
    row = _bfcl_row("Plan two days in Rome", [{"trip.plan": {"city": ["Rome"], "days": [2], "limit": ["", 9.0]}}])
    (document,) = bfcl.generate_from(_corpus(tmp_path, row), Random(0))
    check_document(document)
    assert _check_calls(document) == 1
    assert document["tools"][0]["function"]["description"] == "Plans a trip."
    assert document["messages"][-1]["tool_calls"][0]["function"] == {
        "name": "trip.plan",
        "arguments": {"city": "Rome", "days": 2},
    }


def test_a_benchmark_row_whose_value_has_to_be_guessed_is_dropped(tmp_path: Path) -> None:
    row = _bfcl_row("Plan a trip to the capital of Italy", [{"trip.plan": {"city": ["Rome"]}}])
    assert list(bfcl.generate_from(_corpus(tmp_path, row), Random(0))) == []


def test_a_benchmark_row_without_an_answer_is_a_refusal(tmp_path: Path) -> None:
    row = _bfcl_row("How old is the moon?", None)
    documents = list(bfcl.generate_from(_corpus(tmp_path, *[row] * 20), Random(0)))
    assert 0 < len(documents) < 20
    assert not any(document["messages"][-1].get("tool_calls") for document in documents)


def test_a_coffee_dialogue_becomes_calls_with_results(tmp_path: Path) -> None:
    api = [
        ["api_call", "get_menu_items"],
        ["request", '{"query": "Latte"}'],
        ["response", '{"menu_items": [{"menu_item_id": "latte-1"}]}'],
        ["api_call", "add_order_item"],
        ["request", '{"menu_item_id": "latte-1", "quantity": "2"}'],
        ["response", '{"order_id": "77"}'],
    ]
    turns = [
        {"role": "user", "text": "Two Latte please", "api": api},
        {"role": "assistant", "text": "Sure.", "api": []},
    ]
    (document,) = taskmaster.generate_from(_corpus(tmp_path, {"turns": turns}), Random(0), share=1.0)
    check_document(document)
    assert _check_calls(document) == 2
    assert [message["role"] for message in document["messages"]] == ["user", *["assistant", "tool"] * 2, "assistant"]


def test_a_coffee_dialogue_with_a_guessed_value_is_cut_before_it(tmp_path: Path) -> None:
    api = [["api_call", "finish_order"], ["request", '{"order_id": "99"}'], ["response", '{"success": true}']]
    turns = [{"role": "user", "text": "Yes", "api": api}, {"role": "assistant", "text": "Done.", "api": []}]
    assert list(taskmaster.generate_from(_corpus(tmp_path, {"turns": turns}), Random(0), share=1.0)) == []


def test_an_intent_becomes_a_tool_that_takes_the_words(tmp_path: Path) -> None:
    rows = [[f"please do {intent} number {number}", intent] for number in range(8) for intent in "abcdefgh"]
    documents = list(clinc.generate_from(_corpus(tmp_path, *rows), Random(0), share=1.0))
    called = [document for document in documents if document["messages"][-1].get("tool_calls")]
    assert 0 < len(called) < len(documents) == len(rows)
    for document in called:
        _check_calls(document)
        (words,) = document["messages"][-1]["tool_calls"][0]["function"]["arguments"].values()
        assert words == document["messages"][-2]["content"]


def test_a_missing_corpus_and_one_that_is_not_json_are_reported(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="cannot read"):
        list(clinc.generate_from(tmp_path / "none.xz", Random(0)))
    broken = tmp_path / "broken.xz"
    broken.write_bytes(lzma.compress(b"{]\n"))
    with pytest.raises(CorpusError, match="line 1"):
        list(bfcl.generate_from(broken, Random(0)))


# --- evaluation ----------------------------------------------------------------------------------------------------


def _write(call: ParsedCall) -> str:
    parts = [f"<tool_call>\n<function={call.name}>"]
    for key, value in call.arguments.items():
        shown = value if isinstance(value, str) else json.dumps(value)
        parts.append(f"<parameter={key}>\n{shown}\n</parameter>")
    return "\n".join([*parts, "</function>\n</tool_call>"])


def test_the_held_out_cases_are_the_same_every_time_and_of_every_group() -> None:
    cases = draw_cases()
    assert cases == draw_cases()
    assert len(cases) == sum(GROUP_SIZES.values()) == 150
    for case in cases:
        assert bool(case.expected) == (case.group in ("plain", "known", "made_up", "parallel"))
        assert case.messages[-1]["role"] == "user"


def test_writing_the_expected_calls_scores_everything() -> None:
    cases = draw_cases()
    report = score_outputs(cases, ["\n".join(map(_write, case.expected)) or "I have no tool." for case in cases])
    assert report.share() == 1.0
    assert report.table()["all"] == {"cases": 150, "names": 1.0, "exact": 1.0}


def test_never_calling_scores_only_the_cases_without_a_call() -> None:
    cases = draw_cases()
    report = score_outputs(cases, ["Hello."] * len(cases))
    assert report.share("none_fits") == report.share("missing_value") == 1.0
    assert report.share("known") == report.share("made_up") == 0.0


def test_a_wrong_argument_keeps_the_name_but_is_not_exact() -> None:
    case = next(case for case in draw_cases() if case.group == "known" and case.expected[0].arguments)
    wrong = ParsedCall(name=case.expected[0].name, arguments={**case.expected[0].arguments, "extra": 1})
    score = score_outputs([case], [_write(wrong)]).scores[0]
    assert score.names_right
    assert not score.exact


def test_numbers_and_texts_are_told_apart_by_the_schema() -> None:
    tool = make_tool("f", "", {"a": {"type": "string"}, "b": {"type": "integer"}}, ("a", "b"))
    (call,) = parse_calls(_write(ParsedCall(name="f", arguments={"a": "7", "b": 7})), [tool])
    assert call.arguments == {"a": "7", "b": 7}


def test_an_unfinished_call_is_no_call() -> None:
    assert parse_calls("<tool_call>\n<function=f>\n<parameter=a>\n7", []) == ()


def test_another_number_of_outputs_than_cases_is_refused() -> None:
    with pytest.raises(DataError, match="1 outputs for 150 cases"):
        score_outputs(draw_cases(), ["x"])
