"""Train and write the demo model's tokenizer: byte-level BPE with the family's special tokens.

    python -m tools.demo_model.tokenizer DOCUMENTS.jsonl[.xz] ... --out DIR

Needs the ``tokenizers`` package.  Merges never cross a word, a digit or a run of marks, and a word takes
only a space in front of it, so a name keeps its pieces whether it stands in a schema, a request or a call.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from tools.demo_model.documents_io import read_documents
from tools.demo_model.rendering import END_OF_DOCUMENT, load_template, render_document

VOCABULARY_SIZE = 8192

#: In the family's order; they fill the end of the vocabulary.  The second group survives ``skip_special_tokens``.
CONTROL_TOKENS = (
    END_OF_DOCUMENT,
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
MARKUP_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")

#: Words with one leading space, contractions, single digits, runs of marks, line ends, other space.
_PIECES = (
    r"'(?:[sdmt]|ll|ve|re)(?!\p{L})|"
    r" ?[\p{L}\p{M}]+|"
    r"\p{N}|"
    r" ?[^\s\p{L}\p{M}\p{N}]+|"
    r"\n+|"
    r"[^\S\n]+(?!\S)|[^\S\n]+"
)
_SPECIAL = re.compile(r"<\|[a-z_]+\|>|</?(?:tool_call|tool_response|think)>")


def train_tokenizer(texts: Iterable[str], *, vocabulary_size: int = VOCABULARY_SIZE) -> Tokenizer:
    """Return a tokenizer with ``vocabulary_size`` ids, special tokens last."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    special_count = len(CONTROL_TOKENS) + len(MARKUP_TOKENS)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size - special_count,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    pieces = (piece for text in texts for piece in _SPECIAL.split(text) if piece)
    tokenizer.train_from_iterator(pieces, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in CONTROL_TOKENS])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in MARKUP_TOKENS])
    return tokenizer


def write_tokenizer(tokenizer: Tokenizer, folder: Path, *, chat_template: str) -> None:
    """Write tokenizer.json, tokenizer_config.json, vocab.json, merges.txt and chat_template.jinja."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    saved = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = saved["model"]["vocab"]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in saved["model"]["merges"]]
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n", encoding="utf-8")
    (folder / "chat_template.jinja").write_text(chat_template, encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": END_OF_DOCUMENT,
        "unk_token": None,
        "model_max_length": 8192,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": False,
        "added_tokens_decoder": {
            str(token["id"]): {key: value for key, value in token.items() if key != "id"}
            for token in saved["added_tokens"]
        },
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def sample_texts(paths: list[Path], *, characters_per_source: int, seed: int = 7) -> Iterator[str]:
    """Yield rendered training documents, at most so many characters of each source."""
    template = load_template()
    spent: dict[str, int] = {}
    for path in paths:
        documents: list[dict[str, Any]] = list(read_documents(path))
        random.Random(seed).shuffle(documents)
        for document in documents:
            source = document.get("source", path.name)
            if document.get("split") == "heldout" or spent.get(source, 0) >= characters_per_source:
                continue
            text = render_document(document, template)[:20_000]
            spent[source] = spent.get(source, 0) + len(text)
            yield text


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the demo model's tokenizer.")
    parser.add_argument("documents", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--characters-per-source", type=int, default=3_000_000)
    parser.add_argument("--vocabulary-size", type=int, default=VOCABULARY_SIZE)
    arguments = parser.parse_args()
    tokenizer = train_tokenizer(
        sample_texts(arguments.documents, characters_per_source=arguments.characters_per_source),
        vocabulary_size=arguments.vocabulary_size,
    )
    template = Path(__file__).with_name("chat_template.jinja").read_text(encoding="utf-8")
    write_tokenizer(tokenizer, arguments.out, chat_template=template)
    print(f"{arguments.out}: {tokenizer.get_vocab_size()} ids")


if __name__ == "__main__":
    main()
