"""Write the parity goldens of tests/core/goldens with the model family's own PyTorch implementation.

Two steps, because the two sides need different packages. From the repository root:

    .venv/bin/python -m tools.oracle.make_goldens checkpoints DIR
    PYTHONPATH=. ORACLE/bin/python -m tools.oracle.make_goldens goldens DIR tests/core/goldens

ORACLE is an environment with torch==2.13.0 transformers==5.24.0 safetensors numpy. The first step writes each case's
random checkpoint in the Hugging Face layout (the tests write the same bytes again); the second loads it with
transformers in float32 and records the prompt, its logits, and the greedy continuation.
"""

from pathlib import Path

import numpy as np

from tools.oracle.cases import CASES, GREEDY_TOKENS, ParityCase
from tools.oracle.command import run


def write_checkpoints(directory: Path) -> None:
    from slotstream_core.checkpoint.synthesis import write_huggingface

    for case in CASES:
        write_huggingface(directory / case.name, case.settings)


def write_goldens(directory: Path, goldens: Path) -> None:
    goldens.mkdir(parents=True, exist_ok=True)
    for case in CASES:
        ids, logits = run_oracle(directory / case.name, case)
        np.savez_compressed(goldens / f"{case.name}.npz", ids=ids, logits=logits)
        print(f"{case.name}: {len(ids)} ids, logits {logits.shape}, deviation {logits.std():.3f}")


def run_oracle(checkpoint: Path, case: ParityCase) -> tuple[np.ndarray, np.ndarray]:
    """Return prompt and continuation ids, and float32 logits [prompt tokens + continuation - 1, vocab]."""
    import torch
    from transformers import Qwen4ExpForCausalLM

    model, report = Qwen4ExpForCausalLM.from_pretrained(checkpoint, dtype=torch.float32, output_loading_info=True)
    if report["missing_keys"] or report["unexpected_keys"] or report["mismatched_keys"]:
        raise SystemExit(f"{case.name}: the oracle does not find every weight: {report}")
    model.eval()
    ids = case.prompt()
    with torch.no_grad():
        for _ in range(GREEDY_TOKENS):
            logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
            ids.append(int(logits[-1].argmax()))
    top = logits.topk(2).values[len(case.prompt()) - 1 :]
    gap = float((top[:, 0] - top[:, 1]).min())
    if gap < 1e-4:
        raise SystemExit(f"{case.name}: two greedy candidates are only {gap} apart; change the case")
    return np.array(ids, np.int32), logits.numpy()


if __name__ == "__main__":
    run(__doc__, write_checkpoints, write_goldens)
