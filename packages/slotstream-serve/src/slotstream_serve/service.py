"""Everything one running server shares between its requests."""

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import Any, TypeVar

import psutil

from slotstream_serve.activity import Activity
from slotstream_serve.conversation import GenerationRequest
from slotstream_serve.dialects.base import Dialect, ModelFacts, RequestContext
from slotstream_serve.errors import Failure, Refused
from slotstream_serve.metrics import ServerMetrics
from slotstream_serve.runner import Runner, Ticket
from slotstream_serve.serving import PreparedReply, ServableEngine, prepare, prompt_ids
from slotstream_serve.settings import ServeConfig
from slotstream_serve.shapes import ErrorShapes

logger = logging.getLogger("slotstream.serve")

Value = TypeVar("Value")
LARGE_BODY_BYTES = 256 * 2**10
"""Understanding a smaller body takes less time than other requests would notice."""
SMALL_BODY_BYTES = 2 * 2**10
"""Rendering and tokenising a smaller one takes about a millisecond at most, and handing it to a thread hardly less."""
TEXT_THREADS = 2
STOP_JOIN_S = 30.0
PREFIX_GAUGES: Mapping[str, str] = {
    "hits": "Prompts that went on from a kept state.",
    "misses": "Prompts that were read from their beginning.",
    "evictions": "Kept states that made room for others.",
    "conversations": "Kept states of conversations.",
    "reusable_checkpoints": "Kept heads that conversations share.",
    "held_tokens": "Tokens of kept states, shared ones once.",
    "allocated_sequence_bytes": "Memory of kept states.",
}
STOPPED = Failure(code="server_stopping", message="the server is stopping")


