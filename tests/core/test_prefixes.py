"""Conversations kept in memory: exact, bounded, branching, and honest about why nothing was reused."""

import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from slotstream_core.engine import Engine, load
from slotstream_core.errors import ExpertReadError, GenerationCancelled
from slotstream_core.events import Finished, PromptProgress
from slotstream_core.generation.control import CancelToken
from slotstream_core.generation.sampling import GREEDY
from slotstream_core.prefixes.cache import CacheBudget
from slotstream_core.prefixes.kept import KeptState, held_bytes
from slotstream_core.testing import write_tiny_model
from slotstream_planner import PlanRequest

PASS = 256


@pytest.fixture(scope="module")
def shared_engine(tiny_model: Path) -> Iterator[Engine]:
    with load(tiny_model) as engine:
        assert engine.plan.prefill_chunk > PASS  # passes are read in groups
        yield engine


@pytest.fixture
def engine(shared_engine: Engine) -> Iterator[Engine]:
    """An engine that remembers nothing yet."""
    budget = shared_engine.memory.cache.budget
    shared_engine.memory.clear()
    yield shared_engine
    shared_engine.memory.cache.resize(budget)


@pytest.fixture(scope="module")
def forgetful(tiny_model: Path) -> Iterator[Engine]:
    """The same model, reading every prompt from its beginning in the same passes, one after the other."""
    with load(tiny_model, request=PlanRequest(prefill_chunk=PASS, prefix_cache="off")) as engine:
        yield engine


def ids(length: int, seed: int = 0) -> list[int]:
    return [int(each) for each in np.random.default_rng(seed).integers(0, 256, length)]


def ask(engine: Engine, prompt: Sequence[int], tokens: int = 3, *, shared_tokens: int | None = None) -> Finished:
    *_, finished = engine.generate(prompt, sampling=GREEDY, max_tokens=tokens, shared_tokens=shared_tokens)
    assert isinstance(finished, Finished)
    return finished


def cached(engine: Engine, prompt: Sequence[int]) -> int:
    return ask(engine, prompt, 1).usage.cached_tokens


def kept(engine: Engine) -> list[tuple[str, int]]:
    return sorted((state.purpose, len(state.ids)) for state in engine.memory.cache.states())


def resumed_logits(engine: Engine, prompt: Sequence[int]) -> list[bytes]:
    """The logits after a prompt: as kept when it is known completely."""
    ask(engine, prompt, 1)
    states = [state for state in engine.memory.cache.states() if state.ids.tolist() == list(prompt)]
    return [state.logits.tobytes() for state in states if state.logits is not None]


def test_a_follow_up_computes_what_a_cold_read_computes(engine: Engine, forgetful: Engine) -> None:
    first = ids(600)
    reply = ask(engine, first)
    second = [*first, *reply.token_ids, *ids(90, seed=1)]
    warm = ask(engine, second, 8)
    cold = ask(forgetful, second, 8)
    assert (warm.usage.cached_tokens, cold.usage.cached_tokens) == (512, 0)
    assert warm.token_ids == cold.token_ids
    warm_logits = resumed_logits(engine, second)
    engine.memory.clear()
    assert resumed_logits(engine, second) == warm_logits


def test_progress_says_from_the_start_what_was_reused(engine: Engine) -> None:
    ask(engine, ids(600), 1)
    events = list(engine.generate([*ids(600), 1, 2, 3], sampling=GREEDY, max_tokens=1))
    progress = [event for event in events if isinstance(event, PromptProgress)]
    assert [(event.done_tokens, event.cached_tokens) for event in progress] == [(512, 512), (603, 512)]


def test_the_same_prompt_again_reads_nothing_and_says_the_same(engine: Engine) -> None:
    first = ask(engine, ids(300), 6)
    again = ask(engine, ids(300), 6)
    assert (first.usage.cached_tokens, again.usage.cached_tokens) == (0, 300)
    assert again.token_ids == first.token_ids


def test_a_state_that_ends_inside_a_pass_is_never_resumed(engine: Engine) -> None:
    ask(engine, ids(300), 1)
    assert kept(engine) == [("complete", 300), ("conversation", 256)]
    assert cached(engine, [*ids(300), *ids(200, seed=1)]) == 256


def test_generated_tokens_are_read_again(engine: Engine, forgetful: Engine) -> None:
    first = ids(250)
    reply = ask(engine, first, 20).token_ids
    prompt = [*first, *reply, *ids(20, seed=3)]
    assert cached(engine, prompt) == 0
    assert ask(engine, prompt, 6).token_ids == ask(forgetful, prompt, 6).token_ids


