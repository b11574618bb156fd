"""Draw `docs/figures/plan-sweep.svg`: automatic plans of machines from 9 to 128 GB."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slotstream_planner import published_geometry
from slotstream_planner.sweeping import SweepPoint, sweep_machines

RAMS_GB = [float(ram) for ram in range(12, 129)]
DISKS = ((1.5, "#b5651d"), (3.7, "#2a7f62"), (12.6, "#2b5c9e"))
CHIP = "M4 Pro"
WIDTH, PANEL, LEFT, RIGHT, TOP, GAP = 720, 170, 64, 16, 40, 60
Series = tuple[str, str, list[float]]


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One chart over the same machines.

    Attributes:
        title: What it shows, with its unit.
        most: The top of its axis.
        ticks: Labelled values.
        label: How a value is written.
        series: (name, colour, one value a machine).
    """

    title: str
    most: float
    ticks: Sequence[int]
    label: Callable[[int], str]
    series: Sequence[Series]


def plan_figure() -> str:
    """Return the figure, drawn from plans and forecasts made now."""
    geometry = published_geometry()
    sweeps = {rate: sweep_machines(geometry, RAMS_GB, disk_gb_s=rate, chip=CHIP) for rate, _ in DISKS}
    plans = sweeps[DISKS[0][0]]
    panels = [
        Panel(
            title="Automatic process target (GB)",
            most=60,
            ticks=[0, 20, 40, 60],
            label=str,
            series=[("", "#444444", [point.target_gb or 0 for point in plans])],
        ),
        Panel(
            title=f"Forecast warm decode on a {CHIP} (tok/s), by disk",
            most=18,
            ticks=[0, 6, 12, 18],
            label=str,
            series=[(f"{rate} GB/s", colour, _speeds(sweeps[rate])) for rate, colour in DISKS],
        ),
        Panel(
            title="Automatic context window (thousands of tokens)",
            most=288,
            ticks=[32, 64, 128, 256],
            label=lambda value: f"{value}K",
            series=[("", "#444444", [(point.window_tokens or 0) / 1024 for point in plans])],
        ),
    ]
    height = TOP + len(panels) * (PANEL + GAP) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        f'font-size="12">\n<rect width="{WIDTH}" height="{height}" fill="white"/>'
    ]
    parts += [_draw(panel, TOP + index * (PANEL + GAP)) for index, panel in enumerate(panels)]
    parts.append(f'<text x="{WIDTH / 2:.0f}" y="{height - 8}" text-anchor="middle">memory of the machine (GB)</text>')
    return "\n".join([*parts, "</svg>\n"])


def _speeds(points: Sequence[SweepPoint]) -> list[float]:
    return [point.tok_s or 0.0 for point in points]


def _draw(panel: Panel, top: int) -> str:
    def place(ram: float, value: float) -> tuple[float, float]:
        x = LEFT + (ram - RAMS_GB[0]) / (RAMS_GB[-1] - RAMS_GB[0]) * (WIDTH - LEFT - RIGHT)
        return x, top + PANEL * (1 - value / panel.most)

    parts = [
        f'<text x="{LEFT}" y="{top - 10}" font-size="14">{panel.title}</text>',
        f'<rect x="{LEFT}" y="{top}" width="{WIDTH - LEFT - RIGHT}" height="{PANEL}" fill="none" stroke="#999999"/>',
    ]
    for tick in panel.ticks:
        _, y = place(RAMS_GB[0], tick)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{panel.label(tick)}</text>')
    for ram in (16, 24, 32, 48, 64, 96, 128):
        x, _ = place(ram, 0)
        parts.append(f'<text x="{x:.1f}" y="{top + PANEL + 16}" text-anchor="middle">{ram}</text>')
    for name, colour, values in panel.series:
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(place, RAMS_GB, values))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        x, y = place(RAMS_GB[-1], values[-1])
        parts.append(f'<text x="{x - 4:.0f}" y="{y - 6:.0f}" fill="{colour}" text-anchor="end">{name}</text>')
    return "\n".join(parts)
