"""A process that asks for the status at a steady rate while it is told to, and a bare responder to compare with.

What asking costs is taken from the generation as well, on a machine with few cores.  So the same requests also go to a
process that answers them with the least there is: receive, send.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time

LANES = 4
PER_S = 1000.0
ANSWER = b"HTTP/1.1 200 OK\r\nserver: slotstream\r\ncontent-length: %d\r\ncontent-type: application/json\r\n\r\n%b"
BODY = b'{"server":"slotstream"%b}' % (b" " * 400)


def ask(control_port: int, ports: dict[str, int], per_s: float) -> None:
    """Obey single letters of a control connection until it ends: the first letter of a target, or any other for none.

    Then say how many answers came from each target, and in how many seconds.
    """
    control = socket.create_connection(("127.0.0.1", control_port))
    lanes = {name[0].encode(): Lanes(port, per_s) for name, port in ports.items()}
    while mode := control.recv(1):
        if mode in lanes:
            lanes[mode].ask_until_readable(control)
    print(json.dumps({name: lanes[name[0].encode()].rate() for name in ports}), flush=True)


class Lanes:
    """Kept connections to one target."""

    def __init__(self, port: int, per_s: float) -> None:
        self._request = f"GET /slotstream/status HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
        self._port = port
        self._sockets: list[socket.socket] = []
        self._pause_s = LANES / per_s
        self._answers, self._seconds = 0, 0.0

    def ask_until_readable(self, control: socket.socket) -> None:
        """Ask over all connections at once, at the rate, until something comes on another connection."""
        while len(self._sockets) < LANES:  # not before, or the server would close them as idle
            self._sockets.append(socket.create_connection(("127.0.0.1", self._port), timeout=60))
        began = due = time.perf_counter()
        with selectors.DefaultSelector() as waiting:
            waiting.register(control, selectors.EVENT_READ)
            while not waiting.select(max(0.0, due - time.perf_counter())):
                for lane in self._sockets:
                    lane.sendall(self._request)
                for lane in self._sockets:
                    read_answer(lane)
                due += self._pause_s
                self._answers += LANES
        self._seconds += time.perf_counter() - began

    def rate(self) -> float:
        """Return answers a second of the time in which this target was asked."""
        return self._answers / self._seconds if self._seconds else 0.0


def read_answer(connection: socket.socket) -> None:
    """Read one whole answer."""
    answer = receive(connection)
    while (head := answer.find(b"\r\n\r\n")) < 0:
        answer += receive(connection)
    missing = head + 4 + content_length(answer[:head]) - len(answer)
    while missing > 0:
        missing -= len(receive(connection))


def receive(connection: socket.socket) -> bytes:
    """Return what comes next; a connection that has ended ends the program."""
    piece = connection.recv(65_536)
    if not piece:
        raise SystemExit("a connection ended in the middle of an answer")
    return piece


def content_length(head: bytes) -> int:
    """Return how long the body is that follows the head of a request or an answer."""
    return int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])


def respond() -> None:
    """Answer whatever comes on any connection with the same bytes, until terminated; say the port first."""
    answer = ANSWER % (len(BODY), BODY)
    with socket.create_server(("127.0.0.1", 0)) as listener, selectors.DefaultSelector() as waiting:
        print(json.dumps({"port": listener.getsockname()[1]}), flush=True)
        waiting.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in waiting.select():
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                if connection is listener:
                    accepted, _ = listener.accept()
                    accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    waiting.register(accepted, selectors.EVENT_READ)
                elif connection.recv(4096):
                    connection.sendall(answer)
                else:
                    waiting.unregister(connection)
                    connection.close()


if __name__ == "__main__":
    if sys.argv[1] == "respond":
        respond()
    else:
        ask(int(sys.argv[2]), json.loads(sys.argv[3]), PER_S)
