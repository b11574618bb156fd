"""The configurations and prompts of the parity goldens. Plain data: read by the tests and by `make_goldens.py`."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

VOCAB_SIZE = 288
EOS_ID = 256
GREEDY_TOKENS = 8

_EIGHT_INDEX_HEADS = {"indexer_n_heads": 8}
# A block scores exactly 0 when every index head disagrees with it. With eight heads that does not happen at the edge of
# the budget; `equal-scores` has two heads and is about what happens when it does.


@dataclass(frozen=True, kw_only=True)
class ParityCase:
    """One golden: a model and a prompt.

    Attributes:
        name: Of the golden's file.
        overrides: Settings of the text model that differ from the tiny synthetic one.
        prompt_tokens: Length of the prompt.
        eos_at: Positions of the prompt that hold the end-of-document id.
    """

    name: str
    overrides: Mapping[str, Any]
    prompt_tokens: int = 72
    eos_at: tuple[int, ...] = ()

    @property
    def settings(self) -> dict[str, Any]:
        """All overrides of the tiny synthetic settings."""
        return {"vocab_size": VOCAB_SIZE, **self.overrides}

    def prompt(self) -> list[int]:
        """The ids of the prompt, the same on every machine."""
        digest = b"".join(
            hashlib.sha256(f"{self.name}:{block}".encode()).digest() for block in range(self.prompt_tokens // 32 + 1)
        )
        ids = list(digest[: self.prompt_tokens])
        for position in self.eos_at:
            ids[position] = EOS_ID
        return ids


CASES = (
    ParityCase(name="everything-visible", overrides={"indexer_budget": 256, "num_hidden_layers": 8}, eos_at=(30,)),
    ParityCase(
        name="selected-pairs",
        overrides={
            **_EIGHT_INDEX_HEADS,
            "indexer_budget": 8,
            "indexer_compress_ratio": 2,
            "hc_count": 2,
            "output_gate_type": "silu",
        },
        eos_at=(0, 17, 18),
    ),
    ParityCase(
        name="selected-blocks",
        overrides={
            **_EIGHT_INDEX_HEADS,
            "indexer_budget": 24,
            "full_attention_interval": 2,
            "num_hidden_layers": 6,
            "ple_layer_ids": [3],
        },
        prompt_tokens=130,
        eos_at=(63,),
    ),
    ParityCase(
        name="single-kv-head",
        overrides={"num_key_value_heads": 1, "hc_count": 3, "indexer_budget": 256, "output_gate_type": "silu"},
    ),
    ParityCase(
        name="wide-values",
        overrides={
            **_EIGHT_INDEX_HEADS,
            "linear_num_value_heads": 6,
            "linear_value_head_dim": 32,
            "num_experts": 12,
            "num_experts_per_tok": 3,
            "indexer_budget": 32,
        },
        eos_at=(41,),
    ),
    ParityCase(
        name="wide-keys",
        overrides={
            "linear_num_value_heads": 2,
            "linear_key_head_dim": 32,
            "linear_value_head_dim": 8,
            "linear_conv_kernel_dim": 3,
            "norm_topk_prob": False,
            "num_key_value_heads": 4,
            "indexer_budget": 256,
        },
    ),
    ParityCase(
        name="two-ngram-layers",
        overrides={
            **_EIGHT_INDEX_HEADS,
            "ple_layer_ids": [1, 3],
            "ngram_size": 4,
            "ple_embed_dim": 96,
            "ple_conv_kernel_size": 3,
            "split_ngram_parts": 2,
            "indexer_budget": 40,
            "indexer_compress_ratio": 8,
        },
        prompt_tokens=90,
        eos_at=(5, 7, 50, 88),
    ),
    ParityCase(name="equal-scores", overrides={"num_hidden_layers": 8}, prompt_tokens=120, eos_at=(33,)),
)
"""Between them: selection active and not, with and without equal scores at its edge; 2, 3 and 4 streams; both output
gates; grouped, single and full KV heads; unequal key and value widths both ways; two n-gram layers, longer n-grams;
ends of document first, last, side by side and between."""


DRAFT_CASES = (
    ParityCase(name="draft-head", overrides={"indexer_budget": 256, "num_hidden_layers": 4}, prompt_tokens=51),
    ParityCase(
        name="draft-head-three-streams",
        overrides={"indexer_budget": 256, "hc_count": 3, "norm_topk_prob": False, "num_key_value_heads": 1},
        prompt_tokens=43,
    ),
)
"""Checkpoints with a draft head, within the budget of its indexer."""


def draft_rows(prompt_tokens: int) -> int:
    """How many rows of a prompt have a recorded first and second draft."""
    return (prompt_tokens - 3) // 8 * 8
