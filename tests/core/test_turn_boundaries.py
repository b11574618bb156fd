"""Passes end where turns of a conversation start, so that follow-ups and other conversations go on from there."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from slotstream_core.engine import Engine, load
from slotstream_core.events import Finished
from slotstream_core.generation.sampling import GREEDY
from slotstream_core.persistence.directory import PersistentOptions, PrefixDirectory
from slotstream_core.prefixes.boundaries import SystemHead, boundaries
from slotstream_core.prefixes.memory import prompt_array
from slotstream_core.prefixes.resuming import GUESS_DISTANCES
from tests.core.kept_states import head, options, state

AFAR, NEAR = GUESS_DISTANCES


@pytest.fixture(scope="module")
def shared_engine(tiny_model: Path) -> Iterator[Engine]:
    with load(tiny_model) as engine:
        yield engine


@pytest.fixture
def engine(shared_engine: Engine) -> Engine:
    """An engine that remembers nothing yet."""
    shared_engine.memory.clear()
    return shared_engine


def turn(engine: Engine, role: str, tokens: int, seed: int) -> list[int]:
    """A turn of a conversation that is so many tokens long, its markers and the line break after it included."""
    opening, end = engine.tokenizer.encode(f"<|im_start|>{role}\n"), engine.tokenizer.encode("<|im_end|>\n")
    words = [int(each) for each in np.random.default_rng(seed).integers(0, 256, tokens - len(opening) - len(end))]
    return [*opening, *words, *end]


def asking(engine: Engine, *turns: Sequence[int]) -> list[int]:
    """The prompt for a reply to some turns."""
    return [*(each for one in turns for each in one), *engine.tokenizer.encode("<|im_start|>assistant\n")]


def ask(engine: Engine, prompt: Sequence[int], tokens: int = 1) -> Finished:
    *_, finished = engine.generate(prompt, sampling=GREEDY, max_tokens=tokens)
    assert isinstance(finished, Finished)
    engine.memory.finish_writing()
    return finished


def kept(engine: Engine) -> list[tuple[str, int]]:
    return sorted((state.purpose, len(state.ids)) for state in engine.memory.cache.states())


def logits(engine: Engine, prompt: Sequence[int]) -> bytes:
    """The bits of the logits after a prompt that was read to its end."""
    found = [state.logits for state in engine.memory.cache.states() if state.ids.tolist() == list(prompt)]
    assert found[0] is not None
    return found[0].tobytes()


def assert_as_cold(engine: Engine, prompt: Sequence[int]) -> None:
    """Compare the prompt just read with reading it from its beginning."""
    resumed = logits(engine, prompt)
    engine.memory.clear()
    assert ask(engine, prompt).usage.cached_tokens == 0
    assert logits(engine, prompt) == resumed


def test_a_follow_up_reads_the_reply_and_what_is_new_only(engine: Engine) -> None:
    question = [*turn(engine, "system", 300, 1), *turn(engine, "user", 415, 2)]
    prompt = asking(engine, question)
    reply = ask(engine, prompt, 5).token_ids
    longer = [*prompt, *reply, *engine.tokenizer.encode("<|im_end|>\n"), *turn(engine, "user", 40, 3)]
    follow_up = asking(engine, longer)
    assert ask(engine, follow_up).usage.cached_tokens == len(question)
    assert_as_cold(engine, follow_up)


def test_short_turns_share_a_pass(engine: Engine) -> None:
    turns = [turn(engine, "user", 20, seed) for seed in range(12)]
    prompt = prompt_array(asking(engine, *turns))
    opening = engine.tokenizer.token_id("<|im_start|>")
    assert boundaries(prompt, 256, opening) == [80, 160, 240]
    assert boundaries(prompt, 256) == []


def test_a_system_message_is_kept_up_to_its_end(engine: Engine) -> None:
    system = turn(engine, "system", 600, 1)
    assert SystemHead(engine.tokenizer).end(prompt_array(asking(engine, system))) == 600
    ask(engine, asking(engine, system, turn(engine, "user", 400, 2)))
    other = asking(engine, system, turn(engine, "user", 300, 3))
    assert ask(engine, other).usage.cached_tokens == 600
    assert_as_cold(engine, other)


def test_a_conversation_that_leaves_a_system_message_near_its_end_finds_what_lies_before(engine: Engine) -> None:
    """As a coding agent's second directory does: its instructions name the directory they are used in."""
    head = turn(engine, "system", 1400, 1)[:1200]
    prompts = [asking(engine, [*head, *turn(engine, "user", 200 + seed, seed)[3:]]) for seed in (2, 3, 4)]
    before = engine.memory.status()
    assert ask(engine, prompts[0]).usage.cached_tokens == 0
    assert ("guess", 768) in kept(engine)
    assert ask(engine, prompts[1]).usage.cached_tokens == 768  # the last pass end 512 tokens before its end
    assert ("speculative", 1024) in kept(engine)
    assert ("speculative", 768) in kept(engine)
    assert ask(engine, prompts[2]).usage.cached_tokens == 1024
    after = engine.memory.status()
    assert after["checkpoint_hits"] - before["checkpoint_hits"] == 2
    assert_as_cold(engine, prompts[2])


