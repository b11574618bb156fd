"""The contract that every decoder keeps: lazy tokens, and a state that holds all of them but the last."""

from contextlib import closing
from pathlib import Path

import pytest

from slotstream_core.checkpoint.synthesis import write_synthetic
from slotstream_core.generation.decoding import PlainDecoder, logits_row
from slotstream_core.generation.sampling import GREEDY, Sampler
from tests.core.qwen4_exp_models import open_model

SETTINGS = {"vocab_size": 288, "num_experts": 8, "split_ngram_parts": 2}
PROMPT = [(7 * i * i + 3 * i + 5) % 256 for i in range(20)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_synthetic(tmp_path_factory.mktemp("tiny"), SETTINGS, bits=None, float_type="F32")


@pytest.mark.parametrize(("limit", "taken"), [(1, 1), (5, 5), (5, 2)])
def test_the_state_holds_every_token_taken_but_the_last(tiny: Path, limit: int, taken: int) -> None:
    with open_model(tiny) as model:
        state = model.new_state()
        row = logits_row(model.forward(PROMPT, state).logits)
        tokens = []
        with closing(PlainDecoder(model, state, Sampler(GREEDY)).tokens(row, limit=limit)) as produced:
            for token in produced:
                tokens.append(token)
                if len(tokens) == taken:
                    break
        assert len(tokens) == taken
        assert state.length == len(PROMPT) + taken - 1


def test_a_decoder_stops_at_its_limit(tiny: Path) -> None:
    with open_model(tiny) as model:
        state = model.new_state()
        row = logits_row(model.forward(PROMPT, state).logits)
        assert len(list(PlainDecoder(model, state, Sampler(GREEDY)).tokens(row, limit=4))) == 4
        assert state.length == len(PROMPT) + 3
