"""Write the draft head's goldens of tests/core/goldens with the PyTorch head that the demo model is trained with.

Two steps, as `make_goldens` has them. From the repository root:

    .venv/bin/python -m tools.oracle.make_draft_goldens checkpoints DIR
    PYTHONPATH=. ORACLE/bin/python -m tools.oracle.make_draft_goldens goldens DIR tests/core/goldens

Recorded are the logits of first drafts, and of second drafts that are given the true token as the first draft.
"""

from pathlib import Path
from typing import Any

import numpy as np

from tools.oracle.cases import DRAFT_CASES, ParityCase
from tools.oracle.command import run


def write_checkpoints(directory: Path) -> None:
    from slotstream_core.checkpoint.synthesis import write_huggingface

    for case in DRAFT_CASES:
        write_huggingface(directory / case.name, case.settings, draft=True)


def write_goldens(directory: Path, goldens: Path) -> None:
    for case in DRAFT_CASES:
        first, second = run_oracle(directory / case.name, case)
        np.savez_compressed(
            goldens / f"{case.name}.npz", ids=np.array(case.prompt(), np.int32), first=first, second=second
        )
        print(f"{case.name}: {len(first)} rows, deviation {first.std():.3f} and {second.std():.3f}")


def run_oracle(checkpoint: Path, case: ParityCase) -> tuple[np.ndarray, np.ndarray]:
    """Return float32 logits [rows, vocab] of first and second drafts."""
    import torch
    from safetensors.torch import load_file
    from transformers import Qwen4ExpConfig, Qwen4ExpForCausalLM

    from tools.demo_model.architecture import DemoModel, draft_logits

    causal = Qwen4ExpForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    model = DemoModel(Qwen4ExpConfig(text_config=causal.config.to_dict()))
    model.causal = causal
    model.mtp.load_state_dict(head_weights(load_file(checkpoint / "mtp.safetensors")))
    model.eval()
    ids = torch.tensor([case.prompt()])
    with torch.no_grad():
        first, second, _ = draft_logits(model, ids, model.trunk(ids).streams)
    return first[0].numpy(), second[0].numpy()


def head_weights(stored: dict[str, Any]) -> dict[str, Any]:
    """The head's tensors by the names of its modules, with the experts of a projection in one tensor."""
    import torch

    weights = {name.removeprefix("mtp."): tensor for name, tensor in stored.items()}
    prefix = "layers.0.mlp.experts"
    parts = [name for name in weights if name.startswith(f"{prefix}.") and name.split(".")[4].isdigit()]
    if parts:
        count = 1 + max(int(name.split(".")[4]) for name in parts)
        taken = {name: weights.pop(name) for name in parts}

        def stacked(projection: str) -> Any:
            return torch.stack([taken[f"{prefix}.{expert}.{projection}.weight"] for expert in range(count)])

        weights[f"{prefix}.gate_up_proj"] = torch.cat([stacked("gate_proj"), stacked("up_proj")], dim=1)
        weights[f"{prefix}.down_proj"] = stacked("down_proj")
    return weights


if __name__ == "__main__":
    run(__doc__, write_checkpoints, write_goldens)
