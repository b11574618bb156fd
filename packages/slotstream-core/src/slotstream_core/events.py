"""What a generation says while it runs: neutral events that every front end reads."""

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "stop_string", "length"]


@dataclass(frozen=True, kw_only=True)
class PromptProgress:
    """Reading the prompt begins, or a pass of it has been read.

    Attributes:
        done_tokens: Prompt tokens in the state so far, those of a kept conversation included.
        total_tokens: Prompt tokens in all.
        elapsed_s: Seconds since reading began.
        cached_tokens: Prompt tokens that a kept conversation spares reading.
    """

    done_tokens: int
    total_tokens: int
    elapsed_s: float
    cached_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class ThinkingDelta:
    """More of the model's reasoning."""

    text: str


@dataclass(frozen=True, kw_only=True)
class TextDelta:
    """More of the answer."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Token counts of one request; `cached_tokens` of the prompt's were kept and not read again."""

    prompt_tokens: int
    completion_tokens: int
    thinking_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class ExpertTraffic:
    """What the experts of one request cost: distinct experts a layer, counted once a pass.

    Attributes:
        hits: Experts that were in memory, or on their way because a forecast named them.
        misses: Experts that had to be read on demand.
        bytes_read: Bytes of expert records read, ahead or on demand.
        read_wait_s: Time computing stood still for records.
        ahead_records: Records read ahead because a forecast named them.
        ahead_used: Of those, records that were asked for.
        wasted_bytes: Bytes of records read ahead that nobody asked for.
    """

    hits: int
    misses: int
    bytes_read: int
    read_wait_s: float
    ahead_records: int = 0
    ahead_used: int = 0
    wasted_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class DraftCounts:
    """What was drafted in one request, by the draft head or from the text itself.

    Attributes:
        drafted: Tokens guessed and verified.
        accepted: Those of them that became part of the reply.
        passes_by_depth: By number of drafts, how many passes verified so many; the first entry counts plain passes.
        failed_reads: 1 when a record of the head could not be read, after which the reply went on without drafts.
        bytes_read: Bytes of the head's own experts read from disk.
    """

    drafted: int = 0
    accepted: int = 0
    passes_by_depth: tuple[int, ...] = ()
    failed_reads: int = 0
    bytes_read: int = 0


@dataclass(frozen=True, kw_only=True)
class Timings:
    """Durations of one request in seconds: reading the prompt, then making the reply."""

    prefill_s: float
    decode_s: float


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The last event of a successful generation.

    Attributes:
        reason: `stop` for an end token, `stop_string` for a stop string, `length` for the budget or the window.
        stop_string: The stop string that was met, if any.
        token_ids: Every generated id, an end token included.
        seed: Seed of the random stream that was used.
        drafts: What the draft head did; None when none was loaded.
    """

    reason: FinishReason
    stop_string: str | None
    token_ids: tuple[int, ...]
    seed: int
    usage: Usage
    timings: Timings
    experts: ExpertTraffic
    drafts: DraftCounts | None = None


GenerationEvent = PromptProgress | ThinkingDelta | TextDelta | Finished
