"""Configuration, model and draft head of the demo model, built on the family's PyTorch implementation.

Needs torch and transformers 5.17 or 5.24.  The trunk's weights live in the library's own modules; the loop over
the layers is written out here because training wants the router logits and the streams before the final mixer,
and because the two library versions name their cache arguments differently.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from transformers import Qwen4ExpConfig
from transformers.models.qwen4_exp import modeling_qwen4_exp as family

from tools.demo_model.fused import Parts

#: The shape of the demo model.  `ple_layer_ids` counts from one: 2 is decoder index 1.
TEXT_CONFIG: dict[str, Any] = {
    "vocab_size": 8192,
    "hidden_size": 256,
    "num_hidden_layers": 8,
    "full_attention_interval": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "hidden_act": "silu",
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "output_gate_type": "sigmoid",
    "num_experts": 64,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 128,
    "norm_topk_prob": True,
    "router_aux_loss_coef": 0.002,
    "hc_count": 4,
    "hc_lowrank": 32,
    "ple_layer_ids": [2],
    "ple_embed_dim": 256,
    "ple_conv_kernel_size": 4,
    "ngram_size": 3,
    "heads_per_ngram": 2,
    "ngram_vocab_size_base": 16_000,
    "make_ngram_vocab_size_divisible_by": 128,
    "split_ngram_parts": 4,
    "seed": 1234,
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 32,
    "indexer_budget": 2048,
    "indexer_compress_ratio": 4,
    "rms_norm_eps": 1e-6,
    "initializer_range": 0.02,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1_000_000.0,
        "partial_rotary_factor": 0.25,
        "mrope_interleaved": True,
        "mrope_section": [3, 3, 2],
    },
}

#: Overrides that make a run of a few seconds on a CPU possible.
SMOKE_OVERRIDES: dict[str, Any] = {
    "hidden_size": 64,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "num_hidden_layers": 4,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "hc_lowrank": 8,
    "ple_embed_dim": 64,
    "ngram_vocab_size_base": 500,
    "rope_parameters": {**TEXT_CONFIG["rope_parameters"], "mrope_section": [2, 1, 1]},
}


@dataclass(frozen=True, kw_only=True)
class TokenIds:
    """The ids the configuration names."""

    end_of_document: int
    end_of_turn: int
    image: int
    video: int
    vision_start: int
    vision_end: int


def build_config(ids: TokenIds, **overrides: Any) -> Qwen4ExpConfig:
    """Return the family's configuration for the demo model, with ``overrides`` in the text part."""
    text = {
        **TEXT_CONFIG,
        **overrides,
        "eos_token_id": ids.end_of_document,
        "pad_token_id": None,
    }
    vision = {
        "depth": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_heads": 2,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "num_position_embeddings": 64,
        "out_hidden_size": text["hidden_size"],
    }
    return Qwen4ExpConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=ids.image,
        video_token_id=ids.video,
        vision_start_token_id=ids.vision_start,
        vision_end_token_id=ids.vision_end,
        tie_word_embeddings=False,
    )


class DraftHead(nn.Module):
    """One full-attention layer that predicts the token after next; DRAFT_HEAD.md has its arithmetic.

    Its state-dict names are those of ``mtp.safetensors`` without the ``mtp.`` prefix.
    """

    def __init__(self, text_config: Any) -> None:
        super().__init__()
        hidden, streams = text_config.hidden_size, text_config.hc_count
        eps = text_config.rms_norm_eps
        full_attention = next(index for index, kind in enumerate(text_config.layer_types) if kind != "linear_attention")
        self.hidden_size, self.stream_count = hidden, streams
        self.fc_embedding = nn.Linear(hidden, hidden, bias=False)
        self.fc_hidden = nn.Linear(hidden, hidden, bias=False)
        self.pre_fc_norm_embedding = family.Qwen4ExpTextRMSNorm(hidden, eps=eps)
        self.pre_fc_norm_hidden = family.Qwen4ExpTextRMSNorm(hidden * streams, eps=eps)
        self.layers = nn.ModuleList([family.Qwen4ExpTextDecoderLayer(text_config, full_attention)])
        self.hyper_connection_mixer = family.Qwen4ExpTextGatedResidual(text_config, use_combine=False)

    def join(self, streams: Tensor, next_embeddings: Tensor) -> Tensor:
        """Streams [B, T, S*H] and the next tokens' embeddings [B, T, H] to the layer's input [B, T, S*H]."""
        embedded = self.fc_embedding(self.pre_fc_norm_embedding(next_embeddings))
        normed = self.pre_fc_norm_hidden(streams).unflatten(-1, (self.stream_count, self.hidden_size))
        return (self.fc_hidden(normed) + embedded.unsqueeze(-2)).flatten(-2)


class Routing(NamedTuple):
    """One layer's router logits [N, E] and chosen experts [N, K]."""

    logits: Tensor
    chosen: Tensor


@dataclass(frozen=True, kw_only=True)
class TrunkOutput:
    """What one pass of the trunk yields."""

    mixed: Tensor
    """[B, T, H], input of the vocabulary head."""
    streams: Tensor
    """[B, T, S*H], the residual streams before the final mixer."""
    routings: list[Routing]
    """One a layer, N = B*T."""


