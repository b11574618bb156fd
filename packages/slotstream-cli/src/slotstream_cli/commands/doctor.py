"""`slotstream doctor`: what fits on this machine and how fast it will be, before anything is loaded."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from slotstream_cli.machines import geometry_of, this_machine
from slotstream_cli.number_options import MINUTES
from slotstream_cli.planning_options import make_request, memory_options

if TYPE_CHECKING:
    from slotstream_core.options import EngineOptions
    from slotstream_planner import Machine, MemoryPlan
    from slotstream_planner.diagnosis import Diagnosis
    from slotstream_planner.hosts import CpuSpeed

_PUBLISHED_MODEL = "qwen3.8-flash-next:4bit"
_PROBE_SECONDS = 8.0


@click.command("doctor")
@click.option("--model", metavar="NAME|DIR", help=f"Model name or checkpoint directory [default: {_PUBLISHED_MODEL}].")
@click.option("--sim-ram", type=float, metavar="GB", help="Plan for a machine with this much memory instead.")
@click.option("--sim-working-set", type=float, metavar="GB", help="Its working-set limit [default: 75% of --sim-ram].")
@click.option("--sim-available", type=float, metavar="GB", help="Its available memory [default: nothing else runs].")
@memory_options
@click.option(
    "--max-prefill-wait",
    type=MINUTES,
    default=30.0,
    show_default=True,
    metavar="MINUTES",
    help="Longest wait for a first token; 0 for no limit.",
)
@click.option("--no-probe", is_flag=True, help="Do not measure the disk (about 10 s, at most 2 GB read).")
@click.option("--reports", is_flag=True, help="Print predicted against reported speeds of known machines and stop.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def command(
    *,
    model: str | None,
    sim_ram: float | None,
    sim_working_set: float | None,
    sim_available: float | None,
    max_prefill_wait: float,
    no_probe: bool,
    reports: bool,
    as_json: bool,
    **sizes: Any,
) -> None:
    """Show what fits on this machine, or a simulated one, and how fast it will be.

    Nothing is loaded and nothing is downloaded; it can run beside a server. Without --model the published
    model is planned as its complete download would be.
    """
    if reports:
        from slotstream_planner.evidence import reports_to_text

        click.echo(reports_to_text())
        return
    diagnosis = _diagnose(
        model,
        (sim_ram, sim_working_set, sim_available),
        {**sizes, "max_prefill_wait_minutes": max_prefill_wait},
        probe_seconds=0.0 if no_probe else _PROBE_SECONDS,
    )
    options = None if diagnosis.machine.is_simulated else _engine_options()
    now = _loaded_now(diagnosis)
    read = None if options is None else _read_now(diagnosis, options, measure=not no_probe)
    if as_json:
        loaded = None if now is None else now.to_json()
        document = {**diagnosis.to_json(), "loaded_now": loaded, "experts_read": None if read is None else asdict(read)}
        click.echo(json.dumps(document, indent=2, allow_nan=False))
    else:
        from slotstream_planner.diagnosis import diagnosis_to_text

        click.echo(diagnosis_to_text(diagnosis))
        if not diagnosis.machine.is_simulated and diagnosis.machine.kind == "linux":
            from slotstream_core.blas import forwarded_blas

            click.echo(f"  dense products {forwarded_blas().describe()}")
        if read is not None:
            click.echo(read.describe())
        if now is not None:
            click.echo(
                "  loaded now    run and serve of this version leave out images,\n"
                f"                and load {now.pool_slots:,} slots with a window of "
                f"{now.window_tokens:,} tokens and passes of {now.prefill_chunk:,}"
            )
    if diagnosis.refusal is not None:
        raise click.exceptions.Exit(1)


def _diagnose(
    model: str | None,
    simulation: tuple[float | None, float | None, float | None],
    options: dict[str, Any],
    *,
    probe_seconds: float,
) -> Diagnosis:
    """Run the planner's diagnosis; imported here so that `--help` does not load it."""
    from slotpack.catalog import root_directory
    from slotstream_planner.diagnosis import diagnose
    from slotstream_planner.hitcurves import profile_path, read_profile
    from slotstream_planner.hosts import detect_chip

    machine = _machine(*simulation)
    name, directory, geometry = geometry_of(model, machine)
    profile = None if machine.is_simulated else read_profile(profile_path(root_directory(), name))
    return diagnose(
        geometry,
        machine,
        make_request(**options),
        directory=directory,
        probe_seconds=probe_seconds,
        chip=detect_chip(),
        cpu=_cpu_speed(machine) if probe_seconds else None,
        profile=profile,
    )


def _cpu_speed(machine: Machine) -> CpuSpeed | None:
    """Measure the compiled products on a machine that computes with them."""
    if machine.is_simulated or machine.kind != "linux":
        return None
    from slotstream_core.native.probing import probe_products

    return probe_products(os.environ)


@dataclass(frozen=True, kw_only=True)
class _ReadNow:
    """How `run` and `serve` would read missing experts here and now.

    Attributes:
        layout: "stacked" or "repacked".
        direct: Whether past the page cache; None when that was not measured.
        reason: Why.
    """

    layout: str
    direct: bool | None
    reason: str

    def describe(self) -> str:
        lines = [
            "  expert reads  repacked records, one read each"
            if self.layout == "repacked"
            else "  expert reads  stacked tensors, up to nine reads each; `slotstream repack` makes it one"
        ]
        if self.direct is not None:
            how = "past the page cache" if self.direct else "through the page cache"
            lines.append(f"                {how}: {self.reason}")
        return "\n".join(lines)


def _read_now(diagnosis: Diagnosis, options: EngineOptions, *, measure: bool) -> _ReadNow | None:
    """Say how missing experts are read; None where there are none, or no model that is loaded here."""
    plan = diagnosis.plan
    if plan is None or not diagnosis.disk.installed:
        return None
    if plan.pool_slots >= diagnosis.geometry.total_experts:
        return None
    from slotstream_core.errors import CheckpointError
    from slotstream_core.experts.reading import preview_reading

    try:
        layout, access = preview_reading(
            diagnosis.disk.path,
            options=options.reading(()),
            available_bytes=plan.page_cache_bytes,
            measure=measure,
        )
    except CheckpointError:
        return None  # whoever loads it is told why
    return _ReadNow(
        layout=layout,
        direct=None if access is None else access.direct,
        reason="not measured" if access is None else access.reason,
    )


def _engine_options() -> EngineOptions:
    """What the environment asks of an engine; refused here as `run` would refuse it."""
    from slotstream_core.options import EngineOptions

    return EngineOptions.from_environment(os.environ)


def _loaded_now(diagnosis: Diagnosis) -> MemoryPlan | None:
    """Return what `run` and `serve` load today, where that differs from the complete plan."""
    from slotstream_planner import PlannerError, plan

    complete = diagnosis.plan
    if complete is None:
        return None
    try:
        now = plan(diagnosis.geometry, diagnosis.machine, complete.request.with_parts_that_run())
    except PlannerError:
        return None
    return None if now.ledger == complete.ledger else now


def _machine(ram: float | None, working_set: float | None, available: float | None) -> Machine:
    from slotstream_planner import InvalidRequest, Machine

    if ram is not None:
        return Machine.simulated(ram_gb=ram, working_set_gb=working_set, available_gb=available)
    if working_set is not None or available is not None:
        raise InvalidRequest("--sim-working-set and --sim-available describe a simulated machine; give --sim-ram too")
    return this_machine()
