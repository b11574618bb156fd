"""Does a prompt of this length really run inside its plan? A capacity check, not a benchmark."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from slotstream_core.diagnostics.footprints import FootprintSampler, mlx_memory
from slotstream_core.diagnostics.reporting import CheckItem, CheckReport
from slotstream_core.engine import Engine, load
from slotstream_core.errors import ContextLengthExceeded, GenerationCancelled, RequestError
from slotstream_core.events import Finished
from slotstream_core.generation.control import CancelToken
from slotstream_core.generation.sampling import GREEDY
from slotstream_planner import Machine, PlanRequest

__all__ = ["SMALLEST_RUNG", "ContextCheck", "check_context", "context_rungs"]

SMALLEST_RUNG: Final = 2_048
FOLLOW_UP_TOKENS: Final = 16


@dataclass(frozen=True, kw_only=True)
class ContextCheck:
    """What to run.

    Attributes:
        tokens: Prompt length.
        reply_tokens: Tokens the reply must have.
        wait_s: Longest wait for the first token; 0 for no limit.
        wall_s: Longest time for everything.
        warm_conversations: Conversations to run and revisit first.
        warm_tokens: Prompt length of each of them.
        min_free_bytes: Stop when less memory is available; None takes the planner's slack.
        keep_samples: ``"all"`` reports every footprint sample, ``"peak"`` the largest one.
    """

    tokens: int
    reply_tokens: int = 16
    wait_s: float = 1_800.0
    wall_s: float = 7_200.0
    warm_conversations: int = 0
    warm_tokens: int = 0
    min_free_bytes: int | None = None
    keep_samples: Literal["all", "peak"] = "peak"


@dataclass(frozen=True, kw_only=True)
class _Reply:
    """One request's outcome: its end, or why it was stopped."""

    finished: Finished | None
    stopped: str | None
    prompt_tokens: int
    first_token_s: float | None


def context_rungs(tokens: int) -> list[int]:
    """Return the ladder up to a length: 2,048, doubled while below it, and the length itself."""
    rungs = []
    rung = SMALLEST_RUNG
    while rung < tokens:
        rungs.append(rung)
        rung *= 2
    return [*rungs, tokens]


def check_context(directory: Path, check: ContextCheck, request: PlanRequest) -> CheckReport:
    """Load a checkpoint, run a synthetic prompt and its reply, and compare memory with the plan.

    The prompt is the same for the same length on every machine. Reply and prompt ids are reported.

    Args:
        directory: The checkpoint.
        check: What to run.
        request: The plan's options; an automatic window becomes the smallest that holds prompt and reply.

    Raises:
        RequestError: Warm conversations do not fit in the window.
        ContextLengthExceeded: Prompt and reply do not fit in it.
        SlotstreamError: The checkpoint cannot be loaded or read.
        slotstream_planner.PlannerError: No plan fits.
    """
    needed = check.tokens + check.reply_tokens
    if request.max_context == "auto":
        request = replace(request, max_context=needed)
    with load(directory, request=request) as engine:
        _refuse_misfit(engine.window_tokens, check, needed)
        started_s = time.perf_counter()
        with FootprintSampler() as sampler:
            revisits = list(_warm_up(engine, check, started_s))
            reply = _run(engine, _prompt(engine, check.tokens, 0), check, started_s)
        samples, device = sampler.samples, mlx_memory()
        plan = engine.plan
    finished = reply.finished
    made = 0 if finished is None else finished.usage.completion_tokens
    allowed = plan.expected_peak_bytes if plan.target_bytes is None else plan.target_bytes
    measured = max(samples.peak_bytes, samples.lifetime_peak_bytes)
    items = [
        CheckItem(
            name="the reply is complete",
            passed=made == check.reply_tokens,
            detail=reply.stopped or f"{made} of {check.reply_tokens} tokens",
        ),
        CheckItem(
            name="the process stayed inside its budget",
            passed=measured <= allowed,
            detail=f"{measured / 1e6:,.0f} MB of {allowed / 1e6:,.0f} MB",
        ),
        CheckItem(name="memory was sampled", passed=samples.count > 1, detail=f"{samples.count} samples"),
    ]
    if check.warm_conversations:
        items.append(
            CheckItem(
                name="every warm conversation was answered twice",
                passed=len(revisits) == 2 * check.warm_conversations and all(r.finished for r in revisits),
                detail=f"{sum(1 for r in revisits if r.finished)} of {2 * check.warm_conversations} replies",
            )
        )
    return CheckReport(
        name="context-check",
        items=tuple(items),
        facts={
            "tokens": check.tokens,
            "reply_tokens": made,
            "reply_ids": [] if finished is None else list(finished.token_ids),
            "prefill_s": None if finished is None else finished.timings.prefill_s,
            "decode_s": None if finished is None else finished.timings.decode_s,
            "first_token_s": reply.first_token_s,
            "pass_tokens": plan.prefill_chunk,
            "pool_slots": plan.pool_slots,
            "window_tokens": plan.window_tokens,
            "planned_peak_bytes": plan.expected_peak_bytes,
            "budget_bytes": allowed,
            "sampled_peak_bytes": samples.peak_bytes,
            "lifetime_peak_bytes": samples.lifetime_peak_bytes,
            "samples": samples.count,
            **device,
            "buffer_cache_limit_bytes": plan.buffer_cache_limit_bytes,
            "system_swapped_out_bytes": samples.swapped_out_bytes,
            **({"footprint_bytes": list(samples.every_bytes)} if check.keep_samples == "all" else {}),
        },
    )