class DemoModel(nn.Module):
    """The family's text model and its draft head."""

    def __init__(self, config: Qwen4ExpConfig) -> None:
        super().__init__()
        self.config = config
        self.causal = family.Qwen4ExpForCausalLM(config.text_config)
        self.mtp = DraftHead(config.text_config)
        self.mtp.apply(self.causal._init_weights)

    def select_experts_implementation(self, name: str) -> None:
        """``grouped_mm`` on a GPU, ``eager`` elsewhere."""
        self.causal.set_experts_implementation(name)

    def rotary(self, like: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines for text positions [T]."""
        cos, sin = self.causal.model.rotary_emb(like, positions.view(1, 1, -1).expand(3, 1, -1))
        return cos, sin

    def trunk(self, ids: Tensor) -> TrunkOutput:
        """Read token ids [B, T], all positions, no cache."""
        model = self.causal.model
        embeddings = model.embed_tokens(ids)
        length = ids.shape[1]
        rotary = self.rotary(embeddings, torch.arange(length, device=ids.device))
        mask = torch.ones(length, length, dtype=torch.bool, device=ids.device).tril()[None, None]
        streams = embeddings.repeat(1, 1, self.config.text_config.hc_count)
        routings: list[Routing] = []
        for layer in model.layers:
            streams = decoder_layer(layer, streams, rotary, mask, ids, routings)
        return TrunkOutput(mixed=model.hyper_connection_mixer(streams), streams=streams, routings=routings)

    def logits(self, mixed: Tensor) -> Tensor:
        """Vocabulary logits [..., V] of mixed states [..., H]."""
        return self.causal.lm_head(mixed)


def decoder_layer(
    layer: nn.Module,
    streams: Tensor,
    rotary: tuple[Tensor, Tensor],
    mask: Tensor,
    ids: Tensor | None,
    routings: list[Routing],
) -> Tensor:
    """Run one decoder layer on streams [B, T, S*H]; appends its routing."""
    if layer.ple is not None:
        streams = streams + layer.ple(streams, ids, None)
    mixed, carried, inject = layer.attn_hyper_connection(streams)
    recurrent = hasattr(layer, "linear_attn")
    mixed = layer.linear_attn(mixed) if recurrent else layer.self_attn(mixed, rotary, mask, None)[0]
    streams = Parts.inject_output(carried, mixed, inject)
    mixed, carried, inject = layer.mlp_hyper_connection(streams)
    return Parts.inject_output(carried, _experts(layer.mlp, mixed, routings), inject)


def _experts(block: nn.Module, states: Tensor, routings: list[Routing]) -> Tensor:
    flat = states.reshape(-1, states.shape[-1])
    logits, weights, chosen = block.gate(flat)
    routings.append(Routing(logits, chosen))
    routed = block.experts(flat, chosen, weights)
    shared = torch.sigmoid(block.shared_expert_gate(flat)) * block.shared_expert(flat)
    return (routed + shared).view_as(states)


def balance_loss(routings: list[Routing]) -> Tensor:
    """Switch-style balance loss, summed over layers: E * sum_e(share of picks_e * mean probability_e)."""
    total = torch.zeros((), device=routings[0].logits.device)
    for logits, chosen in routings:
        picks = torch.zeros(logits.shape[-1], device=logits.device)
        flat = chosen.reshape(-1)
        picks.scatter_add_(0, flat, torch.ones_like(flat, dtype=torch.float32))
        shares = picks / flat.numel()
        total = total + logits.shape[-1] * (shares * logits.float().softmax(-1).mean(0)).sum()
    return total


def draft_logits(model: DemoModel, ids: Tensor, streams: Tensor) -> tuple[Tensor, Tensor, list[Routing]]:
    """Logits of the first and the second drafts [B, N, V] of rows 0 to N-1, and the head's routings.

    Row t's first draft is about token t+2, its second about token t+3 given the true token t+2.

    Args:
        model: the model; its embedding and vocabulary head are used but get no gradient from here.
        ids: [B, T] token ids.
        streams: [B, T, S*H] trunk streams before the final mixer; they get no gradient either.
    """
    head = model.mtp
    count = (ids.shape[1] - 3) // 8 * 8  # rows with a known second draft, a size that attention kernels like
    table = model.causal.model.embed_tokens.weight.detach()
    vocabulary = model.causal.lm_head.weight.detach()
    device = ids.device
    positions = torch.arange(count, device=device)
    causal = torch.ones(count, count, dtype=torch.bool, device=device).tril()
    first_input = head.join(streams[:, :count].detach(), functional.embedding(ids[:, 1 : count + 1], table))
    layer = head.layers[0]
    with torch.no_grad():
        first = decoder_layer(layer, first_input, model.rotary(first_input, positions), causal[None, None], None, [])
    # Second drafts read the keys of the first drafts before them and their own, as decoding does.
    second_input = head.join(first, functional.embedding(ids[:, 2 : count + 2], table))
    both = torch.cat([first_input, second_input], dim=1)
    mask = torch.zeros(2 * count, 2 * count, dtype=torch.bool, device=device)
    mask[:count, :count] = causal
    mask[count:, :count] = causal
    mask[count:, count:] = torch.eye(count, dtype=torch.bool, device=device)
    rotary = model.rotary(both, torch.cat([positions, positions + 1]))
    routings: list[Routing] = []
    out = head.hyper_connection_mixer(decoder_layer(layer, both, rotary, mask[None, None], None, routings))
    logits = functional.linear(out, vocabulary)
    return logits[:, :count], logits[:, count:], routings


def draft_losses(
    model: DemoModel, ids: Tensor, streams: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor, list[Routing]]:
    """Losses of the first and the second drafts, ``weights`` [B, T] of each token as a target, and the routings."""
    first, second, routings = draft_logits(model, ids, streams)
    ends = first.shape[1] + 2, first.shape[1] + 3
    loss = Parts.weighted_cross_entropy
    return (
        loss(first, ids[:, 2 : ends[0]], weights[:, 2 : ends[0]]),
        loss(second, ids[:, 3 : ends[1]], weights[:, 3 : ends[1]]),
        routings,
    )
