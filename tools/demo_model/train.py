"""Train the demo model, on one GPU, several, or (``--smoke``) a CPU.

    torchrun --standalone --nproc-per-node 4 -m tools.demo_model.train --rows DIR --tokenizer DIR --work DIR --out DIR \
        --steps 6000
    python -m tools.demo_model.train --smoke --rows DIR --tokenizer DIR --work DIR --out DIR

A run stops by itself after ``--stop-after-s`` and resumes from ``--work``.  Needs torch and transformers.
README.md beside this has the recipe of the shipped weights.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as distributed
from tokenizers import Tokenizer
from torch import Tensor

from tools.demo_model import architecture as arch
from tools.demo_model import fused
from tools.demo_model.flat_optimizer import FlatOptimizer, Schedule
from tools.demo_model.prepare import FOCUS_BIT
from tools.demo_model.rows import RowLibrary, RowSampler, load_rows
from tools.demo_model.weights_archive import pack_weights, read_pieces, unpack_weights, write_pieces

SMOKE_ROW_TOKENS = 128
LOG_FIELDS = (
    "step", "seconds", "tokens", "loss", "balance", "draft_1", "draft_2", "rate", "grad_norm", "draft_grad_norm"
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a run does, apart from where its files are."""

    steps: int
    rows_per_process: int
    peak_rate: float
    draft_rate: float
    warmup_steps: int
    finish_from: float
    """Share of the steps after which only the finishing documents are read."""
    draft_from: float
    """Share of the steps after which the draft head learns too."""
    prompt_weight: float
    """Loss weight of tokens that are not focus tokens, before the finish."""
    finish_prompt_weight: float
    balance_weight: float
    weight_decay: float
    seed: int


def token_ids(tokenizer: Tokenizer) -> arch.TokenIds:
    """Look up the ids the configuration needs."""
    return arch.TokenIds(
        end_of_document=tokenizer.token_to_id("<|endoftext|>"),
        end_of_turn=tokenizer.token_to_id("<|im_end|>"),
        image=tokenizer.token_to_id("<|image_pad|>"),
        video=tokenizer.token_to_id("<|video_pad|>"),
        vision_start=tokenizer.token_to_id("<|vision_start|>"),
        vision_end=tokenizer.token_to_id("<|vision_end|>"),
    )


