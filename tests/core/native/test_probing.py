"""The speed of the compiled products, as forecasts use it."""

import pytest

from slotstream_core.native import NativeLibrary
from slotstream_core.native.probing import probe_products


def test_a_probe_gives_the_speed_and_says_what_was_measured() -> None:
    if NativeLibrary.load(threads=1) is None:
        pytest.skip("the native library is not used here")
    speed = probe_products({"SLOTSTREAM_NATIVE": "scalar"}, rounds=1)
    assert speed is not None
    assert 1e6 < speed.flop_per_s < 1e14
    assert 1e6 < speed.prompt_flop_per_s < 1e14
    assert "scalar" in speed.label


def test_nothing_is_measured_when_the_products_are_switched_off() -> None:
    assert probe_products({"SLOTSTREAM_NATIVE": "0"}) is None
