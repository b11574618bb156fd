"""Stopping the server on a port, whoever started it."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil

from slotstream_cli.launching.asking import ServerPort
from slotstream_cli.launching.background import end_process
from slotstream_cli.launching.errors import ServerRefused
from slotstream_cli.launching.records import LaunchState, is_slotstream, running

__all__ = ["stop_server"]


def stop_server(port: ServerPort, state: LaunchState, *, pause: Callable[[float], None] = time.sleep) -> str:
    """Stop the server on a port, also one that is still starting, and return what to tell the user.

    Raises:
        ServerRefused: Something else listens there, or the server does not end.
    """
    status = port.status()
    record = state.record()
    pid = status.get("pid") if status is not None else None if record is None else record.pid
    if pid is None:
        probe = port.probe()
        if probe.kind == "absent":
            return f"no Slotstream server runs on port {port.port}"
        if probe.kind == "locked":
            raise ServerRefused(f"the server on port {port.port} asks for a key; set SLOTSTREAM_API_KEY and try again")
        raise ServerRefused(f"what listens on port {port.port} does not say that it is Slotstream; nothing was stopped")
    if not isinstance(pid, int) or not _is_server(pid):
        raise ServerRefused(
            f"the server on port {port.port} names process {pid}, which is not Slotstream's; nothing was stopped"
        )
    end_process(pid, pause=pause)
    if record is not None and record.pid == pid:
        state.forget()
    return f"stopped the server on port {port.port} (process {pid})"


def _is_server(pid: int) -> bool:
    process = running(pid)
    try:
        return process is not None and is_slotstream(process.cmdline())
    except psutil.Error:
        return False
