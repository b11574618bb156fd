"""Measure a trained demo model on a CPU.

    python -m tools.demo_model.evaluate --weights DIR --tokenizer DIR --rows DIR --out results.json [--only PART ...]

Parts: ``heldout`` (loss by source and by weight format), ``tools`` (held-out tool calls), ``draft`` (accepted drafts
on the model's own stories), ``experts`` (router loads and the hit curve) and ``samples``.  Parts already in the
results file and not asked for are kept.  Needs torch and transformers.
"""

from __future__ import annotations

import argparse
import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from tools.demo_model import architecture as arch
from tools.demo_model import fused
from tools.demo_model.data import tool_eval
from tools.demo_model.export import load_trained
from tools.demo_model.generating import Sampling, generate
from tools.demo_model.prepare import FOCUS_BIT
from tools.demo_model.quantisation import FORMATS, quantise
from tools.demo_model.rendering import load_template, render_prompt
from tools.demo_model.rows import load_rows

STORY_REQUESTS = (
    "Tell me a short story about a fox who lost its hat.",
    "Tell me a story about a brave little boat.",
    "Write a short story about a bear who could not sleep.",
    "A story about a girl named Nora and a lost key, please.",
    "Tell me a story about an old clock.",
    "I want to hear a story about a mouse who wanted to fly.",
    "Write a story about two friends and a storm.",
    "Tell me a long story about a baker.",
)
SAMPLE_REQUESTS = (
    *STORY_REQUESTS[:3],
    "Hello!",
    "Who are you?",
    "What can you do?",
    "What is 7 plus 8?",
    "What is the capital of France?",
    "I feel sad today.",
    "Tell me a joke.",
    "Why is the sky blue?",
)
POOL_SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


