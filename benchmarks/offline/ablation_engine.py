"""The child of `benchmarks.offline.ablations`: one engine, answering prompts it is asked for.

    python -m benchmarks.offline.ablation_engine SETTINGS

SETTINGS is the JSON of a `Way`. Each line of standard input is the JSON of one prompt, `{"prompt": ..., "tokens": n}`;
each line of standard output that of one `Measured`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from benchmarks.cages import forget_pages
from slotstream_core.engine import Engine
from slotstream_core.events import Finished
from slotstream_core.experts.probing import AccessSwitch
from slotstream_core.experts.reading import LanesSwitch, RecordsSwitch
from slotstream_core.generation.sampling import GREEDY
from slotstream_core.loading import load_model
from slotstream_core.options import EngineOptions
from slotstream_core.text.template import ChatTemplate
from slotstream_core.text.tokenizer import Tokenizer
from slotstream_planner import PlanRequest
from slotstream_planner.request import Switch


@dataclass(frozen=True, kw_only=True)
class Way:
    """How an engine is set up.

    Attributes:
        model: The checkpoint directory.
        experts_per_layer: Size of the pool.
        mtp: Whether the draft head is used.
        lookahead: Whether experts are read ahead.
        direct: Whether experts are read past the page cache.
        fresh: Whether the engine starts anew for every prompt, with its files dropped from the page cache.
        warm_directory: Where it keeps what it used most; empty for nowhere. A pool is filled from there before asking.
        mirror: Another directory with the same checkpoint, which shares the reads; empty for none.
        records: Whether repacked experts are read, where there are any.
        lanes: Whether compiled lanes read experts, or Python's.
    """

    model: str
    experts_per_layer: int
    mtp: Switch = "off"
    lookahead: Switch = "off"
    direct: bool = False
    fresh: bool = False
    warm_directory: str = ""
    mirror: str = ""
    records: RecordsSwitch = "auto"
    lanes: LanesSwitch = "auto"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One prompt and its greedy reply; the counters are those of the main model's pool."""

    ids: tuple[int, ...]
    prompt_tokens: int
    prefill_s: float
    decode_s: float
    processor_s: float
    requests: int = 0
    hits: int = 0
    misses: int = 0
    bytes_read: int = 0
    wasted_bytes: int = 0
    wait_s: float = 0.0
    ahead_records: int = 0
    ahead_used: int = 0
    ahead_joined: int = 0
    sweeps: int = 0
    warmed: int = 0
    warm_used: int = 0
    drafted: int = 0
    accepted: int = 0


def main() -> None:
    """Answer prompts until the input ends."""
    way = Way(**json.loads(sys.argv[1]))
    print("ready", flush=True)
    with ExitStack() as opened:
        engine = None if way.fresh else opened.enter_context(Opened(way))
        for line in sys.stdin:
            asked = json.loads(line)
            if engine is not None:
                measured = engine.answer(asked["prompt"], asked["tokens"])
            else:
                forget_pages(sorted(Path(way.model).glob("*.safetensors")))
                with Opened(way) as started:
                    measured = started.answer(asked["prompt"], asked["tokens"])
            print(json.dumps(asdict(measured)), flush=True)


class Opened:
    """An engine set up in one way; a context manager."""

    def __init__(self, way: Way) -> None:
        directory = Path(way.model)
        request = PlanRequest(
            experts_per_layer=way.experts_per_layer, mtp=way.mtp, lookahead=way.lookahead, prefix_cache="off"
        )
        access: AccessSwitch = "direct" if way.direct else "cached"
        options = replace(
            EngineOptions.from_environment(os.environ),
            warm_start="on",
            access=access,
            records=way.records,
            lanes=way.lanes,
        )
        warm = Path(way.warm_directory) if way.warm_directory else None
        mirrors = [Path(way.mirror)] if way.mirror else []
        self._loaded = load_model(directory, request=request, options=options, warm_directory=warm, mirrors=mirrors)
        config = self._loaded.checkpoint.config
        tokenizer = Tokenizer.from_directory(directory, vocabulary=config.vocab_size, eos_ids=config.eos_token_ids)
        self._engine = Engine(self._loaded, tokenizer=tokenizer, template=ChatTemplate.from_directory(directory))
        self._loaded.experts.finish_warming()

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.close()

    @property
    def direct(self) -> bool:
        """Whether experts are read past the page cache; not every file system can."""
        return self._loaded.reading.direct

    def answer(self, prompt: str | list[int], tokens: int) -> Measured:
        """Reply greedily; a fresh engine's counters include what warmed its pool."""
        before = self._loaded.experts.stats
        warmed = before.warmed
        started = time.process_time()
        *_, last = self._engine.generate(prompt, sampling=GREEDY, max_tokens=tokens)
        processor_s = time.process_time() - started
        if not isinstance(last, Finished):
            raise SystemExit("a reply ended without its last event")
        done = self._loaded.experts.stats.since(before)
        counters = {
            name: getattr(done, name) for name in {f.name for f in fields(done)} & {f.name for f in fields(Measured)}
        }
        counters |= {"warmed": warmed}
        if last.drafts is not None:
            counters |= {"drafted": last.drafts.drafted, "accepted": last.drafts.accepted}
        return Measured(
            ids=last.token_ids,
            prompt_tokens=last.usage.prompt_tokens,
            prefill_s=last.timings.prefill_s,
            decode_s=last.timings.decode_s,
            processor_s=processor_s,
            **counters,
        )


if __name__ == "__main__":
    main()
