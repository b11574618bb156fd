"""A model with room for the longest instructions of an agent: random weights, the demo's words, a window of 65,536."""

import json
import shutil
from pathlib import Path

from slotstream_core.testing import write_synthetic

WINDOW = 65_536
ENDING = 16
"""Every so many ids ends a reply, so that replies that mean nothing stay short."""
OVERRIDES = {"vocab_size": 8192, "max_position_embeddings": WINDOW}
TEXT_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def write_wide_model(directory: Path, demo: Path) -> Path:
    """Write the checkpoint with the tokenizer and the chat template of the demo's directory, and return its own."""
    write_synthetic(directory, OVERRIDES)
    for name in TEXT_FILES:
        shutil.copyfile(demo / name, directory / name)
    ends = list(range(0, OVERRIDES["vocab_size"], ENDING))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    return directory
