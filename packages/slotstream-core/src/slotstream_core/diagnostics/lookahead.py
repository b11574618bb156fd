"""What the decode lookahead does on a checkpoint: agreement of its forecasts, wasted bytes, speed with and without."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from slotstream_core.checkpoint.corrections import Correction
from slotstream_core.checkpoint.tensors import Checkpoint
from slotstream_core.diagnostics.fitting import is_held_out
from slotstream_core.diagnostics.forecasts import Agreement, agreement_of, corrected_logits, record_targets
from slotstream_core.engine import load
from slotstream_core.errors import RequestError, TemplateError
from slotstream_core.events import Finished
from slotstream_core.experts.lookahead import Mode
from slotstream_core.experts.stats import ExpertStats
from slotstream_core.generation.control import CancelToken
from slotstream_core.generation.decoding import PromptReader, logits_row
from slotstream_core.generation.sampling import SamplingParams
from slotstream_core.loading import LoadedModel, find_correction, load_model
from slotstream_core.text.tokenizer import Tokenizer
from slotstream_planner import PlanRequest

__all__ = ["LookaheadReport", "SpeedRun", "encode_texts", "make_sequences", "measure_agreement", "report_lookahead"]

Progress = Callable[[int, int], None]

ARMS: Final[tuple[Mode, ...]] = ("on", "off", "off", "on")
"""Order of the runs of one prompt; the next prompt starts with the others."""


@dataclass(frozen=True, kw_only=True)
class SpeedRun:
    """Decoding with the lookahead on or off: medians over the runs, totals of the pool.

    Attributes:
        tokens_per_s: Median decode speed.
        traffic: What the pool did in all runs together, prompts included.
        tokens: Tokens decoded in all runs together.
    """

    tokens_per_s: float
    traffic: ExpertStats
    tokens: int


@dataclass(frozen=True, kw_only=True)
class LookaheadReport:
    """Agreement by target, and speed.

    Attributes:
        slots: Slots of the pool.
        total_experts: Experts of all layers.
        agreement: By kind of forecast ("boundary", "attention", and "corrected" with a correction), by target layer.
        with_it: Decoding with the lookahead on throughout.
        without: Decoding without it.
        gains: For each prompt, speed with it over speed without.
        same_ids: Whether both made the same ids for every prompt.
    """

    slots: int
    total_experts: int
    agreement: dict[str, dict[int, Agreement]]
    with_it: SpeedRun
    without: SpeedRun
    gains: tuple[float, ...]
    same_ids: bool

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values; rates in tokens a second."""
        traffic = self.with_it.traffic
        return {
            "slots": self.slots,
            "total_experts": self.total_experts,
            "recall": {kind: {t: a.recall for t, a in found.items()} for kind, found in self.agreement.items()},
            "precision": {kind: {t: a.precision for t, a in found.items()} for kind, found in self.agreement.items()},
            "with_tokens_per_s": self.with_it.tokens_per_s,
            "without_tokens_per_s": self.without.tokens_per_s,
            "median_gain": statistics.median(self.gains),
            "ahead_records": traffic.ahead_records,
            "ahead_used": traffic.ahead_used,
            "ahead_joined": traffic.ahead_joined,
            "wasted_bytes": traffic.wasted_bytes,
            "with_bytes_read": traffic.bytes_read,
            "without_bytes_read": self.without.traffic.bytes_read,
            "with_wait_s": traffic.wait_s,
            "without_wait_s": self.without.traffic.wait_s,
            "same_ids": self.same_ids,
        }


def make_sequences(
    directory: Path,
    prompts: Sequence[str],
    *,
    reply_tokens: int,
    request: PlanRequest | None = None,
    progress: Progress | None = None,
) -> list[list[int]]:
    """Return token ids of prompts in the chat template, each followed by the model's own reply.

    Args:
        directory: The checkpoint.
        prompts: One user turn each; used as plain text where the checkpoint has no chat template.
        reply_tokens: Most tokens of a reply; 0 leaves the prompts as they are.
        request: How to load the model.
        progress: Called with prompts done and prompts in all.

    Raises:
        SlotstreamError: The checkpoint cannot be loaded or read.
    """
    sequences: list[list[int]] = []
    with load(directory, request=request) as engine:
        for number, prompt in enumerate(prompts):
            try:
                ids = engine.chat_ids(prompt)
            except TemplateError:
                ids = engine.tokenizer.encode(prompt)
            ids = ids[: max(1, engine.window_tokens - reply_tokens - 1)]
            if reply_tokens:
                *_, last = engine.generate(ids, sampling=SamplingParams(seed=number + 1), max_tokens=reply_tokens)
                if isinstance(last, Finished):
                    ids = [*ids, *last.token_ids]
            sequences.append(ids)
            if progress is not None:
                progress(number + 1, len(prompts))
    return sequences


def encode_texts(directory: Path, texts: Sequence[str], *, max_tokens: int = 512) -> list[list[int]]:
    """Return the token ids of texts as they are, each cut to `max_tokens`; texts without tokens are left out.

    Raises:
        SlotstreamError: The checkpoint's configuration or tokenizer cannot be used.
    """
    with Checkpoint.open(directory) as checkpoint:
        config = checkpoint.config
    tokenizer = Tokenizer.from_directory(directory, vocabulary=config.vocab_size, eos_ids=config.eos_token_ids)
    sequences = (tokenizer.encode(text)[:max_tokens] for text in texts)
    return [ids for ids in sequences if ids]


