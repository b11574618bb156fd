"""Builds the training data: ``python -m tools.demo_model.data.build --corpus DIR --out DIR --seed N``.

One file a source is written, ``NAME.jsonl`` or ``NAME.jsonl.xz``, and ``summary.json`` with documents, bytes and
weight of each.  The same seed gives the same bytes.
"""

import argparse
import importlib
import json
import lzma
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import IO, cast

from tools.demo_model.data.corpora import CORPORA, read_corpus
from tools.demo_model.data.documents import Document, Generator, check_document
from tools.demo_model.data.errors import DataError

_SMOKE_COUNT = 60
_XZ_PRESET = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """A generator module with how many documents of it a full build has, and how often training reads them."""

    name: str
    count: int
    weight: float = 1.0

    @property
    def module(self) -> str:
        """Returns the dotted name of the module."""
        return f"tools.demo_model.data.{self.name}"


GENERATORS: tuple[Recipe, ...] = (
    Recipe(name="stories", count=38_000),
    Recipe(name="dialogues", count=36_000),
    Recipe(name="questions", count=64_000),
    Recipe(name="tool_calls", count=24_000),
    Recipe(name="tool_dialogues", count=12_000),
    Recipe(name="json_answers", count=10_000),
    Recipe(name="thinking", count=10_000),
    Recipe(name="idle_chats", count=14_000),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """What one source came to; ``text_bytes`` counts the JSON lines before compression."""

    name: str
    documents: int
    heldout: int
    text_bytes: int
    file_bytes: int
    weight: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One source to write."""

    name: str
    corpus_folder: Path | None
    out_folder: Path
    seed: int
    scale: float
    smoke: bool
    compress: bool


def main(arguments: Sequence[str] | None = None) -> int:
    """Builds the data; returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        written = build(_jobs(options), workers=options.workers)
    except (DataError, OSError) as error:
        print(f"build: {error}", file=sys.stderr)
        return 1
    _report(written, options.out)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.demo_model.data.build", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--corpus", type=Path, help="folder with the public texts; without it only generated text is built"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the files")
    parser.add_argument("--seed", type=int, default=1, help="seed of all generators (default 1)")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the number of generated documents")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="build these sources only")
    parser.add_argument("--workers", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--compress", action="store_true", help="write .jsonl.xz instead of .jsonl")
    parser.add_argument(
        "--smoke", action="store_true", help=f"{_SMOKE_COUNT} documents a generator and no public texts"
    )
    return parser


def _jobs(options: argparse.Namespace) -> list[Job]:
    names = [recipe.name for recipe in GENERATORS]
    if options.corpus and not options.smoke:
        names = [corpus.name for corpus in CORPORA] + names
    unknown = sorted(set(options.only or ()) - set(names))
    if unknown:
        raise DataError(f"no source is called {', '.join(unknown)}; there are {', '.join(names)}")
    return [
        Job(
            name=name,
            corpus_folder=options.corpus,
            out_folder=options.out,
            seed=options.seed,
            scale=options.scale,
            smoke=options.smoke,
            compress=options.compress,
        )
        for name in names
        if not options.only or name in options.only
    ]


def build(jobs: Sequence[Job], *, workers: int) -> list[Written]:
    """Writes every job's file, several at a time, and returns what was written in the order of the jobs.

    Raises:
        DataError: a source is missing or yields a document that breaks the shape.
        OSError: a file cannot be written.
    """
    for job in jobs:
        job.out_folder.mkdir(parents=True, exist_ok=True)
    if workers <= 1:
        return [write_source(job) for job in jobs]
    with ProcessPoolExecutor(max_workers=workers) as pool:
        return list(pool.map(write_source, jobs))


def write_source(job: Job) -> Written:
    """Writes one source, under a temporary name first, and returns its sizes."""
    suffix = ".jsonl.xz" if job.compress else ".jsonl"
    final = job.out_folder / f"{job.name}{suffix}"
    partial = final.with_name(f".{final.name}.{os.getpid()}")
    documents = heldout = text_bytes = 0
    try:
        with _open(partial, compress=job.compress) as stream:
            for document in documents_of(job):
                check_document(document)
                line = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
                stream.write(line)
                documents += 1
                heldout += document["split"] == "heldout"
                text_bytes += len(line)
        partial.replace(final)
    finally:
        partial.unlink(missing_ok=True)
    return Written(
        name=job.name,
        documents=documents,
        heldout=heldout,
        text_bytes=text_bytes,
        file_bytes=final.stat().st_size,
        weight=_weight(job.name),
    )


def _open(path: Path, *, compress: bool) -> IO[bytes]:
    if compress:
        return cast(IO[bytes], lzma.open(path, "wb", preset=_XZ_PRESET))
    return path.open("wb")


def documents_of(job: Job) -> Iterator[Document]:
    """Yields the documents of a source, from its own stream of random numbers."""
    rng = Random(f"{job.seed}:{job.name}")
    for corpus in CORPORA:
        if corpus.name == job.name:
            if job.corpus_folder is None:
                raise DataError(f"{job.name} is a public text; pass its folder with --corpus")
            return read_corpus(corpus, job.corpus_folder, rng)
    recipe = next(recipe for recipe in GENERATORS if recipe.name == job.name)
    generate = cast(Generator, importlib.import_module(recipe.module).generate)
    return generate(rng, _SMOKE_COUNT if job.smoke else round(recipe.count * job.scale))


def _weight(name: str) -> float:
    weights = {recipe.name: recipe.weight for recipe in GENERATORS} | {corpus.name: corpus.weight for corpus in CORPORA}
    return weights[name]


def _report(written: Sequence[Written], folder: Path) -> None:
    summary = folder / "summary.json"
    partial = summary.with_name(f".summary.{os.getpid()}")
    partial.write_text(json.dumps([asdict(entry) for entry in written], indent=1) + "\n", encoding="utf-8")
    partial.replace(summary)
    print(f"{'source':<16}{'documents':>10}{'held out':>10}{'text MB':>9}{'file MB':>9}{'weight':>8}")
    for entry in written:
        print(
            f"{entry.name:<16}{entry.documents:>10,}{entry.heldout:>10,}{entry.text_bytes / 1e6:>9.2f}"
            f"{entry.file_bytes / 1e6:>9.2f}{entry.weight:>8.1f}"
        )
    total_text, total_file = sum(entry.text_bytes for entry in written), sum(entry.file_bytes for entry in written)
    print(
        f"{'total':<16}{sum(entry.documents for entry in written):>10,}{'':>10}"
        f"{total_text / 1e6:>9.2f}{total_file / 1e6:>9.2f}"
    )


if __name__ == "__main__":
    sys.exit(main())
