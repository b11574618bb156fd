"""What does one token of a streamed reply cost the server, in processor time, in each dialect?

An engine that plays a script writes a token every few milliseconds, on its thread, inside the real server; a client
in another process reads the stream.  The engine takes the process's and its own thread's processor time at its first
and its last token; what the same script takes without a server is subtracted.  Processor time hardly changes with what
else the machine does, so this also tells something on a busy one.

    .venv/bin/python -m benchmarks.online.reply_costs [--tokens N] [--pace-ms N] [--rounds N] [--record]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks.recording import BenchmarkResult, format_table, report
from slotstream_core.events import GenerationEvent, TextDelta
from slotstream_serve.dialects.base import ModelFacts
from slotstream_serve.dialects.catalog import all_dialects
from slotstream_serve.runner import Runner
from slotstream_serve.server import SlotstreamServer, bind
from slotstream_serve.service import Service
from slotstream_serve.settings import ServeConfig
from slotstream_serve.testing import ScriptedEngine

PIECE = " token"
CLIENT = """
import socket, sys
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
connection.sendall(sys.stdin.buffer.read())
last = b""
while piece := connection.recv(65536):
    last = (last + piece)[-4096:]
sys.stdout.buffer.write(last)
"""


@dataclass
class Marks:
    """Seconds at the first and at the last token: of the process, of the engine's thread, and of the clock."""

    process_s: list[float] = field(default_factory=list)
    thread_s: list[float] = field(default_factory=list)
    clock_s: list[float] = field(default_factory=list)

    def take(self) -> None:
        self.process_s.append(time.process_time())
        self.thread_s.append(time.thread_time())
        self.clock_s.append(time.perf_counter())


class PacedEngine(ScriptedEngine):
    """Writes the same token at a steady pace and takes the time while it does."""

    def __init__(self, tokens: int, pace_s: float) -> None:
        super().__init__([[PIECE] * tokens], window_tokens=8 * tokens + 4096)
        self.pace_s = pace_s
        self.marks = Marks()

    def _run(self, *arguments: Any) -> Iterator[GenerationEvent]:
        due = time.perf_counter()
        self.marks = Marks()
        texts = 0
        for event in super()._run(*arguments):
            if isinstance(event, TextDelta):
                due += self.pace_s
                time.sleep(max(0.0, due - time.perf_counter()))
                texts += 1
                if texts in (2, self._tokens):  # what the first token costs once is no cost of a token
                    self.marks.take()
            yield event

    @property
    def _tokens(self) -> int:
        script = self._scripts[0] if not callable(self._scripts) else ()
        return len(script)


def requests_of(tokens: int) -> Mapping[str, tuple[str, dict[str, Any], Mapping[str, str], bytes]]:
    """Return path, body, headers and what the end of a whole stream looks like, for each dialect."""
    turn = [{"role": "user", "content": "Say something."}]
    most = tokens + 10
    gateway = {
        "ai-language-model-id": "demo",
        "ai-language-model-specification-version": "3",
        "ai-language-model-streaming": "true",
    }
    said = [{"role": "user", "content": [{"type": "text", "text": "Say something."}]}]
    return {
        "ollama": (
            "/api/chat",
            {"model": "demo", "messages": turn, "options": {"num_predict": most}},
            {},
            b'"done":true',
        ),
        "openai_chat": (
            "/v1/chat/completions",
            {"model": "demo", "messages": turn, "stream": True, "max_completion_tokens": most},
            {},
            b"[DONE]",
        ),
        "openai_responses": (
            "/v1/responses",
            {"model": "demo", "input": "Say something.", "stream": True, "max_output_tokens": most},
            {},
            b"response.completed",
        ),
        "anthropic_messages": (
            "/v1/messages",
            {"model": "demo", "messages": turn, "stream": True, "max_tokens": most},
            {},
            b"message_stop",
        ),
        "ai_gateway": (
            "/v3/ai/language-model",
            {"prompt": said, "maxOutputTokens": most},
            gateway,
            b"[DONE]",
        ),
    }


def facts(window_tokens: int) -> ModelFacts:
    return ModelFacts(
        name="demo",
        names=frozenset({"demo"}),
        window_tokens=window_tokens,
        max_output_tokens=window_tokens // 4,
        parameters=1000,
        parameter_size="1K",
        size_bytes=500,
        resident_bytes=0,
        modified_at=1_700_000_000.0,
        vision=False,
        memory_plan={},
        context_policy={},
        digest="paced",
        family="qwen4_exp",
        quantization="4bit",
    )


@contextmanager
def served(engine: PacedEngine) -> Iterator[int]:
    """Serve the engine in this process and yield the port."""
    config = ServeConfig(model=facts(engine.window_tokens), port=0)
    server = SlotstreamServer(Service(Runner(lambda: engine), config, all_dialects()))
    listener = bind(config)
    thread = threading.Thread(target=server.run, args=([listener],), name="server")
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


def read_by_another_process(port: int, path: str, body: dict[str, Any], headers: Mapping[str, str]) -> bytes:
    """Make one request from a process of its own; return the end of what it read."""
    text = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", "Connection: close", f"Content-Length: {len(text)}"]
    lines += ["Content-Type: application/json", *(f"{name}: {value}" for name, value in headers.items())]
    request = "\r\n".join([*lines, "", ""]).encode() + text
    done = subprocess.run([sys.executable, "-c", CLIENT, str(port)], input=request, capture_output=True, check=True)
    return done.stdout


def of_a_token(marks: Sequence[float], tokens: int) -> float:
    return (marks[-1] - marks[0]) / (tokens - 2)


def measure(tokens: int, pace_s: float, rounds: int) -> dict[str, float]:
    """Return medians over the rounds, which mix all dialects."""
    engine = PacedEngine(tokens, pace_s)
    alone: list[float] = []
    process: dict[str, list[float]] = {}
    thread: dict[str, list[float]] = {}
    with served(engine) as port:
        for _ in range(rounds):
            for _event in engine.generate([65, 66], max_tokens=tokens + 10):
                pass
            alone.append(of_a_token(engine.marks.process_s, tokens))
            for name, (path, body, headers, end) in requests_of(tokens).items():
                said = read_by_another_process(port, path, body, headers)
                if end not in said:
                    raise SystemExit(f"{name} did not end as it should: {said[-500:]!r}")
                process.setdefault(name, []).append(of_a_token(engine.marks.process_s, tokens))
                thread.setdefault(name, []).append(of_a_token(engine.marks.thread_s, tokens))
    script_s = statistics.median(alone)
    values = {"script_alone_s": script_s}
    for name in process:
        total, own = statistics.median(process[name]), statistics.median(thread[name])
        values[f"{name}_token_s"] = total - script_s
        values[f"{name}_engine_thread_s"] = own - script_s
        values[f"{name}_event_loop_s"] = total - own
    return values


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--pace-ms", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--record", action="store_true", help="keep the result under benchmarks/results")
    options = parser.parse_args()
    values = measure(options.tokens, options.pace_ms / 1e3, options.rounds)
    rows = [(name.removesuffix("_s").replace("_", " "), f"{1e6 * value:.1f}") for name, value in values.items()]
    settings = {"tokens": options.tokens, "pace_ms": options.pace_ms, "rounds": options.rounds}
    report(
        BenchmarkResult(benchmark="reply_costs", settings=settings, values=values),
        table=format_table(("processor time a token", "us"), rows),
        record=options.record,
    )


if __name__ == "__main__":
    main()