def test_a_prompt_that_ends_on_a_pass_end_serves_its_follow_up(engine: Engine, forgetful: Engine) -> None:
    ask(engine, ids(512), 1)
    longer = [*ids(512), *ids(40, seed=1)]
    warm = ask(engine, longer, 6)
    assert warm.usage.cached_tokens == 512
    assert warm.token_ids == ask(forgetful, longer, 6).token_ids


def test_a_tree_of_conversations_resumes_every_branch_at_its_nearest_checkpoint(
    engine: Engine, forgetful: Engine
) -> None:
    """Turns 1, 2, 3; turn 2 edited; turn 3 regenerated; the edit continued; back to the first branch."""
    root = ids(600)
    turn2 = [*root, *ids(300, seed=1)]
    turn3 = [*turn2, *ids(300, seed=2)]
    edited2 = [*root, *ids(280, seed=3)]
    edited3 = [*edited2, *ids(300, seed=4)]
    back4 = [*turn3, *ids(200, seed=5)]
    walk = [(root, 0), (turn2, 512), (turn3, 768), (edited2, 512), (turn3, len(turn3)), (edited3, 768), (back4, 1024)]
    for prompt, expected in walk:
        warm = ask(engine, prompt, 4)
        assert warm.usage.cached_tokens == expected
        assert warm.token_ids == ask(forgetful, prompt, 4).token_ids
    states = engine.memory.cache.states()
    alone = sum(state.own_bytes + state.snapshot.row_bytes for state in states)
    assert held_bytes(states) < 0.6 * alone  # the branches hold the rows of their common turns once


def test_heads_that_two_conversations_share_are_kept_for_the_third(engine: Engine) -> None:
    head = ids(600)
    before = engine.memory.status()
    assert cached(engine, [*head, *ids(300, seed=1)]) == 0
    assert cached(engine, [*head, *ids(300, seed=2)]) == 0
    assert ("speculative", 512) in kept(engine)
    assert cached(engine, [*head, *ids(300, seed=3)]) == 512
    after = engine.memory.status()
    assert [after[name] - before[name] for name in ("checkpoint_stores", "checkpoint_hits")] == [1, 1]


def test_the_next_turn_of_a_conversation_shares_nothing_with_others(engine: Engine) -> None:
    """0.2.26: the end of the previous reply counted as a shared prefix, and each turn kept a second state."""
    prompt = ids(600)
    for turn in range(1, 4):
        ask(engine, prompt, 1)
        prompt = [*prompt, *ids(300, seed=turn)]
    assert {purpose for purpose, _ in kept(engine)} == {"conversation", "complete"}


def system_prompt(engine: Engine, tokens: int) -> list[int]:
    opening = engine.tokenizer.encode("<|im_start|>system\n")
    end = engine.tokenizer.encode("<|im_end|>")
    return [*opening, *ids(tokens - len(opening) - 1, seed=9), *end]


def test_a_system_message_is_kept_for_other_conversations(engine: Engine, forgetful: Engine) -> None:
    system = system_prompt(engine, 700)
    ask(engine, [*system, *ids(600, seed=1)], 1)
    assert ("shared", 512) in kept(engine)
    other = [*system, *ids(500, seed=2)]
    warm = ask(engine, other, 5)
    assert warm.usage.cached_tokens == 512
    assert warm.token_ids == ask(forgetful, other, 5).token_ids


def test_a_system_message_that_ends_with_its_conversation_is_kept_as_shared(engine: Engine) -> None:
    """0.2.25: both in one pass, the conversation's checkpoint came first and the shared one was lost."""
    system = system_prompt(engine, 700)
    ask(engine, [*system, *ids(20, seed=1)], 1)
    assert kept(engine) == [("complete", 720), ("shared", 512)]


def test_short_system_messages_and_heads_of_length_zero_are_not_kept(engine: Engine) -> None:
    ask(engine, [*system_prompt(engine, 500), *ids(600, seed=1)], 1)
    ask(engine, [*system_prompt(engine, 700), *ids(600, seed=2)], 1, shared_tokens=0)
    assert not {"shared", "speculative"} & {purpose for purpose, _ in kept(engine)}


def test_an_app_may_name_the_head_that_its_conversations_share(engine: Engine) -> None:
    ask(engine, ids(1400), 1, shared_tokens=800)
    assert ("shared", 768) in kept(engine)
    assert cached(engine, [*ids(800), *ids(100, seed=1)]) == 768


