"""One thread owns the engine; requests wait for it in order, and their events come back to the event loop.

The event loop never calls the engine's `generate`.  A `Ticket` is the only thing both sides hold: the loop cancels it
or reads it, the thread fills it.  The thread touches a connection only by the short way that the loop lends it while it
waits: waking the loop for every token would cost more than sending it.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from slotstream_core.events import DraftCounts, ExpertTraffic, PromptProgress
from slotstream_core.generation.control import CancelToken
from slotstream_serve.errors import Failure, ServerStopping
from slotstream_serve.reply import Admitted, ReplyEvent, ReplyFailed, ReplyFinished, TextDelta, ThinkingDelta
from slotstream_serve.serving import PreparedReply, ReplyRun, ServableEngine, failure_of
from slotstream_serve.streaming import ShortWay

logger = logging.getLogger("slotstream.serve")

Phase = Literal["queued", "prefill", "decode", "done"]
TEXT = (TextDelta, ThinkingDelta)
"""What nearly every event is."""
LEAST_MEASURED_TOKENS = 256
"""Shorter prompts say nothing about how fast a long one is read."""


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """How one request ended, for the log and the metrics.

    Attributes:
        outcome: `finished`, or the failure's code.
        end: The last event.
        traffic: What its experts cost, when it finished.
        drafts: What the draft head did, when it finished; None without a draft head.
    """

    outcome: str
    end: ReplyFinished | ReplyFailed
    traffic: ExpertTraffic | None
    drafts: DraftCounts | None = None


class Ticket:
    """One request in the runner's care.  Everything but `deliver` and `begin` is for the event loop's thread.

    Attributes:
        prepared: What to generate.
        cancel_token: Stops the engine.
        label: Names the request in the log.
        accepted_s: `time.monotonic` when the complete request had arrived.
        limit_s: Longest wait for the first token after that, or None.
        progress: The last pass of the prompt that was read.
        record: How it ended, once it has.
    """

    def __init__(self, prepared: PreparedReply, *, accepted_s: float, limit_s: float | None, label: str = "") -> None:
        self.prepared = prepared
        self.label = label
        self.cancel_token = CancelToken()
        self.accepted_s = accepted_s
        self.limit_s = limit_s
        self.phase: Phase = "queued"
        self.progress: PromptProgress | None = None
        self.record: RunRecord | None = None
        self._loop = asyncio.get_running_loop()
        self._events: list[ReplyEvent] = []
        self._waiter: asyncio.Future[None] = self._loop.create_future()
        self._waited_for = False
        self._short_way: ShortWay | None = None
        self._nudged = False
        self._lock = threading.Lock()
        self._stopped_by: Failure | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def finished(self) -> bool:
        """Whether the last event was delivered."""
        return self.record is not None

    async def next_events(self, short_way: ShortWay | None = None) -> list[ReplyEvent]:
        """Return every event that is there, waiting for the first; empty when `nudge` ended the waiting.

        Args:
            short_way: Takes text that is made while this waits, on the thread that makes it and one at a time.  It is
                not called any more once this has returned or was cancelled.
        """
        while (events := self._take(short_way)) is None:
            try:
                await self._waiter
            finally:
                with self._lock:
                    self._short_way = None
        if events and isinstance(events[-1], ReplyFinished | ReplyFailed):
            self.disarm()
        return events

    def _take(self, short_way: ShortWay | None) -> list[ReplyEvent] | None:
        """Return the events that are there, none after a nudge, or None after preparing to wait for them."""
        with self._lock:
            if self._events:
                events, self._events = self._events, []
                return events
            if self._nudged:
                self._nudged = False
                return []
            self._waiter = self._loop.create_future()
            self._waited_for = True
            self._short_way = short_way
            return None

    def nudge(self) -> None:
        """End a waiting `next_events` without an event."""
        self._nudged = True
        self._wake()

    def arm(self, expire: Callable[["Ticket"], None]) -> None:
        """Call `expire` with this ticket when its time for a first token is over."""
        if self.limit_s is not None:
            remaining = self.accepted_s + self.limit_s - time.monotonic()
            self._timer = self._loop.call_later(max(0.0, remaining), expire, self)

    def disarm(self) -> None:
        """Forget the timer, so that nothing keeps a finished request alive."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def stop(self, failure: Failure) -> None:
        """Ask the generation to end with a failure; the first reason given stands.  Any thread may call it."""
        with self._lock:
            if self._stopped_by is None:
                self._stopped_by = failure
        self.cancel_token.cancel()

    def expire(self) -> None:
        """End the request if its first token has not been made yet."""
        if self.phase in ("queued", "prefill"):
            self.stop(self.deadline_failure(estimated_s=None))

    def deadline_failure(self, *, estimated_s: float | None) -> Failure:
        """Return the failure of a request whose first token comes, or would come, too late.

        Args:
            estimated_s: How long its prompt would take to read, when that is known.
        """
        limit, elapsed = self.limit_s or 0.0, time.monotonic() - self.accepted_s
        details = {"elapsed_seconds": round(elapsed, 3), "limit_seconds": limit}
        if estimated_s is None:
            message = f"no first token within {limit:g} s of the request; retry when the server is free"
            return Failure(code="prefill_deadline_exceeded", message=message, details=details)
        details["estimated_seconds"] = round(estimated_s, 3)
        if estimated_s > limit:
            message = (
                f"reading the prompt would take about {estimated_s:.0f} s and the wait limit is {limit:g} s; "
                "send a shorter prompt or raise --max-prefill-wait"
            )
            return Failure(code="prefill_wait_exceeded", message=message, details=details)
        message = (
            f"after {elapsed:.0f} s of waiting, reading the prompt (about {estimated_s:.0f} s) no longer fits the "
            f"limit of {limit:g} s; retry when the server is free"
        )
        return Failure(code="prefill_deadline_exceeded", message=message, details=details)

    def failure_for(self, error: Exception) -> Failure:
        """Return why the generation ended with an error: the reason it was stopped for, or the error itself."""
        with self._lock:
            return self._stopped_by or failure_of(error)

    def stopped_by(self) -> Failure | None:
        """Return why the request was stopped, if it was."""
        with self._lock:
            return self._stopped_by

    def deliver(self, event: ReplyEvent) -> None:
        """Send an event the short way where there is one, else hand it to the event loop.  For the runner's thread."""
        with self._lock:
            if self._short_way is not None and isinstance(event, TEXT):
                if not self._short_way(event):
                    self._short_way = None
                return
            self._short_way = None
            self._events.append(event)
            waited_for, self._waited_for = self._waited_for, False
        if not waited_for:
            return  # the event loop has not yet taken an earlier event, and looks again when it has
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:  # the loop was closed: nobody reads any more
            self.cancel_token.cancel()

    def _wake(self) -> None:
        if not self._waiter.done():
            self._waiter.set_result(None)


