"""The text model against the family's own PyTorch implementation, whose results are recorded in goldens/."""

from pathlib import Path

import numpy as np
import pytest

from slotstream_core.checkpoint.conversion import ConversionOptions, convert_checkpoint
from slotstream_core.checkpoint.storage import StorageOptions
from slotstream_core.checkpoint.synthesis import write_huggingface
from tests.core.qwen4_exp_models import last_logits, open_model, run_passes
from tools.oracle.cases import CASES, GREEDY_TOKENS, ParityCase

GOLDENS = Path(__file__).parent / "goldens"
TOLERANCE = 2e-4
CHUNKS = (7, 1, 2, 16, 5, 33, 20)


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> ParityCase:
    found = request.param
    assert isinstance(found, ParityCase)
    return found


@pytest.fixture(scope="module")
def directory(case: ParityCase, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp(case.name)
    write_huggingface(root / "source", case.settings)
    options = ConversionOptions(storage=StorageOptions(bits=None))
    return convert_checkpoint(root / "source", root / "converted", options).directory


@pytest.mark.parametrize("lengths", [(1_000,), CHUNKS, (1,)], ids=["one-pass", "chunks", "token-by-token"])
def test_logits_equal_the_independent_implementation(
    case: ParityCase, directory: Path, lengths: tuple[int, ...]
) -> None:
    with np.load(GOLDENS / f"{case.name}.npz") as golden, open_model(directory) as model:
        ids, expected = golden["ids"], golden["logits"]
        logits = run_passes(model, ids[:-1].tolist(), lengths, model.new_state())
    assert ids[: case.prompt_tokens].tolist() == case.prompt()
    assert np.abs(logits - expected).max() <= TOLERANCE


def test_greedy_ids_equal_the_independent_implementation(case: ParityCase, directory: Path) -> None:
    with np.load(GOLDENS / f"{case.name}.npz") as golden, open_model(directory) as model:
        state = model.new_state()
        ids = case.prompt()
        logits = last_logits(model, ids, state)
        for _ in range(GREEDY_TOKENS - 1):
            ids.append(int(logits.argmax()))
            logits = last_logits(model, ids[-1:], state)
        ids.append(int(logits.argmax()))
        assert ids == golden["ids"].tolist()
