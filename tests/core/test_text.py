"""Tokenizer, incremental decoding, stop strings, thinking and the chat template."""

import json
import os
import shutil
import threading
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from slotstream_core.errors import RequestError, TemplateError, TokenizerError
from slotstream_core.text.messages import ChatMessage, ToolCall
from slotstream_core.text.stop_strings import StopStrings
from slotstream_core.text.surrogates import lone_escapes
from slotstream_core.text.template import ChatTemplate
from slotstream_core.text.thinking import ThinkingSplitter
from slotstream_core.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level tokenizer without merges: 256 bytes, then the family's markers."""
    path = tmp_path_factory.mktemp("tokenizer")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backing = tokenizers.Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    backing.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backing.decoder = decoders.ByteLevel()
    backing.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    backing.add_tokens(["<think>", "</think>"])
    backing.save(str(path / "tokenizer.json"))
    return path


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> Tokenizer:
    return Tokenizer.from_directory(directory, vocabulary=300, eos_ids=[256])


def test_markers_are_single_tokens_and_end_a_turn(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("<|im_start|>a<|im_end|>")
    assert ids[0] == tokenizer.token_id("<|im_start|>")
    assert len(ids) == 3
    assert tokenizer.eos_ids == {256, tokenizer.token_id("<|im_end|>")}


@given(st.text())
def test_text_survives_encoding_and_incremental_decoding(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    decoder = tokenizer.detokenizer()
    pieces = [decoder.feed(token) for token in ids]
    assert "".join(pieces) + decoder.finish() == tokenizer.decode(ids)


def test_a_text_that_the_library_gives_up_is_refused() -> None:
    backing = tokenizers.Tokenizer(models.BPE({"a": 0}, []))
    blanks = tokenizers.Regex(r"\s*[\r\n]+|\s+")  # as the family's have them
    backing.pre_tokenizer = pre_tokenizers.Split(blanks, "isolated")
    with pytest.raises(RequestError, match=r"text of 11,000,000 characters cannot be split into tokens \(Onig: "):
        Tokenizer(backing, eos_ids=frozenset()).encode(" " * 11_000_000)


def test_other_threads_run_while_a_long_text_is_encoded(tokenizer: Tokenizer) -> None:
    text = "hello there " * 100_000
    done = threading.Event()

    def encode() -> None:
        tokenizer.encode(text)
        done.set()

    thread = threading.Thread(target=encode)
    thread.start()
    turns = 0
    while not done.wait(0.001):
        turns += 1
    thread.join()
    assert turns > 20  # two to four where the lock is kept


def test_incomplete_characters_are_held_back(tokenizer: Tokenizer) -> None:
    decoder = tokenizer.detokenizer()
    pieces = [decoder.feed(token) for token in tokenizer.encode("a\N{FOX FACE}b")]
    assert pieces == ["a", "", "", "", "\N{FOX FACE}", "b"]


def test_a_character_cut_off_by_the_end_becomes_a_replacement_mark(tokenizer: Tokenizer) -> None:
    decoder = tokenizer.detokenizer()
    pieces = [decoder.feed(token) for token in tokenizer.encode("\N{FOX FACE}")[:2]]
    assert "".join(pieces) == ""
    assert set(decoder.finish()) == {"\N{REPLACEMENT CHARACTER}"}


def test_special_markers_are_not_shown_but_thinking_tags_are(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("<|im_start|><think>a</think><|im_end|>")) == "<think>a</think>"


def test_a_tokenizer_of_another_model_is_refused(directory: Path) -> None:
    with pytest.raises(TokenizerError, match="token id 260 but the model has 200"):
        Tokenizer.from_directory(directory, vocabulary=200, eos_ids=[])


def test_a_missing_or_broken_tokenizer_says_which_file(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.json is missing"):
        Tokenizer.from_directory(tmp_path, vocabulary=10, eos_ids=[])
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(TokenizerError, match="cannot be read as a tokenizer"):
        Tokenizer.from_directory(tmp_path, vocabulary=10, eos_ids=[])


def read_both(directory: Path) -> None:
    Tokenizer.from_directory(directory, vocabulary=300, eos_ids=[256])
    ChatTemplate.from_directory(directory)


@pytest.mark.parametrize("name", ["tokenizer.json", "generation_config.json", "chat_template.jinja"])
@pytest.mark.parametrize(("kind", "words"), [("pipe", "a pipe stands"), ("directory", "a directory stands"),
                                             ("link", "a link to something that is not there")])  # fmt: skip
def test_what_stands_in_a_files_place_is_named_and_never_waited_for(
    directory: Path, tmp_path: Path, name: str, kind: str, words: str
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    (copy / name).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(copy / name)
    elif kind == "directory":
        (copy / name).mkdir()
    else:
        (copy / name).symlink_to("nowhere")
    with pytest.raises((TokenizerError, TemplateError), match=words) as refused:
        read_both(copy)
    assert str(copy) in str(refused.value)
    assert "Errno" not in str(refused.value)


def test_an_empty_chat_template_is_refused(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text(" \n")
    with pytest.raises(TemplateError, match=r"chat_template\.jinja is empty"):
        ChatTemplate.from_directory(tmp_path)


def split_at(text: str, cuts: list[int]) -> list[str]:
    edges = [0, *sorted(c for c in cuts if c <= len(text)), len(text)]
    return [text[a:b] for a, b in zip(edges, edges[1:], strict=False)]


@given(st.text("abx", max_size=20), st.lists(st.integers(0, 20), max_size=6))
def test_stop_strings_do_not_depend_on_how_the_text_arrives(text: str, cuts: list[int]) -> None:
    stops = ["ab", "xxa", "b"]
    stream = StopStrings(stops)
    shown = "".join(stream.feed(part) for part in split_at(text, cuts)) + stream.finish()
    ends = [text.find(stop) for stop in stops if stop in text]
    if not ends:
        assert shown == text
        assert stream.matched is None
    else:
        assert stream.matched is not None
        assert not any(stop in shown for stop in stops)
        assert text.startswith(shown + stream.matched)


def test_a_possible_stop_string_is_held_until_it_is_decided() -> None:
    stream = StopStrings(["STOP", ""])
    assert [stream.feed(part) for part in ["aS", "T", "xS", "TOP!", "more"]] == ["a", "", "STx", "", ""]
    assert stream.matched == "STOP"


@given(st.lists(st.integers(0, 40), max_size=8))
def test_thinking_ends_at_its_tag_however_the_text_arrives(cuts: list[int]) -> None:
    text = "I <b>th</think>ink</think>\n\nAnswer </think>"
    splitter = ThinkingSplitter(inside=True)
    pieces = [piece for part in split_at(text, cuts) for piece in splitter.feed(part)] + splitter.finish()
    joined = {kind: "".join(p.text for p in pieces if p.kind == kind) for kind in ("thinking", "text")}
    assert joined == {"thinking": "I <b>th", "text": "ink</think>\n\nAnswer </think>"}


def test_thinking_that_never_closes_is_all_thinking() -> None:
    splitter = ThinkingSplitter(inside=True)
    pieces = splitter.feed("hm </think") + splitter.finish()
    assert "".join(p.text for p in pieces) == "hm </think"
    assert {p.kind for p in pieces} == {"thinking"}


def test_newlines_after_thinking_are_dropped_even_when_they_come_later() -> None:
    splitter = ThinkingSplitter(inside=True)
    pieces = [p for part in ["a</think>\n", "\n", "\nb\n"] for p in splitter.feed(part)]
    assert [(p.kind, p.text) for p in pieces] == [("thinking", "a"), ("text", "b\n")]


SOURCE = """{%- for message in messages %}
{%- if message.role == 'critic' %}{{ raise_exception('no critics') }}{% endif %}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% if message.tool_calls %}{{ message.tool_calls[0].function.arguments | tojson }}{% break %}{% endif %}
{%- endfor %}
{%- if tools %}{{ tools[0] | tojson }}{% endif %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking %}<think>{{ reasoning_effort | default('') }}{% endif %}{% endif %}"""


def test_a_template_sees_messages_tools_and_switches() -> None:
    template = ChatTemplate(SOURCE, name="test")
    call = ToolCall(name="f", arguments={"a": "é<"})
    text = template.render(
        [ChatMessage(role="user", content="hi"), ChatMessage(role="assistant", content="", tool_calls=[call])],
        tools=[{"type": "function"}],
        thinking=True,
        effort="low",
    )
    assert "<|im_start|>user\nhi<|im_end|>" in text
    assert '{"a": "é<"}' in text
    assert text.endswith('{"type": "function"}<|im_start|>assistant\n<think>low')


def test_a_refusal_of_the_template_keeps_its_own_words() -> None:
    template = ChatTemplate("{{ raise_exception('no critics') }}", name="test")
    with pytest.raises(TemplateError, match="no critics"):
        template.render([])


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ 1 / 0 }}",
        "{{ none.x.y }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
    ],
)
def test_a_hostile_or_failing_template_is_a_typed_error(source: str) -> None:
    with pytest.raises(TemplateError):
        ChatTemplate(source, name="test").render([])


def test_a_template_that_is_not_jinja_is_refused_with_its_name() -> None:
    with pytest.raises(TemplateError, match="mine.jinja"):
        ChatTemplate("{% if %}", name="mine.jinja")


def test_the_template_may_live_in_the_tokenizer_configuration(tmp_path: Path) -> None:
    assert ChatTemplate.from_directory(tmp_path) is None
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "from config"}))
    template = ChatTemplate.from_directory(tmp_path)
    assert template is not None
    assert template.render([]) == "from config"
    (tmp_path / "chat_template.jinja").write_text("from file")
    template = ChatTemplate.from_directory(tmp_path)
    assert template is not None
    assert template.render([]) == "from file"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        (r"\ud800", 1),
        (r"\uD83D\uDe00", 0),
        (r"\ude00\ud83d", 2),
        (r"\ud83d\ud83d\ude00\ude00", 2),
        (r"\ud83d \ude00 \ud7ff \ue000 \u00d8 \ud8", 2),
        (r"\udfff é\udbff", 2),
    ],
)
def test_lone_surrogates_that_a_text_of_json_names_are_counted(text: str, count: int) -> None:
    assert lone_escapes(text) == count
