"""Which record should a full pool give up? Eviction policies replayed on recorded routing.

The routing of replies is recorded once: which experts each layer of each decode pass asked for. Every policy then
serves the same requests with the same number of slots; a request's own records are never given up for one another.
Belady, which knows the future, is the bound. `--save` keeps the trace as a compressed NumPy file and `--trace` replays
one, from this model or another: `keys` are the records of all requests one after the other, each with a number of its
own below `records`, and `sizes` says how many of them each request has.

    python -m benchmarks.offline.cache_policies [--model DIR | --trace FILE] [--save FILE] [--record]
"""

from __future__ import annotations

import argparse
import heapq
import zipfile
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from benchmarks.demo import demo_directory
from benchmarks.recording import BenchmarkResult, format_table, report
from slotstream_core.backend import Backend
from slotstream_core.checkpoint.tensors import Checkpoint
from slotstream_core.experts import ExpertArrays, ExpertLayout, Lease, ResidentExperts, StoredExperts
from slotstream_core.experts.eviction import Clock
from slotstream_core.experts.layout import trunk_modules
from slotstream_core.experts.stacks import Slots
from slotstream_core.generation.decoding import logits_row, next_logits
from slotstream_core.generation.sampling import Sampler, SamplingParams
from slotstream_core.models.registry import build_model
from slotstream_core.text.messages import ChatMessage
from slotstream_core.text.template import ChatTemplate
from slotstream_core.text.tokenizer import Tokenizer

PROMPTS = (
    "Tell me a short story about a fox who lost its hat.",
    "Write a Python function that adds two numbers.",
    "What is the capital of France, and why is it famous?",
    "Tell me about the sea, and then tell me the same again.",
)
PROTECTED = 0.8
"""Share of the slots that SLRU keeps for records used twice."""

DECAY_REQUESTS = 2_000
"""LFU halves its counts after so many requests."""

Request = tuple[int, ...]


class Policy(Protocol):
    """A cache of records. Serves requests one after the other."""

    def serve(self, keys: Request) -> int:
        """Bring in what is missing; returns how many records that is."""


class Hand(Protocol):
    """What chooses the slot to reuse."""

    def touch(self, slot: int) -> None:
        """Record a hit."""

    def victim(self, holds: Sequence[int]) -> int | None:
        """Return the slot to reuse, one that is not held."""


class CountingClock:
    """CLOCK with a small count instead of a bit: the hand takes one off as it passes."""

    def __init__(self, slots: int, *, most: int) -> None:
        self._counts, self._hand, self._most = [0] * slots, 0, most

    def touch(self, slot: int) -> None:
        self._counts[slot] = min(self._most, self._counts[slot] + 1)

    def victim(self, holds: Sequence[int]) -> int | None:
        for _ in range((self._most + 1) * len(holds)):
            slot, self._hand = self._hand, (self._hand + 1) % len(holds)
            if holds[slot]:
                continue
            if not self._counts[slot]:
                return slot
            self._counts[slot] -= 1
        return None


class ClockPolicy:
    """CLOCK exactly as the pool runs it, or with another hand."""

    def __init__(self, slots: int, hand: Hand | None = None) -> None:
        self._clock, self._slot_of = hand or Clock(slots), dict[int, int]()
        self._key_of, self._holds, self._free = [-1] * slots, [0] * slots, list(range(slots - 1, -1, -1))

    def serve(self, keys: Request) -> int:
        missing = [key for key in keys if key not in self._slot_of]
        for key in keys:
            if (slot := self._slot_of.get(key)) is not None:
                self._clock.touch(slot)
                self._holds[slot] = 1
        for key in missing:
            slot = self._free.pop() if self._free else self._clock.victim(self._holds)
            if slot is None:
                raise SystemExit("the pool is smaller than one request")
            self._slot_of.pop(self._key_of[slot], None)
            self._slot_of[key], self._key_of[slot], self._holds[slot] = slot, key, 1
        for key in keys:
            self._holds[self._slot_of[key]] = 0
        return len(missing)


class LruPolicy:
    """Give up what was not used for longest."""

    def __init__(self, slots: int) -> None:
        self._slots, self._held = slots, OrderedDict[int, None]()

    def serve(self, keys: Request) -> int:
        missing = 0
        for key in keys:
            missing += key not in self._held
            self._held[key] = None
            self._held.move_to_end(key)
        while len(self._held) > self._slots:
            self._held.popitem(last=False)
        return missing