class PrefillPace:
    """How fast prompts were read in this process; it knows nothing until a long enough one was."""

    def __init__(self) -> None:
        self._tokens_per_s: float | None = None

    def note(self, tokens: int, seconds: float) -> None:
        """Learn from a prompt that was read."""
        if tokens >= LEAST_MEASURED_TOKENS and seconds > 0:
            self._tokens_per_s = tokens / seconds

    def estimate_s(self, tokens: int) -> float | None:
        """Return how long a prompt takes at the last measured speed, or None before the first measurement."""
        return None if self._tokens_per_s is None else tokens / self._tokens_per_s


class Runner:
    """Owns the engine and its thread.

    Attributes:
        queued: Requests waiting.
        running: The request the engine works on.
    """

    def __init__(
        self,
        open_engine: Callable[[], ServableEngine],
        *,
        closes_engine: bool = True,
        observe: Callable[[Ticket], None] | None = None,
    ) -> None:
        """Prepare a runner; nothing runs until `start` or the first `submit`.

        Args:
            open_engine: Called once, on the runner's thread; what it raises comes out of `start`.
            closes_engine: Whether `stop` also closes the engine, on the same thread.
            observe: Called on the runner's thread with every ticket that ended.
        """
        self._open_engine = open_engine
        self._closes_engine = closes_engine
        self.observe = observe
        self._condition = threading.Condition()
        self._queue: deque[Ticket] = deque()
        self._running: Ticket | None = None
        self._thread: threading.Thread | None = None
        self._opened = threading.Event()
        self._engine: ServableEngine | None = None
        self._open_error: BaseException | None = None
        self._stopping: Failure | None = None
        self._pace = PrefillPace()

    @property
    def queued(self) -> int:
        """How many requests wait for the engine."""
        return len(self._queue)

    @property
    def running(self) -> Ticket | None:
        """The request the engine works on, if any."""
        return self._running

    def start(self) -> ServableEngine:
        """Open the engine on the runner's thread, wait for it, and return it; later calls return it at once.

        Raises:
            Exception: What opening the engine raised.
            ServerStopping: The runner was stopped.
        """
        with self._condition:
            if self._thread is None:
                if self._stopping is not None:
                    raise ServerStopping(self._stopping.message)
                self._thread = threading.Thread(target=self._work, name="slotstream-engine", daemon=True)
                self._thread.start()
        self._opened.wait()
        if self._open_error is not None:
            raise self._open_error
        if self._engine is None:
            raise ServerStopping("the engine is closed")
        return self._engine

    def submit(self, ticket: Ticket) -> None:
        """Put a request at the end of the queue.

        Raises:
            ServerStopping: The runner was stopped.
        """
        self.start()
        with self._condition:
            if self._stopping is not None:
                raise ServerStopping(self._stopping.message)
            self._queue.append(ticket)
            self._condition.notify()
        ticket.arm(self._expire)

    def withdraw(self, ticket: Ticket) -> None:
        """Stop a request whose client has left, whether it waits or runs.  For the event loop's thread."""
        ticket.disarm()
        self.end(ticket, Failure(code="client_cancelled", message="the client closed the request"))

    def end(self, ticket: Ticket, failure: Failure) -> None:
        """Stop a request with a failure: at once when it waits, at the engine's next boundary when it runs."""
        if ticket.finished:
            return
        ticket.stop(failure)
        with self._condition:
            waiting = ticket in self._queue
            if waiting:
                self._queue.remove(ticket)
        if waiting:
            self._close(ticket, ReplyFailed(failure=failure), None)

    def stop(self, failure: Failure) -> None:
        """End every request with a failure and let the thread finish; returns without waiting for it."""
        with self._condition:
            if self._stopping is None:
                self._stopping = failure
            waiting, running = list(self._queue), self._running
            self._condition.notify()
        for ticket in waiting:
            self.end(ticket, failure)
        if running is not None:
            running.stop(failure)

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the thread of a stopped runner; return whether it has ended."""
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _expire(self, ticket: Ticket) -> None:
        if ticket.phase == "queued" and not ticket.finished:
            self.end(ticket, ticket.deadline_failure(estimated_s=None))
        else:
            ticket.expire()

    def _work(self) -> None:
        try:
            self._engine = self._open_engine()
        except BaseException as error:  # noqa: BLE001  the thread's top level: `start` raises it where it was asked for
            self._open_error = error
            return
        finally:
            self._opened.set()
        while (ticket := self._take()) is not None:
            self._run(self._engine, ticket)
            with self._condition:
                self._running = None
            del ticket  # while the thread waits for the next one, nothing holds the last one's prompt
        if self._closes_engine:
            self._engine.close()

    def _take(self) -> Ticket | None:
        """Wait for the next request; None when the runner was stopped."""
        with self._condition:
            while not self._queue:
                if self._stopping is not None:
                    return None
                self._condition.wait()
            self._running = self._queue.popleft()
            return self._running

    def _run(self, engine: ServableEngine, ticket: Ticket) -> None:
        waited_s = time.monotonic() - ticket.accepted_s
        run = ReplyRun(engine, ticket.prepared, ticket.cancel_token, queue_s=waited_s)
        failure = ticket.stopped_by() or self._late(engine, ticket, waited_s)
        try:
            end = ReplyFailed(failure=failure) if failure is not None else self._relay(ticket, run)
        except Exception as error:
            failure = ticket.failure_for(error)
            if failure.code == "inference_error":
                logger.exception("a reply failed")
            end = ReplyFailed(failure=failure)
        self._close(ticket, end, run.traffic, run.drafts)

    def _relay(self, ticket: Ticket, run: ReplyRun) -> ReplyFinished | ReplyFailed:
        """Deliver the events of a run and return its last one."""
        ticket.phase = "prefill"
        for event in run.events():
            if isinstance(event, TEXT):
                ticket.phase = "decode"
                ticket.deliver(event)
                continue
            if isinstance(event, PromptProgress):
                ticket.progress = event
                if event.done_tokens >= event.total_tokens:
                    ticket.phase = "decode"
                    self._pace.note(event.total_tokens - event.cached_tokens, event.elapsed_s)
                continue
            if isinstance(event, ReplyFinished | ReplyFailed):
                return event
            if not isinstance(event, Admitted):
                ticket.phase = "decode"
            ticket.deliver(event)
        return ReplyFailed(failure=Failure(code="inference_error", message="the reply ended without a last event"))

    def _late(self, engine: ServableEngine, ticket: Ticket, waited_s: float) -> Failure | None:
        """Return why a request is refused at the engine's door: its first token would come too late."""
        if ticket.limit_s is None:
            return None
        ids = ticket.prepared.ids
        estimated_s = self._pace.estimate_s(len(ids) - engine.reusable_tokens(ids))
        if estimated_s is None or waited_s + estimated_s <= ticket.limit_s:
            return None
        return ticket.deadline_failure(estimated_s=estimated_s)

    def _close(
        self,
        ticket: Ticket,
        end: ReplyFinished | ReplyFailed,
        traffic: ExpertTraffic | None,
        drafts: DraftCounts | None = None,
    ) -> None:
        outcome = "finished" if isinstance(end, ReplyFinished) else end.failure.code
        ticket.phase = "done"
        ticket.record = RunRecord(outcome=outcome, end=end, traffic=traffic, drafts=drafts)
        if self.observe is not None:
            self.observe(ticket)
        ticket.deliver(end)
