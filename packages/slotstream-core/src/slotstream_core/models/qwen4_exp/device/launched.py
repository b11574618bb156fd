"""Decoder layers through which one row goes as launches of a program, instead of operations of MLX."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import mlx.core as mx

from slotstream_core.checkpoint.config import Qwen4ExpConfig
from slotstream_core.errors import BackendError, DeviceHung, StateError
from slotstream_core.experts.stacks import Experts, QuantizedStack
from slotstream_core.models.qwen4_exp.attention import AttentionState
from slotstream_core.models.qwen4_exp.decoder_layer import DecoderLayer
from slotstream_core.models.qwen4_exp.device.attention import DeviceAttention
from slotstream_core.models.qwen4_exp.device.attention_states import AttentionAdvance
from slotstream_core.models.qwen4_exp.device.corrections import corrections_proven
from slotstream_core.models.qwen4_exp.device.delta_states import DeltaAdvance
from slotstream_core.models.qwen4_exp.device.ends import HeadParts
from slotstream_core.models.qwen4_exp.device.kernels import DeviceKernels
from slotstream_core.models.qwen4_exp.device.launching import LaunchedKernels, keep_for_ever
from slotstream_core.models.qwen4_exp.device.layer_program import (
    LaunchedForecasts,
    LayerProgram,
    layer_parts,
    routing_parts,
    runs_of,
)
from slotstream_core.models.qwen4_exp.device.ngram import DeviceNgram
from slotstream_core.models.qwen4_exp.device.ngram_states import NgramAdvance
from slotstream_core.models.qwen4_exp.device.publishing import Entrance
from slotstream_core.models.qwen4_exp.device.route import Route
from slotstream_core.models.qwen4_exp.forecasting import ForecastPass
from slotstream_core.models.qwen4_exp.gated_delta import DeltaState
from slotstream_core.models.qwen4_exp.moe import PassLeases, PassWatch
from slotstream_core.models.qwen4_exp.ngram import LookUps
from slotstream_core.models.qwen4_exp.projections import Projection
from slotstream_core.models.qwen4_exp.rotary import RotaryEmbedding
from slotstream_core.state.sequence import LayerState

S = TypeVar("S", bound=LayerState)


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramKind:
    """What tells the programs of a model apart.

    Attributes:
        placed: Whether every expert has a slot, so that nothing is read.
        choosing: Whether attention chooses what a row sees, as it does when there is more than that.
        forecasts: Whether and how forecasts are made.
    """

    placed: bool
    choosing: bool
    forecasts: LaunchedForecasts | None


class LaunchedLayers:
    """Those layers of a model that can be launched.

    Args:
        device: The model's kernels.
        kernels: Launches kernels.
        config: Sizes.
        rotary: Turns positions into angles.
        layers: All decoder layers, first one first.
        experts: Where routed experts come from; not owned.
        renewed: Layers before which MLX adds something to the streams.
        ngrams: What launches add to the streams, by the layer before which they do.
        head: What makes logits after the last layer; None where MLX does.
        embedding: Of tokens; None where MLX reads it.

    Attributes:
        runs: First layer of each run of launched layers, and the one after its last.
    """

    def __init__(
        self,
        device: DeviceKernels,
        kernels: LaunchedKernels,
        config: Qwen4ExpConfig,
        rotary: RotaryEmbedding,
        layers: Sequence[DecoderLayer],
        experts: Experts,
        renewed: Collection[int],
        ngrams: Mapping[int, DeviceNgram],
        head: HeadParts | None,
        embedding: Projection | None,
    ) -> None:
        parts = {index: layer_parts(layer, ngrams.get(index)) for index, layer in enumerate(layers)}
        routings = {index: routing_parts(layer) for index, layer in enumerate(layers)}
        self._parts = {index: found for index, found in parts.items() if found is not None}
        self._routings = {index: found for index, found in routings.items() if found is not None}
        self.runs = runs_of(list(self._parts), frozenset(renewed))
        self._device, self._kernels = device, kernels
        self._config = config
        self._rotary = rotary
        self._experts = experts
        self._head, self._embedding = head, None if 0 in renewed else embedding
        mixers = [parts.mixer for parts in self._parts.values()]
        self._attentions = [mixer for mixer in mixers if isinstance(mixer, DeviceAttention)]
        self._programs: dict[ProgramKind, BoundProgram] = {}

    def begin_pass(self, token: int, position: int, watch: PassWatch | None, ngrams: LookUps) -> LaunchedPass | None:
        """What takes one row through layers; None where MLX has to.

        That is where somebody watches who wants to see its arrays, after more tokens than launches reach, and while
        forecasts have corrections that launches did not prove to make.

        Args:
            token: Whose row it is.
            position: Its index in its sequence.
            watch: Who watches the pass.
            ngrams: The token's embeddings, on their way, and the states of what adds them.

        Raises:
            BackendError: A kernel is refused.
        """
        if watch is not None and not isinstance(watch, ForecastPass):
            return None
        if not all(mixer.reaches(position) for mixer in self._attentions):
            return None
        forecasts = None
        if watch is not None:
            corrections = watch.forecaster.corrections
            if corrections and not corrections_proven(self._device, self._kernels, corrections[0]):
                return None
            forecasts = LaunchedForecasts(tap=watch.forecaster.tap, corrections=corrections)
        program = self._bound(any(mixer.chooses(position) for mixer in self._attentions), forecasts)
        if program.launches.attentions:
            program.launches.token.move(position)
        return LaunchedPass(
            token, self.runs, program, self._experts, watch if program.launches.forecast else None, ngrams
        )

    def _bound(self, choosing: bool, forecasts: LaunchedForecasts | None) -> BoundProgram:
        """What launches a pass now, with its arguments up to date."""
        whole = self._programs.get(ProgramKind(placed=True, choosing=choosing, forecasts=None))
        if whole is not None and whole.current:
            return whole
        places = self._places()
        kind = ProgramKind(
            placed=places is not None, choosing=choosing, forecasts=forecasts if places is None else None
        )
        program = self._programs.get(kind)
        if program is None:
            if kind.forecasts is not None:  # what makes other ones is not needed again
                wanted = (None, kind.forecasts)
                self._programs = {known: each for known, each in self._programs.items() if known.forecasts in wanted}
            self._programs[kind] = program = BoundProgram(self._program(kind), self._experts, self._device)
        if places is not None or not program.current:
            program.bind(places or {})
        return program

    def _places(self) -> dict[int, mx.array] | None:
        """The slot of every expert, by layer; None where one of them has none to stay."""
        found: dict[int, mx.array] = {}
        for index in self._parts:
            places = self._experts.places(index)
            if places is None:
                return None
            found[index] = places
        return found

    def _program(self, kind: ProgramKind) -> LayerProgram:
        return LayerProgram(
            self._kernels,
            self._config,
            self._rotary,
            self._parts,
            self.runs,
            self._routings,
            placed=kind.placed,
            choosing=kind.choosing,
            forecasts=kind.forecasts,
            head=self._head,
            embedding=self._embedding,
        )


class BoundProgram:
    """A program, and which arrays of experts its arguments name. These are not kept alive: a pool may replace them.

    Args:
        launches: The program, complete.
        experts: Where routed experts come from.
        device: Makes the kernel by which MLX hands streams over.

    Attributes:
        launches: As given.
        entrance: Takes the streams that a run begins with.
        number: What was announced last.
        left: What may not have read the streams of the last run yet.
        route: Brings the experts that layers choose.
    """

    def __init__(self, launches: LayerProgram, experts: Experts, device: DeviceKernels) -> None:
        self.launches = launches
        self.entrance = Entrance(device, launches.target, launches.entry)
        self.number = 0
        self.left: list[mx.array] = []
        self._experts = experts
        self._target = launches.target
        self._weights: dict[int, weakref.ref[mx.array]] = {}
        program = launches.program
        self._stacks = {index: program.entries(stacks.all) for index, stacks in launches.stacks.items()}
        self._number = program.entries([launches.number])
        self.route = Route(launches, self.next_number)
        self.deltas = {index: program.entries(places.all) for index, places in launches.deltas.items()}
        self.attentions = {index: program.entries(places.all) for index, places in launches.attentions.items()}
        self.ngrams = {index: program.entries(added.window.all) for index, added in launches.ngrams.items()}
        self._places: dict[int, mx.array] = {}
        self._nothing = mx.zeros((1,))
        mx.eval(self._nothing)

    def settled(self) -> mx.array:
        """What MLX has computed only after everything it was given before, since its stream keeps the order.

        Evaluating it lets go of Python's lock, which `mx.synchronize` holds while it waits.
        """
        return -self._nothing

    @property
    def current(self) -> bool:
        """Whether what `bind` named still holds: arrays of experts, and with them their slots, move all at once."""
        index = next(iter(self._stacks))
        known = self._weights.get(index)
        return known is not None and known() is self._experts.arrays(index).gate.weight

    def bind(self, places: Mapping[int, mx.array]) -> None:
        """Name the arrays that hold the experts now.

        Args:
            places: The slot of every expert, by layer, where the program looks slots up.
        """
        moved: dict[int, list[mx.array]] = {}
        weights: dict[int, weakref.ref[mx.array]] = {}
        for index in self._stacks:
            arrays = self._experts.arrays(index)
            gate, known = arrays.gate, self._weights.get(index)
            if known is None or known() is not gate.weight:
                moved[index] = [
                    array
                    for stack in (gate, arrays.up, arrays.down)
                    if isinstance(stack, QuantizedStack)
                    for array in (stack.weight, stack.scales, stack.biases)
                ]
                weights[index] = weakref.ref(gate.weight)
        if moved:
            self._name(moved)
        if changed := [index for index, found in places.items() if self._places.get(index) is not found]:
            launches = self.launches
            launches.program.point([launches.places[index] for index in changed], [places[index] for index in changed])
            self._places |= {index: places[index] for index in changed}
        self._weights |= weights  # last: all of it holds from now on

    def _name(self, moved: Mapping[int, list[mx.array]]) -> None:
        distinct = {id(array): array for arrays in moved.values() for array in arrays}
        addresses = dict(zip(distinct, self._target.addresses(list(distinct.values())), strict=True))
        for index, arrays in moved.items():
            self._stacks[index][:] = [addresses[id(array)] for array in arrays]

    def launch(self, first: int, last: int) -> int:
        """Launch a range, which announces a number that was not announced before; return it."""
        number = self.next_number()
        self.launches.program.run(first, last)
        return number

    def next_number(self) -> int:
        """A number that was not announced before; the launches to come announce it."""
        self.number += 1
        self._number[0] = self.number
        return self.number

    def settle(self, failure: BaseException) -> None:
        """Return when nothing is under way any more, after a failure: what it uses may be freed then.

        Nothing is launched for that, which the device may refuse while it is at work.

        Args:
            failure: What happened.

        Raises:
            DeviceHung: The device does not answer, now or in the failure.
        """
        if isinstance(failure, DeviceHung):
            raise failure
        self.launches.done.drain()


class LaunchedPass:
    """One row's pass.

    Args:
        token: Whose.
        runs: As `LaunchedLayers.runs`.
        program: What is launched, bound.
        experts: Where routed experts come from.
        watch: What reads ahead; None for nothing.
        ngrams: As `LaunchedLayers.begin_pass` takes them.

    Attributes:
        runs: As given.
        logits: Of the row, float32 [1, vocabulary], once a run has made them; None where MLX has to.
    """

    def __init__(
        self,
        token: int,
        runs: Mapping[int, int],
        program: BoundProgram,
        experts: Experts,
        watch: ForecastPass | None,
        ngrams: LookUps,
    ) -> None:
        self.runs = runs
        self.logits: mx.array | None = None
        self._token = token
        self._program = program
        self._experts = experts
        self._watch = watch
        self._ngrams = ngrams

    def run(
        self, first: int, streams: mx.array, states: Sequence[LayerState], leases: PassLeases
    ) -> tuple[mx.array, int]:
        """Take the row through the run that begins with a layer.

        Args:
            first: The layer.
            streams: [1, streams, hidden].
            states: Of all layers; those of the run are advanced.
            leases: What the pass holds; given back at the end.

        Returns:
            The new streams, not evaluated, and the layer after the run.

        Raises:
            ExpertReadError: A record could not be read.
            CheckpointDamaged: A record holds scales that are not finite.
            BackendError: The device failed.
            DeviceHung: It does not answer; what it was given is kept for ever.
            StateError: A state is not that of its layer.
        """
        bound = self._program
        leases.evaluate(bound.entrance.take(streams), bound.left)
        return self._advance(first, states, leases)

    @property
    def embeds(self) -> bool:
        """Whether the first run begins with the token, by `begin`."""
        return self._program.launches.embedding is not None

    def adds_ngrams(self, layer: int) -> bool:
        """Whether the run that a layer is in adds the n-grams before it."""
        return layer in self._program.ngrams

    def begin(self, states: Sequence[LayerState], leases: PassLeases) -> tuple[mx.array, int]:
        """Take the token through the run that begins with the first layer; otherwise as `run`.

        Raises:
            BackendError: As `run`, or the program does not begin with a token.
            ExpertReadError: As `run`.
            CheckpointDamaged: As `run`.
            StateError: As `run`.
        """
        embedding = self._program.launches.embedding
        if embedding is None:
            raise BackendError("a token was given to a program that begins with streams")
        leases.evaluate(self._program.settled(), self._program.left)  # what MLX still does may read what is written now
        embedding.choose(self._token)
        return self._advance(0, states, leases)

    def _advance(self, first: int, states: Sequence[LayerState], leases: PassLeases) -> tuple[mx.array, int]:
        """Launch a run whose streams, or token, are there.

        The host waits for the rows of n-grams when all before them is launched.
        """
        bound, launches, after, experts = self._program, self._program.launches, self.runs[first], self._experts
        own = {index: states[index] for index in range(first, after)}
        deltas = DeltaAdvance(bound.deltas, states_of(DeltaState, own, bound.deltas), launches.target)
        attentions = AttentionAdvance(
            bound.attentions, states_of(AttentionState, own, bound.attentions), launches.target
        )
        added = {index: self._ngrams[index] for index in own if index in bound.ngrams}
        ngrams = NgramAdvance(bound.ngrams, {index: state for index, (_, state) in added.items()}, launches.target)
        end = launches.ranges[after - 1].end
        cuts = sorted({first, after, *added})
        route = None if launches.places else bound.route.begin(experts, self._watch, leases)
        try:
            for part, until in pairwise(cuts):
                if part in added:
                    launches.ngrams[part].rows[:] = added[part][0].packed(0)
                start = launches.ranges[part].start if route is None else route.through(part, until)
                number = bound.launch(start, end if until == after else launches.ranges[until].start)
            launches.done.wait(number)
            if route is not None:
                route.settle()
        except BaseException as error:
            try:
                bound.settle(error)
            except DeviceHung:
                arrays = [experts.arrays(index) for index in range(launches.layers)]
                keep_for_ever(bound, deltas, attentions, ngrams, arrays, leases.abandon())
                raise
            if route is not None:
                route.abandon()
            raise
        leases.release()
        deltas.complete()
        attentions.complete()
        ngrams.complete(self._token)
        left = launches.streams * 1  # a copy: the next run writes there
        bound.left = [left]
        if launches.head is not None and after == launches.layers:
            self.logits = launches.head.logits()
        return left, after

    def drop_streams(self) -> None:
        """Say that nobody reads the streams that the last run returned, so that they need not be kept from the next."""
        self._program.left = []


def states_of(kind: type[S], states: Mapping[int, LayerState], wanted: Collection[int]) -> dict[int, S]:
    """Those of some layers' states that are wanted.

    Raises:
        StateError: One is of another kind.
    """
    found: dict[int, S] = {}
    for index, state in states.items():
        if index in wanted:
            if not isinstance(state, kind):
                raise StateError(f"a {type(state).__name__} was passed to layer {index}, which takes a {kind.__name__}")
            found[index] = state
    return found
