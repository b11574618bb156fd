"""Does reading a prompt expert by expert compute what reading it through the pool computes?"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from slotstream_core.diagnostics.continuing import continue_greedily, invented_ids, read_prompt
from slotstream_core.diagnostics.reporting import CheckItem, CheckReport
from slotstream_core.loading import LoadedModel, load_model
from slotstream_core.models.qwen4_exp.reading import SWEEP_ROWS
from slotstream_core.options import EngineOptions
from slotstream_planner import PlanRequest

__all__ = ["check_sweeps"]


@dataclass(frozen=True, kw_only=True)
class _Read:
    """A prompt that was read: bits of its logits, its greedy continuation, and how many layers went by expert."""

    logits: bytes
    ids: list[int]
    sweeps: int


def check_sweeps(
    directory: Path, *, prompt_tokens: int = 600, max_tokens: int = 24, experts_per_layer: int = 1
) -> CheckReport:
    """Read one prompt with an empty pool, with a filled one, and with sweeps switched off, each in equal passes.

    Args:
        directory: The checkpoint.
        prompt_tokens: Tokens of the prompt; passes of 256 and more go expert by expert.
        max_tokens: Tokens to generate after each reading.
        experts_per_layer: The pool's slots, as a number a layer.

    Raises:
        SlotstreamError: The checkpoint cannot be loaded or read.
        slotstream_planner.PlannerError: No plan fits.
    """
    request = PlanRequest(experts_per_layer=experts_per_layer)
    options = EngineOptions.from_environment(os.environ)
    swept = replace(options, sweep=replace(options.sweep, enabled=True))
    with load_model(directory, request=request, options=swept) as loaded:
        cold = _read(loaded, prompt_tokens, max_tokens)
        warm = _read(loaded, prompt_tokens, max_tokens)
        loaded.experts.pool.check_integrity()
        slots, records = loaded.plan.pool_slots, loaded.plan.geometry.total_experts
    with load_model(
        directory, request=request, options=replace(swept, sweep=replace(swept.sweep, enabled=False))
    ) as loaded:
        pooled = _read(loaded, prompt_tokens, max_tokens)
        loaded.experts.pool.check_integrity()
    reason = f"{cold.sweeps} and {warm.sweeps} layers; {slots} slots for {records} experts"
    return CheckReport(
        name="sweep-check",
        items=(
            CheckItem(
                name="the prompt was read expert by expert", passed=cold.sweeps > 0 and warm.sweeps > 0, detail=reason
            ),
            CheckItem(name="the comparison was read through the pool", passed=pooled.sweeps == 0),
            CheckItem(
                name="a filled pool gives the bits of an empty one",
                passed=cold.logits == warm.logits,
                detail=f"{len(cold.logits):,} bytes of logits",
            ),
            CheckItem(name="the reply is the same after a filled pool", passed=cold.ids == warm.ids),
            CheckItem(name="the reply is the same without sweeps", passed=cold.ids == pooled.ids),
        ),
        facts={
            "ids": cold.ids,
            "prompt_tokens": prompt_tokens,
            "pool_slots": slots,
            "same_bits_without_sweeps": cold.logits == pooled.logits,
        },
    )


def _read(loaded: LoadedModel, prompt_tokens: int, max_tokens: int) -> _Read:
    before, pass_tokens = loaded.experts.stats.sweeps, max(loaded.plan.prefill_chunk, SWEEP_ROWS)
    state, row = read_prompt(loaded, invented_ids(loaded, prompt_tokens), pass_tokens=pass_tokens)
    sweeps = loaded.experts.stats.sweeps - before
    return _Read(logits=row.tobytes(), ids=continue_greedily(loaded, state, row, max_tokens), sweeps=sweeps)
