"""How many tokens a text has at least: never more than it gets, near that, and refused by without tokenizing."""

import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers

from slotstream_core.engine import load
from slotstream_core.errors import ContextLengthExceeded
from slotstream_core.text import fewest_tokens
from slotstream_core.text.fewest_tokens import FewestTokens
from slotstream_core.text.messages import ChatMessage
from slotstream_core.text.tokenizer import Tokenizer

WORDS = r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
ENGLISH = "The quick brown fox jumps over the lazy dog; nobody knows why it did so.\n    def f(x): return x + 10\n"
MIXED = (
    ENGLISH
    + "今天天气很好，我们一起去公园散步吧。 été naïve e\u0301 \u212b K\u212a <|im_end|>\u0338 "
    + "=" * 70
    + " " * 40
)

BYTES = [bytes([byte]) for byte in range(256)]


def trained(
    normalizer: normalizers.Normalizer | None = None, *splits: pre_tokenizers.PreTokenizer, added: Any = ()
) -> tokenizers.Tokenizer:
    backing = tokenizers.Tokenizer(models.BPE())
    if normalizer is not None:
        backing.normalizer = normalizer
    backing.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backing.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    backing.train_from_iterator([MIXED] * 3, trainer)
    backing.add_special_tokens([AddedToken("<|im_end|>", normalized=False), *added])
    return backing


def words(behavior: str = "isolated") -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(WORDS), behavior)


def known(backing: tokenizers.Tokenizer) -> FewestTokens:
    fewest = FewestTokens.of(backing)
    assert fewest is not None
    return fewest


def count(backing: tokenizers.Tokenizer, text: str) -> int:
    return len(backing.encode(text, add_special_tokens=False).ids)


BACKINGS = [
    trained(normalizers.NFC(), words()),
    trained(None, words()),
    trained(normalizers.NFC(), words("merged_with_previous")),
    trained(normalizers.NFC(), words("contiguous")),
    trained(None),
]


@pytest.mark.parametrize("backing", BACKINGS)
@given(
    st.lists(
        st.sampled_from([*MIXED, *"e\u0301\u0323\u1100\u1161\u11a8\u0338>", "<|im_end|>", " " * 9, "the", "天气"])
    ),
    st.integers(1, 12),
)
def test_no_text_has_fewer(backing: tokenizers.Tokenizer, parts: list[str], piece: int) -> None:
    text = "".join(parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fewest_tokens, "PIECE_CHARACTERS", piece)
        assert known(backing).in_text(text) <= count(backing, text)


@pytest.mark.parametrize("backing", BACKINGS)
@given(st.text())
def test_no_text_of_any_characters_has_fewer(backing: tokenizers.Tokenizer, text: str) -> None:
    assert known(backing).in_text(text) <= count(backing, text)


@pytest.mark.parametrize("backing", BACKINGS[:2])
def test_of_ordinary_text_it_is_near_the_truth(backing: tokenizers.Tokenizer) -> None:
    text = ENGLISH * 2_000
    assert known(backing).in_text(text) > 0.5 * count(backing, text)


def test_what_is_not_in_the_normal_form_counts_nothing_and_the_rest_does() -> None:
    backing = BACKINGS[0]
    other = "e\u0301" * 40_000
    assert known(backing).in_text(other) == 1
    assert known(backing).in_text(ENGLISH * 2_000 + other) > 0.5 * count(backing, ENGLISH * 2_000)
    assert known(BACKINGS[1]).in_text(other) > 1


def test_it_knows_which_bytes_are_parted_and_how_long_tokens_with_a_byte_are() -> None:
    fewest = FewestTokens([*BYTES, b"ab", b"cd", b"xxxx"], composes=False)
    assert fewest.in_text("") == 0
    assert fewest.in_text("abcd" * 10) == 20
    assert fewest.in_text("ba" * 10) == 11
    assert fewest.in_text("x" * 41) == 11
    assert fewest.in_text("abxxxxxcd") == 4
    assert FewestTokens([*BYTES, b"a" * 8, b"b" * 8], composes=False).in_text("ab" * 10) == 20


def test_a_text_is_not_cut_where_characters_compose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fewest_tokens, "PIECE_CHARACTERS", 10)
    text = "a" * 10 + "\u0323\u0302" + "b" * 5
    assert FewestTokens(BYTES, composes=True).in_text(text) <= len(unicodedata.normalize("NFC", text).encode())


def test_characters_that_a_later_unicode_may_compose_count_nothing() -> None:
    assert FewestTokens(BYTES, composes=True).in_text("\u0378" * 9) == 1  # no character yet
    assert FewestTokens(BYTES, composes=False).in_text("\u0378" * 9) == 18


def cut_off(backing: tokenizers.Tokenizer) -> None:
    backing.enable_truncation(3)


def lower(backing: tokenizers.Tokenizer) -> None:
    backing.normalizer = normalizers.Lowercase()


def drop(backing: tokenizers.Tokenizer) -> None:
    backing.pre_tokenizer = pre_tokenizers.Sequence([words("removed"), pre_tokenizers.ByteLevel()])


def whitespace(backing: tokenizers.Tokenizer) -> None:
    backing.pre_tokenizer = pre_tokenizers.Whitespace()


def greedy_marker(backing: tokenizers.Tokenizer) -> None:
    backing.add_tokens([AddedToken("<gap>", lstrip=True)])


def other_model(backing: tokenizers.Tokenizer) -> None:
    backing.model = models.WordPiece({"a": 0}, unk_token="a")


def missing_byte(backing: tokenizers.Tokenizer) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())[1:]
    backing.model = models.BPE({character: number for number, character in enumerate(alphabet)}, [])


def marked_end(backing: tokenizers.Tokenizer) -> None:
    backing.model = models.BPE({"a": 0}, [], end_of_word_suffix="</w>")


@pytest.mark.parametrize(
    "change", [cut_off, lower, drop, whitespace, greedy_marker, other_model, missing_byte, marked_end]
)
def test_nothing_is_said_of_a_tokenizer_that_does_not_spell_texts_out(
    change: Callable[[tokenizers.Tokenizer], None],
) -> None:
    backing = trained(normalizers.NFC(), words())
    assert FewestTokens.of(backing) is not None
    change(backing)
    assert FewestTokens.of(backing) is None


def test_a_text_far_too_long_for_a_window_is_refused_and_any_other_gets_its_ids() -> None:
    tokenizer = Tokenizer(BACKINGS[0], eos_ids=frozenset())
    text = ENGLISH * 100
    ids = tokenizer.encode(text)
    with pytest.raises(ContextLengthExceeded, match="at least .* tokens and the context window 300") as refused:
        tokenizer.encode(text, within_tokens=300)
    assert refused.value.at_least
    assert 300 <= refused.value.prompt_tokens <= len(ids)
    assert tokenizer.encode(text, within_tokens=len(text)) == ids
    blanks = " " * 2_000  # more characters than eight a token, and room all the same
    assert tokenizer.encode(blanks, within_tokens=240) == tokenizer.encode(blanks)
    assert len(tokenizer.encode(blanks)) < 240


def test_the_engine_refuses_a_prompt_by_its_own_window_and_counts_any(tiny_model: Path) -> None:
    text = "word " * 20_000
    with load(tiny_model) as engine:
        for prompt in (text, [ChatMessage(role="user", content=text)]):
            with pytest.raises(ContextLengthExceeded) as refused:
                engine.generate(prompt)
            assert refused.value.at_least
            assert refused.value.window_tokens == engine.window_tokens
        assert len(engine.chat_ids(text)) > len(text)
