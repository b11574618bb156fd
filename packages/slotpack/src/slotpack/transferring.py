"""The engine of a pull: network threads, decoder threads, and the rules that keep verified bytes safe.

    network thread    take a job -> fetch -> queue (bounded)
    decoder thread    decode and verify, several waiting jobs at once -> write the ranges -> sync -> record the job
                      last job of a file: hash the whole file -> rename, or build it again once
    calling thread    progress, connection tuning, Ctrl-C

One condition guards all shared state; no thread holds it during I/O.  A failure of a required file stops everything;
a failure of an optional file drops that file once its writers have drained.
"""

import collections
import contextlib
import dataclasses
import errno
import os
import pathlib
import threading
from collections.abc import Callable, Sequence

from slotpack import codec
from slotpack.cancellation import Cancellation, Clock
from slotpack.errors import IntegrityError, PullCancelled, PullError, SlotpackError, TransferError
from slotpack.fetching import Fetcher, Form, Job, Payload
from slotpack.manifest import FileEntry
from slotpack.progress import ProgressSink, PullProgress, RateMeter
from slotpack.resume import Ledger, PartFile, disk_full, put_in_place
from slotpack.transport import Connection, ConnectionCounter, RedirectCache
from slotpack.tuning import ConnectionTuner, WindowMeter

TICK_S = 0.2