@pytest.mark.parametrize("capacity_tokens", [300, 900, 2000])
def test_what_is_kept_stays_inside_the_budget(engine: Engine, forgetful: Engine, capacity_tokens: int) -> None:
    cache = engine.memory.cache
    capacity = capacity_tokens * cache.budget.token_bytes
    cache.resize(CacheBudget(capacity_bytes=capacity, max_tokens=300, token_bytes=cache.budget.token_bytes))
    for seed in range(4):
        prompt = ids(600, seed=seed)
        ask(engine, prompt, 1)
        follow_up = [*prompt, *ids(60, seed=50)]
        assert ask(engine, follow_up, 3).token_ids == ask(forgetful, follow_up, 3).token_ids
        assert engine.memory.status()["allocated_sequence_bytes"] <= capacity


def fill(engine: Engine, prompts: Sequence[Sequence[int]]) -> int:
    """Read prompts, and return the bytes then held."""
    for prompt in prompts:
        ask(engine, prompt, 1)
    return int(engine.memory.status()["allocated_sequence_bytes"])


def resize(engine: Engine, capacity_bytes: int) -> None:
    cache = engine.memory.cache
    cache.resize(CacheBudget(capacity_bytes=capacity_bytes, max_tokens=9, token_bytes=cache.budget.token_bytes))


def test_complete_prompts_go_first_then_earlier_turns_then_the_oldest_conversation(engine: Engine) -> None:
    turn1, other = ids(600), ids(600, seed=7)
    turn2 = [*turn1, *ids(300, seed=1)]
    gone: list[list[tuple[str, int]]] = []
    held = fill(engine, [turn1, other, turn2])
    while engine.memory.cache.states():
        before = kept(engine)
        held = min(held, int(engine.memory.status()["allocated_sequence_bytes"])) - 1
        resize(engine, held)
        after = kept(engine)
        lost = list(before)
        for state in after:
            lost.remove(state)
        gone.append(lost)
    order = [state for lost in gone for state in lost]
    assert order[:3] == [("complete", 600), ("complete", 600), ("complete", 900)]
    assert order[3:] == [("conversation", 512), ("conversation", 512), ("conversation", 768)]


