"""The server under measurement, in a process of its own: one engine whose replies go several ways in turn.

The tokens of one reply are cut into short blocks, and each block goes another way out of the engine: nowhere, to a
bare socket, or through the server.  All ways share the process, its memory and its moment, so what is left between
them is what they cost.  Blocks come in palindromes (A B C C B A), which cancels whatever grows along a reply, and the
ways change places from reply to reply.
"""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from benchmarks.demo import demo_directory
from slotstream_core.engine import load
from slotstream_core.events import Finished, GenerationEvent, TextDelta, ThinkingDelta
from slotstream_planner import PlanRequest
from slotstream_serve.dialects.catalog import all_dialects
from slotstream_serve.facts import describe_checkpoint
from slotstream_serve.governance import governed
from slotstream_serve.runner import Runner
from slotstream_serve.server import SlotstreamServer, bind
from slotstream_serve.service import Service
from slotstream_serve.settings import ServeConfig

LINE = (
    '{"model":"demo","created_at":"2026-01-01T00:00:00.000000Z",'
    '"message":{"role":"assistant","content":%s},"done":false}\n'
)

Say = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a request does, in the order that its number chooses.  A request's seed is the number of its plan.

    Attributes:
        ways: Names of the ways that take turns.
        block_tokens: Tokens of a block.
        settling_tokens: Tokens at the start of a block that do not count: they still feel the block before, and the
            server takes some to find a reply steady again.
    """

    ways: Sequence[str]
    block_tokens: int
    settling_tokens: int = 5

    @property
    def tokens(self) -> int:
        """Tokens of a whole reply: a block to settle, the palindrome, and a token that ends the last interval."""
        return (1 + 2 * len(self.ways)) * self.block_tokens + 1

    def order(self, turn: int) -> list[str]:
        """Return the ways of the blocks of a reply; the first block only settles."""
        first = turn % len(self.ways)
        turned = [*self.ways[first:], *self.ways[:first]]
        return ["", *turned, *reversed(turned)]


@dataclass
class Alternation:
    """Sends the texts of a reply on their ways and takes the time of each.

    Attributes:
        plan: Which ways.
        turn: How many replies came before.
        enter: Called with the way of a block that begins.
        pipe: Takes a text past the server.
        ended: Called before the last event with the mean seconds of a token of each way.
        served: Ways whose texts the server gets.
    """

    plan: Plan
    turn: int
    enter: Callable[[str], None]
    pipe: Callable[[str], None]
    ended: Callable[[Mapping[str, float]], None]
    served: frozenset[str]
    clock: Callable[[], float] = time.perf_counter
    seconds: dict[str, float] = field(default_factory=dict)
    _at: list[float] = field(default_factory=list)

    def events(self, generation: Iterator[GenerationEvent]) -> Iterator[GenerationEvent]:
        """Yield what the server is to see."""
        order, size = self.plan.order(self.turn), self.plan.block_tokens
        for event in generation:
            if isinstance(event, Finished):
                self._add_up(order, size)
                self.ended(self.seconds)
            if not isinstance(event, TextDelta | ThinkingDelta):
                yield event
                continue
            at = len(self._at)
            self._at.append(self.clock())
            way = order[min(at // size, len(order) - 1)]
            if at % size == 0:
                self.enter(way)
            if way == "piped":
                self.pipe(event.text)
            elif way == "" or way in self.served:
                yield event

    def _add_up(self, order: Sequence[str], size: int) -> None:
        for block, way in enumerate(order):
            if not way:
                continue
            first, last = block * size + self.plan.settling_tokens, (block + 1) * size
            if last >= len(self._at):
                raise RuntimeError(f"the reply ended after {len(self._at)} texts of {self.plan.tokens}")
            interval_s = (self._at[last] - self._at[first]) / (last - first)
            self.seconds[way] = self.seconds.get(way, 0.0) + interval_s / 2


class Alternating:
    """Replaces an engine's `generate`: the sampling's seed names what a request is for.

    Seeds of `plans` alternate; `FIRST` times a first text without the server before an ordinary reply.
    """

    FIRST = 1

    def __init__(self, engine: Any, plans: Mapping[int, Plan], pipe: socket.socket, asker: socket.socket) -> None:
        self._engine = engine
        self._generate = engine.generate
        self._plans = plans
        self._pipe, self._asker = pipe, asker
        self._turns = dict.fromkeys(plans, 0)

    def generate(self, prompt: Sequence[int], *, sampling: Any, **options: Any) -> Iterator[GenerationEvent]:
        """Generate as the engine does, with the ways of a plan."""
        if sampling.seed == self.FIRST:
            say({"first_s": self._first_s(prompt, sampling, options)})
        generation = self._generate(prompt, sampling=sampling, **options)
        plan = self._plans.get(sampling.seed)
        return generation if plan is None else self._alternated(generation, sampling.seed, plan)

    def _alternated(self, generation: Iterator[GenerationEvent], seed: int, plan: Plan) -> Iterator[GenerationEvent]:
        turn, self._turns[seed] = self._turns[seed], self._turns[seed] + 1
        served = frozenset(plan.ways) - {"alone", "piped"}
        alternation = Alternation(
            plan=plan, turn=turn, enter=self._enter, pipe=self._send, ended=self._ended, served=served
        )
        yield from alternation.events(generation)

    def _ended(self, seconds: Mapping[str, float]) -> None:
        self._enter("")
        say(seconds)

    def _enter(self, way: str) -> None:
        """Tell the process that asks for the status what to do from now on."""
        self._asker.sendall((way or "-")[:1].encode())

    def _send(self, text: str) -> None:
        """Send a text in the bytes of the server's protocol."""
        body = (LINE % json.dumps(text, ensure_ascii=False)).encode()
        self._pipe.sendall(b"%x\r\n%b\r\n" % (len(body), body))

    def _first_s(self, prompt: Sequence[int], sampling: Any, options: Mapping[str, Any]) -> float:
        """Return how long the engine takes from ids to its first text."""
        started = time.perf_counter()
        generation = self._generate(prompt, sampling=sampling, **options)
        for event in generation:
            if isinstance(event, TextDelta | ThinkingDelta):
                break
        took_s = time.perf_counter() - started
        generation.close()
        return took_s


def say(values: Mapping[str, Any]) -> None:
    """Tell the process that measures."""
    print(json.dumps(values), flush=True)


def host(plans: Mapping[int, Plan]) -> None:
    """Serve the demo model as `slotstream serve` does, with ways in turn, until this process is terminated.

    Every expert has a slot and nothing is drafted: tokens then come fastest and at an even pace.

    The first line of the output names the ports: of the server, for a client of the bare socket, and for the process
    that asks for the status; both have to connect before a reply is asked for.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    directory = demo_directory()
    config = ServeConfig(model=describe_checkpoint(directory, name="demo", names=frozenset()), port=0)
    request = PlanRequest(experts_per_layer=config.model.experts_per_layer, mtp="off", lookahead="off")
    with ExitStack() as opened:
        listener = opened.enter_context(bind(config))
        bare = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        control = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        runner = Runner(lambda: load(directory, request=request))
        engine = runner.start()
        say({name: each.getsockname()[1] for name, each in (("port", listener), ("bare", bare), ("control", control))})
        pipe, asker = (opened.enter_context(each.accept()[0]) for each in (bare, control))
        for each in (pipe, asker):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        engine.generate = Alternating(engine, plans, pipe, asker).generate  # type: ignore[method-assign,assignment]
        service = Service(runner, config, all_dialects())
        with governed(service, elastic=True):
            SlotstreamServer(service).run([listener])
