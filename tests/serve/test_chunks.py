"""Pieces of a body on one connection: what a thread could not send the event loop sends, and nothing after its end."""

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from slotstream_serve.chunks import ChunkWriter

PIECE = b"piece"
CHUNK = b"5\r\npiece\r\n"


class RecordingTransport(asyncio.Transport):
    """Keeps what it is asked to write."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__({"socket": connection})
        self.written: list[bytes] = []
        self.waiting_bytes = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return self.waiting_bytes


class OpenFlow:
    write_paused = False

    async def drain(self) -> None:
        return


class Pair:
    """A writer at one end of a connection that does not block, and the other end."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.near, self.far = socket.socketpair()
        self.near.setblocking(False)
        self.far.setblocking(False)
        self.transport = RecordingTransport(self.near)
        self.writer = ChunkWriter(self.transport, OpenFlow(), loop)

    def arrived(self) -> bytes:
        try:
            return self.far.recv(1 << 22)
        except BlockingIOError:
            return b""

    def fill(self) -> int:
        """Write until the connection takes no more; return how many bytes that was."""
        filled = 0
        while True:
            try:
                filled += os.write(self.near.fileno(), b"x" * 65_536)
            except BlockingIOError:
                return filled


@pytest.fixture
def pair() -> Iterator[Pair]:
    loop = asyncio.new_event_loop()
    made = Pair(loop)
    yield made
    for end in (made.near, made.far):
        end.close()
    loop.close()


def run_pending(pair: Pair) -> None:
    loop: Any = pair.writer._loop
    loop.run_until_complete(asyncio.sleep(0))


def in_another_thread(work: Callable[[], bool]) -> bool:
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join()
    return results[0]


def test_a_piece_of_another_thread_is_there_at_once(pair: Pair) -> None:
    assert in_another_thread(lambda: pair.writer.write_now(PIECE))
    assert pair.arrived() == CHUNK
    assert pair.transport.written == []


def test_another_thread_may_write_only_while_nothing_waits(pair: Pair) -> None:
    assert pair.writer.clear()
    pair.transport.waiting_bytes = 1
    assert not pair.writer.clear()


def test_what_did_not_fit_goes_out_before_what_the_event_loop_has_to_say(pair: Pair) -> None:
    pair.fill()
    assert not in_another_thread(lambda: pair.writer.write_now(b"first"))
    assert not in_another_thread(lambda: pair.writer.write_now(b"second"))
    pair.writer.write(b"third")  # before the event loop got round to the rest
    run_pending(pair)
    assert b"".join(pair.transport.written) == b"5\r\nfirst\r\n6\r\nsecond\r\n5\r\nthird\r\n"


def test_clearing_sends_what_did_not_fit(pair: Pair) -> None:
    pair.fill()
    pair.writer.write_now(PIECE)
    assert pair.writer.clear()
    assert pair.transport.written == [CHUNK]


def test_the_event_loop_sends_what_did_not_fit(pair: Pair) -> None:
    filled = pair.fill()
    while filled > 0:  # room for the beginning of a large chunk
        filled -= len(pair.far.recv(min(filled, 65_536)))
        if filled < 65_536:
            break
    large = b"y" * (1 << 22)
    assert not in_another_thread(lambda: pair.writer.write_now(large))
    run_pending(pair)
    pieces = []
    while piece := pair.arrived():
        pieces.append(piece)
    sent = b"".join(pieces)[filled:] + b"".join(pair.transport.written)
    assert sent == b"400000\r\n" + large + b"\r\n"
    assert 0 < len(pair.transport.written[0]) < len(sent)


def test_a_full_connection_leaves_the_whole_piece_to_the_event_loop(pair: Pair) -> None:
    pair.fill()
    assert not pair.writer.write_now(PIECE)
    run_pending(pair)
    assert pair.transport.written == [CHUNK]


def test_a_broken_connection_is_left_to_the_event_loop(pair: Pair) -> None:
    pair.far.close()
    assert not pair.writer.write_now(PIECE)
    run_pending(pair)
    assert pair.transport.written == [CHUNK]


def test_nothing_is_written_once_the_connection_is_lost(pair: Pair) -> None:
    filled = pair.fill()
    pair.writer.write_now(PIECE)
    pair.writer.close()
    run_pending(pair)
    while filled > 0:
        filled -= len(pair.far.recv(65_536))
    assert pair.writer.write_now(PIECE)
    assert not pair.writer.write(PIECE)
    assert pair.transport.written == []
    assert pair.arrived() == b""


def test_a_loop_that_is_closed_has_nobody_to_send_to(pair: Pair) -> None:
    pair.fill()
    loop: Any = pair.writer._loop
    loop.close()
    assert pair.writer.write_now(PIECE)
