"""Texts to fit the demo model's forecast correction on: ``python -m tools.demo_model.forecast_texts DOCS OUT``.

DOCS is a folder written by ``data.build``, with a seed that training did not use. OUT gets one JSON string a line, the
rendered documents of all kinds in a shuffled order that the seed of this program decides.
"""

import argparse
import json
from pathlib import Path
from random import Random

from tools.demo_model.rendering import load_template, render_document


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("docs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.out.write_text("".join(json.dumps(text) + "\n" for text in read_texts(options.docs, options.seed)))


def read_texts(docs: Path, seed: int) -> list[str]:
    """Return the rendered documents of a folder, shuffled."""
    template = load_template()
    texts = [
        render_document(json.loads(line), template)
        for path in sorted(docs.glob("*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    Random(seed).shuffle(texts)
    return texts


if __name__ == "__main__":
    main()
