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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from tools.demo_model.documents_io import read_documents
from tools.demo_model.rendering import END_OF_DOCUMENT, load_template, render_document

ROW_TOKENS = 1024
FOCUS_BIT = 0x8000
_LOOK_AHEAD = 64
_LOCAL: dict[str, Any] = {}


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


def focus_mask(ids: np.ndarray, *, turn_start: int, turn_end: int, assistant: tuple[int, ...]) -> np.ndarray:
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


def _start_worker(tokenizer_path: str) -> None:
    tokenizer = Tokenizer.from_file(tokenizer_path)
    _LOCAL["tokenizer"] = tokenizer
    _LOCAL["template"] = load_template()
    _LOCAL["end"] = tokenizer.token_to_id(END_OF_DOCUMENT)
    _LOCAL["turn_start"] = tokenizer.token_to_id("<|im_start|>")
    _LOCAL["turn_end"] = tokenizer.token_to_id("<|im_end|>")
    _LOCAL["assistant"] = tuple(tokenizer.encode("assistant\n").ids)


def _encode(document: dict[str, Any]) -> tuple[Group, np.ndarray, bool]:
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
    return group_of(document), ids | np.where(mask, FOCUS_BIT, 0).astype(np.uint16), is_text


def pack_rows(documents: Iterable[tuple[np.ndarray, bool]], *, row_tokens: int = ROW_TOKENS) -> np.ndarray:
    """Pack token arrays into rows [R, row_tokens], in order but for a short look-ahead.

    A document that may be cut runs on into the next row.  One that may not starts whole in a row; what is left of
    a row is filled with the beginning of the next document, which then appears again, whole.
    """
    stream = iter(documents)
    window: list[tuple[np.ndarray, bool]] = []
    rows: list[np.ndarray] = []
    row: list[np.ndarray] = []
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


def _all_documents(paths: list[Path]) -> Iterator[dict[str, Any]]:
    for path in paths:
        yield from read_documents(path)


def prepare(
    paths: list[Path], *, tokenizer: Path, out: Path, workers: int, limits: dict[str, int]
) -> dict[str, Any]:
    """Write the packed rows and return the content of ``rows.json``.

    Args:
        paths: document files.
        tokenizer: folder with tokenizer.json.
        out: folder to write.
        workers: processes that tokenise.
        limits: most rows kept of a training group, by source.
    """
    out.mkdir(parents=True, exist_ok=True)
    groups: dict[Group, list[tuple[np.ndarray, bool]]] = {}
    counts: dict[str, dict[str, int]] = {}
    with multiprocessing.Pool(workers, _start_worker, (str(tokenizer / "tokenizer.json"),)) as pool:
        for group, ids, cut in pool.imap(_encode, _all_documents(paths), chunksize=64):
            groups.setdefault(group, []).append((ids, cut))
        for group in sorted(groups, key=lambda item: item.name):
            documents = groups.pop(group)
            random.Random(group.name).shuffle(documents)
            rows = pack_rows(documents)
            if group.split == "train":
                rows = rows[: limits.get(group.source, len(rows))]
            else:
                rows = rows[:256]
            counts[group.name] = {
                "documents": len(documents),
                "rows": len(rows),
                "focus_tokens": int((rows & FOCUS_BIT != 0).sum()),
            }
            temporary = out / f"{group.name}.part"
            rows.astype("<u2").tofile(temporary)
            os.replace(temporary, out / f"{group.name}.rows")
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
    arguments = parser.parse_args()
    limits = {name: int(rows) for name, rows in (item.split("=") for item in arguments.limit)}
    summary = prepare(
        arguments.documents,
        tokenizer=arguments.tokenizer,
        out=arguments.out,
        workers=arguments.workers,
        limits=limits,
    )
    for name, count in summary["groups"].items():
        print(f"{name:40} {count['documents']:8} documents {count['rows']:7} rows")


if __name__ == "__main__":
    main()
