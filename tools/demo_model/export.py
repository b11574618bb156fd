"""Write trained weights as a Hugging Face folder.

    python -m tools.demo_model.export --weights DIR --tokenizer DIR --out DIR [--card MODEL_CARD.md]

``--weights`` holds the ``weights-N.bin`` files of train.py.  The trunk goes to model.safetensors, the draft head
to mtp.safetensors, in bf16, with the family's tensor names: one matrix an expert, the n-gram table in
``split_ngram_parts`` shards, norms centred (a stored weight w multiplies by 1 + w) as the family stores them.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from tools.demo_model import architecture as arch
from tools.demo_model.rendering import TEMPLATE_PATH
from tools.demo_model.tokenizer import write_tokenizer
from tools.demo_model.train import load_weight_bits, token_ids
from tools.demo_model.weights_archive import read_pieces, unpack_weights


def published_names(model: arch.DemoModel) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the trunk's and the draft head's tensors under the family's checkpoint names."""
    parts = model.config.text_config.split_ngram_parts
    trunk: dict[str, Tensor] = {}
    draft: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        value = tensor.detach().cpu().to(torch.bfloat16) if tensor.is_floating_point() else tensor.detach().cpu()
        if name.startswith("mtp."):
            _add(draft, name, value, parts)
        elif name == "causal.lm_head.weight":
            trunk["lm_head.weight"] = value
        else:
            _add(trunk, "model.language_model." + name.removeprefix("causal.model."), value, parts)
    return trunk, draft


def _add(tensors: dict[str, Tensor], name: str, value: Tensor, ngram_parts: int) -> None:
    """Add one tensor, split the way the family's checkpoints split it."""
    if name.endswith("experts.gate_up_proj"):
        stem = name.removesuffix("gate_up_proj")
        for expert, fused in enumerate(value):  # [2 I, H], gate rows first
            gate, up = fused.chunk(2)
            tensors[f"{stem}{expert}.gate_proj.weight"] = gate.contiguous()
            tensors[f"{stem}{expert}.up_proj.weight"] = up.contiguous()
    elif name.endswith("experts.down_proj"):
        stem = name.removesuffix("down_proj")
        for expert, down in enumerate(value):
            tensors[f"{stem}{expert}.down_proj.weight"] = down.contiguous()
    elif name.endswith("ngram_embedding.weight"):
        stem = name.removesuffix("weight")
        for part, shard in enumerate(value.chunk(ngram_parts)):
            tensors[f"{stem}shard_{part}.weight"] = shard.contiguous()
    else:
        tensors[name] = value.contiguous()


def config_json(model: arch.DemoModel) -> dict[str, Any]:
    """The content of config.json, layer types named as published configurations name them."""
    text = model.config.text_config.to_dict()
    for key in ("transformers_version", "architectures", "_name_or_path", "number_of_conv_states", "dtype"):
        text.pop(key, None)
    text["layer_types"] = [kind if kind == "linear_attention" else "full_attention" for kind in text["layer_types"]]
    text |= {"dtype": "bfloat16", "full_attention_interval": 4, "mtp_num_hidden_layers": 1}
    config = model.config
    return {
        "architectures": ["Qwen4ExpForConditionalGeneration"],
        "model_type": "qwen4_exp",
        "dtype": "bfloat16",
        "tie_word_embeddings": False,
        "image_token_id": config.image_token_id,
        "video_token_id": config.video_token_id,
        "vision_start_token_id": config.vision_start_token_id,
        "vision_end_token_id": config.vision_end_token_id,
        "text_config": text,
    }


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def export(model: arch.DemoModel, *, tokenizer: Path, out: Path) -> None:
    """Write the folder."""
    out.mkdir(parents=True, exist_ok=True)
    trunk, draft = published_names(model)
    save_file(trunk, out / "model.safetensors", metadata={"format": "pt"})
    save_file(draft, out / "mtp.safetensors", metadata={"format": "pt"})
    total = sum(t.numel() * t.element_size() for t in trunk.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict.fromkeys(sorted(trunk), "model.safetensors")}
    _write_json(out / "model.safetensors.index.json", index)
    _write_json(out / "config.json", config_json(model))
    vocabulary = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    write_tokenizer(vocabulary, out, chat_template=TEMPLATE_PATH.read_text(encoding="utf-8"))
    ids = token_ids(vocabulary)
    _write_json(
        out / "generation_config.json",
        {
            "do_sample": True,
            "temperature": 0.7,
            "top_p": 0.8,
            "top_k": 20,
            "eos_token_id": [ids.end_of_turn, ids.end_of_document],
            "pad_token_id": ids.end_of_document,
        },
    )


def load_trained(weights: Path, tokenizer: Path, **overrides: Any) -> arch.DemoModel:
    """Return the model with the weights of a folder of pieces, in float32."""
    vocabulary = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    overrides = {"vocab_size": vocabulary.get_vocab_size(), **overrides}
    model = arch.DemoModel(arch.build_config(token_ids(vocabulary), **overrides)).float().eval()
    load_weight_bits(model, unpack_weights(read_pieces(weights)))
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description="Export the demo model in the Hugging Face layout.")
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--card", type=Path, help="copied as README.md")
    parser.add_argument("--smoke", action="store_true", help="the weights are those of train.py --smoke")
    arguments = parser.parse_args()
    overrides = arch.SMOKE_OVERRIDES if arguments.smoke else {}
    model = load_trained(arguments.weights, arguments.tokenizer, **overrides)
    export(model, tokenizer=arguments.tokenizer, out=arguments.out)
    if arguments.card:
        shutil.copyfile(arguments.card, arguments.out / "README.md")
    for path in sorted(arguments.out.iterdir()):
        print(f"{path.stat().st_size:12,} {path.name}")


if __name__ == "__main__":
    main()
