"""What `slotstream run` says beside the reply: `--` lines on stderr, and the same numbers as JSON."""

from typing import Any

import click

from slotstream_core.diagnostics.footprints import FootprintSamples
from slotstream_core.engine import Engine
from slotstream_core.events import DraftCounts, Finished, PromptProgress
from slotstream_core.memory import footprint

SILENT_PROMPT_TOKENS = 2_000
PROGRESS_INTERVAL_S = 5.0


def rate(tokens: int, seconds: float) -> float:
    """Return tokens a second, 0 for no time."""
    return tokens / seconds if seconds > 0 else 0.0


class RunReport:
    """Reports one run to stderr."""

    def __init__(self, *, model: str, engine: Engine) -> None:
        self._model = model
        self._engine = engine
        self._last_progress_s = 0.0

    def opening(self) -> None:
        """Say what is loaded and how much of it is in memory."""
        plan = self._engine.plan
        total = plan.geometry.total_experts
        share = plan.pool_slots / total
        rest = "nothing is streamed" if share >= 1 else "the rest is streamed from disk"
        self._line(
            f"{self._model}: {plan.pool_slots:,} of {total:,} experts fit in the pool ({share:.0%}, "
            f"{plan.pool_bytes / 1e6:,.1f} MB); {rest}"
        )
        if share < 1:
            self._line(self._engine.reading.describe())
        for note in plan.notes:
            self._line(note)

    def progress(self, event: PromptProgress) -> None:
        """Report a long prompt: first after 5 s, or from 2,000 tokens on; then at most every 5 s."""
        done = event.done_tokens == event.total_tokens
        due = event.elapsed_s - self._last_progress_s >= PROGRESS_INTERVAL_S
        long = event.total_tokens >= SILENT_PROMPT_TOKENS
        if due or (long and (done or self._last_progress_s == 0.0)):
            self._last_progress_s = event.elapsed_s
            speed = rate(event.done_tokens, event.elapsed_s)
            left = (event.total_tokens - event.done_tokens) / speed if speed else 0.0
            self._line(
                f"prompt {event.done_tokens:,} of {event.total_tokens:,} tokens, "
                f"{speed:,.1f} tok/s, about {left:,.0f} s left"
            )

    def interrupted(self) -> None:
        """Say that the run was stopped."""
        self._line("interrupted")

    def closing(self, finished: Finished, samples: FootprintSamples | None = None) -> None:
        """Report speed, traffic and memory; the peak while it generated too, when that was sampled."""
        usage, timings, experts = finished.usage, finished.timings, finished.experts
        decoded = max(0, usage.completion_tokens - 1)
        lookups = experts.hits + experts.misses
        memory = footprint()
        sampled = f"{samples.peak_bytes / 1e6:,.0f} MB sampled peak, " if samples else ""
        self._line(
            f"prefill {usage.prompt_tokens:,} tokens in {timings.prefill_s:.2f} s, "
            f"{rate(usage.prompt_tokens, timings.prefill_s):,.1f} tok/s"
        )
        self._line(
            f"decode {decoded:,} tokens in {timings.decode_s:.2f} s, {rate(decoded, timings.decode_s):,.1f} tok/s "
            f"(ended by {finished.reason}, seed {finished.seed})"
        )
        self._line(
            f"experts {experts.hits:,} hits, {experts.misses:,} misses "
            f"({experts.hits / lookups if lookups else 0.0:.1%} hits), {experts.bytes_read / 1e6:,.1f} MB read, "
            f"{experts.read_wait_s:.2f} s waited"
        )
        if experts.ahead_records:
            self._line(
                f"lookahead {experts.ahead_records:,} records read ahead, {experts.ahead_used:,} of them used, "
                f"{experts.wasted_bytes / 1e6:,.1f} MB wasted"
            )
        if pinned := self._engine.pinned_bytes:
            self._line(f"pinned {pinned / 1e6:,.1f} MB of expert files, which the device fetches from")
        if (drafts := finished.drafts) is not None:
            passes = sum(drafts.passes_by_depth)
            share = drafts.accepted / drafts.drafted if drafts.drafted else 0.0
            self._line(
                f"drafts {drafts.drafted:,} made, {drafts.accepted:,} accepted ({share:.1%}), in {passes:,} passes; "
                f"{drafts.bytes_read / 1e6:,.1f} MB read for them"
                + (", given up after a read that failed" if drafts.failed_reads else "")
            )
        self._line(
            f"memory {sampled}{memory.peak_bytes / 1e6:,.0f} MB lifetime peak, "
            f"{memory.current_bytes / 1e6:,.0f} MB now, {self._engine.plan.expected_peak_bytes / 1e6:,.0f} MB planned"
        )

    def statistics(self, finished: Finished, samples: FootprintSamples | None = None) -> dict[str, Any]:
        """Return the same numbers for `--stats-json`; seconds, bytes, tokens."""
        usage, timings, experts = finished.usage, finished.timings, finished.experts
        decoded = max(0, usage.completion_tokens - 1)
        memory = footprint()
        plan, drafts = self._engine.plan, finished.drafts or DraftCounts()
        return {
            "model": self._model,
            "finish_reason": finished.reason,
            "seed": finished.seed,
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "thinking_tokens": usage.thinking_tokens,
            "token_ids": list(finished.token_ids),
            "prefill_s": timings.prefill_s,
            "prefill_tok_s": rate(usage.prompt_tokens, timings.prefill_s),
            "decode_s": timings.decode_s,
            "decode_tok_s": rate(decoded, timings.decode_s),
            "expert_hits": experts.hits,
            "expert_misses": experts.misses,
            "expert_bytes_read": experts.bytes_read,
            "expert_wait_s": experts.read_wait_s,
            "ahead_records": experts.ahead_records,
            "ahead_used": experts.ahead_used,
            "ahead_wasted_bytes": experts.wasted_bytes,
            "draft_placement": plan.draft,
            "drafted_tokens": drafts.drafted,
            "accepted_tokens": drafts.accepted,
            "passes_by_depth": list(drafts.passes_by_depth),
            "draft_bytes_read": drafts.bytes_read,
            "draft_failed_reads": drafts.failed_reads,
            "lifetime_peak_bytes": memory.peak_bytes,
            "current_bytes": memory.current_bytes,
            "sampled_peak_bytes": samples.peak_bytes if samples else None,
            "pool_slots": plan.pool_slots,
            "total_experts": plan.geometry.total_experts,
            "expected_peak_bytes": plan.expected_peak_bytes,
            "window_tokens": plan.window_tokens,
            "record_layout": self._engine.reading.layout,
            "direct_reads": self._engine.reading.direct,
            "direct_reads_reason": self._engine.reading.access.reason,
            "pinned_bytes": self._engine.pinned_bytes,
            "bytes_by_directory": {str(path): n for path, n in self._engine.reading.bytes_by_directory.items()},
        }

    def _line(self, text: str) -> None:
        click.echo(f"-- {text}", err=True)