def test_what_two_conversations_share_is_found_although_a_system_message_ends_them(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last boundary of each is its system message's too, and is kept as such."""
    monkeypatch.setattr("slotstream_core.prefixes.resuming.GUESS_DISTANCES", ())
    head = turn(engine, "system", 800, 1)[:650]
    prompts = [asking(engine, [*head, *turn(engine, "user", 150 + seed, seed)[3:]]) for seed in (2, 3, 4)]
    assert ask(engine, prompts[0]).usage.cached_tokens == 0
    assert {purpose for purpose, _ in kept(engine)} == {"shared", "complete"}
    assert ask(engine, prompts[1]).usage.cached_tokens == 0
    assert ("speculative", 512) in kept(engine)
    assert ask(engine, prompts[2]).usage.cached_tokens == 512


def test_rows_are_not_shared_where_only_one_of_two_prompts_ended_a_pass(engine: Engine) -> None:
    """One goes on with a turn at 400, and ends a pass there; the other reads on to 512."""
    start = turn(engine, "user", 400, 1)
    through = asking(engine, [*start, *turn(engine, "user", 300, 2)[1:]])
    parted = asking(engine, start, turn(engine, "user", 300, 3))
    for first, second in ((through, parted), (parted, through)):
        engine.memory.clear()
        ask(engine, first)
        ask(engine, second)
        longer = asking(engine, second, turn(engine, "user", 30, 4))
        assert ask(engine, longer).usage.cached_tokens >= 400
        assert_as_cold(engine, longer)


def test_guesses_give_way_to_conversations(engine: Engine) -> None:
    cache, budget = engine.memory.cache, engine.memory.cache.budget
    ask(engine, asking(engine, turn(engine, "system", NEAR + 700, 1), turn(engine, "user", 300, 2)))
    assert "guess" in {purpose for purpose, _ in kept(engine)}
    guess = next(each for each in cache.states() if each.purpose == "guess")
    others = [each for each in cache.states() if each is not guess]
    try:
        cache.resize(type(budget)(capacity_bytes=cache.held_bytes - 1, max_tokens=9, token_bytes=budget.token_bytes))
        cache.resize(type(budget)(capacity_bytes=cache.held_bytes - 1, max_tokens=9, token_bytes=budget.token_bytes))
        assert {each.purpose for each in cache.states()} == {each.purpose for each in others} - {"complete"}
    finally:
        cache.resize(budget)


def test_a_guess_is_written_once_another_conversation_used_it(tiny_model: Path, tmp_path: Path) -> None:
    with load(tiny_model) as engine:
        engine.keep_on_disk(options(tmp_path))
        head = turn(engine, "system", 1200, 1)[:1000]
        prompts = [asking(engine, [*head, *turn(engine, "user", 300 + seed, seed)[3:]]) for seed in (2, 3, 4)]
        ask(engine, prompts[0])
        written = [path for path in tmp_path.iterdir() if path.suffix == ".slotprefix"]
        assert len(written) == 1  # where the conversation and its system message end
        ask(engine, prompts[1])
        for more in (1, 2):  # the conversation goes on, and what it no longer needs is removed
            ask(engine, [*prompts[1], *turn(engine, "user", 300 * more, 5)])
    with load(tiny_model) as engine:
        engine.keep_on_disk(options(tmp_path))
        assert ask(engine, prompts[2]).usage.cached_tokens == 768


def test_a_prompt_without_turns_is_cut_by_length_alone() -> None:
    plain = prompt_array([1] * 600)
    assert boundaries(plain, 256, 7) == boundaries(plain, 256, None) == [256, 512]


@pytest.mark.parametrize("opening", ["", "\n"], ids=["as it was asked", "without what opened the reply"])
def test_each_turn_of_a_conversation_writes_one_state_that_is_nobody_elses(
    tiny_model: Path, tmp_path: Path, opening: str
) -> None:
    """0.2.26: once a reply crossed a pass end, its turn was written twice, or as a head that others share."""
    with load(tiny_model) as engine:
        engine.keep_on_disk(options(tmp_path))
        turns = turn(engine, "user", 600, 1)
        for number in range(1, 4):
            prompt = asking(engine, turns)
            reply = ask(engine, prompt, 290).token_ids
            status = engine.prefix_status()["persistent"]
            assert (status["writes"], status["shared_states"]) == (number, 0)
            begun = prompt[:-1] if opening else prompt
            end = engine.tokenizer.encode("<|im_end|>\n")
            turns = [*begun, *reply, *end, *turn(engine, "user", 300, 1 + number)]


def test_states_of_1024_tokens_are_written_by_default(tmp_path: Path) -> None:
    """0.2.26: 2,048 left the first prompts of some agents out."""
    kept = PrefixDirectory(PersistentOptions(directory=tmp_path, free_bytes=0), identity="me", build="test 1")
    assert [kept.save(head(length, state(length))) for length in (1023, 1024)] == ["too short", "saved"]
    kept.close()
