"""The server behind a launch: the one that runs, or one that is started in the background."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from slotstream_cli.launching.asking import Probe, ServerPort
from slotstream_cli.launching.errors import ServerRefused
from slotstream_cli.launching.plans import Agent, ServedModel
from slotstream_cli.launching.records import LaunchState, running

__all__ = ["Background", "Decision", "Wishes", "decide", "serve_arguments"]

POLL_S = 0.25
READY_WITHIN_S = 600.0
STOPPING_WITHIN_S = 20.0
END_WITHIN_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What a launch asks of the server.

    Attributes:
        agent: Who will use it.
        model: The value for `--model`.
        max_context: The window to ask for, or None for the automatic one.
        memory_gb: A fixed memory target, or None.
        memory_limit_gb: An adaptive ceiling, or None.
        idle_exit_minutes: How long it stays without clients and requests; 0 for ever.
        may_start: Whether a server may be started or restarted.
        any_window: Whether a window below the agent's minimum will do.
        prefix_cache: Where a new server keeps conversations on disk, or None.
        mirrors: Absolute paths of other copies of the model that a new server reads experts from.
    """

    agent: Agent
    model: str | None = None
    max_context: int | None = None
    memory_gb: float | None = None
    memory_limit_gb: float | None = None
    idle_exit_minutes: float = 30.0
    may_start: bool = True
    any_window: bool = False
    prefix_cache: Path | None = None
    mirrors: tuple[Path, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What to do about the server.

    Attributes:
        action: Use the running one, start one, or stop the running one first.
        pid: The process to stop before a restart.
        notes: Sentences for the user.
    """

    action: Literal["use", "start", "restart"]
    pid: int = 0
    notes: tuple[str, ...] = ()


def serve_arguments(wishes: Wishes, port: int) -> list[str]:
    """Return the arguments that start the server."""
    words = ["serve", "--port", str(port)]
    for option, value in (
        ("--model", wishes.model),
        ("--max-context", wishes.max_context),
        ("--memory-gb", wishes.memory_gb),
        ("--memory-limit-gb", wishes.memory_limit_gb),
        ("--idle-exit", wishes.idle_exit_minutes or None),
        ("--prefix-cache-dir", wishes.prefix_cache),
        *(("--mirror", mirror) for mirror in wishes.mirrors),
    ):
        if value is not None:
            words += [option, f"{value:.15g}" if isinstance(value, float) else str(value)]
    return words


def decide(
    probe: Probe, status: Mapping[str, Any] | None, recorded_pid: int | None, port: int, wishes: Wishes
) -> Decision:
    """Return what to do about the server on a port.

    Args:
        probe: Who answers there.
        status: What the server says of its use, when it does.
        recorded_pid: The server that a launch started there and that still runs, or None.
        port: The port.
        wishes: What is asked of it.

    Raises:
        ServerRefused: Neither can it be used nor may another be started.
    """
    if probe.kind == "served" and probe.served is not None:
        return _decide_served(probe.served, status or {}, recorded_pid, wishes)
    if probe.kind == "absent":
        if wishes.may_start:
            return Decision(action="start")
        raise ServerRefused(
            f"no Slotstream server answered on port {port}; run `slotstream serve --port {port}`, or launch without "
            "--no-start"
        )
    if probe.kind in ("busy", "stopping"):
        what = "busy with every connection it takes" if probe.kind == "busy" else "stopping, and has not ended yet"
        raise ServerRefused(f"the server on port {port} is {what}; try again when it has finished")
    if probe.kind == "locked":
        raise ServerRefused(
            f"the server on port {port} asks for a key ({probe.reason}); set SLOTSTREAM_API_KEY to the one it was "
            "started with"
        )
    raise ServerRefused(
        f"the server on port {port} is not Slotstream ({probe.reason}); stop it, or use another port: "
        "`slotstream launch --port N ...`"
    )


def _decide_served(
    served: ServedModel, status: Mapping[str, Any], recorded_pid: int | None, wishes: Wishes
) -> Decision:
    agent, window, least = wishes.agent, served.window_tokens, wishes.agent.minimum_window
    notes = _differences(served, status, wishes)
    if window >= least:
        return Decision(action="use", notes=notes)
    short = f"{agent.title} needs a context window of at least {least:,} tokens; the server on port {served.port} has "
    short += f"{window:,}"
    if wishes.any_window:
        return Decision(action="use", notes=(*notes, short))
    ours = recorded_pid is not None and status.get("pid") == recorded_pid
    idle = not status.get("active_requests") and not status.get("clients")
    if wishes.may_start and ours and idle and recorded_pid is not None:
        return Decision(action="restart", pid=recorded_pid, notes=(f"{short}, so it is started again",))
    if ours and not idle:
        raise ServerRefused(f"{short}; another agent uses it. Launch again when that one has ended")
    raise ServerRefused(
        f"{short}. Stop it (`slotstream stop --port {served.port}`) and launch again, or start it yourself with "
        f"`--max-context {least}`; --allow-small-window tries the window it has"
    )


def _differences(served: ServedModel, status: Mapping[str, Any], wishes: Wishes) -> tuple[str, ...]:
    """Return notes about settings of this launch that the running server does not have."""
    notes = []
    if wishes.model is not None and served.model not in (wishes.model, Path(wishes.model).name):
        notes.append(f"the server on port {served.port} serves {served.model}; --model is for a new one")
    target, limit = status.get("memory_target_gb"), status.get("memory_limit_gb")
    if wishes.memory_gb is not None and (status.get("memory_source") != "--memory-gb" or target != wishes.memory_gb):
        held = "no fixed target" if target is None else f"{target:g} GB ({status.get('memory_source')})"
        notes.append(f"the server on port {served.port} keeps its memory target, {held}; --memory-gb is for a new one")
    if wishes.memory_limit_gb is not None and limit != wishes.memory_limit_gb:
        held = "none" if limit is None else f"{limit:g} GB"
        notes.append(
            f"the server on port {served.port} keeps its memory limit, {held}; --memory-limit-gb is for a new one"
        )
    if wishes.mirrors:
        notes.append(f"the server on port {served.port} reads what it was started with; --mirror is for a new one")
    return tuple(notes)


class Background:
    """Starts, restarts and awaits the server on one port.

    Attributes:
        server: The process of the server that was started, which outlives this one; None when none was.
    """

    def __init__(
        self,
        port: ServerPort,
        state: LaunchState,
        *,
        say: Callable[[str], None],
        program: tuple[str, ...] = (sys.executable, "-P", "-m", "slotstream_cli"),
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Prepare; `say` is given every line for the user, `program` takes the arguments of `slotstream`."""
        self._port = port
        self._state = state
        self._say = say
        self._program = program
        self._pause = pause
        self.server: subprocess.Popen[bytes] | None = None

    def decision(self, wishes: Wishes) -> tuple[Decision, Probe]:
        """Return what to do about the server, and who answers now; waits for one that is stopping.

        Raises:
            ServerRefused: It can neither be used nor may another be started.
        """
        probe = self._port.probe()
        for _ in range(round(STOPPING_WITHIN_S / POLL_S)):
            if probe.kind != "stopping":
                break
            self._pause(POLL_S)
            probe = self._port.probe()
        record = self._state.record()
        status = self._port.status() if probe.kind == "served" else None
        return decide(probe, status, None if record is None else record.pid, self._port.port, wishes), probe

    def ensure(self, wishes: Wishes) -> tuple[ServedModel, tuple[str, ...]]:
        """Return the server's facts and notes for the user, starting it when there is none.

        Raises:
            ServerRefused: There is none that can be used.
            LaunchError: Its files cannot be written.
        """
        decision, probe = self.decision(wishes)
        if decision.action == "use" and probe.served is not None:
            return probe.served, decision.notes
        wait = f"another launch starts the server on port {self._port.port}; waiting for it"
        with self._state.starting(waiting=lambda: self._say(wait)):
            decision, probe = self.decision(wishes)
            if decision.action == "use" and probe.served is not None:
                return probe.served, decision.notes
            if decision.action == "restart":
                end_process(decision.pid, pause=self._pause)
            return self._start(wishes), decision.notes

    def _start(self, wishes: Wishes) -> ServedModel:
        log = self._state.open_log()
        environment = {**os.environ, "SLOTSTREAM_ROOT_DIR": str(self._state.root), "PYTHONUNBUFFERED": "1"}
        try:
            process = subprocess.Popen(
                [*self._program, *serve_arguments(wishes, self._port.port)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            raise ServerRefused(f"the server cannot be started: {error.strerror or error}") from error
        finally:
            os.close(log)
        try:
            self._state.write_record(process.pid)
            self._say(f"starting a server on port {self._port.port}; its log is {self._state.log}")
            served = self._ready(process)
            _require_window(served, wishes)
        except BaseException:
            process.terminate()
            end_process(process.pid, pause=self._pause)
            process.wait()
            self._state.forget()
            raise
        self.server = process
        return served

    def _ready(self, process: subprocess.Popen[bytes]) -> ServedModel:
        """Show the log until the server answers."""
        with self._state.log.open(encoding="utf-8", errors="replace") as log:
            for _ in range(round(READY_WITHIN_S / POLL_S)):
                ended = process.poll()
                for line in log:
                    self._say(line.rstrip("\n"))
                if ended is not None:
                    raise ServerRefused(
                        f"Slotstream stopped while starting, with exit code {ended}; the lines above and "
                        f"{self._state.log} say why"
                    )
                probe = self._port.probe()
                if probe.kind == "served" and probe.served is not None:
                    return probe.served
                self._pause(POLL_S)
        raise ServerRefused(f"the server did not answer within {READY_WITHIN_S:.0f} s; {self._state.log} says more")


def _require_window(served: ServedModel, wishes: Wishes) -> None:
    least = wishes.agent.minimum_window
    if served.window_tokens < least and not wishes.any_window:
        raise ServerRefused(
            f"{wishes.agent.title} needs a context window of at least {least:,} tokens; the server that was started "
            f"has {served.window_tokens:,} and was ended. Give it more memory with --memory-gb"
        )


def end_process(pid: int, *, pause: Callable[[float], None] = time.sleep, within_s: float = END_WITHIN_S) -> None:
    """Ask a process to end and wait until it has.

    Raises:
        ServerRefused: It may not be ended, or still runs after `within_s` seconds.
    """
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return
    except OSError as error:
        raise ServerRefused(f"process {pid} cannot be stopped: {error.strerror or error}") from error
    for _ in range(max(1, round(within_s / POLL_S))):
        if running(pid) is None:
            return
        pause(POLL_S)
    raise ServerRefused(f"process {pid} has not ended {within_s:.0f} s after SIGTERM; `kill -9 {pid}` ends it at once")
