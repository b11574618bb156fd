"""How fast a machine computes when nothing has to be read: the part of a token that is not the disk.

For Apple chips the figure follows from the memory bandwidth Apple publishes, with two constants fitted to
one machine, the M5 Pro, whose decode time was attributed: a third reads, a third GPU, a third CPU and
synchronisation. Other chips are predictions from their bandwidth and serve as the model's test.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from typing import Final, Literal

from slotstream_planner.geometry import ModelGeometry
from slotstream_planner.hitcurves import RecordedProfile
from slotstream_planner.machine import Machine, MachineKind

__all__ = [
    "APPLE_MEMORY_BANDWIDTH",
    "CpuSpeed",
    "HostSpeed",
    "apple_host",
    "detect_chip",
    "host_for",
    "stall_s_per_layer",
]

APPLE_MEMORY_BANDWIDTH: Final[dict[str, float]] = {
    "M1": 68e9,
    "M1 Pro": 200e9,
    "M1 Max": 400e9,
    "M1 Ultra": 800e9,
    "M2": 100e9,
    "M2 Pro": 200e9,
    "M2 Max": 400e9,
    "M2 Ultra": 800e9,
    "M3": 100e9,
    "M3 Pro": 150e9,
    "M3 Max": 400e9,
    "M3 Ultra": 819e9,
    "M4": 120e9,
    "M4 Pro": 273e9,
    "M4 Max": 546e9,
    "M5": 153e9,
    "M5 Pro": 307e9,
    "M5 Max": 614e9,
}
"""Published memory bandwidth in bytes per second, of the largest configuration of each chip."""

_REFERENCE_CHIP: Final = "M5 Pro"
_BANDWIDTH_SHARE: Final = 0.384
"""Share of the bandwidth single-token matrix products reach: 33 ms for 3.89 GB on the M5 Pro."""

_SYNC_S_PER_LAYER: Final = 0.69e-3
"""Graph building, submission and the routing readback: 33 ms over 48 layers on the M5 Pro."""

_STALL_S_PER_LAYER: Final = 0.38e-3
"""Fixed cost of a layer that has to wait for a read (M5 Pro, fitted by the original to 0.2%)."""

_CPU_SYNC_S_PER_LAYER: Final = 0.12e-3
"""Routing and everything but products in a compiled layer: 2.1 ms a token of 8 layers less 0.9 to 1.2 of products."""

_CPU_TOKEN_S: Final = 1.2e-3
"""What a token takes beside: 1.1 to 2 ms of a reply of the demo model are neither its products, nor reads, nor the time
above a layer. Sampling, text and events are 0.2 to 0.6 of it; the rest has not been attributed (docs/log.md)."""

_CPU_STALL_S_PER_LAYER: Final = 0.12e-3
"""As `_STALL_S_PER_LAYER` where compiled lanes read through the page cache: 1 ms for 37 records in 8 layers."""

_MLX_CPU_SYNC_S_PER_LAYER: Final = 1.5e-3
"""As `_CPU_SYNC_S_PER_LAYER` with MLX's layers: 24 ms a token of 8 layers less 12 of products."""

_CPU_FLOP_PER_S_PER_CORE: Final = 1.5e9
"""MLX's own quantised products on a CPU: 3.1 GFLOP/s on two cores (mlx-cpu 0.32.4, x86-64)."""

_PACKED_BYTES_PER_WEIGHT: Final = 0.5625

_PROMPT_SHARE: Final = 0.097
"""Compute of one prompt token against one reply token in large passes: 3.2 ms to 33 ms on the M5 Pro."""


@dataclass(frozen=True, kw_only=True)
class HostSpeed:
    """Time of one token with every expert in a slot, without drafts.

    Attributes:
        compute_s: Matrix products.
        sync_s: Graph building, submission and readbacks.
        prompt_s: Compute of one prompt token in a large pass.
        stall_s: Of each layer that has to wait for a read, beside the read itself.
        label: What the figure rests on.
        evidence: ``measured`` here, ``fitted`` from reports, or ``assumed``.
    """

    compute_s: float
    sync_s: float
    prompt_s: float
    label: str
    evidence: Literal["measured", "fitted", "assumed"]
    stall_s: float = _STALL_S_PER_LAYER

    @property
    def total_s(self) -> float:
        """The whole time."""
        return self.compute_s + self.sync_s


@dataclass(frozen=True, kw_only=True)
class CpuSpeed:
    """How fast the engine's products run on this machine's processor, measured.

    Attributes:
        flop_per_s: Of 4-bit products with one row of activations, weights read from memory: what a reply needs.
        prompt_flop_per_s: Of products with as many rows as one expert gets of a long pass: what a prompt needs.
        label: What computes them.
    """

    flop_per_s: float
    prompt_flop_per_s: float
    label: str


