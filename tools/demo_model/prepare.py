"""Tokenise the demo corpus and pack it into rows for training.

    python -m tools.demo_model.prepare DOCUMENTS.jsonl[.xz] ... --tokenizer DIR --out DIR

Writes one ``SOURCE.STAGE.SPLIT.rows`` a group (little-endian uint16, ``ROW_TOKENS`` a row) and ``rows.json`` with
the counts.  The top bit of a token says that it is a focus token: everything in a text
document, and the assistant's own words in a chat.  Needs ``tokenizers``, ``jinja2`` and ``numpy``.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from tools.demo_model.documents_io import read_documents
from tools.demo_model.renaming import rename_words
from tools.demo_model.rendering import END_OF_DOCUMENT, load_template, render_document

ROW_TOKENS = 1024
FOCUS_BIT = 0x8000
_LOOK_AHEAD = 64
_HELD_OUT_ROWS = 256
_LOCAL: dict[str, Any] = {}  # of one worker process

Tokens = npt.NDArray[np.uint16]


@dataclass(frozen=True, kw_only=True)
class Group:
    """Documents that are packed together."""

    source: str
    stage: str
    split: str

    @property
    def name(self) -> str:
        return f"{self.source}.{self.stage}.{self.split}"


def group_of(document: dict[str, Any]) -> Group:
    """Return the group of a document; ``stage`` is pretrain or finish, ``split`` train or heldout."""
    stage = "finish" if document.get("stage") == "finish" else "pretrain"
    split = "train" if document.get("split", "train") == "train" else "heldout"
    source = "".join(c if c.isalnum() or c in "-_" else "-" for c in document.get("source", "unknown"))
    return Group(source=source, stage=stage, split=split)


def focus_mask(ids: Tokens, *, turn_start: int, turn_end: int, assistant: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    """Return which of a chat's ids [N] are the assistant's, its end-of-turn tokens included."""
    mask = np.zeros(len(ids), dtype=bool)
    starts = np.flatnonzero(ids == turn_start)
    ends = np.flatnonzero(ids == turn_end)
    header = len(assistant)
    for start in starts:
        body = start + 1 + header
        if tuple(ids[start + 1 : body]) != assistant:
            continue
        following = ends[ends >= body]
        stop = int(following[0]) + 1 if len(following) else len(ids)
        mask[body:stop] = True
    return mask


def _start_worker(tokenizer_path: str, words: list[str]) -> None:
    tokenizer = Tokenizer.from_file(tokenizer_path)
    _LOCAL["tokenizer"] = tokenizer
    _LOCAL["template"] = load_template()
    _LOCAL["words"] = words
    _LOCAL["end"] = tokenizer.token_to_id(END_OF_DOCUMENT)
    _LOCAL["turn_start"] = tokenizer.token_to_id("<|im_start|>")
    _LOCAL["turn_end"] = tokenizer.token_to_id("<|im_end|>")
    _LOCAL["assistant"] = tuple(tokenizer.encode("assistant\n").ids)


def _encode(document: dict[str, Any]) -> tuple[Tokens, bool]:
    """Token ids with focus bits, the end-of-document token last, and whether the document may be cut."""
    text = render_document(document, _LOCAL["template"])
    ids = np.array([*_LOCAL["tokenizer"].encode(text).ids, _LOCAL["end"]], dtype=np.uint16)
    is_text = document["kind"] == "text"
    if is_text:
        mask = np.ones(len(ids), dtype=bool)
    else:
        mask = focus_mask(
            ids, turn_start=_LOCAL["turn_start"], turn_end=_LOCAL["turn_end"], assistant=_LOCAL["assistant"]
        )
        mask[-1] = True
    return ids | np.where(mask, FOCUS_BIT, 0).astype(np.uint16), is_text


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Every ``count``-th document of a file, from the ``index``-th on."""

    path: Path
    index: int
    count: int


def shards_of(paths: list[Path], *, shard_bytes: int = 4_000_000) -> list[Shard]:
    """Cut the files into pieces of work, by size; the cut depends on the files alone."""
    shards = []
    for path in sorted(paths):
        count = max(1, round(path.stat().st_size * (8 if path.suffix == ".xz" else 1) / shard_bytes))
        shards += [Shard(path=path, index=index, count=count) for index in range(count)]
    return shards


