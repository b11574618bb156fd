"""The memory governor of a running server: what it stops and refuses, and what the facts say afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from slotstream_core.engine import Engine
from slotstream_core.governing import Governor
from slotstream_core.live_governing import govern
from slotstream_planner import MemoryPlan
from slotstream_serve.errors import Failure
from slotstream_serve.facts import with_plan
from slotstream_serve.service import Service

PRESSURE = Failure(
    code="insufficient_memory",
    message="this machine ran short of memory and the reply was stopped; try again when other programs need less",
)
UNAVAILABLE = Failure(
    code="insufficient_memory",
    message="other programs leave too little memory for the smallest plan of this model; try again when they need less",
)


@contextmanager
def governed(service: Service, *, elastic: bool) -> Iterator[Governor | None]:
    """Keep a service's engine inside what the machine can give while the block runs.

    Args:
        service: The running service.
        elastic: Whether an automatic plan's pool follows the machine; without it only memory pressure is acted on.

    Yields:
        The governor, or None for an engine that has no pool to govern.
    """
    engine = service.engine
    if not isinstance(engine, Engine):
        yield None
        return

    def stop_running() -> None:
        ticket = service.runner.running
        if ticket is not None:
            ticket.stop(PRESSURE)

    def adopted(plan: MemoryPlan) -> None:
        facts = with_plan(service.config.model, plan, max_prefill_wait_s=service.config.max_prefill_wait_s)
        service.config = replace(service.config, model=facts)

    with govern(engine, elastic=elastic, cancel_running=stop_running, adopted=adopted) as governor:
        service.unavailable = lambda: None if governor.status.accepts_requests else UNAVAILABLE
        yield governor
