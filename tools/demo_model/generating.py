"""Generate with the demo model on a CPU: many prompts at once, with the family's own cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from tools.demo_model import architecture as arch


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is chosen; a temperature of 0 takes the likeliest."""

    temperature: float = 0.0
    top_k: int = 20
    top_p: float = 0.8
    seed: int = 1


def generate(
    model: arch.DemoModel,
    tokenizer: Tokenizer,
    prompts: list[str],
    *,
    most_tokens: int,
    sampling: Sampling | None = None,
) -> list[list[int]]:
    """Return the continuation's token ids of each prompt, without the end of turn."""
    sampling = sampling or Sampling()
    ends = {tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")}
    padding = tokenizer.token_to_id("<|endoftext|>")
    encoded = [tokenizer.encode(prompt).ids for prompt in prompts]
    longest = max(map(len, encoded))
    ids = torch.tensor([[padding] * (longest - len(row)) + row for row in encoded])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in encoded])
    random = torch.Generator().manual_seed(sampling.seed)
    written: list[list[int]] = [[] for _ in prompts]
    open_rows = set(range(len(prompts)))
    with torch.no_grad():
        result = model.causal(ids, attention_mask=mask, use_cache=True, logits_to_keep=1)
        for _ in range(most_tokens):
            chosen = _choose(result.logits[:, -1].float(), sampling, random)
            for row in sorted(open_rows):
                token = int(chosen[row])
                if token in ends:
                    open_rows.discard(row)
                else:
                    written[row].append(token)
            if not open_rows:
                break
            mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
            result = model.causal(chosen[:, None], attention_mask=mask, cache=result.cache, use_cache=True)
    return written


def _choose(logits: Tensor, sampling: Sampling, random: torch.Generator) -> Tensor:
    if sampling.temperature <= 0:
        return logits.argmax(-1)
    values, places = (logits / sampling.temperature).topk(sampling.top_k)
    shares = values.softmax(-1)
    shares = shares * ((shares.cumsum(-1) - shares) < sampling.top_p)
    return places.gather(-1, torch.multinomial(shares, 1, generator=random)).squeeze(-1)