class Trainer:
    """One process of a run."""

    def __init__(
        self, recipe: Recipe, library: RowLibrary, model: arch.DemoModel, mix: dict[str, dict[str, float]]
    ) -> None:
        self.recipe = recipe
        self.model = model
        self.device = next(model.parameters()).device
        self.rank = distributed.get_rank() if distributed.is_initialized() else 0
        self.world = distributed.get_world_size() if distributed.is_initialized() else 1
        self.library = library
        self.rows = torch.from_numpy(library.rows.astype(np.int16)).to(self.device)  # [R, T]
        named = list(model.named_parameters())
        self.trunk = FlatOptimizer.over(
            [(n, p) for n, p in named if not n.startswith("mtp.")], weight_decay=recipe.weight_decay
        )
        self.draft = FlatOptimizer.over(
            [(n, p) for n, p in named if n.startswith("mtp.")], weight_decay=recipe.weight_decay
        )
        everything = library.chosen(split="train", stages=("pretrain", "finish"))
        finish = library.chosen(split="train", stages=("finish",)) or everything
        self.samplers = {
            "pretrain": RowSampler(everything, mix.get("pretrain", {}), seed=recipe.seed),
            "finish": RowSampler(finish, mix.get("finish", {}), seed=recipe.seed + 1),
        }
        self.draws = {"pretrain": 0, "finish": 0}
        self.step_number = 0
        self.seconds = 0.0

    @property
    def finishing(self) -> bool:
        return self.step_number >= self.recipe.finish_from * self.recipe.steps

    @property
    def drafting(self) -> bool:
        return self.step_number >= self.recipe.draft_from * self.recipe.steps

    def batch(self) -> tuple[Tensor, Tensor]:
        """Return this process's token ids [B, T] int64 and target weights [B, T] float32."""
        stage = "finish" if self.finishing else "pretrain"
        count = self.recipe.rows_per_process * self.world
        numbers = self.samplers[stage].draw(count)[self.rank :: self.world]
        self.draws[stage] += 1
        packed = self.rows[torch.from_numpy(numbers).to(self.device)].long()
        light = self.recipe.finish_prompt_weight if self.finishing else self.recipe.prompt_weight
        return packed & (FOCUS_BIT - 1), torch.where((packed & FOCUS_BIT) != 0, 1.0, light)

    def step(self) -> dict[str, Tensor]:
        """Do one optimiser step; returned values are tensors so that nothing waits for the GPU."""
        recipe, model = self.recipe, self.model
        ids, weights = self.batch()
        out = model.trunk(ids)
        logits = model.logits(out.mixed[:, :-1])
        loss = fused.Parts.weighted_cross_entropy(logits, ids[:, 1:], weights[:, 1:])
        balance = arch.balance_loss(out.routings)
        (loss + recipe.balance_weight * balance).backward()
        result = {"loss": loss.detach(), "balance": balance.detach() / len(out.routings)}
        if self.drafting:
            half = max(1, ids.shape[0] // 2)
            first, second, routings = arch.draft_losses(model, ids[:half], out.streams[:half], weights[:half])
            extra = recipe.balance_weight * arch.balance_loss(routings)
            (first + 0.7 * second + extra).backward()
            result |= {"draft_1": first.detach(), "draft_2": second.detach()}
        rate = self._schedule(0.0, recipe.peak_rate).rate(self.step_number)
        result["grad_norm"] = self.trunk.step(rate)
        if self.drafting:
            draft_rate = self._schedule(recipe.draft_from, recipe.draft_rate).rate(self.step_number)
            result["draft_grad_norm"] = self.draft.step(draft_rate)
        result["rate"] = torch.tensor(rate)
        self.step_number += 1
        return result

    def _schedule(self, start: float, peak: float) -> Schedule:
        steps = self.recipe.steps
        first = int(np.ceil(start * steps))
        return Schedule(peak=peak, warmup_steps=self.recipe.warmup_steps, start=first, stop=steps)

    @torch.no_grad()
    def held_out(self, *, rows_per_group: int) -> dict[str, tuple[float, float, int]]:
        """Mean loss over focus tokens and over all tokens, and the focus count, of every held-out group."""
        results = {}
        for group in self.library.chosen(split="heldout", stages=("pretrain", "finish")):
            count = min(rows_per_group, group.count)
            packed = self.rows[group.start + self.rank : group.start + count : self.world].long()
            sums = torch.zeros(4, dtype=torch.float64, device=self.device)
            for part in packed.split(16) if len(packed) else ():
                ids, focus = part & (FOCUS_BIT - 1), ((part & FOCUS_BIT) != 0)[:, 1:].flatten()
                logits = self.model.logits(self.model.trunk(ids).mixed[:, :-1]).flatten(0, 1).float()
                losses = torch.nn.functional.cross_entropy(logits, ids[:, 1:].flatten(), reduction="none")
                sums += torch.stack(
                    [losses[focus].sum(), focus.sum(), losses.sum(), torch.tensor(len(losses)).to(losses)]
                ).double()
            if distributed.is_initialized():
                distributed.all_reduce(sums)
            focus_loss, focus_count, total, tokens = sums.tolist()
            name = f"{group.source}.{group.stage}"
            results[name] = (focus_loss / max(1, focus_count), total / max(1, tokens), int(focus_count))
        return results

    def save(self, path: Path) -> None:
        """Write a checkpoint that :meth:`load` resumes exactly (first process only)."""
        if self.rank:
            return
        state = {
            "trunk": self.trunk.state_dict(),
            "draft": self.draft.state_dict(),
            "draws": self.draws,
            "step": self.step_number,
            "seconds": self.seconds,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".part")
        torch.save(state, temporary)
        temporary.replace(path)

    def load(self, path: Path) -> None:
        """Resume from a checkpoint."""
        state = torch.load(path, map_location=self.device, weights_only=True)
        self.trunk.load_state_dict(state["trunk"])
        self.draft.load_state_dict(state["draft"])
        self.step_number, self.seconds = state["step"], state["seconds"]
        for stage, draws in state["draws"].items():
            self.draws[stage] = draws
            self.samplers[stage].skip(draws, self.recipe.rows_per_process * self.world)


def weight_bits(model: arch.DemoModel) -> dict[str, np.ndarray]:
    """The model's weights as uint16 patterns of bf16, by state-dict name."""
    return {
        name: p.detach().to(torch.bfloat16).contiguous().view(torch.int16).cpu().numpy().view(np.uint16)
        for name, p in model.named_parameters()
    }


def load_weight_bits(model: arch.DemoModel, bits: dict[str, np.ndarray]) -> None:
    """Put the weights of an archive into a model of any dtype."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.from_numpy(bits[name].view(np.int16).copy()).view(torch.bfloat16)
            parameter.copy_(values.view_as(parameter))


def append_rows(path: Path, fields: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
    """Append rows to a CSV file, with a header when it is new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fields)
        if fresh:
            writer.writeheader()
        writer.writerows(rows)


