"""The check that a person runs on a chat template: what it finds in a good one, and what in others."""

from pathlib import Path

import pytest

from slotstream_core.diagnostics.reporting import CheckReport
from slotstream_core.diagnostics.templates import check_template
from slotstream_core.errors import TemplateError
from slotstream_core.testing import write_tiny_model

FAMILY = Path(__file__).parents[2] / "tools" / "demo_model" / "chat_template.jinja"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model with a template of the family, without its weights."""
    directory = write_tiny_model(tmp_path / "model")
    for shard in directory.glob("*.safetensors"):
        shard.unlink()
    (directory / "chat_template.jinja").write_text(FAMILY.read_text(encoding="utf-8"), encoding="utf-8")
    return directory


def failed(report: CheckReport) -> list[str]:
    return [item.name for item in report.items if not item.passed]


def change(model: Path, old: str, new: str) -> None:
    path = model / "chat_template.jinja"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.mark.parametrize("thinking", [False, True])
def test_a_template_of_the_family_passes_without_any_weights(model: Path, thinking: bool) -> None:
    report = check_template(model, thinking=thinking)
    assert report.passed, report.to_text()
    text, ids = report.facts["text"], report.facts["ids"]
    assert text.endswith("<think>\n" if thinking else "</think>\n\n")
    assert text.count("<|im_start|>") == 6
    assert len(ids) < len(text.encode())
    assert "<function=forecast_weather>\n<parameter=city>\nZürich\n" in text


def test_thinking_that_a_template_ignores_fails(model: Path) -> None:
    change(model, "'<think>\\n' if thinking else '<think>\\n\\n</think>\\n\\n'", "'<think>\\n\\n</think>\\n\\n'")
    assert failed(check_template(model, thinking=True)) == ["the reply begins inside a thinking block"]
    assert check_template(model).passed


def test_tools_and_calls_that_a_template_leaves_out_fail(tmp_path: Path) -> None:
    report = check_template(write_tiny_model(tmp_path / "model"))  # its template knows neither
    assert failed(report) == [
        "what every turn says is in the text, in order",
        "a declared tool is described to the model",
        "a call in the conversation is written as replies' calls are read",
        "a turn after a call goes on from the ids of the reply",
    ]
    assert "'forecast_weather', 'Zürich', '2'" in report.to_text()


def test_a_call_in_another_grammar_fails(model: Path) -> None:
    change(model, "'<parameter=' ~ key ~ '>\\n'", "'<argument=' ~ key ~ '>\\n'")
    assert "a call in the conversation is written as replies' calls are read" in failed(check_template(model))


def test_a_beginning_that_changes_with_every_turn_fails(model: Path) -> None:
    change(model, "{{- '<|im_start|>system\\n'", "{{- '<|im_start|>system\\n' ~ messages | length")
    assert failed(check_template(model)) == ["a conversation begins with the ids it had up to an earlier question"]


def test_a_reply_s_turn_that_opens_with_no_marker_fails(model: Path) -> None:
    change(
        model,
        "{%- if add_generation_prompt is defined and add_generation_prompt -%}\n  {{- '<|im_start|>assistant\\n' -}}",
        "{%- if add_generation_prompt is defined and add_generation_prompt -%}\n  {{- 'assistant:\\n' -}}",
    )
    assert "the prompt ends with the opening of the reply's turn" in failed(check_template(model))


def test_turns_that_end_without_their_marker_cannot_be_gone_on_from(model: Path) -> None:
    change(model, "    {{- '<|im_end|>\\n' -}}\n  {%- elif message.role == 'tool'", "  {%- elif message.role == 'tool'")
    assert failed(check_template(model)) == [
        "a turn after a call goes on from the ids of the reply",
        "a turn after an answer goes on from the ids of the reply",
    ]


def test_ids_that_do_not_decode_to_the_text_fail(model: Path) -> None:
    path = model / "tokenizer.json"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"normalizer":null', '"normalizer":{"type":"Lowercase"}'), encoding="utf-8")
    assert "the ids decode to the text" in failed(check_template(model))


def test_a_model_without_a_template_is_refused(model: Path) -> None:
    (model / "chat_template.jinja").unlink()
    with pytest.raises(TemplateError, match="has no chat template"):
        check_template(model)
