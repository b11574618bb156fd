"""The text model: embedding, decoder layers over residual streams, final mixer and output head."""

from collections.abc import Collection, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from itertools import islice
from typing import Literal, Protocol, Self

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from slotstream_core.backend import Backend
from slotstream_core.checkpoint.config import Qwen4ExpConfig
from slotstream_core.checkpoint.tensors import Checkpoint
from slotstream_core.errors import RequestError, StateError
from slotstream_core.experts.stacks import Experts, Sweep
from slotstream_core.models.base import Guess
from slotstream_core.models.qwen4_exp.decoder_layer import DecoderLayer, PassPositions, decoder_layer
from slotstream_core.models.qwen4_exp.device.ends import head_parts
from slotstream_core.models.qwen4_exp.device.launch_proof import launched_layers
from slotstream_core.models.qwen4_exp.device.launched import LaunchedPass
from slotstream_core.models.qwen4_exp.draft import DRAFT_ROWS, DraftHead
from slotstream_core.models.qwen4_exp.draft_state import DraftState
from slotstream_core.models.qwen4_exp.host_products import HOST_ROWS
from slotstream_core.models.qwen4_exp.moe import PassLeases, PassWatch, pass_leases
from slotstream_core.models.qwen4_exp.ngram import LookUps, NgramSource, NgramState
from slotstream_core.models.qwen4_exp.ngram_rows import READ_LANES
from slotstream_core.models.qwen4_exp.parts import layer_parts
from slotstream_core.models.qwen4_exp.projections import WeightReader
from slotstream_core.models.qwen4_exp.reading import SWEEP_ROWS, ForwardResult, PassesRead, Snapshots
from slotstream_core.models.qwen4_exp.rotary import RotaryEmbedding
from slotstream_core.state.sequence import LayerState, SequenceState

TEXT_PREFIX = "language_model.model"
HEAD_MODULE = "language_model.lm_head"
NGRAM_CACHE_BYTES = 256 * 10**6
"""Default payload of all n-gram row caches together."""

ROW_INVARIANT_ROWS = HOST_ROWS - 1
"""A pass of at most this many rows gives each row the bits that it has in a pass of its own, on the CPU."""

Ids = npt.NDArray[np.int64]


def expert_modules(config: Qwen4ExpConfig) -> list[str]:
    """Names of the modules that hold each layer's routed experts, for `ExpertLayout.from_checkpoint`."""
    return [f"{TEXT_PREFIX}.layers.{layer}.mlp.switch_mlp" for layer in range(config.num_hidden_layers)]


class Forecasts(Protocol):
    """What reads experts ahead in decode passes."""

    def watching(self, rows: int) -> AbstractContextManager[PassWatch | None]:
        """A context around one decode pass of this many rows, and who is to see it; None for nobody."""

    @property
    def trying(self) -> bool:
        """Whether the last decode pass was forecast, or was not, only to be timed."""


