"""The memory options shared by every command that plans, and the request they make."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import click

from slotstream_planner import (
    InsufficientMemory,
    InvalidRequest,
    PlanRequest,
)
from slotstream_planner.units import gb_to_bytes

__all__ = ["budget_options", "make_request", "make_size_request", "memory_options", "planner_failure", "size_options"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


class _Window(click.ParamType["int | Literal['auto']"]):
    """`auto` or a number of tokens."""

    name = "auto|tokens"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | Literal["auto"]:
        if value == "auto":
            return "auto"
        try:
            return int(value)
        except ValueError:
            self.fail(f"{value!r} is neither auto nor a whole number of tokens", param, ctx)


class _Pinned(click.ParamType["float | Literal['auto', 'off']"]):
    """`auto`, `off` or a size in GB."""

    name = "auto|off|gb"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | Literal["auto", "off"]:
        if value in ("auto", "off"):
            return "auto" if value == "auto" else "off"
        try:
            size = float(value)
            gb_to_bytes(size, what="--pinned-gb")
        except (ValueError, InvalidRequest):
            self.fail(f"{value!r} is neither auto nor off nor a size in GB", param, ctx)
        return size


_WINDOW = click.option(
    "--max-context",
    type=_Window(),
    default="auto",
    show_default=True,
    help="Context window, prompt and reply together.",
)

_BUDGET = (
    click.option("--experts-per-layer", type=int, help="Expert cache size directly. Beats the other sizes."),
    click.option("--pool-gb", type=float, help="Expert cache size in GB. Beats --memory-gb."),
    click.option("--memory-gb", type=float, help="Fixed memory budget of the whole process in GB."),
    click.option("--memory-limit-gb", type=float, help="Ceiling of an adaptive budget in GB; excludes fixed sizes."),
    click.option("--max-ram-percent", type=float, help="Largest share of RAM an automatic budget takes (70)."),
    click.option(
        "--pinned-gb",
        type=_Pinned(),
        default="auto",
        show_default=True,
        help="Expert files pinned in host memory, from where an NVIDIA GPU fetches; auto: what the host can spare.",
    ),
)
"""How much memory may be used."""

_DRAFTS = (
    click.option(
        "--mtp",
        type=click.Choice(["auto", "on", "off"]),
        default="auto",
        show_default=True,
        help="Draft head: where the plan has room and as deep as it pays, always at its full depth, or never.",
    ),
    click.option(
        "--mtp-experts",
        type=click.Choice(["automatic", "resident", "streamed"]),
        default="automatic",
        envvar="SLOTSTREAM_MTP_EXPERTS",
        show_default=True,
        show_envvar=True,
        help="Where the draft head's experts live.",
    ),
)

_VISION = click.option(
    "--vision",
    type=click.Choice(["auto", "on", "off"]),
    default="auto",
    show_default=True,
    help="Images: load the encoder on first use, reserve it at start, or refuse them.",
)

_LOOKAHEAD = click.option(
    "--lookahead",
    type=click.Choice(["auto", "on", "off"]),
    default="auto",
    show_default=True,
    help="Reading likely experts ahead: where the plan has room and it is measured to help, always, or never.",
)
"""For commands that do not choose it themselves."""

_SIZES = (_WINDOW, *_BUDGET, *_DRAFTS)
"""For every command that loads a model and leaves all of it to its user."""


def _with(options: Sequence[Callable[[_Function], _Function]], function: _Function) -> _Function:
    """Add options to a command, so that its help lists them in their order."""
    for option in reversed(options):
        function = option(function)
    return function


def size_options(function: _Function) -> _Function:
    """Add the window, the fixed sizes and the adaptive ceiling to a command; see `make_size_request`."""
    return _LOOKAHEAD(sizes_alone(function))


def sizes_alone(function: _Function) -> _Function:
    """Add the same to a command that itself decides whether to read ahead."""
    return _with(_SIZES, function)


def budget_options(function: _Function) -> _Function:
    """Add what sizes the memory, and nothing else, to a command that itself decides on window, drafts and reads ahead.

    See `make_size_request`.
    """
    return _with(_BUDGET, function)


def make_size_request(
    options: Mapping[str, Any], *, max_prefill_wait_minutes: float = 30.0, prefix_cache: Literal["on", "off"] = "on"
) -> PlanRequest:
    """Return the planner's request for the values of `size_options` or `budget_options` among a command's options.

    Args:
        options: The command's options.
        max_prefill_wait_minutes: Longest wait for a first token; 0 for no deadline.
        prefix_cache: Whether past conversations are kept in memory.
    """
    return PlanRequest(
        experts_per_layer=options["experts_per_layer"],
        pool_gb=options["pool_gb"],
        memory_gb=options["memory_gb"],
        memory_limit_gb=options["memory_limit_gb"],
        max_ram_percent=options["max_ram_percent"],
        pinned_gb=options["pinned_gb"],
        max_context=options.get("max_context", "auto"),
        lookahead=options.get("lookahead", "auto"),
        mtp=options.get("mtp", "auto"),
        mtp_experts=options.get("mtp_experts", "automatic"),
        max_prefill_wait_minutes=max_prefill_wait_minutes,
        prefix_cache=prefix_cache,
    )


def memory_options(function: _Function) -> _Function:
    """Add the memory options to a command; they arrive as keyword arguments for `make_request`."""
    return _LOOKAHEAD(_with((*_SIZES, _VISION), function))


def make_request(
    *,
    max_context: int | Literal["auto"],
    experts_per_layer: int | None,
    pool_gb: float | None,
    memory_gb: float | None,
    memory_limit_gb: float | None,
    max_ram_percent: float | None,
    pinned_gb: float | Literal["auto", "off"],
    lookahead: Literal["auto", "on", "off"],
    mtp: Literal["auto", "on", "off"],
    vision: Literal["auto", "on", "off"],
    mtp_experts: Literal["automatic", "resident", "streamed"] = "automatic",
    max_prefill_wait_minutes: float = 30.0,
) -> PlanRequest:
    """Return the planner's request for the values of `memory_options`."""
    return PlanRequest(
        experts_per_layer=experts_per_layer,
        pool_gb=pool_gb,
        memory_gb=memory_gb,
        memory_limit_gb=memory_limit_gb,
        max_ram_percent=max_ram_percent,
        pinned_gb=pinned_gb,
        max_context=max_context,
        lookahead=lookahead,
        mtp=mtp,
        vision=vision,
        mtp_experts=mtp_experts,
        max_prefill_wait_minutes=max_prefill_wait_minutes,
    )


def planner_failure(error: Exception) -> click.ClickException:
    """Return the click error for a planner error: exit code 2 for a request no machine could meet, else 1."""
    if isinstance(error, InvalidRequest) and not isinstance(error, InsufficientMemory):
        return click.UsageError(str(error))
    return click.ClickException(str(error))