def run(trainer: Trainer, arguments: argparse.Namespace, started: float) -> None:
    """Train until the last step or the time limit, logging on the way."""
    log_path, held_path = arguments.work / "loss.csv", arguments.work / "heldout.csv"
    row_tokens = trainer.rows.shape[1]
    step_tokens = trainer.recipe.rows_per_process * trainer.world * row_tokens
    last = time.monotonic()
    window: list[dict[str, Tensor]] = []
    while trainer.step_number < trainer.recipe.steps:
        window.append(trainer.step())
        if trainer.step_number % arguments.log_every and trainer.step_number < trainer.recipe.steps:
            continue
        row: dict[str, Any] = {"step": trainer.step_number, "tokens": trainer.step_number * step_tokens}
        for name in LOG_FIELDS[3:]:
            values = [float(item[name]) for item in window if name in item]
            row[name] = f"{sum(values) / len(values):.5g}" if values else ""
        now = time.monotonic()
        rate = len(window) * step_tokens / (now - last)
        trainer.seconds += now - last
        row["seconds"] = round(trainer.seconds, 1)
        last, window = now, []
        stop = torch.tensor(float(now - started > arguments.stop_after_s), device=trainer.device)
        if distributed.is_initialized():
            distributed.broadcast(stop, 0)
        if trainer.rank == 0:
            append_rows(log_path, LOG_FIELDS, [row])
            print(json.dumps(row), f"{rate:,.0f} tokens/s", flush=True)
        if bool(stop):
            print("time limit reached", flush=True)
            break
        if trainer.step_number % arguments.evaluate_every == 0:
            log_held_out(trainer, held_path, rows_per_group=16)
            trainer.save(arguments.work / "checkpoint.pt")
            last = time.monotonic()
    log_held_out(trainer, held_path, rows_per_group=64)


def log_held_out(trainer: Trainer, path: Path, *, rows_per_group: int) -> None:
    """Measure, print and append the held-out losses."""
    with fused.plain_parts():
        results = trainer.held_out(rows_per_group=rows_per_group)
    if trainer.rank:
        return
    fields = ("step", "group", "focus_loss", "loss", "focus_tokens")
    rows = [
        {"step": trainer.step_number, "group": name, "focus_loss": f"{f:.4f}", "loss": f"{a:.4f}", "focus_tokens": n}
        for name, (f, a, n) in results.items()
    ]
    append_rows(path, fields, rows)
    print("held out:", {name: round(f, 3) for name, (f, _, _) in results.items()}, flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train the demo model.")
    parser.add_argument("--rows", type=Path, required=True, help="folder that prepare.py wrote")
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="checkpoints and logs; resumes from here")
    parser.add_argument("--out", type=Path, required=True, help="weights in pieces and logs, written at the end")
    parser.add_argument("--mix", type=Path, help="JSON: stage to source name to share of the rows drawn")
    parser.add_argument("--initial", type=Path, help="folder with weights-N.bin to start from")
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument(
        "--finish-in-s", type=float, help="set --steps so that this call ends the run in so many seconds"
    )
    parser.add_argument("--stop-after-s", type=float, default=float("inf"))
    parser.add_argument("--rows-per-process", type=int, default=64)
    parser.add_argument("--peak-rate", type=float, default=2.5e-3)
    parser.add_argument("--draft-rate", type=float, default=1.5e-3)
    parser.add_argument("--warmup-steps", type=int, default=200)
    parser.add_argument("--finish-from", type=float, default=0.8)
    parser.add_argument("--draft-from", type=float, default=0.45)
    parser.add_argument("--prompt-weight", type=float, default=0.5)
    parser.add_argument("--finish-prompt-weight", type=float, default=0.1)
    parser.add_argument("--balance-weight", type=float, default=1e-3)
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-every", type=int, default=20)
    parser.add_argument("--evaluate-every", type=int, default=500)
    parser.add_argument("--compile", action="store_true", help="compile the hot parts (a GPU)")
    parser.add_argument("--smoke", action="store_true", help="a tiny model, a few steps, on a CPU")
    arguments = parser.parse_args()
    if arguments.smoke:
        arguments.steps = min(arguments.steps, 30)
        arguments.rows_per_process, arguments.warmup_steps, arguments.log_every = 2, 5, 10
    return arguments


