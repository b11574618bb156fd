"""Filling a pool before anybody asks: records an earlier run used most are read while nothing else needs the disk.

Threads of its own read into slots the pool lent; they begin no read once they are told to stop or their time is over.
What arrived whole by then is published by the thread that owns the pool, the rest of the slots go back unused.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence

from slotstream_core.experts.batches import ReadBatch, Record
from slotstream_core.experts.pool import SlotPool
from slotstream_core.experts.slot_memory import Bytes

logger = logging.getLogger("slotstream.experts")

THREADS = 2
GROUP = 8
"""Records planned together: their neighbours on disk are read at once, and stopping drops no more than these."""


class Warming:
    """One filling of a pool. Its methods are for the thread that owns the pool, which must end it with `settle`.

    Args:
        pool: Lends its slots until then, so that it can serve nothing else.
        records: (layer, expert) of what to read, most useful first, none of them resident and none twice; at most as
            many as there are unused slots are read.
        budget_s: No read begins later than this after the start.
    """

    def __init__(self, pool: SlotPool, records: Sequence[tuple[int, int]], *, budget_s: float) -> None:
        self._pool = pool
        scratch = pool.reader.extra_scratch(THREADS)  # before slots are lent: this may find no memory
        # CLOCK begins with the lowest slot: the most useful record goes into the highest.
        self._slots = pool.lend(min(len(records), pool.slot_count - pool.resident_count))
        places = sorted(self._slots, reverse=True)
        wanted = [pool.lent_record(layer, expert, slot) for (layer, expert), slot in zip(records, places, strict=False)]
        self._groups = deque(wanted[start : start + GROUP] for start in range(0, len(wanted), GROUP))
        self._batches: list[ReadBatch] = []
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._deadline = time.monotonic() + budget_s
        self._threads: list[threading.Thread] = []
        for index, part in enumerate(scratch):
            thread = threading.Thread(target=self._work, args=(part,), name=f"slotstream-warm-{index}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # there may be no more threads; `settle` gives back what none fills
                logger.warning("the pool is filled by %d threads instead of %d: %s", index, THREADS, error)
                break
            self._threads.append(thread)

    def finish(self) -> None:
        """Wait until everything was read or the time is over."""
        for thread in self._threads:
            thread.join()

    def stop(self) -> None:
        """Begin no further read. Nothing waits here."""
        self._stopped.set()
        with self._lock:
            batches = list(self._batches)
        for batch in batches:
            batch.cancel()

    def settle(self) -> None:
        """Begin no further read, publish what arrived and give the other slots back.

        Waits for the reads under way: one a thread, of at most a mebibyte or one piece of a record.
        """
        self.stop()
        self.finish()
        published: set[int] = set()
        for batch in self._batches:
            for index, record in enumerate(batch.records):
                if index not in batch.errors:
                    self._pool.publish_lent(record.layer, record.expert, record.slot)
                    published.add(record.slot)
        self._pool.take_back(slot for slot in self._slots if slot not in published)
        self._pool.count(warm_bytes=sum(batch.bytes_read for batch in self._batches))

    @property
    def _over(self) -> bool:
        return self._stopped.is_set() or time.monotonic() >= self._deadline

    def _work(self, scratch: Bytes) -> None:
        while not self._over and (batch := self._next()) is not None:
            for job in batch.waiting_jobs():
                if self._over:
                    break
                batch.run(job, scratch)
            batch.cancel()  # what no job has begun; nothing when all are done

    def _next(self) -> ReadBatch | None:
        with self._lock:
            if not self._groups:
                return None
            group: Sequence[Record] = self._groups.popleft()
            batch = self._pool.reader.plan(group, self._pool.slots)
            self._batches.append(batch)
            return batch
