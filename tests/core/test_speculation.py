"""Speculative decoding yields the tokens of plain decoding, whatever is drafted, and keeps its books."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from slotstream_core.checkpoint.synthesis import write_synthetic
from slotstream_core.experts import StoredExperts
from slotstream_core.experts.stats import Waited
from slotstream_core.generation.decoding import Decoder, PlainDecoder, logits_row
from slotstream_core.generation.draft_costs import PassCost
from slotstream_core.generation.draft_depth import DEPTH_LIMIT, DepthPolicy, FixedDepth, Outcome
from slotstream_core.generation.sampling import GREEDY, Sampler, SamplingParams
from slotstream_core.generation.speculation import SpeculativeDecoder
from slotstream_core.models.base import DraftingModel, Guess, Model
from slotstream_core.models.qwen4_exp.text import Qwen4ExpModel
from slotstream_core.state.sequence import SequenceState
from tests.core.qwen4_exp_models import open_drafting_model, open_model

SETTINGS = {"vocab_size": 288, "indexer_budget": 16, "indexer_n_heads": 8, "num_experts": 16, "split_ngram_parts": 3}
PROMPT = [(7 * i * i + 3 * i + 5) % 256 for i in range(30)]
TOKENS = 24
SAMPLED = SamplingParams(temperature=0.8, top_p=0.95, top_k=12, presence_penalty=0.7, seed=3)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_synthetic(tmp_path_factory.mktemp("tiny"), SETTINGS, bits=4, group_size=32, draft=True)


@pytest.fixture(scope="module")
def model(tiny: Path) -> Iterator[Qwen4ExpModel]:
    with open_drafting_model(tiny) as opened:
        yield opened


class Scripted:
    """The model with another head: drafts are the true continuation where `right` says so, else wrong."""

    def __init__(self, model: Qwen4ExpModel, continuation: list[int], right: str) -> None:
        self.forward, self.read = model.forward, model.read
        self.new_state = model.new_state
        self._continuation = continuation
        self._right = right
        self.trying = False

    def waiting_rows(self, state: SequenceState) -> int:
        return 0

    def catch_up(self, state: SequenceState) -> int:
        return 0

    def guesses(self, state: SequenceState, token: int) -> Generator[Guess, None, None]:
        for place in count(state.length + 1 - len(PROMPT)):
            true = self._continuation[place] if place < len(self._continuation) else 0
            right = self._right[place % len(self._right)] == "y"
            yield Guess(true if right else (true + 1) % 256, 0.9 if right else 0.2)


class Sequenced:
    """A policy that walks through lists of guesses and of how many are verified, and remembers what it was told."""

    def __init__(self, *depths: int, unverified: int = 0, resting: int = 0) -> None:
        self._resting = resting
        self._depths = depths
        self._unverified = unverified
        self._next = 0
        self._depth = 0
        self.noted: list[tuple[PassCost, Outcome]] = []

    def begin(self) -> None:
        self._next = 0

    def copies(self, chance: float, most: int) -> int:
        return 0

    def starts(self, most: int, *, waiting: int = 0) -> bool:
        self._depth = self._depths[self._next % len(self._depths)]
        self._next += 1
        return most > 0 and self._depth + self._unverified > 0

    def goes_on(self, confidences: Sequence[float]) -> bool:
        return len(confidences) < self._depth + self._unverified

    def verified(self, confidences: Sequence[float]) -> int:
        return min(self._depth, len(confidences))

    def rest(self) -> int:
        return self._resting

    def note(self, cost: PassCost, outcome: Outcome) -> None:
        self.noted.append((cost, outcome))


class Copying(FixedDepth):
    """Verifies whatever can be copied, up to four tokens, and never asks the head."""

    def __init__(self) -> None:
        super().__init__(0)

    def copies(self, chance: float, most: int) -> int:
        return min(4, most)


def plain(model: Model, params: SamplingParams, tokens: int = TOKENS) -> list[int]:
    state = model.new_state()
    row = logits_row(model.forward(PROMPT, state).logits)
    return list(PlainDecoder(model, state, Sampler(params)).tokens(row, limit=tokens))


def speculative(
    model: DraftingModel,
    params: SamplingParams,
    policy: DepthPolicy,
    tokens: int = TOKENS,
    seen: Sequence[int] = (),
) -> tuple[list[int], SpeculativeDecoder, SequenceState]:
    state = model.new_state()
    row = logits_row(model.forward(PROMPT, state).logits)
    decoder = SpeculativeDecoder(model, state, Sampler(params), policy, waited=Waited, seen=seen)
    return list(decoder.tokens(row, limit=tokens)), decoder, state


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize(("right", "depth"), [("y", 6), ("n", 6), ("n", 1), ("yn", 2), ("yyn", 4), ("nyyyy", 3)])
def test_the_tokens_are_those_of_plain_decoding(
    model: Qwen4ExpModel, params: SamplingParams, right: str, depth: int
) -> None:
    expected = plain(model, params)
    scripted = Scripted(model, expected, right)
    tokens, decoder, state = speculative(scripted, params, FixedDepth(depth))
    assert tokens == expected
    assert state.length == len(PROMPT) + TOKENS - 1
    if right == "y":
        assert decoder.counts.accepted == decoder.counts.drafted
    if right == "n":
        assert decoder.counts.accepted == 0
    assert decoder.counts.accepted + sum(decoder.counts.passes_by_depth) == TOKENS - 1


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_the_model_s_own_head_and_changing_depths_change_nothing(model: Qwen4ExpModel, params: SamplingParams) -> None:
    tokens, decoder, _ = speculative(model, params, Sequenced(3, 0, 1, 5, 2, 0, 0, 4))
    assert tokens == plain(model, params)
    assert decoder.counts.drafted > 0


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("wrong", [100, 7, 3], ids=["never", "now and then", "often"])
def test_what_is_copied_from_the_text_changes_nothing(model: Qwen4ExpModel, params: SamplingParams, wrong: int) -> None:
    expected = plain(model, params)
    before = [(token + 1) % 256 if place % wrong == wrong - 1 else token for place, token in enumerate(expected)]
    tokens, decoder, state = speculative(model, params, Copying(), seen=[*before, *PROMPT])
    assert tokens == expected
    assert state.length == len(PROMPT) + TOKENS - 1
    assert decoder.counts.accepted + sum(decoder.counts.passes_by_depth) == TOKENS - 1
    if wrong > TOKENS:
        assert decoder.counts.accepted == decoder.counts.drafted > TOKENS // 2


def test_no_more_is_copied_before_a_pass_than_any_policy_verifies(model: Qwen4ExpModel) -> None:
    class Offered(Copying):
        def __init__(self) -> None:
            super().__init__()
            self.most: list[int] = []

        def copies(self, chance: float, most: int) -> int:
            self.most.append(most)
            return super().copies(chance, most)

    policy = Offered()
    speculative(model, GREEDY, policy, seen=[*plain(model, GREEDY), *PROMPT])
    assert max(policy.most) == DEPTH_LIMIT < TOKENS - 1


def test_copied_guesses_tell_the_policy_of_no_guess_by_the_head(model: Qwen4ExpModel) -> None:
    class Hearing(Copying):
        def __init__(self) -> None:
            super().__init__()
            self.noted: list[tuple[PassCost, Outcome]] = []

        def note(self, cost: PassCost, outcome: Outcome) -> None:
            self.noted.append((cost, outcome))

    policy = Hearing()
    _, decoder, _ = speculative(model, GREEDY, policy, seen=[*plain(model, GREEDY), *PROMPT])
    assert sum(cost.depth for cost, _ in policy.noted) == decoder.counts.drafted > 0
    assert sum(outcome.right for _, outcome in policy.noted) == decoder.counts.accepted
    assert all(not outcome.confidences and not outcome.judged for _, outcome in policy.noted)


def test_a_model_with_a_head_decodes_plainly_like_one_without(tiny: Path, model: Qwen4ExpModel) -> None:
    with open_model(tiny) as without:
        assert plain(without, SAMPLED) == plain(model, SAMPLED)


@pytest.mark.parametrize("taken", range(1, 9))
def test_closing_early_leaves_the_state_as_plain_decoding_does(model: Qwen4ExpModel, taken: int) -> None:
    expected = plain(model, GREEDY)
    state = model.new_state()
    row = logits_row(model.forward(PROMPT, state).logits)
    decoder: Decoder = SpeculativeDecoder(
        Scripted(model, expected, "yyn"), state, Sampler(GREEDY), FixedDepth(3), waited=Waited
    )
    with closing(decoder.tokens(row, limit=TOKENS)) as tokens:
        got = [next(tokens) for _ in range(taken)]
    assert got == expected[:taken]
    assert state.length == len(PROMPT) + taken - 1
    row = logits_row(model.forward([got[-1]], state).logits)
    assert list(PlainDecoder(model, state, Sampler(GREEDY)).tokens(row, limit=4)) == expected[taken : taken + 4]


@pytest.mark.parametrize("limit", [1, 2, 3, 5])
def test_no_row_is_read_beyond_the_limit(model: Qwen4ExpModel, limit: int) -> None:
    policy = Sequenced(16)
    tokens, decoder, state = speculative(Scripted(model, plain(model, GREEDY), "y"), GREEDY, policy, limit)
    assert len(tokens) == limit
    assert state.length == len(PROMPT) + limit - 1
    assert decoder.counts.drafted <= max(0, limit - 2)


@pytest.mark.usefixtures("read_by_python")
def test_a_failed_draft_read_goes_on_without_drafts(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError("the disk is gone")

    with open_drafting_model(tiny, draft_slots=8) as streamed:
        expected = plain(streamed, SAMPLED)
        monkeypatch.setattr(StoredExperts, "read", refuse)
        policy = Sequenced(2)
        tokens, decoder, _ = speculative(streamed, SAMPLED, policy)
        assert tokens == expected
        assert decoder.counts.failed_reads == 1
        assert decoder.counts.drafted == 0
        assert policy.noted == []
        monkeypatch.undo()
        again, decoder, _ = speculative(streamed, SAMPLED, policy)
        assert again == expected
        assert decoder.counts.drafted > 0


def test_the_policy_hears_of_every_pass(model: Qwen4ExpModel) -> None:
    policy = Sequenced(2, 0)
    _, decoder, _ = speculative(Scripted(model, plain(model, GREEDY), "yn"), GREEDY, policy)
    assert [sum(cost.depth == depth for cost, _ in policy.noted) for depth in range(3)] == list(
        decoder.counts.passes_by_depth
    )
    assert sum(outcome.right for _, outcome in policy.noted) == decoder.counts.accepted
    assert all(cost.time_s > 0 for cost, _ in policy.noted)
    assert all(len(cost.guesses_s) == len(outcome.confidences) for cost, outcome in policy.noted)


def test_a_policy_that_rests_hears_of_one_plain_pass_and_then_of_none(model: Qwen4ExpModel) -> None:
    policy = Sequenced(2, 0, resting=2)
    expected = plain(model, GREEDY)
    tokens, decoder, _ = speculative(Scripted(model, expected, "yn"), GREEDY, policy)
    assert tokens == expected
    heard = [cost.depth for cost, _ in policy.noted]
    assert heard[:4] == [2, 0, 2, 0]
    assert decoder.counts.passes_by_depth[2] == heard.count(2)
    assert 2 * heard.count(0) < decoder.counts.passes_by_depth[0] <= 3 * heard.count(0)


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_guesses_that_are_not_verified_change_nothing_and_are_judged_all_the_same(
    model: Qwen4ExpModel, params: SamplingParams, depth: int
) -> None:
    expected, right = plain(model, params), "yyyn"
    policy = Sequenced(depth, unverified=2)
    tokens, decoder, _ = speculative(Scripted(model, expected, right), params, policy)
    assert tokens == expected
    assert decoder.counts.drafted == depth * decoder.counts.passes_by_depth[-1] + sum(
        place * count for place, count in enumerate(decoder.counts.passes_by_depth[:-1])
    )
    place = 1
    for cost, outcome in policy.noted:
        marks = [right[(place + each) % len(right)] == "y" for each in range(len(outcome.confidences))]
        known = marks[: cost.depth + 1]
        hits = known.index(False) if False in known else len(known)
        assert outcome.right == hits
        assert outcome.judged == min(hits + (False in known), len(marks))
        place += 1 + min(hits, cost.depth)


def test_an_unverified_guess_makes_no_pass_longer(model: Qwen4ExpModel) -> None:
    _, decoder, _ = speculative(Scripted(model, plain(model, GREEDY), "y"), GREEDY, Sequenced(0, unverified=3))
    assert decoder.counts.drafted == 0
    assert decoder.counts.passes_by_depth == (TOKENS - 1,)
