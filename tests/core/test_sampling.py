"""The sampler against a plain restatement of its rules, step by step and token by token."""

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotstream_core.errors import InvalidSampling
from slotstream_core.generation.sampling import GREEDY, Sampler, SamplingParams, splitmix64_mix

F32 = np.float32


def reference_next(
    logits: npt.NDArray[np.float32], params: SamplingParams, seen: set[int], state: int
) -> tuple[int, int]:
    """Return (token, new random state), written with loops and no shared code."""
    values = [F32(x) for x in logits]
    for token in seen:
        values[token] = F32(values[token] - F32(params.presence_penalty))
    if params.temperature <= 0:
        return max(range(len(values)), key=lambda i: (values[i], -i)), state
    values = [F32(x / F32(params.temperature)) for x in values]
    kept = list(range(len(values)))
    if 0 < params.top_k < len(values):
        kth = sorted(values, reverse=True)[params.top_k - 1]
        kept = [i for i in kept if values[i] >= kth]
    top = max(values[i] for i in kept)
    weights = np.exp(np.array([values[i] - top for i in kept], F32))
    probability = dict(zip(kept, weights / weights.sum(dtype=F32), strict=True))
    kept.sort(key=lambda i: (-probability[i], i))
    total, chosen = F32(0), []
    for i in kept:
        if not total < F32(params.top_p):
            break
        chosen.append(i)
        total = F32(total + probability[i])
    floor = F32(probability[kept[0]] * F32(params.min_p))
    chosen = [i for i in chosen if probability[i] >= floor]
    state = (state + 1) & (2**64 - 1)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        state = ((state ^ (state >> shift)) * factor) & (2**64 - 1)
    state ^= state >> 31
    u = F32((state >> 11) / 2**53)
    sums, running = [], F32(0)
    for i in chosen:
        running = F32(running + probability[i])
        sums.append(running)
    index = sum(1 for s in sums if s < F32(u * running))
    return chosen[min(index, len(chosen) - 1)], state


@settings(max_examples=150)
@given(
    seed=st.integers(0, 2**64 - 1),
    logit_seed=st.integers(0, 2**32 - 1),
    temperature=st.sampled_from([0.0, 0.2, 0.7, 1.0, 1.7]),
    top_p=st.sampled_from([0.1, 0.5, 0.8, 0.95, 1.0]),
    top_k=st.sampled_from([0, 1, 5, 20, 1000]),
    min_p=st.sampled_from([0.0, 0.05, 0.5]),
    penalty=st.sampled_from([0.0, 1.5, -0.5]),
)
def test_every_token_equals_the_reference(
    seed: int, logit_seed: int, temperature: float, top_p: float, top_k: int, min_p: float, penalty: float
) -> None:
    params = SamplingParams(
        temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, presence_penalty=penalty, seed=seed
    )
    rng = np.random.Generator(np.random.PCG64(logit_seed))
    sampler, seen = Sampler(params), set[int]()
    state = seed or 0xDEADBEEF
    for _ in range(6):
        logits = rng.normal(0, 3, 50).round(1).astype(np.float32)  # rounding makes ties
        expected, state = reference_next(logits, params, seen, state)
        assert sampler.sample(logits) == expected
        seen.add(expected)


def test_the_random_stream_is_splitmix64() -> None:
    # First outputs of the published SplitMix64 generator for seed 0: mix(gamma), mix(2 * gamma).
    gamma = 0x9E3779B97F4A7C15
    assert splitmix64_mix(gamma) == 0xE220A8397B1DCDAF
    assert splitmix64_mix(2 * gamma) == 0x6E789E6AA1B965F4


def test_greedy_takes_the_first_of_equal_logits() -> None:
    assert Sampler(GREEDY).sample(np.array([1, 3, 3, 2], np.float32)) == 1


def test_top_k_keeps_ties_with_the_last_one_kept() -> None:
    logits = np.array([2, 1, 1, 1, 0], np.float32)
    drawn = set()
    for seed in range(200):
        drawn.add(Sampler(SamplingParams(temperature=1, top_p=1, top_k=2, seed=seed)).sample(logits))
    assert drawn == {0, 1, 2, 3}


def test_a_token_is_penalised_once_however_often_it_came() -> None:
    sampler = Sampler(SamplingParams(temperature=0, presence_penalty=1.0))
    logits = np.array([2.5, 2.0, 0.0], np.float32)
    assert [sampler.sample(logits) for _ in range(4)] == [0, 1, 0, 0]


def test_sampling_leaves_the_logits_as_they_were() -> None:
    logits = np.array([1, 2, 3], np.float32)
    Sampler(SamplingParams(seed=1)).sample(logits)
    assert logits.tolist() == [1, 2, 3]


def test_a_seed_names_one_reply() -> None:
    logits = np.random.Generator(np.random.PCG64(0)).normal(0, 1, (8, 64)).astype(np.float32)
    first, second = (Sampler(SamplingParams(temperature=1.0, seed=7)) for _ in range(2))
    assert [first.sample(row) for row in logits] == [second.sample(row) for row in logits]


def test_no_seed_draws_one_that_can_be_given_again() -> None:
    logits = np.random.Generator(np.random.PCG64(0)).normal(0, 1, (8, 64)).astype(np.float32)
    first = Sampler(SamplingParams(temperature=1.0))
    again = Sampler(SamplingParams(temperature=1.0, seed=first.seed))
    assert [first.sample(row) for row in logits] == [again.sample(row) for row in logits]


@pytest.mark.filterwarnings("ignore:invalid value")
def test_logits_without_a_usable_distribution_fall_back_to_the_largest() -> None:
    logits = np.array([1.0, np.inf, 2.0], np.float32)
    assert Sampler(SamplingParams(temperature=1.0, seed=3)).sample(logits) == 1


def test_values_outside_their_range_are_brought_into_it() -> None:
    odd = SamplingParams(temperature=-1, top_p=0, top_k=-3, min_p=7).sanitised()
    assert (odd.temperature, odd.top_p, odd.top_k, odd.min_p) == (0.0, 1.0, 0, 1.0)
    assert SamplingParams(temperature=math.nan, top_p=math.nan, min_p=math.nan).sanitised() == SamplingParams(
        temperature=0.0, top_p=1.0, min_p=0.0
    )


def test_a_presence_penalty_that_is_no_number_is_refused() -> None:
    with pytest.raises(InvalidSampling, match="nan"):
        Sampler(SamplingParams(presence_penalty=math.nan))