def measure_agreement(
    loaded: LoadedModel, sequences: Sequence[Sequence[int]], correction: Correction | None
) -> dict[str, dict[int, Agreement]]:
    """Compare every kind of forecast with what the routers choose on the held-out sequences.

    Raises:
        RequestError: The model has a single layer.
        ExpertReadError: Expert bytes could not be read.
    """
    top = loaded.checkpoint.config.num_experts_per_tok
    targets = list(range(1, loaded.checkpoint.config.num_hidden_layers))
    if not targets:
        raise RequestError("a model of one layer has no layer to forecast")
    kinds = ["boundary", "attention"] + (["corrected"] if correction is not None else [])
    found = {kind: {target: Agreement() for target in targets} for kind in kinds}
    held_out = [ids for index, ids in enumerate(sequences) if is_held_out(index)] or list(sequences)
    for _, recorded in record_targets(loaded, held_out, targets):
        for target, rows in recorded.items():
            forecasts = {"boundary": rows.boundary, "attention": rows.attention}
            if correction is not None:
                forecasts["corrected"] = corrected_logits(rows, correction, target)
            for kind, logits in forecasts.items():
                found[kind][target] += agreement_of(logits, rows.actual, top=top)
    return found


def report_lookahead(
    directory: Path,
    sequences: Sequence[Sequence[int]],
    *,
    request: PlanRequest,
    tokens: int = 64,
    prompts: int = 4,
    rounds: int = 1,
    progress: Progress | None = None,
) -> LookaheadReport:
    """Measure agreement on held-out sequences, then decode from their starts with and without the lookahead in turn.

    Args:
        directory: The checkpoint.
        sequences: Token ids; speed is measured from the first half of each, at most 64 ids.
        request: How to load the model; the lookahead is on for it.
        tokens: Tokens decoded a run.
        prompts: Sequences speed is measured with.
        rounds: Times each is run four times: on, off, off, on.
        progress: Called with runs done and runs in all.

    Raises:
        RequestError: The plan leaves the lookahead out because the pool holds every expert or is too small.
        SlotstreamError: The checkpoint cannot be loaded or read.
    """
    with load_model(directory, request=request) as loaded:
        forecaster = loaded.forecaster
        if forecaster is None or loaded.plan.pool_slots >= loaded.plan.geometry.total_experts:
            raise RequestError(
                f"with {loaded.plan.pool_slots:,} of {loaded.plan.geometry.total_experts:,} experts in slots there is "
                "nothing to read ahead; give a smaller pool with --experts-per-layer"
            )
        agreement = measure_agreement(loaded, sequences, find_correction(loaded.checkpoint))
        starts = [list(ids[: max(1, min(64, len(ids) // 2))]) for ids in sequences[:prompts]]
        runs = _Runs(loaded, tokens)
        for number, start in enumerate(starts):
            for turn in range(rounds * len(ARMS)):
                mode = ARMS[(turn + number) % len(ARMS)]
                forecaster.lookahead.mode = mode
                runs.add(number, mode, start)
                if progress is not None:
                    progress(number * rounds * len(ARMS) + turn + 1, len(starts) * rounds * len(ARMS))
        return LookaheadReport(
            slots=loaded.plan.pool_slots,
            total_experts=loaded.plan.geometry.total_experts,
            agreement=agreement,
            with_it=runs.total("on"),
            without=runs.total("off"),
            gains=runs.gains(),
            same_ids=runs.same_ids(),
        )


class _Runs:
    """Decodes greedily and keeps what each run gave."""

    def __init__(self, loaded: LoadedModel, tokens: int) -> None:
        self._loaded = loaded
        self._tokens = tokens
        self._rates: dict[tuple[int, Mode], list[float]] = {}
        self._traffic: dict[Mode, ExpertStats] = {"on": ExpertStats(), "off": ExpertStats()}
        self._ids: dict[int, set[tuple[int, ...]]] = {}

    def add(self, prompt: int, mode: Mode, start: list[int]) -> None:
        model, experts = self._loaded.model, self._loaded.experts
        before = experts.stats
        state = model.new_state()
        reader = PromptReader(model, state, start, self._loaded.plan.prefill_chunk)
        for _ in reader.passes(CancelToken()):
            pass
        row, ids = reader.last_logits, list[int]()
        started = time.perf_counter()
        while row is not None and len(ids) < self._tokens:
            ids.append(int(row.argmax()))
            row = logits_row(model.forward(ids[-1:], state, decode=True).logits)
        seconds = time.perf_counter() - started
        self._rates.setdefault((prompt, mode), []).append(len(ids) / seconds)
        self._traffic[mode] = self._traffic[mode].plus(experts.stats.since(before))
        self._ids.setdefault(prompt, set()).add(tuple(ids))

    def total(self, mode: Mode) -> SpeedRun:
        rates = [rate for (_, arm), found in self._rates.items() if arm == mode for rate in found]
        return SpeedRun(
            tokens_per_s=statistics.median(rates), traffic=self._traffic[mode], tokens=len(rates) * self._tokens
        )

    def gains(self) -> tuple[float, ...]:
        return tuple(
            statistics.median(self._rates[prompt, "on"]) / statistics.median(self._rates[prompt, "off"])
            for prompt in self._ids
        )

    def same_ids(self) -> bool:
        return all(len(found) == 1 for found in self._ids.values())
