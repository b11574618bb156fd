"""Memory readings that come from small system programs: macOS's page counts and NVIDIA's device memory."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from slotstream_planner.errors import MachineError

__all__ = ["DeviceMemory", "parse_vm_stat", "read_mac_available_bytes", "read_nvidia_memory"]

_TIMEOUT_S = 10
_PAGE_SIZE = re.compile(r"page size of (\d+) bytes")
_DEVICE = re.compile(r"\d+|GPU-[0-9a-f-]+")
_MAC_LINES = ("Pages free", "Pages purgeable", "File-backed pages")


@dataclass(frozen=True, kw_only=True)
class DeviceMemory:
    """Memory of one NVIDIA device.

    Attributes:
        name: The device's name.
        total_bytes: What it has.
        free_bytes: What nothing uses now.
    """

    name: str
    total_bytes: int
    free_bytes: int


def parse_vm_stat(text: str) -> int:
    """Return the bytes macOS can hand out without paging: free, purgeable and file-backed pages.

    Raises:
        MachineError: The text is not what ``vm_stat`` prints.
    """
    size = _PAGE_SIZE.search(text)
    counts = [re.search(rf"^{line}:\s+(\d+)\.", text, re.MULTILINE) for line in _MAC_LINES]
    if size is None or any(count is None for count in counts):
        raise MachineError("vm_stat printed page counts this version does not understand")
    return int(size[1]) * sum(int(count[1]) for count in counts if count is not None)


def read_mac_available_bytes() -> int:
    """Return what macOS can hand out now.

    Raises:
        MachineError: ``vm_stat`` cannot be run or understood.
    """
    return parse_vm_stat(_output(["/usr/bin/vm_stat"]))


def read_nvidia_memory(program: str = "nvidia-smi") -> DeviceMemory | None:
    """Return the memory of the first NVIDIA device, of those in CUDA_VISIBLE_DEVICES where that is set.

    Returns:
        None where there is no device or driver.
    """
    query = [program, "--query-gpu=name,memory.total,memory.free", "--format=csv,noheader,nounits"]
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    if _DEVICE.fullmatch(first):
        query.append(f"--id={first}")
    try:
        lines = _output(query).strip().splitlines()
    except MachineError:
        return None
    fields = [field.strip() for field in lines[0].split(",")] if lines else []
    if len(fields) != 3 or not fields[1].isdigit() or not fields[2].isdigit():
        return None
    return DeviceMemory(name=fields[0], total_bytes=int(fields[1]) * 2**20, free_bytes=int(fields[2]) * 2**20)


def _output(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise MachineError(f"{command[0]} cannot be run: {error}") from error
    return done.stdout