def decoder_count(cores: int | None = None) -> int:
    """Return half the cores, 1 to 8."""
    return max(1, min(8, (cores if cores is not None else os.cpu_count() or 1) // 2))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransferPlan:
    """What to transfer.

    Attributes:
        directory: The model directory.
        files: Files to build; files that are already in place are not listed.
        jobs: All jobs of the package, by index.
        suffix: Suffix of part files.
        resumed_parts: Files whose part file may hold verified bytes of an earlier run.
    """

    directory: pathlib.Path
    files: Sequence[FileEntry]
    jobs: Sequence[Job]
    suffix: str
    resumed_parts: frozenset[str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransferOutcome:
    """How a transfer ended: the optional files that were left out, with the reason."""

    skipped: dict[str, SlotpackError]


@dataclasses.dataclass(kw_only=True)
class _FileState:
    """A file under construction.  Guarded by the transfer's condition."""

    entry: FileEntry
    part: PartFile
    waiting: set[int]
    may_rebuild: bool
    writers: int = 0
    failure: SlotpackError | None = None
    is_closed: bool = False


class Transfer:
    """One run over a plan.

    Args:
        plan: What to transfer.
        fetcher: Where the bytes come from.
        ledger: What is done.
        tuner: How many connections.
        counter: Counts received bytes and sockets.
        clock: Time source.
        cancel: The caller's switch.
        progress: Called from the calling thread, about five times a second.
        decoders: Decoder threads.
    """

    def __init__(
        self,
        *,
        plan: TransferPlan,
        fetcher: Fetcher,
        ledger: Ledger,
        tuner: ConnectionTuner,
        counter: ConnectionCounter,
        clock: Clock,
        cancel: Cancellation,
        progress: ProgressSink | None = None,
        decoders: int | None = None,
    ) -> None:
        self._plan = plan
        self._fetcher = fetcher
        self._ledger = ledger
        self._tuner = tuner
        self._counter = counter
        self._clock = clock
        self._caller_cancel = cancel
        self._stop = Cancellation(cancel)
        self._progress = progress
        self._decoders = decoders or decoder_count()
        self._queue_limit = max(2 * self._decoders, codec.batch_frames)
        self._redirects = RedirectCache()
        self._changed = threading.Condition()
        self._pending: collections.deque[tuple[Job, Form]] = collections.deque()
        self._queue: collections.deque[tuple[Job, Payload] | str] = collections.deque()
        self._files: dict[str, _FileState] = {}
        self._open_files = 0
        self._network_alive = 0
        self._sealed = False
        self._error: BaseException | None = None
        self._done_bytes = 0
        self._total_bytes = 0

    # ---- calling thread ----------------------------------------------------------------------------------------------

    def run(self) -> TransferOutcome:
        """Transfer everything.

        Raises:
            PullCancelled: After the caller's cancellation or Ctrl-C; finished writes are recorded.
            PullError: When a required file cannot be completed.
        """
        threads: list[threading.Thread] = []
        try:
            self._open_parts()
            for number in range(self._decoders):
                threads.append(self._spawn(self._decode_jobs, f"slotpack-decoder-{number}"))
            self._watch(threads)
        except KeyboardInterrupt:
            self._caller_cancel.cancel()
        finally:
            self._shut_down(threads)
        if self._caller_cancel.is_cancelled:
            self._caller_cancel.raise_if_cancelled()
        if self._error is not None:
            raise self._error
        skipped = {path: state.failure for path, state in self._files.items() if state.failure is not None}
        return TransferOutcome(skipped=skipped)

    def _open_parts(self) -> None:
        wanted = {entry.path for entry in self._plan.files}
        todo: dict[str, set[int]] = {path: set() for path in wanted}
        for job in self._plan.jobs:
            targets = {item.file for item in job.ranges} & wanted
            if not targets:
                continue
            self._total_bytes += job.transfer_bytes
            if self._ledger.is_done(job.index):
                self._done_bytes += job.transfer_bytes
                continue
            self._pending.append((job, "object"))
            for path in targets:
                todo[path].add(job.index)
        for entry in self._plan.files:
            part = PartFile(self._plan.directory / (entry.path + self._plan.suffix), entry.size_bytes)
            may_rebuild = entry.path in self._plan.resumed_parts
            self._files[entry.path] = _FileState(
                entry=entry, part=part, waiting=todo[entry.path], may_rebuild=may_rebuild
            )
            self._open_files += 1
            if not todo[entry.path]:
                self._files[entry.path].writers += 1
                self._queue.append(entry.path)

    def _watch(self, threads: list[threading.Thread]) -> None:
        now = self._clock.monotonic()
        windows, rate = WindowMeter(now), RateMeter(now)
        jobs = max(1, len(self._pending))
        while True:
            with self._changed:
                if self._open_files == 0 or self._stop.is_cancelled:
                    return
                wanted = min(self._tuner.target, len(self._pending)) if self._pending else 0
                while self._network_alive < wanted:
                    self._network_alive += 1
                    threads.append(self._spawn(self._fetch_jobs, f"slotpack-network-{len(threads)}"))
                backlog, remaining = len(self._queue) >= 2 * self._decoders, len(self._pending)
                done = self._done_bytes
            now = self._clock.monotonic()
            received, retries = self._counter.received_bytes, self._counter.retries
            window = windows.update(now, total_bytes=received, total_retries=retries, backlog=backlog)
            if window is not None:
                self._tuner.observe(window, remaining_part=remaining / jobs)
            self._report(rate, now, done, received)
            with self._changed:
                if self._open_files and not self._stop.is_cancelled:
                    self._changed.wait(TICK_S)

    def _report(self, rate: RateMeter, now: float, done: int, received: int) -> None:
        if self._progress is None:
            return
        current = rate.update(now, received)
        left = self._total_bytes - done
        self._progress(
            PullProgress(
                phase="downloading" if left else "verifying",
                done_bytes=done,
                total_bytes=self._total_bytes,
                rate_bytes_per_s=current,
                eta_s=rate.eta_s(now, received, left, self._total_bytes),
                connections=self._counter.in_use,
            )
        )

    def _spawn(self, target: Callable[[], None], name: str) -> threading.Thread:
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        return thread

    def _shut_down(self, threads: Sequence[threading.Thread]) -> None:
        """Stop fetching, let the decoders finish what was received, close everything."""
        self._stop.cancel()
        with self._changed:
            self._sealed = True
            self._pending.clear()
            if self._error is not None:
                self._queue.clear()
            self._changed.notify_all()
        for thread in threads:
            thread.join()
        self._stop.detach()
        for state in self._files.values():
            if not state.is_closed:
                state.part.close()

    # ---- network threads ---------------------------------------------------------------------------------------------

    def _fetch_jobs(self) -> None:
        try:
            connection = Connection(
                cancel=self._stop, clock=self._clock, counter=self._counter, redirects=self._redirects
            )
            try:
                while (task := self._next_task()) is not None:
                    self._fetch_one(task[0], task[1], connection)
            finally:
                connection.close()
        except PullCancelled:
            pass
        except BaseException as error:  # noqa: BLE001 - the top level of a thread: handed to the caller
            self._fail(error)
        finally:
            with self._changed:
                self._network_alive -= 1
                self._changed.notify_all()

    def _next_task(self) -> tuple[Job, Form] | None:
        with self._changed:
            if self._stop.is_cancelled or not self._pending or self._network_alive > self._tuner.target:
                return None
            job, form = self._pending.popleft()
            for state in self._states(job):
                state.writers += 1
            return job, form

    def _fetch_one(self, job: Job, form: Form, connection: Connection) -> None:
        try:
            payload = self._fetcher.fetch(job, connection, form)
        except (TransferError, IntegrityError) as error:
            self._job_failed(job, error)
            return
        with self._changed:
            while len(self._queue) >= self._queue_limit and self._error is None:
                self._changed.wait(TICK_S)
            self._queue.append((job, payload))
            self._changed.notify_all()

    # ---- decoder threads ---------------------------------------------------------------------------------------------

    def _decode_jobs(self) -> None:
        try:
            while (item := self._next_item()) is not None:
                if isinstance(item, list):
                    self._write_jobs(item)
                    continue
                with contextlib.suppress(PullCancelled):  # the next run hashes the file
                    self._finish_file(self._files[item])
        except BaseException as error:  # noqa: BLE001 - the top level of a thread: handed to the caller
            self._fail(error)

    def _next_item(self) -> list[tuple[Job, Payload]] | str | None:
        """Return the path of a complete file, or this thread's share of the received jobs that wait in front."""
        with self._changed:
            while not self._queue:
                if self._open_files == 0 or (self._sealed and self._network_alive == 0) or self._error is not None:
                    return None
                self._changed.wait(TICK_S)
            share = min(codec.batch_frames, -(-len(self._queue) // self._decoders))
            first = self._queue.popleft()
            jobs = [] if isinstance(first, str) else [first]
            while jobs and len(jobs) < share and self._queue and isinstance(item := self._queue[0], tuple):
                jobs.append(item)
                self._queue.popleft()
            self._changed.notify_all()
            return first if isinstance(first, str) else jobs

    def _write_jobs(self, received: list[tuple[Job, Payload]]) -> None:
        decoded = self._fetcher.decode_many(received)
        for job, payload in received:
            raw = decoded.pop(0)
            if not isinstance(raw, IntegrityError):
                self._write_job(job, raw)
            elif payload.form == "original" or any(state.failure for state in self._states(job)):
                self._job_failed(job, raw)
            else:
                self._ask_again(job)

    def _write_job(self, job: Job, raw: bytes | bytearray) -> None:
        states = self._states(job)
        view = memoryview(raw)
        position = 0
        for item in job.ranges:
            state = self._files.get(item.file)
            if state is not None and state in states:
                state.part.write(item.offset_bytes, view[position : position + item.length_bytes])
            position += item.length_bytes
        for state in states:
            state.part.sync()
        self._ledger.mark(job.index)
        with self._changed:
            self._done_bytes += job.transfer_bytes
        for state in states:
            self._release(state, job.index)

    def _ask_again(self, job: Job) -> None:
        """Put a job back, this time for the original bytes."""
        with self._changed:
            for state in self._states(job):
                state.writers -= 1
            self._pending.appendleft((job, "original"))
            self._changed.notify_all()

    def _release(self, state: _FileState, index: int | None) -> None:
        """Give up a writer's hold on a file, and finish or drop the file when it was the last."""
        with self._changed:
            state.writers -= 1
            if index is not None:
                state.waiting.discard(index)
            if state.is_closed or state.writers:
                return
            if state.failure is None and state.waiting:
                return
            if state.failure is None:
                state.writers += 1
                self._queue.append(state.entry.path)
                self._changed.notify_all()
                return
        self._drop(state)

    def _finish_file(self, state: _FileState) -> None:
        """Hash a complete file and put it in place, or build it again when an earlier run's bytes are wrong."""
        state.part.sync()
        digest = state.part.hash(self._stop.raise_if_cancelled)
        if digest == state.entry.sha256:
            final = self._plan.directory / state.entry.path
            put_in_place(state.part.path, final)
            with self._changed:
                self._close(state)
            return
        jobs = self._jobs_of(state)
        self._ledger.clear([job.index for job in jobs])
        if state.may_rebuild:
            with self._changed:
                state.may_rebuild = False
                state.waiting |= {job.index for job in jobs}
                state.writers -= 1
                self._done_bytes -= sum(job.transfer_bytes for job in jobs)
                self._pending.extend((job, "object") for job in jobs)
                self._changed.notify_all()
            return
        error = IntegrityError(
            f"{state.entry.path} does not have its SHA-256 although all of it was received; "
            "its progress was discarded, run the download again"
        )
        if not state.entry.optional:
            raise error
        with self._changed:
            state.failure = error
        self._release(state, None)

    def _drop(self, state: _FileState) -> None:
        """Remove the part file of an optional file that failed."""
        jobs = self._jobs_of(state)
        done_bytes = sum(job.transfer_bytes for job in jobs if self._ledger.is_done(job.index))
        self._ledger.clear([job.index for job in jobs])
        state.part.path.unlink(missing_ok=True)
        with self._changed:
            self._done_bytes -= done_bytes
            self._total_bytes -= sum(job.transfer_bytes for job in jobs)
            self._close(state)

    def _close(self, state: _FileState) -> None:
        state.part.close()
        state.is_closed = True
        self._open_files -= 1
        self._changed.notify_all()

    # ---- any thread --------------------------------------------------------------------------------------------------

    def _states(self, job: Job) -> list[_FileState]:
        """Return the files under construction that a job writes to, each once."""
        names = dict.fromkeys(item.file for item in job.ranges)
        return [self._files[name] for name in names if name in self._files and not self._files[name].is_closed]

    def _jobs_of(self, state: _FileState) -> list[Job]:
        return [job for job in self._plan.jobs if any(item.file == state.entry.path for item in job.ranges)]

    def _job_failed(self, job: Job, error: SlotpackError) -> None:
        if not job.is_optional:
            self._fail(error)
            return
        states = self._states(job)
        with self._changed:
            for state in states:
                state.failure = state.failure or error
            names = {state.entry.path for state in states}
            kept = [task for task in self._pending if not names & {item.file for item in task[0].ranges}]
            self._pending = collections.deque(kept)
        for state in states:
            self._release(state, None)

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            if self._error is None:
                self._error = _explained(error, self._plan.directory)
            self._changed.notify_all()
        self._stop.cancel()


def _explained(error: BaseException, directory: pathlib.Path) -> BaseException:
    """Turn an operating system's refusal into an error with advice."""
    if not isinstance(error, OSError):
        return error
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return disk_full(directory, 0)
    return PullError(f"writing to {directory} failed: {error.strerror or error}; verified progress is kept")