class SlruPolicy:
    """LRU in two parts: records enter on probation, and a second use protects them from those used once."""

    def __init__(self, slots: int) -> None:
        self._slots, self._most = slots, int(PROTECTED * slots)
        self._probation, self._protected = OrderedDict[int, None](), OrderedDict[int, None]()

    def serve(self, keys: Request) -> int:
        missing = 0
        for key in keys:
            if key in self._protected:
                self._protected.move_to_end(key)
            elif key in self._probation:
                del self._probation[key]
                self._protected[key] = None
                if len(self._protected) > self._most:
                    self._probation[self._protected.popitem(last=False)[0]] = None
            else:
                missing += 1
                self._probation[key] = None
        while len(self._probation) + len(self._protected) > self._slots:
            (self._probation or self._protected).popitem(last=False)
        return missing


class LfuPolicy:
    """Give up what was used least often, where uses count half after a while; of equals, the least recent."""

    def __init__(self, slots: int) -> None:
        self._slots, self._held, self._count, self._now = slots, dict[int, int](), dict[int, float](), 0

    def serve(self, keys: Request) -> int:
        self._now += 1
        if self._now % DECAY_REQUESTS == 0:
            self._count = {key: count / 2 for key, count in self._count.items()}
        missing = sum(key not in self._held for key in keys)
        for key in keys:
            self._count[key] = self._count.get(key, 0.0) + 1
            self._held[key] = self._now
        excess = len(self._held) - self._slots
        if excess > 0:
            own = set(keys)
            others = (key for key in self._held if key not in own)
            for key in heapq.nsmallest(excess, others, key=lambda key: (self._count[key], self._held[key])):
                del self._held[key]
        return missing


class BeladyPolicy:
    """Give up what is needed last; knows every request beforehand."""

    def __init__(self, slots: int, requests: Sequence[Request]) -> None:
        self._slots, self._now, self._next = slots, -1, dict[int, int]()
        self._uses: dict[int, list[int]] = {}
        for index in range(len(requests) - 1, -1, -1):
            for key in requests[index]:
                self._uses.setdefault(key, []).append(index)

    def serve(self, keys: Request) -> int:
        self._now += 1
        missing = sum(key not in self._next for key in keys)
        for key in keys:
            self._uses[key].pop()
            self._next[key] = self._uses[key][-1] if self._uses[key] else 1 << 60
        excess = len(self._next) - self._slots
        if excess > 0:
            own = set(keys)
            others = (key for key in self._next if key not in own)
            for key in heapq.nlargest(excess, others, key=lambda key: self._next[key]):
                del self._next[key]
        return missing


class RecordedExperts:
    """Resident experts that write down what is asked for."""

    def __init__(self, inner: ResidentExperts) -> None:
        self._inner = inner
        self.group_limit = inner.group_limit
        self.requests: list[Request] = []

    def arrays(self, layer: int) -> ExpertArrays:
        return self._inner.arrays(layer)

    def places(self, layer: int) -> None:
        return None

    def open_sweep(self, *, ends_prompt: bool, threads: int = 0) -> None:
        return None

    def request(self, layer: int, experts: Sequence[int] | Slots, *, threads: int = 0) -> Lease:
        self.requests.append(tuple(layer * self.group_limit + int(expert) for expert in np.unique(experts)))
        return self._inner.request(layer, experts)

    def visit(self, layer: int, experts: Sequence[int] | Slots, *, threads: int = 0) -> Lease:
        return self.request(layer, experts, threads=threads)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--model", type=Path, help="a checkpoint directory (default: the demo)")
    source.add_argument("--trace", type=Path, help="replay this trace instead of recording one")
    parser.add_argument("--tokens", type=int, default=250, help="most tokens of a reply")
    parser.add_argument("--replies", type=int, default=32)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.125, 0.25, 0.5, 0.75], help="of the experts")
    parser.add_argument("--save", type=Path, help="keep the trace")
    parser.add_argument("--record", action="store_true", help="keep the result under benchmarks/results")
    options = parser.parse_args()
    settings: dict[str, int | float | str]
    if options.trace is not None:
        requests, records = read_trace(options.trace)
        settings = {"trace": options.trace.name}
    else:
        requests, records = record_routing(options.model or demo_directory(), options.replies, options.tokens)
        model = "demo" if options.model is None else options.model.name
        settings = {"model": model, "replies": options.replies, "tokens": options.tokens}
    if options.save is not None:
        keys = np.array([key for request in requests for key in request], np.uint32)
        np.savez_compressed(options.save, keys=keys, sizes=np.array([len(each) for each in requests]), records=records)
    values: dict[str, int | float] = {}
    rows = []
    for share in options.shares:
        slots = max(int(records * share), max(len(each) for each in requests))
        rates = {name: hit_rate(policy, requests) for name, policy in policies(slots, requests).items()}
        rows.append((f"{share:.1%} ({slots} slots)", *(f"{rate:.3f}" for rate in rates.values())))
        values |= {f"{name} hit_rate at {share:.3f}": rate for name, rate in rates.items()}
    header = ("pool", *policies(64, requests))
    settings |= {"requests": len(requests), "records": records}
    given = options.trace or options.model
    name = "cache_policies" if given is None else f"cache_policies_{given.stem}"
    report(
        BenchmarkResult(benchmark=name, settings=settings, values=values),
        table=format_table(header, rows),
        record=options.record,
    )