def _refuse_misfit(window_tokens: int, check: ContextCheck, needed_tokens: int) -> None:
    if needed_tokens > window_tokens:
        raise ContextLengthExceeded(needed_tokens, window_tokens)
    warm = check.warm_tokens + 2 * check.reply_tokens + FOLLOW_UP_TOKENS
    if check.warm_conversations and not (check.warm_tokens > 0 and warm <= window_tokens):
        raise RequestError(
            f"each warm conversation takes {warm} tokens with its follow-up and the window has "
            f"{window_tokens}; give 1 or more --warm-tokens that fit, or a larger --max-context"
        )


def _warm_up(engine: Engine, check: ContextCheck, started_s: float) -> Iterator[_Reply]:
    """Run distinct conversations, then each one's follow-up, in turn."""
    histories: list[list[int]] = []
    for number in range(check.warm_conversations):
        prompt = _prompt(engine, check.warm_tokens, 1 + number)
        reply = _run(engine, prompt, check, started_s)
        yield reply
        histories.append(prompt + ([] if reply.finished is None else list(reply.finished.token_ids)))
    for number, history in enumerate(histories):
        follow_up = _prompt(engine, FOLLOW_UP_TOKENS, 1_000 + number)
        yield _run(engine, history + follow_up, check, started_s)


def _prompt(engine: Engine, tokens: int, number: int) -> list[int]:
    """Return a fixed pseudo-random prompt without end tokens: a linear congruence over the vocabulary."""
    limit = engine.plan.geometry.vocabulary
    value, ids = 12_345 + 7_919 * number, list[int]()
    while len(ids) < tokens:
        value = (1_103_515_245 * value + 12_345) % 2**31
        token = value % limit
        if token not in engine.tokenizer.eos_ids:
            ids.append(token)
    return ids


def _run(engine: Engine, prompt: list[int], check: ContextCheck, started_s: float) -> _Reply:
    """Generate; stop at the wait, at the wall, or when memory runs short, always between two passes or tokens."""
    cancel = CancelToken()
    begun_s, first_s, stopped = time.perf_counter(), None, None
    try:
        for event in engine.generate(prompt, sampling=GREEDY, max_tokens=check.reply_tokens, cancel=cancel):
            now_s = time.perf_counter()
            if isinstance(event, Finished):
                return _Reply(
                    finished=event, stopped=None, prompt_tokens=len(prompt), first_token_s=first_s or now_s - begun_s
                )
            reading = getattr(event, "done_tokens", len(prompt)) < len(prompt)
            if not reading and first_s is None:
                first_s = now_s - begun_s
            stopped = stopped or _reason_to_stop(check, now_s - begun_s, now_s - started_s, reading=reading)
            if stopped is not None:
                cancel.cancel()
    except GenerationCancelled:
        pass
    return _Reply(finished=None, stopped=stopped, prompt_tokens=len(prompt), first_token_s=first_s)


def _reason_to_stop(check: ContextCheck, request_s: float, total_s: float, *, reading: bool) -> str | None:
    if reading and 0 < check.wait_s < request_s:
        return f"stopped after {request_s:.0f} s without a first token (--max-prefill-wait)"
    if total_s > check.wall_s:
        return f"stopped after {total_s:.0f} s (--wall-seconds)"
    machine = Machine.current()
    least = machine.slack_bytes if check.min_free_bytes is None else check.min_free_bytes
    if machine.available_bytes is not None and machine.available_bytes < least:
        return f"stopped with {machine.available_bytes / 1e9:.2f} GB of memory available (--min-free-gb)"
    return None
