"""States are written behind the engine: in order, within bounds, and with nothing left over."""

import threading
from collections.abc import Callable
from functools import partial

import pytest

from slotstream_core.errors import GenerationCancelled
from slotstream_core.generation.control import CancelToken
from slotstream_core.persistence.writing import WriteQueue

WRITER = "slotstream-writing"
WITHIN_S = 240.0


def nothing() -> None:
    pass


def writers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == WRITER]


def test_jobs_run_in_their_order_on_another_thread() -> None:
    queue, seen = WriteQueue(), list[tuple[int, str]]()

    def note(number: int) -> None:
        seen.append((number, threading.current_thread().name))

    for number in range(200):
        queue.put(partial(note, number), 10)
    queue.drain()
    assert seen == [(number, WRITER) for number in range(200)]
    assert queue.backlog.waiting_bytes == 0
    queue.close()


def test_a_closed_queue_has_done_everything_and_left_no_thread() -> None:
    queue, seen, go = WriteQueue(), list[int](), threading.Event()
    queue.put(partial(go.wait, WITHIN_S), 0)  # type: ignore[arg-type]
    for number in range(3):
        queue.put(partial(seen.append, number), 0)
    assert len(writers()) == 1
    assert seen == []
    go.set()
    queue.close()
    assert seen == [0, 1, 2]
    assert writers() == []
    queue.close()


def test_too_much_waits_and_says_for_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    queue, started, go = WriteQueue(most_bytes=100), threading.Event(), threading.Event()

    def first() -> None:
        started.set()
        go.wait(WITHIN_S)

    queue.put(first, 80)
    started.wait(WITHIN_S)
    queue.put(nothing, 20)  # fits beside it
    assert (queue.backlog.waiting_bytes, queue.backlog.delays) == (100, 0)
    taken = threading.Event()

    def give() -> None:
        queue.put(nothing, 21)
        taken.set()

    giver = threading.Thread(target=give)
    waiting, wait_for = threading.Event(), queue._changed.wait_for

    def noted(fits: Callable[[], bool], timeout: float | None) -> bool:
        waiting.set()
        return wait_for(fits, timeout)

    monkeypatch.setattr(queue._changed, "wait_for", noted)
    giver.start()
    assert waiting.wait(WITHIN_S)
    monkeypatch.undo()
    assert not taken.is_set()
    go.set()
    giver.join(WITHIN_S)
    assert taken.is_set()
    assert queue.backlog.delays == 1
    assert queue.backlog.delayed_s > 0
    queue.close()


def test_what_is_larger_than_the_bound_goes_alone() -> None:
    queue, seen = WriteQueue(most_bytes=10), list[int]()
    for number in range(3):
        queue.put(partial(seen.append, number), 1000)
    queue.close()
    assert seen == [0, 1, 2]


def test_a_job_that_raises_stops_neither_the_others_nor_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    queue, seen, go = WriteQueue(), list[int](), threading.Event()
    raised: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)

    def fail() -> None:
        go.wait(WITHIN_S)
        raise RuntimeError("a fault")

    queue.put(fail, 5)
    queue.put(partial(seen.append, 1), 5)
    go.set()
    queue.drain()
    queue.put(partial(seen.append, 2), 5)
    queue.close()
    assert (seen, queue.backlog.waiting_bytes) == ([1, 2], 0)
    assert [each.exc_type for each in raised] == [RuntimeError]


def test_what_was_written_is_not_kept_in_memory() -> None:
    class Large:
        gone = threading.Event()

        def __del__(self) -> None:
            self.gone.set()

    def write(large: Large) -> None:
        assert not large.gone.is_set()

    queue, go = WriteQueue(), threading.Event()
    queue.put(partial(write, Large()), 1)
    queue.put(partial(go.wait, WITHIN_S), 0)  # type: ignore[arg-type]
    assert Large.gone.wait(WITHIN_S)  # though the thread is busy with something else
    go.set()
    queue.close()


def test_a_wait_ends_when_somebody_says_so_and_the_writing_goes_on() -> None:
    queue, seen, go = WriteQueue(most_bytes=100), list[int](), threading.Event()
    queue.put(partial(go.wait, WITHIN_S), 80)  # type: ignore[arg-type]
    cancel = CancelToken()
    queue.put(partial(seen.append, 1), 20, cancel)
    cancel.cancel()
    with pytest.raises(GenerationCancelled):
        queue.drain(cancel)
    with pytest.raises(GenerationCancelled):
        queue.put(partial(seen.append, 2), 90, cancel)
    go.set()
    queue.drain(CancelToken())
    assert seen == [1]
    assert queue.backlog.waiting_bytes == 0
    queue.close()
