"""How launched layers come to their experts: launch up to a router, ask for what it chose, and tell kernels the slots.

Where the experts come through compiled code a layer is one call of it (csrc/launched_layers.h), which also learns from
the layer's forecast, launches what comes next, and reads ahead for it. Elsewhere, and for what such a call could not
finish, the same happens step by step.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

from slotstream_core.errors import BackendError
from slotstream_core.experts.compiled import WAIT_MS
from slotstream_core.experts.compiled_requests import CompiledRun
from slotstream_core.experts.confidence import RATE
from slotstream_core.experts.lookahead import Expected
from slotstream_core.experts.stacks import Experts, Lease
from slotstream_core.models.qwen4_exp.device.launching import SIGNAL_TIMEOUT_S
from slotstream_core.models.qwen4_exp.device.layer_program import LayerProgram
from slotstream_core.models.qwen4_exp.forecasting import ForecastPass
from slotstream_core.models.qwen4_exp.moe import PassLeases

NO_FORECAST = (-1, None, None, 0.0, 0, 0, 0, 0)


class Outcome(IntEnum):
    """How far a compiled call came; `ss_layer_outcome` of csrc/launched_layers.h."""

    PLACED = 0
    NOT_LAUNCHED = 1
    NOT_CHOSEN = 2
    REFUSED = 3
    LEFT = 4
    ASKED = 5


class Route:
    """Takes the row of a program through routers.

    Args:
        launches: The program, complete.
        next_number: Gives a number that the next launches announce.

    Attributes:
        launches: As given.
        next_number: As given.
        slots: Where kernels find the slots of what was chosen, [1, top].
        words: Where kernels and compiled code tell each other something.
    """

    def __init__(self, launches: LayerProgram, next_number: Callable[[], int]) -> None:
        self.launches = launches
        self.next_number = next_number
        self.slots = launches.slots.entries(launches.program)
        ids, forecast, target = launches.ids, launches.forecast, launches.target
        self.words = launches.native.layer_words(
            ids.signal.address,
            ids.ids,
            0 if forecast is None else forecast.signal.address,
            None if forecast is None else forecast.logits.reshape(-1),
            self.slots,
            launches.program.entries([launches.number]),
            SIGNAL_TIMEOUT_S,
            target.query,
            target.stream,
        )

    def begin(self, experts: Experts, watch: ForecastPass | None, leases: PassLeases) -> RoutedRow:
        """Take a row through routers.

        Args:
            experts: Where its experts come from.
            watch: What reads ahead; None for nothing.
            leases: What the pass holds.
        """
        return RoutedRow(self, experts, watch, leases)


class RoutedRow:
    """One row on its way through the routers of a program; see `Route.begin`."""

    def __init__(self, route: Route, experts: Experts, watch: ForecastPass | None, leases: PassLeases) -> None:
        self._launches, self._slots, self._words = route.launches, route.slots, route.words
        self._next_number = route.next_number
        self._experts, self._watch, self._leases = experts, watch, leases
        self._run = experts.open_run(route.launches.ids.ids.size)
        self._late: Lease | None = None  # of the layer before, where a compiled call did not finish it
        self._launched: int | None = None  # the number that the next layer's launches announce, once they were made
        if self._run is not None:
            leases.hold(self._run.lease)

    def through(self, first: int, after: int) -> int:
        """Go up to the experts of the last of some layers, which are in place then, and held.

        Args:
            first: The first layer.
            after: The one after the last.

        Returns:
            Where the launches of these experts begin.

        Raises:
            ExpertReadError: A record could not be read.
            CheckpointDamaged: A record holds scales that are not finite.
            PoolError: Too few slots are free.
            BackendError: The device failed.
        """
        for layer in range(first, after):
            if self._run is None:
                self._take(layer, *self._up_to_experts(layer, first))
            else:
                self._late = self._take_compiled(layer, first, after, self._run)
                if self._late is not None:
                    self._late.wait()
                    self._slots[:] = self._late.slots
        return self._launches.ranges[after - 1].foreseen

    def _up_to_experts(self, layer: int, first: int) -> tuple[int, int]:
        """The launches from the experts of the layer before, or from the beginning of the first one, up to its own."""
        ranges = self._launches.ranges
        start = ranges[first].start if layer == first else ranges[layer - 1].foreseen
        return start, ranges[layer].routed if self._watch is None else ranges[layer].foreseen

    def settle(self) -> None:
        """Take in what kernels waited for themselves, once all that was launched is done.

        Raises:
            BackendError: A record could not be fetched.
        """
        run, native = self._run, self._launches.native
        if run is None or not run.left or native.settle_layer(run.tickets, run.records, run.told, WAIT_MS):
            return
        self._wait_for_left(run)

    def abandon(self) -> None:
        """Give up what kernels were going to wait for: nothing is under way on the device any more."""
        if self._run is not None and self._run.left:
            lease = self._run.finish(refused=False)
            if lease is not None:
                lease.release()

    def _wait_for_left(self, run: CompiledRun) -> None:
        """Wait for what kernels waited for themselves and nobody has taken in; say so where it failed."""
        lease = run.finish(refused=False)
        if lease is not None:
            self._leases.hold(lease)
            lease.wait()
            lease.release()

    def _take(self, layer: int, start: int, end: int) -> None:
        """Take one layer step by step."""
        launches, ids = self._launches, self._launches.ids
        number = self._next_number()
        launches.program.run(start, end)
        ids.signal.wait(number)
        self._leases.release()
        lease = self._experts.request(layer, ids.ids)
        self._leases.hold(lease)
        if self._watch is not None:
            self._watch.requested(layer, ids.ids)
            self._foresee(layer, number, self._watch)
        lease.wait()
        self._slots[:] = lease.slots

    def _foresee(self, layer: int, number: int, watch: ForecastPass) -> None:
        """Read ahead for the next layer what a forecast names, if it is forecast."""
        launches = self._launches
        if launches.ranges[layer].routed == launches.ranges[layer].foreseen:
            return
        forecast = launches.forecast
        if forecast is None:
            raise BackendError("forecasts were asked of a program that makes none")
        forecast.signal.wait(number)
        watch.forecaster.forecast_published(layer + 1, forecast.logits)

    def _take_compiled(self, layer: int, first: int, after: int, run: CompiledRun) -> Lease | None:
        """Take one of some layers in a compiled call; return the lease of what that did not finish, which is held."""
        watch = self._watch
        launches = self._launches
        lookahead = None if watch is None else watch.forecaster.lookahead
        forecasts = () if lookahead is None else lookahead.recall(layer)
        confidence, ranked = forecasts[0] if forecasts else (None, None)
        expected = None
        if lookahead is not None and launches.ranges[layer].routed < launches.ranges[layer].foreseen:
            expected = lookahead.expect(layer + 1)
        own, number = (0, 0), self._launched
        if number is None:
            own, number = self._up_to_experts(layer, first), self._next_number()
        next_launches, self._launched = (0, 0), None
        if layer + 1 < after and not forecasts[1:]:  # which learn from ids that the next launches replace
            next_launches, self._launched = self._up_to_experts(layer + 1, first), self._next_number()
        stopped = launches.native.take_layer(
            *(self._words, launches.program.compiled, run.tickets, layer),
            *(*own, number, *next_launches, self._launched or 0),
            *(None if confidence is None else confidence.memory, ranked, RATE),
            *(NO_FORECAST if expected is None else forecast_arguments(layer + 1, expected)),
            *(run.slots, run.held, run.records, run.told, WAIT_MS),
        )
        if stopped is not None:
            self._launched = None
        outcome, code, launch = stopped or (Outcome.PLACED, 0, 0)
        if outcome == Outcome.NOT_LAUNCHED:
            raise launches.program.refusal(launch, code)
        if outcome == Outcome.NOT_CHOSEN:
            raise launches.ids.signal.failure(code, number)
        if outcome == Outcome.LEFT:
            self._wait_for_left(run)
        if self._late is not None:
            self._late.release()
        lease: Lease | None = None
        if outcome in (Outcome.REFUSED, Outcome.ASKED):
            lease = run.finish(refused=outcome == Outcome.REFUSED)
        if outcome in (Outcome.REFUSED, Outcome.LEFT):
            lease = self._experts.request(layer, launches.ids.ids)
        if lease is not None:
            self._leases.hold(lease)  # what follows may fail
        if outcome in (Outcome.REFUSED, Outcome.LEFT):
            if watch is not None and lookahead is not None:
                lookahead.learn(layer, launches.ids.ids, forecasts)
                self._foresee(layer, number, watch)
            return lease
        if code and launches.forecast is not None:
            raise launches.forecast.signal.failure(code, number)
        if lookahead is not None:
            if forecasts[1:]:
                lookahead.learn(layer, launches.ids.ids, forecasts[1:])
            if expected is not None:
                lookahead.foreseen(layer + 1, expected)
        return lease


def forecast_arguments(target: int, expected: Expected) -> tuple[object, ...]:
    """What the compiled call is told of a forecast."""
    settings = expected.settings
    limits = settings.limits
    return (
        target,
        expected.confidence.memory,
        expected.ranked,
        settings.least_share,
        settings.issue_limit,
        limits.reserved,
        limits.in_flight,
        limits.spare,
    )
