"""Angles of positions, which the host computes for every backend."""

import mlx.core as mx
import numpy as np
import pytest

from slotstream_core import testing
from slotstream_core.checkpoint.config import Qwen4ExpConfig
from slotstream_core.models.qwen4_exp.rotary import WINDOW_TOKENS, RotaryEmbedding


@pytest.mark.parametrize("start", [0, 250, WINDOW_TOKENS, 5_001])
@pytest.mark.parametrize("tokens", [1, 3, 8, 300])
def test_angles_that_were_kept_are_those_that_would_be_computed(start: int, tokens: int) -> None:
    rotary = RotaryEmbedding(Qwen4ExpConfig.from_document(testing.config_document()), mx.float32)
    own, blocks = rotary.pass_angles(start, tokens, 4)
    wanted = rotary.angles(np.arange(start, start + tokens))
    assert np.array_equal(own.host_cos, wanted.host_cos)
    assert np.array_equal(own.host_sin, wanted.host_sin)
    completed = np.arange(start // 4, (start + tokens) // 4) * 4
    assert (blocks is None) == (not len(completed))
    if blocks is not None:
        assert np.array_equal(blocks.host_cos, rotary.angles(completed).host_cos)