def _pack_shard(shard: Shard) -> dict[Group, tuple[int, Tokens]]:
    """Documents and packed rows of a shard, by group."""
    groups: dict[Group, list[tuple[Tokens, bool]]] = {}
    rng = random.Random(f"rename {shard.path.parent.name} {shard.path.name} {shard.index}")
    for document in read_documents(shard.path, index=shard.index, count=shard.count):
        group = group_of(document)
        if _LOCAL["words"] and group.split == "train":
            document = rename_words(document, _LOCAL["words"], rng)
        groups.setdefault(group, []).append(_encode(document))
    packed = {}
    for group, documents in groups.items():
        random.Random(f"{group.name} {shard.path.name} {shard.index}").shuffle(documents)
        packed[group] = len(documents), pack_rows(documents)
    return packed


def pack_rows(documents: Iterable[tuple[Tokens, bool]], *, row_tokens: int = ROW_TOKENS) -> Tokens:
    """Pack token arrays into rows [R, row_tokens], in order but for a short look-ahead.

    A document that may be cut runs on into the next row.  One that may not starts whole in a row; what is left of
    a row is filled with the beginning of the next document, which then appears again, whole.
    """
    stream = iter(documents)
    window: list[tuple[Tokens, bool]] = []
    rows: list[Tokens] = []
    row: list[Tokens] = []
    room = row_tokens

    def refill() -> None:
        while len(window) < _LOOK_AHEAD and (item := next(stream, None)) is not None:
            window.append(item)

    refill()
    while window:
        fitting = next((i for i, (ids, cut) in enumerate(window) if cut or len(ids) <= room), None)
        if fitting is None:
            ids, _ = window[0]
            row.append(ids[:room])
            if room == row_tokens:  # longer than a row: it can only be cut
                window.pop(0)
            room = 0
        else:
            ids, cut = window.pop(fitting)
            row.append(ids[:room])
            if len(ids) > room:
                window.insert(0, (ids[room:], cut))
            room -= min(room, len(ids))
        if room == 0:
            rows.append(np.concatenate(row))
            row, room = [], row_tokens
        refill()
    if row and rows:
        tail = np.concatenate(row)
        rows.append(np.concatenate([tail, rows[0][: row_tokens - len(tail)]]))
    elif row:
        tail = np.concatenate(row)
        rows.append(np.resize(tail, row_tokens))
    return np.stack(rows) if rows else np.zeros((0, row_tokens), dtype=np.uint16)


def prepare(
    paths: list[Path], *, tokenizer: Path, out: Path, workers: int, limits: dict[str, int], words: list[str]
) -> dict[str, Any]:
    """Write the packed rows and return the content of ``rows.json``.

    Args:
        paths: document files.
        tokenizer: folder with tokenizer.json.
        out: folder to write.
        workers: processes that tokenise.
        limits: most rows kept of a training group, by source.
        words: spellings for the words that chats copy; empty leaves every document as it is.
    """
    out.mkdir(parents=True, exist_ok=True)
    parts: dict[Group, list[Tokens]] = {}
    documents: dict[Group, int] = {}
    with multiprocessing.Pool(workers, _start_worker, (str(tokenizer / "tokenizer.json"), words)) as pool:
        for packed in pool.imap(_pack_shard, shards_of(paths)):
            for group, (count, rows) in packed.items():
                parts.setdefault(group, []).append(rows)
                documents[group] = documents.get(group, 0) + count
    counts: dict[str, dict[str, int]] = {}
    for group in sorted(parts, key=lambda item: item.name):
        rows = np.concatenate(parts.pop(group))
        rows = rows[: limits.get(group.source, len(rows)) if group.split == "train" else _HELD_OUT_ROWS]
        counts[group.name] = {
            "documents": documents[group],
            "rows": len(rows),
            "focus_tokens": int((rows & FOCUS_BIT != 0).sum()),
        }
        temporary = out / f"{group.name}.part"
        rows.astype("<u2").tofile(temporary)
        temporary.replace(out / f"{group.name}.rows")
    summary = {"row_tokens": ROW_TOKENS, "groups": counts}
    (out / "rows.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(description="Tokenise and pack the demo corpus.")
    parser.add_argument("documents", nargs="+", type=Path)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--limit", action="append", default=[], metavar="SOURCE=ROWS")
    parser.add_argument("--rename", type=Path, metavar="WORDS", help="rename copied words with these, one a line")
    arguments = parser.parse_args()
    words = arguments.rename.read_text(encoding="utf-8").split() if arguments.rename else []
    limits = {name: int(rows) for name, rows in (item.split("=") for item in arguments.limit)}
    summary = prepare(
        arguments.documents,
        tokenizer=arguments.tokenizer,
        out=arguments.out,
        workers=arguments.workers,
        limits=limits,
        words=words,
    )
    for name, count in summary["groups"].items():
        print(f"{name:40} {count['documents']:8} documents {count['rows']:7} rows")


if __name__ == "__main__":
    main()
