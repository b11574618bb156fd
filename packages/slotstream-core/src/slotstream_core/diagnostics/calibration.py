"""Record what this machine does with a model: hit rate by pool size, time without reads, rate of reads.

The planner's forecast prefers such a profile to published and assumed figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slotstream_core.backend import Backend
from slotstream_core.engine import load
from slotstream_core.errors import RequestError
from slotstream_core.events import Finished
from slotstream_core.generation.sampling import SamplingParams
from slotstream_core.memory import machine_here
from slotstream_planner import InsufficientMemory, ModelGeometry, PlanRequest
from slotstream_planner.forecast import rate_of_waits
from slotstream_planner.hitcurves import HitCurve, RecordedProfile
from slotstream_planner.hosts import stall_s_per_layer

__all__ = ["SHARES", "record_profile"]

SHARES: Final = (0.125, 0.25, 0.5, 0.75, 1.0)
"""Shares of the experts that get a slot, one loading each."""

PROMPT: Final = "Tell me a short story about a journey, and explain what everyone in it learned."


@dataclass(frozen=True, kw_only=True)
class _Measurement:
    """One pool size: the share it holds and its second, warm reply."""

    share: float
    finished: Finished

    @property
    def tokens(self) -> int:
        return max(1, self.finished.usage.completion_tokens - 1)

    @property
    def decode_tok_s(self) -> float:
        """Speed of the reply after its first token."""
        return self.tokens / self.finished.timings.decode_s

    @property
    def hit_rate(self) -> float:
        """Hits over lookups; 1 when nothing was looked up because every expert is in memory to stay."""
        experts = self.finished.experts
        lookups = experts.hits + experts.misses
        return experts.hits / lookups if experts.misses else 1.0


def record_profile(
    directory: Path, *, name: str, tokens: int = 96, shares: Sequence[float] = SHARES
) -> RecordedProfile:
    """Load a model at several pool sizes and measure the second reply of each.

    Sizes that do not fit in memory are left out. The figures include the reading of one short prompt.

    Args:
        directory: The checkpoint.
        name: The model's name in the profile.
        tokens: Most tokens of a reply.
        shares: Ascending shares of the experts to give a slot.

    Raises:
        RequestError: Fewer than two sizes fit in memory.
        SlotstreamError: The checkpoint cannot be loaded or read.
    """
    measurements: dict[int, _Measurement] = {}
    for share in shares:
        try:
            slots, measurement = _measure(directory, share, tokens)
        except InsufficientMemory:
            break
        measurements[slots] = measurement
    if len(measurements) < 2:
        raise RequestError(
            f"only {len(measurements)} pool size of {name} fits in memory and a profile needs two; free memory"
        )
    sizes = list(measurements.values())
    best, points = 0.0, list[tuple[float, float]]()
    for each in sizes:
        best = max(best, each.hit_rate)
        points.append((each.share, best))
    geometry = ModelGeometry.from_checkpoint(directory, compute="bf16")
    largest, smallest = sizes[-1], sizes[0]
    return RecordedProfile(
        model=name,
        curve=HitCurve(points=tuple(points), source="recorded on this machine"),
        host_s_per_token=(largest.finished.timings.decode_s - largest.finished.experts.read_wait_s) / largest.tokens,
        prompt_s_per_token=largest.finished.timings.prefill_s / largest.finished.usage.prompt_tokens,
        disk_bytes_per_s=rate_of_waits(
            geometry,
            read_bytes=smallest.finished.experts.bytes_read / smallest.tokens,
            wait_s=smallest.finished.experts.read_wait_s / smallest.tokens,
            stall_s=stall_s_per_layer(machine_here(Backend.detect()).kind),
        ),
        decode_tok_s=tuple((each.share, each.decode_tok_s) for each in sizes),
    )


def _measure(directory: Path, share: float, tokens: int) -> tuple[int, _Measurement]:
    """Return the slots a share really got, and the second of two equal replies."""
    experts = ModelGeometry.from_checkpoint(directory, compute="bf16").experts
    request = PlanRequest(experts_per_layer=max(1, round(share * experts)))
    with load(directory, request=request) as engine:
        ids = engine.tokenizer.encode(PROMPT)[: max(1, engine.window_tokens - tokens)]
        finished = [
            _reply(list(engine.generate(ids, sampling=SamplingParams(seed=1), max_tokens=tokens))) for _ in range(2)
        ]
        slots = engine.plan.pool_slots
        return slots, _Measurement(share=slots / engine.plan.geometry.total_experts, finished=finished[-1])


def _reply(events: Sequence[object]) -> Finished:
    last = events[-1]
    if not isinstance(last, Finished):
        raise RequestError("the reply ended without its last event, so nothing was measured")
    return last
