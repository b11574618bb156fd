"""The demo model's chat template and tokenizer."""

from pathlib import Path
from typing import Any

import jinja2
import pytest

from tools.demo_model.rendering import load_template, render_document, render_prompt
from tools.demo_model.tokenizer import CONTROL_TOKENS, MARKUP_TOKENS, train_tokenizer, write_tokenizer

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Look up the weather <now> & later.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest.fixture(scope="module")
def template() -> jinja2.Template:
    return load_template()


def call(name: str, **arguments: object) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def test_a_plain_question_has_no_system_turn_and_a_closed_thinking_block(template: jinja2.Template) -> None:
    prompt = render_prompt([{"role": "user", "content": "Hello"}], template)
    assert prompt == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


def test_thinking_opens_the_block_and_says_so_first(template: jinja2.Template) -> None:
    prompt = render_prompt(
        [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}], template, thinking=True
    )
    assert prompt.startswith("<|im_start|>system\nThink first. Effort: xhigh.\n\nBe kind.<|im_end|>\n")
    assert prompt.endswith("<|im_start|>assistant\n<think>\n")


@pytest.mark.parametrize(
    ("effort", "said"), [("high", "xhigh"), ("xhigh", "xhigh"), ("medium", "medium"), ("low", "low")]
)
def test_an_effort_is_named_in_the_system_turn(template: jinja2.Template, effort: str, said: str) -> None:
    text = template.render(messages=[{"role": "user", "content": "Hi"}], reasoning_effort=effort)
    assert f"Effort: {said}." in text


def test_an_unknown_effort_is_refused(template: jinja2.Template) -> None:
    with pytest.raises(jinja2.TemplateError, match="not huge"):
        template.render(messages=[{"role": "user", "content": "Hi"}], reasoning_effort="huge")


def test_tools_are_json_lines_without_html_escapes(template: jinja2.Template) -> None:
    prompt = render_prompt([{"role": "user", "content": "Hi"}], template, tools=[TOOL, TOOL])
    block = prompt.split("<tools>\n")[1].split("\n</tools>")[0].split("\n")
    assert len(block) == 2
    assert '"description": "Look up the weather <now> & later."' in block[0]


def test_a_call_its_result_and_the_answer_follow_the_grammar(template: jinja2.Template) -> None:
    text = render_document(
        {
            "kind": "chat",
            "tools": [TOOL],
            "messages": [
                {"role": "user", "content": "Weather in Rome?"},
                {
                    "role": "assistant",
                    "content": "One moment.",
                    "tool_calls": [call("get_weather", city="Rome", days=2)],
                },
                {"role": "tool", "content": "sunny"},
                {"role": "tool", "content": "dry"},
                {"role": "assistant", "content": "It is sunny."},
            ],
        },
        template,
    )
    assert (
        "One moment.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n"
        "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call><|im_end|>\n"
        "<|im_start|>user\n<tool_response>\nsunny\n</tool_response>\n<tool_response>\ndry\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\nIt is sunny.<|im_end|>\n"
    ) in text


def test_two_calls_stand_on_lines_of_their_own(template: jinja2.Template) -> None:
    messages = [
        {"role": "user", "content": "Both?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [call("get_weather", city="Rome"), call("get_weather", city="Oslo")],
        },
    ]
    text = template.render(messages=messages, enable_thinking=False)
    assert "</think>\n\n<tool_call>\n" in text
    assert "</tool_call>\n<tool_call>\n" in text


def test_earlier_reasoning_is_dropped_unless_kept(template: jinja2.Template) -> None:
    messages = [
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "1", "reasoning_content": "count"},
        {"role": "user", "content": "Two?"},
    ]
    dropped = template.render(messages=messages, add_generation_prompt=True)
    kept = template.render(messages=messages, add_generation_prompt=True, preserve_thinking=True)
    assert "count" not in dropped
    assert "<|im_start|>assistant\n<think>\ncount\n</think>\n\n1<|im_end|>" in kept


def test_reasoning_after_the_last_question_stays(template: jinja2.Template) -> None:
    messages = [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "Ask.",
            "tool_calls": [call("get_weather", city="Rome")],
        },
        {"role": "tool", "content": "sunny"},
    ]
    assert "<think>\nAsk.\n</think>\n\n<tool_call>" in template.render(messages=messages)


def test_an_image_is_one_placeholder(template: jinja2.Template) -> None:
    content = [{"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": "What is it?"}]
    prompt = render_prompt([{"role": "user", "content": content}], template)
    assert "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>What is it?<|im_end|>" in prompt


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"role": "narrator", "content": "Hm"}],
        [{"role": "user", "content": "a"}, {"role": "system", "content": "late"}],
        [{"role": "system", "content": [{"type": "image", "image": "x"}]}],
        [{"role": "user", "content": [{"type": "sound"}]}],
    ],
)
def test_what_the_template_cannot_say_is_refused(template: jinja2.Template, messages: list[dict[str, Any]]) -> None:
    with pytest.raises(jinja2.TemplateError):
        template.render(messages=messages)


def test_special_tokens_end_the_vocabulary_and_digits_stand_alone(tmp_path: Path) -> None:
    texts = ["the cat sat on the mat in 2024 and 2025", "get_weather(city) and get_weather again"] * 20
    tokenizer = train_tokenizer(texts, vocabulary_size=320)
    ids = [tokenizer.token_to_id(token) for token in (*CONTROL_TOKENS, *MARKUP_TOKENS)]
    size = tokenizer.get_vocab_size()
    assert ids == list(range(size - len(ids), size))
    assert tokenizer.encode("2024").tokens == ["2", "0", "2", "4"]
    assert (
        tokenizer.decode(tokenizer.encode("Ünïque\n\tçat <think>").ids, skip_special_tokens=True)
        == "Ünïque\n\tçat <think>"
    )
    write_tokenizer(tokenizer, tmp_path, chat_template="x")
    assert {p.name for p in tmp_path.iterdir()} == {
        "tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "chat_template.jinja"
    }  # fmt: skip


def test_a_name_has_the_same_pieces_in_a_schema_and_in_a_call() -> None:
    tokenizer = train_tokenizer(["get_weather forecast"] * 50, vocabulary_size=330)
    name = tokenizer.encode("get_weather").tokens
    in_schema = tokenizer.encode('"name": "get_weather",').tokens
    in_call = tokenizer.encode("<function=get_weather>").tokens
    joined = " ".join(name)
    assert joined in " ".join(in_schema)
    assert joined in " ".join(in_call)
