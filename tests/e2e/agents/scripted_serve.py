"""`slotstream serve` with a scripted engine that plays a capable model: it writes a file, reads it back, and reports.

Run with the arguments of `slotstream serve`.  One token is one byte, and the longest common beginning with an earlier
prompt counts as kept, as it would with the real prefix cache; everything else is the real command.
"""

import dataclasses
import json
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from slotstream_cli import serving
from slotstream_cli.main import main
from slotstream_core.events import Finished, GenerationEvent
from slotstream_planner import Machine, PlanRequest, plan, published_geometry
from slotstream_serve.testing import Script, ScriptedEngine, tool_call, write_in_pieces

LINE = "SLOTSTREAM OK"
WINDOW = 262_144
GRID = 256
TARGET = re.compile(r"file (/\S*/hello\.txt)")
PIECE = 16
PATCH = "*** Begin Patch\n*** Add File: {path}\n+{line}\n*** End Patch\n"


def play(prompt: str) -> Script:
    """Return what the model writes next, given how many of its calls have been answered."""
    tools, turns = _read(prompt)
    asked = [at for at, turn in enumerate(turns) if turn["role"] == "user" and TARGET.search(json.dumps(turn))]
    if not tools or not asked:
        return ["A file with one line"]
    found = TARGET.search(json.dumps(turns[asked[-1]]))
    path = found[1] if found else ""
    results = sum(turn["role"] == "tool" for turn in turns[asked[-1] :])
    calls = [_writing(tools, path), _reading(tools, path)]
    if results < len(calls):
        return write_in_pieces(f"I do that.\n{calls[results]}", PIECE)
    seen = LINE if LINE in json.dumps(turns[-1]) else "something else"
    return write_in_pieces(f"The file holds exactly: {seen}", PIECE)


def _read(prompt: str) -> tuple[frozenset[str], list[dict[str, Any]]]:
    """Return the declared tools' names and the turns of a scripted engine's rendering."""
    tools: frozenset[str] = frozenset()
    turns: list[dict[str, Any]] = []
    for line in prompt.split("\n")[:-1]:
        value = json.loads(line)
        if "tools" in value:
            tools = frozenset((tool.get("function") or tool)["name"] for tool in value["tools"])
        else:
            turns.append(value)
    return tools, turns


def _writing(tools: frozenset[str], path: str) -> str:
    if "apply_patch" in tools:
        return tool_call("apply_patch", {"input": PATCH.format(path=path, line=LINE)})
    if "Write" in tools:
        return tool_call("Write", {"file_path": path, "content": f"{LINE}\n"})
    if "write_file" in tools:
        return tool_call("write_file", {"path": path, "content": f"{LINE}\n"})
    if "write" in tools:
        return tool_call("write", {"path": path, "filePath": path, "content": f"{LINE}\n"})
    return _running(tools, f"echo '{LINE}' > {path}")


def _reading(tools: frozenset[str], path: str) -> str:
    if "Read" in tools:
        return tool_call("Read", {"file_path": path})
    if "read_file" in tools:
        return tool_call("read_file", {"path": path})
    if "read" in tools:
        return tool_call("read", {"path": path, "filePath": path})
    return _running(tools, f"cat {path}")


def _running(tools: frozenset[str], line: str) -> str:
    """Call the tool that runs a line of shell, whatever a version of Codex names it for this model."""
    if "exec_command" in tools:
        return tool_call("exec_command", {"cmd": line})
    if "shell_command" in tools:
        return tool_call("shell_command", {"command": line})
    return tool_call("shell", {"command": ["bash", "-c", line]})


class CapableEngine(ScriptedEngine):
    """Plays `play`, and counts what an earlier prompt spares."""

    def __init__(self) -> None:
        machine = Machine.simulated(ram_gb=128)
        planned = plan(published_geometry(), machine, PlanRequest(max_context=WINDOW))
        super().__init__(play, window_tokens=WINDOW, plan=planned)
        self._seen: list[bytes] = []

    def generate(self, prompt: Sequence[int], **options: Any) -> Iterator[GenerationEvent]:
        """Play one reply."""
        text = bytes(prompt)
        events = super().generate(prompt, **options)
        kept = max((_common(text, other) for other in self._seen), default=0) // GRID * GRID
        self._seen.append(text)
        return _counted(events, kept)


def _common(one: bytes, other: bytes) -> int:
    """Return the length of the longest common beginning, by halving."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low


def _counted(events: Iterator[GenerationEvent], kept: int) -> Iterator[GenerationEvent]:
    for event in events:
        if isinstance(event, Finished):
            yield dataclasses.replace(event, usage=dataclasses.replace(event.usage, cached_tokens=kept))
        else:
            yield event


if __name__ == "__main__":
    engine = CapableEngine()
    setattr(serving, "load", lambda *_arguments, **_options: engine)  # noqa: B010 - mypy knows `load` as private
    main(["serve", "--no-elastic", *sys.argv[1:]], prog_name="slotstream")