def policies(slots: int, requests: Sequence[Request]) -> dict[str, Policy]:
    """Return one empty cache a policy."""
    return {
        "CLOCK": ClockPolicy(slots),
        "CLOCK, counts to 3": ClockPolicy(slots, CountingClock(slots, most=3)),
        "LRU": LruPolicy(slots),
        "SLRU": SlruPolicy(slots),
        "LFU-decay": LfuPolicy(slots),
        "Belady": BeladyPolicy(slots, requests),
    }


def hit_rate(policy: Policy, requests: Sequence[Request]) -> float:
    """Serve every request; return the share of records that were there."""
    missing = sum(policy.serve(request) for request in requests)
    return 1 - missing / sum(len(request) for request in requests)


def read_trace(path: Path) -> tuple[list[Request], int]:
    """Return the requests of a stored trace, and how many records there are.

    Raises:
        SystemExit: The file is not a trace.
    """
    try:
        with np.load(path) as stored:
            keys, sizes, records = stored["keys"], stored["sizes"], int(stored["records"])
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise SystemExit(f"{path} is not a trace: {error}") from error
    if not sizes.size or sizes.min() < 1 or sizes.sum() != keys.size or keys.min() < 0 or keys.max() >= records:
        raise SystemExit(
            f"{path} is not a trace: {keys.size} keys, {sizes.size} sizes and {records} records do not fit"
        )
    return unpack(keys, sizes), records


def unpack(keys: npt.NDArray[np.integer], sizes: npt.NDArray[np.integer]) -> list[Request]:
    """Cut a stored trace into requests."""
    ends = np.cumsum(sizes).tolist()
    return [tuple(keys[end - size : end].tolist()) for end, size in zip(ends, sizes.tolist(), strict=True)]


def record_routing(directory: Path, replies: int, tokens: int) -> tuple[list[Request], int]:
    """Reply to the prompts in turn; return what the decode passes asked for, and how many records there are."""
    with ExitStack() as opened:
        checkpoint = opened.enter_context(Checkpoint.open(directory))
        backend = Backend.detect()
        modules = trunk_modules(checkpoint.config.num_hidden_layers)
        layout = ExpertLayout.from_checkpoint(checkpoint, modules, float_name=backend.float_name)
        experts = RecordedExperts(ResidentExperts(StoredExperts(layout), lane_count=4))
        model = opened.enter_context(build_model(checkpoint, experts, backend))
        tokenizer = Tokenizer.from_directory(
            directory, vocabulary=checkpoint.config.vocab_size, eos_ids=checkpoint.config.eos_token_ids
        )
        template = ChatTemplate.from_directory(directory)
        requests: list[Request] = []
        for seed in range(1, replies + 1):
            prompt = PROMPTS[seed % len(PROMPTS)]
            text = prompt if template is None else template.render([ChatMessage(role="user", content=prompt)])
            state, sampler = model.new_state(), Sampler(SamplingParams(seed=seed))
            row = logits_row(model.forward(tokenizer.encode(text), state).logits)
            experts.requests.clear()
            for _ in range(tokens):
                token = sampler.sample(row)
                if token in tokenizer.eos_ids:
                    break
                row = next_logits(model, state, token)
            requests += experts.requests
    return requests, layout.record_count


if __name__ == "__main__":
    main()