class Qwen4ExpModel:
    """A `qwen4_exp` text model over an open checkpoint. Used by one thread; states are independent of each other.

    Args:
        checkpoint: Open for as long as the model is used; not owned.
        experts: Where routed experts come from; not owned.
        backend: Says which dtype to compute in.
        ngram_cache_bytes: Payload that the n-gram row caches may keep, all together.
        draft_experts: Where the draft head's experts come from; without them the head is not loaded.

    Attributes:
        config: The checkpoint's settings.
        draft_head: The draft head, when it was loaded.

    Raises:
        CheckpointError: A weight is missing, damaged, or not stored as the configuration says.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        experts: Experts,
        backend: Backend,
        *,
        ngram_cache_bytes: int = NGRAM_CACHE_BYTES,
        draft_experts: Experts | None = None,
    ) -> None:
        config = checkpoint.config
        weights = WeightReader(checkpoint, backend)
        self.config = config
        self._dtype = backend.compute_dtype
        self._host = weights.host
        self._eager = weights.eager
        self._key = f"qwen4_exp {checkpoint.directory}{'' if draft_experts is None else ' with its draft head'}"
        self._experts = experts
        self._lanes = ThreadPoolExecutor(READ_LANES, thread_name_prefix="ngram-rows")
        parts = layer_parts(weights)
        self._embedding = parts.embedding(weights, f"{TEXT_PREFIX}.embed_tokens", config.hc_count)
        self._rotary = RotaryEmbedding(config, backend.compute_dtype)
        self._layers = [
            decoder_layer(weights, f"{TEXT_PREFIX}.layers.{index}", config, kind=kind, layer=index, experts=experts)
            for index, kind in enumerate(config.layer_types)
        ]
        self._ngrams = {
            layer: parts.ngram(
                NgramSource(
                    checkpoint=checkpoint,
                    weights=weights,
                    prefix=f"{TEXT_PREFIX}.layers.{layer}.ple",
                    config=config,
                    index=index,
                    cache_bytes=ngram_cache_bytes // len(config.ple_layers),
                    lanes=self._lanes,
                )
            )
            for index, layer in enumerate(config.ple_layers)
        }
        self._mixer = parts.mixer(weights, f"{TEXT_PREFIX}.hyper_connection_mixer", config)
        self._head = parts.head(weights, HEAD_MODULE)
        self._forecasts: Forecasts | None = None
        self._launched = launched_layers(
            weights.device,
            config,
            self._rotary,
            self._layers,
            experts,
            self._ngrams,
            head_parts(self._mixer, self._head),
            self._embedding.matrix,
        )
        self.draft_head = (
            DraftHead(
                weights,
                config,
                embedding=self._embedding,
                vocabulary=self._head,
                rotary=self._rotary,
                experts=draft_experts,
            )
            if draft_experts is not None
            else None
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the threads that read n-gram rows and, on the CPU, multiply."""
        self._lanes.shutdown()
        if self._host is not None:
            self._host.close()
        if self._eager is not None:
            self._eager.close()

    def look_ahead(self, forecasts: Forecasts) -> None:
        """Read experts ahead in decode passes from now on; see `slotstream_core.models.qwen4_exp.forecasting`."""
        self._forecasts = forecasts

    @property
    def layers(self) -> Sequence[DecoderLayer]:
        """The decoder layers, first one first."""
        return self._layers

    @property
    def renewed_layers(self) -> Collection[int]:
        """The first layer, and those before which n-grams are added to the streams."""
        return {0, *self._ngrams}

    @property
    def key(self) -> str:
        """Names the model; the states it makes carry it."""
        return self._key

    def new_state(self) -> SequenceState:
        """The state of an empty sequence."""
        states: list[LayerState] = [layer.new_state() for layer in self._layers]
        states += [ngram.new_state() for ngram in self._ngrams.values()]
        if self.draft_head is not None:
            states.append(self.draft_head.new_state())
        return SequenceState(states, self._key)

    def forward(
        self,
        ids: Sequence[int] | npt.NDArray[np.integer],
        state: SequenceState,
        *,
        logits: Literal["last", "all"] = "last",
        record: bool = False,
        decode: bool = False,
        watch: PassWatch | None = None,
    ) -> ForwardResult:
        """Run one pass over ``ids`` [T], which follow what ``state`` has seen, and append them to it.

        Args:
            ids: Token ids, at least one.
            state: Advanced in place. When the pass fails it refuses to go on; a fork taken before still can.
            logits: Of the last token only, or of every token.
            record: Keep what `SequenceState.trim` needs to return to any length inside this pass.
            decode: Whether a reply is being made: experts may then be read ahead. The result is the same.
            watch: Sees the pass on its way, in place of what reads ahead.

        Returns:
            Logits and, unless a reply is being made without a draft head, streams; not necessarily evaluated yet when
            every expert is in place to stay.

        Raises:
            RequestError: No ids, or an id outside the vocabulary.
            StateError: The state belongs to another model, or an earlier pass over it failed.
            ExpertReadError: Expert or n-gram bytes could not be read.
        """
        tokens = self._checked(ids)
        if len(tokens) >= SWEEP_ROWS and not record and watch is None:
            read = self.read([tokens], state, logits=logits)
            for _ in read.steps():
                pass
            return read.result
        return _at_once(self._layers_of(tokens, state, logits, record=record, decode=decode, watch=watch))

    def read(
        self,
        passes: Sequence[Sequence[int] | npt.NDArray[np.integer]],
        state: SequenceState,
        *,
        ends_prompt: bool = False,
        keep: Collection[int] = (),
        logits: Literal["last", "all"] = "last",
    ) -> PassesRead:
        """Prepare passes that follow each other; with many rows, they read each expert once between them.

        What comes out is the same, bit for bit, as with a `forward` a pass. Nothing happens before
        `PassesRead.steps` is iterated; if that ends early, the state refuses to go on.

        Args:
            passes: The ids of each pass; at least one pass.
            state: Advanced in place by every pass.
            ends_prompt: Whether tokens of the reply come next.
            keep: Passes, by index, after which the state is to be kept as well.
            logits: Of the last token only, or of every token of the last pass.

        Raises:
            RequestError: No ids, or an id outside the vocabulary.
        """
        checked = [self._checked(ids) for ids in passes]
        if not checked:
            raise RequestError("a prompt needs at least one pass over at least one token")
        return PassesRead(partial(self._run, checked, state, frozenset(keep), logits, ends_prompt=ends_prompt))

    def _run(
        self,
        passes: list[Ids],
        state: SequenceState,
        keep: frozenset[int],
        logits: Literal["last", "all"],
        read: PassesRead,
        *,
        ends_prompt: bool,
    ) -> Generator[float, None, None]:
        total = sum(len(tokens) for tokens in passes)
        threads = 0 if self._eager is None else self._eager.handle
        sweep = self._experts.open_sweep(ends_prompt=ends_prompt, threads=threads) if total >= SWEEP_ROWS else None
        if sweep is not None:
            yield from self._sweep(passes, state, keep, logits, read, sweep)
            return
        streams = []
        for number, tokens in enumerate(passes):
            with closing(self._layers_of(tokens, state, logits)) as layers:
                result = yield from _shares(layers, number, len(passes))
            streams.append(result.streams)
            if number in keep:
                read.kept[number] = state.fork()
            yield (number + 1) / len(passes)
        read.finish(ForwardResult(logits=result.logits, left=_joined(streams)))

    def _sweep(
        self,
        passes: list[Ids],
        state: SequenceState,
        keep: frozenset[int],
        logits: Literal["last", "all"],
        read: PassesRead,
        sweep: Sweep,
    ) -> Generator[float, None, None]:
        """Run the passes side by side through one layer after the other, so that they share each layer's experts."""
        state.begin_pass(self._key)
        ends = (state.length + np.cumsum([len(tokens) for tokens in passes])).tolist()
        positions = [
            self._positions(end - len(tokens), len(tokens), record=False)
            for end, tokens in zip(ends, passes, strict=True)
        ]
        ngrams = self._begin_look_ups(np.concatenate(passes), state)
        streams = [self._embedding(tokens) for tokens in passes]
        snapshots = Snapshots(keep, len(state.layers))
        with sweep:
            for index in range(len(self._layers)):
                with self._plain_blas():
                    streams = self._sweep_layer(index, passes, streams, state, ngrams, positions, snapshots, sweep)
                yield (index + 1) / len(self._layers)
        with self._plain_blas():
            last = streams[-1]
            result = ForwardResult(logits=self._logits(last, logits), left=_joined(streams))
            if self.draft_head is not None:
                for number, (tokens, part) in enumerate(zip(passes, streams, strict=True)):
                    self.draft_head.follow(_draft_state(state), tokens, part, wait=False)
                    snapshots.note(number, len(state.layers) - 1, _draft_state(state))
            mx.eval(result.logits, *state.arrays())
        state.advance(ends[-1] - state.length, recorded=False)
        read.kept = {number: snapshots.state(number, ends[number], self._key) for number in keep}
        read.finish(result)

    def _sweep_layer(
        self,
        index: int,
        passes: list[Ids],
        streams: list[mx.array],
        state: SequenceState,
        ngrams: LookUps,
        positions: list[PassPositions],
        snapshots: Snapshots,
        sweep: Sweep,
    ) -> list[mx.array]:
        """Send every pass through one layer; attention takes them in order, and the experts all at once."""
        own = state.layers[index]
        if index in ngrams:
            look_up, ngram_state = ngrams[index]
            part, first = len(self._layers) + list(self._ngrams).index(index), positions[0].start
            for number, (tokens, position) in enumerate(zip(passes, positions, strict=True)):
                start = position.start - first
                streams[number] = self._ngrams[index](
                    streams[number],
                    tokens,
                    look_up.embeddings(start, start + len(tokens)),
                    ngram_state,
                    start=position.start,
                    record=False,
                )
                mx.eval(streams[number])
                snapshots.note(number, part, ngram_state)
        return self._layers[index].sweep(
            streams, own, positions, sweep, lambda number: snapshots.note(number, index, own)
        )

    def _plain_blas(self) -> AbstractContextManager[object]:
        return nullcontext() if self._host is None else self._host.single_threaded_blas()

    def _layers_of(
        self,
        tokens: Ids,
        state: SequenceState,
        logits: Literal["last", "all"],
        *,
        record: bool = False,
        decode: bool = False,
        watch: PassWatch | None = None,
    ) -> Generator[float, None, ForwardResult]:
        """Run one pass; yield the share of it that is done after each layer, where it may be left for good."""
        state.begin_pass(self._key)
        positions = self._positions(state.length, len(tokens), record=record)
        ngrams = self._begin_look_ups(tokens, state)
        ahead: AbstractContextManager[PassWatch | None] = nullcontext(watch)
        if decode and watch is None and self._forecasts is not None:
            ahead = self._forecasts.watching(len(tokens))
        few = self._eager is not None and len(tokens) < HOST_ROWS  # no product of these goes through a BLAS
        blas = nullcontext() if few else self._plain_blas()
        with pass_leases() as leases, blas, ahead as watch:
            launched = self._launched_pass(tokens, positions, watch, ngrams)
            streams = yield from self._through_layers(tokens, state, positions, ngrams, leases, watch, launched)
            given = None if launched is None else launched.logits
            left: mx.array | None = streams
            if launched is not None and given is not None and decode and self.draft_head is None:
                launched.drop_streams()
                left = None
            result = ForwardResult(logits=self._logits(streams, logits) if given is None else given, left=left)
            following = state.layers
            if self.draft_head is not None:
                leases.arrive()
                self.draft_head.follow(_draft_state(state), tokens, streams, wait=record or decode, record=record)
                following = following[:-1]  # what waits for the head was evaluated by earlier passes
            state.advance(len(tokens), recorded=record)
            pending = [
                result.logits,
                *([] if left is None else [left]),
                *(array for layer in following for array in layer.arrays()),
            ]
            if leases.any_held:
                leases.evaluate(pending)
            else:
                mx.async_eval(pending)  # type: ignore[no-untyped-call]
        return result

    def _launched_pass(
        self, tokens: Ids, positions: PassPositions, watch: PassWatch | None, ngrams: LookUps
    ) -> LaunchedPass | None:
        """What takes the row of a pass through layers whole; None where MLX does."""
        if self._launched is None or len(tokens) != 1 or positions.record:
            return None
        return self._launched.begin_pass(int(tokens[0]), positions.start, watch, ngrams)

    def _through_layers(
        self,
        tokens: Ids,
        state: SequenceState,
        positions: PassPositions,
        ngrams: LookUps,
        leases: PassLeases,
        watch: PassWatch | None,
        launched: LaunchedPass | None,
    ) -> Generator[float, None, mx.array]:
        """Return the streams of a pass after the last layer, [T, streams, hidden]; yield as `_layers_of`."""
        if launched is not None and launched.embeds:
            streams, index = launched.begin(state.layers, leases)
            yield index / len(self._layers)
        else:
            streams, index = self._embedding(tokens), 0
        while index < len(self._layers):
            if index in ngrams and (launched is None or not launched.adds_ngrams(index)):
                look_up, ngram_state = ngrams[index]
                streams = self._ngrams[index](
                    streams, tokens, look_up.embeddings(), ngram_state, start=positions.start, record=positions.record
                )
            if launched is not None and index in launched.runs:
                streams, index = launched.run(index, streams, state.layers, leases)
            else:
                streams = self._layers[index](streams, state.layers[index], positions, leases, watch)
                index += 1
            yield index / len(self._layers)
        return streams

    @property
    def trying(self) -> bool:
        """See `DraftingModel.trying`."""
        return self._forecasts is not None and self._forecasts.trying

    def waiting_rows(self, state: SequenceState) -> int:
        """See `DraftingModel.waiting_rows`; 0 without a head."""
        waiting = 0 if self.draft_head is None else _draft_state(state).waiting
        return waiting - 1 if waiting > DRAFT_ROWS else 0

    def catch_up(self, state: SequenceState) -> int:
        """See `DraftingModel.catch_up`; nothing to do without a head."""
        if self.draft_head is None or not self.waiting_rows(state):
            return 0
        with nullcontext() if self._eager is not None else self._plain_blas():
            return self.draft_head.catch_up(_draft_state(state))

    def guesses(self, state: SequenceState, token: int) -> Generator[Guess, None, None]:
        """See `DraftingModel.guesses`.

        Args:
            state: Of at least one token.
            token: The next token, not read yet.

        Raises:
            RequestError: No draft head is loaded, nothing was read, or ``token`` is out of range.
            ExpertReadError: One of the head's records could not be read. State and model can still be used.
        """
        if self.draft_head is None:
            raise RequestError("this model was loaded without its draft head; load it with draft experts to draft")
        if state.length < 1:
            raise RequestError("drafts before any token were asked for; read one first")
        self._checked([token])
        own = _draft_state(state)
        with closing(self.draft_head.guesses(own, token)) as following:
            while True:
                with nullcontext() if self._eager is not None else self._plain_blas():
                    guess = next(following)
                yield guess

    def draft(self, state: SequenceState, token: int, depth: int) -> list[int]:
        """Return the first ``depth`` of the `guesses` after ``token``."""
        with closing(self.guesses(state, token)) as following:
            return [guess.token for guess in islice(following, depth)]

    def _checked(self, ids: Sequence[int] | npt.NDArray[np.integer]) -> Ids:
        tokens = np.asarray(ids, np.int64)
        if tokens.ndim != 1 or not len(tokens):
            raise RequestError(f"a pass needs a list of at least one token id; got an array of shape {tokens.shape}")
        low, high = int(tokens.min()), int(tokens.max())
        if low < 0 or high >= self.config.vocab_size:
            raise RequestError(
                f"token id {low if low < 0 else high} is outside the vocabulary of {self.config.vocab_size:,}; "
                "the tokenizer and the model disagree"
            )
        return tokens

    def _positions(self, start: int, tokens: int, *, record: bool) -> PassPositions:
        angles, block_angles = self._rotary.pass_angles(start, tokens, self.config.indexer_compress_ratio)
        return PassPositions(start=start, angles=angles, block_angles=block_angles, record=record)

    def _begin_look_ups(self, tokens: Ids, state: SequenceState) -> LookUps:
        """The rows are read while the layers before are computed."""
        found: LookUps = {}
        states = state.layers[len(self._layers) : len(self._layers) + len(self._ngrams)]
        for (layer, ngram), ngram_state in zip(self._ngrams.items(), states, strict=True):
            if not isinstance(ngram_state, NgramState):
                raise StateError(f"a {type(ngram_state).__name__} was passed to the n-gram part of layer {layer}")
            found[layer] = (ngram.look_up(tokens, ngram_state), ngram_state)
        return found

    def _logits(self, streams: mx.array, wanted: Literal["last", "all"]) -> mx.array:
        mixed = self._mixer.mix(streams if wanted == "all" or len(streams) == 1 else streams[-1:])
        return self._head(mixed)


def _draft_state(state: SequenceState) -> DraftState:
    """The draft head's part of a state, which is the last one."""
    found = state.layers[-1]
    if not isinstance(found, DraftState):
        raise StateError(f"a {type(found).__name__} was found where the draft head's state should be")
    return found


def _at_once(layers: Generator[float, None, ForwardResult]) -> ForwardResult:
    """Run a pass to its end."""
    while True:
        try:
            next(layers)
        except StopIteration as ended:
            result: ForwardResult = ended.value
            return result


def _shares(
    layers: Generator[float, None, ForwardResult], number: int, count: int
) -> Generator[float, None, ForwardResult]:
    """Run the pass of that number; yield the share of all ``count`` passes that is done, and return what it returns."""
    while True:
        try:
            share = next(layers)
        except StopIteration as ended:
            result: ForwardResult = ended.value
            return result
        if share < 1.0:
            yield (number + share) / count


def _joined(parts: list[mx.array]) -> mx.array:
    return parts[0] if len(parts) == 1 else mx.concatenate(parts)
