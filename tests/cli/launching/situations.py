"""Situations and servers for tests of agents' plans."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from slotstream_cli.launching.asking import ServerPort
from slotstream_cli.launching.plans import ServedModel, Situation

HOME = Path("/home/ada")
STATE = HOME / ".slotstream" / "launch"
MODEL = "qwen3.8-flash-next:4bit"


def served(**changes: Any) -> ServedModel:
    values: dict[str, Any] = {
        "base_url": "http://127.0.0.1:11434",
        "model": MODEL,
        "window_tokens": 65_536,
        "max_output_tokens": 8_192,
        "vision": True,
    }
    return ServedModel(**{**values, **changes})


def situation(*arguments: str, **changes: Any) -> Situation:
    values: dict[str, Any] = {
        "arguments": arguments,
        "environment": {"PATH": "/bin"},
        "home": HOME,
        "directory": HOME / "project",
        "state": STATE,
    }
    return Situation(**{**values, **changes})


@contextmanager
def answering(status: int, body: object) -> Iterator[ServerPort]:
    """A server that gives every request one answer."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_words: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield ServerPort(port=server.server_address[1])
        finally:
            server.shutdown()
            thread.join()