class Evaluation:
    """The model under test and what it is tested with."""

    def __init__(self, weights: Path, tokenizer: Path, rows: Path | None) -> None:
        self.weights, self.tokenizer_folder, self.rows = weights, tokenizer, rows
        self.tokenizer = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
        self.template = load_template()
        self.model = load_trained(weights, tokenizer)

    def heldout(self, *, rows_per_group: int) -> dict[str, Any]:
        """Loss in nats over focus tokens of held-out rows, by source and in every weight format."""
        if self.rows is None:
            raise SystemExit("evaluate: the part heldout needs --rows, a folder that prepare.py wrote")
        library = load_rows(self.rows)
        groups = library.chosen(split="heldout", stages=("pretrain", "finish"))
        results: dict[str, Any] = {}
        for form in FORMATS:
            model = load_trained(self.weights, self.tokenizer_folder)
            size_bytes = quantise(model, form)
            losses = {}
            for group in groups:
                packed = library.rows[group.start : group.start + min(rows_per_group, group.count)]
                losses[f"{group.source}.{group.stage}"] = round(focus_loss(model, packed), 4)
            mean = round(float(np.mean(list(losses.values()))), 4)
            results[form.name] = {"weight_bytes": size_bytes, "mean": mean, "losses": losses}
            print(form.name, size_bytes, mean, flush=True)
        return results

    def tools(self, *, batch: int = 25) -> dict[str, Any]:
        """Share of held-out tool requests answered right, greedy, at most 160 tokens."""
        cases = tool_eval.draw_cases()
        order = sorted(range(len(cases)), key=lambda i: len(json.dumps(cases[i].tools)))
        outputs = [""] * len(cases)
        for start in range(0, len(order), batch):
            part = order[start : start + batch]
            prompts = [
                render_prompt([dict(m) for m in cases[i].messages], self.template, tools=list(cases[i].tools))
                for i in part
            ]
            for i, ids in zip(part, self._write(prompts, most_tokens=160), strict=True):
                outputs[i] = self.tokenizer.decode(ids, skip_special_tokens=True)
            print(f"tools: {start + len(part)} of {len(order)}", flush=True)
        report = tool_eval.score_outputs(cases, outputs)
        wrong = [{"case": s.case.name, "wrote": outputs[i][:300]} for i, s in enumerate(report.scores) if not s.exact]
        return {"table": report.table(), "wrong": wrong}

    def _write(self, prompts: list[str], *, most_tokens: int, temperature: float = 0.0) -> list[list[int]]:
        sampling = Sampling(temperature=temperature)
        return generate(self.model, self.tokenizer, prompts, most_tokens=most_tokens, sampling=sampling)

    def own_stories(self) -> list[tuple[list[int], int]]:
        """Greedy stories: token ids of prompt and story, and where the story starts."""
        prompts = [render_prompt([{"role": "user", "content": q}], self.template) for q in STORY_REQUESTS]
        written = self._write(prompts, most_tokens=220)
        encoded = [self.tokenizer.encode(prompt).ids for prompt in prompts]
        return [(head + tail, len(head)) for head, tail in zip(encoded, written, strict=True)]

    def draft(self, stories: list[tuple[list[int], int]]) -> dict[str, Any]:
        """Accepted drafts when these stories are decoded greedily with two drafts a pass."""
        passes = accepted = offered = 0
        firsts: list[bool] = []
        seconds: list[bool] = []
        for ids, start in stories:
            tensor = torch.tensor([ids + [0] * 16])  # room for the rows that draft_logits leaves out
            with torch.no_grad():
                one, two, _ = arch.draft_logits(self.model, tensor, self.model.trunk(tensor).streams)
            guess = one[0].argmax(-1).tolist(), two[0].argmax(-1).tolist()
            row = start - 1
            while row + 3 < len(ids):
                first = guess[0][row] == ids[row + 2]
                second = first and guess[1][row] == ids[row + 3]
                firsts.append(first)
                if first:
                    seconds.append(second)
                passes, offered, accepted = passes + 1, offered + 2, accepted + first + second
                row += 1 + first + second
        return {
            "passes": passes,
            "accepted_of_offered": round(accepted / offered, 4),
            "first_accepted": round(float(np.mean(firsts)), 4),
            "second_accepted_after_first": round(float(np.mean(seconds)), 4),
            "tokens_a_pass": round(1 + accepted / passes, 3),
        }

    def experts(self, stories: list[tuple[list[int], int]]) -> dict[str, Any]:
        """How unevenly the router loads its experts, and the hit rate of a least-recently-used pool."""
        layers = self.model.config.text_config.num_hidden_layers
        count = self.model.config.text_config.num_experts
        loads = np.zeros((layers, count), dtype=np.int64)
        sequence: list[list[tuple[int, int]]] = []
        for ids, _ in stories:
            with torch.no_grad():
                routings = self.model.trunk(torch.tensor([ids])).routings
            chosen = [routing.chosen.numpy() for routing in routings]
            for token in range(len(ids)):
                sequence += [[(layer, int(e)) for e in chosen[layer][token]] for layer in range(layers)]
            for layer in range(layers):
                loads[layer] += np.bincount(chosen[layer].reshape(-1), minlength=count)
        top = np.sort(loads, axis=1)[:, ::-1][:, : count // 4].sum(axis=1) / loads.sum(axis=1)
        curve = {str(share): round(lru_hits(sequence, int(share * layers * count)), 4) for share in POOL_SHARES}
        return {
            "tokens": sum(len(ids) for ids, _ in stories),
            "share_of_picks_of_the_busiest_quarter_by_layer": [round(float(x), 3) for x in top],
            "lru_hit_rate_by_pool_share": curve,
        }

    def samples(self) -> list[dict[str, str]]:
        """Greedy and sampled answers."""
        answers = []
        for temperature in (0.0, 0.7):
            prompts = [render_prompt([{"role": "user", "content": q}], self.template) for q in SAMPLE_REQUESTS]
            for request, ids in zip(
                SAMPLE_REQUESTS, self._write(prompts, most_tokens=200, temperature=temperature), strict=True
            ):
                text = self.tokenizer.decode(ids, skip_special_tokens=True)
                answers.append({"request": request, "temperature": str(temperature), "answer": text})
        return answers


def focus_loss(model: arch.DemoModel, packed: np.ndarray) -> float:
    """Mean cross entropy in nats over the focus tokens of rows [R, T]."""
    total = count = 0.0
    for row in packed:
        ids = torch.from_numpy((row & (FOCUS_BIT - 1)).astype(np.int64))[None]
        focus = torch.from_numpy((row & FOCUS_BIT) != 0)[1:]
        with torch.no_grad():
            logits = model.logits(model.trunk(ids).mixed[0, :-1]).float()
        losses = torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none")
        total += float(losses[focus].sum())
        count += float(focus.sum())
    return total / max(count, 1.0)


def lru_hits(requests: list[list[tuple[int, int]]], slots: int) -> float:
    """Share of (layer, expert) requests that a pool of ``slots`` holds, least recently used out first."""
    pool: OrderedDict[tuple[int, int], None] = OrderedDict()
    hits = total = 0
    for request in requests:
        for key in request:
            total += 1
            if key in pool:
                hits += 1
                pool.move_to_end(key)
            else:
                pool[key] = None
                if len(pool) > slots:
                    pool.popitem(last=False)
    return hits / max(1, total)


PARTS = ("heldout", "tools", "draft", "experts", "samples")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure a trained demo model on a CPU.")
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--rows", type=Path, help="held-out rows; needed for the part heldout")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--rows-per-group", type=int, default=3, help="held-out rows read of each source")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    fused.install()
    evaluation = Evaluation(arguments.weights, arguments.tokenizer, arguments.rows)
    results = json.loads(arguments.out.read_text(encoding="utf-8")) if arguments.out.exists() else {}
    stories = evaluation.own_stories() if {"draft", "experts"} & set(arguments.only) else []
    for part in arguments.only:
        method = getattr(evaluation, part)
        if part == "heldout":
            results[part] = method(rows_per_group=arguments.rows_per_group)
        else:
            results[part] = method(stories) if part in ("draft", "experts") else method()
        temporary = arguments.out.with_suffix(".part")
        temporary.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        temporary.replace(arguments.out)
        print(part, json.dumps(results[part], ensure_ascii=False)[:600], flush=True)


if __name__ == "__main__":
    main()
