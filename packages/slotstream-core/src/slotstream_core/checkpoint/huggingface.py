"""Names of the Hugging Face layout for the tensors of ours."""

import re
from typing import Final

from slotstream_core.checkpoint.schema import HEAD, ROOT, VISION_PREFIX, TensorSpec

TEXT_PREFIXES: Final = ("model.language_model.", "model.")
"""Where the text model's tensors are: with the vision tower beside it, or alone."""

SOURCE_VISION_PREFIX: Final = "model.visual."
_VISION_NAME: Final = re.compile(
    r"^(patch_embed\.proj|pos_embed"
    r"|blocks\.\d+\.(norm1|norm2|attn\.qkv|attn\.proj|mlp\.linear_fc1|mlp\.linear_fc2)"
    r"|merger\.(norm|linear_fc1|linear_fc2))\.(weight|bias)$"
)


def source_module(spec: TensorSpec, text_prefix: str) -> str:
    """Return the module path of a tensor in the Hugging Face layout.  Experts: the path before the expert's number."""
    if spec.module == HEAD:
        return "lm_head"
    module = spec.module.replace(f"{ROOT}.", text_prefix, 1) if spec.module.startswith(ROOT) else spec.module
    return module.rpartition(".switch_mlp.")[0] + ".experts" if spec.role == "expert" else module


def projection(spec: TensorSpec) -> str:
    """Return `gate_proj`, `up_proj` or `down_proj` of an expert tensor."""
    return spec.module.rpartition(".")[2]


def vision_name(source_name: str) -> str | None:
    """Return our name of a vision tensor, or None when the name is no part of the family's vision tower."""
    rest = source_name.removeprefix(SOURCE_VISION_PREFIX)
    if rest == source_name or not _VISION_NAME.match(rest):
        return None
    return VISION_PREFIX + rest