def recipe_of(arguments: argparse.Namespace, *, steps: int) -> Recipe:
    names = [name for name in Recipe.__dataclass_fields__ if name != "steps"]
    return Recipe(steps=steps, **{name: getattr(arguments, name) for name in names})


def steps_for(arguments: argparse.Namespace, checkpoint: Path) -> int:
    """The number of steps of the whole run, from the measured pace when ``--finish-in-s`` is given."""
    if arguments.finish_in_s is None or not checkpoint.exists():
        return int(arguments.steps)
    with (arguments.work / "loss.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))[-6:]
    done, span = int(rows[-1]["step"]), float(rows[-1]["seconds"]) - float(rows[0]["seconds"])
    pace = span / (done - int(rows[0]["step"]))
    return done + int(arguments.finish_in_s / pace)


def main() -> None:
    started = time.monotonic()
    arguments = parse_arguments()
    cuda = torch.cuda.is_available() and not arguments.smoke
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        if cuda:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        distributed.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    torch.set_float32_matmul_precision("high")
    fused.install()
    torch.manual_seed(arguments.seed)
    overrides = arch.SMOKE_OVERRIDES if arguments.smoke else {}
    tokenizer = Tokenizer.from_file(str(arguments.tokenizer / "tokenizer.json"))
    overrides = {**overrides, "vocab_size": tokenizer.get_vocab_size()}
    model = arch.DemoModel(arch.build_config(token_ids(tokenizer), **overrides))
    if arguments.initial:
        load_weight_bits(model, unpack_weights(read_pieces(arguments.initial)))
    model.to(device, torch.bfloat16 if cuda else torch.float32)
    model.select_experts_implementation("grouped_mm" if cuda else "eager")
    if arguments.compile:
        fused.compile_parts()
    for module in model.modules():  # the indexers keep their initial values
        if isinstance(module, arch.family.Qwen4ExpTextQSAIndexer):
            module.requires_grad_(False)
    mix = json.loads(arguments.mix.read_text(encoding="utf-8")) if arguments.mix else {}
    checkpoint = arguments.work / "checkpoint.pt"
    recipe = recipe_of(arguments, steps=steps_for(arguments, checkpoint))
    library = load_rows(arguments.rows)
    if arguments.smoke:
        library = replace(library, rows=library.rows[:, :SMOKE_ROW_TOKENS])
    trainer = Trainer(recipe, library, model, mix)
    if checkpoint.exists():
        trainer.load(checkpoint)
    if trainer.rank == 0:
        print(
            f"ready after {time.monotonic() - started:.1f} s, step {trainer.step_number} of {recipe.steps}",
            recipe,
            flush=True,
        )
    run(trainer, arguments, started)
    finish(trainer, arguments, checkpoint)
    if distributed.is_initialized():
        distributed.barrier()
        distributed.destroy_process_group()


def finish(trainer: Trainer, arguments: argparse.Namespace, checkpoint: Path) -> None:
    """Write weights and logs to ``--out`` and the checkpoint to ``--work``."""
    if trainer.rank:
        return
    trainer.save(checkpoint)
    archive = pack_weights(weight_bits(trainer.model), threads=min(32, os.cpu_count() or 1))
    pieces = write_pieces(archive, arguments.out)
    for name in ("loss.csv", "heldout.csv"):
        source = arguments.work / name
        if source.exists():
            (arguments.out / name).write_bytes(source.read_bytes())
    summary = {
        "step": trainer.step_number,
        "seconds": trainer.seconds,
        "processes": trainer.world,
        "epochs": {stage: sampler.epochs() for stage, sampler in trainer.samplers.items()},
        "recipe": trainer.recipe.__dict__,
    }
    (arguments.out / "run.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {len(pieces)} pieces, {len(archive)} bytes", flush=True)


if __name__ == "__main__":
    main()