def active_bytes(geometry: ModelGeometry) -> int:
    """Return the weight bytes one token touches: shared weights, less the embedding table, and its experts."""
    routed = geometry.layers * geometry.experts_per_token * geometry.record_bytes
    embedding = round(geometry.vocabulary * geometry.hidden * _PACKED_BYTES_PER_WEIGHT)
    return routed + max(0, geometry.shared_bytes - embedding)


def stall_s_per_layer(kind: MachineKind) -> float:
    """Return the fixed cost of a layer that waits for a read, on such a machine."""
    return _CPU_STALL_S_PER_LAYER if kind in ("linux", "other") else _STALL_S_PER_LAYER


def apple_host(geometry: ModelGeometry, chip: str) -> HostSpeed:
    """Return the speed of an Apple chip, the reference chip's when the name is unknown."""
    known = chip in APPLE_MEMORY_BANDWIDTH
    bandwidth = APPLE_MEMORY_BANDWIDTH[chip if known else _REFERENCE_CHIP]
    compute_s = active_bytes(geometry) / (bandwidth * _BANDWIDTH_SHARE)
    return HostSpeed(
        compute_s=compute_s,
        prompt_s=compute_s * _PROMPT_SHARE,
        sync_s=geometry.layers * _SYNC_S_PER_LAYER,
        label=f"{chip}: {bandwidth / 1e9:.0f} GB/s of memory bandwidth"
        if known
        else f"an {_REFERENCE_CHIP} is assumed",
        evidence="fitted" if known else "assumed",
    )


def host_for(
    geometry: ModelGeometry,
    machine: Machine,
    *,
    chip: str | None,
    profile: RecordedProfile | None,
    cpu: CpuSpeed | None = None,
) -> HostSpeed:
    """Return the best figure there is for a machine.

    Args:
        geometry: The model.
        machine: The machine.
        chip: An Apple chip's name, such as ``M4 Pro``; None when unknown.
        profile: What the engine measured here, if it did.
        cpu: What a short probe measured here, for machines that compute on their processor.
    """
    on_cpu = machine.kind in ("linux", "other")
    per_layer_s = _CPU_SYNC_S_PER_LAYER if on_cpu else _SYNC_S_PER_LAYER
    sync_s = geometry.layers * per_layer_s + (_CPU_TOKEN_S if on_cpu else 0.0)
    stall_s = stall_s_per_layer(machine.kind)
    if profile is not None and profile.host_s_per_token is not None:
        compute_s = max(0.0, profile.host_s_per_token - sync_s)
        share = 1.0 if on_cpu else _PROMPT_SHARE
        return HostSpeed(
            compute_s=compute_s,
            prompt_s=compute_s * share if profile.prompt_s_per_token is None else profile.prompt_s_per_token,
            sync_s=min(sync_s, profile.host_s_per_token),
            label="recorded by the engine on this machine",
            evidence="measured",
            stall_s=stall_s,
        )
    if machine.kind == "macos":
        return apple_host(geometry, chip or "unknown chip")
    if machine.kind == "cuda":
        return HostSpeed(
            compute_s=0.0,
            prompt_s=1e-3,
            sync_s=sync_s,
            label="an NVIDIA device limited by synchronisation is assumed",
            evidence="assumed",
        )
    flops = 2 * active_bytes(geometry) / _PACKED_BYTES_PER_WEIGHT
    if cpu is not None:
        return HostSpeed(
            compute_s=flops / cpu.flop_per_s,
            prompt_s=_prompt_flops(geometry) / cpu.prompt_flop_per_s,
            sync_s=sync_s,
            stall_s=stall_s,
            label=(
                f"{cpu.flop_per_s / 1e9:.1f} GFLOP/s in products of one row, {cpu.prompt_flop_per_s / 1e9:.1f} of "
                f"many, measured with {cpu.label}"
            ),
            evidence="measured",
        )
    compute_s = flops / (_CPU_FLOP_PER_S_PER_CORE * machine.cores)
    return HostSpeed(
        compute_s=compute_s,
        prompt_s=compute_s,
        sync_s=geometry.layers * _MLX_CPU_SYNC_S_PER_LAYER + _CPU_TOKEN_S,
        stall_s=stall_s,
        label=f"{machine.cores} CPU cores at MLX's own speed are assumed",
        evidence="assumed",
    )


def _prompt_flops(geometry: ModelGeometry) -> float:
    """Return the operations of a prompt's token: those of a reply's without the output matrix, which only ends need."""
    return max(1.0, 2 * active_bytes(geometry) / _PACKED_BYTES_PER_WEIGHT - 2 * geometry.vocabulary * geometry.hidden)


def detect_chip() -> str | None:
    """Return this Mac's chip, such as ``M5 Pro``, or None elsewhere."""
    if sys.platform != "darwin":
        return None
    try:
        done = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"Apple (M\d+(?: (?:Pro|Max|Ultra))?)", done.stdout)
    return match[1] if match else None
