"""`/metrics`: counters and gauges in Prometheus text, in a registry of this server's own."""

from collections.abc import Callable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from slotstream_planner import MemoryPlan
from slotstream_serve.reply import ReplyFinished
from slotstream_serve.runner import Ticket

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
WAIT_BUCKETS_S = (0.01, 0.05, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 1800)


class ServerMetrics:
    """Everything the server counts.  `observe` may be called from any thread."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self.requests = Counter(
            "slotstream_http_requests", "Requests answered.", ["route", "status"], registry=registry
        )
        self._replies = Counter("slotstream_replies", "Generations by how they ended.", ["outcome"], registry=registry)
        self._tokens = Counter("slotstream_tokens", "Tokens of finished replies.", ["kind"], registry=registry)
        self._hits = Counter("slotstream_expert_hits", "Distinct experts found in their slots.", registry=registry)
        self._misses = Counter("slotstream_expert_misses", "Distinct experts read from disk.", registry=registry)
        self._read = Counter("slotstream_expert_read_bytes", "Expert bytes read from disk.", registry=registry)
        self._read_wait = Counter(
            "slotstream_expert_read_wait_seconds", "Time replies waited for expert reads.", registry=registry
        )
        self._drafts = Counter(
            "slotstream_draft_tokens", "Tokens that the draft head guessed.", ["outcome"], registry=registry
        )
        self._passes = Counter(
            "slotstream_decode_passes", "Passes of replies, by the drafts they verified.", ["drafts"], registry=registry
        )
        self._queue_wait = Histogram(
            "slotstream_queue_seconds", "Wait for the engine.", buckets=WAIT_BUCKETS_S, registry=registry
        )
        self._prefill = Histogram(
            "slotstream_prefill_seconds", "Reading the prompt.", buckets=WAIT_BUCKETS_S, registry=registry
        )
        self._decode = Histogram(
            "slotstream_decode_seconds", "Making the reply.", buckets=WAIT_BUCKETS_S, registry=registry
        )

    def watch(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        """Add a gauge that is read when the metrics are asked for."""
        Gauge(name, help_text, registry=self._registry).set_function(read)

    def watch_plan(self, read: Callable[[], MemoryPlan | None]) -> None:
        """Add the memory ledger and the slots of the plan in force, read when the metrics are asked for.

        Args:
            read: Returns that plan, from now on.
        """
        plan = read()
        if plan is None:
            return

        def slots() -> int:
            now = read()
            return 0 if now is None else now.pool_slots

        def planned(amount: str) -> float:
            now = read()
            return 0.0 if now is None else float(now.ledger.to_json()[amount])

        self.watch("slotstream_expert_slots", "Slots of the expert pool.", slots)
        ledger = Gauge("slotstream_planned_bytes", "The plan's memory ledger.", ["amount"], registry=self._registry)
        for amount, size in plan.ledger.to_json().items():
            if amount.endswith("_bytes") and isinstance(size, int):
                ledger.labels(amount.removesuffix("_bytes")).set_function(partial(planned, amount))

    def observe(self, ticket: Ticket) -> None:
        """Count a generation that ended."""
        record = ticket.record
        if record is None:
            return
        self._replies.labels(record.outcome).inc()
        if isinstance(record.end, ReplyFinished):
            usage = record.end.usage
            self._tokens.labels("prompt").inc(usage.prompt_tokens)
            self._tokens.labels("cached").inc(usage.cached_tokens)
            self._tokens.labels("completion").inc(usage.completion_tokens)
            self._tokens.labels("thinking").inc(usage.thinking_tokens)
            self._queue_wait.observe(usage.queue_s)
            self._prefill.observe(usage.prefill_s)
            self._decode.observe(usage.decode_s)
        if record.traffic is not None:
            self._hits.inc(record.traffic.hits)
            self._misses.inc(record.traffic.misses)
            self._read.inc(record.traffic.bytes_read)
            self._read_wait.inc(record.traffic.read_wait_s)

        if record.drafts is not None:
            self._drafts.labels("accepted").inc(record.drafts.accepted)
            self._drafts.labels("refused").inc(record.drafts.drafted - record.drafts.accepted)
            for depth, count in enumerate(record.drafts.passes_by_depth):
                self._passes.labels(str(depth)).inc(count)

    def exposition(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return generate_latest(self._registry)