class Service:
    """One model being served.

    Attributes:
        config: How.
        engine: With what; its `generate` is the runner's alone.
        runner: The engine's thread and queue.
        activity: Who uses the server.
        metrics: What it counts.
        dialects: What it speaks.
        shapes: Error bodies by path.
        unavailable: Says why no request can be taken for want of memory, or None.
    """

    def __init__(self, runner: Runner, config: ServeConfig, dialects: Sequence[Dialect]) -> None:
        """Open the runner's engine, if it is not open, and prepare to serve it."""
        self.config = config
        self.runner = runner
        self.engine: ServableEngine = runner.start()
        self.activity = Activity(idle_exit_s=config.idle_exit_s)
        self.metrics = ServerMetrics()
        self.dialects = tuple(dialects)
        self.shapes = ErrorShapes(self.dialects)
        self._process = psutil.Process()
        self._version = version("slotstream-serve")
        self._text_threads = ThreadPoolExecutor(TEXT_THREADS, thread_name_prefix="slotstream-text")
        self._named_fields: set[tuple[str, str]] = set()
        runner.observe = self.metrics.observe
        self.unavailable: Callable[[], Failure | None] = lambda: None
        self._watch()

    def facts(self) -> ModelFacts:
        """Return what dialects may say about the model now."""
        return replace(self.config.model, resident_bytes=self._process.memory_info().rss)

    def context(self, model: ModelFacts, *, unique: str, path: str, headers: Mapping[str, str]) -> RequestContext:
        """Return what a dialect needs besides a body."""
        return RequestContext(model=model, now_s=time.time(), unique=unique, path=path, headers=headers)

    async def work(self, size_bytes: int, function: Callable[..., Value], *arguments: Any) -> Value:
        """Return a pure function's value; large inputs are worked on beside the event loop.

        Raises:
            Exception: What the function raises.
        """
        if size_bytes < LARGE_BODY_BYTES:
            return function(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._text_threads, function, *arguments)

    async def prepare(self, request: GenerationRequest, *, size_bytes: int) -> PreparedReply:
        """Render, tokenise and check a request, on another thread unless its body was small.

        Raises:
            Refused: It cannot be generated.
        """
        if size_bytes < SMALL_BODY_BYTES:
            return prepare(self.engine, request)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._text_threads, prepare, self.engine, request)

    async def count(self, request: GenerationRequest) -> int:
        """Return how many prompt tokens a request has.

        Raises:
            Refused: The chat template refused it.
        """
        loop = asyncio.get_running_loop()
        return len(await loop.run_in_executor(self._text_threads, prompt_ids, self.engine, request))

    def submit(self, prepared: PreparedReply, *, accepted_s: float, label: str) -> Ticket:
        """Queue a generation.

        Raises:
            ServerStopping: The server takes no new requests.
            Refused: There is no memory to generate with.
        """
        failure = self.unavailable()
        if failure is not None:
            raise Refused(failure)
        limit_s = self.config.max_prefill_wait_s or None
        ticket = Ticket(prepared, accepted_s=accepted_s, limit_s=limit_s, label=label)
        self.runner.submit(ticket)
        return ticket

    def note_ignored(self, dialect: str, fields: Sequence[str]) -> None:
        """Log each field that had no effect, once per name and dialect."""
        for name in fields:
            if (dialect, name) not in self._named_fields and len(self._named_fields) < 1000:
                self._named_fields.add((dialect, name))
                logger.info("%s request field %.100r is not known here and has no effect", dialect, name)

    def status(self, port: int) -> dict[str, Any]:
        """Return the server's own description."""
        activity, plan = self.activity, self.engine.plan
        idle_exit_s = self.config.idle_exit_s
        target = None if plan is None else plan.target_bytes
        return {
            "server": "slotstream",
            "version": self._version,
            "pid": os.getpid(),
            "port": port,
            "model": self.config.model.name,
            "context_window": self.engine.window_tokens,
            "started_at": int(activity.started_at),
            "active_requests": activity.active_requests,
            "clients": activity.clients(),
            "idle_seconds": int(activity.idle_s()),
            "idle_exit_minutes": None if idle_exit_s is None else idle_exit_s / 60,
            "memory_source": None if plan is None else plan.source,
            "memory_target_gb": None if target is None else target / 1e9,
            "memory_limit_gb": None if plan is None else plan.request.memory_limit_gb,
            "memory_pinned_gb": None if plan is None else self.engine.pinned_bytes / 1e9,
            "queued_requests": self.runner.queued,
            "prefix_cache": self.engine.prefix_status(),
        }

    def log_progress(self) -> None:
        """Log how far the running generation is, and how many wait."""
        ticket = self.runner.running
        if ticket is None:
            return
        progress = ticket.progress
        line = {
            "event": "progress",
            "id": ticket.label,
            "phase": ticket.phase,
            "elapsed_s": round(time.monotonic() - ticket.accepted_s, 1),
            "prompt_tokens": len(ticket.prepared.ids),
            "read_tokens": 0 if progress is None else progress.done_tokens,
            "queued": self.runner.queued,
        }
        logger.info("%s", json.dumps(line))

    def stop_generations(self) -> None:
        """End every generation, waiting or running, with a failure; no new one starts."""
        self.activity.stopping = True
        self.runner.stop(STOPPED)

    async def close(self) -> None:
        """Stop, and wait for the engine's thread."""
        self.stop_generations()
        if not await asyncio.to_thread(self.runner.join, STOP_JOIN_S):
            logger.error("the engine's thread did not end within %g s", STOP_JOIN_S)
        self._text_threads.shutdown(wait=False)

    def _watch(self) -> None:
        metrics = self.metrics
        metrics.watch("slotstream_queued_requests", "Generations waiting for the engine.", lambda: self.runner.queued)
        metrics.watch(
            "slotstream_running_requests", "Generations in the engine.", lambda: int(self.runner.running is not None)
        )
        metrics.watch("slotstream_active_requests", "Requests being handled.", lambda: self.activity.active_requests)
        metrics.watch("slotstream_resident_bytes", "Memory of the process.", lambda: self._process.memory_info().rss)
        metrics.watch("slotstream_pinned_bytes", "Files of experts pinned now.", lambda: self.engine.pinned_bytes)
        if self.engine.plan is not None:
            metrics.watch_plan(lambda: self.engine.plan)
        if self.engine.prefix_status() is not None:
            for name, help_text in PREFIX_GAUGES.items():
                metrics.watch(f"slotstream_prefix_{name}", help_text, partial(self._prefix, name))

    def _prefix(self, name: str) -> float:
        """Return one number of what is kept of conversations."""
        return float((self.engine.prefix_status() or {}).get(name, 0))
