"""The checkpoint's own tokenizer, checked against the model's vocabulary."""

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import tokenizers
from tokenizers.decoders import DecodeStream

from slotstream_core.errors import ContextLengthExceeded, RequestError, TokenizerError
from slotstream_core.text.fewest_tokens import FewestTokens
from slotstream_core.text.files import check_regular, read_text_file, reason

MOST_CHARACTERS_A_TOKEN: Final = 8
"""Ordinary texts have fewer, so one that has more for every token of a window is looked at before it is tokenized."""


class Tokenizer:
    """Text to token ids and back, from a checkpoint's `tokenizer.json`.

    Special markers such as `<|im_start|>` in the text become their single ids.  Instances are read-only and may be
    shared between threads.

    Attributes:
        eos_ids: Ids that end a reply: the model's own and the chat turn's end marker.
        vocabulary: Number of ids the tokenizer can produce.
    """

    def __init__(self, backing: tokenizers.Tokenizer, *, eos_ids: frozenset[int]) -> None:
        self._backing = backing
        self.eos_ids = eos_ids
        self.vocabulary: int = backing.get_vocab_size(with_added_tokens=True)

    @classmethod
    def from_directory(cls, directory: Path, *, vocabulary: int, eos_ids: Sequence[int]) -> "Tokenizer":
        """Read `tokenizer.json` (and `generation_config.json`, when it is there) of a checkpoint.

        Args:
            directory: The checkpoint directory.
            vocabulary: Rows of the model's embedding; no token id may reach it.
            eos_ids: Ids that the model's configuration names as the end of a text.

        Raises:
            TokenizerError: A file is missing or broken, or an id lies outside the model's vocabulary.
        """
        path = directory / "tokenizer.json"
        try:
            if not check_regular(path):
                raise TokenizerError(
                    f"{path} is missing; copy the tokenizer files of the original checkpoint beside it"
                )
        except OSError as error:
            raise TokenizerError(f"{path} cannot be read: {reason(error)}") from error
        try:
            backing = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing narrower for a file it cannot read
            raise TokenizerError(f"{path} cannot be read as a tokenizer: {error}") from error
        highest = max(backing.get_vocab(with_added_tokens=True).values(), default=-1)
        if highest >= vocabulary:
            raise TokenizerError(
                f"{path} can produce token id {highest:,} but the model has {vocabulary:,} embeddings; "
                "the tokenizer belongs to another model"
            )
        ends = set(eos_ids) | _generation_eos(directory / "generation_config.json")
        turn_end = backing.token_to_id("<|im_end|>")
        if turn_end is not None:
            ends.add(turn_end)
        outside = sorted(token for token in ends if not 0 <= token < vocabulary)
        if outside:
            raise TokenizerError(
                f"end-of-text ids {outside} of {directory} lie outside the vocabulary of {vocabulary:,}"
            )
        return cls(backing, eos_ids=frozenset(ends))

    def encode(self, text: str, *, within_tokens: int | None = None) -> list[int]:
        """Return the token ids of a text; nothing is added before or after it.

        Args:
            text: The text.
            within_tokens: A window in tokens, when the text is only wanted if it leaves room there for a reply: one
                that is far too long is refused without being tokenized, which would take tens of seconds. The ids of
                one that is not refused may still be too many.

        Raises:
            ContextLengthExceeded: The text has as many tokens as the window, or more.
            RequestError: The text holds half a surrogate pair, as text that was not UTF-8 does once it is decoded, or
                the library gives it up.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(
                f"character {error.start + 1:,} of the text is {text[error.start]!a}, which is no character; "
                "give the text in UTF-8"
            ) from error
        if within_tokens is not None and len(text) > MOST_CHARACTERS_A_TOKEN * within_tokens:
            fewest = 0 if self._fewest is None else self._fewest.in_text(text)
            if fewest >= within_tokens:
                raise ContextLengthExceeded(fewest, within_tokens, at_least=True)
        try:  # `encode` would keep Python's lock
            (encoding,) = self._backing.encode_batch_fast([text], add_special_tokens=False)
        except BaseException as error:  # the library's panics are no `Exception`, and their class has no name to import
            if type(error).__name__ != "PanicException":
                raise
            raise RequestError(
                f"the text of {len(text):,} characters cannot be split into tokens ({error}); shorten runs of millions "
                "of blanks"
            ) from error
        ids: list[int] = encoding.ids
        return ids

    @cached_property
    def _fewest(self) -> FewestTokens | None:
        """The bound below texts' tokens, made where it is first needed: half a second for 250,000 tokens."""
        return FewestTokens.of(self._backing)

    def decode(self, ids: Sequence[int], *, markers: bool = False) -> str:
        """Return the text of token ids, without special markers unless asked for; broken UTF-8 becomes U+FFFD."""
        text: str = self._backing.decode(list(ids), skip_special_tokens=not markers)
        return text

    def token_id(self, text: str) -> int | None:
        """Return the id of one token by its exact text, or None when there is no such token."""
        token: int | None = self._backing.token_to_id(text)
        return token

    def detokenizer(self) -> "Detokenizer":
        """Return a fresh incremental decoder."""
        return Detokenizer(self._backing)


class Detokenizer:
    """Turns a stream of token ids into text, holding incomplete UTF-8 back until it is complete."""

    def __init__(self, backing: tokenizers.Tokenizer) -> None:
        self._backing = backing
        self._stream = DecodeStream(skip_special_tokens=True)
        self._pending: list[int] = []

    def feed(self, token: int) -> str:
        """Return the text that this token completes; empty while characters are incomplete."""
        self._pending.append(token)
        piece: str | None = self._stream.step(self._backing, token)
        if not piece:
            return ""
        self._pending.clear()
        return piece

    def finish(self) -> str:
        """Return what was held back, with U+FFFD for characters that were never completed."""
        pending, self._pending = self._pending, []
        text: str = self._backing.decode(pending, skip_special_tokens=True) if pending else ""
        return text


def _generation_eos(path: Path) -> set[int]:
    try:
        text = read_text_file(path)
        if text is None:
            return set()
        content: Any = json.loads(text)
        value = content.get("eos_token_id")
        if value is None:
            return set()
        return {int(item) for item in (value if isinstance(value, list) else [value])}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise TokenizerError(f"{path} has no usable eos_token_id: {reason(error)}") from error
