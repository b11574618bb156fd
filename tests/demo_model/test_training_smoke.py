"""Training, end to end and tiny.  Needs torch and transformers, which the project's lock file never holds.

Set DEMO_TRAINING_PYTHON to an interpreter with torch==2.13.0 and transformers==5.24.0; without one the test is skipped.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def training_python() -> str | None:
    if named := os.environ.get("DEMO_TRAINING_PYTHON"):
        return named
    return sys.executable if all(map(importlib.util.find_spec, ("torch", "transformers"))) else None


@pytest.mark.slow
@pytest.mark.skipif(training_python() is None, reason="no interpreter with torch; set DEMO_TRAINING_PYTHON")
def test_a_tiny_run_trains_resumes_and_exports(tmp_path: Path) -> None:
    documents = tmp_path / "documents.jsonl"
    with documents.open("w", encoding="utf-8") as file:
        for number in range(400):
            say = [{"role": "user", "content": f"Say {number}."}, {"role": "assistant", "content": f"It is {number}."}]
            stage = "finish" if number % 2 else "pretrain"
            split = "heldout" if number % 20 == 0 else "train"
            row = {"kind": "chat", "source": "numbers", "messages": say, "stage": stage, "split": split}
            file.write(json.dumps(row) + "\n")

    def run(module: str, *arguments: object) -> None:
        command = [training_python() or "", "-m", f"tools.demo_model.{module}", *map(str, arguments)]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=240)

    tokenizer, rows, work, out = (tmp_path / name for name in ("tokenizer", "rows", "work", "out"))
    run("tokenizer", documents, "--out", tokenizer, "--vocabulary-size", 400)
    run("prepare", documents, "--tokenizer", tokenizer, "--out", rows, "--workers", 1)
    places = ("--rows", rows, "--tokenizer", tokenizer, "--work", work, "--out", out)
    run("train", "--smoke", "--steps", 4, *places)
    run("train", "--smoke", "--steps", 8, *places)
    run("export", "--smoke", "--weights", out, "--tokenizer", tokenizer, "--out", tmp_path / "hf")

    assert json.loads((out / "run.json").read_text())["step"] == 8
    steps = [line.split(",")[0] for line in (out / "loss.csv").read_text().splitlines()]
    assert steps == ["step", "4", "8"]
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["model_type"] == "qwen4_exp"
    saved = json.loads((tokenizer / "tokenizer.json").read_text())
    assert config["text_config"]["vocab_size"] == len(saved["model"]["vocab"]) + len(saved["added_tokens"])
    assert (tmp_path / "hf" / "mtp.safetensors").stat().st_size > 0
