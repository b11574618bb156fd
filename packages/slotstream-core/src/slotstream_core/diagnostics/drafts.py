"""Does drafting leave what is generated alone, and what does it bring?"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from slotstream_core.backend import Backend
from slotstream_core.checkpoint.tensors import Checkpoint
from slotstream_core.diagnostics.continuing import read_prompt
from slotstream_core.diagnostics.prompts import PROMPTS
from slotstream_core.diagnostics.reporting import CheckItem, CheckReport
from slotstream_core.drafting import choose_depths
from slotstream_core.errors import CheckpointError
from slotstream_core.events import DraftCounts
from slotstream_core.experts import StreamedExperts
from slotstream_core.generation.decoding import Decoder, PlainDecoder, Row, next_logits
from slotstream_core.generation.sampling import GREEDY, Sampler
from slotstream_core.generation.speculation import SpeculativeDecoder
from slotstream_core.loading import LoadedModel, load_model
from slotstream_core.options import EngineOptions
from slotstream_core.text.messages import ChatMessage
from slotstream_core.text.template import ChatTemplate
from slotstream_core.text.tokenizer import Tokenizer
from slotstream_planner import InsufficientMemory, PlanRequest

__all__ = ["DEPTHS", "check_drafts"]

DEPTHS: Final = (1, 2, 4)
"""How many tokens are drafted for a pass, in the exact mode."""

_ROWS: Final = DEPTHS[-1] + 1
"""Rows of the deepest verify pass."""

Placement = Literal["streamed", "resident"]


@dataclass(frozen=True, kw_only=True)
class _Run:
    """A greedy continuation.

    Attributes:
        ids: Its tokens.
        seconds: From the first token, which the prompt's reading gave, to the last.
        counts: What was drafted; None without drafts.
    """

    ids: list[int]
    seconds: float
    counts: DraftCounts | None = None

    @property
    def tokens_per_second(self) -> float:
        return (len(self.ids) - 1) / self.seconds if self.seconds else 0.0


def check_drafts(directory: Path, request: PlanRequest | None = None, *, max_tokens: int = 32) -> CheckReport:
    """Continue a prompt greedily without the draft head, with a streamed one and with a resident one.

    After each loading one run goes before those that are timed, so that no cold pool is measured. Where there is no
    memory for a resident head, the report's facts say so under `left_out`.

    Args:
        directory: The checkpoint.
        request: What the plan to load under should achieve; its draft head is switched here.
        max_tokens: Tokens of a continuation, at least 4.

    Raises:
        CheckpointError: There is no draft head.
        SlotstreamError: The checkpoint cannot be loaded or read.
        slotstream_planner.PlannerError: No plan fits.
    """
    prompt = _prompt_ids(directory)
    request = request or PlanRequest()
    with _load(directory, replace(request, mtp="off")) as loaded:
        _continue(loaded, prompt, max_tokens, depth=0)
        plain = _continue(loaded, prompt, max_tokens, depth=0)
        loaded.experts.pool.check_integrity()
    facts: dict[str, Any] = {"ids": plain.ids, "tokens_per_s": plain.tokens_per_second, "with_head": []}
    items = list[CheckItem]()
    with _load(directory, replace(request, mtp="on", mtp_experts="streamed")) as loaded:
        items += _check_head(loaded, "streamed", prompt, plain, facts)
        items += [_check_streaming(loaded), *_check_rows(loaded, prompt, plain.ids)]
    try:
        resident = _load(directory, replace(request, mtp="on", mtp_experts="resident"))
    except InsufficientMemory as error:
        facts["left_out"] = f"a resident head: {error}"
    else:
        with resident as loaded:
            items += _check_head(loaded, "resident", prompt, plain, facts)
    return CheckReport(name="mtp-check", items=tuple(items), facts=facts)


def _prompt_ids(directory: Path) -> list[int]:
    """Return a question in the model's chat template, or as it is where there is none.

    Raises:
        CheckpointError: There is no draft head, so there is nothing to ask.
    """
    with Checkpoint.open(directory) as checkpoint:
        if not checkpoint.draft:
            raise CheckpointError(
                f"{directory} has no draft head (mtp.safetensors), so there is nothing to check; convert or pull the "
                "model with its draft head"
            )
        config = checkpoint.config
    tokenizer = Tokenizer.from_directory(directory, vocabulary=config.vocab_size, eos_ids=config.eos_token_ids)
    template, text = ChatTemplate.from_directory(directory), PROMPTS[0]
    return tokenizer.encode(template.render([ChatMessage(role="user", content=text)]) if template else text)


def _load(directory: Path, request: PlanRequest) -> LoadedModel:
    options = replace(EngineOptions.from_environment(os.environ), row_invariant=True)
    return load_model(directory, request=request, options=options)


def _continue(loaded: LoadedModel, prompt: Sequence[int], count: int, *, depth: int) -> _Run:
    """Generate greedily, end-of-text or not, with this many drafts a pass; 0 is plain decoding."""
    state, row = read_prompt(loaded, prompt)
    decoder: Decoder = PlainDecoder(loaded.model, state, Sampler(GREEDY))
    if depth:
        policy = choose_depths(loaded.plan, EngineOptions(draft_depth=depth, row_invariant=True))
        decoder = SpeculativeDecoder(loaded.model, state, Sampler(GREEDY), policy, waited=loaded.waited)
    started = time.perf_counter()
    ids = list(decoder.tokens(row, limit=count))
    seconds = time.perf_counter() - started
    return _Run(ids=ids, seconds=seconds, counts=decoder.counts if isinstance(decoder, SpeculativeDecoder) else None)


def _check_head(
    loaded: LoadedModel, placement: Placement, prompt: Sequence[int], plain: _Run, facts: dict[str, Any]
) -> list[CheckItem]:
    """Compare what is generated with a head, in use or not, with plain decoding."""
    _continue(loaded, prompt, len(plain.ids), depth=0)
    items = list[CheckItem]()
    for depth in (0, *DEPTHS):
        run = _continue(loaded, prompt, len(plain.ids), depth=depth)
        items.append(_same(f"a {placement} head that drafts {depth or 'nothing'} leaves the ids alone", plain, run))
        facts["with_head"].append(
            {
                "placement": placement,
                "depth": depth,
                "drafted": run.counts.drafted if run.counts else 0,
                "accepted": run.counts.accepted if run.counts else 0,
                "tokens_per_s": run.tokens_per_second,
            }
        )
    loaded.experts.pool.check_integrity()
    return items


def _same(name: str, plain: _Run, found: _Run) -> CheckItem:
    """Say whether a run has the ids of plain decoding, having drafted if it was to."""
    different = next((i for i, (a, b) in enumerate(zip(plain.ids, found.ids, strict=False)) if a != b), None)
    passed = different is None and len(plain.ids) == len(found.ids)
    detail = f"{len(found.ids)} of {len(plain.ids)} ids" if different is None else f"first difference at id {different}"
    if (counts := found.counts) is not None:
        passed = passed and counts.drafted > 0 and not counts.failed_reads
        detail += f"; {counts.accepted} of {counts.drafted} drafts accepted"
        detail += f" ({counts.accepted / counts.drafted:.0%})" if counts.drafted else ""
        detail += f", {counts.failed_reads} failed reads" if counts.failed_reads else ""
    detail += f"; {found.tokens_per_second:.2f} tokens/s, {plain.tokens_per_second:.2f} without the head"
    return CheckItem(name=name, passed=passed, detail=detail)


def _check_streaming(loaded: LoadedModel) -> CheckItem:
    """Look at the slots of a head that streams."""
    name = "a streamed head reads its experts and uses them again"
    head = loaded.draft_experts
    if head is None or not isinstance(head.experts, StreamedExperts):
        return CheckItem(name=name, passed=False, detail="the head was not streamed")
    head.experts.pool.check_integrity()
    stats = head.stats
    detail = f"{stats.misses} read, {stats.hits} found in its {head.experts.pool.slot_count} slots"
    return CheckItem(name=name, passed=stats.bytes_read > 0 and stats.hits > 0, detail=detail)


def _check_rows(loaded: LoadedModel, prompt: Sequence[int], ids: Sequence[int]) -> list[CheckItem]:
    """Compare a recorded pass of several rows, whole and cut anywhere, with passes of one row."""
    tokens = list(islice(cycle([*ids, *prompt]), _ROWS + 1))
    start, _ = read_prompt(loaded, prompt)
    whole, single = start.fork(), start.fork()
    recorded = np.array(tokens[:-1], np.int32)
    rows = np.array(loaded.model.forward(recorded, whole, logits="all", record=True, decode=True).logits)
    alike, cut, drafted = list[bool](), list[bool](), list[bool]()
    row = next_logits(loaded.model, single, tokens[0])
    for count, token in enumerate(tokens[1:], 1):
        alike.append(_alike(rows[count - 1], row))
        shorter = whole.fork()
        shorter.trim(start.length + count)
        shorter.forget_passes()
        guesses = [loaded.model.draft(state.fork(), token, DEPTHS[-1]) for state in (shorter, single)]
        drafted.append(guesses[0] == guesses[1])
        row = next_logits(loaded.model, single, token)
        cut.append(_alike(next_logits(loaded.model, shorter, token), row))
    bits = "bits" if _exact() else "most likely token"
    return [
        _all(f"a row of a pass of {len(rows)} has the {bits} of a pass of its own", alike, "rows"),
        _all(f"a pass cut anywhere goes on with the {bits} of a shorter one", cut, "cuts"),
        _all("a pass cut anywhere drafts as a shorter one", drafted, "cuts"),
    ]


def _exact() -> bool:
    """Whether passes of few rows give each row the bits of a pass of its own here."""
    return Backend.detect().kind == "cpu"


def _alike(one: Row, other: Row) -> bool:
    return np.array_equal(one, other) if _exact() else bool(one.argmax() == other.argmax())


def _all(name: str, held: Sequence[bool], what: str) -> CheckItem:
    return CheckItem(name=name, passed=all(held), detail=f"{sum(held)} of {len(held)} {what}")