def test_a_used_system_message_outlives_newer_conversations(engine: Engine) -> None:
    system = system_prompt(engine, 700)
    ask(engine, [*system, *ids(300, seed=1)], 1)
    fill(engine, [ids(700, seed=2)])
    held = fill(engine, [[*system, *ids(300, seed=3)]])
    resize(engine, held // 2)
    assert ("shared", 512) in kept(engine)
    assert cached(engine, [*system, *ids(300, seed=4)]) == 512


def test_unused_shared_heads_make_room_for_a_conversation(engine: Engine) -> None:
    head = ids(600)
    held = fill(engine, [[*head, *ids(100, seed=1)], [*head, *ids(300, seed=2)]])
    assert ("speculative", 512) not in kept(engine)  # the first conversation's own checkpoint is there
    engine.memory.clear()
    held = fill(engine, [[*head, *ids(300, seed=1)], [*head, *ids(300, seed=2)]])
    assert ("speculative", 512) in kept(engine)
    resize(engine, held)
    fill(engine, [ids(400, seed=3), ids(400, seed=4)])
    assert ("speculative", 512) not in kept(engine)


def reasons(caplog: pytest.LogCaptureFixture) -> list[str | None]:
    records = [json.loads(record.getMessage()) for record in caplog.records if record.name == "slotstream.prefixes"]
    return [record.get("miss", record.get("source")) for record in records if record["event"] == "prefix"]


def test_the_log_says_why_nothing_was_reused(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="slotstream.prefixes")
    prompt = ids(600)
    ask(engine, prompt, 1)
    ask(engine, ids(600, seed=1), 1)
    ask(engine, prompt[:512], 1)
    ask(engine, [*prompt, 1], 1)
    assert reasons(caplog) == [
        "no retained state",
        "retained states are not exact prefixes",
        "equal length without logits",
        "memory",
    ]
    caplog.clear()
    engine.memory.clear()
    ask(engine, ids(100), 1)
    ask(engine, ids(300), 1)
    assert reasons(caplog) == ["no retained state", "no compatible prefill boundary"]


def test_another_pass_size_uses_nothing_of_the_first(
    engine: Engine, forgetful: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="slotstream.prefixes")
    ask(engine, ids(600), 1)
    monkeypatch.setattr(engine.memory, "pass_tokens", lambda plan: 512)
    assert cached(engine, [*ids(600), 5]) == 0
    assert reasons(caplog)[-1] == "model identity changed"


def test_a_cancelled_prompt_leaves_what_it_had_read(engine: Engine) -> None:
    prompt = ids(1400)
    cancel = CancelToken()
    events = engine.generate(prompt, sampling=GREEDY, max_tokens=1, cancel=cancel, shared_tokens=600)
    while not (isinstance(event := next(events), PromptProgress) and event.done_tokens == 768):
        pass
    cancel.cancel()
    with pytest.raises(GenerationCancelled):
        next(events)
    assert kept(engine) == [("guess", 768), ("shared", 512)]
    assert cached(engine, prompt) == 768


def test_a_failed_read_leaves_the_kept_states_usable(
    engine: Engine, forgetful: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = ids(600)
    ask(engine, prompt, 1)
    longer = [*prompt, *ids(300, seed=1)]
    model = engine._loaded.model
    with monkeypatch.context() as patch:
        patch.setattr(model, "read", _fail)
        with pytest.raises(ExpertReadError):
            ask(engine, longer, 1)
    warm = ask(engine, longer, 4)
    assert warm.usage.cached_tokens == 512
    assert warm.token_ids == ask(forgetful, longer, 4).token_ids


def _fail(*_args: object, **_options: object) -> None:
    raise ExpertReadError("the disk is gone")


def test_the_plan_without_retained_conversations_keeps_nothing(forgetful: Engine) -> None:
    ask(forgetful, ids(300), 1)
    status = forgetful.memory.status()
    assert (status["enabled"], status["conversations"], status["max_tokens"]) == (False, 0, 0)


def test_the_status_has_its_documented_keys(engine: Engine) -> None:
    before = engine.memory.status()
    ask(engine, ids(600), 1)
    ask(engine, [*ids(600), 7], 1)
    status = engine.memory.status()
    assert list(status) == [
        *("enabled", "conversations", "max_conversations", "held_tokens", "charged_token_capacity"),
        *("allocated_sequence_bytes", "held_images", "reusable_checkpoints", "checkpoint_hits", "checkpoint_stores"),
        *("checkpoint_fork_failures", "held_gb", "max_tokens", "hits", "misses", "evictions"),
        *("persistent_hits", "persistent"),
    ]
    assert (status["hits"] - before["hits"], status["misses"] - before["misses"]) == (1, 1)
    assert status["max_tokens"] == engine.plan.retained_tokens
    assert status["held_tokens"] == 601 + 600 - 512
    assert status["charged_token_capacity"] >= status["held_tokens"]


def test_the_draft_head_goes_on_with_its_conversation(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path / "drafting", draft=True)
    first, replies = ids(600), []
    second = [*first, *ids(120, seed=1)]
    for request in (
        PlanRequest(mtp="on"),
        PlanRequest(mtp="on", prefix_cache="off", prefill_chunk=PASS),
        PlanRequest(mtp="off"),
    ):
        with load(directory, request=request) as drafting:
            ask(drafting, first, 4)
            finished = ask(drafting, second, 16)
            assert finished.usage.cached_tokens == (512 if drafting.memory.enabled else 0)
            replies.append(finished.token_ids)
    assert replies[0] == replies[1] == replies[2]


def test_kept_states_are_read_only(engine: Engine) -> None:
    ask(engine, ids(600), 1)
    state: KeptState = engine.memory.cache.states()[0]
    with pytest.raises(ValueError, match="read-only"):
        state.ids[0] = 1


def test_of_a_conversation_too_long_for_memory_the_part_that_fits_is_kept(engine: Engine) -> None:
    cache = engine.memory.cache
    capacity = 900 * cache.budget.token_bytes + 40_000
    cache.resize(CacheBudget(capacity_bytes=capacity, max_tokens=1000, token_bytes=cache.budget.token_bytes))
    prompt = ids(1700)
    ask(engine, prompt, 1)
    assert kept(engine) == [("conversation", 768)]
    longer = [*prompt, *ids(100, seed=1)]
    assert cached(engine, longer) == 768
    assert engine.memory.status()["allocated_sequence_bytes"] <= capacity


def test_a_prompt_whose_reply_fills_the_window_serves_a_shorter_one(engine: Engine, forgetful: Engine) -> None:
    """Nothing can follow it, so what comes next leaves it before its end."""
    prompt = ids(engine.window_tokens - 40)
    assert ask(engine, prompt, 0).reason == "length"
    shorter = [*prompt[:-300], *ids(20, seed=1)]
    warm = ask(engine, shorter, 4)
    assert warm.usage.cached_tokens == (len(prompt) - 512) // PASS * PASS
    assert warm.token_ids == ask(forgetful, shorter, 4).token_ids
